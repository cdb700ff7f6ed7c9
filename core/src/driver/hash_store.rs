//! Store in this process: the server's engine without a server. Any threads may use its handles.
//!
//! This module keeps a waiting list for the items of a queue. The engine wakes one waiter for each item, as PyTorch's
//! server does, but does not know which waiter will take it. A plain wait on the queue would use up the wake-up of a
//! pop.

use crate::driver::backend::{Backend, BarrierMethod, CANCELLED, Description, NOT_RELEASED, Span};
use crate::driver::call_error::Refusal;
use crate::driver::prelude::*;
use crate::driver::random::random;
use crate::driver::take::Take;
use crate::driver::timeout::Timeouts;
use crate::error::{Cause, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::ids::{ConnId, WaiterId};
use crate::limits::{EngineLimits, FrameLimits};
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::engine::{Answer, Applied, ApplyError, Engine, Readiness};
use crate::store::op::{Key, Keys, Request};
use slab::Slab;

/// Options of a store in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashStoreOptions {
    /// Default timeouts of calls.
    pub timeouts: Timeouts,
    /// Limits on one request.
    pub frame: FrameLimits,
    /// Limits on the contents.
    pub engine: EngineLimits,
}

/// Handle of a store in this process.
#[derive(Debug)]
pub struct HashStore {
    shared: Arc<HashStoreShared>,
    clock: Clock,
    options: HashStoreOptions,
}

#[derive(Debug)]
struct HashStoreShared {
    state: Mutex<HashStoreState>,
    /// Signalled when waits are over or cancelled.
    changed: Condvar,
}

#[derive(Debug)]
struct HashStoreState {
    engine: Engine,
    /// Calls that wait; each is a connection of its own to the engine.
    waiting: Slab<()>,
    /// Waits that are over and whose calls have not noticed yet.
    released: Vec<WaiterId>,
    /// Waiting pops in the order of their arrival. They get the items of their queue in this order.
    poppers: Vec<Popper>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Popper {
    ticket: u64,
    key: Box<[u8]>,
}

impl HashStore {
    /// Makes a new, empty store.
    pub fn new(options: HashStoreOptions) -> Self {
        let engine = Engine::new(options.engine, u128::from_le_bytes(random()));
        let (waiting, released, poppers) = (Slab::new(), Vec::new(), Vec::new());
        let state = HashStoreState { engine, waiting, released, poppers, next_ticket: 0 };
        let shared = Arc::new(HashStoreShared { state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, clock: Clock::new(), options }
    }

    fn lock(&self) -> MutexGuard<'_, HashStoreState> {
        // No code that holds the lock panics in the middle of a change.
        self.shared.state.locked()
    }

    fn drive(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Failure> {
        call.check_limits(&self.options.frame).map_err(limit_exceeded)?;
        let Call::Store(request, wait_mode) = call else { return Ok(Outcome::Alive) };
        let (mut state, span) = (self.lock(), Span { wait_mode: *wait_mode, ..span });
        if let Request::QueuePop { key } = *request {
            return self.pop(state, key, span, take);
        }
        loop {
            let awaited = match *request {
                Request::Get { key } => Some(Keys::one(key)),
                Request::MultiGet { keys } | Request::Wait { keys } => Some(keys),
                _ => None,
            };
            let is_ready = match awaited {
                Some(keys) => state.is_ready(keys)?,
                None => true,
            };
            if is_ready {
                return self.apply(state, request, span, take);
            }
            let Some(keys) = awaited.filter(|_| span.wait_mode == WaitMode::Wait) else {
                return Ok(Outcome::Missing);
            };
            match self.park(state, &Request::Wait { keys }, span)? {
                // The key that released the wait may be absent again. For a request that is only a wait that does not
                // matter.
                (again, Outcome::Released) if !matches!(request, Request::Wait { .. }) => state = again,
                (_, outcome) => return Ok(outcome),
            }
        }
    }

    /// Takes an item that no earlier pop waits for. Waits for one if there is none.
    fn pop(
        &self,
        mut state: MutexGuard<'_, HashStoreState>,
        key: Key<'_>,
        span: Span<'_>,
        take: &mut dyn Take,
    ) -> Result<Outcome, Failure> {
        let whole: Box<[u8]> = key.pieces().concat().into();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.poppers.push(Popper { ticket, key: whole.clone() });
        let has_item = &mut |state: &mut HashStoreState| state.is_first_in_line(key, &whole, ticket);
        let (mut state, found) = self.wait_until(state, span, has_item);
        state.poppers.retain(|popper| popper.ticket != ticket);
        // A pop that gives up had no item, so removing it gives none to the pops after it.
        match (found?, span.wait_mode) {
            (true, _) => {
                state.apply(NO_CONNECTION, &Request::QueuePop { key }, &mut |answer| outcome(answer, take))
            }
            (false, WaitMode::Once) => Ok(Outcome::QueueEmpty),
            (false, WaitMode::Wait) => Ok(Outcome::Missing),
        }
    }

    /// Waits until `is_over`, or for nothing with [`WaitMode::Once`]. Returns whether it is.
    fn wait_until<'s>(
        &'s self,
        mut state: MutexGuard<'s, HashStoreState>,
        span: Span<'_>,
        is_over: &mut dyn FnMut(&mut HashStoreState) -> Result<bool, Failure>,
    ) -> (MutexGuard<'s, HashStoreState>, Result<bool, Failure>) {
        loop {
            let found = is_over(&mut state);
            if found != Ok(false) {
                return (state, found);
            }
            if span.token.is_cancelled() {
                return (state, Err(CANCELLED));
            }
            let left = span.deadline.since(self.clock.now());
            if left.is_zero() || span.wait_mode == WaitMode::Once {
                return (state, Ok(false));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the end of a wait or barrier.
    fn park<'s>(
        &'s self,
        mut state: MutexGuard<'s, HashStoreState>,
        request: &Request<'_>,
        span: Span<'_>,
    ) -> Result<(MutexGuard<'s, HashStoreState>, Outcome), Failure> {
        let slot = state.waiting.insert(());
        let conn = ConnId { index: u32::try_from(slot).unwrap_or(u32::MAX), generation: 0 };
        let begun = state.apply(conn, request, &mut |answer| matches!(answer, Answer::Parked));
        if state.was_released(conn) {
            self.shared.changed.notify_all();
        }
        let (mut state, ended) = match begun {
            Ok(true) => self.wait_until(state, span, &mut |state| {
                let index = state.released.iter().position(|&released| released == conn.into());
                Ok(index.map(|index| state.released.swap_remove(index)).is_some())
            }),
            begun => (state, begun.map(|_| true)),
        };
        let ended = ended.map_err(|failure| match request {
            Request::Barrier { .. } if failure.kind == ErrorKind::Cancelled => {
                // Its arrival stays counted.
                Failure { effect: Operation::Barrier.effect_when_given_up(), ..failure }
            }
            _ => failure,
        });
        state.engine.forget_waits(conn);
        state.engine.free_some(usize::MAX);
        state.waiting.remove(slot);
        Ok((state, if ended? { Outcome::Released } else { Outcome::Missing }))
    }

    /// Executes a request that waits for nothing, or a barrier.
    fn apply(
        &self,
        mut state: MutexGuard<'_, HashStoreState>,
        request: &Request<'_>,
        span: Span<'_>,
        take: &mut dyn Take,
    ) -> Result<Outcome, Failure> {
        if let Request::Barrier { .. } = request {
            return self.park(state, request, span).map(|(_, outcome)| outcome);
        }
        let outcome = state.apply(NO_CONNECTION, request, &mut |answer| outcome(answer, take));
        let may_feed = matches!(
            request,
            Request::QueuePush { .. }
                | Request::Set { .. }
                | Request::MultiSet { .. }
                | Request::CompareSet { .. }
                | Request::Add { .. }
                | Request::Append { .. }
        );
        let some_wait = !state.released.is_empty() || may_feed && !state.poppers.is_empty();
        drop(state);
        if some_wait {
            self.shared.changed.notify_all();
        }
        outcome
    }
}

/// Name of the store in error messages.
const PEER: &str = "this process";
/// Connection of requests that do not wait.
const NO_CONNECTION: ConnId = ConnId { index: u32::MAX, generation: 0 };

impl HashStoreState {
    /// Applies one request to the engine.
    fn apply<R>(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        read: &mut dyn FnMut(Answer<'_>) -> R,
    ) -> Result<R, Failure> {
        let Applied { answer, released } = self.engine.apply(conn, request).map_err(refused)?;
        self.released.extend_from_slice(released);
        let answer = read(answer);
        // No tick of this store would free it later.
        self.engine.free_some(usize::MAX);
        Ok(answer)
    }

    fn was_released(&self, other_than: ConnId) -> bool {
        self.released.iter().any(|&waiter| waiter != other_than.into())
    }

    /// Returns whether there is an item for the pop with this ticket. A plain value under a queue's name ends a pop,
    /// too, which then finds the queue empty, as over TCP.
    fn is_first_in_line(&mut self, key: Key<'_>, whole: &[u8], ticket: u64) -> Result<bool, Failure> {
        let length = |answer: Answer<'_>| if let Answer::Number(length) = answer { length } else { 0 };
        let items = self.apply(NO_CONNECTION, &Request::QueueLen { key }, &mut { length })?;
        if items == 0 {
            return self.is_ready(Keys::one(key));
        }
        let before = self.poppers.iter().filter(|popper| popper.ticket < ticket && *popper.key == *whole);
        Ok(usize::try_from(items).is_ok_and(|items| items > before.count()))
    }

    fn is_ready(&mut self, keys: Keys<'_>) -> Result<bool, Failure> {
        let ready = |answer: Answer<'_>| matches!(answer, Answer::Readiness(Readiness::Ready));
        self.apply(NO_CONNECTION, &Request::Check { keys }, &mut { ready })
    }
}

fn outcome(answer: Answer<'_>, take: &mut dyn Take) -> Outcome {
    match answer {
        Answer::Nothing => Outcome::Applied,
        Answer::Number(number) => Outcome::Number(number),
        Answer::Value(value) => {
            value.read(|bytes| take.whole(bytes));
            Outcome::Value
        }
        Answer::Values(values) => {
            let mut count = 0;
            for value in values.iter() {
                value.read(|bytes| take.whole(bytes));
                count += 1;
            }
            Outcome::Values(count)
        }
        Answer::KeyList(keys) => {
            take.count(keys.count());
            keys.for_each(|key| take.whole(key));
            Outcome::Values(keys.count())
        }
        Answer::Readiness(Readiness::Ready) => Outcome::Ready,
        Answer::Readiness(Readiness::NotReady) => Outcome::NotReady,
        Answer::Released | Answer::WaitCanceled => Outcome::Released,
        Answer::Parked => Outcome::Missing,
        Answer::Popped { item: Some(item), .. } => {
            take.whole(&item);
            Outcome::Value
        }
        Answer::Popped { item: None, .. } => Outcome::QueueEmpty,
    }
}

const fn limit_exceeded(limit: LimitError) -> Failure {
    Failure::limit(Phase::Sending, limit)
}

fn refused(error: ApplyError) -> Failure {
    match error {
        ApplyError::NotANumber => Failure::new(ErrorKind::InvalidArgument, Phase::Sending, Cause::NotANumber),
        ApplyError::Full(bytes_max) => limit_exceeded(LimitError::Stored { bytes_max }),
        // A store of one process has no rounds.
        ApplyError::Stale(_) => Failure { kind: ErrorKind::InvalidArgument, ..NOT_RELEASED },
        ApplyError::TooManyWaits(count) | ApplyError::TooManyKeys(count) => {
            limit_exceeded(LimitError::Operations { count: count as u64 })
        }
    }
}

impl Backend for HashStore {
    fn description(&self) -> Description<'_> {
        Description {
            scope: b"/",
            peer: PEER,
            kind: "a store of this process alone",
            endpoint: None,
            timeouts: self.options.timeouts,
            clock: self.clock,
            barrier_method: BarrierMethod::Native,
        }
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.drive(call, span, take).map_err(Refusal::from)
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        if token.is_cancelled() {
            return Err(CallError::new(Operation::Open, (None, 0), PEER, CANCELLED));
        }
        Ok(Arc::new(Self { shared: Arc::clone(&self.shared), clock: self.clock, options: self.options }))
    }

    fn wake(&self) {
        // A call that has checked its token is waiting once the lock is free.
        drop(self.lock());
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
