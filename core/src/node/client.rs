//! Policy of the c10d clients, blocking or in an event loop: whether a call is retried when its connection ends, in which
//! mode a get is sent, and when the host's name is looked up.

pub mod link;

use crate::error::{Cause, Effect, ErrorKind, Failure, Operation, Phase, Violation};
use crate::store::call::{GetMode, Outcome};
use crate::store::client_conn::{BeginError, Finding, GiveUp, Loss};
use core::net::SocketAddr;

/// How many bytes of a call were sent before its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// No byte.
    Nothing,
    /// Some bytes or all.
    Something,
}

/// Whether the connection was opened for the call that it ended under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It was opened for the call.
    Fresh,
    /// It existed before, so it may have ended before the call began.
    Used,
}

/// Attempts at one call of a client with several connections: each is made on another connection.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    operation: Operation,
    first_mode: GetMode,
    mode: GetMode,
    /// Number of times that the call was repeated in the same mode.
    retries: u32,
    lost: Option<Failure>,
}

impl Attempts {
    /// Begins with an attempt in `mode`, the profile's.
    pub const fn new(operation: Operation, mode: GetMode) -> Self {
        Self { operation, first_mode: mode, mode, retries: 0, lost: None }
    }

    /// Returns the operation of the call.
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the mode of the current attempt.
    pub const fn mode(&self) -> GetMode {
        self.mode
    }

    /// Returns how the connection of the last attempt was lost, if the call was repeated. That says more than why there
    /// is no further connection.
    pub const fn lost(&self) -> Option<Failure> {
        self.lost
    }

    /// Handles the end of the current attempt's connection. Returns the result of the call, or `None` if it must be
    /// repeated on another connection.
    ///
    /// A call without an effect is repeated once: one of which no byte was sent, or one that only reads and has no part
    /// of an answer yet. If a new connection ends under a get, the peer may be one that closes connections which ask for
    /// a missing key. The get is then repeated in the slower mode that works with every peer.
    pub fn connection_lost(
        &mut self,
        cause: Cause,
        age: Age,
        sent: Sent,
        loss: &Loss,
    ) -> Option<Result<Outcome, Failure>> {
        let untouched = sent == Sent::Nothing;
        let phase = if untouched { Phase::Sending } else { loss.phase };
        let failure = Failure::new(ErrorKind::ServerGone, phase, cause);
        let unanswered = self.operation.reads_only() && loss.phase == Phase::Waiting;
        match (loss.finding, self.mode, age) {
            (Finding::Responded(outcome), _, _) => {
                self.mode = GetMode::WaitThenGet;
                return Some(Ok(outcome));
            }
            (Finding::DropsOnMissing, GetMode::Pipelined, Age::Fresh) if !untouched => {
                self.mode = GetMode::WaitThenGet;
            }
            _ if self.retries == 0 && (untouched || unanswered) => self.retries += 1,
            _ => {
                let effect = if untouched { Effect::None } else { loss.effect };
                return Some(Err(Failure { effect, ..failure }));
            }
        }
        self.lost = Some(failure);
        None
    }

    /// Returns the mode for later calls, if this one ended in another than it began in and the other one works.
    pub fn learned(&self, result: &Result<Outcome, Failure>) -> Option<GetMode> {
        let works = result.as_ref().map_or_else(|failure| failure.cause == Cause::NotReleased, |_| true);
        (works && self.mode != self.first_mode).then_some(self.mode)
    }
}

/// What the connections of one client know about their server.
#[derive(Debug, Default)]
pub struct ServerProfile {
    /// Mode in which calls begin.
    pub get_mode: GetMode,
    /// Address of the last connection. Further ones need no look-up.
    address: Option<SocketAddr>,
    is_looking_up: bool,
}

/// How a connection gets the addresses of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// This one worked before.
    Known(SocketAddr),
    /// The caller begins a look-up.
    LookUp,
    /// A look-up is in progress, which all connections share.
    Awaited,
}

impl ServerProfile {
    /// Returns how a connection gets the addresses.
    pub fn resolve(&mut self) -> Resolution {
        match self.address {
            Some(address) => Resolution::Known(address),
            None if core::mem::replace(&mut self.is_looking_up, true) => Resolution::Awaited,
            None => Resolution::LookUp,
        }
    }

    /// Notes that the look-up has ended.
    pub const fn looked_up(&mut self) {
        self.is_looking_up = false;
    }

    /// Notes the address that a connection has, or that none could be established.
    pub const fn dialled(&mut self, address: Option<SocketAddr>) {
        self.address = address;
    }
}

/// Returns the failure of a call that ended in `phase` because its deadline passed or its caller cancelled it. `todo` is
/// what became of its connection.
pub const fn given_up(kind: ErrorKind, phase: Phase, todo: GiveUp) -> Failure {
    let (cause, effect) = match todo {
        GiveUp::Nothing => (Cause::NotReleased, Effect::None),
        GiveUp::Send(_, effect) => (Cause::NotReleased, effect),
        // It is unknown whether the whole request arrived.
        GiveUp::Close(Effect::Kept) => (Cause::NoAnswer, Effect::Possible),
        GiveUp::Close(effect) => (Cause::NoAnswer, effect),
    };
    let cause = if matches!(kind, ErrorKind::TimedOut) { cause } else { Cause::Unknown };
    Failure { effect, ..Failure::new(kind, phase, cause) }
}

/// Returns the failure of a call whose connection violated the protocol. `effect` is what the call may have changed.
pub const fn violation_failure(violation: Violation, effect: Effect) -> Failure {
    let cause = Cause::Violation(violation);
    Failure { effect, ..Failure::new(ErrorKind::WrongProtocol, Phase::Receiving, cause) }
}

/// Returns the failure of a call that could not be encoded onto a connection with capacity for it.
pub const fn begin_failure(error: BeginError) -> Failure {
    let cause = match error {
        BeginError::Limit(limit) => Cause::Limit(limit),
        BeginError::Busy | BeginError::Full | BeginError::Space(_) | BeginError::Unknown => Cause::Unknown,
    };
    Failure::new(ErrorKind::LimitExceeded, Phase::Sending, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::call::CallId;

    #[derive(Debug, PartialEq)]
    enum RetryDecision {
        Again(GetMode),
        Answer(Outcome),
        Fail(Effect),
    }

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
        let mut attempts = Attempts { retries, ..Attempts::new(operation, GetMode::Pipelined) };
        match attempts.connection_lost(Cause::Closed, age, sent, &loss) {
            None => RetryDecision::Again(attempts.mode()),
            Some(Ok(outcome)) => RetryDecision::Answer(outcome),
            Some(Err(failure)) => RetryDecision::Fail(failure.effect),
        }
    }

    #[test]
    fn what_left_no_trace_is_begun_again_once() {
        use {Operation as O, Phase::Receiving, Phase::Waiting};
        let again = || RetryDecision::Again(GetMode::Pipelined);
        let departed = || RetryDecision::Fail(Effect::None);
        let maybe = || RetryDecision::Fail(Effect::Possible);
        for (operation, retries, sent, phase, expected) in [
            (O::Wait, 0, Sent::Something, Waiting, again()),
            (O::Wait, 1, Sent::Something, Waiting, departed()),
            (O::MultiGet, 0, Sent::Something, Receiving, departed()),
            (O::NumKeys, 0, Sent::Nothing, Waiting, again()),
            (O::Add, 0, Sent::Nothing, Waiting, again()),
            (O::Add, 1, Sent::Nothing, Waiting, departed()),
            (O::Add, 0, Sent::Something, Waiting, maybe()),
            (O::Set, 0, Sent::Something, Waiting, maybe()),
            (O::QueuePop, 0, Sent::Something, Waiting, maybe()),
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
        let slow = || RetryDecision::Again(GetMode::WaitThenGet);
        assert_eq!(get(0, Age::Used, Sent::Something), RetryDecision::Again(GetMode::Pipelined));
        assert_eq!(get(1, Age::Fresh, Sent::Something), slow());
        assert_eq!(get(0, Age::Fresh, Sent::Something), slow());
        assert_eq!(get(1, Age::Fresh, Sent::Nothing), RetryDecision::Fail(Effect::None));
        let known = Finding::Responded(Outcome::Missing);
        let answered = retry_decision(Operation::Get, 0, Age::Used, Sent::Something, known, Phase::Receiving);
        assert_eq!(answered, RetryDecision::Answer(Outcome::Missing));
    }
}
