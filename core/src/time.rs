//! Time as the machines see it: an argument, never a clock.

pub use core::time::Duration;

/// A point on the monotonic clock of one process, in nanoseconds since an origin that its driver chose.
///
/// Range: 584 years from the origin; arithmetic saturates. Instants of different processes are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ORIGIN: Self = Self(0);
    /// Later than every other instant; never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// How late a machine may be called before that means that its process was not running.
pub const LATE_MAX: Duration = Duration::from_millis(500);

/// How long a process was not running, at most, that is to call a machine at `due`, called it last at `last` and calls it
/// again at `now`; zero if it is not late.
///
/// A process that is stopped (SIGSTOP, a frozen container, a debugger) finds all its deadlines passed when it goes on,
/// although the others had no chance to be heard. So a machine moves its deadlines by the pause: each has as much time left
/// as when the machine was last called. A suspended host needs none of that: its monotonic clock stands still.
#[must_use]
pub fn pause(last: Instant, due: Option<Instant>, now: Instant) -> Duration {
    match due {
        Some(due) if now.since(due) >= LATE_MAX => now.since(last),
        _ => Duration::ZERO,
    }
}

/// A span in seconds, as decimal text without trailing zeros: `2.5`, `600`. Its `Debug` is as Python writes a float:
/// `600.0`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seconds(pub Duration);

impl core::fmt::Display for Seconds {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (mut fraction, mut digits) = (self.0.subsec_nanos(), 9);
        if fraction == 0 {
            return write!(f, "{}", self.0.as_secs());
        }
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, "{}.{fraction:0digits$}", self.0.as_secs())
    }
}

impl core::fmt::Debug for Seconds {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let tail = if self.0.subsec_nanos() == 0 { ".0" } else { "" };
        write!(f, "{self}{tail}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_as_python_writes_them() {
        extern crate std;
        for (nanos, plain, float) in [
            (0, "0", "0.0"),
            (600_000_000_000, "600", "600.0"),
            (2_500_000_000, "2.5", "2.5"),
            (30_000_000, "0.03", "0.03"),
            (10_000_000_001, "10.000000001", "10.000000001"),
        ] {
            let seconds = Seconds(Duration::from_nanos(nanos));
            assert_eq!(
                (std::format!("{seconds}"), std::format!("{seconds:?}")),
                (plain.into(), float.into())
            );
        }
    }

    #[test]
    fn only_a_process_that_is_late_was_paused() {
        let at = Instant::from_millis;
        assert_eq!(pause(at(0), None, at(60_000)), Duration::ZERO, "nothing was due");
        assert_eq!(pause(at(0), Some(at(60_000)), at(60_499)), Duration::ZERO);
        assert_eq!(pause(at(7), Some(at(1_000)), at(1_500)), Duration::from_millis(1_493));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::ORIGIN + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::from_millis(1).since(Instant::from_millis(2)), Duration::ZERO);
        assert_eq!(Instant::from_millis(3).since(Instant::from_millis(2)), Duration::from_millis(1));
    }
}
