//! State of the native clients of a server: their sessions and all that belongs to them. What a frame leads to (ended
//! waits, watches, rounds, fences) is done before the next frame is parsed, as far as the turn's budget allows.

mod barriers;
mod greeting;
mod jobs;
mod rounds;
mod store;
mod waiting;
mod watching;

pub use rounds::why_over;
pub(super) use store::{notify_released, pushed_queue};

use super::conns::{Conns, Greeting, Protocol};
use super::event::{CloseReason, Event, Stats};
use super::instance::ServerInstance;
use super::{Budget, KEYS_PER_STEP};
use crate::access::{Access, AuthToken};
use crate::barrier::service::Barriers;
use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::ordered::{Map, Named};
use crate::prelude::*;
use crate::rendezvous::service::{Output as RunOutput, Rendezvous};
use crate::session::table::{FrameRefused, Input, Outcome, Output, Scratch, SessionId, Sessions, TICK_WORK};
use crate::store::engine::{Engine, PrefixRemoved};
use crate::store::txn::Write;
use crate::wire::native::{
    Batched, ClientFrame, Fault, FaultCode, FrameError, From, HEADER_BYTES, HELLO, Header, Label, MAGIC,
    Message as _, Scan, ServerFrame, Size, Why, append_frame, body_bytes_max, negotiate, scan, scan_hello,
    scan_opening,
};
use crate::wire::sink::Sink;
use alloc::collections::VecDeque;
use greeting::Authenticated;
use jobs::{Job, Jobs};
use rounds::Part;
use waiting::Waiting;
use watching::Watching;

/// Work of writing a short frame, beside that of copying.
const ANSWER_WORK: u64 = 5;
/// Length of the shortest frame with a list of more than [`KEYS_PER_STEP`] keys, in bytes: a key has its length and a byte. Such
/// a request may add many keys. It waits until those of earlier ones are in order, so that there are never more to be put in
/// order than one request adds.
const LONG_LIST_BYTES: usize = 9 * KEYS_PER_STEP;

/// Parts of the server that native requests work on.
pub(super) struct ServerContext<'s> {
    pub(super) now: Instant,
    pub(super) limits: &'s ServerLimits,
    pub(super) access: &'s Access,
    pub(super) engine: &'s mut Engine,
    pub(super) conns: &'s mut Conns,
    pub(super) stats: &'s mut Stats,
    pub(super) events: &'s mut VecDeque<Event>,
    pub(super) budget: &'s mut Budget,
}

impl ServerContext<'_> {
    /// Returns whether the turn has used up its work. What is left to do follows at the next tick.
    fn is_budget_spent(&mut self) -> bool {
        self.budget.spend(self.engine, self.conns)
    }

    /// Prepares requests for the keys with a prefix as far as this turn allows. Returns whether that is done.
    fn order_keys(&mut self) -> bool {
        self.budget.order_keys(self.engine, self.conns)
    }

    /// Does work that is for others than the connection of the input.
    fn for_others(&mut self, work: impl FnOnce(&mut Self)) {
        let before = self.work_so_far();
        let for_others = self.budget.for_others;
        work(self);
        // Some of it has been counted as such already.
        self.budget.for_others = for_others + self.work_so_far() - before;
    }

    /// Returns the work for this input until now.
    fn work_so_far(&mut self) -> u64 {
        self.budget.spend(self.engine, self.conns);
        self.budget.spent
    }
}

/// A request of a session, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestId {
    session: SessionId,
    id: u64,
}

impl RequestId {
    const fn key(self) -> (SessionId, u64) {
        (self.session, self.id)
    }
}

/// Result of looking at the next bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// The server has served a frame.
    Served {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The server serves the frame in a later turn.
    Parked,
    /// The frame is incomplete.
    Partial {
        /// Lower bound of its length in bytes.
        bytes: usize,
    },
}

#[derive(Debug)]
pub(super) struct Native {
    instance: ServerInstance,
    /// Number of HELLOs that were accepted so far. It numbers the tokens.
    opened_total: u64,
    sessions: Sessions,
    scratch: Scratch,
    waiting: Waiting,
    jobs: Jobs,
    watching: Watching,
    barriers: Barriers,
    /// Number of sessions by the names of their token and node.
    nodes: Named<usize>,
    rendezvous: Rendezvous,
    /// What follows the id of a run in the keys of its rounds.
    after_run_id: [u8; 18],
    /// Events of runs of which participants are still to be notified.
    notifications: VecDeque<RunOutput>,
    /// Tokens of the sessions, if the server asks for them.
    tokens: Map<SessionId, Arc<AuthToken>>,
    /// Parts of the sessions that are in a run.
    parts: Map<SessionId, Part>,
    /// Connections to close once their answers have been sent.
    to_close: VecDeque<(ConnId, CloseReason)>,
    /// Set by [`Native::stop`]: sessions that end with the server are not reported to others.
    stopped: bool,
}

impl Native {
    pub(super) fn new(limits: &ServerLimits, instance: ServerInstance) -> Self {
        Self {
            instance,
            opened_total: 0,
            sessions: Sessions::new(limits.session, instance.incarnation),
            scratch: Scratch::default(),
            waiting: Waiting::default(),
            jobs: Jobs::default(),
            watching: Watching::default(),
            barriers: Barriers::new(limits.barrier, instance.hash_key),
            nodes: Named::new(),
            rendezvous: Rendezvous::new(limits.rendezvous),
            after_run_id: rounds::after_run_id(instance.incarnation),
            notifications: VecDeque::new(),
            tokens: Map::new(),
            parts: Map::new(),
            to_close: VecDeque::new(),
            stopped: false,
        }
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.count()
    }

    /// Returns the bytes that sessions hold: frames that are kept, copies of requests, names of watches.
    pub(super) const fn held_bytes(&self) -> u64 {
        self.sessions.held_bytes()
    }

    /// Returns the sessions, and how many bytes each holds.
    pub(super) fn holders(&self) -> impl Iterator<Item = (u64, SessionId)> {
        self.sessions.holders()
    }

    /// Ends a session, whatever its client does.
    pub(super) fn expel(&mut self, context: &mut ServerContext<'_>, session: SessionId, why: Why) {
        if self.sessions.node_of(session).is_none() {
            return;
        }
        // A session with a connection is counted when the connection is closed.
        context.stats.expelled += u64::from(self.sessions.conn_of(session).is_none());
        // The end of a session is never refused.
        let _ = self.sessions.handle(context.now, Input::Expel { session, why });
        self.drain_sessions(context);
    }

    /// Returns the number of arrivals that wait at barriers.
    pub(super) fn arrivals(&self) -> usize {
        self.barriers.waiting()
    }

    pub(super) fn next_to_close(&mut self) -> Option<(ConnId, CloseReason)> {
        self.to_close.pop_front()
    }

    /// Returns whether there is work for the next tick.
    pub(super) fn has_work(&self, engine: &Engine) -> bool {
        self.has_released()
            || !self.jobs.is_empty()
            || self.barriers.has_output()
            || !self.notifications.is_empty()
            || engine.has_ready_watch()
    }

    pub(super) fn poll_timeout(&self, now: Instant, engine: &Engine) -> Option<Instant> {
        let all = [
            self.has_work(engine).then_some(now),
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
    /// The reason why the server closes the connection. The client's answer has been written by then.
    pub(super) fn next(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        input: &[u8],
    ) -> Result<Next, CloseReason> {
        let limits = &context.limits.native_frame;
        let (is_open, before, scanned) = match context.conns.get(conn).map(|conn| &conn.protocol) {
            Some(Protocol::Native(Greeting::Done)) => (true, 0, scan(input, From::Client, limits)),
            Some(Protocol::Native(Greeting::Challenged(_))) => (false, 0, scan_hello(input, limits)),
            _ => (false, MAGIC.len(), scan_opening(input, limits)),
        };
        let (header, bytes) = match scanned {
            Ok(Scan::Whole { header, bytes }) => (header, before + bytes),
            Ok(Scan::Partial { bytes }) => return Ok(Next::Partial { bytes }),
            Err(error) => return Err(self.reject(context, conn, error)),
        };
        let body = &input[before + HEADER_BYTES..bytes];
        context.budget.subtract(ANSWER_WORK);
        let had_released = self.has_released();
        let served = match (is_open, header.kind) {
            (false, _) => self.open(context, conn, &header, body).map(|()| true),
            (true, HELLO) => {
                let fault = Fault::new(FaultCode::UnexpectedFrame, HELLO.into(), 0);
                self.send_unnumbered(context, conn, &ServerFrame::Error { fault });
                Err(CloseReason::SessionRefused(fault.code))
            }
            (true, _) => self.frame(context, conn, &header, body),
        };
        if let Ok(false) = served {
            return Ok(Next::Parked);
        }
        context.stats.requests += 1;
        // What an earlier frame has left is the business of the next tick.
        if !had_released {
            self.serve_released(context);
        }
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
                let limit = body_bytes_max(kind, From::Client, &context.limits.native_frame);
                Some(Fault::new(FaultCode::TooLong, bytes.into(), limit))
            }
            FrameError::Magic | FrameError::NotHello(_) => None,
        };
        if let Some(fault) = fault {
            self.send_unnumbered(context, conn, &ServerFrame::Error { fault });
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
            native.send_unnumbered(context, conn, &ServerFrame::Error { fault });
            Err(CloseReason::SessionRefused(fault.code))
        };
        let frame = match ClientFrame::parse(HELLO, body, &context.limits.native_frame) {
            Ok(Some(frame)) => frame,
            Ok(None) => return refuse(self, context, Fault::new(FaultCode::Malformed, HELLO.into(), 0)),
            Err(error) => {
                let fault = Fault::of_body(error, HELLO, &context.limits.native_frame);
                return refuse(self, context, fault);
            }
        };
        let ClientFrame::Hello { version_min, version_max, .. } = frame else {
            return refuse(self, context, Fault::new(FaultCode::Malformed, HELLO.into(), 0));
        };
        if let Err(fault) = negotiate(version_min, version_max) {
            return refuse(self, context, fault);
        }
        self.opened_total += 1;
        match self.authenticate(context, conn, &frame) {
            Ok(Authenticated::As(token)) => self.greet(context, conn, (header.sequence, &frame), token),
            Ok(Authenticated::Challenged) => {}
            Err(fault) => return refuse(self, context, fault),
        }
        Ok(())
    }

    /// Serves a frame. Returns false if that has to wait for a later turn.
    fn frame(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        header: &Header,
        body: &[u8],
    ) -> Result<bool, CloseReason> {
        let refuse = |native: &mut Self, context: &mut ServerContext<'_>, fault: Fault<'_>| {
            native.send_unnumbered(context, conn, &ServerFrame::Error { fault });
            Err(CloseReason::SessionRefused(fault.code))
        };
        let has_list = ClientFrame::size_of(header.kind) == Some(Size::Frame);
        if has_list && body.len() > LONG_LIST_BYTES && context.engine.has_unordered() && !context.order_keys()
        {
            return Ok(false);
        }
        let limits = &context.limits.native_frame;
        let parsed = ClientFrame::parse(header.kind, body, limits);
        if let Ok(Some(frame @ (ClientFrame::Heartbeat { .. } | ClientFrame::Acknowledge { .. }))) = parsed {
            if let Err(fault) = self.sessions.note_received(context.now, conn, header.sequence) {
                return refuse(self, context, fault);
            }
            if let ClientFrame::Heartbeat { nonce } = frame {
                self.send_unnumbered(context, conn, &ServerFrame::HeartbeatEcho { nonce });
            }
            return Ok(true);
        }
        if let Ok(Some(frame)) = &parsed
            && removes_prefix_at_once(frame, context.limits.txn_parts_max)
            && !context.order_keys()
        {
            return Ok(false);
        }
        let outcome = match self.sessions.request(context.now, conn, header.id, header.sequence) {
            Ok(outcome) => outcome,
            Err(fault) => return refuse(self, context, fault),
        };
        let request = match outcome {
            Outcome::Fresh(session) => RequestId { session, id: header.id },
            Outcome::Pending => return Ok(true),
            Outcome::Refuse(session, fault) => {
                self.fail(context, RequestId { session, id: header.id }, fault);
                return Ok(true);
            }
            Outcome::Repeat(bytes) => {
                context.conns.sink(Some(conn)).put(bytes);
                context.conns.want_to_send(conn);
                return Ok(true);
            }
            Outcome::Forgotten(fault) => {
                let label = Label { id: header.id, sequence: 0, flags: 0 };
                self.send_labelled(context, conn, label, &ServerFrame::Error { fault });
                return Ok(true);
            }
        };
        match parsed {
            Ok(Some(frame @ (ClientFrame::Bye {} | ClientFrame::Abandon {}))) => {
                self.done(context, request);
                let why = if frame == (ClientFrame::Bye {}) { Why::Left } else { Why::Stopped };
                // The session is attached to this connection.
                let _ = self.sessions.handle(context.now, Input::Bye { conn, why });
            }
            Ok(Some(frame)) => self.request(context, request, &frame),
            Ok(None) => {
                let fault = Fault::new(FaultCode::UnknownRequest, header.kind.into(), 0);
                self.fail(context, request, fault);
            }
            Err(error) => {
                let fault = Fault::of_body(error, header.kind, limits);
                self.fail(context, request, fault);
            }
        }
        Ok(true)
    }

    fn request(&mut self, context: &mut ServerContext<'_>, request: RequestId, frame: &ClientFrame<'_>) {
        if let Err(denied) = self.check_rights(context, request.session, frame) {
            let text = denied.to_string();
            let fault = Fault::new(FaultCode::PermissionDenied, frame.kind().into(), 0);
            return self.fail(context, request, Fault { text: text.as_bytes(), ..fault });
        }
        match *frame {
            ClientFrame::Sessions { after, count_max } => {
                self.list_sessions(context, request, after, count_max)
            }
            ClientFrame::EndSession { session } => {
                let session = SessionId(session);
                let holds = self.sessions.node_of(session).is_some();
                self.expel(context, session, Why::EndedByAdmin);
                let revision = context.engine.revision();
                self.answer(context, request, &ServerFrame::Outcome { holds, revision });
            }
            ClientFrame::Cancel { request: id } => {
                let holds = self.cancel(context, RequestId { id, ..request });
                let revision = context.engine.revision();
                self.answer(context, request, &ServerFrame::Outcome { holds, revision });
            }
            ClientFrame::WatchKey { .. }
            | ClientFrame::WatchPrefix { .. }
            | ClientFrame::LeaseGrant { .. }
            | ClientFrame::LeaseAttach { .. }
            | ClientFrame::LeaseRenew { .. }
            | ClientFrame::LeaseRevoke { .. } => self.watching_request(context, request, frame),
            ClientFrame::Join { .. }
            | ClientFrame::Standby { .. }
            | ClientFrame::Leave { .. }
            | ClientFrame::Close { .. }
            | ClientFrame::Fail { .. }
            | ClientFrame::Members { .. }
            | ClientFrame::RunInfo { .. } => self.rendezvous_request(context, request, frame),
            ClientFrame::Barrier { .. } | ClientFrame::BarrierCancel { .. } => {
                self.barrier_request(context, request, frame);
            }
            _ => self.store_request(context, request, frame),
        }
    }

    /// Cancels a pending request or a watch of a session. Returns whether there was one.
    fn cancel(&mut self, context: &mut ServerContext<'_>, request: RequestId) -> bool {
        if self.cancel_wait(context, request)
            || self.cancel_arrival(context, request)
            || self.cancel_join(context, request)
        {
            let node = self.sessions.node_of(request.session).map(<[u8]>::to_vec).unwrap_or_default();
            let fault = Fault { text: &node, ..Fault::new(FaultCode::Cancelled, 0, 0) };
            self.fail(context, request, fault);
            return true;
        }
        self.cancel_watch(context, request)
    }

    /// Answers a request.
    #[inline(never)]
    fn answer(&mut self, context: &mut ServerContext<'_>, request: RequestId, frame: &ServerFrame<'_>) {
        let written = self.try_answer(context.conns, request, frame);
        self.written(context, request, written);
    }

    /// Answers a request with a frame that may borrow from the store. The caller passes the result to
    /// [`Native::written`].
    fn try_answer(
        &mut self,
        conns: &mut Conns,
        request: RequestId,
        frame: &ServerFrame<'_>,
    ) -> Result<(), FrameRefused> {
        let conn = self.sessions.conn_of(request.session);
        self.sessions.answer(request.session, request.id, frame, &mut conns.sink(conn))?;
        if let Some(conn) = conn {
            conns.want_to_send(conn);
        }
        Ok(())
    }

    fn written(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        outcome: Result<(), FrameRefused>,
    ) {
        match outcome {
            Err(FrameRefused::TooLong(bytes)) => self.too_long(context, request, bytes),
            // No client waits for the answer of a session that has ended.
            Ok(()) | Err(FrameRefused::SessionOver | FrameRefused::NotPending(_)) => {}
        }
    }

    fn too_long(&mut self, context: &mut ServerContext<'_>, request: RequestId, bytes: usize) {
        let limit = context.limits.session.body_bytes_max as u64;
        self.fail(context, request, Fault::new(FaultCode::TooLong, bytes as u64, limit));
    }

    /// Answers a request with an error.
    #[inline(never)]
    fn fail(&mut self, context: &mut ServerContext<'_>, request: RequestId, fault: Fault<'_>) {
        context.stats.stale_writes += u64::from(fault.code == FaultCode::StaleRound);
        let kept = fault.text.len().min(TEXT_BYTES_MAX);
        let fault = Fault { text: &fault.text[..kept], ..fault };
        self.answer(context, request, &ServerFrame::Error { fault });
    }

    #[inline(never)]
    fn done(&mut self, context: &mut ServerContext<'_>, request: RequestId) {
        let revision = context.engine.revision();
        self.answer(context, request, &ServerFrame::Done { revision });
    }

    /// Sends a session a push that belongs to its request `id`.
    #[inline(never)]
    fn push(&mut self, conns: &mut Conns, request: RequestId, frame: &ServerFrame<'_>) {
        let conn = self.sessions.conn_of(request.session);
        // A push to a session that has ended is dropped, and no push is too long.
        let _ = self.sessions.push(request.session, request.id, frame, &mut conns.sink(conn));
        if let Some(conn) = conn {
            conns.want_to_send(conn);
        }
    }

    /// Writes a frame without a sequence number.
    fn send_unnumbered(&mut self, context: &mut ServerContext<'_>, conn: ConnId, frame: &ServerFrame<'_>) {
        self.send_labelled(context, conn, Label::default(), frame);
    }

    #[inline(never)]
    fn send_labelled(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        label: Label,
        frame: &ServerFrame<'_>,
    ) {
        self.scratch.reset();
        // Frames without a sequence number are short.
        let _ = append_frame(&mut self.scratch, label, frame, usize::MAX);
        context.conns.sink(Some(conn)).put(&self.scratch.0);
        context.conns.want_to_send(conn);
    }

    /// Carries out the outputs of the session table.
    fn drain_sessions(&mut self, context: &mut ServerContext<'_>) {
        while let Some(output) = self.sessions.poll_output() {
            match output {
                Output::Welcome { conn, session, token, resumed, request_last, granted } => {
                    context.engine.start_history(context.limits.history);
                    if let Some(conn) = context.conns.at(conn) {
                        conn.protocol = Protocol::Native(Greeting::Done);
                    }
                    let (limits, kept) = (&context.limits.native_frame, &context.limits.session);
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
                    self.send_unnumbered(context, conn, &welcome);
                    let mut sink = context.conns.sink(Some(conn));
                    self.sessions.unreceived(session).for_each(|frame| sink.put(frame));
                    if resumed {
                        self.resume_watches(context, session);
                    } else {
                        let node: Box<[u8]> = self.sessions.node_of(session).unwrap_or_default().into();
                        self.count_session(session, &node);
                        let token = self.tokens.get(session).cloned();
                        context.events.push_back(Event::SessionOpened { session, conn, node, token });
                    }
                }
                Output::Refused { conn, fault } => {
                    self.send_unnumbered(context, conn, &ServerFrame::Error { fault });
                    self.to_close.push_back((conn, CloseReason::SessionRefused(fault.code)));
                }
                Output::Superseded { conn } => {
                    self.send_unnumbered(context, conn, &ServerFrame::SessionOver { why: Why::Superseded });
                    self.to_close.push_back((conn, CloseReason::SessionOver(Why::Superseded)));
                }
                Output::Ended { session, conn, node, why } => {
                    if let Some(conn) = conn {
                        self.send_unnumbered(context, conn, &ServerFrame::SessionOver { why });
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

    /// Ends all that belongs to a session that has ended.
    fn end_session(&mut self, context: &mut ServerContext<'_>, session: SessionId, node: &[u8], why: Why) {
        self.end_jobs(session);
        let until = context.engine.revision();
        self.begin(context, Job::EndSession { session, until }, None);
        self.end_arrivals(context, session, node, why);
        self.tokens.remove(session);
        self.end_participation(context, session, why);
        self.serve_released(context);
    }

    /// Handles the end of a connection, or of reading from it.
    pub(super) fn lost(&mut self, context: &mut ServerContext<'_>, conn: ConnId, why: Why) {
        // A connection without a session sent no HELLO, or its session has moved to another connection.
        let _ = self.sessions.handle(context.now, Input::Lost { conn, why });
        self.drain_sessions(context);
    }

    /// Notes that the client is alive, although no whole frame shows it.
    pub(super) fn note_alive(&mut self, context: &ServerContext<'_>, conn: ConnId) {
        // A connection without a session has no heartbeats to miss.
        let _ = self.sessions.note_received(context.now, conn, 0);
    }

    /// Sends held-back changes once the socket has accepted bytes.
    pub(super) fn writable(&mut self, context: &mut ServerContext<'_>, conn: ConnId) {
        if !self.watching.is_held_back() {
            return;
        }
        if let Some(session) = self.sessions.of(conn) {
            self.resume_watches(context, session);
        }
    }

    pub(super) fn tick(&mut self, context: &mut ServerContext<'_>) {
        self.check_sessions(context);
        context.budget.renew(context.limits.work_per_input_max);
        self.expire_waits(context);
        self.tick_barriers(context);
        self.tick_rounds(context);
        // Last, since a lease may be renewed again and again, and would keep the others from their turn.
        self.expire_leases(context);
        context.budget.renew(context.limits.work_per_input_max);
        self.notify_participants(context);
        context.budget.renew(context.limits.work_per_input_max);
        self.serve_released(context);
        context.budget.renew(context.limits.work_per_input_max);
        self.run_jobs(context);
    }

    /// Ends the sessions that are silent or whose grace is over: at least one in each tick. Each end concerns all nodes
    /// of a run, so the rest waits for the next tick while many are still to be notified.
    fn check_sessions(&mut self, context: &mut ServerContext<'_>) {
        while self.sessions.poll_timeout().is_some_and(|at| at <= context.now) {
            // The heartbeats of a client may be among the frames that the server has not looked at.
            self.sessions
                .tick(context.now, |conn| context.conns.get(conn).is_some_and(|conn| conn.is_parked));
            context.budget.subtract(TICK_WORK);
            self.drain_sessions(context);
            if self.is_notifying_many() || context.is_budget_spent() {
                return;
            }
        }
    }

    /// Ends all sessions because the server stops. Clients are not notified of the end of other sessions.
    pub(super) fn stop(&mut self, context: &mut ServerContext<'_>) {
        self.stopped = true;
        // There is no later turn.
        while self.barriers.has_output() || !self.notifications.is_empty() {
            context.budget.renew(context.limits.work_per_input_max.max(1));
            self.drain_barriers(context);
            self.notify_participants(context);
        }
        let _ = self.sessions.handle(context.now, Input::Stop);
        self.drain_sessions(context);
    }
}

#[cfg(test)]
mod tests;

/// Most bytes of text in an error, so that it stays short even if the names in it are long.
const TEXT_BYTES_MAX: usize = 32 * 1024;

/// Returns whether a request removes the keys with a prefix in one turn. A transaction of more parts is refused.
fn removes_prefix_at_once(frame: &ClientFrame<'_>, txn_parts_max: usize) -> bool {
    match frame {
        ClientFrame::Txn { then, otherwise, .. } if then.len() + otherwise.len() <= txn_parts_max => {
            then.iter().chain(otherwise.iter()).any(|write| matches!(write, Write::DeletePrefix { .. }))
        }
        ClientFrame::Batch { requests } => {
            requests.iter().any(|Batched(request)| matches!(request, ClientFrame::DeletePrefix { .. }))
        }
        _ => false,
    }
}

/// Returns the answer to a removal.
fn removed_frame(done: PrefixRemoved, revision: u64) -> ServerFrame<'static> {
    match done {
        PrefixRemoved { removed, left: 0 } => {
            ServerFrame::Number { number: i64::try_from(removed).unwrap_or(i64::MAX), revision }
        }
        PrefixRemoved { removed, left } => ServerFrame::PrefixRemoved { removed, left, revision },
    }
}

/// Returns a time span that a client gave in milliseconds.
fn millis(span: u64) -> Duration {
    // 34 years: longer than any server runs, and short enough to be added to any time.
    Duration::from_millis(span.min(1 << 40))
}
