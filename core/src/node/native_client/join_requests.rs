//! Requests by which a node joins and leaves a run. A node has one join request at a time.

use super::event::BeginError;
use super::{Awaited, NativeClient, Pending, Stage, SubmitWhen};
use crate::error::Operation;
use crate::rendezvous::participant::{self, InvalidState, Part};
use crate::time::{Duration, Instant};

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Begins to join, as [`NativeClient::begin`] does. The timeout is suspended while the node is a spare, but not
    /// while the request waits for the answer to an earlier one that the node gave up.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin_join(
        &mut self,
        now: Instant,
        operation: Operation,
        frame: (u16, usize),
        span: Duration,
    ) -> Result<u64, BeginError> {
        let submit_when = self.submit_when();
        if submit_when == SubmitWhen::Never || self.held().is_some() {
            let part = self.participant.part();
            let is_joining = part != Part::Replaced && self.held().is_some();
            return Err(BeginError::InvalidState(InvalidState(if is_joining {
                Part::Joining
            } else {
                part
            })));
        }
        let id = self.begin(now, operation, frame, span)?;
        if submit_when == SubmitWhen::Later {
            // It is sent after the requests that begin in the meantime. Until then the id only identifies it.
            self.session.withdraw(id);
            if let Some(call) = self.pending.last_mut() {
                call.stage = Stage::Held;
            }
            return Ok(id);
        }
        self.participant.join(id).map(|()| id).map_err(BeginError::InvalidState)
    }

    pub(super) fn submit_when(&self) -> SubmitWhen {
        let part = self.participant.part();
        let may_ask = part.on_event(participant::PartEvent::Ask).is_some();
        let is_local = |call: &Pending| call.awaited == Awaited::Yes && self.participant.is_local(call.id);
        match part {
            Part::Replaced => SubmitWhen::Never,
            _ if may_ask && !self.owes_leave() => SubmitWhen::Now,
            _ if self.pending.iter().any(is_local) => SubmitWhen::Never,
            _ => SubmitWhen::Later,
        }
    }

    /// Returns the index of the join request that is held.
    pub(super) fn held(&self) -> Option<usize> {
        self.pending.iter().position(|call| call.stage == Stage::Held)
    }

    /// Sends the join request that is held, once it may be sent.
    pub(super) fn release(&mut self) {
        let Some(index) = self.held().filter(|_| self.submit_when() == SubmitWhen::Now) else { return };
        // A held request has an entry in the table, so the session has capacity for it.
        let Ok(id) = self.session.begin() else { return };
        let call = self.pending.remove(index);
        let _ = self.pending.push(Pending { id, stage: Stage::Due, ..call });
        // `submit_when` has just allowed it.
        let _ = self.participant.join(id);
    }

    /// Returns whether the node has a slot from a join that was given up and has not asked to leave yet.
    pub(super) fn owes_leave(&self) -> bool {
        let part = self.participant.part();
        self.leave_due && matches!(part, Part::InRound | Part::InLastRound | Part::Between)
    }

    /// Begins to leave the run.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin_leave(
        &mut self,
        now: Instant,
        frame: (u16, usize),
        span: Duration,
    ) -> Result<u64, BeginError> {
        let part = self.participant.part();
        if part.on_event(participant::PartEvent::AskToLeave).is_none() {
            return Err(BeginError::InvalidState(InvalidState(part)));
        }
        let id = self.begin(now, Operation::Leave, frame, span)?;
        self.participant.leave(id).map(|()| id).map_err(BeginError::InvalidState)
    }
}
