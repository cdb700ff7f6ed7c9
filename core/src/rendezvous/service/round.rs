//! A round: its ranks, its keys, and the states of its nodes.

use super::node::NodeName;
use super::{ParticipantId, RunId};
use crate::prelude::*;
use crate::wire::native::Why;

/// Identifies the keys of one round. The owner of the service derives a key prefix from it, which differs from those
/// of all other rounds and of all other servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The run's id.
    pub run_id: RunId,
    /// Number of the round; 0 is the first.
    pub round: u64,
}

/// A round as one node is notified of it. Its size does not depend on the number of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Identifies the keys of the round.
    pub namespace: Namespace,
    /// The node's rank among the nodes.
    pub rank: u32,
    /// Number of nodes.
    pub world_size: u32,
    /// Global rank of the node's first worker, that is, the number of workers of all nodes with a lower rank.
    pub worker_offset: u64,
    /// Number of workers of all nodes.
    pub worker_count: u64,
    /// Name of the node with rank 0.
    pub rank_zero: Arc<NodeName>,
    /// Address of the node with rank 0.
    pub rank_zero_address: Arc<[u8]>,
}

/// State of a node of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberState {
    /// In the round; or, when the round is over, not rejoined yet.
    #[error("has not rejoined")]
    Present,
    /// Rejoined for the next round.
    #[error("rejoined")]
    Back,
    /// Left.
    #[error("left")]
    Left,
    /// Died, or was replaced.
    #[error("was lost: {0}")]
    Ended(Why),
    /// Rejoined, and gave up before the next round was formed.
    #[error("rejoined and gave up")]
    GaveUp,
}

/// A node of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundMember {
    /// Its name.
    pub node: Arc<NodeName>,
    /// Its address.
    pub address: Arc<[u8]>,
    /// Its session.
    pub participant: ParticipantId,
    /// Number of its workers.
    pub local_world_size: u32,
    /// Global rank of its first worker.
    pub worker_offset: u64,
    /// Its state.
    pub member_state: MemberState,
}

/// A node that has joined for a round that is still to be formed.
#[derive(Clone, Copy, Debug)]
pub struct WaitingNode<'a> {
    /// Its name.
    pub node: &'a NodeName,
    /// Its address.
    pub address: &'a [u8],
    /// Number of its workers.
    pub local_world_size: u32,
}

/// The last round of a run, live or over.
#[derive(Debug)]
pub(super) struct RoundRecord {
    pub(super) round: u64,
    /// Sorted by rank.
    pub(super) members: Vec<RoundMember>,
    /// Number of nodes that left the round while it was live.
    pub(super) finished: u32,
}

impl RoundRecord {
    /// Returns the round as the node with this rank is notified of it.
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

    /// Iterates over the nodes of the round that have not rejoined for the next.
    pub(super) fn missing(&self) -> impl Iterator<Item = &RoundMember> {
        self.members.iter().filter(|member| member.member_state != MemberState::Back)
    }
}
