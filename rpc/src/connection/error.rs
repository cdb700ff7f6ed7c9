//! How calls and connections end that do not end well.

use super::caller::HANDLER_BYTES_MAX;
use crate::name::WorkerInfo;
use crate::wire::FrameError;
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use core::fmt;
use rendezvous_core::limits::FAILURE_TEXT_BYTES_MAX;
use rendezvous_core::time::{Duration, Seconds};
use rendezvous_core::wire::choice::open_choice;

open_choice! {
    /// How a callee answers a call that it does not carry out to the end.
    Status {
        /// The handler failed.
        1 Failed: "the handler failed",
        /// There is no such handler.
        2 NoHandler: "there is no such handler",
        /// The deadline passed at the callee.
        3 Deadline: "the deadline passed before the answer was there",
        /// A payload is over a limit.
        4 TooLong: "the payload is over the limit",
        /// It takes no further requests.
        5 Leaving: "the worker takes no further requests",
        /// It has no room for it now. No handler has seen it.
        6 Exhausted: "the worker has no room for it",
        /// Nothing more of its payload came.
        7 Stalled: "the rest of the request did not come",
        /// Its bytes are not those that the handler takes.
        8 Malformed: "the request cannot be read",
    }
}

open_choice! {
    /// Why a callee does not take a caller in.
    Refusal {
        /// No version in common.
        1 Version: "no version in common",
        /// It is of another group.
        2 Group: "it is of another group",
        /// It is not the worker that was meant.
        3 NotMe: "another worker is there",
        /// It knows no such member.
        4 Unknown: "the caller is no member that it knows",
        /// It is there still, and of no group any more.
        5 Over: "it has ended",
    }
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer sent what no frame may be.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent a frame where it may not be.
    #[error("a frame of kind {0:#06x} is out of its place")]
    UnexpectedFrame(u16),
    /// More of a payload came than there is.
    #[error("call {0} has more bytes than it said")]
    TooMuchData(u64),
    /// The callee lets nobody make requests, which no callee may.
    #[error("the welcome allows no request at all")]
    NothingAllowed,
    /// More is under way than was allowed.
    #[error("more requests or bytes are under way than were allowed")]
    TooManyInFlight,
    /// A name or number in a greeting is none.
    #[error("the greeting names no worker")]
    NoWorker,
    /// Somebody else answered.
    #[error("{got} answered at the address of {wanted}")]
    Impostor {
        /// Who was meant.
        wanted: WorkerInfo,
        /// Who answered, in its own words.
        got: Box<str>,
    },
    /// The callee did not take the caller in.
    #[error("refused: {why}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        why: Refusal,
        /// In its own words.
        message: Box<str>,
    },
    /// There was no greeting in time.
    #[error("no greeting in {}s", Seconds(*.0))]
    NoGreeting(Duration),
    /// The peer gave no sign of life.
    #[error("no sign of life in {}s", Seconds(*.0))]
    Silent(Duration),
    /// The peer sent a part of a frame and nothing more.
    #[error("no byte of the rest of a frame came in {}s", Seconds(*.0))]
    Stalled(Duration),
    /// The connection ended under it.
    #[error("the connection ended: {0}")]
    Lost(Box<str>),
    /// There is no way to the peer, or nobody is there.
    #[error("it cannot be reached: {0}")]
    Unreachable(Box<str>),
    /// The host is there, and nobody listens at the address: who was there is gone.
    #[error("nobody listens at its address: {0}")]
    NotListening(Box<str>),
    /// Whoever knows better said that the peer is gone.
    #[error("{0}")]
    GivenUp(Box<str>),
    /// The worker that calls has ended, or gives up its calls; nothing is known against the peer.
    #[error("{0}")]
    CallerEnded(Box<str>),
    /// A thread of the worker's that calls has panicked; nothing is known against the peer.
    #[error("{0}")]
    Panicked(Box<str>),
    /// It was ended here, or the peer said goodbye and there was nothing left to be done.
    #[error("it was closed")]
    Closed,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPhase {
    /// It waits for a connection. It has not been sent.
    Connecting,
    /// It waits until others are done with. It has not been sent.
    Queued,
    /// It may have been sent, and may be carried out.
    InFlight,
    /// The same, and when the callee was last asked, it had no handler thread free.
    Exhausted(PoolLoad),
}

/// The handler threads of a worker, all of which are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLoad {
    /// How many there are.
    pub threads: u32,
    /// How many requests wait for one.
    pub waiting: u32,
}

impl CallPhase {
    /// As other errors of this library name phases.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Queued => "sending",
            Self::InFlight | Self::Exhausted(_) => "waiting",
        }
    }
}

/// Why a call was not made, or has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// The peer has not yet greeted.
    #[error("the connection is not open yet")]
    NotOpen,
    /// As many calls are under way as may be.
    #[error("{count} calls to it are under way, and that is the limit")]
    TooMany {
        /// The limit.
        count: u32,
    },
    /// As many bytes are under way as may be.
    #[error("calls to it would have {bytes} bytes under way; the limit is {bytes_max}")]
    TooMuch {
        /// What there would be.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A payload, or an answer, is longer than any may be.
    #[error("a payload of {bytes} bytes is over the limit of {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The name of a handler is none, or too long.
    #[error("the name of a handler has {bytes} bytes: from 1 to {HANDLER_BYTES_MAX}")]
    Handler {
        /// How long the name is.
        bytes: usize,
    },
    /// The caller gave it up.
    #[error("it was cancelled")]
    Cancelled,
    /// Whoever asks may not wait: the thread is in an inline handler, or in a callback.
    #[error("it cannot be awaited in an inline handler or in a callback")]
    Reentrant,
    /// There is no memory for what the callee answers.
    #[error("there is no memory for the answer")]
    NoMemory,
    /// The deadline passed.
    #[error("{}", Late(*.elapsed, *.phase))]
    DeadlinePassed {
        /// How long it took.
        elapsed: Duration,
        /// How far it had come.
        phase: CallPhase,
    },
    /// The callee did not carry it out.
    #[error("{}", RemoteText(*.status, .message))]
    Remote {
        /// Why.
        status: Status,
        /// In its own words.
        message: Box<str>,
    },
    /// One of the two takes part no longer.
    #[error("it takes no further calls")]
    Leaving,
    /// There was no connection that would take it, so nobody has carried it out.
    #[error("not sent: {0}")]
    Unsent(ConnectionError),
    /// The connection ended under it, so nobody knows whether it was carried out.
    #[error("the worker is gone: {0}")]
    ConnectionLost(ConnectionError),
    /// The worker that made it has ended, or gave it up, so nobody knows whether it was carried out.
    #[error("{0}")]
    CallerEnded(Box<str>),
    /// A thread of the worker's that made it has panicked, so nobody knows whether it was carried out.
    #[error("{0}")]
    Panicked(Box<str>),
}

impl ConnectionError {
    /// What it is to a call that was under way on the connection.
    #[must_use]
    pub fn of_sent(self) -> CallFailure {
        match self {
            Self::CallerEnded(message) => CallFailure::CallerEnded(message),
            Self::Panicked(message) => CallFailure::Panicked(message),
            why => CallFailure::ConnectionLost(why),
        }
    }
}

/// A call that was not made, or has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", Callee(self))]
pub struct CallError {
    /// Who was to be called.
    pub peer: WorkerInfo,
    /// Which handler; empty where that is no name.
    pub handler: Box<str>,
    /// Where that worker takes calls; empty where it is this one.
    pub address: Box<str>,
    /// Why it failed.
    pub why: CallFailure,
}

/// Why the callee did not carry a call out. Of a request that cannot be read, the callee's words say all.
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

/// A deadline that passed.
struct Late(Duration, CallPhase);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Seconds(self.0);
        match self.1 {
            CallPhase::Connecting => write!(f, "not sent in {span}s: there is no connection yet"),
            CallPhase::Queued => write!(f, "not sent in {span}s"),
            CallPhase::InFlight => write!(f, "no answer in {span}s"),
            CallPhase::Exhausted(PoolLoad { threads, waiting }) => {
                write!(
                    f,
                    "no answer in {span}s: all of its handler threads ({threads}) were busy, and requests "
                )?;
                write!(f, "({waiting}) waited for one")
            }
        }
    }
}

/// Handler and worker, and where that is, if the way there has to do with it.
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

/// The text of a failure as its caller gets it: as a whole, or cut where it is too long, with a mark that says so.
#[must_use]
pub fn cut_failure_text(text: &str) -> Cow<'_, str> {
    if text.len() <= FAILURE_TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let mark = format!(" [cut: {} bytes, at most {FAILURE_TEXT_BYTES_MAX}]", text.len());
    let end = text.floor_char_boundary(FAILURE_TEXT_BYTES_MAX - mark.len());
    Cow::Owned(format!("{}{mark}", text.get(..end).unwrap_or_default()))
}

impl CallFailure {
    /// Of this call.
    #[must_use]
    pub fn of(self, handler: impl Into<Box<str>>, peer: &WorkerInfo) -> CallError {
        let handler = if let Self::Handler { .. } = self { Box::default() } else { handler.into() };
        CallError { peer: peer.clone(), handler, address: Box::default(), why: self }
    }
}

impl CallError {
    /// The same of a worker that takes calls there.
    #[must_use]
    pub fn at(self, address: impl Into<Box<str>>) -> Self {
        Self { address: address.into(), ..self }
    }

    /// How far the call had come, as far as that is known.
    #[must_use]
    pub const fn phase(&self) -> Option<CallPhase> {
        match &self.why {
            CallFailure::DeadlinePassed { phase, .. } => Some(*phase),
            CallFailure::NotOpen | CallFailure::Unsent(_) => Some(CallPhase::Connecting),
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
