//! Guard around the body of every function of the C API: catches panics, converts errors and poisons handles.
//!
//! The functions of the C API are `unsafe`, because the header says which of their pointers must be valid. All of them
//! rest on that one promise, so the macros here contain the `unsafe` block in which such a function runs.

use crate::argument::reference;
use crate::fault::{Fault, rdzv_error};
use crate::sized::{Output, out_pointer};
use crate::status::{RDZV_FREE_REFUSED, RDZV_OK, RDZV_PANIC, RDZV_POISONED, rdzv_status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// State of a handle that its calls share.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    /// True once a call on the handle has panicked.
    is_poisoned: AtomicBool,
    /// Number of calls in progress, on all threads.
    calls: AtomicUsize,
    /// True after a free was refused, until the next call.
    free_was_refused: AtomicBool,
}

/// Call in progress on a handle.
struct Calling<'a>(&'a AtomicUsize);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl HandleState {
    pub(crate) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Release);
    }

    fn begin_call(&self) -> Calling<'_> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        Calling(&self.calls)
    }

    /// Begins the last call, which frees the handle, so that what its destructor calls back cannot free it once more.
    /// Returns false while another call is in progress.
    fn end(&self) -> bool {
        self.calls.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Refuses to free the handle: its next call fails.
    pub(crate) fn refuse_free(&self) {
        self.free_was_refused.store(true, Ordering::Release);
    }

    /// Returns true if a free was refused since the last call.
    pub(crate) fn free_was_refused(&self) -> bool {
        self.free_was_refused.load(Ordering::Acquire)
    }

    /// Checks whether a call may begin.
    ///
    /// # Errors
    ///
    /// The handle is poisoned, or a free was refused since the last call.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(Fault::new(RDZV_POISONED, "an earlier call on this handle panicked; free it"));
        }
        if self.free_was_refused() && self.free_was_refused.swap(false, Ordering::AcqRel) {
            let message =
                "this handle was freed inside one of its own callbacks, which had no effect; free it outside";
            return Err(Fault::new(RDZV_FREE_REFUSED, message));
        }
        Ok(())
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
    fn state(&self) -> &HandleState;

    /// Refuses a call of the context's log sink, see [`crate::context::ContextShared::refuse_sink`].
    fn refuse_sink(&self) -> Result<(), Fault>;

    /// Logs that a free by this function was refused.
    fn warn_free_refused(&self, function: &str);

    /// Returns true inside a callback that a thread of the library runs while no call of the program on the handle is in
    /// progress.
    fn is_calling_back(&self) -> bool;
}

/// Makes a type with a field `state` a [`Handle`], of the context in another field if it has one. A function may say
/// whether it is calling back.
macro_rules! handle {
    ($handle:ident $(, $context:ident $(, $is_calling_back:expr)?)?) => {
        impl $crate::guard::Handle for $handle {
            fn state(&self) -> &$crate::guard::HandleState {
                &self.state
            }

            fn refuse_sink(&self) -> Result<(), $crate::fault::Fault> {
                $(self.$context.refuse_sink()?;)?
                Ok(())
            }

            fn warn_free_refused(&self, _function: &str) {
                $(self.$context.warn_free_refused(_function);)?
            }

            fn is_calling_back(&self) -> bool {
                $($(if $is_calling_back(self) { return true; })?)?
                false
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
            call_on(target.as_ref().map(H::state), error, &mut || {
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
    state: Option<&HandleState>,
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut() -> Result<(), Fault>,
) -> rdzv_status {
    let _calling = state.map(HandleState::begin_call);
    let mut result = state.map_or(Ok(()), HandleState::check);
    if result.is_ok()
        && let Err(panic) = caught(&mut || result = body())
    {
        result = Err(Fault::new(RDZV_PANIC, format!("a bug in librendezvous: {panic}")));
    }
    let Err(fault) = result else { return RDZV_OK };
    let status = fault.status;
    // A thread of the library may have panicked, too.
    if let (Some(state), RDZV_PANIC) = (state, status) {
        state.poison();
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

/// Runs a body that cannot report a failure as a call on a handle: code of the program that it runs cannot free the
/// handle. NULL is ignored.
pub(crate) unsafe fn notify<H: Handle>(handle: *const H, body: impl Fn(&H)) {
    // SAFETY: passed on unchanged.
    unsafe {
        read(handle, (), |handle| {
            let _calling = handle.state().begin_call();
            body(handle);
        });
    }
}

/// Returns a new handle for the caller, who owns it.
pub(crate) fn boxed<T>(handle: T) -> *mut T {
    Box::into_raw(Box::new(handle))
}

/// Frees what the library has boxed, unless `refuse` returns true; NULL is ignored.
pub(crate) unsafe fn free_unless<T>(object: *mut T, refuse: impl Fn(&T) -> bool) {
    quiet((), || {
        // SAFETY: NULL or live, as the header requires.
        if unsafe { object.as_ref() }.is_some_and(|object| !refuse(object)) {
            // SAFETY: the caller of the C function owns the object and gives it up.
            drop(unsafe { Box::from_raw(object) });
        }
    });
}

/// Frees what has no calls in progress; NULL is ignored.
pub(crate) unsafe fn free<T>(object: *mut T) {
    // SAFETY: passed on unchanged.
    unsafe { free_unless(object, |_| false) };
}

/// Frees a handle, unless a call on it or a callback of its object is in progress; NULL is ignored.
pub(crate) unsafe fn free_handle<H: Handle>(handle: *mut H, function: &str) {
    // SAFETY: passed on unchanged.
    unsafe {
        free_unless(handle, |handle| {
            let state = handle.state();
            let mut is_refused = !state.end();
            if !is_refused && handle.is_calling_back() {
                state.calls.fetch_sub(1, Ordering::AcqRel);
                is_refused = true;
            }
            if is_refused {
                state.refuse_free();
                handle.warn_free_refused(function);
            }
            is_refused
        });
    }
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
        let state = HandleState::default();
        let mut error = null_mut();
        // SAFETY: `error` is a live variable.
        let status = unsafe { call_on(Some(&state), &raw mut error, &mut || panic!("provoked")) };
        assert_eq!(status, RDZV_PANIC);
        // SAFETY: the call has written `error`.
        unsafe {
            assert_eq!(rdzv_error_status(error), RDZV_PANIC);
            rdzv_error_free(error);
            assert_eq!(call_on(Some(&state), null_mut(), &mut || Ok(())), RDZV_POISONED);
        }
        assert_eq!(quiet(7, || panic!("provoked")), 7);
    }
}
