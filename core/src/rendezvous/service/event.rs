//! What goes into the service and what comes out of it.

use super::node::NodeName;
use super::policy::{Action, Reason};
use super::round::{EndReason, MemberState, Namespace, Round};
use super::settings::{RunSettings, SettingsDifference, SettingsError};
use super::{ParticipantId, RunId};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// A node that wants to be in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Which run.
    pub run_id: Box<str>,
    /// Who.
    pub node: NodeName,
    /// Where others reach it; as it is given, and never looked up.
    pub address: Arc<[u8]>,
    /// Its workers; at least one.
    pub local_world_size: u32,
    /// What is known of the node, by name: for example where in the network it stands.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The rank it asks for, for [`super::policy::RankOrder::NodeRank`].
    pub node_rank: Option<u32>,
    /// How long it waits for a round. While it stands by, no time counts.
    pub join_timeout: Duration,
    /// What all nodes of the run must agree on.
    pub settings: RunSettings,
    /// The lowest number that its round may have; more than [`super::ROUND_MIN_MAX`] counts as that. A node from a server that
    /// was restarted has been in rounds that this one does not know of.
    pub round_min: u64,
}

/// What happened to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A node wants to be in the next round; one that is in the live round comes back with it.
    Join {
        /// Its session.
        participant: ParticipantId,
        /// What it says.
        join: Join,
    },
    /// A node wants to be a spare: it enters a round only in place of a missing node, and disturbs nobody before.
    Standby {
        /// Its session.
        participant: ParticipantId,
        /// What it says.
        join: Join,
    },
    /// A node is done, or gives up its join. The run goes on.
    Leave {
        /// Its session.
        participant: ParticipantId,
    },
    /// Nobody is to join the run any more. The live round goes on.
    Close {
        /// Whose session says so; it need not be in the run.
        participant: ParticipantId,
        /// Which run.
        run_id: Box<str>,
    },
    /// The job has failed: the run is closed, and its nodes are told why.
    Fail {
        /// Whose session says so; it need not be in the run.
        participant: ParticipantId,
        /// Which run.
        run_id: Box<str>,
        /// Why.
        message: Box<str>,
    },
    /// A participant is no more. One that is unknown was in no run.
    Ended {
        /// Its session.
        participant: ParticipantId,
        /// Why.
        why: EndReason,
    },
    /// Time has passed.
    Tick,
}

/// What the owner of the service has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The keys of a new round are in use from now on: there are none yet, whatever was written there before.
    RoundOpened(Namespace),
    /// From now on, nothing may be written beneath the keys of a round: it is over. Once for each round.
    Fence(Namespace),
    /// The keys of a round that is two rounds old, or whose run is forgotten, are to be deleted. The fence stays.
    Delete(Namespace),
    /// A run was forgotten to make room for another. The fences of its rounds may go: no round of this service has one of
    /// their numbers again, not even in a run of the same name.
    Forgotten(RunId),
    /// To be told to a participant.
    Notify {
        /// To whom.
        participant: ParticipantId,
        /// What.
        event: Event,
    },
    /// For the log.
    Decided {
        /// In which run.
        run_id: RunId,
        /// The live round or else the next one.
        round: u64,
        /// What was done.
        action: Action,
        /// Why.
        reason: Reason,
    },
}

/// What a participant is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has a seat in the next round.
    Seated,
    /// It stands by, and this many before it.
    Standby {
        /// So many.
        ahead: u32,
    },
    /// The round is formed.
    RoundFormed(Round),
    /// Its join has failed; it is in the run no more.
    JoinFailed(JoinFailure),
    /// Nodes wait for the next round, or (0) do so no more. Told when the first comes and when the last goes.
    NodesWaiting {
        /// So many.
        nodes: u32,
    },
    /// Another node of its round is no more.
    NodeLost(Arc<Loss>),
    /// Its round is over: nothing can be written to its keys any more.
    RoundEnded {
        /// Which.
        round: u64,
        /// Why.
        reason: Reason,
    },
    /// The next round was formed without it.
    Excluded {
        /// The round that was formed.
        round: u64,
    },
    /// The run was closed, by this node if it was one of the run.
    RunClosed {
        /// By whom.
        by: Option<Arc<NodeName>>,
    },
    /// The job has failed. The run is closed, and that was told before.
    JobFailed {
        /// Why.
        message: Arc<str>,
    },
    /// Another participant joined under its name: it must not come back.
    Replaced {
        /// Who.
        by: ParticipantId,
    },
}

/// Who was lost, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// From which round.
    pub round: u64,
    /// Who.
    pub node: Arc<NodeName>,
    /// Its rank in that round.
    pub rank: u32,
    /// Why.
    pub why: EndReason,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (rank {} of round {}) is gone: {}", self.node, self.rank, self.round, self.why)
    }
}

/// Why a join came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinFailure {
    /// Its time was up.
    TimedOut {
        /// The time it had.
        waited: Duration,
        /// Who was there and who was not; shared by all whose time was up in the same moment.
        shortfall: Arc<Shortfall>,
    },
    /// The run was closed.
    Closed {
        /// Which run.
        run_id: RunId,
        /// By whom, if it was a node of the run.
        by: Option<Arc<NodeName>>,
        /// Why the job has failed, if somebody said that it has.
        failure: Option<Arc<str>>,
    },
    /// The run was closed while the node stood by: it was not needed, and nothing went wrong.
    GracefulExit {
        /// Which run.
        run_id: RunId,
    },
}

impl fmt::Display for JoinFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { waited, shortfall } => write!(f, "{shortfall} (waited {waited:?})"),
            Self::Closed { run_id, by, failure } => {
                write!(f, "the rendezvous '{run_id}' is closed{}", By(by.as_deref(), failure.as_deref()))
            }
            Self::GracefulExit { run_id } => {
                write!(f, "The rendezvous '{run_id}' is closed, terminating pending rendezvous.")
            }
        }
    }
}

/// Most names in one message; the others are counted.
pub(super) const NAMES_MAX: usize = 16;

/// Why no round was formed in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// In which run.
    pub run_id: RunId,
    /// The round that was not formed.
    pub round: u64,
    /// How many nodes it needs.
    pub minimum: u32,
    /// The round that is in the way, if one is live.
    pub live_round: Option<u64>,
    /// How many were there.
    pub there_count: u32,
    /// The first of those.
    pub there: Vec<Arc<NodeName>>,
    /// How many of the last round were not.
    pub missing_count: u32,
    /// The first of those, and what became of them.
    pub missing: Vec<(Arc<NodeName>, MemberState)>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {} of the rendezvous '{}' was not formed: ", self.round, self.run_id)?;
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
        for (at, (node, member_state)) in self.missing.iter().enumerate() {
            write!(
                f,
                "{}{node} ({member_state})",
                if at == 0 { "; missing of the last round: " } else { ", " }
            )?;
        }
        more(f, self.missing_count, self.missing.len())
    }
}

/// Why the service did not do what it was asked. Nothing has changed, but for [`InputError::Closed`]: a node of the live
/// round that wanted to come back is in the run no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The settings make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The nodes of one run disagree; the later one is refused.
    #[error(
        "node {offered_by} has {} {}, but the run '{run_id}' was begun by node {set_by} with {}",
        .difference.what, .difference.offered, .difference.in_force
    )]
    SettingsDiffer {
        /// Which run.
        run_id: RunId,
        /// Who began it.
        set_by: Arc<NodeName>,
        /// Who came later.
        offered_by: Box<NodeName>,
        /// In what they differ.
        difference: Box<SettingsDifference>,
    },
    /// The run is closed, which is final.
    #[error("the rendezvous '{run_id}' is closed{}", By(.by.as_deref(), .failure.as_deref()))]
    Closed {
        /// Which run.
        run_id: RunId,
        /// By whom, if it was a node of the run.
        by: Option<Arc<NodeName>>,
        /// Why the job has failed, if somebody said that it has.
        failure: Option<Arc<str>>,
    },
    /// The participant waits for a round already.
    #[error("node {node} has asked to join the run '{run_id}' and is not yet answered")]
    JoinPending {
        /// Which run.
        run_id: RunId,
        /// Who.
        node: Arc<NodeName>,
    },
    /// A participant is in one run, under one name.
    #[error(
        "{participant} is node {node} of the run '{run_id}' and cannot join under another name or another run"
    )]
    OtherIdentity {
        /// Who.
        participant: ParticipantId,
        /// Its run.
        run_id: RunId,
        /// Its name.
        node: Arc<NodeName>,
    },
    /// The participant is in no run: it never joined, left, timed out, was left behind, or was replaced.
    #[error("{0} is in no run")]
    UnknownParticipant(ParticipantId),
    /// The host failed again and again.
    #[error(
        "host {host} failed {failures} times in a row and is kept out of the run '{run_id}' for another {remaining:?}"
    )]
    CoolingDown {
        /// Which run.
        run_id: RunId,
        /// Which host.
        host: Box<str>,
        /// So many failures.
        failures: u32,
        /// When it may come back.
        remaining: Duration,
    },
    /// Something is over a limit.
    #[error("{what}: {given} is over the limit of {limit}")]
    LimitExceeded {
        /// What.
        what: &'static str,
        /// How much.
        given: usize,
        /// How much may be.
        limit: usize,
    },
}

/// By whom, and why.
struct By<'a>(Option<&'a NodeName>, Option<&'a str>);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |node| write!(f, " (by node {node})"))?;
        self.1.map_or(Ok(()), |failure| write!(f, ": {failure}"))
    }
}
