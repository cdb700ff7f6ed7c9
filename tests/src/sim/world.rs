//! World of stores: it runs one seed from the first connection to an empty server.

use super::accepting::Accepting;
use super::client::{Behaviour, Client, Health};
use super::elastic::Cue;
use super::faults::{Fault, Sabotage, plan};
use super::half_closer::HalfCloser;
use super::host::{ClientConduct, Host, Security};
use super::script::{Clearing, Job, KeySpace, Script, Storm, StormOptions};
use super::tokens::TokenFiles;
use super::{Counts, Failure, Kind, Options, Report};
use crate::sim::harness::event_queue::EventQueue;
use crate::sim::harness::history::{CheckError, History};
use crate::sim::harness::network::{Loss, Network, NetworkModel, Notice, Route, Side};
use crate::sim::harness::oracle;
use crate::sim::harness::revisions::Revisions;
use crate::sim::harness::sim_operation::SimOperation;
use crate::sim::harness::sim_rng::SimRng;
use crate::sim::harness::trace::Trace;
use rendezvous_core::limits::{PartLimits, ServerLimits};
use rendezvous_core::store::call::GetMode;
use rendezvous_core::store::dial::Rounds;
use rendezvous_core::time::{Duration, Instant};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Event that is not caused by the network.
pub(super) enum WorldEvent {
    ClientDue(usize),
    /// The resolver has an answer for a client's connection.
    Resolved(usize, u32),
    HostDue,
    Fault(Fault),
    ServerRestarts,
    /// The saboteur sends this request to the store.
    SaboteurRequest(Vec<u8>),
    /// Event of a world of nodes.
    Elastic(Cue),
    /// The next phase may begin.
    PhaseDue,
}

/// State that all actors share.
pub(super) struct SimContext {
    pub(super) now: Instant,
    /// Whether faults may happen.
    pub(super) stormy: bool,
    pub(super) network: Network,
    pub(super) event_queue: EventQueue<WorldEvent>,
    pub(super) history: History,
    /// What native clients asked and received.
    pub(super) revisions: Revisions,
    pub(super) sim_rng: SimRng,
    pub(super) key_space: KeySpace,
    trace: Trace,
    pub(super) sabotage: Sabotage,
    /// Whether native clients use TLS.
    pub(super) security: Security,
    /// Set if the server asks native clients for tokens.
    pub(super) token_files: Option<TokenFiles>,
    events: u64,
}

/// Notice of the network, or another event.
pub(super) enum Happening {
    /// The network moved bytes that no process notices.
    Nothing,
    Notice(Notice),
    Event(WorldEvent),
}

impl SimContext {
    pub(super) fn new(network: Network, sim_rng: SimRng, key_space: KeySpace, options: &Options) -> Self {
        Self {
            now: Instant::ORIGIN,
            stormy: true,
            network,
            event_queue: EventQueue::new(),
            history: History::default(),
            revisions: Revisions::default(),
            sim_rng,
            key_space,
            trace: Trace::new(options.verbosity),
            sabotage: options.sabotage,
            security: Security::Plain,
            token_files: None,
            events: 0,
        }
    }

    /// Lets the server execute one or two keys of a list in a turn, and leave the rest and most else to later turns.
    pub(super) const fn split_lists(&mut self, limits: &mut ServerLimits, seed: u64) {
        self.history.splits_lists = true;
        limits.work_per_input_max = 1 + seed % 5;
        limits.c10d_part =
            PartLimits { keys_max: 1 + (seed / 64 % 2) as usize, bytes_high: 1 << 20, read_keys_max: 1 };
    }

    /// Returns what happens next, and advances the time to it.
    pub(super) fn next(&mut self) -> Result<Option<Happening>, CheckError> {
        let (network, event_queue) = (self.network.next_at(), self.event_queue.next_at());
        let Some(now) = [network, event_queue].into_iter().flatten().min() else { return Ok(None) };
        if now < self.now {
            return Err(CheckError(format!("an event of {now:?} comes at {:?}", self.now)));
        }
        self.now = now;
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(CheckError("there is no end".to_owned()));
        }
        if network == Some(now) {
            let notice = self.network.step().and_then(|(_, notice)| notice);
            return Ok(Some(notice.map_or(Happening::Nothing, Happening::Notice)));
        }
        Ok(self.event_queue.pop().map(|(_, world_event)| Happening::Event(world_event)))
    }

    /// Returns the result of a run with so many clients: counts of what happened, or the error.
    pub(super) fn finish(
        self,
        (seed, world): (u64, Kind),
        clients: usize,
        played: Result<Counts, CheckError>,
    ) -> Result<Report, Failure> {
        let Self { now, history, trace, sabotage, events, .. } = self;
        let played = played.and_then(|counts| Ok((counts, oracle::check_history(&history)?)));
        match played {
            Ok((counts, outcome)) => Ok(Report {
                trace_hash: trace.hash(),
                trace_lines: trace.lines(),
                events,
                operations: history.records().len(),
                answered: history.records().iter().filter(|record| record.is_answered()).count(),
                clients,
                undecided: outcome.undecided,
                partial_reads: outcome.partial_reads,
                virtual_time: now.since(Instant::ORIGIN),
                counts,
            }),
            Err(CheckError(what)) => {
                Err(Failure { seed, world, sabotage, what, now, trace: trace.into_last() })
            }
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Schedules a request of the saboteur for this operation, if the fault requires one.
    pub(super) fn schedule_sabotage(&mut self, sim_operation: &SimOperation) {
        if let Some((later, frame)) = self.sabotage.saboteur_requests(sim_operation, &mut self.sim_rng) {
            self.event_queue.schedule(self.now + later, WorldEvent::SaboteurRequest(frame));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Storm,
    /// The storm is over. Requests that it left behind may still take effect until then.
    Settling(Instant),
    Job,
    Clearing,
    Leaving,
}

pub(super) struct World {
    context: SimContext,
    clients: Vec<Client>,
    half_closers: Vec<HalfCloser>,
    host: Host,
    phase: Phase,
    storm_ends: Instant,
}

/// Time between the last operation of the storm and the job.
const SETTLING: Duration = Duration::from_secs(3);
/// More events than any run needs.
const EVENTS_MAX: u64 = 3_000_000;
const HALF_CLOSERS_MAX: usize = 4;

impl World {
    pub(super) fn new(seed: u64, options: &Options) -> Self {
        let mut sim_rng = SimRng::new(seed, 0);
        let clients = sim_rng.size(2, 64);
        let operations = sim_rng.size(4, 400 / clients + 4);
        let keys = |share: usize| 1 + clients * operations * share / 100 / 24;
        let key_space = KeySpace {
            registers: keys(44),
            counters: keys(10),
            pairs: keys(10),
            queues: keys(15),
            barriers: keys(10),
            clients,
        };
        let storm_ends = Instant::ORIGIN + sim_rng.span(Duration::from_millis(100), Duration::from_secs(8));
        let network_model = random_network_model(&mut sim_rng);
        let network = Network::new(SimRng::new(seed, 1), network_model, clients + HALF_CLOSERS_MAX);
        let mut context = SimContext::new(network, SimRng::new(seed, 3), key_space, options);
        for (at, fault) in plan(&mut sim_rng, storm_ends.since(Instant::ORIGIN)) {
            context.event_queue.schedule(at, WorldEvent::Fault(fault));
        }
        context.event_queue.schedule(storm_ends, WorldEvent::PhaseDue);
        let mut limits = server_limits(&mut sim_rng);
        if options.sabotage == Sabotage::None && seed % 4 == 1 {
            context.split_lists(&mut limits, seed);
        }
        let host = Host::new(
            (SimRng::new(seed, 2), Accepting::new(SimRng::new(seed, 4), options.sabotage == Sabotage::None)),
            limits,
            options.sabotage,
            (ClientConduct::Polite, Security::Plain),
        );
        let pause_max = sim_rng.span(Duration::from_millis(1), Duration::from_secs(1));
        let value_bytes_max = sim_rng.pick(&[300, 1000, 1000, 10_000, 10_000, 10_000, 400_000]);
        let clients = (0..clients).map(|number| {
            let sleepy = options.sabotage == Sabotage::SleepyClient && number == 0;
            let health = if sleepy { Health::Sleepy } else { Health::Sound };
            let behaviour = behaviour(&mut sim_rng);
            let mut client = Client::new(number, SimRng::new(seed, 100 + number as u64), behaviour, health);
            let more_pairs = if context.history.splits_lists { 20 } else { 0 };
            let depth = 1 + sim_rng.index(4);
            let storm_options = StormOptions { operations, depth, pause_max, value_bytes_max, more_pairs };
            client.script = Script::Storm(Storm::new(number, key_space, storm_options));
            context.event_queue.schedule(Instant::ORIGIN, WorldEvent::ClientDue(number));
            client
        });
        let clients = clients.collect();
        Self { context, clients, half_closers: Vec::new(), host, phase: Phase::Storm, storm_ends }
    }

    /// Runs the world to its end.
    pub(super) fn play(mut self, seed: u64) -> Result<Report, Failure> {
        let played = self.run();
        let clients = self.clients.len();
        self.context.finish((seed, Kind::Store), clients, played.map(|()| self.host.accept_counts()))
    }

    fn run(&mut self) -> Result<(), CheckError> {
        while let Some(happening) = self.context.next()? {
            match happening {
                Happening::Nothing => {}
                Happening::Notice(notice) => self.deliver(notice)?,
                Happening::Event(world_event) => self.handle_event(world_event)?,
            }
            self.check()?;
            self.change_phase()?;
        }
        if self.phase != Phase::Leaving {
            return Err(CheckError(format!("nothing happens any more in {:?}", self.phase)));
        }
        if self.context.network.open() > 0 {
            return Err(CheckError(format!("{} connections were forgotten", self.context.network.open())));
        }
        self.host.check_floor()
    }

    fn deliver(&mut self, notice: Notice) -> Result<(), CheckError> {
        let context = &mut self.context;
        match notice {
            Notice::Accept(_) | Notice::Readable(_, Side::Server) | Notice::Writable(_, Side::Server) => {
                self.host.noticed(context, notice)
            }
            Notice::Connected(stream)
            | Notice::Refused(stream)
            | Notice::Readable(stream, Side::Client)
            | Notice::Writable(stream, Side::Client) => {
                if let Some(client) = self.clients.iter_mut().find(|client| client.owns(stream)) {
                    return client.noticed(context, notice);
                }
                match self.half_closers.iter_mut().find(|client| client.owns(stream)) {
                    Some(client) => client.noticed(context, notice),
                    None => Ok(()),
                }
            }
        }
    }

    fn handle_event(&mut self, world_event: WorldEvent) -> Result<(), CheckError> {
        let context = &mut self.context;
        match world_event {
            WorldEvent::ClientDue(number) => self.clients[number].poll(context),
            WorldEvent::Resolved(number, line) => self.clients[number].resolved(context, line),
            WorldEvent::HostDue => self.host.tick(context),
            // After all have left, a connection of the saboteur alone would fail the final check.
            WorldEvent::SaboteurRequest(_) if self.phase == Phase::Leaving => Ok(()),
            WorldEvent::SaboteurRequest(frame) => self.host.send_as_saboteur(context, &frame),
            WorldEvent::ServerRestarts => {
                if !context.network.listening {
                    self.host.restart(context);
                }
                Ok(())
            }
            WorldEvent::PhaseDue | WorldEvent::Elastic(_) => Ok(()),
            WorldEvent::Fault(fault) => {
                self.apply_fault(fault);
                Ok(())
            }
        }
    }

    fn apply_fault(&mut self, fault: Fault) {
        let context = &mut self.context;
        context.note(format_args!("fault: {fault:?}"));
        let streams: Vec<_> = context.network.streams().collect();
        match fault {
            Fault::Cut if !streams.is_empty() => {
                let loss = if context.sim_rng.percent(30) { Loss::Nothing } else { Loss::Tail };
                let stream = context.sim_rng.pick(&streams);
                context.note(format_args!("{stream} is cut, {loss:?} of what is under way is lost"));
                context.network.cut(context.now, stream, loss);
            }
            Fault::Clog(span) if !streams.is_empty() => {
                let to = if context.sim_rng.percent(50) { Side::Client } else { Side::Server };
                let stream = context.sim_rng.pick(&streams);
                context.note(format_args!("{stream} is clogged towards the {to:?}"));
                context.network.clog(stream, to, context.now + span);
            }
            Fault::Cut | Fault::Clog(_) => {}
            Fault::Partition(span) => {
                let client = context.sim_rng.index(self.clients.len());
                context.note(format_args!("c{client} is cut off"));
                context.network.partition(client, None, context.now + span);
            }
            Fault::Restart(span) => {
                if context.network.listening {
                    self.host.kill(context);
                    context.event_queue.schedule(context.now + span, WorldEvent::ServerRestarts);
                }
            }
            Fault::HalfCloser => {
                let number = self.clients.len() + self.half_closers.len();
                self.half_closers.push(HalfCloser::start(number, context));
            }
        }
    }

    /// Checks what must hold at all times.
    fn check(&self) -> Result<(), CheckError> {
        self.host.check()?;
        let late = self.clients.iter().filter_map(Client::deadline).find(|(at, _)| *at < self.context.now);
        match late {
            None => Ok(()),
            Some((_, id)) => {
                let sim_operation = &self.context.history.get(id).sim_operation;
                Err(CheckError(format!("{id} {sim_operation} outlives its deadline")))
            }
        }
    }

    fn change_phase(&mut self) -> Result<(), CheckError> {
        let context = &mut self.context;
        if context.now < self.storm_ends {
            return Ok(());
        }
        context.stormy = false;
        let done =
            self.clients.iter().all(Client::is_done) && self.half_closers.iter().all(HalfCloser::is_done);
        match self.phase {
            // The server may still read requests that were sent and given up, and they change the store.
            Phase::Storm if done && context.network.abandoned() == 0 => {
                self.phase = Phase::Settling(context.now + SETTLING);
                context.note(format_args!("the storm is over"));
                context.event_queue.schedule(context.now + SETTLING, WorldEvent::PhaseDue);
            }
            Phase::Settling(until) if context.now >= until => {
                self.phase = Phase::Job;
                context.note(format_args!("the job begins"));
                let number = self.clients.len() + self.half_closers.len();
                self.half_closers.push(HalfCloser::start(number, context));
                let clients = self.clients.len();
                for (number, client) in self.clients.iter_mut().enumerate() {
                    client.stop_dialling(context);
                    client.script = Script::Job(Job::new(number, clients));
                    client.poll(context)?;
                }
            }
            Phase::Job if done => {
                self.phase = Phase::Clearing;
                context.note(format_args!("the store is cleared"));
                self.clients[0].script = Script::Clearing(Clearing::new(context.key_space));
                self.clients[0].poll(context)?;
            }
            Phase::Clearing if done => {
                self.phase = Phase::Leaving;
                context.note(format_args!("all clients leave"));
                for client in &mut self.clients {
                    client.leave(context)?;
                }
                self.host.disconnect_saboteur(context)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the parameters of a random network.
pub(super) fn random_network_model(sim_rng: &mut SimRng) -> NetworkModel {
    let latency_min = sim_rng.span(Duration::from_micros(1), Duration::from_millis(5));
    NetworkModel {
        latency_min,
        latency_max: latency_min + sim_rng.span(Duration::from_micros(1), Duration::from_millis(40)),
        segment_bytes_max: sim_rng.size(1, 4096),
        window_bytes: sim_rng.size(256, 1 << 18),
        reader_delay_max: sim_rng.span(Duration::from_micros(1), Duration::from_millis(20)),
        read_bytes_max: sim_rng.size(16, 1 << 16),
    }
}

/// Addresses of the server in the simulated network.
pub(super) const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
pub(super) const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 1);

pub(super) fn behaviour(sim_rng: &mut SimRng) -> Behaviour {
    let v4 = (Route::Server, V4);
    let routes = match sim_rng.index(6) {
        0 => vec![(Route::Nowhere, V6), v4],
        1 => vec![(Route::Closed, V6), v4],
        2 => vec![(Route::Server, V6), v4],
        _ => vec![v4],
    };
    Behaviour {
        connections_max: 1 + sim_rng.index(3),
        get_mode: if sim_rng.percent(80) { GetMode::Pipelined } else { GetMode::WaitThenGet },
        rounds: if sim_rng.percent(60) { Rounds::UntilDeadline } else { Rounds::One },
        dial_timeout: sim_rng.span(Duration::from_millis(100), Duration::from_secs(5)),
        routes,
    }
}

pub(super) fn server_limits(sim_rng: &mut SimRng) -> ServerLimits {
    ServerLimits {
        unsent_bytes_high: sim_rng.size(64, 1 << 20),
        frame_timeout: sim_rng.span(Duration::from_millis(500), Duration::from_secs(60)),
        stall_timeout: sim_rng.span(Duration::from_millis(500), Duration::from_secs(300)),
        ..ServerLimits::default()
    }
}
