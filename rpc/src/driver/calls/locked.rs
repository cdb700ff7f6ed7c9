//! Lock of a connection under which no object of the program is dropped.
//!
//! Dropping the owner of a payload, or a handler, runs code of the program. That may make a call, or take a lock that
//! another thread holds during a call. So a connection collects what it does not need any more, and that is dropped
//! when it is unlocked.

use core::ops::{Deref, DerefMut};
use rendezvous_core::driver::prelude::*;

/// State of a connection.
pub(super) trait HoldsObjects {
    /// What it does not need any more.
    type Released: Default + core::fmt::Debug;

    /// Takes what it does not need any more.
    fn take_released(&mut self) -> Self::Released;
}

/// Guard of the lock.
#[derive(Debug)]
pub(super) struct Locked<'a, T: HoldsObjects> {
    /// Declared before, and so unlocked before, the objects are dropped.
    guard: MutexGuard<'a, T>,
    released: T::Released,
}

impl<'a, T: HoldsObjects> Locked<'a, T> {
    pub(super) fn new(mutex: &'a Mutex<T>) -> Self {
        // No code of the library panics during a change, and no code of the program runs under the lock.
        Self { guard: mutex.locked(), released: T::Released::default() }
    }
}

impl<T: HoldsObjects> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: HoldsObjects> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: HoldsObjects> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.released = self.guard.take_released();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::calls::Payload;
    use alloc::sync::{Arc, Weak};
    use alloc::vec;
    use alloc::vec::Vec;
    use core::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct State(Vec<Payload>);

    impl HoldsObjects for State {
        type Released = Vec<Payload>;

        fn take_released(&mut self) -> Vec<Payload> {
            core::mem::take(&mut self.0)
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
        locked.0 = vec![payload.clone(), payload];
        assert!(!is_given_back.load(Ordering::Relaxed));
        drop(locked);
        assert!(is_given_back.load(Ordering::Relaxed));
    }
}
