//! Process of the server: it passes bytes between the network and the server machine, as the socket driver does. It can
//! die and start again without data.

use super::accepting::Accepting;
use super::elastic::Cue;
use super::faults::Sabotage;
use super::world::{SimContext, WorldEvent};
use super::{Counts, tls, tokens};
use crate::frames;
use crate::sim::harness::clock::Clock;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Read, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::{CloseReason, Event, Input, Output, Server, ServerInstance};
use rendezvous_core::node::tls_server::TlsServer;
use rendezvous_core::store::engine::ApplyError;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::FaultCode;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Stream(Stream),
    /// The saboteur, which discards what it receives.
    Saboteur,
    /// A client that never greets.
    Stranger,
}

/// Expected conduct of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientConduct {
    /// They keep to the protocol, so the server must not find a violation.
    Polite,
    /// The same, but some write to rounds that have ended.
    Late,
    /// Anything is possible.
    Any,
}

/// Whether native clients use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    Plain,
    Tls,
}

impl Security {
    fn start(self, limits: ServerLimits, instance: ServerInstance) -> TlsServer {
        let mut machine = TlsServer::new(limits, instance);
        if self == Self::Tls {
            machine.configure(tls::server());
        }
        machine
    }
}

pub(super) struct Host {
    sim_rng: SimRng,
    conduct: ClientConduct,
    limits: ServerLimits,
    machine: Option<TlsServer>,
    /// Whether its clients use TLS.
    security: Security,
    /// Text of the token file that the process read last.
    token_file: String,
    epoch: u32,
    places: Vec<Option<Peer>>,
    generations: Vec<u32>,
    conns: BTreeMap<Stream, ConnId>,
    saboteur_conn: Option<ConnId>,
    accepting: Accepting,
    /// Number of connections of strangers.
    strangers: usize,
    due: Option<Instant>,
    frozen: bool,
    /// Notices for the next iteration of the process's loop.
    notices: Vec<Notice>,
    /// Longest time from a notice to the iteration that handles it, while other work keeps the process busy.
    iteration_delay_max: Duration,
    /// When the next iteration handles the notices.
    iteration_at: Option<Instant>,
    clock: Clock,
    /// Events of sessions and runs that the world has not taken yet.
    pub(super) notable: Vec<Event>,
    /// Numbers of connections that waited to be accepted, of failures to accept one, and of connections that were closed
    /// to accept others.
    accept_counts: [u64; 3],
    /// Connections on which sessions were opened.
    sessions: Vec<ConnId>,
    /// Connections whose end was hidden from the server.
    undying: Vec<ConnId>,
    sabotage: Sabotage,
}

/// Returns the incarnation of the server's process with this number.
pub(super) const fn incarnation(epoch: u32) -> u64 {
    epoch as u64 + 1
}

fn instance(sim_rng: &mut SimRng, epoch: u32) -> ServerInstance {
    let first_revision = u64::from(epoch) << 40;
    let seeded = ServerInstance::from_seed(sim_rng.seed());
    ServerInstance { incarnation: incarnation(epoch), first_revision, ..seeded }
}

impl Host {
    pub(super) fn new(
        (mut sim_rng, accepting): (SimRng, Accepting),
        limits: ServerLimits,
        sabotage: Sabotage,
        (conduct, security): (ClientConduct, Security),
    ) -> Self {
        let clock = if conduct == ClientConduct::Late { Clock::any(&mut sim_rng) } else { Clock::WORLD };
        let limits = accepting.limit(limits);
        let machine = Some(security.start(limits, instance(&mut sim_rng, 0)));
        let is_busy = sabotage == Sabotage::None && conduct != ClientConduct::Any;
        let iteration_delay_max = if is_busy { sim_rng.pick(&ITERATION_DELAYS_MAX) } else { Duration::ZERO };
        Self {
            sim_rng,
            conduct,
            limits,
            machine,
            security,
            token_file: String::new(),
            epoch: 0,
            places: Vec::new(),
            generations: Vec::new(),
            conns: BTreeMap::new(),
            saboteur_conn: None,
            accepting,
            strangers: 0,
            due: None,
            frozen: false,
            notices: Vec::new(),
            iteration_delay_max,
            iteration_at: None,
            clock,
            notable: Vec::new(),
            accept_counts: [0; 3],
            sessions: Vec::new(),
            undying: Vec::new(),
            sabotage,
        }
    }

    /// Returns the server machine, while the process lives.
    pub(super) fn machine(&self) -> Option<&Server> {
        self.machine.as_ref().map(TlsServer::server)
    }

    /// Returns what happened to connections that were to be accepted.
    pub(super) fn accept_counts(&self) -> Counts {
        let names = [
            "connections that waited to be accepted",
            "failures to accept one",
            "connections that made way for others",
        ];
        names.into_iter().zip(self.accept_counts).collect()
    }

    /// Returns the number of the process.
    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Kills the process. Its connections are reset or end at random.
    pub(super) fn kill(&mut self, context: &mut SimContext) {
        context.note(format_args!("the server dies"));
        context.network.listening = false;
        self.machine = None;
        self.frozen = false;
        self.iteration_at = None;
        for notice in core::mem::take(&mut self.notices) {
            if let Notice::Accept(stream) = notice {
                context.network.abort(context.now, stream, Side::Server);
            }
        }
        for peer in self.accepting.end() {
            if let Peer::Stream(stream) = peer {
                context.network.abort(context.now, stream, Side::Server);
            }
        }
        for (stream, _) in core::mem::take(&mut self.conns) {
            if self.sim_rng.percent(50) {
                context.network.abort(context.now, stream, Side::Server);
            } else {
                context.network.close(context.now, stream, Side::Server);
            }
        }
        self.places.clear();
        self.generations.clear();
        self.saboteur_conn = None;
        self.strangers = 0;
        self.sessions.clear();
        self.undying.clear();
    }

    /// Starts a new process.
    pub(super) fn restart(&mut self, context: &mut SimContext) {
        self.epoch += 1;
        let port = context.network.port;
        context.note(format_args!("the server comes back at port {port}, for its life {}", self.epoch));
        context.network.listening = true;
        if self.conduct == ClientConduct::Late {
            self.clock = Clock::any(&mut self.sim_rng);
        }
        self.due = None;
        self.token_file.clear();
        self.machine = Some(self.security.start(self.limits, instance(&mut self.sim_rng, self.epoch)));
    }

    /// Freezes the process. Returns whether there is one.
    pub(super) fn freeze(&mut self) -> bool {
        self.frozen = self.machine.is_some();
        self.frozen
    }

    /// Continues the process, which reads before it looks at the time.
    pub(super) fn thaw(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        self.frozen = false;
        self.clock.may_step(&mut self.sim_rng);
        self.tick(context)
    }

    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) -> Result<(), CheckError> {
        if let Notice::Accept(stream) = notice {
            // The kernel of this process has accepted the connection.
            context.network.set_epoch(stream, self.epoch);
        }
        self.notices.push(notice);
        if self.frozen {
            return Ok(());
        }
        if self.iteration_delay_max == Duration::ZERO {
            return self.iterate(context);
        }
        if self.iteration_at.is_none() {
            let delay = self.sim_rng.span(Duration::ZERO, self.iteration_delay_max);
            self.iteration_at = Some(context.now + delay);
            self.enter_due(context);
        }
        Ok(())
    }

    /// Handles the notices, in the order of the socket driver: it accepts after it has read, since a further connection
    /// may take the place of one without a greeting, and it looks at the time last. Then it does what the machine asks for.
    fn iterate(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        self.iteration_at = None;
        let notices = core::mem::take(&mut self.notices);
        let mut has_arrived = false;
        for &notice in &notices {
            match notice {
                Notice::Readable(stream, _) => self.read(context, stream)?,
                Notice::Accept(stream) => {
                    has_arrived = true;
                    self.accepting.arrived(Peer::Stream(stream), context.stormy);
                }
                _ => {}
            }
        }
        self.accept(context)?;
        self.accept_counts[0] += u64::from(has_arrived && self.accepting.is_waiting());
        for &notice in &notices {
            if let Notice::Writable(stream, _) = notice
                && let Some(&conn) = self.conns.get(&stream)
            {
                self.write(context, conn, stream)?;
            }
        }
        if self.tick_due().is_some_and(|at| at <= context.now) {
            self.give(context, Input::Tick)?;
        }
        self.drain(context)
    }

    /// Accepts connections for as long as the machine allows it.
    fn accept(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        while self.accept_due().is_some_and(|at| at <= self.clock.shows(context.now)) {
            let now = self.clock.shows(context.now);
            match self.accepting.accept(now, context.stormy) {
                Some(peer) => self.accept_peer(context, peer)?,
                None => {
                    context.note(format_args!("the server has no descriptor left"));
                    self.accept_counts[1] += 1;
                    self.give(context, Input::AcceptFailed)?;
                }
            }
        }
        Ok(())
    }

    fn accept_peer(&mut self, context: &mut SimContext, peer: Peer) -> Result<(), CheckError> {
        self.reload_tokens(context)?;
        let conn = self.take_place(peer);
        self.accepting.accepted(conn, self.clock.shows(context.now));
        if let Peer::Stream(stream) = peer {
            self.conns.insert(stream, conn);
            context.note(format_args!("server accepts {stream} as {conn:?}"));
            // Bytes may have arrived before.
            context.network.read_on(context.now, stream, Side::Server);
            return self.give(context, Input::Accepted { conn, peer: ADDRESS });
        }
        self.strangers += 1;
        context.note(format_args!("server accepts a stranger as {conn:?}"));
        self.give(context, Input::Accepted { conn, peer: ADDRESS })?;
        let greeting = frames::greeting();
        // The beginning of a TLS handshake ends a connection at once where there is no TLS.
        let tls: &[u8] = if self.security == Security::Tls { &[22, 3, 1] } else { &[] };
        let bytes = self.accepting.choose(&[&[], &greeting[..1], tls]);
        if bytes.is_empty() { Ok(()) } else { self.give(context, Input::Received { conn, bytes }) }
    }

    /// Returns when the process accepts the next connection that waits, by its clock.
    fn accept_due(&self) -> Option<Instant> {
        self.accepting.due(self.machine.as_ref()?.accepts_at())
    }

    /// Gives the machine the tokens of a changed file, before it meets the next client.
    fn reload_tokens(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        let Some(files) = &context.token_files else { return Ok(()) };
        let file = files.server_file(context.now);
        if file == self.token_file {
            return Ok(());
        }
        context.note(format_args!("the server reads its tokens: {file:?}"));
        self.token_file = file;
        let access = tokens::access(&self.token_file);
        self.give(context, Input::Access(&access))
    }

    /// Returns the number of the client at the other end of a connection.
    pub(super) fn client_of(&self, context: &SimContext, conn: ConnId) -> Option<usize> {
        let (&stream, _) = self.conns.iter().find(|(_, other)| **other == conn)?;
        context.network.client_of(stream)
    }

    pub(super) fn tick(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        if self.due.is_some_and(|due| due <= context.now) {
            self.due = None;
        }
        if self.frozen { Ok(()) } else { self.iterate(context) }
    }

    /// Sends a request of the saboteur to the store.
    pub(super) fn send_as_saboteur(
        &mut self,
        context: &mut SimContext,
        frame: &[u8],
    ) -> Result<(), CheckError> {
        if self.machine.is_none() || self.frozen {
            return Ok(());
        }
        let conn = match self.saboteur_conn {
            Some(conn) => conn,
            None => {
                let conn = self.take_place(Peer::Saboteur);
                self.saboteur_conn = Some(conn);
                self.feed(context, Input::Accepted { conn, peer: ADDRESS })?;
                self.feed(context, Input::Received { conn, bytes: &frames::greeting() })?;
                conn
            }
        };
        context.note(format_args!("the saboteur asks {:02x?}", &frame[..frame.len().min(40)]));
        self.feed(context, Input::Received { conn, bytes: frame })
    }

    /// Disconnects the saboteur, unless the fault is that it stays.
    pub(super) fn disconnect_saboteur(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        match self.saboteur_conn {
            Some(conn) if self.sabotage != Sabotage::LeakedWait => {
                self.feed(context, Input::Lost { conn, os_error: 0 })
            }
            _ => Ok(()),
        }
    }

    /// Checks what must hold at all times.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        let Some(machine) = &self.machine else { return Ok(()) };
        let here = self.conns.len() + self.strangers + usize::from(self.saboteur_conn.is_some());
        let there = machine.stats().connections;
        if here == there {
            Ok(())
        } else {
            Err(CheckError(format!("the server counts {there} connections, and there are {here}")))
        }
    }

    /// Checks what must hold when all clients have left, all keys are deleted and all deadlines are past.
    pub(super) fn check_floor(&self) -> Result<(), CheckError> {
        let Some(machine) = &self.machine else { return Err(CheckError("there is no server".to_owned())) };
        let (stats, footprint) = (machine.stats(), machine.server().engine().footprint());
        let floor = (
            stats.connections,
            stats.waiting,
            stats.keys,
            stats.stored_bytes,
            stats.buffered_bytes,
            footprint,
        );
        if floor != (0, 0, 0, 0, 0, 0) {
            return Err(CheckError(format!(
                "the server does not return to its floor: {stats:?}, footprint {footprint}"
            )));
        }
        match machine.poll_timeout() {
            None => Ok(()),
            Some(at) => Err(CheckError(format!("the idle server has a deadline at {at:?}"))),
        }
    }

    /// Checks what must hold when all clients have left; keys may remain.
    pub(super) fn check_native_floor(&self) -> Result<(), CheckError> {
        let Some(machine) = &self.machine else { return Err(CheckError("there is no server".to_owned())) };
        let stats = machine.stats();
        if (stats.connections, stats.sessions, stats.waiting, stats.buffered_bytes) != (0, 0, 0, 0) {
            return Err(CheckError(format!("the server does not return to its floor: {stats:?}")));
        }
        match machine.poll_timeout() {
            None => Ok(()),
            Some(at) => Err(CheckError(format!("the idle server has a deadline at {at:?}"))),
        }
    }

    fn take_place(&mut self, peer: Peer) -> ConnId {
        let index = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if index == self.places.len() {
            self.places.push(None);
            self.generations.push(0);
        }
        self.places[index] = Some(peer);
        ConnId { index: u32::try_from(index).unwrap_or(u32::MAX), generation: self.generations[index] }
    }

    fn feed(&mut self, context: &mut SimContext, input: Input<'_>) -> Result<(), CheckError> {
        self.give(context, input)?;
        self.drain(context)
    }

    fn give(&mut self, context: &SimContext, input: Input<'_>) -> Result<(), CheckError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine
            .handle(self.clock.shows(context.now), input)
            .map_err(|error| CheckError(format!("the server says {error}")))
    }

    /// Reads from a stream, several times at most, and leaves the outputs for later.
    fn read(&mut self, context: &mut SimContext, stream: Stream) -> Result<(), CheckError> {
        // One iteration has a budget. The rest is read in the next one.
        for _ in 0..1 + self.sim_rng.index(4) {
            let Some(&conn) = self.conns.get(&stream) else { return Ok(()) };
            if !self.machine.as_ref().is_some_and(|machine| machine.wants_read(conn)) {
                return Ok(());
            }
            match context.network.read(context.now, stream, Side::Server) {
                Read::Nothing => return Ok(()),
                Read::Bytes(bytes) => self.give(context, Input::Received { conn, bytes: &bytes })?,
                Read::End | Read::Reset if self.hides_the_end_of(context, conn) => return Ok(()),
                Read::End => return self.give(context, Input::ReadClosed { conn }),
                // 104 is ECONNRESET.
                Read::Reset => return self.give(context, Input::Lost { conn, os_error: 104 }),
            }
        }
        context.network.read_on(context.now, stream, Side::Server);
        Ok(())
    }

    /// Ends a connection as if the kernel considered the peer dead.
    pub(super) fn give_up(&mut self, context: &mut SimContext, stream: Stream) -> Result<(), CheckError> {
        let Some(&conn) = self.conns.get(&stream).filter(|_| !self.frozen) else { return Ok(()) };
        context.network.abort(context.now, stream, Side::Server);
        // 110 is ETIMEDOUT.
        self.feed(context, Input::HostSilent { conn, os_error: 110 })
    }

    /// Returns whether the saboteur hides the end of a session's connection. It then sends heartbeats in its name.
    fn hides_the_end_of(&mut self, context: &mut SimContext, conn: ConnId) -> bool {
        let may_hide = self.sabotage == Sabotage::UndyingSession && self.sessions.contains(&conn);
        if may_hide && !self.undying.contains(&conn) && self.sim_rng.percent(50) {
            self.undying.push(conn);
            context.event_queue.schedule(context.now, WorldEvent::Elastic(Cue::SaboteurHeartbeat));
        }
        self.undying.contains(&conn)
    }

    /// Sends heartbeats on all connections whose end is hidden.
    pub(super) fn send_saboteur_heartbeats(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        let conns = &self.conns;
        self.undying.retain(|conn| conns.values().any(|here| here == conn));
        let speaking = if self.frozen { Vec::new() } else { self.undying.clone() };
        for conn in speaking {
            self.feed(context, Input::Received { conn, bytes: &frames::heartbeat() })?;
        }
        if !self.undying.is_empty() {
            context
                .event_queue
                .schedule(context.now + SABOTEUR_HEARTBEAT, WorldEvent::Elastic(Cue::SaboteurHeartbeat));
        }
        Ok(())
    }

    fn write(&mut self, context: &mut SimContext, conn: ConnId, stream: Stream) -> Result<(), CheckError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let unsent = machine.unsent(conn);
        if unsent.is_empty() {
            return Ok(());
        }
        let length = unsent.len();
        let corrupted = corrupted(self.sabotage, &mut self.sim_rng, unsent);
        let written =
            context.network.write(context.now, stream, Side::Server, corrupted.as_deref().unwrap_or(unsent));
        let input = match written {
            Ok(bytes) if corrupted.as_ref().is_some_and(|corrupted| corrupted.len() == bytes) => {
                Input::Sent { conn, bytes: length }
            }
            Ok(bytes) => Input::Sent { conn, bytes: bytes.min(length) },
            Err(_) if self.undying.contains(&conn) => Input::Sent { conn, bytes: length },
            Err(_) => Input::Lost { conn, os_error: 32 },
        };
        machine
            .handle(self.clock.shows(context.now), input)
            .map_err(|error| CheckError(format!("the server says {error}")))?;
        if machine.wants_read(conn) {
            // The server stopped reading while its answers were unread. It continues from here.
            context.network.read_on(context.now, stream, Side::Server);
        }
        Ok(())
    }

    fn drain(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        while let Some(output) = self.machine.as_mut().and_then(TlsServer::poll_output) {
            match output {
                Output::Transmit { conn } => match self.places[conn.index as usize] {
                    Some(Peer::Stream(stream)) if self.conns.get(&stream) == Some(&conn) => {
                        self.write(context, conn, stream)?;
                    }
                    Some(Peer::Saboteur | Peer::Stranger) => {
                        let Some(machine) = &mut self.machine else { return Ok(()) };
                        let bytes = machine.unsent(conn).len();
                        let sent = machine.handle(self.clock.shows(context.now), Input::Sent { conn, bytes });
                        sent.map_err(|error| CheckError(format!("the server says {error}")))?;
                    }
                    // It was closed after the server had something to send.
                    _ => {}
                },
                Output::Read { conn } => {
                    if let Some(Peer::Stream(stream)) = self.places[conn.index as usize] {
                        context.network.read_on(context.now, stream, Side::Server);
                    }
                }
                Output::Close { conn } => {
                    let last = self.machine.as_ref().map_or(&[][..], |machine| machine.unsent(conn)).to_vec();
                    let slot = &mut self.places[conn.index as usize];
                    match slot.take() {
                        Some(Peer::Stream(stream)) if self.conns.remove(&stream) == Some(conn) => {
                            if !last.is_empty() {
                                // A socket that is full or broken gets none of it.
                                context.network.write(context.now, stream, Side::Server, &last).ok();
                            }
                            context.network.close(context.now, stream, Side::Server);
                        }
                        Some(Peer::Saboteur) => self.saboteur_conn = None,
                        Some(Peer::Stranger) => self.strangers -= 1,
                        _ => return Err(CheckError(format!("the server closes {conn:?} a second time"))),
                    }
                    self.generations[conn.index as usize] += 1;
                    self.accepting.closed();
                }
                Output::Event(
                    Event::Exposed { .. }
                    | Event::Accepted { .. }
                    | Event::CertificatesRenewed
                    | Event::CertificatesKept { .. },
                ) => {}
                Output::Event(
                    event @ (Event::SessionOpened { .. }
                    | Event::SessionEnded { .. }
                    | Event::Run { .. }
                    | Event::TokensReloaded { .. }
                    | Event::TokensKept { .. }),
                ) => {
                    context.note(format_args!("server: {event}"));
                    if let Event::SessionOpened { conn, .. } = event {
                        self.sessions.push(conn);
                    }
                    self.notable.push(event);
                }
                Output::Event(Event::Closed { conn, reason, .. }) => {
                    context.note(format_args!("server closed {conn:?}: {reason}"));
                    if reason == CloseReason::Displaced {
                        self.check_displaced(context, conn)?;
                        continue;
                    }
                    let is_refused = context.token_files.is_some() && is_refused_token(reason);
                    if !(is_refused || self.conduct.may_cause(reason)) {
                        return Err(CheckError(format!("the server found fault with {conn:?}: {reason}")));
                    }
                }
            }
        }
        self.enter_due(context);
        Ok(())
    }

    /// Checks that a connection that was closed to accept another one has had its time, and has not greeted.
    fn check_displaced(&mut self, context: &SimContext, conn: ConnId) -> Result<(), CheckError> {
        self.accept_counts[2] += 1;
        let now = self.clock.shows(context.now);
        if self.sessions.contains(&conn) || !self.accepting.may_be_displaced(conn, now, &self.limits) {
            return Err(CheckError(format!("{conn:?} has made way for another connection")));
        }
        Ok(())
    }

    fn tick_due(&self) -> Option<Instant> {
        self.clock.when(self.machine.as_ref()?.poll_timeout()?)
    }

    fn next_due(&self) -> Option<Instant> {
        let accept_due = self.accept_due().and_then(|at| self.clock.when(at));
        [self.tick_due(), accept_due, self.iteration_at].into_iter().flatten().min()
    }

    fn enter_due(&mut self, context: &mut SimContext) {
        // A server with work for the next iteration names an instant that is over. Where it leaves much to later turns, they
        // take time, in which other requests arrive.
        let Some(next) = self.next_due() else { return };
        let is_left = next <= context.now && context.history.splits_lists;
        let turn = if is_left { self.sim_rng.span(Duration::ZERO, TURN_MAX) } else { Duration::ZERO };
        let next = next.max(context.now) + turn;
        if self.due.is_none_or(|due| next < due) {
            self.due = Some(next);
            context.event_queue.schedule(next, WorldEvent::HostDue);
        }
    }
}

/// For how long the process may be busy. In half of the worlds without sabotage it handles each notice at once.
const ITERATION_DELAYS_MAX: [Duration; 4] =
    [Duration::ZERO, Duration::ZERO, Duration::from_millis(1), Duration::from_millis(10)];
/// Longest time between two turns of a server that leaves much to later ones.
const TURN_MAX: Duration = Duration::from_millis(10);
/// Shorter than any heartbeat timeout.
const SABOTEUR_HEARTBEAT: Duration = Duration::from_millis(50);
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4711);

impl ClientConduct {
    /// Returns whether such clients may cause the server to end a connection for this reason.
    const fn may_cause(self, reason: CloseReason) -> bool {
        match reason {
            CloseReason::PeerClosed
            | CloseReason::Lost(_)
            | CloseReason::HandshakeTimeout
            | CloseReason::FrameTimeout
            | CloseReason::StallTimeout => true,
            CloseReason::HostSilent(_)
            | CloseReason::Refused(ApplyError::Stale(_))
            // Requests in transit on a connection may arrive when the session has another one.
            | CloseReason::SessionRefused(FaultCode::SessionEnded | FaultCode::WindowPassed)
            | CloseReason::SessionOver(_) => !matches!(self, Self::Polite),
            _ => matches!(self, Self::Any),
        }
    }
}

/// Returns whether the client of a connection that was closed for this reason had a wrong token. The node knows whether
/// it had.
const fn is_refused_token(reason: CloseReason) -> bool {
    matches!(reason, CloseReason::SessionRefused(FaultCode::Unauthenticated | FaultCode::SessionForged))
}

/// Returns what the saboteur makes of bytes that the server sends, or `None` if it leaves them unchanged.
fn corrupted(sabotage: Sabotage, sim_rng: &mut SimRng, bytes: &[u8]) -> Option<Vec<u8>> {
    let wanted = matches!(sabotage, Sabotage::DroppedByte | Sabotage::DoubledByte | Sabotage::FlippedBit);
    if !wanted || !sim_rng.percent(5) {
        return None;
    }
    let mut corrupted = bytes.to_vec();
    let at = sim_rng.index(corrupted.len());
    match sabotage {
        Sabotage::DroppedByte => {
            corrupted.remove(at);
        }
        Sabotage::DoubledByte => corrupted.insert(at, bytes[at]),
        _ => corrupted[at] ^= 1 << sim_rng.index(8),
    }
    Some(corrupted)
}
