//! Store requests of native clients, both those that are answered at once and those that wait.

use super::jobs::{Job, LIST_BYTES_MAX};
use super::waiting::{Awaited, Pending};
use super::{ANSWER_WORK, Conns, Native, RequestId, ServerContext, millis, removed_frame};
use crate::ids::WaiterId;
use crate::node::server::event::CloseReason;
use crate::prelude::*;
use crate::session::table::SessionId;
use crate::store::engine::{Answer, ApplyError, Engine, KeptValue, PrefixRemoved, Stale, ValueRef, work_of};
use crate::store::op::{Key, Keys, Request};
use crate::wire::native::{Batched, ClientFrame, Fault, FaultCode, Found, List, Message, ServerFrame};
use alloc::borrow::Cow;
use core::fmt::Write as _;

/// Most keys that an error names.
const NAMES_MAX: usize = 16;

/// Result of a request that never waits.
enum Outcome {
    Done,
    Number(i64),
    Holds(bool),
    /// The revision and the value that the key now has.
    Value(u64, Option<KeptValue>),
    Removed(PrefixRemoved),
}

impl Native {
    pub(super) fn store_request(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        frame: &ClientFrame<'_>,
    ) {
        match *frame {
            ClientFrame::Get { timeout_ms, key } => {
                self.begin_wait(context, request, timeout_ms, Awaited::Value, Keys::one(key));
            }
            ClientFrame::Wait { timeout_ms, keys } => {
                self.begin_wait(context, request, timeout_ms, Awaited::KeyPresence, keys);
            }
            ClientFrame::MultiGet { timeout_ms, keys } => {
                self.begin_wait(context, request, timeout_ms, Awaited::Values, keys);
            }
            ClientFrame::QueuePop { timeout_ms, key } => {
                self.begin_wait(context, request, timeout_ms, Awaited::Item, Keys::one(key));
            }
            ClientFrame::ListKeys { prefix, after, count_max } => {
                let (prefix, after) = (whole(prefix), whole(after));
                let list = context.engine.list(&prefix, &after, count_max.into(), LIST_BYTES_MAX);
                self.begin(context, Job::List(list), Some(request));
            }
            ClientFrame::Txn { compares, then, otherwise }
                if compares.len() + then.len() + otherwise.len() > context.limits.txn_parts_max =>
            {
                let text = b"conditions and writes in one transaction";
                let limit = context.limits.txn_parts_max as u64;
                self.fail(context, request, Fault { text, ..Fault::new(FaultCode::TooMany, limit, 0) });
            }
            ClientFrame::Txn { compares, then, otherwise } => {
                let applied = context.engine.txn(compares.iter(), then.iter(), otherwise.iter());
                match applied {
                    Ok(applied) => {
                        let holds = applied.holds;
                        notify_released(context.conns, Some(self), applied.released, None);
                        let revision = context.engine.revision();
                        self.answer(context, request, &ServerFrame::Outcome { holds, revision });
                    }
                    Err((error, key)) => {
                        let key = key.map(whole).unwrap_or_default();
                        self.fail(context, request, Fault { text: &key, ..fault_of(&error) });
                    }
                }
            }
            ClientFrame::DeletePrefix { prefix } => match context.engine.delete_prefix(&whole(prefix)) {
                Ok(removal) => self.begin(context, Job::Remove(removal), Some(request)),
                Err(error) => self.fail(context, request, fault_of(&error)),
            },
            ClientFrame::Batch { requests } => self.batch(context, request, requests.iter()),
            _ => match self.execute(context, frame) {
                Ok(outcome) => {
                    let revision = context.engine.revision();
                    self.answer(context, request, &frame_of(&outcome, revision));
                }
                Err(fault) => self.fail(context, request, fault),
            },
        }
    }

    fn batch<'a>(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        requests: impl Iterator<Item = Batched<ClientFrame<'a>>>,
    ) {
        let (mut outcomes, mut budget) = (Vec::new(), context.limits.session.body_bytes_max / 2);
        let (before, work_max) = (context.work_so_far(), context.limits.batch_work_max);
        let mut is_too_much = false;
        for Batched(request) in requests {
            let expected = immediate(&request).map_or(1, |request| work_of(&request));
            is_too_much |= !outcomes.is_empty() && context.work_so_far() - before + expected > work_max;
            context.budget.subtract(1);
            let mut outcome = if is_too_much {
                let text = b"units of work in one batch; this request was not executed";
                Err(Fault { text, ..Fault::new(FaultCode::TooMany, work_max, 0) })
            } else {
                self.execute(context, &request)
            };
            // A value that exceeds the space of the answer is replaced by an error, though its request was executed.
            if let Ok(Outcome::Value(_, Some(value))) = &outcome {
                let length = value.as_ref().len();
                context.budget.copied(length);
                match budget.checked_sub(length) {
                    Some(left) => budget = left,
                    None => outcome = Err(Fault::new(FaultCode::TooLong, length as u64, budget as u64)),
                }
            }
            outcomes.push((outcome, context.engine.revision()));
        }
        let answers: Vec<_> = outcomes
            .iter()
            .map(|(outcome, revision)| match outcome {
                // An answer in a batch carries one number only.
                Ok(Outcome::Removed(PrefixRemoved { removed, .. })) => {
                    let number = i64::try_from(*removed).unwrap_or(i64::MAX);
                    Batched(ServerFrame::Number { number, revision: *revision })
                }
                Ok(outcome) => Batched(frame_of(outcome, *revision)),
                Err(fault) => {
                    context.stats.stale_writes += u64::from(fault.code == FaultCode::StaleRound);
                    Batched(ServerFrame::Error { fault: *fault })
                }
            })
            .collect();
        self.answer(context, request, &ServerFrame::BatchDone { answers: List::new(&answers) });
    }

    /// Executes a request that never waits.
    fn execute(
        &mut self,
        context: &mut ServerContext<'_>,
        frame: &ClientFrame<'_>,
    ) -> Result<Outcome, Fault<'static>> {
        if let ClientFrame::DeletePrefix { prefix } = *frame {
            let removed = context.engine.delete_prefix_at_once(&whole(prefix));
            return removed.map(Outcome::Removed).map_err(|error| fault_of(&error));
        }
        let unknown = Fault::new(FaultCode::UnknownRequest, frame.kind().into(), 0);
        let request = immediate(frame).ok_or(unknown)?;
        // None of these requests waits, so the waiter's index is never used.
        let applied = context.engine.apply(WaiterId::Request(u32::MAX), &request);
        let applied = applied.map_err(|error| fault_of(&error))?;
        notify_released(context.conns, Some(self), applied.released, pushed_queue(&request));
        let outcome = match applied.answer {
            Answer::Number(number) => Outcome::Number(number),
            Answer::Readiness(readiness) => {
                Outcome::Holds(readiness == crate::store::engine::Readiness::Ready)
            }
            _ => Outcome::Done,
        };
        if let Request::CompareSet { key, .. } = request {
            let found = context.engine.find(&whole(key));
            return Ok(match found {
                Some((revision, value)) => Outcome::Value(revision, Some(value.into())),
                None => Outcome::Value(0, None),
            });
        }
        Ok(outcome)
    }

    /// Answers a request at once if possible, and otherwise lets it wait.
    fn begin_wait(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        timeout_ms: u64,
        what: Awaited,
        keys: Keys<'_>,
    ) {
        // A list with missing keys is an answer, too, if it must not wait.
        let may_be_partial = timeout_ms == 0 && matches!(what, Awaited::Values);
        if !may_be_partial && self.try_wait(context, request, &what, keys) {
            return;
        }
        if timeout_ms == 0 {
            return self.answer_once(context, request, &what, keys);
        }
        let deadline = context.now + millis(timeout_ms);
        let pending = Pending::new(request, timeout_ms, deadline, what, keys);
        self.park(context, pending);
    }

    /// Lets a request wait for the keys that are missing.
    fn park(&mut self, context: &mut ServerContext<'_>, pending: Pending) {
        let waiter = WaiterId::Request(self.waiting.next_index());
        let request = pending.request;
        if let Err(fault) = self.sessions.charge(request.session, pending.cost()) {
            return self.fail(context, request, fault);
        }
        let parked = match (&pending.what, pending.keys().iter().next()) {
            (Awaited::Item, Some(key)) => context.engine.wait_for_item(waiter, key).map(|()| true),
            _ => {
                let wait = Request::Wait { keys: pending.keys() };
                context.engine.apply(waiter, &wait).map(|applied| matches!(applied.answer, Answer::Parked))
            }
        };
        if let Ok(true) = parked {
            return self.waiting.insert(pending);
        }
        self.sessions.discharge(request.session, pending.cost());
        match parked {
            // The key names a queue, but the request asks for a value, so it cannot wait for it.
            Ok(_) => self.answer_once(context, request, &pending.what, pending.keys()),
            Err(error) => self.fail(context, request, fault_of(&error)),
        }
    }

    /// Removes a request that no longer waits.
    fn unpark(&mut self, index: u32) -> Option<Pending> {
        let pending = self.waiting.remove(index)?;
        self.sessions.discharge(pending.request.session, pending.cost());
        Some(pending)
    }

    /// Answers a request if everything that it waits for is present.
    fn try_wait(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        what: &Awaited,
        keys: Keys<'_>,
    ) -> bool {
        match what {
            Awaited::Value => {
                let Some(key) = keys.iter().next() else { return false };
                let Some((revision, value)) = context.engine.find(&whole(key)) else { return false };
                let frame = ServerFrame::Value { revision, value: Some(value) };
                let written = self.try_answer(context.conns, request, &frame);
                self.written(context, request, written);
                true
            }
            Awaited::KeyPresence => {
                let ready = is_ready(context.engine, keys);
                if ready {
                    self.done(context, request);
                }
                ready
            }
            Awaited::Values => self.answer_values(context, request, keys, true),
            Awaited::Item => {
                let Some(key) = keys.iter().next() else { return false };
                let pop = Request::QueuePop { key };
                match context.engine.apply(WaiterId::Request(u32::MAX), &pop).map(|applied| applied.answer) {
                    Ok(Answer::Popped { length_before, item: Some(item) }) => {
                        let length_before = length_before.unsigned_abs();
                        let popped =
                            ServerFrame::Popped { length_before, item: Some(ValueRef::Bytes(&item)) };
                        self.answer(context, request, &popped);
                        true
                    }
                    Ok(_) => false,
                    Err(error) => {
                        self.fail(context, request, fault_of(&error));
                        true
                    }
                }
            }
        }
    }

    /// Answers a request that must not wait although a key is missing.
    fn answer_once(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        what: &Awaited,
        keys: Keys<'_>,
    ) {
        match what {
            Awaited::Value => self.fail(context, request, Fault::new(FaultCode::NotFound, 0, 0)),
            Awaited::KeyPresence => self.fail_missing(context, request, 0, keys),
            Awaited::Values => _ = self.answer_values(context, request, keys, false),
            Awaited::Item => {
                self.answer(context, request, &ServerFrame::Popped { length_before: 0, item: None });
            }
        }
    }

    /// Answers with the values of the keys, and returns true. If `must_be_complete` and a key is missing, returns false.
    fn answer_values(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        keys: Keys<'_>,
        must_be_complete: bool,
    ) -> bool {
        let (mut bytes, mut values) = (0_usize, Vec::with_capacity(keys.len()));
        let is_complete = context.engine.find_each(keys, |found| {
            let (revision, value) = found.unzip();
            // A key may occur many times in the request, so the size is checked before any value is copied.
            bytes = bytes.saturating_add(value.map_or(0, |value| value.len()));
            values.push(Found { revision: revision.unwrap_or(0), value });
            value.is_some() || !must_be_complete
        });
        if !is_complete {
            return false;
        }
        if bytes > context.limits.session.body_bytes_max {
            self.too_long(context, request, bytes);
            return true;
        }
        let frame = ServerFrame::Values { values: List::new(&values) };
        let written = self.try_answer(context.conns, request, &frame);
        self.written(context, request, written);
        true
    }

    fn fail_missing(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        timeout_ms: u64,
        keys: Keys<'_>,
    ) {
        let (mut text, mut missing) = (String::new(), 0_usize);
        for key in keys.iter() {
            if is_ready(context.engine, Keys::one(key)) {
                continue;
            }
            if missing < NAMES_MAX {
                // Writing into a string cannot fail.
                let _ = write!(text, "{}{key}", if missing == 0 { "" } else { ", " });
            }
            missing += 1;
        }
        let more = missing.saturating_sub(NAMES_MAX);
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
        let fault = Fault { text: text.as_bytes(), ..Fault::new(FaultCode::TimedOut, timeout_ms, 0) };
        self.fail(context, request, fault);
    }

    pub(in crate::node::server) fn has_released(&self) -> bool {
        self.waiting.has_released()
    }

    /// Answers the requests whose waits have ended. If the value has been removed again by then, the request continues
    /// to wait.
    pub(in crate::node::server) fn serve_released(&mut self, context: &mut ServerContext<'_>) {
        if self.has_released() {
            context.for_others(|context| self.answer_released(context));
        }
    }

    fn answer_released(&mut self, context: &mut ServerContext<'_>) {
        while self.waiting.has_released() && !context.is_budget_spent() {
            let Some(index) = self.waiting.next_released() else { return };
            if self.waiting.session_of(index).is_some_and(|session| self.sessions.node_of(session).is_none())
            {
                // Its session has ended, and what it would take is for the next.
                context.budget.subtract(ANSWER_WORK);
                self.give_up(context, index);
                continue;
            }
            let Some(pending) = self.unpark(index) else { continue };
            context.budget.subtract(ANSWER_WORK + pending.keys().len() as u64);
            let request = pending.request;
            if let Awaited::KeyPresence = pending.what {
                // Each key has been present, though not necessarily all at once.
                self.done(context, request);
            } else if !self.try_wait(context, request, &pending.what, pending.keys()) {
                self.park(context, pending);
            }
        }
    }

    /// Fails the waits for keys of a round that has ended. c10d has no error for that, so its connections are closed.
    pub(super) fn fail_stale_waits(
        &mut self,
        context: &mut ServerContext<'_>,
        waiters: Vec<WaiterId>,
        stale: Stale,
    ) {
        let error = ApplyError::Stale(stale);
        context.budget.subtract(ANSWER_WORK * waiters.len() as u64);
        for waiter in waiters {
            match waiter {
                WaiterId::Conn(conn) => {
                    context.stats.stale_writes += 1;
                    self.to_close.push_back((conn, CloseReason::Refused(error)));
                }
                WaiterId::Request(index) => {
                    if let Some(pending) = self.unpark(index) {
                        self.fail(context, pending.request, fault_of(&error));
                    }
                }
            }
        }
    }

    /// Fails the waits that have timed out.
    pub(super) fn expire_waits(&mut self, context: &mut ServerContext<'_>) {
        while !context.is_budget_spent()
            && let Some(index) = self.waiting.expired(context.now)
        {
            context.budget.subtract(ANSWER_WORK);
            let Some(pending) = self.give_up(context, index) else { continue };
            let (request, timeout_ms) = (pending.request, pending.timeout_ms);
            match pending.what {
                Awaited::Item => {
                    let text = pending.keys().iter().next().map(whole).unwrap_or_default();
                    let fault = Fault { text: &text, ..Fault::new(FaultCode::TimedOut, timeout_ms, 0) };
                    self.fail(context, request, fault);
                }
                _ => self.fail_missing(context, request, timeout_ms, pending.keys()),
            }
        }
    }

    pub(super) fn cancel_wait(&mut self, context: &mut ServerContext<'_>, request: RequestId) -> bool {
        let Some(index) = self.waiting.find(request) else { return false };
        self.give_up(context, index).is_some()
    }

    /// Ends a wait of a session that has ended. Returns false if there is none left.
    pub(super) fn end_wait(&mut self, context: &mut ServerContext<'_>, session: SessionId) -> bool {
        let Some(index) = self.waiting.of_session(session) else { return false };
        self.give_up(context, index);
        true
    }

    /// Removes a request that no longer waits, although nothing has answered it. If the store has released it to take
    /// an item, the next waiter is released instead.
    fn give_up(&mut self, context: &mut ServerContext<'_>, index: u32) -> Option<Pending> {
        context.engine.forget_waits(WaiterId::Request(index));
        let pending = self.unpark(index)?;
        if pending.is_released
            && let (Awaited::Item, Some(key)) = (&pending.what, pending.keys().iter().next())
        {
            let released = context.engine.pass_on(key);
            notify_released(context.conns, Some(self), released, Some(key));
        }
        Some(pending)
    }
}

/// Notifies the waiters that a request has released, perhaps one that has pushed to a queue.
pub(in crate::node::server) fn notify_released(
    conns: &mut Conns,
    mut native: Option<&mut Native>,
    released: &[WaiterId],
    pushed: Option<Key<'_>>,
) {
    for &waiter in released {
        match waiter {
            WaiterId::Conn(conn) => conns.release(conn, pushed),
            WaiterId::Request(index) => {
                if let Some(native) = &mut native {
                    native.waiting.release(index);
                }
            }
        }
    }
}

/// Returns the queue to which a request adds an item.
pub(in crate::node::server) const fn pushed_queue<'a>(request: &Request<'a>) -> Option<Key<'a>> {
    if let Request::QueuePush { key, .. } = *request { Some(key) } else { None }
}

fn frame_of(outcome: &Outcome, revision: u64) -> ServerFrame<'_> {
    match outcome {
        Outcome::Done => ServerFrame::Done { revision },
        Outcome::Number(number) => ServerFrame::Number { number: *number, revision },
        Outcome::Holds(holds) => ServerFrame::Outcome { holds: *holds, revision },
        Outcome::Value(revision, value) => {
            ServerFrame::Value { revision: *revision, value: value.as_ref().map(KeptValue::as_ref) }
        }
        &Outcome::Removed(done) => removed_frame(done, revision),
    }
}

/// Returns the error that a client gets for a request that the store refuses.
pub(super) fn fault_of(error: &ApplyError) -> Fault<'static> {
    match *error {
        ApplyError::NotANumber => Fault::new(FaultCode::NotANumber, 0, 0),
        ApplyError::Full(limit) => Fault::new(FaultCode::StoreFull, limit, 0),
        ApplyError::TooManyWaits(limit) => Fault::new(FaultCode::TooManyPending, limit as u64, 0),
        ApplyError::TooManyKeys(limit) => {
            let text = b"keys that a transaction or batch removes, or has added just before";
            Fault { text, ..Fault::new(FaultCode::TooMany, limit as u64, 0) }
        }
        ApplyError::Stale(stale) => Fault::new(FaultCode::StaleRound, stale.round, stale.over + 1),
    }
}

/// Returns a frame as a request of the engine, if it is one that never waits.
const fn immediate<'a>(frame: &ClientFrame<'a>) -> Option<Request<'a>> {
    Some(match *frame {
        ClientFrame::Set { key, value } => Request::Set { key, value },
        ClientFrame::CompareSet { key, expected, desired } => Request::CompareSet { key, expected, desired },
        ClientFrame::Add { key, delta } => Request::Add { key, delta },
        ClientFrame::Check { keys } => Request::Check { keys },
        ClientFrame::NumKeys {} => Request::NumKeys,
        ClientFrame::Delete { key } => Request::Delete { key },
        ClientFrame::Append { key, value } => Request::Append { key, value },
        ClientFrame::MultiSet { pairs } => Request::MultiSet { pairs },
        ClientFrame::QueuePush { key, value } => Request::QueuePush { key, value },
        ClientFrame::QueueLen { key } => Request::QueueLen { key },
        _ => return None,
    })
}

fn is_ready(engine: &mut Engine, keys: Keys<'_>) -> bool {
    let check = engine.apply(WaiterId::Request(u32::MAX), &Request::Check { keys });
    check.is_ok_and(|applied| {
        matches!(applied.answer, Answer::Readiness(crate::store::engine::Readiness::Ready))
    })
}

/// Returns the key in one piece. A key of a frame already is.
fn whole(key: Key<'_>) -> Cow<'_, [u8]> {
    match key.as_contiguous() {
        Some(part) => Cow::Borrowed(part),
        None => Cow::Owned(key.pieces().concat()),
    }
}
