//! How costly work shares the server's time with connections that need little of it.
//!
//! A connection is *costly* while its requests use more than a share of the time ([`Usage`]). As long as other connections
//! are active, the requests of costly ones are served in slices with pauses between them ([`Pacing`]). A pause grows with the square of the slice before it, because a long stall must be rarer than a
//! short one: a slice of 0.2 ms is followed by a pause of 0.2 ms, and one of 2 ms by 20 ms.

use crate::ids::ConnId;
use crate::time::{Duration, Instant};

/// Time of one unit of work ([`crate::limits::ServerLimits::work_per_input_max`]), about.
const UNIT_NS: u64 = 200;
/// A connection that uses more than one part in so many of the server's time is costly.
const SHARE: u64 = 25;
/// Work that a connection may cause at once without being costly.
const BURST: u64 = 500;
/// Work of a slice. A single request is executed as a whole.
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

/// When a connection's share of the server's time will have covered its work so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage(Instant);

impl Usage {
    pub(super) const fn new(now: Instant) -> Self {
        Self(now)
    }

    /// Adds the work for a connection's requests. Work beyond a slice counts by its square, as in the pauses.
    pub(super) fn add(&mut self, now: Instant, work: u64) {
        let counted = work.saturating_mul(work.max(SLICE)) / SLICE;
        self.use_share(now, counted);
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

/// Connections that are not costly, the last two that sent a request, and when.
type Light = [Option<(ConnId, Instant)>; 2];

#[derive(Debug)]
pub(super) struct Pacing {
    light: Light,
    /// When the next slice may begin while others are active.
    resumes_at: Instant,
}

impl Pacing {
    pub(super) const fn new() -> Self {
        Self { light: [None; 2], resumes_at: Instant::ORIGIN }
    }

    /// Notes a request of a connection that is not costly.
    #[inline]
    pub(super) fn note_light(&mut self, now: Instant, conn: ConnId) {
        match &mut self.light[0] {
            Some((last, at)) if *last == conn => *at = now,
            last => {
                let last = last.replace((conn, now));
                self.light[1] = last;
            }
        }
    }

    /// Returns when one of the connections that `is_light` accepts last sent a request; `None` if that is long ago.
    fn light_at(&self, now: Instant, is_light: impl Fn(ConnId) -> bool) -> Option<Instant> {
        let recent = self.light.iter().flatten().filter(|&&(conn, at)| at + ALONE >= now && is_light(conn));
        recent.map(|&(_, at)| at).max()
    }

    /// Returns whether no connection is active that `is_light` accepts.
    pub(super) fn is_alone(&self, now: Instant, is_light: impl Fn(ConnId) -> bool) -> bool {
        self.light_at(now, is_light).is_none()
    }

    /// Returns when the next slice may begin.
    pub(super) fn due(&self, now: Instant, is_light: impl Fn(ConnId) -> bool) -> Instant {
        let Some(light_at) = self.light_at(now, is_light) else { return now };
        self.resumes_at.min(light_at + QUIET).max(now)
    }

    /// Notes a slice. `waiting` connections wait for the next ones.
    pub(super) fn sliced(&mut self, now: Instant, work: u64, waiting: usize) {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX).max(1);
        let pause = span(work.saturating_mul(work) / SLICE).min(PAUSE_MAX).min(WAIT_MAX / waiting);
        self.resumes_at = now + span(work) + pause;
    }
}
