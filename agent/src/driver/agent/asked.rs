//! What the machine waits for, and which thread is to answer it.

use crate::reason::{InVain, NoRound};
use crate::supervisor::{Farewell, Input};
use alloc::boxed::Box;
use rendezvous_core::time::Duration;

/// Who makes the machine's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Who stands in the rendezvous.
    Member,
    /// Who meets the other agents in the round's store.
    Numbering,
}

/// The machine's last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Meet { call: u64 },
    Close { call: u64 },
    Assign { call: u64 },
    Part { call: u64 },
}

impl Asked {
    pub(super) const fn asker(self) -> Asker {
        match self {
            Self::Meet { .. } | Self::Close { .. } => Asker::Member,
            Self::Assign { .. } | Self::Part { .. } => Asker::Numbering,
        }
    }

    /// The answer when there will be none.
    pub(super) fn unanswered(self, words: Box<str>) -> Input {
        match self {
            Self::Meet { call } => Input::NotMet { call, kind: NoRound::Failed, words },
            Self::Close { call } => Input::Closed { call },
            Self::Assign { call } => Input::NotAssigned { call, kind: InVain::Failed, words },
            Self::Part { call } => Input::NotParted { call, kind: InVain::Failed, words },
        }
    }
}

/// How long the farewell may take. Who leaves is missed soon enough; whom a closed run lets in waits in vain.
pub(super) const fn farewell_timeout(farewell: Farewell) -> Duration {
    match farewell {
        Farewell::Leave => Duration::from_secs(5),
        Farewell::Close => Duration::from_secs(10),
    }
}
