//! Why a member is not of its group, or no more.

use super::token::LivenessWatcher;
use crate::device_map::DeviceMapError;
use crate::exchange::ExchangeError;
use crate::membership::change::Members;
use crate::membership::keys::RosterError;
use crate::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{fmt, slice};
use rendezvous_core::time::{Duration, Seconds};

/// Most numbers of absent members that an error lists; the others are counted.
pub const ABSENT_LISTED_MAX: usize = 16;

/// Numbers of members, of which the first are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The lowest of them, in order.
    pub listed: Vec<u16>,
    /// The names of the listed; empty where they are not known.
    pub names: Vec<WorkerName>,
    /// How many there are in all.
    pub count: usize,
    /// How long they were waited for.
    pub waited: Duration,
}

impl Absent {
    /// Of these numbers, in order.
    pub fn of(ids: impl ExactSizeIterator<Item = u16>, waited: Duration) -> Self {
        let count = ids.len();
        Self { listed: ids.take(ABSENT_LISTED_MAX).collect(), names: Vec::new(), count, waited }
    }

    /// The same of members that are known.
    #[must_use]
    pub fn named(mut self, members: &Members) -> Self {
        let names = self.listed.iter().map_while(|&id| Some(members.by_id(id)?.worker.name.clone()));
        self.names = names.collect();
        self
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (location, id) in self.listed.iter().enumerate() {
            let gap = if location == 0 { "" } else { ", " };
            match self.names.get(location) {
                Some(name) => write!(f, "{gap}{name} (id {id})")?,
                None => write!(f, "{gap}{id}")?,
            }
        }
        match self.count.saturating_sub(self.listed.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Why a member is not of its group, or no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The others said that the group is of the other kind.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. Static group property \
         is initialized as {stored} and is trying to be set as {local}"
    )]
    Mixed {
        /// What they said.
        stored: Box<str>,
        /// What this member says.
        local: bool,
    },
    /// A group without members, or a number that none of them has.
    #[error("The rank ({rank}) must be less than the world size ({world_size}).")]
    Rank {
        /// The number.
        rank: u16,
        /// How many there are.
        world_size: u16,
    },
    /// The others said that the group is of another size.
    #[error("world_size argument {local} doesn't match pg size {stored}")]
    WorldSize {
        /// What this member says.
        local: u16,
        /// What they said.
        stored: Box<str>,
    },
    /// A living worker has the name.
    #[error("RPC worker name {name} is not unique.")]
    NotUnique {
        /// The name.
        name: WorkerName,
    },
    /// A worker of the same name and number lives, and came to the static group before.
    #[error("RPC worker name {} is not unique: {worker} came to the static group before, and is at {address}", .worker.name)]
    Held {
        /// Who it is.
        worker: WorkerInfo,
        /// Where it takes calls.
        address: Box<str>,
    },
    /// The static group has begun with a worker of the same name and number, be that alive or dead.
    #[error(
        "RPC worker name {} is not unique: the static group has begun with {worker} at {address}, and takes nobody back; \
         to go on, start all its workers again with keys of their own",
        .worker.name
    )]
    Begun {
        /// Who it is.
        worker: WorkerInfo,
        /// Where it took calls.
        address: Box<str>,
    },
    /// Two members who start together have the same name.
    #[error("RPC worker name {name} is not unique. Workers {first} and {second} share the same name.")]
    Shared {
        /// The name.
        name: WorkerName,
        /// The lower number.
        first: u16,
        /// The higher number.
        second: u16,
    },
    /// A living worker has the number.
    #[error("RPC worker id {id} is not unique: {by} has it.")]
    IdTaken {
        /// The number.
        id: u16,
        /// Who has it.
        by: Box<str>,
    },
    /// Maps and devices of the group do not fit together.
    #[error(transparent)]
    Devices(#[from] DeviceMapError),
    /// What a worker says of its devices cannot be read.
    #[error("what {subject} says of its devices: {why}")]
    Card {
        /// Which one.
        subject: Box<str>,
        /// What is wrong.
        why: ExchangeError,
    },
    /// Where a worker is to be, another one answers.
    #[error("{got} answered where {wanted} was asked")]
    OtherCard {
        /// Who was asked.
        wanted: WorkerInfo,
        /// Who answered.
        got: WorkerInfo,
    },
    /// The list of members is none.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// Somebody else had the right to change the group for too long.
    #[error("{} has been held by {holder} until the deadline; {}", super::keys::TOKEN, Words(.liveness_watcher))]
    TokenTimedOut {
        /// The token that stands there; nothing when its owner never came to be tried.
        holder: Box<str>,
        /// What is known of its owner.
        liveness_watcher: LivenessWatcher,
    },
    /// This member was taken for dead while it changed the group.
    #[error(
        "the others took this worker for dead while it changed the group: it showed no sign of life in time"
    )]
    TokenLost,
    /// A member does not answer, and is not known to be dead.
    #[error("{worker} did not answer: {message}")]
    Unanswered {
        /// Who.
        worker: WorkerInfo,
        /// What happened.
        message: Box<str>,
    },
    /// Somebody changes the list of members again and again without having the right to.
    #[error("{} was changed by others without the token", super::keys::ALL_WORKERS)]
    Contended,
    /// Not all members came in time.
    #[error("{arrived} of {world_size} workers came in {}s; missing: {absent}", Seconds(.absent.waited))]
    Absent {
        /// How many came.
        arrived: usize,
        /// How many there are.
        world_size: u16,
        /// Who did not.
        absent: Absent,
    },
    /// Not all members ended in time.
    #[error(
        "{arrived} of {world_size} workers had done with their calls in {}s; still busy, or dead: {absent}",
        Seconds(.absent.waited)
    )]
    AbsentAtShutdown {
        /// How many had.
        arrived: usize,
        /// How many there are.
        world_size: u16,
        /// Who had not.
        absent: Absent,
    },
    /// The others took this member for dead, and go on without it.
    #[error("the group goes on without this worker: {by} found nobody at its address")]
    Evicted {
        /// Who.
        by: Box<str>,
    },
    /// The caller wants no more of it.
    #[error("the worker gave up joining")]
    Cancelled,
    /// The store failed.
    #[error("the store failed: {message}")]
    Store {
        /// What it said.
        message: Box<str>,
    },
}

impl MembershipError {
    /// Those to whom it is due, as far as they are known by name.
    #[must_use]
    pub fn names(&self) -> &[WorkerName] {
        match self {
            Self::NotUnique { name } | Self::Shared { name, .. } => slice::from_ref(name),
            Self::Devices(error) => slice::from_ref(error.node()),
            Self::OtherCard { wanted: worker, .. }
            | Self::Unanswered { worker, .. }
            | Self::Held { worker, .. }
            | Self::Begun { worker, .. } => slice::from_ref(&worker.name),
            Self::Absent { absent, .. } | Self::AbsentAtShutdown { absent, .. } => &absent.names,
            _ => &[],
        }
    }

    /// Those who did not come in time, if it is that.
    #[must_use]
    pub const fn absent(&self) -> Option<&Absent> {
        match self {
            Self::Absent { absent, .. } | Self::AbsentAtShutdown { absent, .. } => Some(absent),
            _ => None,
        }
    }

    /// Their numbers, where they are missing or taken twice.
    #[must_use]
    pub fn ids(&self) -> Vec<u16> {
        match self {
            Self::Shared { first, second, .. } => Vec::from([*first, *second]),
            Self::IdTaken { id, .. } => Vec::from([*id]),
            Self::Held { worker, .. } | Self::Begun { worker, .. } => Vec::from([worker.id]),
            Self::Absent { absent, .. } | Self::AbsentAtShutdown { absent, .. } => absent.listed.clone(),
            _ => Vec::new(),
        }
    }
}

struct Words<'a>(&'a LivenessWatcher);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            LivenessWatcher::Alive => "its owner lives",
            LivenessWatcher::None => {
                "its owner gives no signs of life, as PyTorch's workers do not, so it was left in peace"
            }
        })
    }
}
