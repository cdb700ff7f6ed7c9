//! An agent that runs: [`Supervisor`] with threads, sockets and processes around it.
//!
//! The thread that turns it waits for nobody. Two threads of its own make the calls that do: one stands in the rendezvous, one
//! meets the other agents in the round's store. What they learn comes back through a channel that makes the agent's
//! descriptor readable.

mod asked;
mod control;
mod errand;
mod foreign;
mod health;
mod local;
mod membership;
mod numbering;
mod told;
mod workers;

#[cfg(test)]
mod tests;

pub use control::AgentControl;
pub use foreign::{ForeignEvent, ForeignWorkers, StartOrder, WorkerHooks, WorkersTeller};
pub use local::{LocalEntry, LocalError, LocalOptions, LocalWorkers, TimerError};
pub use workers::{Reach, Start, WorkerEvent, Workers};

use crate::environment::AgentStore;
use crate::failure::WorkerGroupFailure;
use crate::group::{Worker, WorkerGroup};
use crate::health::{Health, PROGRESS_INTERVAL, Vigilance};
use crate::observer::Happened;
use crate::phase::Phase;
use crate::spec::{SpecError, WorkerSpec};
use crate::supervisor::{Input, Membership, Notice, Output, Round, Supervisor, Verdict};
use crate::watchdog::ExpiredTimer;
use crate::worker_store::{Named, WorkerStores};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use asked::{Asked, Asker, farewell_timeout};
use control::Snapshot;
use crossbeam_channel::{Receiver, unbounded};
use errand::Errands;
use health::HealthServer;
use membership::{CurrentStore, Info, Member};
use numbering::{Numbered, Numbering};
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::time::{Duration, Instant};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::PoisonError;
use told::{Teller, Told};

/// How an agent is to be.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// What it supervises.
    pub spec: WorkerSpec,
    /// What it calls itself when it tells others of a failure; a host's name, most often.
    pub name: String,
    /// What the workers' program is called in reports.
    pub entry_name: String,
    /// Where workers of other nodes reach this one, if it hosts their store. Without it: as the rendezvous knows it, and
    /// for a group of one node whose workers are on its host, at the loopback address.
    pub local_addr: Option<String>,
    /// Where the workers find their store; without it, each round has a store of its own, which the first agent serves.
    pub master: Option<RendezvousStoreInfo>,
}

/// An agent that cannot be, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The spec makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No descriptors or threads.
    #[error("the agent has no room on this system: {0}")]
    System(#[from] io::Error),
}

/// Something that an agent tells of.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// What the machine tells.
    Notice(Notice),
    /// Workers of one start failed, and nothing of that start lives any more.
    WorkersFailed(WorkerGroupFailure),
    /// The agent is done: [`Agent::result`] says how.
    Over,
}

/// Hears of everything as it happens, with the machine as it is then. It must not block.
pub type Observer = Box<dyn FnMut(Instant, &Supervisor, Happened<'_>) + Send>;

/// How things stood when something happened.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The workers.
    pub group: Arc<WorkerGroup>,
    /// How often they may still fail without an end to it all.
    pub restarts_left: u32,
}

/// What came of it all.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentResult {
    /// How the agent ended.
    pub verdict: Verdict,
    /// What its workers returned, by global rank, where they were functions and all ended well.
    pub returned: BTreeMap<u64, Arc<Vec<u8>>>,
    /// The failures of the last start, if there were any.
    pub failure: Option<WorkerGroupFailure>,
}

const WORKERS: Token = Token(0);
/// How soon a call is interrupted again that the last time was missed.
const PRESS_INTERVAL: Duration = Duration::from_millis(2);

/// One agent. One thread turns it; others have its [`AgentControl`].
///
/// Dropping it before it is over ends its workers at once, and this node has left the rendezvous then. What it waits for
/// in the rendezvous is ended; code of a backend that nobody can end has ten seconds, and is left behind then with its
/// thread and with what it holds, the handler and its session among that.
pub struct Agent {
    machine: Supervisor,
    entry_name: String,
    // The threads go before what they interrupt.
    membership: Errands<membership::Ask>,
    numbering: Errands<numbering::Ask>,
    // A watch goes before what it watches.
    #[expect(dead_code, reason = "held: the descriptor becomes readable by it")]
    watch: Watch,
    workers: Box<dyn Workers>,
    events: EventLoop,
    handler: Arc<dyn RendezvousHandler>,
    store: CurrentStore,
    told: Receiver<Told>,
    teller: Teller,
    snapshot: Arc<Snapshot>,
    /// The machine's last call.
    asked: Option<Asked>,
    /// What there was to say of a thread that panicked: it answers nothing any more.
    fallen: Vec<(Asker, Box<str>)>,
    /// When the farewell is given up.
    farewell_until: Option<Instant>,
    info: Option<Arc<Info>>,
    numbered: Option<Box<Numbered>>,
    returned: BTreeMap<u32, Arc<Vec<u8>>>,
    failure: Option<WorkerGroupFailure>,
    /// Timers of this start by which workers were ended.
    expired: Vec<ExpiredTimer>,
    happened: VecDeque<(AgentEvent, Moment)>,
    /// That of the event that was told last.
    moment: Moment,
    observers: Vec<Observer>,
    health: Option<(HealthServer, Vigilance)>,
}

impl core::fmt::Debug for Agent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Agent").field("phase", &self.machine.phase()).finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent, which begins with its first turn: before that it joins nothing.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn new(
        options: AgentOptions,
        handler: Arc<dyn RendezvousHandler>,
        mut workers: Box<dyn Workers>,
    ) -> Result<Self, AgentError> {
        let machine = Supervisor::new(options.spec.clone())?;
        let mut events = EventLoop::new()?;
        workers.begin(*events.clock());
        let watch = events.watch(workers.fd(), Interest::Read, WORKERS)?;
        let (sender, told) = unbounded();
        let teller = Teller::new(sender, events.waker());
        let store = CurrentStore::default();
        let member = Member {
            handler: Arc::clone(&handler),
            monitor_interval: options.spec.monitor_interval,
            name: options.name,
            store: Arc::clone(&store),
            teller: teller.clone(),
        };
        let (interrupted, its_store) = (Arc::clone(&handler), Arc::clone(&store));
        let interrupt = move || {
            interrupted.cancel();
            cancel(&its_store);
        };
        let membership = Errands::start(
            "rdzv-member",
            interrupt,
            move |asks| member.run(&asks),
            fell(&teller, Asker::Member),
        )?;
        let named = if options.master.is_some() { Named::Yes } else { Named::No };
        let of_rendezvous =
            if handler.use_agent_store() { AgentStore::Shared } else { AgentStore::OfRankZero };
        let numbering = Numbering {
            spec: options.spec,
            master: options.master,
            stores: WorkerStores::new(named, of_rendezvous),
            tells_of_deaths: handler.tells_of_deaths(),
            local_addr: options.local_addr,
            reach: workers.reach(),
            teller: teller.clone(),
        };
        let its_store = Arc::clone(&store);
        let interrupt = move || cancel(&its_store);
        let numbering = Errands::start(
            "rdzv-number",
            interrupt,
            move |asks| numbering.run(&asks),
            fell(&teller, Asker::Numbering),
        )?;
        let snapshot = Arc::new(Snapshot::new(machine.group().clone()));
        let moment =
            Moment { group: snapshot.publish(machine.group()), restarts_left: machine.restarts_left() };
        // There is something to do: to begin.
        events.wake_at(events.clock().now());
        Ok(Self {
            machine,
            entry_name: options.entry_name,
            membership,
            numbering,
            watch,
            workers,
            events,
            handler,
            store,
            told,
            teller,
            snapshot,
            asked: None,
            fallen: Vec::new(),
            farewell_until: None,
            info: None,
            numbered: None,
            returned: BTreeMap::new(),
            failure: None,
            expired: Vec::new(),
            happened: VecDeque::new(),
            moment,
            observers: Vec::new(),
            health: None,
        })
    }

    /// For other threads.
    #[must_use]
    pub fn control(&self) -> AgentControl {
        AgentControl::new(self.teller.clone(), Arc::clone(&self.snapshot))
    }

    /// The machine, to look at.
    #[must_use]
    pub const fn supervisor(&self) -> &Supervisor {
        &self.machine
    }

    /// Adds somebody who hears of everything, from the beginning if it is added before the first turn. It is called on
    /// the thread that turns the agent.
    pub fn observe(&mut self, mut observer: Observer) {
        let now = self.now();
        for (event, _) in &self.happened {
            if let AgentEvent::Notice(notice) = event {
                observer(now, &self.machine, Happened::Notice(notice));
            }
        }
        self.observers.push(observer);
    }

    /// How the agent is; its last progress is now.
    #[must_use]
    pub fn health(&self) -> Health {
        let vigilance = self.health.as_ref().map_or_else(Vigilance::default, |(_, vigilance)| *vigilance);
        Health::new(self.machine.phase(), self.now(), self.machine.group(), vigilance)
    }

    /// Answers over HTTP how the agent is, at `address`, where port 0 is any that is free, on a thread of its own until the
    /// agent is dropped; the address is returned. 503 is told when it should have got on and has not
    /// ([`Health::is_well`]).
    ///
    /// # Errors
    /// The address is not to be had, or there is no room for a thread.
    pub fn serve_health(&mut self, address: SocketAddr, vigilance: Vigilance) -> io::Result<SocketAddr> {
        let server = HealthServer::start(address, *self.events.clock(), self.health())?;
        let address = server.address();
        self.health = Some((server, vigilance));
        Ok(address)
    }

    /// Does what is to be done by now. It does not wait, but for the workers' output: a log disk that neither takes data
    /// nor refuses it holds up the start and the end of a group for up to two seconds.
    ///
    /// # Errors
    /// That of the system.
    pub fn turn(&mut self) -> Result<(), AgentError> {
        // Whoever is ready is asked anyway.
        for _ in self.events.poll()? {}
        self.progress();
        Ok(())
    }

    /// As [`Agent::turn`], for a thread that has nothing else to do: it waits until there is something to do.
    ///
    /// # Errors
    /// That of the system.
    pub fn wait(&mut self) -> Result<(), AgentError> {
        let until = self.deadline();
        for _ in self.events.wait(until)? {}
        self.progress();
        Ok(())
    }

    /// The next thing to tell, in order.
    pub fn next_event(&mut self) -> Option<AgentEvent> {
        let (event, moment) = self.happened.pop_front()?;
        self.moment = moment;
        Some(event)
    }

    /// How things stood when what [`Agent::next_event`] told last had happened. The machine may have gone on since.
    #[must_use]
    pub const fn moment(&self) -> &Moment {
        &self.moment
    }

    /// What came of it, once it is over.
    #[must_use]
    pub fn result(&self) -> Option<AgentResult> {
        let verdict = self.machine.verdict().filter(|_| self.is_over())?.clone();
        let mut returned = BTreeMap::new();
        if matches!(verdict, Verdict::Succeeded { .. }) {
            let ranks = self.machine.group().workers.iter();
            let of =
                |worker: &Worker| Some((worker.global_rank, self.returned.get(&worker.local_rank)?.clone()));
            returned.extend(ranks.filter_map(of));
        }
        Some(AgentResult { verdict, returned, failure: self.failure.clone() })
    }

    /// Turns the agent until it is over. `tell` hears of everything as it happens.
    ///
    /// # Errors
    /// That of the system.
    pub fn run(&mut self, mut tell: impl FnMut(&mut Self, AgentEvent)) -> Result<AgentResult, AgentError> {
        loop {
            while let Some(event) = self.next_event() {
                tell(self, event);
            }
            if let Some(result) = self.result() {
                return Ok(result);
            }
            self.wait()?;
        }
    }

    fn is_over(&self) -> bool {
        self.machine.phase() == Phase::Over
    }

    fn now(&self) -> Instant {
        self.events.clock().now()
    }

    /// When something is to be done although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let is_behind = self.membership.is_behind() || self.numbering.is_behind();
        let press = is_behind.then(|| self.now() + PRESS_INTERVAL);
        let farewell = self.farewell_until;
        let is_watchful = matches!(self.health, Some((_, Vigilance::Watchful)));
        let progress = is_watchful.then(|| self.now() + PROGRESS_INTERVAL);
        let machine = self.machine.poll_timeout();
        [press, progress, farewell, machine, self.workers.deadline()].into_iter().flatten().min()
    }

    fn progress(&mut self) {
        loop {
            if let Ok(told) = self.told.try_recv() {
                self.hear(told);
            } else if let Some(event) = self.workers.next_event() {
                self.saw(event);
            } else if self.machine.phase() == Phase::Idle {
                self.give(Input::Begin);
            } else if self.machine.poll_timeout().is_some_and(|due| due <= self.now()) {
                self.machine.handle_timeout(self.now());
            } else if self.farewell_until.is_some_and(|until| until <= self.now()) {
                self.end_farewell();
            } else {
                break;
            }
            self.perform_all();
        }
        self.perform_all();
        self.membership.press();
        self.numbering.press();
        self.snapshot.publish(self.machine.group());
        if let Some((server, _)) = &self.health {
            server.show(self.health());
        }
        if let Some(deadline) = self.deadline() {
            self.events.wake_at(deadline);
        }
    }

    fn give(&mut self, input: Input) {
        // Workers that the machine does not have are those of an attempt that it gave up.
        self.machine.handle(self.now(), input).ok();
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Input(input) => self.give(input),
            Told::Met { call, info } => {
                let round = Round {
                    group_rank: info.rank.unsigned_abs(),
                    group_world_size: info.world_size.unsigned_abs(),
                    number: info.round,
                    tells_of_deaths: self.handler.tells_of_deaths(),
                };
                self.info = Some(info);
                self.give(Input::Met { call, round });
            }
            Told::Numbered { call, numbered } => {
                let ranks = numbered.ranks;
                self.numbered = Some(numbered);
                self.give(Input::Assigned { call, ranks });
            }
            Told::Fell { asker, words } => {
                let words: Box<str> = format!("the thread that waits there panicked: {words}").into();
                self.fallen.push((asker, words.clone()));
                self.answer_for_the_fallen();
                if asker == Asker::Member {
                    self.give(Input::Member(Membership::ServerLost { words }));
                }
            }
        }
    }

    /// Whoever would answer the machine's call is no more.
    fn answer_for_the_fallen(&mut self) {
        let Some(asked) = self.asked else { return };
        let fallen = self.fallen.iter().find(|(asker, _)| *asker == asked.asker());
        if let Some(words) = fallen.map(|(_, words)| words.clone()) {
            self.give(asked.unanswered(words));
        }
    }

    /// Nobody answers to the farewell: the agent goes without it.
    fn end_farewell(&mut self) {
        self.farewell_until = None;
        if let Some(asked @ Asked::Close { .. }) = self.asked {
            self.membership.ask(membership::Ask::Rest);
            self.give(asked.unanswered(Box::default()));
        }
    }

    fn saw(&mut self, event: WorkerEvent) {
        let input = match event {
            WorkerEvent::Started { local_rank, pid } => Input::Started { local_rank, pid },
            WorkerEvent::NotStarted { local_rank, hindrance, words } => {
                Input::NotStarted { local_rank, hindrance, words }
            }
            WorkerEvent::Exited { local_rank, exit, at, was_ending, returned } => {
                if let Some(returned) = returned {
                    self.returned.insert(local_rank, Arc::new(returned));
                }
                Input::Exited { local_rank, exit, at, was_ending }
            }
            WorkerEvent::ErrorWritten { local_rank, at } => Input::ErrorWritten { local_rank, at },
            WorkerEvent::Leftovers { words } => Input::Leftovers { words },
            WorkerEvent::Stuck { local_rank, since } => Input::Stuck { local_rank, since },
            WorkerEvent::TimerExpired(timer) => {
                self.expired.extend((timer.signal > 0).then(|| timer.clone()));
                Input::TimerExpired(timer)
            }
            WorkerEvent::Remark { words } => {
                return self.happen(AgentEvent::Notice(Notice::Remark { words }));
            }
            WorkerEvent::Empty => Input::Empty,
            WorkerEvent::GroupLost { words } => Input::GroupLost { words },
            WorkerEvent::LostSight { words } => Input::LostSight { words },
        };
        self.give(input);
    }

    fn perform_all(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            self.perform(output);
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Meet { call } => {
                self.membership.ask(membership::Ask::Meet { call });
                self.ask(Asked::Meet { call });
            }
            Output::Close { call, farewell } => {
                self.membership.ask(membership::Ask::Close { call, farewell });
                self.farewell_until = Some(self.now() + farewell_timeout(farewell));
                self.ask(Asked::Close { call });
            }
            Output::Assign { call } => {
                // The server of the last start goes now, when its workers are gone: the next one may want its port.
                self.numbered = None;
                self.ask_for_numbers(Asked::Assign { call }, |info| numbering::Ask::Assign { call, info });
            }
            Output::Part { call } => {
                self.ask_for_numbers(Asked::Part { call }, |info| numbering::Ask::Part { call, info });
            }
            Output::Cancel { .. } => match self.asked.map(Asked::asker) {
                Some(Asker::Member) => self.membership.ask(membership::Ask::Rest),
                Some(Asker::Numbering) => self.numbering.ask(numbering::Ask::Rest),
                None => {}
            },
            Output::Abandon => self.handler.abandon(),
            Output::Announce { reason } => self.membership.ask(membership::Ask::Announce { reason }),
            Output::Start { .. } => {
                self.returned.clear();
                self.failure = None;
                self.expired.clear();
                self.start();
            }
            Output::Signal { signal } => self.workers.signal(signal),
            Output::NameLeftovers => self.workers.name_leftovers(),
            Output::Kill => self.workers.kill(),
            Output::Pass { signal } => self.workers.pass(signal),
            Output::Report { group, failures } => {
                let mut failures = self.workers.failures(&group, &failures);
                failures.iter_mut().for_each(|failure| failure.name_timer(&self.expired));
                self.failure = WorkerGroupFailure::new(&self.entry_name, failures);
                if let Some(failure) = self.failure.clone() {
                    self.happen(AgentEvent::WorkersFailed(failure));
                }
            }
            Output::Tell(notice) => self.happen(AgentEvent::Notice(notice)),
            Output::Over => {
                self.farewell_until = None;
                self.numbered = None;
                self.info = None;
                *self.store.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.happen(AgentEvent::Over);
            }
        }
    }

    fn happen(&mut self, event: AgentEvent) {
        let now = self.now();
        let seen = match &event {
            AgentEvent::Notice(notice) => Some(Happened::Notice(notice)),
            AgentEvent::WorkersFailed(failure) => Some(Happened::Failed(failure)),
            AgentEvent::Over => None,
        };
        if let Some(seen) = seen {
            self.observers.iter_mut().for_each(|observer| observer(now, &self.machine, seen));
        }
        let group = self.snapshot.publish(self.machine.group());
        self.happened.push_back((event, Moment { group, restarts_left: self.machine.restarts_left() }));
    }

    fn ask(&mut self, asked: Asked) {
        self.asked = Some(asked);
        self.answer_for_the_fallen();
    }

    fn ask_for_numbers(&mut self, asked: Asked, ask: impl FnOnce(Arc<Info>) -> numbering::Ask) {
        // The machine asks for them in a round only.
        let Some(info) = self.info.clone() else { return };
        self.numbering.ask(ask(info));
        self.ask(asked);
    }

    fn start(&mut self) {
        let Some(numbered) = &self.numbered else { return };
        self.workers.start(&Start {
            group: self.machine.group(),
            master: &numbered.master,
            agent_store: numbered.agent_store,
            run_id: self.handler.run_id(),
            max_restarts: self.machine.spec().max_restarts,
        });
    }
}

impl AsRawFd for Agent {
    /// Readable whenever [`Agent::turn`] has something to do; the same for the agent's life.
    fn as_raw_fd(&self) -> RawFd {
        self.events.fd()
    }
}

/// What is to be done when a thread panics.
fn fell(teller: &Teller, asker: Asker) -> impl FnOnce(String) + Send + 'static {
    let teller = teller.clone();
    move |words| teller.tell(Told::Fell { asker, words })
}

fn cancel(store: &CurrentStore) {
    if let Some(store) = &*store.lock().unwrap_or_else(PoisonError::into_inner) {
        store.cancel();
    }
}
