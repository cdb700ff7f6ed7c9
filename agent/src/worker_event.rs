//! Events of workers: reports of their starts and ends.

use crate::group::ExitStatus;
use crate::reason::StartFailure;
use crate::watchdog::ExpiredTimer;
use rendezvous_core::prelude::*;

/// Event of the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// A worker was started.
    Started {
        /// Local rank of the worker.
        local_rank: u32,
        /// Process ID of the worker, or another number that identifies it.
        pid: u32,
    },
    /// A worker could not be started.
    NotStarted {
        /// Local rank of the worker.
        local_rank: u32,
        /// Whether another attempt may succeed.
        start_failure: StartFailure,
        /// Description of the failure.
        message: Box<str>,
    },
    /// A worker ended.
    Exited {
        /// Local rank of the worker.
        local_rank: u32,
        /// Exit status of the worker.
        exit: ExitStatus,
        /// Time at which it began to end, as far as that was observed, on the agent's clock.
        at: Instant,
        /// Whether it was seen to be ending before a stop signal was sent to it, whatever `at` says.
        was_ending: bool,
        /// Bytes that it returned, for workers that return a value.
        returned: Option<Vec<u8>>,
    },
    /// A worker has written an error file. Reported before the failure of another worker, unless the workers are being
    /// stopped.
    ErrorWritten {
        /// Local rank of the worker.
        local_rank: u32,
        /// Time of writing.
        at: Instant,
    },
    /// Processes have outlived the workers: the answer to a request to name them, if there are any.
    Leftovers {
        /// Their process IDs and commands.
        message: Box<str>,
    },
    /// A worker hangs where no signal reaches it.
    Stuck {
        /// Local rank of the worker.
        local_rank: u32,
        /// Time for which it has hung.
        since: Duration,
    },
    /// A timer that a worker had set has expired. Its process was sent the timer's signal, if the timer has one.
    TimerExpired(ExpiredTimer),
    /// A message for the user that does not change the state.
    Remark {
        /// Text of the message.
        message: Box<str>,
    },
    /// No started process is alive any more, and no start is pending. Reported after each signal to stop and
    /// each kill, as soon as it is true.
    Empty,
    /// All workers and their descendants were killed because their guard ended, not because they failed. No other event
    /// of them follows, except [`WorkerEvent::Empty`]; others can be started after that.
    GroupLost {
        /// Description of the loss.
        message: Box<str>,
    },
    /// The workers cannot be observed any more.
    GuardLost {
        /// Description of the loss.
        message: Box<str>,
    },
}

impl WorkerEvent {
    /// Returns the local rank of the worker that the event concerns.
    pub(crate) const fn local_rank(&self) -> Option<u32> {
        match *self {
            Self::Started { local_rank, .. }
            | Self::NotStarted { local_rank, .. }
            | Self::Exited { local_rank, .. }
            | Self::ErrorWritten { local_rank, .. }
            | Self::Stuck { local_rank, .. } => Some(local_rank),
            Self::TimerExpired(ref timer) => timer.local_rank,
            _ => None,
        }
    }
}
