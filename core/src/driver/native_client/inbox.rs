//! Queue of pushes until a caller takes them.

use crate::driver::channel::Sender;
use crate::driver::clock::from_now;
use crate::driver::prelude::*;
use crate::node::native_client::Ending;
use crate::time::Duration;
use alloc::collections::VecDeque;

/// Bounded queue that may end with a last state.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    state: Mutex<InboxState<T>>,
    changed: Condvar,
    /// Also gets a message on a change, if there is capacity for it.
    wakes: OnceLock<Sender<()>>,
    limit: InboxLimit,
}

/// Limits of an inbox: at either of them it takes nothing more.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboxLimit {
    pub(super) items: usize,
    pub(super) bytes: usize,
}

/// Item with a size in bytes.
pub(super) trait Weighted {
    fn bytes(&self) -> usize;
}

#[derive(Debug)]
struct InboxState<T> {
    queue: Queue<T>,
    last: Option<Last>,
}

/// Queued items and their size in bytes.
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
        self.items.len() >= limit.items || self.bytes >= limit.bytes
    }
}

/// Reason why a wait returns no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// The items were not taken for so long that the inbox was full.
    Overrun,
    /// The session is over.
    Over(Ending),
    /// The wait was cancelled; more items may follow.
    Interrupted,
}

impl<T: Weighted> Inbox<T> {
    pub(super) const fn new(limit: InboxLimit) -> Self {
        let state = InboxState { queue: Queue { items: VecDeque::new(), bytes: 0 }, last: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), wakes: OnceLock::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState<T>> {
        // No code that holds the lock panics in the middle of a change.
        self.state.locked()
    }

    fn notify(&self) {
        self.changed.notify_all();
        if let Some(wakes) = self.wakes.get() {
            wakes.try_send(()).ok();
        }
    }

    /// Sends a message on this channel whenever items are added or the inbox ends. The first call counts.
    pub(super) fn wake(&self, wakes: Sender<()>) {
        self.wakes.set(wakes).ok();
        self.notify();
    }

    /// Adds an item at the end. If the inbox is full, it ends. Returns whether the item was added.
    pub(super) fn put(&self, item: T) -> bool {
        let mut state = self.lock();
        if state.queue.is_full(self.limit) {
            state.last.get_or_insert(Last::Overrun);
            drop(state);
            self.notify();
            return false;
        }
        state.queue.push_back(item);
        drop(state);
        self.notify();
        true
    }

    /// Adds an item at the end. If the inbox is full, removes the oldest ones.
    pub(super) fn put_over(&self, item: T) {
        let mut state = self.lock();
        while state.queue.is_full(self.limit) && state.queue.pop_front().is_some() {}
        state.queue.push_back(item);
        drop(state);
        self.notify();
    }

    /// Removes the items for which `keep` returns false.
    pub(super) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut state = self.lock();
        state.queue.items.retain(keep);
        state.queue.bytes = state.queue.items.iter().map(Weighted::bytes).sum();
    }

    pub(super) fn end(&self, ending: Ending) {
        self.lock().last.get_or_insert(Last::Over(ending));
        self.notify();
    }

    /// Wakes the waiting threads, so that they check whether they are cancelled.
    pub(super) fn recheck_cancellation(&self) {
        // A thread that has already checked is waiting once the lock is free.
        drop(self.lock());
        self.notify();
    }

    /// Waits up to `span` until `take` returns a result, and returns that. `take` is called with the queue locked,
    /// and again whenever items are added, so several waiting threads take items in order. The wait also ends when
    /// `is_cancelled`, which is checked again after [`Inbox::recheck_cancellation`].
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
