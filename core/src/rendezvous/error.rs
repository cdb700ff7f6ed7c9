//! Errors of a rendezvous, in the kinds that PyTorch distinguishes.

use crate::prelude::*;
use crate::time::Seconds;
use core::error::Error;

/// Kind of a [`RendezvousError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RendezvousErrorKind {
    /// The rendezvous is closed.
    Closed,
    /// An operation passed its deadline.
    Timeout,
    /// The backend cannot be reached.
    Connection,
    /// The shared state cannot be read.
    State,
    /// A spare node is dismissed, because it is no longer needed.
    GracefulExit,
    /// Another session joined under the node's name.
    Replaced,
}

/// The service through which the nodes of a rendezvous meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "named as they are")]
pub enum Backing {
    #[error("the rendezvous server")]
    Server,
    #[error("node 0, which hosts the store,")]
    NodeZero,
}

/// The cause of a [`RendezvousError`], from any layer.
pub type Inner = Box<dyn Error + Send + Sync>;

/// Error of a rendezvous. The text of a connection error contains that of its [`Error::source`].
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The rendezvous is closed, for good.
    #[error("The rendezvous '{run_id}' is closed.")]
    Closed {
        /// The run's id.
        run_id: Box<str>,
    },
    /// Some nodes did not join a round in time.
    #[error(
        "The rendezvous '{run_id}' timed out: {arrived} of {nodes} nodes joined round {round} within {} s; missing {}",
        Seconds(*timeout),
        Ranks(missing, nodes - arrived)
    )]
    Incomplete {
        /// The run's id.
        run_id: Box<str>,
        /// Number of the round; 0 is the first.
        round: u64,
        /// Number of nodes that joined.
        arrived: u64,
        /// Number of nodes of the run.
        nodes: u64,
        /// Ranks of nodes that did not join, or of some of them.
        missing: Vec<u64>,
        /// Time that the nodes had.
        timeout: Duration,
    },
    /// The backend cannot be reached.
    #[error("The connection to {backing} has failed: {inner}")]
    Connection {
        /// The service that cannot be reached.
        backing: Backing,
        /// Error of the connection.
        #[source]
        inner: Inner,
    },
    /// A spare node is dismissed: the rendezvous has closed, and that is no failure.
    #[error("The rendezvous '{run_id}' is closed, terminating pending rendezvous.")]
    GracefulExit {
        /// The run's id.
        run_id: Box<str>,
    },
    /// Another session joined under the node's name. This node must not rejoin, or the two would replace each other
    /// forever.
    #[error(
        "The rendezvous '{run_id}' refuses the node '{node}': another session joined under this node's name. Each node \
         needs a name of its own (option 'node')."
    )]
    Replaced {
        /// The run's id.
        run_id: Box<str>,
        /// The name that both sessions have.
        node: Box<str>,
    },
    /// An error of one of the kinds, with the message of a backend outside this library.
    #[error("{message}")]
    Refused {
        /// Kind of the error.
        kind: RendezvousErrorKind,
        /// The backend's message.
        message: Box<str>,
    },
}

/// The known ranks of missing nodes, and the number of missing nodes.
struct Ranks<'a>(&'a [u64], u64);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            // Nodes of PyTorch check in without their ranks.
            missing if missing < self.0.len() as u64 => write!(f, "{missing} of the node ranks ")?,
            1 => f.write_str("node rank: ")?,
            _ => f.write_str("node ranks: ")?,
        }
        for (index, rank) in self.0.iter().enumerate() {
            write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
        }
        match self.1.saturating_sub(self.0.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl RendezvousError {
    /// Returns the kind of the error.
    pub const fn kind(&self) -> RendezvousErrorKind {
        match self {
            Self::Closed { .. } => RendezvousErrorKind::Closed,
            Self::Incomplete { .. } => RendezvousErrorKind::Timeout,
            Self::Connection { .. } => RendezvousErrorKind::Connection,
            Self::GracefulExit { .. } => RendezvousErrorKind::GracefulExit,
            Self::Replaced { .. } => RendezvousErrorKind::Replaced,
            Self::Refused { kind, .. } => *kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_kind_has_its_text() {
        let run_id = || Box::from("job-7");
        let connection =
            |backing| RendezvousError::Connection { backing, inner: "no route".to_string().into() };
        let timeout = Duration::from_millis(2500);
        for (error, kind, text, inner) in [
            (
                RendezvousError::Closed { run_id: run_id() },
                RendezvousErrorKind::Closed,
                "The rendezvous 'job-7' is closed.",
                None,
            ),
            (
                RendezvousError::Incomplete {
                    run_id: run_id(),
                    round: 1,
                    arrived: 1,
                    nodes: 4,
                    missing: [1, 3].into(),
                    timeout,
                },
                RendezvousErrorKind::Timeout,
                "The rendezvous 'job-7' timed out: 1 of 4 nodes joined round 1 within 2.5 s; missing node ranks: 1, 3 and 1 more",
                None,
            ),
            (
                RendezvousError::Incomplete {
                    run_id: run_id(),
                    round: 0,
                    arrived: 2,
                    nodes: 3,
                    missing: [1, 2].into(),
                    timeout,
                },
                RendezvousErrorKind::Timeout,
                "The rendezvous 'job-7' timed out: 2 of 3 nodes joined round 0 within 2.5 s; missing 1 of the node ranks 1, 2",
                None,
            ),
            (
                connection(Backing::Server),
                RendezvousErrorKind::Connection,
                "The connection to the rendezvous server has failed: no route",
                Some("no route"),
            ),
            (
                connection(Backing::NodeZero),
                RendezvousErrorKind::Connection,
                "The connection to node 0, which hosts the store, has failed: no route",
                Some("no route"),
            ),
            (
                RendezvousError::GracefulExit { run_id: run_id() },
                RendezvousErrorKind::GracefulExit,
                "The rendezvous 'job-7' is closed, terminating pending rendezvous.",
                None,
            ),
            (
                RendezvousError::Replaced { run_id: run_id(), node: "n0".into() },
                RendezvousErrorKind::Replaced,
                "The rendezvous 'job-7' refuses the node 'n0': another session joined under this node's name. Each node \
                 needs a name of its own (option 'node').",
                None,
            ),
            (
                RendezvousError::Refused { kind: RendezvousErrorKind::Closed, message: "no more".into() },
                RendezvousErrorKind::Closed,
                "no more",
                None,
            ),
        ] {
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
            assert_eq!(error.source().map(ToString::to_string).as_deref(), inner);
        }
    }
}
