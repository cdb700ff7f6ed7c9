//! Guard around the body of every function of the C API: catches panics, converts errors and poisons handles.

use crate::fault::{Fault, rdzv_error};
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

/// Runs the body of a function that returns a status; `error`, if not NULL, receives the details of a
/// failure.
pub(crate) unsafe fn call(
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut() -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: `error` is passed on unchanged.
    unsafe { call_on(None, error, body) }
}

/// Does the same for a function on a handle: a panic poisons the handle, and calls on a poisoned handle
/// fail.
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
