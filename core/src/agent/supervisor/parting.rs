//! The exit barrier, and the ways out of it.

use super::{
    Arrival, Due, InVain, Instant, Output, Phase, PhaseEvent, Reason, Supervisor, Verdict, WorkerState,
};
use crate::planted::{self, Bug};
use crate::time::Duration;
use alloc::boxed::Box;

/// The exit barrier of a round that is over. What ended it may be a death, which changes nothing any more, or somebody who
/// wants another round: that is to be heard first.
#[derive(Debug)]
pub(super) struct Unexplained {
    /// Until then it is waited for.
    pub(super) until: Instant,
    pub(super) words: Box<str>,
}

/// How long the news of a round may be behind what is seen of its store. Both come from one server.
pub(super) const NEWS_DELAY_MAX: Duration = Duration::from_secs(5);

/// How long it may take until it is known whether an arrival was counted that is not waited for any more.
pub(super) const ARRIVAL_DELAY_MAX: Duration = Duration::from_secs(5);

impl Supervisor {
    /// The workers have succeeded, whatever the others do.
    pub(super) fn part_early(&mut self, now: Instant, reason: Reason) {
        self.cancel();
        self.verdict = Some(Verdict::Succeeded { missing: Some(reason.clone()) });
        self.enter(now, PhaseEvent::Part, reason);
    }

    /// There is no other round after all, and none was needed: the workers had succeeded. The others may have come to the exit
    /// barrier in the moment in which this one heard of a newcomer.
    pub(super) fn stand_by_the_last_round(&mut self, now: Instant, reason: Reason) {
        self.group.state = WorkerState::Succeeded;
        self.verdict = Some(Verdict::Succeeded { missing: Some(reason.clone()) });
        self.enter(now, PhaseEvent::GiveUp, reason);
    }

    /// The wait for the others has come to nothing.
    pub(super) fn not_parted(&mut self, now: Instant, kind: InVain, arrival: Arrival, words: Box<str>) {
        match (self.due.take(), kind) {
            // Nobody waits in a round that is over.
            (Some(due), InVain::RoundOver) => self.go_without_others(now, due.reason, Arrival::Counted),
            (Some(due), InVain::Failed) => self.go_without_others(now, due.reason, arrival),
            (None, InVain::RoundOver) => {
                self.unexplained = Some(Unexplained { until: now + NEWS_DELAY_MAX, words });
            }
            (None, InVain::Failed) => self.go_without_others(now, Reason::NotAllParted { words }, arrival),
        }
    }

    /// It waits for the others no more, and goes as soon as it is known whether they wait for it.
    pub(super) fn leave_the_others(&mut self, now: Instant, reason: Reason) {
        match (self.call, self.is_leaving()) {
            (Some(call), false) => {
                self.outputs.push_back(Output::Cancel { call });
                self.due = Some(Due { at: now + ARRIVAL_DELAY_MAX, reason });
            }
            // Whoever asks twice will not wait.
            (Some(_), true) => self.go_without_others(now, reason, Arrival::Unknown),
            (None, _) => self.go_without_others(now, reason, Arrival::Counted),
        }
    }

    /// Whether it goes as soon as it is known whether the others wait for it.
    pub(super) const fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Parting) && self.due.is_some()
    }

    /// A goodbye tells nobody that the one who says it will not come. A death does.
    pub(super) fn go_without_others(&mut self, now: Instant, reason: Reason, arrival: Arrival) {
        if arrival == Arrival::Unknown && !planted::has(Bug::SilentParting) {
            self.outputs.push_back(Output::Abandon);
        }
        match reason {
            Reason::Stop(_) => self.give_up(now, reason),
            _ => self.part_early(now, reason),
        }
    }
}
