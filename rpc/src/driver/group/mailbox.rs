//! Queue with many writers and one reader. It replaces a channel, which costs some ten kilobytes of code for each type.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Queue of items for one reader.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    arrived: Condvar,
    /// No more items are added. Changed under the lock.
    is_closed: AtomicBool,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self {
            queue: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            is_closed: AtomicBool::new(false),
        }
    }
}

impl<T> Mailbox<T> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        // No code that holds the lock panics during a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an item, and returns the number of items.
    pub(super) fn put(&self, item: T) -> usize {
        let mut queue = self.lock();
        queue.push_back(item);
        let count = queue.len();
        drop(queue);
        self.arrived.notify_one();
        count
    }

    /// Returns the first item, if there is one.
    pub(super) fn take(&self) -> Option<T> {
        self.lock().pop_front()
    }

    /// No more items are added: readers stop waiting.
    pub(super) fn close(&self) {
        let queue = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.arrived.notify_all();
    }

    /// Returns the first item, or `None` after `timeout`.
    pub(super) fn next(&self, timeout: Duration) -> Option<T> {
        self.next_unless(timeout, || false)
    }

    /// Returns the first item, or `None` after `timeout` or once `is_given_up` returns true. Call [`Mailbox::wake`]
    /// after changing its result.
    pub(super) fn next_unless(&self, timeout: Duration, is_given_up: impl Fn() -> bool) -> Option<T> {
        let waited = self.arrived.wait_timeout_while(self.lock(), timeout, |queue| {
            queue.is_empty() && !self.is_closed.load(Ordering::Relaxed) && !is_given_up()
        });
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// Lets all waiting readers check whether they still have to wait.
    pub(super) fn wake(&self) {
        // A reader that has checked and does not wait yet holds the lock.
        drop(self.lock());
        self.arrived.notify_all();
    }
}
