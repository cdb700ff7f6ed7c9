//! The clock.

use crate::time::Instant;

/// The monotonic clock; its origin is its creation.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self(std::time::Instant::now())
    }

    /// The time on it.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
