//! Clients of a store: what a link, a pool of links and a lost connection mean to a call.

pub mod link;

use crate::error::{Effect, Operation, Phase};
use crate::store::call::{GetMode, Outcome};
use crate::store::client_conn::{Finding, Loss};

/// How much of a call's bytes had left when its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Not one.
    Nothing,
    /// Some or all.
    Something,
}

/// What becomes of a call whose connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// It is begun again on a fresh connection, in this mode.
    Again(GetMode),
    /// Its answer is known, and the peer drops connections that ask for missing keys.
    Answer(Outcome),
    /// It fails.
    Fail(Effect),
}

/// Whether a connection was new to the call that it ended under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It was made for the call.
    Fresh,
    /// It had been there before, so it may have ended before the call began.
    Used,
}

/// Decides about a call that was under way when its connection ended. `mode` is the one it was begun in, `retries` how
/// often it was begun again in that mode.
///
/// A call that left no trace is begun again once: one of which nothing was sent, or one that only reads and of which no
/// answer had come. A get whose fresh connection ends may have met one of those peers that drop connections which ask
/// for a missing key: it is asked again in the slower way that works with every peer.
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
