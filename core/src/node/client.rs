//! Policy of the store clients: whether a call is retried when its connection ends.

pub mod link;

use crate::error::{Cause, Effect, ErrorKind, Failure, Operation, Phase};
use crate::store::call::{GetMode, Outcome};
use crate::store::client_conn::{BeginError, Finding, Loss};
use crate::time::Duration;

/// How many bytes of a call were sent before its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// No byte.
    Nothing,
    /// Some bytes or all.
    Something,
}

/// Outcome of a call whose connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// The client repeats the call on a new connection, in this mode.
    Again(GetMode),
    /// The call is answered: the peer closes connections that ask for missing keys.
    Answer(Outcome),
    /// The call fails.
    Fail(Effect),
}

/// Whether the connection was opened for the call that it ended under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It was opened for the call.
    Fresh,
    /// It existed before, so it may have ended before the call began.
    Used,
}

/// Decides what happens to a call whose connection ended. `mode` is the mode in which the call began, `retries` the
/// number of times it was repeated in that mode.
///
/// A call without an effect is repeated once: one of which no byte was sent, or one that only reads and has no part of
/// an answer yet. If a new connection ends under a get, the peer may be one that closes connections which ask for a
/// missing key. The get is then repeated in the slower mode that works with every peer.
#[must_use]
pub const fn after_loss(
    operation: Operation,
    mode: GetMode,
    retries: u32,
    age: Age,
    sent: Sent,
    loss: &Loss,
) -> RetryDecision {
    let untouched = matches!(sent, Sent::Nothing);
    match (loss.finding, mode, age) {
        (Finding::Responded(outcome), _, _) => return RetryDecision::Answer(outcome),
        (Finding::DropsOnMissing, GetMode::Pipelined, Age::Fresh) if !untouched => {
            return RetryDecision::Again(GetMode::WaitThenGet);
        }
        _ => {}
    }
    let unanswered = operation.reads_only() && matches!(loss.phase, Phase::Waiting);
    if retries == 0 && (untouched || unanswered) {
        return RetryDecision::Again(mode);
    }
    RetryDecision::Fail(if untouched { Effect::None } else { loss.effect })
}

/// Returns the failure of a call that could not be encoded onto a connection with capacity for it.
#[must_use]
pub const fn begin_failure(error: BeginError) -> Failure {
    let cause = match error {
        BeginError::Limit(limit) => Cause::Limit(limit),
        BeginError::Busy | BeginError::Full | BeginError::Space(_) | BeginError::Unknown => Cause::Unknown,
    };
    let (kind, phase) = (ErrorKind::LimitExceeded, Phase::Sending);
    Failure { kind, phase, elapsed: Duration::ZERO, cause, effect: Effect::None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::call::CallId;

    fn retry_decision(
        operation: Operation,
        retries: u32,
        age: Age,
        sent: Sent,
        finding: Finding,
        phase: Phase,
    ) -> RetryDecision {
        let effect = if operation.reads_only() { Effect::None } else { Effect::Possible };
        let loss = Loss { id: CallId(1), phase, effect, finding };
        after_loss(operation, GetMode::Pipelined, retries, age, sent, &loss)
    }

    #[test]
    fn what_left_no_trace_is_begun_again_once() {
        use {Operation as O, Phase::Receiving, Phase::Waiting};
        let (again, departed) = (RetryDecision::Again(GetMode::Pipelined), RetryDecision::Fail(Effect::None));
        let maybe = RetryDecision::Fail(Effect::Possible);
        for (operation, retries, sent, phase, expected) in [
            (O::Wait, 0, Sent::Something, Waiting, again),
            (O::Wait, 1, Sent::Something, Waiting, departed),
            (O::MultiGet, 0, Sent::Something, Receiving, departed),
            (O::NumKeys, 0, Sent::Nothing, Waiting, again),
            (O::Add, 0, Sent::Nothing, Waiting, again),
            (O::Add, 1, Sent::Nothing, Waiting, departed),
            (O::Add, 0, Sent::Something, Waiting, maybe),
            (O::Set, 0, Sent::Something, Waiting, maybe),
            (O::QueuePop, 0, Sent::Something, Waiting, maybe),
        ] {
            for age in [Age::Fresh, Age::Used] {
                let got = retry_decision(operation, retries, age, sent, Finding::None, phase);
                assert_eq!(got, expected, "{operation:?} {retries} {sent:?} {phase:?}");
            }
        }
    }

    #[test]
    fn a_dropped_get_is_asked_the_slow_way_only_after_a_fresh_connection() {
        let get = |retries, age, sent| {
            retry_decision(Operation::Get, retries, age, sent, Finding::DropsOnMissing, Phase::Waiting)
        };
        let slow = RetryDecision::Again(GetMode::WaitThenGet);
        assert_eq!(get(0, Age::Used, Sent::Something), RetryDecision::Again(GetMode::Pipelined));
        assert_eq!(get(1, Age::Fresh, Sent::Something), slow);
        assert_eq!(get(0, Age::Fresh, Sent::Something), slow);
        assert_eq!(get(1, Age::Fresh, Sent::Nothing), RetryDecision::Fail(Effect::None));
        let known = Finding::Responded(Outcome::Missing);
        let answered = retry_decision(Operation::Get, 0, Age::Used, Sent::Something, known, Phase::Receiving);
        assert_eq!(answered, RetryDecision::Answer(Outcome::Missing));
    }
}
