//! What the agents of a round do together in its store: they assign ranks, and wait for each other at the exit. It
//! makes one call at a time.

use super::Calls;
use super::assignment::{Assignment, AssignmentSettings, StartStore};
use super::exit_barrier::{ExitBarrier, Update};
use super::request::{Answer, CallFailure, JoinedRound};
use super::rounds::wait_failure;
use crate::supervisor::{Input, Notice};
use crate::worker_store::WorkerStores;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::prelude::*;

const CANCELLED: &str = "the wait at the exit barrier was cancelled";

/// Work in the round's store, with the supervisor's call.
#[derive(Debug)]
enum Task {
    Assign { call: u64, assignment: Box<Assignment> },
    ExitBarrier { call: u64, barrier: Box<ExitBarrier> },
}

/// Pending call to the store.
#[derive(Clone, Copy, Debug)]
struct Pending {
    id: u64,
    is_cancelled: bool,
}

/// Work of the agents in the store of their round.
#[derive(Debug)]
pub(super) struct RoundStore {
    settings: AssignmentSettings,
    assign_timeout: Duration,
    exit_barrier_timeout: Duration,
    stores: WorkerStores,
    task: Option<Task>,
    pending: Option<Pending>,
    /// Task that begins when the pending call of the one before has ended.
    next: Option<Task>,
    /// Store of the workers of the last start.
    start_store: Option<StartStore>,
    /// Whether this agent serves a store for the workers.
    is_serving: bool,
}

impl RoundStore {
    pub(super) const fn new(
        settings: AssignmentSettings,
        assign_timeout: Duration,
        exit_barrier_timeout: Duration,
        stores: WorkerStores,
    ) -> Self {
        Self {
            settings,
            assign_timeout,
            exit_barrier_timeout,
            stores,
            task: None,
            pending: None,
            next: None,
            start_store: None,
            is_serving: false,
        }
    }

    /// Returns the store of the workers of the current start.
    pub(super) const fn start_store(&self) -> Option<&StartStore> {
        self.start_store.as_ref()
    }

    /// Ends the store of the last start.
    pub(super) fn end_store(&mut self, calls: &mut Calls) {
        self.start_store = None;
        if core::mem::take(&mut self.is_serving) {
            calls.end_store();
        }
    }

    pub(super) fn assign(&mut self, now: Instant, call: u64, round: JoinedRound, calls: &mut Calls) {
        // It ended after its workers: the next server may use the same port.
        self.end_store(calls);
        let store = self.stores.next(round.number, round.world_size);
        let assignment = Assignment::new(self.settings.clone(), round, store, now + self.assign_timeout);
        self.add_task(now, Task::Assign { call, assignment: Box::new(assignment) }, calls);
    }

    pub(super) fn wait_at_exit(&mut self, now: Instant, call: u64, round: &JoinedRound, calls: &mut Calls) {
        match ExitBarrier::new(now, round.rank, round.world_size, self.exit_barrier_timeout) {
            Ok(barrier) => self.add_task(now, Task::ExitBarrier { call, barrier: Box::new(barrier) }, calls),
            Err(error) => exit_barrier_failed(call, None, error.to_string().into(), calls),
        }
    }

    /// Cancels the pending call of the supervisor.
    pub(super) fn cancel(&mut self, calls: &mut Calls) {
        if let Some(Task::ExitBarrier { call, .. }) = self.next.take() {
            exit_barrier_failed(call, Some(ErrorKind::Cancelled), CANCELLED.into(), calls);
        }
        if let Some(pending) = &mut self.pending
            && !core::mem::replace(&mut pending.is_cancelled, true)
        {
            calls.cancel(pending.id);
        }
    }

    fn add_task(&mut self, now: Instant, task: Task, calls: &mut Calls) {
        self.cancel(calls);
        self.next = Some(task);
        self.begin_next(now, calls);
    }

    fn begin_next(&mut self, now: Instant, calls: &mut Calls) {
        if self.pending.is_none()
            && let Some(task) = self.next.take()
        {
            self.task = Some(task);
            self.advance(now, calls);
        }
    }

    /// Makes the next call of the task, or reports that it is done.
    fn advance(&mut self, now: Instant, calls: &mut Calls) {
        let request = match &self.task {
            None => return,
            Some(Task::Assign { call, assignment }) => match assignment.next_request(now) {
                Some(request) => request,
                None => {
                    let (ranks, start_store) = assignment.result();
                    calls.report(Input::Assigned { call: *call, ranks });
                    self.start_store = Some(start_store);
                    self.task = None;
                    return;
                }
            },
            Some(Task::ExitBarrier { barrier, .. }) => match barrier.next_request(now) {
                Some(request) => request,
                None => return,
            },
        };
        self.pending = Some(Pending { id: calls.call(request), is_cancelled: false });
    }

    /// Handles the answer to a call, if it is one of this part.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        id: u64,
        answer: Result<Answer, CallFailure>,
        calls: &mut Calls,
    ) {
        let Some(pending) = self.pending.take_if(|pending| pending.id == id) else { return };
        if matches!(answer, Ok(Answer::Serving(_))) {
            self.is_serving = true;
            if pending.is_cancelled {
                // The next server may use the same port.
                self.end_store(calls);
            }
        }
        match self.task.take() {
            Some(Task::Assign { call, assignment }) => {
                self.assign_answered(call, assignment, answer, pending.is_cancelled, calls);
            }
            Some(Task::ExitBarrier { call, barrier }) => {
                self.exit_answered(now, call, barrier, answer, pending.is_cancelled, calls);
            }
            None => {}
        }
        self.begin_next(now, calls);
        if self.pending.is_none() {
            self.advance(now, calls);
        }
    }

    fn assign_answered(
        &mut self,
        call: u64,
        mut assignment: Box<Assignment>,
        answer: Result<Answer, CallFailure>,
        is_cancelled: bool,
        calls: &mut Calls,
    ) {
        let (kind, message) = match answer {
            _ if is_cancelled => return,
            Ok(answer) => match assignment.handle(answer) {
                Ok(()) => return self.task = Some(Task::Assign { call, assignment }),
                Err(error) => (None, error.to_string().into()),
            },
            Err(CallFailure { kind, message, .. }) => (kind, message),
        };
        calls.report(Input::NotAssigned { call, kind: wait_failure(kind), message });
    }

    fn exit_answered(
        &mut self,
        now: Instant,
        call: u64,
        mut barrier: Box<ExitBarrier>,
        answer: Result<Answer, CallFailure>,
        is_cancelled: bool,
        calls: &mut Calls,
    ) {
        let was_awaited = !barrier.has_arrived();
        let update = barrier.handle(now, answer);
        if was_awaited && barrier.has_arrived() && update != Update::Released {
            calls.report(Input::Arrived { call });
        }
        match update {
            Update::Released => return calls.report(Input::ExitBarrierPassed { call }),
            Update::Failed { kind, message } => return exit_barrier_failed(call, kind, message, calls),
            Update::Report(message) => calls.notify(Notice::StillAtWork { message }),
            Update::Nothing => {}
        }
        if is_cancelled {
            return exit_barrier_failed(call, Some(ErrorKind::Cancelled), CANCELLED.into(), calls);
        }
        self.task = Some(Task::ExitBarrier { call, barrier });
    }
}

fn exit_barrier_failed(call: u64, kind: Option<ErrorKind>, message: Box<str>, calls: &mut Calls) {
    calls.report(Input::ExitBarrierFailed { call, kind: wait_failure(kind), message });
}
