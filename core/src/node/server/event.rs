//! Inputs and outputs of a server.

use crate::access::{Access, AuthToken};
use crate::auth::Bytes32;
use crate::error::OneLine;
use crate::ids::ConnId;
use crate::prelude::*;
use crate::rendezvous::service::{Action, Reason, RunId};
use crate::session::table::SessionId;
use crate::store::engine::ApplyError;
use crate::store::op::write_lossy;
use crate::tls_fault::TlsFault;
use crate::wire::c10d::FrameError;
use crate::wire::native::{self, FaultCode, Why};
use core::fmt::Write as _;
use core::net::SocketAddr;

/// Event that a server handles. A recorded list of them reproduces the whole run of a server.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A client has connected. The caller chooses the id; its slot must be free.
    Accepted {
        /// Id of the connection.
        conn: ConnId,
        /// Address of the client, for events. The server never resolves it.
        peer: SocketAddr,
    },
    /// The system has no descriptor or memory for another connection.
    AcceptFailed,
    /// Bytes were received.
    Received {
        /// Connection on which they arrived.
        conn: ConnId,
        /// The received bytes. The server keeps those that it cannot use yet.
        bytes: &'a [u8],
    },
    /// Bytes of [`unsent`](super::Server::unsent) were sent.
    Sent {
        /// Connection on which they were sent.
        conn: ConnId,
        /// Number of bytes; 0 when the socket's send buffer is full.
        bytes: usize,
    },
    /// The peer has closed its sending side. Its requests are still answered.
    ReadClosed {
        /// Connection that is half closed.
        conn: ConnId,
    },
    /// The connection has ended by a reset or another error.
    Lost {
        /// Connection that has ended.
        conn: ConnId,
        /// Error number of the operating system; 0 if there is none.
        os_error: i32,
    },
    /// The operating system considers the peer's host dead: its kernel has not answered either.
    HostSilent {
        /// Connection that has ended.
        conn: ConnId,
        /// Error number of the operating system.
        os_error: i32,
    },
    /// The connection has an encrypted channel, which the proofs of tokens cover.
    Secured {
        /// Connection with the channel.
        conn: ConnId,
        /// Binding to the channel (RFC 9266).
        channel: Bytes32,
    },
    /// The connection cannot be used any more, because TLS failed.
    TlsFailed {
        /// Connection that has failed.
        conn: ConnId,
        /// Reason of the failure.
        fault: TlsFault,
    },
    /// A native client does not use TLS, which is required.
    PlaintextRefused {
        /// Connection of the client.
        conn: ConnId,
    },
    /// From now on, these rules hold for clients that connect. The first input, if there are any. Sessions keep the
    /// rights that they have until they connect again.
    Access(&'a Access),
    /// The server stops: it notifies native clients. Afterwards only [`Input::Sent`] may follow.
    Stop,
    /// Time passed.
    Tick,
}

impl Input<'_> {
    /// Returns the connection that the input is about, except for a new one.
    pub(crate) const fn conn(&self) -> Option<ConnId> {
        match *self {
            Self::Received { conn, .. }
            | Self::Sent { conn, .. }
            | Self::ReadClosed { conn }
            | Self::Lost { conn, .. }
            | Self::HostSilent { conn, .. }
            | Self::Secured { conn, .. }
            | Self::TlsFailed { conn, .. }
            | Self::PlaintextRefused { conn } => Some(conn),
            Self::Accepted { .. } | Self::AcceptFailed | Self::Access(_) | Self::Stop | Self::Tick => None,
        }
    }
}

/// Action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send [`unsent`](super::Server::unsent) and report with [`Input::Sent`].
    Transmit {
        /// Connection to send on.
        conn: ConnId,
    },
    /// Close the connection. Its id is invalid afterwards.
    Close {
        /// Connection to close.
        conn: ConnId,
    },
    /// Read from the connection again, if [`wants_read`](super::Server::wants_read) had forbidden it.
    Read {
        /// Connection to read from.
        conn: ConnId,
    },
    /// Log an event.
    Event(Event),
}

/// Event for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server listens at an address that other hosts may reach, and clients need not authenticate themselves.
    /// Reported once, when it starts.
    Exposed {
        /// The address.
        addr: SocketAddr,
        /// Whether native clients must authenticate themselves, and only c10d clients, of all networks, need not.
        c10d_only: bool,
    },
    /// A client has connected.
    Accepted {
        /// Id of the connection.
        conn: ConnId,
        /// Address of the client.
        peer: SocketAddr,
    },
    /// A connection has ended.
    Closed {
        /// Id of the connection.
        conn: ConnId,
        /// Address of the client.
        peer: SocketAddr,
        /// Reason for the end.
        reason: CloseReason,
    },
    /// A native client has opened a session.
    SessionOpened {
        /// Id of the session.
        session: SessionId,
        /// Its connection.
        conn: ConnId,
        /// Node name that the client gave.
        node: Box<[u8]>,
        /// Token that the client has proven, if the server asks for one.
        token: Option<Arc<AuthToken>>,
    },
    /// A session has ended, with its waits, watches, leases, arrivals and its part in a run.
    SessionEnded {
        /// Id of the session.
        session: SessionId,
        /// Node name that its client gave.
        node: Box<[u8]>,
        /// Run that it took part in.
        run_id: Option<RunId>,
        /// Reason for the end.
        why: Why,
    },
    /// The files of the server's certificates have changed, and new connections use them.
    CertificatesRenewed,
    /// The files of the server's certificates have changed and cannot be used, so new connections use the earlier ones.
    CertificatesKept {
        /// Reason why they cannot be used.
        error: Box<str>,
    },
    /// The token file has changed, and its tokens hold for clients that connect from now on.
    TokensReloaded {
        /// Number of tokens.
        count: usize,
    },
    /// The token file has changed and cannot be used. The tokens that were read before still hold.
    TokensKept {
        /// What is wrong.
        error: String,
    },
    /// A run of the rendezvous has changed.
    Run {
        /// Id of the run.
        run_id: RunId,
        /// Its live round, or else its next round.
        round: u64,
        /// Change that was made.
        action: Action,
        /// Reason for the change.
        reason: Reason,
    },
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Ordinary.
    Routine,
    /// Rare but expected.
    Notable,
    /// An operator should look at it.
    Warning,
}

impl Event {
    /// Returns the severity of the event.
    pub const fn severity(&self) -> Severity {
        match self {
            Self::Accepted { .. }
            | Self::SessionOpened { .. }
            | Self::SessionEnded { why: Why::Left | Why::Stopped | Why::ServerStopped, .. } => {
                Severity::Routine
            }
            Self::Closed { reason, .. } if !reason.is_expulsion() => Severity::Routine,
            // A store's handle that is freed closes its connection without a goodbye. Only a node of a run is missed.
            Self::CertificatesRenewed
            | Self::TokensReloaded { .. }
            | Self::Run { .. }
            | Self::SessionEnded { run_id: None, why: Why::Connection, .. } => Severity::Notable,
            Self::Exposed { .. }
            | Self::CertificatesKept { .. }
            | Self::TokensKept { .. }
            | Self::Closed { .. }
            | Self::SessionEnded { .. } => Severity::Warning,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut OneLine(f);
        match self {
            Self::Exposed { addr, c10d_only } => {
                let (which, advice) = match c10d_only {
                    true => ("c10d ", "Serve those of some networks only (--allow-c10d-from, or c10d_from"),
                    false => ("", "Ask for tokens (--auth-token-file, or auth_token_file"),
                };
                write!(
                    f,
                    "{addr} is not a loopback address, and {which}clients need not authenticate themselves: each that reaches \
                     it can read and write every key. {advice}), or bind a loopback address"
                )
            }
            Self::Accepted { conn, peer } => write!(f, "{conn:?} accepted peer={peer}"),
            Self::Closed { conn, peer, reason } => write!(f, "{conn:?} closed peer={peer}: {reason}"),
            Self::SessionOpened { session, conn, node, token } => {
                write!(f, "session {} opened on {conn:?} node=", session.0)?;
                write_lossy(f, node)?;
                token.as_ref().map_or(Ok(()), |token| write!(f, " token={}", token.name))
            }
            Self::SessionEnded { session, node, run_id, why } => {
                write!(f, "session {} ended node=", session.0)?;
                write_lossy(f, node)?;
                if let Some(run_id) = run_id {
                    write!(f, " run={run_id}")?;
                }
                write!(f, ": {why}")
            }
            Self::CertificatesRenewed => f.write_str("the server's certificates were read again"),
            Self::CertificatesKept { error } => {
                write!(f, "the changed certificates cannot be used, so the earlier ones stay: {error}")
            }
            Self::TokensReloaded { count } => write!(f, "{count} tokens read from the changed token file"),
            Self::TokensKept { error } => write!(f, "the earlier tokens still hold: {error}"),
            Self::Run { run_id, round, action, reason } => {
                write!(f, "run={run_id} round={round} {action}: {reason}")
            }
        }
    }
}

/// Reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The operating system reported an error.
    #[error("the connection was lost (OS error {0})")]
    Lost(i32),
    /// The operating system considers the peer's host dead.
    #[error("the peer's host fell silent (OS error {0})")]
    HostSilent(i32),
    /// The peer violated the native protocol.
    #[error("violation of the native protocol: {0}")]
    NativeProtocol(native::FrameError),
    /// A session could not be opened or resumed.
    #[error("the session was refused: {0:?}")]
    SessionRefused(FaultCode),
    /// The session has ended.
    #[error("the session is over: {0}")]
    SessionOver(Why),
    /// The server does not serve c10d clients from this address.
    #[error("c10d clients are not served from this address (--allow-c10d-from, or c10d_from)")]
    C10dNotAllowed,
    /// The peer violated the c10d protocol.
    #[error("protocol violation: {0}")]
    Protocol(FrameError),
    /// A request could not be executed.
    #[error("request refused: {0}")]
    Refused(ApplyError),
    /// An answer would have exceeded the limit.
    #[error("an answer of {0} bytes is over the limit")]
    AnswerTooLong(usize),
    /// The greeting was not complete in time.
    #[error("no complete greeting within the handshake timeout")]
    HandshakeTimeout,
    /// Another client needed the connection.
    #[error("no greeting yet, and another client needed the connection")]
    Displaced,
    /// A frame was not complete in time.
    #[error("a frame was not completed within the frame timeout")]
    FrameTimeout,
    /// The peer read none of its answers in time.
    #[error("the peer read none of its answers within the stall timeout")]
    StallTimeout,
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(TlsFault),
    /// The client uses TLS, and the server has no certificate.
    #[error("the client uses TLS, and this server has no certificate (--tls-cert, or tls)")]
    TlsNotConfigured,
    /// A native client does not use TLS, which is required.
    #[error("the client does not use TLS, which this server requires (--tls-ca, or tls)")]
    PlaintextRefused,
    /// The server has as many connections as the limit allows.
    #[error("too many connections (the limit is {0})")]
    TooManyConnections(usize),
    /// All connections together hold more bytes than the limit allows.
    #[error("the connections hold more than {0} bytes")]
    BuffersFull(u64),
}

impl CloseReason {
    /// Returns whether the server ended the connection because of the peer's conduct.
    pub const fn is_expulsion(&self) -> bool {
        match self {
            Self::PeerClosed | Self::Lost(_) | Self::HostSilent(_) => false,
            Self::SessionOver(why) => {
                !matches!(why, Why::Left | Why::Stopped | Why::ServerStopped | Why::Superseded)
            }
            _ => true,
        }
    }

    /// Returns the reason that other sessions get for the end of this connection.
    pub(super) const fn why(&self) -> Why {
        match self {
            Self::HostSilent(_) => Why::HostSilent,
            Self::StallTimeout => Why::Stalled,
            Self::BuffersFull(_) | Self::AnswerTooLong(_) => Why::Limit,
            Self::PeerClosed
            | Self::Lost(_)
            | Self::HandshakeTimeout
            | Self::Displaced
            | Self::TooManyConnections(_) => Why::Connection,
            Self::SessionOver(why) => *why,
            Self::Protocol(_)
            | Self::NativeProtocol(_)
            | Self::SessionRefused(_)
            | Self::C10dNotAllowed
            | Self::Refused(_)
            | Self::Tls(_)
            | Self::TlsNotConfigured
            | Self::PlaintextRefused
            | Self::FrameTimeout => Why::Protocol,
        }
    }
}

/// Misuse of a server by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The connection does not exist or has ended.
    #[error("{0:?} is unknown")]
    UnknownConnection(ConnId),
    /// The slot of the new connection is taken.
    #[error("the slot of {0:?} is taken")]
    SlotTaken(ConnId),
}

/// Counts since the server's start, and present sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of connections now.
    pub connections: usize,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections, and sessions without one, that the server ended because of the peer's conduct, since the start.
    pub expelled: u64,
    /// Requests executed since the start.
    pub requests: u64,
    /// Number of keys with a value now.
    pub keys: usize,
    /// Bytes of keys, values and queued items now, including the overhead of each.
    pub stored_bytes: u64,
    /// Bytes received but not used, answers not sent, and what native sessions hold, now. Bytes of memory.
    pub buffered_bytes: u64,
    /// Number of waits and barriers pending now.
    pub waiting: usize,
    /// Number of sessions of native clients now.
    pub sessions: usize,
    /// Writes and waits refused since the start because their round had ended.
    pub stale_writes: u64,
}
