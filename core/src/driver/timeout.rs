//! How long calls may take.

use crate::store::call::WaitMode;
use crate::time::Duration;

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// As long as [`Timeouts::call`] says.
    #[default]
    Default,
    /// Look once, and do not wait for what is not there. The answer itself may take [`Timeouts::answer`].
    Once,
    /// So long from the call. Zero is [`Timeout::Once`].
    After(Duration),
}

/// What a store's timeouts stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a call may take that does not say.
    pub call: Duration,
    /// How long the answer to a call may take that does not wait.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { call: Duration::from_secs(300), answer: Duration::from_secs(30) }
    }
}

impl Timeouts {
    /// What a timeout means here: the time until the deadline, and whether the call waits.
    #[must_use]
    pub const fn wait_budget(&self, timeout: Timeout) -> (Duration, WaitMode) {
        match timeout {
            Timeout::Default if self.call.is_zero() => (self.answer, WaitMode::Once),
            Timeout::Default => (self.call, WaitMode::Wait),
            Timeout::Once | Timeout::After(Duration::ZERO) => (self.answer, WaitMode::Once),
            Timeout::After(span) => (span, WaitMode::Wait),
        }
    }
}
