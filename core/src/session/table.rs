//! Server side of all sessions: it identifies a client after a reconnect, knows which requests have had their effect,
//! keeps frames for sending them again, and ends sessions that are silent or disconnected for too long.
//!
//! The caller feeds it with [`Sessions::handle`] and drains [`Sessions::poll_output`]. It asks [`Sessions::request`]
//! about each request before executing it, and [`Sessions::answer`] and [`Sessions::push`] number and write each frame.

mod event;
mod small;

pub use event::{FrameRefused, Granted, Hello, Input, InputError, Outcome, Output, SessionId};

use super::life::{ServerAction, ServerEvent, ServerState};
use crate::ids::ConnId;
use crate::limits::{KEPT_COST_BYTES, SESSION_COST_BYTES, SessionLimits};
use crate::ordered::{Map, Set};
use crate::prelude::*;
use crate::secret::same;
use crate::wire::native::{
    Buffer, Fault, FaultCode, Label, Message, ServerFrame, Why, append_frame, encode_frame,
};
use crate::wire::sink::{Length, Sink};
use alloc::collections::VecDeque;
use small::{OfConn, Pending, shrink_if_sparse};

#[derive(Debug)]
struct Kept {
    id: u64,
    is_answer: bool,
    bytes: Box<[u8]>,
}

#[derive(Debug)]
struct Session {
    token: [u8; 16],
    node: Box<[u8]>,
    state: ServerState,
    conn: Option<ConnId>,
    granted: Granted,
    last_received_at: Instant,
    /// Its entry in the deadlines.
    armed: Option<Instant>,
    /// Reason for the end of its connection, while it is detached.
    lost: Why,
    request_last: u64,
    pending: Pending,
    /// Highest sequence number given to a frame.
    sent: u64,
    /// Frames `sent - window.len() + 1 ..= sent`.
    window: VecDeque<Kept>,
    window_bytes: u64,
    /// Bytes charged for what [`Sessions::charge`] names.
    waiting_bytes: u64,
}

/// All sessions of a server.
#[derive(Debug)]
pub struct Sessions {
    limits: SessionLimits,
    incarnation: u64,
    last: u64,
    sessions: Map<SessionId, Session>,
    of_conn: OfConn,
    deadlines: Set<(Instant, SessionId)>,
    /// Bytes that all sessions hold.
    held_bytes: u64,
    /// The last sessions that ended, with the reasons.
    ended: VecDeque<(SessionId, Why)>,
    outputs: VecDeque<Output>,
    scratch: Scratch,
}

/// Buffer that frames are encoded in.
#[derive(Debug, Default)]
pub struct Scratch(pub Vec<u8>);

impl Scratch {
    /// Empties the buffer, and frees the memory of an unusually long frame.
    pub fn reset(&mut self) {
        self.0.clear();
        self.0.shrink_to(SCRATCH_KEPT);
    }
}

/// Most sessions that one tick checks, of which it ends at most one.
const CHECKS_PER_TICK: u32 = 64;
/// Units of work that a tick costs.
pub(crate) const TICK_WORK: u64 = 64;
/// Shortest time between two checks of a session that may be silent for long. A client may ask for heartbeats of a few
/// milliseconds, and the checks would then cost more than its frames.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Most capacity that an empty buffer keeps, in bytes.
const SCRATCH_KEPT: usize = 64 * 1024;

impl Sink for Scratch {
    // Every field of every frame is written by it, so inlining it would cost code size.
    #[inline(never)]
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Buffer for Scratch {
    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        if let Some(target) = self.0.get_mut(at..at + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Sessions {
    /// Creates an empty table. `incarnation` differs each time a server starts.
    pub fn new(limits: SessionLimits, incarnation: u64) -> Self {
        Self {
            limits,
            incarnation,
            last: 0,
            sessions: Map::new(),
            of_conn: OfConn::default(),
            deadlines: Set::new(),
            held_bytes: 0,
            ended: VecDeque::new(),
            outputs: VecDeque::new(),
            scratch: Scratch::default(),
        }
    }

    /// Returns the number of sessions.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the session of a connection.
    pub fn of(&self, conn: ConnId) -> Option<SessionId> {
        self.of_conn.get(conn)
    }

    /// Returns the connection of a session, while it has one.
    pub fn conn_of(&self, session: SessionId) -> Option<ConnId> {
        self.sessions.get(session)?.conn
    }

    /// Returns the node name that the client gave.
    pub fn node_of(&self, session: SessionId) -> Option<&[u8]> {
        self.sessions.get(session).map(|session| &*session.node)
    }

    /// Returns whether a session has this token, which only its client knows.
    pub fn has_token(&self, session: SessionId, token: &[u8; 16]) -> bool {
        self.sessions.get(session).is_some_and(|session| same(&session.token, token))
    }

    /// Returns the sessions that follow `after`, in order, with their node names and whether they have a connection.
    pub fn following(&self, after: SessionId) -> impl Iterator<Item = (SessionId, &[u8], bool)> {
        self.sessions.after(after).map(|(id, session)| (id, &*session.node, session.conn.is_some()))
    }

    /// Returns whether a request has not been answered yet.
    pub fn is_pending(&self, session: SessionId, request: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.pending.contains(request))
    }

    /// Returns the number of frames that are kept for a session, and their bytes.
    pub fn kept(&self, session: SessionId) -> (usize, u64) {
        self.sessions.get(session).map_or((0, 0), |session| (session.window.len(), session.window_bytes))
    }

    /// Returns the bytes that all sessions hold: their own, the frames kept for them and what was charged with
    /// [`Sessions::charge`].
    pub const fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the sessions, and how many bytes each holds.
    pub fn holders(&self) -> impl Iterator<Item = (u64, SessionId)> {
        self.sessions.iter().map(|(id, session)| (session.held_bytes(), id))
    }

    /// Charges a session for a request that waits or is not done, a watch, a lease, or a node in a run.
    /// [`Sessions::discharge`] reverts it.
    ///
    /// # Errors
    /// The session would exceed its limit. The error answers the request, and nothing was charged.
    pub fn charge(&mut self, session: SessionId, bytes: u64) -> Result<(), Fault<'static>> {
        let limit = self.limits.waiting_bytes_max;
        let Some(session) = self.sessions.get_mut(session) else { return Ok(()) };
        if session.waiting_bytes.saturating_add(bytes) > limit {
            let text =
                b"bytes of requests that wait or are not done, of watches, of leases and of a node in a run";
            return Err(Fault { text, ..Fault::new(FaultCode::TooMany, limit, 0) });
        }
        session.waiting_bytes += bytes;
        self.held_bytes += bytes;
        Ok(())
    }

    /// Reverts a charge. For a session that has ended this is a no-op, because its charges ended with it.
    pub fn discharge(&mut self, session: SessionId, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.waiting_bytes -= bytes;
            self.held_bytes -= bytes;
        }
    }

    /// Handles one input. `now` must not be earlier than in an earlier call.
    ///
    /// # Errors
    /// The input does not fit the state, by a mistake of the caller or of the client. Nothing has changed.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), InputError> {
        match input {
            Input::Hello { conn, .. } if self.of_conn.get(conn).is_some() => {
                return Err(InputError::SecondHello(conn));
            }
            Input::Hello { conn, hello, fresh_token } => {
                let outcome = if hello.session == 0 && hello.incarnation == 0 {
                    self.open(now, conn, &hello, fresh_token)
                } else {
                    self.resume(now, conn, &hello)
                };
                if let Err(fault) = outcome {
                    self.outputs.push_back(Output::Refused { conn, fault });
                }
            }
            Input::Bye { conn, why } => {
                let session = self.of(conn).ok_or(InputError::NoSession(conn))?;
                self.event(now, session, ServerEvent::Left, why);
            }
            Input::Lost { conn, why } => {
                let session = self.of(conn).ok_or(InputError::NoSession(conn))?;
                let graceless = self.sessions.get(session).is_none_or(|one| one.granted.grace_ms == 0);
                let event = if graceless { ServerEvent::LostForGood } else { ServerEvent::Lost };
                self.event(now, session, event, why);
            }
            Input::Expel { session, why } => self.event(now, session, ServerEvent::Expelled, why),
            Input::Stop => {
                let all: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
                for session in all {
                    self.event(now, session, ServerEvent::Stopped, Why::ServerStopped);
                }
            }
        }
        Ok(())
    }

    /// Returns the next action. The caller drains it after every input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Sessions::tick`] is due at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(due, _)| due)
    }

    /// Notes that a frame has arrived that is not a request: it shows that the client is alive and acknowledges frames.
    ///
    /// # Errors
    /// The error to send to the client before closing its connection.
    pub fn note_received(
        &mut self,
        now: Instant,
        conn: ConnId,
        received: u64,
    ) -> Result<SessionId, Fault<'static>> {
        self.receive(now, conn, received).map(|(id, _)| id)
    }

    fn receive(
        &mut self,
        now: Instant,
        conn: ConnId,
        received: u64,
    ) -> Result<(SessionId, &mut Session), Fault<'static>> {
        let id = self.of(conn).ok_or(Fault::session_ended(None))?;
        let session = self.sessions.get_mut(id).ok_or(Fault::session_ended(None))?;
        session.last_received_at = now;
        self.held_bytes -= session.acknowledge(received)?;
        Ok((id, session))
    }

    /// Decides what to do with the request `id` of a connection.
    ///
    /// # Errors
    /// The error to send to the client before closing its connection.
    pub fn request(
        &mut self,
        now: Instant,
        conn: ConnId,
        id: u64,
        received: u64,
    ) -> Result<Outcome<'_>, Fault<'static>> {
        let pending_max = self.limits.pending_max;
        let (session_id, session) = self.receive(now, conn, received)?;
        if id > session.request_last {
            session.request_last = id;
            let full = session.pending.len() >= pending_max;
            session.pending.insert(id);
            return Ok(if full {
                let fault = Fault::new(FaultCode::TooManyPending, pending_max as u64, 0);
                Outcome::Refuse(session_id, fault)
            } else {
                Outcome::Fresh(session_id)
            });
        }
        if id == 0 {
            return Err(Fault::new(FaultCode::UnexpectedFrame, 0, 0));
        }
        if session.pending.contains(id) {
            return Ok(Outcome::Pending);
        }
        let oldest = session.oldest();
        let kept = session.window.iter().find(|kept| kept.is_answer && kept.id == id);
        Ok(match kept {
            Some(kept) => Outcome::Repeat(&kept.bytes),
            None => Outcome::Forgotten(Fault::new(FaultCode::RequestForgotten, oldest, 0)),
        })
    }

    /// Answers a pending request: numbers the frame, keeps it, and writes it into `out` if the session has a
    /// connection.
    /// Returns that connection.
    ///
    /// # Errors
    /// The reason why the frame was neither numbered nor kept nor written.
    pub fn answer(
        &mut self,
        session: SessionId,
        id: u64,
        frame: &ServerFrame<'_>,
        out: &mut impl Sink,
    ) -> Result<Option<ConnId>, FrameRefused> {
        self.number(session, id, frame, IsAnswer::Yes, out)
    }

    /// Pushes a frame that belongs to request `id`. It numbers, keeps and writes the frame as [`Sessions::answer`]
    /// does.
    ///
    /// # Errors
    /// The reason why the frame was neither numbered nor kept nor written.
    pub fn push(
        &mut self,
        session: SessionId,
        id: u64,
        frame: &ServerFrame<'_>,
        out: &mut impl Sink,
    ) -> Result<Option<ConnId>, FrameRefused> {
        self.number(session, id, frame, IsAnswer::No, out)
    }

    /// Returns the frames of a session that its client has not acknowledged, in order.
    pub fn unreceived(&self, session: SessionId) -> impl Iterator<Item = &[u8]> {
        let window = self.sessions.get(session).map(|session| &session.window);
        window.into_iter().flatten().map(|kept| &*kept.bytes)
    }

    fn number(
        &mut self,
        id_of_session: SessionId,
        id: u64,
        frame: &ServerFrame<'_>,
        is_answer: IsAnswer,
        out: &mut impl Sink,
    ) -> Result<Option<ConnId>, FrameRefused> {
        let session = self.sessions.get_mut(id_of_session).ok_or(FrameRefused::SessionOver)?;
        if is_answer == IsAnswer::Yes && !session.pending.contains(id) {
            return Err(FrameRefused::NotPending(id));
        }
        debug_assert!(ServerFrame::is_numbered(frame.kind()), "only answers and pushes have numbers");
        let label = Label { id, sequence: session.sent + 1, flags: 0 };
        let bytes_max = self.limits.body_bytes_max;
        let mut length = Length::default();
        frame.write_body(&mut length);
        let keeps = session.granted.grace_ms > 0;
        // A frame that the window does not keep is written without a copy of its own.
        let is_copied = length.0 <= SCRATCH_KEPT || keeps && length.0 as u64 <= self.limits.window_bytes;
        if length.0 > bytes_max {
            return Err(FrameRefused::TooLong(length.0));
        }
        if is_copied {
            self.scratch.reset();
            append_frame(&mut self.scratch, label, frame, bytes_max).map_err(FrameRefused::TooLong)?;
        }
        if is_answer == IsAnswer::Yes {
            session.pending.remove(id);
        }
        session.sent += 1;
        match session.conn {
            Some(_) if is_copied => out.put(&self.scratch.0),
            // invariant: the length was checked above
            Some(_) => encode_frame(out, label, frame).map_err(FrameRefused::TooLong)?,
            None => {}
        }
        if !keeps {
            return Ok(session.conn);
        }
        if !is_copied {
            // The window has the last frames without a gap: none.
            while !session.window.is_empty() {
                self.held_bytes -= session.forget_oldest();
            }
            return Ok(session.conn);
        }
        let bytes: Box<[u8]> = self.scratch.0.as_slice().into();
        session.window_bytes += bytes.len() as u64;
        self.held_bytes += bytes.len() as u64 + KEPT_COST_BYTES;
        session.window.push_back(Kept { id, is_answer: is_answer == IsAnswer::Yes, bytes });
        while session.window.len() > self.limits.window_frames as usize
            || session.window_bytes > self.limits.window_bytes
        {
            self.held_bytes -= session.forget_oldest();
        }
        Ok(session.conn)
    }

    fn open(
        &mut self,
        now: Instant,
        conn: ConnId,
        hello: &Hello<'_>,
        token: [u8; 16],
    ) -> Result<(), Fault<'static>> {
        if self.sessions.len() >= self.limits.sessions_max {
            return Err(Fault::new(FaultCode::TooManySessions, self.limits.sessions_max as u64, 0));
        }
        let (length, limit) = (hello.node.len(), self.limits.node_name_bytes_max);
        if length > limit {
            let text = b"the name of the node";
            return Err(Fault { text, ..Fault::new(FaultCode::TooLong, length as u64, limit as u64) });
        }
        let granted = self.grant(hello);
        self.last += 1;
        let id = SessionId(self.last);
        let session = Session {
            token,
            node: hello.node.into(),
            state: ServerState::Attached,
            conn: Some(conn),
            granted,
            last_received_at: now,
            armed: None,
            lost: Why::Connection,
            request_last: 0,
            pending: Pending::default(),
            sent: 0,
            window: VecDeque::new(),
            window_bytes: 0,
            waiting_bytes: 0,
        };
        self.held_bytes += session.held_bytes();
        self.sessions.insert(id, session);
        self.of_conn.insert(conn, id);
        self.arm(now, id);
        self.welcome(conn, id, false);
        Ok(())
    }

    fn grant(&self, hello: &Hello<'_>) -> Granted {
        let millis = |limit: Duration| u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let heartbeat_max = millis(self.limits.heartbeat_max);
        Granted {
            grace_ms: hello.grace_ms.min(millis(self.limits.grace_max)),
            heartbeat_ms: match hello.heartbeat_ms {
                0 => millis(self.limits.heartbeat_default),
                interval => interval.clamp(millis(self.limits.heartbeat_min), heartbeat_max),
            },
            heartbeats_missed_max: hello.heartbeats_missed_max.clamp(1, self.limits.heartbeats_missed_max),
        }
    }

    fn resume(&mut self, now: Instant, conn: ConnId, hello: &Hello<'_>) -> Result<(), Fault<'static>> {
        let id = SessionId(hello.session);
        let known = self.sessions.get_mut(id).filter(|_| hello.incarnation == self.incarnation);
        let Some(session) = known else {
            let remembered = self.ended.iter().rev().find(|(ended, _)| *ended == id);
            let why = remembered.filter(|_| hello.incarnation == self.incarnation).map(|&(_, why)| why);
            return Err(Fault::session_ended(why));
        };
        if !same(&session.token, &hello.token) {
            return Err(Fault::new(FaultCode::SessionForged, 0, 0));
        }
        if hello.received > session.sent {
            return Err(Fault::new(FaultCode::FalseAcknowledgement, hello.received, session.sent));
        }
        let oldest = session.oldest();
        if hello.received + 1 < oldest {
            return Err(Fault::new(FaultCode::WindowPassed, hello.received, oldest));
        }
        let Some((state, action)) = session.state.on(ServerEvent::Resumed) else {
            return Err(Fault::session_ended(None));
        };
        self.held_bytes -= session.acknowledge(hello.received)?;
        session.state = state;
        session.last_received_at = now;
        if let Some(old) = session.conn.replace(conn) {
            debug_assert_eq!(action, ServerAction::Supersede);
            self.of_conn.remove(old);
            self.outputs.push_back(Output::Superseded { conn: old });
        }
        self.of_conn.insert(conn, id);
        self.arm(now, id);
        self.welcome(conn, id, true);
        Ok(())
    }

    fn welcome(&mut self, conn: ConnId, id: SessionId, resumed: bool) {
        if let Some(session) = self.sessions.get(id) {
            let Session { token, request_last, granted, .. } = *session;
            self.outputs.push_back(Output::Welcome {
                conn,
                session: id,
                token,
                resumed,
                request_last,
                granted,
            });
        }
    }

    #[inline(never)]
    fn event(&mut self, now: Instant, id: SessionId, event: ServerEvent, why: Why) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some((state, action)) = session.state.on(event) else { return };
        session.state = state;
        match action {
            ServerAction::Wait => {
                session.lost = why;
                session.last_received_at = now;
                if let Some(conn) = session.conn.take() {
                    self.of_conn.remove(conn);
                }
                self.arm(now, id);
            }
            ServerAction::End => self.end(id, event, why),
            ServerAction::Attach | ServerAction::Supersede | ServerAction::Refuse => {}
        }
    }

    #[inline(never)]
    fn end(&mut self, id: SessionId, event: ServerEvent, why: Why) {
        let Some(session) = self.sessions.remove(id) else { return };
        self.held_bytes -= session.held_bytes();
        if let Some(due) = session.armed {
            self.deadlines.remove((due, id));
        }
        if let Some(conn) = session.conn {
            self.of_conn.remove(conn);
        }
        if self.ended.len() >= self.limits.remembered_max {
            self.ended.pop_front();
        }
        self.ended.push_back((id, why));
        // A connection that has ended need not be closed.
        let conn = session.conn.filter(|_| event != ServerEvent::LostForGood);
        self.outputs.push_back(Output::Ended { session: id, conn, node: session.node, why });
    }

    /// Sets the next time at which the session is checked. Received frames do not move it: the check considers them. Checks
    /// are a heartbeat interval apart, but at least a quarter of the heartbeat timeout, or a second if that is less. If the
    /// server wakes up late for one, it detects that its process was not running before it takes the client for silent.
    #[inline(never)]
    fn arm(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if let Some(due) = session.armed.take() {
            self.deadlines.remove((due, id));
        }
        if let Some(span) = session.heartbeat_timeout() {
            let due = match session.granted.heartbeat_ms {
                0 => session.last_received_at + span,
                millis => {
                    let interval = CHECK_INTERVAL_MIN.min(span / 4).max(Duration::from_millis(millis.into()));
                    (session.last_received_at + span).min(now + interval)
                }
            };
            session.armed = Some(due);
            self.deadlines.insert((due, id));
        }
    }

    /// Checks sessions that are due, until one has ended. `has_frames` returns whether frames of a connection have arrived
    /// and wait to be handled: its client is alive.
    pub fn tick(&mut self, now: Instant, has_frames: impl Fn(ConnId) -> bool) {
        for _ in 0..CHECKS_PER_TICK {
            let Some((due, id)) = self.deadlines.first().filter(|&(due, _)| due <= now) else { return };
            let Some(session) = self.sessions.get_mut(id) else {
                self.deadlines.remove((due, id));
                continue;
            };
            if session.conn.is_some_and(&has_frames) {
                session.last_received_at = now;
            }
            if session.heartbeat_timeout().is_some_and(|span| session.last_received_at + span > now) {
                self.arm(now, id);
                continue;
            }
            let (event, why) = match session.state {
                ServerState::Attached => (ServerEvent::Silent, Why::Heartbeat),
                _ => (ServerEvent::GracePassed, session.lost),
            };
            return self.event(now, id, event, why);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsAnswer {
    Yes,
    No,
}

impl Session {
    /// Returns the sequence number of the oldest kept frame; one above `sent` if there is none.
    fn oldest(&self) -> u64 {
        self.sent + 1 - self.window.len() as u64
    }

    fn held_bytes(&self) -> u64 {
        // The server keeps the name once more, to count the sessions of a node.
        let base = SESSION_COST_BYTES + 2 * self.node.len() as u64;
        base + self.window_bytes + self.window.len() as u64 * KEPT_COST_BYTES + self.waiting_bytes
    }

    /// Drops the frames that the client has received. Returns the bytes that this frees.
    fn acknowledge(&mut self, received: u64) -> Result<u64, Fault<'static>> {
        if received > self.sent {
            return Err(Fault::new(FaultCode::FalseAcknowledgement, received, self.sent));
        }
        let mut given_back = 0;
        while self.oldest() <= received {
            given_back += self.forget_oldest();
        }
        Ok(given_back)
    }

    #[inline(never)]
    fn forget_oldest(&mut self) -> u64 {
        let Some(kept) = self.window.pop_front() else { return 0 };
        shrink_if_sparse(&mut self.window);
        self.window_bytes -= kept.bytes.len() as u64;
        kept.bytes.len() as u64 + KEPT_COST_BYTES
    }

    /// Returns the longest time it may be silent, or detached; `None` if there is no limit.
    fn heartbeat_timeout(&self) -> Option<Duration> {
        let Granted { grace_ms, heartbeat_ms, heartbeats_missed_max } = self.granted;
        let millis = match self.state {
            ServerState::Attached => u64::from(heartbeat_ms) * u64::from(heartbeats_missed_max),
            ServerState::Detached | ServerState::Over => return Some(Duration::from_millis(grace_ms.into())),
        };
        (millis > 0).then(|| Duration::from_millis(millis))
    }
}

#[cfg(test)]
mod tests;
