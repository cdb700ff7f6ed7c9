//! Connections of a server that have not greeted, and the rule by which the oldest one makes way for a new one.

use crate::limits::UngreetedLimits;
use crate::prelude::*;
use alloc::collections::VecDeque;

/// Connections that have not greeted, in the order in which they were accepted.
#[derive(Debug)]
pub struct Ungreeted {
    limits: UngreetedLimits,
    queue: VecDeque<(u64, Instant)>,
}

impl Ungreeted {
    /// Starts without connections.
    pub const fn new(limits: UngreetedLimits) -> Self {
        Self { limits, queue: VecDeque::new() }
    }

    /// Adds an accepted connection.
    pub fn accepted(&mut self, conn: u64, now: Instant) {
        self.queue.push_back((conn, now));
    }

    /// Removes a connection that has greeted or ended.
    pub fn remove(&mut self, conn: u64) {
        // Most greet in the order in which they are accepted.
        if let Some(index) = self.queue.iter().position(|&(other, _)| other == conn) {
            self.queue.remove(index);
        }
    }

    /// Returns when one more connection may be accepted; `None` stands for at once. It is to be accepted in the place of
    /// the oldest one then.
    pub fn accepts_at(&self) -> Option<Instant> {
        self.is_full().then(|| self.replaceable_at()).flatten()
    }

    /// Returns the connection that the server closes to accept one more.
    pub fn oldest_if_full(&self) -> Option<u64> {
        self.queue.front().filter(|_| self.is_full()).map(|&(conn, _)| conn)
    }

    /// Returns the oldest connection, if it has had its time.
    pub fn oldest_past_minimum(&self, now: Instant) -> Option<u64> {
        self.queue.front().filter(|_| self.replaceable_at() <= Some(now)).map(|&(conn, _)| conn)
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= self.limits.count_max
    }

    fn replaceable_at(&self) -> Option<Instant> {
        self.queue.front().map(|&(_, accepted_at)| accepted_at + self.limits.time_min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_one_makes_way_when_it_has_had_its_time() {
        let at = |ms| Instant::ORIGIN + Duration::from_millis(ms);
        let limits = UngreetedLimits { count_max: 2, time_min: Duration::from_millis(100) };
        let mut ungreeted = Ungreeted::new(limits);
        assert_eq!((ungreeted.oldest_if_full(), ungreeted.oldest_past_minimum(at(1000))), (None, None));
        ungreeted.accepted(1, at(0));
        assert_eq!((ungreeted.accepts_at(), ungreeted.oldest_if_full()), (None, None));
        assert_eq!(
            (ungreeted.oldest_past_minimum(at(99)), ungreeted.oldest_past_minimum(at(100))),
            (None, Some(1))
        );
        ungreeted.accepted(2, at(10));
        ungreeted.accepted(3, at(20));
        assert_eq!((ungreeted.accepts_at(), ungreeted.oldest_if_full()), (Some(at(100)), Some(1)));
        ungreeted.remove(1);
        assert_eq!((ungreeted.accepts_at(), ungreeted.oldest_if_full()), (Some(at(110)), Some(2)));
        ungreeted.remove(3);
        ungreeted.remove(3);
        assert_eq!((ungreeted.accepts_at(), ungreeted.oldest_if_full()), (None, None));
    }
}
