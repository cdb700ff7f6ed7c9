//! One call from beginning to end: connections, attempts, and the kind of a failure.

use super::Client;
use super::pool::{Entered, HoldTime, Ticket};
use super::wire::{ExchangeError, Timer, Wire};
use crate::driver::backend::Span;
use crate::driver::socket::{Idle, look};
use crate::driver::take::Take;
use crate::error::{Cause, Effect, ErrorKind, Failure, Phase};
use crate::node::client::{Age, Attempts, begin_failure, violation_failure};
use crate::prelude::*;
use crate::store::call::{Call, GetMode, Outcome};
use crate::store::dial::Rounds;

impl Client {
    /// Performs a call.
    pub(super) fn drive(
        &self,
        call: &Call<'_>,
        span: Span<'_>,
        take: &mut dyn Take,
    ) -> Result<Outcome, Failure> {
        let hold_time = if call.may_wait() { HoldTime::Long } else { HoldTime::Brief };
        let Entered { ticket, idle, mode, waited } =
            self.pool.enter(hold_time, span.deadline.since(span.began), span.token)?;
        // A call that did not wait uses the reading of the clock from its beginning.
        let now = if waited { self.clock.now() } else { span.began };
        let (wire, result) = self.attempts(call, Span { began: now, ..span }, take, ticket, idle, mode);
        self.pool.leave(ticket, wire);
        match result {
            Err(failure) if span.token.is_cancelled() && failure.kind == ErrorKind::ServerGone => {
                Err(Failure { kind: ErrorKind::Cancelled, cause: Cause::Unknown, ..failure })
            }
            other => other,
        }
    }

    /// Tries a call until an attempt ends it; `span` begins now. Returns the connection if it can be used again.
    fn attempts(
        &self,
        call: &Call<'_>,
        span: Span<'_>,
        take: &mut dyn Take,
        ticket: Ticket,
        idle: Option<Box<Wire>>,
        first_mode: GetMode,
    ) -> (Option<Box<Wire>>, Result<Outcome, Failure>) {
        let mut attempts = Attempts::new(call.operation(), first_mode);
        let mut next = idle.and_then(|wire| self.usable(ticket, wire, call, span.began));
        let mut timer = Timer::new(&self.clock, span.began, span.deadline);
        loop {
            let (mut wire, age) = match next.take() {
                Some(wire) => (wire, Age::Used),
                None => match self.dial(ticket, span, Rounds::One) {
                    Ok(wire) => {
                        timer = Timer::new(&self.clock, self.clock.now(), span.deadline);
                        (wire, Age::Fresh)
                    }
                    Err(failure) => return (None, Err(attempts.lost().unwrap_or(failure))),
                },
            };
            let result = match wire.exchange(call, attempts.mode(), &mut timer, take) {
                Ok(outcome) => Ok(outcome),
                Err(ExchangeError::NotBegun(error)) => Err(begin_failure(error)),
                Err(ExchangeError::TimedOut(phase)) => Err(wire.give_up(phase)),
                Err(ExchangeError::Violated(violation)) => {
                    let effect = wire.conn.lose().map_or(Effect::None, |loss| loss.effect);
                    Err(violation_failure(violation, effect))
                }
                Err(ExchangeError::Lost(cause, sent)) => {
                    let loss = wire.conn.lose();
                    self.dropped(ticket, wire);
                    // The other idle connections are connections to the same server.
                    self.pool.forget_idle();
                    let Some(loss) = loss else {
                        return (None, Err(Failure::new(ErrorKind::ServerGone, Phase::Sending, cause)));
                    };
                    let ended = attempts.connection_lost(cause, age, sent, &loss);
                    let cancelled = || attempts.lost().filter(|_| span.token.is_cancelled()).map(Err);
                    if let Some(result) = ended.or_else(cancelled) {
                        self.learn(&attempts, &result);
                        return (None, result);
                    }
                    take.reset();
                    continue;
                }
            };
            self.learn(&attempts, &result);
            let is_usable = match &result {
                Ok(_) => true,
                Err(Failure { kind, cause, .. }) => {
                    *kind == ErrorKind::LimitExceeded || *cause == Cause::NotReleased
                }
            };
            let kept = if is_usable { self.rested(ticket, wire) } else { self.dropped(ticket, wire) };
            return (kept, result);
        }
    }

    fn learn(&self, attempts: &Attempts, result: &Result<Outcome, Failure>) {
        if let Some(mode) = attempts.learned(result) {
            self.pool.set_get_mode(mode);
        }
    }

    /// Returns a connection from the pool if it can be used. One that was idle for some time is checked first, so
    /// that a server that closed it meanwhile costs a new connection and not the call. A call that only reads is
    /// retried in any case, so it checks only connections that were idle for longer.
    pub(super) fn usable(
        &self,
        ticket: Ticket,
        wire: Box<Wire>,
        call: &Call<'_>,
        now: Instant,
    ) -> Option<Box<Wire>> {
        let unchecked_max =
            if call.operation().reads_only() { IDLE_READ_UNCHECKED_MAX } else { IDLE_UNCHECKED_MAX };
        if now.since(wire.used) < unchecked_max {
            return Some(wire);
        }
        let as_expected = match look(wire.socket()) {
            Idle::Silent => true,
            // The end of an abandoned call may arrive at any time. Anything else was not requested.
            Idle::Unread => !wire.conn.is_idle(),
            Idle::Ended => false,
        };
        if as_expected { Some(wire) } else { self.dropped(ticket, wire) }
    }

    fn rested(&self, ticket: Ticket, mut wire: Box<Wire>) -> Option<Box<Wire>> {
        if wire.rest(self.clock.now()) { Some(wire) } else { self.dropped(ticket, wire) }
    }

    /// Closes a connection after ending the registration of its socket.
    fn dropped(&self, ticket: Ticket, wire: Box<Wire>) -> Option<Box<Wire>> {
        self.pool.set_socket(ticket, None);
        drop(wire);
        None
    }
}

/// Idle time up to which a read uses a connection unchecked.
const IDLE_READ_UNCHECKED_MAX: Duration = Duration::from_secs(1);
/// Idle time up to which other calls use a connection unchecked: in a steady run of calls, each check would cost a
/// system call.
const IDLE_UNCHECKED_MAX: Duration = Duration::from_micros(10);
