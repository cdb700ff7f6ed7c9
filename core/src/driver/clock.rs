//! The one clock of a driver.

use crate::time::{Duration, Instant};

/// A monotonic clock that starts at [`Instant::ORIGIN`] when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self(std::time::Instant::now())
    }

    /// The time since it was made.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A time of this clock in seconds since 1970, by what the host's clock shows now.
    #[must_use]
    pub fn epoch_s(&self, at: Instant) -> u64 {
        let ago = self.now().since(at);
        since_1970().saturating_sub(ago).as_secs()
    }
}

/// What the host's clock shows, since the beginning of 1970; it may be set back and forth. A year before that is 1970.
#[must_use]
pub fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The moment `span` from now; far enough ahead when there is no such moment.
#[must_use]
pub fn from_now(span: Duration) -> std::time::Instant {
    let now = std::time::Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(1 << 31))
}
