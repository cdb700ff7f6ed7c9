//! Clocks of hosts: none shows the world's time, and most run faster or slower.

use super::sim_rng::SimRng;
use rendezvous_core::time::{Duration, Instant};

/// Clock of a host, with an offset and a drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Clock {
    offset: u64,
    /// Nanoseconds that it advances during a billion nanoseconds of the world.
    pace: u64,
}

/// A billion: the pace of the world.
const EVEN: u64 = 1_000_000_000;
/// Largest drift, in billionths: 3 %, far more than that of any real clock.
const DRIFT_MAX: u64 = EVEN / 100 * 3;

impl Clock {
    /// The world's own clock.
    pub(in crate::sim) const WORLD: Self = Self { offset: 0, pace: EVEN };

    pub(in crate::sim) fn any(sim_rng: &mut SimRng) -> Self {
        let offset = sim_rng.span(Duration::ZERO, Duration::from_secs(1_000_000));
        let pace = match sim_rng.index(3) {
            0 => EVEN,
            _ => sim_rng.between(EVEN - DRIFT_MAX, EVEN + DRIFT_MAX),
        };
        Self { offset: u64::try_from(offset.as_nanos()).unwrap_or(0), pace }
    }

    /// Moves the clock on, by up to 10 s, half the time.
    pub(in crate::sim) fn may_step(&mut self, sim_rng: &mut SimRng) {
        if sim_rng.percent(50) {
            let by = sim_rng.span(Duration::ZERO, Duration::from_secs(10));
            self.offset = self.offset.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(0));
        }
    }

    /// Returns what it shows at a time of the world.
    pub(in crate::sim) fn shows(self, world: Instant) -> Instant {
        let span = u128::from(world.as_nanos()) * u128::from(self.pace) / u128::from(EVEN);
        Instant::from_nanos(self.offset.saturating_add(u64::try_from(span).unwrap_or(u64::MAX)))
    }

    /// Returns the first time of the world at which it shows `visible`; `None` for [`Instant::MAX`].
    pub(in crate::sim) fn when(self, visible: Instant) -> Option<Instant> {
        if visible == Instant::MAX {
            return None;
        }
        let span = u128::from(visible.as_nanos().saturating_sub(self.offset));
        let world = (span * u128::from(EVEN)).div_ceil(u128::from(self.pace));
        u64::try_from(world).ok().map(Instant::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_by_a_clock_is_due_when_it_shows_that() {
        for seed in 0..200 {
            let mut sim_rng = SimRng::new(seed, 0);
            let clock = Clock::any(&mut sim_rng);
            let world = Instant::from_nanos(sim_rng.between(0, 1 << 40));
            let due = clock.shows(world) + Duration::from_nanos(sim_rng.between(0, 1 << 34));
            let at = clock.when(due).expect("it comes");
            assert!(clock.shows(at) >= due && at >= world, "{clock:?}");
            assert!(at == world || clock.shows(Instant::from_nanos(at.as_nanos() - 2)) < due);
        }
        assert_eq!(Clock::WORLD.when(Instant::MAX), None);
    }
}
