//! Errors between an agent and its guard.

use super::guard::{set_up_step, step};
use core::fmt;
use std::ffi::OsString;
use std::io;

fn of_system(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// Error of a request to a guard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// The guard could not be started, with the step and the error number: `EAGAIN` if the user or the system has too
    /// many processes, `ENOMEM`, `EMFILE`.
    #[error("no guard was started: {0}: {error}", error = of_system(*.1))]
    NotStarted(StartStep, i32),
    /// The description of the worker could not be sent to the guard, with the error number; `EMFILE` most likely.
    #[error("the worker could not be described to the guard: {error}", error = of_system(*.0))]
    NotPrepared(i32),
    /// A worker of this number was requested and has not ended.
    #[error("worker {0} was started already, and has not ended")]
    Runs(u32),
    /// The number of living workers has reached the limit of the guard's options.
    #[error("{0} workers are running already, which is the limit of this guard")]
    TooMany(u32),
    /// A string contains a null byte, which the system cannot represent.
    #[error("{0} contains a zero byte")]
    ZeroByte(Part),
    /// A variable name is empty or contains `=`.
    #[error("{0:?} is not a valid name of an environment variable")]
    NotAName(OsString),
    /// The guard's options have no function.
    #[error("the worker is a function, but the guard was started without one")]
    NoFunction,
    /// The signal does not exist.
    #[error("{0} is not a signal number")]
    NoSignal(i32),
    /// The guard is lost.
    #[error(transparent)]
    Lost(#[from] GuardLost),
}

/// Part of a worker's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "named as the fields are")]
pub enum Part {
    #[error("the path")]
    Path,
    #[error("an argument")]
    Argument,
    #[error("the environment")]
    Environment,
    #[error("the directory")]
    Directory,
}

/// Step of a guard's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartStep {
    /// Allocating memory and descriptors.
    #[error("memory and descriptors")]
    Prepare,
    /// `fork`.
    #[error("fork")]
    Fork,
    /// Becoming a subreaper, which adopts orphaned descendants.
    #[error("adopting orphans")]
    Subreaper,
    /// Closing the agent's descriptors.
    #[error("closing the program's descriptors")]
    Descriptors,
    /// Setting up the wait for events.
    #[error("waiting for events")]
    Events,
    /// The guard did not report in time, or ended before.
    #[error("it did not report")]
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

/// The guard's keeper ended before the agent, so no other guard can be started. The guard, if it lives, kills all its
/// descendants, and the process groups of the workers were killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GuardLost {
    /// Process ID of the keeper.
    pub pid: u32,
    /// Signal that ended it, if it is known.
    pub signal: Option<i32>,
    /// Why the keeper could not replace a lost guard, if that happened: the step and the error number.
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
        write!(f, "the keeper of the workers' guard has ended (process {}", self.pid)?;
        if let Some(signal) = self.signal {
            write!(f, ", ended by signal {signal}")?;
        }
        f.write_str("); no worker can be started without it")
    }
}

/// Step of a worker's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpawnStep {
    /// Not begun: a stop was requested.
    #[error("a stop was asked for")]
    Stopping,
    /// Receiving the request: `EMFILE`, `ENOMEM`, or `ENOSPC` if the guard has no room for one more worker.
    #[error("the guard could not take the request")]
    Request,
    /// Creating the process: `EAGAIN` if the user or the system has too many processes, or `ENOMEM`.
    #[error("making a process")]
    Fork,
    /// Creating a session.
    #[error("a session of its own")]
    Session,
    /// Opening the standard streams.
    #[error("its standard streams")]
    Stdio,
    /// Changing to the working directory.
    #[error("its directory")]
    Directory,
    /// Executing the program: `ENOENT` if it or its interpreter is missing, `EACCES` if it is not executable, `ENOEXEC`
    /// if its format is unknown, `E2BIG` if arguments and environment are too long.
    #[error("running the program")]
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
