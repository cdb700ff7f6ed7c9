//! Pauses that another thread can end.

use crate::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets calls wait until they are cancelled or woken to check their condition again.
#[derive(Debug, Default)]
pub(in crate::driver) struct Pauses {
    state: Mutex<PauseState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PauseState {
    /// Number of cancels so far.
    epoch: u64,
    /// Number of times the calls were woken to check again.
    nudges: u64,
}

/// Reason why a pause ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// The time has passed, or the caller should check its condition again.
    Over,
    /// The calls were cancelled.
    Cancelled,
}

impl Pauses {
    fn lock(&self) -> MutexGuard<'_, PauseState> {
        // No code that holds the lock panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current epoch. A call reads it when it begins, to notice later cancels.
    pub(in crate::driver) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Waits for `span`, or until the caller should check its condition again.
    pub(in crate::driver) fn pause(&self, epoch: u64, span: Duration) -> Paused {
        let state = self.lock();
        let nudges = state.nudges;
        let unchanged = |state: &mut PauseState| state.epoch == epoch && state.nudges == nudges;
        let waited = self.changed.wait_timeout_while(state, span, unchanged);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.epoch == epoch { Paused::Over } else { Paused::Cancelled }
    }

    pub(in crate::driver) fn cancel(&self) {
        self.lock().epoch += 1;
        self.changed.notify_all();
    }

    /// Ends the pauses in progress, so that their calls check whether they were cancelled.
    pub(in crate::driver) fn recheck_cancellation(&self) {
        self.lock().nudges += 1;
        self.changed.notify_all();
    }
}
