//! Bytes with a custom owner, and the locks under which the owner must not be dropped.
//!
//! Dropping the owner runs code of the program. That may make a call, or take a lock that another thread holds during a
//! call. So an owner that is dropped while a connection is locked is kept until the connection is unlocked.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

std::thread_local! {
    /// Number of locks that this thread holds.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// Owners to be dropped when the thread holds no lock.
    static DUE: RefCell<Vec<Bytes>> = const { RefCell::new(Vec::new()) };
}

/// Bytes with a custom owner. Cheap to clone.
#[derive(Clone)]
pub(super) struct BorrowedBuffer(ManuallyDrop<Bytes>);

impl BorrowedBuffer {
    pub(super) const fn new(bytes: Bytes) -> Self {
        Self(ManuallyDrop::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        (**self.0).as_ref()
    }
}

impl Drop for BorrowedBuffer {
    fn drop(&mut self) {
        // SAFETY: it is taken once, since this is dropped once.
        let bytes = unsafe { ManuallyDrop::take(&mut self.0) };
        // A thread that is terminating has no such list any more, and holds no locks.
        let locks = LOCKS.try_with(Cell::get).unwrap_or(0);
        if locks > 0 {
            DUE.with_borrow_mut(|due| due.push(bytes));
        }
    }
}

/// Whether this thread will drop owners as soon as it holds no lock.
pub(super) fn is_due() -> bool {
    DUE.with_borrow(|due| !due.is_empty())
}

/// Guard of a lock of this module. Owners that are dropped meanwhile are kept until the lock is released.
#[derive(Debug)]
pub(super) struct Locked<'a, T>(ManuallyDrop<MutexGuard<'a, T>>);

impl<'a, T> Locked<'a, T> {
    pub(super) fn new(mutex: &'a Mutex<T>) -> Self {
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        LOCKS.set(LOCKS.get() + 1);
        Self(ManuallyDrop::new(guard))
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // SAFETY: it is dropped once, and not used after that.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        let locks = LOCKS.get() - 1;
        LOCKS.set(locks);
        if locks == 0 && is_due() {
            drop(DUE.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::sync::atomic::{AtomicBool, Ordering};

    struct Known<'a>(&'a AtomicBool);

    impl AsRef<[u8]> for Known<'_> {
        fn as_ref(&self) -> &[u8] {
            b"bytes"
        }
    }

    impl Drop for Known<'_> {
        fn drop(&mut self) {
            assert!(LOCKS.get() == 0, "under a lock");
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_lent_is_given_back_when_nothing_is_locked() {
        static GIVEN_BACK: AtomicBool = AtomicBool::new(false);
        let is_given_back = || GIVEN_BACK.swap(false, Ordering::Relaxed);
        let lend = || BorrowedBuffer::new(Arc::new(Known(&GIVEN_BACK)));
        let (first, second) = (Mutex::new(vec![lend()]), Mutex::new(0));
        let copy = first.lock().expect("free").first().cloned();
        assert_eq!(copy.as_ref().map(BorrowedBuffer::bytes), Some(&b"bytes"[..]));
        let mut locked = Locked::new(&first);
        locked.clear();
        drop(copy);
        let inner = Locked::new(&second);
        drop(locked);
        assert!(!is_given_back(), "one is locked still");
        drop(inner);
        assert!(is_given_back());
        drop(lend());
        assert!(is_given_back());
    }
}
