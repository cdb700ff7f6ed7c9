//! Outcome of an agent that gives up, by its reason.

use super::{NoRound, Outcome, Reason, WorkerState};

impl Outcome {
    /// Returns the outcome of giving up for this reason.
    pub(super) fn of(reason: &Reason) -> Self {
        match reason {
            Reason::NoRound { kind: NoRound::NotNeeded, .. } => Self::NotNeeded,
            Reason::Stop(cause) => Self::Stopped { cause: *cause },
            Reason::GuardLost { .. } => Self::GuardLost { reason: reason.clone() },
            _ => Self::Failed { reason: reason.clone() },
        }
    }

    /// Returns the final state of the worker group.
    pub(super) const fn state(&self) -> WorkerState {
        match self {
            Self::Succeeded { .. } | Self::NotNeeded => WorkerState::Succeeded,
            Self::Stopped { .. } => WorkerState::Stopped,
            Self::GuardLost { .. } => WorkerState::Unknown,
            Self::Failed { .. } => WorkerState::Failed,
        }
    }

    /// Returns whether the other agents are notified at once. Without this agent's workers theirs would wait in vain.
    pub(super) const fn concerns_all(&self) -> bool {
        match self {
            Self::Failed { reason } => !matches!(
                reason,
                Reason::NoRound { .. }
                    | Reason::Replaced
                    | Reason::JobFailed { .. }
                    | Reason::SessionEnded { .. }
                    | Reason::ServerLost { .. }
            ),
            Self::GuardLost { .. } => true,
            Self::Succeeded { .. } | Self::NotNeeded | Self::Stopped { .. } => false,
        }
    }
}
