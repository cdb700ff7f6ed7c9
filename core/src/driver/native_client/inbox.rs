//! Pushes that wait until somebody asks for them.

use crate::driver::store_client::from_now;
use crate::node::native_client::Ending;
use crate::time::Duration;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded queue with a last word.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    places: usize,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    last: Option<Last>,
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

impl<T> Inbox<T> {
    pub(super) const fn new(places: usize) -> Self {
        let state = State { queue: VecDeque::new(), last: None };
        Self { state: Mutex::new(state), changed: Condvar::new(), places }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one at the end. Where there is no room, the queue ends.
    pub(super) fn put(&self, item: T) -> Put {
        let mut state = self.lock();
        if state.queue.len() >= self.places {
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
        if state.queue.len() >= self.places {
            state.queue.pop_front();
        }
        state.queue.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    /// Forgets those of which `keep` says no.
    pub(super) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        self.lock().queue.retain(keep);
    }

    pub(super) fn end(&self, ending: Ending) {
        self.lock().last.get_or_insert(Last::Over(ending));
        self.changed.notify_all();
    }

    /// The next one; waits up to `span` for it, and until `is_cancelled`, which is asked again after [`Inbox::nudge`].
    pub(super) fn next_unless(
        &self,
        span: Duration,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<T>, Last> {
        self.next_with(span, is_cancelled, VecDeque::pop_front)
    }

    /// Has those who wait see whether they are cancelled.
    pub(super) fn nudge(&self) {
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
        mut take: impl FnMut(&mut VecDeque<T>) -> Option<R>,
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
