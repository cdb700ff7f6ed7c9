//! How costly work shares the server's time with connections that need little of it.
//!
//! A connection is *costly* while its requests use more than a share of the time ([`Usage`]). As long as other connections
//! are active, the server executes the requests of costly ones in slices with pauses between them ([`Pacing`]).

use crate::ids::ConnId;
use crate::time::{Duration, Instant};

/// Time of one unit of work ([`crate::limits::ServerLimits::work_per_input_max`]), about.
const UNIT_NS: u64 = 200;
/// A connection that uses more than one part in so many of the server's time is costly.
const SHARE: u64 = 25;
/// Work that a connection may cause at once without being costly.
const BURST: u64 = 500;
/// Work of a slice. The server executes a single request, or a part of a long list, as a whole, so a slice may exceed it.
pub(super) const SLICE: u64 = 1000;
/// Bytes of a list that cost one unit at most, about.
const BYTES_PER_UNIT: u64 = 64;
/// Longest time for which a connection stays costly without further requests.
const COSTLY_MAX: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Longest time that pauses add to the wait of a connection for its next slice.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Costly work goes on when no other connection has sent a request for so long.
const QUIET: Duration = Duration::from_millis(2);
/// There are no other connections to wait for when none has sent anything for so long.
const ALONE: Duration = Duration::from_millis(250);

const fn span(work: u64) -> Duration {
    Duration::from_nanos(work.saturating_mul(UNIT_NS))
}

/// Returns `count` times the number of slices that work done at once would fill, if it is more than one slice.
fn per_slice(count: u64, work: u64) -> u64 {
    count.saturating_mul(work.max(SLICE)) / SLICE
}

/// Returns what work done at once counts of a connection's share. Work beyond a slice counts by its square: 0.2 ms count
/// 0.2 ms, and 2 ms count 20 ms.
fn weighted(work: u64) -> u64 {
    per_slice(work, work)
}

/// Returns the pause after a slice, which grows with the cube of a slice that is too long: the pause after 0.2 ms is 0.2 ms,
/// and after 1 ms it is 25 ms. The longer the pauses, the fewer requests of other clients meet a stall.
fn pause(work: u64) -> Duration {
    span(per_slice(weighted(work), work)).min(PAUSE_MAX)
}

/// When a connection's share of the server's time will have covered its work so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage(Instant);

impl Usage {
    pub(super) const fn new(now: Instant) -> Self {
        Self(now)
    }

    /// Adds the work for a connection's requests.
    pub(super) fn add(&mut self, now: Instant, work: u64) {
        self.use_share(now, weighted(work));
    }

    /// Adds bytes that a connection has sent. A list in them may cost as much.
    pub(super) fn add_bytes(&mut self, now: Instant, bytes: usize) {
        self.use_share(now, bytes as u64 / BYTES_PER_UNIT);
    }

    fn use_share(&mut self, now: Instant, work: u64) {
        let used = span(work.saturating_mul(SHARE)).min(COSTLY_MAX);
        self.0 = (self.0.max(now) + used).min(now + COSTLY_MAX);
    }

    pub(super) fn is_costly(self, now: Instant) -> bool {
        self.0 > now + span(BURST * SHARE)
    }
}

/// When the server executes the next slice.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Connections that are not costly: the last two that sent a request, and when. One of them may become costly.
    light: [Option<(ConnId, Instant)>; 2],
    /// When the last one before these two sent a request. Both of them may become costly.
    light_before: Option<Instant>,
    /// End of the pause after the last slice.
    resumes_at: Instant,
}

impl Pacing {
    /// Notes a request of a connection that is not costly.
    #[inline]
    pub(super) fn note_light(&mut self, now: Instant, conn: ConnId) {
        if self.light[0].is_some_and(|(last, _)| last != conn) {
            self.light_before = match self.light[1] {
                Some((other, at)) if other != conn => Some(at),
                _ => self.light_before,
            };
            self.light[1] = self.light[0];
        }
        self.light[0] = Some((conn, now));
    }

    /// Forgets a connection that is costly now, or that has ended.
    pub(super) fn forget_light(&mut self, conn: ConnId) {
        for light in &mut self.light {
            light.take_if(|(last, _)| *last == conn);
        }
    }

    /// Returns when a connection that is not costly last sent a request; `None` if that is long ago.
    fn light_at(&self, now: Instant) -> Option<Instant> {
        let last = self.light.iter().flatten().map(|&(_, at)| at);
        last.chain(self.light_before).filter(|&at| at + ALONE >= now).max()
    }

    /// Returns whether only costly connections are active.
    pub(super) fn is_alone(&self, now: Instant) -> bool {
        self.light_at(now).is_none()
    }

    /// Returns when the next slice may begin.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.light_at(now).map_or(now, |at| self.resumes_at.min(at + QUIET).max(now))
    }

    /// Notes a slice. `waiting` connections wait for the next ones.
    pub(super) fn sliced(&mut self, now: Instant, work: u64, waiting: usize) {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX).max(1);
        self.resumes_at = now + span(work) + pause(work).min(WAIT_MAX / waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConnId = ConnId { index: 1, generation: 0 };
    const OTHER: ConnId = ConnId { index: 2, generation: 0 };
    const MS: Duration = Duration::from_millis(1);

    /// Some time after the start of the server.
    fn start() -> Instant {
        Instant::ORIGIN + Duration::from_secs(1000)
    }

    #[test]
    fn a_connection_is_costly_when_it_uses_more_than_its_share() {
        let now = start();
        let mut usage = Usage::new(now);
        usage.add(now, BURST);
        assert!(!usage.is_costly(now), "a burst");
        usage.add(now, 1);
        assert!(usage.is_costly(now));
        // 1 unit of 200 ns uses 5 us.
        assert!(!usage.is_costly(now + Duration::from_micros(5)));
        // 100 units in 0.5 ms are a twenty-fifth of the time.
        for (work, is_costly) in [(100, false), (110, true)] {
            let mut usage = Usage::new(now);
            for step in 0..1000 {
                usage.add(now + step * MS / 2, work);
            }
            assert_eq!(usage.is_costly(now + 1000 * MS / 2), is_costly, "{work} units in 0.5 ms");
        }
    }

    #[test]
    fn work_at_once_beyond_a_slice_counts_by_its_square() {
        let cases = [(0, 0), (1, 1), (SLICE, SLICE), (2 * SLICE, 4 * SLICE), (10 * SLICE, 100 * SLICE)];
        for (work, counted) in cases {
            assert_eq!(weighted(work), counted, "{work}");
        }
        weighted(u64::MAX);
    }

    #[test]
    fn bytes_count_as_parts_of_a_list() {
        let now = start();
        let mut usage = Usage::new(now);
        usage.add_bytes(now, 500 * 64);
        assert!(!usage.is_costly(now));
        usage.add_bytes(now, 64);
        assert!(usage.is_costly(now));
    }

    #[test]
    fn no_work_makes_a_connection_costly_for_more_than_a_bounded_time() {
        let now = start();
        let mut usage = Usage::new(now);
        for _ in 0..3 {
            usage.add(now, u64::MAX);
        }
        assert!(usage.is_costly(now + COSTLY_MAX / 2));
        assert!(!usage.is_costly(now + COSTLY_MAX));
    }

    #[test]
    fn pauses_grow_with_the_slice_and_shrink_with_the_number_that_waits() {
        // Work of the slice, number that waits, microseconds from its begin to that of the next one.
        let cases = [
            (SLICE / 2, 1, 200),
            (SLICE, 0, 400),
            (SLICE, 1, 400),
            (5 * SLICE, 1, 26_000),
            (10 * SLICE, 1, 202_000),
            (100 * SLICE, 1, 270_000),
            (100 * SLICE, 20, 270_000),
            (100 * SLICE, 100, 70_000),
            (100 * SLICE, 5000, 21_000),
        ];
        for (work, waiting, expected_us) in cases {
            let now = start();
            let mut pacing = Pacing::default();
            pacing.sliced(now, work, waiting);
            // Others are active all the time.
            pacing.note_light(now + Duration::from_secs(1), ONE);
            let due = pacing.due(now);
            assert_eq!(due.since(now).as_micros(), expected_us, "{work} units, {waiting} wait");
        }
    }

    #[test]
    fn a_pause_ends_soon_after_the_last_request_of_another_connection() {
        let now = start();
        let mut pacing = Pacing::default();
        pacing.note_light(now, ONE);
        pacing.sliced(now, 100 * SLICE, 1);
        assert_eq!(pacing.due(now), now + QUIET);
        pacing.note_light(now + MS, ONE);
        assert_eq!(pacing.due(now + MS), now + MS + QUIET);
        assert_eq!(pacing.due(now + 10 * MS), now + 10 * MS, "it is over");
        assert!(!pacing.is_alone(now + 10 * MS), "slices are still short");
        assert!(pacing.is_alone(now + MS + ALONE + MS));
    }

    #[test]
    fn there_are_no_pauses_without_others() {
        let now = start();
        let mut pacing = Pacing::default();
        pacing.sliced(now, 100 * SLICE, 1);
        assert!(pacing.is_alone(now));
        assert_eq!(pacing.due(now), now);
        pacing.note_light(now, ONE);
        let later = now + ALONE + MS;
        pacing.sliced(later, 100 * SLICE, 1);
        assert_eq!(pacing.due(later), later);
    }

    #[test]
    fn a_connection_that_becomes_costly_is_no_reason_for_pauses() {
        let now = start();
        let mut pacing = Pacing::default();
        pacing.note_light(now, ONE);
        pacing.note_light(now, OTHER);
        pacing.forget_light(OTHER);
        assert!(!pacing.is_alone(now), "the first is still active");
        pacing.note_light(now, ONE);
        pacing.forget_light(ONE);
        assert!(pacing.is_alone(now));
    }

    #[test]
    fn a_client_is_not_forgotten_because_two_others_become_costly() {
        let (now, third) = (start(), ConnId { index: 3, generation: 0 });
        let mut pacing = Pacing::default();
        for conn in [third, ONE, OTHER, ONE] {
            pacing.note_light(now, conn);
        }
        pacing.forget_light(ONE);
        pacing.forget_light(OTHER);
        assert!(!pacing.is_alone(now), "the third is still active");
        assert!(pacing.is_alone(now + ALONE + MS));
    }
}
