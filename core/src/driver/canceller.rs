//! Ends what waits, from another thread, also where a wait goes from one thing to the next.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Cancels calls. Clones cancel the same ones.
#[derive(Clone, Default)]
pub struct Canceller {
    shared: Arc<Shared>,
    /// When the call began whose parts are cancelled; `None`: each begins when it is begun.
    part_of: Option<u64>,
}

#[derive(Default)]
struct Shared {
    /// How often calls were cancelled. It changes under the lock, and is read without.
    epoch: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watches: u64,
    /// Told while the lock is held: they must not come back here.
    hooks: Vec<(u64, Box<dyn Fn() + Send>)>,
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Canceller")
    }
}

impl Canceller {
    /// Ends the calls that have begun. Later ones are as ever.
    pub fn cancel(&self) {
        let state = self.lock();
        self.shared.epoch.fetch_add(1, Ordering::AcqRel);
        state.hooks.iter().for_each(|(_, hook)| hook());
    }

    /// A call begins.
    #[must_use]
    pub fn begin(&self) -> Cancellable {
        let epoch = self.part_of.unwrap_or_else(|| self.epoch());
        Cancellable { canceller: self.clone(), epoch }
    }

    fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that may be cancelled from its beginning on.
#[derive(Clone, Debug)]
pub struct Cancellable {
    canceller: Canceller,
    epoch: u64,
}

impl Cancellable {
    /// Whether it was. Takes no lock, so a hook may take one that the caller holds.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.canceller.epoch() != self.epoch
    }

    /// Cancels calls that are parts of this one: what began with it, and is cancelled with it also where it begins later.
    #[must_use]
    pub fn for_parts(&self) -> Canceller {
        Canceller { part_of: Some(self.epoch), ..self.canceller.clone() }
    }

    /// Has `hook` called when the call is cancelled while the guard lives, and at once if it was before. The hook must
    /// be quick, and must not use the canceller.
    #[must_use = "nobody watches longer than this lives"]
    pub fn watch(&self, hook: impl Fn() + Send + 'static) -> Watch {
        let mut state = self.canceller.lock();
        if self.is_cancelled() {
            hook();
        }
        state.watches += 1;
        let number = state.watches;
        state.hooks.push((number, Box::new(hook)));
        drop(state);
        Watch { canceller: self.canceller.clone(), number }
    }
}

/// As long as it lives, a hook is called.
#[derive(Debug)]
pub struct Watch {
    canceller: Canceller,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.canceller.lock();
        let place = state.hooks.iter().position(|&(number, _)| number == self.number);
        let hook = place.map(|place| state.hooks.swap_remove(place));
        // What the hook holds may be the last of something that takes its time to go.
        drop(state);
        drop(hook);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_cancelled_that_have_begun() {
        let (canceller, told) = (Canceller::default(), Arc::new(AtomicU64::new(0)));
        let tell = || {
            let told = Arc::clone(&told);
            move || {
                told.fetch_add(1, Ordering::Relaxed);
            }
        };
        let call = canceller.begin();
        let watch = call.watch(tell());
        assert_eq!((call.is_cancelled(), told.load(Ordering::Relaxed)), (false, 0));
        canceller.clone().cancel();
        assert_eq!((call.is_cancelled(), told.load(Ordering::Relaxed)), (true, 1));
        // Who begins to watch too late hears of it at once.
        drop(call.watch(tell()));
        assert_eq!(told.load(Ordering::Relaxed), 2);
        drop(watch);
        let later = canceller.begin();
        assert!(!later.for_parts().begin().is_cancelled());
        assert!(call.for_parts().begin().is_cancelled(), "what is a part of it began with it");
        canceller.cancel();
        assert_eq!((later.is_cancelled(), told.load(Ordering::Relaxed)), (true, 2));
        assert_eq!(Arc::strong_count(&told), 1);
    }
}
