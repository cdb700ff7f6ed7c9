//! The supervisor's pending call, and the thread that answers it.

use crate::reason::{NoRound, WaitFailure};
use crate::supervisor::{Input, LeaveMode};
use alloc::boxed::Box;
use rendezvous_core::time::Duration;

/// Thread that makes a call for the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSource {
    /// The thread that joins the rendezvous and listens to its events.
    Member,
    /// The thread that meets the other agents in the round's store.
    Numbering,
}

/// The last call of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCall {
    Meet { call: u64 },
    Close { call: u64 },
    Assign { call: u64 },
    Part { call: u64 },
}

impl LastCall {
    pub(super) const fn call_source(self) -> CallSource {
        match self {
            Self::Meet { .. } | Self::Close { .. } => CallSource::Member,
            Self::Assign { .. } | Self::Part { .. } => CallSource::Numbering,
        }
    }

    /// Returns the answer for a call whose thread will not answer.
    pub(super) fn unanswered(self, message: Box<str>) -> Input {
        match self {
            Self::Meet { call } => Input::NotMet { call, kind: NoRound::Failed, message },
            Self::Close { call } => Input::Closed { call },
            Self::Assign { call } => Input::NotAssigned { call, kind: WaitFailure::Failed, message },
            Self::Part { call } => Input::NotParted { call, kind: WaitFailure::Failed, message },
        }
    }
}

/// Returns the timeout of leaving the rendezvous. A node that leaves without a goodbye is detected by its missing
/// heartbeats. An agent that joins a run that should be closed waits in vain, so closing gets more time.
pub(super) const fn leave_timeout(leave_mode: LeaveMode) -> Duration {
    match leave_mode {
        LeaveMode::Leave => Duration::from_secs(5),
        LeaveMode::Close => Duration::from_secs(10),
    }
}
