//! What goes into a server and what comes out of it.

use crate::error::OneLine;
use crate::ids::ConnId;
use crate::rendezvous::service::{Action, Reason, RunId};
use crate::session::table::SessionId;
use crate::store::engine::ApplyError;
use crate::store::op::write_lossy;
use crate::wire::c10d::FrameError;
use crate::wire::native::{self, FaultCode, Why};
use alloc::boxed::Box;
use core::fmt;
use core::fmt::Write as _;
use core::net::SocketAddr;

/// What can happen to a server. A recorded list of these is a complete report of its life.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A client has connected. The caller chooses the name; its place must be free.
    Accepted {
        /// The connection's name.
        conn: ConnId,
        /// Its numeric address, for events; it is never looked up.
        peer: SocketAddr,
    },
    /// Bytes have come in.
    Received {
        /// From whom.
        conn: ConnId,
        /// All of them; what cannot be used yet is kept.
        bytes: &'a [u8],
    },
    /// Bytes of [`unsent`](super::Server::unsent) have left; 0 when the socket would take none.
    Sent {
        /// To whom.
        conn: ConnId,
        /// How many.
        bytes: usize,
    },
    /// The peer will send no more. What it asked for is still answered.
    ReadClosed {
        /// Who.
        conn: ConnId,
    },
    /// The connection is gone, by reset or any other error.
    Lost {
        /// Which one.
        conn: ConnId,
        /// The operating system's error number, 0 if there is none.
        os_error: i32,
    },
    /// The operating system gave the peer's host up: nothing came from there, not even what its kernel sends.
    HostSilent {
        /// Which connection.
        conn: ConnId,
        /// The operating system's error number.
        os_error: i32,
    },
    /// The server is going to stop: native clients are told, and no input but [`Input::Sent`] makes sense any more.
    Stop,
    /// Time has passed.
    Tick,
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send [`unsent`](super::Server::unsent) and report with [`Input::Sent`].
    Transmit {
        /// To whom.
        conn: ConnId,
    },
    /// Close the connection; the server has forgotten it.
    Close {
        /// Which one.
        conn: ConnId,
    },
    /// Something to tell whoever watches.
    Event(Event),
}

/// Something worth a line in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has connected.
    Accepted {
        /// Its name here.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
    },
    /// A connection has ended.
    Closed {
        /// Its name here.
        conn: ConnId,
        /// Its address.
        peer: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
    /// A native client has a session now.
    SessionOpened {
        /// Which.
        session: SessionId,
        /// Its connection.
        conn: ConnId,
        /// The name that the client gave.
        node: Box<[u8]>,
    },
    /// A session has ended, and all that hung on it.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// The name that its client gave.
        node: Box<[u8]>,
        /// The run that it took part in.
        run_id: Option<RunId>,
        /// Why.
        why: Why,
    },
    /// Something was done with a run of the rendezvous.
    Run {
        /// Which.
        run_id: RunId,
        /// Its live round or else the next one.
        round: u64,
        /// What was done.
        action: Action,
        /// Why.
        reason: Reason,
    },
}

/// How much an event is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As always.
    Routine,
    /// Rare, and as it should be.
    Notable,
    /// Somebody ought to look at it.
    Warning,
}

impl Event {
    /// How much it is worth.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::Accepted { .. }
            | Self::SessionOpened { .. }
            | Self::SessionEnded { why: Why::Left | Why::ServerStopped, .. } => Severity::Routine,
            Self::Closed { reason, .. } if !reason.is_expulsion() => Severity::Routine,
            Self::Run { .. } => Severity::Notable,
            Self::Closed { .. } | Self::SessionEnded { .. } => Severity::Warning,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut OneLine(f);
        match self {
            Self::Accepted { conn, peer } => write!(f, "{conn:?} accepted peer={peer}"),
            Self::Closed { conn, peer, reason } => write!(f, "{conn:?} closed peer={peer}: {reason}"),
            Self::SessionOpened { session, conn, node } => {
                write!(f, "session {} opened on {conn:?} node=", session.0)?;
                write_lossy(f, node)
            }
            Self::SessionEnded { session, node, run_id, why } => {
                write!(f, "session {} ended node=", session.0)?;
                write_lossy(f, node)?;
                if let Some(run_id) = run_id {
                    write!(f, " run={run_id}")?;
                }
                write!(f, ": {why}")
            }
            Self::Run { run_id, round, action, reason } => {
                write!(f, "run={run_id} round={round} {action}: {reason}")
            }
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The operating system reported an error.
    #[error("the connection was lost (OS error {0})")]
    Lost(i32),
    /// The operating system gave the peer's host up.
    #[error("the peer's host fell silent (OS error {0})")]
    HostSilent(i32),
    /// The peer does not speak the native protocol that it began with.
    #[error("violation of the native protocol: {0}")]
    NativeProtocol(native::FrameError),
    /// A session could not be opened or gone on with.
    #[error("the session was refused: {0:?}")]
    SessionRefused(FaultCode),
    /// The session is over.
    #[error("the session is over: {0}")]
    SessionOver(Why),
    /// The peer does not speak the protocol.
    #[error("protocol violation: {0}")]
    Protocol(FrameError),
    /// A request could not be carried out.
    #[error("request refused: {0}")]
    Refused(ApplyError),
    /// An answer would have been too long.
    #[error("an answer of {0} bytes is over the limit")]
    AnswerTooLong(usize),
    /// No complete greeting in time.
    #[error("no complete greeting within the handshake timeout")]
    HandshakeTimeout,
    /// A frame began and did not go on.
    #[error("a frame began and did not go on within the frame timeout")]
    FrameTimeout,
    /// The peer did not read its answers.
    #[error("the peer read none of its answers within the stall timeout")]
    StallTimeout,
    /// There are as many connections as there may be.
    #[error("as many connections as allowed ({0})")]
    TooManyConnections(usize),
    /// All connections together hold too many bytes.
    #[error("the connections hold more than {0} bytes")]
    BuffersFull(u64),
}

impl CloseReason {
    /// Whether the server ended the connection because of what the peer did.
    #[must_use]
    pub const fn is_expulsion(&self) -> bool {
        match self {
            Self::PeerClosed | Self::Lost(_) | Self::HostSilent(_) => false,
            Self::SessionOver(why) => !matches!(why, Why::Left | Why::ServerStopped | Why::Superseded),
            _ => true,
        }
    }

    /// What the end of the connection means to those who counted on the peer.
    pub(super) const fn why(&self) -> Why {
        match self {
            Self::HostSilent(_) => Why::HostSilent,
            Self::StallTimeout => Why::Stalled,
            Self::BuffersFull(_) | Self::AnswerTooLong(_) => Why::Limit,
            Self::PeerClosed | Self::Lost(_) | Self::HandshakeTimeout | Self::TooManyConnections(_) => {
                Why::Connection
            }
            Self::SessionOver(why) => *why,
            Self::Protocol(_)
            | Self::NativeProtocol(_)
            | Self::SessionRefused(_)
            | Self::Refused(_)
            | Self::FrameTimeout => Why::Protocol,
        }
    }
}

/// The caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// No such connection, or not any more.
    #[error("{0:?} is unknown")]
    UnknownConnection(ConnId),
    /// The place in the table is taken.
    #[error("the place of {0:?} is taken")]
    SlotTaken(ConnId),
}

/// Counts since the start, and sizes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now.
    pub connections: usize,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections, and sessions without one, that the server ended because of the peer's conduct, since the start.
    pub expelled: u64,
    /// Requests carried out since the start.
    pub requests: u64,
    /// Keys with a value now.
    pub keys: usize,
    /// Bytes of keys, values and queued items now, with what each costs beside them.
    pub stored_bytes: u64,
    /// Memory of bytes received but not used, of answers not sent, and of what native sessions hold, now.
    pub buffered_bytes: u64,
    /// Waits and barriers pending now.
    pub waiting: usize,
    /// Sessions of native clients now.
    pub sessions: usize,
    /// Writes and waits refused since the start, since their round was over.
    pub stale_writes: u64,
}
