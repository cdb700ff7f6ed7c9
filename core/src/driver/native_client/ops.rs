//! What a native server's store can do, beyond what every [`Store`](crate::driver::store::Store) has, and the calls
//! that such a store is made of.

use super::batch::{Batch, Txn};
use super::calls::{Listing, check, frame_of, settle, wait_millis};
use super::{Loss, NativeClient, NativeError, OwnedFrame, SubmitPath, strip_scope, text_of};
use crate::driver::call_error::Refusal;
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

/// How a barrier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierResult {
    /// All were there.
    Released {
        /// Of the barrier; it counts from 1.
        generation: u64,
    },
    /// Somebody who had arrived or was awaited died.
    Broken {
        /// Of the barrier.
        generation: u64,
        /// Who.
        participant: Box<str>,
        /// How that was noticed.
        why: Why,
    },
    /// The deadline passed.
    TimedOut {
        /// Of the barrier.
        generation: u64,
        /// How many were missing.
        absent_count: u32,
        /// Those of them that are known by name.
        absent: Vec<Box<str>>,
    },
    /// Somebody cancelled it.
    Cancelled {
        /// Of the barrier.
        generation: u64,
        /// Who.
        by: Box<str>,
    },
}

impl BarrierResult {
    /// What the answer to an arrival tells; `None` when it is none.
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

/// Who is awaited at a barrier: those of these names, or so many when there are none.
#[must_use]
pub fn participants<'a>(count: u32, names: &'a [&'a [u8]]) -> Participants<'a> {
    match names {
        [] => Participants::Count(count),
        names => Participants::Names(Keys::scoped(b"", names)),
    }
}

/// The answer to one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// It is done.
    Done,
    /// A number.
    Number(i64),
    /// A value, if there is one.
    Value(Option<Vec<u8>>),
    /// Whether it holds.
    Outcome(bool),
    /// It failed; the others did not.
    Failed(NativeError),
}

impl BatchAnswer {
    /// Those that an answer holds, in order; `None` when it is none to a batch.
    /// `key_of` tells the whole key of a request by its place.
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

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnResult {
    /// Whether all its tests held.
    pub holds: bool,
    /// The store's revision behind it.
    pub revision: u64,
}

impl TxnResult {
    /// What the answer to a transaction tells; `None` when it is none.
    pub(in crate::driver) const fn of(frame: &ServerFrame<'_>) -> Option<Self> {
        match *frame {
            ServerFrame::Outcome { holds, revision } => Some(Self { holds, revision }),
            _ => None,
        }
    }
}

/// What the answer to the removal of a prefix tells; `None` when it is none.
pub(in crate::driver) fn removed_in(frame: &ServerFrame<'_>) -> Option<PrefixRemoved> {
    match *frame {
        ServerFrame::Number { number, .. } => {
            Some(PrefixRemoved { removed: u64::try_from(number).unwrap_or_default(), left: 0 })
        }
        ServerFrame::PrefixRemoved { removed, left, .. } => Some(PrefixRemoved { removed, left }),
        _ => None,
    }
}

/// A value, and when it was last changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The revision of the store that its last change made; 0: it has no value.
    pub revision: u64,
    /// The value; empty when there is none.
    pub value: Vec<u8>,
}

/// Keys in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysPage {
    /// The keys, as their users know them.
    pub keys: Vec<Vec<u8>>,
    /// Whether others follow.
    pub more: bool,
}

impl NativeClient {
    pub(super) fn span(&self, timeout: Timeout) -> (Duration, WaitMode) {
        self.1.timeouts.wait_budget(timeout)
    }

    pub(super) fn number_in(&self, operation: Operation, answer: &OwnedFrame) -> Result<i64, NativeError> {
        match answer.frame(&self.0.answer_limits) {
            Some(ServerFrame::Number { number, .. }) => Ok(number),
            _ => Err(self.odd(operation)),
        }
    }

    /// Removes all keys beneath a prefix, and queues too. Keys of rounds that are over stay, and are counted.
    ///
    /// # Errors
    /// Why they may not be removed: [`crate::error::ErrorKind::StaleRound`] where all beneath the prefix is of a round
    /// that is over.
    pub fn delete_prefix(&self, prefix: &[u8], timeout: Timeout) -> Result<PrefixRemoved, NativeError> {
        let prefix = self.key(prefix);
        let delete = ClientFrame::DeletePrefix { prefix };
        let answer = self.ask(Operation::DeletePrefix, &delete, self.span(timeout).0, (Some(prefix), 1))?;
        let frame = answer.frame(&self.0.answer_limits);
        frame.as_ref().and_then(removed_in).ok_or_else(|| self.odd(Operation::DeletePrefix))
    }

    /// Reads values with their revisions, when all are there. With a timeout of zero those that are missing have the
    /// revision 0.
    ///
    /// # Errors
    /// They were not all set in time, or why else they are not known.
    pub fn read(&self, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Versioned>, NativeError> {
        let (span, wait_mode) = self.span(timeout);
        let keys = Keys::scoped(&self.1.scope, keys);
        let read = ClientFrame::MultiGet { timeout_ms: wait_millis(span, wait_mode), keys };
        let answer = self.ask(Operation::MultiGet, &read, span, (keys.iter().next(), keys.len()))?;
        let Some(ServerFrame::Values { values }) = answer.frame(&self.0.answer_limits) else {
            return Err(self.odd(Operation::MultiGet));
        };
        let values = values.iter().map(|found| match found.value {
            Some(value) => Versioned { revision: found.revision, value: value.to_vec() },
            None => Versioned::default(),
        });
        Ok(values.collect())
    }

    /// Lists the first `count_max` keys that begin with `prefix` and come behind `after` in byte order (empty: from the
    /// first on).
    ///
    /// # Errors
    /// Why they are not known.
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
        let Some(ServerFrame::KeyList { more, keys }) = answer.frame(&self.0.answer_limits) else {
            return Err(self.odd(Operation::ListKeys));
        };
        Ok(KeysPage { keys: keys.iter().map(|key| strip_scope(&self.1.scope, &key)).collect(), more })
    }

    /// If all tests of the transaction hold, does its writes, otherwise those of its other branch, in one turn.
    ///
    /// # Errors
    /// Why it is not known to be done. Whether all of it may have been all the same, [`crate::error::Failure::effect`]
    /// tells; never a part of it.
    pub fn commit(&self, txn: &Txn, timeout: Timeout) -> Result<TxnResult, NativeError> {
        let too_long = txn.check_keys(&self.1.scope, &self.0.options.limits);
        too_long.map_err(|(key, loss)| self.error(Operation::Txn, (Some(self.key(key)), 1), loss))?;
        let encoded = txn.encode(&self.1.scope);
        let answer = self.exchange_encoded(encoded, self.span(timeout).0, SubmitPath::Plain, None, None);
        let answer = answer.map_err(|loss| self.error(Operation::Txn, (None, 0), loss))?;
        let frame = answer.frame(&self.0.answer_limits);
        frame.as_ref().and_then(TxnResult::of).ok_or_else(|| self.odd(Operation::Txn))
    }

    /// Carries out the requests of a batch in order in one turn, each for itself.
    ///
    /// # Errors
    /// Why there are no answers. Whether all of them may have been carried out all the same,
    /// [`crate::error::Failure::effect`] tells; never a part of them.
    pub fn batch(&self, batch: &Batch, timeout: Timeout) -> Result<Vec<BatchAnswer>, NativeError> {
        let too_long = batch.check_keys(&self.1.scope, &self.0.options.limits);
        too_long.map_err(|(key, loss)| self.error(Operation::Batch, (Some(self.key(key)), 1), loss))?;
        let encoded = batch.encode(&self.1.scope);
        let answer = self.exchange_encoded(encoded, self.span(timeout).0, SubmitPath::Plain, None, None);
        let answer = answer.map_err(|loss| self.error(Operation::Batch, (None, 0), loss))?;
        let frame = answer.frame(&self.0.answer_limits);
        frame
            .as_ref()
            .and_then(|frame| {
                let key_of = |index| [&*self.1.scope, batch.key(index)].concat();
                BatchAnswer::list_of(frame, &self.0.peer, &key_of)
            })
            .ok_or_else(|| self.odd(Operation::Batch))
    }

    /// Arrives at a barrier under `name` (empty: the session's) and waits for the others. The first to arrive says who is
    /// awaited and until when all may wait; who gives himself less time is told alone who is missing then, and the others
    /// wait on. `generation` 0 is the one that is open, or the next.
    ///
    /// # Errors
    /// Others arrived with other participants, or why else it is not known how it ended.
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
        let frame = answer.frame(&self.0.answer_limits);
        frame.as_ref().and_then(BarrierResult::of).ok_or_else(|| self.odd(Operation::NamedBarrier))
    }

    /// Ends a barrier for all who wait at it; whether somebody did.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn barrier_cancel(&self, key: &[u8], name: &[u8], timeout: Timeout) -> Result<bool, NativeError> {
        let (key, name) = (self.key(key), self.name_or_default(name));
        let cancel = ClientFrame::BarrierCancel { key, name };
        let answer = self.ask(Operation::BarrierCancel, &cancel, self.span(timeout).0, (Some(key), 1))?;
        match answer.frame(&self.0.answer_limits) {
            Some(ServerFrame::Outcome { holds, .. }) => Ok(holds),
            _ => Err(self.odd(Operation::BarrierCancel)),
        }
    }

    /// Who says something under no name says it under the session's.
    fn name_or_default<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        if name.is_empty() { self.0.options.node.as_bytes() } else { name }
    }

    /// Performs a store's call, with the meaning that it has on the c10d protocol. Keys are whole.
    pub(in crate::driver) fn perform(
        &self,
        call: &Call<'_>,
        span: Duration,
        take: &mut dyn Take,
    ) -> Result<Outcome, Refusal> {
        self.drive(call, span, take)
            .map_err(|loss| Refusal { message: loss.message(), failure: loss.failure })
    }

    fn drive(&self, call: &Call<'_>, span: Duration, take: &mut dyn Take) -> Result<Outcome, Loss> {
        check(call, &self.0.options.limits)?;
        let limits = &self.0.answer_limits;
        if let Call::Store(Request::ListKeys, _) = call {
            let mut listing = Listing::default();
            loop {
                let answer =
                    self.exchange(call.operation(), &listing.page(), span, SubmitPath::Plain, None, None)?;
                if let Some(outcome) = listing.turn_page(&answer, limits, take)? {
                    return Ok(outcome);
                }
            }
        }
        let answer =
            self.exchange(call.operation(), &frame_of(call, span), span, SubmitPath::Plain, None, None);
        settle(call, answer, limits, take)
    }
}
