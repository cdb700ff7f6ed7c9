//! A queue that any thread fills and one empties, in little code: a channel is some ten kilobytes for each type.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What waits for its reader.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    arrived: Condvar,
    /// Nothing more is put in. Changed under the lock.
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
        // Nobody who holds the lock panics half way through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one behind the others, and says how many there are now.
    pub(super) fn put(&self, item: T) -> usize {
        let mut queue = self.lock();
        queue.push_back(item);
        let count = queue.len();
        drop(queue);
        self.arrived.notify_one();
        count
    }

    /// The first one, if it is there.
    pub(super) fn take(&self) -> Option<T> {
        self.lock().pop_front()
    }

    /// Nothing more is put in: whoever waits for it does so no longer.
    pub(super) fn close(&self) {
        let queue = self.lock();
        self.is_closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.arrived.notify_all();
    }

    /// The first one; waits up to `timeout` for it.
    pub(super) fn next(&self, timeout: Duration) -> Option<T> {
        self.next_unless(timeout, || false)
    }

    /// The same, unless it is given up: whoever does so wakes who waits.
    pub(super) fn next_unless(&self, timeout: Duration, is_given_up: impl Fn() -> bool) -> Option<T> {
        let waited = self.arrived.wait_timeout_while(self.lock(), timeout, |queue| {
            queue.is_empty() && !self.is_closed.load(Ordering::Relaxed) && !is_given_up()
        });
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    /// All who wait see whether they still have to.
    pub(super) fn wake(&self) {
        // Who has just looked, and does not wait yet, holds the lock.
        drop(self.lock());
        self.arrived.notify_all();
    }
}
