//! Events of a node, as its process reports them.

use rendezvous_core::rendezvous::participant;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::FaultCode;
use std::fmt;

/// Event of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim::elastic) enum NodeEvent {
    Seated,
    Standby,
    Formed(Slot),
    Refused(FaultCode),
    /// The run is closed.
    Closed,
    NotNeeded,
    NodesWaiting(u32),
    PeerDied {
        round: u64,
        node: String,
    },
    RoundOver(u64),
    Excluded(u64),
    Replaced,
    Left,
}

/// Round that a node got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim::elastic) struct Slot {
    pub(in crate::sim::elastic) round: u64,
    pub(in crate::sim::elastic) rank: u32,
    pub(in crate::sim::elastic) nodes: u32,
    pub(in crate::sim::elastic) rank_first: u64,
    pub(in crate::sim::elastic) world_size: u64,
    pub(in crate::sim::elastic) leader: Vec<u8>,
    /// With the slash before it.
    pub(in crate::sim::elastic) namespace: Vec<u8>,
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Formed(Slot { round, rank, nodes, .. }) => write!(f, "of round {round}: {rank} of {nodes}"),
            Self::PeerDied { round, node } => write!(f, "that {node} died in round {round}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl NodeEvent {
    pub(super) fn of(event: &participant::Event<'_>) -> Self {
        match *event {
            participant::Event::Seated => Self::Seated,
            participant::Event::Standby { .. } => Self::Standby,
            participant::Event::Formed(joined) => Self::Formed(Slot {
                round: joined.round,
                rank: joined.node_rank,
                nodes: joined.nodes,
                rank_first: joined.rank_first,
                world_size: joined.world_size,
                leader: joined.leader.to_vec(),
                namespace: joined.namespace.pieces().concat(),
            }),
            participant::Event::Refused(fault) => Self::Refused(fault.code),
            participant::Event::Closed { .. } | participant::Event::JobFailed { .. } => Self::Closed,
            participant::Event::NotNeeded => Self::NotNeeded,
            participant::Event::NodesWaiting { nodes } => Self::NodesWaiting(nodes),
            participant::Event::PeerDied { round, node, .. } => {
                Self::PeerDied { round, node: String::from_utf8_lossy(node).into_owned() }
            }
            participant::Event::RoundOver { round, .. } => Self::RoundOver(round),
            participant::Event::Excluded { round } => Self::Excluded(round),
            participant::Event::Replaced { .. } => Self::Replaced,
            participant::Event::Left => Self::Left,
        }
    }
}

/// Returns the event as the driver passes it to an agent, if it is one of a round.
pub(super) fn round_event(event: &participant::Event<'_>) -> Option<RoundEvent> {
    use participant::Event as E;
    let text = |bytes: &[u8]| -> Box<str> { String::from_utf8_lossy(bytes).into() };
    Some(match *event {
        E::NodesWaiting { nodes } => RoundEvent::NodesWaiting { nodes },
        E::PeerDied { round, node_rank, node, why } => {
            RoundEvent::PeerDied { round, node_rank, node: text(node), why }
        }
        E::RoundOver { round, why } => RoundEvent::RoundOver { round, why },
        E::Closed { by } => RoundEvent::RunClosed { by: text(by) },
        E::JobFailed { message } => RoundEvent::JobFailed { message: text(message) },
        E::Excluded { round } => RoundEvent::Excluded { round },
        E::Replaced { .. } => RoundEvent::Replaced,
        E::Seated | E::Standby { .. } | E::Formed(_) | E::Refused(_) | E::NotNeeded | E::Left => return None,
    })
}
