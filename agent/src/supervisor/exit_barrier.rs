//! The exit barrier, and the ways out of it.

use super::{Due, Instant, Outcome, Output, Phase, PhaseEvent, Reason, Supervisor, WaitFailure, WorkerState};
use alloc::boxed::Box;
use rendezvous_core::planted::{self, Bug};
use rendezvous_core::time::Duration;

/// The exit barrier of a round that is over. What ended it may be a death, which changes nothing any more, or somebody who
/// wants another round: that is to be heard first.
#[derive(Debug)]
pub(super) struct Unexplained {
    /// Until then it is waited for.
    pub(super) until: Instant,
    pub(super) message: Box<str>,
}

/// How long the news of a round may be behind what is seen of its store. Both come from one server.
pub(super) const NEWS_DELAY_MAX: Duration = Duration::from_secs(5);

/// How long it may take until it is known whether an arrival was counted that is not waited for any more.
pub(super) const ARRIVAL_DELAY_MAX: Duration = Duration::from_secs(5);

/// Whether the others wait for this agent at the exit barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It was counted there.
    Counted,
    /// It was not, or nobody knows.
    Unknown,
}

impl Supervisor {
    /// The workers have succeeded, whatever the others do.
    pub(super) fn part_early(&mut self, now: Instant, reason: Reason) {
        self.cancel();
        self.outcome = Some(Outcome::Succeeded { missing: Some(reason.clone()) });
        self.enter(now, PhaseEvent::Part, reason);
    }

    /// There is no other round after all, and none was needed: the workers had succeeded. The others may have come to the exit
    /// barrier in the moment in which this one heard of a newcomer.
    /// Who comes from no success gives up.
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

    /// The wait for the others has come to nothing.
    pub(super) fn not_parted(&mut self, now: Instant, kind: WaitFailure, message: Box<str>) {
        if kind == WaitFailure::RoundOver {
            // Nobody waits there any more.
            self.arrival = Arrival::Counted;
        }
        match (self.due.take(), kind) {
            (Some(due), _) => self.go_without_others(now, due.reason),
            (None, WaitFailure::RoundOver) => {
                self.unexplained = Some(Unexplained { until: now + NEWS_DELAY_MAX, message });
            }
            (None, WaitFailure::Failed) => self.go_without_others(now, Reason::NotAllParted { message }),
        }
    }

    /// The others do not wait for this agent any more.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrival = Arrival::Counted;
        if let Some(due) = self.due.take() {
            self.wait_no_more(now, due.reason);
        }
    }

    /// Its call was cancelled before.
    pub(super) fn wait_no_more(&mut self, now: Instant, reason: Reason) {
        self.call = None;
        self.go_without_others(now, reason);
    }

    /// It waits for the others no more, and goes as soon as it is known whether they wait for it.
    pub(super) fn leave_the_others(&mut self, now: Instant, reason: Reason) {
        match self.call {
            Some(call) if self.arrival == Arrival::Unknown => {
                if self.due.is_none() {
                    self.outputs.push_back(Output::Cancel { call });
                }
                let at = self.due.as_ref().map_or(now + ARRIVAL_DELAY_MAX, |due| due.at);
                self.due = Some(Due { at, reason });
            }
            _ => self.go_without_others(now, reason),
        }
    }

    /// Whether it goes as soon as it is known whether the others wait for it.
    pub(super) const fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::ExitBarrier) && self.due.is_some()
    }

    /// A goodbye tells nobody that the one who says it will not come. A death does.
    pub(super) fn go_without_others(&mut self, now: Instant, reason: Reason) {
        if self.arrival == Arrival::Unknown && !planted::has(Bug::SilentLeave) {
            self.outputs.push_back(Output::Abandon);
        }
        match reason {
            Reason::Stop(_) => self.give_up(now, reason),
            _ => self.part_early(now, reason),
        }
    }
}
