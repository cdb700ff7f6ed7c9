//! A round: its ranks, its keys, and what became of its nodes.

use super::node::NodeName;
use super::{ParticipantId, RunId};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Names the keys of one round. The owner of the service makes a prefix of it, which differs from those of all other
/// rounds and of all other servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Of this run.
    pub run_id: RunId,
    /// Of this round; 0 is the first.
    pub round: u64,
}

/// What one node is told of its round: as much for ten nodes as for ten thousand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Whose keys are the round's.
    pub namespace: Namespace,
    /// The node's rank among the nodes.
    pub rank: u32,
    /// The number of nodes.
    pub world_size: u32,
    /// The global rank of the node's first worker: the workers of all nodes with a lower rank.
    pub worker_offset: u64,
    /// The number of workers of all nodes.
    pub worker_count: u64,
    /// The node with rank 0.
    pub rank_zero: Arc<NodeName>,
    /// Where that one is reached.
    pub rank_zero_address: Arc<[u8]>,
}

/// Why a participant is in its round no more, and not because it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndReason {
    /// Its connection ended: its process died.
    ConnectionEnded,
    /// Its host fell silent.
    HostSilent,
    /// Its process sends no heartbeats.
    HeartbeatsMissed,
    /// It reads nothing of what it is sent.
    Stalled,
    /// It broke the protocol.
    ProtocolBroken,
    /// Another participant joined under its name.
    Replaced,
    /// It wanted another round of a closed run.
    Refused,
    /// It wanted another round, and left or ran out of time before there was one.
    GaveUp,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionEnded => "its connection ended",
            Self::HostSilent => "its host fell silent",
            Self::HeartbeatsMissed => "its heartbeats stopped",
            Self::Stalled => "it stopped reading",
            Self::ProtocolBroken => "it broke the protocol",
            Self::Replaced => "another process joined under its name",
            Self::Refused => "it wanted another round, and the run is closed",
            Self::GaveUp => "it wanted another round, and gave that up",
        })
    }
}

/// What became of a node of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// In the round; or, when it is over, not back yet.
    Present,
    /// Came back for the next one.
    Back,
    /// Left.
    Left,
    /// Died, or was replaced.
    Ended(EndReason),
    /// Came back and gave up, before a next round was formed.
    GaveUp,
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => write!(f, "has not come back"),
            Self::Back => write!(f, "came back"),
            Self::Left => write!(f, "left"),
            Self::Ended(why) => write!(f, "is gone: {why}"),
            Self::GaveUp => write!(f, "came back and gave up"),
        }
    }
}

/// A node of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundMember {
    /// Its name.
    pub node: Arc<NodeName>,
    /// Where it is reached.
    pub address: Arc<[u8]>,
    /// Its session.
    pub participant: ParticipantId,
    /// Its workers.
    pub local_world_size: u32,
    /// The global rank of the first of them.
    pub worker_offset: u64,
    /// What became of it.
    pub member_state: MemberState,
}

/// A node that has come for a round that is still to be formed.
#[derive(Clone, Copy, Debug)]
pub struct WaitingNode<'a> {
    /// Its name.
    pub node: &'a NodeName,
    /// Where it is reached.
    pub address: &'a [u8],
    /// Its workers.
    pub local_world_size: u32,
}

/// The last round of a run, live or over.
#[derive(Debug)]
pub(super) struct RoundRecord {
    pub(super) round: u64,
    /// By rank.
    pub(super) members: Vec<RoundMember>,
    /// How many left the round while it was live.
    pub(super) finished: u32,
}

impl RoundRecord {
    /// What the node with this rank is told.
    pub(super) fn summary_for(&self, run_id: &RunId, rank: u32) -> Option<Round> {
        let member = self.members.get(usize::try_from(rank).ok()?)?;
        let last = self.members.last()?;
        Some(Round {
            namespace: Namespace { run_id: run_id.clone(), round: self.round },
            rank,
            world_size: u32::try_from(self.members.len()).ok()?,
            worker_offset: member.worker_offset,
            worker_count: last.worker_offset + u64::from(last.local_world_size),
            rank_zero: self.members.first()?.node.clone(),
            rank_zero_address: self.members.first()?.address.clone(),
        })
    }

    /// The nodes of the round that did not come back for the next.
    pub(super) fn missing(&self) -> impl Iterator<Item = &RoundMember> {
        self.members.iter().filter(|member| member.member_state != MemberState::Back)
    }
}
