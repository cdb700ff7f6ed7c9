//! How long a restart waits when starts fail at once, one after the other.

use crate::spec::BACKOFF_FIRST;
use rendezvous_core::time::Duration;

/// Failures of starts in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    /// How many, since a group ran for long.
    failures: u32,
    /// The pause before the next start.
    pause: Duration,
}

impl Backoff {
    /// A group has failed that ran for so long, and there is to be another start. `longest` is the longest pause.
    pub(super) fn failed(&mut self, ran: Duration, longest: Duration) {
        self.failures = if ran < longest { self.failures.saturating_add(1) } else { 1 };
        self.pause = match self.failures.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => BACKOFF_FIRST.saturating_mul(1 << doublings.min(31)).min(longest),
        };
    }

    /// The failure was no fault of the group's.
    pub(super) fn excused(&mut self) {
        self.failures = self.failures.saturating_sub(1);
        self.pause = Duration::ZERO;
    }

    /// The pause before the start that is due now.
    pub(super) fn take_pause(&mut self) -> Duration {
        core::mem::take(&mut self.pause)
    }
}
