//! Errors as they stand in an ERROR frame: a code, two numbers and a text, whose meaning the code tells.

use super::field::{Body, BodyError, Field};
use super::record::Why;
use crate::wire::sink::Sink;

macro_rules! codes {
    ($($(#[$doc:meta])* $number:literal $name:ident,)*) => {
        /// The kinds of error, with their numbers on the wire. The hundreds are classes: 1 the peer broke the
        /// protocol, 2 the request cannot be carried out, 3 a limit was reached, 4 something has ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FaultCode {
            $($(#[$doc])* $name,)*
            /// One that this version does not know; its class still tells what to do.
            Other(u16),
        }

        impl FaultCode {
            /// Those that this version knows, with their names in the specification.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$name, stringify!($name))),*];

            /// Its number.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// The one with this number.
            #[must_use]
            pub const fn from_number(number: u16) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}

codes! {
    /// No version in common; the server speaks `first` to `second`.
    100 VersionUnsupported,
    /// The frame's fields cannot be read; `first` is the frame's kind.
    101 Malformed,
    /// No such request in this version; `first` is the frame's kind.
    102 UnknownRequest,
    /// A flag that must be understood is not; `first` are the flags.
    103 UnknownFlags,
    /// A request before HELLO, or a second HELLO; `first` is the frame's kind.
    104 UnexpectedFrame,
    /// The client claims to have received what was never sent; `first` is what it claims, `second` what was sent.
    105 FalseAcknowledgement,
    /// HELLO's credentials were not accepted.
    110 Unauthenticated,

    /// The key has no value, and the request does not wait.
    200 NotFound,
    /// The value is not a decimal number of 64 bits.
    201 NotANumber,
    /// No such lease; `first` is what was named.
    202 UnknownLease,
    /// The participants, or their count, differ from those that the barrier began with; `text` names who began it.
    203 BarrierConflict,
    /// The caller is not among the participants.
    204 NotAParticipant,
    /// The terms differ from the run's; `text` says in what, and who set them.
    205 BoundsConflict,
    /// The parameters contradict themselves; `text` says how.
    206 InvalidArgument,
    /// The session waits for a round already, or takes part under another name; `text` says which.
    207 AlreadyJoined,
    /// No such run, or no such round of it; `first` is the round.
    208 UnknownRound,
    /// The host failed too often and must wait for `first` milliseconds.
    209 CoolingDown,
    /// The barrier knows no such generation; it remembers those from `first` on, and `second` is open or comes next.
    210 UnknownGeneration,

    /// A frame, key, value or list is over the limit; `first` is its size, `second` the limit.
    300 TooLong,
    /// The store is full; `first` is the limit in bytes.
    301 StoreFull,
    /// Too many requests are pending; `first` is the limit.
    302 TooManyPending,
    /// Too many sessions; `first` is the limit.
    303 TooManySessions,
    /// Too many watches, leases, barriers or runs; `first` is the limit.
    304 TooMany,

    /// The time that the request gave has passed; `first` is that time in milliseconds.
    400 TimedOut,
    /// The request was cancelled.
    401 Cancelled,
    /// The session is no more; `first` is the number of a reason, 0 when it is not remembered.
    402 SessionEnded,
    /// The session exists, and the token is not its own.
    403 SessionForged,
    /// The reply window was passed: the client has received up to `first`, the server keeps from `second` on.
    404 WindowPassed,
    /// The request was answered, and the answer is gone from the window; `first` is the oldest sequence kept.
    405 RequestForgotten,
    /// The round has ended: nothing can be changed beneath its namespace. `first` is the round, `second` the current.
    406 StaleRound,
    /// The history begins at revision `first`.
    407 Compacted,
    /// The run is closed; `text` names who closed it.
    408 RunClosed,
    /// The server is stopping.
    409 ServerStopping,
    /// The run was closed while the node stood by; nothing went wrong.
    410 NotNeeded,
    /// Another session joined under the node's name; `first` is that session.
    411 Replaced,
}

/// One error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    /// What kind.
    pub code: FaultCode,
    /// A number whose meaning the code tells; 0 when it has none.
    pub first: u64,
    /// Another one.
    pub second: u64,
    /// A text whose meaning the code tells; empty when it has none.
    pub text: &'a [u8],
}

impl Fault<'static> {
    /// What a node is told that another session replaced.
    pub const REPLACED: Self = Self {
        text: b"another session joined under this node's name",
        ..Self::new(FaultCode::Replaced, 0, 0)
    };

    /// An error with its numbers.
    #[must_use]
    pub const fn new(code: FaultCode, first: u64, second: u64) -> Self {
        Self { code, first, second, text: b"" }
    }

    /// What HELLO and resent requests of an ended session are told.
    #[must_use]
    pub const fn session_ended(why: Option<Why>) -> Self {
        let first = match why {
            Some(why) => why.number() as u64,
            None => 0,
        };
        Self::new(FaultCode::SessionEnded, first, 0)
    }

    /// What the sender of a frame is told whose body cannot be read.
    #[must_use]
    pub const fn of_body(error: BodyError, kind: u16, limits: &crate::limits::FrameLimits) -> Self {
        let (length, limit) = match error {
            BodyError::Truncated | BodyError::Meaningless(_) => {
                return Self::new(FaultCode::Malformed, kind as u64, 0);
            }
            BodyError::KeyTooLong(length) => (length, limits.key_bytes_max),
            BodyError::ValueTooLong(length) => (length, limits.value_bytes_max),
            BodyError::ListTooLong(length) => (length, limits.keys_max),
        };
        Self::new(FaultCode::TooLong, length, limit)
    }
}

impl<'a> Field<'a> for Fault<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.code.number().write(out);
        self.first.write(out);
        self.second.write(out);
        self.text.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self {
            code: FaultCode::from_number(Field::read(body)?),
            first: Field::read(body)?,
            second: Field::read(body)?,
            text: Field::read(body)?,
        })
    }
}
