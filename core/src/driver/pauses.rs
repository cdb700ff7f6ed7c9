//! Pauses that somebody else can end.

use crate::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets calls wait a while, until they are cancelled or told to look again.
#[derive(Debug, Default)]
pub(in crate::driver) struct Pauses {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often the calls were cancelled.
    epoch: u64,
    /// How often they were told to look again.
    nudges: u64,
}

/// Why a pause is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// The time has passed, or there is something to look at.
    Over,
    /// The calls were cancelled.
    Cancelled,
}

impl Pauses {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a call reads at its beginning, to be cancelled later on.
    pub(in crate::driver) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Waits for `span`, or less when there is something to look at.
    pub(in crate::driver) fn pause(&self, epoch: u64, span: Duration) -> Paused {
        let state = self.lock();
        let nudges = state.nudges;
        let unchanged = |state: &mut State| state.epoch == epoch && state.nudges == nudges;
        let waited = self.changed.wait_timeout_while(state, span, unchanged);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.epoch == epoch { Paused::Over } else { Paused::Cancelled }
    }

    pub(in crate::driver) fn cancel(&self) {
        self.lock().epoch += 1;
        self.changed.notify_all();
    }

    /// Ends the pauses of now.
    pub(in crate::driver) fn recheck_cancellation(&self) {
        self.lock().nudges += 1;
        self.changed.notify_all();
    }
}
