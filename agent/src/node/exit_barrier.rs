//! Wait of the agents for each other after their workers have succeeded, with reports of who is still at work.

use super::request::{Answer, CallFailure, Request, StoreOperation};
use super::rounds::{ARRIVED_KEY, EXIT_BARRIER_PREFIX};
use crate::ranks::{agent_name, role_info_key};
use rendezvous_core::elastic_store::barrier::{BarrierOptions, BarrierOutcome, TracedBarrier};
use rendezvous_core::elastic_store::{GroupError, IGNORED_VALUE, Step};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::prelude::*;
use rendezvous_core::store::call::Outcome;

/// Timeout of a call that does not wait for other agents.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a call that only improves a message.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time until the first report of who is still at work. The time until the next one doubles with each report.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
const REPORT_DOUBLINGS_MAX: u32 = 5;
/// Largest number of agents that a report names.
const NAMES_MAX: usize = 8;

/// Call that the exit barrier makes besides those of the barrier itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExtraStep {
    /// List this agent among those that have arrived.
    List,
    /// Count the arrivals: for a report, or for the message of the timeout.
    Count { timed_out: Option<Box<str>> },
    /// Read which agents have arrived.
    ReadList { arrivals: i64 },
    /// Read the names of agents that are missing.
    ReadNames { arrivals: i64, missing: Vec<u64> },
}

/// Result of an answer for the owner of the exit barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Update {
    Nothing,
    /// Who is still at work.
    Report(Box<str>),
    /// All agents arrived.
    Released,
    /// The wait failed.
    Failed {
        kind: Option<ErrorKind>,
        message: Box<str>,
    },
}

/// One agent's wait. The owner makes each [`ExitBarrier::next_request`] and passes its answer to
/// [`ExitBarrier::handle`].
#[derive(Debug)]
pub(super) struct ExitBarrier {
    rank: u64,
    world_size: u64,
    barrier: TracedBarrier,
    extra: Option<ExtraStep>,
    reports: u32,
    report_at: Instant,
}

impl ExitBarrier {
    /// Begins a wait that may take `timeout` after this agent's arrival.
    ///
    /// # Errors
    /// The round has no agents.
    pub(super) fn new(
        now: Instant,
        rank: u64,
        world_size: u64,
        timeout: Duration,
    ) -> Result<Self, GroupError> {
        let agents = i64::try_from(world_size).unwrap_or(i64::MAX);
        let options = BarrierOptions { timeout, ..BarrierOptions::new(agents, EXIT_BARRIER_PREFIX) };
        Ok(Self {
            rank,
            world_size,
            barrier: TracedBarrier::new(options)?,
            extra: (world_size > 1).then_some(ExtraStep::List),
            reports: 0,
            report_at: now + REPORT_INTERVAL,
        })
    }

    /// Returns whether the other agents no longer wait for this one.
    pub(super) const fn has_arrived(&self) -> bool {
        self.barrier.has_arrived()
    }

    /// Returns the next request; `None` when the wait is over.
    pub(super) fn next_request(&self, now: Instant) -> Option<Request> {
        let (operation, timeout) = match &self.extra {
            Some(ExtraStep::List) => {
                let line = format!("{}\n", self.rank).into_bytes();
                (StoreOperation::Append(ARRIVED_KEY.into(), line), ANSWER_TIMEOUT)
            }
            Some(ExtraStep::Count { .. }) => (of_step(self.barrier.count_step())?, REPORT_TIMEOUT),
            Some(ExtraStep::ReadList { .. }) => {
                (StoreOperation::Get(vec![ARRIVED_KEY.into()]), Duration::ZERO)
            }
            Some(ExtraStep::ReadNames { missing, .. }) => {
                let keys = missing.iter().map(|rank| role_info_key(*rank).into()).collect();
                (StoreOperation::Get(keys), Duration::ZERO)
            }
            None => {
                let step = self.barrier.next_step()?;
                let timeout = match &step {
                    Step::Wait { until, .. } => (*until).min(self.report_at).since(now),
                    _ => ANSWER_TIMEOUT,
                };
                (of_step(step)?, timeout)
            }
        };
        Some(Request::Store { operation, timeout })
    }

    /// Handles the answer to the request.
    pub(super) fn handle(&mut self, now: Instant, answer: Result<Answer, CallFailure>) -> Update {
        match self.extra.take() {
            // A store that cannot append has no list: reports are without names.
            Some(ExtraStep::List) => Update::Nothing,
            Some(ExtraStep::Count { timed_out: Some(message) }) => Update::Failed {
                kind: Some(ErrorKind::TimedOut),
                message: match answer {
                    Ok(Answer::Number(arrivals)) => {
                        format!("{message}: {arrivals} of {} have arrived", self.world_size).into()
                    }
                    _ => message,
                },
            },
            Some(ExtraStep::Count { timed_out: None }) => {
                if let Ok(Answer::Number(arrivals)) = answer {
                    self.extra = Some(ExtraStep::ReadList { arrivals });
                }
                Update::Nothing
            }
            Some(ExtraStep::ReadList { arrivals }) => self.list(arrivals, &values(answer)),
            Some(ExtraStep::ReadNames { arrivals, missing }) => {
                let names: Vec<String> = values(answer).iter().filter_map(|info| agent_name(info)).collect();
                let agents = missing.iter().enumerate().map(|(index, rank)| match names.get(index) {
                    Some(name) if names.len() == missing.len() => format!("{name} (group rank {rank})"),
                    _ => format!("group rank {rank}"),
                });
                Update::Report(self.report(arrivals, &agents.collect::<Vec<_>>()))
            }
            None => self.barrier_answered(now, answer),
        }
    }

    fn barrier_answered(&mut self, now: Instant, answer: Result<Answer, CallFailure>) -> Update {
        let step = self.barrier.next_step();
        let mut timed_out = None;
        let outcome = match answer {
            Ok(Answer::Number(sum)) => Outcome::Number(sum),
            Ok(_) if matches!(step, Some(Step::Wait { .. })) => Outcome::Released,
            Ok(_) => Outcome::Applied,
            Err(CallFailure { kind: Some(ErrorKind::TimedOut), message, .. }) => match step {
                Some(Step::Wait { until, .. }) if now < until => {
                    self.reports += 1;
                    self.report_at = now + REPORT_INTERVAL * (1 << self.reports.min(REPORT_DOUBLINGS_MAX));
                    self.extra = Some(ExtraStep::Count { timed_out: None });
                    return Update::Nothing;
                }
                Some(Step::Wait { .. }) => {
                    timed_out = Some(message);
                    Outcome::Missing
                }
                _ => return Update::Failed { kind: Some(ErrorKind::TimedOut), message },
            },
            Err(CallFailure { kind, message, .. }) => return Update::Failed { kind, message },
        };
        if let Err(error) = self.barrier.handle(now, outcome) {
            return Update::Failed { kind: None, message: error.to_string().into() };
        }
        match self.barrier.barrier_outcome() {
            Some(BarrierOutcome::Released) => return Update::Released,
            Some(_) => {
                self.extra = timed_out.map(|timed_out| ExtraStep::Count { timed_out: Some(timed_out) })
            }
            None => {}
        }
        Update::Nothing
    }

    fn list(&mut self, arrivals: i64, values: &[Vec<u8>]) -> Update {
        let text = String::from_utf8_lossy(&values.concat()).into_owned();
        let arrived: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        // Agents of PyTorch do not list themselves.
        if i64::try_from(arrived.len()) != Ok(arrivals) {
            return Update::Report(self.report(arrivals, &[]));
        }
        let missing = (0..self.world_size).filter(|rank| !arrived.contains(rank)).take(NAMES_MAX);
        self.extra = Some(ExtraStep::ReadNames { arrivals, missing: missing.collect() });
        Update::Nothing
    }

    fn report(&self, arrivals: i64, agents: &[String]) -> Box<str> {
        let world_size = self.world_size;
        let mut report = format!("{arrivals} of {world_size} agents have finished");
        if !agents.is_empty() {
            report += "; still at work: ";
            report += &agents.join(", ");
            let missing = world_size.saturating_sub(arrivals.unsigned_abs());
            let more = missing.saturating_sub(agents.len() as u64);
            if more > 0 {
                report += &format!(" and {more} more");
            }
        }
        report.into()
    }
}

fn values(answer: Result<Answer, CallFailure>) -> Vec<Vec<u8>> {
    if let Ok(Answer::Values(values)) = answer { values } else { Vec::new() }
}

/// Returns the operation of a step. `None` for the search for traces, which this barrier does not use.
fn of_step(step: Step) -> Option<StoreOperation> {
    Some(match step {
        Step::Add { key, delta } => StoreOperation::Add(key, delta),
        Step::Mark { key } => StoreOperation::Set(vec![(key, IGNORED_VALUE.to_vec())]),
        Step::Wait { key, .. } => StoreOperation::Wait(key),
        Step::Check { .. } => return None,
    })
}
