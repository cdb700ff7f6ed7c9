//! Errors of group membership.

use super::token::HolderLiveness;
use crate::device_map::DeviceMapError;
use crate::exchange::ExchangeError;
use crate::membership::change::Members;
use crate::membership::keys::RosterError;
use crate::name::{WorkerInfo, WorkerName};
use rendezvous_core::error::Span;
use rendezvous_core::prelude::*;

/// Maximum number of absent members that an error lists; the others are counted.
pub const ABSENT_LISTED_MAX: usize = 16;

/// Absent members, of which the first are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The lowest numbers, in ascending order.
    pub listed: Vec<u16>,
    /// Names of the listed; empty if unknown.
    pub names: Vec<WorkerName>,
    /// Number of absent members, including those not listed.
    pub count: usize,
    /// Time for which the caller waited for them.
    pub waited: Duration,
}

impl Absent {
    /// Creates a list from numbers in ascending order.
    pub fn of(ids: impl ExactSizeIterator<Item = u16>, waited: Duration) -> Self {
        let count = ids.len();
        Self { listed: ids.take(ABSENT_LISTED_MAX).collect(), names: Vec::new(), count, waited }
    }

    /// Adds the names of those that are in `members`.
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

/// Maximum number of callees that an error lists; the others are counted.
const CALLEES_LISTED_MAX: usize = 16;

/// Callees of pending calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callees {
    /// Callees with the lowest numbers, in ascending order.
    pub listed: Vec<WorkerInfo>,
    /// Number of callees, including those not listed.
    pub count: usize,
}

impl Callees {
    /// Creates a list from workers that may occur several times.
    pub fn of(mut workers: Vec<WorkerInfo>) -> Self {
        WorkerInfo::sort(&mut workers);
        workers.dedup();
        let count = workers.len();
        workers.truncate(CALLEES_LISTED_MAX);
        Self { listed: workers, count }
    }
}

impl fmt::Display for Callees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (location, worker) in self.listed.iter().enumerate() {
            write!(f, "{}{worker}", if location == 0 { "" } else { ", " })?;
        }
        match self.count.saturating_sub(self.listed.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Maps the end of a worker that may have been ended abruptly to success.
///
/// # Errors
/// Any other failure.
pub fn unless_abandoned(end: Result<(), MembershipError>) -> Result<(), MembershipError> {
    match end {
        Err(MembershipError::Abandoned) => Ok(()),
        end => end,
    }
}

/// Whether the worker has left normally, so that it responds to its pending requests.
pub const fn has_left(end: &Result<(), MembershipError>) -> bool {
    matches!(end, Ok(()) | Err(MembershipError::CallsCut { .. }))
}

/// Reason why a worker is not, or no longer, a member of its group, or did not leave it as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The group is of the other kind.
    #[error(
        "RPC group mixes statically and dynamically initialized members which is not supported. Static group property \
         is initialized as {stored} and is trying to be set as {local}"
    )]
    Mixed {
        /// Value that the store has.
        stored: Box<str>,
        /// Value of this member.
        local: bool,
    },
    /// The rank is not below the world size, or the world size is 0.
    #[error("The rank ({rank}) must be less than the world size ({world_size}).")]
    Rank {
        /// Rank of this member.
        rank: u16,
        /// World size of this member.
        world_size: u16,
    },
    /// The group has another size.
    #[error("world_size argument {local} doesn't match pg size {stored}")]
    WorldSize {
        /// World size of this member.
        local: u16,
        /// World size that the store has.
        stored: Box<str>,
    },
    /// A live worker has the name.
    #[error("RPC worker name {name} is not unique.")]
    NotUnique {
        /// The name.
        name: WorkerName,
    },
    /// Another worker with the same name and number has joined the static group before this one, and is alive.
    #[error(
        "RPC worker name {} is not unique: {worker} has joined the static group already, at {address}",
        .worker.name
    )]
    Held {
        /// Name and number of that worker.
        worker: WorkerInfo,
        /// Address at which it accepts calls.
        address: Box<str>,
    },
    /// The static group has formed with another worker of the same name and number, which may be alive or dead.
    #[error(
        "RPC worker name {} is not unique: the static group has formed with {worker} at {address}, and cannot \
         accept a replacement; restart all its workers with another key prefix",
        .worker.name
    )]
    Begun {
        /// Name and number of that worker.
        worker: WorkerInfo,
        /// Its address in that group.
        address: Box<str>,
    },
    /// Two members that start together have the same name.
    #[error("RPC worker name {name} is not unique. Workers {first} and {second} share the same name.")]
    Shared {
        /// The name.
        name: WorkerName,
        /// The lower number.
        first: u16,
        /// The higher number.
        second: u16,
    },
    /// A live worker has the number.
    #[error("RPC worker id {id} is not unique: {by} has it.")]
    IdTaken {
        /// The number.
        id: u16,
        /// Name of that worker.
        by: Box<str>,
    },
    /// Device maps and devices of the group do not match.
    #[error(transparent)]
    Devices(#[from] DeviceMapError),
    /// A worker's card is invalid.
    #[error("invalid card of {subject}: {why}")]
    Card {
        /// The worker whose card it is.
        subject: Box<str>,
        /// What is wrong with the card.
        why: ExchangeError,
    },
    /// The worker at a member's address is a different one.
    #[error("{got} responded at the address of {wanted}")]
    OtherCard {
        /// The member to which the request was sent.
        wanted: WorkerInfo,
        /// The worker that responded.
        got: WorkerInfo,
    },
    /// The list of members is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// Another worker has held the token until the deadline.
    #[error(
        "{} has been held by {holder} until the deadline; {}",
        super::keys::TOKEN,
        HolderText(.holder_liveness)
    )]
    TokenTimedOut {
        /// The stored token; empty if this worker's own token was never tried.
        holder: Box<str>,
        /// Whether its owner sends heartbeats.
        holder_liveness: HolderLiveness,
    },
    /// The others considered this member dead while it was changing the group.
    #[error(
        "the other workers considered this worker dead while it was changing the group: its heartbeat was late"
    )]
    TokenLost,
    /// A member did not respond, and is not known to be dead.
    #[error("{worker} did not answer: {message}")]
    Unanswered {
        /// The member.
        worker: WorkerInfo,
        /// Reason of the failure.
        message: Box<str>,
    },
    /// Processes without the token have changed the list of members too many times.
    #[error("{} was changed by others without the token", super::keys::ALL_WORKERS)]
    Contended,
    /// Not all members joined by the deadline.
    #[error("{arrived} of {world_size} workers joined in {}; missing: {absent}", Span(.absent.waited))]
    Absent {
        /// Number of members that joined.
        arrived: usize,
        /// Number of members of the group.
        world_size: u16,
        /// Members that did not.
        absent: Absent,
    },
    /// Not all members finished by the deadline.
    #[error(
        "{arrived} of {world_size} workers finished their calls in {}; still busy, or dead: {absent}",
        Span(.absent.waited)
    )]
    AbsentAtShutdown {
        /// Number of members that finished.
        arrived: usize,
        /// Number of members of the group.
        world_size: u16,
        /// Members that did not.
        absent: Absent,
    },
    /// The others considered this member dead and continue without it.
    #[error("the group continues without this worker: {by} could not reach it at its address")]
    Evicted {
        /// Name of the worker that removed it.
        by: Box<str>,
    },
    /// The caller cancelled the join.
    #[error("joining was cancelled")]
    Cancelled,
    /// The store failed.
    #[error("the store failed: {message}")]
    Store {
        /// Message of the store.
        message: Box<str>,
    },
    /// Members of a static group did not call its leader in time.
    #[error("{arrived} of {world_size} workers called {leader} in {}; missing: {absent}", Span(.absent.waited))]
    NotMet {
        /// The leader: the member with the first name.
        leader: WorkerInfo,
        /// Number of members that called, including the leader.
        arrived: usize,
        /// Number of members of the group.
        world_size: usize,
        /// Members that did not call.
        absent: Absent,
    },
    /// The leader of a static group cannot be called, or was not called by all members.
    #[error("{leader}, which all workers must call before the group starts: {message}")]
    Leader {
        /// The leader.
        leader: WorkerInfo,
        /// Description of the failure.
        message: Box<str>,
    },
    /// A worker died while a static group was forming, starting or ending, which needs all members.
    #[error("{worker} died while {phase}: {why}")]
    PeerDied {
        /// The worker.
        worker: WorkerInfo,
        /// What the group was doing.
        phase: &'static str,
        /// How its death was detected.
        why: Box<str>,
    },
    /// The worker was shut down without notifying the others.
    #[error("this worker was shut down")]
    Abandoned,
    /// The worker has left its group, with calls pending at the deadline of draining.
    #[error(
        "the worker has left its group, and its timeout passed before these workers responded: {callees}"
    )]
    CallsCut {
        /// Callees of those calls.
        callees: Callees,
    },
    /// The worker did not leave its group: the store did not respond within any of its deadlines.
    #[error("the worker ended without its leave: the store at {store} does not respond")]
    Stuck {
        /// Address of the store.
        store: Box<str>,
    },
    /// A thread of the library panicked or failed, and the worker ended. This is a bug of the library.
    #[error("the worker ended: {message}")]
    Panicked {
        /// Name of the thread, and message of the panic.
        message: Box<str>,
    },
    /// A handler or callback of the worker has tried to end it, which would deadlock. The worker continues.
    #[error("a worker cannot be ended within one of its own handlers or callbacks")]
    Reentrant,
    /// Error of a custom backend.
    #[error("{message}")]
    Foreign {
        /// Status code of the backend.
        status: i32,
        /// Message of the backend.
        message: Box<str>,
    },
}

impl MembershipError {
    /// Returns the names of the workers that caused the error, as far as they are known.
    pub fn names(&self) -> Vec<&WorkerName> {
        match self {
            Self::NotUnique { name } | Self::Shared { name, .. } => Vec::from([name]),
            Self::Devices(error) => Vec::from([error.node()]),
            Self::OtherCard { wanted: worker, .. }
            | Self::Unanswered { worker, .. }
            | Self::Held { worker, .. }
            | Self::Begun { worker, .. }
            | Self::Leader { leader: worker, .. }
            | Self::PeerDied { worker, .. } => Vec::from([&worker.name]),
            Self::CallsCut { callees } => callees.listed.iter().map(|worker| &worker.name).collect(),
            _ => self.absent().into_iter().flat_map(|absent| &absent.names).collect(),
        }
    }

    /// Returns the members that were absent at the deadline, if that is the error.
    pub const fn absent(&self) -> Option<&Absent> {
        match self {
            Self::Absent { absent, .. }
            | Self::AbsentAtShutdown { absent, .. }
            | Self::NotMet { absent, .. } => Some(absent),
            _ => None,
        }
    }

    /// Returns the numbers of workers that are absent, or whose name or number is taken.
    pub fn ids(&self) -> Vec<u16> {
        match self {
            Self::Shared { first, second, .. } => Vec::from([*first, *second]),
            Self::IdTaken { id, .. } => Vec::from([*id]),
            Self::Held { worker, .. } | Self::Begun { worker, .. } => Vec::from([worker.id]),
            _ => self.absent().map(|absent| absent.listed.clone()).unwrap_or_default(),
        }
    }
}

struct HolderText<'a>(&'a HolderLiveness);

impl fmt::Display for HolderText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            HolderLiveness::Alive => "its owner sends heartbeats",
            HolderLiveness::None => {
                "its owner sends no heartbeats, as PyTorch's workers do not, so the token was not taken from it"
            }
        })
    }
}
