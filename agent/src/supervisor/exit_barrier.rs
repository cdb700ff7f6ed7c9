//! The exit barrier, and the ways to leave it.

use super::{Due, Instant, Outcome, Output, Phase, PhaseEvent, Reason, Supervisor, WaitFailure, WorkerState};
use rendezvous_core::prelude::*;

/// An exit barrier that failed because its round has ended. The cause is unknown yet: a death, which changes nothing
/// any more, or a node that wants another round. That report is waited for.
#[derive(Debug)]
pub(super) struct Unexplained {
    /// End of the wait for the report.
    pub(super) until: Instant,
    pub(super) message: Box<str>,
}

/// Longest time between the failure of the round's store and the report that the round has ended. Both come from one
/// server.
pub(super) const NEWS_DELAY_MAX: Duration = Duration::from_secs(5);

/// Longest wait for the answer whether this agent's arrival was counted, after the exit barrier was cancelled.
pub(super) const ARRIVAL_DELAY_MAX: Duration = Duration::from_secs(5);

/// Whether this agent has arrived at the exit barrier, as the others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The arrival was counted.
    Counted,
    /// The arrival was not counted, or no answer is known.
    Unknown,
}

impl Supervisor {
    /// Leaves the exit barrier before the others. The workers have succeeded, whatever the others do.
    pub(super) fn leave_barrier_early(&mut self, now: Instant, reason: Reason) {
        self.cancel();
        self.outcome = Some(Outcome::Succeeded { missing: Some(reason.clone()) });
        self.enter(now, PhaseEvent::ExitBarrierOver, reason);
    }

    /// Ends a renewal that forms no other round. If this agent's workers had succeeded, that result stands: the others
    /// may have arrived at the exit barrier at the moment in which this agent left it for a waiting node. Without such
    /// a success the agent gives up.
    pub(super) fn conclude_with_last_round(&mut self, now: Instant, reason: Reason) {
        let Some(done) = self.done.take() else { return self.give_up(now, reason) };
        if self.arrival == Arrival::Unknown {
            self.outputs.push_back(Output::Abandon);
        }
        self.group = done;
        self.group.state = WorkerState::Succeeded;
        self.outcome = Some(Outcome::Succeeded { missing: Some(reason.clone()) });
        self.enter(now, PhaseEvent::GiveUp, reason);
    }

    /// Handles the failure of the exit barrier.
    pub(super) fn exit_barrier_failed(&mut self, now: Instant, kind: WaitFailure, message: Box<str>) {
        if kind == WaitFailure::RoundOver {
            // No agent waits there any more.
            self.arrival = Arrival::Counted;
        }
        match (self.due.take(), kind) {
            (Some(due), _) => self.leave_without_others(now, due.reason),
            (None, WaitFailure::RoundOver) => {
                self.unexplained = Some(Unexplained { until: now + NEWS_DELAY_MAX, message });
            }
            (None, WaitFailure::Failed) => {
                self.leave_without_others(now, Reason::ExitBarrierFailed { message })
            }
        }
    }

    /// Handles the report that the others do not wait for this agent any more.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrival = Arrival::Counted;
        if let Some(due) = self.due.take() {
            self.stop_waiting(now, due.reason);
        }
    }

    /// Leaves the exit barrier; its call was cancelled before.
    pub(super) fn stop_waiting(&mut self, now: Instant, reason: Reason) {
        self.call = None;
        self.leave_without_others(now, reason);
    }

    /// Cancels the exit barrier, and leaves as soon as it is known whether the others wait for this agent.
    pub(super) fn leave_when_counted(&mut self, now: Instant, reason: Reason) {
        match self.call {
            Some(call) if self.arrival == Arrival::Unknown => {
                if self.due.is_none() {
                    self.outputs.push_back(Output::Cancel { call });
                }
                let at = self.due.as_ref().map_or(now + ARRIVAL_DELAY_MAX, |due| due.at);
                self.due = Some(Due { at, reason });
            }
            _ => self.leave_without_others(now, reason),
        }
    }

    /// Returns whether it leaves as soon as it is known whether the others wait for it.
    pub(super) const fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::ExitBarrier) && self.due.is_some()
    }

    /// Leaves the exit barrier. A graceful leave does not notify agents that wait at the barrier; a death does. So
    /// `Output::Abandon` comes first unless the arrival was counted.
    pub(super) fn leave_without_others(&mut self, now: Instant, reason: Reason) {
        if self.arrival == Arrival::Unknown {
            self.outputs.push_back(Output::Abandon);
        }
        match reason {
            Reason::Stop(_) => self.give_up(now, reason),
            _ => self.leave_barrier_early(now, reason),
        }
    }
}
