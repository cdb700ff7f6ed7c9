//! Detection of calls from inside the functions of an RPC backend in user code.

use crate::fault::Fault;
use crate::status::RDZV_REENTRANT;
use std::cell::{Cell, RefCell};

thread_local! {
    /// True while this thread is in user code that creates options, which may not use RPC.
    static MAKES_OPTIONS: Cell<bool> = const { Cell::new(false) };
    /// Workers in whose own code this thread is, the innermost last. Code of handlers and callbacks that
    /// such code calls does not count.
    static IN_CODE_OF: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Restores the previous workers of this thread.
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

/// Marks this thread as being in a worker's own code until it is dropped.
pub(crate) struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        IN_CODE_OF.with_borrow_mut(|inside| _ = inside.pop());
    }
}

/// Enters the own code of the worker with this address.
pub(crate) fn enter(worker: usize) -> Inside {
    IN_CODE_OF.with_borrow_mut(|inside| inside.push(worker));
    Inside
}

/// Returns true if this thread is in the own code of the worker with this address.
pub(crate) fn is_inside(worker: usize) -> bool {
    IN_CODE_OF.with_borrow(|inside| inside.contains(&worker))
}

/// Runs user code that creates options.
pub(crate) fn making_options<R>(make: impl FnOnce() -> R) -> R {
    let outer = MAKES_OPTIONS.replace(true);
    let made = make();
    MAKES_OPTIONS.set(outer);
    made
}

/// Refuses a call from user code that creates options.
///
/// # Errors
///
/// The caller is a backend that creates options.
pub(crate) fn refuse_reentry() -> Result<(), Fault> {
    if MAKES_OPTIONS.get() {
        return Err(Fault::new(RDZV_REENTRANT, "an RPC backend requested options while creating some"));
    }
    Ok(())
}
