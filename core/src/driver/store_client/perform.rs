//! One call from its beginning to its end: connections, attempts, and what a failure is called.

use super::pool::{Entered, Stay, Ticket};
use super::wire::{ExchangeError, Timer, Wire};
use super::{Client, ended};
use crate::driver::backend::{NOT_RELEASED, Span};
use crate::driver::socket::{Idle, look};
use crate::driver::take::Take;
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Phase};
use crate::node::client::{Age, RetryDecision, Sent, after_loss};
use crate::store::call::{Call, GetMode, Outcome, WaitMode};
use crate::store::client_conn::BeginError;
use crate::store::dial::Rounds;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;

impl Client {
    /// Makes a call.
    pub(super) fn drive(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, Failure> {
        let stay = if call.may_wait() { Stay::Long } else { Stay::Brief };
        let Entered { ticket, idle, mode, waited } = self.enter(stay, span)?;
        // Who went straight in goes on with the reading of the clock that the call began with.
        let now = if waited { self.clock.now() } else { span.began };
        let (wire, result) = self.attempts(call, Span { began: now, ..span }, take, ticket, idle, mode);
        self.pool.leave(ticket, wire);
        match result {
            Err(failure) if self.pool.is_cancelled(ticket) && failure.kind == ErrorKind::ServerGone => {
                Err(Failure { kind: ErrorKind::Cancelled, cause: Cause::Unknown, ..failure })
            }
            other => other,
        }
    }

    /// The attempts at a call, until one of them ends it; `span` begins now. The connection comes back if it can be used
    /// again.
    fn attempts(
        &self,
        call: &Call<'_>,
        span: Span,
        take: &mut dyn Take,
        ticket: Ticket,
        idle: Option<Box<Wire>>,
        first_mode: GetMode,
    ) -> (Option<Box<Wire>>, Result<Outcome, Failure>) {
        let mut mode = first_mode;
        let mut next = idle.and_then(|wire| self.usable(ticket, wire, call, span.began));
        let mut timer = Timer::new(&self.clock, span.began, span.deadline);
        let mut retries = 0;
        let mut lost = None;
        loop {
            let (mut wire, age) = match next.take() {
                Some(wire) => (wire, Age::Used),
                None => match self.dial(ticket, span, Rounds::One) {
                    Ok(wire) => {
                        timer = Timer::new(&self.clock, self.clock.now(), span.deadline);
                        (wire, Age::Fresh)
                    }
                    // That the server was there and is gone says more than that it is not there.
                    Err(failure) => return (None, Err(lost.unwrap_or(failure))),
                },
            };
            let exchange_error = match wire.exchange(call, mode, &mut timer, take) {
                Ok(outcome) => {
                    if mode != first_mode {
                        self.pool.learn_slow_gets();
                    }
                    return (self.rested(ticket, wire), Ok(outcome));
                }
                Err(exchange_error) => exchange_error,
            };
            match exchange_error {
                ExchangeError::NotBegun(error) => {
                    let failure = begin_failure(error);
                    return (self.rested(ticket, wire), Err(failure));
                }
                ExchangeError::TimedOut(phase, cause, effect) => {
                    let failure = Failure { phase, cause, effect, ..NOT_RELEASED };
                    let kept = if cause == Cause::NotReleased {
                        if mode != first_mode {
                            self.pool.learn_slow_gets();
                        }
                        self.rested(ticket, wire)
                    } else {
                        self.dropped(ticket, wire)
                    };
                    return (kept, Err(failure));
                }
                ExchangeError::Violated(violation) => {
                    let (kind, cause) = (ErrorKind::WrongProtocol, Cause::Violation(violation));
                    let effect = wire.link.conn().lose().map_or(Effect::None, |loss| loss.effect);
                    let failure = Failure { kind, cause, effect, phase: Phase::Receiving, ..NOT_RELEASED };
                    return (self.dropped(ticket, wire), Err(failure));
                }
                ExchangeError::Lost(cause, sent) => {
                    let loss = wire.link.conn().lose();
                    self.dropped(ticket, wire);
                    // The others are of the same server.
                    self.pool.forget_idle();
                    let retry_decision = match &loss {
                        Some(loss) => after_loss(call.operation(), mode, retries, age, sent, loss),
                        None => RetryDecision::Fail(Effect::None),
                    };
                    let phase = loss.map_or(Phase::Sending, |loss| match sent {
                        Sent::Nothing => Phase::Sending,
                        Sent::Something => loss.phase,
                    });
                    let failure = Failure { kind: ErrorKind::ServerGone, phase, cause, ..NOT_RELEASED };
                    match retry_decision {
                        RetryDecision::Answer(outcome) => {
                            self.pool.learn_slow_gets();
                            return (None, Ok(outcome));
                        }
                        RetryDecision::Fail(effect) => return (None, Err(Failure { effect, ..failure })),
                        RetryDecision::Again(_) if self.pool.is_cancelled(ticket) => {
                            return (None, Err(failure));
                        }
                        RetryDecision::Again(again) => {
                            retries += u32::from(again == mode);
                            (mode, lost) = (again, Some(failure));
                            take.reset();
                        }
                    }
                }
            }
        }
    }

    /// A connection that waited in the pool, if it can be used: one that waited is looked at first, so that a server
    /// that went away meanwhile costs a new connection and not the call. A call that only reads is made again in any case,
    /// so it looks only where it would lose much time.
    pub(super) fn usable(
        &self,
        ticket: Ticket,
        mut wire: Box<Wire>,
        call: &Call<'_>,
        now: Instant,
    ) -> Option<Box<Wire>> {
        let unchecked_max =
            if call.operation().reads_only() { IDLE_READ_UNCHECKED_MAX } else { IDLE_UNCHECKED_MAX };
        if now.since(wire.used) < unchecked_max {
            return Some(wire);
        }
        let as_expected = match look(wire.fd()) {
            Idle::Silent => true,
            // The end of a call that was given up may come at any time; anything else was not asked for.
            Idle::Unread => !wire.link.conn().is_idle(),
            Idle::Ended => false,
        };
        if as_expected { Some(wire) } else { self.dropped(ticket, wire) }
    }

    fn rested(&self, ticket: Ticket, mut wire: Box<Wire>) -> Option<Box<Wire>> {
        if wire.rest(self.clock.now()) { Some(wire) } else { self.dropped(ticket, wire) }
    }

    /// Closes a connection; its socket is taken out of the pool's view before.
    fn dropped(&self, ticket: Ticket, wire: Box<Wire>) -> Option<Box<Wire>> {
        self.pool.set_socket(ticket, None);
        drop(wire);
        None
    }

    pub(super) fn enter(&self, stay: Stay, span: Span) -> Result<Entered, Failure> {
        self.pool.enter(stay, span.deadline.since(span.began), span.epoch).map_err(|error| {
            match ended(error) {
                failure if failure.kind == ErrorKind::TimedOut => Failure {
                    kind: ErrorKind::LimitExceeded,
                    phase: Phase::Connecting,
                    cause: Cause::Limit(LimitError::Operations {
                        count: self.options.limits.connections_max() as u64,
                    }),
                    ..failure
                },
                failure => failure,
            }
        })
    }

    /// The time for the first connection, and how often each address is tried.
    pub(super) fn connecting(&self) -> (Span, Rounds) {
        let ((after, rounds), began) = (self.options.connect_budget(), self.clock.now());
        (Span { began, deadline: began + after, wait_mode: WaitMode::Wait, epoch: None }, rounds)
    }

    pub(super) fn aged(&self, failure: Failure, span: Span) -> Failure {
        Failure { elapsed: self.clock.now().since(span.began), ..failure }
    }
}

/// A connection that waited less is used by a read without a look at it.
const IDLE_READ_UNCHECKED_MAX: Duration = Duration::from_secs(1);
/// The same for other calls: in a steady run of calls, a look at each would cost a system call.
const IDLE_UNCHECKED_MAX: Duration = Duration::from_micros(10);

fn begin_failure(error: BeginError) -> Failure {
    let cause = match error {
        BeginError::Limit(limit) => Cause::Limit(limit),
        // A pooled connection has room and no call of its own under way.
        BeginError::Busy | BeginError::Full | BeginError::Space(_) | BeginError::Unknown => Cause::Unknown,
    };
    Failure { kind: ErrorKind::LimitExceeded, phase: Phase::Sending, cause, ..NOT_RELEASED }
}
