//! Which code of an RPC backend of the program's a thread is in, and what that may not use.

use crate::fault::Fault;
use crate::status::RDZV_REENTRANT;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Whether this thread is in code of the program's that makes options, which may ask nothing of RPC.
    static MAKES_OPTIONS: Cell<bool> = const { Cell::new(false) };
    /// The workers whose own code this thread is in, the innermost last. Not that of handlers and callbacks that such
    /// code calls.
    static IN_CODE_OF: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Puts back what this thread was in before.
struct Restore(Vec<usize>);

impl Drop for Restore {
    fn drop(&mut self) {
        IN_CODE_OF.replace(std::mem::take(&mut self.0));
    }
}

/// Runs a handler or a callback, which may use a worker whose code called it.
pub(crate) fn outside_workers(run: impl FnOnce()) {
    let _restore = Restore(IN_CODE_OF.take());
    run();
}

/// This thread is in a worker's own code as long as it lives.
pub(crate) struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        IN_CODE_OF.with_borrow_mut(|inside| _ = inside.pop());
    }
}

/// Goes into the own code of the worker with this address.
pub(crate) fn enter(worker: usize) -> Inside {
    IN_CODE_OF.with_borrow_mut(|inside| inside.push(worker));
    Inside
}

/// Whether this thread is in the own code of the worker with this address.
pub(crate) fn is_inside(worker: usize) -> bool {
    IN_CODE_OF.with_borrow(|inside| inside.contains(&worker))
}

/// Runs code of the program's that makes options.
pub(crate) fn making_options<R>(make: impl FnOnce() -> R) -> R {
    let outer = MAKES_OPTIONS.replace(true);
    let made = make();
    MAKES_OPTIONS.set(outer);
    made
}

/// # Errors
/// A backend that makes options is the caller.
pub(crate) fn refuse_reentry() -> Result<(), Fault> {
    if MAKES_OPTIONS.get() {
        return Err(Fault::new(RDZV_REENTRANT, "an RPC backend asked for options while it makes some"));
    }
    Ok(())
}
