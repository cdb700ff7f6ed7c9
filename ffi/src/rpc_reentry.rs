//! Detection of calls from inside the functions of an RPC backend in user code.

use std::cell::RefCell;

thread_local! {
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
