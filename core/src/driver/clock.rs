//! Monotonic clock of a driver.

use crate::time::{Duration, Instant};

/// Monotonic clock that starts at [`Instant::ORIGIN`] when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Makes a clock that starts now.
    pub fn new() -> Self {
        Self(std::time::Instant::now())
    }

    /// Returns the time since the clock was made.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Converts a time of this clock to seconds since 1970, with the host's clock as it is now.
    pub fn epoch_s(&self, at: Instant) -> u64 {
        let ago = self.now().since(at);
        since_1970().saturating_sub(ago).as_secs()
    }
}

/// Returns the time of the host's clock since the beginning of 1970. An administrator may set that clock back or
/// forward; a time before 1970 is returned as zero.
pub fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the moment `span` from now, or one 68 years ahead if that is not representable.
pub fn from_now(span: Duration) -> std::time::Instant {
    let now = std::time::Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(1 << 31))
}
