//! One agent, from its start to its end or death.

use super::super::process::Process;
use super::super::referee::{Referee, workers_of};
use super::super::{Cue, Rules};
use super::calls::{Pending, lost};
use super::crew::Crew;
use super::{AgentCue, Job};
use crate::sim::harness::clock::Clock;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::Stream;
use crate::sim::harness::sim_rng::SimRng;
use crate::sim::world::{SimContext, WorldEvent};
use rendezvous_agent::environment::AgentStore;
use rendezvous_agent::group::WorkerGroup;
use rendezvous_agent::node::request::{Answer, CallFailure};
use rendezvous_agent::node::{AgentNode, Input, NodeOptions, Output};
use rendezvous_agent::reason::Reason;
use rendezvous_agent::spec::WorkerSpec;
use rendezvous_agent::supervisor::{self, Outcome};
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) use super::super::process::Slot;

pub(super) const RUN: &str = "run-job";

/// What became of the agents, and of the workers of each round.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Agents whose workers have succeeded, by rank, in each round of each life of the server.
    succeeded: BTreeMap<(u32, u64), BTreeSet<u32>>,
    pub(super) together: u64,
    pub(super) otherwise: u64,
}

pub(super) struct Agent {
    pub(super) host: usize,
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) sim_rng: SimRng,
    pub(super) clock: Clock,
    machine: AgentNode,
    /// Process with its session. Its number changes with the session.
    pub(super) process: Option<Process>,
    /// Calls that have no answer yet.
    pub(super) calls: BTreeMap<u64, Pending>,
    /// Answers that the agent has not got.
    answers: BTreeMap<u64, Result<Answer, CallFailure>>,
    pub(super) inbox: VecDeque<RoundEvent>,
    /// The last round that was joined, and the life of the server in which it was.
    pub(super) slot: Option<(u32, Slot)>,
    due: Option<Instant>,
    crew: Crew,
    is_frozen: bool,
    /// What happened to it and to its workers while it was frozen.
    missed: Vec<AgentCue>,
    missed_events: Vec<WorkerEvent>,
    pub(super) is_over: bool,
}

impl Agent {
    pub(super) fn new((host, number): (usize, u32), mut sim_rng: SimRng) -> Result<Self, CheckError> {
        let name = format!("agent{host}");
        let spec = WorkerSpec {
            max_restarts: 4,
            restart_backoff: Duration::ZERO,
            stop_timeout: Duration::from_secs(1),
            assign_timeout: Duration::from_secs(4),
            ..WorkerSpec::new(workers_of(&name))
        };
        let options = NodeOptions {
            spec,
            name: name.as_str().into(),
            local_addr: None,
            listen_addr: None,
            master: None,
            is_local: true,
            reports_deaths: true,
            agent_store: AgentStore::Shared,
        };
        let machine = AgentNode::new(options).map_err(|error| CheckError(error.to_string()))?;
        Ok(Self {
            host,
            number,
            name,
            clock: Clock::any(&mut sim_rng),
            sim_rng,
            machine,
            process: None,
            calls: BTreeMap::new(),
            answers: BTreeMap::new(),
            inbox: VecDeque::new(),
            slot: None,
            due: None,
            crew: Crew::new((host, number)),
            is_frozen: false,
            missed: Vec::new(),
            missed_events: Vec::new(),
            is_over: false,
        })
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.process.as_ref().is_some_and(|process| process.owns(stream))
    }

    pub(super) fn is_process(&self, number: u32) -> bool {
        self.process.as_ref().is_some_and(|process| process.number == number)
    }

    pub(super) fn describe(&self) -> String {
        format!("{} is {:?}", self.name, self.machine.supervisor().phase())
    }

    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let order = self.process.as_ref()?.overdue(now)?;
        Some(format!("{} waits for {order}, which outlives its deadline", self.name))
    }

    /// Ends its processes with it.
    pub(super) fn end(mut self, context: &mut SimContext) {
        if let Some(process) = self.process.take() {
            process.kill(context, &mut self.sim_rng);
        }
    }

    pub(super) fn freeze(&mut self) {
        self.is_frozen = true;
        if let Some(process) = &mut self.process {
            process.freeze();
        }
    }

    pub(super) fn server_freezes(&mut self, until: Instant) {
        if let Some(process) = &mut self.process {
            process.server_freezes(until);
        }
    }

    pub(super) fn thaw(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        job: &mut Job,
    ) -> Result<(), CheckError> {
        self.is_frozen = false;
        self.with(context, referee, rules, job, Process::thaw)?;
        for event in core::mem::take(&mut self.missed_events) {
            self.give(context, rules, job, Input::Worker(event))?;
        }
        self.report_empty(context, rules, job)?;
        for cue in core::mem::take(&mut self.missed) {
            self.handle(context, referee, rules, job, cue)?;
        }
        self.handle(context, referee, rules, job, AgentCue::Due)
    }

    pub(super) fn begin(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        job: &mut Job,
    ) -> Result<(), CheckError> {
        context.note(format_args!("{} begins", self.name));
        self.give(context, rules, job, Input::Begin)?;
        self.handle_events(context, referee, rules, job)
    }

    /// Calls `act` with its process, then handles what follows.
    pub(super) fn with(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        job: &mut Job,
        act: impl FnOnce(&mut Process, &mut SimContext) -> Result<(), CheckError>,
    ) -> Result<(), CheckError> {
        if let Some(process) = &mut self.process {
            act(process, context)?;
        }
        self.handle_events(context, referee, rules, job)
    }

    pub(super) fn handle(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        job: &mut Job,
        cue: AgentCue,
    ) -> Result<(), CheckError> {
        // Its workers are processes of their own.
        if self.is_frozen && !matches!(cue, AgentCue::Up(..) | AgentCue::Exit(..)) {
            self.missed.push(cue);
            return Ok(());
        }
        match cue {
            AgentCue::Due => {
                self.due = None;
                if self.machine.poll_timeout().is_some_and(|due| due <= context.now) {
                    self.machine.handle_timeout(context.now);
                    self.perform_all(context, rules, job)?;
                }
            }
            AgentCue::Answered(id) => {
                if let Some(answer) = self.answers.remove(&id) {
                    self.give(context, rules, job, Input::Answered { id, answer })?;
                }
            }
            AgentCue::Rested(id) => self.try_to_join(context, rules, job, id),
            AgentCue::Up(attempt, slot) => {
                if let Some(event) = self.crew.up(context, &mut self.sim_rng, (attempt, slot)) {
                    self.see(context, rules, job, event)?;
                }
            }
            AgentCue::Exit(attempt, slot, plan) => {
                if let Some((event, exit)) = self.crew.exit(context, (attempt, slot, plan)) {
                    context.note(format_args!("{}'s worker {slot} ends: {exit:?}", self.name));
                    job.failures += u64::from(!exit.is_success());
                    if let Some((epoch, slot)) = self.slot.as_ref().filter(|_| self.crew.has_succeeded()) {
                        job.outcomes.succeeded.entry((*epoch, slot.round)).or_default().insert(slot.rank);
                    }
                    self.see(context, rules, job, event)?;
                }
            }
        }
        self.handle_events(context, referee, rules, job)
    }

    /// Gives it an event of its workers, unless it is frozen.
    fn see(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        event: WorkerEvent,
    ) -> Result<(), CheckError> {
        if self.is_frozen {
            self.missed_events.push(event);
            return Ok(());
        }
        self.give(context, rules, job, Input::Worker(event))?;
        self.report_empty(context, rules, job)
    }

    fn report_empty(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
    ) -> Result<(), CheckError> {
        if self.crew.take_empty() {
            self.give(context, rules, job, Input::Worker(WorkerEvent::Empty))?;
        }
        Ok(())
    }

    fn give(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        input: Input,
    ) -> Result<(), CheckError> {
        if self.is_over {
            return Ok(());
        }
        context.note(format_args!("{} <- {input:?}", self.name));
        // Workers that the machine does not know belong to an attempt that it gave up.
        self.machine.handle(context.now, input).ok();
        self.perform_all(context, rules, job)
    }

    fn perform_all(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
    ) -> Result<(), CheckError> {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Call { id, request } => self.begin_call(context, rules, job, id, request),
                Output::Cancel { id } => self.cancel_call(context, id),
                Output::Abandon => {
                    context.note(format_args!("{} leaves in the middle of the round", self.name));
                    self.abandon(context);
                    self.session_ended(context, rules, job, ErrorKind::ServerGone);
                }
                Output::EndStore => {}
                Output::Supervisor(output) => self.perform(context, rules, job, &output)?,
            }
        }
        if let Some(due) = self.machine.poll_timeout().map(|due| due.max(context.now))
            && self.due.is_none_or(|entered| due < entered)
            && !self.is_over
        {
            self.due = Some(due);
            let cue = Cue::Agent(self.host, self.number, AgentCue::Due);
            context.event_queue.schedule(due, WorldEvent::Elastic(cue));
        }
        Ok(())
    }

    fn perform(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        output: &supervisor::Output,
    ) -> Result<(), CheckError> {
        use supervisor::Output as Do;
        match output {
            Do::Start { attempt } => {
                let group = self.machine.supervisor().group().clone();
                self.check_start(&group)?;
                job.starts += 1;
                context.note(format_args!("{} starts its workers: {group:?}", self.name));
                self.crew.start(context, &mut self.sim_rng, (*attempt, group.workers.len()));
            }
            Do::Signal { signal } => {
                self.crew.stop(context, &mut self.sim_rng, *signal);
                self.report_empty(context, rules, job)?;
            }
            Do::Kill => {
                self.crew.kill(context, &mut self.sim_rng);
                self.report_empty(context, rules, job)?;
            }
            Do::Over => {
                self.is_over = true;
                self.check_over(context, &mut job.outcomes)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that workers start with the ranks of the round that their agent has joined, and after the last ones.
    fn check_start(&self, group: &WorkerGroup) -> Result<(), CheckError> {
        let Some((_, slot)) = &self.slot else {
            return Err(CheckError(format!("{} starts workers without a round", self.name)));
        };
        let local = u64::from(workers_of(&self.name));
        let ranks = group.workers.iter().map(|worker| worker.global_rank);
        let is_right = group.round == Some(slot.round)
            && (group.group_rank, group.group_world_size) == (Some(slot.rank.into()), slot.nodes.into())
            && ranks.eq(slot.rank_first..slot.rank_first + local)
            && group.workers.iter().all(|worker| worker.world_size == slot.world_size);
        if !is_right || self.crew.lives() {
            return Err(CheckError(format!("{} starts {group:?} in {slot:?}", self.name)));
        }
        Ok(())
    }

    /// Checks the outcome against what became of the workers: those of all agents, if it says so.
    fn check_over(&self, context: &mut SimContext, outcomes: &mut Outcomes) -> Result<(), CheckError> {
        let outcome = self.machine.supervisor().outcome();
        context.note(format_args!("{} is over: {outcome:?}", self.name));
        let wrong = |what| Err(CheckError(format!("{} ended with {outcome:?}, and {what}", self.name)));
        match outcome {
            Some(Outcome::Succeeded { missing }) => {
                if !self.crew.has_succeeded() {
                    return wrong("its workers did not succeed");
                }
                let Some((epoch, slot)) = &self.slot else { return wrong("it was in no round") };
                let succeeded = outcomes.succeeded.get(&(*epoch, slot.round)).map_or(0, BTreeSet::len);
                if missing.is_none() && succeeded != slot.nodes as usize {
                    return wrong("others did not succeed");
                }
                outcomes.together += u64::from(missing.is_none());
                outcomes.otherwise += u64::from(missing.is_some());
            }
            // Nothing asks it to stop, and its guard is not lost.
            Some(Outcome::Stopped { .. } | Outcome::GuardLost { .. }) => return wrong("there was no reason"),
            Some(Outcome::Failed { reason: Reason::WorkerFailed { .. } }) if !self.crew.has_failed() => {
                return wrong("no worker has failed");
            }
            Some(_) => outcomes.otherwise += 1,
            None => return wrong("there is no outcome"),
        }
        if self.crew.lives() {
            return wrong("workers of it live");
        }
        Ok(())
    }

    /// Ends a call. The agent gets the answer a little later; answers may overtake each other.
    pub(super) fn answer(&mut self, context: &mut SimContext, id: u64, answer: Result<Answer, CallFailure>) {
        self.calls.remove(&id);
        self.answers.insert(id, answer);
        let after = self.sim_rng.span(Duration::ZERO, Duration::from_millis(2));
        let cue = Cue::Agent(self.host, self.number, AgentCue::Answered(id));
        context.event_queue.schedule(context.now + after, WorldEvent::Elastic(cue));
    }

    /// Ends the calls that wait for the session, which has ended.
    pub(super) fn session_ended(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        kind: ErrorKind,
    ) {
        let ids: Vec<u64> = self.calls.keys().copied().collect();
        for id in ids {
            match self.calls.get(&id) {
                Some(Pending::NextEvent | Pending::Request(..)) => self.answer(context, id, Err(lost(kind))),
                Some(Pending::Join { request: Some(_), .. }) => {
                    self.join_failed(context, rules, job, id, kind);
                }
                Some(Pending::Join { .. }) | None => {}
            }
        }
    }
}
