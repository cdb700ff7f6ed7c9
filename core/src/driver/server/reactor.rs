//! Reactor of the server. One iteration waits for events, reads the ready sockets, and writes the responses of the
//! machine, once for each connection.
//!
//! Readiness is edge-triggered, so a socket that may still hold bytes is marked `unread`. A read that fills less than
//! the buffer has emptied the socket (epoll(7)), unless the peer has closed. A steady request costs one read and one
//! write.

use crate::access::Access;
use crate::driver::ack_watch::{AckRounds, InFlight, Look};
use crate::driver::channel::Receiver;
use crate::driver::clock::{Clock, since_1970};
use crate::driver::random::random;
use crate::driver::socket::{is_newcomers_fault, within_descriptors};
use crate::driver::tls::TlsAcceptor;
use crate::driver::token_file::ServerTokens;
use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::node::server::{Event, Input, Output, ServerInstance, Stats};
use crate::node::tls_server::TlsServer;
use crate::time::{Duration, Instant};
use mio::event::Event as Readiness;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use std::boxed::Box;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::string::ToString;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// Token of all listeners. Those of connections are their slots.
const LISTENER: Token = Token(usize::MAX - 1);
const WAKER: Token = Token(usize::MAX);
const EVENTS_PER_ITERATION: usize = 1024;
/// Maximum number of connections accepted in one iteration, so that many new connections do not starve the others.
const ACCEPTS_PER_ITERATION: usize = 512;
/// Capacity that the table of peers may keep although it is mostly free.
const PEERS_KEPT: usize = 1024;
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of bytes read from one connection in one iteration.
const READ_BYTES_PER_STEP: usize = 4 * READ_BUFFER_BYTES;
/// Number of bytes after which an iteration writes no more, counted apart for sockets that accept bytes again and for
/// what the machine has to send.
const WRITE_BYTES_PER_ITERATION: usize = 1024 * 1024;
/// Number of bytes that a write counts as at least if more of the answer follows. A long answer may begin with a short write,
/// and each write is a system call.
const WRITE_BYTES_MIN: usize = 8 * 1024;
/// Pause before accepting is tried again after an error that does not concern a single connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Command from a handle to its reactor.
pub(super) enum Command {
    Stop,
    Stats(oneshot::Sender<Stats>),
}

struct Peer {
    socket: TcpStream,
    generation: u32,
    /// The socket may hold bytes that no further event will report.
    unread: bool,
    /// Whether the peer is in `to_read`.
    queued: bool,
    /// Whether the peer is in `to_write`.
    write_queued: bool,
    /// The peer has sent its last byte, and the end of the stream follows the unread bytes.
    read_closed: bool,
    /// Whether sent bytes may be unacknowledged.
    in_flight: bool,
    /// Whether the peer has sent something since the last look at the bytes in flight.
    has_sent: bool,
}

/// Clients that the server accepts: TLS, tokens, and the networks of c10d clients.
type Rules = (Option<TlsAcceptor>, Option<ServerTokens>, Access);

pub(super) struct Reactor {
    poll: Poll,
    waker: Arc<Waker>,
    listeners: Vec<TcpListener>,
    commands: Receiver<Command>,
    observer: Box<dyn FnMut(&Event) + Send>,
    clock: Clock,
    machine: TlsServer,
    acceptor: Option<TlsAcceptor>,
    access: Access,
    auth_tokens: Option<ServerTokens>,
    peers: Slab<Peer>,
    /// Number of times that each slot was used. It outlives the peers.
    generations: Vec<u32>,
    to_read: VecDeque<ConnId>,
    /// Peers whose sockets can accept bytes again.
    to_write: VecDeque<ConnId>,
    /// Whether the last iteration left outputs in the machine, or peers to write to.
    is_write_left: bool,
    accepting: Accepting,
    /// Number of full iterations since a tick was due.
    overdue_iterations: usize,
    /// How long the host of a peer may acknowledge nothing; `None`: the kernel decides that.
    silence_max: Option<Duration>,
    ack_rounds: AckRounds,
    buffer: Box<[u8]>,
}

/// State of the listeners.
#[derive(Clone, Copy)]
enum Accepting {
    /// No connection is waiting.
    Idle,
    /// A connection may be waiting.
    Ready,
    /// Accepting failed, usually because the process has no descriptor left.
    PausedUntil(Instant),
}

impl Reactor {
    pub(super) fn new(
        listeners: Vec<std::net::TcpListener>,
        (limits, silence_max): (ServerLimits, Option<Duration>),
        (acceptor, auth_tokens, access): Rules,
        commands: Receiver<Command>,
        observer: Box<dyn FnMut(&Event) + Send>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let mut listeners: Vec<_> = listeners.into_iter().map(TcpListener::from_std).collect();
        for listener in &mut listeners {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        let limits = ServerLimits { ungreeted: within_descriptors(limits.ungreeted), ..limits };
        let mut machine = TlsServer::new(limits, instance());
        if let Some(acceptor) = &acceptor {
            machine.configure(acceptor.current());
        }
        let clock = Clock::new();
        machine.handle(clock.now(), Input::Access(&access)).expect("always accepted");
        Ok(Self {
            poll,
            waker,
            listeners,
            commands,
            observer,
            clock,
            machine,
            acceptor,
            access,
            auth_tokens,
            peers: Slab::new(),
            generations: Vec::new(),
            to_read: VecDeque::new(),
            to_write: VecDeque::new(),
            is_write_left: false,
            accepting: Accepting::Ready,
            overdue_iterations: 0,
            silence_max,
            ack_rounds: AckRounds::default(),
            buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
        })
    }

    pub(super) const fn incarnation(&self) -> u64 {
        self.machine.server().incarnation()
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Serves until it gets the stop command.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_ITERATION);
        loop {
            let timeout = self.poll_timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            let now = self.clock.now();
            let (mut woken, mut count) = (false, 0);
            for event in &events {
                count += 1;
                match event.token() {
                    LISTENER => self.accepting = Accepting::Ready,
                    WAKER => woken = true,
                    token => self.on_readiness(token, event),
                }
            }
            if woken && self.handle_commands() == Flow::Stop {
                // Native clients get a notification, as far as their sockets accept it at once.
                self.feed(now, Input::Stop);
                // There is no later iteration, so no budget.
                while let Some(output) = self.machine.poll_output() {
                    self.perform(now, output);
                }
                return Ok(());
            }
            for _ in 0..self.to_read.len() {
                let Some(conn) = self.to_read.pop_front() else { break };
                self.read(now, conn);
            }
            // After the greetings that have arrived: a further connection may take the place of one without.
            self.accept(now);
            self.look_at_bytes_in_flight(now);
            // Before the tick: a socket that accepts bytes again shows that its peer reads.
            self.write_again(now);
            if self.is_tick_due(now, count) {
                self.feed(now, Input::Tick);
            }
            self.execute(now);
        }
    }

    /// Returns whether a tick is due after an iteration with `events` events. After a full iteration, other sockets
    /// may hold bytes that arrived in time: if this process was stopped for a while, that is no fault of its peers.
    /// So the tick waits until each of them has been read.
    fn is_tick_due(&mut self, now: Instant, events: usize) -> bool {
        let is_due = self.machine.poll_timeout().is_some_and(|at| at <= now);
        let is_full = events >= EVENTS_PER_ITERATION;
        self.overdue_iterations = if is_due && is_full { self.overdue_iterations + 1 } else { 0 };
        is_due && (!is_full || self.overdue_iterations > self.peers.len() / EVENTS_PER_ITERATION + 1)
    }

    /// Returns the time to sleep: zero while work is left over from the last iteration.
    fn poll_timeout(&self) -> Option<std::time::Duration> {
        let now = self.clock.now();
        let pause_ends = match self.accepting {
            Accepting::Ready if self.machine.accepts_at() <= Some(now) => return Some(Duration::ZERO),
            Accepting::Ready => self.machine.accepts_at(),
            Accepting::PausedUntil(at) => Some(at),
            Accepting::Idle => None,
        };
        if !self.to_read.is_empty() || self.is_write_left {
            return Some(Duration::ZERO);
        }
        let timers = [self.machine.poll_timeout(), pause_ends, self.ack_rounds.poll_timeout()];
        let next = timers.into_iter().flatten().min()?;
        Some(next.since(now))
    }

    fn handle_commands(&mut self) -> Flow {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return Flow::Stop,
                Command::Stats(reply) => {
                    reply.send(self.machine.stats()).ok();
                }
            }
        }
        Flow::Go
    }

    fn on_readiness(&mut self, token: Token, event: &Readiness) {
        let Some(peer) = self.peers.get_mut(token.0) else { return };
        let conn = conn_id(token.0, peer.generation);
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            peer.unread = true;
            peer.read_closed |= event.is_read_closed();
            if !peer.queued && self.machine.wants_read(conn) {
                peer.queued = true;
                self.to_read.push_back(conn);
            }
        }
        if event.is_writable() && !peer.write_queued && !self.machine.unsent(conn).is_empty() {
            peer.write_queued = true;
            self.to_write.push_back(conn);
        }
    }

    fn accept(&mut self, now: Instant) {
        match self.accepting {
            Accepting::Idle => return,
            Accepting::PausedUntil(at) if now < at => return,
            Accepting::Ready if self.machine.accepts_at() > Some(now) => return,
            Accepting::Ready | Accepting::PausedUntil(_) => {}
        }
        self.accepting = Accepting::Idle;
        self.renew_certificates();
        // Here a descriptor may be left for the file, and after accepting no longer.
        self.reload_tokens(now);
        for index in 0..self.listeners.len() {
            match self.accept_from(now, index) {
                Accepting::Idle => {}
                Accepting::Ready => self.accepting = Accepting::Ready,
                paused @ Accepting::PausedUntil(_) => {
                    self.accepting = paused;
                    return;
                }
            }
        }
    }

    /// Reads the files of the certificates again if they have changed.
    fn renew_certificates(&mut self) {
        let event = match self.acceptor.as_ref().and_then(|acceptor| acceptor.renew()) {
            None => return,
            Some(Ok(config)) => {
                self.machine.configure(config);
                Event::CertificatesRenewed
            }
            Some(Err(error)) => Event::CertificatesKept { error: error.to_string().into() },
        };
        (self.observer)(&event);
    }

    /// Accepts connections of one listener, and returns its state.
    fn accept_from(&mut self, now: Instant, index: usize) -> Accepting {
        let paused = Accepting::PausedUntil(now + ACCEPT_PAUSE);
        for _ in 0..ACCEPTS_PER_ITERATION {
            if self.machine.accepts_at() > Some(now) {
                return Accepting::Ready;
            }
            match self.listeners[index].accept() {
                Ok((socket, address)) => {
                    self.reload_tokens(now);
                    if !self.register(now, socket, address) {
                        return paused;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Accepting::Idle,
                Err(error) if is_newcomers_fault(&error) => {}
                // No descriptor or memory is left, or the listener fails. Either may recover later.
                Err(_) => {
                    self.feed(now, Input::AcceptFailed);
                    return paused;
                }
            }
        }
        Accepting::Ready
    }

    /// Gives the machine the tokens of a changed file, before it meets the next client.
    fn reload_tokens(&mut self, now: Instant) {
        let Some(file) = &mut self.auth_tokens else { return };
        match file.reload() {
            Ok(false) => {}
            Ok(true) => {
                self.access.tokens = Some(file.tokens().clone());
                let count = file.tokens().count();
                self.machine.handle(now, Input::Access(&self.access)).expect("always accepted");
                (self.observer)(&Event::TokensReloaded { count });
            }
            Err(error) => (self.observer)(&Event::TokensKept { error: error.to_string() }),
        }
    }

    /// Returns false if the system cannot watch another socket. The peer sees its connection close.
    fn register(&mut self, now: Instant, mut socket: TcpStream, address: std::net::SocketAddr) -> bool {
        let entry = self.peers.vacant_entry();
        let index = entry.key();
        if self.generations.len() <= index {
            self.generations.resize(index + 1, 0);
        }
        let conn = conn_id(index, self.generations[index]);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(index), interest).is_err() {
            return false;
        }
        let generation = conn.generation;
        entry.insert(Peer {
            socket,
            generation,
            unread: false,
            queued: false,
            write_queued: false,
            read_closed: false,
            in_flight: false,
            has_sent: false,
        });
        self.feed(now, Input::Accepted { conn, peer: address });
        true
    }

    fn read(&mut self, now: Instant, conn: ConnId) {
        let Some(peer) = self.peers.get_mut(conn.index as usize) else { return };
        if peer.generation != conn.generation {
            return;
        }
        peer.queued = false;
        let mut budget = READ_BYTES_PER_STEP;
        while self.machine.wants_read(conn) {
            if budget == 0 {
                peer.queued = true;
                self.to_read.push_back(conn);
                return;
            }
            let input = match peer.socket.read(&mut self.buffer) {
                Ok(0) => Input::ReadClosed { conn },
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    peer.has_sent = true;
                    peer.unread = count == self.buffer.len() || peer.read_closed;
                    Input::Received { conn, bytes: &self.buffer[..count] }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    peer.unread = false;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => end_of(conn, &error),
            };
            let ended = !matches!(input, Input::Received { .. });
            // invariant: the machine knows every peer, until it says Close and the peer is dropped
            self.machine.handle(now, input).expect("a known connection");
            if ended || !peer.unread {
                peer.unread &= !ended;
                return;
            }
        }
    }

    /// Writes to a socket once. Returns the number of bytes that this counts as.
    fn write(&mut self, now: Instant, conn: ConnId) -> usize {
        let Some(peer) = self.peers.get_mut(conn.index as usize) else { return 0 };
        let unsent = self.machine.unsent(conn);
        if peer.generation != conn.generation || unsent.is_empty() {
            return 0;
        }
        let input = loop {
            match peer.socket.write(unsent) {
                Ok(bytes) => break Input::Sent { conn, bytes },
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Input::Sent { conn, bytes: 0 },
                Err(error) => break end_of(conn, &error),
            }
        };
        let written = if let Input::Sent { bytes, .. } = input { bytes } else { 0 };
        if self.silence_max.is_some() {
            (peer.in_flight, peer.has_sent) = (true, false);
            self.ack_rounds.sent(now);
        }
        self.machine.handle(now, input).expect("a known connection");
        self.read_again(conn);
        if self.machine.unsent(conn).is_empty() { written } else { written.max(WRITE_BYTES_MIN) }
    }

    /// Reads a peer again from where reading stopped, if the machine allows it.
    fn read_again(&mut self, conn: ConnId) {
        let peer = self.peers.get_mut(conn.index as usize).filter(|peer| peer.generation == conn.generation);
        let Some(peer) = peer else { return };
        if peer.unread && !peer.queued && self.machine.wants_read(conn) {
            peer.queued = true;
            self.to_read.push_back(conn);
        }
    }

    /// Writes to sockets that accept bytes again, as far as this iteration allows.
    fn write_again(&mut self, now: Instant) {
        let mut budget = WRITE_BYTES_PER_ITERATION;
        while budget > 0
            && let Some(conn) = self.to_write.pop_front()
        {
            if let Some(peer) = self.peers.get_mut(conn.index as usize) {
                peer.write_queued &= peer.generation != conn.generation;
            }
            budget = budget.saturating_sub(self.write(now, conn));
        }
    }

    /// Does what the machine asks for, as far as this iteration allows.
    fn execute(&mut self, now: Instant) {
        self.is_write_left = !self.to_write.is_empty();
        let mut budget = WRITE_BYTES_PER_ITERATION;
        while let Some(output) = self.machine.poll_output() {
            budget = budget.saturating_sub(self.perform(now, output));
            if budget == 0 {
                // Sockets are read before the rest is written.
                self.is_write_left = true;
                return;
            }
        }
    }

    /// Does one thing that the machine asks for. Returns the number of bytes that it counts as.
    fn perform(&mut self, now: Instant, output: Output) -> usize {
        match output {
            Output::Transmit { conn } => return self.write(now, conn),
            Output::Close { conn } => self.drop_peer(conn),
            Output::Read { conn } => self.read_again(conn),
            Output::Event(event) => (self.observer)(&event),
        }
        0
    }

    /// Gives up the peers whose hosts have acknowledged nothing for too long, as the kernel does on idle connections.
    fn look_at_bytes_in_flight(&mut self, now: Instant) {
        let Self { peers, machine, silence_max: Some(silence_max), .. } = self else { return };
        self.ack_rounds.look(now, peers.capacity(), |index| {
            let Some(peer) = peers.get_mut(index).filter(|peer| peer.in_flight) else {
                return Look::NothingSent;
            };
            if core::mem::take(&mut peer.has_sent) {
                return Look::PeerActive;
            }
            let in_flight = InFlight::on(&peer.socket);
            let conn = conn_id(index, peer.generation);
            // The machine may have ended a connection that is still open here.
            if in_flight.is_overdue(*silence_max) && machine.server().has(conn) {
                let silent = Input::HostSilent { conn, os_error: libc::ETIMEDOUT };
                machine.handle(now, silent).expect("a known connection");
                return Look::Acknowledged;
            }
            peer.in_flight = in_flight != InFlight::Nothing;
            if peer.in_flight { Look::InFlight } else { Look::Acknowledged }
        });
    }

    fn drop_peer(&mut self, conn: ConnId) {
        let index = conn.index as usize;
        if let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.generation == conn.generation) {
            let last = self.machine.unsent(conn);
            if !last.is_empty() {
                // The end of TLS, or why there is none. A socket that is full gets none of it.
                peer.socket.write_all(last).ok();
            }
            self.peers.remove(index);
            if self.peers.capacity() > PEERS_KEPT && self.peers.len() < self.peers.capacity() / 8 {
                self.peers.shrink_to_fit();
            }
            self.generations[index] = self.generations[index].wrapping_add(1);
            // A descriptor is free again.
            if let Accepting::PausedUntil(_) = self.accepting {
                self.accepting = Accepting::Ready;
            }
        }
    }

    fn feed(&mut self, now: Instant, input: Input<'_>) {
        self.machine.handle(now, input).expect("a known connection");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

/// Returns the input for an error of a connection's socket.
fn end_of(conn: ConnId, error: &io::Error) -> Input<'static> {
    let os_error = error.raw_os_error().unwrap_or(0);
    match os_error {
        // Results of keepalive and TCP_USER_TIMEOUT, and of a router or this host without a route (tcp(7)).
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN => {
            Input::HostSilent { conn, os_error }
        }
        _ => Input::Lost { conn, os_error },
    }
}

fn conn_id(index: usize, generation: u32) -> ConnId {
    // invariant: descriptors are ints, and each slot holds one
    ConnId { index: u32::try_from(index).expect("as many slots as descriptors"), generation }
}

/// Returns a new identity for the server.
fn instance() -> ServerInstance {
    ServerInstance {
        hash_key: u128::from_le_bytes(random()),
        // A client that knows no server yet sends 0.
        incarnation: u64::from_le_bytes(random()).max(1),
        // A server makes less than one change in a nanosecond, so one that is started later begins above all its
        // revisions, unless the host's clock was set back. The year 2262 is the last one that fits into an `i64`.
        first_revision: u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX >> 1),
        token_key: random(),
    }
}
