//! Reasons why a worker cannot be called.

use crate::name::WorkerInfo;
use alloc::boxed::Box;

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
