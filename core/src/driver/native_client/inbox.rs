//! Pushes that wait until somebody asks for them.

use crate::driver::clock::from_now;
use crate::node::native_client::Ending;
use crate::time::Duration;
use alloc::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded queue with a last word.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limit: InboxLimit,
}

/// How much an inbox keeps: when there is so much of either, nothing more.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboxLimit {
    pub(super) places: usize,
    pub(super) bytes: usize,
}

/// Something that takes so many bytes beside its place.
pub(super) trait Weighted {
    fn bytes(&self) -> usize;
}

#[derive(Debug)]
struct State<T> {
    queue: Queue<T>,
    last: Option<Last>,
}

/// What waits, and how many bytes that takes.
#[derive(Debug)]
pub(super) struct Queue<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T: Weighted> Queue<T> {
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bytes -= item.bytes();
        Some(item)
    }

    fn push_back(&mut self, item: T) {
        self.bytes += item.bytes();
        self.items.push_back(item);
    }

    fn is_full(&self, limit: InboxLimit) -> bool {
        self.items.len() >= limit.places || self.bytes >= limit.bytes
    }
}

/// Why nothing more will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// Nobody asked for so long that there was no more room.
    Overrun,
    /// The session is over.
    Over(Ending),
    /// Who waits is cancelled; more may come.
    Interrupted,
}

/// Whether there was room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Kept,
    Full,
}

impl<T: Weighted> Inbox<T> {
    pub(super) const fn new(limit: InboxLimit) -> Self {
        let state = State { queue: Queue { items: VecDeque::new(), bytes: 0 }, last: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one at the end. Where there is no room, the queue ends.
    pub(super) fn put(&self, item: T) -> Put {
        let mut state = self.lock();
        if state.queue.is_full(self.limit) {
            state.last.get_or_insert(Last::Overrun);
            return Put::Full;
        }
        state.queue.push_back(item);
        drop(state);
        self.changed.notify_all();
        Put::Kept
    }

    /// Adds one at the end; where there is no room, the first goes.
    pub(super) fn put_over(&self, item: T) {
        let mut state = self.lock();
        while state.queue.is_full(self.limit) && state.queue.pop_front().is_some() {}
        state.queue.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    /// Forgets those of which `keep` says no.
    pub(super) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut state = self.lock();
        state.queue.items.retain(keep);
        state.queue.bytes = state.queue.items.iter().map(Weighted::bytes).sum();
    }

    pub(super) fn end(&self, ending: Ending) {
        self.lock().last.get_or_insert(Last::Over(ending));
        self.changed.notify_all();
    }

    /// The next one; waits up to `span` for it, and until `is_cancelled`, which is asked again after [`Inbox::recheck_cancellation`].
    pub(super) fn next_unless(
        &self,
        span: Duration,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<T>, Last> {
        self.next_with(span, is_cancelled, Queue::pop_front)
    }

    /// Has those who wait see whether they are cancelled.
    pub(super) fn recheck_cancellation(&self) {
        // Who has asked already waits once the lock is free.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// What `take` makes of the queue, as soon as it makes something of it; waits up to `span` for that. It is called with
    /// the queue locked, and again whenever there is more, so of several who wait each takes in order.
    pub(super) fn next_with<R>(
        &self,
        span: Duration,
        is_cancelled: impl Fn() -> bool,
        mut take: impl FnMut(&mut Queue<T>) -> Option<R>,
    ) -> Result<Option<R>, Last> {
        let deadline = from_now(span);
        let mut state = self.lock();
        loop {
            if is_cancelled() {
                return Err(Last::Interrupted);
            }
            if let Some(taken) = take(&mut state.queue) {
                return Ok(Some(taken));
            }
            if let Some(last) = state.last {
                return Err(last);
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
