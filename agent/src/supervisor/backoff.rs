//! Pauses between restarts when one start after the other fails at once.

use crate::spec::BACKOFF_FIRST;
use rendezvous_core::time::Duration;

/// Failed starts in a row, and the pause that follows from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    /// Number of failures since a group last ran longer than the longest pause.
    failures: u32,
    pause: Duration,
}

impl Backoff {
    /// Records the failure of a group that ran for `ran` and is to be restarted. `longest` is the longest pause.
    pub(super) fn failed(&mut self, ran: Duration, longest: Duration) {
        self.failures = if ran < longest { self.failures.saturating_add(1) } else { 1 };
        self.pause = match self.failures.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => BACKOFF_FIRST.saturating_mul(1 << doublings.min(31)).min(longest),
        };
    }

    /// Takes back the last failure: a peer's death caused it.
    pub(super) fn excused(&mut self) {
        self.failures = self.failures.saturating_sub(1);
        self.pause = Duration::ZERO;
    }

    /// Returns the pause before the next start, and resets it.
    pub(super) fn take_pause(&mut self) -> Duration {
        core::mem::take(&mut self.pause)
    }
}
