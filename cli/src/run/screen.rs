//! What the user sees: a line for each thing that happens, and on a terminal what the agent waits for.

use super::console::Console;
use super::waiting::{Awaited, Waiting};
use crate::log::{Configuration, LogLevel, LogStyle};
use rendezvous_agent::driver::agent::{Agent, AgentEvent, Moment};
use rendezvous_agent::failure::signal_name;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::{NoRound, Reason, StopCause};
use rendezvous_agent::supervisor::{Notice, Outcome, Timing};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::lock::Lock;
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::node::server::Event;
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::rendezvous::parse::Endpoint;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Log and status line of one `rdzv run`.
pub(super) struct Screen {
    style: LogStyle,
    configuration: Configuration,
    console: Arc<Console<Waiting>>,
    clock: Clock,
    nodes: (u32, u32),
    /// Nodes that are still at work, as the agent said last.
    still_at_work: Arc<Mutex<Option<String>>>,
    /// Endpoint of the rendezvous, for several nodes.
    endpoint: Option<String>,
}

impl Screen {
    pub(super) fn new(style: LogStyle, configuration: Configuration) -> Self {
        Self {
            style,
            configuration,
            console: Arc::new(Console::new(style)),
            clock: Clock::new(),
            nodes: (1, 1),
            still_at_work: Arc::default(),
            endpoint: None,
        }
    }

    /// The value of a flag that was not given; see [`Configuration::add_default`].
    pub(super) fn add_default(&mut self, name: &str, value: impl Display) {
        self.configuration.add_default(name, value);
    }

    /// Starts to write, and logs the configuration; see [`Console::begin`].
    pub(super) fn begin(&self) -> std::io::Result<()> {
        self.console.configuration(&self.configuration);
        self.console.begin()
    }

    /// Waits a moment until the last lines are written.
    pub(super) fn finish(&self) {
        self.console.finish();
    }

    pub(super) fn error(&self, message: &str) {
        self.console.log(LogLevel::Error, message);
    }

    pub(super) fn warn(&self, message: &str) {
        self.console.log(LogLevel::Warn, message);
    }

    /// Returns a function by which other threads log warnings.
    pub(super) fn complaints(&self) -> impl Fn(&str) + Send + use<> {
        let console = Arc::clone(&self.console);
        move |message| console.log(LogLevel::Warn, message)
    }

    /// Returns an observer of the servers that this node hosts. It warns once if other hosts may reach one that
    /// authenticates no client.
    pub(super) fn exposure(&self) -> impl Fn(&Event) + Send + Sync + use<> {
        let (console, has_warned) = (Arc::clone(&self.console), AtomicBool::new(false));
        move |event| {
            if matches!(event, Event::Exposed { .. }) && !has_warned.swap(true, Ordering::Relaxed) {
                console.log(LogLevel::Warn, &format!("this node hosts the rendezvous: {event}"));
            }
        }
    }

    pub(super) fn note(&self, message: &str) {
        self.console.log(LogLevel::Info, message);
    }

    /// The agent joins with this handler. From now on the status line shows what it waits for.
    pub(super) fn joining(
        &mut self,
        handler: &Arc<dyn RendezvousHandler>,
        parameters: &RendezvousParameters,
    ) -> std::io::Result<()> {
        let (min, max) = (parameters.min_nodes(), parameters.max_nodes());
        self.nodes = (u32::try_from(min).unwrap_or(u32::MAX), u32::try_from(max).unwrap_or(u32::MAX));
        let nodes = if min == max { format!("{min}") } else { format!("{min} to {max}") };
        let (run_id, endpoint, backend) = (handler.run_id(), &parameters.endpoint, handler.backend());
        self.endpoint = (max > 1).then(|| endpoint.to_string());
        // Port 0 is no address: this node hosts the rendezvous for itself, on a port that no other one needs.
        let is_own = Endpoint::parse(endpoint).is_ok_and(|endpoint| endpoint.port == Some(0));
        let where_to = if is_own { String::new() } else { format!(" at {endpoint}") };
        self.note(&format!("joining run {run_id}{where_to} ({backend}; nodes: {nodes})"));
        if !self.style.includes(LogLevel::Info) {
            return Ok(());
        }
        let (console, handler, clock) = (Arc::clone(&self.console), Arc::clone(handler), self.clock);
        let still_at_work = Arc::clone(&self.still_at_work);
        std::thread::Builder::new().name("rdzv-waits".into()).spawn(move || {
            let mut enough_since = None;
            console.run(|waiting| {
                let (known, progress) = match waiting.awaited {
                    Awaited::Round => match handler.failed_try() {
                        // Nothing is known of a rendezvous that is not reached, and to ask takes its time.
                        Some(failed) => (Some(failed.to_string()), None),
                        None => (None, handler.progress()),
                    },
                    Awaited::OthersToEnd => (lock(&still_at_work).clone(), None),
                };
                let now = clock.now();
                // What was so in an earlier wait is over.
                let since = enough_since.filter(|&since| since > waiting.began).unwrap_or(now);
                enough_since = waiting.is_enough(progress.as_ref()).then_some(since);
                waiting.status_line(now, known.as_deref(), progress.as_ref(), enough_since)
            })
        })?;
        Ok(())
    }

    pub(super) fn show(&self, agent: &Agent, event: &AgentEvent) {
        match event {
            AgentEvent::Notice(notice) => {
                if let Some((level, message)) = describe(agent, notice) {
                    self.console.log(level, &message);
                }
                match notice {
                    Notice::Phase { to, .. } => self.wait(*to),
                    Notice::StillAtWork { message } => {
                        *lock(&self.still_at_work) = Some(message.to_string());
                    }
                    _ => {}
                }
            }
            AgentEvent::WorkersFailed(failure) => self.console.report(&failure.to_string()),
            AgentEvent::Over => {
                let Some(end) = agent.supervisor().outcome() else { return };
                let (level, message) = outcome(end);
                self.console.log(level, &message);
                if let (Some(endpoint), true) = (&self.endpoint, is_without_server(end)) {
                    self.warn(&advice(endpoint));
                }
            }
        }
    }

    /// What is waited for in this phase.
    fn wait(&self, phase: Phase) {
        let awaited = match phase {
            Phase::Meeting => Some(Awaited::Round),
            Phase::ExitBarrier if self.nodes.1 > 1 => Some(Awaited::OthersToEnd),
            _ => None,
        };
        let (nodes_min, nodes_max) = self.nodes;
        let began = self.clock.now();
        *lock(&self.still_at_work) = None;
        self.console.wait_for(awaited.map(|awaited| Waiting { awaited, began, nodes_min, nodes_max }));
    }
}

fn lock(still_at_work: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    still_at_work.locked()
}

fn describe(agent: &Agent, notice: &Notice) -> Option<(LogLevel, String)> {
    let Moment { group, restarts_left } = agent.moment();
    let workers = || counted(group.workers.len(), "worker");
    Some(match notice {
        Notice::Phase { to: Phase::Assigning, .. } => {
            let round = group.round.map_or_else(String::new, |round| format!("round {round}: "));
            let nodes = counted(usize::try_from(group.group_world_size).unwrap_or(usize::MAX), "node");
            (LogLevel::Info, format!("{round}{nodes}, this one is {}", group.group_rank.unwrap_or(0)))
        }
        Notice::Phase { to: Phase::Restarting, reason, .. } => {
            let level = if is_failure(reason) { LogLevel::Warn } else { LogLevel::Info };
            (
                level,
                format!(
                    "{reason}: {} stop and start anew ({} left)",
                    workers(),
                    counted_restarts(*restarts_left)
                ),
            )
        }
        Notice::Phase { to: Phase::Meeting, from, reason } if *from == Phase::Assigning => {
            (LogLevel::Warn, format!("{reason}: joining again"))
        }
        Notice::Phase { to: Phase::ExitBarrier, .. } if group.group_world_size > 1 => {
            (LogLevel::Info, format!("{} ended well; waiting for the other nodes", workers()))
        }
        Notice::Phase { to: Phase::Ending, reason: Reason::Stop(StopCause::Signal(signal)), .. } => {
            let signal = signal_name(*signal).map_or_else(|| format!("signal {signal}"), String::from);
            let stop = if group.workers.is_empty() { String::new() } else { format!(": {} stop", workers()) };
            (LogLevel::Info, format!("{signal} came{stop}"))
        }
        // The line of the worker that failed has said why, and where no worker runs the outcome follows at once.
        Notice::Phase { to: Phase::Ending, reason: Reason::WorkerFailed { .. }, .. }
            if group.workers.len() > 1 =>
        {
            (LogLevel::Warn, "the other workers of this node stop".into())
        }
        Notice::Phase { to: Phase::Ending, reason, .. }
            if *reason != Reason::Done
                && !group.workers.is_empty()
                && !matches!(reason, Reason::WorkerFailed { .. }) =>
        {
            let level = if is_failure(reason) { LogLevel::Warn } else { LogLevel::Info };
            (level, format!("{reason}: {} stop", workers()))
        }
        Notice::Phase { from, to, reason } => {
            (LogLevel::Debug, format!("{} to {}: {reason}", from.name(), to.name()))
        }
        Notice::Running { attempt, timing } => {
            let ranks = match (group.workers.first(), group.workers.last()) {
                (Some(first), Some(last)) if first.global_rank < last.global_rank => {
                    format!("ranks {} to {}", first.global_rank, last.global_rank)
                }
                (Some(only), _) => format!("rank {}", only.global_rank),
                _ => String::new(),
            };
            let all = group.workers.first().map_or(0, |worker| worker.world_size);
            let text = format!("start {attempt}: {ranks} of {all} run ({})", spans(timing));
            (LogLevel::Info, text)
        }
        Notice::Exited { local_rank, exit, stopped_for: None } if !exit.is_success() => {
            let worker = group.workers.get(usize::try_from(*local_rank).ok()?)?;
            let pid = worker.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            (LogLevel::Warn, format!("{}{pid} {exit}", worker.ranks()))
        }
        Notice::Exited { local_rank, exit, stopped_for: reason @ Some(_) } => {
            (LogLevel::Debug, Notice::exit_text(group.ranks_of(*local_rank)?, *exit, reason.as_ref()))
        }
        Notice::Exited { .. } => return None,
        Notice::TimerExpired(timer) => {
            let worker = timer.local_rank.and_then(|local_rank| group.ranks_of(local_rank));
            let whose = worker.map_or_else(String::new, |worker| format!(" of {worker}"));
            let what = match signal_name(timer.signal) {
                Some(name) => format!("it gets {name}"),
                None => "it goes on".into(),
            };
            (LogLevel::Warn, format!("watchdog: {timer}{whose} expired: {what}"))
        }
        Notice::Remark { message } | Notice::StillAtWork { message } => (LogLevel::Info, message.to_string()),
        Notice::Killing { reason } => (LogLevel::Warn, format!("{reason}: killing what is left")),
        Notice::GaveUp { since, left } => {
            (LogLevel::Warn, format!("{left} after {}, and left alone", span(*since)))
        }
    })
}

fn outcome(outcome: &Outcome) -> (LogLevel, String) {
    match outcome {
        Outcome::Succeeded { missing: None } => (LogLevel::Info, "done".into()),
        Outcome::Succeeded { missing: Some(reason) } => {
            (LogLevel::Info, format!("this node's workers ended well; {reason}"))
        }
        Outcome::NotNeeded => (LogLevel::Info, "this node stood by, and was not needed".into()),
        Outcome::Stopped { cause: StopCause::Signal(signal) } => {
            (LogLevel::Warn, format!("stopped by {}", signal_name(*signal).unwrap_or("a signal")))
        }
        Outcome::Stopped { cause: StopCause::Requested } => (LogLevel::Warn, "stopped".into()),
        Outcome::Failed { reason } | Outcome::GuardLost { reason } => {
            (LogLevel::Error, format!("failed: {reason}"))
        }
    }
}

/// Whether the server of the rendezvous was lost, or was not there.
const fn is_without_server(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Failed {
            reason: Reason::ServerLost { .. } | Reason::NoRound { kind: NoRound::NoServer, .. }
        }
    )
}

/// What to do when the server of the rendezvous is gone.
fn advice(endpoint: &str) -> String {
    format!(
        "if a node of the job served the rendezvous at {endpoint}, start that node again; a job that shall outlive each \
         of its nodes needs `rdzv server` on a host outside of it, named by --rdzv-endpoint on every node"
    )
}

const fn is_failure(reason: &Reason) -> bool {
    !matches!(
        reason,
        Reason::NodesWaiting { .. }
            | Reason::Excluded
            | Reason::RoundOver { .. }
            | Reason::Stop(_)
            | Reason::Succeeded
    )
}

/// What of a start took time, and how much.
fn spans(timing: &Timing) -> String {
    let all = [
        ("detect", timing.detect),
        ("stop", timing.stop),
        ("rendezvous", timing.rendezvous),
        ("assign", timing.assign),
        ("start", timing.start),
    ];
    let parts: Vec<String> = all
        .into_iter()
        .filter(|(_, took)| !took.is_zero())
        .map(|(name, took)| format!("{name} {}", span(took)))
        .collect();
    parts.join(", ")
}

fn span(span: Duration) -> String {
    if span < Duration::from_secs(1) {
        format!("{:.1} ms", span.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", span.as_secs_f64())
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn counted_restarts(left: u32) -> String {
    counted(usize::try_from(left).unwrap_or(usize::MAX), "restart")
}
