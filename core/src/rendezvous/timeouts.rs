//! Timeouts of a rendezvous, and their validation.

use crate::time::Duration;
use core::fmt;

/// Timeouts of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time from a join to its round.
    pub join: Duration,
    /// Time from the minimum of nodes to the end of the last call.
    pub last_call: Duration,
    /// Time until a close is confirmed.
    pub close: Duration,
    /// Time until a heartbeat is confirmed.
    pub heartbeat: Duration,
}

impl Timeouts {
    /// PyTorch's defaults: 600, 30, 30 and 5 seconds.
    pub const DEFAULT: Self = Self {
        join: Duration::from_secs(600),
        last_call: Duration::from_secs(30),
        close: Duration::from_secs(30),
        heartbeat: Duration::from_secs(5),
    };

    /// Returns the timeout that is called `which`, from whole seconds.
    ///
    /// # Errors
    /// It is not positive.
    pub fn from_seconds(which: &'static str, seconds: i64) -> Result<Duration, TimeoutError> {
        match u64::try_from(seconds) {
            Ok(whole @ 1..) => Ok(Duration::from_secs(whole)),
            _ => Err(TimeoutError { which, seconds }),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A timeout is not positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The {which} timeout ({}) must be positive.", Span(*.seconds))]
pub struct TimeoutError {
    /// Name of the timeout: `join`, `last_call`, `close` or `heartbeat`.
    pub which: &'static str,
    /// The given timeout, in seconds.
    pub seconds: i64,
}

/// A time in seconds, printed as Python prints a `timedelta`.
struct Span(i64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.0.div_euclid(86_400), self.0.rem_euclid(86_400));
        match days {
            0 => {}
            1 | -1 => write!(f, "{days} day, ")?,
            _ => write!(f, "{days} days, ")?,
        }
        write!(f, "{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn timeouts_are_positive_seconds() {
        assert_eq!(Timeouts::from_seconds("join", 600), Ok(Timeouts::DEFAULT.join));
        for (which, seconds, text) in [
            ("join", 0, "The join timeout (0:00:00) must be positive."),
            ("close", -1, "The close timeout (-1 day, 23:59:59) must be positive."),
            ("heartbeat", -90_061, "The heartbeat timeout (-2 days, 22:58:59) must be positive."),
        ] {
            let error = Timeouts::from_seconds(which, seconds).expect_err("not positive");
            assert_eq!(error.to_string(), text);
        }
    }
}
