//! Connections that wait until the server's process accepts them. In some worlds few clients that have not greeted are
//! allowed, in some the process runs out of descriptors, and in both strangers connect that never greet.

use super::host::Peer;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{ServerLimits, UngreetedLimits};
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Pause after the system had no descriptor left, as that of the socket driver.
const PAUSE: Duration = Duration::from_millis(50);
/// Shortest time that a connection has for its greeting. Greetings over a free path arrive earlier.
const TIME_MIN: Duration = Duration::from_millis(200);
/// Longest one.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Listening socket of the server's process.
pub(super) struct Accepting {
    sim_rng: SimRng,
    /// Limits of connections that have not greeted, if they are not the default.
    limits: Option<UngreetedLimits>,
    /// How often accepting fails, in percent.
    failures: u64,
    /// Number of strangers that have not connected yet.
    strangers: usize,
    /// Connections that the kernel has accepted and the process has not.
    backlog: VecDeque<Peer>,
    /// When the process tries again, by its clock.
    paused_until: Option<Instant>,
    /// When each connection was accepted, by the process's clock.
    accepted: BTreeMap<ConnId, Instant>,
}

impl Accepting {
    /// Draws the limits. A saboteur connects without this socket, so a world that has one is not `limitable`.
    pub(super) fn new(mut sim_rng: SimRng, limitable: bool) -> Self {
        let mut is_chosen = |chance| sim_rng.percent(chance) && limitable;
        let (is_limited, may_fail) = (is_chosen(25), is_chosen(10));
        let limits = is_limited.then(|| UngreetedLimits {
            count_max: 2 + sim_rng.index(7),
            time_min: sim_rng.span(TIME_MIN, TIME_MAX),
        });
        let failures = if may_fail { sim_rng.between(10, 50) } else { 0 };
        let strangers = if is_limited || may_fail { sim_rng.index(17) } else { 0 };
        Self {
            sim_rng,
            limits,
            failures,
            strangers,
            backlog: VecDeque::new(),
            paused_until: None,
            accepted: BTreeMap::new(),
        }
    }

    /// Returns the limits of the server.
    pub(super) fn limit(&self, limits: ServerLimits) -> ServerLimits {
        ServerLimits { ungreeted: self.limits.unwrap_or(limits.ungreeted), ..limits }
    }

    /// Returns whether connections may wait, or end to make way for others.
    pub(super) const fn is_limited(&self) -> bool {
        self.limits.is_some() || self.failures > 0
    }

    /// Adds a connection, and in a storm strangers before it.
    pub(super) fn arrived(&mut self, peer: Peer, is_stormy: bool) {
        while is_stormy && self.strangers > 0 && self.sim_rng.percent(50) {
            self.strangers -= 1;
            self.backlog.push_back(Peer::Stranger);
        }
        self.backlog.push_back(peer);
    }

    /// Returns when the process accepts the next connection that waits, by its clock. `ready_at` is what the machine says.
    pub(super) fn due(&self, ready_at: Option<Instant>) -> Option<Instant> {
        let ready_at = self.paused_until.or(ready_at).unwrap_or(Instant::ORIGIN);
        (!self.backlog.is_empty()).then_some(ready_at)
    }

    /// Returns whether a connection waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Accepts the connection that has waited for longest, if it is time. `None`: no descriptor is left.
    pub(super) fn accept(&mut self, now: Instant, is_stormy: bool) -> Option<Peer> {
        self.paused_until = None;
        if is_stormy && self.failures > 0 && self.sim_rng.percent(self.failures) {
            self.paused_until = Some(now + PAUSE);
            return None;
        }
        self.backlog.pop_front()
    }

    /// Returns what a stranger sends at most.
    pub(super) fn choose<'a>(&mut self, beginnings: &[&'a [u8]]) -> &'a [u8] {
        self.sim_rng.pick(beginnings)
    }

    /// Notes that the process has accepted a connection.
    pub(super) fn accepted(&mut self, conn: ConnId, now: Instant) {
        self.accepted.insert(conn, now);
    }

    /// Notes that the process has closed a connection: a descriptor is free.
    pub(super) fn closed(&mut self) {
        self.paused_until = None;
    }

    /// Returns whether a connection has had its time when another one takes its place.
    pub(super) fn may_be_displaced(&self, conn: ConnId, now: Instant, limits: &ServerLimits) -> bool {
        let accepted = self.accepted.get(&conn);
        self.is_limited() && accepted.is_some_and(|&at| at + limits.ungreeted.time_min <= now)
    }

    /// The process dies. Returns the connections that it has not accepted.
    pub(super) fn end(&mut self) -> VecDeque<Peer> {
        self.paused_until = None;
        self.accepted.clear();
        core::mem::take(&mut self.backlog)
    }
}
