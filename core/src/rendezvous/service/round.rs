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

impl MemberState {
    /// Whether the session that was in the round is no longer in the run. The node may have joined again in another one.
    pub(super) const fn is_gone(self) -> bool {
        !matches!(self, Self::Present | Self::Back)
    }
}

/// A node of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundMember {
    /// Its rank among the nodes.
    pub rank: u32,
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

impl RoundMember {
    /// Returns the bytes that the round keeps for the node when it has left: its entry, its name and its address, and
    /// the allocator's share.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<NodeName>() + 96 + self.node.host().len() + self.address.len()
    }
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

/// Most nodes that are looked up to find those that are missing, each for a unit of work.
const LOOKUPS_MAX: u64 = 4096;
/// Nodes of a round that one unit of work passes over.
const MEMBERS_PER_UNIT: u64 = 64;

/// The last round of a run, live or over.
#[derive(Debug)]
pub struct RoundRecord {
    /// Its number.
    pub round: u64,
    /// Number of its nodes.
    pub world_size: u32,
    /// The nodes by rank, without those that are forgotten.
    pub members: Vec<RoundMember>,
    /// Number of nodes that left the round while it was live.
    pub(super) finished: u32,
    /// Bytes of the nodes that are gone.
    pub(super) gone_bytes: usize,
}

impl RoundRecord {
    /// Creates a round of all these nodes, which are sorted by rank.
    pub(super) fn new(round: u64, members: Vec<RoundMember>) -> Self {
        let world_size = u32::try_from(members.len()).unwrap_or(u32::MAX);
        Self { round, world_size, members, finished: 0, gone_bytes: 0 }
    }

    /// Returns the round as this node is notified of it when it is formed.
    pub(super) fn summary_for(&self, run_id: &RunId, member: &RoundMember) -> Option<Round> {
        let last = self.members.last()?;
        Some(Round {
            namespace: Namespace { run_id: run_id.clone(), round: self.round },
            rank: member.rank,
            world_size: self.world_size,
            worker_offset: member.worker_offset,
            worker_count: last.worker_offset + u64::from(last.local_world_size),
            rank_zero: self.members.first()?.node.clone(),
            rank_zero_address: self.members.first()?.address.clone(),
        })
    }

    /// Changes the state of the node with this rank, unless the node is forgotten.
    pub(super) fn set_state(&mut self, rank: u32, member_state: MemberState) {
        let Ok(at) = self.members.binary_search_by_key(&rank, |member| member.rank) else { return };
        let member = &mut self.members[at];
        let was_gone = core::mem::replace(&mut member.member_state, member_state).is_gone();
        match (was_gone, member_state.is_gone()) {
            (false, true) => self.gone_bytes += member.bytes(),
            (true, false) => self.gone_bytes -= member.bytes(),
            _ => {}
        }
    }

    /// Forgets the nodes that are gone.
    pub(super) fn forget_gone(&mut self) {
        self.members.retain(|member| !member.member_state.is_gone());
        self.members.shrink_to(self.members.len() * 2);
        self.gone_bytes = 0;
    }

    /// Returns the number of nodes that are missing for the next round, the first `count_max` of those that are not
    /// forgotten, and the work of finding them. `has_node`: whether a node is in the run. It is asked about the first 4,096
    /// nodes that are gone. The others are counted as missing and not returned.
    pub(super) fn missing(
        &self,
        count_max: usize,
        has_node: impl Fn(&NodeName) -> bool,
    ) -> (u32, Vec<&RoundMember>, u64) {
        let (mut count, mut missing, mut lookups) = (self.world_size, Vec::new(), 0);
        for member in &self.members {
            let state = member.member_state;
            if state.is_gone() {
                if lookups == LOOKUPS_MAX {
                    continue;
                }
                lookups += 1;
            }
            if state == MemberState::Back || state.is_gone() && has_node(&member.node) {
                count = count.saturating_sub(1);
            } else if missing.len() < count_max {
                missing.push(member);
            }
        }
        (count, missing, lookups + self.members.len() as u64 / MEMBERS_PER_UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn the_first_4096_nodes_that_are_gone_are_looked_up_and_the_others_count_as_missing() {
        let gone = |rank: u32| RoundMember {
            rank,
            node: Arc::new(NodeName::plain(&rank.to_string())),
            address: Arc::from(&b""[..]),
            participant: ParticipantId(rank.into()),
            local_world_size: 1,
            worker_offset: rank.into(),
            member_state: MemberState::Ended(Why::HostSilent),
        };
        let record = RoundRecord::new(0, (0..5000).map(gone).collect());
        let asked = Cell::new(0);
        let (count, missing, work) = record.missing(3, |_| {
            asked.set(asked.get() + 1);
            true
        });
        assert_eq!((count, missing.len(), asked.get()), (904, 0, 4096));
        assert!(work >= 4096, "{work}");
        let (count, missing, _) = record.missing(3, |_| false);
        assert_eq!((count, missing.len()), (5000, 3));
    }
}
