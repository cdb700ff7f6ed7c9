//! What native clients have at a server: their sessions, and what hangs on them. One frame is one turn: what follows
//! from it for others (waits that end, watches, rounds, fences) is done before the next frame is looked at.

mod barriers;
mod rounds;
mod store;
mod waiting;
mod watching;

use super::conns::{Conns, Language};
use super::event::{CloseReason, Event, Stats};
use super::instance::ServerInstance;
use crate::barrier::service::Barriers;
use crate::ids::ConnId;
use crate::limits::{ServerLimits, SessionLimits};
use crate::ordered::{Map, Named};
use crate::planted::{self, Bug};
use crate::rendezvous::service::Rendezvous;
use crate::session::table::{FrameRefused, Hello, Input, Outcome, Output, Scratch, SessionId, Sessions};
use crate::store::engine::Engine;
use crate::time::{Duration, Instant};
use crate::wire::native::{
    ClientFrame, Fault, FaultCode, FrameError, From, HEADER_BYTES, HELLO, Header, Label, Scan, ServerFrame,
    Why, append_frame, body_bytes_max, negotiate, scan, scan_opening,
};
use crate::wire::sink::Sink;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use rounds::Part;
use waiting::Waiting;
use watching::Watching;

/// What a native turn works on beside what is native.
pub(super) struct ServerContext<'s> {
    pub(super) now: Instant,
    pub(super) limits: &'s ServerLimits,
    pub(super) engine: &'s mut Engine,
    pub(super) conns: &'s mut Conns,
    pub(super) stats: &'s mut Stats,
    pub(super) events: &'s mut VecDeque<Event>,
}

/// What the next bytes of a connection were.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// A frame of so many bytes, which is served.
    Served {
        /// Its length.
        bytes: usize,
    },
    /// The start of a frame.
    Partial {
        /// A lower bound of its length.
        bytes: usize,
    },
}

#[derive(Debug)]
pub(super) struct Native {
    instance: ServerInstance,
    /// Sessions that were asked for so far.
    opened_total: u64,
    sessions: Sessions,
    scratch: Scratch,
    waiting: Waiting,
    watching: Watching,
    barriers: Barriers,
    /// How many sessions go by each name.
    nodes: Named<usize>,
    rendezvous: Rendezvous,
    /// Of those that are in a run.
    parts: Map<SessionId, Part>,
    /// Connections that end when their answers have left.
    to_close: VecDeque<(ConnId, CloseReason)>,
    /// Set by [`Native::stop`]: nobody hears of those who end with the server.
    stopped: bool,
}

impl Native {
    pub(super) fn new(limits: &ServerLimits, instance: ServerInstance) -> Self {
        let body_bytes_max = limits.session.body_bytes_max.min(limits.frame.frame_bytes_max);
        let session = SessionLimits { body_bytes_max, ..limits.session };
        Self {
            instance,
            opened_total: 0,
            sessions: Sessions::new(session, instance.incarnation),
            scratch: Scratch::default(),
            waiting: Waiting::default(),
            watching: Watching::default(),
            barriers: Barriers::new(limits.barrier, instance.hash_seed),
            nodes: Named::new(),
            rendezvous: Rendezvous::new(limits.rendezvous),
            parts: Map::new(),
            to_close: VecDeque::new(),
            stopped: false,
        }
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// What sessions hold: frames that are kept, copies of requests, names of watches.
    pub(super) const fn held_bytes(&self) -> u64 {
        self.sessions.held_bytes()
    }

    /// The session that holds most, and how much.
    pub(super) fn greediest(&self) -> Option<(SessionId, u64)> {
        self.sessions.greediest()
    }

    /// Ends a session that holds too much.
    pub(super) fn expel(&mut self, context: &mut ServerContext<'_>, session: SessionId) {
        // With a connection, it is counted when that is closed.
        context.stats.expelled += u64::from(self.sessions.conn_of(session).is_none());
        // It was there just now.
        let _ = self.sessions.handle(context.now, Input::Expel { session });
        self.drain_sessions(context);
    }

    /// How many wait at barriers.
    pub(super) fn arrivals(&self) -> usize {
        self.barriers.waiting()
    }

    pub(super) fn next_to_close(&mut self) -> Option<(ConnId, CloseReason)> {
        self.to_close.pop_front()
    }

    pub(super) fn poll_timeout(&self, engine: &Engine) -> Option<Instant> {
        let all = [
            self.sessions.poll_timeout(),
            self.waiting.poll_timeout(),
            self.barriers.poll_timeout(),
            self.rendezvous.poll_timeout(),
            engine.next_lease_expiry(),
        ];
        all.into_iter().flatten().min()
    }

    /// Serves the frame at the start of `input`.
    ///
    /// # Errors
    /// Why the connection is to be closed; what its client is told of that is written.
    pub(super) fn next(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        input: &[u8],
    ) -> Result<Next, CloseReason> {
        let is_open = context.conns.get(conn).is_some_and(|conn| conn.language.has_greeted());
        let limits = &context.limits.frame;
        let scanned = if is_open { scan(input, From::Client, limits) } else { scan_opening(input, limits) };
        let (header, bytes) = match scanned {
            Ok(Scan::Whole { header, bytes }) => (header, bytes),
            Ok(Scan::Partial { bytes }) => return Ok(Next::Partial { bytes }),
            Err(error) => return Err(self.reject(context, conn, error)),
        };
        let start = bytes - header.body_bytes as usize;
        let bytes = if is_open { bytes } else { bytes + crate::wire::native::MAGIC.len() };
        let start = if is_open { start } else { start + crate::wire::native::MAGIC.len() };
        debug_assert!(start >= HEADER_BYTES);
        let body = &input[start..bytes];
        context.stats.requests += 1;
        let served = match (is_open, header.kind) {
            (false, _) => self.open(context, conn, &header, body),
            (true, HELLO) => {
                let fault = Fault::new(FaultCode::UnexpectedFrame, HELLO.into(), 0);
                self.speak(context, conn, &ServerFrame::Error { fault });
                Err(CloseReason::SessionRefused(fault.code))
            }
            (true, _) => self.frame(context, conn, &header, body),
        };
        self.serve_released(context);
        self.drain_sessions(context);
        served?;
        match self.to_close.iter().position(|&(other, _)| other == conn) {
            Some(index) => {
                Err(self.to_close.remove(index).map_or(CloseReason::PeerClosed, |(_, reason)| reason))
            }
            None => Ok(Next::Served { bytes }),
        }
    }

    fn reject(&mut self, context: &mut ServerContext<'_>, conn: ConnId, error: FrameError) -> CloseReason {
        let fault = match error {
            FrameError::Flags(flags) => Some(Fault::new(FaultCode::UnknownFlags, flags.into(), 0)),
            FrameError::TooLong { kind, bytes } => {
                let limit = body_bytes_max(kind, From::Client, &context.limits.frame);
                Some(Fault::new(FaultCode::TooLong, bytes.into(), limit))
            }
            FrameError::Magic | FrameError::NotHello(_) => None,
        };
        if let Some(fault) = fault {
            self.speak(context, conn, &ServerFrame::Error { fault });
        }
        CloseReason::NativeProtocol(error)
    }

    fn open(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        header: &Header,
        body: &[u8],
    ) -> Result<(), CloseReason> {
        let refuse = |native: &mut Self, context: &mut ServerContext<'_>, fault: Fault<'_>| {
            native.speak(context, conn, &ServerFrame::Error { fault });
            Err(CloseReason::SessionRefused(fault.code))
        };
        let frame = match ClientFrame::parse(HELLO, body, &context.limits.frame) {
            Ok(Some(frame)) => frame,
            Ok(None) => return refuse(self, context, Fault::new(FaultCode::Malformed, HELLO.into(), 0)),
            Err(error) => {
                let fault = Fault::of_body(error, HELLO, &context.limits.frame);
                return refuse(self, context, fault);
            }
        };
        let ClientFrame::Hello {
            version_min,
            version_max,
            incarnation,
            session,
            token,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
            auth: _,
        } = frame
        else {
            return refuse(self, context, Fault::new(FaultCode::Malformed, HELLO.into(), 0));
        };
        if let Err(fault) = negotiate(version_min, version_max) {
            return refuse(self, context, fault);
        }
        self.opened_total += 1;
        let hello = Hello {
            incarnation,
            session,
            token,
            received: header.sequence,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
        };
        let fresh_token = self.instance.token(self.opened_total);
        // A connection opens once: `is_open` is asked before.
        let _ = self.sessions.handle(context.now, Input::Hello { conn, hello, fresh_token });
        Ok(())
    }

    fn frame(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        header: &Header,
        body: &[u8],
    ) -> Result<(), CloseReason> {
        let refuse = |native: &mut Self, context: &mut ServerContext<'_>, fault: Fault<'_>| {
            native.speak(context, conn, &ServerFrame::Error { fault });
            Err(CloseReason::SessionRefused(fault.code))
        };
        let limits = &context.limits.frame;
        let parsed = ClientFrame::parse(header.kind, body, limits);
        if let Ok(Some(frame @ (ClientFrame::Heartbeat { .. } | ClientFrame::Acknowledge { .. }))) = parsed {
            if let Err(fault) = self.sessions.note_received(context.now, conn, header.sequence) {
                return refuse(self, context, fault);
            }
            if let ClientFrame::Heartbeat { nonce } = frame {
                self.speak(context, conn, &ServerFrame::HeartbeatEcho { nonce });
            }
            return Ok(());
        }
        let outcome = match self.sessions.request(context.now, conn, header.id, header.sequence) {
            Ok(outcome) => outcome,
            Err(fault) => return refuse(self, context, fault),
        };
        let session = match outcome {
            Outcome::Fresh(session) => session,
            Outcome::Pending => return Ok(()),
            Outcome::Refuse(session, fault) => {
                self.fail(context, session, header.id, fault);
                return Ok(());
            }
            Outcome::Repeat(bytes) => {
                context.conns.line(Some(conn)).put(bytes);
                context.conns.want_to_send(conn);
                return Ok(());
            }
            Outcome::Forgotten(fault) => {
                let label = Label { id: header.id, sequence: 0, flags: 0 };
                self.speak_as(context, conn, label, &ServerFrame::Error { fault });
                return Ok(());
            }
        };
        match parsed {
            Ok(Some(ClientFrame::Bye {})) => {
                self.done(context, session, header.id);
                // It is attached to this very connection.
                let _ = self.sessions.handle(context.now, Input::Bye { conn });
            }
            Ok(Some(frame)) => self.request(context, session, header.id, &frame),
            Ok(None) => {
                let fault = Fault::new(FaultCode::UnknownRequest, header.kind.into(), 0);
                self.fail(context, session, header.id, fault);
            }
            Err(error) => {
                let fault = Fault::of_body(error, header.kind, limits);
                self.fail(context, session, header.id, fault);
            }
        }
        Ok(())
    }

    fn request(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        id: u64,
        frame: &ClientFrame<'_>,
    ) {
        match *frame {
            ClientFrame::Cancel { request } => {
                let holds = self.cancel(context, session, request);
                let revision = context.engine.revision();
                self.answer(context, session, id, &ServerFrame::Outcome { holds, revision });
            }
            ClientFrame::WatchKey { .. }
            | ClientFrame::WatchPrefix { .. }
            | ClientFrame::LeaseGrant { .. }
            | ClientFrame::LeaseAttach { .. }
            | ClientFrame::LeaseRenew { .. }
            | ClientFrame::LeaseRevoke { .. } => self.watching_request(context, session, id, frame),
            ClientFrame::Join { .. }
            | ClientFrame::Standby { .. }
            | ClientFrame::Leave { .. }
            | ClientFrame::Close { .. }
            | ClientFrame::Fail { .. }
            | ClientFrame::Members { .. }
            | ClientFrame::RunInfo { .. } => self.rendezvous_request(context, session, id, frame),
            ClientFrame::Barrier { .. } | ClientFrame::BarrierCancel { .. } => {
                self.barrier_request(context, session, id, frame);
            }
            _ => self.store_request(context, session, id, frame),
        }
    }

    /// Ends a pending request of a session; whether there was one.
    fn cancel(&mut self, context: &mut ServerContext<'_>, session: SessionId, request: u64) -> bool {
        if self.cancel_wait(context, session, request)
            || self.cancel_arrival(context, session, request)
            || self.cancel_join(context, session, request)
        {
            let node = self.sessions.node_of(session).map(<[u8]>::to_vec).unwrap_or_default();
            let fault = Fault { text: &node, ..Fault::new(FaultCode::Cancelled, 0, 0) };
            self.fail(context, session, request, fault);
            return true;
        }
        self.cancel_watch(context, session, request)
    }

    /// Answers a request.
    #[inline(never)]
    fn answer(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        id: u64,
        frame: &ServerFrame<'_>,
    ) {
        let conn = self.sessions.conn_of(session);
        let outcome = self.sessions.answer(session, id, frame, &mut context.conns.line(conn));
        if let Some(conn) = conn {
            context.conns.want_to_send(conn);
        }
        match outcome {
            Err(FrameRefused::TooLong(bytes)) => self.too_long(context, session, id, bytes),
            // Who is gone awaits nothing.
            Ok(_) | Err(FrameRefused::SessionOver | FrameRefused::NotPending(_)) => {}
        }
    }

    fn too_long(&mut self, context: &mut ServerContext<'_>, session: SessionId, id: u64, bytes: usize) {
        let limit = context.limits.frame.frame_bytes_max as u64;
        self.fail(context, session, id, Fault::new(FaultCode::TooLong, bytes as u64, limit));
    }

    /// Answers a request with an error.
    #[inline(never)]
    fn fail(&mut self, context: &mut ServerContext<'_>, session: SessionId, id: u64, fault: Fault<'_>) {
        context.stats.stale_writes += u64::from(fault.code == FaultCode::StaleRound);
        let kept = fault.text.len().min(TEXT_BYTES_MAX);
        let fault = Fault { text: &fault.text[..kept], ..fault };
        self.answer(context, session, id, &ServerFrame::Error { fault });
    }

    #[inline(never)]
    fn done(&mut self, context: &mut ServerContext<'_>, session: SessionId, id: u64) {
        let revision = context.engine.revision();
        self.answer(context, session, id, &ServerFrame::Done { revision });
    }

    /// Sends a session what it did not ask for just now, but by request `id`.
    #[inline(never)]
    fn push(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        id: u64,
        frame: &ServerFrame<'_>,
    ) {
        let conn = self.sessions.conn_of(session);
        // Nobody awaits what is pushed to one who is gone; and no push is too long.
        let _ = self.sessions.push(session, id, frame, &mut context.conns.line(conn));
        if let Some(conn) = conn {
            context.conns.want_to_send(conn);
        }
    }

    /// Writes a frame that has no number.
    fn speak(&mut self, context: &mut ServerContext<'_>, conn: ConnId, frame: &ServerFrame<'_>) {
        self.speak_as(context, conn, Label::default(), frame);
    }

    #[inline(never)]
    fn speak_as(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        label: Label,
        frame: &ServerFrame<'_>,
    ) {
        self.scratch.reset();
        // Frames without a number are short.
        let _ = append_frame(&mut self.scratch, label, frame, usize::MAX);
        context.conns.line(Some(conn)).put(&self.scratch.0);
        context.conns.want_to_send(conn);
    }

    /// Does what the sessions say.
    fn drain_sessions(&mut self, context: &mut ServerContext<'_>) {
        while let Some(output) = self.sessions.poll_output() {
            match output {
                Output::Welcome { conn, session, token, resumed, request_last, granted } => {
                    context.engine.start_history(context.limits.history);
                    if let Some(conn) = context.conns.at(conn) {
                        conn.language = Language::Native(Some(session));
                    }
                    let (limits, kept) = (&context.limits.frame, &context.limits.session);
                    let welcome = ServerFrame::Welcome {
                        version: crate::wire::native::VERSION_MAX,
                        incarnation: self.instance.incarnation,
                        session: session.0,
                        token,
                        resumed,
                        request_last,
                        grace_ms: granted.grace_ms,
                        heartbeat_ms: granted.heartbeat_ms,
                        heartbeats_missed_max: granted.heartbeats_missed_max,
                        window_frames: kept.window_frames,
                        window_bytes: kept.window_bytes,
                        key_bytes_max: limits.key_bytes_max,
                        value_bytes_max: limits.value_bytes_max,
                        list_max: limits.keys_max,
                        frame_bytes_max: limits.frame_bytes_max as u64,
                    };
                    self.speak(context, conn, &welcome);
                    let mut line = context.conns.line(Some(conn));
                    self.sessions.unreceived(session).for_each(|frame| line.put(frame));
                    if resumed && planted::has(Bug::ForgottenWaiter) {
                        self.end_waits(context, session);
                    }
                    if resumed {
                        self.resume_watches(context, session);
                    } else {
                        let node: Box<[u8]> = self.sessions.node_of(session).unwrap_or_default().into();
                        *self.nodes.entry(&node, || 0) += 1;
                        context.events.push_back(Event::SessionOpened { session, conn, node });
                    }
                }
                Output::Refused { conn, fault } => {
                    self.speak(context, conn, &ServerFrame::Error { fault });
                    self.to_close.push_back((conn, CloseReason::SessionRefused(fault.code)));
                }
                Output::Superseded { conn } => {
                    self.speak(context, conn, &ServerFrame::SessionOver { why: Why::Superseded });
                    self.to_close.push_back((conn, CloseReason::SessionOver(Why::Superseded)));
                }
                Output::Ended { session, conn, node, why } => {
                    if let Some(conn) = conn {
                        self.speak(context, conn, &ServerFrame::SessionOver { why });
                        self.to_close.push_back((conn, CloseReason::SessionOver(why)));
                    }
                    let run_id = self.parts.get(session).map(|part| part.run_id().clone());
                    let name = node.clone();
                    context.events.push_back(Event::SessionEnded { session, node: name, run_id, why });
                    if !self.stopped {
                        self.end_session(context, session, &node, why);
                    }
                }
            }
        }
    }

    /// Ends all that hangs on a session that is over.
    fn end_session(&mut self, context: &mut ServerContext<'_>, session: SessionId, node: &[u8], why: Why) {
        self.end_waits(context, session);
        self.end_watches(context, session);
        self.end_arrivals(context, session, node, why);
        self.end_participation(context, session, why);
        self.serve_released(context);
    }

    /// A connection is gone, or no more is read of it.
    pub(super) fn lost(&mut self, context: &mut ServerContext<'_>, conn: ConnId, why: Why) {
        // One without a session said no Hello, or another has taken its session over.
        let _ = self.sessions.handle(context.now, Input::Lost { conn, why });
        self.drain_sessions(context);
    }

    /// The peer has taken bytes that it was too slow for: that is a sign of life, and what it sent meanwhile may be unread.
    /// Bytes that only went into its socket's buffer say nothing of it.
    pub(super) fn reads_again(&mut self, context: &ServerContext<'_>, conn: ConnId) {
        // One without a session is not waited for.
        let _ = self.sessions.note_received(context.now, conn, 0);
    }

    /// Part of a frame has come: who sends is alive.
    pub(super) fn partial_frame_received(&mut self, context: &mut ServerContext<'_>, conn: ConnId) {
        // One without a session says Hello, or nothing that counts.
        let _ = self.sessions.note_received(context.now, conn, 0);
    }

    /// The socket has taken bytes: there may be more to tell.
    pub(super) fn writable(&mut self, context: &mut ServerContext<'_>, conn: ConnId) {
        if !self.watching.is_held_back() {
            return;
        }
        if let Some(session) = self.sessions.of(conn) {
            self.resume_watches(context, session);
        }
    }

    pub(super) fn tick(&mut self, context: &mut ServerContext<'_>) {
        // Neither can go wrong.
        let _ = self.sessions.handle(context.now, Input::Tick);
        self.drain_sessions(context);
        self.expire_leases(context);
        self.expire_waits(context);
        self.tick_barriers(context);
        self.tick_rounds(context);
        self.serve_released(context);
    }

    /// The server stops: all sessions end, and nobody is told of the others.
    pub(super) fn stop(&mut self, context: &mut ServerContext<'_>) {
        self.stopped = true;
        let _ = self.sessions.handle(context.now, Input::Stop);
        self.drain_sessions(context);
    }
}

#[cfg(test)]
mod tests;

/// Longest text of an error, in bytes, so that it is short however long the names in it are.
const TEXT_BYTES_MAX: usize = 32 * 1024;

/// A span that a client gives in milliseconds.
fn millis(span: u64) -> Duration {
    // Longer than any server runs, and short enough to be added to any time.
    Duration::from_millis(span.min(1 << 40))
}
