//! New connections of a server, until they have greeted.

use super::deadlines::Deadline;
use super::{CloseReason, Event, InputError, Server};
use crate::ids::ConnId;
use crate::prelude::*;
use core::net::SocketAddr;

impl Server {
    /// Returns when the caller may accept the next connection; `None` stands for at once. If it accepts earlier, a
    /// client that has had little time to greet loses its connection.
    pub fn accepts_at(&self) -> Option<Instant> {
        self.ungreeted.accepts_at().map(|at| at + self.paused)
    }

    pub(super) fn accept(&mut self, id: ConnId, peer: SocketAddr) -> Result<(), InputError> {
        self.conns.check_free(id)?;
        let is_full = self.stats.connections >= self.limits.connections_max;
        if let Some(oldest) = self.ungreeted.oldest_if_full() {
            self.displace(oldest);
        } else if is_full && !self.displace_overdue() {
            let reason = CloseReason::TooManyConnections(self.limits.connections_max);
            self.stats.expelled += 1;
            self.closes.push_back(id);
            self.events.push_back(Event::Closed { conn: id, peer, reason });
            return Ok(());
        }
        self.conns.insert(id, peer, self.now);
        self.ungreeted.accepted(number(id), self.now);
        self.stats.connections += 1;
        self.stats.accepted += 1;
        self.arm(self.now + self.limits.handshake_timeout, Deadline::Handshake, id);
        self.events.push_back(Event::Accepted { conn: id, peer });
        Ok(())
    }

    /// Closes the oldest connection that has not greeted, if it has had time to. Returns whether it did.
    pub(super) fn displace_overdue(&mut self) -> bool {
        let overdue = self.ungreeted.oldest_past_minimum(self.now);
        overdue.map(|conn| self.displace(conn)).is_some()
    }

    fn displace(&mut self, conn: u64) {
        self.stats.expelled += 1;
        self.remove(conn_of(conn), CloseReason::Displaced);
    }

    /// Notes that a connection has greeted, if it has.
    pub(super) fn note_greeting(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.at(id)
            && !conn.is_known
            && conn.protocol.has_greeted()
        {
            conn.is_known = true;
            self.ungreeted.remove(number(id));
        }
    }

    /// Forgets a connection that has ended.
    pub(super) fn forget_ungreeted(&mut self, id: ConnId) {
        self.ungreeted.remove(number(id));
    }
}

/// Number by which [`crate::ungreeted::Ungreeted`] knows a connection.
fn number(id: ConnId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

const fn conn_of(number: u64) -> ConnId {
    #[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
    ConnId { index: number as u32, generation: (number >> 32) as u32 }
}
