//! The trait of what starts and observes an agent's workers: processes on this host, or workers under foreign control.

use crate::environment::AgentStore;
use crate::failure::ProcessFailure;
use crate::group::{ExitStatus, WorkerGroup};
use crate::reason::StartFailure;
use crate::supervisor::Failed;
use crate::watchdog::ExpiredTimer;
use alloc::boxed::Box;
use alloc::vec::Vec;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::time::{Duration, Instant};
use std::os::fd::RawFd;

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

/// Event of the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// A worker was started.
    Started {
        /// Local rank of the worker.
        local_rank: u32,
        /// Process ID of the worker, or another number that identifies it.
        pid: u32,
    },
    /// A worker could not be started.
    NotStarted {
        /// Local rank of the worker.
        local_rank: u32,
        /// Whether another attempt may succeed.
        start_failure: StartFailure,
        /// Description of the failure.
        message: Box<str>,
    },
    /// A worker ended.
    Exited {
        /// Local rank of the worker.
        local_rank: u32,
        /// Exit status of the worker.
        exit: ExitStatus,
        /// Time at which it began to end, as far as that was observed, on the clock passed to [`Workers::begin`].
        at: Instant,
        /// Whether it was seen to be ending before a signal of [`Workers::signal`] was sent to it.
        was_ending: bool,
        /// Bytes that it returned, for workers that return a value.
        returned: Option<Vec<u8>>,
    },
    /// A worker has written an error file. Reported before the failure of another worker, unless the workers are being
    /// stopped.
    ErrorWritten {
        /// Local rank of the worker.
        local_rank: u32,
        /// Time of writing.
        at: Instant,
    },
    /// Processes have outlived the workers: the answer to [`Workers::name_leftovers`], if there are any.
    Leftovers {
        /// Their process IDs and commands.
        message: Box<str>,
    },
    /// A worker hangs where no signal reaches it.
    Stuck {
        /// Local rank of the worker.
        local_rank: u32,
        /// Time for which it has hung.
        since: Duration,
    },
    /// A timer that a worker had set has expired. Its process was sent the timer's signal, if the timer has one.
    TimerExpired(ExpiredTimer),
    /// A message for the user that does not change the state.
    Remark {
        /// Text of the message.
        message: Box<str>,
    },
    /// No started process is alive any more, and no start is pending. Reported after each [`Workers::signal`] and
    /// [`Workers::kill`], as soon as it is true.
    Empty,
    /// All workers and their descendants were killed because their guard ended, not because they failed. No other event
    /// of them follows, except [`WorkerEvent::Empty`]; others can be started after that.
    GroupLost {
        /// Description of the loss.
        message: Box<str>,
    },
    /// The workers cannot be observed any more.
    GuardLost {
        /// Description of the loss.
        message: Box<str>,
    },
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
