//! What goes into the table of sessions and what comes out of it: plain data.

#[cfg(doc)]
use super::Sessions;
use crate::ids::ConnId;
use crate::ordered::Number;
use crate::wire::native::{Fault, Why};
use alloc::boxed::Box;

/// A session of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl Number for SessionId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// What HELLO said, and what is needed to answer it.
#[derive(Clone, Copy, Debug)]
pub struct Hello<'a> {
    /// The server's life that the client knows.
    pub incarnation: u64,
    /// The session to resume; 0 for a new one.
    pub session: u64,
    /// Its secret.
    pub token: [u8; 16],
    /// The highest sequence that the client has received.
    pub received: u64,
    /// The grace that it asks for, in milliseconds.
    pub grace_ms: u32,
    /// The longest silence that it asks for, in milliseconds.
    pub heartbeat_ms: u32,
    /// So many times the silence ends the session.
    pub heartbeats_missed_max: u32,
    /// Its name.
    pub node: &'a [u8],
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// HELLO, the first frame of a connection.
    Hello {
        /// From whom.
        conn: ConnId,
        /// What it said.
        hello: Hello<'a>,
        /// 16 bytes that nobody can guess, for a new session; the caller has the entropy.
        fresh_token: [u8; 16],
    },
    /// BYE, after it was answered.
    Bye {
        /// From whom.
        conn: ConnId,
    },
    /// A connection is gone.
    Lost {
        /// Which one.
        conn: ConnId,
        /// [`Why::Connection`], [`Why::HostSilent`] or [`Why::Protocol`].
        why: Why,
    },
    /// A session holds more than there is room for.
    Expel {
        /// Which one.
        session: SessionId,
    },
    /// The server stops.
    Stop,
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send WELCOME, and behind it all frames of [`Sessions::unreceived`].
    Welcome {
        /// To whom.
        conn: ConnId,
        /// Which session it has now.
        session: SessionId,
        /// Its secret.
        token: [u8; 16],
        /// Whether it was there before.
        resumed: bool,
        /// The highest request id that was taken.
        request_last: u64,
        /// What was granted.
        granted: Granted,
    },
    /// Send the error, and close.
    Refused {
        /// To whom.
        conn: ConnId,
        /// What.
        fault: Fault<'static>,
    },
    /// Send SESSION_OVER, reason superseded, and close.
    Superseded {
        /// Which connection.
        conn: ConnId,
    },
    /// A session has ended: end all that hangs on it; send SESSION_OVER and close, if there is a connection.
    Ended {
        /// Which one.
        session: SessionId,
        /// Its connection.
        conn: Option<ConnId>,
        /// The name that its client gave.
        node: Box<[u8]>,
        /// Why.
        why: Why,
    },
}

/// What a session was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// How long it outlives its connection, in milliseconds.
    pub grace_ms: u32,
    /// The longest silence, in milliseconds; 0 when nobody counts.
    pub heartbeat_ms: u32,
    /// So many times the silence ends it.
    pub heartbeats_missed_max: u32,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Carry it out; it is pending until it is answered.
    Fresh(SessionId),
    /// Do not carry it out; answer with this error, by [`Sessions::answer`].
    Refuse(SessionId, Fault<'static>),
    /// It is pending already; nothing is to be done.
    Pending,
    /// It was answered: send these bytes again.
    Repeat(&'a [u8]),
    /// It was answered, and the answer is gone: send this error with the request's id and without a number.
    Forgotten(Fault<'static>),
}

/// Why a frame was not numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefused {
    /// The session is no more; nobody awaits the frame.
    #[error("the session is no more")]
    SessionOver,
    /// The request is not pending.
    #[error("request {0} is not pending")]
    NotPending(u64),
    /// The frame is too long for a header to tell; answer with an error instead.
    #[error("a body of {0} bytes is over the limit")]
    TooLong(usize),
}

/// The caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The connection has no session.
    #[error("{0:?} has no session")]
    NoSession(ConnId),
    /// The connection has a session already: a second HELLO.
    #[error("{0:?} has a session already")]
    SecondHello(ConnId),
}
