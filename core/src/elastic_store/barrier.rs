//! A barrier that, when not all come, finds out who is missing.
//!
//! As with PyTorch: arrivals are counted, the last one opens the door. Who waits in vain leaves a trace, and rank 0
//! looks for the traces of the others, names who left none, and opens the tracing gate; the others point to rank 0.
//!
//! Unlike there, nobody waits for what cannot come: once there are as many traces as arrivals, who has left none is
//! missing for certain. So rank 0 need not wait for a trace that nobody will leave, and a missing rank 0, whom PyTorch
//! pays with a second whole timeout and never names, is named as soon as the last of those who came has given up.

use super::survey::Survey;
use super::{GroupError, Step, UnexpectedOutcome, check_group, counter_key, joined, last_member_key, owned};
use crate::store::call::Outcome;
use crate::time::{Duration, Instant, Seconds};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// How long PyTorch's barrier waits unless told otherwise.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a trace is waited for unless told otherwise.
pub const TRACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between two looks at the traces: they double from the first to the last.
const LOOK_INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// What rank 0 may take beyond the trace timeout until it opens the gate.
const GATE_MARGIN: Duration = Duration::from_secs(1);

/// One arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierOptions {
    /// How many are to come.
    pub world_size: i64,
    /// What stands before each key. A prefix serves one barrier.
    pub key_prefix: Box<str>,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Who arrives. Without it nobody is traced.
    pub rank: Option<i64>,
    /// How long to wait for a trace that may still come.
    pub trace_timeout: Duration,
}

impl BarrierOptions {
    /// An arrival with PyTorch's own timeouts, and without tracing.
    #[must_use]
    pub fn new(world_size: i64, key_prefix: &str) -> Self {
        Self {
            world_size,
            key_prefix: owned(key_prefix),
            timeout: BARRIER_TIMEOUT,
            rank: None,
            trace_timeout: TRACE_TIMEOUT,
        }
    }
}

/// How a barrier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierOutcome {
    /// All have come.
    Released,
    /// Not all came in time, and that is all that is known.
    TimedOut,
    /// Not all came in time, and these are missing: up to 16, in order.
    Missing(Vec<i64>),
    /// Not all came in time, and rank 0 tells who is missing.
    AskRankZero,
}

#[derive(Clone, Debug)]
enum State {
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

/// Looks at the traces, one after the other.
#[derive(Clone, Copy, Debug)]
struct Look {
    arrivals: i64,
    /// When who has left no trace counts as missing.
    until: Instant,
    interval: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    for_rank: i64,
    until: Instant,
}

/// One arrival under way. Take [`TracedBarrier::next_step`]s until there is none, and report each outcome.
#[derive(Clone, Debug)]
pub struct TracedBarrier {
    options: BarrierOptions,
    state: State,
}

impl TracedBarrier {
    /// An arrival.
    ///
    /// # Errors
    /// World size or rank make no sense.
    pub fn new(options: BarrierOptions) -> Result<Self, GroupError> {
        check_group(options.rank, options.world_size)?;
        Ok(Self { options, state: State::Arriving })
    }

    /// The step that is due; `None`: there is a [`TracedBarrier::barrier_outcome`].
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        let prefix = &*self.options.key_prefix;
        Some(match &self.state {
            State::Arriving => Step::Add { key: counter_key(prefix), delta: 1 },
            State::Announcing => Step::Mark { key: last_member_key(prefix) },
            &State::Waiting { until } => Step::Wait { key: last_member_key(prefix), until },
            State::Tracing => Step::Mark { key: self.trace_key(self.options.rank.unwrap_or_default()) },
            State::Counting(_) => Step::Add { key: counter_key(prefix), delta: 0 },
            State::Looking(_, survey) => {
                Step::Check { keys: survey.next()?.map(|rank| self.trace_key(rank)).collect() }
            }
            State::Pausing(_, pause) => {
                Step::Wait { key: self.trace_key(pause.for_rank), until: pause.until }
            }
            &State::Gated { until } => Step::Wait { key: self.gate_key(), until },
            State::Opening(_) => Step::Mark { key: self.gate_key() },
            State::Done(_) => return None,
        })
    }

    /// After a wait in vain: asks how many have arrived. The outcome is their number.
    #[must_use]
    pub fn count_step(&self) -> Step {
        Step::Add { key: counter_key(&self.options.key_prefix), delta: 0 }
    }

    /// How it ended.
    #[must_use]
    pub const fn barrier_outcome(&self) -> Option<&BarrierOutcome> {
        match &self.state {
            State::Done(barrier_outcome) => Some(barrier_outcome),
            _ => None,
        }
    }

    /// Whether the others need this arrival no more: it was counted, and the door is open if it was the last one.
    #[must_use]
    pub const fn has_arrived(&self) -> bool {
        !matches!(self.state, State::Arriving | State::Announcing)
    }

    /// Whether the wait was in vain and only the search for the missing is under way.
    #[must_use]
    pub const fn is_tracing(&self) -> bool {
        !matches!(self.state, State::Arriving | State::Announcing | State::Waiting { .. } | State::Done(_))
    }

    /// The step that was due has ended so.
    ///
    /// # Errors
    /// The outcome is none of that step.
    pub fn handle(&mut self, now: Instant, outcome: Outcome) -> Result<(), UnexpectedOutcome> {
        use Outcome::{Applied, Missing, NotReady, Number, Ready, Released};
        let BarrierOptions { world_size, timeout, rank, trace_timeout, .. } = self.options;
        let next = match (&self.state, outcome) {
            // One too many announces as well: nobody stays behind a last member that died before it could.
            (State::Arriving, Number(count)) if count >= world_size => State::Announcing,
            (State::Arriving, Number(_)) => State::Waiting { until: now + timeout },
            (State::Announcing, Applied) | (State::Waiting { .. }, Released) => {
                State::Done(BarrierOutcome::Released)
            }
            (State::Waiting { .. }, Missing) if rank.is_none() => State::Done(BarrierOutcome::TimedOut),
            (State::Waiting { .. }, Missing) => State::Tracing,
            (State::Tracing, Applied) => {
                // Rank 0 looks for all, as long as it was told; whom it keeps waiting must not pay with more than their
                // own timeout for one who may not even be there.
                let wait = if rank == Some(0) { trace_timeout } else { trace_timeout.min(timeout) };
                State::Counting(Look { arrivals: 0, until: now + wait, interval: LOOK_INTERVALS.0 })
            }
            (&State::Counting(look), Number(arrivals)) => {
                State::Looking(Look { arrivals, ..look }, Survey::new(world_size))
            }
            (State::Looking(look, survey), Ready | NotReady) => {
                let mut survey = survey.clone();
                let includes_rank_zero = survey.next() == Some(0..1);
                survey.answer(outcome == Ready);
                if includes_rank_zero && outcome == Ready && rank != Some(0) {
                    State::Gated { until: now + trace_timeout + GATE_MARGIN }
                } else {
                    self.looked(now, *look, survey)
                }
            }
            (&State::Pausing(look, _), Released | Missing) => {
                let interval = (look.interval * 2).min(LOOK_INTERVALS.1);
                State::Counting(Look { interval, ..look })
            }
            (State::Gated { .. }, Released | Missing) => State::Done(BarrierOutcome::AskRankZero),
            (State::Opening(missing), Applied) => State::Done(BarrierOutcome::Missing(missing.clone())),
            (_, outcome) => return Err(UnexpectedOutcome { step: self.next_step(), outcome }),
        };
        self.state = next;
        Ok(())
    }

    fn looked(&self, now: Instant, look: Look, survey: Survey) -> State {
        if survey.next().is_some() {
            return State::Looking(look, survey);
        }
        let missing = survey.missing();
        let traces = self.options.world_size - i64::try_from(missing.len()).unwrap_or(i64::MAX);
        let is_certain = survey.is_complete() && traces >= look.arrivals;
        match missing.first() {
            Some(&for_rank) if !is_certain && now < look.until => {
                let until = (now + look.interval).min(look.until);
                State::Pausing(look, Pause { for_rank, until })
            }
            _ if self.options.rank == Some(0) => State::Opening(missing.to_vec()),
            _ => State::Done(BarrierOutcome::Missing(missing.to_vec())),
        }
    }

    fn trace_key(&self, rank: i64) -> Box<str> {
        joined(&[&self.options.key_prefix, &rank.to_string(), "/TRACE"])
    }

    fn gate_key(&self) -> Box<str> {
        joined(&[&self.options.key_prefix, "/TRACING_GATE"])
    }
}

/// A barrier to which not all came, with what is known about who is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierTimeout {
    /// Who waited.
    pub rank: i64,
    /// The barrier.
    pub key_prefix: Box<str>,
    /// How many were to come.
    pub world_size: i64,
    /// How long the others were waited for.
    pub timeout: Duration,
    /// The missing ranks, as far as this rank knows; none when rank 0 knows.
    pub missing: Vec<i64>,
    /// What the message names: the missing, or whom to ask.
    names: Vec<String>,
}

impl BarrierTimeout {
    /// Words for a verdict, with the caller's names for ranks. `None`: there is nothing to say, or no rank to say it of.
    #[must_use]
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

    /// The names of the missing, in their order.
    #[must_use]
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
