//! Events of a guard.

use super::error::SpawnStep;
use crate::group::ExitStatus;
use rendezvous_core::prelude::*;

/// Event of the processes below a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// A worker executes its program, or its function is about to be called.
    Started {
        /// Number of the worker, as the agent chose it.
        worker: u32,
        /// Process ID, which is also that of its session and process group. It belongs to the worker until
        /// [`GuardEvent::Exited`] is received, and may be reused after that.
        pid: u32,
    },
    /// A worker could not be started.
    NotStarted {
        /// Number of the worker, which is free again.
        worker: u32,
        /// Step that failed.
        step: SpawnStep,
        /// Error number of the system call.
        errno: i32,
    },
    /// A worker has ended. Exits of one guard are in the order in which the workers began to end, as far as that was
    /// observed.
    Exited {
        /// Number of the worker, which is free again.
        worker: u32,
        /// Process ID that the worker had.
        pid: u32,
        /// Exit status of the process.
        status: ExitStatus,
        /// Time at which it began to end, as far as the guard observed that, otherwise at which it had ended: the
        /// system's monotonic clock, in nanoseconds.
        at_ns: u64,
        /// Whether it was seen to be ending before the guard sent the signal of a stop.
        was_ending: bool,
        /// Return value of a function.
        returned: Returned,
    },
    /// The guard has no living descendants and no pending requests. It ends every stop, and otherwise follows the end
    /// of the last process.
    Empty,
    /// The guard was killed, and all its descendants are being killed. The living workers and pending requests get no
    /// further events. [`GuardEvent::Empty`] and another guard follow.
    Lost {
        /// Process ID that the guard had.
        pid: u32,
        /// Signal that ended it.
        signal: i32,
    },
    /// The answer to [`Guard::survivors`](super::Guard::survivors).
    Survivors {
        /// IDs of the first 16 of them at most.
        pids: Vec<u32>,
        /// Number of all of them.
        count: u32,
    },
}

/// Return value of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// No complete value: the worker was a program, or its function did not return.
    Nothing,
    /// The value of the function, possibly empty.
    Bytes(Vec<u8>),
    /// The value is longer than the guard's options allow.
    TooLong {
        /// Length of the value in bytes.
        bytes: u64,
        /// Limit in bytes.
        bytes_max: usize,
    },
    /// The value could not be transferred, with the error number.
    Failed(i32),
}

impl Returned {
    /// Returns why the value is missing although the function returned one.
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Nothing | Self::Bytes(_) => None,
            Self::TooLong { bytes, bytes_max } => Some(format!(
                "the function returned {bytes} bytes, and the limit of a worker's return value is {bytes_max} bytes"
            )),
            Self::Failed(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                Some(format!("the return value of the function could not be transferred: {error}"))
            }
        }
    }
}
