//! Inputs and outputs of the session table: plain data.

#[cfg(doc)]
use super::Sessions;
use crate::ids::ConnId;
use crate::ordered::numbers;
use crate::wire::native::{Fault, Why};
use alloc::boxed::Box;

/// Id of a session at this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

numbers!(SessionId: id => id.0, number => Self(number));

/// Content of HELLO, and what is needed to answer it.
#[derive(Clone, Copy, Debug)]
pub struct Hello<'a> {
    /// Incarnation of the server that the client knows.
    pub incarnation: u64,
    /// Id of the session to resume; 0 for a new one.
    pub session: u64,
    /// Secret of the session to resume.
    pub token: [u8; 16],
    /// Highest sequence number that the client has received.
    pub received: u64,
    /// Grace period that the client requests, in milliseconds.
    pub grace_ms: u32,
    /// Heartbeat interval that the client requests, in milliseconds; 0 for the server's default.
    pub heartbeat_ms: u32,
    /// Number of missed heartbeats that end the session.
    pub heartbeats_missed_max: u32,
    /// Node name of the client.
    pub node: &'a [u8],
}

/// Event that the session table handles.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// HELLO, the first frame of a connection.
    Hello {
        /// Connection on which it arrived.
        conn: ConnId,
        /// Content of the frame.
        hello: Hello<'a>,
        /// 16 unpredictable bytes for a new session. The caller has the entropy.
        fresh_token: [u8; 16],
    },
    /// BYE or ABANDON, after it was answered.
    Bye {
        /// Connection on which it arrived.
        conn: ConnId,
        /// [`Why::Left`] or [`Why::Stopped`].
        why: Why,
    },
    /// A connection has ended.
    Lost {
        /// Connection that ended.
        conn: ConnId,
        /// [`Why::Connection`], [`Why::HostSilent`] or [`Why::Protocol`].
        why: Why,
    },
    /// The server ends a session, whatever its client does.
    Expel {
        /// Session to end.
        session: SessionId,
        /// [`Why::Limit`], because it holds more than the limit allows, or [`Why::EndedByAdmin`].
        why: Why,
    },
    /// The server stops.
    Stop,
}

/// Action that the caller carries out, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send WELCOME, followed by all frames of [`Sessions::unreceived`].
    Welcome {
        /// Connection to send on.
        conn: ConnId,
        /// Session of the connection.
        session: SessionId,
        /// Secret of the session.
        token: [u8; 16],
        /// Whether the session existed before.
        resumed: bool,
        /// Highest request id that the server has received.
        request_last: u64,
        /// Settings that the server granted.
        granted: Granted,
    },
    /// Send the error, then close the connection.
    Refused {
        /// Connection to close.
        conn: ConnId,
        /// Error to send.
        fault: Fault<'static>,
    },
    /// Send SESSION_OVER with the reason `Superseded`, then close the connection.
    Superseded {
        /// Connection to close.
        conn: ConnId,
    },
    /// A session has ended: end all that belongs to it. If it has a connection, send SESSION_OVER and close it.
    Ended {
        /// Session that ended.
        session: SessionId,
        /// Its connection.
        conn: Option<ConnId>,
        /// Node name that its client gave.
        node: Box<[u8]>,
        /// Reason for the end.
        why: Why,
    },
}

/// Settings that a session was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Time that it outlives its connection, in milliseconds.
    pub grace_ms: u32,
    /// Heartbeat interval in milliseconds; 0 if heartbeats are off.
    pub heartbeat_ms: u32,
    /// Number of missed heartbeats that end the session.
    pub heartbeats_missed_max: u32,
}

/// What the caller does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Execute the request. It is pending until it is answered.
    Fresh(SessionId),
    /// Do not execute the request. Answer it with this error, by [`Sessions::answer`].
    Refuse(SessionId, Fault<'static>),
    /// Do nothing: the request is already pending.
    Pending,
    /// Send these bytes again: the request was answered.
    Repeat(&'a [u8]),
    /// Send this error with the request's id and without a sequence number: the answer is no longer kept.
    Forgotten(Fault<'static>),
}

/// Reason why a frame was not numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefused {
    /// The session has ended, so no client waits for the frame.
    #[error("the session has ended")]
    SessionOver,
    /// The request is not pending.
    #[error("request {0} is not pending")]
    NotPending(u64),
    /// The frame exceeds the limit. Answer with an error instead.
    #[error("a body of {0} bytes is over the limit")]
    TooLong(usize),
}

/// Misuse of the session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The connection has no session.
    #[error("{0:?} has no session")]
    NoSession(ConnId),
    /// The connection already has a session: this is a second HELLO.
    #[error("{0:?} has a session already")]
    SecondHello(ConnId),
}
