//! The client's end of a session: ids for requests, which of them to send again after a reconnect, what to
//! acknowledge, and when a sign of life is due. It keeps no bytes and needs no allocator: the caller can write each
//! pending request again.
//!
//! On each connection: send [`ClientSession::hello`], feed what arrives to [`ClientSession::receive`], and while
//! [`ClientSession::next_to_send`] names a request, write it with the label that [`ClientSession::label`] gives.

use super::life::{ClientEvent, ClientState};
use crate::time::{Duration, Instant};
use crate::wire::native::{FLAG_RESENT, Fault, FaultCode, Header, Label, ServerFrame, Why};
use heapless::Vec;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// How long the session shall outlive its connection. With zero, requests go out with HELLO, and nothing is
    /// resumed.
    pub grace_ms: u32,
    /// The longest silence, 0 for the server's choice.
    pub heartbeat_ms: u32,
    /// So many times the silence ends the session.
    pub heartbeats_missed_max: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { grace_ms: 0, heartbeat_ms: 5000, heartbeats_missed_max: 3 }
    }
}

/// What makes a session known to its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Which life of the server.
    pub incarnation: u64,
    /// Which session; 0 asks for a new one.
    pub session: u64,
    /// Its secret.
    pub token: [u8; 16],
}

/// What a frame from the server meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The session is open; send what [`ClientSession::next_to_send`] names.
    Welcome,
    /// The frame answers this request, which is pending no more.
    Answer(u64),
    /// The frame is a push of this request.
    Push(u64),
    /// The frame is to be passed over: it came before, or says no more than that the server lives.
    Nothing,
    /// Another connection has the session, but not for long: close this one, and report that it ended.
    Lost,
    /// The session is over. Requests that are pending may or may not have had their effect.
    Over(End),
}

/// Why a session ended, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The server ended it.
    Server(Why),
    /// The server refused to open or to resume it, or gave the connection up: code and numbers of its error.
    Refused(FaultCode, u64, u64),
    /// The connection ended, and there was no grace.
    Connection,
    /// The connection ended and was not made again within the grace.
    GracePassed,
    /// The server broke the protocol.
    Protocol,
}

/// The caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// As many requests are pending as fit.
    #[error("as many requests are pending as there is room for")]
    Full,
    /// The session is over, or the call does not fit its state.
    #[error("the session is {0:?}")]
    State(ClientState),
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A Heartbeat with this nonce.
    Heartbeat(u64),
    /// The server has been silent for too long: close the connection, and report that it ended.
    ServerSilent,
}

/// One session.
#[derive(Debug)]
pub struct ClientSession<const PENDING: usize> {
    options: SessionOptions,
    state: ClientState,
    identity: Identity,
    /// Unanswered requests, in the order of their ids.
    pending: Vec<u64, PENDING>,
    id_last: u64,
    /// The highest id that was sent on this connection, or is known to have arrived before.
    sent: u64,
    /// The highest id that was ever sent.
    sent_ever: u64,
    /// The highest sequence received.
    received: u64,
    /// The highest sequence that the server was told of on this connection.
    acknowledged: u64,
    /// Bytes received since.
    untold_bytes: u64,
    window_frames: u32,
    window_bytes: u64,
    heartbeat: Duration,
    silence_max: Duration,
    said: Instant,
    received_at: Instant,
    /// When the last heartbeat was due.
    last_heartbeat: Instant,
}

impl<const PENDING: usize> ClientSession<PENDING> {
    /// A session that is yet to be opened.
    #[must_use]
    pub const fn new(options: SessionOptions) -> Self {
        Self {
            options,
            state: ClientState::New,
            identity: Identity { incarnation: 0, session: 0, token: [0; 16] },
            pending: Vec::new(),
            id_last: 0,
            sent: 0,
            sent_ever: 0,
            received: 0,
            acknowledged: 0,
            untold_bytes: 0,
            window_frames: 0,
            window_bytes: 0,
            heartbeat: Duration::ZERO,
            silence_max: Duration::ZERO,
            said: Instant::ORIGIN,
            received_at: Instant::ORIGIN,
            last_heartbeat: Instant::ORIGIN,
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> ClientState {
        self.state
    }

    /// What it asked for.
    #[must_use]
    pub const fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Its name and secret at the server.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Unanswered requests, in the order of their ids.
    #[must_use]
    pub fn pending(&self) -> &[u64] {
        &self.pending
    }

    /// There is a connection: what HELLO says, and its label.
    ///
    /// # Errors
    /// The session has a connection already, or is over.
    pub fn hello(&mut self, now: Instant) -> Result<(Identity, Label), SessionError> {
        self.step(ClientEvent::Connected)?;
        (self.said, self.received_at) = (now, now);
        (self.acknowledged, self.untold_bytes) = (self.received, 0);
        Ok((self.identity, Label { id: 0, sequence: self.received, flags: 0 }))
    }

    /// A new request; it is pending until it is answered, and stays so over reconnects.
    ///
    /// # Errors
    /// There is no room, or the session is over.
    pub fn begin(&mut self) -> Result<u64, SessionError> {
        if self.state == ClientState::Over {
            return Err(SessionError::State(self.state));
        }
        self.pending.push(self.id_last + 1).map_err(|_| SessionError::Full)?;
        self.id_last += 1;
        Ok(self.id_last)
    }

    /// Takes a request back, if the server cannot have it and never will; whether that is so.
    pub fn withdraw(&mut self, id: u64) -> bool {
        // After WELCOME it is known what has arrived on earlier connections.
        let is_known = matches!(self.state, ClientState::Live);
        let Ok(index) = self.pending.binary_search(&id) else { return false };
        let is_unsent = id > self.sent_ever || (is_known && id > self.sent);
        if is_unsent {
            self.pending.remove(index);
        }
        is_unsent
    }

    /// The request that is to be written next; `None` when there is none, or it is not the time.
    ///
    /// A session that can be resumed sends nothing before its first WELCOME: without the token nobody could find out
    /// what became of it.
    #[must_use]
    pub fn next_to_send(&self) -> Option<u64> {
        let ready = match self.state {
            ClientState::Live => true,
            ClientState::Greeting => self.options.grace_ms == 0,
            _ => false,
        };
        let index = self.pending.partition_point(|&id| id <= self.sent);
        self.pending.get(index).copied().filter(|_| ready)
    }

    /// The label of the request that [`Self::next_to_send`] named, which is now written; or, with the id 0, of any
    /// frame that is no request.
    pub fn label(&mut self, now: Instant, id: u64) -> Label {
        let flags = if id != 0 && id <= self.sent_ever { FLAG_RESENT } else { 0 };
        if id != 0 {
            (self.sent, self.sent_ever) = (id, self.sent_ever.max(id));
        }
        (self.said, self.acknowledged, self.untold_bytes) = (now, self.received, 0);
        Label { id, sequence: self.received, flags }
    }

    /// Whether an Acknowledge is due: half of the window was received since the server was last told.
    #[must_use]
    pub const fn owes_acknowledge(&self) -> bool {
        let frames = self.received - self.acknowledged;
        let frames_due = frames > 0 && frames >= self.window_frames as u64 / 2;
        matches!(self.state, ClientState::Live)
            && (frames_due || (frames > 0 && self.untold_bytes >= self.window_bytes / 2))
    }

    /// A part of a frame has come, which is a sign of life as well.
    pub const fn note_received(&mut self, now: Instant) {
        self.received_at = now;
    }

    /// A frame has come.
    pub fn receive(&mut self, now: Instant, header: &Header, frame: &ServerFrame<'_>) -> Received {
        self.received_at = now;
        match *frame {
            ServerFrame::Welcome { .. } => self.welcome(frame),
            ServerFrame::HeartbeatEcho { .. } => Received::Nothing,
            // Nobody else has the token: it is a HELLO of an abandoned connection, which came late.
            ServerFrame::SessionOver { why: Why::Superseded } if self.options.grace_ms > 0 => Received::Lost,
            ServerFrame::SessionOver { why } => self.end(ClientEvent::Ended, End::Server(why)),
            ServerFrame::Error { fault } if header.id == 0 => {
                self.end(ClientEvent::Refused, End::Refused(fault.code, fault.first, fault.second))
            }
            ServerFrame::Error { fault } if header.sequence == 0 => self.forgotten(header.id, &fault),
            _ => self.numbered(header),
        }
    }

    /// The connection has ended. Before the first WELCOME the session is as good as new: the next connection opens
    /// another one, at which nothing was sent yet.
    pub fn connection_ended(&mut self) -> Option<End> {
        let event = if self.options.grace_ms == 0 { ClientEvent::LostForGood } else { ClientEvent::Lost };
        self.step(event).ok()?;
        if self.state == ClientState::New {
            (self.sent, self.sent_ever) = (0, 0);
        }
        (self.state == ClientState::Over).then_some(End::Connection)
    }

    /// The process was not running for so long: the server had no chance to be heard.
    pub fn paused(&mut self, span: Duration) {
        self.received_at = self.received_at + span;
    }

    /// When the server last gave a sign of life on this connection, or the connection was made.
    #[must_use]
    pub const fn last_received_at(&self) -> Instant {
        self.received_at
    }

    /// When the last heartbeat was begun.
    #[must_use]
    pub const fn heartbeat_at(&self) -> Instant {
        self.last_heartbeat
    }

    /// Asks for a sign of life before one is due: the nonce of a Heartbeat to send. `None`: there is no session yet.
    pub fn begin_heartbeat(&mut self, now: Instant) -> Option<u64> {
        if self.state != ClientState::Live {
            return None;
        }
        self.last_heartbeat = now;
        Some(now.as_nanos())
    }

    /// When [`Self::tick`] has something to say.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let counts = self.state == ClientState::Live && !self.heartbeat.is_zero();
        // Who talks without an answer, since all he asks for waits, still has to find out whether the server lives.
        let quiet = self.said.min(self.received_at).max(self.last_heartbeat);
        counts.then(|| (quiet + self.heartbeat).min(self.received_at + self.silence_max))
    }

    /// What is due at `now`. The nonce is the time.
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
        self.untold_bytes += u64::from(header.body_bytes);
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

    /// The answer to a request that was sent again is gone. Nobody who keeps to [`Self::next_to_send`] hears that.
    fn forgotten(&mut self, id: u64, fault: &Fault<'_>) -> Received {
        if self.pending.binary_search(&id).is_err() {
            return Received::Nothing;
        }
        self.end(ClientEvent::Refused, End::Refused(fault.code, fault.first, fault.second))
    }
}

#[cfg(test)]
mod tests;
