//! Memory that connections and sessions of a server hold, and its limit.

use super::{CloseReason, Server, Why};
use crate::ids::ConnId;
use crate::prelude::*;
use crate::session::table::SessionId;

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

    /// Ends the largest holders until the buffered bytes are within their limit. If connections that have not greeted hold
    /// more than 1/64 of it together, they end first, so that strangers do not cost clients their sessions.
    pub(super) fn enforce_buffer_limit(&mut self) {
        let limit = self.limits.buffered_bytes_max;
        let spare = limit / 64;
        while self.buffered_bytes() > limit {
            let (mut largest, mut strangers, mut strangers_bytes) = (0, 0, 0);
            self.visit_holders(&mut |is_stranger, bytes, _| {
                largest = largest.max(bytes);
                if is_stranger {
                    (strangers, strangers_bytes) = (strangers + 1, strangers_bytes + bytes);
                }
            });
            // What belongs to no connection and no session is a job's, and ends with it.
            if largest == 0 {
                return;
            }
            // A look at all of them takes milliseconds if there are many. So it ends all that are nearly as large, until a
            // part of the memory is free.
            let of_strangers = strangers_bytes > spare;
            let least = if of_strangers { strangers_bytes / (2 * strangers) } else { largest - largest / 8 };
            let mut some = Vec::new();
            self.visit_holders(&mut |is_stranger, bytes, holder| {
                if (is_stranger || !of_strangers) && bytes >= least && some.len() < ENDED_AT_ONCE_MAX {
                    some.push(holder);
                }
            });
            for holder in some {
                match holder {
                    // It may have ended with its session.
                    Holder::Conn(conn) if self.conns.get(conn).is_none() => {}
                    Holder::Conn(conn) => {
                        self.stats.expelled += 1;
                        self.remove(conn, CloseReason::BuffersFull(limit));
                    }
                    Holder::Session(session) => {
                        self.with_native(|native, context| native.expel(context, session, Why::Limit));
                    }
                }
                if self.buffered_bytes() <= limit - spare {
                    return;
                }
            }
        }
    }

    /// Visits all that hold bytes: whether it is a connection that has not greeted, and how many bytes it holds.
    fn visit_holders(&self, visit: &mut dyn FnMut(bool, u64, Holder)) {
        for (is_stranger, bytes, conn) in self.conns.holders().filter(|&(_, bytes, _)| bytes > 0) {
            visit(is_stranger, bytes, Holder::Conn(conn));
        }
        for (bytes, session) in self.native.iter().flat_map(|native| native.holders()) {
            visit(false, bytes, Holder::Session(session));
        }
    }
}

/// Maximum number of holders that end after one look at all.
const ENDED_AT_ONCE_MAX: usize = 4096;

#[derive(Clone, Copy)]
enum Holder {
    Conn(ConnId),
    Session(SessionId),
}
