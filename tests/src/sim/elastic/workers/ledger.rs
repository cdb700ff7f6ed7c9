//! What is known of all calls, by which each execution and each result is judged.

use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::Stream;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_rpc::connection::{
    CallError, CallFailure, CallKind, CallPhase, ConnectionError, Refusal, Status,
};
use std::collections::BTreeMap;

/// Largest payload that workers accept.
pub(super) const PAYLOAD_BYTES_MAX: usize = 3000;
/// Number of a call, at the beginning of its payload.
const NUMBER_BYTES: usize = 8;

/// What the handler does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    /// It answers at once.
    Prompt,
    /// It answers after this time, which may be too late.
    Slow(Duration),
    Fails,
    /// It never answers.
    Forgets,
}

/// A call, from its beginning on.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) caller: usize,
    pub(super) callee: usize,
    pub(super) kind: CallKind,
    pub(super) handling: Handling,
    /// When it must have ended, by the clock of its caller.
    pub(super) deadline: Instant,
    payload_bytes: usize,
    answer_bytes: usize,
    executions: u32,
    /// Whether the caller knows that it was not executed, and will not be.
    is_unsent: bool,
    is_cancelled: bool,
}

#[derive(Default)]
pub(super) struct Ledger {
    records: Vec<Record>,
    /// Token that the caller of each connection proves, if it has one.
    proofs: BTreeMap<Stream, Option<String>>,
    /// Callers whose tokens were refused.
    pub(super) refused: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    /// Failures of calls that had been sent.
    pub(super) lost: u64,
    /// Host whose worker has said goodbye while the others call it.
    pub(super) leaving: Option<usize>,
}

fn byte_at(number: usize, at: usize) -> u8 {
    (number.wrapping_mul(31) ^ at.wrapping_mul(7)).to_le_bytes()[0]
}

/// Returns a payload that begins with a number, and whose other bytes follow from it.
fn bytes_of(number: usize, length: usize) -> Vec<u8> {
    let mut bytes = (number as u64).to_le_bytes().to_vec();
    bytes.extend((NUMBER_BYTES..length.max(NUMBER_BYTES)).map(|at| byte_at(number, at)));
    bytes
}

impl Ledger {
    pub(super) fn get(&self, number: usize) -> &Record {
        &self.records[number]
    }

    /// Records the token that the caller of a connection proves.
    pub(super) fn proves(&mut self, stream: Stream, token: Option<String>) {
        self.proofs.insert(stream, token);
    }

    /// Returns whether both ends of a connection know the token that its caller proves: `tokens` are those of the callee.
    /// Without any on both ends there is nothing to prove.
    pub(super) fn is_proven(&self, stream: Stream, tokens: &[String]) -> bool {
        match self.proofs.get(&stream).and_then(Option::as_ref) {
            Some(token) => tokens.contains(token),
            None => tokens.is_empty(),
        }
    }

    /// Draws a call that begins now, and returns its number and its payload.
    pub(super) fn begin(
        &mut self,
        sim_rng: &mut SimRng,
        (caller, callee): (usize, usize),
        now: Instant,
        is_stormy: bool,
    ) -> (usize, Vec<u8>) {
        let handling = match sim_rng.index(10) {
            0 if is_stormy => Handling::Forgets,
            1 if is_stormy => Handling::Fails,
            2..5 if is_stormy => Handling::Slow(sim_rng.span(Duration::ZERO, Duration::from_secs(1))),
            _ => Handling::Prompt,
        };
        let kind = if is_stormy && sim_rng.percent(20) { CallKind::OneWay } else { CallKind::Responded };
        let span = if is_stormy {
            sim_rng.span(Duration::from_millis(20), Duration::from_secs(2))
        } else {
            Duration::from_secs(2)
        };
        // Some are over the limit, in the storm.
        let bytes_max = if is_stormy { PAYLOAD_BYTES_MAX + 100 } else { PAYLOAD_BYTES_MAX };
        let payload_bytes = sim_rng.size(NUMBER_BYTES, bytes_max);
        let answer_bytes = sim_rng.size(NUMBER_BYTES, bytes_max);
        let (deadline, number) = (now + span, self.records.len());
        self.records.push(Record {
            caller,
            callee,
            kind,
            handling,
            deadline,
            payload_bytes,
            answer_bytes,
            executions: 0,
            is_unsent: false,
            is_cancelled: false,
        });
        (number, bytes_of(number, payload_bytes))
    }

    /// Checks a request that has arrived completely, and counts its execution. Returns its number.
    pub(super) fn execute(
        &mut self,
        callee: usize,
        caller: &str,
        payload: &[u8],
    ) -> Result<usize, CheckError> {
        let number = payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let number = number.and_then(|number| usize::try_from(number).ok());
        let unknown = || CheckError(format!("host {callee} got a request of {caller} that was never made"));
        let number = number.ok_or_else(unknown)?;
        let record = self.records.get_mut(number).ok_or_else(unknown)?;
        record.executions += 1;
        let what = if payload != bytes_of(number, record.payload_bytes) {
            "has other bytes"
        } else if record.callee != callee || super::name(record.caller) != caller {
            "arrived elsewhere"
        } else if record.executions > 1 {
            "was executed twice"
        } else if record.is_unsent {
            "was executed, and its caller knows that it was not"
        } else {
            return Ok(number);
        };
        Err(CheckError(format!("call {number} of {caller} to host {callee} {what}: {record:?}")))
    }

    /// Returns the answer to a call.
    pub(super) fn answer(&self, number: usize) -> Vec<u8> {
        bytes_of(number, self.records[number].answer_bytes)
    }

    /// Judges a call that was answered, or, if it has no answer, sent.
    pub(super) fn done(&mut self, number: usize, answer: &[u8]) -> Result<(), CheckError> {
        let record = &self.records[number];
        self.answered += 1;
        let is_right = match record.kind {
            CallKind::OneWay => answer.is_empty(),
            CallKind::Responded => record.executions == 1 && answer == self.answer(number),
        };
        if is_right {
            return Ok(());
        }
        Err(CheckError(format!("call {number} got an answer of {} bytes: {record:?}", answer.len())))
    }

    pub(super) fn cancelled(&mut self, number: usize) {
        self.records[number].is_cancelled = true;
    }

    /// Judges a call that has failed at a time of its caller, which had so many calls in flight.
    pub(super) fn failed(
        &mut self,
        number: usize,
        error: &CallError,
        (now, in_flight): (Instant, usize),
        is_stormy: bool,
    ) -> Result<(), CheckError> {
        let record = &mut self.records[number];
        self.failed += 1;
        let callee_leaves = !is_stormy && self.leaving == Some(record.callee);
        let is_legal = match &error.why {
            CallFailure::TooMany { count } => {
                record.is_unsent = true;
                in_flight >= *count as usize
            }
            CallFailure::TooMuch { .. } => {
                record.is_unsent = true;
                in_flight > 0
            }
            CallFailure::Leaving => {
                record.is_unsent = true;
                !is_stormy
            }
            // A call to a worker that leaves gracefully is answered, or refused because of that or of a token.
            CallFailure::Unsent(ConnectionError::Refused { .. } | ConnectionError::Unproven)
                if callee_leaves =>
            {
                record.is_unsent = true;
                true
            }
            CallFailure::Unsent(_) | CallFailure::ConnectionLost(_) if callee_leaves => false,
            CallFailure::TooLong { .. } => {
                record.is_unsent = record.payload_bytes > PAYLOAD_BYTES_MAX;
                record.is_unsent
            }
            CallFailure::Unsent(why) => {
                record.is_unsent = true;
                let refusal = matches!(why, ConnectionError::Unproven | ConnectionError::Refused { .. });
                self.refused += u64::from(refusal);
                is_legal(why)
            }
            CallFailure::DeadlinePassed { phase, .. } => {
                record.is_unsent = matches!(phase, CallPhase::Connecting | CallPhase::Queued);
                // Otherwise it may have passed by the clock of the callee.
                !record.is_unsent || now >= record.deadline
            }
            CallFailure::Remote { status, .. } => match *status {
                Status::Leaving => {
                    record.is_unsent = true;
                    !is_stormy
                }
                Status::Failed => record.handling == Handling::Fails && record.executions == 1,
                Status::TooLong => record.answer_bytes > PAYLOAD_BYTES_MAX && record.executions == 1,
                Status::Stalled => record.executions == 0,
                _ => false,
            },
            CallFailure::ConnectionLost(why) => {
                self.lost += 1;
                is_legal(why)
            }
            CallFailure::Cancelled => record.is_cancelled,
            _ => false,
        };
        if is_legal && !(record.is_unsent && record.executions > 0) {
            return Ok(());
        }
        Err(CheckError(format!("call {number} failed, {error}: {record:?}")))
    }
}

/// Returns whether a connection between two workers may end for this reason. All others are violations of the protocol.
pub(super) const fn is_legal(why: &ConnectionError) -> bool {
    matches!(
        why,
        ConnectionError::Unproven
            | ConnectionError::Refused { why: Refusal::NoToken | Refusal::WrongToken | Refusal::Leaving, .. }
            | ConnectionError::NoGreeting(_)
            | ConnectionError::Silent(_)
            | ConnectionError::Stalled(_)
            | ConnectionError::Lost(_)
            | ConnectionError::Unreachable(_)
            | ConnectionError::NotListening(_)
            | ConnectionError::Closed
    )
}
