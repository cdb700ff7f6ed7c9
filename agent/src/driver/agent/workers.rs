//! The trait of what starts and observes an agent's workers: processes on this host, or workers under foreign control.

use crate::environment::AgentStore;
use crate::failure::ProcessFailure;
use crate::group::WorkerGroup;
use crate::supervisor::Failed;
use crate::worker_event::WorkerEvent;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;

/// A start of a worker group.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The workers with their ranks, and the number of the attempt.
    pub group: &'a WorkerGroup,
    /// Address of the workers' store.
    pub master: &'a RendezvousStoreInfo,
    /// Which process serves it.
    pub agent_store: AgentStore,
    /// ID of the run.
    pub run_id: &'a str,
    /// Number of times that the group may be restarted in all.
    pub max_restarts: u32,
}

/// Hosts on which workers may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only on the agent's host.
    ThisHost,
    /// On any host.
    AnyHost,
}

/// Starts and observes workers. An agent calls it from one thread, which must not be blocked for long.
pub trait Workers: Send {
    /// Passes the agent's clock, to which the times in [`WorkerEvent::Exited`] refer. Called once, before anything
    /// else.
    fn begin(&mut self, clock: rendezvous_core::driver::clock::Clock) {
        let _ = clock;
    }

    /// Returns where the workers may run. The store of a group of one node whose workers all run on its host is
    /// reachable from that host only.
    fn reach(&self) -> Reach {
        Reach::AnyHost
    }

    /// Returns the descriptor that is readable whenever [`Workers::next_event`] may return an event.
    fn fd(&self) -> RawFd;

    /// Returns when to call [`Workers::next_event`] even if the descriptor is not readable.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Starts all workers of the group. [`WorkerEvent::Started`] or [`WorkerEvent::NotStarted`] is reported for each.
    fn start(&mut self, start: &Start<'_>);

    /// Sends a signal to all living processes, and to those that appear until all have ended; once to each process.
    fn signal(&mut self, signal: i32);

    /// Kills all living processes at once.
    fn kill(&mut self);

    /// Reports the processes that have outlived the workers as [`WorkerEvent::Leftovers`], where they can be known.
    fn name_leftovers(&mut self) {}

    /// Sends a signal to the workers.
    fn pass(&mut self, signal: i32);

    /// Returns the next event.
    fn next_event(&mut self) -> Option<WorkerEvent>;

    /// Returns the details of failed workers. Called when no process of the group is alive any more.
    fn failures(&mut self, group: &WorkerGroup, failed: &[Failed]) -> Vec<ProcessFailure>;
}
