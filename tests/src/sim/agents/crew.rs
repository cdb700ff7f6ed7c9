//! Workers of the agents, and how they depend on each other: those of one round work together.

use super::plan::Mishap;
use super::world::{Cue, World};
use crate::sim::harness::timeline::Timeline;
use rendezvous_agent::group::{ExitStatus, WorkerGroup};
use rendezvous_agent::reason::StartFailure;
use rendezvous_agent::watchdog::ExpiredTimer;
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::time::{Duration, Instant};

const SIGKILL: i32 = 9;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Reason why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its work was done.
    Done,
    /// A mishap ended it.
    Mishap,
    /// It missed another worker.
    MissedPeer,
    /// Its agent had asked it to end.
    Requested,
    /// Its agent had killed it.
    Killed,
    /// Its agent had died or lost its guard.
    Orphaned,
}

/// End of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) exit: ExitStatus,
    pub(super) cause: Cause,
    pub(super) at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Requested,
    Alive,
    Dead,
}

/// One worker.
#[derive(Clone, Debug)]
pub(super) struct SimWorker {
    pub(super) state: State,
    pub(super) end: Option<End>,
    pid: u32,
    /// Number of the last event scheduled to end it. Earlier ones no longer apply.
    ticket: u32,
    is_stubborn: bool,
    is_ending: bool,
    /// It hangs in the kernel until then.
    stuck_until: Option<Instant>,
}

/// The workers of one agent.
#[derive(Debug, Default)]
pub(super) struct Crew {
    pub(super) attempt: Option<u64>,
    pub(super) workers: Vec<SimWorker>,
    /// The job that the workers of this attempt belong to.
    pub(super) job: Option<(u32, u64)>,
    /// Whether a process that they have left still lives.
    leftover: bool,
    reported: Option<i32>,
    is_killed: bool,
    is_awaited: bool,
    reported_until: Instant,
    pids: u32,
    /// Failure of the next start.
    start_failure: Option<StartFailure>,
    /// Number of killed guards whose loss the agent has not seen yet. The next guard ignores what was asked before.
    losses_unseen: u32,
    /// Whether the guard that starts workers is gone for good.
    is_unguarded: bool,
}

impl Crew {
    fn lives(&self) -> bool {
        self.workers.iter().any(|worker| worker.state != State::Dead)
    }

    /// Handles that the agent sees an event.
    pub(super) fn see(&mut self, event: &WorkerEvent) {
        if let WorkerEvent::GroupLost { .. } = event {
            self.losses_unseen -= 1;
        }
    }

    pub(super) fn living(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state == State::Alive).count()
    }

    pub(super) fn unended(&self) -> usize {
        self.workers.iter().filter(|worker| worker.state != State::Dead).count()
    }

    pub(super) fn has_succeeded(&self) -> bool {
        let done = |worker: &SimWorker| worker.end.is_some_and(|end| end.exit.is_success());
        !self.workers.is_empty() && self.workers.iter().all(done)
    }

    /// Reports an input to the agent, a little later and in order.
    fn report(&mut self, sim: &mut Timeline<Cue>, at: usize, event: WorkerEvent) {
        self.report_of(sim, at, Some(self.attempt.unwrap_or_default()), event);
    }

    /// Reports the loss of the guard, which concerns whatever attempt the agent has begun when it sees this.
    fn report_loss(&mut self, sim: &mut Timeline<Cue>, at: usize, loss: WorkerEvent) {
        self.is_awaited = false;
        self.report_of(sim, at, None, loss);
        self.report_of(sim, at, None, WorkerEvent::Empty);
    }

    fn report_of(&mut self, sim: &mut Timeline<Cue>, at: usize, attempt: Option<u64>, event: WorkerEvent) {
        self.reported_until = (sim.now + sim.sim_rng.span(Duration::ZERO, ms(3))).max(self.reported_until);
        sim.at(self.reported_until, Cue::Seen(at, attempt, event));
    }

    fn report_if_empty(&mut self, sim: &mut Timeline<Cue>, at: usize) {
        if self.is_awaited && !self.lives() && !self.leftover {
            self.is_awaited = false;
            self.report(sim, at, WorkerEvent::Empty);
        }
    }

    /// Schedules the end of a worker, in place of any end that was scheduled before.
    fn schedule_end(
        &mut self,
        sim: &mut Timeline<Cue>,
        at: usize,
        slot: usize,
        (exit, cause): (ExitStatus, Cause),
        after: Duration,
    ) {
        let worker = &mut self.workers[slot];
        let when = (sim.now + after).max(worker.stuck_until.unwrap_or(Instant::ORIGIN));
        worker.ticket += 1;
        worker.is_ending = true;
        let cue = CrewCue::End { slot, ticket: worker.ticket, exit, cause };
        sim.at(when, Cue::Crew(at, self.attempt.unwrap_or_default(), cue));
    }

    fn ask_to_end(&mut self, sim: &mut Timeline<Cue>, at: usize, slot: usize, signal: i32) {
        let worker = &self.workers[slot];
        if worker.state != State::Alive || worker.is_stubborn {
            return;
        }
        let exit = match sim.sim_rng.index(10) {
            0..7 => ExitStatus::Signal(signal),
            7 => ExitStatus::Code(0),
            8 => ExitStatus::Code(143),
            _ => ExitStatus::Signal(6),
        };
        let after = sim.sim_rng.span(Duration::ZERO, ms(2000));
        self.schedule_end(sim, at, slot, (exit, Cause::Requested), after);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CrewCue {
    Up { slot: usize },
    End { slot: usize, ticket: u32, exit: ExitStatus, cause: Cause },
    Signal(i32),
    Kill,
}

/// What the workers of a round have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    /// Agents by rank, each with where its workers begin and how many they are.
    pub(super) members: Vec<(usize, u64, u64)>,
    pub(super) world_size: u64,
    /// Whether a worker is missing, or will be.
    is_broken: bool,
}

impl World {
    pub(super) fn start(&mut self, at: usize, group: &WorkerGroup, job: Option<(u32, u64)>) {
        let stubborn = self.plan.stubborn;
        let untidy = self.plan.untidy;
        let crew = &mut self.agents[at].crew;
        let sim = &mut self.sim;
        crew.attempt = Some(group.attempt);
        crew.job = job;
        crew.workers.clear();
        (crew.reported, crew.is_killed, crew.is_awaited) = (None, false, false);
        if crew.is_unguarded || crew.losses_unseen > 0 {
            return;
        }
        crew.leftover = sim.sim_rng.percent(untidy);
        let failing = crew
            .start_failure
            .take()
            .map(|start_failure| (sim.sim_rng.index(group.workers.len()), start_failure));
        let mut after = Duration::ZERO;
        for slot in 0..group.workers.len() {
            crew.pids += 1;
            let worker = SimWorker {
                state: State::Requested,
                end: None,
                pid: crew.pids,
                ticket: 0,
                is_stubborn: sim.sim_rng.percent(stubborn),
                is_ending: false,
                stuck_until: None,
            };
            crew.workers.push(worker);
            after += sim.sim_rng.span(ms(1), ms(80));
            if let Some((_, start_failure)) = failing.filter(|(failing, _)| *failing == slot) {
                crew.workers[slot].state = State::Dead;
                let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
                let message = "no process could be created".into();
                crew.report(sim, at, WorkerEvent::NotStarted { local_rank, start_failure, message });
            } else {
                let up = Cue::Crew(at, group.attempt, CrewCue::Up { slot });
                sim.at(sim.now + after, up);
            }
        }
    }

    /// Passes an order of the agent to its workers, which get it after a moment.
    pub(super) fn order(&mut self, at: usize, order: CrewCue) {
        let attempt = self.agents[at].crew.attempt.unwrap_or_default();
        self.sim.at(self.sim.now + Duration::from_micros(100), Cue::Crew(at, attempt, order));
    }

    pub(super) fn crew(&mut self, at: usize, attempt: u64, cue: CrewCue) {
        let crew = &mut self.agents[at].crew;
        if crew.attempt.unwrap_or_default() != attempt {
            return;
        }
        let sim = &mut self.sim;
        match cue {
            CrewCue::Up { slot } if crew.workers[slot].state == State::Requested => {
                let worker = &mut crew.workers[slot];
                worker.state = State::Alive;
                let (pid, local_rank) = (worker.pid, u32::try_from(slot).unwrap_or(u32::MAX));
                crew.report(sim, at, WorkerEvent::Started { local_rank, pid });
                if crew.is_killed {
                    crew.schedule_end(sim, at, slot, (ExitStatus::Signal(SIGKILL), Cause::Killed), ms(1));
                } else if let Some(signal) = crew.reported {
                    crew.ask_to_end(sim, at, slot, signal);
                }
                self.came_up(at, slot);
            }
            CrewCue::Up { .. } => {}
            CrewCue::End { slot, ticket, exit, cause } => {
                if crew.workers[slot].ticket == ticket && crew.workers[slot].state == State::Alive {
                    self.end_worker(at, slot, exit, cause);
                }
            }
            CrewCue::Signal(signal) => {
                // A process that workers leave behind behaves like the first of them.
                crew.leftover &= crew.workers.first().is_some_and(|worker| worker.is_stubborn);
                crew.reported = Some(signal);
                crew.is_awaited = true;
                for slot in 0..crew.workers.len() {
                    if !crew.workers[slot].is_ending || crew.workers[slot].stuck_until.is_none() {
                        crew.ask_to_end(sim, at, slot, signal);
                    }
                }
                crew.report_if_empty(sim, at);
            }
            CrewCue::Kill => {
                crew.leftover = false;
                crew.is_killed = true;
                crew.is_awaited = true;
                for slot in 0..crew.workers.len() {
                    if crew.workers[slot].state == State::Alive {
                        crew.schedule_end(sim, at, slot, (ExitStatus::Signal(SIGKILL), Cause::Killed), ms(1));
                    }
                }
                crew.report_if_empty(sim, at);
            }
        }
    }

    /// Handles that a worker has started. It works as soon as all that it depends on have started.
    fn came_up(&mut self, at: usize, slot: usize) {
        let work = self.plan.work;
        let Some(key) = self.agents[at].crew.job else { return };
        if !self.plan.is_collective {
            let skew = self.sim.sim_rng.span(Duration::ZERO, work);
            return self.let_work(at, slot, work + skew);
        }
        let Some(job) = self.jobs.get(&key) else { return };
        if job.is_broken {
            return self.miss_peer(at, slot);
        }
        let members = job.members.clone();
        let is_complete = members.iter().all(|&(agent, _, size)| {
            let crew = &self.agents[agent].crew;
            crew.job == Some(key) && crew.living() as u64 == size
        });
        if !is_complete {
            return;
        }
        let skew_max = if self.sim.sim_rng.percent(80) { ms(20) } else { ms(3000) };
        for (agent, ..) in members {
            for slot in 0..self.agents[agent].crew.workers.len() {
                let skew = self.sim.sim_rng.span(Duration::ZERO, skew_max);
                self.let_work(agent, slot, work + skew);
            }
        }
    }

    fn let_work(&mut self, at: usize, slot: usize, span: Duration) {
        let crew = &mut self.agents[at].crew;
        if !crew.workers[slot].is_ending {
            crew.schedule_end(&mut self.sim, at, slot, (ExitStatus::Code(0), Cause::Done), span);
            // Until then any mishap may end it.
            crew.workers[slot].is_ending = false;
        }
    }

    /// Lets a worker miss another one: it fails, or waits for ever.
    fn miss_peer(&mut self, at: usize, slot: usize) {
        let crew = &mut self.agents[at].crew;
        let worker = &mut crew.workers[slot];
        if worker.state != State::Alive || worker.is_ending {
            return;
        }
        if self.sim.sim_rng.percent(60) {
            let exit = self.sim.sim_rng.pick(&[ExitStatus::Code(1), ExitStatus::Signal(6)]);
            let after = self.sim.sim_rng.span(Duration::ZERO, ms(5));
            crew.schedule_end(&mut self.sim, at, slot, (exit, Cause::MissedPeer), after);
        } else {
            // Cancels the scheduled end.
            worker.ticket += 1;
        }
    }

    fn end_worker(&mut self, at: usize, slot: usize, exit: ExitStatus, cause: Cause) {
        let now = self.sim.now;
        let agent = &mut self.agents[at];
        let is_supervised = agent.is_supervised();
        let crew = &mut agent.crew;
        let worker = &mut crew.workers[slot];
        worker.state = State::Dead;
        worker.end = Some(End { exit, cause, at: now });
        self.sim.note(format_args!("{at} worker {slot} ends: {exit:?}, {cause:?}"));
        if is_supervised && cause != Cause::Orphaned {
            let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
            crew.report(
                &mut self.sim,
                at,
                WorkerEvent::Exited { local_rank, exit, at: now, was_ending: false, returned: None },
            );
            crew.report_if_empty(&mut self.sim, at);
        }
        if !exit.is_success() || cause == Cause::Requested {
            self.break_job(at);
        }
    }

    /// Notes that a worker of this agent is missing, or will be. Those that depend on it notice.
    pub(super) fn break_job(&mut self, at: usize) {
        let Some(key) = self.agents[at].crew.job else { return };
        let Some(job) = self.jobs.get_mut(&key).filter(|_| self.plan.is_collective) else { return };
        if core::mem::replace(&mut job.is_broken, true) {
            return;
        }
        for (agent, ..) in job.members.clone() {
            if self.agents[agent].crew.job == Some(key) {
                for slot in 0..self.agents[agent].crew.workers.len() {
                    self.miss_peer(agent, slot);
                }
            }
        }
    }

    /// Ends all workers at once, without any report.
    pub(super) fn orphan(&mut self, at: usize) {
        for slot in 0..self.agents[at].crew.workers.len() {
            if self.agents[at].crew.workers[slot].state != State::Dead {
                self.end_worker(at, slot, ExitStatus::Signal(SIGKILL), Cause::Orphaned);
            }
        }
    }

    /// Applies a mishap to the workers of an agent.
    pub(super) fn apply_mishap(&mut self, at: usize, mishap: Mishap) {
        let crew = &mut self.agents[at].crew;
        if let Mishap::NotStarted(start_failure) = mishap {
            crew.start_failure = Some(start_failure);
            return;
        }
        if let Mishap::GroupLost | Mishap::GuardLost = mishap {
            crew.leftover = false;
            crew.is_unguarded |= mishap == Mishap::GuardLost;
            let loss = if crew.is_unguarded {
                WorkerEvent::GuardLost { message: "the guard is gone".into() }
            } else {
                crew.losses_unseen += 1;
                WorkerEvent::GroupLost { message: "the guard was killed".into() }
            };
            self.orphan(at);
            return self.agents[at].crew.report_loss(&mut self.sim, at, loss);
        }
        let alive: Vec<usize> = (0..crew.workers.len())
            .filter(|&slot| {
                crew.workers[slot].state == State::Alive && crew.workers[slot].stuck_until.is_none()
            })
            .collect();
        if alive.is_empty() {
            return;
        }
        let slot = alive[self.sim.sim_rng.index(alive.len())];
        let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
        match mishap {
            Mishap::WorkerEnds(exit) | Mishap::NeighboursEnd(exit) => {
                self.end_worker(at, slot, exit, Cause::Mishap);
            }
            Mishap::Stuck(span) => {
                crew.workers[slot].stuck_until = Some(self.sim.now + span);
                crew.workers[slot].ticket += 1;
                crew.report(&mut self.sim, at, WorkerEvent::Stuck { local_rank, since: span });
            }
            Mishap::TimerExpires => {
                let timer = ExpiredTimer {
                    pid: crew.workers[slot].pid,
                    local_rank: Some(local_rank),
                    scope: "step".into(),
                    expires: Duration::ZERO,
                    span: Duration::ZERO,
                    signal: SIGKILL,
                };
                crew.report(&mut self.sim, at, WorkerEvent::TimerExpired(timer));
                crew.schedule_end(
                    &mut self.sim,
                    at,
                    slot,
                    (ExitStatus::Signal(SIGKILL), Cause::Mishap),
                    ms(1),
                );
            }
            _ => {}
        }
    }
}
