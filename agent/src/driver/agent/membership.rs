//! The thread that represents the agent in the rendezvous: it joins, listens to events while the round lasts, and
//! leaves.

use super::blocking_thread::{BlockingTask, CancelPolicy, TaskQueue};
use super::input::{AgentInput, EventSender, Info};
use crate::node::rounds::{
    FAILURE_BYTES_MAX, FAILURE_KEY, Meaning, failure_message, lost, meaning, no_round,
};
use crate::reason::{NoRound, Reason};
use crate::supervisor::{Input, LeaveMode, Membership};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::rendezvous::{HandlerError, NodeStore, RendezvousHandler};
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::time::Duration;
use std::sync::{Mutex, PoisonError};

/// Length of one wait for events. Nothing depends on it.
const LISTEN_INTERVAL: Duration = Duration::from_secs(60);
/// Timeout of announcing a failure.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Task of the thread.
#[derive(Debug)]
pub(super) enum Ask {
    Meet {
        call: u64,
    },
    Announce {
        reason: Reason,
    },
    Close {
        call: u64,
        leave_mode: LeaveMode,
    },
    /// None: the pending task is cancelled.
    Rest,
}

impl BlockingTask for Ask {
    fn cancel_policy(&self) -> CancelPolicy {
        match self {
            // Other agents wait for it, and it has deadlines of its own.
            Self::Announce { .. } => CancelPolicy::Finished,
            Self::Meet { .. } | Self::Close { .. } | Self::Rest => CancelPolicy::GivenUp,
        }
    }
}

/// The store of the current round, shared so that another thread can cancel a wait there.
pub(super) type CurrentStore = Arc<Mutex<Option<Arc<NodeStore>>>>;

/// State of the thread.
pub(super) struct Member {
    pub(super) handler: Arc<dyn RendezvousHandler>,
    pub(super) monitor_interval: Duration,
    /// Name of this agent in messages to other agents.
    pub(super) name: String,
    pub(super) store: CurrentStore,
    pub(super) event_sender: EventSender,
}

impl Member {
    pub(super) fn run(self, tasks: &TaskQueue<Ask>) {
        let mut info: Option<Arc<Info>> = None;
        while let Some(ask) = tasks.next() {
            match ask {
                Ask::Meet { call } => {
                    self.keep(None);
                    info = self.meet(call, info.take().as_deref());
                    if let Some(info) = &info {
                        self.listen(tasks, info);
                    }
                }
                Ask::Announce { reason } => self.announce(info.as_deref(), &reason),
                Ask::Close { call, leave_mode } => {
                    self.close(leave_mode);
                    self.event_sender.input(Input::Closed { call });
                }
                Ask::Rest => {}
            }
        }
    }

    fn keep(&self, store: Option<Arc<NodeStore>>) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
    }

    fn meet(&self, call: u64, last: Option<&Info>) -> Option<Arc<Info>> {
        match self.handler.next_rendezvous() {
            Ok(info) => {
                let info = Arc::new(info);
                self.keep(Some(Arc::clone(&info.store)));
                self.event_sender.notify(AgentInput::Met { call, info: Arc::clone(&info) });
                Some(info)
            }
            Err(error) => {
                let kind = kind_of(&error);
                // The agent that closed the run may have written the reason into the store of this agent's last round.
                let cause = last.filter(|_| kind == NoRound::Closed);
                let message = describe(&error);
                let message = match cause.and_then(|last| reported_failure(last, Timeout::Once)) {
                    Some(recorded) if !message.contains(&*recorded) => format!("{error} {recorded}").into(),
                    _ => message,
                };
                self.event_sender.input(Input::NotMet { call, kind, message });
                None
            }
        }
    }

    /// Forwards events of the round until another task arrives.
    fn listen(&self, tasks: &TaskQueue<Ask>, info: &Info) {
        while !tasks.is_wanted() {
            let membership = match self.handler.next_event(LISTEN_INTERVAL) {
                Ok(None) => continue,
                Ok(Some(event)) => self.of_event(&event, info),
                Err(HandlerError::NoEvents { .. }) => return self.poll(tasks, info),
                Err(error) if error.is_cancelled() => continue,
                Err(error) => return self.lost(&error),
            };
            if let Some(membership) = membership {
                self.event_sender.member(membership);
            }
        }
    }

    fn of_event(&self, event: &RoundEvent, info: &Info) -> Option<Membership> {
        match meaning(event, info.round) {
            Meaning::Nothing => None,
            Meaning::Known(membership) => Some(membership),
            Meaning::NodesMayWait { nodes } => match self.handler.num_nodes_waiting() {
                Ok(nodes) => Some(Membership::NodesWaiting { nodes }),
                // The event is not repeated.
                Err(error) if is_slow(&error) => Some(Membership::NodesWaiting { nodes }),
                // Cancelled; or the session has ended, which is the next event.
                Err(_) => None,
            },
            Meaning::JobMayHaveFailed => {
                reported_failure(info, Timeout::Once).map(|message| Membership::JobFailed { message })
            }
        }
    }

    /// Polls a backend without events, and meanwhile waits for the key that announces a failure.
    fn poll(&self, tasks: &TaskQueue<Ask>, info: &Info) {
        let clock = Clock::new();
        while !tasks.is_wanted() {
            let until = clock.now() + self.monitor_interval;
            if let Some(message) = reported_failure(info, Timeout::After(self.monitor_interval)) {
                return self.event_sender.member(Membership::JobFailed { message });
            }
            // Calls to a store whose server has ended fail at once, every time.
            tasks.rest(until.since(clock.now()));
            if tasks.is_wanted() {
                return;
            }
            match self.handler.num_nodes_waiting() {
                Ok(0) => {}
                Ok(nodes) => self.event_sender.member(Membership::NodesWaiting { nodes }),
                Err(error) if error.is_cancelled() => {}
                Err(error) => return self.lost(&error),
            }
        }
    }

    /// Reports that no more events of the round can be received.
    fn lost(&self, error: &HandlerError) {
        let kind = match error {
            HandlerError::Plugin { kind, .. } => Some(*kind),
            _ => inner_kind(error),
        };
        self.event_sender.member(lost(kind, describe(error)));
    }

    /// Writes the failure for the other agents and closes the run. Failing to do so changes nothing for this agent.
    fn announce(&self, info: Option<&Info>, reason: &Reason) {
        let Some(info) = info else { return };
        let message = failure_message(&self.name, info.rank, reason);
        let clock = Clock::new();
        let until = clock.now() + ANNOUNCE_TIMEOUT;
        // The other thread uses the same store, and its cancellation may hit this call too.
        let (mut is_cancelled, mut previous) = (true, Vec::new());
        while is_cancelled && clock.now() < until {
            let timeout = Timeout::After(until.since(clock.now()));
            let recorded =
                info.store.compare_set(FAILURE_KEY, b"", message.as_bytes(), &mut previous, timeout);
            is_cancelled = recorded.is_err_and(|error| error.kind() == ErrorKind::Cancelled);
        }
        // All agents report the failure that was announced first.
        let mut previous = String::from_utf8_lossy(&previous).into_owned();
        previous.truncate(previous.floor_char_boundary(FAILURE_BYTES_MAX));
        let message = if previous.is_empty() { &message } else { &previous };
        if self.handler.fail(message).is_err() {
            self.handler.set_closed().ok();
        }
    }

    fn close(&self, leave_mode: LeaveMode) {
        if leave_mode == LeaveMode::Close {
            self.handler.set_closed().ok();
        }
        self.handler.shutdown();
    }
}

/// Returns the message of an agent whose workers failed and are out of restarts.
fn reported_failure(info: &Info, timeout: Timeout) -> Option<Box<str>> {
    let message = info.store.get_owned(FAILURE_KEY, timeout).ok()?;
    Some(String::from_utf8_lossy(&message).into())
}

/// Returns the error's message, with its cause where the message only names the kind.
fn describe(error: &HandlerError) -> Box<str> {
    let message = error.to_string();
    match core::error::Error::source(error).map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message} {cause}").into(),
        _ => message.into(),
    }
}

/// Returns whether the question remains open although the session may be intact.
fn is_slow(error: &HandlerError) -> bool {
    !error.is_cancelled() && !matches!(inner_kind(error), Some(ErrorKind::ServerGone | ErrorKind::Cancelled))
}

/// Returns the kind of the failed call that caused a connection error.
fn inner_kind(error: &HandlerError) -> Option<ErrorKind> {
    let inner = core::error::Error::source(error)?.downcast_ref::<CallError>()?;
    Some(inner.kind())
}

fn kind_of(error: &HandlerError) -> NoRound {
    match error {
        HandlerError::Rendezvous(error) => no_round(error.kind()),
        HandlerError::Store(error) if error.kind() == ErrorKind::Closed => NoRound::Closed,
        _ => NoRound::Failed,
    }
}
