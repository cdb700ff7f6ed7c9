//! Ends of workers, and which of them is the root cause of the others.

use super::{Failed, Notice, Stopping, Supervisor};
use crate::group::{ExitStatus, WorkerState};
use crate::phase::Phase;
use crate::reason::Reason;
use crate::watchdog::ExpiredTimer;
use alloc::vec::Vec;
use rendezvous_core::planted::{self, Bug};
use rendezvous_core::time::Instant;

/// Where a failure stands among those of its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// Others end in consequence of such a death, and never the other way round.
    Cause,
    /// It may have ended because another one did.
    Unsure,
    /// It crashed on its way out, when it had been told to end.
    Aftermath,
}

fn suspicion(failed: &Failed, stopping: Option<Stopping>) -> Suspicion {
    let was_stopped = stopping.is_some_and(|stopping| stopping.began < failed.at);
    match failed.exit {
        // Nobody is killed because a peer ended, or because he was told to end; peers may end first, though.
        exit if exit.is_killed() => Suspicion::Cause,
        exit if exit.is_crash() && was_stopped => Suspicion::Aftermath,
        exit if exit.is_violent() => Suspicion::Cause,
        _ => Suspicion::Unsure,
    }
}

/// Whether this is no consequence of another's end.
fn is_cause(failed: &Failed, stopping: Option<Stopping>) -> bool {
    suspicion(failed, stopping) == Suspicion::Cause
}

/// The failures of a start, which are in the order of their first signs: the root cause first, and those that are alike in
/// that order.
pub(super) fn by_suspicion(failures: &[Failed], stopping: Option<Stopping>) -> Vec<Failed> {
    let of = |wanted| failures.iter().filter(move |failed| suspicion(failed, stopping) == wanted).copied();
    [Suspicion::Cause, Suspicion::Unsure, Suspicion::Aftermath].into_iter().flat_map(of).collect()
}

impl Supervisor {
    pub(super) fn exited(
        &mut self,
        now: Instant,
        local_rank: u32,
        exit: ExitStatus,
        at: Instant,
        was_ending: bool,
    ) {
        let was_stopping = self.stopping.is_some();
        let pid = self.worker(local_rank).and_then(|worker| {
            worker.exit = Some(exit);
            worker.pid
        });
        // A worker that was told to end is no failure, however it takes that. One that was ending before is, although
        // its end is seen late: its peers may have seen its connections close, and ended, before that. So is one that
        // had written an error file: it was on its way out.
        let error_at = self.errors.iter().find(|(writer, _)| *writer == local_rank).map(|(_, at)| *at);
        let began = self.stopping.filter(|_| was_ending || error_at.is_some()).map(|stopping| stopping.began);
        let detect = now.since(at);
        let at = [Some(at), error_at, began].into_iter().flatten().min().unwrap_or(at);
        let was_stopped =
            self.stopping.is_some_and(|stopping| stopping.began < at && stopping.accounts_for(exit))
                && !self.overdue.contains(&local_rank)
                && !planted::has(Bug::BlamedVictim);
        self.notify(Notice::Exited { local_rank, exit, was_stopped });
        if exit.is_success() && !(was_stopping && error_at.is_some()) {
            self.look_whether_all_started(now);
            self.look_whether_all_succeeded(now);
        } else if !was_stopped {
            let failed = Failed { local_rank, pid, exit, at };
            let index = self.failures.partition_point(|other| other.at <= at);
            self.failures.insert(index, failed);
            if let (Phase::Starting | Phase::Running, Some(worker)) =
                (self.phase, self.group.ranks_of(local_rank))
            {
                self.group.state = WorkerState::Failed;
                self.clocks.timing.detect = detect;
                let reason = self.first_failure(&failed).unwrap_or(Reason::WorkerFailed { worker, exit });
                self.spend(now, reason);
            } else if is_cause(&failed, self.stopping) {
                // It is no consequence of anything, and the others may be.
                self.is_excusable = false;
                self.settle(now);
            }
        }
        if was_stopping {
            self.look_whether_only_leftovers_live(now);
        }
    }

    /// The reason for the stop where it is not the worker that failed, but one that had written an error file before that.
    fn first_failure(&self, failed: &Failed) -> Option<Reason> {
        let (writer, written) = self.errors.iter().min_by_key(|(_, at)| *at)?;
        let is_first = *written < failed.at && *writer != failed.local_rank && !is_cause(failed, None);
        let worker = self.group.ranks_of(*writer).filter(|_| is_first)?;
        Some(Reason::ErrorWritten { worker })
    }

    /// The group does not wait for the end of the worker that is overdue: it may take its time, or be no worker.
    pub(super) fn timer_expired(&mut self, now: Instant, timer: ExpiredTimer) {
        let is_failure = timer.signal > 0 && matches!(self.phase, Phase::Starting | Phase::Running);
        self.notify(Notice::TimerExpired(timer.clone()));
        if is_failure {
            self.overdue.extend(timer.local_rank);
            self.group.state = WorkerState::Failed;
            let worker = timer.local_rank.and_then(|local_rank| self.group.ranks_of(local_rank));
            self.spend(now, Reason::TimerExpired { worker, timer });
        }
    }
}
