//! Inputs and outputs of the service.

use super::node::NodeName;
use super::policy::{Action, Reason};
use super::round::{MemberState, Namespace, Round};
use super::settings::{RunSettings, SettingsDifference, SettingsError};
use super::{ParticipantId, RunId};
use crate::error::Span;
use crate::prelude::*;
use crate::wire::native::Why;

/// A node's request to be in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The run's id.
    pub run_id: Box<str>,
    /// The node's name.
    pub node: NodeName,
    /// Address at which other nodes reach it, passed on as given and never looked up.
    pub address: Arc<[u8]>,
    /// Number of its workers; at least one.
    pub local_world_size: u32,
    /// Properties of the node by name, for example its place in the network.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The rank it asks for, for [`super::policy::RankOrder::NodeRank`].
    pub node_rank: Option<u32>,
    /// Time that it waits for a round. The time as a spare does not count.
    pub join_timeout: Duration,
    /// The settings, on which all nodes of the run must agree.
    pub settings: RunSettings,
    /// The lowest number that its round may have, at most [`super::ROUND_MIN_MAX`]. A node that was in rounds of a
    /// server before its restart knows higher numbers than this server.
    pub round_min: u64,
}

/// Input of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A node asks to be in the next round; a node of the live round rejoins this way.
    Join {
        /// Its session.
        participant: ParticipantId,
        /// Its request.
        join: Join,
    },
    /// A node asks to be a spare: it enters a round only in place of a missing node, and never interrupts a live
    /// round.
    Standby {
        /// Its session.
        participant: ParticipantId,
        /// Its request.
        join: Join,
    },
    /// A node is done, or withdraws its join. The run goes on.
    Leave {
        /// Its session.
        participant: ParticipantId,
    },
    /// No node may join the run any more. The live round goes on.
    Close {
        /// The session that closes the run; it need not be in the run.
        participant: ParticipantId,
        /// The run's id.
        run_id: Box<str>,
    },
    /// The job has failed: the run is closed, and its nodes are notified with the message.
    Fail {
        /// The session that reports the failure; it need not be in the run.
        participant: ParticipantId,
        /// The run's id.
        run_id: Box<str>,
        /// Why the job failed.
        message: Box<str>,
    },
    /// A participant's session has ended. One that is unknown was in no run.
    Ended {
        /// The session.
        participant: ParticipantId,
        /// Why it ended.
        why: Why,
    },
    /// Time has passed. The run that is due first is updated: to be repeated until
    /// [`Rendezvous::poll_timeout`](super::Rendezvous::poll_timeout) is later.
    Tick,
}

/// Work for the owner of the service, to be done in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The keys of a new round are in use from now on. The round starts without keys, whatever was written under its
    /// prefix before.
    RoundOpened(Namespace),
    /// The round is over: from now on nothing may be written under its prefix. Sent once for each round.
    Fence(Namespace),
    /// Delete the keys of a round that is two rounds old, or whose run is forgotten. The fence stays.
    Delete(Namespace),
    /// A run was forgotten to make room for another. The fences of its rounds may be removed: no later round of this
    /// service has one of their numbers, not even in a run of the same name.
    Forgotten(RunId),
    /// Send an event to a participant.
    Notify {
        /// The receiver.
        participant: ParticipantId,
        /// The event.
        event: Event,
    },
    /// Log a decision.
    Decided {
        /// The run's id.
        run_id: RunId,
        /// Number of the live round or, if none is live, of the next one.
        round: u64,
        /// What was done.
        action: Action,
        /// Why it was done.
        reason: Reason,
    },
}

/// An event for a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has a slot in the next round.
    Seated,
    /// It is a spare.
    Standby {
        /// Number of spares before it.
        ahead: u32,
    },
    /// The round is formed.
    RoundFormed(Round),
    /// Its join has failed; it is no longer in the run.
    JoinFailed(JoinFailure),
    /// The number of nodes that wait for the next round changed from or to 0: sent when the first node waits, and
    /// with 0 when the last one stops waiting.
    NodesWaiting {
        /// Number of waiting nodes.
        nodes: u32,
    },
    /// Another node of its round has died or left with its work undone.
    NodeLost(Arc<Loss>),
    /// Its round is over: nothing can be written to its keys any more.
    RoundEnded {
        /// Number of the round.
        round: u64,
        /// Why it is over.
        reason: Reason,
    },
    /// The next round was formed without it.
    Excluded {
        /// Number of the round that was formed.
        round: u64,
    },
    /// The run was closed.
    RunClosed {
        /// The node that closed it, if it was one of the run.
        by: Option<Arc<NodeName>>,
    },
    /// The job has failed. The run is closed, which was reported before.
    JobFailed {
        /// Why the job failed.
        message: Arc<str>,
    },
    /// Another participant joined under its name: it must not rejoin.
    Replaced {
        /// The other participant.
        by: ParticipantId,
    },
}

/// A node that its round has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Number of the round.
    pub round: u64,
    /// The node's name.
    pub node: Arc<NodeName>,
    /// Its rank in that round.
    pub rank: u32,
    /// Why it was lost.
    pub why: Why,
}

/// Why a join failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinFailure {
    /// It timed out.
    #[error("{shortfall}")]
    TimedOut {
        /// Time that it waited.
        waited: Duration,
        /// The nodes that had joined and those missing; shared by all joins that timed out at the same moment.
        shortfall: Arc<Shortfall>,
    },
    /// The run was closed.
    #[error("the rendezvous '{run_id}' is closed{}", By(.by.as_deref(), .failure.as_deref()))]
    Closed {
        /// The run's id.
        run_id: RunId,
        /// The node that closed it, if it was one of the run.
        by: Option<Arc<NodeName>>,
        /// Why the job failed, if a node reported that.
        failure: Option<Arc<str>>,
    },
    /// The run was closed while the node was a spare: it was not needed, and that is no failure.
    #[error("The rendezvous '{run_id}' is closed, terminating pending rendezvous.")]
    GracefulExit {
        /// The run's id.
        run_id: RunId,
    },
}

/// Largest number of names in one message; further nodes are only counted.
pub(super) const NAMES_MAX: usize = 16;

/// Why no round was formed in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Number of the round that was not formed.
    pub round: u64,
    /// Number of nodes that it needs.
    pub minimum: u32,
    /// Number of the live round, if there is one: it had to end first.
    pub live_round: Option<u64>,
    /// Number of nodes that had joined.
    pub there_count: u32,
    /// The first of those nodes.
    pub there: Vec<Arc<NodeName>>,
    /// Number of nodes of the last round that had not rejoined. Of more than 4,096 that were gone, the others count even if
    /// they were back in another session.
    pub missing_count: u32,
    /// The first of those nodes, without those whose names are forgotten, and their states.
    pub missing: Vec<(Arc<NodeName>, MemberState)>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {} was not formed: ", self.round)?;
        write!(f, "{} of at least {} nodes were there", self.there_count, self.minimum)?;
        let more = |f: &mut fmt::Formatter<'_>, count: u32, named: usize| {
            let more = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(named);
            if more == 0 { Ok(()) } else { write!(f, " and {more} more") }
        };
        for (at, node) in self.there.iter().enumerate() {
            write!(f, "{}{node}", if at == 0 { " (" } else { ", " })?;
        }
        more(f, self.there_count, self.there.len())?;
        f.write_str(if self.there.is_empty() { "" } else { ")" })?;
        if let Some(round) = self.live_round {
            write!(f, ", and round {round} was still live")?;
        }
        if self.missing_count > 0 {
            f.write_str("; missing of the last round: ")?;
        }
        if self.missing_count > 0 && self.missing.is_empty() {
            return write!(f, "{} no longer known by name", self.missing_count);
        }
        for (at, (node, member_state)) in self.missing.iter().enumerate() {
            write!(f, "{}{node} ({member_state})", if at == 0 { "" } else { ", " })?;
        }
        more(f, self.missing_count, self.missing.len())
    }
}

/// Error of a request to the service. The state has not changed, except after [`InputError::Closed`]: a node of the
/// live round that asked to rejoin is no longer in the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The settings differ from those of the run's first node; the later node is refused.
    #[error(
        "node {offered_by} has {} {}, but the run '{run_id}' was begun by node {set_by} with {}",
        .difference.what, .difference.offered, .difference.in_force
    )]
    SettingsDiffer {
        /// The run's id.
        run_id: RunId,
        /// The node that began the run.
        set_by: Arc<NodeName>,
        /// The node that is refused.
        offered_by: Box<NodeName>,
        /// The first setting that differs.
        difference: Box<SettingsDifference>,
    },
    /// The run is closed for good.
    #[error("the rendezvous '{run_id}' is closed{}", By(.by.as_deref(), .failure.as_deref()))]
    Closed {
        /// The run's id.
        run_id: RunId,
        /// The node that closed it, if it was one of the run.
        by: Option<Arc<NodeName>>,
        /// Why the job failed, if a node reported that.
        failure: Option<Arc<str>>,
    },
    /// The participant already waits for a round.
    #[error("node {node} has asked to join the run '{run_id}' and is not yet answered")]
    JoinPending {
        /// The run's id.
        run_id: RunId,
        /// The node's name.
        node: Arc<NodeName>,
    },
    /// A participant may be in one run only, under one name.
    #[error(
        "{participant} is node {node} of the run '{run_id}' and cannot join under another name or another run"
    )]
    OtherIdentity {
        /// The participant.
        participant: ParticipantId,
        /// Its run.
        run_id: RunId,
        /// Its name.
        node: Arc<NodeName>,
    },
    /// The participant is in no run: it never joined, left, timed out, was excluded, or was replaced.
    #[error("{0} is in no run")]
    UnknownParticipant(ParticipantId),
    /// The host failed repeatedly.
    #[error(
        "host {host} failed {failures} times in a row and is kept out of the run '{run_id}' for another {}",
        Span(*remaining)
    )]
    CoolingDown {
        /// The run's id.
        run_id: RunId,
        /// The host.
        host: Box<str>,
        /// Number of consecutive failures.
        failures: u32,
        /// Time until it may rejoin.
        remaining: Duration,
    },
    /// A size is over its limit.
    #[error("{what}: {given} is over the limit of {limit}")]
    LimitExceeded {
        /// What is too large, with its unit.
        what: &'static str,
        /// The given size.
        given: usize,
        /// The limit.
        limit: usize,
    },
}

/// Text of the node that closed a run, and of the reason.
struct By<'a>(Option<&'a NodeName>, Option<&'a str>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |node| write!(f, " (by node {node})"))?;
        self.1.map_or(Ok(()), |failure| write!(f, ": {failure}"))
    }
}
