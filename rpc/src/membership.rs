//! Membership of RPC groups. Members coordinate only through keys of a store. The keys are PyTorch's, so PyTorch's
//! members and this library's wait for the same token. `docs/rpc.md` has the rules.
//!
//! Two state machines: [`fixed::FixedGroup`] for a fixed number of members that start together, and
//! [`changing::ChangingGroup`] for a group that members join and leave. Each emits one [`StoreStep`] at a time and
//! takes its [`Reply`].

pub mod change;
pub mod changing;
pub mod error;
pub mod fixed;
pub mod group_id;
pub mod keys;
pub mod observer;
pub mod token;

use crate::device::DeviceKind;
use crate::device_map::NodeDevices;
use crate::name::WorkerInfo;
use change::{Change, WorkerLocation};
use error::MembershipError;
use rendezvous_core::prelude::*;
use token::TokenTimes;

/// Operation on the store. Keys are relative to the group's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum StoreStep {
    /// Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty: [`Reply::Value`].
    CompareSet { key: Box<str>, expected: Box<str>, desired: Box<str> },
    /// Stores a value: [`Reply::Done`].
    Set { key: Box<str>, value: Box<[u8]> },
    /// Stores a value that is deleted with this worker's session, if the store has sessions: [`Reply::Done`].
    SetForSession { key: Box<str>, value: Box<[u8]> },
    /// Reads a value: [`Reply::Value`], empty if the key is absent.
    Get { key: Box<str> },
    /// Reads several values, each empty if its key is absent: [`Reply::Values`].
    Peek { keys: Vec<Box<str>> },
    /// Deletes keys: [`Reply::Done`], also from a store that cannot delete.
    Delete { keys: Vec<Box<str>> },
    /// Deletes a key if its value is `expected`; a store that cannot delete empties it: [`Reply::Done`].
    Forget { key: Box<str>, expected: Box<str> },
    /// Adds to a number: [`Reply::Number`].
    Add { key: Box<str>, delta: i64 },
    /// Waits until a key exists: [`Reply::Released`], or [`Reply::TimedOut`] at `until`.
    Wait { key: Box<str>, until: Instant },
}

/// Result of a [`StoreStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The operation succeeded and has no value.
    Done,
    /// A value; for a compare-set the current one.
    Value(Box<[u8]>),
    /// Values in the order of the keys; an absent key's is empty.
    Values(Vec<Box<[u8]>>),
    /// The number after the addition.
    Number(i64),
    /// The key exists.
    Released,
    /// The key did not exist by the deadline.
    TimedOut,
    /// The operation failed, with the store's message.
    Failed(Box<str>),
}

/// Whether the members of a group have liveness keys in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Each member has a key that is deleted with its session.
    Keys,
    /// The store has no sessions.
    Unknown,
}

/// A member as the other members see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name and number.
    pub worker: WorkerInfo,
    /// Address at which it accepts calls. A worker that died and restarted has another one.
    pub address: Box<str>,
    /// Its devices and device maps.
    pub devices: NodeDevices,
}

impl Member {
    /// Returns name, number and address.
    pub fn location(&self) -> WorkerLocation {
        WorkerLocation { worker: self.worker.clone(), address: self.address.clone() }
    }
}

/// Options of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// Name, number, devices, and the address at which it accepts calls already.
    pub member: Member,
    /// Kind of device that the group counts.
    pub accelerator: DeviceKind,
    /// Timeout of joining, and of leaving.
    pub timeout: Duration,
    /// Times of the heartbeats of a worker that changes a dynamic group.
    pub times: TokenTimes,
    /// Whether the members have liveness keys in the store.
    pub liveness: Liveness,
    /// Random number that distinguishes this process from others with its name.
    pub nonce: u64,
}

/// Actions of a group for the driver. A static group has no calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Execute this step and report the reply; no other step follows before that.
    Store(StoreStep),
    /// Ask the worker whether it is a member that is neither joining nor leaving, with this deadline.
    CheckAlive(WorkerLocation, Instant),
    /// Request the worker's card.
    Ask(WorkerLocation),
    /// Notify the worker of this change.
    Notify(WorkerLocation, Change),
    /// This worker is a member, and the members are known.
    Joined,
    /// Other members joined or left.
    Changed(Change),
    /// This worker has left, as its caller wanted; in a static group all workers have finished.
    Left,
    /// This worker is not a member and will not become one, or left before all others had finished.
    Failed(MembershipError),
}
