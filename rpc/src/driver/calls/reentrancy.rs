//! Detection of code of the program that a worker has called. Such code must not wait for what only its own thread can
//! do: it would deadlock.

use core::cell::RefCell;
use rendezvous_core::prelude::*;
use std::thread_local;

/// Kind of a call of the program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSite {
    /// A handler on a thread of the pool: it may wait.
    Pooled,
    /// A handler on the thread that serves all connections.
    Inline,
    /// A callback with the result of a call, or one that releases a payload.
    Callback,
}

/// Identity of a worker, by which its code finds out whether it runs inside the worker. Clones have the same identity.
#[derive(Clone, Debug, Default)]
pub struct Home(Arc<()>);

thread_local! {
    /// The program's code on this thread's stack, the innermost last; each with the address of a [`Home`] that lives as
    /// long.
    static SITES: RefCell<Vec<(usize, CallSite)>> = const { RefCell::new(Vec::new()) };
}

/// Guard of a call of the program's code on this thread.
struct SiteGuard;

impl Drop for SiteGuard {
    fn drop(&mut self) {
        SITES.try_with(|sites| sites.borrow_mut().pop()).ok();
    }
}

/// Checks whether this thread is in such code. A thread that is terminating is not.
fn is_in(is_it: impl Fn(&(usize, CallSite)) -> bool) -> bool {
    SITES.try_with(|sites| sites.borrow().iter().any(is_it)).unwrap_or(false)
}

/// Address in place of that of a [`Home`], for code that any worker may have called.
const ANY_HOME: usize = 0;

fn run_at<T>(home: usize, site: CallSite, code: impl FnOnce() -> T) -> T {
    let is_noted = SITES.try_with(|sites| sites.borrow_mut().push((home, site))).is_ok();
    let _guard = is_noted.then_some(SiteGuard);
    code()
}

/// Runs code of the program that releases a payload. A payload does not know its worker, and the thread may be the one
/// that drives all connections of any worker. So this code is in a callback of each.
pub fn release(code: impl FnOnce()) {
    run_at(ANY_HOME, CallSite::Callback, code);
}

impl Home {
    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Runs code of the program on behalf of this worker.
    pub fn run<T>(&self, site: CallSite, code: impl FnOnce() -> T) -> T {
        run_at(self.address(), site, code)
    }

    /// Whether this thread is in code that this worker has called.
    pub fn is_around(&self) -> bool {
        let address = self.address();
        is_in(|&(home, _)| home == address || home == ANY_HOME)
    }
}

/// Whether this thread may wait for a call. In an inline handler or a callback of any worker it may not: the thread may
/// be the one that would read the response, or that checks the call's deadline.
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
        release(|| assert_eq!(around(), (true, true, false)));
        catch_unwind(AssertUnwindSafe(|| two.run(CallSite::Inline, || panic!("it fails"))))
            .expect_err("it did");
        assert_eq!(around(), (false, false, true));
    }
}
