//! The steps of a call: which requests go out together, which replies they bring, and what follows.

use crate::error::Operation;
use crate::store::call::{Call, GetMode, Outcome, WaitMode};
use crate::store::op::{Keys, Request};
use crate::wire::c10d::{Frame, encode_frame};
use crate::wire::sink::Sink;

/// Requests that go out in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// VALIDATE and PING.
    Greet,
    /// The request alone; it is answered at once.
    Plain,
    /// The request, which has no reply, and a PING behind it whose echo proves that it was applied.
    Confirm,
    /// PING alone.
    Ping,
    /// WAIT and GET.
    WaitGet,
    /// CHECK and GET: tells an empty value from a missing one.
    CheckGet,
    /// CHECK on the call's keys.
    Check,
    /// WAIT on the call's keys.
    Wait,
    /// GET, once the key has been seen.
    Get,
    /// QUEUE_POP.
    Pop,
    /// MULTI_GET, once the keys have been seen.
    MultiGet,
    /// BARRIER.
    Barrier,
    /// BARRIER and CANCEL_WAIT: arrives, and stays only if that released it.
    BarrierOnce,
}

/// What the replies to a step say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The echo came.
    Echo,
    /// A number came.
    Number(i64),
    /// CHECK's answer alone.
    Ready,
    /// CHECK's answer alone.
    NotReady,
    /// A value, of which at least one byte came.
    Value,
    /// An empty value, or none.
    Empty,
    /// As [`Reply::Empty`], and CHECK before it said that the key is there.
    ReadyEmpty,
    /// This many values.
    Values(u64),
    /// The wait is over.
    Released,
    /// CANCEL_WAIT was answered and no wait was.
    Canceled,
    /// The queue has nothing.
    NothingQueued,
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The call is over.
    Done(Outcome),
    /// This step follows.
    Next(Step),
}

/// The first step of a call.
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

/// What follows `step` of a call when `reply` came. `None`: such a step has no such reply.
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

        // A get whose WAIT was answered may still find nothing: the key is gone again, or GET was served while the
        // WAIT was parked. CHECK and GET in one write tell a missing value from an empty one.
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
    /// Whether the server may let this step wait.
    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::WaitGet | Self::Wait | Self::Barrier)
    }

    /// Whether a CANCEL_WAIT may go before this step, to clear a stale registration. PyTorch's server leaves a waiter
    /// that a push woke on that queue's list, and its next wait may be released by the next push there; so whatever
    /// follows a wait that was released goes behind a CANCEL_WAIT. Any step will do, and the first one is best: before
    /// a step that is answered at once, the answer to CANCEL_WAIT rides along and wakes nobody by itself.
    pub(super) const fn clears_stale(self) -> bool {
        !matches!(self, Self::Greet)
    }
}

/// Writes the requests of a step.
pub(super) fn encode_step(out: &mut impl Sink, step: Step, call: &Call<'_>, prefix: bool, nonce: u32) {
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

/// The keys that WAIT and CHECK name for a request.
const fn waited_keys<'a>(request: &Request<'a>) -> Option<Keys<'a>> {
    match *request {
        Request::Wait { keys } | Request::Check { keys } | Request::MultiGet { keys } => Some(keys),
        Request::Get { key } | Request::QueuePop { key } => Some(Keys::one(key)),
        _ => None,
    }
}
