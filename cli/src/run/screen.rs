//! What the user sees: a line for each thing that happens, and on a terminal what the agent waits for.

use super::arguments::LogLevel;
use super::surroundings;
use rendezvous_core::agent::failure::signal_name;
use rendezvous_core::agent::group::ExitStatus;
use rendezvous_core::agent::phase::Phase;
use rendezvous_core::agent::reason::{Reason, StopCause};
use rendezvous_core::agent::supervisor::{Notice, Timing, Verdict};
use rendezvous_core::driver::agent::{Agent, AgentEvent};
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

/// Where and how much is told.
pub(super) struct Screen {
    level: LogLevel,
    colour: Colour,
}

#[derive(Clone, Copy)]
enum Colour {
    Plain,
    Terminal,
}

/// What a line is to whoever reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Trouble,
    Ordinary,
}

impl Screen {
    pub(super) fn new(level: LogLevel) -> Self {
        let is_terminal = std::io::stderr().is_terminal() && surroundings::variable("NO_COLOR").is_none();
        Self { level, colour: if is_terminal { Colour::Terminal } else { Colour::Plain } }
    }

    pub(super) fn note(&self, words: &str) {
        self.line(Weight::Ordinary, words);
    }

    pub(super) fn joining(&self, handler: &Arc<dyn RendezvousHandler>, parameters: &RendezvousParameters) {
        let nodes = match (parameters.min_nodes(), parameters.max_nodes()) {
            (min, max) if min == max => format!("{min}"),
            (min, max) => format!("{min} to {max}"),
        };
        self.line(
            Weight::Ordinary,
            &format!(
                "joining run {} at {} ({}; nodes: {nodes})",
                handler.run_id(),
                parameters.endpoint(),
                handler.backend()
            ),
        );
    }

    fn line(&self, weight: Weight, words: &str) {
        if weight == Weight::Ordinary && self.level == LogLevel::Warn {
            return;
        }
        let (on, off) = match (self.colour, weight) {
            (Colour::Terminal, Weight::Trouble) => ("\x1b[31m", "\x1b[0m"),
            (Colour::Terminal, Weight::Ordinary) => ("\x1b[2m", "\x1b[0m"),
            (Colour::Plain, _) => ("", ""),
        };
        // A stderr that is closed is no reason to end.
        writeln!(std::io::stderr(), "{on}rdzv run: {words}{off}").ok();
    }

    pub(super) fn show(&self, agent: &Agent, event: &AgentEvent) {
        match event {
            AgentEvent::Notice(notice) => {
                if let Some((weight, words)) = words_of(agent, notice) {
                    self.line(weight, &words);
                }
            }
            AgentEvent::WorkersFailed(failure) => {
                writeln!(std::io::stderr(), "{failure}").ok();
            }
            AgentEvent::Over => {
                if let Some((weight, words)) = agent.supervisor().verdict().map(verdict) {
                    self.line(weight, &words);
                }
            }
        }
    }
}

fn words_of(agent: &Agent, notice: &Notice) -> Option<(Weight, String)> {
    let group = agent.supervisor().group();
    let workers = || counted(group.workers.len(), "worker");
    Some(match notice {
        Notice::Phase { to: Phase::Assigning, .. } => {
            let round = group.round.map_or_else(String::new, |round| format!("round {round}: "));
            let nodes = counted(usize::try_from(group.group_world_size).unwrap_or(usize::MAX), "node");
            (Weight::Ordinary, format!("{round}{nodes}, this one is {}", group.group_rank.unwrap_or(0)))
        }
        Notice::Phase { to: Phase::Restarting, reason, .. } => {
            let left = agent.supervisor().restarts_left();
            let weight = if is_failure(reason) { Weight::Trouble } else { Weight::Ordinary };
            (weight, format!("{reason}: {} stop and start anew ({} left)", workers(), counted_restarts(left)))
        }
        Notice::Phase { to: Phase::Meeting, from, reason } if *from == Phase::Assigning => {
            (Weight::Trouble, format!("{reason}: joining again"))
        }
        Notice::Phase { to: Phase::Parting, .. } if group.group_world_size > 1 => {
            (Weight::Ordinary, format!("{} ended well; waiting for the other nodes", workers()))
        }
        Notice::Phase { to: Phase::Ending, reason, .. } if *reason != Reason::Done => {
            (if is_failure(reason) { Weight::Trouble } else { Weight::Ordinary }, reason.to_string())
        }
        Notice::Phase { .. } => return None,
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
            (Weight::Ordinary, text)
        }
        Notice::Exited { local_rank, exit, was_told: false } if !exit.is_success() => {
            let worker = group.workers.get(usize::try_from(*local_rank).ok()?)?;
            let pid = worker.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            (Weight::Trouble, format!("rank {}{pid} {}", worker.global_rank, ended(*exit)))
        }
        Notice::Exited { .. } => return None,
        Notice::TimerExpired(timer) => {
            let rank = timer.local_rank.and_then(|local_rank| {
                Some(group.workers.get(usize::try_from(local_rank).ok()?)?.global_rank)
            });
            let whose = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
            let what = match signal_name(timer.signal) {
                Some(name) => format!("pid {} gets {name}", timer.pid),
                None => format!("pid {} goes on", timer.pid),
            };
            (Weight::Trouble, format!("watchdog: timer {}{whose} expired: {what}", timer.scope))
        }
        Notice::Remark { words } => (Weight::Ordinary, words.to_string()),
        Notice::Killing { reason } => (Weight::Trouble, format!("{reason}: killing what is left")),
        Notice::GaveUp { since } => {
            let text =
                format!("processes are still there after {}: they are left to themselves", span(*since));
            (Weight::Trouble, text)
        }
    })
}

fn verdict(verdict: &Verdict) -> (Weight, String) {
    match verdict {
        Verdict::Succeeded { missing: None } => (Weight::Ordinary, "done".into()),
        Verdict::Succeeded { missing: Some(reason) } => {
            (Weight::Ordinary, format!("this node's workers ended well; {reason}"))
        }
        Verdict::NotNeeded => (Weight::Ordinary, "this node stood by, and was not needed".into()),
        Verdict::Stopped { cause: StopCause::Signal(signal) } => {
            (Weight::Trouble, format!("stopped by {}", signal_name(*signal).unwrap_or("a signal")))
        }
        Verdict::Stopped { cause: StopCause::Asked } => (Weight::Trouble, "stopped".into()),
        Verdict::Failed { reason } | Verdict::LostSight { reason } => {
            (Weight::Trouble, format!("failed: {reason}"))
        }
    }
}

const fn is_failure(reason: &Reason) -> bool {
    !matches!(
        reason,
        Reason::NodesWaiting { .. }
            | Reason::LeftBehind
            | Reason::RoundOver { .. }
            | Reason::Stop(_)
            | Reason::Succeeded
    )
}

fn ended(exit: ExitStatus) -> String {
    match exit {
        ExitStatus::Code(code) => format!("ended with exit code {code}"),
        ExitStatus::Signal(signal) => {
            format!(
                "was ended by {}",
                signal_name(signal).map_or_else(|| format!("signal {signal}"), String::from)
            )
        }
    }
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
