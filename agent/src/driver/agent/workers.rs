//! Who starts and watches an agent's workers: processes on this host, or whatever else somebody has.

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

/// What is to be started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The workers, with their ranks; their attempt is the group's.
    pub group: &'a WorkerGroup,
    /// Where they find their store.
    pub master: &'a RendezvousStoreInfo,
    /// Who serves there.
    pub agent_store: AgentStore,
    /// The run.
    pub run_id: &'a str,
    /// How often the group may be started again, in all.
    pub max_restarts: u32,
}

/// Something happened to workers.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// A worker was started.
    Started {
        /// Which.
        local_rank: u32,
        /// Its process, or whatever number stands for it.
        pid: u32,
    },
    /// A worker was not started.
    NotStarted {
        /// Which.
        local_rank: u32,
        /// Whether another try may help.
        start_failure: StartFailure,
        /// What went wrong.
        message: Box<str>,
    },
    /// A worker ended.
    Exited {
        /// Which.
        local_rank: u32,
        /// How.
        exit: ExitStatus,
        /// When it began to, as far as that was seen, by the clock that [`Workers::begin`] was given.
        at: Instant,
        /// Whether it was seen to be ending before a signal of [`Workers::signal`] was sent to it.
        was_ending: bool,
        /// What it returned, where workers can.
        returned: Option<Vec<u8>>,
    },
    /// A worker has written an error file; told before another one's failure, while nobody is told to end.
    ErrorWritten {
        /// Which.
        local_rank: u32,
        /// When.
        at: Instant,
    },
    /// Processes have outlived the workers: the answer to [`Workers::name_leftovers`], if there are any.
    Leftovers {
        /// Their numbers and commands.
        message: Box<str>,
    },
    /// A worker hangs where no signal reaches it.
    Stuck {
        /// Which.
        local_rank: u32,
        /// For how long.
        since: Duration,
    },
    /// A timer that a worker had set has expired, and its process was sent the timer's signal, if there is one.
    TimerExpired(ExpiredTimer),
    /// Something that changes nothing and that the user should know.
    Remark {
        /// What.
        message: Box<str>,
    },
    /// Nothing lives any more of what was started, and nothing is to be started. It is told after each
    /// [`Workers::signal`] and [`Workers::kill`], as soon as it is so.
    Empty,
    /// All workers were killed at once, and whatever they had started, by what has befallen their supervision and not them;
    /// nothing else is told of them. Others can be started after [`WorkerEvent::Empty`], which follows.
    GroupLost {
        /// What has happened.
        message: Box<str>,
    },
    /// The workers cannot be seen any more.
    GuardLost {
        /// Why.
        message: Box<str>,
    },
}

/// Where workers may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// On the agent's host and nowhere else.
    ThisHost,
    /// On any.
    AnyHost,
}

/// Who starts and watches workers. An agent calls from one thread, which is held up by whatever blocks here.
pub trait Workers: Send {
    /// Called once, before anything else: the agent's clock, from whose beginning [`WorkerEvent::Exited`] counts.
    fn begin(&mut self, clock: rendezvous_core::driver::clock::Clock) {
        let _ = clock;
    }

    /// Where they may run: the store of a group of one node whose workers are all on its host is reached from there alone.
    fn reach(&self) -> Reach {
        Reach::AnyHost
    }

    /// Readable whenever [`Workers::next_event`] may have something.
    fn fd(&self) -> RawFd;

    /// When [`Workers::next_event`] is to be called even if the descriptor is not readable.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Starts all workers of the group. For each comes [`WorkerEvent::Started`] or [`WorkerEvent::NotStarted`].
    fn start(&mut self, start: &Start<'_>);

    /// Sends a signal to all that lives, and to what comes up until all of it is gone; to each process once.
    fn signal(&mut self, signal: i32);

    /// Ends all that lives at once.
    fn kill(&mut self);

    /// Tells which processes have outlived the workers, by [`WorkerEvent::Leftovers`], where that can be known.
    fn name_leftovers(&mut self) {}

    /// Sends a signal to the workers.
    fn pass(&mut self, signal: i32);

    /// What happened.
    fn next_event(&mut self) -> Option<WorkerEvent>;

    /// All there is to tell of workers that failed; nothing of the group lives any more.
    fn failures(&mut self, group: &WorkerGroup, failed: &[Failed]) -> Vec<ProcessFailure>;
}
