//! What a native server's store can do, beyond what every [`Store`](crate::driver::store::Store) has, and the calls
//! that such a store is made of.

use super::calls::{Listing, check, frame_of, patient_millis, settle};
use super::{Answered, Loss, NativeClient, NativeError, ServerFault, Way, text_of};
use crate::driver::call_error::Refusal;
use crate::driver::store::Timeout;
use crate::driver::store::take::Take;
use crate::error::Operation;
use crate::store::call::{Call, Outcome, Patience};
use crate::store::op::{Key, Request};
use crate::store::txn::{Compare, Write};
use crate::time::Duration;
use crate::wire::native::{BarrierEnd, Batched, ClientFrame, List, Participants, ServerFrame, Why};
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
        who: Box<str>,
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
            BarrierEnd::Broken { who, why } => Self::Broken { generation, who: text_of(who), why },
            BarrierEnd::TimedOut { absent_count, absent } => {
                let absent = absent.iter().map(|name| text_of(&name.pieces().concat())).collect();
                Self::TimedOut { generation, absent_count, absent }
            }
            BarrierEnd::Cancelled { by } => Self::Cancelled { generation, by: text_of(by) },
        })
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
    Verdict(bool),
    /// It failed; the others did not.
    Failed(ServerFault),
}

impl NativeClient {
    pub(super) fn span(&self, timeout: Timeout) -> (Duration, Patience) {
        self.0.options.timeouts.patience(timeout)
    }

    pub(super) fn number_in(&self, operation: Operation, answer: &Answered) -> Result<i64, NativeError> {
        match answer.frame(&self.0.answer_limits) {
            Some(ServerFrame::Number { number, .. }) => Ok(number),
            _ => Err(self.odd(operation)),
        }
    }

    /// Removes all keys beneath a prefix, and queues too; how many keys that were.
    ///
    /// # Errors
    /// Why they may not be removed.
    pub fn delete_prefix(&self, prefix: &[u8], timeout: Timeout) -> Result<i64, NativeError> {
        let prefix = self.key(prefix);
        let delete = ClientFrame::DeletePrefix { prefix };
        let answer = self.ask(Operation::DeletePrefix, &delete, self.span(timeout).0, (Some(prefix), 1))?;
        self.number_in(Operation::DeletePrefix, &answer)
    }

    /// A key as a transaction or a batch names it.
    #[must_use]
    pub fn key_of<'a>(&'a self, name: &'a [u8]) -> Key<'a> {
        self.key(name)
    }

    /// If all of `compares` hold, does `then`, otherwise `otherwise`, in one turn; whether it was `then`. Keys are those
    /// of [`NativeClient::key_of`].
    ///
    /// # Errors
    /// Why none of it was done.
    pub fn txn(
        &self,
        compares: &[Compare<'_>],
        then: &[Write<'_>],
        otherwise: &[Write<'_>],
        timeout: Timeout,
    ) -> Result<bool, NativeError> {
        let (compares, then) = (List::new(compares), List::new(then));
        let txn = ClientFrame::Txn { compares, then, otherwise: List::new(otherwise) };
        let answer = self.ask(Operation::Txn, &txn, self.span(timeout).0, (None, 0))?;
        match answer.frame(&self.0.answer_limits) {
            Some(ServerFrame::Verdict { holds, .. }) => Ok(holds),
            _ => Err(self.odd(Operation::Txn)),
        }
    }

    /// Carries out requests in order in one turn, each for itself. Legal are those of
    /// [`ClientFrame::is_batchable`]; keys are those of [`NativeClient::key_of`].
    ///
    /// # Errors
    /// Why none of them was carried out.
    pub fn batch(
        &self,
        requests: &[Batched<ClientFrame<'_>>],
        timeout: Timeout,
    ) -> Result<Vec<BatchAnswer>, NativeError> {
        let batch = ClientFrame::Batch { requests: List::new(requests) };
        let answer = self.ask(Operation::Batch, &batch, self.span(timeout).0, (None, 0))?;
        let Some(ServerFrame::BatchDone { answers }) = answer.frame(&self.0.answer_limits) else {
            return Err(self.odd(Operation::Batch));
        };
        let answers = answers.iter().map(|Batched(answer)| match answer {
            ServerFrame::Done { .. } => Ok(BatchAnswer::Done),
            ServerFrame::Number { number, .. } => Ok(BatchAnswer::Number(number)),
            ServerFrame::Value { value, .. } => Ok(BatchAnswer::Value(value.map(<[u8]>::to_vec))),
            ServerFrame::Verdict { holds, .. } => Ok(BatchAnswer::Verdict(holds)),
            ServerFrame::Error { fault } => Ok(BatchAnswer::Failed(ServerFault::of(&fault))),
            _ => Err(self.odd(Operation::Batch)),
        });
        answers.collect()
    }

    /// Arrives at a barrier under `name` and waits for the others. The first to arrive says who is awaited and until when
    /// all may wait; who gives himself less time is told alone who is missing then, and the others wait on. `generation`
    /// 0 is the one that is open, or the next.
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
        let (span, patience) = self.span(timeout);
        let timeout_ms = patient_millis(span, patience);
        let key = self.key(key);
        let barrier = ClientFrame::Barrier { key, generation, name, timeout_ms, participants };
        let answer = self.ask(Operation::Barrier, &barrier, span, (Some(key), 1))?;
        let frame = answer.frame(&self.0.answer_limits);
        frame.as_ref().and_then(BarrierResult::of).ok_or_else(|| self.odd(Operation::Barrier))
    }

    /// Ends a barrier for all who wait at it; whether somebody did.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn barrier_cancel(&self, key: &[u8], name: &[u8], timeout: Timeout) -> Result<bool, NativeError> {
        let key = self.key(key);
        let cancel = ClientFrame::BarrierCancel { key, name };
        let answer = self.ask(Operation::BarrierCancel, &cancel, self.span(timeout).0, (Some(key), 1))?;
        match answer.frame(&self.0.answer_limits) {
            Some(ServerFrame::Verdict { holds, .. }) => Ok(holds),
            _ => Err(self.odd(Operation::BarrierCancel)),
        }
    }

    /// Performs a store's call, with the meaning that it has on the c10d protocol. Keys are whole.
    pub(in crate::driver) fn perform(
        &self,
        call: &Call<'_>,
        span: Duration,
        take: &mut dyn Take,
    ) -> Result<Outcome, Refusal> {
        self.carry(call, span, take).map_err(|loss| Refusal { words: loss.words(), failure: loss.failure })
    }

    fn carry(&self, call: &Call<'_>, span: Duration, take: &mut dyn Take) -> Result<Outcome, Loss> {
        check(call, &self.0.options.limits)?;
        let limits = &self.0.answer_limits;
        if let Call::Store(Request::ListKeys, _) = call {
            let mut listing = Listing::default();
            loop {
                let answer =
                    self.exchange(call.operation(), &listing.page(), span, Way::Plain, None, None)?;
                if let Some(outcome) = listing.turn(&answer, limits, take)? {
                    return Ok(outcome);
                }
            }
        }
        let answer = self.exchange(call.operation(), &frame_of(call, span), span, Way::Plain, None, None);
        settle(call, answer, limits, take)
    }
}
