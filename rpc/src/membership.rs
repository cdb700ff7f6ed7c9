//! Who is of a group. The members meet at keys of a store, and nothing else holds them together; the keys are PyTorch's, so
//! that its members and ours stand in one queue. `docs/rpc.md` tells the rules.
//!
//! Two machines: [`fixed::FixedGroup`] for a group of a fixed number who start together, [`changing::ChangingGroup`] for
//! one whose members come and go. Each asks for one [`StoreStep`] after the other and is told its [`Reply`].

pub mod change;
pub mod changing;
pub mod error;
pub mod fixed;
pub mod group_id;
pub mod keys;
pub mod observer;
pub mod token;

use crate::device_map::NodeDevices;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::vec::Vec;
use change::WorkerLocation;
use rendezvous_core::time::Instant;

/// What is to be asked of the store. Keys are beneath the prefix of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum StoreStep {
    /// Store `desired` if the value is `expected`, or if there is none and `expected` is empty: [`Reply::Value`].
    CompareSet { key: Box<str>, expected: Box<str>, desired: Box<str> },
    /// Store a value: [`Reply::Done`].
    Set { key: Box<str>, value: Box<[u8]> },
    /// Store a value that ends with this worker's session, where the store knows sessions: [`Reply::Done`].
    SetForSession { key: Box<str>, value: Box<[u8]> },
    /// Read a value if there is one: [`Reply::Value`], empty when there is none.
    Get { key: Box<str> },
    /// Read several values, each empty when there is none: [`Reply::Values`].
    Peek { keys: Vec<Box<str>> },
    /// Remove keys: [`Reply::Done`], also where a store cannot do that.
    Delete { keys: Vec<Box<str>> },
    /// Remove a key if its value is `expected`; a store that cannot do that empties it then: [`Reply::Done`].
    Forget { key: Box<str>, expected: Box<str> },
    /// Add to a number: [`Reply::Number`].
    Add { key: Box<str>, delta: i64 },
    /// Wait until a key is there: [`Reply::Released`], or [`Reply::TimedOut`] at `until`.
    Wait { key: Box<str>, until: Instant },
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was carried out.
    Done,
    /// A value; of a compare-set, the one that is there now.
    Value(Box<[u8]>),
    /// Values.
    Values(Vec<Box<[u8]>>),
    /// The sum.
    Number(i64),
    /// The key is there.
    Released,
    /// It is not there in time.
    TimedOut,
    /// The store failed, and how.
    Failed(Box<str>),
}

/// Whether the members of a group show in its store that they live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Each has a key that ends with its session.
    Keys,
    /// The store knows no sessions.
    Unknown,
}

/// A member as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name and number.
    pub worker: WorkerInfo,
    /// Where it takes calls. A worker that died and came back has another one.
    pub address: Box<str>,
    /// Its devices and maps.
    pub devices: NodeDevices,
}

impl Member {
    /// Who it is, and where.
    #[must_use]
    pub fn location(&self) -> WorkerLocation {
        WorkerLocation { worker: self.worker.clone(), address: self.address.clone() }
    }
}
