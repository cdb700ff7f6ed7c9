//! Cancellation of blocking calls from another thread.

use crate::driver::lock::Lock;
use crate::opaque::opaque_debug;
use crate::prelude::*;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};

/// Token that ends blocking calls. Clones are the same token.
///
/// Once cancelled it stays cancelled: calls in progress end, and later calls with it end at once. Any thread may use
/// it.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<TokenShared>);

#[derive(Default)]
struct TokenShared {
    /// Changed under the lock of `hooks`, and read without it.
    is_cancelled: AtomicBool,
    hooks: Mutex<Vec<Arc<Hook>>>,
    /// Signalled when the token is cancelled.
    cancelled: Condvar,
    /// Registrations with the parents.
    parents: OnceLock<Vec<CancelGuard>>,
}

impl Drop for TokenShared {
    fn drop(&mut self) {
        // A parent may be cancelling this token in the current thread.
        self.parents.take().into_iter().flatten().for_each(CancelGuard::let_go);
    }
}

/// Callback of a token; `None` once it was called or removed. The lock is held during the call.
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    fn call(&self) {
        let mut hook = self.0.locked();
        if let Some(hook) = hook.take() {
            hook();
        }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a token that is cancelled with one of these, or alone.
    pub(super) fn child_of(parents: &[&Self]) -> Self {
        let child = Self::new();
        let guards = parents.iter().map(|parent| {
            let weak = Arc::downgrade(&child.0);
            parent.on_cancel(move || {
                if let Some(child) = weak.upgrade() {
                    Self(child).cancel();
                }
            })
        });
        // A new token has no parents yet.
        child.0.parents.set(guards.collect()).ok();
        child
    }

    /// Cancels the token and its children. Their hooks run in this thread, each once.
    pub fn cancel(&self) {
        let mut hooks = self.0.hooks.locked();
        self.0.is_cancelled.store(true, Ordering::Release);
        let called = core::mem::take(&mut *hooks);
        // A hook may run code of the program, and that code may use this token.
        drop(hooks);
        self.0.cancelled.notify_all();
        called.iter().for_each(|hook| hook.call());
    }

    /// Returns whether the token is cancelled. Takes no lock, so a hook may take a lock that the caller holds.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits until the token is cancelled, for at most `timeout`. Returns whether it is.
    pub fn wait(&self, timeout: Duration) -> bool {
        let waits = |_: &mut Vec<Arc<Hook>>| !self.is_cancelled();
        drop(self.0.cancelled.wait_timeout_while(self.0.hooks.locked(), timeout, waits));
        self.is_cancelled()
    }

    /// Registers `hook`, which is called once when the token is cancelled while the guard lives, and at once if it
    /// already is. The hook must be quick, and must not drop its own guard.
    #[must_use = "the hook is removed when this is dropped"]
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) -> CancelGuard {
        let hook = Arc::new(Hook(Mutex::new(Some(Box::new(hook)))));
        let mut hooks = self.0.hooks.locked();
        let is_cancelled = self.is_cancelled();
        if !is_cancelled {
            hooks.push(Arc::clone(&hook));
        }
        drop(hooks);
        if is_cancelled {
            hook.call();
        }
        CancelGuard { token: self.clone(), hook: Some(hook) }
    }
}

/// Registration of a hook. If the hook is running on another thread, dropping this waits for its end.
pub struct CancelGuard {
    token: CancelToken,
    hook: Option<Arc<Hook>>,
}

opaque_debug!(CancelGuard);

impl CancelGuard {
    /// Removes the hook without waiting for a call of it. This is for hooks that run code of the program, which may
    /// wait for this thread, and that do no harm when they run later.
    pub fn let_go(mut self) {
        self.forget();
    }

    fn forget(&mut self) -> Option<Arc<Hook>> {
        let hook = self.hook.take()?;
        let mut hooks = self.token.0.hooks.locked();
        let index = hooks.iter().position(|known| Arc::ptr_eq(known, &hook));
        let known = index.map(|index| hooks.swap_remove(index));
        // The hook may hold the last reference to an object whose destructor takes long.
        drop(hooks);
        drop(known);
        Some(hook)
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if let Some(hook) = self.forget() {
            let hook = hook.0.locked().take();
            drop(hook);
        }
    }
}

/// Canceller of a handle's calls: ends those in progress, and no later ones. Clones cancel the same calls.
///
/// A call takes the current token once, when it begins, and all its steps use that.
#[derive(Clone)]
pub struct Canceller(Arc<CancellerShared>);

struct CancellerShared {
    /// Wakes the waiting calls when their token is cancelled.
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
    current: Mutex<Current>,
}

struct Current {
    /// Cancelled by [`Canceller::cancel`], with all its children.
    own: CancelToken,
    parent: CancelToken,
    /// Child of both.
    token: CancelToken,
    _guard: Option<CancelGuard>,
}

impl Current {
    fn new(own: CancelToken, parent: &CancelToken, wake: Option<&Arc<dyn Fn() + Send + Sync>>) -> Self {
        let token = CancelToken::child_of(&[&own, parent]);
        let _guard = wake.cloned().map(|wake| token.on_cancel(move || wake()));
        Self { own, parent: parent.clone(), token, _guard }
    }
}

impl Default for Canceller {
    fn default() -> Self {
        Self::of(&CancelToken::new(), None)
    }
}

opaque_debug!(Canceller);

impl Canceller {
    /// Makes a canceller of calls that `parent` ends, too. `wake` is called when they are cancelled.
    pub fn of(parent: &CancelToken, wake: Option<Arc<dyn Fn() + Send + Sync>>) -> Self {
        let current = Mutex::new(Current::new(CancelToken::new(), parent, wake.as_ref()));
        Self(Arc::new(CancellerShared { wake, current }))
    }

    /// Returns the token of a call that begins now.
    pub fn token(&self) -> CancelToken {
        self.0.current.locked().token.clone()
    }

    /// Ends the calls that have begun. Calls that begin later are not affected.
    pub fn cancel(&self) {
        let cancelled = loop {
            let parent = self.0.current.locked().parent.clone();
            // Not under the lock: a parent that is cancelled already calls the wake function at once.
            let next = Current::new(CancelToken::new(), &parent, self.0.wake.as_ref());
            let mut current = self.0.current.locked();
            if Arc::ptr_eq(&current.parent.0, &parent.0) {
                break core::mem::replace(&mut *current, next);
            }
        };
        cancelled.own.cancel();
    }

    /// Sets the parent of the tokens of later calls. This is for cancellers without a wake function: it would not be
    /// called for the calls that have begun.
    pub fn set_parent(&self, parent: &CancelToken) {
        let mut current = self.0.current.locked();
        *current = Current::new(current.own.clone(), parent, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;

    /// Longer than anything here takes.
    const SOON: Duration = Duration::from_secs(20);

    /// Counts its calls.
    fn counting(count: &Arc<AtomicU64>) -> impl Fn() + Send + Sync + 'static {
        let count = Arc::clone(count);
        move || {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn child_of(parent: &CancelToken) -> CancelToken {
        CancelToken::child_of(&[parent])
    }

    #[test]
    fn a_cancelled_token_stays_cancelled_and_calls_each_hook_once() {
        let (token, calls) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
        let guard = token.on_cancel(counting(&calls));
        drop(token.on_cancel(|| panic!("it was removed")));
        assert!(!token.wait(Duration::ZERO) && !token.is_cancelled());
        token.clone().cancel();
        token.cancel();
        assert!(token.is_cancelled() && token.wait(SOON));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        drop(token.on_cancel(counting(&calls)));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "it is called at once");
        drop(guard);
        assert_eq!(Arc::strong_count(&calls), 1);
    }

    #[test]
    fn a_child_is_cancelled_with_its_parent_or_alone() {
        let parent = CancelToken::new();
        let (alone, child) = (child_of(&parent), child_of(&child_of(&parent)));
        alone.cancel();
        assert!(alone.is_cancelled() && !parent.is_cancelled() && !child.is_cancelled());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.wait(SOON));
            parent.cancel();
            assert!(waiting.join().expect("no panic"));
        });
        assert!(child_of(&parent).is_cancelled());
        let parent = CancelToken::new();
        drop(child_of(&parent));
        assert!(parent.0.hooks.locked().is_empty(), "nothing is left of it");
    }

    #[test]
    fn a_canceller_ends_the_calls_that_have_begun() {
        let (parent, wakes) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
        let canceller = Canceller::of(&parent, Some(Arc::new(counting(&wakes))));
        let call = canceller.token();
        canceller.clone().cancel();
        assert_eq!((call.is_cancelled(), wakes.load(Ordering::Relaxed)), (true, 1));
        let later = canceller.token();
        assert!(!later.is_cancelled());
        parent.cancel();
        assert_eq!((later.is_cancelled(), wakes.load(Ordering::Relaxed)), (true, 2));
        canceller.cancel();
        assert!(canceller.token().is_cancelled(), "its parent stays cancelled");
    }

    #[test]
    fn a_canceller_with_another_parent_still_ends_the_calls_that_have_begun() {
        let (canceller, parents) = (Canceller::default(), [CancelToken::new(), CancelToken::new()]);
        let calls = parents.each_ref().map(|parent| {
            canceller.set_parent(parent);
            [canceller.token(), child_of(&canceller.token())]
        });
        parents[0].cancel();
        assert!(calls[0].iter().all(CancelToken::is_cancelled));
        assert!(!calls[1].iter().any(CancelToken::is_cancelled));
        canceller.set_parent(&CancelToken::new());
        canceller.cancel();
        assert!(calls[1].iter().all(CancelToken::is_cancelled));
        assert!(!canceller.token().is_cancelled());
    }

    #[test]
    fn a_hook_may_use_its_token() {
        let (token, (called, calls)) = (CancelToken::new(), channel());
        let inner = token.clone();
        let guard = token.on_cancel(move || {
            inner.cancel();
            let is_cancelled = inner.is_cancelled();
            drop(inner.on_cancel(move || called.send(is_cancelled).expect("the test goes on")));
        });
        token.cancel();
        drop(guard);
        assert_eq!(calls.recv(), Ok(true));
    }

    #[test]
    fn dropping_a_guard_waits_for_its_hook_unless_it_is_let_go() {
        for waits in [true, false] {
            let token = CancelToken::new();
            let (begun, begins) = channel();
            let (go_on, may_go_on) = channel::<()>();
            let over = Arc::new(AtomicBool::new(false));
            let is_over = Arc::clone(&over);
            let guard = token.on_cancel(move || {
                begun.send(()).ok();
                may_go_on.recv().ok();
                is_over.store(true, Ordering::Release);
            });
            let cancelling = std::thread::spawn(move || token.cancel());
            begins.recv().expect("it is called");
            if waits {
                let release = std::thread::spawn(move || go_on.send(()));
                drop(guard);
                assert!(over.load(Ordering::Acquire));
                release.join().expect("no panic").expect("it waits");
            } else {
                guard.let_go();
                assert!(!over.load(Ordering::Acquire));
                go_on.send(()).expect("it waits");
            }
            cancelling.join().expect("no panic");
        }
    }
}
