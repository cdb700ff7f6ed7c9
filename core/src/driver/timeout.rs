//! Timeouts of calls.

use crate::store::call::WaitMode;
use crate::time::Duration;

/// Timeout of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// The store's [`Timeouts::call`].
    #[default]
    Default,
    /// Check once, without waiting for absent keys. The response itself may take [`Timeouts::answer`].
    Once,
    /// This time from the call. Zero means [`Timeout::Once`].
    After(Duration),
}

/// Default timeouts of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of a call that sets none.
    pub call: Duration,
    /// Timeout of the response to a call that does not wait.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { call: Duration::from_secs(300), answer: Duration::from_secs(30) }
    }
}

impl Timeouts {
    /// Resolves a timeout: returns the time until the deadline, and whether the call waits.
    pub const fn wait_budget(&self, timeout: Timeout) -> (Duration, WaitMode) {
        match timeout {
            Timeout::Default if self.call.is_zero() => (self.answer, WaitMode::Once),
            Timeout::Default => (self.call, WaitMode::Wait),
            Timeout::Once | Timeout::After(Duration::ZERO) => (self.answer, WaitMode::Once),
            Timeout::After(span) => (span, WaitMode::Wait),
        }
    }
}
