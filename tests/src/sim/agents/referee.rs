//! Referee: what must hold in every run. It sees the inputs and outputs of each agent's machine, and knows what really
//! happened to workers, sessions and rounds.

use super::crew::{Cause, End};
use super::plan::Mishap;
use super::world::{Life, World};
use rendezvous_agent::group::WorkerGroup;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::{NoRound, Reason};
use rendezvous_agent::supervisor::{Failed, Input, Membership, Notice, Outcome};
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

pub(super) type Checked = Result<(), String>;

macro_rules! check {
    ($holds:expr, $($said:tt)*) => {
        if !$holds {
            return Err(format!($($said)*));
        }
    };
}

/// What the referee remembers of one agent.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Mishaps of the agent, or of its node.
    pub(super) mishaps: Vec<Mishap>,
    /// When it first got a request to stop.
    stopped: Option<Instant>,
    starts: u64,
    paid: u32,
    /// The budget that was left when the last start began.
    budget_at_start: u32,
    /// Whether the last charge to the budget may be due to a peer's death.
    is_excusable: bool,
    /// Whether it was notified of a peer's death while it stopped its group.
    peer_died: bool,
    /// Whether processes of this start were given up.
    gave_up: bool,
    /// When the workers of the last start were first asked to end.
    asked_to_end_at: Option<Instant>,
    last_received_at: Vec<Membership>,
    no_round: Option<NoRound>,
    no_ranks: bool,
    exit_barrier_failed: bool,
    announced: bool,
    /// The rounds in which all its workers succeeded.
    succeeded_in: BTreeSet<(u32, u64)>,
    /// The round of its last start.
    last_job: Option<(u32, u64)>,
    /// Ends of the workers of the last start, to compare with the report.
    ends: BTreeMap<u32, End>,
    /// Workers of the last start whose timers had expired. They count as failed, even if they were asked to end
    /// afterwards.
    overdue: BTreeSet<u32>,
}

/// State of a machine before an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    phase: Phase,
    restarts_left: u32,
    /// Whether its outcome is still open.
    is_open: bool,
}

/// Longest time that an agent takes to end when all its workers have ended: all its calls have deadlines of their own.
const CALLS_MAX: Duration = Duration::from_secs(60);

impl World {
    pub(super) fn before(&self, at: usize) -> Before {
        let machine = self.agents[at].machine();
        let (phase, restarts_left) = (machine.phase(), machine.restarts_left());
        Before { phase, restarts_left, is_open: machine.outcome().is_none() }
    }

    /// Notes an input before the machine handles it.
    pub(super) fn note_input(&mut self, at: usize, input: &Input) {
        let now = self.sim.now;
        let phase = self.agents[at].machine().phase();
        let ledger = &mut self.agents[at].ledger;
        match input {
            Input::Stop(_) => {
                ledger.stopped.get_or_insert(now);
            }
            Input::Member(membership) => {
                ledger.peer_died |=
                    phase == Phase::Restarting && matches!(membership, Membership::PeerDied { .. });
                ledger.last_received_at.push(membership.clone());
            }
            Input::Worker(WorkerEvent::TimerExpired(timer)) => ledger.overdue.extend(timer.local_rank),
            Input::NotJoined { kind, .. } => ledger.no_round = Some(*kind),
            Input::NotAssigned { .. } => ledger.no_ranks = true,
            Input::ExitBarrierFailed { .. } => ledger.exit_barrier_failed = true,
            _ => {}
        }
    }

    /// Checks the machine after an input.
    pub(super) fn check_input(&mut self, at: usize, before: Before, input: Option<&Input>) -> Checked {
        let machine = self.agents[at].machine();
        let (left, phase) = (machine.restarts_left(), machine.phase());
        let max = machine.spec().max_restarts;
        let ledger = &mut self.agents[at].ledger;
        // The budget.
        if left < before.restarts_left {
            let is_local = match input {
                Some(Input::Worker(WorkerEvent::Exited { exit, .. })) => !exit.is_success(),
                Some(
                    Input::Worker(WorkerEvent::NotStarted { .. })
                    | Input::Worker(WorkerEvent::TimerExpired(_))
                    | Input::Worker(WorkerEvent::GroupLost { .. }),
                ) => true,
                Some(Input::Member(Membership::SessionEnded { .. })) => true,
                Some(Input::NotAssigned { .. }) => {
                    let has_happened = ledger.mishaps.contains(&Mishap::NotNumbered);
                    check!(
                        has_happened || !self.is_even_dead(at),
                        "budget: {at} paid for the end of a round"
                    );
                    true
                }
                _ => false,
            };
            check!(is_local, "budget: {at} paid for {input:?}");
            self.agent_counts.paid += 1;
            let ledger = &mut self.agents[at].ledger;
            ledger.is_excusable = match input {
                Some(Input::Worker(WorkerEvent::Exited { exit, .. })) => !exit.is_violent(),
                input => matches!(input, Some(Input::Worker(WorkerEvent::TimerExpired(_)))),
            };
            ledger.paid += 1;
            check!(ledger.paid <= max, "budget: {at} paid {} times of {max}", ledger.paid);
        } else if left > before.restarts_left {
            let is_death = matches!(input, Some(Input::Member(Membership::PeerDied { .. })));
            check!(is_death && before.phase == Phase::Restarting, "budget: {at} was given one for {input:?}");
            ledger.paid -= 1;
            self.agent_counts.excused += 1;
        } else if phase == Phase::Restarting && before.phase != Phase::Restarting {
            self.agent_counts.unpaid += 1;
        }
        let ledger = &self.agents[at].ledger;
        check!(left + ledger.paid == max, "budget: {at} has {left} left of {max} and paid {}", ledger.paid);
        let is_local =
            |end: &End| end.exit.is_violent() && !matches!(end.cause, Cause::Requested | Cause::Killed);
        let is_excused = ledger.is_excusable && !ledger.ends.values().any(is_local);
        if before.phase == Phase::Restarting && phase == Phase::Meeting && ledger.peer_died && is_excused {
            check!(left == ledger.budget_at_start, "budget: {at} paid for the death of a peer");
        }
        if before.phase == Phase::Ending && before.is_open {
            let is_death = matches!(input, Some(Input::Member(Membership::PeerDied { .. })));
            let continues_in = matches!(phase, Phase::Restarting | Phase::Meeting);
            check!(is_death == continues_in, "budget: {at} was in doubt, got {input:?} and is {phase:?}");
            self.agent_counts.excused += u64::from(is_death);
        }
        if phase != Phase::Restarting {
            self.agents[at].ledger.peer_died = false;
        }
        // An agent that was asked to stop begins nothing new.
        let ledger = &self.agents[at].ledger;
        if let Some(stopped) = ledger.stopped {
            let ends = matches!(phase, Phase::ExitBarrier | Phase::Ending | Phase::Closing | Phase::Over);
            check!(ends, "stop: {at} was asked to stop at {stopped:?} and is {phase:?}");
        }
        Ok(())
    }

    /// Returns whether the ranks of this round could not be assigned because the round had ended.
    fn is_even_dead(&self, at: usize) -> bool {
        self.agents[at].stale_numbers
    }

    pub(super) fn check_start(&mut self, at: usize, group: &WorkerGroup, job: Option<(u32, u64)>) -> Checked {
        let agent = &self.agents[at];
        let gave_up = agent.ledger.gave_up;
        check!(
            agent.crew.unended() == 0 || gave_up,
            "attempts: {at} starts {} and others live",
            group.attempt
        );
        check!(group.attempt == agent.ledger.starts, "attempts: {at} starts {} again", group.attempt);
        let Some(job) = job else { return Err(format!("ranks: {at} starts without a round")) };
        let seats = self.jobs.get(&job);
        let seats =
            seats.ok_or_else(|| format!("ranks: {at} starts in round {job:?}, which was not formed"))?;
        let slot = seats.members.iter().position(|&(member, ..)| member == at);
        let slot = slot.ok_or_else(|| format!("ranks: {at} is not in round {job:?}"))?;
        let (_, first, size) = seats.members[slot];
        check!(group.round == Some(job.1), "ranks: {at} starts in round {:?}, not {}", group.round, job.1);
        check!(
            (group.group_rank, group.group_world_size) == (Some(slot as u64), seats.members.len() as u64),
            "ranks: {at} is agent {:?} of {}, not {slot}",
            group.group_rank,
            group.group_world_size
        );
        let ranks: Vec<u64> = group.workers.iter().map(|worker| worker.global_rank).collect();
        let local: Vec<u64> = (first..first + size).collect();
        check!(ranks == local, "ranks: {at} starts {ranks:?} in round {job:?}, not {local:?}");
        for worker in &group.workers {
            let sizes = (worker.world_size, worker.role_world_size, worker.role_rank);
            check!(
                sizes == (seats.world_size, seats.world_size, worker.global_rank),
                "ranks: worker {} of {at} got {sizes:?} of {}",
                worker.local_rank,
                seats.world_size
            );
        }
        let max = agent.machine().spec().max_restarts;
        let paid = agent.ledger.paid;
        check!(
            group.restart_count == paid && paid <= max,
            "budget: {at} starts as {} of {paid}",
            group.restart_count
        );
        let left = agent.machine().restarts_left();
        self.agent_counts.starts += 1;
        let ledger = &mut self.agents[at].ledger;
        ledger.starts += 1;
        ledger.budget_at_start = left;
        ledger.gave_up = false;
        ledger.asked_to_end_at = None;
        ledger.is_excusable = false;
        ledger.last_job = Some(job);
        ledger.ends.clear();
        ledger.overdue.clear();
        Ok(())
    }

    /// Checks that the slots of a round leave no gap.
    pub(super) fn check_round(&self, key: (u32, u64)) -> Checked {
        let Some(job) = self.jobs.get(&key) else { return Ok(()) };
        let mut next = 0;
        for &(agent, first, size) in &job.members {
            check!(
                first == next,
                "ranks: in round {key:?} the workers of {agent} begin at {first}, not {next}"
            );
            next += size;
        }
        check!(next == job.world_size, "ranks: round {key:?} has {next} workers of {}", job.world_size);
        Ok(())
    }

    pub(super) fn check_notice(&mut self, at: usize, notice: &Notice) {
        match notice {
            Notice::GaveUp { .. } => {
                self.agent_counts.given_up += 1;
                self.agents[at].ledger.gave_up = true;
            }
            Notice::Killing { .. } => self.agent_counts.killed += 1,
            Notice::Exited { local_rank, .. } => {
                let slot = usize::try_from(*local_rank).unwrap_or(usize::MAX);
                let agent = &mut self.agents[at];
                let end = agent.crew.workers.get(slot).and_then(|worker| worker.end);
                agent.ledger.ends.extend(end.map(|end| (*local_rank, end)));
            }
            Notice::Phase { to: Phase::Restarting | Phase::Ending, .. } => {
                let now = self.sim.now;
                self.agents[at].ledger.asked_to_end_at.get_or_insert(now);
            }
            Notice::Phase { to: Phase::ExitBarrier, .. } => {
                let agent = &mut self.agents[at];
                if agent.crew.has_succeeded() {
                    agent.ledger.succeeded_in.extend(agent.crew.job);
                }
            }
            _ => {}
        }
    }

    pub(super) fn check_report(&mut self, at: usize, failures: &[Failed]) -> Checked {
        let ledger = &self.agents[at].ledger;
        for failed in failures {
            let end = ledger.ends.get(&failed.local_rank);
            let end = end.ok_or_else(|| format!("report: worker {} of {at} lives", failed.local_rank))?;
            check!(
                (end.exit, end.at) == (failed.exit, failed.at),
                "report: worker {} of {at} ended otherwise: {end:?}",
                failed.local_rank
            );
            check!(
                !matches!(end.cause, Cause::Requested | Cause::Killed)
                    || end.exit.is_crash() && !end.exit.is_killed()
                    || ledger.overdue.contains(&failed.local_rank),
                "report: worker {} of {at} was asked to end, and is listed",
                failed.local_rank
            );
        }
        // The order: killed or crashed before any worker was asked to end; ended by itself; crashed while it was
        // ending.
        let reported = ledger.asked_to_end_at;
        let key = |failed: &Failed| {
            let was_stopped = reported.is_some_and(|reported| reported < failed.at);
            let class = match failed.exit {
                exit if exit.is_killed() => 0,
                exit if exit.is_crash() && was_stopped => 2,
                exit if exit.is_violent() => 0,
                _ => 1,
            };
            (class, failed.at)
        };
        let root = failures.iter().map(key).min();
        check!(
            failures.first().map(key) == root,
            "report: the root cause of {at} is not the first: {failures:?}"
        );
        self.agent_counts.failed_workers += failures.len() as u64;
        Ok(())
    }

    /// Checks an agent that closes the run.
    pub(super) fn check_close(&self, at: usize) -> Checked {
        let outcome = self.agents[at].machine().outcome();
        let may =
            self.agents[at].ledger.announced || matches!(outcome, Some(Outcome::Succeeded { missing: None }));
        check!(may, "close: {at} closes the run with {outcome:?}");
        Ok(())
    }

    pub(super) fn note_announced(&mut self, at: usize) {
        self.agents[at].ledger.announced = true;
    }

    /// Checks an agent that has ended.
    pub(super) fn check_over(&mut self, at: usize) -> Checked {
        let agent = &self.agents[at];
        let (machine, ledger) = (agent.machine(), &agent.ledger);
        let living = agent.crew.unended();
        check!(living == 0 || ledger.gave_up, "orphans: {at} is over and {living} of its workers live");
        let Some(outcome) = machine.outcome() else {
            return Err(format!("end: {at} is over without a verdict"));
        };
        match outcome {
            Outcome::Succeeded { missing: None } => {
                self.agent_counts.succeeded += 1;
                let Some(job) = ledger.last_job else {
                    return Err(format!("verdict: {at} succeeded in no round"));
                };
                let seats = self.jobs.get(&job).map(|job| job.members.clone()).unwrap_or_default();
                for (other, ..) in seats {
                    let has = self.agents[other].ledger.succeeded_in.contains(&job);
                    check!(
                        has,
                        "barrier: {at} closes round {job:?} as a success, and {other} has not succeeded"
                    );
                }
            }
            Outcome::Succeeded { missing: Some(reason) } => {
                self.agent_counts.succeeded_alone += 1;
                check!(
                    ledger.last_job.is_some_and(|job| ledger.succeeded_in.contains(&job)),
                    "verdict: {at} has not succeeded"
                );
                check!(self.has_happened(at, reason), "reason: {at} missed others for {reason:?}");
            }
            Outcome::NotNeeded => {
                self.agent_counts.not_needed += 1;
                check!(agent.ledger.no_round == Some(NoRound::NotNeeded), "verdict: {at} was needed");
            }
            Outcome::Stopped { .. } => {
                self.agent_counts.stopped += 1;
                check!(ledger.stopped.is_some(), "reason: {at} was not asked to stop");
            }
            Outcome::Failed { reason } => {
                self.agent_counts.failed += 1;
                check!(
                    self.has_happened(at, reason),
                    "reason: {at} failed for {reason:?}, which did not happen"
                );
            }
            Outcome::GuardLost { .. } => {
                self.agent_counts.guard_lost += 1;
                check!(ledger.mishaps.contains(&Mishap::GuardLost), "reason: {at} saw its workers");
            }
        }
        if let Some(stopped) = ledger.stopped {
            let spec = machine.spec();
            let longest = spec.stop_timeout + spec.kill_timeout + CALLS_MAX;
            let took = self.sim.now.since(stopped);
            check!(took <= longest, "stop: {at} took {took:?} to stop");
        }
        Ok(())
    }

    fn has_happened(&self, at: usize, reason: &Reason) -> bool {
        let ledger = &self.agents[at].ledger;
        let last_received_at =
            |wanted: &dyn Fn(&Membership) -> bool| ledger.last_received_at.iter().any(wanted);
        match reason {
            Reason::WorkerFailed { worker, exit } => {
                let end = ledger.ends.get(&worker.local_rank);
                end.is_some_and(|end| {
                    end.exit == *exit && matches!(end.cause, Cause::Mishap | Cause::MissedPeer)
                })
            }
            Reason::NotStarted { start_failure, .. } => {
                ledger.mishaps.contains(&Mishap::NotStarted(*start_failure))
            }
            Reason::Stuck { .. } => ledger.mishaps.iter().any(|mishap| matches!(mishap, Mishap::Stuck(_))),
            Reason::TimerExpired { .. } => ledger.mishaps.contains(&Mishap::TimerExpires),
            Reason::PeerRestarts { message } => {
                last_received_at(&|one| *one == Membership::PeerRestarts { message: message.clone() })
                    && self.agent_counts.paid > 0
            }
            Reason::PeerDied { message } => {
                last_received_at(&|one| *one == Membership::PeerDied { message: message.clone() })
            }
            Reason::RoundOver { message } => {
                last_received_at(&|one| *one == Membership::RoundOver { message: message.clone() })
            }
            Reason::JobFailed { message } => {
                // A node that requests another round of a closed run also ends the job.
                let was_refused = message.ends_with("the run is closed");
                last_received_at(&|one| *one == Membership::JobFailed { message: message.clone() })
                    && (was_refused || self.agents.iter().any(|agent| agent.ledger.announced))
            }
            Reason::SessionEnded { .. } => {
                last_received_at(&|one| matches!(one, Membership::SessionEnded { .. }))
            }
            Reason::ServerLost { .. } => {
                last_received_at(&|one| matches!(one, Membership::ServerLost { .. }))
            }
            Reason::NodesWaiting { .. } => {
                last_received_at(&|one| matches!(one, Membership::NodesWaiting { .. }))
            }
            Reason::Excluded => last_received_at(&|one| *one == Membership::Excluded),
            Reason::Replaced => last_received_at(&|one| *one == Membership::Replaced),
            Reason::NoRound { kind, .. } => ledger.no_round == Some(*kind),
            Reason::NoRanks { .. } => ledger.no_ranks,
            // No start takes that long here.
            Reason::StartTimeout => false,
            Reason::ExitBarrierFailed { .. } => ledger.exit_barrier_failed,
            Reason::GroupLost { .. } => ledger.mishaps.contains(&Mishap::GroupLost),
            Reason::GuardLost { .. } => ledger.mishaps.contains(&Mishap::GuardLost),
            Reason::Stop(_) => ledger.stopped.is_some(),
            // No worker writes one here.
            Reason::ErrorWritten { .. } => false,
            Reason::LeftoverTimeout
            | Reason::Begun
            | Reason::Done
            | Reason::Succeeded
            | Reason::StopTimeout => false,
            Reason::GaveUp => ledger.gave_up,
        }
    }

    /// Checks that all agents have ended.
    pub(super) fn check_end(&mut self) -> Checked {
        self.agent_counts.agents = self.agents.len() as u64;
        for (at, agent) in self.agents.iter().enumerate() {
            check!(
                matches!(agent.life, Life::Over | Life::Dead),
                "end: {at} is {:?} at the end of time",
                agent.machine().phase()
            );
        }
        self.agent_counts.dead = self.agents.iter().filter(|agent| agent.life == Life::Dead).count() as u64;
        // If all workers of a round succeeded and none began again, all its agents have succeeded.
        for (key, job) in &self.jobs {
            let is_done = job.members.iter().all(|&(agent, ..)| {
                let ledger = &self.agents[agent].ledger;
                ledger.last_job == Some(*key) && ledger.succeeded_in.contains(key)
            });
            for &(agent, ..) in job.members.iter().filter(|_| is_done) {
                let is_excused =
                    self.agents[agent].life == Life::Dead || self.agents[agent].ledger.stopped.is_some();
                let outcome = self.agents[agent].machine().outcome();
                check!(
                    is_excused || matches!(outcome, Some(Outcome::Succeeded { .. })),
                    "success: all workers of round {key:?} succeeded, and {agent} ended with {outcome:?}"
                );
            }
        }
        // If workers depend on each other, those of a group that restarts for a newcomer are missed by others.
        let is_calm = !self.plan.is_collective || self.agent_counts.unpaid == 0;
        let is_clean = self.agents.iter().all(|agent| agent.ledger.mishaps.is_empty());
        let is_clean = is_clean && is_calm && !self.is_short_handed;
        for (at, agent) in self.agents.iter().enumerate().filter(|_| is_clean) {
            let outcome = agent.machine().outcome();
            let is_well = matches!(outcome, Some(Outcome::Succeeded { .. } | Outcome::NotNeeded));
            // An agent that starts after the run was closed finds no round.
            let is_too_late = matches!(
                outcome,
                Some(Outcome::Failed { reason: Reason::NoRound { .. } }) if agent.ledger.starts == 0
            );
            check!(is_well || is_too_late, "clean: nothing went wrong, and {at} ended with {outcome:?}");
        }
        Ok(())
    }
}
