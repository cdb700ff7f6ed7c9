//! The server in one machine: connections, the store, and their deadlines.
//!
//! The caller feeds it with [`Server::handle`], drains [`Server::poll_output`], and sleeps until
//! [`Server::poll_timeout`] or the next event. The driver and the simulator run this same type.

mod accepting;
mod budget;
mod conns;
mod deadlines;
mod event;
mod instance;
mod memory;
mod native;
mod pacing;
mod wakes;

pub use event::{CloseReason, Event, Input, InputError, Output, Severity, Stats};
pub use instance::ServerInstance;
pub use native::why_over;

use crate::access::Access;
use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::prelude::*;
use crate::store::engine::{ApplyError, Engine, PartPosition};
use crate::store::op::Request;
use crate::store::server_conn::{Next, POOLED_BYTES_MAX, ServerConn, answer, release};
use crate::time::{PauseDetector, Poller};
use crate::ungreeted::Ungreeted;
use crate::wire::c10d::{Frame, FrameError, parse_frame};
use crate::wire::native::{MAGIC, Why};
use crate::wire::sink::Sink as _;
use alloc::collections::VecDeque;
use budget::Budget;
use conns::{Conn, Conns, Greeting, Life, Protocol, SENT_AT_ONCE_MAX};
use deadlines::{Deadline, Deadlines};
use native::{Native, ServerContext, notify_released, pushed_queue};
use pacing::Pacing;

/// Rest of an input after its requests have been executed.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    /// The start of a frame that lacks at least this many bytes.
    Lacks(usize),
    /// Frames that the server serves once the peer has read its answers.
    Resting,
    /// Frames that the server serves in a later turn.
    Parked,
}

/// Number of keys that one step of long work looks at.
const KEYS_PER_STEP: usize = 256;
/// Work to decrypt a short record of TLS, in units of the budget.
const RECORD_WORK: u64 = 5;
/// Units of work that a deadline of a connection costs, and the end of the connection with it.
const DEADLINE_WORK: u64 = 16;
/// First byte of a TLS connection: the type of the record that holds ClientHello (RFC 8446, section 5.1).
pub(super) const TLS_FIRST_BYTE: u8 = 0x16;
/// Answer to a client that uses TLS where there is none: the fatal alert `protocol_version`.
const NO_TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];
/// Entries that the deadlines may hold in addition to four for each connection.
const DEADLINES_KEPT: usize = 1024;
/// One server.
#[derive(Debug)]
pub struct Server {
    limits: ServerLimits,
    instance: ServerInstance,
    access: Access,
    /// Time of the server's deadlines. It stops while the server's process does not run.
    now: Instant,
    /// Time by which `now` is behind the clock of the process.
    paused: Duration,
    pause_detector: PauseDetector,
    engine: Engine,
    conns: Conns,
    ungreeted: Ungreeted,
    deadlines: Deadlines,
    closes: VecDeque<ConnId>,
    /// When parked connections are served.
    pacing: Pacing,
    /// Connections with frames for later turns.
    parked: VecDeque<ConnId>,
    /// Connections that the caller may read again.
    readable: VecDeque<ConnId>,
    /// Work that is left for this input.
    budget: Budget,
    events: VecDeque<Event>,
    stats: Stats,
    /// Set when the first native client connects.
    native: Option<Box<Native>>,
}

impl Server {
    /// Creates a server with an empty store.
    pub fn new(limits: ServerLimits, instance: ServerInstance) -> Self {
        Self {
            limits,
            instance,
            access: Access::default(),
            now: Instant::ORIGIN,
            paused: Duration::ZERO,
            pause_detector: PauseDetector::new(Instant::ORIGIN, Poller::Thread),
            engine: Engine::new(limits.engine, instance.hash_key).at_revision(instance.first_revision),
            conns: Conns::default(),
            ungreeted: Ungreeted::new(limits.ungreeted),
            deadlines: Deadlines::default(),
            closes: VecDeque::new(),
            pacing: Pacing::default(),
            parked: VecDeque::new(),
            readable: VecDeque::new(),
            budget: Budget::default(),
            events: VecDeque::new(),
            stats: Stats::default(),
            native: None,
        }
    }

    /// Returns counts and sizes.
    pub fn stats(&self) -> Stats {
        let native = self.native.as_ref();
        Stats {
            keys: self.engine.key_count(),
            stored_bytes: self.engine.stored_bytes(),
            waiting: self.engine.waiting() + native.map_or(0, |native| native.arrivals()),
            buffered_bytes: self.buffered_bytes(),
            sessions: native.map_or(0, |native| native.sessions()),
            ..self.stats
        }
    }

    /// Returns the number that identifies this start of the server.
    pub const fn incarnation(&self) -> u64 {
        self.instance.incarnation
    }

    /// Returns the store.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Handles one input. `now` must not be earlier than in an earlier call. A call much later than
    /// [`Server::poll_timeout`] shows that the process was not running. The deadlines then move by that time.
    ///
    /// # Errors
    /// The input does not fit the state. Nothing has changed.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), InputError> {
        self.pass_time(now);
        self.budget = Budget::default();
        self.renew_budget();
        match input {
            Input::Accepted { conn, peer } => self.accept(conn, peer)?,
            Input::AcceptFailed => drop(self.displace_overdue()),
            Input::Received { conn, bytes } => {
                self.conns.find(conn)?;
                self.receive(conn, bytes);
            }
            Input::Sent { conn, bytes } => {
                self.conns.find(conn)?;
                self.sent(conn, bytes);
            }
            Input::ReadClosed { conn } => {
                self.conns.find(conn)?;
                self.read_closed(conn);
            }
            Input::Lost { conn, os_error } => {
                self.conns.find(conn)?;
                self.remove(conn, CloseReason::Lost(os_error));
            }
            Input::HostSilent { conn, os_error } => {
                self.conns.find(conn)?;
                self.remove(conn, CloseReason::HostSilent(os_error));
            }
            Input::Secured { conn, channel } => {
                self.conns.find(conn)?.channel = Some(Box::new(channel));
            }
            Input::TlsFailed { conn, fault } => {
                self.conns.find(conn)?;
                self.stats.expelled += 1;
                self.remove(conn, CloseReason::Tls(fault));
            }
            Input::PlaintextRefused { conn } => {
                self.conns.find(conn)?;
                self.stats.expelled += 1;
                self.remove(conn, CloseReason::PlaintextRefused);
            }
            Input::Access(access) => self.access = access.clone(),
            Input::Stop => self.with_native(Native::stop),
            Input::Tick => self.tick(),
        }
        if self.native.is_some() {
            self.settle();
        }
        Ok(())
    }

    /// Returns the work for the last input, in the units of [`ServerLimits::work_per_input_max`].
    pub fn work(&mut self) -> u64 {
        self.budget.spend(&self.engine, &mut self.conns);
        self.budget.before + self.budget.spent
    }

    /// Returns the next action. The caller drains it after every input.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(conn) = self.conns.next_to_send() {
            return Some(Output::Transmit { conn });
        }
        if let Some(conn) = self.closes.pop_front() {
            return Some(Output::Close { conn });
        }
        if let Some(conn) = self.readable.pop_front() {
            return Some(Output::Read { conn });
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Output::Event(event));
        }
        self.conns.next_long_to_send().map(|conn| Output::Transmit { conn })
    }

    /// Returns when [`Input::Tick`] is due at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let native = self.native.as_ref().and_then(|native| native.poll_timeout(self.now, &self.engine));
        let left = (!self.parked.is_empty()).then(|| self.pacing.due(self.now));
        let unfreed = self.engine.has_to_free().then_some(self.now);
        [self.deadlines.next(), native, left, unfreed]
            .into_iter()
            .flatten()
            .min()
            .map(|due| due + self.paused)
    }

    /// Moves the server's time on to the process's time, less the pauses.
    fn pass_time(&mut self, now: Instant) {
        let mut detector = self.pause_detector;
        self.paused += detector.on_call(now, || self.poll_timeout());
        self.pause_detector = detector;
        self.now = Instant::ORIGIN + now.since(Instant::ORIGIN + self.paused);
    }

    /// Returns whether there is such a connection.
    pub fn has(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some()
    }

    /// Returns the bytes to send to `conn` next; not all at once if there are many, so that a client with a long answer
    /// does not delay the others. Empty if the connection has ended.
    pub fn unsent(&self, conn: ConnId) -> &[u8] {
        let unsent = self.conns.get(conn).map_or(&[][..], |conn| conn.outbox.unsent());
        &unsent[..unsent.len().min(SENT_AT_ONCE_MAX)]
    }

    /// Counts records of TLS that have arrived from `conn`. Each takes time, whatever it contains.
    pub(super) fn count_records(&mut self, conn: ConnId, records: usize) {
        let now = self.now;
        if let Some(conn) = self.conns.at(conn) {
            conn.usage.add(now, records as u64 * RECORD_WORK);
        }
    }

    /// Queues a connection of which less than [`Server::unsent`] was taken though its socket may accept more.
    pub(super) fn want_to_send(&mut self, conn: ConnId) {
        self.conns.want_to_send(conn);
    }

    /// Returns whether the caller may read from `conn`: not while its answers are unread, nor while it has frames for
    /// later turns, nor while it is closing.
    pub fn wants_read(&self, conn: ConnId) -> bool {
        self.conns
            .get(conn)
            .is_some_and(|conn| conn.life == Life::Open && !conn.is_parked && self.has_space(conn))
    }

    fn has_space(&self, conn: &Conn) -> bool {
        conn.outbox.len() < self.limits.unsent_bytes_high
    }

    /// Serves the frames in the inbox of `id` and in `bytes`, now or in a later turn.
    fn receive(&mut self, id: ConnId, bytes: &[u8]) {
        let now = self.now;
        let Some(conn) = self.conns.at(id) else { return };
        conn.usage.add_bytes(now, bytes.len());
        if conn.usage.is_costly(now) && !matches!(conn.life, Life::Closing(_)) {
            self.pacing.forget_light(id);
            if !self.pacing.is_alone(now) {
                conn.inbox.extend_from_slice(bytes);
                self.park(id);
                self.with_native(|native, context| native.note_alive(context, id));
                return self.charge(id);
            }
        }
        self.receive_now(id, bytes);
    }

    /// Serves the frames in the inbox of `id` and in `bytes`, until its unread answers reach the limit.
    fn receive_now(&mut self, id: ConnId, bytes: &[u8]) {
        let Some(conn) = self.conns.at(id) else { return };
        if matches!(conn.life, Life::Closing(_)) {
            return;
        }
        let before = self.budget.own();
        let mut kept = core::mem::take(&mut conn.inbox);
        let (mut fresh, mut is_parked, mut has_served) = (bytes, false, false);
        // The inbox gets only the bytes that its incomplete frame lacks, so that later frames are parsed without a
        // copy.
        let outcome = loop {
            let from_inbox = !kept.is_empty();
            let input: &[u8] = if from_inbox { &kept } else { fresh };
            let (used, rest) = match self.serve(id, input) {
                Ok(served) => served,
                Err(reason) => break Err(reason),
            };
            is_parked = matches!(rest, Rest::Parked);
            has_served |= used > 0;
            if !from_inbox {
                fresh = &fresh[used..];
                break Ok(());
            }
            kept.drain(..used);
            match rest {
                Rest::Lacks(bytes) if !fresh.is_empty() => {
                    let (more, following) = fresh.split_at(bytes.min(fresh.len()));
                    kept.extend_from_slice(more);
                    fresh = following;
                }
                Rest::Nothing if !fresh.is_empty() => {}
                _ => break Ok(()),
            }
        };
        // Of one that greets and ends at once, too.
        self.note_greeting(id);
        if let Err(reason) = outcome {
            self.conns.pool.give(kept);
            self.stats.expelled += u64::from(reason.is_expulsion());
            self.close_when_sent(id, reason);
            return;
        }
        let pool = &mut self.conns.pool;
        if kept.is_empty() {
            pool.give(kept);
            kept = if fresh.is_empty() { Vec::new() } else { pool.take_small() };
        } else if kept.capacity() / 4 > POOLED_BYTES_MAX.max(kept.len()) {
            kept.shrink_to_fit();
        }
        kept.extend_from_slice(fresh);
        self.budget.spend(&self.engine, &mut self.conns);
        let Some(conn) = self.conns.at(id) else { return };
        conn.inbox = kept;
        conn.usage.add(self.now, self.budget.own().saturating_sub(before));
        if conn.usage.is_costly(self.now) {
            self.pacing.forget_light(id);
        } else if has_served {
            self.pacing.note_light(self.now, id);
        }
        if is_parked {
            self.park(id);
        }
        self.pass_on_cancelled(id);
        let Some(conn) = self.conns.at(id) else { return };
        if !conn.inbox.is_empty() {
            conn.last_received_at = self.now;
            if let Protocol::Native(Greeting::Done) = conn.protocol {
                // The client cannot send a heartbeat inside a frame, so part of a frame counts as one.
                self.with_native(|native, context| native.note_alive(context, id));
            }
            let Some(conn) = self.conns.at(id) else { return };
            if !conn.frame_armed && !is_parked && conn.protocol.has_greeted() {
                conn.frame_armed = true;
                self.arm(self.now + self.limits.frame_timeout, Deadline::Frame, id);
            }
        }
        self.charge(id);
    }

    /// Executes the requests in `input`. Returns the number of bytes served and what the rest of the input is.
    ///
    /// # Errors
    /// The reason why the server closes the connection.
    fn serve(&mut self, id: ConnId, input: &[u8]) -> Result<(usize, Rest), CloseReason> {
        let (Some(conn), pool) = self.conns.parts(id) else { return Ok((0, Rest::Nothing)) };
        if let (Protocol::Unknown, Some(&first)) = (&conn.protocol, input.first()) {
            if first == TLS_FIRST_BYTE {
                conn.outbox.writer(pool).put(&NO_TLS_ALERT);
                return Err(CloseReason::TlsNotConfigured);
            }
            if first != MAGIC[0] && !self.access.allows_c10d(conn.peer.ip()) {
                return Err(CloseReason::C10dNotAllowed);
            }
            conn.protocol = if first == MAGIC[0] {
                self.native.get_or_insert_with(|| Box::new(Native::new(&self.limits, self.instance)));
                Protocol::Native(Greeting::Awaited)
            } else {
                Protocol::C10d(ServerConn::default())
            };
        }
        match conn.protocol {
            Protocol::Native(_) => self.serve_native(id, input),
            Protocol::C10d(_) | Protocol::Unknown => self.serve_c10d(id, input),
        }
    }

    fn serve_c10d(&mut self, id: ConnId, input: &[u8]) -> Result<(usize, Rest), CloseReason> {
        let mut used = 0;
        loop {
            let Self { conns, engine, limits, budget, .. } = &mut *self;
            let is_over = budget.spend(engine, conns);
            let (Some(conn), pool) = conns.parts(id) else { return Ok((used, Rest::Nothing)) };
            let Protocol::C10d(machine) = &mut conn.protocol else { return Ok((used, Rest::Nothing)) };
            if used == input.len() {
                return Ok((used, Rest::Nothing));
            }
            if is_over {
                return Ok((used, Rest::Parked));
            }
            if conn.outbox.len() >= limits.unsent_bytes_high {
                return Ok((used, Rest::Resting));
            }
            let begun = used;
            match machine.next(&input[used..], &limits.c10d_frame) {
                Ok(Next::Frame { bytes }) => used += bytes,
                Ok(Next::Greeting { bytes }) => {
                    used += bytes;
                    continue;
                }
                Ok(Next::Partial { bytes }) => {
                    return Ok((used, Rest::Lacks(bytes.saturating_sub(input.len() - used))));
                }
                Err(error) => return Err(CloseReason::Protocol(error)),
            }
            // The request and its outcome are not moved: that takes as long as to look up a key.
            let frame = parse_frame(&input[begun..used]);
            let request = match &frame {
                Some(Frame::Request(request)) => request,
                Some(Frame::Ping { nonce }) => {
                    conn.outbox.writer(pool).put(&nonce.to_le_bytes());
                    conns.want_to_send(id);
                    continue;
                }
                // A second greeting is as invalid as an unknown opcode.
                Some(Frame::Validate { .. }) | None => {
                    return Err(CloseReason::Protocol(FrameError::Opcode(input[begun])));
                }
            };
            let queues = machine.unused_wakes(request);
            let taken = machine.next_part(request, &input[begun..used], &limits.c10d_part);
            if !queues.is_empty() {
                self.pass_on(&queues);
            }
            if let Request::ListKeys = *request {
                if !self.list_keys(id)? {
                    return Ok((begun, Rest::Parked));
                }
                continue;
            }
            let Self { conns, engine, limits, stats, native, budget, .. } = &mut *self;
            let (request, bytes, part) = match &taken {
                Some(part) => (&part.request, part.bytes, part.position),
                None => (request, used - begun, PartPosition::WHOLE),
            };
            let releases = taken.as_ref().map_or(0, |part| part.releases);
            budget.copied(bytes);
            stats.requests += u64::from(part.is_first);
            let outcome = engine.apply_part(id, request, part);
            let applied = match outcome {
                Ok(ref applied) => applied,
                Err(error) => {
                    stats.stale_writes += u64::from(matches!(error, ApplyError::Stale(_)));
                    return Err(CloseReason::Refused(error));
                }
            };
            notify_released(conns, native.as_deref_mut(), applied.released, pushed_queue(request));
            let (Some(conn), pool) = conns.parts(id) else { return Ok((used, Rest::Nothing)) };
            if let Err(bytes) = answer(&mut conn.outbox, &applied.answer, limits.answer_bytes_max, pool) {
                return Err(CloseReason::AnswerTooLong(bytes));
            }
            (0..releases).for_each(|_| release(&mut conn.outbox.writer(pool)));
            if !conn.to_send {
                conns.want_to_send(id);
            }
            if !part.is_last {
                used = begun;
            }
            self.serve_released();
        }
    }

    /// Answers a LIST_KEYS as far as this turn allows. Returns whether that is done; otherwise the request is still the
    /// connection's next one.
    fn list_keys(&mut self, id: ConnId) -> Result<bool, CloseReason> {
        let Self { conns, engine, limits, stats, budget, .. } = self;
        let begun = conns.at(id).and_then(|conn| conn.listing.take());
        let mut listing = begun.unwrap_or_else(|| Box::new(engine.list(b"", b"", u64::MAX, usize::MAX)));
        while !engine.list_some(&mut listing, KEYS_PER_STEP) {
            if listing.bytes().len() > limits.answer_bytes_max {
                return Err(CloseReason::AnswerTooLong(listing.bytes().len()));
            }
            if budget.spend(engine, conns) {
                if let Some(conn) = conns.at(id) {
                    conn.listing = Some(listing);
                }
                return Ok(false);
            }
        }
        let (Some(conn), pool) = conns.parts(id) else { return Ok(true) };
        stats.requests += 1;
        if listing.bytes().len() + 8 > limits.answer_bytes_max {
            return Err(CloseReason::AnswerTooLong(listing.bytes().len() + 8));
        }
        let mut writer = conn.outbox.writer(pool);
        writer.put(&listing.count().to_le_bytes());
        writer.put_shared(listing.bytes());
        conns.want_to_send(id);
        Ok(true)
    }

    fn serve_native(&mut self, id: ConnId, input: &[u8]) -> Result<(usize, Rest), CloseReason> {
        let mut used = 0;
        loop {
            let Self { now, conns, engine, limits, access, stats, native, events, budget, .. } = &mut *self;
            let is_over = budget.spend(engine, conns);
            let Some(native) = native else { return Ok((used, Rest::Nothing)) };
            let Some(conn) = conns.get(id) else { return Ok((used, Rest::Nothing)) };
            if used == input.len() {
                return Ok((used, Rest::Nothing));
            }
            if is_over {
                return Ok((used, Rest::Parked));
            }
            if conn.outbox.len() >= limits.unsent_bytes_high {
                return Ok((used, Rest::Resting));
            }
            let mut context =
                ServerContext { now: *now, limits, access, engine, conns, stats, events, budget };
            match native.next(&mut context, id, &input[used..])? {
                native::Next::Served { bytes } => {
                    used += bytes;
                    budget.copied(bytes);
                }
                native::Next::Parked => return Ok((used, Rest::Parked)),
                native::Next::Partial { bytes } => {
                    return Ok((used, Rest::Lacks(bytes.saturating_sub(input.len() - used))));
                }
            }
        }
    }

    /// Calls `serve` with the state of the native clients. Does nothing before the first native client.
    fn with_native(&mut self, serve: impl FnOnce(&mut Native, &mut ServerContext<'_>)) {
        let Self { now, conns, engine, limits, access, stats, native, events, budget, .. } = self;
        if let Some(native) = native {
            serve(
                native,
                &mut ServerContext { now: *now, limits, access, engine, conns, stats, events, budget },
            );
        }
    }

    /// Carries out what an input of any connection means to native clients.
    fn settle(&mut self) {
        self.with_native(Native::push_to_watchers);
        self.enforce_buffer_limit();
        while let Some((conn, reason)) = self.native.as_mut().and_then(|native| native.next_to_close()) {
            self.stats.expelled += u64::from(reason.is_expulsion());
            self.close_when_sent(conn, reason);
        }
    }

    fn sent(&mut self, id: ConnId, bytes: usize) {
        let (Some(conn), pool) = self.conns.parts(id) else { return };
        let is_whole = bytes > 0 && bytes == conn.outbox.unsent().len().min(SENT_AT_ONCE_MAX);
        conn.outbox.sent(bytes, pool);
        let unsent = conn.outbox.len();
        let was_full = conn.stalled_since.is_some();
        conn.stalled_since = match conn.stalled_since {
            // A socket that took a whole slice is not known to be full.
            _ if unsent == 0 || is_whole => None,
            Some(since) if bytes == 0 => Some(since),
            _ => Some(self.now),
        };
        let is_native = matches!(conn.protocol, Protocol::Native(_));
        if unsent > 0 && !conn.stall_armed {
            conn.stall_armed = true;
            self.arm(self.now + self.limits.stall_timeout, Deadline::Stall, id);
        } else if let (0, Life::Closing(reason)) = (unsent, conn.life) {
            return self.remove(id, reason);
        }
        if is_whole {
            // The socket may accept more, and there may be more.
            self.conns.want_to_send(id);
        }
        if is_native && bytes > 0 {
            if was_full {
                // The client has read bytes that had filled its socket's buffer, and its own frames may be unread by the
                // server. Bytes that only enter the socket's buffer show nothing.
                self.with_native(|native, context| native.note_alive(context, id));
            }
            self.with_native(|native, context| native.writable(context, id));
        }
        let Some(conn) = self.conns.at(id) else { return };
        if !conn.inbox.is_empty() && !conn.is_parked && unsent < self.limits.unsent_bytes_high {
            self.receive(id, &[]);
        } else {
            self.charge(id);
        }
        self.end_if_half_closed(id);
    }

    fn read_closed(&mut self, id: ConnId) {
        self.engine.forget_waits(id);
        let Some(conn) = self.conns.at(id) else { return };
        if let Protocol::Native(_) = conn.protocol {
            // A native client sends Bye before it closes, so this is the end of its connection and not only of its
            // requests.
            return self.close_when_sent(id, CloseReason::PeerClosed);
        }
        if conn.life == Life::Open {
            conn.life = Life::HalfClosed;
        }
        self.end_if_half_closed(id);
    }

    /// Removes a half-closed connection whose frames have been served and which has no unsent answers. The rest of its
    /// inbox is an incomplete frame.
    fn end_if_half_closed(&mut self, id: ConnId) {
        let is_served = |conn: &&Conn| conn.life == Life::HalfClosed && !conn.is_parked;
        let Some(conn) = self.conns.get(id).filter(is_served) else { return };
        if conn.outbox.is_empty() {
            return self.remove(id, CloseReason::PeerClosed);
        }
        self.end_waits(id);
    }

    /// Gives the next kind of work of a tick a budget of its own.
    const fn renew_budget(&mut self) {
        self.budget.renew(self.limits.work_per_input_max);
    }

    /// Leaves the frames in the inbox of a connection to a later turn.
    fn park(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.at(id)
            && !conn.is_parked
        {
            conn.is_parked = true;
            self.parked.push_back(id);
        }
    }

    /// Serves parked frames, one connection after the other, until the turn is over.
    fn resume_parked(&mut self) {
        for _ in 0..self.parked.len() {
            if self.budget.spend(&self.engine, &mut self.conns) {
                return;
            }
            let Some(id) = self.parked.pop_front() else { return };
            let Ok(conn) = self.conns.find(id) else { continue };
            conn.is_parked = false;
            self.receive_now(id, &[]);
            self.end_if_half_closed(id);
            if self.wants_read(id) {
                self.readable.push_back(id);
            }
        }
    }

    fn arm(&mut self, at: Instant, deadline: Deadline, id: ConnId) {
        self.deadlines.arm(at, deadline, id);
        // Entries that no longer apply must not accumulate until they are due.
        if self.deadlines.len() > 4 * self.stats.connections + DEADLINES_KEPT {
            let conns = &self.conns;
            self.deadlines.retain(|deadline, id| {
                let conn = conns.get(id);
                conn.is_some_and(|conn| deadline != Deadline::Handshake || !conn.protocol.has_greeted())
            });
        }
    }

    /// Stops reading from a connection and closes it once its answers have been sent. Its waits end now: an item of a
    /// queue must not go to a client that can no longer fetch it.
    fn close_when_sent(&mut self, id: ConnId, reason: CloseReason) {
        self.end_waits(id);
        let (Some(conn), pool) = self.conns.parts(id) else { return };
        if matches!(conn.life, Life::Closing(_)) {
            return;
        }
        pool.give(core::mem::take(&mut conn.inbox));
        if conn.outbox.is_empty() {
            return self.remove(id, reason);
        }
        conn.life = Life::Closing(reason);
        let is_native = matches!(conn.protocol, Protocol::Native(_));
        self.conns.want_to_send(id);
        self.charge(id);
        if is_native {
            self.with_native(|native, context| native.lost(context, id, reason.why()));
        }
    }

    fn remove(&mut self, id: ConnId, reason: CloseReason) {
        self.end_waits(id);
        let Some(conn) = self.conns.remove(id) else { return };
        if !conn.is_known {
            self.forget_ungreeted(id);
        }
        self.pacing.forget_light(id);
        self.stats.connections -= 1;
        if let Some(slots) = self.conns.shrink_slots(self.stats.connections, id) {
            self.engine.forget_places(slots);
            self.closes.shrink_to(slots);
            self.events.shrink_to(slots);
        }
        self.closes.push_back(id);
        self.events.push_back(Event::Closed { conn: id, peer: conn.peer, reason });
        if let Protocol::Native(_) = conn.protocol {
            self.with_native(|native, context| native.lost(context, id, reason.why()));
        }
    }

    fn tick(&mut self) {
        let now = self.now;
        self.with_native(Native::push_to_watchers);
        self.renew_budget();
        while let Some((deadline, id)) = self.deadlines.expired(now) {
            self.check_deadline(deadline, id);
            self.budget.subtract(DEADLINE_WORK);
            let is_over = self.budget.spend(&self.engine, &mut self.conns);
            // The end of a connection may end a session, which concerns all nodes of a run.
            if is_over || self.native.as_ref().is_some_and(|native| native.is_notifying_many()) {
                break;
            }
        }
        self.with_native(Native::tick);
        self.renew_budget();
        while self.engine.has_to_free() && !self.budget.spend(&self.engine, &mut self.conns) {
            self.engine.free_some(KEYS_PER_STEP);
        }
        if !self.parked.is_empty() && self.pacing.due(now) <= now {
            self.serve_slice();
        }
    }

    /// Ends a connection if what a deadline of it is for has not happened.
    fn check_deadline(&mut self, deadline: Deadline, id: ConnId) {
        let (now, limits) = (self.now, self.limits);
        let Ok(conn) = self.conns.find(id) else { return };
        let (armed, since, timeout, reason) = match deadline {
            Deadline::Handshake => {
                if !conn.protocol.has_greeted() {
                    self.stats.expelled += 1;
                    self.remove(id, CloseReason::HandshakeTimeout);
                }
                return;
            }
            Deadline::Frame => {
                let incomplete = !conn.inbox.is_empty() && !conn.is_parked && conn.outbox.is_empty();
                conn.frame_armed = incomplete;
                (incomplete, conn.last_received_at, limits.frame_timeout, CloseReason::FrameTimeout)
            }
            Deadline::Stall => {
                conn.stall_armed = conn.stalled_since.is_some();
                let since = conn.stalled_since.unwrap_or(now);
                (conn.stall_armed, since, limits.stall_timeout, CloseReason::StallTimeout)
            }
        };
        if armed && since + timeout <= now {
            self.stats.expelled += 1;
            self.remove(id, reason);
        } else if armed {
            self.arm(since + timeout, deadline, id);
        }
    }

    /// Serves parked connections.
    fn serve_slice(&mut self) {
        let work_max = self.limits.work_per_input_max;
        let slice = if self.pacing.is_alone(self.now) { work_max } else { work_max.min(pacing::SLICE) };
        let before = self.work();
        self.budget.renew(slice);
        self.resume_parked();
        let work = self.work() - before;
        self.pacing.sliced(self.now, work, self.parked.len());
    }
}

#[cfg(test)]
mod tests;
