//! The table of connections, with the buffers that they share.

use super::event::{CloseReason, InputError};
use crate::ids::ConnId;
use crate::session::table::SessionId;
use crate::store::server_conn::{self, BufferPool, Outbox, OutboxWriter, ServerConn, held_bytes};
use crate::time::Instant;
use crate::wire::sink::Sink;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// Places that the table may keep though they are free.
pub(super) const PLACES_KEPT: usize = 1024;

#[derive(Debug)]
pub(super) struct Conn {
    generation: u32,
    pub(super) peer: SocketAddr,
    pub(super) language: Language,
    /// The start of a frame whose rest has not come, or frames that rest until the peer reads.
    pub(super) inbox: Vec<u8>,
    /// Answers that are not sent yet.
    pub(super) outbox: Outbox,
    /// Stands in `transmits`.
    pub(super) to_send: bool,
    pub(super) life: Life,
    /// Its share of the buffered bytes.
    pub(super) charged: u64,
    /// When the peer last sent, while a frame is incomplete.
    pub(super) last_received_at: Instant,
    /// When the peer last took bytes, while its socket takes no more of those that are unsent.
    pub(super) stalled_since: Option<Instant>,
    pub(super) frame_armed: bool,
    pub(super) stall_armed: bool,
}

/// What a connection speaks; its first byte tells.
#[derive(Debug)]
pub(super) enum Language {
    Unknown,
    C10d(ServerConn),
    /// With its session, from Welcome on.
    Native(Option<SessionId>),
}

impl Language {
    pub(super) fn has_greeted(&self) -> bool {
        match self {
            Self::Unknown => false,
            Self::C10d(machine) => machine.has_greeted(),
            Self::Native(session) => session.is_some(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The peer sends no more; what it asked for is answered, then the connection ends.
    HalfClosed,
    /// Nothing more is read; the connection ends, for this reason, when its answers have left.
    Closing(CloseReason),
}

/// The way to a connection, or to nobody.
#[derive(Debug)]
pub(super) struct Line<'c>(Option<OutboxWriter<'c>>);

impl Sink for Line<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(writer) = &mut self.0 {
            writer.put(bytes);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Conns {
    places: Vec<Option<Conn>>,
    pub(super) pool: BufferPool,
    transmits: VecDeque<ConnId>,
}

impl Conns {
    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.places.get(id.index as usize)?.as_ref().filter(|conn| conn.generation == id.generation)
    }

    pub(super) fn find(&mut self, id: ConnId) -> Result<&mut Conn, InputError> {
        let slot = self.places.get_mut(id.index as usize).and_then(Option::as_mut);
        slot.filter(|conn| conn.generation == id.generation).ok_or(InputError::UnknownConnection(id))
    }

    /// A connection that is known to be the present one of its place.
    #[inline]
    pub(super) fn at(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.places.get_mut(id.index as usize)?.as_mut()
    }

    /// The same, with the pool that its buffers come from.
    #[inline]
    pub(super) fn parts(&mut self, id: ConnId) -> (Option<&mut Conn>, &mut BufferPool) {
        (self.places.get_mut(id.index as usize).and_then(Option::as_mut), &mut self.pool)
    }

    pub(super) fn check_free(&self, id: ConnId) -> Result<(), InputError> {
        match self.places.get(id.index as usize) {
            Some(Some(_)) => Err(InputError::SlotTaken(id)),
            _ => Ok(()),
        }
    }

    pub(super) fn insert(&mut self, id: ConnId, peer: SocketAddr, now: Instant) {
        let index = id.index as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(Conn {
            generation: id.generation,
            peer,
            language: Language::Unknown,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            to_send: false,
            life: Life::Open,
            charged: 0,
            last_received_at: now,
            stalled_since: None,
            frame_armed: false,
            stall_armed: false,
        });
    }

    /// Takes a connection out; its buffers go back.
    pub(super) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let mut conn = self.places.get_mut(id.index as usize)?.take()?;
        conn.outbox.clear(&mut self.pool);
        self.pool.give(core::mem::take(&mut conn.inbox));
        Some(conn)
    }

    /// A wait or barrier of a c10d connection is over.
    #[inline]
    pub(super) fn release(&mut self, id: ConnId) {
        if let (Some(conn), pool) = self.parts(id) {
            server_conn::release(&mut conn.outbox.writer(pool));
            self.want_to_send(id);
        }
    }

    /// Where frames to a connection go; nowhere when there is none. Say [`Conns::want_to_send`] when they are written.
    pub(super) fn line(&mut self, id: Option<ConnId>) -> Line<'_> {
        let Self { places, pool, .. } = self;
        let conn = id.and_then(|id| places.get_mut(id.index as usize)).and_then(Option::as_mut);
        Line(conn.map(|conn| conn.outbox.writer(pool)))
    }

    #[inline]
    pub(super) fn want_to_send(&mut self, id: ConnId) {
        let Self { places, transmits, .. } = self;
        if let Some(conn) = places.get_mut(id.index as usize).and_then(Option::as_mut)
            && !conn.to_send
            && !conn.outbox.unsent().is_empty()
        {
            conn.to_send = true;
            transmits.push_back(id);
        }
    }

    /// Places that the table has memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }

    pub(super) fn next_to_send(&mut self) -> Option<ConnId> {
        let id = self.transmits.pop_front()?;
        if let Ok(conn) = self.find(id) {
            conn.to_send = false;
        }
        Some(id)
    }

    /// Brings a connection's share of the buffered bytes up to date; returns by how much it changed.
    pub(super) fn charge(&mut self, id: ConnId) -> Option<i64> {
        let conn = self.at(id)?;
        let holds = (held_bytes(&conn.inbox) + conn.outbox.held_bytes()) as u64;
        let change = holds.cast_signed() - conn.charged.cast_signed();
        conn.charged = holds;
        Some(change)
    }

    /// The connection that holds most, and how much.
    pub(super) fn greediest(&self) -> Option<(ConnId, u64)> {
        let places = self.places.iter().zip(0..);
        let holders = places.filter_map(|(conn, index)| {
            let conn = conn.as_ref()?;
            Some((conn.charged, ConnId { index, generation: conn.generation }))
        });
        holders.max().map(|(charged, id)| (id, charged))
    }

    /// A table that many connections have blown up shrinks when few are left; returns its new length then.
    pub(super) fn give_places_back(&mut self, connections: usize) -> Option<usize> {
        let places = self.places.len();
        if places < PLACES_KEPT || connections > places / 8 {
            return None;
        }
        let used = self.places.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if used > places / 2 {
            return None;
        }
        self.places.truncate(used);
        self.places.shrink_to(used);
        self.transmits.shrink_to(used);
        Some(used)
    }
}
