//! How agents exchange data and meet over plain keys: the store utilities of PyTorch's elastic agent, with its very
//! keys and words, so that agents of both languages share one barrier and one exchange. A prefix serves once.
//!
//! The machines here ask for one [`Step`] after the other and are told its [`Outcome`]; the keys are the caller's own,
//! to which the store adds its scope.

pub mod barrier;
pub mod get_all;
mod survey;

use crate::store::call::Outcome;
use crate::time::Instant;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What PyTorch writes where only the key counts.
pub const IGNORED_VALUE: &[u8] = b"<val_ignored>";

/// What is to be asked of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Add to a number; the outcome is the sum.
    Add {
        /// Its key.
        key: Box<str>,
        /// What to add.
        delta: i64,
    },
    /// Store [`IGNORED_VALUE`].
    Mark {
        /// Its key.
        key: Box<str>,
    },
    /// Look whether all of the keys are there.
    Check {
        /// The keys.
        keys: Vec<Box<str>>,
    },
    /// Wait for a key; [`Outcome::Missing`] when it is not there in time.
    Wait {
        /// The key.
        key: Box<str>,
        /// When to give up.
        until: Instant,
    },
}

/// An outcome that does not belong to the step that was due.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step:?} was due and {outcome:?} came")]
pub struct UnexpectedOutcome {
    /// What was due; nothing at the end.
    pub step: Option<Step>,
    /// What came.
    pub outcome: Outcome,
}

/// A number of ranks, or a rank, that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Nobody is to meet.
    #[error("The world size ({world_size}) must be greater than zero.")]
    WorldSize {
        /// What was given.
        world_size: i64,
    },
    /// There is no such rank.
    #[error("The rank ({rank}) must be at least 0 and less than the world size ({world_size}).")]
    Rank {
        /// What was given.
        rank: i64,
        /// How many ranks there are.
        world_size: i64,
    },
    /// Names for ranks, and no rank to trace from.
    #[error("Tracing requires rank information")]
    TracingNeedsRank,
}

pub(crate) fn check_group(rank: Option<i64>, world_size: i64) -> Result<(), GroupError> {
    match rank {
        _ if world_size < 1 => Err(GroupError::WorldSize { world_size }),
        Some(rank) if !(0..world_size).contains(&rank) => Err(GroupError::Rank { rank, world_size }),
        _ => Ok(()),
    }
}

fn joined(pieces: &[&str]) -> Box<str> {
    pieces.concat().into()
}

fn counter_key(prefix: &str) -> Box<str> {
    joined(&[prefix, "/num_members"])
}

fn last_member_key(prefix: &str) -> Box<str> {
    joined(&[prefix, "/last_member"])
}

fn owned(prefix: &str) -> Box<str> {
    prefix.to_owned().into()
}
