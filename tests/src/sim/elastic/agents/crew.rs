//! Simulated workers of an agent.

use super::super::super::world::{SimContext, WorldEvent};
use super::super::Cue;
use super::AgentCue;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_agent::group::ExitStatus;
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Requested,
    Lives,
    Over(ExitStatus),
}

#[derive(Clone, Copy, Debug)]
struct SimWorker {
    state: State,
    /// How it will end, and the number of that plan.
    plan: (ExitStatus, u32),
}

/// Workers of the last start.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// Host, and number of the agent.
    owner: (usize, u32),
    attempt: u64,
    workers: Vec<SimWorker>,
    /// Signal that the workers were sent.
    signal: Option<i32>,
    /// Whether the agent waits for the end of all.
    is_awaited: bool,
}

const SIGKILL: i32 = 9;

impl Crew {
    pub(super) fn new(owner: (usize, u32)) -> Self {
        Self { owner, ..Self::default() }
    }

    /// Returns whether a worker lives, or starts.
    pub(super) fn lives(&self) -> bool {
        self.workers.iter().any(|worker| !matches!(worker.state, State::Over(_)))
    }

    pub(super) fn has_succeeded(&self) -> bool {
        let is_good = |worker: &SimWorker| worker.state == State::Over(ExitStatus::Code(0));
        !self.workers.is_empty() && self.workers.iter().all(is_good)
    }

    /// Returns whether a worker has ended otherwise than with success.
    pub(super) fn has_failed(&self) -> bool {
        self.workers.iter().any(|worker| matches!(worker.state, State::Over(exit) if !exit.is_success()))
    }

    fn schedule(&self, context: &mut SimContext, after: Duration, cue: AgentCue) {
        let cue = Cue::Agent(self.owner.0, self.owner.1, cue);
        context.event_queue.schedule(context.now + after, WorldEvent::Elastic(cue));
    }

    pub(super) fn start(
        &mut self,
        context: &mut SimContext,
        sim_rng: &mut SimRng,
        (attempt, count): (u64, usize),
    ) {
        let worker = SimWorker { state: State::Requested, plan: (ExitStatus::Code(0), 0) };
        let workers = vec![worker; count];
        *self = Self { owner: self.owner, attempt, workers, signal: None, is_awaited: false };
        for slot in 0..count {
            let after = sim_rng.span(Duration::from_millis(1), Duration::from_millis(50));
            self.schedule(context, after, AgentCue::Up(attempt, slot));
        }
    }

    fn plan_exit(&mut self, context: &mut SimContext, slot: usize, exit: ExitStatus, after: Duration) {
        let worker = &mut self.workers[slot];
        worker.plan = (exit, worker.plan.1 + 1);
        let number = worker.plan.1;
        self.schedule(context, after, AgentCue::Exit(self.attempt, slot, number));
    }

    fn plan_stop(&mut self, context: &mut SimContext, sim_rng: &mut SimRng, slot: usize, signal: i32) {
        // Some take longer than the agent waits before it kills them.
        let slow = if sim_rng.percent(10) { 2000 } else { 300 };
        let longest = if signal == SIGKILL { 1 } else { slow };
        let after = sim_rng.span(Duration::from_micros(100), Duration::from_millis(longest));
        self.plan_exit(context, slot, ExitStatus::Signal(signal), after);
    }

    /// Handles that a worker has started. During the storm, some will fail.
    pub(super) fn up(
        &mut self,
        context: &mut SimContext,
        sim_rng: &mut SimRng,
        (attempt, slot): (u64, usize),
    ) -> Option<WorkerEvent> {
        if attempt != self.attempt || self.workers[slot].state != State::Requested {
            return None;
        }
        self.workers[slot].state = State::Lives;
        let work = sim_rng.span(Duration::from_millis(50), Duration::from_secs(4));
        match self.signal {
            Some(signal) => self.plan_stop(context, sim_rng, slot, signal),
            None => {
                let fails = context.stormy && sim_rng.percent(20);
                let failure = sim_rng.pick(&[ExitStatus::Code(1), ExitStatus::Signal(SIGKILL)]);
                let exit = if fails { failure } else { ExitStatus::Code(0) };
                self.plan_exit(context, slot, exit, work);
            }
        }
        let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
        Some(WorkerEvent::Started { local_rank, pid: 1000 + local_rank })
    }

    /// Sends all workers a signal.
    pub(super) fn stop(&mut self, context: &mut SimContext, sim_rng: &mut SimRng, signal: i32) {
        self.signal = Some(signal);
        self.is_awaited = true;
        for slot in 0..self.workers.len() {
            if self.workers[slot].state == State::Lives {
                self.plan_stop(context, sim_rng, slot, signal);
            }
        }
    }

    pub(super) fn kill(&mut self, context: &mut SimContext, sim_rng: &mut SimRng) {
        self.stop(context, sim_rng, SIGKILL);
    }

    /// Handles the end of a worker.
    pub(super) fn exit(
        &mut self,
        context: &SimContext,
        (attempt, slot, plan): (u64, usize, u32),
    ) -> Option<(WorkerEvent, ExitStatus)> {
        if attempt != self.attempt {
            return None;
        }
        let worker = &mut self.workers[slot];
        if worker.state != State::Lives || worker.plan.1 != plan {
            return None;
        }
        let exit = worker.plan.0;
        worker.state = State::Over(exit);
        let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
        let event =
            WorkerEvent::Exited { local_rank, exit, at: context.now, was_ending: false, returned: None };
        Some((event, exit))
    }

    /// Returns whether the agent is to be notified that no worker lives.
    pub(super) fn take_empty(&mut self) -> bool {
        let is_due = self.is_awaited && !self.lives();
        self.is_awaited &= !is_due;
        is_due
    }
}
