//! World of stores: it runs one seed from the first connection to an empty server.

use super::agenda::Agenda;
use super::client::{Client, Health, Manner};
use super::elastic::Cue;
use super::faults::{Fault, Sabotage, plan};
use super::half_closer::HalfCloser;
use super::history::{History, Wrong};
use super::host::{Guests, Host};
use super::network::{Loss, Network, NetworkModel, Notice, Route, Side};
use super::oracle;
use super::script::{Clearing, Field, Habits, Job, Script, Storm};
use super::sim_operation::SimOperation;
use super::sim_rng::SimRng;
use super::trace::Trace;
use super::{Failure, Kind, Options, Report, Sights};
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::store::call::GetMode;
use rendezvous_core::store::dial::{Family, Rounds};
use rendezvous_core::time::{Duration, Instant};
use std::fmt;

/// Event that is not caused by the network.
pub(super) enum Happening {
    ClientDue(usize),
    /// The resolver has an answer for a client's connection.
    Resolved(usize, u32),
    HostDue,
    Fault(Fault),
    ServerRises,
    /// The saboteur sends this request to the store.
    Aside(Vec<u8>),
    /// Event of a world of nodes.
    Elastic(Cue),
    /// The next phase may begin.
    Act,
}

/// State that all actors share.
pub(super) struct Stage {
    pub(super) now: Instant,
    /// Whether faults may happen.
    pub(super) stormy: bool,
    pub(super) network: Network,
    pub(super) agenda: Agenda<Happening>,
    pub(super) history: History,
    pub(super) sim_rng: SimRng,
    pub(super) field: Field,
    pub(super) trace: Trace,
    pub(super) sabotage: Sabotage,
}

impl Stage {
    pub(super) fn new(network: Network, sim_rng: SimRng, field: Field, options: &Options) -> Self {
        Self {
            now: Instant::ORIGIN,
            stormy: true,
            network,
            agenda: Agenda::new(),
            history: History::default(),
            sim_rng,
            field,
            trace: Trace::new(options.voice),
            sabotage: options.sabotage,
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Schedules a request of the saboteur for this operation, if the fault requires one.
    pub(super) fn sabotage_deed(&mut self, sim_operation: &SimOperation) {
        if let Some((later, frame)) = self.sabotage.aside(sim_operation, &mut self.sim_rng) {
            self.agenda.enter(self.now + later, Happening::Aside(frame));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Storm,
    /// The storm is over. Requests that it left behind may still take effect until then.
    Settling(Instant),
    Job,
    Clearing,
    Leaving,
}

pub(super) struct World {
    stage: Stage,
    clients: Vec<Client>,
    half_closers: Vec<HalfCloser>,
    host: Host,
    act: Act,
    storm_ends: Instant,
    events: u64,
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
        let deeds = sim_rng.size(4, 400 / clients + 4);
        let keys = |share: usize| 1 + clients * deeds * share / 100 / 24;
        let field = Field {
            registers: keys(44),
            counters: keys(10),
            pairs: keys(10),
            queues: keys(15),
            barriers: keys(10),
            clients,
        };
        let storm_ends = Instant::ORIGIN + sim_rng.span(Duration::from_millis(100), Duration::from_secs(8));
        let network_model = any_weather(&mut sim_rng);
        let network = Network::new(SimRng::new(seed, 1), network_model, clients + HALF_CLOSERS_MAX);
        let mut stage = Stage::new(network, SimRng::new(seed, 3), field, options);
        for (at, fault) in plan(&mut sim_rng, storm_ends.since(Instant::ORIGIN)) {
            stage.agenda.enter(at, Happening::Fault(fault));
        }
        stage.agenda.enter(storm_ends, Happening::Act);
        let host =
            Host::new(SimRng::new(seed, 2), server_limits(&mut sim_rng), options.sabotage, Guests::Polite);
        let pause_max = sim_rng.span(Duration::from_millis(1), Duration::from_secs(1));
        let value_bytes_max = sim_rng.pick(&[300, 1000, 1000, 10_000, 10_000, 10_000, 400_000]);
        let clients = (0..clients).map(|number| {
            let sleepy = options.sabotage == Sabotage::SleepyClient && number == 0;
            let health = if sleepy { Health::Sleepy } else { Health::Sound };
            let manner = manner(&mut sim_rng);
            let mut client = Client::new(number, SimRng::new(seed, 100 + number as u64), manner, health);
            let habits = Habits { deeds, depth: 1 + sim_rng.index(4), pause_max, value_bytes_max };
            client.script = Script::Storm(Storm::new(number, field, habits));
            stage.agenda.enter(Instant::ORIGIN, Happening::ClientDue(number));
            client
        });
        let clients = clients.collect();
        Self { stage, clients, half_closers: Vec::new(), host, act: Act::Storm, storm_ends, events: 0 }
    }

    /// Runs the world to its end.
    pub(super) fn play(mut self, seed: u64) -> Result<Report, Failure> {
        let played = self.run().and_then(|()| oracle::judge(self.stage.history.records()));
        let Stage { now, history, trace, sabotage, .. } = self.stage;
        match played {
            Ok(outcome) => Ok(Report {
                trace_hash: trace.hash(),
                trace_lines: trace.lines(),
                events: self.events,
                deeds: history.records().len(),
                answered: history.records().iter().filter(|record| record.is_answered()).count(),
                clients: self.clients.len(),
                undecided: outcome.undecided,
                virtual_time: now.since(Instant::ORIGIN),
                rounds: 0,
                resumed: 0,
                changes: 0,
                released: 0,
                stale: 0,
                sights: Sights::default(),
            }),
            Err(Wrong(what)) => {
                Err(Failure { seed, world: Kind::Store, sabotage, what, now, trace: trace.into_last() })
            }
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
        if self.act != Act::Leaving {
            return Err(Wrong(format!("nothing happens any more in {:?}", self.act)));
        }
        if self.stage.network.open() > 0 {
            return Err(Wrong(format!("{} connections were forgotten", self.stage.network.open())));
        }
        self.host.check_floor()
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
                if let Some(client) = self.clients.iter_mut().find(|client| client.owns(stream)) {
                    return client.noticed(stage, notice);
                }
                match self.half_closers.iter_mut().find(|client| client.owns(stream)) {
                    Some(client) => client.noticed(stage, notice),
                    None => Ok(()),
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Wrong> {
        let stage = &mut self.stage;
        match happening {
            Happening::ClientDue(number) => self.clients[number].poll(stage),
            Happening::Resolved(number, line) => self.clients[number].resolved(stage, line),
            Happening::HostDue => self.host.tick(stage),
            // After all have left, a connection of the saboteur alone would fail the final check.
            Happening::Aside(_) if self.act == Act::Leaving => Ok(()),
            Happening::Aside(frame) => self.host.haunt(stage, &frame),
            Happening::ServerRises => {
                if !stage.network.listening {
                    self.host.rise(stage);
                }
                Ok(())
            }
            Happening::Act | Happening::Elastic(_) => Ok(()),
            Happening::Fault(fault) => {
                self.strike(fault);
                Ok(())
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        let stage = &mut self.stage;
        stage.note(format_args!("fault: {fault:?}"));
        let streams: Vec<_> = stage.network.streams().collect();
        match fault {
            Fault::Cut if !streams.is_empty() => {
                let loss = if stage.sim_rng.percent(30) { Loss::Nothing } else { Loss::Tail };
                let stream = stage.sim_rng.pick(&streams);
                stage.note(format_args!("{stream} is cut, {loss:?} of what is under way is lost"));
                stage.network.cut(stage.now, stream, loss);
            }
            Fault::Clog(span) if !streams.is_empty() => {
                let to = if stage.sim_rng.percent(50) { Side::Client } else { Side::Server };
                let stream = stage.sim_rng.pick(&streams);
                stage.note(format_args!("{stream} is clogged towards the {to:?}"));
                stage.network.clog(stream, to, stage.now + span);
            }
            Fault::Cut | Fault::Clog(_) => {}
            Fault::Partition(span) => {
                let client = stage.sim_rng.index(self.clients.len());
                stage.note(format_args!("c{client} is cut off"));
                stage.network.partition(client, None, stage.now + span);
            }
            Fault::Restart(span) => {
                if stage.network.listening {
                    self.host.die(stage);
                    stage.agenda.enter(stage.now + span, Happening::ServerRises);
                }
            }
            Fault::HalfCloser => {
                let number = self.clients.len() + self.half_closers.len();
                self.half_closers.push(HalfCloser::start(number, stage));
            }
        }
    }

    /// Checks what must hold at all times.
    fn check(&self) -> Result<(), Wrong> {
        self.host.check()?;
        let late = self.clients.iter().filter_map(Client::deadline).find(|(at, _)| *at < self.stage.now);
        match late {
            None => Ok(()),
            Some((_, id)) => {
                let sim_operation = &self.stage.history.get(id).sim_operation;
                Err(Wrong(format!("{id} {sim_operation} outlives its deadline")))
            }
        }
    }

    fn change_act(&mut self) -> Result<(), Wrong> {
        let stage = &mut self.stage;
        if stage.now < self.storm_ends {
            return Ok(());
        }
        stage.stormy = false;
        let done =
            self.clients.iter().all(Client::is_done) && self.half_closers.iter().all(HalfCloser::is_done);
        match self.act {
            // The server may still read requests that were sent and given up, and they change the store.
            Act::Storm if done && stage.network.abandoned() == 0 => {
                self.act = Act::Settling(stage.now + SETTLING);
                stage.note(format_args!("the storm is over"));
                stage.agenda.enter(stage.now + SETTLING, Happening::Act);
            }
            Act::Settling(until) if stage.now >= until => {
                self.act = Act::Job;
                stage.note(format_args!("the job begins"));
                let number = self.clients.len() + self.half_closers.len();
                self.half_closers.push(HalfCloser::start(number, stage));
                let clients = self.clients.len();
                for (number, client) in self.clients.iter_mut().enumerate() {
                    client.stop_dialling(stage);
                    client.script = Script::Job(Job::new(number, clients));
                    client.poll(stage)?;
                }
            }
            Act::Job if done => {
                self.act = Act::Clearing;
                stage.note(format_args!("the store is cleared"));
                self.clients[0].script = Script::Clearing(Clearing::new(stage.field));
                self.clients[0].poll(stage)?;
            }
            Act::Clearing if done => {
                self.act = Act::Leaving;
                stage.note(format_args!("all clients leave"));
                for client in &mut self.clients {
                    client.leave(stage)?;
                }
                self.host.lay_ghost(stage)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the parameters of a random network.
pub(super) fn any_weather(sim_rng: &mut SimRng) -> NetworkModel {
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

pub(super) fn manner(sim_rng: &mut SimRng) -> Manner {
    let v4 = (Route::Server, Family::V4);
    let routes = match sim_rng.index(6) {
        0 => vec![(Route::Nowhere, Family::V6), v4],
        1 => vec![(Route::Closed, Family::V6), v4],
        2 => vec![(Route::Server, Family::V6), v4],
        _ => vec![v4],
    };
    Manner {
        lines_max: 1 + sim_rng.index(3),
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
