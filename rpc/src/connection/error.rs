//! Errors of calls and connections.

use crate::handlers::HANDLER_BYTES_MAX;
use crate::limits::FAILURE_TEXT_BYTES_MAX;
use crate::name::WorkerInfo;
use crate::wire::FrameError;
use alloc::borrow::Cow;
use core::fmt::Write as _;
use rendezvous_core::error::{OneLine, Span};
use rendezvous_core::prelude::*;
use rendezvous_core::wire::choice::open_choice;

open_choice! {
    /// Status with which a callee rejects or fails a request.
    Status {
        /// The handler failed.
        1 Failed: "the handler failed",
        /// The handler does not exist.
        2 NoHandler: "there is no such handler",
        /// The deadline passed at the callee.
        3 Deadline: "the deadline passed before the response was ready",
        /// A payload is over a limit.
        4 TooLong: "the payload is over the limit",
        /// The callee accepts no further requests.
        5 Leaving: "the worker takes no further requests",
        /// The callee has no capacity for the request now. No handler has seen it.
        6 Exhausted: "the worker has no capacity for it",
        /// The rest of the request's payload did not arrive.
        7 Stalled: "the rest of the request did not arrive",
        /// The handler cannot decode the request.
        8 Malformed: "the request cannot be read",
        /// The handler has a list of callers, and this one is not in it.
        9 Denied: "the caller may not call this handler",
    }
}

open_choice! {
    /// Reason why a callee does not accept a caller.
    Refusal {
        /// The two have no protocol version in common.
        1 Version: "no version in common",
        /// The callee is in another group.
        2 Group: "it belongs to another group",
        /// The callee is not the worker for which the connection is meant.
        3 NotMe: "another worker is at this address",
        /// The callee knows no such member.
        4 Unknown: "the caller is not a known member",
        /// The callee's process is running, but its worker is not in a group any more.
        5 Over: "it has ended",
        /// The callee ends gracefully.
        6 Leaving: "it takes no further requests",
        /// The callee requires a token, and the caller has none.
        7 NoToken: "it requires a token, and the caller has none: give all workers the same auth_token_file",
        /// The caller has not proven the callee's token.
        8 WrongToken: "the caller has not proven its token: give all workers the same auth_token_file",
    }
}

/// Reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer sent an invalid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent a frame that is not valid in this state.
    #[error("a frame of kind {0:#06x} is not expected here")]
    UnexpectedFrame(u16),
    /// A payload has more bytes than its frame announced.
    #[error("call {0} has more bytes than it announced")]
    TooMuchData(u64),
    /// The callee allows no requests, which violates the protocol.
    #[error("the welcome allows no request at all")]
    NothingAllowed,
    /// The peer exceeds the allowed number of pending requests or bytes.
    #[error("more requests or bytes are under way than were allowed")]
    TooManyInFlight,
    /// A name or number in the handshake is invalid.
    #[error("the greeting names no worker")]
    NoWorker,
    /// Another worker responded.
    #[error("{got} answered at the address of {wanted}")]
    Impostor {
        /// The expected callee.
        wanted: WorkerInfo,
        /// The worker that responded, as it describes itself.
        got: Box<str>,
    },
    /// The callee has not proven the token of this worker.
    #[error(
        "it has not proven this worker's token, so nothing was sent to it: give all workers the same \
         auth_token_file"
    )]
    Unproven,
    /// The callee refused the caller.
    #[error("refused: {why}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused {
        /// The reason.
        why: Refusal,
        /// Message of the callee.
        message: Box<str>,
    },
    /// The handshake was not complete in time.
    #[error("no greeting in {}", Span(*.0))]
    NoGreeting(Duration),
    /// Another caller needed the connection.
    #[error("no greeting yet, and another caller needed the connection")]
    Displaced,
    /// The callee has as many connections as its limit allows.
    #[error("too many connections (the limit is {0})")]
    TooManyConnections(usize),
    /// Nothing was received from the peer, not even the response to a ping.
    #[error("nothing received in {}", Span(*.0))]
    Silent(Duration),
    /// The peer sent a part of a frame and nothing more.
    #[error("no byte of the rest of a frame came in {}", Span(*.0))]
    Stalled(Duration),
    /// The connection was lost.
    #[error("the connection ended: {0}")]
    Lost(Box<str>),
    /// One end does not accept the certificate of the other, or has no TLS. That does not prove that the peer is dead.
    #[error("the connection ended: {0}")]
    TlsRefused(Box<str>),
    /// The peer cannot be reached.
    #[error("it cannot be reached: {0}")]
    Unreachable(Box<str>),
    /// The host is reachable, and no process listens at the address: the worker there has ended.
    #[error("no process listens at its address: {0}")]
    NotListening(Box<str>),
    /// Another source, such as the group, has reported that the peer has ended.
    #[error("{0}")]
    GivenUp(Box<str>),
    /// The calling worker has ended, or gave up its calls; nothing is known against the peer.
    #[error("{0}")]
    CallerEnded(Box<str>),
    /// A thread of the calling worker has panicked; nothing is known against the peer.
    #[error("{0}")]
    Panicked(Box<str>),
    /// It was closed here, or the peer sent a goodbye and no call was pending.
    #[error("it was closed")]
    Closed,
}

/// Phase of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPhase {
    /// Waits for a connection. It has not been sent.
    Connecting,
    /// Waits for other calls to finish. It has not been sent.
    Queued,
    /// May have been sent, and may have been executed.
    InFlight,
    /// Like [`CallPhase::InFlight`], and the callee's last report says that no handler thread was free.
    Exhausted(PoolLoad),
}

/// Load of a worker whose handler threads are all busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLoad {
    /// Number of handler threads.
    pub threads: u32,
    /// Number of requests that wait for a thread.
    pub waiting: u32,
}

impl CallPhase {
    /// Returns the name of the phase, as in other errors of this library.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Queued => "sending",
            Self::InFlight | Self::Exhausted(_) => "waiting",
        }
    }
}

/// Reason why a call was not made or has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// The maximum number of calls is pending.
    #[error("{count} calls to it are under way, and that is the limit")]
    TooMany {
        /// The limit.
        count: u32,
    },
    /// The maximum number of bytes is pending.
    #[error("calls to it would have {bytes} bytes under way; the limit is {bytes_max}")]
    TooMuch {
        /// Number of bytes with this call.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A request or a response is over the maximum length.
    #[error("a payload of {bytes} bytes is over the limit of {bytes_max}")]
    TooLong {
        /// Its length in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The name of a handler is empty or too long.
    #[error("the name of a handler has {bytes} bytes: from 1 to {HANDLER_BYTES_MAX}")]
    Handler {
        /// Length of the name.
        bytes: usize,
    },
    /// The caller cancelled it.
    #[error("it was cancelled")]
    Cancelled,
    /// The thread may not wait: it is in an inline handler or in a callback.
    #[error("it cannot be awaited in an inline handler or in a callback")]
    Reentrant,
    /// There is no memory for the response.
    #[error("there is no memory for the answer")]
    NoMemory,
    /// The deadline passed.
    #[error("{}", Late(*.elapsed, *.phase))]
    DeadlinePassed {
        /// Time since the call was made.
        elapsed: Duration,
        /// Phase of the call.
        phase: CallPhase,
    },
    /// The callee rejected or failed it.
    #[error("{}", RemoteText(*.status, .message))]
    Remote {
        /// The status.
        status: Status,
        /// Message of the callee.
        message: Box<str>,
    },
    /// One of the two workers is leaving.
    #[error("it takes no further calls")]
    Leaving,
    /// No connection accepted it, so it was not executed.
    #[error("not sent: {0}")]
    Unsent(ConnectionError),
    /// The connection was lost while the call was pending, so it is unknown whether it was executed.
    #[error("contact with the worker was lost: {0}")]
    ConnectionLost(ConnectionError),
    /// The calling worker has ended, or gave the call up, so it is unknown whether it was executed.
    #[error("{0}")]
    CallerEnded(Box<str>),
    /// A thread of the calling worker has panicked, so it is unknown whether the call was executed.
    #[error("{0}")]
    Panicked(Box<str>),
}

impl ConnectionError {
    /// Returns the failure of a call that was pending on the connection.
    pub fn of_sent(self) -> CallFailure {
        match self {
            Self::CallerEnded(message) => CallFailure::CallerEnded(message),
            Self::Panicked(message) => CallFailure::Panicked(message),
            why => CallFailure::ConnectionLost(why),
        }
    }
}

/// Error of a call. Its text is one line: what comes from the callee is escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The callee.
    pub peer: WorkerInfo,
    /// Name of the handler; empty if it was invalid.
    pub handler: Box<str>,
    /// Address at which the callee accepts calls; empty if it is this worker.
    pub address: Box<str>,
    /// The reason.
    pub why: CallFailure,
}

impl core::error::Error for CallError {}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(OneLine(f), "{}: {}", Callee(self), self.why)
    }
}

/// Text of a callee's status. The message of a malformed request needs no prefix.
struct RemoteText<'a>(Status, &'a str);

impl fmt::Display for RemoteText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(status, "") => write!(f, "{status}"),
            Self(Status::Malformed, message) => f.write_str(message),
            Self(status, message) => write!(f, "{status}: {message}"),
        }
    }
}

/// Text of a passed deadline.
struct Late(Duration, CallPhase);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span(self.0);
        match self.1 {
            CallPhase::Connecting => write!(f, "not sent in {span}: there is no connection yet"),
            CallPhase::Queued => write!(f, "not sent in {span}"),
            CallPhase::InFlight => write!(f, "no answer in {span}"),
            CallPhase::Exhausted(PoolLoad { threads, waiting }) => {
                write!(
                    f,
                    "no answer in {span}: all of its handler threads ({threads}) were busy, and requests "
                )?;
                write!(f, "({waiting}) waited for one")
            }
        }
    }
}

/// Handler and worker, and the worker's address if the failure is one of the connection.
struct Callee<'a>(&'a CallError);

impl fmt::Display for Callee<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallError { peer, handler, address, why } = self.0;
        if handler.is_empty() {
            f.write_str("a call to ")?;
        } else {
            write!(f, "{handler} at ")?;
        }
        let is_connection_failure = self.0.phase().is_some() && !matches!(why, CallFailure::Remote { .. });
        if is_connection_failure && !address.is_empty() {
            write!(f, "{} (id {}, {address})", peer.name, peer.id)
        } else {
            write!(f, "{peer}")
        }
    }
}

/// Returns the text of a failure as its caller gets it: whole, or cut to the maximum length with a mark that says so.
pub fn cut_failure_text(text: &str) -> Cow<'_, str> {
    if text.len() <= FAILURE_TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let mark = format!(" [cut: {} bytes, at most {FAILURE_TEXT_BYTES_MAX}]", text.len());
    let end = text.floor_char_boundary(FAILURE_TEXT_BYTES_MAX - mark.len());
    Cow::Owned(format!("{}{mark}", text.get(..end).unwrap_or_default()))
}

impl CallFailure {
    /// Returns the error of this call.
    pub fn of(self, handler: impl Into<Box<str>>, peer: &WorkerInfo) -> CallError {
        let handler = if let Self::Handler { .. } = self { Box::default() } else { handler.into() };
        CallError { peer: peer.clone(), handler, address: Box::default(), why: self }
    }
}

impl CallError {
    /// Adds the address of the callee.
    #[must_use]
    pub fn at(self, address: impl Into<Box<str>>) -> Self {
        Self { address: address.into(), ..self }
    }

    /// Returns the phase of the call, as far as it is known.
    pub const fn phase(&self) -> Option<CallPhase> {
        match &self.why {
            CallFailure::DeadlinePassed { phase, .. } => Some(*phase),
            CallFailure::Unsent(_) => Some(CallPhase::Connecting),
            CallFailure::ConnectionLost(_)
            | CallFailure::CallerEnded(_)
            | CallFailure::Panicked(_)
            | CallFailure::Remote { .. }
            | CallFailure::NoMemory => Some(CallPhase::InFlight),
            CallFailure::TooMany { .. }
            | CallFailure::TooMuch { .. }
            | CallFailure::TooLong { .. }
            | CallFailure::Handler { .. }
            | CallFailure::Cancelled
            | CallFailure::Reentrant
            | CallFailure::Leaving => None,
        }
    }
}
