//! What a worker has for an event loop to take: in which order it is told, and how much of it waits.
//!
//! - That the worker is a member is told first, whatever else has come before that; that it has ended is told last.
//! - A call is told once, by its deadline where somebody gave it one. Those that have not ended when the worker ends are
//!   told before its end.
//! - Requests wait as long as there is room for them, and are refused beyond that.
//! - Of too many changes of the group that nobody takes, the oldest are lost.
//! - One turn of the loop has what had come by its beginning: what follows waits for the next one, so that a worker
//!   that always has something keeps the loop from nothing else.
//!
//! What stands in the letters is their senders' business; how a worker ends is [`ending`]'s.

pub mod ending;

use crate::intake::Intake;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use rendezvous_core::limits::IntakeLimits;
use rendezvous_core::ordered::{Index, Set};
use rendezvous_core::time::Instant;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// Calls that have not ended, and those whose ends nobody has taken yet.
    pub calls_max: usize,
    /// Requests.
    pub requests: IntakeLimits,
    /// Changes of the group.
    pub changes_max: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { calls_max: 1 << 16, requests: IntakeLimits::default(), changes_max: 4096 }
    }
}

/// What became of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put<T> {
    /// It is there, and the loop does not know yet that there is something.
    Wakes,
    /// It is there.
    Quiet,
    /// It is not taken: whoever waits for it is to hear so.
    Refused(T),
    /// It is not taken, as too much waits.
    Full(T),
    /// It is not taken, as nobody takes anything any more.
    Closed(T),
}

/// Why a call does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The worker has ended.
    Over,
    /// There are as many as may be, with those whose ends nobody has taken.
    TooMany {
        /// So many.
        calls_max: usize,
    },
}

/// How far the worker's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Joining,
    Member,
    /// It is of its group no more, and has not ended yet.
    Parted,
    /// Its last letter is there.
    Over,
    /// Nobody takes anything any more.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To this call.
    Answer(u64),
    /// With so many bytes.
    Request(u64),
    Change,
    /// The first or the last one.
    Life,
}

/// Letters of one worker. See the module's text.
#[derive(Debug)]
pub struct Inbox<T> {
    limits: InboxLimits,
    stage: Stage,
    items: VecDeque<(Kind, T)>,
    /// How many of them this turn has.
    ready: usize,
    /// The loop knows that there is something.
    is_announced: bool,
    /// Calls that have not ended, by their numbers, with the deadlines that are kept here.
    calls: Index<u64, Instant>,
    deadlines: Set<(Instant, u64)>,
    last_call: u64,
    answers: usize,
    intake: Intake,
    changes: usize,
    changes_lost: u64,
}

impl<T> Inbox<T> {
    /// That of a worker that is not yet a member.
    #[must_use]
    pub const fn of_newcomer(limits: InboxLimits) -> Self {
        Self::at(Stage::Joining, limits)
    }

    /// That of a worker that is one already.
    #[must_use]
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
        // What comes too early is announced by the first letter.
        if self.is_announced || self.stage == Stage::Joining {
            return Put::Quiet;
        }
        self.is_announced = true;
        Put::Wakes
    }

    /// The worker is a member. What becomes of it otherwise is told afterwards.
    pub fn joined(&mut self, item: T) -> Put<T> {
        if self.stage == Stage::Closed {
            return Put::Refused(item);
        }
        self.stage = Stage::Member;
        self.items.push_front((Kind::Life, item));
        self.announce()
    }

    /// The worker is of its group no more.
    pub fn parted(&mut self) -> Put<()> {
        match self.stage {
            Stage::Member => self.stage = Stage::Parted,
            Stage::Joining | Stage::Parted | Stage::Over | Stage::Closed => return Put::Quiet,
        }
        if core::mem::replace(&mut self.is_announced, true) { Put::Quiet } else { Put::Wakes }
    }

    /// Whether it is of its group no more, and has not ended yet.
    #[must_use]
    pub fn has_parted(&self) -> bool {
        self.stage == Stage::Parted
    }

    /// The worker has ended, or did not become a member. Requests that nobody has taken come out before
    /// ([`Inbox::take_requests`]), and calls that have not ended are answered ([`Inbox::first_call`]), under the same lock:
    /// what came in between would be told by nobody.
    pub fn over(&mut self, item: T) -> Put<T> {
        if matches!(self.stage, Stage::Over | Stage::Closed) {
            return Put::Refused(item);
        }
        self.stage = Stage::Over;
        self.put(Kind::Life, item)
    }

    /// A call begins: its number.
    ///
    /// # Errors
    /// There are too many, or nobody would hear what comes of it.
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

    /// It ends by then, if it has not ended yet.
    pub fn set_deadline(&mut self, call: u64, until: Instant) {
        if self.calls.contains(call) {
            self.calls.insert(call, until);
            self.deadlines.insert((until, call));
        }
    }

    /// It was not made. If it has ended all the same, nobody hears so.
    pub fn forget(&mut self, call: u64) {
        if !self.close_call(call)
            && let Some(index) = self.items.iter().position(|(kind, _)| *kind == Kind::Answer(call))
        {
            self.remove(index);
        }
    }

    /// Whether it was under way.
    fn close_call(&mut self, call: u64) -> bool {
        let until = self.calls.remove(call);
        if let Some(until) = until {
            self.deadlines.remove((until, call));
        }
        until.is_some()
    }

    /// What came of a call; nothing, if it has ended before.
    pub fn put_answer(&mut self, call: u64, item: T) -> Put<T> {
        if !self.close_call(call) {
            return Put::Refused(item);
        }
        self.answers += 1;
        self.put(Kind::Answer(call), item)
    }

    /// A call that has not ended, if there is any.
    #[must_use]
    pub fn first_call(&self) -> Option<u64> {
        self.calls.first().map(|(call, _)| call)
    }

    /// A call whose deadline has passed. It has not ended before somebody answers it.
    #[must_use]
    pub fn late_call(&self, now: Instant) -> Option<u64> {
        self.deadlines.first().filter(|&(until, _)| until <= now).map(|(_, call)| call)
    }

    /// When the next deadline passes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| until)
    }

    /// A handler of the loop's is asked, with so many bytes.
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

    /// The group has changed.
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

    /// How many changes were lost.
    #[must_use]
    pub const fn changes_lost(&self) -> u64 {
        self.changes_lost
    }

    /// A turn begins: it has what is there now.
    pub fn begin_iteration(&mut self) {
        self.is_announced = false;
        self.ready = if self.stage == Stage::Joining { 0 } else { self.items.len() };
    }

    /// The next letter of this turn.
    pub fn take(&mut self) -> Option<T> {
        self.ready = self.ready.checked_sub(1)?;
        let (kind, item) = self.items.pop_front()?;
        self.taken(kind);
        Some(item)
    }

    /// Nobody will take this one.
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

    /// The requests that nobody has taken, and will take.
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

    /// Nobody takes anything any more: all that was there.
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
