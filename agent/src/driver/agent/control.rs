//! What other threads may do to an agent.

use super::input::EventSender;
use crate::group::WorkerGroup;
use crate::reason::StopCause;
use crate::supervisor::Input;
use alloc::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// The workers as they are now, for whoever looks.
#[derive(Debug)]
pub(super) struct Snapshot(Mutex<Arc<WorkerGroup>>);

impl Snapshot {
    pub(super) fn new(group: WorkerGroup) -> Self {
        Self(Mutex::new(Arc::new(group)))
    }

    /// Copies only what has changed.
    pub(super) fn publish(&self, group: &WorkerGroup) -> Arc<WorkerGroup> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if **current != *group {
            *current = Arc::new(group.clone());
        }
        Arc::clone(&current)
    }
}

/// An agent's handle for other threads, which outlives it.
#[derive(Clone, Debug)]
pub struct AgentControl {
    event_sender: EventSender,
    snapshot: Arc<Snapshot>,
}

impl AgentControl {
    pub(super) const fn new(event_sender: EventSender, snapshot: Arc<Snapshot>) -> Self {
        Self { event_sender, snapshot }
    }

    /// The workers at this moment; what is returned never changes.
    #[must_use]
    pub fn worker_group(&self) -> Arc<WorkerGroup> {
        Arc::clone(&self.snapshot.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the agent stop its workers and end. The second time it no longer waits for them.
    pub fn stop(&self) {
        self.event_sender.input(Input::Stop(StopCause::Requested));
    }

    /// Has the agent stop its workers with this signal, and end, as when the agent's process had got it.
    pub fn stop_by_signal(&self, signal: i32) {
        self.event_sender.input(Input::Stop(StopCause::Signal(signal)));
    }

    /// Sends a signal to the workers, and changes nothing else.
    pub fn pass(&self, signal: i32) {
        self.event_sender.input(Input::Pass { signal });
    }
}
