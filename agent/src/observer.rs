//! Observations of an agent.

use super::failure::WorkerGroupFailure;
use super::supervisor::Notice;

/// What an observer is called with, together with the supervisor in its state at that time.
#[derive(Clone, Copy, Debug)]
pub enum Happened<'a> {
    /// A notice of the supervisor.
    Notice(&'a Notice),
    /// Workers of one start failed, and no process of that start is alive any more.
    Failed(&'a WorkerGroupFailure),
}

#[cfg(test)]
pub(super) mod stage;
