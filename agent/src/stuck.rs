//! Detection of workers that hang in the kernel, where no signal reaches them.

use rendezvous_core::sorted::SortedMap;
use rendezvous_core::time::{Duration, Instant};

/// Detector of hanging workers. It records since when each worker hangs.
#[derive(Clone, Debug)]
pub struct StuckWatch {
    timeout: Duration,
    since: SortedMap<u32, Hang>,
    checked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Hang {
    since: Instant,
    is_reported: bool,
}

/// Observed state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedState {
    /// It waits in the kernel, and no signal reaches it.
    Uninterruptible,
    /// It is in any other state, or has ended.
    Other,
}

impl StuckWatch {
    /// Creates a detector that reports hangs of at least `timeout`.
    pub const fn new(timeout: Duration) -> Self {
        Self { timeout, since: SortedMap::new(), checked_at: None }
    }

    /// Returns the interval between checks: a tenth of the timeout, from 20 ms to 1 s.
    pub fn interval(&self) -> Duration {
        (self.timeout / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Returns when to check all workers next; call [`StuckWatch::begin_check`] then.
    pub fn due(&self) -> Instant {
        self.checked_at.map_or(Instant::ORIGIN, |checked_at| checked_at + self.interval())
    }

    /// Records a check of all workers.
    pub const fn begin_check(&mut self, now: Instant) {
        self.checked_at = Some(now);
    }

    /// Records the state of a worker. Returns how long it has hung when that first reaches the timeout.
    pub fn observe(&mut self, now: Instant, local_rank: u32, state: ObservedState) -> Option<Duration> {
        if state == ObservedState::Other {
            self.since.remove(&local_rank);
            return None;
        }
        let hang = self.since.entry(local_rank, || Hang { since: now, is_reported: false });
        let hangs = now.since(hang.since);
        let is_news =
            hangs >= self.timeout && !core::mem::replace(&mut hang.is_reported, hangs >= self.timeout);
        is_news.then_some(hangs)
    }

    /// Forgets all workers, before the next start.
    pub fn clear(&mut self) {
        self.since.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn a_worker_is_told_of_once_when_it_has_hung_for_too_long() {
        let mut watch = StuckWatch::new(Duration::from_secs(5));
        for second in 0..5 {
            assert_eq!(watch.observe(at(10 + second), 1, ObservedState::Uninterruptible), None, "{second}");
            assert_eq!(watch.observe(at(10 + second), 0, ObservedState::Other), None);
        }
        assert_eq!(watch.observe(at(15), 1, ObservedState::Uninterruptible), Some(Duration::from_secs(5)));
        assert_eq!(watch.observe(at(16), 1, ObservedState::Uninterruptible), None);
    }

    #[test]
    fn who_comes_back_in_between_begins_anew() {
        let mut watch = StuckWatch::new(Duration::from_secs(5));
        for second in 0..100 {
            let state = if second % 5 == 4 { ObservedState::Other } else { ObservedState::Uninterruptible };
            assert_eq!(watch.observe(at(second), 0, state), None, "{second}");
        }
        watch.observe(at(100), 0, ObservedState::Uninterruptible);
        watch.clear();
        assert_eq!(watch.observe(at(200), 0, ObservedState::Uninterruptible), None, "another process");
    }

    #[test]
    fn it_looks_as_often_as_the_timeout_wants() {
        for (timeout, interval) in [(5000, 500), (60_000, 1000), (10, 20)] {
            let mut watch = StuckWatch::new(Duration::from_millis(timeout));
            assert_eq!(watch.due(), Instant::ORIGIN);
            watch.begin_check(at(7));
            assert_eq!(watch.due().since(at(7)), Duration::from_millis(interval));
        }
    }
}
