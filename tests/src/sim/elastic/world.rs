//! It plays one seed of nodes, from the first process to an empty server.

use super::super::client::{Client, Health};
use super::super::history::Wrong;
use super::super::host::{Guests, Host};
use super::super::network::{Loss, Network, NetworkModel, Notice, Side};
use super::super::oracle;
use super::super::script::{Field, Habits, Script, Storm};
use super::super::sim_rng::SimRng;
use super::super::world::{Happening, Stage, any_weather, manner, server_limits};
use super::super::{Failure, Options, Report, Sights};
use super::mishap::{Mishap, Rebirth, plan};
use super::node::{GRACE_MAX, Node, PAUSE_MAX, SILENCE_MAX};
use super::referee::{Referee, Status};
use super::trespasser::Trespasser;
use super::{Cue, Rules};
use rendezvous_core::rendezvous::participant::Part;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{LastCall, RankOrder, Terms};

/// Returns the parameters of a random network whose capacity is sufficient in the long run.
fn network_model(sim_rng: &mut SimRng) -> NetworkModel {
    let any = any_weather(sim_rng);
    NetworkModel {
        segment_bytes_max: any.segment_bytes_max.max(48),
        window_bytes: any.window_bytes.max(4096),
        read_bytes_max: any.read_bytes_max.max(512),
        ..any
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Storm,
    /// No more mishaps happen, and each run must have a stable round by then. `look_at` is the time of the next check;
    /// `stood` says whether the last one passed.
    Healing {
        by: Instant,
        look_at: Instant,
        stood: bool,
    },
    ExitBarrier,
}

/// Session of a dead process, until the server has noticed its end.
struct Grave {
    epoch: u32,
    session: u64,
    state: Status,
}

pub(in crate::sim) struct World {
    stage: Stage,
    rules: Rules,
    referee: Referee,
    host: Host,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    trespassers: Vec<Trespasser>,
    graves: Vec<Grave>,
    act: Act,
    storm_ends: Instant,
    events: u64,
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
/// Time for which a run must have been stable.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// More events than any run needs.
const EVENTS_MAX: u64 = 500_000;

impl World {
    pub(in crate::sim) fn new(seed: u64, options: &Options) -> Self {
        let mut sim_rng = SimRng::new(seed, 1000);
        let runs = if sim_rng.percent(25) { 2 } else { 1 };
        let nodes = runs * 2 + sim_rng.index(4);
        let (clients, trespassers) = (sim_rng.index(3), sim_rng.index(3));
        let storm = Duration::from_millis(sim_rng.between(2000, 6000));
        let storm_ends = Instant::ORIGIN + storm;
        let parties = nodes + clients + trespassers;
        let network = Network::new(SimRng::new(seed, 1001), network_model(&mut sim_rng), parties);
        let field = Field { registers: 4, counters: 3, pairs: 2, queues: 3, barriers: 1, clients };
        let mut stage = Stage::new(network, SimRng::new(seed, 1003), field, options);
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
        };
        for (at, mishap) in plan(&mut sim_rng, storm) {
            stage.agenda.enter(at, Happening::Elastic(Cue::Mishap(mishap)));
        }
        stage.agenda.enter(storm_ends, Happening::Elastic(Cue::Act));
        let limits = server_limits(&mut sim_rng);
        let host = Host::new(SimRng::new(seed, 1002), limits, options.sabotage, Guests::Late);
        let nodes: Vec<Node> = (0..nodes)
            .map(|number| {
                let sim_rng = SimRng::new(seed, 2000 + number as u64);
                Node::new(number, sim_rng, &mut stage, &rules)
            })
            .collect();
        let first = nodes.len();
        let clients = (first..first + clients).map(|number| {
            let manner = manner(&mut sim_rng);
            let mut client =
                Client::new(number, SimRng::new(seed, 3000 + number as u64), manner, Health::Sound);
            let pause_max = Duration::from_millis(300);
            let habits = Habits { deeds: 2 + sim_rng.index(8), depth: 1, pause_max, value_bytes_max: 300 };
            client.script = Script::Storm(Storm::new(number, field, habits));
            stage.agenda.enter(Instant::ORIGIN, Happening::ClientDue(number));
            client
        });
        let clients: Vec<Client> = clients.collect();
        let first = first + clients.len();
        let trespassers = (first..first + trespassers)
            .map(|number| Trespasser::new(number, SimRng::new(seed, 4000 + number as u64), runs, &mut stage));
        let trespassers = trespassers.collect();
        Self {
            rules,
            referee: Referee::default(),
            host,
            nodes,
            clients,
            trespassers,
            graves: Vec::new(),
            act: Act::Storm,
            storm_ends,
            events: 0,
            stage,
        }
    }

    /// Runs the world to its end.
    pub(in crate::sim) fn play(mut self, seed: u64) -> Result<Report, Failure> {
        let played = self
            .run()
            .and_then(|()| self.referee.judge())
            .and_then(|()| oracle::judge(self.stage.history.records()));
        let Stage { now, history, trace, sabotage, .. } = self.stage;
        match played {
            Ok(outcome) => Ok(Report {
                trace_hash: trace.hash(),
                trace_lines: trace.lines(),
                events: self.events,
                deeds: history.records().len(),
                answered: history.records().iter().filter(|record| record.is_answered()).count(),
                clients: self.nodes.len() + self.clients.len() + self.trespassers.len(),
                undecided: outcome.undecided,
                virtual_time: now.since(Instant::ORIGIN),
                rounds: self.referee.rounds,
                resumed: self.rules.resumed,
                changes: self.referee.changes,
                released: self.referee.released,
                stale: self.referee.stale
                    + self.trespassers.iter().map(|trespasser| trespasser.thrown_out).sum::<u64>(),
                sights: Sights::default(),
            }),
            Err(Wrong(what)) => Err(Failure {
                seed,
                world: super::super::Kind::Elastic,
                sabotage,
                what,
                now,
                trace: trace.into_last(),
            }),
        }
    }

    fn run(&mut self) -> Result<(), Wrong> {
        loop {
            let (network, agenda) = (self.stage.network.next_at(), self.stage.agenda.next_at());
            let Some(now) = [network, agenda].into_iter().flatten().min() else { break };
            self.stage.now = now;
            self.events += 1;
            if self.events > EVENTS_MAX {
                return Err(Wrong("there is no end".to_owned()));
            }
            if network == Some(now) {
                if let Some((_, Some(notice))) = self.stage.network.step() {
                    self.deliver(notice)?;
                }
            } else if let Some((_, happening)) = self.stage.agenda.pop() {
                self.happen(happening)?;
            }
            self.check()?;
            self.change_act()?;
        }
        if self.act != Act::ExitBarrier {
            return Err(Wrong(format!("nothing happens any more in {:?}", self.act)));
        }
        if self.stage.network.open() > 0 {
            return Err(Wrong(format!("{} connections were forgotten", self.stage.network.open())));
        }
        self.host.check_native_floor()
    }

    fn deliver(&mut self, notice: Notice) -> Result<(), Wrong> {
        let stage = &mut self.stage;
        match notice {
            Notice::Accept(_) | Notice::Readable(_, Side::Server) | Notice::Writable(_, Side::Server) => {
                self.host.noticed(stage, notice)
            }
            Notice::Connected(stream)
            | Notice::Refused(stream)
            | Notice::Readable(stream, Side::Client)
            | Notice::Writable(stream, Side::Client) => {
                if let Some(node) = self.nodes.iter_mut().find(|node| node.owns(stream)) {
                    return node.noticed(stage, &mut self.referee, &mut self.rules, notice);
                }
                if let Some(client) = self.clients.iter_mut().find(|client| client.owns(stream)) {
                    return client.noticed(stage, notice);
                }
                if let Some(one) = self.trespassers.iter_mut().find(|one| one.owns(stream)) {
                    one.noticed(stage, notice);
                }
                Ok(())
            }
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Wrong> {
        let first = self.nodes.len();
        let stage = &mut self.stage;
        match happening {
            Happening::ClientDue(number) => self.clients[number - first].poll(stage),
            Happening::Resolved(number, line) => self.clients[number - first].resolved(stage, line),
            Happening::HostDue => self.host.tick(stage),
            Happening::Aside(_) if self.act == Act::ExitBarrier => Ok(()),
            Happening::Aside(frame) => self.host.haunt(stage, &frame),
            Happening::ServerRises => {
                if !stage.network.listening {
                    self.host.rise(stage);
                    self.referee.server_rises(self.host.epoch());
                }
                Ok(())
            }
            Happening::Act | Happening::Fault(_) => Ok(()),
            Happening::Elastic(cue) => self.cue(cue),
        }
    }

    fn cue(&mut self, cue: Cue) -> Result<(), Wrong> {
        let first = self.nodes.len() + self.clients.len();
        let Self { stage, referee, rules, nodes, .. } = self;
        match cue {
            Cue::Due(host, number) if nodes[host].is_process(number) => {
                nodes[host].with(stage, referee, rules, |process, stage| {
                    process.poll(stage);
                    Ok(())
                })
            }
            Cue::Resolved(host, number, dial) if nodes[host].is_process(number) => {
                let found = !stage.stormy || !stage.sim_rng.percent(4);
                nodes[host].with(stage, referee, rules, |process, stage| {
                    process.resolved(stage, dial, found);
                    Ok(())
                })
            }
            Cue::Wake(host, number) if nodes[host].is_process(number) => {
                nodes[host].act(stage, referee, rules)
            }
            Cue::Thaw(host, number) if nodes[host].is_process(number) => {
                nodes[host].with(stage, referee, rules, |process, stage| process.thaw(stage))
            }
            Cue::ServerThaws(epoch) if epoch == self.host.epoch() && self.host.machine().is_some() => {
                self.host.thaw(stage)
            }
            Cue::ServerThaws(_) => Ok(()),
            Cue::Due(..) | Cue::Resolved(..) | Cue::Wake(..) | Cue::Thaw(..) | Cue::Act => Ok(()),
            Cue::Rise(host) => {
                nodes[host].rise(stage, referee, rules);
                Ok(())
            }
            Cue::Trespass(number) => {
                self.trespassers[number - first].poll(stage);
                Ok(())
            }
            Cue::GhostBeat => self.host.beat(stage),
            Cue::Mishap(mishap) => self.strike(mishap),
        }
    }

    fn strike(&mut self, mishap: Mishap) -> Result<(), Wrong> {
        let Self { stage, nodes, referee, .. } = self;
        let now = stage.now;
        stage.note(format_args!("mishap: {mishap:?}"));
        let streams: Vec<_> = stage.network.streams().collect();
        let host = stage.sim_rng.index(nodes.len());
        let mut failure = |host: usize, until: Instant| {
            if let Some(node) = nodes.get_mut(host) {
                node.trouble_until = node.trouble_until.max(until);
                referee.host_is_held_up(host, until.since(now));
            }
        };
        match mishap {
            Mishap::Cut if !streams.is_empty() => {
                let loss = if stage.sim_rng.percent(30) { Loss::Nothing } else { Loss::Tail };
                let stream = stage.sim_rng.pick(&streams);
                stage.note(format_args!("{stream} is cut, {loss:?} of what is under way is lost"));
                if let Some(host) = stage.network.client_of(stream) {
                    failure(host, now + ROUND_TRIP);
                }
                stage.network.cut(now, stream, loss);
            }
            Mishap::Clog(span) if !streams.is_empty() => {
                let to = if stage.sim_rng.percent(50) { Side::Client } else { Side::Server };
                let stream = stage.sim_rng.pick(&streams);
                stage.note(format_args!("{stream} is clogged towards the {to:?}"));
                if let Some(host) = stage.network.client_of(stream) {
                    failure(host, now + span);
                }
                stage.network.clog(stream, to, now + span);
            }
            Mishap::GiveUp if !streams.is_empty() => {
                let stream = stage.sim_rng.pick(&streams);
                stage.note(format_args!("the kernel gives {stream} up"));
                self.host.give_up(stage, stream)?;
            }
            Mishap::Cut | Mishap::Clog(_) | Mishap::GiveUp => {}
            Mishap::Partition(span, to) => {
                stage.note(format_args!("host {host} is cut off"));
                failure(host, now + span);
                stage.network.partition(host, to, now + span);
            }
            Mishap::Slow { by, for_ } => {
                stage.note(format_args!("the way of host {host} becomes longer"));
                failure(host, now + for_ + by * 2);
                stage.network.slow(host, by, now + for_);
            }
            // One in four freezes the server. The plan has no separate mishap for that.
            Mishap::Freeze(span) if span.subsec_nanos().is_multiple_of(4) => {
                if self.host.freeze() {
                    stage.note(format_args!("the server freezes"));
                    for (host, node) in nodes.iter_mut().enumerate() {
                        node.server_freezes(now + span);
                        referee.host_is_held_up(host, span + SILENCE_MAX);
                    }
                    let thaws = Cue::ServerThaws(self.host.epoch());
                    stage.agenda.enter(now + span, Happening::Elastic(thaws));
                }
            }
            Mishap::Freeze(span) => {
                if let Some(number) = nodes[host].freeze() {
                    stage.note(format_args!("host {host} freezes"));
                    nodes[host].trouble_until = nodes[host].trouble_until.max(now + span);
                    stage.agenda.enter(now + span, Happening::Elastic(Cue::Thaw(host, number)));
                }
            }
            Mishap::Crash(span, rebirth) => return self.crash(host, span, rebirth),
            Mishap::Restart(span) => {
                if stage.network.listening {
                    self.host.die(stage);
                    stage.agenda.enter(now + span, Happening::ServerRises);
                }
            }
        }
        Ok(())
    }

    fn crash(&mut self, host: usize, span: Duration, rebirth: Rebirth) -> Result<(), Wrong> {
        let Self { stage, nodes, referee, .. } = self;
        let neighbour = nodes[(host + 1) % nodes.len()].name().to_owned();
        let node = &mut nodes[host];
        let session = node.session();
        let until = node.trouble_until.max(stage.now);
        if let Some((epoch, session, state)) = node.die(stage, referee)? {
            self.graves.push(Grave { epoch, session, state });
        }
        if let Some((epoch, session, grace, late_until)) = session {
            let by = until.max(late_until) + grace + grace / 20 + NOTICE_MAX;
            referee.session_ends_by(epoch, session, by, host);
            stage.agenda.enter(by + Duration::from_nanos(1), Happening::Elastic(Cue::Act));
        }
        match rebirth {
            Rebirth::Same => {}
            Rebirth::New => node.has_new_name(),
            Rebirth::Neighbours => node.has_name(&neighbour),
        }
        stage.agenda.enter(stage.now + span, Happening::Elastic(Cue::Rise(host)));
        Ok(())
    }

    /// Checks what must hold at all times.
    fn check(&mut self) -> Result<(), Wrong> {
        self.host.check()?;
        let Self { host, referee, nodes, graves, stage, .. } = self;
        let epoch = host.epoch();
        let notable = core::mem::take(&mut host.notable);
        if let Some(server) = host.machine() {
            for event in &notable {
                referee.server_said(stage, server, event, |session| {
                    let grave = graves.iter().find(|grave| grave.epoch == epoch && grave.session == session);
                    let living = nodes.iter().find_map(|node| node.standing_of(epoch, session));
                    grave.map(|grave| grave.state.clone()).or(living)
                })?;
            }
            referee.check(stage.now, server)?;
        }
        if let Some(what) = nodes.iter().find_map(|node| node.overdue(stage.now)) {
            return Err(Wrong(what));
        }
        let late = self.clients.iter().filter_map(Client::deadline).find(|(at, _)| *at < stage.now);
        match late {
            None => Ok(()),
            Some((_, id)) => {
                Err(Wrong(format!("{id} {} outlives its deadline", stage.history.get(id).sim_operation)))
            }
        }
    }

    fn change_act(&mut self) -> Result<(), Wrong> {
        let stage = &mut self.stage;
        match self.act {
            Act::Storm if stage.now >= self.storm_ends => {
                stage.stormy = false;
                stage.note(format_args!("the storm is over"));
                let by = stage.now + HEALING_MAX;
                self.look_again(by, false);
            }
            Act::Healing { by, look_at, stood } if stage.now >= look_at => {
                match self.check_healed() {
                    Ok(()) if stood => {}
                    Err(wrong) if self.stage.now >= by => return Err(wrong),
                    healed => {
                        self.look_again(by, healed.is_ok());
                        return Ok(());
                    }
                }
                self.act = Act::ExitBarrier;
                self.stage.note(format_args!("all nodes leave"));
                for node in &mut self.nodes {
                    node.part_for_good(&mut self.stage);
                }
                for client in &mut self.clients {
                    client.stop_dialling(&mut self.stage);
                    client.leave(&mut self.stage)?;
                }
                self.host.lay_ghost(&mut self.stage)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn look_again(&mut self, by: Instant, stood: bool) {
        // A state that lasts less than a second does not count. The last check is at the bound.
        let look_at = (self.stage.now + LOOK_PAUSE).min(by.max(self.stage.now + Duration::from_millis(1)));
        self.act = Act::Healing { by, look_at, stood };
        self.stage.agenda.enter(look_at, Happening::Elastic(Cue::Act));
    }

    /// Checks that leased keys exist exactly as long as their sessions.
    fn check_leases(&self) -> Result<(), Wrong> {
        let Some(machine) = self.host.machine() else { return Ok(()) };
        let (keys, _) = machine.engine().page(b"/l/", b"", usize::MAX);
        let owned: Vec<(Vec<u8>, bool)> = self.nodes.iter().filter_map(Node::own_lease).collect();
        if let Some(key) = keys.iter().find(|key| owned.iter().all(|(local, _)| local != key)) {
            return Err(Wrong(format!("{} outlives the session that it hangs on", key.escape_ascii())));
        }
        match owned.iter().find(|(local, known)| *known && keys.iter().all(|key| key != local)) {
            Some((key, _)) => {
                Err(Wrong(format!("{} was deleted before its session ended", key.escape_ascii())))
            }
            None => Ok(()),
        }
    }

    /// Checks that every open run has a stable round, that each of its nodes knows all that happened there, and that
    /// the
    /// server has exactly the sessions of living processes.
    fn check_healed(&self) -> Result<(), Wrong> {
        if let Some(client) = self.clients.iter().position(|client| !client.is_done()) {
            return Err(Wrong(format!("client {client} is not done {HEALING_MAX:?} after the storm")));
        }
        if self.trespassers.iter().any(|one| !one.is_done()) {
            return Err(Wrong("a trespasser has not gone".to_owned()));
        }
        let there = self.host.machine().map_or(0, |machine| machine.stats().sessions);
        let here = self.nodes.iter().filter(|node| node.has_session()).count();
        if there != here {
            return Err(Wrong(format!("the server counts {there} sessions, and there are {here}")));
        }
        self.check_leases()?;
        for node in &self.nodes {
            node.check_heard(&self.referee)?;
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
                return Err(Wrong(format!(
                    "{name} is {:?} {HEALING_MAX:?} after the storm, live is {live:?}, called: {}",
                    node.part(),
                    node.is_called()
                )));
            }
        }
        Ok(())
    }
}
