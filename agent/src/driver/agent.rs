//! Driver of an agent: [`AgentNode`] with its threads, sockets and processes.
//!
//! The thread that polls the agent never blocks. Two threads of the agent make its calls to the rendezvous and to the
//! round's store. Their answers arrive through a channel that makes the agent's descriptor readable.
use rendezvous_core::driver::prelude::*;

mod calls;
mod control;
mod foreign;
mod health;
mod input;
mod local;
mod workers;

#[cfg(test)]
mod tests;

pub use control::AgentControl;
pub use foreign::{ForeignEvent, ForeignWorkers, StartOrder, WorkerEventSender, WorkerHooks};
pub use local::{LocalEntry, LocalError, LocalOptions, LocalWorkers, TimerError};
pub use workers::{Reach, Start, Workers};

use crate::environment::AgentStore;
use crate::failure::WorkerGroupFailure;
use crate::group::{Worker, WorkerGroup};
use crate::health::{Health, LivenessPolicy, PROGRESS_INTERVAL};
use crate::node::{AgentNode, Input, NodeOptions, Output};
use crate::observer::Happened;
use crate::phase::Phase;
use crate::spec::{SpecError, WorkerSpec};
use crate::supervisor::{self, Notice, Outcome, Supervisor};
use crate::watchdog::ExpiredTimer;
use crate::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use calls::Calls;
use control::Snapshot;
use health::HealthServer;
use input::InputSender;
use rendezvous_core::driver::channel::{Receiver, unbounded};
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::sorted::SortedMap;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

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
    /// Address on which this node listens if it hosts the workers' store. Without it, the address by which this host
    /// reaches the rendezvous server is used.
    pub listen_addr: Option<String>,
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
    pub returned: SortedMap<u64, Arc<Vec<u8>>>,
    /// The failures of the last start, if there were any.
    pub failure: Option<WorkerGroupFailure>,
}

const WORKERS: Token = Token(0);

/// An agent, polled by one thread. Other threads use its [`AgentControl`].
///
/// Dropping an agent before it has ended kills its workers, and this node has left the rendezvous then. Pending waits
/// in the rendezvous are cancelled. Backend code that cannot be cancelled gets ten seconds; after that its thread is
/// detached, and keeps what it holds, including the handler and its session.
pub struct Agent {
    node: AgentNode,
    entry_name: String,
    calls: Calls,
    // Dropped before the descriptor that it watches.
    #[expect(dead_code, reason = "held: the descriptor becomes readable by it")]
    watch: Watch,
    workers: Box<dyn Workers>,
    events: EventLoop,
    handler: Arc<dyn RendezvousHandler>,
    inputs: Receiver<Input>,
    input_sender: InputSender,
    snapshot: Arc<Snapshot>,
    failure: Option<WorkerGroupFailure>,
    /// Timers of this start that ended a worker.
    expired: Vec<ExpiredTimer>,
    happened: VecDeque<(AgentEvent, Moment)>,
    /// State at the time of the event that `next_event` returned last.
    moment: Moment,
    observers: Vec<Observer>,
    health: Option<(HealthServer, LivenessPolicy)>,
}

opaque_debug!(Agent);

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
        let use_agent_store = handler.use_agent_store();
        let node = AgentNode::new(NodeOptions {
            spec: options.spec,
            name: options.name.into(),
            local_addr: options.local_addr.map(Into::into),
            listen_addr: options.listen_addr.map(Into::into),
            master: options.master,
            is_local: workers.reach() == Reach::ThisHost,
            reports_deaths: handler.reports_deaths(),
            agent_store: if use_agent_store { AgentStore::Shared } else { AgentStore::OfRankZero },
        })?;
        let mut events = EventLoop::new()?;
        workers.begin(*events.clock());
        let watch = events.watch(workers.fd(), Interest::Read, WORKERS)?;
        let (sender, inputs) = unbounded();
        let input_sender = InputSender::new(sender, events.waker());
        let calls = Calls::new(Arc::clone(&handler), input_sender.clone())?;
        let group = node.supervisor().group();
        let snapshot = Arc::new(Snapshot::new(group.clone()));
        let restarts_left = node.supervisor().restarts_left();
        let moment = Moment { group: snapshot.publish(group), restarts_left };
        // The first thing to do is to begin.
        events.wake_at(events.clock().now());
        Ok(Self {
            node,
            entry_name: options.entry_name,
            calls,
            watch,
            workers,
            events,
            handler,
            inputs,
            input_sender,
            snapshot,
            failure: None,
            expired: Vec::new(),
            happened: VecDeque::new(),
            moment,
            observers: Vec::new(),
            health: None,
        })
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> AgentControl {
        AgentControl::new(self.input_sender.clone(), Arc::clone(&self.snapshot))
    }

    /// Returns the supervisor, for inspection.
    pub const fn supervisor(&self) -> &Supervisor {
        self.node.supervisor()
    }

    /// Adds a callback for all events. If it is added before the first poll, it gets all events from the beginning. It
    /// is called on the thread that polls the agent.
    pub fn observe(&mut self, mut observer: Observer) {
        let now = self.now();
        for (event, _) in &self.happened {
            if let AgentEvent::Notice(notice) = event {
                observer(now, self.node.supervisor(), Happened::Notice(notice));
            }
        }
        self.observers.push(observer);
    }

    /// Returns the health of the agent, with now as the time of its last progress.
    pub fn health(&self) -> Health {
        let liveness_policy = self
            .health
            .as_ref()
            .map_or_else(LivenessPolicy::default, |(_, liveness_policy)| *liveness_policy);
        let supervisor = self.node.supervisor();
        Health::new(supervisor.phase(), self.now(), supervisor.group(), liveness_policy)
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
    pub const fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns the result, once the agent has ended.
    pub fn result(&self) -> Option<AgentResult> {
        let outcome = self.supervisor().outcome().filter(|_| self.is_over())?.clone();
        let mut returned = SortedMap::new();
        if matches!(outcome, Outcome::Succeeded { .. }) {
            let ranks = self.supervisor().group().workers.iter();
            let of = |worker: &Worker| {
                Some((worker.global_rank, self.node.returned().get(&worker.local_rank)?.clone()))
            };
            returned = ranks.filter_map(of).collect();
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
        self.supervisor().phase() == Phase::Over
    }

    fn now(&self) -> Instant {
        self.events.clock().now()
    }

    /// Returns the time of the next poll if no event arrives before.
    fn deadline(&self) -> Option<Instant> {
        let is_watchful = matches!(self.health, Some((_, LivenessPolicy::Watchful)));
        let progress = is_watchful.then(|| self.now() + PROGRESS_INTERVAL);
        [progress, self.node.poll_timeout(), self.workers.deadline()].into_iter().flatten().min()
    }

    fn progress(&mut self) {
        loop {
            if let Ok(input) = self.inputs.try_recv() {
                self.handle_input(input);
            } else if let Some(event) = self.workers.next_event() {
                if let WorkerEvent::TimerExpired(timer) = &event
                    && timer.signal > 0
                {
                    self.expired.push(timer.clone());
                }
                self.handle_input(Input::Worker(event));
            } else if self.supervisor().phase() == Phase::Idle {
                self.handle_input(Input::Begin);
            } else if self.node.poll_timeout().is_some_and(|due| due <= self.now()) {
                self.node.handle_timeout(self.now());
            } else {
                break;
            }
            while let Some(output) = self.node.poll_output() {
                self.perform(output);
            }
        }
        self.snapshot.publish(self.node.supervisor().group());
        if let Some((server, _)) = &self.health {
            server.show(self.health());
        }
        if let Some(deadline) = self.deadline() {
            self.events.wake_at(deadline);
        }
    }

    fn handle_input(&mut self, input: Input) {
        if let Input::Answered { id, .. } = &input {
            self.calls.answered(*id);
        }
        // Events of workers that the node does not know belong to an attempt that it gave up.
        self.node.handle(self.now(), input).ok();
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Call { id, request } => self.calls.begin(id, request),
            Output::Cancel { id } => self.calls.cancel(id),
            Output::Abandon => self.calls.abandon(),
            Output::EndStore => self.calls.end_store(),
            Output::Supervisor(output) => self.perform_for_workers(output),
        }
    }

    fn perform_for_workers(&mut self, output: supervisor::Output) {
        use supervisor::Output as Do;
        match output {
            Do::Start { .. } => {
                self.failure = None;
                self.expired.clear();
                self.start();
            }
            Do::Signal { signal } => self.workers.signal(signal),
            Do::NameLeftovers => self.workers.name_leftovers(),
            Do::Kill => self.workers.kill(),
            Do::Pass { signal } => self.workers.pass(signal),
            Do::Report { group, failures } => {
                let mut failures = self.workers.failures(&group, &failures);
                failures.iter_mut().for_each(|failure| failure.name_timer(&self.expired));
                self.failure = WorkerGroupFailure::new(&self.entry_name, failures);
                if let Some(failure) = self.failure.clone() {
                    self.record_event(AgentEvent::WorkersFailed(failure));
                }
            }
            Do::Notify(notice) => self.record_event(AgentEvent::Notice(notice)),
            Do::Over => {
                self.calls.leave_round();
                self.record_event(AgentEvent::Over);
            }
            // The node turns these into calls.
            Do::Join { .. }
            | Do::Assign { .. }
            | Do::WaitAtExitBarrier { .. }
            | Do::Close { .. }
            | Do::Cancel { .. }
            | Do::Announce { .. }
            | Do::ExplainRestart { .. }
            | Do::Abandon => {}
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
            self.observers.iter_mut().for_each(|observer| observer(now, self.node.supervisor(), seen));
        }
        let group = self.snapshot.publish(self.node.supervisor().group());
        let restarts_left = self.node.supervisor().restarts_left();
        self.happened.push_back((event, Moment { group, restarts_left }));
    }

    fn start(&mut self) {
        // The workers are started only when their store is known.
        let Some(store) = self.node.start_store() else { return };
        self.workers.start(&Start {
            group: self.node.supervisor().group(),
            master: &store.master,
            agent_store: store.agent_store,
            run_id: self.handler.run_id(),
            max_restarts: self.node.supervisor().spec().max_restarts,
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
