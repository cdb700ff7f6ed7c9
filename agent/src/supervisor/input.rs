//! Inputs and outputs of the supervisor.

use crate::group::{ExitStatus, WorkerGroup, WorkerRanks};
use crate::phase::Phase;
use crate::ranks::Ranks;
use crate::reason::{NoRound, Reason, StopCause, WaitFailure};
use crate::watchdog::ExpiredTimer;
use crate::worker_event::WorkerEvent;
use rendezvous_core::prelude::*;

/// The agent's position in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Rank of this agent among the agents of the round.
    pub group_rank: u64,
    /// Number of agents in the round.
    pub group_world_size: u64,
    /// Number of the round, for backends that number their rounds.
    pub number: Option<u64>,
    /// Whether the backend reports the death of a member.
    pub reports_deaths: bool,
}

/// A change of the round's membership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in Reason")]
pub enum Membership {
    /// This many nodes wait for the next round.
    NodesWaiting { nodes: u64 },
    /// Another agent left the round to start its workers again.
    PeerRestarts { message: Box<str> },
    /// Another member died.
    PeerDied { message: Box<str> },
    /// The round has ended.
    RoundOver { message: Box<str> },
    /// The next round was formed without this agent.
    Excluded,
    /// Another process joined under this agent's name.
    Replaced,
    /// The workers of another agent failed and are out of restarts.
    JobFailed { message: Box<str> },
    /// The server ended this agent's session and continues to run. Most often the agent sent no heartbeat for too long.
    SessionEnded { message: Box<str> },
    /// The connection to the rendezvous is lost, and will not return in time.
    ServerLost { message: Box<str> },
}

/// Input of the supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The agent begins.
    Begin,
    /// A round was formed: the answer to [`Output::Join`].
    Joined {
        /// Number of the answered call.
        call: u64,
        /// The agent's position in the round.
        round: Round,
    },
    /// No round was formed: the other answer to [`Output::Join`].
    NotJoined {
        /// Number of the answered call.
        call: u64,
        /// Kind of failure.
        kind: NoRound,
        /// Description of the failure.
        message: Box<str>,
    },
    /// The ranks are known: the answer to [`Output::Assign`].
    Assigned {
        /// Number of the answered call.
        call: u64,
        /// First ranks of this agent's workers, and the numbers of workers.
        ranks: Ranks,
    },
    /// The ranks could not be agreed on: the other answer to [`Output::Assign`].
    NotAssigned {
        /// Number of the answered call.
        call: u64,
        /// Kind of failure.
        kind: WaitFailure,
        /// Description of the failure.
        message: Box<str>,
    },
    /// Something happened to the workers: the answers to [`Output::Start`] and to the outputs that end workers.
    Worker(WorkerEvent),
    /// The membership of the round has changed.
    Member(Membership),
    /// The other agents no longer wait for this one at the exit barrier. Reported before the answer to
    /// [`Output::WaitAtExitBarrier`].
    Arrived {
        /// Number of the call to [`Output::WaitAtExitBarrier`].
        call: u64,
    },
    /// All agents arrived at the exit barrier: the answer to [`Output::WaitAtExitBarrier`].
    ExitBarrierPassed {
        /// Number of the answered call.
        call: u64,
    },
    /// Not all agents arrived: the other answer to [`Output::WaitAtExitBarrier`].
    ExitBarrierFailed {
        /// Number of the answered call.
        call: u64,
        /// Kind of failure.
        kind: WaitFailure,
        /// Description of the failure, with the missing agents as far as they are known.
        message: Box<str>,
    },
    /// The rendezvous was left, or cannot be reached: the answer to [`Output::Close`].
    Closed {
        /// Number of the answered call.
        call: u64,
    },
    /// The agent is asked to stop.
    Stop(StopCause),
    /// A signal to forward to the workers. It does not change the state.
    Pass {
        /// Signal number.
        signal: i32,
    },
}

/// An impossible input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The worker does not exist.
    #[error("there is no worker {local_rank}")]
    NoSuchWorker {
        /// Local rank in the input.
        local_rank: u32,
    },
    /// The agent has begun before; it runs once.
    #[error("the agent has begun before")]
    BegunBefore,
}

/// Way of leaving the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveMode {
    /// The job is over: the run is closed, and no agent may join any more.
    Close,
    /// Only this agent leaves.
    Leave,
}

/// A worker that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Process ID of the worker, if it had started.
    pub pid: Option<u32>,
    /// Exit status of the process.
    pub exit: ExitStatus,
    /// Earliest evidence of the failure: when the worker wrote an error file, or began to end.
    pub at: Instant,
}

/// Durations of the phases of a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the death of a worker to its detection.
    pub detect: Duration,
    /// From there until no process of the last group was left.
    pub stop: Duration,
    /// From there until a round was formed.
    pub rendezvous: Duration,
    /// From there until the ranks were known.
    pub assign: Duration,
    /// From there until all workers were started.
    pub start: Duration,
}

/// Outcome of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its workers exited with success.
    Succeeded {
        /// Reason why it did not wait for all other agents, if it did not.
        missing: Option<Reason>,
    },
    /// It waited as a spare node, and was not needed.
    NotNeeded,
    /// It was asked to stop.
    Stopped {
        /// Source of the request.
        cause: StopCause,
    },
    /// Its workers failed too often, or a failure happened that no restart repairs.
    Failed {
        /// Reason of the failure.
        reason: Reason,
    },
    /// It could not observe its workers any more.
    GuardLost {
        /// Reason of the loss.
        reason: Reason,
    },
}

/// A notice for logs, events and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The agent entered another phase.
    Phase {
        /// Previous phase.
        from: Phase,
        /// Current phase.
        to: Phase,
        /// Reason of the transition.
        reason: Reason,
    },
    /// All workers run.
    Running {
        /// Number of the start; 0 is the first.
        attempt: u64,
        /// Durations of its phases.
        timing: Timing,
    },
    /// A worker ended.
    Exited {
        /// Local rank of the worker.
        local_rank: u32,
        /// Exit status of the process.
        exit: ExitStatus,
        /// Reason of the stop, if the agent had asked it to stop.
        stopped_for: Option<Reason>,
    },
    /// A worker's timer has expired.
    TimerExpired(ExpiredTimer),
    /// A message for the user that does not change the state.
    Remark {
        /// Text of the message.
        message: Box<str>,
    },
    /// The agent has waited at the exit barrier for a while, and other agents are still at work.
    StillAtWork {
        /// How many agents have finished, and which have not, as far as that is known.
        message: Box<str>,
    },
    /// All descendants of the agent are being killed.
    Killing {
        /// Reason for killing them.
        reason: Reason,
    },
    /// Processes that survived being killed are abandoned.
    GaveUp {
        /// Time since the stop began.
        since: Duration,
        /// The surviving workers.
        left: Left,
    },
}

impl Notice {
    /// Returns the text of [`Notice::Exited`] for this worker.
    pub fn exit_text(worker: WorkerRanks, exit: ExitStatus, stopped_for: Option<&Reason>) -> String {
        match stopped_for {
            Some(reason) => format!("{worker} was stopped: {reason}"),
            None => format!("{worker} {exit}"),
        }
    }
}

/// Process IDs of the workers that survived being killed. Empty if the survivors are other descendants of the workers.
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

/// Output of the supervisor: what the driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Join the rendezvous; answered by [`Input::Joined`] or [`Input::NotJoined`].
    Join {
        /// Number of the call, repeated in the answer.
        call: u64,
    },
    /// Agree on the ranks; answered by [`Input::Assigned`] or [`Input::NotAssigned`].
    Assign {
        /// Number of the call, repeated in the answer.
        call: u64,
    },
    /// Wait for the other agents; answered by [`Input::ExitBarrierPassed`] or [`Input::ExitBarrierFailed`], also after
    /// [`Output::Cancel`].
    WaitAtExitBarrier {
        /// Number of the call, repeated in the answer.
        call: u64,
    },
    /// Leave the rendezvous; answered by [`Input::Closed`].
    Close {
        /// Number of the call, repeated in the answer.
        call: u64,
        /// Whether to close the run or only to leave it.
        leave_mode: LeaveMode,
    },
    /// Cancel a call; its answer is ignored.
    Cancel {
        /// Number of the call.
        call: u64,
    },
    /// Notify the other agents that this one's workers failed and are out of restarts. Not answered.
    Announce {
        /// Reason of the failure.
        reason: Reason,
    },
    /// Record for the other agents why this one starts its workers again. Not answered.
    ExplainRestart {
        /// Reason of the restart.
        reason: Reason,
    },
    /// Notify the other agents that this one leaves in the middle of the round, before its workers end. Not answered.
    Abandon,
    /// Start the workers of [`super::Supervisor::group`].
    Start {
        /// Number of the start; 0 is the first.
        attempt: u64,
    },
    /// Send this signal to all descendants of the agent, and to those that appear while the group is being stopped;
    /// once to each process.
    Signal {
        /// Signal number.
        signal: i32,
    },
    /// Name the processes that have outlived their workers; answered by [`WorkerEvent::Leftovers`], if there are any.
    NameLeftovers,
    /// Kill all descendants of the agent.
    Kill,
    /// Forward this signal to the workers.
    Pass {
        /// Signal number.
        signal: i32,
    },
    /// Report failed workers. No process of the group is alive any more, and the logs are complete.
    Report {
        /// The group of the workers.
        group: WorkerGroup,
        /// The failures in the order in which they happened, with two exceptions: workers that were killed, or crashed
        /// before the stop began, are first. Workers that crashed after it are last.
        failures: Vec<Failed>,
    },
    /// Pass the notice to the observers.
    Notify(Notice),
    /// The agent has ended: [`super::Supervisor::outcome`] says how.
    Over,
}
