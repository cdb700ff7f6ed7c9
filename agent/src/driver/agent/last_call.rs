//! What the machine waits for, and which thread is to answer it.

use crate::reason::{NoRound, WaitFailure};
use crate::supervisor::{Input, LeaveMode};
use alloc::boxed::Box;
use rendezvous_core::time::Duration;

/// Who makes the machine's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSource {
    /// Who stands in the rendezvous.
    Member,
    /// Who meets the other agents in the round's store.
    Numbering,
}

/// The machine's last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastCall {
    Meet { call: u64 },
    Close { call: u64 },
    Assign { call: u64 },
    Part { call: u64 },
}

impl LastCall {
    pub(super) const fn asker(self) -> CallSource {
        match self {
            Self::Meet { .. } | Self::Close { .. } => CallSource::Member,
            Self::Assign { .. } | Self::Part { .. } => CallSource::Numbering,
        }
    }

    /// The answer when there will be none.
    pub(super) fn unanswered(self, message: Box<str>) -> Input {
        match self {
            Self::Meet { call } => Input::NotMet { call, kind: NoRound::Failed, message },
            Self::Close { call } => Input::Closed { call },
            Self::Assign { call } => Input::NotAssigned { call, kind: WaitFailure::Failed, message },
            Self::Part { call } => Input::NotParted { call, kind: WaitFailure::Failed, message },
        }
    }
}

/// How long the farewell may take. Who leaves is missed soon enough; whom a closed run lets in waits in vain.
pub(super) const fn leave_timeout(leave_mode: LeaveMode) -> Duration {
    match leave_mode {
        LeaveMode::Leave => Duration::from_secs(5),
        LeaveMode::Close => Duration::from_secs(10),
    }
}
