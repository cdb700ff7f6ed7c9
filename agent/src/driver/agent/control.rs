//! Handle of an agent for other threads.

use super::input::InputSender;
use crate::group::WorkerGroup;
use crate::node::Input;
use crate::reason::StopCause;
use alloc::sync::Arc;
use rendezvous_core::driver::prelude::*;

/// The worker group in its current state, shared with other threads.
#[derive(Debug)]
pub(super) struct Snapshot(Mutex<Arc<WorkerGroup>>);

impl Snapshot {
    pub(super) fn new(group: WorkerGroup) -> Self {
        Self(Mutex::new(Arc::new(group)))
    }

    /// Stores the group, and copies it only if it has changed.
    pub(super) fn publish(&self, group: &WorkerGroup) -> Arc<WorkerGroup> {
        let mut current = self.0.locked();
        if **current != *group {
            *current = Arc::new(group.clone());
        }
        Arc::clone(&current)
    }
}

/// Handle of an agent for other threads. It may outlive the agent.
#[derive(Clone, Debug)]
pub struct AgentControl {
    input_sender: InputSender,
    snapshot: Arc<Snapshot>,
}

impl AgentControl {
    pub(super) const fn new(input_sender: InputSender, snapshot: Arc<Snapshot>) -> Self {
        Self { input_sender, snapshot }
    }

    /// Returns the worker group at this moment. The returned value never changes.
    #[must_use]
    pub fn worker_group(&self) -> Arc<WorkerGroup> {
        Arc::clone(&self.snapshot.0.locked())
    }

    /// Makes the agent stop its workers and end. A second call kills them without waiting.
    pub fn stop(&self) {
        self.input_sender.send(Input::Stop(StopCause::Requested));
    }

    /// Makes the agent stop its workers with this signal and end, as if the agent's process had received it.
    pub fn stop_by_signal(&self, signal: i32) {
        self.input_sender.send(Input::Stop(StopCause::Signal(signal)));
    }

    /// Forwards a signal to the workers, without other effects.
    pub fn pass(&self, signal: i32) {
        self.input_sender.send(Input::Pass { signal });
    }
}
