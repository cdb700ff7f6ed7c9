//! It plays one seed of nodes, from the first process to an empty server.

use super::super::accepting::Accepting;
use super::super::client::{Client, Health};
use super::super::faults::Sabotage;
use super::super::host::{ClientConduct, Host, Security};
use super::super::script::{KeySpace, Script, Storm, StormOptions};
use super::super::tokens::{OTHERS, TokenFiles, TokenKind};
use super::super::world::{
    Happening, SimContext, WorldEvent, behaviour, random_network_model, server_limits,
};
use super::super::{Failure, Kind, Options, Report};
use super::agents::Agents;
use super::late_writer::LateWriter;
use super::mishap::{Mishap, NextName, plan};
use super::node::{GRACE_MAX, Node, PAUSE_MAX, SILENCE_MAX};
use super::referee::{Referee, Status};
use super::workers::Workers;
use super::{Cue, Rules};
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Loss, Network, NetworkModel, Notice, Side};
use crate::sim::harness::revisions;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::node::server::Event;
use rendezvous_core::rendezvous::participant::Part;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{LastCall, RankOrder, Terms};

/// Returns the parameters of a random network whose capacity is sufficient in the long run.
fn network_model(sim_rng: &mut SimRng) -> NetworkModel {
    let any = random_network_model(sim_rng);
    NetworkModel {
        segment_bytes_max: any.segment_bytes_max.max(48),
        window_bytes: any.window_bytes.max(4096),
        read_bytes_max: any.read_bytes_max.max(512),
        ..any
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Storm,
    /// No more mishaps happen, and each run must have a stable round by then. `look_at` is the time of the next check;
    /// `stood` says whether the last one passed.
    Healing {
        by: Instant,
        look_at: Instant,
        stood: bool,
    },
    /// Each agent must end by then, and the server must know which sessions live.
    Working {
        by: Instant,
        look_at: Instant,
    },
    /// The worker of one node leaves its group until then, while the others call it.
    Leaving {
        until: Instant,
    },
    ExitBarrier,
}

/// Session of a dead process, until the server has noticed its end.
struct DeadSession {
    epoch: u32,
    session: u64,
    state: Status,
}

pub(in crate::sim) struct World {
    context: SimContext,
    rules: Rules,
    referee: Referee,
    host: Host,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    late_writers: Vec<LateWriter>,
    workers: Workers,
    agents: Agents,
    dead_sessions: Vec<DeadSession>,
    phase: Phase,
    storm_ends: Instant,
}

/// Longest last call.
const LAST_CALL_MAX: Duration = Duration::from_secs(1);
/// Longest round trip without mishaps, with all pauses of readers.
const ROUND_TRIP: Duration = Duration::from_millis(500);
/// Longest time to connect again once the path is free: a pause between attempts, and an attempt under way.
const DIAL_MAX: Duration = Duration::from_millis(1750);

/// Time from the last mishap to a round for every open run. The server notices a dead or partitioned node after the
/// heartbeat timeout, and removes it from the run a grace period later. Until then the others may come back twice: once
/// because a node is missing, and once because it is there again. Each time they pause, wait for a last call, and are
/// notified.
pub(super) const HEALING_MAX: Duration = SILENCE_MAX
    .saturating_add(GRACE_MAX)
    .saturating_add(DIAL_MAX)
    .saturating_add(PAUSE_MAX)
    .saturating_add(PAUSE_MAX.saturating_add(LAST_CALL_MAX).saturating_add(ROUND_TRIP).saturating_mul(2));

/// Time until the server notices the end of a process over a free path. Bytes in transit arrive first.
const NOTICE_MAX: Duration = Duration::from_secs(1);
/// Time from the last mishap to the end of the last agent: some restarts, and joins that time out.
const WORK_MAX: Duration = Duration::from_secs(120);
/// Time for which a run must have been stable.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

impl World {
    pub(in crate::sim) fn new(seed: u64, options: &Options) -> Self {
        let mut sim_rng = SimRng::new(seed, 1000);
        let runs = if sim_rng.percent(25) { 2 } else { 1 };
        let nodes = runs * 2 + sim_rng.index(4);
        let (clients, late_writers) = (sim_rng.index(3), sim_rng.index(3));
        let storm = Duration::from_millis(sim_rng.between(2000, 6000));
        let storm_ends = Instant::ORIGIN + storm;
        // The saboteur changes frames, which TLS would hide and which proofs cover. The seed itself decides, so that worlds
        // without TLS and tokens are independent of these.
        let is_intact = options.sabotage == Sabotage::None;
        let (has_tls, has_tokens) = (is_intact && seed % 4 == 3, is_intact && seed / 4 % 4 == 1);
        let others: &[TokenKind] = if has_tokens { &OTHERS } else { &[] };
        // TLS, tokens and small budgets are chosen by the lower bits, so workers and agents meet all of them.
        let has_jobs = is_intact && seed / 64 % 4 == 1;
        let agents = if has_jobs { 1 + sim_rng.index(3) } else { 0 };
        let first_agent = nodes + others.len() + clients + late_writers;
        let parties = first_agent + agents;
        let network = Network::new(SimRng::new(seed, 1001), network_model(&mut sim_rng), parties);
        let key_space = KeySpace { registers: 4, counters: 3, pairs: 2, queues: 3, barriers: 1, clients };
        let mut context = SimContext::new(network, SimRng::new(seed, 1003), key_space, options);
        let per_run = u32::try_from(nodes / runs).unwrap_or(1);
        let nodes_min = 1 + u32::try_from(sim_rng.index(per_run as usize)).unwrap_or(0);
        let last_call = sim_rng.pick(&[LastCall::Fixed, LastCall::FromLastArrival, LastCall::Off]);
        let last_call_max = u64::try_from(LAST_CALL_MAX.as_millis()).unwrap_or(0);
        let rules = Rules {
            runs,
            terms: Terms {
                nodes_min,
                nodes_max: nodes_min + u32::try_from(sim_rng.index(4)).unwrap_or(0),
                continue_min: u32::try_from(sim_rng.index(nodes_min as usize + 1)).unwrap_or(0),
                last_call,
                last_call_ms: sim_rng.between(50, last_call_max),
                fast_quorum: sim_rng.percent(70),
                rank_order: sim_rng.pick(&[RankOrder::Sticky, RankOrder::Sticky, RankOrder::Host]),
                rank_label: b"",
                cool_down_failures: 0,
                cool_down_window_ms: 0,
                cool_down_pause_ms: 0,
                cool_down_pause_ms_max: 0,
            },
            join_timeout_ms: sim_rng.between(1500, 8000),
            closes: sim_rng.percent(25),
            processes: 0,
            resumed: 0,
            unauthenticated: 0,
            denied: 0,
        };
        for (at, mishap) in plan(&mut sim_rng, storm) {
            context.event_queue.schedule(at, WorldEvent::Elastic(Cue::Mishap(mishap)));
        }
        context.event_queue.schedule(storm_ends, WorldEvent::Elastic(Cue::PhaseDue));
        let mut limits = server_limits(&mut sim_rng);
        if is_intact && seed / 16 % 4 == 1 {
            context.split_lists(&mut limits, seed);
        }
        if has_tls {
            context.security = Security::Tls;
        }
        if has_tokens {
            context.token_files = Some(TokenFiles::new(SimRng::new(seed, 1004), parties, storm));
        }
        let conduct = (ClientConduct::Late, context.security);
        let accepting = Accepting::new(SimRng::new(seed, 1005), is_intact);
        let host = Host::new((SimRng::new(seed, 1002), accepting), limits, options.sabotage, conduct);
        let token_kinds = core::iter::repeat_n(TokenKind::Full, nodes).chain(others.iter().copied());
        let nodes: Vec<Node> = token_kinds
            .enumerate()
            .map(|(number, token_kind)| {
                let sim_rng = SimRng::new(seed, 2000 + number as u64);
                Node::new((number, token_kind), sim_rng, &mut context, &rules)
            })
            .collect();
        let first = nodes.len();
        let clients = (first..first + clients).map(|number| {
            let behaviour = behaviour(&mut sim_rng);
            let mut client =
                Client::new(number, SimRng::new(seed, 3000 + number as u64), behaviour, Health::Sound);
            let pause_max = Duration::from_millis(300);
            let storm_options = StormOptions {
                operations: 2 + sim_rng.index(8),
                depth: 1,
                pause_max,
                value_bytes_max: 300,
                more_pairs: 0,
            };
            client.script = Script::Storm(Storm::new(number, key_space, storm_options));
            context.event_queue.schedule(Instant::ORIGIN, WorldEvent::ClientDue(number));
            client
        });
        let clients: Vec<Client> = clients.collect();
        let first = first + clients.len();
        let late_writers = (first..first + late_writers).map(|number| {
            LateWriter::new(number, SimRng::new(seed, 4000 + number as u64), runs, &mut context)
        });
        let late_writers = late_writers.collect();
        let workers = Workers::new(seed, if has_jobs { nodes.len() } else { 0 });
        let agents = Agents::new(seed, &mut context, (first_agent, agents), &rules);
        Self {
            rules,
            referee: Referee::default(),
            host,
            nodes,
            clients,
            late_writers,
            workers,
            agents,
            dead_sessions: Vec::new(),
            phase: Phase::Storm,
            storm_ends,
            context,
        }
    }

    /// Runs the world to its end.
    pub(in crate::sim) fn play(mut self, seed: u64) -> Result<Report, Failure> {
        let played = self.run().and_then(|()| self.referee.check_at_end());
        let nodes = self.nodes.len();
        let of_c10d = self.context.history.records().iter().filter(|record| nodes <= record.actor);
        let played =
            played.and_then(|()| self.context.revisions.check(of_c10d, self.context.history.splits_lists));
        let late_writes = self.late_writers.iter().map(|late_writer| late_writer.disconnects).sum::<u64>();
        let checked = *played.as_ref().unwrap_or(&revisions::Counts::default());
        let mut counts = vec![
            ("rounds", self.referee.rounds),
            ("sessions that were resumed", self.rules.resumed),
            ("changes that watches delivered", checked.reports),
            ("arrivals that were released", self.referee.released),
            ("writes that came too late", self.referee.stale + late_writes),
            ("nodes that were refused", self.rules.unauthenticated),
            ("requests that were denied", self.rules.denied),
            ("transactions whose tests were evaluated", checked.transactions),
            ("reads of several keys", checked.reads),
            ("requests without an answer that were applied", checked.recovered),
            ("answers of c10d that have a revision", checked.located),
        ];
        counts.extend(self.host.accept_counts());
        counts.extend(self.workers.counts());
        counts.extend(self.agents.counts());
        let clients = self.nodes.len() + self.clients.len() + self.late_writers.len();
        self.context.finish((seed, Kind::Elastic), clients, played.map(|_| counts))
    }

    fn run(&mut self) -> Result<(), CheckError> {
        while let Some(happening) = self.context.next()? {
            match happening {
                Happening::Nothing => {}
                Happening::Notice(notice) => self.deliver(notice)?,
                Happening::Event(world_event) => self.handle_event(world_event)?,
            }
            self.workers.follow(&mut self.context, &self.nodes)?;
            self.check()?;
            self.change_phase()?;
        }
        if self.phase != Phase::ExitBarrier {
            return Err(CheckError(format!("nothing happens any more in {:?}", self.phase)));
        }
        if self.context.network.open() > 0 {
            return Err(CheckError(format!("{} connections were forgotten", self.context.network.open())));
        }
        self.host.check_native_floor()
    }

    fn deliver(&mut self, notice: Notice) -> Result<(), CheckError> {
        let context = &mut self.context;
        if self.workers.noticed(context, notice)? {
            return Ok(());
        }
        match notice {
            Notice::Accept(_) | Notice::Readable(_, Side::Server) | Notice::Writable(_, Side::Server) => {
                self.host.noticed(context, notice)
            }
            Notice::Connected(stream)
            | Notice::Refused(stream)
            | Notice::Readable(stream, Side::Client)
            | Notice::Writable(stream, Side::Client) => {
                if let Some(node) = self.nodes.iter_mut().find(|node| node.owns(stream)) {
                    return node.noticed(context, &mut self.referee, &mut self.rules, notice);
                }
                if self.agents.owns(stream) {
                    let (referee, rules) = (&mut self.referee, &mut self.rules);
                    return self.agents.noticed(context, referee, rules, (stream, notice));
                }
                if let Some(client) = self.clients.iter_mut().find(|client| client.owns(stream)) {
                    return client.noticed(context, notice);
                }
                if let Some(one) = self.late_writers.iter_mut().find(|one| one.owns(stream)) {
                    one.noticed(context, notice);
                }
                Ok(())
            }
        }
    }

    fn handle_event(&mut self, world_event: WorldEvent) -> Result<(), CheckError> {
        let first = self.nodes.len();
        let context = &mut self.context;
        match world_event {
            WorldEvent::ClientDue(number) => self.clients[number - first].poll(context),
            WorldEvent::Resolved(number, line) => self.clients[number - first].resolved(context, line),
            WorldEvent::HostDue => self.host.tick(context),
            WorldEvent::SaboteurRequest(_) if self.phase == Phase::ExitBarrier => Ok(()),
            WorldEvent::SaboteurRequest(frame) => self.host.send_as_saboteur(context, &frame),
            WorldEvent::ServerRestarts => {
                if !context.network.listening {
                    // One in four comes back elsewhere, and only processes that start from now on know where.
                    context.network.port += u16::from(context.sim_rng.percent(25));
                    self.host.restart(context);
                    self.referee.server_restarted(self.host.epoch());
                }
                Ok(())
            }
            WorldEvent::PhaseDue | WorldEvent::Fault(_) => Ok(()),
            WorldEvent::Elastic(cue) => self.cue(cue),
        }
    }

    fn cue(&mut self, cue: Cue) -> Result<(), CheckError> {
        let first = self.nodes.len() + self.clients.len();
        let Self { context, referee, rules, nodes, .. } = self;
        match cue {
            Cue::Due(host, _)
            | Cue::Resolved(host, ..)
            | Cue::Thaw(host, _)
            | Cue::StartProcess(host)
            | Cue::Agent(host, ..)
                if self.agents.has(host) =>
            {
                self.agents.handle(context, referee, rules, (host, cue))
            }
            Cue::Due(host, number) if nodes[host].is_process(number) => {
                nodes[host].with(context, referee, rules, |process, context| {
                    process.poll(context);
                    Ok(())
                })
            }
            Cue::Resolved(host, number, dial) if nodes[host].is_process(number) => {
                let found = !context.stormy || !context.sim_rng.percent(4);
                nodes[host].with(context, referee, rules, |process, context| {
                    process.resolved(context, dial, found);
                    Ok(())
                })
            }
            Cue::Wake(host, number) if nodes[host].is_process(number) => {
                nodes[host].act(context, referee, rules)
            }
            Cue::Thaw(host, number) if nodes[host].is_process(number) => {
                nodes[host].with(context, referee, rules, |process, context| process.thaw(context))
            }
            Cue::ServerThaws(epoch) if epoch == self.host.epoch() && self.host.machine().is_some() => {
                self.host.thaw(context)
            }
            Cue::ServerThaws(_) => Ok(()),
            Cue::Due(..)
            | Cue::Resolved(..)
            | Cue::Wake(..)
            | Cue::Thaw(..)
            | Cue::Agent(..)
            | Cue::PhaseDue => Ok(()),
            Cue::StartProcess(host) => {
                nodes[host].start_process(context, referee, rules);
                Ok(())
            }
            Cue::LateWriterDue(number) => {
                self.late_writers[number - first].poll(context);
                Ok(())
            }
            Cue::Worker(host, process, cue) => self.workers.handle(context, (host, process), cue, nodes),
            Cue::SaboteurHeartbeat => self.host.send_saboteur_heartbeats(context),
            Cue::Mishap(mishap) => self.apply_fault(mishap),
        }
    }

    fn apply_fault(&mut self, mishap: Mishap) -> Result<(), CheckError> {
        let Self { context, nodes, referee, .. } = self;
        let now = context.now;
        context.note(format_args!("mishap: {mishap:?}"));
        let streams: Vec<_> = context.network.streams().collect();
        // Mishaps happen to the hosts of agents, too.
        let node_hosts = nodes.len();
        let drawn = context.sim_rng.index(node_hosts + self.agents.count());
        let host = if drawn < node_hosts { drawn } else { self.agents.first_host() + drawn - node_hosts };
        let mut failure = |host: usize, until: Instant| {
            if let Some(node) = nodes.get_mut(host) {
                node.trouble_until = node.trouble_until.max(until);
                referee.delay_host(host, until.since(now));
            }
        };
        let is_session = |context: &SimContext, stream| context.network.worker_of(stream).is_none();
        match mishap {
            Mishap::Cut if !streams.is_empty() => {
                let loss = if context.sim_rng.percent(30) { Loss::Nothing } else { Loss::Tail };
                let stream = context.sim_rng.pick(&streams);
                context.note(format_args!("{stream} is cut, {loss:?} of what is under way is lost"));
                if let Some(host) = context.network.client_of(stream).filter(|_| is_session(context, stream))
                {
                    failure(host, now + ROUND_TRIP);
                }
                context.network.cut(now, stream, loss);
            }
            Mishap::Clog(span) if !streams.is_empty() => {
                let to = if context.sim_rng.percent(50) { Side::Client } else { Side::Server };
                let stream = context.sim_rng.pick(&streams);
                context.note(format_args!("{stream} is clogged towards the {to:?}"));
                if let Some(host) = context.network.client_of(stream).filter(|_| is_session(context, stream))
                {
                    failure(host, now + span);
                }
                context.network.clog(stream, to, now + span);
            }
            Mishap::GiveUp if streams.iter().any(|stream| is_session(context, *stream)) => {
                let streams: Vec<_> = streams.into_iter().filter(|one| is_session(context, *one)).collect();
                let stream = context.sim_rng.pick(&streams);
                context.note(format_args!("the kernel gives {stream} up"));
                self.host.give_up(context, stream)?;
            }
            Mishap::Cut | Mishap::Clog(_) | Mishap::GiveUp => {}
            Mishap::Partition(span, to) => {
                context.note(format_args!("host {host} is cut off"));
                failure(host, now + span);
                context.network.partition(host, to, now + span);
            }
            Mishap::Slow { by, for_ } => {
                context.note(format_args!("the way of host {host} becomes longer"));
                failure(host, now + for_ + by * 2);
                context.network.slow(host, by, now + for_);
            }
            // One in four freezes the server. The plan has no separate mishap for that.
            Mishap::Freeze(span) if span.subsec_nanos().is_multiple_of(4) => {
                if self.host.freeze() {
                    context.note(format_args!("the server freezes"));
                    for (host, node) in nodes.iter_mut().enumerate() {
                        node.server_freezes(now + span);
                        referee.delay_host(host, span + SILENCE_MAX);
                    }
                    self.agents.server_freezes(now + span);
                    let thaws = Cue::ServerThaws(self.host.epoch());
                    context.event_queue.schedule(now + span, WorldEvent::Elastic(thaws));
                }
            }
            Mishap::Freeze(span) if self.agents.has(host) => {
                context.note(format_args!("the agent of host {host} freezes"));
                self.agents.freeze(context, host, span);
            }
            Mishap::Freeze(span) => {
                if let Some(number) = nodes[host].freeze() {
                    context.note(format_args!("host {host} freezes"));
                    nodes[host].trouble_until = nodes[host].trouble_until.max(now + span);
                    context.event_queue.schedule(now + span, WorldEvent::Elastic(Cue::Thaw(host, number)));
                }
            }
            Mishap::Crash(span, _) if self.agents.has(host) => {
                context.note(format_args!("the agent of host {host} dies"));
                self.agents.crash(context, host, span);
            }
            Mishap::Crash(span, next_name) => return self.crash(host, span, next_name),
            Mishap::Restart(span) => {
                if context.network.listening {
                    self.host.kill(context);
                    context.event_queue.schedule(now + span, WorldEvent::ServerRestarts);
                }
            }
        }
        Ok(())
    }

    fn crash(&mut self, host: usize, span: Duration, next_name: NextName) -> Result<(), CheckError> {
        let Self { context, nodes, referee, .. } = self;
        let neighbour = nodes[(host + 1) % nodes.len()].name().to_owned();
        let node = &mut nodes[host];
        let session = node.session();
        let until = node.trouble_until.max(context.now);
        if let Some((epoch, session, state)) = node.kill(context)? {
            self.dead_sessions.push(DeadSession { epoch, session, state });
        }
        if let Some((epoch, session, grace, late_until)) = session {
            let by = until.max(late_until) + grace + grace / 20 + NOTICE_MAX;
            referee.session_ends_by(epoch, session, by, host);
            context.event_queue.schedule(by + Duration::from_nanos(1), WorldEvent::Elastic(Cue::PhaseDue));
        }
        match next_name {
            NextName::Same => {}
            NextName::New => node.set_new_name(),
            NextName::Neighbours => node.set_name(&neighbour),
        }
        context.event_queue.schedule(context.now + span, WorldEvent::Elastic(Cue::StartProcess(host)));
        Ok(())
    }

    /// Checks what must hold at all times.
    fn check(&mut self) -> Result<(), CheckError> {
        self.host.check()?;
        let Self { host, referee, nodes, dead_sessions, context, .. } = self;
        let epoch = host.epoch();
        let notable = core::mem::take(&mut host.notable);
        if let Some(server) = host.machine() {
            for event in &notable {
                if let Event::SessionOpened { conn, .. } = event
                    && let Some(node) = host.client_of(context, *conn).and_then(|number| nodes.get(number))
                    && node.token_kind() == TokenKind::Wrong
                {
                    let name = node.name();
                    return Err(CheckError(format!("{name} has a session, and its token is wrong")));
                }
                referee.server_event(context, server, event, |session| {
                    let dead_session = dead_sessions
                        .iter()
                        .find(|dead_session| dead_session.epoch == epoch && dead_session.session == session);
                    let living = nodes.iter().find_map(|node| node.status_of(epoch, session));
                    dead_session.map(|dead_session| dead_session.state.clone()).or(living)
                })?;
            }
            referee.check(context.now, server)?;
        }
        self.workers.check(context)?;
        self.agents.check(context)?;
        if let Some(what) = nodes.iter().find_map(|node| node.overdue(context.now)) {
            return Err(CheckError(what));
        }
        let late = self.clients.iter().filter_map(Client::deadline).find(|(at, _)| *at < context.now);
        match late {
            None => Ok(()),
            Some((_, id)) => Err(CheckError(format!(
                "{id} {} outlives its deadline",
                context.history.get(id).sim_operation
            ))),
        }
    }

    fn change_phase(&mut self) -> Result<(), CheckError> {
        let context = &mut self.context;
        match self.phase {
            Phase::Storm if context.now >= self.storm_ends => {
                context.stormy = false;
                context.note(format_args!("the storm is over"));
                let by = context.now + HEALING_MAX;
                self.schedule_check(by, false);
            }
            Phase::Healing { by, look_at, stood } if context.now >= look_at => {
                match self.check_healed() {
                    Ok(()) if stood => {}
                    Err(wrong) if self.context.now >= by => return Err(wrong),
                    healed => {
                        self.schedule_check(by, healed.is_ok());
                        return Ok(());
                    }
                }
                self.work_on(Duration::ZERO);
            }
            Phase::Working { by, look_at } if context.now >= look_at => {
                match self.check_sessions() {
                    Ok(()) if self.agents.are_over() => {}
                    checked if self.context.now >= by => {
                        let unfinished = self.agents.unfinished();
                        let what = format!("{WORK_MAX:?} after the storm, agents are at work: {unfinished}");
                        return checked.and(Err(CheckError(what)));
                    }
                    _ => {
                        self.work_on(LOOK_PAUSE);
                        return Ok(());
                    }
                }
                self.workers.begin_to_leave(&mut self.context)?;
                let until = self.context.now + self.workers.leaving_time();
                self.phase = Phase::Leaving { until };
                self.context.event_queue.schedule(until, WorldEvent::Elastic(Cue::PhaseDue));
            }
            Phase::Leaving { until } if context.now >= until => {
                self.phase = Phase::ExitBarrier;
                self.context.note(format_args!("all nodes leave"));
                self.workers.leave(&mut self.context)?;
                for node in &mut self.nodes {
                    node.leave_when_done(&mut self.context);
                }
                for client in &mut self.clients {
                    client.stop_dialling(&mut self.context);
                    client.leave(&mut self.context)?;
                }
                self.host.disconnect_saboteur(&mut self.context)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Looks at the agents after a pause.
    fn work_on(&mut self, pause: Duration) {
        let (by, look_at) = (self.storm_ends + WORK_MAX, self.context.now + pause);
        self.phase = Phase::Working { by, look_at };
        self.context.event_queue.schedule(look_at, WorldEvent::Elastic(Cue::PhaseDue));
    }

    fn schedule_check(&mut self, by: Instant, stood: bool) {
        // A state that lasts less than a second does not count. The last check is at the bound.
        let look_at =
            (self.context.now + LOOK_PAUSE).min(by.max(self.context.now + Duration::from_millis(1)));
        self.phase = Phase::Healing { by, look_at, stood };
        self.context.event_queue.schedule(look_at, WorldEvent::Elastic(Cue::PhaseDue));
    }

    /// Checks that leased keys exist exactly as long as their sessions.
    fn check_leases(&self) -> Result<(), CheckError> {
        let Some(machine) = self.host.machine() else { return Ok(()) };
        let keys = machine.engine().keys_with_prefix(b"/l/");
        let owned: Vec<(Vec<u8>, bool)> = self.nodes.iter().filter_map(Node::own_lease).collect();
        if let Some(key) = keys.iter().find(|&&key| owned.iter().all(|(local, _)| local != key)) {
            return Err(CheckError(format!("{} outlives the session that it hangs on", key.escape_ascii())));
        }
        match owned.iter().find(|(local, known)| *known && keys.iter().all(|&key| key != local)) {
            Some((key, _)) => {
                Err(CheckError(format!("{} was deleted before its session ended", key.escape_ascii())))
            }
            None => Ok(()),
        }
    }

    /// Checks that the server has exactly the sessions of living processes, once the agents have ended.
    fn check_sessions(&self) -> Result<(), CheckError> {
        let there = self.host.machine().map_or(0, |machine| machine.stats().sessions);
        let here = self.nodes.iter().filter(|node| node.has_session()).count();
        if there == here {
            return Ok(());
        }
        Err(CheckError(format!("the server counts {there} sessions, and there are {here}")))
    }

    /// Checks that every open run has a stable round, that each of its nodes knows all that happened there, and, unless
    /// agents begin and end sessions, that the server has exactly the sessions of living processes.
    fn check_healed(&self) -> Result<(), CheckError> {
        if let Some(client) = self.clients.iter().position(|client| !client.is_done()) {
            return Err(CheckError(format!("client {client} is not done {HEALING_MAX:?} after the storm")));
        }
        if self.late_writers.iter().any(|one| !one.is_done()) {
            return Err(CheckError("a late writer is still connected".to_owned()));
        }
        if self.agents.are_over() {
            self.check_sessions()?;
        }
        self.check_leases()?;
        self.workers.check_healed(&self.nodes)?;
        for node in &self.nodes {
            if node.token_kind() != TokenKind::Full {
                continue;
            }
            node.check_deaths_known(&self.referee)?;
            let (name, run) = (node.name(), node.run());
            let live = self.referee.live(run);
            let rests = match node.part() {
                Some(Part::InRound) => !node.is_called() && live == node.joined().map(|joined| joined.round),
                Some(Part::Standby) => live.is_some(),
                Some(Part::InLastRound | Part::Closed | Part::Joining) => {
                    self.referee.closed_in(run).is_some()
                }
                _ => false,
            };
            if !rests {
                return Err(CheckError(format!(
                    "{name} is {:?} {HEALING_MAX:?} after the storm, live is {live:?}, called: {}",
                    node.part(),
                    node.is_called()
                )));
            }
        }
        Ok(())
    }
}
