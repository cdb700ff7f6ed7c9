//! Table of connections, and the buffer pool that they share.

use super::event::{CloseReason, InputError};
use super::pacing::Usage;
use crate::access::Challenge;
use crate::auth::Bytes32;
use crate::ids::ConnId;
use crate::prelude::*;
use crate::shared::SharedBytes;
use crate::store::engine::Listing;
use crate::store::op::Key;
use crate::store::server_conn::{self, BufferPool, Outbox, OutboxWriter, ServerConn, held_bytes};
use crate::wire::sink::Sink;
use alloc::collections::VecDeque;
use core::net::SocketAddr;

/// Maximum number of bytes that are sent to one connection before the next one's turn.
pub(super) const SENT_AT_ONCE_MAX: usize = 256 * 1024;
/// Connections with little to send that are served before one with more than `SENT_AT_ONCE_MAX`.
const SHORT_IN_A_ROW_MAX: u8 = 16;
/// Free slots that the table keeps.
pub(super) const SLOTS_KEPT: usize = 1024;

#[derive(Debug)]
pub(super) struct Conn {
    generation: u32,
    pub(super) peer: SocketAddr,
    pub(super) protocol: Protocol,
    /// Binding to the channel of TLS, if the connection has one.
    pub(super) channel: Option<Box<Bytes32>>,
    /// The start of an incomplete frame, or frames that wait until the peer has read its answers.
    pub(super) inbox: Vec<u8>,
    /// Unsent answers.
    pub(super) outbox: Outbox,
    /// Answer to a LIST_KEYS, as far as it has been made.
    pub(super) listing: Option<Box<Listing>>,
    /// Whether the server has noted that the client has greeted.
    pub(super) is_known: bool,
    /// Whether the connection is in the queue `transmits`, or in `long_transmits`.
    pub(super) to_send: bool,
    /// Whether its inbox has whole frames for a later turn.
    pub(super) is_parked: bool,
    pub(super) life: Life,
    /// Bytes that TLS holds for it.
    pub(super) tls_bytes: usize,
    /// Bytes that are counted for it in the buffered bytes of the server.
    pub(super) charged: u64,
    /// Time that its requests have used.
    pub(super) usage: Usage,
    /// When the peer last sent bytes, while a frame is incomplete.
    pub(super) last_received_at: Instant,
    /// When the peer last accepted bytes, while the socket's send buffer is full.
    pub(super) stalled_since: Option<Instant>,
    /// Whether a frame deadline is armed.
    pub(super) frame_armed: bool,
    /// Whether a stall deadline is armed.
    pub(super) stall_armed: bool,
}

/// Protocol of a connection, known from its first byte.
#[derive(Debug)]
pub(super) enum Protocol {
    Unknown,
    C10d(ServerConn),
    Native(Greeting),
}

/// How far the greeting of a native client has come.
#[derive(Debug)]
pub(super) enum Greeting {
    /// HELLO is due.
    Awaited,
    /// The client has to prove its token with a second HELLO.
    Challenged(Box<Challenge>),
    /// WELCOME has been sent.
    Done,
}

impl Protocol {
    pub(super) fn has_greeted(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::C10d(machine) => machine.has_greeted(),
            Self::Native(greeting) => matches!(greeting, Greeting::Done),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The peer sends nothing more. The connection ends when its requests have been answered.
    HalfClosed,
    /// The server reads nothing more. The connection ends, for this reason, when its answers have been sent.
    Closing(CloseReason),
}

/// Sink for frames to a connection; it discards them if there is none.
#[derive(Debug)]
pub(super) struct ConnSink<'c>(Option<OutboxWriter<'c>>);

impl Sink for ConnSink<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(writer) = &mut self.0 {
            writer.put(bytes);
        }
    }

    fn put_shared(&mut self, bytes: &SharedBytes) {
        if let Some(writer) = &mut self.0 {
            writer.put_shared(bytes);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Conns {
    slots: Vec<Option<Conn>>,
    pub(super) pool: BufferPool,
    transmits: VecDeque<ConnId>,
    /// Connections with more to send than goes out at once. Those with little go first, and do not wait for all of them.
    long_transmits: VecDeque<ConnId>,
    /// Connections with little that were served since one with much.
    short_in_a_row: u8,
    /// Bytes that are counted for all connections.
    pub(super) buffered_bytes: u64,
    /// Number of connections at which the table is next looked through for free slots at its end. A connection in a late
    /// slot keeps it from shrinking, whatever comes and goes before it.
    shrinks_at: usize,
    #[cfg(test)]
    searched: usize,
}

impl Conns {
    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.slots.get(id.index as usize)?.as_ref().filter(|conn| conn.generation == id.generation)
    }

    pub(super) fn find(&mut self, id: ConnId) -> Result<&mut Conn, InputError> {
        let slot = self.slots.get_mut(id.index as usize).and_then(Option::as_mut);
        slot.filter(|conn| conn.generation == id.generation).ok_or(InputError::UnknownConnection(id))
    }

    /// Returns the connection in the slot of `id`, which the caller knows to be `id`.
    #[inline]
    pub(super) fn at(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(id.index as usize)?.as_mut()
    }

    /// As [`Conns::at`], with the pool of the connection's buffers.
    #[inline]
    pub(super) fn parts(&mut self, id: ConnId) -> (Option<&mut Conn>, &mut BufferPool) {
        (self.slots.get_mut(id.index as usize).and_then(Option::as_mut), &mut self.pool)
    }

    pub(super) fn check_free(&self, id: ConnId) -> Result<(), InputError> {
        match self.slots.get(id.index as usize) {
            Some(Some(_)) => Err(InputError::SlotTaken(id)),
            _ => Ok(()),
        }
    }

    pub(super) fn insert(&mut self, id: ConnId, peer: SocketAddr, now: Instant) {
        let index = id.index as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Conn {
            generation: id.generation,
            peer,
            protocol: Protocol::Unknown,
            channel: None,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            listing: None,
            is_known: false,
            to_send: false,
            is_parked: false,
            life: Life::Open,
            tls_bytes: 0,
            charged: 0,
            usage: Usage::new(now),
            last_received_at: now,
            stalled_since: None,
            frame_armed: false,
            stall_armed: false,
        });
    }

    /// Removes a connection and returns its buffers to the pool.
    pub(super) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let mut conn = self.slots.get_mut(id.index as usize)?.take()?;
        conn.outbox.clear(&mut self.pool);
        self.pool.give(core::mem::take(&mut conn.inbox));
        self.buffered_bytes -= conn.charged;
        Some(conn)
    }

    /// Sends a c10d connection that its wait or barrier has ended, perhaps by a push to a queue.
    #[inline]
    pub(super) fn release(&mut self, id: ConnId, pushed: Option<Key<'_>>) {
        if let (Some(conn), pool) = self.parts(id) {
            let Protocol::C10d(machine) = &mut conn.protocol else { return };
            if !machine.defers_release() {
                server_conn::release(&mut conn.outbox.writer(pool));
            }
            if let Some(queue) = pushed {
                machine.note_wake(queue);
            }
            self.want_to_send(id);
        }
    }

    /// Returns the sink for frames to a connection. The caller calls [`Conns::want_to_send`] after writing.
    pub(super) fn sink(&mut self, id: Option<ConnId>) -> ConnSink<'_> {
        let Self { slots, pool, .. } = self;
        let conn = id.and_then(|id| slots.get_mut(id.index as usize)).and_then(Option::as_mut);
        ConnSink(conn.map(|conn| conn.outbox.writer(pool)))
    }

    #[inline]
    pub(super) fn want_to_send(&mut self, id: ConnId) {
        let Self { slots, transmits, long_transmits, .. } = self;
        let Some(conn) = slots.get_mut(id.index as usize).and_then(Option::as_mut) else { return };
        let unsent = conn.outbox.len();
        let is_long = unsent > SENT_AT_ONCE_MAX;
        if !conn.to_send && unsent > 0 {
            conn.to_send = true;
            (if is_long { long_transmits } else { transmits }).push_back(id);
        }
        // Others may cause long answers to a connection from which no input comes.
        if is_long {
            self.charge(id);
        }
    }

    /// Number of slots that the table has memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Number of slots that were looked at in order to shrink the table.
    #[cfg(test)]
    pub(super) const fn searched(&self) -> usize {
        self.searched
    }

    /// Returns the next connection to send to: one with little to send, unless many of these had precedence.
    pub(super) fn next_to_send(&mut self) -> Option<ConnId> {
        if self.short_in_a_row >= SHORT_IN_A_ROW_MAX
            && let Some(id) = self.next_long_to_send()
        {
            return Some(id);
        }
        let id = self.transmits.pop_front()?;
        self.short_in_a_row = self.short_in_a_row.saturating_add(1);
        self.take_from_queue(id)
    }

    /// Returns the next connection with much to send.
    pub(super) fn next_long_to_send(&mut self) -> Option<ConnId> {
        let id = self.long_transmits.pop_front()?;
        self.short_in_a_row = 0;
        self.take_from_queue(id)
    }

    fn take_from_queue(&mut self, id: ConnId) -> Option<ConnId> {
        if let Ok(conn) = self.find(id) {
            conn.to_send = false;
        }
        Some(id)
    }

    /// Updates the bytes that are counted for a connection.
    pub(super) fn charge(&mut self, id: ConnId) {
        let Some(conn) = self.at(id) else { return };
        let machine = if let Protocol::C10d(machine) = &conn.protocol { machine.held_bytes() } else { 0 };
        let holds = (held_bytes(&conn.inbox) + conn.outbox.held_bytes() + machine + conn.tls_bytes) as u64;
        let before = core::mem::replace(&mut conn.charged, holds);
        self.buffered_bytes = self.buffered_bytes - before + holds;
    }

    /// Returns the connections: whether each is one that has not greeted, and how many bytes it holds.
    pub(super) fn holders(&self) -> impl Iterator<Item = (bool, u64, ConnId)> {
        self.slots.iter().zip(0..).filter_map(|(conn, index)| {
            let conn = conn.as_ref()?;
            let listed = conn.listing.as_ref().map_or(0, |listing| listing.bytes().held_bytes());
            let shared = (listed + conn.outbox.shared_bytes()) as u64;
            let id = ConnId { index, generation: conn.generation };
            Some((!conn.is_known, conn.charged + shared, id))
        })
    }

    /// Shrinks a table that is mostly free, after the removal of `removed`. Returns its new length if it did.
    pub(super) fn shrink_slots(&mut self, connections: usize, removed: ConnId) -> Option<usize> {
        let slots = self.slots.len();
        if slots < SLOTS_KEPT || connections > slots / 8 {
            self.shrinks_at = usize::MAX;
            return None;
        }
        if connections > self.shrinks_at && (removed.index as usize) < slots / 2 {
            return None;
        }
        let used = self.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        #[cfg(test)]
        (self.searched += slots - used + 1);
        if used > slots / 2 {
            self.shrinks_at = connections / 2;
            return None;
        }
        self.shrinks_at = usize::MAX;
        self.slots.truncate(used);
        self.slots.shrink_to(used);
        self.transmits.shrink_to(used);
        self.long_transmits.shrink_to(used);
        Some(used)
    }
}
