//! What a native server's store can do, beyond what every [`Store`](crate::driver::store::Store) has, and the calls
//! that such a store is made of.

use super::{Answered, Loss, NativeClient, NativeError, ServerFault, Way, millis, plain, text_of};
use crate::driver::call_error::Refusal;
use crate::driver::store::Timeout;
use crate::driver::store::take::Take;
use crate::error::{Cause, ErrorKind, Failure, Operation, Phase};
use crate::store::call::{Call, Outcome, Patience};
use crate::store::op::{Key, Keys, Request};
use crate::store::txn::{Compare, Write};
use crate::time::Duration;
use crate::wire::native::{
    BarrierEnd, Batched, ClientFrame, FaultCode, List, Participants, ServerFrame, Why,
};
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

/// Keys that one answer lists.
const PAGE_KEYS: u32 = 4096;

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

    /// Arrives at a barrier under `name` and waits for the others. The first to arrive says who is awaited and until
    /// when. `generation` 0 is the one that is open, or the next.
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
        let Some(ServerFrame::BarrierOver { generation, end }) = answer.frame(&self.0.answer_limits) else {
            return Err(self.odd(Operation::Barrier));
        };
        Ok(match end {
            BarrierEnd::Released => BarrierResult::Released { generation },
            BarrierEnd::Broken { who, why } => BarrierResult::Broken { generation, who: text_of(who), why },
            BarrierEnd::TimedOut { absent_count, absent } => {
                let absent = absent.iter().map(|name| text_of(&name.pieces().concat())).collect();
                BarrierResult::TimedOut { generation, absent_count, absent }
            }
            BarrierEnd::Cancelled { by } => BarrierResult::Cancelled { generation, by: text_of(by) },
        })
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
        call.check_limits(&self.0.options.limits).map_err(|limit| {
            let (kind, cause) = (ErrorKind::LimitExceeded, Cause::Limit(limit));
            Loss::of(Failure { cause, phase: Phase::Sending, ..plain(kind) })
        })?;
        if let Call::Store(Request::ListKeys, _) = call {
            return self.list_keys(span, take);
        }
        let answer = match self.exchange(call.operation(), &frame_of(call, span), span, Way::Plain, None) {
            Ok(answer) => answer,
            Err(mut loss) => {
                let code = loss.fault.as_ref().map(|fault| fault.code);
                return match (code, call.patience()) {
                    // A call that looks once and finds nothing has not failed.
                    (Some(FaultCode::NotFound | FaultCode::TimedOut), Patience::Once) => Ok(Outcome::Missing),
                    (Some(FaultCode::TimedOut), Patience::Wait) => {
                        loss.failure.cause = Cause::NotReleased;
                        // Of several keys, the server says which are missing.
                        if call.keys().1 < 2 {
                            loss.fault = None;
                        }
                        Err(loss)
                    }
                    _ => Err(loss),
                };
            }
        };
        let frame = answer.frame(&self.0.answer_limits);
        let outcome = frame.and_then(|frame| outcome_of(call, &frame, take));
        outcome.ok_or_else(|| Loss::of(plain(ErrorKind::WrongProtocol)))
    }

    fn list_keys(&self, span: Duration, take: &mut dyn Take) -> Result<Outcome, Loss> {
        let (mut after, mut count) = (Vec::new(), 0_u64);
        loop {
            let (prefix, behind) = (Key::raw(b""), Key::raw(&after));
            let page = ClientFrame::ListKeys { prefix, after: behind, count_max: PAGE_KEYS };
            let answer = self.exchange(Operation::ListKeys, &page, span, Way::Plain, None)?;
            let Some(ServerFrame::KeyList { more, keys }) = answer.frame(&self.0.answer_limits) else {
                return Err(Loss::of(plain(ErrorKind::WrongProtocol)));
            };
            let mut last = None;
            for key in keys.iter() {
                let whole = key.pieces().concat();
                take.whole(&whole);
                count += 1;
                last = Some(whole);
            }
            match last {
                Some(last) if more => after = last,
                _ => return Ok(Outcome::Values(count)),
            }
        }
    }
}

fn patient_millis(span: Duration, patience: Patience) -> u64 {
    match patience {
        Patience::Once => 0,
        Patience::Wait => millis(span),
    }
}

/// The request that a call makes.
fn frame_of<'a>(call: &Call<'a>, span: Duration) -> ClientFrame<'a> {
    let Call::Store(request, patience) = *call else {
        return ClientFrame::Check { keys: Keys::packed(0, b"") };
    };
    let timeout_ms = patient_millis(span, patience);
    match request {
        Request::Set { key, value } => ClientFrame::Set { key, value },
        Request::CompareSet { key, expected, desired } => ClientFrame::CompareSet { key, expected, desired },
        Request::Get { key } => ClientFrame::Get { timeout_ms, key },
        Request::Add { key, delta } => ClientFrame::Add { key, delta },
        Request::Check { keys } => ClientFrame::Check { keys },
        // A wait that does not wait is a look.
        Request::Wait { keys } if patience == Patience::Once => ClientFrame::Check { keys },
        Request::Wait { keys } => ClientFrame::Wait { timeout_ms, keys },
        Request::Delete { key } => ClientFrame::Delete { key },
        Request::Append { key, value } => ClientFrame::Append { key, value },
        Request::MultiGet { keys } => ClientFrame::MultiGet { timeout_ms, keys },
        Request::MultiSet { pairs } => ClientFrame::MultiSet { pairs },
        Request::QueuePush { key, value } => ClientFrame::QueuePush { key, value },
        Request::QueuePop { key } => ClientFrame::QueuePop { timeout_ms, key },
        Request::QueueLen { key } => ClientFrame::QueueLen { key },
        // Keys are listed page by page, and barriers held by keys; neither comes here.
        Request::NumKeys | Request::CancelWait | Request::ListKeys | Request::Barrier { .. } => {
            ClientFrame::NumKeys {}
        }
    }
}

/// What an answer is to the call; `None` when it is none.
fn outcome_of(call: &Call<'_>, frame: &ServerFrame<'_>, take: &mut dyn Take) -> Option<Outcome> {
    let Call::Store(request, _) = call else { return Some(Outcome::Alive) };
    Some(match (request, *frame) {
        (
            Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. },
            ServerFrame::Done { .. },
        ) => Outcome::Applied,
        (Request::Wait { .. }, ServerFrame::Done { .. } | ServerFrame::Verdict { holds: true, .. }) => {
            Outcome::Released
        }
        (Request::Wait { .. }, ServerFrame::Verdict { holds: false, .. }) => Outcome::Missing,
        (Request::Check { .. }, ServerFrame::Verdict { holds, .. }) => {
            if holds {
                Outcome::Ready
            } else {
                Outcome::NotReady
            }
        }
        (
            Request::Add { .. } | Request::NumKeys | Request::Delete { .. } | Request::QueueLen { .. },
            ServerFrame::Number { number, .. },
        ) => Outcome::Number(number),
        (Request::Get { .. }, ServerFrame::Value { value, .. }) => {
            take.whole(value?);
            Outcome::Value
        }
        // Without a value, c10d answers what was expected.
        (Request::CompareSet { expected, .. }, ServerFrame::Value { value, .. }) => {
            take.whole(value.unwrap_or(expected));
            Outcome::Value
        }
        (Request::MultiGet { .. }, ServerFrame::Values { values }) => {
            if values.iter().any(|found| found.value.is_none()) {
                return Some(Outcome::Missing);
            }
            let mut count = 0;
            for value in values.iter().filter_map(|found| found.value) {
                take.whole(value);
                count += 1;
            }
            Outcome::Values(count)
        }
        (Request::QueuePop { .. }, ServerFrame::Popped { item: Some(item), .. }) => {
            take.whole(item);
            Outcome::Value
        }
        (Request::QueuePop { .. }, ServerFrame::Popped { item: None, .. }) => Outcome::QueueEmpty,
        _ => return None,
    })
}
