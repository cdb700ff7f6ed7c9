//! Metrics of an agent, with the names of PyTorch's elastic agent and some of our own. All are derived from the notices
//! of the supervisor.

use super::observer::Happened;
use super::phase::Phase;
use super::reason::Reason;
use super::supervisor::{Notice, Outcome, Supervisor, Timing};
use rendezvous_core::prelude::*;

/// Group of the metrics in PyTorch's agent.
pub const GROUP: &str = "torchelastic";

/// Receiver of metrics. It is called on the thread that polls the agent, so it must not block.
pub trait MetricSink {
    /// Receives one value of the metric `name`, in the unit that its name ends with.
    fn put(&mut self, name: &str, value: i64);
}

impl<F: FnMut(&str, i64)> MetricSink for F {
    fn put(&mut self, name: &str, value: i64) {
        self(name, value);
    }
}

/// A value in the format of PyTorch's console handler: `[SECONDS][GROUP]: NAME=VALUE`.
#[derive(Clone, Copy, Debug)]
pub struct ConsoleLine<'a> {
    /// Time since 1970.
    pub at: Duration,
    /// Name of the metric.
    pub name: &'a str,
    /// Value of the metric.
    pub value: i64,
}

impl fmt::Display for ConsoleLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at.as_secs(), self.at.subsec_micros());
        write!(f, "[{seconds}.{micros:06}][{GROUP}]: {}={}", self.name, self.value)
    }
}

/// A step that is a function in PyTorch's agent.
struct Step {
    name: &'static str,
    /// Phases with which it begins. If there are two, the first to occur counts.
    begins: &'static [Phase],
    /// Phases through which it continues.
    continues_in: &'static [Phase],
    /// Phases that complete it; with any other it has failed.
    done: &'static [Phase],
}

use Phase::{Assigning, Closing, Ending, Meeting, Restarting, Running, Starting};

const STEPS: [Step; 6] = [
    Step {
        name: "SimpleElasticAgent._rendezvous",
        begins: &[Meeting],
        continues_in: &[Assigning],
        done: &[Starting],
    },
    Step {
        name: "SimpleElasticAgent._assign_worker_ranks",
        begins: &[Assigning],
        continues_in: &[],
        done: &[Starting],
    },
    Step {
        name: "LocalElasticAgent._start_workers",
        begins: &[Starting],
        continues_in: &[],
        done: &[Running],
    },
    Step {
        name: "SimpleElasticAgent._initialize_workers",
        begins: &[Meeting],
        continues_in: &[Assigning, Starting],
        done: &[Running],
    },
    Step {
        name: "LocalElasticAgent._stop_workers",
        begins: &[Restarting, Ending],
        continues_in: &[Ending],
        done: &[Meeting, Closing],
    },
    Step {
        name: "SimpleElasticAgent._restart_workers",
        begins: &[Restarting],
        continues_in: &[Meeting, Assigning, Starting],
        done: &[Running],
    },
];

/// Observer of one agent that measures it.
#[derive(Debug, Default)]
pub struct Metrics {
    began: Option<Instant>,
    /// Start times of the steps in progress.
    steps: [Option<Instant>; STEPS.len()],
}

impl Metrics {
    /// Handles an observation at `now`. The resulting metrics are passed to `sink`.
    pub fn observe(
        &mut self,
        now: Instant,
        machine: &Supervisor,
        happened: Happened<'_>,
        sink: &mut dyn MetricSink,
    ) {
        match happened {
            Happened::Notice(Notice::Phase { from, to, reason }) => {
                self.state(machine, *to, reason, sink);
                self.steps(now, *from, *to, sink);
                if *from == Phase::Idle {
                    self.began = Some(now);
                }
                if *to == Phase::Over {
                    self.end(now, machine, sink);
                }
            }
            Happened::Notice(Notice::Running { attempt, timing }) => {
                timings(machine, *attempt, timing, sink);
            }
            Happened::Notice(_) | Happened::Failed(_) => {}
        }
    }

    fn state(&self, machine: &Supervisor, to: Phase, reason: &Reason, sink: &mut dyn MetricSink) {
        let state = match (to, reason) {
            (Running, _) => "healthy",
            (Phase::ExitBarrier, _) => "succeeded",
            (_, Reason::Stuck { .. }) => "unhealthy",
            (_, Reason::GuardLost { .. }) => "unknown",
            (
                _,
                Reason::WorkerFailed { .. }
                | Reason::ErrorWritten { .. }
                | Reason::TimerExpired { .. }
                | Reason::GroupLost { .. }
                | Reason::NotStarted { .. }
                | Reason::NoRanks { .. },
            ) => "failed",
            _ => return,
        };
        of_role(machine, "remaining_restarts", machine.restarts_left().into(), sink);
        of_role(machine, state, 1, sink);
    }

    fn steps(&mut self, now: Instant, from: Phase, to: Phase, sink: &mut dyn MetricSink) {
        for (step, began) in STEPS.iter().zip(&mut self.steps) {
            if let Some(since) = began.filter(|_| from != to && !step.continues_in.contains(&to)) {
                put_step(step.name, step.done.contains(&to), now.since(since), sink);
                *began = None;
            }
            if began.is_none() && step.begins.contains(&to) {
                *began = Some(now);
            }
        }
    }

    fn end(&self, now: Instant, machine: &Supervisor, sink: &mut dyn MetricSink) {
        let outcome = machine.outcome();
        let is_failed = !matches!(outcome, Some(Outcome::Succeeded { .. } | Outcome::NotNeeded));
        let (max, left) = (i64::from(machine.spec().max_restarts), i64::from(machine.restarts_left()));
        let flakiness = if is_failed { 100 } else { 100 * (max - left) / (max + 1) };
        of_role(machine, "flakiness", flakiness, sink);
        of_role(machine, "run_total", 1, sink);
        for (name, failed, retried) in [
            ("run_success_with_retries", false, true),
            ("run_success_no_retries", false, false),
            ("run_failed_with_retries", true, true),
            ("run_failed_no_retries", true, false),
        ] {
            of_role(machine, name, i64::from(is_failed == failed && (left < max) == retried), sink);
        }
        // PyTorch's function raises an exception if there is no result.
        let has_result = !is_failed || matches!(outcome, Some(Outcome::Failed { .. }));
        let took = self.began.map_or(Duration::ZERO, |began| now.since(began));
        put_step("SimpleElasticAgent.run", has_result, took, sink);
    }
}

fn timings(machine: &Supervisor, attempt: u64, timing: &Timing, sink: &mut dyn MetricSink) {
    let what = if attempt == 0 { "start" } else { "restart" };
    for (phase, took) in [
        ("detect", timing.detect),
        ("stop", timing.stop),
        ("rendezvous", timing.rendezvous),
        ("assign", timing.assign),
        ("start", timing.start),
        ("total", timing.total()),
    ] {
        of_role(machine, &format!("{what}.{phase}.us"), whole(took.as_micros()), sink);
    }
}

fn put_step(name: &str, is_done: bool, took: Duration, sink: &mut dyn MetricSink) {
    sink.put(&format!("{name}.{}", if is_done { "success" } else { "failure" }), 1);
    sink.put(&format!("{name}.duration.ms"), whole(took.as_millis()));
}

fn of_role(machine: &Supervisor, name: &str, value: i64, sink: &mut dyn MetricSink) {
    sink.put(&format!("workers.{}.{name}", machine.spec().role), value);
}

fn whole(span: u128) -> i64 {
    i64::try_from(span).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
