//! Steps of a call: the requests of each step, their replies, and the step that follows.

use crate::error::Operation;
use crate::store::call::{Call, GetMode, Outcome, WaitMode};
use crate::store::op::{Keys, Request};
use crate::wire::c10d::{Frame, encode_frame};
use crate::wire::sink::Sink;

/// Requests that are sent in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// VALIDATE and PING.
    Greet,
    /// The request alone; the server replies immediately.
    Plain,
    /// The request, which has no reply, and a PING after it, whose echo proves that the request was applied.
    Confirm,
    /// PING alone.
    Ping,
    /// WAIT and GET.
    WaitGet,
    /// CHECK and GET, to distinguish an empty value from a missing one.
    CheckGet,
    /// CHECK of the call's keys.
    Check,
    /// WAIT for the call's keys.
    Wait,
    /// GET, after the key has been found.
    Get,
    /// QUEUE_POP.
    Pop,
    /// MULTI_GET, after the keys have been found.
    MultiGet,
    /// BARRIER.
    Barrier,
    /// BARRIER and CANCEL_WAIT: arrives, and does not wait.
    BarrierOnce,
}

/// Combined reply to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The echo of a PING.
    Echo,
    /// A number.
    Number(i64),
    /// CHECK alone: all keys exist.
    Ready,
    /// CHECK alone: at least one key is missing.
    NotReady,
    /// A non-empty value.
    Value,
    /// An empty value, or a missing one.
    Empty,
    /// An empty value of a key that exists, according to the CHECK before it.
    ReadyEmpty,
    /// A number of values.
    Values(u64),
    /// The wait has ended.
    Released,
    /// CANCEL_WAIT was answered; the wait had not ended before.
    Canceled,
    /// The queue is empty.
    NothingQueued,
}

/// Transition after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The call has ended.
    Done(Outcome),
    /// The call continues with this step.
    Next(Step),
}

/// Returns the first step of a call.
pub(super) const fn first_step(call: &Call<'_>, mode: GetMode) -> Step {
    let Call::Store(request, wait_mode) = call else { return Step::Ping };
    match (request, wait_mode) {
        (
            Request::Set { .. }
            | Request::Append { .. }
            | Request::MultiSet { .. }
            | Request::QueuePush { .. },
            _,
        ) => Step::Confirm,
        (Request::Get { .. }, wait_mode) => get_step(*wait_mode, mode),
        (Request::Check { .. }, _) | (Request::Wait { .. } | Request::MultiGet { .. }, WaitMode::Once) => {
            Step::Check
        }
        (Request::Wait { .. } | Request::MultiGet { .. }, WaitMode::Wait) => Step::Wait,
        (Request::QueuePop { .. }, _) => Step::Pop,
        (Request::Barrier { .. }, WaitMode::Wait) => Step::Barrier,
        (Request::Barrier { .. }, WaitMode::Once) => Step::BarrierOnce,
        (
            Request::CompareSet { .. }
            | Request::Add { .. }
            | Request::NumKeys
            | Request::Delete { .. }
            | Request::CancelWait
            | Request::QueueLen { .. }
            | Request::ListKeys,
            _,
        ) => Step::Plain,
    }
}

const fn get_step(wait_mode: WaitMode, mode: GetMode) -> Step {
    match (wait_mode, mode) {
        (WaitMode::Wait, GetMode::Pipelined) => Step::WaitGet,
        (WaitMode::Wait, GetMode::WaitThenGet) => Step::Wait,
        (WaitMode::Once, GetMode::Pipelined) => Step::CheckGet,
        (WaitMode::Once, GetMode::WaitThenGet) => Step::Check,
    }
}

/// Returns the transition from `step` on `reply`, or `None` when the step has no such reply.
pub(super) const fn after(
    operation: Operation,
    wait_mode: WaitMode,
    mode: GetMode,
    step: Step,
    reply: Reply,
) -> Option<After> {
    use After::{Done, Next};
    Some(match (step, reply, operation) {
        (Step::Greet | Step::Ping, Reply::Echo, _) => Done(Outcome::Alive),
        (Step::Confirm, Reply::Echo, _) => Done(Outcome::Applied),
        (Step::Plain, Reply::Number(number), _) => Done(Outcome::Number(number)),
        (Step::Plain, Reply::Canceled, _) => Done(Outcome::Applied),
        (Step::Plain | Step::MultiGet, Reply::Values(count), _) => Done(Outcome::Values(count)),

        // A get whose WAIT was released may still find no value: the key was deleted since, or GET was served while
        // the WAIT was parked. CHECK and GET in one write distinguish a missing value from an empty one.
        (Step::WaitGet | Step::Get, Reply::Empty, _) => Next(Step::CheckGet),
        (Step::CheckGet, Reply::Empty, _) => match wait_mode {
            WaitMode::Once => Done(Outcome::Missing),
            WaitMode::Wait => Next(get_step(wait_mode, mode)),
        },
        (Step::CheckGet, Reply::ReadyEmpty, _) | (Step::Plain, Reply::Empty, _) => Done(Outcome::Value),
        (Step::WaitGet | Step::CheckGet | Step::Get | Step::Pop | Step::Plain, Reply::Value, _)
        | (Step::Pop, Reply::Empty, _) => Done(Outcome::Value),

        (Step::Check, Reply::Ready, Operation::Get) => Next(Step::Get),
        (Step::Check, Reply::Ready, Operation::MultiGet) => Next(Step::MultiGet),
        (Step::Check, Reply::Ready, Operation::Wait) => Done(Outcome::Released),
        (Step::Check, Reply::Ready, _) => Done(Outcome::Ready),
        (Step::Check, Reply::NotReady, Operation::Check) => Done(Outcome::NotReady),
        (Step::Check, Reply::NotReady, _) => Done(Outcome::Missing),

        (Step::Wait, Reply::Released, Operation::Get) => Next(Step::Get),
        (Step::Wait, Reply::Released, Operation::MultiGet) => Next(Step::MultiGet),
        (Step::Wait, Reply::Released, Operation::QueuePop) => Next(Step::Pop),
        (Step::Wait | Step::Barrier | Step::BarrierOnce, Reply::Released, _) => Done(Outcome::Released),
        (Step::BarrierOnce, Reply::Canceled, _) => Done(Outcome::Missing),

        (Step::Pop, Reply::NothingQueued, _) => match wait_mode {
            WaitMode::Once => Done(Outcome::QueueEmpty),
            WaitMode::Wait => Next(Step::Wait),
        },
        _ => return None,
    })
}

impl Step {
    /// Returns whether the server may delay its reply to this step until something happens.
    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::WaitGet | Self::Wait | Self::Barrier)
    }

    /// Returns whether a CANCEL_WAIT may be sent before this step, to clear a stale registration. When a push wakes
    /// a waiter, PyTorch's server leaves it on that queue's list, so the next push to that queue may release the
    /// next wait of the connection. Therefore the first step after a released wait is preceded by a CANCEL_WAIT.
    /// Any step is suitable. The first one is best: before a step that is answered immediately, the reply to
    /// CANCEL_WAIT does not wake the client separately.
    pub(super) const fn clears_stale(self) -> bool {
        !matches!(self, Self::Greet)
    }
}

/// Encodes the requests of a step.
pub(super) fn encode_step(out: &mut dyn Sink, step: Step, call: &Call<'_>, prefix: bool, nonce: u32) {
    if prefix {
        encode_frame(out, &Frame::Request(Request::CancelWait));
    }
    let Call::Store(request, _) = *call else {
        return encode_frame(out, &Frame::Ping { nonce });
    };
    let (wait, check) = waited_keys(&request)
        .map_or((request, request), |keys| (Request::Wait { keys }, Request::Check { keys }));
    let (first, second) = match step {
        Step::WaitGet => (wait, Some(request)),
        Step::CheckGet => (check, Some(request)),
        Step::Wait => (wait, None),
        Step::Check => (check, None),
        Step::BarrierOnce => (request, Some(Request::CancelWait)),
        Step::Plain
        | Step::Confirm
        | Step::Get
        | Step::Pop
        | Step::MultiGet
        | Step::Barrier
        | Step::Greet
        | Step::Ping => (request, None),
    };
    encode_frame(out, &Frame::Request(first));
    if let Some(second) = second {
        encode_frame(out, &Frame::Request(second));
    }
    if step == Step::Confirm {
        encode_frame(out, &Frame::Ping { nonce });
    }
}

/// Returns the keys that WAIT and CHECK name for a request.
const fn waited_keys<'a>(request: &Request<'a>) -> Option<Keys<'a>> {
    match *request {
        Request::Wait { keys } | Request::Check { keys } | Request::MultiGet { keys } => Some(keys),
        Request::Get { key } | Request::QueuePop { key } => Some(Keys::one(key)),
        _ => None,
    }
}
