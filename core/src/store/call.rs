//! Calls of a client. One call may take several requests on the wire.

use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::FrameLimits;
use crate::store::op::Request;

/// Id of a call in progress; the caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Whether a call waits for what it does not find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// The call checks once and returns.
    Once,
    /// The call waits until it finds its key or item, or the deadline passes.
    #[default]
    Wait,
}

/// Requests that a waiting `get` sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GetMode {
    /// WAIT and GET in one write: one round trip when the key exists.
    #[default]
    Pipelined,
    /// WAIT, then GET: for servers that drop a connection that asks for a missing key (c10d protocol, section 6).
    WaitThenGet,
}

/// Call of a client. The wait mode applies only to [`Request::Get`], [`Request::MultiGet`], [`Request::Wait`],
/// [`Request::QueuePop`] and [`Request::Barrier`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call<'a> {
    /// Checks that the server responds.
    Ping,
    /// A request to the store.
    Store(Request<'a>, WaitMode),
}

impl<'a> Call<'a> {
    /// Returns the operation that errors name.
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Ping => Operation::Ping,
            Self::Store(request, _) => match request {
                Request::Set { .. } => Operation::Set,
                Request::CompareSet { .. } => Operation::CompareSet,
                Request::Get { .. } => Operation::Get,
                Request::Add { .. } => Operation::Add,
                Request::Check { .. } => Operation::Check,
                Request::Wait { .. } => Operation::Wait,
                Request::NumKeys => Operation::NumKeys,
                Request::Delete { .. } => Operation::Delete,
                Request::Append { .. } => Operation::Append,
                Request::MultiGet { .. } => Operation::MultiGet,
                Request::MultiSet { .. } => Operation::MultiSet,
                Request::CancelWait => Operation::CancelWait,
                Request::QueuePush { .. } => Operation::QueuePush,
                Request::QueuePop { .. } => Operation::QueuePop,
                Request::QueueLen { .. } => Operation::QueueLen,
                Request::ListKeys => Operation::ListKeys,
                Request::Barrier { .. } => Operation::Barrier,
            },
        }
    }

    /// Returns the wait mode.
    pub const fn wait_mode(&self) -> WaitMode {
        match self {
            Self::Ping => WaitMode::Once,
            Self::Store(_, wait_mode) => *wait_mode,
        }
    }

    /// Returns whether the server may delay its answer until something happens.
    pub const fn may_wait(&self) -> bool {
        let Self::Store(request, WaitMode::Wait) = self else { return false };
        matches!(
            request,
            Request::Get { .. }
                | Request::MultiGet { .. }
                | Request::Wait { .. }
                | Request::QueuePop { .. }
                | Request::Barrier { .. }
        )
    }

    /// Returns whether the call needs a connection to itself, because it may wait or takes several writes.
    pub const fn is_exclusive(&self, mode: GetMode) -> bool {
        let several_writes = matches!(
            (self, mode),
            (Self::Store(Request::MultiGet { .. }, _), _)
                | (Self::Store(Request::Get { .. }, _), GetMode::WaitThenGet)
        );
        several_writes || self.may_wait()
    }

    /// Returns the first key and the number of keys.
    pub fn keys(&self) -> (Option<crate::store::op::Key<'a>>, usize) {
        match *self {
            Self::Ping | Self::Store(Request::NumKeys | Request::ListKeys | Request::CancelWait, _) => {
                (None, 0)
            }
            Self::Store(
                Request::Set { key, .. }
                | Request::CompareSet { key, .. }
                | Request::Get { key }
                | Request::Add { key, .. }
                | Request::Delete { key }
                | Request::Append { key, .. }
                | Request::QueuePush { key, .. }
                | Request::QueuePop { key }
                | Request::QueueLen { key }
                | Request::Barrier { key, .. },
                _,
            ) => (Some(key), 1),
            Self::Store(Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys }, _) => {
                (keys.iter().next(), keys.len())
            }
            Self::Store(Request::MultiSet { pairs }, _) => {
                (pairs.iter().next().map(|(key, _)| key), pairs.len())
            }
        }
    }

    /// Checks lengths and counts against the limits of a server.
    ///
    /// # Errors
    /// The limit that is exceeded. A server would close the connection.
    pub fn check_limits(&self, limits: &FrameLimits) -> Result<(), LimitError> {
        let mut all_bytes = 0;
        let mut key_fits = |key: crate::store::op::Key<'_>| limits.check_key(key.len(), &mut all_bytes);
        let value_fits = |value: &[u8]| {
            let bytes = value.len() as u64;
            let bytes_max = limits.value_bytes_max;
            if bytes <= bytes_max { Ok(()) } else { Err(LimitError::Value { bytes, bytes_max }) }
        };
        let count_fits = |count: usize| limits.check_count(count as u64);
        let Self::Store(request, _) = self else { return Ok(()) };
        match *request {
            Request::NumKeys | Request::ListKeys | Request::CancelWait => Ok(()),
            Request::Set { key, value }
            | Request::Append { key, value }
            | Request::QueuePush { key, value } => key_fits(key).and_then(|()| value_fits(value)),
            Request::CompareSet { key, expected, desired } => {
                key_fits(key).and_then(|()| value_fits(expected)).and_then(|()| value_fits(desired))
            }
            Request::Get { key }
            | Request::Add { key, .. }
            | Request::Delete { key }
            | Request::QueuePop { key }
            | Request::QueueLen { key }
            | Request::Barrier { key, .. } => key_fits(key),
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                count_fits(keys.len())?;
                keys.iter().try_for_each(&mut key_fits)
            }
            Request::MultiSet { pairs } => {
                count_fits(pairs.len())?;
                pairs.iter().try_for_each(|(key, value)| key_fits(key).and_then(|()| value_fits(value)))
            }
        }
    }
}

/// Result of a call that did not fail. Values were delivered before, as events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server has applied the request.
    Applied,
    /// The server responded to a ping.
    Alive,
    /// A number.
    Number(i64),
    /// Every key exists.
    Ready,
    /// At least one key is missing.
    NotReady,
    /// The value is complete.
    Value,
    /// All values (or keys), of this number, are complete.
    Values(u64),
    /// The wait has ended, or all participants have arrived.
    Released,
    /// A call with [`WaitMode::Once`] did not find its key.
    Missing,
    /// The queue was empty.
    QueueEmpty,
    /// A call with [`WaitMode::Wait`] has used up its attempts: the server reported an item each time, and there was none.
    NoItem,
}

const NO_ITEM: &str =
    "1,000 attempts found no item: the key also has a value, or other clients take the items";

impl Outcome {
    /// Returns the failure that the outcome means to a caller that requires a result; `None` if it is a success.
    pub const fn failure(self, operation: Operation) -> Option<Failure> {
        let (kind, cause, effect) = match self {
            Self::Missing => (ErrorKind::TimedOut, Cause::NotReleased, operation.effect_when_given_up()),
            Self::QueueEmpty => (ErrorKind::QueueEmpty, Cause::Unknown, Effect::None),
            Self::NoItem => (ErrorKind::QueueEmpty, Cause::State(NO_ITEM), Effect::None),
            _ => return None,
        };
        Some(Failure { effect, ..Failure::new(kind, Phase::Waiting, cause) })
    }
}
