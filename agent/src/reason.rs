//! Reasons for the actions of an agent, as its logs, events and errors print them.

use super::group::{ExitStatus, WorkerRanks};
use super::watchdog::ExpiredTimer;
use core::fmt::Write as _;
use rendezvous_core::error::OneLine;
use rendezvous_core::prelude::*;

/// Source of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// A signal, which is forwarded to the workers.
    Signal(i32),
    /// A call of the program.
    Requested,
}

/// Kind of failure of a worker's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// The program does not exist or is not executable: another attempt would fail, too.
    Lasting,
    /// The system lacks resources at the moment.
    Passing,
}

/// Kind of failure to form a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRound {
    /// The agent was a spare node, and was not needed.
    NotNeeded,
    /// The rendezvous is closed.
    Closed,
    /// The server of the rendezvous is lost, or cannot be reached.
    NoServer,
    /// Any other failure.
    Failed,
}

/// Kind of failure of a wait in the round's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFailure {
    /// The round has ended. Its cause is reported separately, before this or soon after.
    RoundOver,
    /// Any other failure.
    Failed,
}

/// Reason for a transition or an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The agent began.
    Begun,
    /// The previous step is complete.
    Done,
    /// A worker failed.
    WorkerFailed {
        /// The worker.
        worker: WorkerRanks,
        /// Exit status of the worker.
        exit: ExitStatus,
    },
    /// A worker had written an error file before another one failed.
    ErrorWritten {
        /// The worker that wrote it.
        worker: WorkerRanks,
    },
    /// A worker could not be started.
    NotStarted {
        /// The worker.
        worker: WorkerRanks,
        /// Whether another attempt may succeed.
        start_failure: StartFailure,
        /// Description of the failure.
        message: Box<str>,
    },
    /// A worker has hung in the kernel for too long.
    Stuck {
        /// The worker.
        worker: WorkerRanks,
        /// Time for which it has hung.
        since: Duration,
    },
    /// A timer that a worker had set has expired.
    TimerExpired {
        /// The worker, if it is known.
        worker: Option<WorkerRanks>,
        /// The timer.
        timer: ExpiredTimer,
    },
    /// Nodes wait for the next round.
    NodesWaiting {
        /// Number of nodes.
        nodes: u64,
    },
    /// Another agent starts its workers again.
    PeerRestarts {
        /// Which agent, and why.
        message: Box<str>,
    },
    /// Another member of the round died.
    PeerDied {
        /// Which member, and how its death was detected.
        message: Box<str>,
    },
    /// The round has ended.
    RoundOver {
        /// Cause of the end.
        message: Box<str>,
    },
    /// The next round was formed without this agent.
    Excluded,
    /// Another process joined under this agent's name.
    Replaced,
    /// The workers of another agent failed and are out of restarts.
    JobFailed {
        /// Message of that agent.
        message: Box<str>,
    },
    /// The server ended the session of this agent.
    SessionEnded {
        /// Cause of the end.
        message: Box<str>,
    },
    /// The connection to the rendezvous is lost.
    ServerLost {
        /// Description of the loss.
        message: Box<str>,
    },
    /// No round was formed.
    NoRound {
        /// Kind of failure.
        kind: NoRound,
        /// Description of the failure.
        message: Box<str>,
    },
    /// The ranks could not be agreed on.
    NoRanks {
        /// Description of the failure.
        message: Box<str>,
    },
    /// The agent lost its guard process, and the workers with it.
    GroupLost {
        /// Description of the loss.
        message: Box<str>,
    },
    /// The agent can no longer observe its workers.
    GuardLost {
        /// Description of the loss.
        message: Box<str>,
    },
    /// The agent was asked to stop.
    Stop(StopCause),
    /// Not all agents arrived at the exit barrier.
    ExitBarrierFailed {
        /// The missing agents, as far as they are known.
        message: Box<str>,
    },
    /// All workers succeeded.
    Succeeded,
    /// The stop timeout has passed.
    StopTimeout,
    /// The timeout of processes that outlived the workers has passed.
    LeftoverTimeout,
    /// The start timeout has passed, and not all workers run.
    StartTimeout,
    /// Processes survived being killed.
    GaveUp,
}

impl Reason {
    /// Returns whether this may be a consequence of another agent's death that is reported later.
    pub const fn may_follow_a_death(&self) -> bool {
        match self {
            Self::WorkerFailed { exit, .. } => !exit.is_violent(),
            Self::ErrorWritten { .. } | Self::TimerExpired { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Messages contain names and texts of other nodes.
        let f = &mut OneLine(f);
        match self {
            Self::Begun => f.write_str("begun"),
            Self::Done => f.write_str("done"),
            Self::WorkerFailed { worker, exit } => write!(f, "{worker} {exit}"),
            Self::NotStarted { worker, message, .. } => write!(f, "{worker} was not started: {message}"),
            Self::Stuck { worker, since } => {
                write!(f, "{worker} has hung in the kernel for {} s", since.as_secs())
            }
            Self::TimerExpired { worker: Some(worker), timer } => {
                write!(f, "watchdog: {timer} of {worker} expired")
            }
            Self::TimerExpired { worker: None, timer } => write!(f, "watchdog: {timer} expired"),
            Self::ErrorWritten { worker } => write!(f, "{worker} has failed, as its error file says"),
            Self::NodesWaiting { nodes: 1 } => f.write_str("a node waits for the next round"),
            Self::NodesWaiting { nodes } => write!(f, "{nodes} nodes wait for the next round"),
            Self::PeerRestarts { message }
            | Self::PeerDied { message }
            | Self::RoundOver { message }
            | Self::JobFailed { message }
            | Self::GroupLost { message } => f.write_str(message),
            Self::Excluded => f.write_str("the next round was formed without this agent"),
            Self::Replaced => f.write_str("another process joined under this agent's name"),
            Self::SessionEnded { message } => write!(f, "this node's session is over: {message}"),
            Self::ServerLost { message } => write!(f, "the rendezvous is lost: {message}"),
            Self::NoRound { message, .. } => write!(f, "no round: {message}"),
            Self::NoRanks { message } => write!(f, "the workers got no ranks: {message}"),
            Self::GuardLost { message } => {
                write!(f, "the agent can no longer observe its workers: {message}")
            }
            Self::Stop(StopCause::Signal(signal)) => write!(f, "signal {signal}"),
            Self::Stop(StopCause::Requested) => f.write_str("asked to stop"),
            Self::ExitBarrierFailed { message } => write!(f, "not all agents ended with this one: {message}"),
            Self::Succeeded => f.write_str("all workers succeeded"),
            Self::StopTimeout => f.write_str("the stop timeout has passed"),
            Self::LeftoverTimeout => {
                f.write_str("the timeout of processes that outlived the workers has passed")
            }
            Self::StartTimeout => f.write_str("not all workers were started within the start timeout"),
            Self::GaveUp => f.write_str("processes outlived being killed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_whatever_other_nodes_say() {
        let reason = Reason::PeerDied { message: "node b\nforged\u{1b}[m died".into() };
        assert_eq!(reason.to_string(), r"node b\nforged\u{1b}[m died");
    }
}
