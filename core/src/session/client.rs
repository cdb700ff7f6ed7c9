//! Client side of a session: it gives requests their ids and decides which to send again after a reconnect, what to
//! acknowledge, and when a heartbeat is due. It stores no bytes and needs no allocator: the caller can write each
//! pending request again.
//!
//! On each connection the caller sends [`ClientSession::hello`] and passes received frames to
//! [`ClientSession::receive`].
//! While [`ClientSession::next_to_send`] returns a request, it writes that with the label of [`ClientSession::label`].

use super::life::{ClientEvent, ClientState};
use crate::time::{Duration, Instant};
use crate::wire::native::{FLAG_RESENT, Fault, FaultCode, Header, Label, ServerFrame, Why};
use heapless::Vec;

/// Settings that a client requests for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Time that the session outlives its connection, in milliseconds. With 0, requests are sent together with HELLO
    /// and the session is never resumed.
    pub grace_ms: u32,
    /// Heartbeat interval in milliseconds; 0 for the server's default.
    pub heartbeat_ms: u32,
    /// Number of missed heartbeats that end the session.
    pub heartbeats_missed_max: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { grace_ms: 0, heartbeat_ms: 5000, heartbeats_missed_max: 3 }
    }
}

/// Identity by which a server recognizes a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Incarnation of the server.
    pub incarnation: u64,
    /// Id of the session; 0 requests a new one.
    pub session: u64,
    /// Secret of the session.
    pub token: [u8; 16],
}

/// Meaning of a frame from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The session is open. The caller sends what [`ClientSession::next_to_send`] returns.
    Welcome,
    /// The frame answers this request, which is no longer pending.
    Answer(u64),
    /// The frame is a push that belongs to this request.
    Push(u64),
    /// The frame needs no action: it was received before, or only shows that the server is alive.
    Nothing,
    /// An abandoned connection has the session for a moment. The caller closes this connection and reports that it
    /// ended.
    Lost,
    /// The session has ended. Pending requests may or may not have had their effect.
    Over(End),
}

/// Reason why a session ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server ended it.
    Server(Why),
    /// The server refused to open or to resume it, or closed the connection. Code and numbers of its error.
    Refused(FaultCode, u64, u64),
    /// The connection ended, and the session has no grace period.
    Connection,
    /// The connection ended and could not be established again within the grace period.
    GracePassed,
    /// The server violated the protocol.
    Protocol,
    /// The server has not proven that it knows the client's token.
    Unproven,
}

/// Misuse of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The session has no capacity for another request.
    #[error("as many requests are pending as the session has capacity for")]
    Full,
    /// The session has ended, or the call does not fit its state.
    #[error("the session is {0:?}")]
    State(ClientState),
}

/// Action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send a Heartbeat with this nonce.
    Heartbeat(u64),
    /// Close the connection, and report that it ended: the server has been silent for too long.
    ServerSilent,
}

/// Client side of one session, with capacity for `PENDING` requests.
#[derive(Debug)]
pub struct ClientSession<const PENDING: usize> {
    options: SessionOptions,
    /// Whether requests wait for WELCOME even without a grace period, because the server has to prove itself first.
    waits_for_welcome: bool,
    state: ClientState,
    identity: Identity,
    /// Unanswered requests, in ascending order.
    pending: Vec<u64, PENDING>,
    id_last: u64,
    /// Highest id that was sent on this connection, or that arrived on an earlier one.
    sent: u64,
    /// Highest id that was ever sent.
    sent_ever: u64,
    /// Highest sequence number received.
    received: u64,
    /// Highest sequence number acknowledged on this connection.
    acknowledged: u64,
    /// Bytes received since the last acknowledgement.
    unacknowledged_bytes: u64,
    window_frames: u32,
    window_bytes: u64,
    heartbeat: Duration,
    silence_max: Duration,
    last_sent_at: Instant,
    received_at: Instant,
    /// When the last heartbeat began.
    last_heartbeat: Instant,
}

impl<const PENDING: usize> ClientSession<PENDING> {
    /// Creates a session that has not been opened.
    pub const fn new(options: SessionOptions) -> Self {
        Self {
            options,
            waits_for_welcome: false,
            state: ClientState::New,
            identity: Identity { incarnation: 0, session: 0, token: [0; 16] },
            pending: Vec::new(),
            id_last: 0,
            sent: 0,
            sent_ever: 0,
            received: 0,
            acknowledged: 0,
            unacknowledged_bytes: 0,
            window_frames: 0,
            window_bytes: 0,
            heartbeat: Duration::ZERO,
            silence_max: Duration::ZERO,
            last_sent_at: Instant::ORIGIN,
            received_at: Instant::ORIGIN,
            last_heartbeat: Instant::ORIGIN,
        }
    }

    /// Returns the state of the session.
    pub const fn state(&self) -> ClientState {
        self.state
    }

    /// Returns the requested settings; the grace period is the granted one once the session is open.
    pub const fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Returns the id and the secret of the session at the server.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the unanswered requests, in ascending order.
    pub fn pending(&self) -> &[u64] {
        &self.pending
    }

    /// Notes that a connection was established. Returns the identity that HELLO carries, and its label.
    ///
    /// # Errors
    /// The session already has a connection, or has ended.
    pub fn hello(&mut self, now: Instant) -> Result<(Identity, Label), SessionError> {
        self.step(ClientEvent::Connected)?;
        (self.last_sent_at, self.received_at) = (now, now);
        (self.acknowledged, self.unacknowledged_bytes) = (self.received, 0);
        Ok(self.hello_again())
    }

    /// Returns the identity and the label of a second HELLO on the same connection.
    pub const fn hello_again(&self) -> (Identity, Label) {
        (self.identity, Label { id: 0, sequence: self.received, flags: 0 })
    }

    /// Holds all requests back until WELCOME, also without a grace period.
    pub const fn wait_for_welcome(&mut self) {
        self.waits_for_welcome = true;
    }

    /// Begins a request and returns its id. It is pending until it is answered, also over reconnects.
    ///
    /// # Errors
    /// There is no capacity for it, or the session has ended.
    pub fn begin(&mut self) -> Result<u64, SessionError> {
        if self.state == ClientState::Over {
            return Err(SessionError::State(self.state));
        }
        self.pending.push(self.id_last + 1).map_err(|_| SessionError::Full)?;
        self.id_last += 1;
        Ok(self.id_last)
    }

    /// Withdraws a request that the server has not received and cannot receive any more. Returns whether that is so.
    pub fn withdraw(&mut self, id: u64) -> bool {
        // After WELCOME it is known which requests arrived on earlier connections.
        let is_known = matches!(self.state, ClientState::Live);
        let Ok(index) = self.pending.binary_search(&id) else { return false };
        let is_unsent = id > self.sent_ever || (is_known && id > self.sent);
        if is_unsent {
            self.pending.remove(index);
        }
        is_unsent
    }

    /// Returns the request to write next; `None` if there is none, or it must not be sent yet.
    ///
    /// A session that can be resumed sends no request before its first WELCOME: without the token the client could not
    /// find out whether the request had its effect.
    pub fn next_to_send(&self) -> Option<u64> {
        let ready = match self.state {
            ClientState::Live => true,
            ClientState::Greeting => self.options.grace_ms == 0 && !self.waits_for_welcome,
            _ => false,
        };
        let index = self.pending.partition_point(|&id| id <= self.sent);
        self.pending.get(index).copied().filter(|_| ready)
    }

    /// Returns the label of the request that [`Self::next_to_send`] returned, which counts as written; or, for id 0, of
    /// a frame that is not a request.
    pub fn label(&mut self, now: Instant, id: u64) -> Label {
        let flags = if id != 0 && id <= self.sent_ever { FLAG_RESENT } else { 0 };
        if id != 0 {
            (self.sent, self.sent_ever) = (id, self.sent_ever.max(id));
        }
        (self.last_sent_at, self.acknowledged, self.unacknowledged_bytes) = (now, self.received, 0);
        Label { id, sequence: self.received, flags }
    }

    /// Returns whether an Acknowledge is due: half of the window was received since the last acknowledgement.
    pub const fn owes_acknowledge(&self) -> bool {
        let frames = self.received - self.acknowledged;
        let frames_due = frames > 0 && frames >= self.window_frames as u64 / 2;
        matches!(self.state, ClientState::Live)
            && (frames_due || (frames > 0 && self.unacknowledged_bytes >= self.window_bytes / 2))
    }

    /// Notes that part of a frame has arrived, which shows that the server is alive.
    pub const fn note_received(&mut self, now: Instant) {
        self.received_at = now;
    }

    /// Handles a frame.
    pub fn receive(&mut self, now: Instant, header: &Header, frame: &ServerFrame<'_>) -> Received {
        self.received_at = now;
        match *frame {
            ServerFrame::Welcome { .. } => self.welcome(frame),
            ServerFrame::HeartbeatEcho { .. } => Received::Nothing,
            // No other client has the token, so this is due to a late HELLO of a connection that this client abandoned.
            ServerFrame::SessionOver { why: Why::Superseded } if self.options.grace_ms > 0 => Received::Lost,
            ServerFrame::SessionOver { why } => self.end(ClientEvent::Ended, End::Server(why)),
            ServerFrame::Error { fault } if header.id == 0 => {
                self.end(ClientEvent::Refused, End::Refused(fault.code, fault.first, fault.second))
            }
            ServerFrame::Error { fault } if header.sequence == 0 => self.forgotten(header.id, &fault),
            _ => self.numbered(header),
        }
    }

    /// Handles the end of the connection. Before the first WELCOME the session counts as new: the next connection opens
    /// another one, to which no request has been sent.
    pub fn connection_ended(&mut self) -> Option<End> {
        let event = if self.options.grace_ms == 0 { ClientEvent::LostForGood } else { ClientEvent::Lost };
        self.step(event).ok()?;
        if self.state == ClientState::New {
            (self.sent, self.sent_ever) = (0, 0);
        }
        (self.state == ClientState::Over).then_some(End::Connection)
    }

    /// Moves the server's last activity by the time in which this process was not running.
    pub fn paused(&mut self, span: Duration) {
        self.received_at = self.received_at + span;
    }

    /// Returns when the server last sent bytes on this connection, or when the connection was established.
    pub const fn last_received_at(&self) -> Instant {
        self.received_at
    }

    /// Returns when the last heartbeat began.
    pub const fn heartbeat_at(&self) -> Instant {
        self.last_heartbeat
    }

    /// Begins a heartbeat before one is due. Returns its nonce; `None` if the session is not open.
    pub fn begin_heartbeat(&mut self, now: Instant) -> Option<u64> {
        if self.state != ClientState::Live {
            return None;
        }
        self.last_heartbeat = now;
        Some(now.as_nanos())
    }

    /// Returns when [`Self::tick`] has an action.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let counts = self.state == ClientState::Live && !self.heartbeat.is_zero();
        // If all its requests wait, a client may send without getting answers. It then still checks that the server is
        // alive.
        let quiet = self.last_sent_at.min(self.received_at).max(self.last_heartbeat);
        counts.then(|| (quiet + self.heartbeat).min(self.received_at + self.silence_max))
    }

    /// Returns the action that is due at `now`. The nonce is the time.
    pub fn tick(&mut self, now: Instant) -> Option<Due> {
        self.poll_timeout().filter(|&due| due <= now)?;
        if self.received_at + self.silence_max <= now {
            return Some(Due::ServerSilent);
        }
        self.begin_heartbeat(now).map(Due::Heartbeat)
    }

    fn step(&mut self, event: ClientEvent) -> Result<(), SessionError> {
        self.state = self.state.on(event).ok_or(SessionError::State(self.state))?;
        Ok(())
    }

    fn end(&mut self, event: ClientEvent, end: End) -> Received {
        match self.step(event) {
            Ok(()) => Received::Over(end),
            Err(_) => Received::Nothing,
        }
    }

    fn welcome(&mut self, frame: &ServerFrame<'_>) -> Received {
        let ServerFrame::Welcome {
            incarnation,
            session,
            token,
            resumed,
            request_last,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            window_frames,
            window_bytes,
            ..
        } = *frame
        else {
            return Received::Nothing;
        };
        let event = if resumed { ClientEvent::Resumed } else { ClientEvent::Opened };
        if self.step(event).is_err() {
            return self.end(ClientEvent::Refused, End::Protocol);
        }
        if resumed {
            self.sent = request_last;
        } else {
            self.identity = Identity { incarnation, session, token };
            self.options.grace_ms = grace_ms;
        }
        self.heartbeat = Duration::from_millis(u64::from(heartbeat_ms));
        self.silence_max = self.heartbeat.saturating_mul(heartbeats_missed_max.max(1));
        (self.window_frames, self.window_bytes) = (window_frames, window_bytes);
        Received::Welcome
    }

    fn numbered(&mut self, header: &Header) -> Received {
        if header.sequence <= self.received && header.sequence != 0 {
            return Received::Nothing;
        }
        if self.state != ClientState::Live || header.sequence != self.received + 1 {
            return self.end(ClientEvent::Refused, End::Protocol);
        }
        self.received = header.sequence;
        self.unacknowledged_bytes += u64::from(header.body_bytes);
        if header.kind >= 0xc000 {
            return Received::Push(header.id);
        }
        match self.pending.binary_search(&header.id) {
            Ok(index) => {
                self.pending.remove(index);
                Received::Answer(header.id)
            }
            Err(_) => self.end(ClientEvent::Refused, End::Protocol),
        }
    }

    /// Handles the answer that a repeated request is forgotten. A caller that follows [`Self::next_to_send`] never gets
    /// it.
    fn forgotten(&mut self, id: u64, fault: &Fault<'_>) -> Received {
        if self.pending.binary_search(&id).is_err() {
            return Received::Nothing;
        }
        self.end(ClientEvent::Refused, End::Refused(fault.code, fault.first, fault.second))
    }
}

#[cfg(test)]
mod tests;
