//! Operations that only the store of a native server has, and the calls that every
//! [`Store`](crate::driver::store::Store) over such a server is made of.

use super::batch::{Batch, Txn};
use super::calls::{Listing, check, frame_of, settle, wait_millis};
use super::{EncodedRequest, Loss, NativeClient, NativeError, OwnedFrame, SubmitPath, strip_scope, text_of};
use crate::driver::call_error::Refusal;
use crate::driver::cancel::CancelToken;
use crate::driver::take::Take;
use crate::driver::timeout::Timeout;
use crate::error::Operation;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::engine::PrefixRemoved;
use crate::store::op::{Key, Keys, Request};
use crate::time::Duration;
use crate::wire::native::{BarrierEnd, Batched, ClientFrame, Participants, ServerFrame, Why};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Result of a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierResult {
    /// All participants arrived.
    Released {
        /// Generation of the barrier, counted from 1.
        generation: u64,
    },
    /// A participant that had arrived or was awaited died.
    Broken {
        /// Generation of the barrier.
        generation: u64,
        /// Name of the dead participant.
        participant: Box<str>,
        /// How its death was detected.
        why: Why,
    },
    /// The deadline passed.
    TimedOut {
        /// Generation of the barrier.
        generation: u64,
        /// Number of missing participants.
        absent_count: u32,
        /// Names of the missing participants, as far as they are known.
        absent: Vec<Box<str>>,
    },
    /// A participant cancelled the barrier.
    Cancelled {
        /// Generation of the barrier.
        generation: u64,
        /// Name of the participant that cancelled it.
        by: Box<str>,
    },
}

impl BarrierResult {
    /// Converts the response to an arrival; `None` if it does not fit.
    pub(in crate::driver) fn of(frame: &ServerFrame<'_>) -> Option<Self> {
        let ServerFrame::BarrierOver { generation, end } = *frame else { return None };
        Some(match end {
            BarrierEnd::Released => Self::Released { generation },
            BarrierEnd::Broken { participant, why } => {
                Self::Broken { generation, participant: text_of(participant), why }
            }
            BarrierEnd::TimedOut { absent_count, absent } => {
                let absent = absent.iter().map(|name| text_of(&name.pieces().concat())).collect();
                Self::TimedOut { generation, absent_count, absent }
            }
            BarrierEnd::Cancelled { by } => Self::Cancelled { generation, by: text_of(by) },
        })
    }
}

/// Returns the participants of a barrier: those with these names, or `count` of them when there are no names.
#[must_use]
pub fn participants<'a>(count: u32, names: &'a [&'a [u8]]) -> Participants<'a> {
    match names {
        [] => Participants::Count(count),
        names => Participants::Names(Keys::scoped(b"", names)),
    }
}

/// Response to one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The request is done.
    Done,
    /// A number.
    Number(i64),
    /// The value, if the key is set.
    Value(Option<Vec<u8>>),
    /// Whether the condition holds.
    Outcome(bool),
    /// This request failed; the others did not.
    Failed(NativeError),
}

impl BatchAnswer {
    /// Converts the response to a batch, in order; `None` if it does not fit. `key_of` returns the whole key of the
    /// request at a position.
    pub(in crate::driver) fn list_of(
        frame: &ServerFrame<'_>,
        peer: &str,
        key_of: &dyn Fn(usize) -> Vec<u8>,
    ) -> Option<Vec<Self>> {
        let ServerFrame::BatchDone { answers } = frame else { return None };
        let answers = answers.iter().enumerate().map(|(index, Batched(answer))| match answer {
            ServerFrame::Done { .. } => Some(Self::Done),
            ServerFrame::Number { number, .. } => Some(Self::Number(number)),
            ServerFrame::Value { value, .. } => Some(Self::Value(value.map(<[u8]>::to_vec))),
            ServerFrame::Outcome { holds, .. } => Some(Self::Outcome(holds)),
            ServerFrame::Error { fault } => {
                let key = key_of(index);
                let keys = (Some(Key::raw(&key)), 1);
                let error = Loss::of_fault(&fault).into_error(Operation::Batch, keys, peer);
                Some(Self::Failed(error))
            }
            _ => None,
        });
        answers.collect()
    }
}

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnResult {
    /// Whether all its tests held.
    pub holds: bool,
    /// Revision of the store after it.
    pub revision: u64,
}

impl TxnResult {
    /// Converts the response to a transaction; `None` if it does not fit.
    pub(in crate::driver) const fn of(frame: &ServerFrame<'_>) -> Option<Self> {
        match *frame {
            ServerFrame::Outcome { holds, revision } => Some(Self { holds, revision }),
            _ => None,
        }
    }
}

/// Converts the response to the removal of a prefix; `None` if it does not fit.
pub(in crate::driver) fn removed_in(frame: &ServerFrame<'_>) -> Option<PrefixRemoved> {
    match *frame {
        ServerFrame::Number { number, .. } => {
            Some(PrefixRemoved { removed: u64::try_from(number).unwrap_or_default(), left: 0 })
        }
        ServerFrame::PrefixRemoved { removed, left, .. } => Some(PrefixRemoved { removed, left }),
        _ => None,
    }
}

/// Value with the revision of its last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// Revision of the store that the last change made; 0: the key is absent.
    pub revision: u64,
    /// Value; empty if the key is absent.
    pub value: Vec<u8>,
}

/// Page of keys in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysPage {
    /// Keys, without the scope.
    pub keys: Vec<Vec<u8>>,
    /// Whether more keys follow.
    pub more: bool,
}

impl NativeClient {
    pub(super) fn span(&self, timeout: Timeout) -> (Duration, WaitMode) {
        self.view.timeouts.wait_budget(timeout)
    }

    pub(super) fn number_in(&self, operation: Operation, answer: &OwnedFrame) -> Result<i64, NativeError> {
        match answer.frame(&self.inner.answer_limits) {
            Some(ServerFrame::Number { number, .. }) => Ok(number),
            _ => Err(self.wrong_answer(operation)),
        }
    }

    /// Removes all keys and queues under a prefix. Keys of rounds that are over stay, and are counted.
    ///
    /// # Errors
    /// The reason why they may not be removed: [`crate::error::ErrorKind::StaleRound`] if all keys under the prefix
    /// belong to a round that is over.
    pub fn delete_prefix(&self, prefix: &[u8], timeout: Timeout) -> Result<PrefixRemoved, NativeError> {
        let prefix = self.key(prefix);
        let delete = ClientFrame::DeletePrefix { prefix };
        let answer = self.ask(Operation::DeletePrefix, &delete, self.span(timeout).0, (Some(prefix), 1))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(removed_in).ok_or_else(|| self.wrong_answer(Operation::DeletePrefix))
    }

    /// Reads values with their revisions, when all keys are set. With a timeout of zero, absent keys have the
    /// revision 0.
    ///
    /// # Errors
    /// Some key was not set in time, or the reason why the values are not known.
    pub fn read(&self, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Versioned>, NativeError> {
        let (span, wait_mode) = self.span(timeout);
        let keys = Keys::scoped(&self.view.scope, keys);
        let read = ClientFrame::MultiGet { timeout_ms: wait_millis(span, wait_mode), keys };
        let answer = self.ask(Operation::MultiGet, &read, span, (keys.iter().next(), keys.len()))?;
        let Some(ServerFrame::Values { values }) = answer.frame(&self.inner.answer_limits) else {
            return Err(self.wrong_answer(Operation::MultiGet));
        };
        let values = values.iter().map(|found| match found.value {
            Some(value) => Versioned { revision: found.revision, value: value.to_vec() },
            None => Versioned::default(),
        });
        Ok(values.collect())
    }

    /// Lists the first `count_max` keys that begin with `prefix` and follow `after` in byte order (empty: from the
    /// first on).
    ///
    /// # Errors
    /// The reason why they are not known.
    pub fn list_page(
        &self,
        prefix: &[u8],
        after: &[u8],
        count_max: u32,
        timeout: Timeout,
    ) -> Result<KeysPage, NativeError> {
        let prefix = self.key(prefix);
        let after = if after.is_empty() { Key::raw(b"") } else { self.key(after) };
        let list = ClientFrame::ListKeys { prefix, after, count_max };
        let answer = self.ask(Operation::ListKeys, &list, self.span(timeout).0, (Some(prefix), 1))?;
        let Some(ServerFrame::KeyList { more, keys }) = answer.frame(&self.inner.answer_limits) else {
            return Err(self.wrong_answer(Operation::ListKeys));
        };
        Ok(KeysPage { keys: keys.iter().map(|key| strip_scope(&self.view.scope, &key)).collect(), more })
    }

    /// Commits a transaction: if all its tests hold, applies its writes, otherwise those of its other branch, in one
    /// atomic step.
    ///
    /// # Errors
    /// The reason why the result is not known. [`crate::error::Failure::effect`] says whether the transaction may
    /// have been committed. It is never applied in part.
    pub fn commit(&self, txn: &Txn, timeout: Timeout) -> Result<TxnResult, NativeError> {
        let too_long = txn.check_keys(&self.view.scope, &self.inner.options.limits);
        too_long.map_err(|(key, loss)| self.error(Operation::Txn, (Some(self.key(key)), 1), loss))?;
        let encoded = txn.encode(&self.view.scope);
        let answer =
            self.exchange(encoded, self.span(timeout).0, SubmitPath::Plain, None, &self.canceller.token());
        let answer = answer.map_err(|loss| self.error(Operation::Txn, (None, 0), loss))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(TxnResult::of).ok_or_else(|| self.wrong_answer(Operation::Txn))
    }

    /// Executes the requests of a batch in order in one step. Each succeeds or fails by itself.
    ///
    /// # Errors
    /// The reason why there are no responses. [`crate::error::Failure::effect`] says whether the batch may have been
    /// executed. It is never executed in part.
    pub fn batch(&self, batch: &Batch, timeout: Timeout) -> Result<Vec<BatchAnswer>, NativeError> {
        let too_long = batch.check_keys(&self.view.scope, &self.inner.options.limits);
        too_long.map_err(|(key, loss)| self.error(Operation::Batch, (Some(self.key(key)), 1), loss))?;
        let encoded = batch.encode(&self.view.scope);
        let answer =
            self.exchange(encoded, self.span(timeout).0, SubmitPath::Plain, None, &self.canceller.token());
        let answer = answer.map_err(|loss| self.error(Operation::Batch, (None, 0), loss))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame
            .as_ref()
            .and_then(|frame| {
                let key_of = |index| [&*self.view.scope, batch.key(index)].concat();
                BatchAnswer::list_of(frame, &self.inner.peer, &key_of)
            })
            .ok_or_else(|| self.wrong_answer(Operation::Batch))
    }

    /// Arrives at a barrier under `name` (empty: the session's name) and waits for the others. The first to arrive
    /// sets the participants and the deadline for all. A caller with a shorter timeout gets, at its own deadline, the
    /// names of the missing participants, and the others wait on. `generation` 0 is the open one, or the next.
    ///
    /// # Errors
    /// Other callers arrived with other participants, or the reason why the result is not known.
    pub fn barrier(
        &self,
        key: &[u8],
        generation: u64,
        name: &[u8],
        participants: Participants<'_>,
        timeout: Timeout,
    ) -> Result<BarrierResult, NativeError> {
        let (span, wait_mode) = self.span(timeout);
        let timeout_ms = wait_millis(span, wait_mode);
        let (key, name) = (self.key(key), self.name_or_default(name));
        let barrier = ClientFrame::Barrier { key, generation, name, timeout_ms, participants };
        let answer = self.ask(Operation::NamedBarrier, &barrier, span, (Some(key), 1))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(BarrierResult::of).ok_or_else(|| self.wrong_answer(Operation::NamedBarrier))
    }

    /// Cancels a barrier for all that wait at it. Returns whether any participant waited.
    ///
    /// # Errors
    /// The reason why that is not known.
    pub fn barrier_cancel(&self, key: &[u8], name: &[u8], timeout: Timeout) -> Result<bool, NativeError> {
        let (key, name) = (self.key(key), self.name_or_default(name));
        let cancel = ClientFrame::BarrierCancel { key, name };
        let answer = self.ask(Operation::BarrierCancel, &cancel, self.span(timeout).0, (Some(key), 1))?;
        match answer.frame(&self.inner.answer_limits) {
            Some(ServerFrame::Outcome { holds, .. }) => Ok(holds),
            _ => Err(self.wrong_answer(Operation::BarrierCancel)),
        }
    }

    /// Returns `name`, or the session's name if it is empty.
    fn name_or_default<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        if name.is_empty() { self.inner.options.node.as_bytes() } else { name }
    }

    /// Performs a store call, with the semantics of the c10d protocol. Keys are whole.
    pub(in crate::driver) fn perform(
        &self,
        call: &Call<'_>,
        span: Duration,
        token: &CancelToken,
        take: &mut dyn Take,
    ) -> Result<Outcome, Refusal> {
        self.drive(call, span, token, take)
            .map_err(|loss| Refusal { message: loss.message(), failure: loss.failure })
    }

    fn drive(
        &self,
        call: &Call<'_>,
        span: Duration,
        token: &CancelToken,
        take: &mut dyn Take,
    ) -> Result<Outcome, Loss> {
        check(call, &self.inner.options.limits)?;
        let ask = |frame: &ClientFrame<'_>| {
            let encoded = EncodedRequest::new(call.operation(), frame);
            self.exchange(encoded, span, SubmitPath::Plain, None, token)
        };
        let limits = &self.inner.answer_limits;
        if let Call::Store(Request::ListKeys, _) = call {
            let mut listing = Listing::default();
            loop {
                let answer = ask(&listing.page())?;
                if let Some(outcome) = listing.take_page(&answer, limits, take)? {
                    return Ok(outcome);
                }
            }
        }
        let frame = frame_of(call, span).ok_or_else(Loss::no_operation)?;
        settle(call, ask(&frame), limits, take)
    }
}
