//! Calls of a worker to itself: no socket, and the same handlers.

use super::Payload;
use super::client_state::{ClientShared, Target};
use super::completion::{CallResult, Completion};
use super::handling::{CallSource, Handling};
use crate::connection::{CallFailure, CallPhase, ConnectionError, Status, cut_failure_text};
use crate::handlers::is_of_the_program;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use rendezvous_core::time::Instant;
use std::sync::{Mutex, PoisonError};

/// Number of the call: a [`LocalCall`] has only one.
pub(super) const OWN_CALL: u64 = 0;

/// One call.
#[derive(Debug)]
pub(super) struct LocalCall {
    shared: Arc<ClientShared>,
    me: WorkerInfo,
    handler: Box<str>,
    began: Instant,
    deadline: Option<Instant>,
    /// `None` once it has ended.
    completion: Mutex<Option<Completion>>,
    /// Registers the call with the client, which ends it at the latest when the client ends.
    token: usize,
    handling: Weak<Handling>,
}

impl LocalCall {
    pub(super) fn new(
        shared: &Arc<ClientShared>,
        handler: &str,
        (began, deadline): (Instant, Option<Instant>),
        completion: Completion,
        handling: &Arc<Handling>,
    ) -> Arc<Self> {
        let local = Arc::new_cyclic(|local: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            me: shared.me.clone(),
            handler: handler.into(),
            began,
            deadline,
            completion: Mutex::new(Some(completion)),
            token: shared.add_target(local.clone()),
            handling: Arc::downgrade(handling),
        });
        if let Some(deadline) = deadline {
            shared.schedule(deadline, local.token);
        }
        // A thread that has ended this worker's calls meanwhile may not have seen this one.
        if let Some(why) = shared.end.get() {
            Arc::clone(&local).end(why);
        }
        local
    }

    pub(super) const fn worker(&self) -> &WorkerInfo {
        &self.me
    }

    pub(super) fn cancel(&self) -> bool {
        self.give_up(CallFailure::Cancelled)
    }

    fn give_up(&self, why: CallFailure) -> bool {
        self.finish(Err(why.of(&*self.handler, &self.me)))
    }

    /// Returns true if it had not ended before.
    fn finish(&self, result: CallResult) -> bool {
        let completion = self.completion.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(completion) = completion else { return false };
        if let Some(deadline) = self.deadline {
            self.shared.unschedule(deadline, self.token);
        }
        completion.finish(result);
        true
    }
}

impl CallSource for LocalCall {
    fn is_wanted(&self, _: u64) -> bool {
        self.completion.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn answer(&self, _: u64, payload: Payload) -> bool {
        let bytes_max = self.shared.limits.payload_bytes_max;
        let bytes = payload.bytes().len() as u64;
        if bytes > bytes_max {
            return self.give_up(CallFailure::TooLong { bytes, bytes_max });
        }
        self.finish(Ok(payload.into_bytes()))
    }

    fn fail(&self, _: u64, status: Status, message: &str) -> bool {
        self.give_up(CallFailure::Remote { status, message: cut_failure_text(message).into() })
    }
}

impl Target for LocalCall {
    fn ready(self: Arc<Self>, _: &mut Vec<u8>) {}

    fn tick(self: Arc<Self>, now: Instant) {
        if self.deadline.is_some_and(|at| at <= now) {
            let load = self.handling.upgrade().and_then(|handling| handling.exhaustion());
            let phase = load.map_or(CallPhase::InFlight, CallPhase::Exhausted);
            self.give_up(CallFailure::DeadlinePassed { elapsed: now.since(self.began), phase });
        }
    }

    fn cut(self: Arc<Self>, message: &str) {
        if is_of_the_program(&self.handler) {
            self.give_up(CallFailure::CallerEnded(message.into()));
        }
    }

    fn end(self: Arc<Self>, why: &ConnectionError) {
        self.give_up(why.clone().of_sent());
    }
}

impl Drop for LocalCall {
    fn drop(&mut self) {
        self.shared.remove_target(self.token);
    }
}
