//! Queue of a worker's events for an event loop: their order, and limits on how many wait.
//!
//! - The event that the worker is a member comes first, whatever was queued before; that it has ended comes last.
//! - Each call ends once, at its deadline if it has one. Calls that have not ended when the worker ends are reported
//!   before its end.
//! - Requests wait as long as there is capacity for them, and are refused beyond that.
//! - If too many changes of the group are not taken, the oldest are dropped.
//! - One iteration of the loop takes what was queued when it began. What follows waits for the next one, so that a
//!   worker that always has events does not starve the loop.
//!
//! The queue does not inspect its items. How a worker ends is decided by [`ending`].

pub mod ending;

use crate::intake::Intake;
use crate::limits::IntakeLimits;
use alloc::collections::VecDeque;
use rendezvous_core::ordered::{Index, Set};
use rendezvous_core::prelude::*;

/// Limits of an [`Inbox`].
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// Maximum number of calls that have not ended or whose results have not been taken.
    pub calls_max: usize,
    /// Limits of the requests.
    pub requests: IntakeLimits,
    /// Maximum number of changes of the group.
    pub changes_max: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { calls_max: 1 << 16, requests: IntakeLimits::default(), changes_max: 4096 }
    }
}

/// Result of adding an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put<T> {
    /// It was added, and the loop must be woken.
    Wakes,
    /// It was added.
    Quiet,
    /// It was refused, since its recipient has ended: its sender must be notified.
    Refused(T),
    /// It was refused, since the limit is reached.
    Full(T),
    /// It was refused, since the inbox is closed.
    Closed(T),
}

/// Reason why a call does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The worker has ended.
    Over,
    /// The maximum number of calls is pending, including those whose results have not been taken.
    TooMany {
        /// The limit.
        calls_max: usize,
    },
}

/// Stage of the worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Joining,
    Member,
    /// It is not in its group any more, and has not ended yet.
    Parted,
    /// Its last item was added.
    Over,
    /// Items are not taken any more.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Result of this call.
    Answer(u64),
    /// Request with this many bytes.
    Request(u64),
    Change,
    /// The first or the last event.
    Life,
}

/// Items of one worker. See the module's documentation.
#[derive(Debug)]
pub struct Inbox<T> {
    limits: InboxLimits,
    stage: Stage,
    items: VecDeque<(Kind, T)>,
    /// Number of items that this iteration may take.
    ready: usize,
    /// The loop was woken.
    is_announced: bool,
    /// Calls that have not ended, by their numbers, with the deadlines that are checked here.
    calls: Index<u64, Instant>,
    deadlines: Set<(Instant, u64)>,
    last_call: u64,
    answers: usize,
    intake: Intake,
    changes: usize,
    changes_lost: u64,
}

impl<T> Inbox<T> {
    /// Creates the inbox of a worker that is not a member yet.
    pub const fn of_newcomer(limits: InboxLimits) -> Self {
        Self::at(Stage::Joining, limits)
    }

    /// Creates the inbox of a worker that is a member already.
    pub const fn of_member(limits: InboxLimits) -> Self {
        Self::at(Stage::Member, limits)
    }

    const fn at(stage: Stage, limits: InboxLimits) -> Self {
        Self {
            limits,
            stage,
            items: VecDeque::new(),
            ready: 0,
            is_announced: false,
            calls: Index::new(),
            deadlines: Set::new(),
            last_call: 0,
            answers: 0,
            intake: Intake::new(limits.requests),
            changes: 0,
            changes_lost: 0,
        }
    }

    fn put(&mut self, kind: Kind, item: T) -> Put<T> {
        self.items.push_back((kind, item));
        self.announce()
    }

    fn announce(&mut self) -> Put<T> {
        // Items before the first event are announced by it.
        if self.is_announced || self.stage == Stage::Joining {
            return Put::Quiet;
        }
        self.is_announced = true;
        Put::Wakes
    }

    /// The worker is a member. Its end is reported after this.
    pub fn joined(&mut self, item: T) -> Put<T> {
        if self.stage == Stage::Closed {
            return Put::Refused(item);
        }
        self.stage = Stage::Member;
        self.items.push_front((Kind::Life, item));
        self.announce()
    }

    /// The worker is not in its group any more.
    pub fn parted(&mut self) -> Put<()> {
        match self.stage {
            Stage::Member => self.stage = Stage::Parted,
            Stage::Joining | Stage::Parted | Stage::Over | Stage::Closed => return Put::Quiet,
        }
        if core::mem::replace(&mut self.is_announced, true) { Put::Quiet } else { Put::Wakes }
    }

    /// Whether the worker is not in its group any more, and has not ended yet.
    pub fn has_parted(&self) -> bool {
        self.stage == Stage::Parted
    }

    /// The worker has ended, or did not become a member. The caller must take the waiting requests
    /// ([`Inbox::take_requests`]) and end all pending calls ([`Inbox::first_call`]) before, under the same lock: an
    /// item added in between would be lost.
    pub fn over(&mut self, item: T) -> Put<T> {
        if matches!(self.stage, Stage::Over | Stage::Closed) {
            return Put::Refused(item);
        }
        self.stage = Stage::Over;
        self.put(Kind::Life, item)
    }

    /// Begins a call and returns its number.
    ///
    /// # Errors
    /// The limit is reached, or the worker has ended.
    pub fn begin(&mut self) -> Result<u64, NotBegun> {
        let calls_max = self.limits.calls_max;
        if matches!(self.stage, Stage::Over | Stage::Closed) {
            return Err(NotBegun::Over);
        }
        if self.calls.len() + self.answers >= calls_max {
            return Err(NotBegun::TooMany { calls_max });
        }
        self.last_call += 1;
        self.calls.insert(self.last_call, Instant::MAX);
        Ok(self.last_call)
    }

    /// Sets the deadline of a call that has not ended.
    pub fn set_deadline(&mut self, call: u64, until: Instant) {
        if self.calls.contains(call) {
            self.calls.insert(call, until);
            self.deadlines.insert((until, call));
        }
    }

    /// Forgets a call that was not made. If it has ended nevertheless, its result is dropped.
    pub fn forget(&mut self, call: u64) {
        if !self.close_call(call)
            && let Some(index) = self.items.iter().position(|(kind, _)| *kind == Kind::Answer(call))
        {
            self.remove(index);
        }
    }

    /// Returns whether it was pending.
    fn close_call(&mut self, call: u64) -> bool {
        let until = self.calls.remove(call);
        if let Some(until) = until {
            self.deadlines.remove((until, call));
        }
        until.is_some()
    }

    /// Adds the result of a call, unless it has ended before.
    pub fn put_answer(&mut self, call: u64, item: T) -> Put<T> {
        if !self.close_call(call) {
            return Put::Refused(item);
        }
        self.answers += 1;
        self.put(Kind::Answer(call), item)
    }

    /// Returns a call that has not ended.
    pub fn first_call(&self) -> Option<u64> {
        self.calls.first().map(|(call, _)| call)
    }

    /// Returns a call whose deadline has passed. It remains pending until its result is added.
    pub fn late_call(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|&(until, _)| until <= now).map(|(_, call)| call)
    }

    /// Time of the next deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| until)
    }

    /// Adds a request for a handler of the loop, with this many bytes.
    pub fn put_request(&mut self, bytes: u64, item: T) -> Put<T> {
        match self.stage {
            Stage::Closed => return Put::Closed(item),
            Stage::Over => return Put::Refused(item),
            Stage::Joining | Stage::Member | Stage::Parted => {}
        }
        if !self.intake.has_capacity() {
            return Put::Full(item);
        }
        self.intake.enter(bytes);
        self.put(Kind::Request(bytes), item)
    }

    /// Adds a change of the group.
    pub fn changed(&mut self, item: T) -> Put<T> {
        if matches!(self.stage, Stage::Over | Stage::Closed) {
            return Put::Refused(item);
        }
        if self.changes == self.limits.changes_max
            && let Some(index) = self.items.iter().position(|(kind, _)| *kind == Kind::Change)
        {
            self.remove(index);
            self.changes_lost += 1;
        }
        self.changes += 1;
        self.put(Kind::Change, item)
    }

    /// Number of changes that were dropped.
    pub const fn changes_lost(&self) -> u64 {
        self.changes_lost
    }

    /// Begins an iteration: it may take the items that are there now.
    pub fn begin_iteration(&mut self) {
        self.is_announced = false;
        self.ready = if self.stage == Stage::Joining { 0 } else { self.items.len() };
    }

    /// Returns the next item of this iteration.
    pub fn take(&mut self) -> Option<T> {
        self.ready = self.ready.checked_sub(1)?;
        let (kind, item) = self.items.pop_front()?;
        self.taken(kind);
        Some(item)
    }

    /// Drops an item.
    fn remove(&mut self, index: usize) {
        if let Some((kind, _)) = self.items.remove(index) {
            self.ready -= usize::from(index < self.ready);
            self.taken(kind);
        }
    }

    fn taken(&mut self, kind: Kind) {
        match kind {
            Kind::Answer(_) => self.answers -= 1,
            Kind::Request(bytes) => _ = self.intake.leave(bytes),
            Kind::Change => self.changes -= 1,
            Kind::Life => {}
        }
    }

    /// Takes all waiting requests.
    pub fn take_requests(&mut self) -> Vec<T> {
        let mut requests = Vec::new();
        let mut ready = core::mem::take(&mut self.ready);
        for (kind, item) in core::mem::take(&mut self.items) {
            let was_ready = ready.checked_sub(1).inspect(|&left| ready = left).is_some();
            if matches!(kind, Kind::Request(_)) {
                self.taken(kind);
                requests.push(item);
            } else {
                self.ready += usize::from(was_ready);
                self.items.push_back((kind, item));
            }
        }
        requests
    }

    /// Closes the inbox, and returns all waiting items.
    pub fn close(&mut self) -> Vec<T> {
        self.stage = Stage::Closed;
        self.ready = 0;
        self.calls = Index::new();
        self.deadlines = Set::new();
        core::mem::take(&mut self.items).into_iter().map(|(_, item)| item).collect()
    }
}

#[cfg(test)]
mod tests;
