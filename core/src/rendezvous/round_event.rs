//! What a node hears of its round while it is one of its members.

use crate::wire::native::Why;
use alloc::boxed::Box;
use core::fmt;

/// Something happened to a round, or to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundEvent {
    /// So many nodes wait for the next round: told when the first one comes, and with 0 when the last one goes.
    NodesWaiting {
        /// How many.
        nodes: u32,
    },
    /// Another member of the round died, or is gone although it was not done.
    PeerDied {
        /// The round.
        round: u64,
        /// Its rank among the nodes of the round.
        node_rank: u32,
        /// Its name.
        node: Box<str>,
        /// How that was noticed.
        why: Why,
    },
    /// The round is over: its keys can be changed no more.
    RoundOver {
        /// Which.
        round: u64,
        /// Why.
        why: Why,
    },
    /// The run is closed for good.
    RunClosed {
        /// By whom; empty when it was none of its nodes.
        by: Box<str>,
    },
    /// Another node has said that the job has failed, and why. The run is closed for good.
    JobFailed {
        /// What it said.
        message: Box<str>,
    },
    /// The next round was formed without this node, which may join like anybody else.
    Excluded {
        /// The round that was formed.
        round: u64,
    },
    /// Another process joined under this node's name: it must not come back.
    Replaced,
}

impl fmt::Display for RoundEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodesWaiting { nodes: 0 } => f.write_str("no nodes wait any more"),
            Self::NodesWaiting { nodes } => write!(f, "{nodes} nodes wait for the next round"),
            Self::PeerDied { round, node_rank, node, why: why @ (Why::Refused | Why::GaveUp) } => {
                write!(f, "node {node} (rank {node_rank} of round {round}) is gone: {why}")
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
