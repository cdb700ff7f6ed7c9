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

/// How late a state machine may be called before that means that its process was paused.
const LATE_MAX: Duration = Duration::from_millis(500);

/// How long a state machine that a program polls must have been called in time after a pause before it recognises another
/// one.
const PUNCTUAL_MIN: Duration = Duration::from_secs(2);

/// What polls a state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poller {
    /// A thread of the library that does nothing else.
    Thread,
    /// Perhaps a program, by its event loop, as seldom as it likes.
    #[default]
    Program,
}

/// Recognises that the process of a state machine was paused: stopped by a signal, in a frozen container or in a debugger.
///
/// Such a process finds all its deadlines passed when it goes on, although its peers had no chance to be heard. So the state
/// machine moves its deadlines by the pause: each has as much time left as when the machine was last called. A suspended
/// host needs none of that, because its monotonic clock stands still.
///
/// A program that polls its event loop seldom is late each time. Only its first delay counts as a pause, so its deadlines
/// pass too.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseDetector {
    poller: Poller,
    called_at: Instant,
    /// The time still to be spent punctually before the next pause can be recognised.
    unproven: Duration,
}

impl PauseDetector {
    /// For a state machine that is created at `now`.
    #[must_use]
    pub const fn new(now: Instant, poller: Poller) -> Self {
        Self { poller, called_at: now, unproven: Duration::ZERO }
    }

    /// When the state machine was called last.
    #[must_use]
    pub const fn called_at(&self) -> Instant {
        self.called_at
    }

    /// Returns how long the process was paused, given that the state machine is called at `now` and had asked for that at
    /// `due`. Zero: it was not.
    pub fn on_call(&mut self, now: Instant, due: impl FnOnce() -> Option<Instant>) -> Duration {
        let gap = now.since(core::mem::replace(&mut self.called_at, now));
        // Calls that follow each other closely do not ask for the next deadline.
        if gap < LATE_MAX || due().is_none_or(|due| now.since(due) < LATE_MAX) {
            self.unproven = self.unproven.saturating_sub(gap);
            return Duration::ZERO;
        }
        let is_pause = self.poller == Poller::Thread || self.unproven.is_zero();
        self.unproven = PUNCTUAL_MIN;
        if is_pause { gap } else { Duration::ZERO }
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
