//! Calls of an agent to the rendezvous and to the round's store, and their answers.

use crate::reason::NoRound;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::prelude::*;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;

/// Call that the driver makes for the agent. A call may block; the agent cancels it with [`super::Output::Cancel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Join the next round; answered by [`Answer::Joined`].
    Join,
    /// Wait for the next event of the round, for any time; answered by [`Answer::Event`].
    NextEvent,
    /// Count the nodes that wait for the next round; answered by [`Answer::Number`].
    NodesWaiting,
    /// Close the run because the job has failed; answered by [`Answer::Done`].
    Fail {
        /// Message for the other agents.
        message: Box<str>,
    },
    /// Close the run; answered by [`Answer::Done`].
    Close,
    /// Leave the rendezvous; answered by [`Answer::Done`].
    Shutdown,
    /// Perform an operation in the store of the last round that was joined.
    Store {
        /// The operation.
        operation: StoreOperation,
        /// Time that it may take. 0: it does not wait for keys.
        timeout: Duration,
    },
    /// Serve a store for the workers, until [`super::Output::EndStore`]; answered by [`Answer::Serving`].
    ServeStore(ServeStore),
}

/// Store for the workers of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeStore {
    /// Host at which the workers look for it. `None`: the name of this host.
    pub host: Option<Box<str>>,
    /// Address to listen on, if the user has given one. Otherwise `host` if it is an address of this host, then this
    /// host's address on the way to the rendezvous if `host` leads there, otherwise every interface.
    pub listen_addr: Option<Box<str>>,
    /// Port to listen on; 0 for any free one.
    pub port: u16,
}

/// Operation in the round's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// Write these keys; answered by [`Answer::Done`].
    Set(Vec<(Box<str>, Vec<u8>)>),
    /// Write a key unless it exists; answered by [`Answer::Values`] with its value after that.
    SetIfAbsent(Box<str>, Vec<u8>),
    /// Append to a key; answered by [`Answer::Done`].
    Append(Box<str>, Vec<u8>),
    /// Add to a number; answered by [`Answer::Number`] with the sum.
    Add(Box<str>, i64),
    /// Wait until these keys exist; answered by [`Answer::Values`].
    Get(Vec<Box<str>>),
    /// Wait until a key exists; answered by [`Answer::Done`].
    Wait(Box<str>),
}

/// Answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// A round was joined.
    Joined(JoinedRound),
    /// The next event of the round; `None` if there was none for a while.
    Event(Option<RoundEvent>),
    /// A number.
    Number(i64),
    /// The values of the keys, in their order.
    Values(Vec<Vec<u8>>),
    /// The store for the workers is served at this address.
    Serving(RendezvousStoreInfo),
}

/// Failure of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// Kind of the failed call to a store or server, if it was one.
    pub kind: Option<ErrorKind>,
    /// For [`Request::Join`]: why there is no round.
    pub no_round: NoRound,
    /// For [`Request::NextEvent`]: whether the backend has no events at all.
    pub has_no_events: bool,
    /// Description of the failure.
    pub message: Box<str>,
}

impl CallFailure {
    /// Returns whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.kind == Some(ErrorKind::Cancelled)
    }
}

/// A round that the agent has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedRound {
    /// Rank of the agent among the agents of the round.
    pub rank: u64,
    /// Number of agents.
    pub world_size: u64,
    /// Number of the round, for backends that number their rounds.
    pub number: Option<u64>,
    /// Address of the store over which the nodes met, for the workers.
    pub store_info: RendezvousStoreInfo,
    /// Address of node 0 as that node gave it, from backends that know it; empty if node 0 gave none.
    pub leader: Option<Box<str>>,
}
