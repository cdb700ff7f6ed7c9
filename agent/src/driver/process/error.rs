//! What can go wrong between an agent and its guard.

use super::guard::{set_up_step, step};
use core::fmt;
use std::ffi::OsString;
use std::io;

fn of_system(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Why a guard did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// The guard was not started. The number is the system's: `EAGAIN` when the user or the system has as many processes
    /// as may be, `ENOMEM`, `EMFILE`.
    #[error("no guard was started: {0}: {error}", error = of_system(*.1))]
    NotStarted(StartStep, i32),
    /// What the worker is to be could not be handed over. The number is the system's; `EMFILE` most likely.
    #[error("the worker could not be described to the guard: {error}", error = of_system(*.0))]
    NotPrepared(i32),
    /// A worker of this number was asked for and has not ended.
    #[error("worker {0} was started already, and has not ended")]
    Runs(u32),
    /// As many workers live as the guard's options allow.
    #[error("there are {0} workers already, as many as the guard was made for")]
    TooMany(u32),
    /// The system cannot take a text with a zero byte in it.
    #[error("{0} holds a zero byte")]
    ZeroByte(Part),
    /// A name in the environment is empty, or holds `=`.
    #[error("{0:?} is no name for the environment")]
    NotAName(OsString),
    /// The guard's options hold no function.
    #[error("a worker is to be a function, but the guard was made without one")]
    NoFunction,
    /// The system has no such signal.
    #[error("{0} is no signal")]
    NoSignal(i32),
    /// The guard is gone.
    #[error(transparent)]
    Lost(#[from] GuardLost),
}

/// What of a worker's description is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the fields are")]
pub enum Part {
    Path,
    Argument,
    Environment,
    Directory,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Path => "the path",
            Self::Argument => "an argument",
            Self::Environment => "the environment",
            Self::Directory => "the directory",
        })
    }
}

/// Where the start of a guard failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// Memory and descriptors.
    Prepare,
    /// `fork`.
    Fork,
    /// To be the one who adopts orphans.
    Subreaper,
    /// To leave the agent's descriptors.
    Descriptors,
    /// To wait for events.
    Events,
    /// It did not report in time, or ended before.
    Report,
}

impl StartStep {
    pub(super) const fn from_wire(step: i32) -> Self {
        match step {
            set_up_step::SUBREAPER => Self::Subreaper,
            set_up_step::DESCRIPTORS => Self::Descriptors,
            set_up_step::EVENTS => Self::Events,
            set_up_step::FORK => Self::Fork,
            _ => Self::Report,
        }
    }
}

impl fmt::Display for StartStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "memory and descriptors",
            Self::Fork => "fork",
            Self::Subreaper => "adopting orphans",
            Self::Descriptors => "closing the program's descriptors",
            Self::Events => "waiting for events",
            Self::Report => "it did not report",
        })
    }
}

/// The guard's keeper ended before the agent, so there will be no other guard. The guard, if it lives, kills everything
/// beneath it, and the process groups of the workers were killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GuardLost {
    /// The keeper's process.
    pub pid: u32,
    /// The signal that ended it, if that is known.
    pub signal: Option<i32>,
    /// Why it did not start another guard when the guard was lost, if it did not.
    pub not_restarted: Option<(StartStep, i32)>,
}

impl fmt::Display for GuardLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((step, errno)) = self.not_restarted {
            let error = of_system(errno);
            return write!(
                f,
                "the guard of the workers was lost, and no other could be started: {step}: {error}"
            );
        }
        write!(f, "the keeper of the workers' guard is gone (process {}", self.pid)?;
        if let Some(signal) = self.signal {
            write!(f, ", ended by signal {signal}")?;
        }
        f.write_str("); no worker can be started without it")
    }
}

/// Where the start of a worker failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnStep {
    /// Not begun: a stop was asked for.
    Stopping,
    /// The guard could not take the request: `EMFILE`, `ENOMEM`, `ENOSPC` when it has no room for one more worker.
    Request,
    /// To make a process: `EAGAIN` when the user or the system has as many as may be, `ENOMEM`.
    Fork,
    /// A session of its own.
    Session,
    /// Its standard streams.
    Stdio,
    /// Its directory.
    Directory,
    /// To become the program: `ENOENT` when it or its interpreter is missing, `EACCES` when it may not be run, `ENOEXEC`
    /// when it is none, `E2BIG` when arguments and environment are too long.
    Exec,
}

impl SpawnStep {
    pub(super) const fn from_wire(number: i32) -> Self {
        match number {
            step::STOPPING => Self::Stopping,
            step::FORK => Self::Fork,
            step::SESSION => Self::Session,
            step::STDIO => Self::Stdio,
            step::DIRECTORY => Self::Directory,
            step::EXEC => Self::Exec,
            _ => Self::Request,
        }
    }
}

impl fmt::Display for SpawnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopping => "a stop was asked for",
            Self::Request => "the guard could not take the request",
            Self::Fork => "making a process",
            Self::Session => "a session of its own",
            Self::Stdio => "its standard streams",
            Self::Directory => "its directory",
            Self::Exec => "running the program",
        })
    }
}
