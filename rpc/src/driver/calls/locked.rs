//! Lock of a connection under which no owner of a payload is dropped.
//!
//! Dropping an owner runs code of the program. That may make a call, or take a lock that another thread holds during a
//! call. So a connection collects the payloads that it does not need any more, and they are dropped when it is unlocked.

use super::Payload;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State of a connection.
pub(super) trait HoldsPayloads {
    /// Payloads that it does not need any more.
    fn released(&mut self) -> &mut Vec<Payload>;
}

/// Guard of the lock.
#[derive(Debug)]
pub(super) struct Locked<'a, T: HoldsPayloads> {
    /// Declared before, and so unlocked before, the payloads are dropped.
    guard: MutexGuard<'a, T>,
    released: Vec<Payload>,
}

impl<'a, T: HoldsPayloads> Locked<'a, T> {
    pub(super) fn new(mutex: &'a Mutex<T>) -> Self {
        // No code of the library panics during a change, and no code of the program runs under the lock.
        Self { guard: mutex.lock().unwrap_or_else(PoisonError::into_inner), released: Vec::new() }
    }
}

impl<T: HoldsPayloads> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: HoldsPayloads> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: HoldsPayloads> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.released = core::mem::take(self.guard.released());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::{Arc, Weak};
    use alloc::vec;
    use core::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct State(Vec<Payload>);

    impl HoldsPayloads for State {
        fn released(&mut self) -> &mut Vec<Payload> {
            &mut self.0
        }
    }

    /// Bytes whose owner checks, when it is dropped, that the lock is free.
    struct Known(Weak<Mutex<State>>, Arc<AtomicBool>);

    impl AsRef<[u8]> for Known {
        fn as_ref(&self) -> &[u8] {
            b"bytes"
        }
    }

    impl Drop for Known {
        fn drop(&mut self) {
            let mutex = self.0.upgrade().expect("it lives");
            drop(mutex.try_lock().expect("it is not locked"));
            self.1.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_lent_is_given_back_when_nothing_is_locked() {
        let (mutex, is_given_back) =
            (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let payload = Payload::foreign(Arc::new(Known(Arc::downgrade(&mutex), Arc::clone(&is_given_back))));
        assert_eq!(payload.bytes(), b"bytes");
        let mut locked = Locked::new(&mutex);
        *locked.released() = vec![payload.clone(), payload];
        assert!(!is_given_back.load(Ordering::Relaxed));
        drop(locked);
        assert!(is_given_back.load(Ordering::Relaxed));
    }
}
