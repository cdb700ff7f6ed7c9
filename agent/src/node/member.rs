//! The agent as a member of the rendezvous: it joins, learns what happens to its round, announces a failure, and
//! leaves. It makes one call at a time.

use super::Calls;
use super::request::{Answer, CallFailure, JoinedRound, Request, StoreOperation};
use super::rounds::{
    FAILURE_KEY, Meaning, RESTART_KEY, bounded, failure_message, lost, meaning, restart_message,
};
use crate::reason::{NoRound, Reason};
use crate::supervisor::{Input, LeaveMode, Membership, Round};
use alloc::collections::VecDeque;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::prelude::*;
use rendezvous_core::rendezvous::round_event::RoundEvent;

/// Timeout of announcing a failure in the round's store.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of recording why this agent comes back. Its next join waits for it.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of leaving the rendezvous. A node that leaves without a goodbye is detected by its missing heartbeats.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of closing the run and leaving it. An agent that joins a run that should be closed waits in vain, so closing
/// gets more time.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Task, given by the supervisor.
#[derive(Debug)]
enum Task {
    Join { call: u64 },
    Announce { reason: Reason },
    ExplainRestart { reason: Reason },
    Close { call: u64, leave_mode: LeaveMode },
}

/// Purpose of the pending call.
#[derive(Debug)]
enum Purpose {
    Join {
        call: u64,
    },
    /// Read why the run was closed, before reporting that no round was formed.
    ReadCause {
        call: u64,
        message: Box<str>,
    },
    WaitForEvent,
    /// Count the waiting nodes after an event that named this many.
    CountNodes {
        nodes: u64,
    },
    /// Read whether another agent restarts its workers, before reporting this change to the supervisor.
    ReadRestart {
        membership: Membership,
    },
    /// Read whether the job has failed, after the run was closed.
    ReadFailure,
    /// With a backend without events: wait for a failure until the next count.
    AwaitFailure {
        until: Instant,
    },
    /// With a backend without events: count the waiting nodes.
    PollNodes,
    /// Write the failure for the other agents.
    WriteFailure {
        message: Box<str>,
    },
    /// Write for the other agents why this one restarts its workers.
    WriteRestart,
    FailRun,
    CloseRun {
        /// The call of the supervisor, if the agent leaves after this.
        leave: Option<u64>,
    },
    Leave {
        call: u64,
    },
}

impl Purpose {
    /// Returns whether another task ends the call. What the other agents are to know has deadlines of its own.
    const fn is_cancellable(&self) -> bool {
        !matches!(
            self,
            Self::WriteFailure { .. } | Self::WriteRestart | Self::FailRun | Self::CloseRun { leave: None }
        )
    }
}

#[derive(Debug)]
struct Pending {
    id: u64,
    purpose: Purpose,
    is_cancelled: bool,
}

/// How the agent learns what happens to its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    /// It does not.
    Off,
    /// Through the backend's events.
    Events,
    /// By asking the backend in intervals; next at this time.
    Polls { at: Instant },
}

/// The agent as a member of the rendezvous.
#[derive(Debug)]
pub(super) struct Member {
    /// Name of this agent in messages to other agents.
    name: Box<str>,
    monitor_interval: Duration,
    reports_deaths: bool,
    tasks: VecDeque<Task>,
    pending: Option<Pending>,
    listening: Listening,
    /// The last round that was joined.
    joined: Option<JoinedRound>,
    /// Whether the agent is in that round: the join has not been followed by another one.
    is_in_round: bool,
    /// Deadline for leaving the rendezvous, with the supervisor's call.
    leave_by: Option<(Instant, u64)>,
}

impl Member {
    pub(super) const fn new(name: Box<str>, monitor_interval: Duration, reports_deaths: bool) -> Self {
        Self {
            name,
            monitor_interval,
            reports_deaths,
            tasks: VecDeque::new(),
            pending: None,
            listening: Listening::Off,
            joined: None,
            is_in_round: false,
            leave_by: None,
        }
    }

    /// Returns the round that the agent has joined.
    pub(super) fn round(&self) -> Option<&JoinedRound> {
        self.joined.as_ref().filter(|_| self.is_in_round)
    }

    pub(super) fn join(&mut self, now: Instant, call: u64, calls: &mut Calls) {
        self.add_task(now, Task::Join { call }, calls);
    }

    pub(super) fn announce(&mut self, now: Instant, reason: Reason, calls: &mut Calls) {
        self.add_task(now, Task::Announce { reason }, calls);
    }

    pub(super) fn explain_restart(&mut self, now: Instant, reason: Reason, calls: &mut Calls) {
        self.add_task(now, Task::ExplainRestart { reason }, calls);
    }

    pub(super) fn close(&mut self, now: Instant, call: u64, leave_mode: LeaveMode, calls: &mut Calls) {
        let timeout = match leave_mode {
            LeaveMode::Leave => LEAVE_TIMEOUT,
            LeaveMode::Close => CLOSE_TIMEOUT,
        };
        self.leave_by = Some((now + timeout, call));
        // It does not come back.
        self.tasks.retain(|task| !matches!(task, Task::ExplainRestart { .. }));
        self.add_task(now, Task::Close { call, leave_mode }, calls);
    }

    /// Cancels the pending call of the supervisor. If it has not begun, it never does: a round that was joined in vain
    /// would wait for this agent.
    pub(super) fn cancel(&mut self, calls: &mut Calls) {
        self.tasks.retain(|task| matches!(task, Task::Announce { .. } | Task::ExplainRestart { .. }));
        if let Some(pending) = &mut self.pending
            && pending.purpose.is_cancellable()
            && !core::mem::replace(&mut pending.is_cancelled, true)
        {
            calls.cancel(pending.id);
        }
    }

    fn add_task(&mut self, now: Instant, task: Task, calls: &mut Calls) {
        self.cancel(calls);
        self.tasks.push_back(task);
        self.advance(now, calls);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let poll_at = match self.listening {
            Listening::Polls { at } if self.pending.is_none() => Some(at),
            _ => None,
        };
        [poll_at, self.leave_by.map(|(by, _)| by)].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, calls: &mut Calls) {
        if let Some((_, call)) = self.leave_by.take_if(|(by, _)| *by <= now) {
            // The agent ends without a goodbye.
            self.listening = Listening::Off;
            self.cancel(calls);
            calls.report(Input::Closed { call });
        }
        self.advance(now, calls);
    }

    fn call(&mut self, purpose: Purpose, request: Request, calls: &mut Calls) {
        let id = calls.call(request);
        self.pending = Some(Pending { id, purpose, is_cancelled: false });
    }

    fn store(&mut self, purpose: Purpose, operation: StoreOperation, timeout: Duration, calls: &mut Calls) {
        self.call(purpose, Request::Store { operation, timeout }, calls);
    }

    /// Makes the next call, unless one is pending.
    fn advance(&mut self, now: Instant, calls: &mut Calls) {
        if self.pending.is_some() {
            return;
        }
        match (self.tasks.pop_front(), self.listening) {
            (Some(task), _) => self.begin(now, task, calls),
            (None, Listening::Events) => self.call(Purpose::WaitForEvent, Request::NextEvent, calls),
            (None, Listening::Polls { at }) if at <= now => {
                self.call(Purpose::PollNodes, Request::NodesWaiting, calls);
            }
            (None, Listening::Polls { .. } | Listening::Off) => {}
        }
    }

    fn begin(&mut self, now: Instant, task: Task, calls: &mut Calls) {
        // An agent that restarts its workers still has to learn of a peer's death.
        if !matches!(task, Task::ExplainRestart { .. }) {
            self.listening = Listening::Off;
        }
        match task {
            Task::Join { call } => {
                self.is_in_round = false;
                self.call(Purpose::Join { call }, Request::Join, calls);
            }
            Task::Announce { reason } => {
                let Some(round) = self.round() else { return self.advance(now, calls) };
                let message: Box<str> = failure_message(&self.name, round.rank, &reason).into();
                let operation = StoreOperation::SetIfAbsent(FAILURE_KEY.into(), message.as_bytes().to_vec());
                self.store(Purpose::WriteFailure { message }, operation, ANNOUNCE_TIMEOUT, calls);
            }
            Task::ExplainRestart { reason } => {
                let Some(round) = self.round() else { return self.advance(now, calls) };
                let message = restart_message(&self.name, round.rank, &reason);
                let operation = StoreOperation::SetIfAbsent(RESTART_KEY.into(), message.into_bytes());
                self.store(Purpose::WriteRestart, operation, EXPLAIN_TIMEOUT, calls);
            }
            Task::Close { call, leave_mode: LeaveMode::Close } => {
                self.call(Purpose::CloseRun { leave: Some(call) }, Request::Close, calls);
            }
            Task::Close { call, leave_mode: LeaveMode::Leave } => self.leave(call, calls),
        }
    }

    fn leave(&mut self, call: u64, calls: &mut Calls) {
        self.call(Purpose::Leave { call }, Request::Shutdown, calls);
    }

    /// Handles the answer to a call, if it is one of this part. Returns whether it is.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        id: u64,
        answer: &Result<Answer, CallFailure>,
        calls: &mut Calls,
    ) -> bool {
        let Some(Pending { purpose, is_cancelled, .. }) = self.pending.take_if(|pending| pending.id == id)
        else {
            return false;
        };
        match purpose {
            Purpose::Join { call } => self.join_answered(now, call, answer, calls),
            Purpose::ReadCause { call, message } => {
                let message = match message_of(answer) {
                    Some(cause) if !message.contains(&*cause) => format!("{message} {cause}").into(),
                    _ => message,
                };
                calls.report(Input::NotJoined { call, kind: NoRound::Closed, message });
            }
            Purpose::WaitForEvent => self.event_answered(now, is_cancelled, answer, calls),
            Purpose::CountNodes { nodes } => match answer {
                Ok(Answer::Number(nodes)) => self.report_nodes(*nodes, calls),
                // The event is not repeated. But if the session has ended, that is the next event.
                Err(CallFailure { kind: Some(ErrorKind::ServerGone | ErrorKind::Cancelled), .. }) => {}
                _ => calls.member(Membership::NodesWaiting { nodes }),
            },
            Purpose::ReadRestart { membership } => {
                let restarts = message_of(answer).map(|message| Membership::PeerRestarts { message });
                calls.member(restarts.unwrap_or(membership));
                // The supervisor may stay in the round, for example because it ends.
                if let Listening::Polls { .. } = self.listening {
                    self.await_failure(now, calls);
                }
            }
            Purpose::ReadFailure => {
                if let Some(message) = message_of(answer) {
                    calls.member(Membership::JobFailed { message });
                }
            }
            Purpose::AwaitFailure { until } => match message_of(answer) {
                Some(message) => {
                    self.listening = Listening::Off;
                    calls.member(Membership::JobFailed { message });
                }
                // Calls to a store whose server has ended fail at once, every time.
                None => self.listening = Listening::Polls { at: until },
            },
            Purpose::PollNodes => self.poll_answered(now, answer, calls),
            Purpose::WriteFailure { message } => {
                // All agents report the failure that was announced first.
                let first = message_of(answer).filter(|first| !first.is_empty());
                let message = first.unwrap_or(message);
                self.call(Purpose::FailRun, Request::Fail { message }, calls);
            }
            Purpose::FailRun if answer.is_err() => {
                self.call(Purpose::CloseRun { leave: None }, Request::Close, calls);
            }
            Purpose::WriteRestart | Purpose::FailRun | Purpose::CloseRun { leave: None } => {}
            // An agent that cannot close the run leaves it.
            Purpose::CloseRun { leave: Some(call) } => {
                if self.leave_by.is_some() {
                    self.leave(call, calls);
                }
            }
            Purpose::Leave { call } => {
                self.leave_by = None;
                calls.report(Input::Closed { call });
            }
        }
        self.advance(now, calls);
        true
    }

    fn join_answered(
        &mut self,
        now: Instant,
        call: u64,
        answer: &Result<Answer, CallFailure>,
        calls: &mut Calls,
    ) {
        let failure = match answer {
            Ok(Answer::Joined(round)) => {
                let position = Round {
                    group_rank: round.rank,
                    group_world_size: round.world_size,
                    number: round.number,
                    reports_deaths: self.reports_deaths,
                };
                self.joined = Some(round.clone());
                self.is_in_round = true;
                self.listening = Listening::Events;
                calls.report(Input::Joined { call, round: position });
                return self.advance(now, calls);
            }
            Ok(_) => {
                return calls.report(not_joined(call, NoRound::Failed, "the answer fits no join".into()));
            }
            Err(failure) => failure,
        };
        // The agent that closed the run may have written the reason into the store of this agent's last round.
        if failure.no_round == NoRound::Closed && self.joined.is_some() {
            let purpose = Purpose::ReadCause { call, message: failure.message.clone() };
            return self.store(purpose, read_failure(), Duration::ZERO, calls);
        }
        calls.report(not_joined(call, failure.no_round, failure.message.clone()));
    }

    fn event_answered(
        &mut self,
        now: Instant,
        is_cancelled: bool,
        answer: &Result<Answer, CallFailure>,
        calls: &mut Calls,
    ) {
        match answer {
            Ok(Answer::Event(Some(event))) => self.event(event, calls),
            Ok(_) => {}
            Err(failure) if failure.has_no_events => self.await_failure(now, calls),
            Err(failure) if failure.is_cancelled() && is_cancelled => {}
            Err(failure) => self.lose(failure, calls),
        }
    }

    fn event(&mut self, event: &RoundEvent, calls: &mut Calls) {
        let current = self.round().and_then(|round| round.number);
        match meaning(event, current) {
            Meaning::Nothing => {}
            Meaning::Known(membership @ Membership::RoundOver { .. }) => {
                self.report_change(membership, calls);
            }
            Meaning::Known(membership) => calls.member(membership),
            // A task that waits has more important things to do than to count.
            Meaning::NodesMayWait { nodes } if !self.tasks.is_empty() => {
                calls.member(Membership::NodesWaiting { nodes });
            }
            Meaning::NodesMayWait { nodes } => {
                self.call(Purpose::CountNodes { nodes }, Request::NodesWaiting, calls);
            }
            Meaning::JobMayHaveFailed => {
                self.store(Purpose::ReadFailure, read_failure(), Duration::ZERO, calls);
            }
        }
    }

    fn poll_answered(&mut self, now: Instant, answer: &Result<Answer, CallFailure>, calls: &mut Calls) {
        match answer {
            Ok(Answer::Number(0)) => self.await_failure(now, calls),
            Ok(Answer::Number(nodes)) => {
                self.listening = Listening::Polls { at: now + self.monitor_interval };
                self.report_nodes(*nodes, calls);
            }
            Err(failure) if !failure.is_cancelled() => self.lose(failure, calls),
            _ => self.await_failure(now, calls),
        }
    }

    /// With a backend without events: waits for the key that announces a failure, until the next count.
    fn await_failure(&mut self, now: Instant, calls: &mut Calls) {
        let until = now + self.monitor_interval;
        self.listening = Listening::Polls { at: until };
        if self.tasks.is_empty() {
            let purpose = Purpose::AwaitFailure { until };
            self.store(purpose, read_failure(), self.monitor_interval, calls);
        }
    }

    fn report_nodes(&mut self, nodes: i64, calls: &mut Calls) {
        let nodes = nodes.unsigned_abs();
        if nodes > 0 {
            self.report_change(Membership::NodesWaiting { nodes }, calls);
        }
    }

    /// Reports a change that a restart of another agent may have caused. If that agent has recorded why it restarts,
    /// this is reported instead: the record was written before the agent came back.
    fn report_change(&mut self, membership: Membership, calls: &mut Calls) {
        if self.tasks.is_empty() {
            let read = StoreOperation::Get(vec![RESTART_KEY.into()]);
            self.store(Purpose::ReadRestart { membership }, read, Duration::ZERO, calls);
        } else {
            calls.member(membership);
        }
    }

    /// Reports that no more events of the round can be received.
    fn lose(&mut self, failure: &CallFailure, calls: &mut Calls) {
        self.listening = Listening::Off;
        calls.member(lost(failure.kind, failure.message.clone()));
    }
}

fn not_joined(call: u64, kind: NoRound, message: Box<str>) -> Input {
    Input::NotJoined { call, kind, message }
}

fn read_failure() -> StoreOperation {
    StoreOperation::Get(vec![FAILURE_KEY.into()])
}

/// Returns the message in a value, shortened to the length of a failure message.
fn message_of(answer: &Result<Answer, CallFailure>) -> Option<Box<str>> {
    let Ok(Answer::Values(values)) = answer else { return None };
    Some(bounded(String::from_utf8_lossy(values.first()?).into_owned()).into())
}
