//! Barrier that identifies the missing ranks when it times out.
//!
//! As with PyTorch, arrivals are counted, and the last participant sets the key that releases the others. A
//! participant whose wait times out writes a trace key. Rank 0 checks for the traces of the others, reports the
//! ranks without one, and sets the tracing gate; the other ranks refer to rank 0.
//!
//! Unlike PyTorch, no rank waits for a trace that cannot follow: once there are as many traces as arrivals, the
//! ranks without a trace are certainly missing. So rank 0 does not wait for them. A missing rank 0 is reported as
//! soon as the last of the arrived ranks has timed out; PyTorch waits for it for a second whole timeout, and never
//! reports it.

use super::survey::Survey;
use super::{GroupError, Step, UnexpectedOutcome, check_group, counter_key, joined, last_member_key};
use crate::prelude::*;
use crate::store::call::Outcome;
use crate::time::Seconds;

/// Default timeout of PyTorch's barrier.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(300);
/// Default timeout of the wait for traces.
pub const TRACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between two checks of the traces: the first and the longest. Each is twice the previous one.
const LOOK_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time that rank 0 may take beyond the trace timeout until it sets the gate.
const GATE_MARGIN: Duration = Duration::from_secs(1);

/// Options of one arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierOptions {
    /// Number of participants.
    pub world_size: i64,
    /// Prefix of each key. A prefix can be used for one barrier.
    pub key_prefix: Box<str>,
    /// Timeout of the wait for the others.
    pub timeout: Duration,
    /// Rank of the participant. Without it, missing ranks are not searched for.
    pub rank: Option<i64>,
    /// Timeout of the wait for traces that may still be written.
    pub trace_timeout: Duration,
}

impl BarrierOptions {
    /// Creates options with PyTorch's timeouts, and without tracing.
    pub fn new(world_size: i64, key_prefix: &str) -> Self {
        Self {
            world_size,
            key_prefix: key_prefix.into(),
            timeout: BARRIER_TIMEOUT,
            rank: None,
            trace_timeout: TRACE_TIMEOUT,
        }
    }
}

/// Outcome of a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierOutcome {
    /// All participants arrived.
    Released,
    /// Not all arrived in time; the missing ranks are unknown.
    TimedOut,
    /// Not all arrived in time, and these ranks are missing: up to 16, in order.
    Missing(Vec<i64>),
    /// Not all arrived in time; rank 0 reports the missing ranks.
    AskRankZero,
}

#[derive(Clone, Debug)]
enum BarrierState {
    Arriving,
    Announcing,
    Waiting { until: Instant },
    Tracing,
    Counting(Look),
    Looking(Look, Survey),
    Pausing(Look, Pause),
    Gated { until: Instant },
    Opening(Vec<i64>),
    Done(BarrierOutcome),
}

/// Repeated check of the traces.
#[derive(Clone, Copy, Debug)]
struct Look {
    arrivals: i64,
    /// When ranks without a trace count as missing.
    until: Instant,
    interval: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    for_rank: i64,
    until: Instant,
}

/// Arrival in progress. The caller carries out each [`TracedBarrier::next_step`] and reports its outcome, until
/// there is none.
#[derive(Clone, Debug)]
pub struct TracedBarrier {
    options: BarrierOptions,
    state: BarrierState,
}

impl TracedBarrier {
    /// Creates an arrival.
    ///
    /// # Errors
    /// The world size or the rank is invalid.
    pub fn new(options: BarrierOptions) -> Result<Self, GroupError> {
        check_group(options.rank, options.world_size)?;
        Ok(Self { options, state: BarrierState::Arriving })
    }

    /// Returns the next step; `None` when there is a [`TracedBarrier::barrier_outcome`].
    pub fn next_step(&self) -> Option<Step> {
        let prefix = &*self.options.key_prefix;
        Some(match &self.state {
            BarrierState::Arriving => Step::Add { key: counter_key(prefix), delta: 1 },
            BarrierState::Announcing => Step::Mark { key: last_member_key(prefix) },
            &BarrierState::Waiting { until } => Step::Wait { key: last_member_key(prefix), until },
            BarrierState::Tracing => {
                Step::Mark { key: self.trace_key(self.options.rank.unwrap_or_default()) }
            }
            BarrierState::Counting(_) => Step::Add { key: counter_key(prefix), delta: 0 },
            BarrierState::Looking(_, survey) => {
                Step::Check { keys: survey.next()?.map(|rank| self.trace_key(rank)).collect() }
            }
            BarrierState::Pausing(_, pause) => {
                Step::Wait { key: self.trace_key(pause.for_rank), until: pause.until }
            }
            &BarrierState::Gated { until } => Step::Wait { key: self.gate_key(), until },
            BarrierState::Opening(_) => Step::Mark { key: self.gate_key() },
            BarrierState::Done(_) => return None,
        })
    }

    /// Returns the step that counts the arrivals, for use after a timeout. The outcome is their number.
    pub fn count_step(&self) -> Step {
        Step::Add { key: counter_key(&self.options.key_prefix), delta: 0 }
    }

    /// Returns the outcome, if the barrier has ended.
    pub const fn barrier_outcome(&self) -> Option<&BarrierOutcome> {
        match &self.state {
            BarrierState::Done(barrier_outcome) => Some(barrier_outcome),
            _ => None,
        }
    }

    /// Returns whether the other participants no longer depend on this one: its arrival was counted, and if it was
    /// the last, the others were released.
    pub const fn has_arrived(&self) -> bool {
        !matches!(self.state, BarrierState::Arriving | BarrierState::Announcing)
    }

    /// Returns whether the wait has timed out, and the search for the missing ranks is in progress.
    pub const fn is_tracing(&self) -> bool {
        !matches!(
            self.state,
            BarrierState::Arriving
                | BarrierState::Announcing
                | BarrierState::Waiting { .. }
                | BarrierState::Done(_)
        )
    }

    /// Handles the outcome of the step.
    ///
    /// # Errors
    /// The outcome does not belong to that step.
    pub fn handle(&mut self, now: Instant, outcome: Outcome) -> Result<(), UnexpectedOutcome> {
        use Outcome::{Applied, Missing, NotReady, Number, Ready, Released};
        let BarrierOptions { world_size, timeout, rank, trace_timeout, .. } = self.options;
        let next = match (&self.state, outcome) {
            // A surplus arrival announces as well, in case the last member died before it could.
            (BarrierState::Arriving, Number(count)) if count >= world_size => BarrierState::Announcing,
            (BarrierState::Arriving, Number(_)) => BarrierState::Waiting { until: now + timeout },
            (BarrierState::Announcing, Applied) | (BarrierState::Waiting { .. }, Released) => {
                BarrierState::Done(BarrierOutcome::Released)
            }
            (BarrierState::Waiting { .. }, Missing) if rank.is_none() => {
                BarrierState::Done(BarrierOutcome::TimedOut)
            }
            (BarrierState::Waiting { .. }, Missing) => BarrierState::Tracing,
            (BarrierState::Tracing, Applied) => {
                // Rank 0 searches for all ranks, with its full trace timeout. The others wait for rank 0 no longer
                // than their own timeout, because it may be missing.
                let wait = if rank == Some(0) { trace_timeout } else { trace_timeout.min(timeout) };
                BarrierState::Counting(Look { arrivals: 0, until: now + wait, interval: LOOK_INTERVALS.0 })
            }
            (&BarrierState::Counting(look), Number(arrivals)) => {
                BarrierState::Looking(Look { arrivals, ..look }, Survey::new(world_size))
            }
            (BarrierState::Looking(look, survey), Ready | NotReady) => {
                let mut survey = survey.clone();
                let includes_rank_zero = survey.next() == Some(0..1);
                survey.answer(outcome == Ready);
                if includes_rank_zero && outcome == Ready && rank != Some(0) {
                    BarrierState::Gated { until: now + trace_timeout + GATE_MARGIN }
                } else {
                    self.looked(now, *look, survey)
                }
            }
            (&BarrierState::Pausing(look, _), Released | Missing) => {
                let interval = (look.interval * 2).min(LOOK_INTERVALS.1);
                BarrierState::Counting(Look { interval, ..look })
            }
            (BarrierState::Gated { .. }, Released | Missing) => {
                BarrierState::Done(BarrierOutcome::AskRankZero)
            }
            (BarrierState::Opening(missing), Applied) => {
                BarrierState::Done(BarrierOutcome::Missing(missing.clone()))
            }
            (_, outcome) => return Err(UnexpectedOutcome { step: self.next_step(), outcome }),
        };
        self.state = next;
        Ok(())
    }

    fn looked(&self, now: Instant, look: Look, survey: Survey) -> BarrierState {
        if survey.next().is_some() {
            return BarrierState::Looking(look, survey);
        }
        let missing = survey.missing();
        let traces = self.options.world_size - i64::try_from(missing.len()).unwrap_or(i64::MAX);
        let is_certain = survey.is_complete() && traces >= look.arrivals;
        match missing.first() {
            Some(&for_rank) if !is_certain && now < look.until => {
                let until = (now + look.interval).min(look.until);
                BarrierState::Pausing(look, Pause { for_rank, until })
            }
            _ if self.options.rank == Some(0) => BarrierState::Opening(missing.to_vec()),
            _ => BarrierState::Done(BarrierOutcome::Missing(missing.to_vec())),
        }
    }

    fn trace_key(&self, rank: i64) -> Box<str> {
        joined(&[&self.options.key_prefix, &rank.to_string(), "/TRACE"])
    }

    fn gate_key(&self) -> Box<str> {
        joined(&[&self.options.key_prefix, "/TRACING_GATE"])
    }
}

/// Timeout of a barrier, with what is known about the missing ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierTimeout {
    /// The rank that waited.
    pub rank: i64,
    /// Key prefix of the barrier.
    pub key_prefix: Box<str>,
    /// Number of participants.
    pub world_size: i64,
    /// Timeout of the wait for the others.
    pub timeout: Duration,
    /// The missing ranks, as far as this rank knows; empty when rank 0 knows them.
    pub missing: Vec<i64>,
    /// What the message names: the missing ranks, or rank 0.
    names: Vec<String>,
}

impl BarrierTimeout {
    /// Creates the error of an outcome, with the caller's names of ranks. Returns `None` if the barrier was
    /// released, the missing ranks are unknown, or the options have no rank.
    pub fn of(
        options: &BarrierOptions,
        barrier_outcome: &BarrierOutcome,
        rank_name: &dyn Fn(i64) -> String,
    ) -> Option<Self> {
        let (missing, names) = match barrier_outcome {
            BarrierOutcome::Released | BarrierOutcome::TimedOut => return None,
            BarrierOutcome::Missing(ranks) => {
                (ranks.clone(), ranks.iter().map(|&rank| rank_name(rank)).collect())
            }
            BarrierOutcome::AskRankZero => {
                let name = rank_name(0);
                (vec![], vec![["[<check rank 0 (", &name, ") for missing rank info>]"].concat()])
            }
        };
        let BarrierOptions { world_size, key_prefix, timeout, rank, .. } = options.clone();
        Some(Self { rank: rank?, key_prefix, world_size, timeout, missing, names })
    }

    /// Returns the names of the missing ranks, in order of rank.
    pub fn missing_names(&self) -> &[String] {
        if self.missing.is_empty() { &[] } else { &self.names }
    }
}

impl fmt::Display for BarrierTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, key_prefix, world_size, timeout, names, .. } = self;
        write!(
            f,
            "Timed out waiting on barrier on rank {rank}, for key prefix: {key_prefix} (world_size={world_size}, \
             missing_ranks=[{}], timeout={:?})",
            names.join(", "),
            Seconds(*timeout)
        )
    }
}

impl core::error::Error for BarrierTimeout {}

#[cfg(test)]
mod tests;
