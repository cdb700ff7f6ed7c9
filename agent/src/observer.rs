//! What whoever watches an agent is given: each thing that happens, with the machine as it is just then.

use super::failure::WorkerGroupFailure;
use super::supervisor::Notice;

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Happened<'a> {
    /// What the machine tells.
    Notice(&'a Notice),
    /// Workers of one start failed, and nothing of that start lives any more.
    Failed(&'a WorkerGroupFailure),
}

#[cfg(test)]
pub(super) mod stage;
