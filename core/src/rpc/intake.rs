//! How much a worker has taken in, of all its callers together.

use crate::limits::IntakeLimits;

/// Counts what is taken in and not yet done with.
///
/// When there is no room, connections are not read. A connection whose payload is under way is read on, so that what holds
/// the room can be done with; so there may be more than the limit by what each connection may have under way.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    limits: IntakeLimits,
    requests: u64,
    bytes: u64,
}

/// What came of it that something was done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was some before, or there is none.
    AsBefore,
    /// Who was held up can go on.
    Again,
}

impl Intake {
    /// Nothing is taken in.
    #[must_use]
    pub const fn new(limits: IntakeLimits) -> Self {
        Self { limits, requests: 0, bytes: 0 }
    }

    /// Whether more may be taken in.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.requests < self.limits.requests_max && self.bytes < self.limits.bytes_max
    }

    /// A request with a payload of so many bytes begins.
    pub const fn enter(&mut self, payload_bytes: u64) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(payload_bytes);
    }

    /// It is done with.
    pub const fn leave(&mut self, payload_bytes: u64) -> Room {
        let had_room = self.has_room();
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(payload_bytes);
        if !had_room && self.has_room() { Room::Again } else { Room::AsBefore }
    }

    /// Requests and bytes that are taken in.
    #[must_use]
    pub const fn held(&self) -> (u64, u64) {
        (self.requests, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_a_limit_is_reached_and_again_below_it() {
        let mut intake = Intake::new(IntakeLimits { requests_max: 2, bytes_max: 100 });
        intake.enter(99);
        assert!(intake.has_room());
        intake.enter(50);
        assert!(!intake.has_room());
        assert_eq!((intake.leave(50), intake.has_room()), (Room::Again, true));
        intake.enter(1);
        assert_eq!((intake.leave(99), intake.leave(1)), (Room::Again, Room::AsBefore));
        assert_eq!(intake.held(), (0, 0));
    }
}
