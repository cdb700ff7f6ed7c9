//! What a guard tells.

use super::error::SpawnStep;
use super::guard::packet::Report;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What happened beneath a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// A worker is its own program, or its function is about to be called.
    Started {
        /// Its number, as the agent gave it.
        worker: u32,
        /// The process, which leads a session and a group of the same number. It is the worker's until
        /// [`GuardEvent::Exited`] was taken, and may be another's then.
        pid: u32,
    },
    /// A worker did not become what it should.
    NotStarted {
        /// Its number, which is free again.
        worker: u32,
        /// What failed.
        step: SpawnStep,
        /// The system's number.
        errno: i32,
    },
    /// A worker has ended; those of one guard in the order in which they began to, as far as that was seen.
    Exited {
        /// Its number, which is free again.
        worker: u32,
        /// The process that it was.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
        /// When it began to end, as far as the guard saw that, or when it had: the system's monotonic clock, in
        /// nanoseconds.
        at_ns: u64,
        /// Whether it was seen to be ending before the guard sent the signal of a stop.
        was_ending: bool,
        /// What a function returned.
        returned: Returned,
    },
    /// Nothing lives beneath the guard, and nothing is asked for: the end of every stop, and of the last process if none
    /// was asked for.
    Empty,
    /// The guard was killed, and everything beneath it is being killed: nothing is told of the workers that lived, nor of
    /// what was asked for. [`GuardEvent::Empty`] follows, and another guard.
    Lost {
        /// The process that the guard was.
        pid: u32,
        /// The signal that ended it.
        signal: i32,
    },
    /// The answer to [`Guard::survivors`](super::Guard::survivors).
    Survivors {
        /// The first of them, 16 at most.
        pids: Vec<u32>,
        /// How many there are.
        count: u32,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this code (0 to 255).
    Code(i32),
    /// By a signal.
    Signal {
        /// Its number.
        signal: i32,
        /// The system has written its memory to a file.
        core_dumped: bool,
    },
}

impl ExitStatus {
    pub(super) const fn of(report: &Report) -> Self {
        match report.how {
            libc::CLD_EXITED => Self::Code(report.value),
            how => Self::Signal { signal: report.value, core_dumped: how == libc::CLD_DUMPED },
        }
    }
}

/// What a worker returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing whole: it was a program, or a function that did not come to its end.
    Nothing,
    /// What the function left, which may be no bytes.
    Bytes(Vec<u8>),
    /// The function left more than the guard's options allow.
    TooLong {
        /// How much it left, in bytes.
        bytes: u64,
        /// How much may be, in bytes.
        bytes_max: usize,
    },
    /// What the function left could not be handed over: the system's number.
    Failed(i32),
}

impl Returned {
    /// Why there is nothing although the function left something.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Nothing | Self::Bytes(_) => None,
            Self::TooLong { bytes, bytes_max } => Some(format!(
                "the function returned {bytes} bytes, and the limit of a worker's return value is {bytes_max} bytes"
            )),
            Self::Failed(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                Some(format!("what the function returned could not be handed over: {error}"))
            }
        }
    }
}
