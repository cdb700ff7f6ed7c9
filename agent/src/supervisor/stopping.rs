//! Stopping of workers and their descendants, and the transition that follows.

use super::blame::by_suspicion;
use super::{
    Due, Notice, Outcome, Output, Phase, PhaseEvent, RESOURCE_BACKOFF, RESOURCE_BACKOFF_DOUBLINGS_MAX,
    Reason, StopCause, Supervisor,
};
use crate::group::ExitStatus;
use alloc::format;
use rendezvous_core::time::{Duration, Instant, Seconds};

/// A stop in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    pub(super) began: Instant,
    pub(super) until: Instant,
    pub(super) step: StopStep,
    pub(super) leftovers: Leftovers,
}

/// State of the descendants that outlive the workers during a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// A worker is alive, or may still start.
    WorkersLive,
    /// No worker is alive. The remaining processes are named to the user at `name_at`: most have ended by then.
    Unnamed { name_at: Instant },
    /// The user has been given their names.
    Named,
}

/// Delay between the end of the last worker and the naming of its descendants. They get the stop signal when the guard
/// adopts them, and need time to end.
const NAMING_DELAY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopStep {
    /// All were sent this stop signal.
    Signalled(i32),
    /// All were killed.
    Killed,
}

impl Stopping {
    /// Returns whether the stop explains this exit status of a worker.
    pub(super) const fn accounts_for(&self, exit: ExitStatus) -> bool {
        match (self.step, exit) {
            (StopStep::Signalled(signal_sent), ExitStatus::Signal(signal)) => {
                signal_sent == signal || !exit.is_crash()
            }
            (StopStep::Signalled(_), ExitStatus::Code(_)) | (StopStep::Killed, _) => true,
        }
    }
}

impl Supervisor {
    pub(super) fn begin_stop(&mut self, now: Instant, reason: &Reason) {
        if self.phase == Phase::Ending && self.outcome.is_none() && self.suspicion.is_none() {
            self.outcome = Some(Outcome::Succeeded { missing: None });
        }
        let signal = match reason {
            Reason::Stop(StopCause::Signal(signal)) => *signal,
            _ => self.spec.stop_signal,
        };
        if let Some(stopping) = self.stopping {
            // A stop is already in progress, and its timeout keeps running. Another signal may still have a different
            // meaning for the workers.
            if stopping.step != StopStep::Killed && signal != self.spec.stop_signal {
                self.send_stop(signal);
            }
        } else if !self.has_descendants {
            self.clear(now, Reason::Done);
        } else {
            let until = now + self.spec.stop_timeout;
            let (step, leftovers) = (StopStep::Signalled(signal), Leftovers::WorkersLive);
            self.stopping = Some(Stopping { began: now, until, step, leftovers });
            self.stop_reason = reason.clone();
            if self.spec.stop_timeout.is_zero() {
                self.kill(now, Reason::StopTimeout);
            } else {
                self.send_stop(signal);
                self.check_only_leftovers_live(now);
            }
        }
    }

    pub(super) fn send_stop(&mut self, signal: i32) {
        self.outputs.push_back(Output::Signal { signal });
        if let Some(stopping) = &mut self.stopping {
            stopping.step = StopStep::Signalled(signal);
        }
    }

    /// Shortens the timeout once the last worker has ended: its descendants get `leftover_timeout` only. The guard
    /// sends them the stop signal as it adopts them.
    pub(super) fn check_only_leftovers_live(&mut self, now: Instant) {
        let ended = self.group.workers.iter().filter(|worker| worker.exit.is_some()).count();
        if ended + self.absent < self.group.workers.len() {
            return;
        }
        if let Some(stopping) = &mut self.stopping
            && matches!(stopping.step, StopStep::Signalled(_))
            && stopping.leftovers == Leftovers::WorkersLive
        {
            stopping.until = stopping.until.min(now + self.spec.leftover_timeout);
            stopping.leftovers = Leftovers::Unnamed { name_at: now + NAMING_DELAY };
        }
    }

    pub(super) fn kill(&mut self, now: Instant, reason: Reason) {
        let Some(stopping) = &mut self.stopping else { return };
        stopping.step = StopStep::Killed;
        stopping.until = now + self.spec.kill_timeout;
        self.notify(Notice::Killing { reason });
        self.outputs.push_back(Output::Kill);
    }

    /// Ends the stop: no descendant of the agent is alive, except those that could not be killed.
    pub(super) fn clear(&mut self, now: Instant, reason: Reason) {
        let stopping = self.stopping.take();
        self.has_descendants = false;
        if !self.failures.is_empty() {
            let failures = by_suspicion(&core::mem::take(&mut self.failures), stopping);
            self.outputs.push_back(Output::Report { group: self.group.clone(), failures });
        }
        let is_excusable = core::mem::take(&mut self.is_excusable);
        if self.start_capacity.lacked_by != self.starts {
            self.start_capacity.lacks = 0;
        }
        if reason == Reason::GaveUp {
            // No report can excuse the failure now: there is no other start.
            self.conclude_if_pending();
        }
        match self.phase {
            // Processes that could not be killed may hold what the next start needs: devices, ports, slots in the
            // process table.
            Phase::Restarting if reason == Reason::GaveUp => self.give_up(now, reason),
            // A peer's death may still be reported during the pause.
            Phase::Restarting => {
                self.is_excusable = is_excusable;
                self.pause_before_start(now, reason);
            }
            _ if self.suspicion.is_some() => {}
            _ => self.enter(now, PhaseEvent::Clear, reason),
        }
    }

    /// Leaves `Restarting` and joins the rendezvous again.
    pub(super) fn meet_again(&mut self, now: Instant, reason: Reason) {
        self.is_excusable = false;
        self.enter(now, PhaseEvent::Clear, reason);
    }

    /// Starts again, after a pause if the last starts failed at once.
    pub(super) fn pause_before_start(&mut self, now: Instant, reason: Reason) {
        let doublings = self.start_capacity.lacks.saturating_sub(1).min(RESOURCE_BACKOFF_DOUBLINGS_MAX);
        let for_resources =
            if self.start_capacity.lacks > 0 { RESOURCE_BACKOFF * (1 << doublings) } else { Duration::ZERO };
        let span = self.backoff.take_pause().max(for_resources);
        if span.is_zero() {
            return self.meet_again(now, reason);
        }
        self.notify(Notice::Remark { message: format!("the next start is in {} s", Seconds(span)).into() });
        self.due = Some(Due { at: now + span, reason });
    }
}
