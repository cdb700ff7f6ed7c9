//! The workers of one agent, as seen from outside.

use super::failure::signal_name;
use rendezvous_core::named::named;
use rendezvous_core::prelude::*;

named! {
    /// State of a group of workers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum WorkerState {
        /// The agent can no longer observe its workers, and ends.
        Unknown: "UNKNOWN",
        /// The workers are not started.
        #[default]
        Init: "INIT",
        /// The workers run.
        Healthy: "HEALTHY",
        /// The workers run, and at least one hangs.
        Unhealthy: "UNHEALTHY",
        /// The agent stopped the workers.
        Stopped: "STOPPED",
        /// All workers succeeded.
        Succeeded: "SUCCEEDED",
        /// At least one worker failed.
        Failed: "FAILED",
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code; 0 is success.
    Code(i32),
    /// It was ended by this signal.
    Signal(i32),
}

impl ExitStatus {
    /// Returns whether the process succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Returns whether the process was killed from outside or by an invalid access or instruction. A program does not
    /// end like this because a peer ended, unlike by an exit code or an abort.
    pub const fn is_violent(self) -> bool {
        matches!(self, Self::Signal(SIGILL | SIGBUS | SIGFPE | SIGKILL | SIGSEGV))
    }

    /// Returns whether it is a crash: a violent end or an abort. An abort may follow from a peer's end, as an exit code
    /// may, but not from a stop signal.
    pub const fn is_crash(self) -> bool {
        self.is_violent() || matches!(self, Self::Signal(SIGABRT))
    }

    /// Returns whether `SIGKILL` ended the process.
    pub const fn is_killed(self) -> bool {
        matches!(self, Self::Signal(SIGKILL))
    }

    /// Returns the exit code as one number, as in PyTorch: a signal is negative.
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }
}

impl fmt::Display for ExitStatus {
    /// Writes the predicate of a sentence about the process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was ended by {name}"),
                None => write!(f, "was ended by signal {signal}"),
            },
        }
    }
}

/// Ranks that identify a worker in messages. Neither of them is sufficient alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRanks {
    /// Rank of the worker in the job.
    pub global_rank: u64,
    /// Rank of the worker on its agent.
    pub local_rank: u32,
}

impl fmt::Display for WorkerRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (local rank {})", self.global_rank, self.local_rank)
    }
}

const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Rank on this agent.
    pub local_rank: u32,
    /// Rank in the job.
    pub global_rank: u64,
    /// Rank among the workers of its role.
    pub role_rank: u64,
    /// Number of workers in the job.
    pub world_size: u64,
    /// Number of workers of its role.
    pub role_world_size: u64,
    /// Process ID, once it is started.
    pub pid: Option<u32>,
    /// Exit status, once it has ended.
    pub exit: Option<ExitStatus>,
}

impl Worker {
    /// Returns the ranks that identify it in messages.
    pub const fn ranks(&self) -> WorkerRanks {
        WorkerRanks { global_rank: self.global_rank, local_rank: self.local_rank }
    }
}

/// The workers of one agent at one moment; an immutable snapshot for readers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerGroup {
    /// Role of the workers.
    pub role: Box<str>,
    /// State of the group.
    pub state: WorkerState,
    /// Rank of the agent among the agents; `None` without a round.
    pub group_rank: Option<u64>,
    /// Number of agents.
    pub group_world_size: u64,
    /// Number of the round, for backends that number their rounds.
    pub round: Option<u64>,
    /// Number of earlier starts of the group, for whatever reason.
    pub attempt: u64,
    /// Number of restarts because workers of this group failed.
    pub restart_count: u32,
    /// The workers, by local rank; empty until their ranks are known.
    pub workers: Vec<Worker>,
}

impl WorkerGroup {
    /// Returns the ranks of the worker with this local rank, if there is one.
    pub fn ranks_of(&self, local_rank: u32) -> Option<WorkerRanks> {
        self.workers.get(usize::try_from(local_rank).ok()?).map(Worker::ranks)
    }
}
