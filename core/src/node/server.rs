//! The server: connections, the store, and the deadlines that hold them, in one machine.
//!
//! Feed it with [`Server::handle`], then drain [`Server::poll_output`], then sleep until [`Server::poll_timeout`] or
//! the next event. The driver and the simulator run this same type.

mod deadlines;

use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::store::engine::{ApplyError, Engine};
use crate::store::server_conn::{BufferPool, Next, POOLED_BYTES_MAX, ServerConn, held_bytes};
use crate::time::Instant;
use crate::wire::c10d::FrameError;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use deadlines::{Deadline, Deadlines};

/// What can happen to a server. A recorded list of these is a complete report of its life.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A client has connected. The caller chooses the name; its place must be free.
    Accepted {
        /// The connection's name.
        conn: ConnId,
        /// Its numeric address, for events; it is never looked up.
        peer: SocketAddr,
    },
    /// Bytes have come in.
    Received {
        /// From whom.
        conn: ConnId,
        /// All of them; what cannot be used yet is kept.
        bytes: &'a [u8],
    },
    /// Bytes of [`Server::unsent`] have left; 0 when the socket would take none.
    Sent {
        /// To whom.
        conn: ConnId,
        /// How many.
        bytes: usize,
    },
    /// The peer will send no more. What it asked for is still answered.
    ReadClosed {
        /// Who.
        conn: ConnId,
    },
    /// The connection is gone, by reset or any other error.
    Lost {
        /// Which one.
        conn: ConnId,
        /// The operating system's error number, 0 if there is none.
        os_error: i32,
    },
    /// Time has passed.
    Tick,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send [`Server::unsent`] and report with [`Input::Sent`].
    Transmit {
        /// To whom.
        conn: ConnId,
    },
    /// Close the connection; the server has forgotten it.
    Close {
        /// Which one.
        conn: ConnId,
    },
    /// Something to tell whoever watches.
    Event(Event),
}

/// Something worth a line in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has connected.
    Accepted {
        /// Its name here.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
    },
    /// A connection has ended.
    Closed {
        /// Its name here.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The operating system reported an error.
    #[error("the connection was lost (OS error {0})")]
    Lost(i32),
    /// The peer does not speak the protocol.
    #[error("protocol violation: {0}")]
    Protocol(FrameError),
    /// A request could not be carried out.
    #[error("request refused: {0}")]
    Refused(ApplyError),
    /// An answer would have been too long.
    #[error("an answer of {0} bytes is over the limit")]
    AnswerTooLong(usize),
    /// No complete greeting in time.
    #[error("no complete greeting within the handshake timeout")]
    HandshakeTimeout,
    /// A frame began and did not go on.
    #[error("a frame began and did not go on within the frame timeout")]
    FrameTimeout,
    /// The peer did not read its answers.
    #[error("the peer read none of its answers within the stall timeout")]
    StallTimeout,
    /// There are as many connections as there may be.
    #[error("as many connections as allowed ({0})")]
    TooManyConnections(usize),
    /// All connections together hold too many bytes.
    #[error("the connections hold more than {0} bytes")]
    BuffersFull(u64),
}

/// The caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// No such connection, or not any more.
    #[error("{0:?} is unknown")]
    UnknownConnection(ConnId),
    /// The place in the table is taken.
    #[error("the place of {0:?} is taken")]
    PlaceTaken(ConnId),
}

/// Counts since the start, and sizes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now.
    pub connections: usize,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections that the server ended because of the peer's conduct, since the start.
    pub expelled: u64,
    /// Requests carried out since the start.
    pub requests: u64,
    /// Keys with a value now.
    pub keys: usize,
    /// Bytes of keys, values and queued items now, with what each costs beside them.
    pub stored_bytes: u64,
    /// Memory of bytes received but not used, and of answers not sent, now.
    pub buffered_bytes: u64,
    /// Waits and barriers pending now.
    pub waiting: usize,
}

#[derive(Debug)]
struct Conn {
    generation: u32,
    peer: SocketAddr,
    machine: ServerConn,
    /// Stands in `transmits`.
    to_send: bool,
    life: Life,
    /// Its share of `Stats::buffered_bytes`.
    charged: u64,
    /// When the peer last sent, while a frame is incomplete.
    heard: Instant,
    /// When the peer last took bytes, while its socket takes no more of those that are unsent.
    stalled_since: Option<Instant>,
    frame_armed: bool,
    stall_armed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// The peer sends no more; what it asked for is answered, then the connection ends.
    HalfClosed,
    /// Nothing more is read; the connection ends, for this reason, when its answers have left.
    Closing(CloseReason),
}

/// What is left of an input when its requests have been carried out.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    /// The start of a frame, which lacks at least so many bytes.
    Lacks(usize),
    /// Frames that rest until the peer reads its answers.
    Resting,
}

/// Entries that the deadlines may keep beyond those that connections account for.
const DEADLINES_KEPT: usize = 1024;
/// Places that the table of connections may keep though they are free.
const PLACES_KEPT: usize = 1024;

/// One server.
#[derive(Debug)]
pub struct Server {
    limits: ServerLimits,
    engine: Engine,
    conns: Vec<Option<Conn>>,
    pool: BufferPool,
    deadlines: Deadlines,
    transmits: VecDeque<ConnId>,
    closes: VecDeque<ConnId>,
    events: VecDeque<Event>,
    stats: Stats,
}

impl Server {
    /// A server with an empty store. `seed` places keys in the hash table and decides nothing that can be seen.
    #[must_use]
    pub fn new(limits: ServerLimits, seed: u64) -> Self {
        Self {
            limits,
            engine: Engine::new(limits.engine, seed),
            conns: Vec::new(),
            pool: BufferPool::default(),
            deadlines: Deadlines::default(),
            transmits: VecDeque::new(),
            closes: VecDeque::new(),
            events: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Counts and sizes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            keys: self.engine.key_count(),
            stored_bytes: self.engine.stored_bytes(),
            waiting: self.engine.waiting(),
            ..self.stats
        }
    }

    /// The store.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Feeds one input. `now` must not be earlier than in any call before.
    ///
    /// # Errors
    /// The caller's mistake; nothing has changed.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), InputError> {
        match input {
            Input::Accepted { conn, peer } => self.accept(now, conn, peer)?,
            Input::Received { conn, bytes } => {
                self.find(conn)?;
                self.receive(now, conn, bytes);
            }
            Input::Sent { conn, bytes } => {
                self.find(conn)?;
                self.sent(now, conn, bytes);
            }
            Input::ReadClosed { conn } => {
                self.find(conn)?;
                self.read_closed(conn);
            }
            Input::Lost { conn, os_error } => {
                self.find(conn)?;
                self.remove(conn, CloseReason::Lost(os_error));
            }
            Input::Tick => self.tick(now),
        }
        Ok(())
    }

    /// The next thing to do; drain it after every input.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(conn) = self.transmits.pop_front() {
            if let Ok(place) = self.find(conn) {
                place.to_send = false;
            }
            return Some(Output::Transmit { conn });
        }
        if let Some(conn) = self.closes.pop_front() {
            return Some(Output::Close { conn });
        }
        self.events.pop_front().map(Output::Event)
    }

    /// When [`Input::Tick`] is due at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// What is to be sent to `conn`; nothing if it is gone.
    #[must_use]
    pub fn unsent(&self, conn: ConnId) -> &[u8] {
        self.get(conn).map_or(&[], |conn| conn.machine.outbox.unsent())
    }

    /// Whether more bytes of `conn` are welcome: not while it leaves its answers unread, nor when it is closing.
    #[must_use]
    pub fn wants_read(&self, conn: ConnId) -> bool {
        self.get(conn).is_some_and(|conn| {
            conn.life == Life::Open && conn.machine.outbox.unsent().len() < self.limits.unsent_bytes_high
        })
    }

    fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.index as usize)?.as_ref().filter(|conn| conn.generation == id.generation)
    }

    fn find(&mut self, id: ConnId) -> Result<&mut Conn, InputError> {
        let place = self.conns.get_mut(id.index as usize).and_then(Option::as_mut);
        place.filter(|conn| conn.generation == id.generation).ok_or(InputError::UnknownConnection(id))
    }

    fn accept(&mut self, now: Instant, id: ConnId, peer: SocketAddr) -> Result<(), InputError> {
        let index = id.index as usize;
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        if self.conns[index].is_some() {
            return Err(InputError::PlaceTaken(id));
        }
        if self.stats.connections >= self.limits.connections_max {
            let reason = CloseReason::TooManyConnections(self.limits.connections_max);
            self.stats.expelled += 1;
            self.closes.push_back(id);
            self.events.push_back(Event::Closed { conn: id, peer, reason });
            return Ok(());
        }
        self.conns[index] = Some(Conn {
            generation: id.generation,
            peer,
            machine: ServerConn::default(),
            to_send: false,
            life: Life::Open,
            charged: 0,
            heard: now,
            stalled_since: None,
            frame_armed: false,
            stall_armed: false,
        });
        self.stats.connections += 1;
        self.stats.accepted += 1;
        self.arm(now + self.limits.handshake_timeout, Deadline::Handshake, id);
        self.events.push_back(Event::Accepted { conn: id, peer });
        Ok(())
    }

    /// Serves the frames of `id` that stand in its inbox and in `bytes`, as far as its unread answers allow.
    fn receive(&mut self, now: Instant, id: ConnId, bytes: &[u8]) {
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        if matches!(conn.life, Life::Closing(_)) {
            return;
        }
        let mut kept = core::mem::take(&mut conn.machine.inbox);
        let mut fresh = bytes;
        // A frame that has begun is given what it lacks and no more, so that all behind it is read where it stands.
        let verdict = loop {
            let from_inbox = !kept.is_empty();
            let input: &[u8] = if from_inbox { &kept } else { fresh };
            let (used, rest) = match self.serve(id, input) {
                Ok(served) => served,
                Err(reason) => break Err(reason),
            };
            if !from_inbox {
                fresh = &fresh[used..];
                break Ok(());
            }
            kept.drain(..used);
            match rest {
                Rest::Lacks(bytes) if !fresh.is_empty() => {
                    let (more, behind) = fresh.split_at(bytes.min(fresh.len()));
                    kept.extend_from_slice(more);
                    fresh = behind;
                }
                Rest::Nothing if !fresh.is_empty() => {}
                _ => break Ok(()),
            }
        };
        if let Err(reason) = verdict {
            self.pool.give(kept);
            self.stats.expelled += 1;
            self.close_when_sent(id, reason);
            return;
        }
        if kept.is_empty() {
            self.pool.give(kept);
            kept = if fresh.is_empty() { Vec::new() } else { self.pool.take_small() };
        } else if kept.capacity() / 4 > POOLED_BYTES_MAX.max(kept.len()) {
            kept.shrink_to_fit();
        }
        kept.extend_from_slice(fresh);
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        conn.machine.inbox = kept;
        if !conn.machine.inbox.is_empty() {
            conn.heard = now;
            if !conn.frame_armed && conn.machine.has_greeted() {
                conn.frame_armed = true;
                self.arm(now + self.limits.frame_timeout, Deadline::Frame, id);
            }
        }
        self.charge(id);
    }

    /// Carries out the requests in `input`; returns how many bytes they were, and what is left of the input.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    fn serve(&mut self, id: ConnId, input: &[u8]) -> Result<(usize, Rest), CloseReason> {
        let Self { conns, engine, pool, transmits, limits, stats, .. } = self;
        let mut used = 0;
        loop {
            let Some(conn) = conns[id.index as usize].as_mut() else { return Ok((used, Rest::Nothing)) };
            if used == input.len() {
                return Ok((used, Rest::Nothing));
            }
            if conn.machine.outbox.unsent().len() >= limits.unsent_bytes_high {
                return Ok((used, Rest::Resting));
            }
            let request = match conn.machine.next(&input[used..], &limits.frame, pool) {
                Ok(Next::Request { request, bytes }) => {
                    used += bytes;
                    request
                }
                Ok(Next::Handled { bytes }) => {
                    used += bytes;
                    want_to_send(transmits, conn, id);
                    continue;
                }
                Ok(Next::Partial { bytes }) => {
                    return Ok((used, Rest::Lacks(bytes.saturating_sub(input.len() - used))));
                }
                Err(error) => return Err(CloseReason::Protocol(error)),
            };
            stats.requests += 1;
            let applied = match engine.apply(id, &request) {
                Ok(applied) => applied,
                Err(error) => return Err(CloseReason::Refused(error)),
            };
            for &other in applied.released {
                if let Some(waiter) = conns[other.index as usize].as_mut() {
                    waiter.machine.release(pool);
                    want_to_send(transmits, waiter, other);
                }
            }
            let Some(conn) = conns[id.index as usize].as_mut() else { return Ok((used, Rest::Nothing)) };
            if let Err(bytes) = conn.machine.answer(&applied.answer, limits.answer_bytes_max, pool) {
                return Err(CloseReason::AnswerTooLong(bytes));
            }
            want_to_send(transmits, conn, id);
        }
    }

    fn sent(&mut self, now: Instant, id: ConnId, bytes: usize) {
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        conn.machine.outbox.sent(bytes, &mut self.pool);
        let unsent = conn.machine.outbox.unsent().len();
        conn.stalled_since = match conn.stalled_since {
            _ if unsent == 0 => None,
            Some(since) if bytes == 0 => Some(since),
            _ => Some(now),
        };
        if unsent > 0 && !conn.stall_armed {
            conn.stall_armed = true;
            self.arm(now + self.limits.stall_timeout, Deadline::Stall, id);
        } else if let (0, Life::Closing(reason)) = (unsent, conn.life) {
            return self.remove(id, reason);
        }
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        if !conn.machine.inbox.is_empty() && unsent < self.limits.unsent_bytes_high {
            self.receive(now, id, &[]);
        } else {
            self.charge(id);
        }
        self.end_if_half_closed(id);
    }

    fn read_closed(&mut self, id: ConnId) {
        self.engine.forget_waits(id);
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        if conn.life == Life::Open {
            conn.life = Life::HalfClosed;
        }
        self.end_if_half_closed(id);
    }

    /// With no answer left to send, whatever stands in the inbox is a frame that will never be whole.
    fn end_if_half_closed(&mut self, id: ConnId) {
        if self
            .get(id)
            .is_some_and(|conn| conn.life == Life::HalfClosed && conn.machine.outbox.unsent().is_empty())
        {
            self.remove(id, CloseReason::PeerClosed);
        }
    }

    /// Brings the books on buffered bytes up to date. Where they pass the limit, those who hold most are ended.
    fn charge(&mut self, id: ConnId) {
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        let holds = (held_bytes(&conn.machine.inbox) + conn.machine.outbox.held_bytes()) as u64;
        self.stats.buffered_bytes = self.stats.buffered_bytes + holds - conn.charged;
        conn.charged = holds;
        while self.stats.buffered_bytes > self.limits.buffered_bytes_max {
            let places = self.conns.iter().enumerate();
            let holders = places.filter_map(|(index, conn)| conn.as_ref().map(|conn| (conn.charged, index)));
            let Some((_, index)) = holders.max() else { return };
            let Some(greediest) = self.name(index) else { return };
            self.stats.expelled += 1;
            self.remove(greediest, CloseReason::BuffersFull(self.limits.buffered_bytes_max));
        }
    }

    /// The connection in this place.
    fn name(&self, index: usize) -> Option<ConnId> {
        let generation = self.conns.get(index)?.as_ref()?.generation;
        Some(ConnId { index: u32::try_from(index).ok()?, generation })
    }

    fn arm(&mut self, at: Instant, deadline: Deadline, id: ConnId) {
        self.deadlines.arm(at, deadline, id);
        // What was settled long before it is due must not pile up.
        if self.deadlines.len() > 4 * self.stats.connections + DEADLINES_KEPT {
            let conns = &self.conns;
            self.deadlines.retain(|deadline, id| {
                let place = conns.get(id.index as usize).and_then(Option::as_ref);
                place.is_some_and(|conn| {
                    conn.generation == id.generation
                        && (deadline != Deadline::Handshake || !conn.machine.has_greeted())
                })
            });
        }
    }

    /// Reads no more of a connection, and ends it once its answers have left. Its waits end now: a queued item must
    /// not be told to one who can no longer fetch it.
    fn close_when_sent(&mut self, id: ConnId, reason: CloseReason) {
        self.engine.forget_waits(id);
        let Some(conn) = self.conns[id.index as usize].as_mut() else { return };
        self.pool.give(core::mem::take(&mut conn.machine.inbox));
        if conn.machine.outbox.unsent().is_empty() {
            return self.remove(id, reason);
        }
        conn.life = Life::Closing(reason);
        want_to_send(&mut self.transmits, conn, id);
        self.charge(id);
    }

    fn remove(&mut self, id: ConnId, reason: CloseReason) {
        let Some(mut conn) = self.conns[id.index as usize].take() else { return };
        self.engine.forget_waits(id);
        conn.machine.outbox.clear(&mut self.pool);
        self.pool.give(core::mem::take(&mut conn.machine.inbox));
        self.stats.connections -= 1;
        self.stats.buffered_bytes -= conn.charged;
        self.give_places_back();
        self.closes.push_back(id);
        self.events.push_back(Event::Closed { conn: id, peer: conn.peer, reason });
    }

    /// A table that many connections have blown up shrinks when few are left.
    fn give_places_back(&mut self) {
        let places = self.conns.len();
        if places < PLACES_KEPT || self.stats.connections > places / 8 {
            return;
        }
        let used = self.conns.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if used <= places / 2 {
            self.conns.truncate(used);
            self.conns.shrink_to(used);
            self.engine.forget_places(used);
            self.transmits.shrink_to(used);
            self.closes.shrink_to(used);
            self.events.shrink_to(used);
        }
    }

    fn tick(&mut self, now: Instant) {
        while let Some((deadline, id)) = self.deadlines.expired(now) {
            let limits = self.limits;
            let Ok(conn) = self.find(id) else { continue };
            let (armed, since, patience, reason) = match deadline {
                Deadline::Handshake => {
                    if !conn.machine.has_greeted() {
                        self.stats.expelled += 1;
                        self.remove(id, CloseReason::HandshakeTimeout);
                    }
                    continue;
                }
                Deadline::Frame => {
                    let incomplete =
                        !conn.machine.inbox.is_empty() && conn.machine.outbox.unsent().is_empty();
                    conn.frame_armed = incomplete;
                    (incomplete, conn.heard, limits.frame_timeout, CloseReason::FrameTimeout)
                }
                Deadline::Stall => {
                    conn.stall_armed = conn.stalled_since.is_some();
                    let since = conn.stalled_since.unwrap_or(now);
                    (conn.stall_armed, since, limits.stall_timeout, CloseReason::StallTimeout)
                }
            };
            if armed && since + patience <= now {
                self.stats.expelled += 1;
                self.remove(id, reason);
            } else if armed {
                self.arm(since + patience, deadline, id);
            }
        }
    }
}

#[inline]
fn want_to_send(transmits: &mut VecDeque<ConnId>, conn: &mut Conn, id: ConnId) {
    if !conn.to_send && !conn.machine.outbox.unsent().is_empty() {
        conn.to_send = true;
        transmits.push_back(id);
    }
}

#[cfg(test)]
mod tests;
