//! What a value of the store tells about a failed call, where the c10d protocol itself gives no reason.

use crate::error::{Cause, Effect, ErrorKind, Failure, Phase};
use crate::store::call::{Call, WaitMode};
use crate::store::number::parse_leading;
use crate::store::op::{Key, Request};
use crate::time::Duration;

/// Timeout of reading the value, which only improves an error message.
pub const CLUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A key whose value may explain a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clue<'a> {
    /// The call adds to this key. A server closes the connection if the value is not a number.
    Summand(Key<'a>),
    /// The key counts the participants of a barrier that timed out.
    Counter {
        /// The key.
        key: Key<'a>,
        /// Number of awaited participants.
        world_size: i64,
    },
}

impl<'a> Clue<'a> {
    /// Returns the clue to the failure of a call, if there is one.
    pub fn of(call: &Call<'a>, failure: &Failure) -> Option<Self> {
        let Call::Store(request, _) = *call else { return None };
        match (request, failure.kind, failure.phase, failure.effect) {
            (
                Request::Add { key, .. } | Request::Barrier { key, .. },
                ErrorKind::ServerGone,
                Phase::Waiting,
                Effect::Possible,
            ) => Some(Self::Summand(key)),
            (Request::Barrier { key, world_size }, ErrorKind::TimedOut, _, Effect::Kept) => {
                Some(Self::Counter { key, world_size })
            }
            _ => None,
        }
    }

    /// Returns the call that reads the value.
    pub const fn call(&self) -> Call<'a> {
        let (Self::Summand(key) | Self::Counter { key, .. }) = *self;
        Call::Store(Request::Get { key }, WaitMode::Once)
    }

    /// Returns the failure with the cause that the value tells.
    pub fn explain(&self, failure: Failure, value: &[u8]) -> Failure {
        match (*self, parse_leading(value)) {
            (Self::Summand(_), None) => {
                let (kind, cause) = (ErrorKind::InvalidArgument, Cause::NotANumber);
                Failure { kind, cause, effect: Effect::None, ..failure }
            }
            (Self::Counter { world_size, .. }, Some(arrived)) => {
                Failure { cause: Cause::Arrived { arrived, world_size }, ..failure }
            }
            _ => failure,
        }
    }
}
