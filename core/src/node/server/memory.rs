//! Memory that connections and sessions of a server hold, and its limit.

use super::{CloseReason, Server, Why};
use crate::ids::ConnId;

impl Server {
    /// Updates the count of buffered bytes for a connection.
    pub(super) fn charge(&mut self, id: ConnId) {
        self.conns.charge(id);
        self.enforce_buffer_limit();
    }

    /// Counts all bytes of a connection, of which TLS holds `bytes`. The connection may end because of them.
    pub(in crate::node) fn charge_tls(&mut self, id: ConnId, bytes: usize) {
        if let Some(conn) = self.conns.at(id) {
            conn.tls_bytes = bytes;
            self.charge(id);
        }
    }

    /// Returns the bytes that connections and sessions hold together, and those of long values that are no longer in the
    /// store, but in the history or in answers.
    pub(super) fn buffered_bytes(&self) -> u64 {
        let sessions = self.native.as_ref().map_or(0, |native| native.held_bytes());
        self.conns.buffered_bytes + sessions + self.engine.orphaned_bytes()
    }

    /// Ends the largest holders until the buffered bytes are within their limit.
    pub(super) fn enforce_buffer_limit(&mut self) {
        while self.buffered_bytes() > self.limits.buffered_bytes_max {
            let conn = self.conns.largest_holder();
            let session = self.native.as_ref().and_then(|native| native.largest_holder());
            // What belongs to no connection and no session is a job's, and ends with it.
            let conn = conn.filter(|&(_, held)| held > 0);
            match (conn, session.filter(|&(_, held)| held > 0)) {
                (conn, Some((session, held))) if conn.is_none_or(|(_, charged)| charged < held) => {
                    self.with_native(|native, context| native.expel(context, session, Why::Limit));
                }
                (Some((conn, _)), _) => {
                    self.stats.expelled += 1;
                    self.remove(conn, CloseReason::BuffersFull(self.limits.buffered_bytes_max));
                }
                (None, _) => return,
            }
        }
    }
}
