//! Data exchange and barriers of agents over plain keys: the store utilities of PyTorch's elastic agent. They use
//! the same keys and values as PyTorch, so agents of both implementations can share a barrier or an exchange. A
//! prefix can be used once.
//!
//! The state machines request one [`Step`] at a time, and the caller reports its [`Outcome`]. Keys are user keys,
//! to which the store adds its scope.

pub mod barrier;
pub mod get_all;
mod survey;

use crate::prelude::*;
use crate::store::call::Outcome;

/// Value that PyTorch writes where only the existence of the key matters.
pub const IGNORED_VALUE: &[u8] = b"<val_ignored>";

/// Request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds to a number; the outcome is the sum.
    Add {
        /// The key.
        key: Box<str>,
        /// The number to add.
        delta: i64,
    },
    /// Stores [`IGNORED_VALUE`].
    Mark {
        /// The key.
        key: Box<str>,
    },
    /// Checks whether all of the keys exist.
    Check {
        /// The keys.
        keys: Vec<Box<str>>,
    },
    /// Waits for a key; the outcome is [`Outcome::Missing`] when it does not exist by the deadline.
    Wait {
        /// The key.
        key: Box<str>,
        /// The deadline.
        until: Instant,
    },
}

/// Outcome that does not belong to the requested step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step:?} was due and {outcome:?} came")]
pub struct UnexpectedOutcome {
    /// The requested step; `None` after the last.
    pub step: Option<Step>,
    /// The outcome that was reported.
    pub outcome: Outcome,
}

/// Invalid world size or rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The world size is not positive.
    #[error("The world size ({world_size}) must be greater than zero.")]
    WorldSize {
        /// The value given.
        world_size: i64,
    },
    /// The rank is out of range.
    #[error("The rank ({rank}) must be at least 0 and less than the world size ({world_size}).")]
    Rank {
        /// The value given.
        rank: i64,
        /// Number of ranks.
        world_size: i64,
    },
    /// Rank names were given without a rank.
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
