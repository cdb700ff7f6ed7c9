//! Where the program's own code runs that a worker calls, and what must not be done there: whoever waits in it for what
//! only its own thread can bring waits in vain.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use std::thread_local;

/// How the program's code is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSite {
    /// As a handler on a thread of the pool: it may wait.
    Pooled,
    /// As a handler on the thread that serves all connections.
    Inline,
    /// With what came of a call.
    Callback,
}

/// A worker, as its code finds out whether it is within it. Clones stand for the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Home(Arc<()>);

thread_local! {
    /// The code that this thread is in, the innermost last; each with the address of a home that lives as long.
    static PLACES: RefCell<Vec<(usize, CallSite)>> = const { RefCell::new(Vec::new()) };
}

/// As long as it lives, this thread is in code that a worker called.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        PLACES.try_with(|places| places.borrow_mut().pop()).ok();
    }
}

/// Looks whether this thread is in such code. A thread that ends is in none.
fn is_in(is_it: impl Fn(&(usize, CallSite)) -> bool) -> bool {
    PLACES.try_with(|places| places.borrow().iter().any(is_it)).unwrap_or(false)
}

impl Home {
    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Runs code that this worker calls.
    pub(super) fn run<T>(&self, site: CallSite, code: impl FnOnce() -> T) -> T {
        let is_noted = PLACES.try_with(|places| places.borrow_mut().push((self.address(), site))).is_ok();
        let _stay = is_noted.then_some(Stay);
        code()
    }

    /// Whether this thread is in code that this worker called.
    pub(super) fn is_around(&self) -> bool {
        let address = self.address();
        is_in(|&(home, _)| home == address)
    }
}

/// Whether this thread may wait for a call. In an inline handler and in a callback it may not, whoever called them: the
/// thread may be the one that would bring the answer, or that keeps the call's time.
#[must_use]
pub fn may_wait() -> bool {
    !is_in(|&(_, site)| site != CallSite::Pooled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn code_is_within_all_who_called_it_until_it_returns() {
        let (one, two) = (Home::default(), Home::default());
        let around = || (one.is_around(), two.is_around(), may_wait());
        assert_eq!(around(), (false, false, true));
        one.run(CallSite::Pooled, || {
            assert_eq!(around(), (true, false, true));
            two.clone().run(CallSite::Inline, || assert_eq!(around(), (true, true, false)));
            two.run(CallSite::Callback, || assert_eq!(around(), (true, true, false)));
            std::thread::scope(|scope| {
                let other = scope.spawn(|| (one.is_around(), may_wait()));
                assert_eq!(other.join().expect("no panic"), (false, true));
            });
            assert_eq!(around(), (true, false, true));
        });
        catch_unwind(AssertUnwindSafe(|| two.run(CallSite::Inline, || panic!("it fails"))))
            .expect_err("it did");
        assert_eq!(around(), (false, false, true));
    }
}
