//! Cancellation of waits from another thread, including waits of several steps.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Cancels calls. Clones cancel the same calls.
#[derive(Clone, Default)]
pub struct Canceller {
    shared: Arc<CancellerShared>,
    /// Epoch in which the call began whose steps this cancels. `None`: each call has the epoch in which it begins.
    part_of: Option<u64>,
}

#[derive(Default)]
struct CancellerShared {
    /// Number of cancels so far. It changes under the lock and is read without it.
    epoch: AtomicU64,
    hooks: Mutex<Vec<Arc<Hook>>>,
}

/// Callback for a cancelled call; `None` once its watch has ended. The lock is held during the callback.
struct Hook(Mutex<Option<Box<dyn Fn() + Send>>>);

impl Hook {
    /// Calls the callback, unless it is running: on another thread, or further up in this thread's stack.
    fn call(&self) {
        let hook = match self.0.try_lock() {
            Ok(hook) => hook,
            Err(TryLockError::Poisoned(hook)) => hook.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(hook) = &*hook {
            hook();
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canceller")
    }
}

impl Canceller {
    /// Ends the calls that have begun. Calls that begin later are not affected.
    pub fn cancel(&self) {
        let hooks = self.lock();
        self.shared.epoch.fetch_add(1, Ordering::AcqRel);
        let called = hooks.clone();
        // A hook may run code of the program, and that code may call this canceller.
        drop(hooks);
        called.iter().for_each(|hook| hook.call());
    }

    /// Registers the beginning of a call.
    #[must_use]
    pub fn begin(&self) -> Cancellable {
        let epoch = self.part_of.unwrap_or_else(|| self.epoch());
        Cancellable { canceller: self.clone(), epoch }
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Hook>>> {
        // No code that holds the lock panics in the middle of a change.
        self.shared.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, hook: &Arc<Hook>) {
        let mut hooks = self.lock();
        let index = hooks.iter().position(|known| Arc::ptr_eq(known, hook));
        let hook = index.map(|index| hooks.swap_remove(index));
        // The hook may hold the last reference to an object whose destructor takes long.
        drop(hooks);
        drop(hook);
    }
}

/// Call that may be cancelled from its beginning on.
#[derive(Clone, Debug)]
pub struct Cancellable {
    canceller: Canceller,
    epoch: u64,
}

impl Cancellable {
    /// Returns whether the call was cancelled. Takes no lock, so a hook may take a lock that the caller holds.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.canceller.epoch() != self.epoch
    }

    /// Returns a canceller for the steps of this call: a cancel of this call also cancels a step that begins later.
    #[must_use]
    pub fn for_parts(&self) -> Canceller {
        Canceller { part_of: Some(self.epoch), ..self.canceller.clone() }
    }

    /// Registers `hook`, which is called when the call is cancelled while the guard lives, and at once if it already
    /// was. The hook must be quick, and may be called several times.
    #[must_use = "the hook is removed when this is dropped"]
    pub fn watch(&self, hook: impl Fn() + Send + 'static) -> Watch {
        let hook = Arc::new(Hook(Mutex::new(Some(Box::new(hook)))));
        self.canceller.lock().push(Arc::clone(&hook));
        if self.is_cancelled() {
            hook.call();
        }
        Watch { canceller: self.canceller.clone(), hook: Some(hook) }
    }
}

/// Guard of a registered hook. If the hook is running on another thread, dropping this waits for its end.
pub struct Watch {
    canceller: Canceller,
    hook: Option<Arc<Hook>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Removes the hook without waiting for a call of it. This is for hooks that run code of the program, which may
    /// wait for this thread, and that do no harm when they run later.
    pub fn let_go(mut self) {
        if let Some(hook) = self.hook.take() {
            self.canceller.forget(&hook);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(hook) = self.hook.take() else { return };
        self.canceller.forget(&hook);
        let hook = hook.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(hook);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_cancelled_that_have_begun() {
        let (canceller, event) = (Canceller::default(), Arc::new(AtomicU64::new(0)));
        let notify = || {
            let event = Arc::clone(&event);
            move || {
                event.fetch_add(1, Ordering::Relaxed);
            }
        };
        let call = canceller.begin();
        let watch = call.watch(notify());
        assert_eq!((call.is_cancelled(), event.load(Ordering::Relaxed)), (false, 0));
        canceller.clone().cancel();
        assert_eq!((call.is_cancelled(), event.load(Ordering::Relaxed)), (true, 1));
        // A watch that begins after the cancel calls its hook at once.
        drop(call.watch(notify()));
        assert_eq!(event.load(Ordering::Relaxed), 2);
        drop(watch);
        let later = canceller.begin();
        assert!(!later.for_parts().begin().is_cancelled());
        assert!(call.for_parts().begin().is_cancelled(), "what is a part of it began with it");
        canceller.cancel();
        assert_eq!((later.is_cancelled(), event.load(Ordering::Relaxed)), (true, 2));
        assert_eq!(Arc::strong_count(&event), 1);
    }

    #[test]
    fn a_hook_may_come_back_to_its_canceller_and_is_not_called_within_itself() {
        let (canceller, event) = (Canceller::default(), Arc::new(AtomicU64::new(0)));
        let call = canceller.begin();
        let (local, count) = (canceller.clone(), Arc::clone(&event));
        let watch = call.watch(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let inner = local.begin();
            let ended = inner.watch(|| ());
            local.cancel();
            assert!(inner.is_cancelled());
            drop(ended);
        });
        canceller.cancel();
        assert_eq!(event.load(Ordering::Relaxed), 1);
        drop(watch);
    }

    #[test]
    fn who_watches_no_longer_waits_for_its_hook_unless_it_lets_go() {
        use std::sync::mpsc::channel;
        for waits in [true, false] {
            let canceller = Canceller::default();
            let (begun, begins) = channel();
            let (go_on, may_go_on) = channel::<()>();
            let is_over = Arc::new(AtomicU64::new(0));
            let over = Arc::clone(&is_over);
            let watch = canceller.begin().watch(move || {
                begun.send(()).ok();
                may_go_on.recv().ok();
                over.store(1, Ordering::Release);
            });
            let cancelling = std::thread::spawn(move || canceller.cancel());
            begins.recv().expect("it is called");
            if waits {
                let release = std::thread::spawn(move || go_on.send(()));
                drop(watch);
                assert_eq!(is_over.load(Ordering::Acquire), 1);
                release.join().expect("no panic").expect("it waits");
            } else {
                watch.let_go();
                assert_eq!(is_over.load(Ordering::Acquire), 0);
                go_on.send(()).expect("it waits");
            }
            cancelling.join().expect("no panic");
        }
    }
}
