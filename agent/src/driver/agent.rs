//! Driver of an agent: [`Supervisor`] with its threads, sockets and processes.
//!
//! The thread that polls the agent never blocks. Two threads of the agent make the blocking calls: one joins the
//! rendezvous and listens to its events, the other meets the other agents in the round's store. Their results arrive
//! through a channel that makes the agent's descriptor readable.

mod blocking_thread;
mod control;
mod foreign;
mod health;
mod input;
mod last_call;
mod local;
mod membership;
mod numbering;
mod workers;

#[cfg(test)]
mod tests;

pub use control::AgentControl;
pub use foreign::{ForeignEvent, ForeignWorkers, StartOrder, WorkerEventSender, WorkerHooks};
pub use local::{LocalEntry, LocalError, LocalOptions, LocalWorkers, TimerError};
pub use workers::{Reach, Start, WorkerEvent, Workers};

use crate::environment::AgentStore;
use crate::failure::WorkerGroupFailure;
use crate::group::{Worker, WorkerGroup};
use crate::health::{Health, LivenessPolicy, PROGRESS_INTERVAL};
use crate::observer::Happened;
use crate::phase::Phase;
use crate::spec::{SpecError, WorkerSpec};
use crate::supervisor::{Input, Membership, Notice, Outcome, Output, Round, Supervisor};
use crate::watchdog::ExpiredTimer;
use crate::worker_store::{Named, WorkerStores};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use blocking_thread::BlockingThread;
use control::Snapshot;
use crossbeam_channel::{Receiver, unbounded};
use health::HealthServer;
use input::{AgentInput, EventSender, Info, Numbered};
use last_call::{CallSource, LastCall, leave_timeout};
use membership::{CurrentStore, Member};
use numbering::Numbering;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::time::{Duration, Instant};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::PoisonError;

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Spec of the supervised workers.
    pub spec: WorkerSpec,
    /// Name of this agent in the failure messages that other agents show; usually the host name.
    pub name: String,
    /// Name of the workers' program in reports.
    pub entry_name: String,
    /// Address at which workers of other nodes reach this node if it hosts their store. Without it, the address that
    /// the rendezvous knows is used. A group of one node whose workers run on its host uses the loopback address then.
    pub local_addr: Option<String>,
    /// Address of the workers' store. Without it, each round has a store of its own, served by the first agent.
    pub master: Option<RendezvousStoreInfo>,
}

/// Error of creating or driving an agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The spec is inconsistent.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The system has no descriptors or threads left.
    #[error("the agent cannot get the descriptors or threads that it needs: {0}")]
    System(#[from] io::Error),
}

/// Event of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// A notice of the supervisor.
    Notice(Notice),
    /// Workers of one start failed, and no process of that start is alive any more.
    WorkersFailed(WorkerGroupFailure),
    /// The agent has ended: [`Agent::result`] says how.
    Over,
}

/// Callback for all events as they happen, with the supervisor in its state at that time. It must not block.
pub type Observer = Box<dyn FnMut(Instant, &Supervisor, Happened<'_>) + Send>;

/// State of the agent at the time of an event.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The worker group.
    pub group: Arc<WorkerGroup>,
    /// Number of further failures that the agent answers with a restart.
    pub restarts_left: u32,
}

/// Result of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentResult {
    /// How the agent ended.
    pub outcome: Outcome,
    /// Values that the workers returned, by global rank. Present if they were functions and all succeeded.
    pub returned: BTreeMap<u64, Arc<Vec<u8>>>,
    /// The failures of the last start, if there were any.
    pub failure: Option<WorkerGroupFailure>,
}

const WORKERS: Token = Token(0);
/// Interval at which a blocking call is cancelled again. A call that was just beginning may miss the first
/// cancellation.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(2);

/// An agent, polled by one thread. Other threads use its [`AgentControl`].
///
/// Dropping an agent before it has ended kills its workers, and this node has left the rendezvous then. Pending waits
/// in the rendezvous are cancelled. Backend code that cannot be cancelled gets ten seconds; after that its thread is
/// detached, and keeps what it holds, including the handler and its session.
pub struct Agent {
    machine: Supervisor,
    entry_name: String,
    // Dropped before what they interrupt.
    membership: BlockingThread<membership::Ask>,
    numbering: BlockingThread<numbering::Ask>,
    // Dropped before the descriptor that it watches.
    #[expect(dead_code, reason = "held: the descriptor becomes readable by it")]
    watch: Watch,
    workers: Box<dyn Workers>,
    events: EventLoop,
    handler: Arc<dyn RendezvousHandler>,
    store: CurrentStore,
    inputs: Receiver<AgentInput>,
    event_sender: EventSender,
    snapshot: Arc<Snapshot>,
    /// The last call of the supervisor.
    last_call: Option<LastCall>,
    /// Threads that have panicked, with the panic message. They answer no more calls.
    panicked_threads: Vec<(CallSource, Box<str>)>,
    /// Deadline for leaving the rendezvous.
    leave_until: Option<Instant>,
    info: Option<Arc<Info>>,
    numbered: Option<Box<Numbered>>,
    returned: BTreeMap<u32, Arc<Vec<u8>>>,
    failure: Option<WorkerGroupFailure>,
    /// Timers of this start that ended a worker.
    expired: Vec<ExpiredTimer>,
    happened: VecDeque<(AgentEvent, Moment)>,
    /// State at the time of the event that `next_event` returned last.
    moment: Moment,
    observers: Vec<Observer>,
    health: Option<(HealthServer, LivenessPolicy)>,
}

impl core::fmt::Debug for Agent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Agent").field("phase", &self.machine.phase()).finish_non_exhaustive()
    }
}

impl Agent {
    /// Creates an agent. It joins nothing before it is first polled.
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
        let (sender, inputs) = unbounded();
        let event_sender = EventSender::new(sender, events.waker());
        let store = CurrentStore::default();
        let member = Member {
            handler: Arc::clone(&handler),
            monitor_interval: options.spec.monitor_interval,
            name: options.name,
            store: Arc::clone(&store),
            event_sender: event_sender.clone(),
        };
        let (interrupted, its_store) = (Arc::clone(&handler), Arc::clone(&store));
        let interrupt = move || {
            interrupted.cancel();
            cancel(&its_store);
        };
        let membership = BlockingThread::start(
            "rdzv-member",
            interrupt,
            move |tasks| member.run(&tasks),
            on_panic(&event_sender, CallSource::Member),
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
            event_sender: event_sender.clone(),
        };
        let its_store = Arc::clone(&store);
        let interrupt = move || cancel(&its_store);
        let numbering = BlockingThread::start(
            "rdzv-number",
            interrupt,
            move |tasks| numbering.run(&tasks),
            on_panic(&event_sender, CallSource::Numbering),
        )?;
        let snapshot = Arc::new(Snapshot::new(machine.group().clone()));
        let moment =
            Moment { group: snapshot.publish(machine.group()), restarts_left: machine.restarts_left() };
        // The first thing to do is to begin.
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
            inputs,
            event_sender,
            snapshot,
            last_call: None,
            panicked_threads: Vec::new(),
            leave_until: None,
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

    /// Returns a handle for other threads.
    #[must_use]
    pub fn control(&self) -> AgentControl {
        AgentControl::new(self.event_sender.clone(), Arc::clone(&self.snapshot))
    }

    /// Returns the supervisor, for inspection.
    #[must_use]
    pub const fn supervisor(&self) -> &Supervisor {
        &self.machine
    }

    /// Adds a callback for all events. If it is added before the first poll, it gets all events from the beginning. It
    /// is called on the thread that polls the agent.
    pub fn observe(&mut self, mut observer: Observer) {
        let now = self.now();
        for (event, _) in &self.happened {
            if let AgentEvent::Notice(notice) = event {
                observer(now, &self.machine, Happened::Notice(notice));
            }
        }
        self.observers.push(observer);
    }

    /// Returns the health of the agent, with now as the time of its last progress.
    #[must_use]
    pub fn health(&self) -> Health {
        let liveness_policy = self
            .health
            .as_ref()
            .map_or_else(LivenessPolicy::default, |(_, liveness_policy)| *liveness_policy);
        Health::new(self.machine.phase(), self.now(), self.machine.group(), liveness_policy)
    }

    /// Serves the agent's health over HTTP at `address`, on a thread of its own, until the agent is dropped. Port 0
    /// selects a free port. Returns the bound address. The response is 503 if the agent should have made progress and
    /// has not ([`Health::is_well`]).
    ///
    /// # Errors
    /// The address cannot be bound, or the thread cannot be started.
    pub fn serve_health(
        &mut self,
        address: SocketAddr,
        liveness_policy: LivenessPolicy,
    ) -> io::Result<SocketAddr> {
        let server = HealthServer::start(address, *self.events.clock(), self.health())?;
        let address = server.address();
        self.health = Some((server, liveness_policy));
        Ok(address)
    }

    /// Does all pending work. It does not block, except for the workers' output: a log disk that neither accepts nor
    /// refuses data delays the start and the end of a group by up to two seconds.
    ///
    /// # Errors
    /// The event loop's system call failed.
    pub fn poll(&mut self) -> Result<(), AgentError> {
        // All sources are polled below, whether or not they are ready.
        for _ in self.events.poll()? {}
        self.progress();
        Ok(())
    }

    /// Like [`Agent::poll`], but waits until there is work to do. For a thread that does nothing else.
    ///
    /// # Errors
    /// The event loop's system call failed.
    pub fn wait(&mut self) -> Result<(), AgentError> {
        let until = self.deadline();
        for _ in self.events.wait(until)? {}
        self.progress();
        Ok(())
    }

    /// Returns the next event, in order.
    pub fn next_event(&mut self) -> Option<AgentEvent> {
        let (event, moment) = self.happened.pop_front()?;
        self.moment = moment;
        Some(event)
    }

    /// Returns the state at the time of the event that [`Agent::next_event`] returned last. The supervisor may have
    /// advanced since.
    #[must_use]
    pub const fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns the result, once the agent has ended.
    #[must_use]
    pub fn result(&self) -> Option<AgentResult> {
        let outcome = self.machine.outcome().filter(|_| self.is_over())?.clone();
        let mut returned = BTreeMap::new();
        if matches!(outcome, Outcome::Succeeded { .. }) {
            let ranks = self.machine.group().workers.iter();
            let of =
                |worker: &Worker| Some((worker.global_rank, self.returned.get(&worker.local_rank)?.clone()));
            returned.extend(ranks.filter_map(of));
        }
        Some(AgentResult { outcome, returned, failure: self.failure.clone() })
    }

    /// Polls the agent until it has ended. `notify` is called with each event.
    ///
    /// # Errors
    /// The event loop's system call failed.
    pub fn run(&mut self, mut notify: impl FnMut(&mut Self, AgentEvent)) -> Result<AgentResult, AgentError> {
        loop {
            while let Some(event) = self.next_event() {
                notify(self, event);
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

    /// Returns the time of the next poll if no event arrives before.
    fn deadline(&self) -> Option<Instant> {
        let is_busy = self.membership.is_busy() || self.numbering.is_busy();
        let interrupt_at = is_busy.then(|| self.now() + INTERRUPT_INTERVAL);
        let leave_at = self.leave_until;
        let is_watchful = matches!(self.health, Some((_, LivenessPolicy::Watchful)));
        let progress = is_watchful.then(|| self.now() + PROGRESS_INTERVAL);
        let machine = self.machine.poll_timeout();
        [interrupt_at, progress, leave_at, machine, self.workers.deadline()].into_iter().flatten().min()
    }

    fn progress(&mut self) {
        loop {
            if let Ok(inputs) = self.inputs.try_recv() {
                self.handle_event(inputs);
            } else if let Some(event) = self.workers.next_event() {
                self.on_worker_event(event);
            } else if self.machine.phase() == Phase::Idle {
                self.handle_input(Input::Begin);
            } else if self.machine.poll_timeout().is_some_and(|due| due <= self.now()) {
                self.machine.handle_timeout(self.now());
            } else if self.leave_until.is_some_and(|until| until <= self.now()) {
                self.end_leave();
            } else {
                break;
            }
            self.perform_all();
        }
        self.perform_all();
        self.membership.interrupt_call();
        self.numbering.interrupt_call();
        self.snapshot.publish(self.machine.group());
        if let Some((server, _)) = &self.health {
            server.show(self.health());
        }
        if let Some(deadline) = self.deadline() {
            self.events.wake_at(deadline);
        }
    }

    fn handle_input(&mut self, input: Input) {
        // The supervisor refuses events of workers that it does not know. They belong to an attempt that it gave up.
        self.machine.handle(self.now(), input).ok();
    }

    fn handle_event(&mut self, inputs: AgentInput) {
        match inputs {
            AgentInput::Input(input) => self.handle_input(input),
            AgentInput::Met { call, info } => {
                let round = Round {
                    group_rank: info.rank.unsigned_abs(),
                    group_world_size: info.world_size.unsigned_abs(),
                    number: info.round,
                    tells_of_deaths: self.handler.tells_of_deaths(),
                };
                self.info = Some(info);
                self.handle_input(Input::Met { call, round });
            }
            AgentInput::Numbered { call, numbered } => {
                let ranks = numbered.ranks;
                self.numbered = Some(numbered);
                self.handle_input(Input::Assigned { call, ranks });
            }
            AgentInput::ThreadPanicked { call_source, message } => {
                let message: Box<str> = format!("a thread of the agent panicked: {message}").into();
                self.panicked_threads.push((call_source, message.clone()));
                self.fail_calls_of_panicked_threads();
                if call_source == CallSource::Member {
                    self.handle_input(Input::Member(Membership::ServerLost { message }));
                }
            }
        }
    }

    /// Answers the pending call if the thread that would answer it has panicked.
    fn fail_calls_of_panicked_threads(&mut self) {
        let Some(last_call) = self.last_call else { return };
        let panicked_threads =
            self.panicked_threads.iter().find(|(call_source, _)| *call_source == last_call.call_source());
        if let Some(message) = panicked_threads.map(|(_, message)| message.clone()) {
            self.handle_input(last_call.unanswered(message));
        }
    }

    /// Ends a leave that got no answer in time. The agent ends without it.
    fn end_leave(&mut self) {
        self.leave_until = None;
        if let Some(last_call @ LastCall::Close { .. }) = self.last_call {
            self.membership.ask(membership::Ask::Rest);
            self.handle_input(last_call.unanswered(Box::default()));
        }
    }

    fn on_worker_event(&mut self, event: WorkerEvent) {
        let input = match event {
            WorkerEvent::Started { local_rank, pid } => Input::Started { local_rank, pid },
            WorkerEvent::NotStarted { local_rank, start_failure, message } => {
                Input::NotStarted { local_rank, start_failure, message }
            }
            WorkerEvent::Exited { local_rank, exit, at, was_ending, returned } => {
                if let Some(returned) = returned {
                    self.returned.insert(local_rank, Arc::new(returned));
                }
                Input::Exited { local_rank, exit, at, was_ending }
            }
            WorkerEvent::ErrorWritten { local_rank, at } => Input::ErrorWritten { local_rank, at },
            WorkerEvent::Leftovers { message } => Input::Leftovers { message },
            WorkerEvent::Stuck { local_rank, since } => Input::Stuck { local_rank, since },
            WorkerEvent::TimerExpired(timer) => {
                self.expired.extend((timer.signal > 0).then(|| timer.clone()));
                Input::TimerExpired(timer)
            }
            WorkerEvent::Remark { message } => {
                return self.record_event(AgentEvent::Notice(Notice::Remark { message }));
            }
            WorkerEvent::Empty => Input::Empty,
            WorkerEvent::GroupLost { message } => Input::GroupLost { message },
            WorkerEvent::GuardLost { message } => Input::GuardLost { message },
        };
        self.handle_input(input);
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
                self.set_last_call(LastCall::Meet { call });
            }
            Output::Close { call, leave_mode } => {
                self.membership.ask(membership::Ask::Close { call, leave_mode });
                self.leave_until = Some(self.now() + leave_timeout(leave_mode));
                self.set_last_call(LastCall::Close { call });
            }
            Output::Assign { call } => {
                // The server of the last start ends now, after its workers: the next server may use the same port.
                self.numbered = None;
                self.request_numbering(LastCall::Assign { call }, |info| numbering::Ask::Assign {
                    call,
                    info,
                });
            }
            Output::Part { call } => {
                self.request_numbering(LastCall::Part { call }, |info| numbering::Ask::Part { call, info });
            }
            Output::Cancel { .. } => match self.last_call.map(LastCall::call_source) {
                Some(CallSource::Member) => self.membership.ask(membership::Ask::Rest),
                Some(CallSource::Numbering) => self.numbering.ask(numbering::Ask::Rest),
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
                    self.record_event(AgentEvent::WorkersFailed(failure));
                }
            }
            Output::Notify(notice) => self.record_event(AgentEvent::Notice(notice)),
            Output::Over => {
                self.leave_until = None;
                self.numbered = None;
                self.info = None;
                *self.store.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.record_event(AgentEvent::Over);
            }
        }
    }

    fn record_event(&mut self, event: AgentEvent) {
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

    fn set_last_call(&mut self, last_call: LastCall) {
        self.last_call = Some(last_call);
        self.fail_calls_of_panicked_threads();
    }

    fn request_numbering(&mut self, last_call: LastCall, ask: impl FnOnce(Arc<Info>) -> numbering::Ask) {
        // The supervisor requests ranks only in a round.
        let Some(info) = self.info.clone() else { return };
        self.numbering.ask(ask(info));
        self.set_last_call(last_call);
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
    /// Returns the descriptor that is readable whenever [`Agent::poll`] has work to do. It stays the same for the life
    /// of the agent.
    fn as_raw_fd(&self) -> RawFd {
        self.events.fd()
    }
}

/// Returns the callback for a panic of the thread.
fn on_panic(event_sender: &EventSender, call_source: CallSource) -> impl FnOnce(String) + Send + 'static {
    let event_sender = event_sender.clone();
    move |message| event_sender.notify(AgentInput::ThreadPanicked { call_source, message })
}

fn cancel(store: &CurrentStore) {
    if let Some(store) = &*store.lock().unwrap_or_else(PoisonError::into_inner) {
        store.cancel();
    }
}
