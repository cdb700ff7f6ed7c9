//! Conversion of store calls to native requests, and of the responses to outcomes, as over the c10d protocol.

use super::{Loss, OwnedFrame, millis};
use crate::driver::take::Take;
use crate::error::{Cause, Failure, Phase};
use crate::limits::FrameLimits;
use crate::prelude::*;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::op::{Keys, Request};
use crate::store::value_ref::ValueRef;
use crate::time::Duration;
use crate::wire::native::{ClientFrame, FaultCode, ServerFrame};

pub(in crate::driver) fn wait_millis(span: Duration, wait_mode: WaitMode) -> u64 {
    match wait_mode {
        WaitMode::Once => 0,
        WaitMode::Wait => millis(span),
    }
}

/// Fails if a call exceeds a limit.
pub(in crate::driver) fn check(call: &Call<'_>, limits: &FrameLimits) -> Result<(), Loss> {
    call.check_limits(limits).map_err(|limit| Loss::of(Failure::limit(Phase::Sending, limit)))
}

/// Returns the result of a call from the response to its request. An error has its keys without `scope`.
pub(in crate::driver) fn settle(
    call: &Call<'_>,
    answer: Result<OwnedFrame, Loss>,
    limits: &FrameLimits,
    scope: &[u8],
    take: &mut dyn Take,
) -> Result<Outcome, Loss> {
    let mut loss = match answer {
        Ok(answer) => {
            let outcome = answer.frame(limits).and_then(|frame| outcome_of(call, &frame, take));
            return outcome.ok_or_else(|| Loss::of_wrong_answer(call.operation()));
        }
        Err(loss) => loss,
    };
    match (loss.fault.as_ref().map(|fault| fault.code), call.wait_mode()) {
        // A call that does not wait and finds nothing has not failed.
        (Some(FaultCode::NotFound | FaultCode::TimedOut), WaitMode::Once) => return Ok(Outcome::Missing),
        (Some(FaultCode::TimedOut), WaitMode::Wait) => {
            loss.failure.cause = Cause::NotReleased;
            // For several keys, the server's message says which are absent.
            match (call.keys(), &mut loss.fault) {
                ((_, 2..), Some(fault)) => fault.text = without_scope(&fault.text, scope),
                _ => loss.fault = None,
            }
        }
        _ => {}
    }
    Err(loss)
}

/// Returns a list of keys without the scope that each of them begins with.
fn without_scope(keys: &[u8], scope: &[u8]) -> Box<[u8]> {
    let (keys, scope) = (String::from_utf8_lossy(keys), String::from_utf8_lossy(scope));
    let names: Vec<&str> = keys.split(", ").map(|key| key.strip_prefix(&*scope).unwrap_or(key)).collect();
    names.join(", ").into_bytes().into()
}

/// Returns the request of a call; `None` for a call that is not one request of the native protocol:
/// [`Listing`](super::listing::Listing) lists keys page by page, and the barriers of c10d are held by keys.
pub(in crate::driver) fn frame_of<'a>(call: &Call<'a>, span: Duration) -> Option<ClientFrame<'a>> {
    let Call::Store(request, wait_mode) = *call else {
        return Some(ClientFrame::Check { keys: Keys::packed(0, b"") });
    };
    let timeout_ms = wait_millis(span, wait_mode);
    Some(match request {
        Request::Set { key, value } => ClientFrame::Set { key, value },
        Request::CompareSet { key, expected, desired } => ClientFrame::CompareSet { key, expected, desired },
        Request::Get { key } => ClientFrame::Get { timeout_ms, key },
        Request::Add { key, delta } => ClientFrame::Add { key, delta },
        Request::Check { keys } => ClientFrame::Check { keys },
        // A wait that may not wait is a check.
        Request::Wait { keys } if wait_mode == WaitMode::Once => ClientFrame::Check { keys },
        Request::Wait { keys } => ClientFrame::Wait { timeout_ms, keys },
        Request::Delete { key } => ClientFrame::Delete { key },
        Request::Append { key, value } => ClientFrame::Append { key, value },
        Request::MultiGet { keys } => ClientFrame::MultiGet { timeout_ms, keys },
        Request::MultiSet { pairs } => ClientFrame::MultiSet { pairs },
        Request::QueuePush { key, value } => ClientFrame::QueuePush { key, value },
        Request::QueuePop { key } => ClientFrame::QueuePop { timeout_ms, key },
        Request::QueueLen { key } => ClientFrame::QueueLen { key },
        Request::NumKeys => ClientFrame::NumKeys {},
        Request::CancelWait | Request::ListKeys | Request::Barrier { .. } => return None,
    })
}

/// Converts a response to the outcome of the call; `None` if it does not fit.
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
        (Request::Wait { .. }, ServerFrame::Done { .. } | ServerFrame::Outcome { holds: true, .. }) => {
            Outcome::Released
        }
        (Request::Wait { .. }, ServerFrame::Outcome { holds: false, .. }) => Outcome::Missing,
        (Request::Check { .. }, ServerFrame::Outcome { holds, .. }) => {
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
            value?.read(|bytes| take.whole(bytes));
            Outcome::Value
        }
        // For an absent key, c10d returns the expected value.
        (Request::CompareSet { expected, .. }, ServerFrame::Value { value, .. }) => {
            value.unwrap_or(ValueRef::Bytes(expected)).read(|bytes| take.whole(bytes));
            Outcome::Value
        }
        (Request::MultiGet { keys }, ServerFrame::Values { values }) if values.len() == keys.len() => {
            if values.iter().any(|found| found.value.is_none()) {
                return Some(Outcome::Missing);
            }
            let mut count = 0;
            for value in values.iter().filter_map(|found| found.value) {
                value.read(|bytes| take.whole(bytes));
                count += 1;
            }
            Outcome::Values(count)
        }
        (Request::QueuePop { .. }, ServerFrame::Popped { item: Some(item), .. }) => {
            item.read(|bytes| take.whole(bytes));
            Outcome::Value
        }
        (Request::QueuePop { .. }, ServerFrame::Popped { item: None, .. }) => Outcome::QueueEmpty,
        _ => return None,
    })
}
