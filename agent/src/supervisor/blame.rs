//! Exits of workers, and the choice of the root cause among them.

use super::{Failed, Notice, Stopping, Supervisor};
use crate::group::{ExitStatus, WorkerState};
use crate::phase::Phase;
use crate::reason::Reason;
use crate::watchdog::ExpiredTimer;
use rendezvous_core::prelude::*;

/// Likelihood that a failure is the root cause of its start's failures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// Other workers end in consequence of such a death, and never the other way round.
    Cause,
    /// It may be a consequence of another worker's end.
    Unsure,
    /// It crashed after it had been asked to stop.
    Aftermath,
}

fn suspicion(failed: &Failed, stopping: Option<Stopping>) -> Suspicion {
    let was_stopped = stopping.is_some_and(|stopping| stopping.began < failed.at);
    match failed.exit {
        // A worker is not killed because a peer ended or because it was asked to stop. But peers may end before it
        // does.
        exit if exit.is_killed() => Suspicion::Cause,
        exit if exit.is_crash() && was_stopped => Suspicion::Aftermath,
        exit if exit.is_violent() => Suspicion::Cause,
        _ => Suspicion::Unsure,
    }
}

fn is_cause(failed: &Failed, stopping: Option<Stopping>) -> bool {
    suspicion(failed, stopping) == Suspicion::Cause
}

/// Sorts the failures of a start, which are in the order of their earliest evidence: the root cause first. Failures of
/// equal suspicion keep their order.
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
        // A worker that was asked to stop has not failed, whatever its exit status. But a worker that was ending before
        // has failed, even if its end is seen late: its peers may have seen its connections close, and have ended,
        // before that. The same holds for a worker that had written an error file.
        let error_at = self.errors.iter().find(|(writer, _)| *writer == local_rank).map(|(_, at)| *at);
        let began = self.stopping.filter(|_| was_ending || error_at.is_some()).map(|stopping| stopping.began);
        let detect = now.since(at);
        let at = [Some(at), error_at, began].into_iter().flatten().min().unwrap_or(at);
        let was_stopped =
            self.stopping.is_some_and(|stopping| stopping.began < at && stopping.accounts_for(exit))
                && !self.overdue.contains(&local_rank);
        let stopped_for = was_stopped.then(|| self.stop_reason.clone());
        self.notify(Notice::Exited { local_rank, exit, stopped_for });
        if exit.is_success() && !(was_stopping && error_at.is_some()) {
            self.check_all_started(now);
            self.check_all_succeeded(now);
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
                // This failure is no consequence of another one, and the others may be consequences of it.
                self.is_excusable = false;
                self.settle(now);
            }
        }
        if was_stopping {
            self.check_only_leftovers_live(now);
        }
    }

    /// Returns the reason of the stop if another worker had written an error file before this one failed.
    fn first_failure(&self, failed: &Failed) -> Option<Reason> {
        let (writer, written) = self.errors.iter().min_by_key(|(_, at)| *at)?;
        let is_first = *written < failed.at && *writer != failed.local_rank && !is_cause(failed, None);
        let worker = self.group.ranks_of(*writer).filter(|_| is_first)?;
        Some(Reason::ErrorWritten { worker })
    }

    /// Handles an expired timer. The group does not wait for the process to end: that may take long, or the process may
    /// be no worker.
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
