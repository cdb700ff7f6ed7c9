//! Events of a round, as one of its members receives them.

use crate::error::OneLine;
use crate::prelude::*;
use crate::wire::native::Why;
use core::fmt::Write as _;

/// Something that happened to a round or to its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundEvent {
    /// The number of nodes that wait for the next round changed from or to 0: sent when the first node waits, and
    /// with 0 when the last one stops waiting.
    NodesWaiting {
        /// Number of waiting nodes.
        nodes: u32,
    },
    /// Another member of the round died, or left although it was not done.
    PeerDied {
        /// Number of the round.
        round: u64,
        /// The node's rank among the nodes of the round.
        node_rank: u32,
        /// The node's name.
        node: Box<str>,
        /// How the server noticed.
        why: Why,
    },
    /// The round is over: its keys can no longer be changed.
    RoundOver {
        /// Number of the round.
        round: u64,
        /// Why it is over.
        why: Why,
    },
    /// The run is closed for good.
    RunClosed {
        /// Name of the node that closed it; empty when it was none of the run's nodes.
        by: Box<str>,
    },
    /// Another node has reported that the job has failed. The run is closed for good.
    JobFailed {
        /// The reason that it reported.
        message: Box<str>,
    },
    /// The next round was formed without this node, which may join like any other node.
    Excluded {
        /// Number of the round that was formed.
        round: u64,
    },
    /// Another process joined under this node's name: this node must not rejoin.
    Replaced,
}

impl fmt::Display for RoundEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names and messages come from other nodes.
        let f = &mut OneLine(f);
        match self {
            Self::NodesWaiting { nodes: 0 } => f.write_str("no nodes wait any more"),
            Self::NodesWaiting { nodes } => write!(f, "{nodes} nodes wait for the next round"),
            Self::PeerDied { round, node_rank, node, why: why @ (Why::Refused | Why::GaveUp) } => {
                write!(f, "node {node} (rank {node_rank} of round {round}) was lost: {why}")
            }
            Self::PeerDied { round, node_rank, node, why: why @ Why::Stopped } => {
                write!(f, "node {node} (rank {node_rank} of round {round}) left: {why}")
            }
            Self::PeerDied { round, node_rank, node, why } => {
                write!(f, "node {node} (rank {node_rank} of round {round}) died: {why}")
            }
            Self::RoundOver { round, why } => write!(f, "round {round} is over: {why}"),
            Self::RunClosed { by } if by.is_empty() => f.write_str("the run was closed"),
            Self::RunClosed { by } => write!(f, "the run was closed by {by}"),
            Self::JobFailed { message } => f.write_str(message),
            Self::Excluded { round } => write!(f, "round {round} was formed without this node"),
            Self::Replaced => f.write_str("another process joined under this node's name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_nodes_are_called() {
        let died =
            RoundEvent::PeerDied { round: 1, node_rank: 2, node: "b\nforged".into(), why: Why::Heartbeat };
        assert_eq!(died.to_string(), r"node b\nforged (rank 2 of round 1) died: heartbeats were missed");
        assert_eq!(RoundEvent::RunClosed { by: "b\r".into() }.to_string(), r"the run was closed by b\r");
        assert_eq!(RoundEvent::JobFailed { message: "a\nb".into() }.to_string(), r"a\nb");
    }
}
