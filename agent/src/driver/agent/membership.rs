//! The thread that stands in the rendezvous for the agent: it joins, listens while the round lasts, and goes.

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

/// How long a wait for events lasts; nothing depends on it.
const LISTEN_INTERVAL: Duration = Duration::from_secs(60);
/// How long the announcement may take.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the agent asks for.
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
    /// Nothing: what was asked before is not wanted any more.
    Rest,
}

impl BlockingTask for Ask {
    fn cancel_policy(&self) -> CancelPolicy {
        match self {
            // Others wait for it, and it has deadlines of its own.
            Self::Announce { .. } => CancelPolicy::Finished,
            Self::Meet { .. } | Self::Close { .. } | Self::Rest => CancelPolicy::GivenUp,
        }
    }
}

/// The store of the round, for whoever is to end a wait there.
pub(super) type CurrentStore = Arc<Mutex<Option<Arc<NodeStore>>>>;

/// The thread's own.
pub(super) struct Member {
    pub(super) handler: Arc<dyn RendezvousHandler>,
    pub(super) monitor_interval: Duration,
    /// What this agent calls itself when it tells others.
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
                // Who closed the run may have said why, in the round that this agent was in.
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

    /// Until something else is asked.
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
                // It is not told again.
                Err(error) if is_slow(&error) => Some(Membership::NodesWaiting { nodes }),
                // Cancelled; or the session is over, and that is told next.
                Err(_) => None,
            },
            Meaning::JobMayHaveFailed => {
                reported_failure(info, Timeout::Once).map(|message| Membership::JobFailed { message })
            }
        }
    }

    /// For backends that tell nothing: looks, and meanwhile waits for the one key that may tell.
    fn poll(&self, tasks: &TaskQueue<Ask>, info: &Info) {
        let clock = Clock::new();
        while !tasks.is_wanted() {
            let until = clock.now() + self.monitor_interval;
            if let Some(message) = reported_failure(info, Timeout::After(self.monitor_interval)) {
                return self.event_sender.member(Membership::JobFailed { message });
            }
            // A store that is gone says so at once, every time.
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

    /// Nothing more is heard of the round.
    fn lost(&self, error: &HandlerError) {
        let kind = match error {
            HandlerError::Plugin { kind, .. } => Some(*kind),
            _ => inner_kind(error),
        };
        self.event_sender.member(lost(kind, describe(error)));
    }

    /// Tells the others why they wait in vain, and closes the run. That nobody is left to hear it changes nothing.
    fn announce(&self, info: Option<&Info>, reason: &Reason) {
        let Some(info) = info else { return };
        let message = failure_message(&self.name, info.rank, reason);
        let clock = Clock::new();
        let until = clock.now() + ANNOUNCE_TIMEOUT;
        // The other thread's calls go to the same store, and may be cancelled just now.
        let (mut is_cancelled, mut previous) = (true, Vec::new());
        while is_cancelled && clock.now() < until {
            let timeout = Timeout::After(until.since(clock.now()));
            let recorded =
                info.store.compare_set(FAILURE_KEY, b"", message.as_bytes(), &mut previous, timeout);
            is_cancelled = recorded.is_err_and(|error| error.kind() == ErrorKind::Cancelled);
        }
        // Who was first is told by all.
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

/// What an agent said whose workers failed for good.
fn reported_failure(info: &Info, timeout: Timeout) -> Option<Box<str>> {
    let message = info.store.get_owned(FAILURE_KEY, timeout).ok()?;
    Some(String::from_utf8_lossy(&message).into())
}

/// The error and, where it only says what sort it is of, what lies behind it.
fn describe(error: &HandlerError) -> Box<str> {
    let message = error.to_string();
    match core::error::Error::source(error).map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message} {cause}").into(),
        _ => message.into(),
    }
}

/// Whether nothing is known of what was asked, and the session may be all right.
fn is_slow(error: &HandlerError) -> bool {
    !error.is_cancelled() && !matches!(inner_kind(error), Some(ErrorKind::ServerGone | ErrorKind::Cancelled))
}

/// How the call failed that a connection error comes from.
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
