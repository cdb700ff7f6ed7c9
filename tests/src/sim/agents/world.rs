//! World of agents: it runs one seed from the first agent to the last.

use super::super::{Failure, Kind, Options, Report};
use super::AgentCounts;
use super::calls::{AgentContext, name};
use super::crew::{Crew, CrewCue, Job};
use super::master_server::{
    Answer as ServerAnswer, Formed, MasterServer, Request as ServerRequest, ServerMessage,
};
use super::plan::{Mishap, Plan, When};
use super::referee::Ledger;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::sim_rng::SimRng;
use crate::sim::harness::timeline::Timeline;
use rendezvous_agent::environment::AgentStore;
use rendezvous_agent::node::request::{Answer, CallFailure, Request};
use rendezvous_agent::node::{AgentNode, Input, NodeOptions, Output};
use rendezvous_agent::phase::Phase;
use rendezvous_agent::supervisor::{self, Notice, Outcome, Supervisor};
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::rendezvous::service::Event;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::Why;
use std::collections::BTreeMap;
use std::fmt;

/// Event of this world.
#[derive(Debug)]
pub(super) enum Cue {
    Begin(usize),
    /// A timer of an agent's machine is due.
    Due(usize),
    /// A call of an agent has ended.
    Answered(usize, u64, Result<Answer, CallFailure>),
    /// An agent sees an event of the workers of an attempt, or of all.
    Seen(usize, Option<u64>, WorkerEvent),
    Crew(usize, u64, CrewCue),
    ServerRequest(u64, ServerRequest),
    ServerMessage(u64, ServerMessage),
    /// A timer of the server is due.
    Tick,
    /// A call was not answered in time.
    TimeUp(usize, u64),
    NodeLoses(u64),
    ServerLoses(u64, Why),
    ServerRestarts,
    Mishap(usize, Mishap),
    /// The spares are released.
    Dismissal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Unborn,
    Lives,
    Over,
    Dead,
}

pub(super) struct Agent {
    node: AgentNode,
    pub(super) life: Life,
    pub(super) crew: Crew,
    pub(super) context: AgentContext,
    pub(super) ledger: Ledger,
    /// Whether the last ranks were not assigned because the round had ended.
    pub(super) stale_numbers: bool,
    due: Option<Instant>,
    /// How often it has entered each phase.
    visits: BTreeMap<Phase, u32>,
}

impl Agent {
    pub(super) const fn machine(&self) -> &Supervisor {
        self.node.supervisor()
    }

    pub(super) fn is_supervised(&self) -> bool {
        self.life == Life::Lives
    }
}

/// A session, with its path to the server and back.
#[derive(Debug)]
struct Line {
    agent: usize,
    epoch: u32,
    is_open_here: bool,
    is_open_there: bool,
    /// Nothing is transmitted any more.
    is_cut: bool,
    up: Instant,
    down: Instant,
    pace: Duration,
}

pub(in crate::sim) struct World {
    seed: u64,
    pub(super) sim: Timeline<Cue>,
    pub(super) plan: Plan,
    pub(super) agents: Vec<Agent>,
    master_server: Option<MasterServer>,
    /// Number of servers before this one.
    epoch: u32,
    lines: BTreeMap<u64, Line>,
    /// Rounds that were formed, by server and number.
    pub(super) jobs: BTreeMap<(u32, u64), Job>,
    pub(super) agent_counts: AgentCounts,
    /// Whether there may be fewer nodes than are needed.
    pub(super) is_short_handed: bool,
    tick_at: Option<Instant>,
}

/// When the remaining spares are released.
const DISMISSAL: Instant = Instant::from_millis(3_600_000);
/// Time by which all agents must have ended.
const END: Instant = Instant::from_millis(4_500_000);

impl World {
    pub(in crate::sim) fn new(seed: u64, options: &Options) -> Self {
        let plan = Plan::draw(&mut SimRng::new(seed, 0));
        let mut sim = Timeline::new(Instant::ORIGIN, SimRng::new(seed, 1), options);
        let mut agents = Vec::new();
        for (at, node) in plan.nodes.iter().enumerate() {
            // The plan contains only valid specs.
            let options = NodeOptions {
                spec: node.spec.clone(),
                name: name(at).into(),
                local_addr: None,
                listen_addr: None,
                master: None,
                is_local: true,
                reports_deaths: true,
                agent_store: AgentStore::Shared,
            };
            let Ok(machine) = AgentNode::new(options) else { continue };
            sim.at(node.starts_at, Cue::Begin(at));
            agents.push(Agent {
                node: machine,
                life: Life::Unborn,
                crew: Crew::default(),
                context: AgentContext::default(),
                ledger: Ledger::default(),
                stale_numbers: false,
                due: None,
                visits: BTreeMap::new(),
            });
        }
        for &(at, when, mishap) in &plan.mishaps {
            if let When::At(moment) = when {
                sim.at(moment, Cue::Mishap(at, mishap));
            }
        }
        sim.at(DISMISSAL, Cue::Dismissal);
        let prompt = plan.nodes.iter().filter(|node| node.starts_at < Instant::from_millis(1000)).count();
        let is_short_handed = u32::try_from(prompt).unwrap_or(u32::MAX) < plan.settings.min_nodes;
        Self {
            seed,
            sim,
            plan,
            agents,
            master_server: Some(MasterServer::new()),
            epoch: 0,
            lines: BTreeMap::new(),
            jobs: BTreeMap::new(),
            agent_counts: AgentCounts::default(),
            is_short_handed,
            tick_at: None,
        }
    }

    pub(in crate::sim) fn play(mut self, seed: u64) -> Result<Report, Failure> {
        let plan = format!("{:?}", self.plan);
        self.sim.note(format_args!("{plan}"));
        let played = self.run().map_err(CheckError);
        let mut counts = vec![("rounds", self.jobs.len() as u64)];
        counts.extend(self.agent_counts.all());
        self.sim.finish(seed, Kind::Agents, played.map(|()| counts)).map_err(|mut failure| {
            failure.trace.insert(0, plan);
            failure
        })
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(cue) = self.sim.next(END).map_err(|CheckError(what)| what)? {
            if self.agents.iter().all(|agent| matches!(agent.life, Life::Over | Life::Dead)) {
                break;
            }
            self.handle_event(cue)?;
        }
        self.check_end()
    }

    fn handle_event(&mut self, cue: Cue) -> Result<(), String> {
        match cue {
            Cue::Begin(at) => {
                if self.agents[at].life == Life::Unborn {
                    self.agents[at].life = Life::Lives;
                    self.give(at, Input::Begin)?;
                }
                Ok(())
            }
            Cue::Due(at) => self.due(at),
            Cue::Answered(at, id, answer) => self.give(at, Input::Answered { id, answer }),
            Cue::Seen(at, attempt, event) => {
                let crew = &mut self.agents[at].crew;
                crew.see(&event);
                // What is seen of an earlier attempt does not concern the workers of this one.
                if attempt.is_none_or(|attempt| crew.attempt.unwrap_or_default() == attempt) {
                    self.give(at, Input::Worker(event))?;
                }
                Ok(())
            }
            Cue::Crew(at, attempt, cue) => {
                if self.agents[at].life != Life::Dead {
                    self.crew(at, attempt, cue);
                }
                Ok(())
            }
            Cue::ServerRequest(session, request) => self.handle_request(session, request),
            Cue::ServerMessage(session, news) => {
                self.news(session, news);
                Ok(())
            }
            Cue::Tick => {
                self.tick_at = None;
                if let Some(master_server) = &mut self.master_server {
                    master_server.tick(self.sim.now);
                }
                self.post()
            }
            Cue::TimeUp(at, id) => {
                if self.agents[at].is_supervised() {
                    self.call_time_up(at, id);
                }
                Ok(())
            }
            Cue::NodeLoses(session) => {
                self.node_loses(session);
                Ok(())
            }
            Cue::ServerLoses(session, why) => self.server_loses(session, why),
            Cue::ServerRestarts => {
                self.sim.note(format_args!("the server is back"));
                self.master_server.get_or_insert_with(MasterServer::new);
                Ok(())
            }
            Cue::Mishap(at, mishap) => self.mishap(at, mishap),
            Cue::Dismissal => {
                self.sim.note(format_args!("the run is closed for those who stand by"));
                if let Some(master_server) = &mut self.master_server {
                    master_server.close(self.sim.now);
                }
                self.post()
            }
        }
    }

    fn due(&mut self, at: usize) -> Result<(), String> {
        let now = self.sim.now;
        let agent = &mut self.agents[at];
        agent.due = None;
        if agent.is_supervised() && agent.node.poll_timeout().is_some_and(|due| due <= now) {
            let before = self.before(at);
            self.agents[at].node.begin_timeout(now);
            self.after(at, before, None)?;
        }
        self.set_alarm(at);
        Ok(())
    }

    fn set_alarm(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        let Some(due) = agent.node.poll_timeout().filter(|_| agent.life == Life::Lives) else { return };
        if agent.due.is_none_or(|armed| armed > due) {
            agent.due = Some(due);
            self.sim.at(due, Cue::Due(at));
        }
    }

    fn give(&mut self, at: usize, input: Input) -> Result<(), String> {
        if !self.agents[at].is_supervised() {
            return Ok(());
        }
        self.sim.note(format_args!("{at} <- {input:?}"));
        let report = match &input {
            Input::Worker(event) => Some(supervisor::Input::Worker(event.clone())),
            Input::Stop(cause) => Some(supervisor::Input::Stop(*cause)),
            Input::Begin | Input::Pass { .. } | Input::Answered { .. } => None,
        };
        if let Some(report) = &report {
            self.note_input(at, report);
        }
        let before = self.before(at);
        // Workers that the machine does not know belong to an attempt that it gave up.
        self.agents[at].node.begin(self.sim.now, input).ok();
        self.after(at, before, report.as_ref())
    }

    /// Checks the agent's supervisor after each of its inputs, and performs the outputs.
    fn after(
        &mut self,
        at: usize,
        before: super::referee::Before,
        input: Option<&supervisor::Input>,
    ) -> Result<(), String> {
        self.check_input(at, before, input)?;
        loop {
            while let Some(output) = self.agents[at].node.poll_output() {
                self.perform(at, output)?;
            }
            let Some(report) = self.agents[at].node.next_report().cloned() else { break };
            self.sim.note(format_args!("{at} <- {report:?}"));
            self.note_input(at, &report);
            let before = self.before(at);
            self.agents[at].node.step(self.sim.now);
            self.check_input(at, before, Some(&report))?;
        }
        self.set_alarm(at);
        Ok(())
    }

    fn perform(&mut self, at: usize, output: Output) -> Result<(), String> {
        match output {
            Output::Call { id, request } => {
                self.sim.note(format_args!("{at} -> call {id}: {request:?}"));
                self.begin_call(at, id, request.clone());
                if request == Request::Close {
                    self.check_close(at)?;
                }
                Ok(())
            }
            Output::Cancel { id } => {
                self.sim.note(format_args!("{at} -> cancel {id}"));
                self.cancel_call(at, id);
                Ok(())
            }
            Output::Abandon => {
                self.abandon(at);
                Ok(())
            }
            Output::EndStore => Ok(()),
            Output::Supervisor(output) => self.perform_for_workers(at, output),
        }
    }

    fn perform_for_workers(&mut self, at: usize, output: supervisor::Output) -> Result<(), String> {
        use supervisor::Output as Do;
        if !matches!(output, Do::Report { .. }) {
            self.sim.note(format_args!("{at} -> {output:?}"));
        }
        match output {
            Do::Start { .. } => {
                let group = self.agents[at].machine().group().clone();
                let round = self.agents[at].context.round();
                let job = round.and_then(|round| Some((self.lines.get(&round.session)?.epoch, round.number)));
                self.check_start(at, &group, job)?;
                self.start(at, &group, job);
            }
            Do::Signal { signal } => self.order(at, CrewCue::Signal(signal)),
            Do::Kill => self.order(at, CrewCue::Kill),
            Do::Report { failures, .. } => {
                self.sim.note(format_args!("{at} -> Report {failures:?}"));
                self.check_report(at, &failures)?;
            }
            Do::Notify(notice) => {
                self.check_notice(at, &notice);
                if let Notice::Phase { to, .. } = notice {
                    if to == Phase::Assigning {
                        self.agents[at].stale_numbers = false;
                    }
                    self.trigger_mishaps(at, to);
                }
            }
            Do::Over => {
                self.check_over(at)?;
                self.agents[at].life = Life::Over;
                self.hang_up(at);
            }
            _ => {}
        }
        Ok(())
    }

    /// Triggers the mishaps that wait for an agent to enter a phase.
    fn trigger_mishaps(&mut self, at: usize, phase: Phase) {
        let visits = self.agents[at].visits.entry(phase).or_default();
        let nth = *visits;
        *visits += 1;
        for &(agent, when, mishap) in &self.plan.mishaps {
            if let When::In(wanted, wanted_nth, after) = when
                && (agent, wanted, wanted_nth) == (at, phase, nth)
            {
                self.sim.at(self.sim.now + after, Cue::Mishap(at, mishap));
            }
        }
    }

    fn mishap(&mut self, at: usize, mishap: Mishap) -> Result<(), String> {
        let now = self.sim.now;
        if let Mishap::ServerDies(back) = mishap {
            self.server_dies(back);
            return Ok(());
        }
        if !self.agents[at].is_supervised() {
            return Ok(());
        }
        self.sim.note(format_args!("{at}: {mishap:?}"));
        self.agents[at].ledger.mishaps.push(mishap);
        match mishap {
            Mishap::Dies => {
                self.orphan(at);
                self.agents[at].life = Life::Dead;
                self.hang_up(at);
            }
            Mishap::Stop(cause) => self.give(at, Input::Stop(cause))?,
            Mishap::Pass => self.give(at, Input::Pass { signal: 10 })?,
            Mishap::ConnectionLost(here, there) => {
                if let Some(session) = self.agents[at].context.line()
                    && let Some(line) = self.lines.get_mut(&session)
                {
                    line.is_cut = true;
                    self.sim.at(now + here, Cue::NodeLoses(session));
                    let why = Why::HostSilent;
                    self.sim.at(now + there, Cue::ServerLoses(session, why));
                }
            }
            Mishap::Closes => {
                if let Some(master_server) = &mut self.master_server {
                    master_server.close(self.sim.now);
                }
                self.post()?;
            }
            Mishap::NotNumbered => self.agents[at].context.is_unlucky = true,
            Mishap::NeighboursEnd(_) => {
                self.apply_mishap(at, mishap);
                let next = (at + 1) % self.agents.len();
                if self.agents[next].is_supervised() {
                    self.agents[next].ledger.mishaps.push(mishap);
                    self.apply_mishap(next, mishap);
                }
            }
            _ => self.apply_mishap(at, mishap),
        }
        Ok(())
    }

    fn server_dies(&mut self, back: Option<Duration>) {
        if self.master_server.take().is_none() {
            return;
        }
        self.sim.note(format_args!("the server dies, and is back after {back:?}"));
        // It concerns all agents.
        for agent in &mut self.agents {
            agent.ledger.mishaps.push(Mishap::ServerDies(back));
        }
        self.epoch += 1;
        for (&session, line) in &mut self.lines {
            line.is_open_there = false;
            if line.is_open_here {
                let after = self.sim.sim_rng.span(Duration::ZERO, Duration::from_millis(20));
                self.sim.at(self.sim.now + after, Cue::NodeLoses(session));
            }
        }
        if let Some(back) = back {
            self.sim.at(self.sim.now + back, Cue::ServerRestarts);
        }
    }

    /// Opens a session. Returns `None` without a server.
    pub(super) fn connect(&mut self, at: usize) -> Option<u64> {
        self.master_server.as_ref()?;
        let session = self.lines.len() as u64 + 1;
        let pace = self.sim.sim_rng.span(Duration::from_micros(50), Duration::from_millis(20));
        let line = Line {
            agent: at,
            epoch: self.epoch,
            is_open_here: true,
            is_open_there: true,
            is_cut: false,
            up: self.sim.now + pace,
            down: self.sim.now,
            pace,
        };
        self.lines.insert(session, line);
        let context = &mut self.agents[at].context;
        (context.session, context.is_line_over) = (Some(session), false);
        Some(session)
    }

    pub(super) fn send(&mut self, session: u64, request: ServerRequest) {
        let Some(line) = self.lines.get_mut(&session).filter(|line| line.is_open_here) else { return };
        let method = self.sim.sim_rng.span(line.pace / 2, line.pace);
        line.up = (self.sim.now + method).max(line.up);
        self.sim.at(line.up, Cue::ServerRequest(session, request));
    }

    fn handle_request(&mut self, session: u64, request: ServerRequest) -> Result<(), String> {
        let Some(line) = self.lines.get_mut(&session) else { return Ok(()) };
        let Some(master_server) = self.master_server.as_mut().filter(|_| line.is_open_there && !line.is_cut)
        else {
            return Ok(());
        };
        self.sim.note(format_args!("{} asks {request:?}", line.agent));
        master_server.handle(self.sim.now, session, request);
        self.post()
    }

    /// Sends the messages of the server.
    fn post(&mut self) -> Result<(), String> {
        let Some(master_server) = &mut self.master_server else { return Ok(()) };
        let formed = core::mem::take(&mut master_server.formed);
        for (session, news) in master_server.take() {
            let Some(line) = self.lines.get_mut(&session).filter(|line| line.is_open_there) else { continue };
            let method = self.sim.sim_rng.span(line.pace / 2, line.pace);
            line.down = (self.sim.now + method).max(line.down);
            self.sim.at(line.down, Cue::ServerMessage(session, news));
        }
        if let Some(due) = master_server.due()
            && self.tick_at.is_none_or(|at| at > due)
        {
            self.tick_at = Some(due);
            self.sim.at(due, Cue::Tick);
        }
        self.form(formed)
    }

    fn form(&mut self, formed: Vec<Formed>) -> Result<(), String> {
        let mut keys = Vec::new();
        for Formed { session, round } in formed {
            let Some(line) = self.lines.get(&session) else { continue };
            let key = (self.epoch, round.namespace.round);
            let job = self.jobs.entry(key).or_default();
            let size = self.plan.nodes[line.agent].spec.local_world_size.into();
            job.members.push((line.agent, round.worker_offset, size));
            job.members.sort_by_key(|&(_, first, _)| first);
            job.world_size = round.worker_count;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        for key in keys {
            self.check_round(key)?;
            self.sim.note(format_args!("round {key:?}: {:?}", self.jobs.get(&key)));
        }
        Ok(())
    }

    fn news(&mut self, session: u64, news: ServerMessage) {
        let Some(line) = self.lines.get(&session) else { return };
        let at = line.agent;
        let is_current = self.agents[at].context.line() == Some(session);
        if line.is_cut || !line.is_open_here || !is_current || !self.agents[at].is_supervised() {
            return;
        }
        if matches!(news, ServerMessage::Stored { answer: ServerAnswer::Stale, .. }) {
            self.agents[at].stale_numbers = true;
        }
        if let ServerMessage::Event(Event::Replaced { .. }) = news {
            self.sim.note(format_args!("{at} was replaced"));
        }
        self.call_news(at, session, news);
    }

    fn node_loses(&mut self, session: u64) {
        let Some(line) = self.lines.get_mut(&session) else { return };
        let at = line.agent;
        line.is_open_here = false;
        let agent = &mut self.agents[at];
        if agent.context.session == Some(session) && agent.is_supervised() {
            self.sim.note(format_args!("{at} has lost its session"));
            agent.context.is_line_over = true;
            self.calls_lost(at);
        }
    }

    /// Returns whether a live server has ended this session.
    pub(super) fn has_ended(&self, session: u64) -> bool {
        let is_over = self.lines.get(&session).is_some_and(|line| !line.is_open_there);
        is_over && self.master_server.is_some()
    }

    fn server_loses(&mut self, session: u64, why: Why) -> Result<(), String> {
        let Some(line) = self.lines.get_mut(&session).filter(|line| line.is_open_there) else {
            return Ok(());
        };
        line.is_open_there = false;
        self.sim.note(format_args!("the server has lost {}: {why}", line.agent));
        if let Some(master_server) = &mut self.master_server {
            master_server.ended(self.sim.now, session, why);
        }
        self.post()
    }

    /// Ends the session from this end, which the server notices.
    pub(super) fn hang_up(&mut self, at: usize) {
        let context = &mut self.agents[at].context;
        let Some(session) = context.session.take() else { return };
        let Some(line) = self.lines.get_mut(&session).filter(|line| line.is_open_here) else { return };
        line.is_open_here = false;
        if !line.is_cut {
            let when = (self.sim.now + line.pace).max(line.up);
            self.sim.at(when, Cue::ServerLoses(session, Why::Connection));
        }
    }

    /// Ends the session without notice, in the middle of the round.
    fn abandon(&mut self, at: usize) {
        self.hang_up(at);
        self.calls_lost(at);
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdicts: Vec<Option<&Outcome>> =
            self.agents.iter().map(|agent| agent.machine().outcome()).collect();
        f.debug_struct("World").field("seed", &self.seed).field("verdicts", &verdicts).finish_non_exhaustive()
    }
}
