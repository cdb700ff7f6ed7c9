//! How a worker's life in a group ends that does not end well, and why a worker cannot be called.

use crate::connection::Refusal;
use crate::membership::error::{Absent, MembershipError};
use crate::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use rendezvous_core::time::Seconds;

/// How many callees are named.
const CALLEES_LISTED_MAX: usize = 16;

/// Workers at whom calls were under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callees {
    /// Those with the lowest numbers, in order.
    pub listed: Vec<WorkerInfo>,
    /// How many there are in all.
    pub count: usize,
}

impl Callees {
    /// Of these, of whom each may be there several times.
    #[must_use]
    pub fn of(mut workers: Vec<WorkerInfo>) -> Self {
        workers.sort_unstable_by_key(|worker| worker.id);
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

/// What the program is told of such an end where somebody may have ended the worker abruptly: that is no failure.
///
/// # Errors
/// Any other one.
pub fn unless_abandoned(end: Result<(), AgentError>) -> Result<(), AgentError> {
    match end {
        Err(AgentError::Abandoned) => Ok(()),
        end => end,
    }
}

/// Whether the worker has left as it should: then it answers what it was asked.
#[must_use]
pub const fn has_left(end: &Result<(), AgentError>) -> bool {
    matches!(end, Ok(()) | Err(AgentError::CallsCut { .. }))
}

/// Why a worker is not of its group, or no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The members did not come together, or do not part as they should.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// Members of a static group did not call in time whoever waits for all of them.
    #[error("{arrived} of {world_size} workers called {leader} in {}s; missing: {absent}", Seconds(.absent.waited))]
    NotMet {
        /// Who waits for all: the one whose name is the first.
        leader: WorkerInfo,
        /// How many did, that one among them.
        arrived: usize,
        /// How many there are.
        world_size: usize,
        /// Who did not.
        absent: Absent,
    },
    /// Whoever waits for all of a static group cannot be called, or did not hear from all.
    #[error("{leader}, which hears from all workers before any of them begins: {message}")]
    Leader {
        /// Who it is.
        leader: WorkerInfo,
        /// What happened.
        message: Box<str>,
    },
    /// A worker of a static group died where all have to agree.
    #[error("{worker} died while {phase}: {why}")]
    PeerDied {
        /// Who.
        worker: WorkerInfo,
        /// What the group was about to do.
        phase: &'static str,
        /// What is known of its end.
        why: Box<str>,
    },
    /// The worker was shut down without a word to the others.
    #[error("this worker was shut down")]
    Abandoned,
    /// It has left its group, and had calls under way when the time to finish them was up.
    #[error(
        "the worker has left its group, and the time was up before these had answered its calls: {callees}"
    )]
    CallsCut {
        /// Whom the calls were for.
        callees: Callees,
    },
    /// It was to leave its group, and the store said nothing for longer than any of its deadlines.
    #[error("the worker ended without its leave: the store at {store} does not come back with an answer")]
    Stuck {
        /// The store.
        store: Box<str>,
    },
    /// A thread of the library's own panicked, or failed, and the worker ended. That is a defect of the library.
    #[error("the worker ended: {message}")]
    Panicked {
        /// Which thread, and what the panic said.
        message: Box<str>,
    },
    /// The worker was to be ended by a handler or a callback of its own, and goes on: it would have waited for itself.
    #[error("a worker cannot be ended within one of its own handlers or callbacks")]
    Reentrant,
    /// What a backend of the program's own says of how it ended.
    #[error("{message}")]
    Foreign {
        /// Its own number for it.
        status: i32,
        /// Its words.
        message: Box<str>,
    },
}

impl AgentError {
    /// Those to whom it is due, as far as they are known by name.
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

    /// Their numbers, where they are missing or taken twice.
    #[must_use]
    pub fn ids(&self) -> Vec<u16> {
        match self {
            Self::Membership(error) => error.ids(),
            Self::NotMet { absent, .. } => absent.listed.clone(),
            _ => Vec::new(),
        }
    }

    /// Those who did not come in time, if it is that.
    #[must_use]
    pub const fn absent(&self) -> Option<&Absent> {
        match self {
            Self::Membership(error) => error.absent(),
            Self::NotMet { absent, .. } => Some(absent),
            _ => None,
        }
    }
}

/// Why a worker cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCallable {
    /// Nobody in the group has the name.
    #[error("there is no worker {name} in the group")]
    UnknownName {
        /// The name.
        name: Box<str>,
    },
    /// Nobody in the group has the number.
    #[error("there is no worker with the id {id} in the group")]
    UnknownId {
        /// The number.
        id: u16,
    },
    /// It is known to be dead.
    #[error("{worker} is dead: {why}")]
    Dead {
        /// Who.
        worker: WorkerInfo,
        /// What is known of its end.
        why: Box<str>,
    },
    /// This worker is of no group yet, or of none any more.
    #[error("this worker is no member of its group")]
    NoMember,
    /// This worker is of its group no more.
    #[error("no member of the group any more: {message}")]
    Over {
        /// How that came.
        message: Box<str>,
    },
}

/// Why a worker is not heard that calls this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// It takes a member's name, or its number.
    #[error("{claimed} claims to be {known}")]
    Impostor {
        /// Who it says that it is.
        claimed: WorkerInfo,
        /// Who has the name or the number.
        known: WorkerInfo,
    },
    /// The group is static and has no such member.
    #[error("{claimed} is no member of this group")]
    Stranger {
        /// Who it says that it is.
        claimed: WorkerInfo,
    },
    /// This worker is of no group any more.
    #[error("the worker is of no group any more")]
    Over,
}

impl NotAdmitted {
    /// What it is told that calls.
    #[must_use]
    pub const fn refusal(&self) -> Refusal {
        match self {
            Self::Impostor { .. } | Self::Stranger { .. } => Refusal::Unknown,
            Self::Over => Refusal::Over,
        }
    }
}
