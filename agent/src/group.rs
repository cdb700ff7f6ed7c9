//! The workers of one agent, as anybody may look at them.

use super::failure::signal_name;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// How a group of workers is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// The agent has lost sight of its workers. It cannot go on.
    Unknown,
    /// They are not started.
    #[default]
    Init,
    /// They run.
    Healthy,
    /// They run, and at least one does not get on.
    Unhealthy,
    /// The agent stopped them.
    Stopped,
    /// All ended well.
    Succeeded,
    /// At least one did not.
    Failed,
}

impl WorkerState {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Init,
        Self::Healthy,
        Self::Unhealthy,
        Self::Stopped,
        Self::Succeeded,
        Self::Failed,
    ];

    /// Whether processes run.
    #[must_use]
    pub const fn is_running(self) -> bool {
        matches!(self, Self::Healthy | Self::Unhealthy)
    }

    /// As PyTorch's events and metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Init => "INIT",
            Self::Healthy => "HEALTHY",
            Self::Unhealthy => "UNHEALTHY",
            Self::Stopped => "STOPPED",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this code; 0: well.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl ExitStatus {
    /// Whether it ended well.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Whether the system or somebody else ended it: a kill, or an access or an instruction that cannot be. No program ends
    /// so because a peer of its did, as it may by an exit code or an abort.
    #[must_use]
    pub const fn is_violent(self) -> bool {
        matches!(self, Self::Signal(SIGILL | SIGBUS | SIGFPE | SIGKILL | SIGSEGV))
    }

    /// Whether it is a crash: a violent end, or an abort. An abort may follow from a peer's end, as an exit code may, but
    /// a stop signal is no reason for one.
    #[must_use]
    pub const fn is_crash(self) -> bool {
        self.is_violent() || matches!(self, Self::Signal(SIGABRT))
    }

    /// Whether it was killed.
    #[must_use]
    pub const fn is_killed(self) -> bool {
        matches!(self, Self::Signal(SIGKILL))
    }

    /// One number, as PyTorch has it: that of a signal is negative.
    #[must_use]
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => -signal,
        }
    }
}

impl fmt::Display for ExitStatus {
    /// The predicate of a sentence about the process.
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

/// The ranks by which messages name a worker. Neither of them alone tells which worker is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRanks {
    /// The worker's rank in the job.
    pub global_rank: u64,
    /// The worker's rank on its agent.
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

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its number on this agent.
    pub local_rank: u32,
    /// Its number in the job.
    pub global_rank: u64,
    /// Its number among the workers of its role.
    pub role_rank: u64,
    /// The workers of the job.
    pub world_size: u64,
    /// The workers of its role.
    pub role_world_size: u64,
    /// Its process, once it is started.
    pub pid: Option<u32>,
    /// How it ended, once it has.
    pub exit: Option<ExitStatus>,
}

impl Worker {
    /// The ranks by which messages name it.
    #[must_use]
    pub const fn ranks(&self) -> WorkerRanks {
        WorkerRanks { global_rank: self.global_rank, local_rank: self.local_rank }
    }
}

/// The workers of one agent at one moment: what is read never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerGroup {
    /// What they do.
    pub role: Box<str>,
    /// How they are.
    pub state: WorkerState,
    /// The agent's rank among the agents; none while there is no round.
    pub group_rank: Option<u64>,
    /// How many agents there are.
    pub group_world_size: u64,
    /// The round's number, of backends that have rounds.
    pub round: Option<u64>,
    /// How often the group was started before this time, for whatever reason.
    pub attempt: u64,
    /// How often it was started anew because its own workers failed.
    pub restart_count: u32,
    /// The workers, by local rank; empty until their ranks are known.
    pub workers: Vec<Worker>,
}

impl WorkerGroup {
    /// Returns the ranks of the worker with this local rank, if there is one.
    #[must_use]
    pub fn ranks_of(&self, local_rank: u32) -> Option<WorkerRanks> {
        self.workers.get(usize::try_from(local_rank).ok()?).map(Worker::ranks)
    }
}
