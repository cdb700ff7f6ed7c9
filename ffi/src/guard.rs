//! Guard around the body of every function of the C API: catches panics, converts errors and poisons handles.
//!
//! The functions of the C API are `unsafe`, because the header says which of their pointers must be valid. All of them
//! rest on that one promise, so the macros here contain the `unsafe` block in which such a function runs.

use crate::argument::reference;
use crate::fault::{Fault, rdzv_error};
use crate::sized::{Output, out_pointer};
use crate::status::{RDZV_OK, RDZV_PANIC, RDZV_POISONED, rdzv_status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flag of a handle that is set once a call on it has panicked.
#[derive(Debug, Default)]
pub(crate) struct Poison(AtomicBool);

impl Poison {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

thread_local! {
    /// True while this thread is inside a guard.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Source location of this thread's last panic inside a guard, for the error message.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a body and converts a panic to its message without printing to stderr.
fn caught(body: &mut dyn FnMut()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_ours(panic) {
                hook(panic);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    GUARDED.set(outer);
    result.map_err(|panic| format!("{}{}", panic_text(&*panic), PANICKED_AT.take()))
}

/// Returns true for a panic that the library reports as a status: one inside a guard or on a thread of the
/// library.
fn is_ours(panic: &PanicHookInfo<'_>) -> bool {
    // The thread-locals of a thread that ends may already be destroyed.
    let is_guarded = GUARDED.try_with(Cell::get).unwrap_or(false);
    if let (true, Some(origin)) = (is_guarded, panic.location()) {
        PANICKED_AT.try_with(|at| *at.borrow_mut() = format!(" ({}:{})", origin.file(), origin.line())).ok();
    }
    is_guarded || std::thread::current().name().is_some_and(|name| name.starts_with("rdzv-"))
}

/// Runs the body of a function that returns a status: `guard::call!(error, || ...)`. `error`, if not NULL, receives the
/// details of a failure. With an output pointer, `guard::call!(error, out, || ...)`, the value that the body returns is
/// written to it; it is checked before the body runs.
macro_rules! call {
    ($error:expr, $body:expr) => {
        // SAFETY: the pointers are NULL or valid, as the header requires.
        unsafe { $crate::guard::call_on(None, $error, &mut $body) }
    };
    ($error:expr, $out:ident, $body:expr) => {
        // SAFETY: as above.
        unsafe { $crate::guard::call_with_output($error, ($out, stringify!($out)), &mut $body) }
    };
}
pub(crate) use call;

/// Does the same for a function on an object, to which the body gets access: `guard::on!(error, store, |store| ...)`.
macro_rules! on {
    ($error:expr, $target:ident, $body:expr) => {
        // SAFETY: the pointers are NULL or valid, as the header requires.
        unsafe { $crate::guard::Target::enter($target, stringify!($target), $error, &mut $body) }
    };
    ($error:expr, $target:ident, $out:ident, $body:expr) => {
        // SAFETY: as above.
        unsafe {
            let out = ($out, stringify!($out));
            $crate::guard::enter_with_output($target, stringify!($target), $error, out, &mut $body)
        }
    };
}
pub(crate) use on;

/// Object on which functions of the C API work.
pub(crate) trait Target: 'static {
    /// What the body of a function gets.
    type Access<'a>;

    /// Runs the body of a function on the object that the argument `name` points to.
    unsafe fn enter(
        target: *const Self,
        name: &str,
        error: *mut *mut rdzv_error,
        body: &mut dyn FnMut(Self::Access<'_>) -> Result<(), Fault>,
    ) -> rdzv_status;
}

/// Handle that any number of threads may use. A panic poisons it, and the log sink of its context may not use it.
pub(crate) trait Handle: 'static {
    fn poison(&self) -> &Poison;

    /// Refuses a call of the context's log sink, see [`crate::context::ContextShared::refuse_sink`].
    fn refuse_sink(&self) -> Result<(), Fault>;
}

/// Makes a type with a field `poison` a [`Handle`], of the context in another field if it has one.
macro_rules! handle {
    ($handle:ident $(, $context:ident)?) => {
        impl $crate::guard::Handle for $handle {
            fn poison(&self) -> &$crate::guard::Poison {
                &self.poison
            }

            fn refuse_sink(&self) -> Result<(), $crate::fault::Fault> {
                $(self.$context.refuse_sink()?;)?
                Ok(())
            }
        }
    };
}
pub(crate) use handle;

impl<H: Handle> Target for H {
    type Access<'a> = &'a H;

    unsafe fn enter(
        target: *const H,
        name: &str,
        error: *mut *mut rdzv_error,
        body: &mut dyn FnMut(&H) -> Result<(), Fault>,
    ) -> rdzv_status {
        // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
        unsafe {
            call_on(target.as_ref().map(H::poison), error, &mut || {
                let handle = reference(target, name)?;
                handle.refuse_sink()?;
                body(handle)
            })
        }
    }
}

/// Runs a body and writes its value to `out`, which is an argument and its name.
pub(crate) unsafe fn call_with_output<R: Output>(
    error: *mut *mut rdzv_error,
    (out, out_name): (*mut R, &str),
    body: &mut dyn FnMut() -> Result<R, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        call_on(None, error, &mut || {
            let out = out_pointer(out, out_name)?;
            out.put(body()?);
            Ok(())
        })
    }
}

/// Does the same for a function on an object.
pub(crate) unsafe fn enter_with_output<T: Target, R: Output>(
    target: *const T,
    name: &str,
    error: *mut *mut rdzv_error,
    (out, out_name): (*mut R, &str),
    body: &mut dyn FnMut(T::Access<'_>) -> Result<R, Fault>,
) -> rdzv_status {
    // SAFETY: as above.
    unsafe {
        T::enter(target, name, error, &mut |access| {
            let out = out_pointer(out, out_name)?;
            out.put(body(access)?);
            Ok(())
        })
    }
}

/// Runs the body of a function. If it panics, the handle that it works on is poisoned; calls on a poisoned handle fail.
pub(crate) unsafe fn call_on(
    poison: Option<&Poison>,
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut() -> Result<(), Fault>,
) -> rdzv_status {
    let fault = if poison.is_some_and(Poison::is_set) {
        Fault::new(RDZV_POISONED, "an earlier call on this handle panicked; free it")
    } else {
        let mut result = Ok(());
        match (caught(&mut || result = body()), result) {
            (Err(panic), _) => Fault::new(RDZV_PANIC, format!("a bug in librendezvous: {panic}")),
            (Ok(()), Err(fault)) => fault,
            (Ok(()), Ok(())) => return RDZV_OK,
        }
    };
    let status = fault.status;
    if let (Some(poison), RDZV_PANIC) = (poison, status) {
        poison.set();
    }
    if !error.is_null() {
        // SAFETY: the caller promises that a non-NULL `error` can be written.
        unsafe { error.write(Box::into_raw(Box::new(rdzv_error::new(fault)))) };
    }
    status
}

/// Runs a body that cannot report a failure; returns `fallback` after a panic.
pub(crate) fn quiet<R>(fallback: R, mut body: impl FnMut() -> R) -> R {
    let mut result = fallback;
    // After a panic the result is the fallback still.
    let _ = caught(&mut || result = body());
    result
}

/// Reads a value of a handle; returns `fallback` for NULL and after a panic.
pub(crate) unsafe fn read<T, R: Copy>(handle: *const T, fallback: R, read: impl Fn(&T) -> R) -> R {
    // SAFETY: the caller of the C function promises that a non-NULL handle is live.
    quiet(fallback, || unsafe { handle.as_ref() }.map_or(fallback, &read))
}

/// Returns a new handle for the caller, who owns it.
pub(crate) fn boxed<T>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// Frees a handle; NULL is ignored.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    quiet((), || {
        if !handle.is_null() {
            // SAFETY: the caller of the C function owns the handle, which this library boxed, and gives it up.
            drop(unsafe { Box::from_raw(handle) });
        }
    });
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{rdzv_error_free, rdzv_error_status};
    use std::ptr::null_mut;

    #[test]
    fn a_panic_becomes_a_status_and_poisons_the_handle() {
        let poison = Poison::default();
        let mut error = null_mut();
        // SAFETY: `error` is a live variable.
        let status = unsafe { call_on(Some(&poison), &raw mut error, &mut || panic!("provoked")) };
        assert_eq!(status, RDZV_PANIC);
        // SAFETY: the call has written `error`.
        unsafe {
            assert_eq!(rdzv_error_status(error), RDZV_PANIC);
            rdzv_error_free(error);
            assert_eq!(call_on(Some(&poison), null_mut(), &mut || Ok(())), RDZV_POISONED);
        }
        assert_eq!(quiet(7, || panic!("provoked")), 7);
    }
}
