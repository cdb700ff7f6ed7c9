//! Workers of the agents, and how they depend on each other: those of one round work together.

use super::plan::Mishap;
use super::world::{Cue, Stage, World};
use rendezvous_agent::group::{ExitStatus, WorkerGroup};
use rendezvous_agent::reason::StartFailure;
use rendezvous_agent::supervisor::Input;
use rendezvous_agent::watchdog::ExpiredTimer;
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
    Dragged,
    /// Its agent had asked it to end.
    Known,
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
pub(super) struct Hand {
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
    pub(super) hands: Vec<Hand>,
    /// The job that the workers of this attempt belong to.
    pub(super) job: Option<(u32, u64)>,
    /// Whether a process that they have left still lives.
    leftover: bool,
    reported: Option<i32>,
    is_killed: bool,
    is_awaited: bool,
    heard_until: Instant,
    pids: u32,
    /// Failure of the next start.
    start_failure: Option<StartFailure>,
    /// Whether the guard that starts workers is missing.
    is_unguarded: bool,
}

impl Crew {
    fn lives(&self) -> bool {
        self.hands.iter().any(|hand| hand.state != State::Dead)
    }

    pub(super) fn living(&self) -> usize {
        self.hands.iter().filter(|hand| hand.state == State::Alive).count()
    }

    pub(super) fn unended(&self) -> usize {
        self.hands.iter().filter(|hand| hand.state != State::Dead).count()
    }

    pub(super) fn has_succeeded(&self) -> bool {
        let done = |hand: &Hand| hand.end.is_some_and(|end| end.exit.is_success());
        !self.hands.is_empty() && self.hands.iter().all(done)
    }

    /// Reports an input to the agent, a little later and in order.
    fn report(&mut self, stage: &mut Stage, at: usize, input: Input) {
        let attempt = self.attempt.unwrap_or_default();
        self.heard_until = (stage.now + stage.sim_rng.span(Duration::ZERO, ms(3))).max(self.heard_until);
        stage.agenda.enter(self.heard_until, Cue::Seen(at, attempt, input));
    }

    fn report_if_empty(&mut self, stage: &mut Stage, at: usize) {
        if self.is_awaited && !self.lives() && !self.leftover {
            self.is_awaited = false;
            self.report(stage, at, Input::Empty);
        }
    }

    /// Schedules the end of a worker, in place of any end that was scheduled before.
    fn doom(
        &mut self,
        stage: &mut Stage,
        at: usize,
        slot: usize,
        (exit, cause): (ExitStatus, Cause),
        after: Duration,
    ) {
        let hand = &mut self.hands[slot];
        let when = (stage.now + after).max(hand.stuck_until.unwrap_or(Instant::ORIGIN));
        hand.ticket += 1;
        hand.is_ending = true;
        let cue = CrewCue::End { slot, ticket: hand.ticket, exit, cause };
        stage.agenda.enter(when, Cue::Crew(at, self.attempt.unwrap_or_default(), cue));
    }

    fn tell_to_end(&mut self, stage: &mut Stage, at: usize, slot: usize, signal: i32) {
        let hand = &self.hands[slot];
        if hand.state != State::Alive || hand.is_stubborn {
            return;
        }
        let exit = match stage.sim_rng.index(10) {
            0..7 => ExitStatus::Signal(signal),
            7 => ExitStatus::Code(0),
            8 => ExitStatus::Code(143),
            _ => ExitStatus::Signal(6),
        };
        let after = stage.sim_rng.span(Duration::ZERO, ms(2000));
        self.doom(stage, at, slot, (exit, Cause::Known), after);
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
        let stage = &mut self.stage;
        crew.attempt = Some(group.attempt);
        crew.job = job;
        crew.hands.clear();
        (crew.reported, crew.is_killed, crew.is_awaited) = (None, false, false);
        if crew.is_unguarded {
            return;
        }
        crew.leftover = stage.sim_rng.percent(untidy);
        let hindered = crew
            .start_failure
            .take()
            .map(|start_failure| (stage.sim_rng.index(group.workers.len()), start_failure));
        let mut after = Duration::ZERO;
        for slot in 0..group.workers.len() {
            crew.pids += 1;
            let hand = Hand {
                state: State::Requested,
                end: None,
                pid: crew.pids,
                ticket: 0,
                is_stubborn: stage.sim_rng.percent(stubborn),
                is_ending: false,
                stuck_until: None,
            };
            crew.hands.push(hand);
            after += stage.sim_rng.span(ms(1), ms(80));
            if let Some((_, start_failure)) = hindered.filter(|(hindered, _)| *hindered == slot) {
                crew.hands[slot].state = State::Dead;
                let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
                let message = "no process could be created".into();
                crew.report(stage, at, Input::NotStarted { local_rank, start_failure, message });
            } else {
                let up = Cue::Crew(at, group.attempt, CrewCue::Up { slot });
                stage.agenda.enter(stage.now + after, up);
            }
        }
    }

    /// Passes an order of the agent to its workers, which get it after a moment.
    pub(super) fn order(&mut self, at: usize, order: CrewCue) {
        let attempt = self.agents[at].crew.attempt.unwrap_or_default();
        self.stage.agenda.enter(self.stage.now + Duration::from_micros(100), Cue::Crew(at, attempt, order));
    }

    pub(super) fn crew(&mut self, at: usize, attempt: u64, cue: CrewCue) {
        let crew = &mut self.agents[at].crew;
        if crew.attempt.unwrap_or_default() != attempt {
            return;
        }
        let stage = &mut self.stage;
        match cue {
            CrewCue::Up { slot } if crew.hands[slot].state == State::Requested => {
                let hand = &mut crew.hands[slot];
                hand.state = State::Alive;
                let (pid, local_rank) = (hand.pid, u32::try_from(slot).unwrap_or(u32::MAX));
                crew.report(stage, at, Input::Started { local_rank, pid });
                if crew.is_killed {
                    crew.doom(stage, at, slot, (ExitStatus::Signal(SIGKILL), Cause::Killed), ms(1));
                } else if let Some(signal) = crew.reported {
                    crew.tell_to_end(stage, at, slot, signal);
                }
                self.came_up(at, slot);
            }
            CrewCue::Up { .. } => {}
            CrewCue::End { slot, ticket, exit, cause } => {
                if crew.hands[slot].ticket == ticket && crew.hands[slot].state == State::Alive {
                    self.end_worker(at, slot, exit, cause);
                }
            }
            CrewCue::Signal(signal) => {
                // A process that workers leave behind behaves like the first of them.
                crew.leftover &= crew.hands.first().is_some_and(|hand| hand.is_stubborn);
                crew.reported = Some(signal);
                crew.is_awaited = true;
                for slot in 0..crew.hands.len() {
                    if !crew.hands[slot].is_ending || crew.hands[slot].stuck_until.is_none() {
                        crew.tell_to_end(stage, at, slot, signal);
                    }
                }
                crew.report_if_empty(stage, at);
            }
            CrewCue::Kill => {
                crew.leftover = false;
                crew.is_killed = true;
                crew.is_awaited = true;
                for slot in 0..crew.hands.len() {
                    if crew.hands[slot].state == State::Alive {
                        crew.doom(stage, at, slot, (ExitStatus::Signal(SIGKILL), Cause::Killed), ms(1));
                    }
                }
                crew.report_if_empty(stage, at);
            }
        }
    }

    /// Handles that a worker has started. It works as soon as all that it depends on have started.
    fn came_up(&mut self, at: usize, slot: usize) {
        let work = self.plan.work;
        let Some(key) = self.agents[at].crew.job else { return };
        if !self.plan.is_collective {
            let skew = self.stage.sim_rng.span(Duration::ZERO, work);
            return self.let_work(at, slot, work + skew);
        }
        let Some(job) = self.jobs.get(&key) else { return };
        if job.is_broken {
            return self.drag(at, slot);
        }
        let members = job.members.clone();
        let is_complete = members.iter().all(|&(agent, _, size)| {
            let crew = &self.agents[agent].crew;
            crew.job == Some(key) && crew.living() as u64 == size
        });
        if !is_complete {
            return;
        }
        let skew_max = if self.stage.sim_rng.percent(80) { ms(20) } else { ms(3000) };
        for (agent, ..) in members {
            for slot in 0..self.agents[agent].crew.hands.len() {
                let skew = self.stage.sim_rng.span(Duration::ZERO, skew_max);
                self.let_work(agent, slot, work + skew);
            }
        }
    }

    fn let_work(&mut self, at: usize, slot: usize, span: Duration) {
        let crew = &mut self.agents[at].crew;
        if !crew.hands[slot].is_ending {
            crew.doom(&mut self.stage, at, slot, (ExitStatus::Code(0), Cause::Done), span);
            // Until then any mishap may end it.
            crew.hands[slot].is_ending = false;
        }
    }

    /// Lets a worker miss another one: it fails, or waits for ever.
    fn drag(&mut self, at: usize, slot: usize) {
        let crew = &mut self.agents[at].crew;
        let hand = &mut crew.hands[slot];
        if hand.state != State::Alive || hand.is_ending {
            return;
        }
        if self.stage.sim_rng.percent(60) {
            let exit = self.stage.sim_rng.pick(&[ExitStatus::Code(1), ExitStatus::Signal(6)]);
            let after = self.stage.sim_rng.span(Duration::ZERO, ms(5));
            crew.doom(&mut self.stage, at, slot, (exit, Cause::Dragged), after);
        } else {
            // Cancels the scheduled end.
            hand.ticket += 1;
        }
    }

    fn end_worker(&mut self, at: usize, slot: usize, exit: ExitStatus, cause: Cause) {
        let now = self.stage.now;
        let agent = &mut self.agents[at];
        let hears = agent.hears();
        let crew = &mut agent.crew;
        let hand = &mut crew.hands[slot];
        hand.state = State::Dead;
        hand.end = Some(End { exit, cause, at: now });
        self.stage.note(format_args!("{at} worker {slot} ends: {exit:?}, {cause:?}"));
        if hears && cause != Cause::Orphaned {
            let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
            crew.report(&mut self.stage, at, Input::Exited { local_rank, exit, at: now, was_ending: false });
            crew.report_if_empty(&mut self.stage, at);
        }
        if !exit.is_success() || cause == Cause::Known {
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
                for slot in 0..self.agents[agent].crew.hands.len() {
                    self.drag(agent, slot);
                }
            }
        }
    }

    /// Ends all workers at once, without any report.
    pub(super) fn orphan(&mut self, at: usize) {
        for slot in 0..self.agents[at].crew.hands.len() {
            if self.agents[at].crew.hands[slot].state != State::Dead {
                self.end_worker(at, slot, ExitStatus::Signal(SIGKILL), Cause::Orphaned);
            }
        }
    }

    /// Applies a mishap to the workers of an agent.
    pub(super) fn hurt(&mut self, at: usize, mishap: Mishap) {
        let crew = &mut self.agents[at].crew;
        if let Mishap::NotStarted(start_failure) = mishap {
            crew.start_failure = Some(start_failure);
            return;
        }
        if mishap == Mishap::GroupLost {
            crew.leftover = false;
            self.orphan(at);
            let crew = &mut self.agents[at].crew;
            crew.is_awaited = false;
            crew.report(&mut self.stage, at, Input::GroupLost { message: "the guard was killed".into() });
            return crew.report(&mut self.stage, at, Input::Empty);
        }
        if mishap == Mishap::GuardLost {
            (crew.leftover, crew.is_unguarded) = (false, true);
            self.orphan(at);
            let crew = &mut self.agents[at].crew;
            crew.report(&mut self.stage, at, Input::GuardLost { message: "the guard is gone".into() });
            return crew.report(&mut self.stage, at, Input::Empty);
        }
        let alive: Vec<usize> = (0..crew.hands.len())
            .filter(|&slot| crew.hands[slot].state == State::Alive && crew.hands[slot].stuck_until.is_none())
            .collect();
        if alive.is_empty() {
            return;
        }
        let slot = alive[self.stage.sim_rng.index(alive.len())];
        let local_rank = u32::try_from(slot).unwrap_or(u32::MAX);
        match mishap {
            Mishap::WorkerEnds(exit) | Mishap::NeighboursEnd(exit) => {
                self.end_worker(at, slot, exit, Cause::Mishap);
            }
            Mishap::Stuck(span) => {
                crew.hands[slot].stuck_until = Some(self.stage.now + span);
                crew.hands[slot].ticket += 1;
                crew.report(&mut self.stage, at, Input::Stuck { local_rank, since: span });
            }
            Mishap::TimerExpires => {
                let timer = ExpiredTimer {
                    pid: crew.hands[slot].pid,
                    local_rank: Some(local_rank),
                    scope: "step".into(),
                    expires: Duration::ZERO,
                    span: Duration::ZERO,
                    signal: SIGKILL,
                };
                crew.report(&mut self.stage, at, Input::TimerExpired(timer));
                crew.doom(&mut self.stage, at, slot, (ExitStatus::Signal(SIGKILL), Cause::Mishap), ms(1));
            }
            _ => {}
        }
    }
}
