//! Why an agent does what it does: what its logs, events and errors print.

use super::group::{ExitStatus, WorkerRanks};
use super::watchdog::ExpiredTimer;
use alloc::boxed::Box;
use core::fmt;
use rendezvous_core::time::Duration;

/// Who asked an agent to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// A signal came, which is passed on to the workers.
    Signal(i32),
    /// The program asked.
    Requested,
}

/// Why a worker could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// There is no such program, or it may not be run: it will be so the next time.
    Lasting,
    /// The system has no room for it now.
    Passing,
}

/// Why there is no round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRound {
    /// The agent stood by, and was not needed.
    NotNeeded,
    /// The rendezvous is closed.
    Closed,
    /// Anything else.
    Failed,
}

/// Why what agents do together in the round's store came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFailure {
    /// The round is over. What ended it is heard by another way, before this or soon after.
    RoundOver,
    /// Anything else.
    Failed,
}

/// Why something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The agent was told to begin.
    Begun,
    /// The last step was done.
    Done,
    /// A worker failed.
    WorkerFailed {
        /// The worker.
        worker: WorkerRanks,
        /// How it ended.
        exit: ExitStatus,
    },
    /// A worker had written an error file before another one failed.
    ErrorWritten {
        /// The worker.
        worker: WorkerRanks,
    },
    /// A worker was not started.
    NotStarted {
        /// The worker.
        worker: WorkerRanks,
        /// Whether another try may help.
        start_failure: StartFailure,
        /// What went wrong.
        message: Box<str>,
    },
    /// A worker has hung in the kernel for too long.
    Stuck {
        /// The worker.
        worker: WorkerRanks,
        /// For how long.
        since: Duration,
    },
    /// A timer that a worker had set has expired.
    TimerExpired {
        /// The worker, where it is known.
        worker: Option<WorkerRanks>,
        /// The timer.
        timer: ExpiredTimer,
    },
    /// Nodes wait for the next round.
    NodesWaiting {
        /// How many.
        nodes: u64,
    },
    /// Another member of the round died.
    PeerDied {
        /// Who, and how that was noticed.
        message: Box<str>,
    },
    /// The round is over.
    RoundOver {
        /// Why.
        message: Box<str>,
    },
    /// The next round was formed without this agent.
    Excluded,
    /// Another process joined under this agent's name.
    Replaced,
    /// Another agent's workers failed for good.
    JobFailed {
        /// What that agent said.
        message: Box<str>,
    },
    /// The server ended the session of this agent.
    SessionEnded {
        /// Why.
        message: Box<str>,
    },
    /// The rendezvous is lost.
    ServerLost {
        /// How.
        message: Box<str>,
    },
    /// There is no round.
    NoRound {
        /// Which sort of failure.
        kind: NoRound,
        /// What went wrong.
        message: Box<str>,
    },
    /// The ranks could not be learnt.
    NoRanks {
        /// What went wrong.
        message: Box<str>,
    },
    /// The agent lost what supervises its workers, and the workers with it.
    GroupLost {
        /// What has happened.
        message: Box<str>,
    },
    /// The agent no longer sees its workers.
    GuardLost {
        /// How.
        message: Box<str>,
    },
    /// Somebody asked the agent to stop.
    Stop(StopCause),
    /// Not all agents came to the exit barrier.
    NotAllParted {
        /// Who did not, as far as it is known.
        message: Box<str>,
    },
    /// All workers ended well.
    Succeeded,
    /// The stop timeout has passed.
    StopTimeout,
    /// What outlived the workers has had its time.
    LeftoverTimeout,
    /// The start timeout has passed, and not all workers run.
    StartTimeout,
    /// Processes outlived being killed.
    GaveUp,
}

impl Reason {
    /// Whether it may be a consequence of another agent's death, of which this one may hear later than of that.
    #[must_use]
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
            Self::PeerDied { message }
            | Self::RoundOver { message }
            | Self::JobFailed { message }
            | Self::GroupLost { message } => f.write_str(message),
            Self::Excluded => f.write_str("the next round was formed without this agent"),
            Self::Replaced => f.write_str("another process joined under this agent's name"),
            Self::SessionEnded { message } => write!(f, "this node's session is over: {message}"),
            Self::ServerLost { message } => write!(f, "the rendezvous is lost: {message}"),
            Self::NoRound { message, .. } => write!(f, "no round: {message}"),
            Self::NoRanks { message } => write!(f, "the workers got no ranks: {message}"),
            Self::GuardLost { message } => write!(f, "the agent lost sight of its workers: {message}"),
            Self::Stop(StopCause::Signal(signal)) => write!(f, "signal {signal}"),
            Self::Stop(StopCause::Requested) => f.write_str("asked to stop"),
            Self::NotAllParted { message } => write!(f, "not all agents ended with this one: {message}"),
            Self::Succeeded => f.write_str("all workers succeeded"),
            Self::StopTimeout => f.write_str("the stop timeout has passed"),
            Self::LeftoverTimeout => {
                f.write_str("the time of processes that outlived the workers has passed")
            }
            Self::StartTimeout => f.write_str("not all workers were started within the start timeout"),
            Self::GaveUp => f.write_str("processes outlived being killed"),
        }
    }
}
