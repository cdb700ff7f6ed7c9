//! The one guard around every body at the C border: no panic leaves, errors are projected, handles are
//! poisoned.

use crate::fault::{Fault, rdzv_error};
use crate::status::{RDZV_OK, RDZV_PANIC, RDZV_POISONED, rdzv_status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a call on a handle has panicked.
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
    /// Whether this thread is within a guard.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Where this thread panicked within a guard, for the error's message.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A body and its result. Not a closure behind a pointer: the table of one would hold the body's code once more.
trait Run {
    fn run(&mut self);
}

struct Job<F, R> {
    body: Option<F>,
    result: Option<R>,
}

impl<F: FnOnce() -> R, R> Run for Job<F, R> {
    fn run(&mut self) {
        self.result = self.body.take().map(|body| body());
    }
}

/// Runs a job. A panic ends here, without a word on stderr, and becomes what there is to say of it. Stands once in the
/// library, whatever the number of its functions.
#[inline(never)]
fn caught(job: &mut dyn Run) -> Result<(), String> {
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
    let result = catch_unwind(AssertUnwindSafe(|| job.run()));
    GUARDED.set(outer);
    result.map_err(|panic| format!("{}{}", panic_text(&*panic), PANICKED_AT.take()))
}

/// Whether a panic is one that this library reports as a status: one within a guard, or on a thread of its own.
fn is_ours(panic: &PanicHookInfo<'_>) -> bool {
    // A thread that ends may have lost its thread-locals already.
    let is_guarded = GUARDED.try_with(Cell::get).unwrap_or(false);
    if let (true, Some(origin)) = (is_guarded, panic.location()) {
        PANICKED_AT.try_with(|at| *at.borrow_mut() = format!(" ({}:{})", origin.file(), origin.line())).ok();
    }
    is_guarded || std::thread::current().name().is_some_and(|name| name.starts_with("rdzv-"))
}

/// Runs the body of a function that returns a status; `error`, if not NULL, takes the details of a failure.
pub(crate) unsafe fn call(
    error: *mut *mut rdzv_error,
    body: impl FnOnce() -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: `error` is passed on as it came.
    unsafe { call_on(None, error, body) }
}

/// The same for a function on a handle: a panic poisons it, and a poisoned handle serves no more.
pub(crate) unsafe fn call_on(
    poison: Option<&Poison>,
    error: *mut *mut rdzv_error,
    body: impl FnOnce() -> Result<(), Fault>,
) -> rdzv_status {
    let mut call = Some(body);
    // SAFETY: `error` is passed on as it came.
    unsafe { guarded(poison, error, &mut call) }
}

/// A body that may fail.
trait Call {
    fn call(&mut self) -> Result<(), Fault>;
}

impl<F: FnOnce() -> Result<(), Fault>> Call for Option<F> {
    fn call(&mut self) -> Result<(), Fault> {
        self.take().map_or(Ok(()), |body| body())
    }
}

/// Stands once in the library, as [`caught`].
#[inline(never)]
unsafe fn guarded(poison: Option<&Poison>, error: *mut *mut rdzv_error, body: &mut dyn Call) -> rdzv_status {
    let fault = if poison.is_some_and(Poison::is_set) {
        Fault::new(RDZV_POISONED, "an earlier call on this handle panicked; free it")
    } else {
        let mut job = Job { body: Some(|| body.call()), result: None };
        match (caught(&mut job), job.result) {
            (Err(panic), _) => Fault::new(RDZV_PANIC, format!("a bug in librendezvous: {panic}")),
            (Ok(()), Some(Err(fault))) => fault,
            (Ok(()), _) => return RDZV_OK,
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

/// Runs a body that cannot report a failure: after a panic, `fallback` is its result.
pub(crate) fn quiet<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    let mut job = Job { body: Some(body), result: None };
    match caught(&mut job) {
        Ok(()) => job.result.unwrap_or(fallback),
        Err(_) => fallback,
    }
}

/// Reads something of a handle that may be NULL; then, and after a panic, `fallback` is the result.
pub(crate) unsafe fn read<T, R: Copy>(handle: *const T, fallback: R, read: impl FnOnce(&T) -> R) -> R {
    // SAFETY: the caller of the C function promises that a non-NULL handle is live.
    quiet(fallback, || unsafe { handle.as_ref() }.map_or(fallback, read))
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
        let status = unsafe { call_on(Some(&poison), &raw mut error, || panic!("provoked")) };
        assert_eq!(status, RDZV_PANIC);
        // SAFETY: the call has written `error`.
        unsafe {
            assert_eq!(rdzv_error_status(error), RDZV_PANIC);
            rdzv_error_free(error);
            assert_eq!(call_on(Some(&poison), null_mut(), || Ok(())), RDZV_POISONED);
        }
        assert_eq!(quiet(7, || panic!("provoked")), 7);
    }
}
