//! Mutexes whose content stays valid when a thread that holds one panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Access to such a mutex.
pub trait Lock {
    /// What the mutex protects.
    type Content;

    /// Locks the mutex, also after a panic of a thread that held it.
    fn locked(&self) -> MutexGuard<'_, Self::Content>;
}

impl<T> Lock for Mutex<T> {
    type Content = T;

    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
