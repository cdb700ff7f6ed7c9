//! Errors of a worker in a group, and reasons why a worker cannot be called.

use crate::membership::error::{Absent, MembershipError};
use crate::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use rendezvous_core::time::Seconds;

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
    #[must_use]
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
pub fn unless_abandoned(end: Result<(), AgentError>) -> Result<(), AgentError> {
    match end {
        Err(AgentError::Abandoned) => Ok(()),
        end => end,
    }
}

/// Whether the worker has left normally, so that it responds to its pending requests.
#[must_use]
pub const fn has_left(end: &Result<(), AgentError>) -> bool {
    matches!(end, Ok(()) | Err(AgentError::CallsCut { .. }))
}

/// Reason why a worker is not, or no longer, in its group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// Joining or leaving failed.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// Members of a static group did not call its leader in time.
    #[error("{arrived} of {world_size} workers called {leader} in {}s; missing: {absent}", Seconds(.absent.waited))]
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

impl AgentError {
    /// Returns the names of the workers that caused the error, as far as they are known.
    #[must_use]
    pub fn names(&self) -> Vec<&WorkerName> {
        match self {
            Self::Membership(error) => error.names().iter().collect(),
            Self::NotMet { absent, .. } => absent.names.iter().collect(),
            Self::Leader { leader: worker, .. } | Self::PeerDied { worker, .. } => Vec::from([&worker.name]),
            Self::CallsCut { callees } => callees.listed.iter().map(|worker| &worker.name).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the numbers of workers that are absent, or whose name or number is taken.
    #[must_use]
    pub fn ids(&self) -> Vec<u16> {
        match self {
            Self::Membership(error) => error.ids(),
            Self::NotMet { absent, .. } => absent.listed.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the members that were absent at the deadline, if that is the error.
    #[must_use]
    pub const fn absent(&self) -> Option<&Absent> {
        match self {
            Self::Membership(error) => error.absent(),
            Self::NotMet { absent, .. } => Some(absent),
            _ => None,
        }
    }
}

/// Reason why a worker cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCallable {
    /// No member has the name.
    #[error("there is no worker {name} in the group")]
    UnknownName {
        /// The name.
        name: Box<str>,
    },
    /// No member has the number.
    #[error("there is no worker with the id {id} in the group")]
    UnknownId {
        /// The number.
        id: u16,
    },
    /// The worker is known to be dead.
    #[error("{worker} is dead: {why}")]
    Dead {
        /// The worker.
        worker: WorkerInfo,
        /// How its death was detected.
        why: Box<str>,
    },
    /// This worker is not in a group yet, or any more.
    #[error("this worker is not a member of its group")]
    NoMember,
    /// This worker has left its group.
    #[error("this worker is not a member of the group any more: {message}")]
    Over {
        /// Reason of the end.
        message: Box<str>,
    },
}
