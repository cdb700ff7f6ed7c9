//! Time of the state machines: an argument, never a clock.

pub use core::time::Duration;

/// Point in time on the monotonic clock of one process, in nanoseconds since an origin that its driver chose.
///
/// Range: 584 years from the origin; arithmetic saturates. Instants of different processes are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ORIGIN: Self = Self(0);
    /// The latest instant; never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the instant `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero when `earlier` is later.
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

/// Delay of a call of a state machine from which on the process counts as paused.
const LATE_MAX: Duration = Duration::from_millis(500);

/// Time after a pause during which a program must poll a state machine punctually before another pause is
/// recognised.
const PUNCTUAL_MIN: Duration = Duration::from_secs(2);

/// Poller of a state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poller {
    /// A thread of the library with no other task.
    Thread,
    /// Possibly a program with its own event loop, at any interval.
    #[default]
    Program,
}

/// Detector of pauses of the process: a stop signal, a frozen container or a debugger.
///
/// A resumed process finds all its deadlines passed, although its peers had no chance to reach it. So the state
/// machine extends its deadlines by the pause: each has as much time left as at the last call of the machine. A
/// suspended host does not need this, because its monotonic clock stops.
///
/// A program that rarely polls its event loop is late each time. Only its first delay counts as a pause, so that
/// its deadlines pass as well.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseDetector {
    poller: Poller,
    called_at: Instant,
    /// Remaining punctual time until the next pause can be recognised.
    unproven: Duration,
}

impl PauseDetector {
    /// Creates the detector of a state machine that is created at `now`.
    pub const fn new(now: Instant, poller: Poller) -> Self {
        Self { poller, called_at: now, unproven: Duration::ZERO }
    }

    /// Returns when the state machine was last called.
    pub const fn called_at(&self) -> Instant {
        self.called_at
    }

    /// Returns how long the process was paused, given that the state machine is called at `now` and had requested a
    /// call at `due`. Zero means that it was not.
    pub fn on_call(&mut self, now: Instant, due: impl FnOnce() -> Option<Instant>) -> Duration {
        let gap = now.since(core::mem::replace(&mut self.called_at, now));
        // `due` is not evaluated for calls in quick succession.
        if gap < LATE_MAX || due().is_none_or(|due| now.since(due) < LATE_MAX) {
            self.unproven = self.unproven.saturating_sub(gap);
            return Duration::ZERO;
        }
        let is_pause = self.poller == Poller::Thread || self.unproven.is_zero();
        self.unproven = PUNCTUAL_MIN;
        if is_pause { gap } else { Duration::ZERO }
    }
}

/// Time span in seconds, as decimal text without trailing zeros: `2.5`, `600`. `Debug` formats it as Python formats
/// a float: `600.0`.
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
        let pause =
            |called, due, now| PauseDetector::new(at(called), Poller::Program).on_call(at(now), || due);
        assert_eq!(pause(0, None, 60_000), Duration::ZERO, "nothing was due");
        assert_eq!(pause(0, Some(at(60_000)), 60_499), Duration::ZERO);
        assert_eq!(pause(7, Some(at(1_000)), 1_500), Duration::from_millis(1_493));
    }

    #[test]
    fn a_program_that_is_always_late_was_paused_once_at_most() {
        let mut detector = PauseDetector::new(Instant::ORIGIN, Poller::Program);
        let mut call = |millis, due| {
            detector.on_call(Instant::from_millis(millis), || Some(Instant::from_millis(due))).as_millis()
        };
        // It polls its loop twice every 3 s, and something is due 1 s after that.
        assert_eq!([call(3_000, 1_000), call(3_001, 4_001)], [3_000, 0]);
        for round in 2..100 {
            let now = round * 3_000;
            assert_eq!([call(now, now - 2_000), call(now + 1, now + 1_001)], [0, 0]);
        }
    }

    #[test]
    fn a_process_that_was_in_time_for_a_while_may_be_paused_again() {
        let mut detector = PauseDetector::new(Instant::ORIGIN, Poller::Program);
        let mut call = |millis, due| {
            detector.on_call(Instant::from_millis(millis), || Some(Instant::from_millis(due))).as_millis()
        };
        assert_eq!(call(20_000, 1_000), 20_000);
        assert_eq!([call(21_000, 21_000), call(22_000, 22_000)], [0, 0]);
        assert_eq!(call(3_622_000, 23_000), 3_600_000);
        assert_eq!(call(3_624_000, 3_623_000), 0, "too soon after it");
        // Of a thread that does nothing else, each delay is a pause.
        let mut detector = PauseDetector::new(Instant::ORIGIN, Poller::Thread);
        let mut call = |millis, due| {
            detector.on_call(Instant::from_millis(millis), || Some(Instant::from_millis(due))).as_millis()
        };
        assert_eq!([call(20_000, 1_000), call(40_000, 21_000)], [20_000, 20_000]);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::ORIGIN + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::from_millis(1).since(Instant::from_millis(2)), Duration::ZERO);
        assert_eq!(Instant::from_millis(3).since(Instant::from_millis(2)), Duration::from_millis(1));
    }
}
