//! What goes into the machine and what comes out.

use crate::group::{ExitStatus, WorkerGroup};
use crate::phase::Phase;
use crate::ranks::Ranks;
use crate::reason::{NoRound, Reason, StartFailure, StopCause, WaitFailure};
use crate::watchdog::ExpiredTimer;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use rendezvous_core::time::{Duration, Instant};

/// The agent's place in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its rank among the agents.
    pub group_rank: u64,
    /// How many agents there are.
    pub group_world_size: u64,
    /// The round's number, of backends that have rounds.
    pub number: Option<u64>,
    /// Whether the death of a member is told by itself.
    pub tells_of_deaths: bool,
}

/// What is heard of the round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in Reason")]
pub enum Membership {
    /// So many nodes wait for the next round.
    NodesWaiting { nodes: u64 },
    /// Another member died.
    PeerDied { message: Box<str> },
    /// The round is over.
    RoundOver { message: Box<str> },
    /// The next round was formed without this agent.
    Excluded,
    /// Another process joined under this agent's name.
    Replaced,
    /// Another agent's workers failed for good.
    JobFailed { message: Box<str> },
    /// The server ended this agent's session, and goes on. Most often the agent was silent for too long.
    SessionEnded { message: Box<str> },
    /// The rendezvous is lost, and will not come back in time.
    ServerLost { message: Box<str> },
}

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The agent is to begin.
    Begin,
    /// There is a round: the answer to [`Output::Meet`].
    Met {
        /// Which call this answers.
        call: u64,
        /// The agent's place in it.
        round: Round,
    },
    /// There is none.
    NotMet {
        /// Which call this answers.
        call: u64,
        /// Which sort of failure.
        kind: NoRound,
        /// What went wrong.
        message: Box<str>,
    },
    /// The ranks are known: the answer to [`Output::Assign`].
    Assigned {
        /// Which call this answers.
        call: u64,
        /// Where the workers begin.
        ranks: Ranks,
    },
    /// They are not.
    NotAssigned {
        /// Which call this answers.
        call: u64,
        /// Which sort of failure.
        kind: WaitFailure,
        /// What went wrong.
        message: Box<str>,
    },
    /// A worker was started: part of the answer to [`Output::Start`].
    Started {
        /// Which.
        local_rank: u32,
        /// Its process.
        pid: u32,
    },
    /// A worker was not started.
    NotStarted {
        /// Which.
        local_rank: u32,
        /// Whether another try may help.
        start_failure: StartFailure,
        /// What went wrong.
        message: Box<str>,
    },
    /// A worker's process ended.
    Exited {
        /// Which.
        local_rank: u32,
        /// How.
        exit: ExitStatus,
        /// When it began to, as far as that was seen.
        at: Instant,
        /// Whether it was seen to be ending before a stop signal was sent to it, whatever `at` says.
        was_ending: bool,
    },
    /// A worker has written an error file; told before the failure of another one that makes this worth knowing.
    ErrorWritten {
        /// Which.
        local_rank: u32,
        /// When.
        at: Instant,
    },
    /// Processes that outlive the workers: the answer to [`Output::NameLeftovers`], if there are any.
    Leftovers {
        /// Their numbers and commands.
        message: Box<str>,
    },
    /// A worker hangs in the kernel for too long.
    Stuck {
        /// Which.
        local_rank: u32,
        /// For how long.
        since: Duration,
    },
    /// A worker's timer has expired, and its process was sent the timer's signal, if there is one.
    TimerExpired(ExpiredTimer),
    /// Nothing lives beneath the agent. After [`Output::Signal`] and [`Output::Kill`] this is told as soon as it is so,
    /// at once if it is already.
    Empty,
    /// What lived beneath the agent was killed, or is being killed, because the agent lost what supervises it. Others can be
    /// started; [`Input::Empty`] follows.
    GroupLost {
        /// What has happened.
        message: Box<str>,
    },
    /// The workers cannot be seen any more.
    GuardLost {
        /// Why.
        message: Box<str>,
    },
    /// Something is heard of the round.
    Member(Membership),
    /// The others do not wait for this agent at the exit barrier any more; told before the answer to [`Output::Part`].
    Arrived {
        /// The call that it is about.
        call: u64,
    },
    /// All agents came to the exit barrier: the answer to [`Output::Part`].
    Parted {
        /// Which call this answers.
        call: u64,
    },
    /// Not all came.
    NotParted {
        /// Which call this answers.
        call: u64,
        /// Which sort of failure.
        kind: WaitFailure,
        /// Who is missing, as far as it is known.
        message: Box<str>,
    },
    /// The rendezvous was told, or cannot be: the answer to [`Output::Close`].
    Closed {
        /// Which call this answers.
        call: u64,
    },
    /// The agent is to stop.
    Stop(StopCause),
    /// A signal for the workers that changes nothing here.
    Pass {
        /// Which.
        signal: i32,
    },
}

impl Input {
    /// The worker that it is about.
    pub(super) const fn local_rank(&self) -> Option<u32> {
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

/// Something that cannot have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// There is no such worker.
    #[error("there is no worker {local_rank}")]
    NoSuchWorker {
        /// Which.
        local_rank: u32,
    },
    /// An agent runs once.
    #[error("the agent has begun before")]
    BegunBefore,
}

/// How the rendezvous is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveMode {
    /// The job is over: nobody may join any more.
    Close,
    /// Only this agent goes.
    Leave,
}

/// A worker that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub local_rank: u32,
    /// Its process.
    pub pid: Option<u32>,
    /// How it ended.
    pub exit: ExitStatus,
    /// The earliest sign of it: when it had written an error file, or began to end.
    pub at: Instant,
}

/// How long the phases of a start took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the death of a worker to its being noticed.
    pub detect: Duration,
    /// Until nothing of the last group was left.
    pub stop: Duration,
    /// Until there was a round.
    pub rendezvous: Duration,
    /// Until the ranks were known.
    pub assign: Duration,
    /// Until all workers were started.
    pub start: Duration,
}

/// How an agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its workers ended well.
    Succeeded {
        /// Why it did not wait until all other agents' had.
        missing: Option<Reason>,
    },
    /// It stood by, and was not needed.
    NotNeeded,
    /// Somebody asked it to.
    Stopped {
        /// Who.
        cause: StopCause,
    },
    /// Its workers failed too often, or something else did that no restart mends.
    Failed {
        /// What.
        reason: Reason,
    },
    /// It lost sight of its workers.
    GuardLost {
        /// How.
        reason: Reason,
    },
}

/// Something to be told to whoever listens: logs, events, metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The agent is about something else now.
    Phase {
        /// Before.
        from: Phase,
        /// Now.
        to: Phase,
        /// Why.
        reason: Reason,
    },
    /// All workers run.
    Running {
        /// Which start this is; 0 is the first.
        attempt: u64,
        /// What it took.
        timing: Timing,
    },
    /// A worker ended.
    Exited {
        /// Which.
        local_rank: u32,
        /// How.
        exit: ExitStatus,
        /// Whether the agent had told it to.
        was_stopped: bool,
    },
    /// A worker's timer has expired.
    TimerExpired(ExpiredTimer),
    /// Something that changes nothing and that the user should know.
    Remark {
        /// What.
        message: Box<str>,
    },
    /// What lives beneath is killed.
    Killing {
        /// Why.
        reason: Reason,
    },
    /// Processes that outlived that are left to themselves.
    GaveUp {
        /// How long they were waited for.
        since: Duration,
        /// Who they are.
        left: Left,
    },
}

/// Those that outlived being killed: the workers among them, by their processes. None: it is others that workers began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left(pub Vec<u32>);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((last, before)) = self.0.split_last() else {
            return f.write_str("processes that the workers began are still there");
        };
        if before.is_empty() {
            return write!(f, "the worker of pid {last} is still there");
        }
        f.write_str("the workers of pids ")?;
        before.iter().try_for_each(|pid| write!(f, "{pid}, "))?;
        write!(f, "{last} are still there")
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Join the rendezvous; answered by [`Input::Met`] or [`Input::NotMet`].
    Meet {
        /// The answer names it.
        call: u64,
    },
    /// Learn the ranks; answered by [`Input::Assigned`] or [`Input::NotAssigned`].
    Assign {
        /// The answer names it.
        call: u64,
    },
    /// Wait for the other agents; answered by [`Input::Parted`] or [`Input::NotParted`], also after [`Output::Cancel`].
    Part {
        /// The answer names it.
        call: u64,
    },
    /// Tell the rendezvous; answered by [`Input::Closed`].
    Close {
        /// The answer names it.
        call: u64,
        /// What to tell it.
        leave_mode: LeaveMode,
    },
    /// End this call; its answer does not matter any more.
    Cancel {
        /// Which.
        call: u64,
    },
    /// Tell the other agents that this one's workers failed for good. Nothing waits for it.
    Announce {
        /// What happened.
        reason: Reason,
    },
    /// Tell the other agents that this one goes in the middle of the round, before its workers do. Nothing waits for it.
    Abandon,
    /// Start the workers, as [`super::Supervisor::group`] has them.
    Start {
        /// Which start this is; 0 is the first.
        attempt: u64,
    },
    /// Send this signal to all that lives beneath the agent, and to what comes up while it is being stopped; to each
    /// process once.
    Signal {
        /// Which.
        signal: i32,
    },
    /// Name the processes that have outlived their workers; answered by [`Input::Leftovers`], if there are any.
    NameLeftovers,
    /// Kill all that lives beneath the agent.
    Kill,
    /// Send this signal to the workers.
    Pass {
        /// Which.
        signal: i32,
    },
    /// These workers failed; nothing of the group lives any more, and their logs are whole.
    Report {
        /// The group that they were of.
        group: WorkerGroup,
        /// In the order in which they failed, but first those that were killed, or had crashed before any was told to end, and
        /// last those that crashed when they had been.
        failures: Vec<Failed>,
    },
    /// Tell whoever listens.
    Notify(Notice),
    /// The agent is done: [`super::Supervisor::outcome`] says how.
    Over,
}
