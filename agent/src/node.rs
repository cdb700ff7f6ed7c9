//! State machine of an agent: it combines the [`Supervisor`] of the workers with the agent's part in the rendezvous,
//! the assignment of ranks, and the exit barrier.
//!
//! It blocks on nothing. Calls to the rendezvous and to the round's store leave it as [`Output::Call`]; the driver
//! makes them on any thread and passes each answer to [`AgentNode::handle`]. At most two calls are pending at a time:
//! one to the rendezvous, and one to the round's store.
use rendezvous_core::prelude::*;

mod assignment;
mod exit_barrier;
mod member;
pub mod request;
mod round_store;
pub mod rounds;
#[cfg(test)]
mod tests;

pub use assignment::StartStore;

use crate::environment::AgentStore;
use crate::reason::StopCause;
use crate::spec::{SpecError, WorkerSpec};
use crate::supervisor::{self, InputError, Membership, Notice, Supervisor};
use crate::worker_event::WorkerEvent;
use crate::worker_store::{Named, WorkerStores};
use alloc::collections::VecDeque;
use assignment::AssignmentSettings;
use member::Member;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::sorted::SortedMap;
use request::{Answer, CallFailure, Request};
use round_store::RoundStore;

/// Exit barrier timeout with backends that do not report deaths, unless the spec says otherwise.
pub const EXIT_BARRIER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);
/// Longer than any job runs.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 10);

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Spec of the supervised workers.
    pub spec: WorkerSpec,
    /// Name of this agent in the messages that other agents show; usually the host name.
    pub name: Box<str>,
    /// Address at which workers of other nodes reach this node if it serves their store.
    pub local_addr: Option<Box<str>>,
    /// Address on which this node listens if it serves the workers' store.
    pub listen_addr: Option<Box<str>>,
    /// Address of the workers' store. Without it, each round has a store of its own, served by the first agent.
    pub master: Option<RendezvousStoreInfo>,
    /// Whether all workers run on the agent's host.
    pub is_local: bool,
    /// Whether the rendezvous reports deaths and ends of rounds.
    pub reports_deaths: bool,
    /// Which process serves the store over which the nodes meet, as the workers see it.
    pub agent_store: AgentStore,
}

/// Input of the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The agent begins.
    Begin,
    /// Something happened to the workers.
    Worker(WorkerEvent),
    /// The agent is asked to stop.
    Stop(StopCause),
    /// A signal to forward to the workers. It does not change the state.
    Pass {
        /// Signal number.
        signal: i32,
    },
    /// A call has ended. Each call of [`Output::Call`] is answered once, also if it was cancelled.
    Answered {
        /// Number of the call.
        id: u64,
        /// Its answer.
        answer: Result<Answer, CallFailure>,
    },
}

/// Output of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Make a call; answered by [`Input::Answered`].
    Call {
        /// Number of the call.
        id: u64,
        /// The call.
        request: Request,
    },
    /// Cancel a call. It is answered nevertheless.
    Cancel {
        /// Number of the call.
        id: u64,
    },
    /// Leave the round at once, without waiting for an answer: the other agents learn that this one's work is undone.
    Abandon,
    /// End the store that [`Request::ServeStore`] began.
    EndStore,
    /// Do something with the workers, or pass a notice on: an output of the supervisor other than those that concern
    /// the rendezvous, which the node turns into calls.
    Supervisor(supervisor::Output),
}

/// Calls and reports of the parts of a node.
#[derive(Debug, Default)]
struct Calls {
    outputs: VecDeque<Output>,
    /// Reports for the supervisor.
    reports: VecDeque<supervisor::Input>,
    made: u64,
}

impl Calls {
    fn call(&mut self, request: Request) -> u64 {
        self.made += 1;
        self.outputs.push_back(Output::Call { id: self.made, request });
        self.made
    }

    fn cancel(&mut self, id: u64) {
        self.outputs.push_back(Output::Cancel { id });
    }

    fn end_store(&mut self) {
        self.outputs.push_back(Output::EndStore);
    }

    fn notify(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Supervisor(supervisor::Output::Notify(notice)));
    }

    fn report(&mut self, input: supervisor::Input) {
        self.reports.push_back(input);
    }

    fn member(&mut self, membership: Membership) {
        self.report(supervisor::Input::Member(membership));
    }
}

/// Part of the node that makes the supervisor's pending call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallingPart {
    Member,
    RoundStore,
}

/// State machine of an agent, from its first round to its end.
#[derive(Debug)]
pub struct AgentNode {
    supervisor: Supervisor,
    member: Member,
    round_store: RoundStore,
    calling: CallingPart,
    calls: Calls,
    /// Bytes that the workers of this start returned, by local rank.
    returned: SortedMap<u32, Arc<Vec<u8>>>,
}

impl AgentNode {
    /// Creates an agent that has not begun.
    ///
    /// # Errors
    /// The spec is inconsistent.
    pub fn new(options: NodeOptions) -> Result<Self, SpecError> {
        let NodeOptions { spec, name, local_addr, listen_addr, master, is_local, .. } = options;
        let named = if master.is_some() { Named::Yes } else { Named::No };
        let exit_barrier_timeout = match (spec.exit_barrier_timeout, options.reports_deaths) {
            (Some(timeout), _) => timeout,
            // Deaths end the wait, and a healthy job may take any time.
            (None, true) => FOR_EVER,
            (None, false) => EXIT_BARRIER_TIMEOUT_DEFAULT,
        };
        let settings = AssignmentSettings {
            role: spec.role.clone(),
            name: name.clone(),
            local_world_size: spec.local_world_size,
            rank_assignment: spec.rank_assignment,
            master_port: spec.master_port,
            master,
            local_addr,
            listen_addr,
            is_local,
        };
        let stores = WorkerStores::new(named, options.agent_store);
        Ok(Self {
            member: Member::new(name, spec.monitor_interval, options.reports_deaths),
            round_store: RoundStore::new(settings, spec.assign_timeout, exit_barrier_timeout, stores),
            supervisor: Supervisor::new(spec)?,
            calling: CallingPart::Member,
            calls: Calls::default(),
            returned: SortedMap::new(),
        })
    }

    /// Returns the supervisor of the workers, for inspection.
    pub const fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Returns the store of the workers. Present from [`supervisor::Output::Start`] until the next round.
    pub const fn start_store(&self) -> Option<&StartStore> {
        self.round_store.start_store()
    }

    /// Returns the bytes that the workers of the last start have returned, by local rank.
    #[must_use]
    pub const fn returned(&self) -> &SortedMap<u32, Arc<Vec<u8>>> {
        &self.returned
    }

    /// Returns the next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.calls.outputs.pop_front()
    }

    /// Returns when [`AgentNode::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.supervisor.poll_timeout(), self.member.poll_timeout()].into_iter().flatten().min()
    }

    /// Advances the clock to `now` and handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.begin_timeout(now);
        while self.step(now) {}
    }

    /// Handles an input.
    ///
    /// # Errors
    /// The input is impossible: its worker does not exist, or the agent has begun before. The state has not changed
    /// then.
    pub fn handle(&mut self, now: Instant, input: Input) -> Result<(), InputError> {
        self.begin(now, input)?;
        while self.step(now) {}
        Ok(())
    }

    /// As [`AgentNode::handle_timeout`], without the steps.
    #[doc(hidden)]
    pub fn begin_timeout(&mut self, now: Instant) {
        self.supervisor.handle_timeout(now);
        self.member.handle_timeout(now, &mut self.calls);
        self.perform_all(now);
    }

    /// As [`AgentNode::handle`], without the steps, so that a test can look at the supervisor after each report.
    #[doc(hidden)]
    pub fn begin(&mut self, now: Instant, input: Input) -> Result<(), InputError> {
        match input {
            Input::Begin => self.supervisor.handle(now, supervisor::Input::Begin)?,
            Input::Worker(mut event) => {
                if let WorkerEvent::Exited { local_rank, returned, .. } = &mut event
                    && let Some(returned) = returned.take()
                {
                    self.returned.insert(*local_rank, Arc::new(returned));
                }
                self.supervisor.handle(now, supervisor::Input::Worker(event))?;
            }
            Input::Stop(cause) => self.supervisor.handle(now, supervisor::Input::Stop(cause))?,
            Input::Pass { signal } => self.supervisor.handle(now, supervisor::Input::Pass { signal })?,
            Input::Answered { id, answer } => {
                if !self.member.answered(now, id, &answer, &mut self.calls) {
                    self.round_store.answered(now, id, answer, &mut self.calls);
                }
            }
        }
        self.perform_all(now);
        Ok(())
    }

    /// Returns the report that the next step passes to the supervisor.
    #[doc(hidden)]
    pub fn next_report(&self) -> Option<&supervisor::Input> {
        self.calls.reports.front()
    }

    /// Gives the supervisor the next report. Returns whether there was one.
    #[doc(hidden)]
    pub fn step(&mut self, now: Instant) -> bool {
        let Some(report) = self.calls.reports.pop_front() else { return false };
        // Reports concern no worker, so the supervisor accepts each.
        self.supervisor.handle(now, report).ok();
        self.perform_all(now);
        true
    }

    fn perform_all(&mut self, now: Instant) {
        while let Some(output) = self.supervisor.poll_output() {
            self.perform(now, output);
        }
    }

    fn perform(&mut self, now: Instant, output: supervisor::Output) {
        use supervisor::Output as Do;
        let calls = &mut self.calls;
        match output {
            Do::Join { call } => {
                self.calling = CallingPart::Member;
                self.member.join(now, call, calls);
            }
            Do::Close { call, leave_mode } => {
                self.calling = CallingPart::Member;
                self.member.close(now, call, leave_mode, calls);
            }
            Do::Announce { reason } => self.member.announce(now, reason, calls),
            Do::ExplainRestart { reason } => self.member.explain_restart(now, reason, calls),
            Do::Assign { call } => {
                self.calling = CallingPart::RoundStore;
                // The supervisor asks for ranks only in a round.
                if let Some(round) = self.member.round() {
                    self.round_store.assign(now, call, round.clone(), calls);
                }
            }
            Do::WaitAtExitBarrier { call } => {
                self.calling = CallingPart::RoundStore;
                if let Some(round) = self.member.round() {
                    self.round_store.wait_at_exit(now, call, round, calls);
                }
            }
            Do::Cancel { .. } => match self.calling {
                CallingPart::Member => self.member.cancel(calls),
                CallingPart::RoundStore => self.round_store.cancel(calls),
            },
            Do::Abandon => calls.outputs.push_back(Output::Abandon),
            output => {
                match output {
                    Do::Start { .. } => self.returned.clear(),
                    Do::Over => self.round_store.end_store(calls),
                    _ => {}
                }
                calls.outputs.push_back(Output::Supervisor(output));
            }
        }
    }
}
