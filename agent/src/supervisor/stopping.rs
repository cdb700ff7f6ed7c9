//! How workers and what they leave behind are stopped, and what follows when they are gone.

use super::blame::by_suspicion;
use super::{
    Due, Notice, Outcome, Output, Phase, PhaseEvent, RESOURCE_BACKOFF, RESOURCE_BACKOFF_DOUBLINGS_MAX,
    Reason, StopCause, Supervisor,
};
use crate::group::ExitStatus;
use alloc::format;
use rendezvous_core::time::{Duration, Instant, Seconds};

/// How workers are being stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    pub(super) began: Instant,
    pub(super) until: Instant,
    pub(super) step: StopStep,
    pub(super) leftovers: Leftovers,
}

/// Whether a stop has come to what the workers leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// A worker still lives, or may come up.
    WorkersLive,
    /// No worker lives. What is left then is named: most of it is gone by that time.
    Unnamed { name_at: Instant },
    /// The user knows of them.
    Named,
}

/// Time that processes have to follow their worker, which gets its stop signal when they do, before they are named.
const NAMING_DELAY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopStep {
    /// They were told, by this signal.
    Signalled(i32),
    /// They were killed.
    Killed,
}

impl Stopping {
    /// Whether a worker may end so because it is being stopped.
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
            // They are being stopped already, and their time runs; another signal may say more to them.
            if stopping.step != StopStep::Killed && signal != self.spec.stop_signal {
                self.send_stop(signal);
            }
        } else if !self.is_inhabited {
            self.clear(now, Reason::Done);
        } else {
            let until = now + self.spec.stop_timeout;
            let (step, leftovers) = (StopStep::Signalled(signal), Leftovers::WorkersLive);
            self.stopping = Some(Stopping { began: now, until, step, leftovers });
            if self.spec.stop_timeout.is_zero() {
                self.kill(now, Reason::StopTimeout);
            } else {
                self.send_stop(signal);
                self.look_whether_only_leftovers_live(now);
            }
        }
    }

    pub(super) fn send_stop(&mut self, signal: i32) {
        self.outputs.push_back(Output::Signal { signal });
        if let Some(stopping) = &mut self.stopping {
            stopping.step = StopStep::Signalled(signal);
        }
    }

    /// When the last worker has ended, what it left behind has a short time only. The guard tells those processes to end
    /// as it adopts them.
    pub(super) fn look_whether_only_leftovers_live(&mut self, now: Instant) {
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

    /// Nothing lives beneath any more, as far as that can be had.
    pub(super) fn clear(&mut self, now: Instant, reason: Reason) {
        let stopping = self.stopping.take();
        self.is_inhabited = false;
        if !self.failures.is_empty() {
            let failures = by_suspicion(&core::mem::take(&mut self.failures), stopping);
            self.outputs.push_back(Output::Report { group: self.group.clone(), failures });
        }
        let is_excusable = core::mem::take(&mut self.is_excusable);
        if self.start_capacity.lacked_by != self.starts {
            self.start_capacity.lacks = 0;
        }
        if reason == Reason::GaveUp {
            // Whatever is heard now, there is no other start.
            self.conclude_if_pending();
        }
        match self.phase {
            // What was given up may hold what the next start needs: devices, ports, a place among the processes.
            Phase::Restarting if reason == Reason::GaveUp => self.give_up(now, reason),
            // A death may be heard during the pause, too.
            Phase::Restarting => {
                self.is_excusable = is_excusable;
                self.rest(now, reason);
            }
            _ if self.suspicion.is_some() => {}
            _ => self.enter(now, PhaseEvent::Clear, reason),
        }
    }

    /// Meets again.
    pub(super) fn go_on(&mut self, now: Instant, reason: Reason) {
        self.is_excusable = false;
        self.enter(now, PhaseEvent::Clear, reason);
    }

    /// Goes on to the next start, after a pause where the last ones failed at once.
    pub(super) fn rest(&mut self, now: Instant, reason: Reason) {
        let doublings = self.start_capacity.lacks.saturating_sub(1).min(RESOURCE_BACKOFF_DOUBLINGS_MAX);
        let for_resources =
            if self.start_capacity.lacks > 0 { RESOURCE_BACKOFF * (1 << doublings) } else { Duration::ZERO };
        let span = self.backoff.take_pause().max(for_resources);
        if span.is_zero() {
            return self.go_on(now, reason);
        }
        self.notify(Notice::Remark { message: format!("the next start is in {} s", Seconds(span)).into() });
        self.due = Some(Due { at: now + span, reason });
    }
}
