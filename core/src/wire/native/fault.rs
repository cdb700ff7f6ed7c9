//! Errors of an ERROR frame: a code, two numbers and a text, whose meaning depends on the code.

use super::field::{Body, BodyError, Field, records};
use super::record::Why;
use crate::wire::choice::open_choice;
use crate::wire::sink::Sink;

open_choice! {
    /// Error codes, with their numbers on the wire. The hundreds are classes, which also tell how to handle a code that
    /// this version does not know: 1 the peer violated the protocol, 2 the request cannot be carried out, 3 a limit was
    /// reached, 4 the object has ended.
    FaultCode {
        /// No version in common; the server speaks `first` to `second`.
        100 VersionUnsupported: "VersionUnsupported",
        /// The frame's fields cannot be read; `first` is the frame's kind.
        101 Malformed: "Malformed",
        /// No such request in this version; `first` is the frame's kind.
        102 UnknownRequest: "UnknownRequest",
        /// A flag that the receiver must understand is unknown; `first` is the flags.
        103 UnknownFlags: "UnknownFlags",
        /// A request before HELLO, or a second HELLO; `first` is the frame's kind.
        104 UnexpectedFrame: "UnexpectedFrame",
        /// The client acknowledges a frame that was never sent; `first` is the acknowledged sequence number, `second`
        /// the last that was sent.
        105 FalseAcknowledgement: "FalseAcknowledgement",
        /// The client has not proven a token. `first`: 1 if it shows none, 2 if the server does not know it or its secret
        /// differs, 3 if the server has none.
        110 Unauthenticated: "Unauthenticated",
        /// The connection does not begin with TLS, which the server requires.
        111 TlsRequired: "TlsRequired",

        /// The key has no value, and the request does not wait.
        200 NotFound: "NotFound",
        /// The value is not a decimal number of 64 bits.
        201 NotANumber: "NotANumber",
        /// The lease does not exist; `first` is its id.
        202 UnknownLease: "UnknownLease",
        /// The participants, or their count, differ from those of the barrier; `text` names the participant that
        /// created it.
        203 BarrierConflict: "BarrierConflict",
        /// The caller is not among the participants.
        204 NotAParticipant: "NotAParticipant",
        /// The terms differ from those of the run; `text` says which, and which node set them.
        205 BoundsConflict: "BoundsConflict",
        /// The parameters contradict each other; `text` says how.
        206 InvalidArgument: "InvalidArgument",
        /// The session already waits for a round, or takes part under another name; `text` says which.
        207 AlreadyJoined: "AlreadyJoined",
        /// The run, or this round of it, does not exist; `first` is the round.
        208 UnknownRound: "UnknownRound",
        /// The host has failed too often, and must wait for `first` milliseconds.
        209 CoolingDown: "CoolingDown",
        /// The barrier does not know this generation; `first` is the oldest that it remembers, `second` the open or
        /// next one.
        210 UnknownGeneration: "UnknownGeneration",
        /// The session's token does not allow the request; `first` is the kind of its frame, `text` names the missing right.
        211 PermissionDenied: "PermissionDenied",

        /// A frame, key, value or list exceeds the limit; `first` is its size, `second` the limit.
        300 TooLong: "TooLong",
        /// The store is full; `first` is the limit in bytes.
        301 StoreFull: "StoreFull",
        /// Too many requests are pending; `first` is the limit.
        302 TooManyPending: "TooManyPending",
        /// Too many sessions; `first` is the limit.
        303 TooManySessions: "TooManySessions",
        /// Too many watches, leases, barriers or runs; `first` is the limit.
        304 TooMany: "TooMany",

        /// The timeout of the request has passed; `first` is the timeout in milliseconds.
        400 TimedOut: "TimedOut",
        /// The request was cancelled.
        401 Cancelled: "Cancelled",
        /// The session has ended; `first` is the number of the reason, 0 when it is not remembered.
        402 SessionEnded: "SessionEnded",
        /// The session exists, but the token is wrong.
        403 SessionForged: "SessionForged",
        /// The client is behind the reply window: it has received frames up to `first`, and the server keeps them from
        /// `second` on.
        404 WindowPassed: "WindowPassed",
        /// The request was answered, but the answer is no longer in the window; `first` is the oldest sequence number
        /// kept.
        405 RequestForgotten: "RequestForgotten",
        /// The round has ended: keys in its namespace can no longer be changed. `first` is the round, `second` the
        /// current one.
        406 StaleRound: "StaleRound",
        /// The history begins at revision `first`. If the store has not reached the requested one, `second` is its revision.
        407 Compacted: "Compacted",
        /// The run is closed; `text` names the node that closed it.
        408 RunClosed: "RunClosed",
        /// The server is stopping.
        409 ServerStopping: "ServerStopping",
        /// The run was closed while the node was on standby; this is not a failure.
        410 NotNeeded: "NotNeeded",
        /// Another session has joined under the node's name; `first` is that session.
        411 Replaced: "Replaced",
    }
}

/// Error of an ERROR frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    /// Error code.
    pub code: FaultCode,
    /// A number whose meaning depends on the code; 0 when it has none.
    pub first: u64,
    /// A second such number.
    pub second: u64,
    /// A text whose meaning depends on the code; empty when it has none.
    pub text: &'a [u8],
}

impl Fault<'static> {
    /// Fault for a node that another session has replaced.
    pub const REPLACED: Self = Self {
        text: b"another session joined under this node's name",
        ..Self::new(FaultCode::Replaced, 0, 0)
    };

    /// Creates a fault without text.
    pub const fn new(code: FaultCode, first: u64, second: u64) -> Self {
        Self { code, first, second, text: b"" }
    }

    /// Returns the fault for HELLO and resent requests of an ended session.
    pub const fn session_ended(why: Option<Why>) -> Self {
        let first = match why {
            Some(why) => why.number() as u64,
            None => 0,
        };
        Self::new(FaultCode::SessionEnded, first, 0)
    }

    /// Returns the fault for the sender of a frame with an invalid body.
    pub const fn of_body(error: BodyError, kind: u16, limits: &crate::limits::FrameLimits) -> Self {
        let (length, limit) = match error {
            BodyError::Truncated | BodyError::Meaningless(_) => {
                return Self::new(FaultCode::Malformed, kind as u64, 0);
            }
            BodyError::KeyTooLong(length) => (length, limits.key_bytes_max),
            BodyError::ValueTooLong(length) => (length, limits.value_bytes_max),
            BodyError::ListTooLong(length) => (length, limits.keys_max),
            BodyError::KeysTooLong(length) => (length, limits.all_key_bytes_max),
        };
        Self::new(FaultCode::TooLong, length, limit)
    }
}

records! {
    Fault { code, first, second, text }
}
