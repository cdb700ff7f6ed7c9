//! Events of an agent and its workers, as lines of JSON with the names and fields of PyTorch's elastic events.
//!
//! ```json
//! {"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "run-7", …}}
//! ```

use super::failure::WorkerGroupFailure;
use super::group::{Worker, WorkerGroup};
use super::observer::Happened;
use super::phase::Phase;
use super::supervisor::{Notice, Outcome, Supervisor};
use super::watchdog::ExpiredTimer;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::SortedMap;
use rendezvous_core::time::Seconds;
use serde_json::{Map, Value, json};

/// Values that do not change during a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFacts {
    /// ID of the run.
    pub run_id: String,
    /// Name of the rendezvous backend.
    pub rdzv_backend: String,
    /// Host name of the agent.
    pub hostname: String,
    /// Program of the workers.
    pub entry_point: String,
    /// Whether workers are monitored by timers.
    pub watchdog: Watched,
}

/// Whether workers are monitored by timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watched {
    /// They are not.
    #[default]
    No,
    /// They are.
    ByTimers,
}

/// Observer of one agent that writes its events.
#[derive(Debug)]
pub struct EventRecorder {
    facts: EventFacts,
    began: Option<Instant>,
    phase_began: Instant,
    /// The workers of the current or last start; the supervisor has forgotten them when their events are written.
    group: WorkerGroup,
    /// Error file contents of the workers that failed, by global rank.
    failures: SortedMap<u64, Value>,
    has_failed: bool,
}

/// Metadata that differs between events.
#[derive(Default)]
struct Detail<'a> {
    took: Option<Duration>,
    /// A worker and its group.
    worker: Option<(&'a Worker, &'a WorkerGroup)>,
    raw_error: Option<String>,
    exit_code: Option<i32>,
    worker_pid: Option<u32>,
}

impl EventRecorder {
    /// Creates a recorder for an agent that has not begun.
    pub fn new(facts: EventFacts) -> Self {
        Self {
            facts,
            began: None,
            phase_began: Instant::ORIGIN,
            group: WorkerGroup::default(),
            failures: SortedMap::new(),
            has_failed: false,
        }
    }

    /// Records an observation at `now`. The resulting events are passed to `sink`, one line each, without its end.
    pub fn observe(
        &mut self,
        now: Instant,
        machine: &Supervisor,
        happened: Happened<'_>,
        sink: &mut dyn FnMut(&str),
    ) {
        let began = *self.began.get_or_insert(now);
        let mut writer = EventWriter { total: now.since(began), machine, sink };
        if !machine.group().workers.is_empty() {
            self.group.clone_from(machine.group());
        }
        match happened {
            Happened::Notice(Notice::Phase { from, to, .. }) => {
                let took = Some(now.since(self.phase_began));
                self.phase_began = now;
                self.phase(*from, *to, took, &mut writer);
            }
            Happened::Notice(Notice::Running { .. }) => {
                for worker in &self.group.workers {
                    let worker_pid = worker.pid;
                    let detail =
                        Detail { worker: Some((worker, &self.group)), worker_pid, ..Detail::default() };
                    writer.status("START", &self.facts, detail);
                }
            }
            Happened::Notice(Notice::TimerExpired(timer)) => self.timer(timer, &mut writer),
            Happened::Notice(_) => {}
            Happened::Failed(failure) => self.keep(failure),
        }
    }

    fn phase(&mut self, from: Phase, to: Phase, took: Option<Duration>, writer: &mut EventWriter<'_>) {
        match from {
            Phase::Meeting => {
                writer.status("RENDEZVOUS", &self.facts, Detail { took, ..Detail::default() });
            }
            Phase::Assigning => {
                writer.status("ASSIGN_WORKER_RANKS", &self.facts, Detail { took, ..Detail::default() });
            }
            _ => {}
        }
        match to {
            Phase::Starting => {
                self.has_failed = false;
                self.watchdog("watchdog started", None, writer);
            }
            Phase::Restarting => self.has_failed = true,
            Phase::Ending => self.has_failed |= from != Phase::ExitBarrier,
            _ => {}
        }
        // No process of the start is alive any more.
        if matches!((from, to), (Phase::Restarting, Phase::Meeting) | (Phase::Ending, Phase::Closing)) {
            self.ended(writer);
        }
        if to == Phase::Over {
            let state = match writer.machine.outcome() {
                Some(Outcome::Succeeded { .. } | Outcome::NotNeeded) => "SUCCEEDED",
                _ => "FAILED",
            };
            writer.status(state, &self.facts, Detail::default());
        }
    }

    /// Writes the events of workers that have ended, one for each that was started.
    fn ended(&mut self, writer: &mut EventWriter<'_>) {
        let group = core::mem::take(&mut self.group);
        let failures = core::mem::take(&mut self.failures);
        let started = group.workers.iter().filter(|worker| worker.pid.is_some());
        for worker in started {
            let failure = failures.get(&worker.global_rank);
            let state = match failure {
                Some(_) => "FAILED",
                None if self.has_failed => "TERMINATED",
                None => "SUCCEEDED",
            };
            let detail = Detail {
                worker: Some((worker, &group)),
                raw_error: failure.map(Value::to_string),
                exit_code: worker.exit.map(|exit| exit.exit_code()),
                worker_pid: worker.pid,
                ..Detail::default()
            };
            writer.status(state, &self.facts, detail);
        }
        if !group.workers.is_empty() {
            self.watchdog("watchdog stopped", None, writer);
        }
    }

    fn keep(&mut self, failure: &WorkerGroupFailure) {
        let all = core::iter::once(&failure.root).chain(&failure.others);
        self.failures = all.map(|failure| (failure.global_rank, failure.data.clone())).collect();
    }

    fn timer(&self, timer: &ExpiredTimer, writer: &mut EventWriter<'_>) {
        self.watchdog("timer expired", Some(timer), writer);
        if timer.signal > 0 {
            self.watchdog("kill worker process", Some(timer), writer);
        }
    }

    fn watchdog(&self, name: &str, timer: Option<&ExpiredTimer>, writer: &mut EventWriter<'_>) {
        if self.facts.watchdog == Watched::No {
            return;
        }
        let mut inner = Map::new();
        inner.insert("watchdog_event".to_owned(), name.into());
        if let Some(timer) = timer {
            inner.insert("worker_pid".to_owned(), timer.pid.to_string().into());
            inner.insert("scope_id".to_owned(), timer.scope.as_ref().into());
            inner.insert("expiration_time".to_owned(), Seconds(timer.expires).to_string().into());
            inner.insert("signal".to_owned(), timer.signal.to_string().into());
        }
        writer.write(name, "RUNNING", &self.facts, &Detail::default(), inner);
    }
}

/// Writer of event lines.
struct EventWriter<'a> {
    total: Duration,
    machine: &'a Supervisor,
    sink: &'a mut dyn FnMut(&str),
}

impl EventWriter<'_> {
    fn status(&mut self, state: &str, facts: &EventFacts, detail: Detail<'_>) {
        let mut inner = Map::new();
        inner.insert("group_world_size".to_owned(), self.machine.group().group_world_size.into());
        inner.insert("entry_point".to_owned(), facts.entry_point.as_str().into());
        if let Some((worker, _)) = detail.worker {
            // PyTorch has lists of one element here.
            inner.insert("local_rank".to_owned(), json!([worker.local_rank]));
            inner.insert("role_rank".to_owned(), json!([worker.role_rank]));
            inner.insert("role_world_size".to_owned(), json!([worker.role_world_size]));
            inner.insert("exit_code".to_owned(), json!([detail.exit_code]));
            inner.insert("worker_pid".to_owned(), json!([detail.worker_pid]));
        }
        self.write(&format!("torchelastic.worker.status.{state}"), state, facts, &detail, inner);
    }

    fn write(
        &mut self,
        name: &str,
        state: &str,
        facts: &EventFacts,
        detail: &Detail<'_>,
        inner: Map<String, Value>,
    ) {
        let machine = self.machine;
        let (group_rank, restarts) = match detail.worker {
            Some((_, group)) => (group.group_rank, group.restart_count),
            None => (machine.group().group_rank, machine.spec().max_restarts - machine.restarts_left()),
        };
        let worker = detail.worker.map(|(worker, _)| worker);
        let worker_id = worker.and_then(|worker| worker.pid).map(|pid| pid.to_string());
        let event = json!({
            "name": name,
            "source": if worker.is_some() { "WORKER" } else { "AGENT" },
            "timestamp": 0,
            "metadata": {
                "run_id": facts.run_id,
                "global_rank": worker.map(|worker| worker.global_rank),
                "group_rank": group_rank,
                "worker_id": worker_id,
                "role": &*machine.spec().role,
                "hostname": facts.hostname,
                "state": state,
                "total_run_time": self.total.as_secs(),
                "rdzv_backend": facts.rdzv_backend,
                "raw_error": detail.raw_error,
                "metadata": Value::Object(inner).to_string(),
                "agent_restarts": restarts,
                "duration_ms": detail.took.map(|took| took.as_secs_f64() * 1e3),
            },
        });
        (self.sink)(&event.to_string());
    }
}

#[cfg(test)]
mod tests;
