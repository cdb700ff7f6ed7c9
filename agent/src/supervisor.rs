//! State machine of an agent's run loop.
//!
//! It joins the rendezvous, has the workers started, and decides how to react to a worker's death, a waiting node or a
//! signal. It starts no process and blocks on nothing: work to do leaves it as [`Output`], and results enter it as
//! [`Input`].
use rendezvous_core::prelude::*;

mod backoff;
mod blame;
mod exit_barrier;
mod input;
mod outcome;
mod stopping;
#[cfg(test)]
mod tests;

pub use input::{
    Failed, Input, InputError, LeaveMode, Left, Membership, Notice, Outcome, Output, Round, Timing,
};

use self::backoff::Backoff;
use self::exit_barrier::{Arrival, Unexplained};
use self::stopping::{Leftovers, StopStep, Stopping};
use super::group::{ExitStatus, WorkerGroup, WorkerState};
use super::phase::{Phase, PhaseEvent};
use super::reason::{NoRound, Reason, StartFailure, StopCause, WaitFailure};
use super::spec::{SpecError, WorkerSpec};
use super::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use rendezvous_core::time::{PauseDetector, Poller};

/// A failure with no restart left. It ends the job unless a peer's death caused it.
#[derive(Debug)]
struct PendingFailure {
    reason: Reason,
    /// End of the wait for the report of a peer's death. Without one until then, the failure stands as this group's
    /// own. The wait is equally long on every agent, so the first agent that failed is still the first to announce it.
    until: Instant,
}

/// Longest time between what the workers see of a peer's death and the report of that death to the agent. Workers see a
/// closed connection at once; the report takes one more round trip to the server.
const DEATH_NEWS_DELAY_MAX: Duration = Duration::from_millis(500);

/// Interval of the calls to `handle_timeout` while a deadline runs.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// A deadline of the current phase.
#[derive(Debug)]
struct Due {
    at: Instant,
    reason: Reason,
}

/// Starts that failed because the system lacked resources.
#[derive(Clone, Copy, Debug, Default)]
struct StartCapacity {
    /// Number of such starts in a row.
    lacks: u32,
    /// Number of the last such start, counted from 1.
    lacked_by: u64,
}

/// Pause before the next start after one that lacked resources. It doubles with each such start in a row.
const RESOURCE_BACKOFF: Duration = Duration::from_secs(1);
const RESOURCE_BACKOFF_DOUBLINGS_MAX: u32 = 5;

/// Times measured across the phases of one start.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    phase_began: Instant,
    timing: Timing,
}

/// State machine of one agent, from its first round to its end.
#[derive(Debug)]
pub struct Supervisor {
    spec: WorkerSpec,
    phase: Phase,
    group: WorkerGroup,
    restarts_left: u32,
    starts: u64,
    /// Number of calls requested so far.
    calls: u64,
    /// Number of the pending call. Answers to other calls are ignored.
    call: Option<u64>,
    /// Whether descendants of the agent may be alive.
    has_descendants: bool,
    stopping: Option<Stopping>,
    /// Reason of the last stop.
    stop_reason: Reason,
    due: Option<Due>,
    unexplained: Option<Unexplained>,
    /// The failure that ends the job unless a peer's death explains it; set in `Phase::Ending` only.
    suspicion: Option<PendingFailure>,
    /// Whether the group is being stopped for a failure that has cost a restart and may have been caused by a peer's
    /// death.
    is_excusable: bool,
    start_capacity: StartCapacity,
    backoff: Backoff,
    /// The group whose workers had succeeded when the agent left the exit barrier for another round.
    done: Option<WorkerGroup>,
    /// State of this agent's arrival at the current exit barrier.
    arrival: Arrival,
    /// Whether the rendezvous reports deaths of members.
    reports_deaths: bool,
    /// Whether a stop was requested.
    is_stop_requested: bool,
    /// Failures of this start, in the order in which they happened.
    failures: Vec<Failed>,
    /// Local ranks of this start's workers whose timers ended them. Their exits count as failures, whenever they are
    /// reported.
    overdue: Vec<u32>,
    /// Local ranks of this start's workers that had written an error file when another worker failed, with the time of
    /// writing.
    errors: Vec<(u32, Instant)>,
    /// Number of workers that this start failed to create.
    absent: usize,
    outcome: Option<Outcome>,
    /// Whether the other agents were notified that the job has failed.
    is_announced: bool,
    clocks: Clocks,
    pause_detector: PauseDetector,
    outputs: VecDeque<Output>,
}

impl Supervisor {
    /// Creates an agent that has not begun.
    ///
    /// # Errors
    /// The spec is inconsistent.
    pub fn new(spec: WorkerSpec) -> Result<Self, SpecError> {
        spec.check()?;
        let group = WorkerGroup { role: spec.role.clone(), ..WorkerGroup::default() };
        Ok(Self {
            restarts_left: spec.max_restarts,
            spec,
            phase: Phase::Idle,
            group,
            starts: 0,
            calls: 0,
            call: None,
            has_descendants: false,
            stopping: None,
            stop_reason: Reason::Begun,
            due: None,
            unexplained: None,
            suspicion: None,
            is_excusable: false,
            start_capacity: StartCapacity::default(),
            backoff: Backoff::default(),
            done: None,
            arrival: Arrival::Unknown,
            reports_deaths: false,
            is_stop_requested: false,
            failures: Vec::new(),
            overdue: Vec::new(),
            errors: Vec::new(),
            absent: 0,
            outcome: None,
            is_announced: false,
            clocks: Clocks::default(),
            pause_detector: PauseDetector::new(Instant::ORIGIN, Poller::Program),
            outputs: VecDeque::new(),
        })
    }

    /// Returns the spec that the agent was created with.
    pub const fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Returns the current phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the worker group in its current state.
    pub const fn group(&self) -> &WorkerGroup {
        &self.group
    }

    /// Returns how many more failures the agent answers with a restart.
    pub const fn restarts_left(&self) -> u32 {
        self.restarts_left
    }

    /// Returns the outcome, once it is certain.
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns the next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Supervisor::handle_timeout`] is due: at the next deadline, and once a second until then, so that
    /// a pause of the process is measured to the second.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline().map(|deadline| deadline.min(self.pause_detector.called_at() + WAKE_INTERVAL))
    }

    fn deadline(&self) -> Option<Instant> {
        let stopping = self.stopping.map(|stopping| match stopping.leftovers {
            Leftovers::Unnamed { name_at } => stopping.until.min(name_at),
            Leftovers::WorkersLive | Leftovers::Named => stopping.until,
        });
        let news = self.unexplained.as_ref().map(|unexplained| unexplained.until);
        let suspicion = self.suspicion.as_ref().map(|suspicion| suspicion.until);
        let due = self.due.as_ref().map(|due| due.at);
        [stopping, news, suspicion, due].into_iter().flatten().min()
    }

    /// Moves its deadlines after a pause. A call that is much later than requested means that the process was not
    /// running, so each deadline keeps the time it had left.
    fn wake(&mut self, now: Instant) {
        let mut detector = self.pause_detector;
        let span = detector.on_call(now, || self.poll_timeout());
        self.pause_detector = detector;
        if span.is_zero() {
            return;
        }
        if let Some(Stopping { leftovers: Leftovers::Unnamed { name_at }, .. }) = &mut self.stopping {
            *name_at = *name_at + span;
        }
        let stopping = self.stopping.as_mut().map(|stopping| &mut stopping.until);
        let news = self.unexplained.as_mut().map(|unexplained| &mut unexplained.until);
        let suspicion = self.suspicion.as_mut().map(|suspicion| &mut suspicion.until);
        let due = self.due.as_mut().map(|due| &mut due.at);
        [stopping, news, suspicion, due].into_iter().flatten().for_each(|at| *at = *at + span);
    }

    /// Advances the clock to `now` and handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.wake(now);
        if let Some(Unexplained { message, .. }) = self.unexplained.take_if(|news| news.until <= now) {
            self.leave_barrier_early(now, Reason::ExitBarrierFailed { message });
        }
        if self.suspicion.as_ref().is_some_and(|suspicion| suspicion.until <= now) {
            self.settle(now);
        }
        if let Some(due) = self.due.take_if(|due| due.at <= now) {
            match self.phase {
                Phase::Starting => self.spend(now, due.reason),
                Phase::Restarting => self.meet_again(now, due.reason),
                Phase::ExitBarrier => self.stop_waiting(now, due.reason),
                _ => {}
            }
        }
        if let Some(stopping) = &mut self.stopping
            && matches!(stopping.leftovers, Leftovers::Unnamed { name_at } if name_at <= now)
        {
            stopping.leftovers = Leftovers::Named;
            self.outputs.push_back(Output::NameLeftovers);
        }
        let Some(stopping) = self.stopping.filter(|stopping| stopping.until <= now) else { return };
        match stopping.step {
            StopStep::Signalled(_) if stopping.leftovers == Leftovers::WorkersLive => {
                self.kill(now, Reason::StopTimeout);
            }
            StopStep::Signalled(_) => self.kill(now, Reason::LeftoverTimeout),
            StopStep::Killed => {
                let living = self.group.workers.iter().filter(|worker| worker.exit.is_none());
                let left = Left(living.filter_map(|worker| worker.pid).collect());
                self.notify(Notice::GaveUp { since: now.since(stopping.began), left });
                self.clear(now, Reason::GaveUp);
            }
        }
    }

    /// Handles an input.
    ///
    /// # Errors
    /// The input is impossible: its worker does not exist, or the agent has begun before. The state has not changed
    /// then.
    pub fn handle(&mut self, now: Instant, input: Input) -> Result<(), InputError> {
        if let Input::Worker(event) = &input
            && let Some(local_rank) = event.local_rank()
            && self.worker(local_rank).is_none()
        {
            return Err(InputError::NoSuchWorker { local_rank });
        }
        self.wake(now);
        match input {
            Input::Begin if self.phase == Phase::Idle => self.enter(now, PhaseEvent::Begin, Reason::Begun),
            Input::Begin => return Err(InputError::BegunBefore),
            Input::Joined { call, round } if self.takes(call, Phase::Meeting) => self.joined(now, round),
            Input::NotJoined { call, kind, message } if self.takes(call, Phase::Meeting) => {
                let reason = Reason::NoRound { kind, message };
                self.conclude_with_last_round(now, reason);
            }
            Input::Assigned { call, ranks } if self.takes(call, Phase::Assigning) => {
                self.group.workers = ranks.workers(self.spec.local_world_size);
                self.enter(now, PhaseEvent::Assign, Reason::Done);
            }
            Input::NotAssigned { call, kind, message } if self.takes(call, Phase::Assigning) => match kind {
                WaitFailure::RoundOver => self.renew(now, Reason::RoundOver { message }),
                WaitFailure::Failed => self.spend(now, Reason::NoRanks { message }),
            },
            Input::ExitBarrierPassed { call } if self.takes(call, Phase::ExitBarrier) => {
                self.enter(now, PhaseEvent::ExitBarrierOver, Reason::Done);
            }
            Input::ExitBarrierFailed { call, kind, message } if self.takes(call, Phase::ExitBarrier) => {
                self.exit_barrier_failed(now, kind, message);
            }
            Input::Arrived { call } => {
                if self.phase == Phase::ExitBarrier && self.call == Some(call) {
                    self.arrived(now);
                }
            }
            Input::Closed { call } if self.takes(call, Phase::Closing) => {
                self.enter(now, PhaseEvent::Close, Reason::Done);
            }
            // An answer to a call that is no longer pending.
            Input::Joined { .. }
            | Input::NotJoined { .. }
            | Input::Assigned { .. }
            | Input::NotAssigned { .. }
            | Input::ExitBarrierPassed { .. }
            | Input::ExitBarrierFailed { .. }
            | Input::Closed { .. } => {}
            Input::Worker(event) => self.worker_event(now, event),
            Input::Member(membership) => self.member(now, membership),
            Input::Stop(cause) => self.stop(now, cause),
            Input::Pass { signal } => {
                if matches!(self.phase, Phase::Starting | Phase::Running) {
                    self.outputs.push_back(Output::Pass { signal });
                }
            }
        }
        Ok(())
    }

    fn worker_event(&mut self, now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Started { local_rank, pid } => self.started(now, local_rank, pid),
            WorkerEvent::NotStarted { local_rank, start_failure, message } => {
                self.not_started(now, local_rank, start_failure, message);
            }
            WorkerEvent::Exited { local_rank, exit, at, was_ending, .. } => {
                self.exited(now, local_rank, exit, at, was_ending);
            }
            WorkerEvent::ErrorWritten { local_rank, at } => {
                if self.stopping.is_none() && matches!(self.phase, Phase::Starting | Phase::Running) {
                    self.errors.push((local_rank, at));
                }
            }
            WorkerEvent::Leftovers { message } => {
                if let Some(stopping) = self.stopping.filter(|stopping| stopping.step != StopStep::Killed) {
                    let left = stopping.until.since(now).as_millis();
                    let (seconds, tenths) = (left / 1000, left % 1000 / 100);
                    let message = format!("{message}; killed in {seconds}.{tenths} s").into();
                    self.notify(Notice::Remark { message });
                }
            }
            WorkerEvent::Stuck { local_rank, since } => {
                if let (Phase::Starting | Phase::Running, Some(worker)) =
                    (self.phase, self.group.ranks_of(local_rank))
                {
                    self.group.state = WorkerState::Unhealthy;
                    self.give_up(now, Reason::Stuck { worker, since });
                }
            }
            WorkerEvent::TimerExpired(timer) => self.timer_expired(now, timer),
            WorkerEvent::Empty => {
                self.has_descendants = false;
                if self.stopping.is_some() {
                    self.clear(now, Reason::Done);
                }
            }
            WorkerEvent::GroupLost { message } => self.group_lost(now, message),
            WorkerEvent::GuardLost { message } => self.guard_lost(now, message),
            WorkerEvent::Remark { message } => self.notify(Notice::Remark { message }),
        }
    }

    /// Returns whether this answers the call that `phase` waits for, and clears the pending call if so.
    fn takes(&mut self, call: u64, phase: Phase) -> bool {
        self.phase == phase && self.call.take_if(|&mut awaited| awaited == call).is_some()
    }

    fn worker(&mut self, local_rank: u32) -> Option<&mut super::group::Worker> {
        self.group.workers.get_mut(usize::try_from(local_rank).ok()?)
    }

    fn notify(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notify(notice));
    }

    /// Changes the phase; nothing else does. An event that the phase does not allow is ignored.
    fn enter(&mut self, now: Instant, event: PhaseEvent, reason: Reason) {
        let from = self.phase;
        let Some(to) = from.on(event) else { return };
        self.phase = to;
        (self.due, self.unexplained) = (None, None);
        let took = now.since(self.clocks.phase_began);
        self.clocks.phase_began = now;
        match from {
            Phase::Restarting => self.clocks.timing.stop = took,
            Phase::Meeting => self.clocks.timing.rendezvous = took,
            Phase::Assigning => self.clocks.timing.assign = took,
            Phase::Starting => self.clocks.timing.start = took,
            _ => {}
        }
        match to {
            Phase::Running => self.group.state = WorkerState::Healthy,
            Phase::ExitBarrier => self.group.state = WorkerState::Succeeded,
            Phase::Meeting if from == Phase::Idle => self.group.state = WorkerState::Init,
            Phase::Meeting => self.group.state = WorkerState::Stopped,
            _ => {}
        }
        self.notify(Notice::Phase { from, to, reason: reason.clone() });
        match to {
            Phase::Meeting => {
                self.group.workers.clear();
                self.group.group_rank = None;
                self.ask(|call| Output::Join { call });
            }
            Phase::Assigning => self.ask(|call| Output::Assign { call }),
            Phase::Starting => self.start(now),
            Phase::Running => {
                self.start_capacity.lacks = 0;
                let timing = self.clocks.timing;
                self.notify(Notice::Running { attempt: self.group.attempt, timing });
                self.clocks.timing = Timing::default();
            }
            Phase::Restarting | Phase::Ending => self.begin_stop(now, &reason),
            Phase::ExitBarrier => {
                self.arrival = Arrival::Unknown;
                self.ask(|call| Output::WaitAtExitBarrier { call });
            }
            Phase::Closing => {
                // Only an agent that knows that the job is over closes the run.
                let is_over =
                    self.is_announced || matches!(self.outcome, Some(Outcome::Succeeded { missing: None }));
                let leave_mode = if is_over { LeaveMode::Close } else { LeaveMode::Leave };
                self.ask(|call| Output::Close { call, leave_mode });
            }
            Phase::Over => self.outputs.push_back(Output::Over),
            Phase::Idle => {}
        }
        if to == Phase::Running {
            self.check_all_succeeded(now);
        }
    }

    fn ask(&mut self, output: impl FnOnce(u64) -> Output) {
        self.calls += 1;
        self.call = Some(self.calls);
        self.outputs.push_back(output(self.calls));
    }

    /// Cancels the pending call. Its answer is ignored from now on.
    fn cancel(&mut self) {
        if let Some(call) = self.call.take() {
            self.outputs.push_back(Output::Cancel { call });
        }
    }

    fn joined(&mut self, now: Instant, round: Round) {
        self.group.group_rank = Some(round.group_rank);
        self.group.group_world_size = round.group_world_size;
        self.group.round = round.number;
        self.reports_deaths = round.reports_deaths;
        // From here on this round counts, and the success of the last one is void.
        self.done = None;
        self.enter(now, PhaseEvent::Join, Reason::Done);
    }

    fn start(&mut self, now: Instant) {
        self.due = Some(Due { at: now + self.spec.start_timeout, reason: Reason::StartTimeout });
        self.group.attempt = self.starts;
        self.group.restart_count = self.spec.max_restarts - self.restarts_left;
        self.starts += 1;
        self.failures.clear();
        self.overdue.clear();
        self.errors.clear();
        self.absent = 0;
        self.has_descendants = true;
        self.outputs.push_back(Output::Start { attempt: self.group.attempt });
    }

    fn started(&mut self, now: Instant, local_rank: u32, pid: u32) {
        self.has_descendants = true;
        if let Some(worker) = self.worker(local_rank) {
            worker.pid = Some(pid);
        }
        self.check_all_started(now);
    }

    /// Enters `Running` once all workers have started. A worker that has ended counts as started, even if its start was
    /// never reported.
    fn check_all_started(&mut self, now: Instant) {
        let started = |worker: &super::group::Worker| worker.pid.is_some() || worker.exit.is_some();
        if self.phase == Phase::Starting && self.group.workers.iter().all(started) {
            self.enter(now, PhaseEvent::Start, Reason::Done);
        }
    }

    fn not_started(&mut self, now: Instant, local_rank: u32, start_failure: StartFailure, message: Box<str>) {
        self.absent += 1;
        let (Phase::Starting, Some(worker)) = (self.phase, self.group.ranks_of(local_rank)) else {
            return self.check_only_leftovers_live(now);
        };
        let reason = Reason::NotStarted { worker, start_failure, message };
        match start_failure {
            StartFailure::Passing => {
                self.start_capacity =
                    StartCapacity { lacks: self.start_capacity.lacks + 1, lacked_by: self.starts };
                self.spend(now, reason);
            }
            StartFailure::Lasting => self.give_up(now, reason),
        }
    }

    fn check_all_succeeded(&mut self, now: Instant) {
        let succeeded = |worker: &super::group::Worker| worker.exit.is_some_and(ExitStatus::is_success);
        if self.phase == Phase::Running && self.group.workers.iter().all(succeeded) {
            self.enter(now, PhaseEvent::Succeed, Reason::Succeeded);
        }
    }

    /// Handles a failure: restarts if a restart is left.
    fn spend(&mut self, now: Instant, reason: Reason) {
        let is_excusable = self.group.group_world_size > 1 && reason.may_follow_a_death();
        match self.restarts_left.checked_sub(1) {
            Some(left) => {
                self.restarts_left = left;
                let has_run = self.phase == Phase::Running;
                let ran = if has_run { now.since(self.clocks.phase_began) } else { Duration::ZERO };
                // A lack of resources has its own pauses. A failure before the start is not followed by a pause.
                let lacks_resources =
                    matches!(reason, Reason::NotStarted { start_failure: StartFailure::Passing, .. });
                if matches!(self.phase, Phase::Starting | Phase::Running) && !lacks_resources {
                    self.backoff.failed(ran, self.spec.restart_backoff);
                }
                self.is_excusable = is_excusable;
                if self.group.group_world_size > 1 && !matches!(reason, Reason::SessionEnded { .. }) {
                    // Recorded before the others are notified that this agent comes back.
                    self.outputs.push_back(Output::ExplainRestart { reason: reason.clone() });
                }
                self.renew(now, reason);
            }
            None if is_excusable && self.reports_deaths => {
                self.suspicion =
                    Some(PendingFailure { reason: reason.clone(), until: now + DEATH_NEWS_DELAY_MAX });
                self.enter(now, PhaseEvent::GiveUp, reason);
            }
            None => self.give_up(now, reason),
        }
    }

    /// Handles the report of a peer's death. The failure that the group is being stopped for may be a consequence of
    /// it: workers notice a peer's death before the agent gets the report.
    fn excuse(&mut self, now: Instant, death: Reason) {
        if core::mem::take(&mut self.is_excusable) {
            self.restarts_left += 1;
            self.backoff.excused();
            self.notify(Notice::Remark {
                message: format!("{death}: what failed here costs no restart").into(),
            });
        }
        if self.suspicion.take().is_some() {
            self.enter(now, PhaseEvent::Excuse, death);
        }
    }

    /// Concludes a pending failure, if there is one: the job has failed.
    fn settle(&mut self, now: Instant) {
        if self.conclude_if_pending() && self.stopping.is_none() {
            self.enter(now, PhaseEvent::Clear, Reason::Done);
        }
    }

    /// Concludes a pending failure. Returns whether there was one.
    fn conclude_if_pending(&mut self) -> bool {
        let Some(PendingFailure { reason, .. }) = self.suspicion.take() else { return false };
        self.conclude(reason);
        true
    }

    fn renew(&mut self, now: Instant, reason: Reason) {
        self.cancel();
        if self.phase == Phase::ExitBarrier {
            self.done = Some(self.group.clone());
        }
        self.enter(now, PhaseEvent::Renew, reason);
    }

    fn give_up(&mut self, now: Instant, reason: Reason) {
        if self.phase.on(PhaseEvent::GiveUp).is_none() {
            return;
        }
        if self.abandons(&Outcome::of(&reason)) {
            // Sent before the peers' workers miss this agent's, so that a stop does not look like a failure to them.
            // Sent before the join is cancelled, because nothing can be announced after that.
            self.outputs.push_back(Output::Abandon);
        }
        self.cancel();
        self.conclude(reason.clone());
        self.enter(now, PhaseEvent::GiveUp, reason);
    }

    /// Returns whether the other agents would wait for this one in vain without knowing why. While it joins, it may
    /// already be in a round whose start has not been reported, or still in the previous round.
    fn abandons(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Stopped { .. } => self.is_needed() || self.phase == Phase::Meeting,
            Outcome::GuardLost { .. } => self.phase == Phase::Meeting,
            // Some backends do not notice this by themselves, so they are notified.
            Outcome::Failed {
                reason: Reason::SessionEnded { .. } | Reason::ServerLost { .. } | Reason::NoRound { .. },
            } => self.starts > 0,
            Outcome::Succeeded { .. } | Outcome::NotNeeded | Outcome::Failed { .. } => false,
        }
    }

    /// Fixes the outcome, and announces it to the other agents if it concerns them.
    fn conclude(&mut self, reason: Reason) {
        let outcome = Outcome::of(&reason);
        self.group.state = outcome.state();
        if outcome.concerns_all() && self.group.group_rank.is_some() {
            self.is_announced = true;
            self.outputs.push_back(Output::Announce { reason });
        }
        self.outcome = Some(outcome);
    }

    /// Handles the loss of the group. Running workers count as failed. Workers that have succeeded or are being stopped
    /// are unaffected.
    fn group_lost(&mut self, now: Instant, message: Box<str>) {
        match self.phase {
            Phase::Starting | Phase::Running => {
                self.group.state = WorkerState::Failed;
                self.spend(now, Reason::GroupLost { message });
            }
            Phase::Over => {}
            _ => self.notify(Notice::Remark { message }),
        }
    }

    fn guard_lost(&mut self, now: Instant, message: Box<str>) {
        match self.phase {
            Phase::ExitBarrier if self.is_leaving() => {}
            Phase::ExitBarrier => self.leave_when_counted(now, Reason::GuardLost { message }),
            // There will be no other start.
            Phase::Ending => self.settle(now),
            Phase::Restarting => self.conclude_with_last_round(now, Reason::GuardLost { message }),
            Phase::Closing | Phase::Over => {}
            _ => self.give_up(now, Reason::GuardLost { message }),
        }
    }

    /// Returns whether the round depends on this agent: its workers have not finished.
    const fn is_needed(&self) -> bool {
        matches!(self.phase, Phase::Assigning | Phase::Starting | Phase::Running | Phase::Restarting)
    }

    fn member(&mut self, now: Instant, membership: Membership) {
        if !self.is_needed() && self.phase != Phase::ExitBarrier && self.suspicion.is_none() {
            return;
        }
        let (reason, is_final) = match membership {
            Membership::NodesWaiting { nodes: 0 } => return,
            Membership::NodesWaiting { nodes } => (Reason::NodesWaiting { nodes }, false),
            Membership::PeerRestarts { message } => (Reason::PeerRestarts { message }, false),
            Membership::PeerDied { message } => (Reason::PeerDied { message }, false),
            Membership::RoundOver { message } => (Reason::RoundOver { message }, false),
            Membership::Excluded => (Reason::Excluded, false),
            Membership::Replaced => (Reason::Replaced, true),
            Membership::JobFailed { message } => (Reason::JobFailed { message }, true),
            Membership::SessionEnded { message } => (Reason::SessionEnded { message }, false),
            Membership::ServerLost { message } => (Reason::ServerLost { message }, true),
        };
        match (self.phase, is_final) {
            // It leaves as soon as it is known whether the others wait for it.
            (Phase::ExitBarrier, false) if self.is_leaving() => {}
            // This agent's workers have succeeded, and their result stands. A returning node needs a new round, and
            // cannot form it alone. A node that died does not arrive at the exit barrier.
            (Phase::ExitBarrier, true) => self.leave_barrier_early(now, reason),
            (Phase::ExitBarrier, false)
                if matches!(reason, Reason::PeerDied { .. } | Reason::SessionEnded { .. }) =>
            {
                self.leave_barrier_early(now, reason);
            }
            (Phase::Restarting | Phase::Ending, false) => {
                if matches!(reason, Reason::PeerDied { .. }) {
                    self.excuse(now, reason);
                }
            }
            // This agent's own failure came first.
            (Phase::Ending, true) => self.settle(now),
            // The others continue without this agent, and the fault is on this side.
            (_, false) if matches!(reason, Reason::SessionEnded { .. }) => self.spend(now, reason),
            (_, false) => self.renew(now, reason),
            (_, true) => self.conclude_with_last_round(now, reason),
        }
    }

    fn stop(&mut self, now: Instant, cause: StopCause) {
        match self.phase {
            Phase::Over => {}
            Phase::Closing => {
                self.cancel();
                self.enter(now, PhaseEvent::Close, Reason::Stop(cause));
            }
            // A second stop request kills at once. A first one that arrives while the workers are already ending leaves
            // them their time.
            Phase::Ending => {
                self.settle(now);
                let step = self.stopping.map(|stopping| stopping.step);
                match (step, cause) {
                    (Some(StopStep::Signalled(_)), _) if self.is_stop_requested => {
                        self.kill(now, Reason::Stop(cause))
                    }
                    (Some(StopStep::Signalled(signal_sent)), StopCause::Signal(signal))
                        if signal != signal_sent =>
                    {
                        self.send_stop(signal);
                    }
                    _ => {}
                }
            }
            // A second stop request does not wait any longer.
            Phase::ExitBarrier if self.is_stop_requested => self.stop_waiting(now, Reason::Stop(cause)),
            Phase::ExitBarrier => self.leave_when_counted(now, Reason::Stop(cause)),
            _ => self.give_up(now, Reason::Stop(cause)),
        }
        self.is_stop_requested = true;
    }
}

impl Timing {
    /// Returns the whole restart time, from the death of a worker to the start of the last new one.
    pub fn total(&self) -> Duration {
        self.detect + self.stop + self.rendezvous + self.assign + self.start
    }
}
