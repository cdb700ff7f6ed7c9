//! An agent of two workers with an observer, for tests that drive it through its life.

use super::Happened;
use crate::error_file::ErrorFile;
use crate::failure::{NodeIdentity, ProcessFailure, WorkerEnd, WorkerGroupFailure};
use crate::group::ExitStatus;
use crate::ranks::Ranks;
use crate::spec::WorkerSpec;
use crate::supervisor::{Input, Output, Round, Supervisor};
use crate::worker_event::WorkerEvent;
use rendezvous_core::prelude::*;

pub(crate) struct Stage<F> {
    machine: Supervisor,
    now: Instant,
    call: u64,
    watch: F,
}

impl<F: FnMut(Instant, &Supervisor, Happened<'_>)> Stage<F> {
    pub(crate) fn new(max_restarts: u32, watch: F) -> Self {
        let spec = WorkerSpec { role: "trainer".into(), max_restarts, ..WorkerSpec::new(2) };
        Self { machine: Supervisor::new(spec).expect("a good spec"), now: Instant::ORIGIN, call: 0, watch }
    }

    /// Passes an input after a number of milliseconds.
    pub(crate) fn after(&mut self, millis: u64, input: Input) -> &mut Self {
        self.now = self.now + Duration::from_millis(millis);
        self.machine.handle(self.now, input).expect("it can happen");
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Join { call }
                | Output::Assign { call }
                | Output::WaitAtExitBarrier { call }
                | Output::Close { call, .. } => self.call = call,
                Output::Notify(notice) => (self.watch)(self.now, &self.machine, Happened::Notice(&notice)),
                Output::Report { group, failures } => {
                    let end = |failed: &crate::supervisor::Failed| WorkerEnd {
                        local_rank: failed.local_rank,
                        global_rank: group.workers[failed.local_rank as usize].global_rank,
                        pid: failed.pid.unwrap_or(0),
                        exit_code: failed.exit.exit_code(),
                        seen_at_s: 1_700_000_000,
                        error_file: ErrorFile::Absent,
                        stderr_tail: Vec::new(),
                    };
                    let node = NodeIdentity { host: "n1", group_rank: 1 };
                    let ends = failures.iter().map(end);
                    let failures: Vec<_> = ends.map(|end| ProcessFailure::new(node, end)).collect();
                    let failure = WorkerGroupFailure::new("train.py", failures).expect("a failure");
                    (self.watch)(self.now, &self.machine, Happened::Failed(&failure));
                }
                _ => {}
            }
        }
        self
    }

    pub(crate) fn meets(&mut self, millis: u64) -> &mut Self {
        let round = Round { group_rank: 1, group_world_size: 3, number: Some(0), reports_deaths: true };
        self.after(millis, Input::Joined { call: self.call, round })
    }

    pub(crate) fn numbered(&mut self, millis: u64) -> &mut Self {
        let ranks = Ranks { global_rank_first: 4, world_size: 6, role_rank_first: 2, role_world_size: 5 };
        self.after(millis, Input::Assigned { call: self.call, ranks })
    }

    /// Starts both workers, with process IDs that depend on the attempt.
    pub(crate) fn starts(&mut self, millis: u64) -> &mut Self {
        let pid = 100 + 10 * u32::try_from(self.machine.group().attempt).expect("few");
        self.after(millis, Input::Worker(WorkerEvent::Started { local_rank: 0, pid }));
        self.after(0, Input::Worker(WorkerEvent::Started { local_rank: 1, pid: pid + 1 }))
    }

    pub(crate) fn exits(&mut self, millis: u64, local_rank: u32, exit: ExitStatus) -> &mut Self {
        let at = self.now + Duration::from_millis(millis);
        self.after(
            millis,
            Input::Worker(WorkerEvent::Exited { local_rank, exit, at, was_ending: false, returned: None }),
        )
    }

    pub(crate) fn parts(&mut self, millis: u64) -> &mut Self {
        self.after(millis, Input::ExitBarrierPassed { call: self.call })
    }

    pub(crate) fn closes(&mut self, millis: u64) -> &mut Self {
        self.after(millis, Input::Closed { call: self.call })
    }
}
