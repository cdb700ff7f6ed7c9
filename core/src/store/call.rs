//! What a client is asked to do: one call may take several requests on the wire.

use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::FrameLimits;
use crate::store::op::Request;
use crate::time::Duration;

/// Names one call under way; the caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Whether a call that finds nothing waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Look once and say what is there.
    Once,
    /// Wait until it is there or the deadline passes.
    #[default]
    Wait,
}

/// How a waiting `get` asks a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GetMode {
    /// WAIT and GET in one write: one round trip when the key is there.
    #[default]
    Pipelined,
    /// WAIT, then GET: for servers that drop a connection which asks for a missing key (c10d protocol, section 6).
    WaitThenGet,
}

/// One call. Patience matters to [`Request::Get`], [`Request::MultiGet`], [`Request::Wait`], [`Request::QueuePop`]
/// and [`Request::Barrier`] only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call<'a> {
    /// Asks the server for a sign of life.
    Ping,
    /// Asks something of the store.
    Store(Request<'a>, WaitMode),
}

impl<'a> Call<'a> {
    /// What errors name it.
    #[must_use]
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

    /// Whether it waits for what is not there.
    #[must_use]
    pub const fn wait_mode(&self) -> WaitMode {
        match self {
            Self::Ping => WaitMode::Once,
            Self::Store(_, wait_mode) => *wait_mode,
        }
    }

    /// Whether the server may answer much later: when something happens there.
    #[must_use]
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

    /// Whether it has its connection for itself: it may wait, or it takes several writes.
    #[must_use]
    pub const fn is_exclusive(&self, mode: GetMode) -> bool {
        let several_writes = matches!(
            (self, mode),
            (Self::Store(Request::MultiGet { .. }, _), _)
                | (Self::Store(Request::Get { .. }, _), GetMode::WaitThenGet)
        );
        several_writes || self.may_wait()
    }

    /// The first key and the number of keys.
    #[must_use]
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

    /// Compares lengths and counts with what a server takes.
    ///
    /// # Errors
    /// The limit that does not hold. A server would close the connection.
    pub fn check_limits(&self, limits: &FrameLimits) -> Result<(), LimitError> {
        let key_fits = |key: crate::store::op::Key<'_>| {
            if key.len() as u64 <= limits.key_bytes_max {
                return Ok(());
            }
            let (bytes, beside) = (key.name().len() as u64, (key.len() - key.name().len()) as u64);
            Err(LimitError::Key { bytes, bytes_max: limits.key_bytes_max.saturating_sub(beside) })
        };
        let value_fits = |value: &[u8]| {
            let bytes = value.len() as u64;
            let bytes_max = limits.value_bytes_max;
            if bytes <= bytes_max { Ok(()) } else { Err(LimitError::Value { bytes, bytes_max }) }
        };
        let count_fits = |count: usize| {
            let count = count as u64;
            let count_max = limits.keys_max;
            if count <= count_max { Ok(()) } else { Err(LimitError::Keys { count, count_max }) }
        };
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
                keys.iter().try_for_each(key_fits)
            }
            Request::MultiSet { pairs } => {
                count_fits(pairs.len())?;
                pairs.iter().try_for_each(|(key, value)| key_fits(key).and_then(|()| value_fits(value)))
            }
        }
    }
}

/// How a call ended well. Values came before, as events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server has applied it.
    Applied,
    /// The server is there.
    Alive,
    /// A number.
    Number(i64),
    /// Every key is there.
    Ready,
    /// Some key is missing.
    NotReady,
    /// The value is complete.
    Value,
    /// This many values (or keys) are complete.
    Values(u64),
    /// The wait is over, or everybody has arrived.
    Released,
    /// A call that looks once did not find what it looked for.
    Missing,
    /// There was nothing to pop.
    QueueEmpty,
}

impl Outcome {
    /// The failure that it is to a caller who has to have what the call was for; `None`: he has it.
    #[must_use]
    pub const fn failure(self, operation: Operation) -> Option<Failure> {
        let (kind, cause, effect) = match self {
            Self::Missing => (ErrorKind::TimedOut, Cause::NotReleased, operation.effect_when_given_up()),
            Self::QueueEmpty => (ErrorKind::QueueEmpty, Cause::Unknown, Effect::None),
            _ => return None,
        };
        Some(Failure { kind, phase: Phase::Waiting, elapsed: Duration::ZERO, cause, effect })
    }
}
