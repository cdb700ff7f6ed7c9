//! What the threads of one worker share: its machine, its connections, and who waits for what.

use super::mailbox::Mailbox;
use super::{AlreadyObserved, Listener};
use crate::agent::{
    Agent, AgentError, Called, ControlCall, GroupEvent, Input, NotAdmitted, NotCallable, has_left,
    indicates_death, no_answer,
};
use crate::connection::{CallError, Status};
use crate::driver::calls::calling::{Call, CallGuard, CallResult, RpcClient, RpcPeer};
use crate::driver::calls::handling::{Request, Responder};
use crate::membership::Member;
use crate::membership::change::WorkerLocation;
use crate::membership::changing::NoAnswer;
use crate::membership::error::MembershipError;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rendezvous_core::driver::canceller::Cancellable;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::rendezvous::parse::Endpoint;
use rendezvous_core::time::{Duration, Instant, Seconds};
use slab::Slab;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// How long what a worker has told the others may take to be taken back, when nobody waits for it to join any longer.
const TAKING_BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Most events that are kept until somebody asks for them.
const EVENTS_MAX: usize = 4096;

/// Whom a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee<'a> {
    /// The worker of this name.
    Name(&'a str),
    /// The worker with this number.
    Id(u16),
}

/// The same, kept for what is told of the call later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalleeName {
    /// The worker of this name.
    Name(Box<str>),
    /// The worker with this number.
    Id(u16),
}

impl CalleeName {
    /// As a call has it.
    #[must_use]
    pub fn callee(&self) -> Callee<'_> {
        match self {
            Self::Name(name) => Callee::Name(name),
            Self::Id(id) => Callee::Id(*id),
        }
    }
}

impl From<Callee<'_>> for CalleeName {
    fn from(callee: Callee<'_>) -> Self {
        match callee {
            Callee::Name(name) => Self::Name(name.into()),
            Callee::Id(id) => Self::Id(id),
        }
    }
}

impl fmt::Display for CalleeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Id(id) => write!(f, "id {id}"),
        }
    }
}

impl<'a> From<&'a str> for Callee<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl From<u16> for Callee<'_> {
    fn from(id: u16) -> Self {
        Self::Id(id)
    }
}

/// Why a call to a worker of the group failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupCallError {
    /// There is nobody to be called.
    #[error(transparent)]
    NotCallable(#[from] NotCallable),
    /// The call was made, or not, and has no answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The address of the worker is none that this backend can call.
    #[error("{worker} takes calls at {address}, which is no host and port")]
    Address {
        /// Who.
        worker: WorkerInfo,
        /// What it wrote there.
        address: Box<str>,
    },
    /// A thread of this worker's panicked, and it is no member any more.
    #[error("this worker ended: {message}")]
    Panicked {
        /// Which thread, and what the panic said.
        message: Box<str>,
    },
    /// The system has no descriptors left.
    #[error("no connection to {worker}: {message}")]
    System {
        /// Who.
        worker: WorkerInfo,
        /// What the system said.
        message: Box<str>,
    },
    /// A backend in the program's code failed the call.
    #[error("{call}: {message}")]
    Foreign {
        /// Handler and callee.
        call: Box<str>,
        /// The backend's status for it.
        status: i32,
        /// Why, as the backend says it.
        message: Box<str>,
        /// What the handler said, where it failed.
        cause: Box<str>,
    },
    /// The caller gave up a call of such a backend.
    #[error("{call}: it was cancelled")]
    Cancelled {
        /// Handler and callee.
        call: Box<str>,
    },
    /// Such a backend did not answer a call in time.
    #[error("{call}: no answer in {}s", Seconds(*.elapsed))]
    Late {
        /// Handler and callee.
        call: Box<str>,
        /// How long the caller waited.
        elapsed: Duration,
    },
    /// There are too many calls that an event loop has begun.
    #[error("{calls_max} calls of this worker have not ended, or nobody has taken what came of them")]
    Untaken {
        /// So many may be.
        calls_max: usize,
    },
}

/// How far a worker's life has come, for those who wait.
#[derive(Clone, Debug)]
enum LifeStage {
    Joining,
    Member,
    Over(Result<(), AgentError>),
}

/// The way to one worker at one address.
struct Route {
    location: WorkerLocation,
    peer: RpcPeer,
}

#[derive(Default)]
struct Answers {
    open: Vec<(u64, Responder)>,
    /// The machine is over: nobody is answered any more.
    is_over: bool,
}

pub(super) struct Shared {
    clock: Clock,
    inputs: Mailbox<Input>,
    /// `None` until it is known where the worker listens.
    agent: Mutex<Option<Agent>>,
    /// It, and where this worker is called itself.
    client: OnceLock<(RpcClient, Box<str>)>,
    routes: Mutex<Vec<Route>>,
    /// Calls of the library's own handlers that are to be answered.
    answers: Mutex<Answers>,
    last_answer: AtomicU64,
    calls: Mutex<Calls>,
    life: Mutex<LifeStage>,
    /// Nobody waits for it to join any longer. Changed under the lock of the fate.
    is_unwanted: AtomicBool,
    changed: Condvar,
    events: Mailbox<GroupEvent>,
    events_lost: AtomicU64,
    /// Which thread panicked, and what it said.
    panic: OnceLock<Box<str>>,
    /// Who hears of events instead.
    group_listener: Mutex<Option<Arc<dyn Listener>>>,
    /// It hears no more of them. Changed under its lock.
    has_parted: AtomicBool,
    /// Somebody who asks for events was told of the end.
    has_reported_end: AtomicBool,
    /// What happens when somebody is called to whom there is no way.
    #[cfg(test)]
    between: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("fate", &*lock(&self.life)).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls of the user's that have not ended, each by whom it is for.
#[derive(Default)]
struct Calls {
    in_flight: Slab<Arc<WorkerLocation>>,
    /// The machine waits until there are none.
    is_draining: bool,
}

impl Calls {
    /// Whether the machine is to be told that there are none, which it is once.
    fn is_drained(&mut self) -> bool {
        self.in_flight.is_empty() && core::mem::take(&mut self.is_draining)
    }
}

/// Where a worker takes calls; `None`: what it wrote there is no host and port.
fn host_and_port(address: &str) -> Option<(Box<str>, u16)> {
    let endpoint = Endpoint::parse(address).ok()?;
    Some((endpoint.host.into(), endpoint.port?))
}

/// A call of the user's is under way as long as it lives.
#[derive(Debug)]
pub(super) struct ActiveCall {
    shared: Weak<Shared>,
    number: usize,
    to: Arc<WorkerLocation>,
}

impl CallGuard for ActiveCall {
    /// The machine hears of a failure that may tell of a death.
    fn ended(&self, result: &CallResult) {
        if let Err(error) = result
            && indicates_death(error)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.push_input(Input::Lost((*self.to).clone()));
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut calls = lock(&shared.calls);
        calls.in_flight.try_remove(self.number);
        let is_drained = calls.is_drained();
        drop(calls);
        if is_drained {
            shared.push_input(Input::Drained);
        }
    }
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: Clock::new(),
            inputs: Mailbox::default(),
            agent: Mutex::default(),
            client: OnceLock::new(),
            routes: Mutex::default(),
            answers: Mutex::default(),
            last_answer: AtomicU64::new(0),
            calls: Mutex::default(),
            life: Mutex::new(LifeStage::Joining),
            is_unwanted: AtomicBool::new(false),
            changed: Condvar::new(),
            events: Mailbox::default(),
            events_lost: AtomicU64::new(0),
            panic: OnceLock::new(),
            group_listener: Mutex::default(),
            has_parted: AtomicBool::new(false),
            has_reported_end: AtomicBool::new(false),
            #[cfg(test)]
            between: Mutex::default(),
        })
    }

    /// Has this happen between the look at the machine and the making of a way, once.
    #[cfg(test)]
    pub(super) fn set_between(&self, happen: impl FnOnce() + Send + 'static) {
        *lock(&self.between) = Some(Box::new(happen));
    }

    #[cfg(test)]
    fn fail_routes(&self) {
        let happen = lock(&self.between).take();
        if let Some(happen) = happen {
            happen();
        }
    }

    /// To whom there are ways.
    #[cfg(test)]
    pub(super) fn routes(&self) -> Vec<WorkerInfo> {
        lock(&self.routes).iter().map(|route| route.location.worker.clone()).collect()
    }

    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    /// From now on there is a machine, and somebody who makes its calls.
    pub(super) fn begin(&self, agent: Agent, client: RpcClient) {
        self.client.set((client, agent.me().address.clone())).ok();
        *lock(&self.agent) = Some(agent);
    }

    /// Something happened that the machine is to be told.
    pub(super) fn push_input(&self, input: Input) {
        self.inputs.put(input);
    }

    /// What it is to be told next; `None`: nothing came in time.
    pub(super) fn next_input(&self, timeout: Duration) -> Option<Input> {
        self.inputs.next(timeout)
    }

    pub(super) fn with_agent<T>(&self, look: impl FnOnce(&mut Agent) -> T) -> Option<T> {
        lock(&self.agent).as_mut().map(look)
    }

    pub(super) fn admit(&self, claimed: &WorkerInfo) -> Result<(), NotAdmitted> {
        self.with_agent(|agent| agent.admit(claimed)).unwrap_or(Ok(()))
    }

    /// A worker calls one of the library's own handlers.
    pub(super) fn called(&self, request: Request, responder: Responder) {
        let number = self.last_answer.fetch_add(1, Ordering::Relaxed) + 1;
        let mut answers = lock(&self.answers);
        if answers.is_over {
            drop(answers);
            return responder.decline(Status::Leaving, "");
        }
        answers.open.push((number, responder));
        drop(answers);
        let called = Called {
            from: request.caller,
            handler: (*request.handler).into(),
            payload: request.payload.into_vec().into(),
        };
        self.push_input(Input::Called(number, called));
    }

    fn responder(&self, number: u64) -> Option<Responder> {
        let open = &mut lock(&self.answers).open;
        let location = open.iter().position(|(known, _)| *known == number)?;
        Some(open.swap_remove(location).1)
    }

    pub(super) fn decline(&self, number: u64) {
        if let Some(responder) = self.responder(number) {
            responder.decline(Status::Leaving, "");
        }
    }

    pub(super) fn respond(&self, number: u64, answer: Result<Box<[u8]>, Box<str>>) {
        if let Some(responder) = self.responder(number) {
            match answer {
                Ok(bytes) => responder.answer(bytes.into_vec()),
                Err(message) => responder.fail(&message),
            };
        }
    }

    /// Nobody answers any more: whoever waits for it, or asks from now on, is told so.
    pub(super) fn decline_all(&self) {
        let over = Answers { is_over: true, ..Answers::default() };
        let answers = core::mem::replace(&mut *lock(&self.answers), over);
        answers.open.into_iter().for_each(|(_, responder)| responder.decline(Status::Leaving, ""));
    }

    fn known_route(&self, location: &WorkerLocation) -> Option<RpcPeer> {
        Some(lock(&self.routes).iter().find(|known| known.location == *location)?.peer.clone())
    }

    fn route(&self, location: &WorkerLocation) -> Result<RpcPeer, GroupCallError> {
        match self.known_route(location) {
            Some(peer) => Ok(peer),
            None => self.new_route(location),
        }
    }

    fn new_route(&self, location: &WorkerLocation) -> Result<RpcPeer, GroupCallError> {
        let worker = || location.worker.clone();
        let over = || GroupCallError::NotCallable(NotCallable::NoMember);
        let (client, local_address) = self.client.get().ok_or_else(over)?;
        let (host, port) = host_and_port(&location.address)
            .ok_or_else(|| GroupCallError::Address { worker: worker(), address: location.address.clone() })?;
        let peer = if location.address == *local_address {
            client.peer(&location.worker, &host, port)
        } else {
            client.peer_at(&location.worker, &host, port)
        };
        let system =
            |error: io::Error| GroupCallError::System { worker: worker(), message: error.to_string().into() };
        // Made under no lock, as ways go.
        let peer = peer.map_err(system)?;
        let mut routes = lock(&self.routes);
        if let Some(other) = routes.iter().find(|known| known.location == *location) {
            let other = other.peer.clone();
            drop(routes);
            return Ok(other);
        }
        routes.push(Route { location: location.clone(), peer: peer.clone() });
        Ok(peer)
    }

    /// Whom a call of the user's is for, and the mark that it is under way.
    fn mark(self: &Arc<Self>, callee: Callee<'_>) -> Result<ActiveCall, GroupCallError> {
        if let Some(message) = self.panic.get() {
            return Err(GroupCallError::Panicked { message: message.clone() });
        }
        let marked = self.with_agent(|agent| {
            let member = match callee {
                Callee::Name(name) => agent.callee(name),
                Callee::Id(id) => agent.callee_by_id(id),
            };
            let to = Arc::new(member?.location());
            // Before the machine does anything else: who leaves from now on waits for this call.
            let number = lock(&self.calls).in_flight.insert(Arc::clone(&to));
            Ok(ActiveCall { shared: Arc::downgrade(self), number, to })
        });
        Ok(marked.unwrap_or(Err(NotCallable::NoMember))?)
    }

    /// The way to a member, for a call of the user's, and the mark that it is under way.
    pub(super) fn route_to(
        self: &Arc<Self>,
        callee: Callee<'_>,
    ) -> Result<(RpcPeer, ActiveCall), GroupCallError> {
        loop {
            let mark = self.mark(callee)?;
            let to = &*mark.to;
            if let Some(peer) = self.known_route(to) {
                return Ok((peer, mark));
            }
            #[cfg(test)]
            self.fail_routes();
            let peer = self.new_route(to)?;
            // Who died or left meanwhile did so before there was this way to be ended with it.
            let is_it = |member: &Member| member.location() == *to;
            match self.with_agent(|agent| agent.callee(&to.worker.name).map(is_it)) {
                Some(Ok(true)) => return Ok((peer, mark)),
                Some(Err(NotCallable::Dead { why, .. })) => self.end_calls_to(to, &why),
                _ => self.part_with(to),
            }
        }
    }

    /// Makes a call for the machine, which hears what came of it.
    pub(super) fn call(self: &Arc<Self>, call: ControlCall) {
        let ControlCall { number, to, handler, payload, until } = call;
        let weak = Arc::downgrade(self);
        let on_answer = move |result: Result<Vec<u8>, NoAnswer>| {
            if let Some(shared) = weak.upgrade() {
                shared.push_input(Input::Ended(number, result.map(Vec::into_boxed_slice)));
            }
        };
        let peer = match self.route(&to) {
            Ok(peer) => peer,
            Err(error) => return on_answer(Err(NoAnswer::Unknown(error.to_string().into()))),
        };
        let wanted = Call::of(handler).with_timeout(until.since(self.clock.now()));
        let failed = Arc::downgrade(self);
        let location = to.clone();
        let callback = move |result: Result<Vec<u8>, CallError>| {
            if result.is_err()
                && let Some(shared) = failed.upgrade()
                && !shared.with_agent(|agent| agent.has_member_at(&location)).unwrap_or_default()
            {
                // Nobody else may ever call there. Where a member is, there may be calls under way, which end with it.
                shared.forget_route(&location);
            }
            on_answer(result.map_err(|error| no_answer(&error)));
        };
        if let Err(error) = peer.start_with(wanted, payload.into_vec(), callback) {
            self.push_input(Input::Ended(number, Err(no_answer(&error))));
        }
    }

    fn forget_route(&self, location: &WorkerLocation) -> Option<RpcPeer> {
        let mut routes = lock(&self.routes);
        let at = routes.iter().position(|known| known.location == *location)?;
        Some(routes.swap_remove(at).peer)
    }

    /// Forgets the way to a worker, and what there is of it elsewhere: calls that are under way keep their connection.
    fn forget_all_ways(&self, location: &WorkerLocation, forget: impl FnOnce(&RpcClient, &str, u16)) {
        let route = self.forget_route(location);
        if let (Some((client, _)), Some((host, port))) = (self.client.get(), host_and_port(&location.address))
        {
            forget(client, &host, port);
        }
        drop(route);
    }

    pub(super) fn end_calls_to(&self, location: &WorkerLocation, why: &str) {
        self.forget_all_ways(location, |client, host, port| {
            client.mark_dead(&location.worker, host, port, why)
        });
    }

    pub(super) fn part_with(&self, location: &WorkerLocation) {
        self.forget_all_ways(location, |client, host, port| client.part_with(&location.worker, host, port));
    }

    /// What the user has called so far ends, and the machine hears whom that was for.
    pub(super) fn cut_calls(&self, why: &str) {
        let busy: Vec<Arc<WorkerLocation>> =
            lock(&self.calls).in_flight.iter().map(|(_, to)| Arc::clone(to)).collect();
        self.push_input(Input::Cut(busy.iter().map(|to| to.worker.clone()).collect()));
        if let Some((client, _)) = self.client.get() {
            client.cut(why);
        }
    }

    /// All calls end, and there are no others.
    pub(super) fn end_calls(&self, why: &str) {
        let Some((client, _)) = self.client.get() else { return };
        match self.panic.get() {
            Some(message) => client.stop_in_panic(message),
            None => client.stop(why),
        }
    }

    /// Nobody is called any more: connections end.
    pub(super) fn close(&self) {
        self.forget_ways();
        // If it ends otherwise, the machine has said so before.
        self.end_calls(&AgentError::Abandoned.to_string());
    }

    pub(super) fn forget_ways(&self) {
        // What goes with a way may tell somebody who looks for another one.
        let routes = core::mem::take(&mut *lock(&self.routes));
        drop(routes);
    }

    /// The machine is told when no call of the user's is under way, be it now.
    pub(super) fn drain(&self) {
        let mut calls = lock(&self.calls);
        calls.is_draining = true;
        let is_drained = calls.is_drained();
        drop(calls);
        if is_drained {
            self.push_input(Input::Drained);
        }
    }

    /// Of too many events that nobody asked for, the first are lost.
    pub(super) fn happened(&self, event: GroupEvent) {
        // Under the lock, so that each hears in order.
        let group_listener = lock(&self.group_listener);
        if let Some(group_listener) = &*group_listener {
            self.events_lost.fetch_add(group_listener.changed(event), Ordering::Relaxed);
            return;
        }
        if self.events.put(event) > EVENTS_MAX && self.events.take().is_some() {
            self.events_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Somebody hears from now on what happens; first what nobody has asked for.
    pub(super) fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), AlreadyObserved> {
        let mut group_listener = lock(&self.group_listener);
        if group_listener.is_some() {
            return Err(AlreadyObserved);
        }
        while let Some(event) = self.events.take() {
            self.events_lost.fetch_add(listener.changed(event), Ordering::Relaxed);
        }
        if self.has_parted.load(Ordering::Relaxed) {
            listener.parted();
        }
        *group_listener = Some(listener);
        Ok(())
    }

    pub(super) fn listen_no_more(&self) {
        let group_listener = lock(&self.group_listener).take();
        // What it holds goes when the lock is free again.
        drop(group_listener);
    }

    /// The next event; `None`: there was none in time, or it is over, and there will be none.
    pub(super) fn next_event(&self, timeout: Duration) -> Option<GroupEvent> {
        self.events.next(timeout)
    }

    /// The same, and no longer than until this is cancelled.
    pub(super) fn next_event_unless(
        &self,
        timeout: Duration,
        cancellable: &Cancellable,
    ) -> Option<GroupEvent> {
        self.events.next_unless(timeout, || cancellable.is_cancelled())
    }

    /// Whoever waits for an event sees whether it was cancelled.
    pub(super) fn wake_for_events(&self) {
        self.events.wake();
    }

    /// Whether nobody was told of the end before.
    pub(super) fn take_end_once(&self) -> bool {
        !self.has_reported_end.swap(true, Ordering::Relaxed)
    }

    pub(super) fn events_lost(&self) -> u64 {
        self.events_lost.load(Ordering::Relaxed)
    }

    fn set_life(&self, life: LifeStage) {
        *lock(&self.life) = life;
        self.changed.notify_all();
    }

    pub(super) fn joined(&self) {
        self.set_life(LifeStage::Member);
    }

    /// A thread of the worker's panicked: the worker ends abruptly, and tells why.
    pub(super) fn panicked(&self, message: &str) {
        self.panic.get_or_init(|| message.into());
        self.push_input(Input::Abandon);
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.panic.get().is_some()
    }

    pub(super) fn over(&self, end: Result<(), AgentError>) {
        let end = match self.panic.get() {
            Some(message) => Err(AgentError::Panicked { message: message.clone() }),
            None => end,
        };
        // Who has left answers first what it was asked.
        let has_parted = !has_left(&end);
        self.set_life(LifeStage::Over(end));
        // Whoever waits for an event hears of it.
        self.events.close();
        if has_parted {
            self.parted();
        }
    }

    /// Whoever hears of events is told that there will be none, and nothing to be answered either.
    pub(super) fn parted(&self) {
        let group_listener = lock(&self.group_listener);
        self.has_parted.store(true, Ordering::Relaxed);
        if let Some(group_listener) = &*group_listener {
            group_listener.parted();
        }
    }

    /// Nobody waits for it to join any longer.
    pub(super) fn cancel_join(&self) {
        self.push_input(Input::Cancel);
        let life = lock(&self.life);
        self.is_unwanted.store(true, Ordering::Relaxed);
        drop(life);
        self.changed.notify_all();
    }

    /// Waits until the worker is a member, or is none; `None`: neither by then.
    pub(super) fn wait_joined(&self, until: Instant) -> Option<Result<(), AgentError>> {
        let is_unwanted = || self.is_unwanted.load(Ordering::Relaxed);
        let mut life = self.wait(until, |life| matches!(life, LifeStage::Joining) && !is_unwanted());
        if let (LifeStage::Joining, true) = (&life, is_unwanted()) {
            let until = until.min(self.clock.now() + TAKING_BACK_TIMEOUT);
            life = self.wait(until, |life| matches!(life, LifeStage::Joining));
        }
        match life {
            LifeStage::Joining if is_unwanted() => Some(Err(MembershipError::Cancelled.into())),
            LifeStage::Joining => None,
            LifeStage::Member => Some(Ok(())),
            LifeStage::Over(end) => Some(end),
        }
    }

    /// Waits until the worker is not in a group any more.
    pub(super) fn wait_over(&self, until: Instant) -> Option<Result<(), AgentError>> {
        match self.wait(until, |life| !matches!(life, LifeStage::Over(_))) {
            LifeStage::Over(end) => Some(end),
            _ => None,
        }
    }

    fn wait(&self, until: Instant, continues_in: impl Fn(&LifeStage) -> bool) -> LifeStage {
        let timeout = until.since(self.clock.now());
        let waited = self.changed.wait_timeout_while(lock(&self.life), timeout, |life| continues_in(life));
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{CallFailure, ConnectionError};

    #[test]
    fn the_machine_hears_once_that_no_call_is_under_way() {
        let shared = Shared::new();
        let to = Arc::new(WorkerLocation {
            worker: WorkerInfo { name: "b".parse().expect("a name"), id: 1 },
            address: "h:1".into(),
        });
        let mark = || {
            let number = lock(&shared.calls).in_flight.insert(Arc::clone(&to));
            ActiveCall { shared: Arc::downgrade(&shared), number, to: Arc::clone(&to) }
        };
        let last_received_at =
            || core::iter::from_fn(|| shared.next_input(Duration::ZERO)).collect::<Vec<Input>>();
        drop(mark());
        assert_eq!(last_received_at(), [], "it has not asked");
        let marks = [mark(), mark()];
        shared.drain();
        let [first, last] = marks;
        drop(first);
        assert_eq!(last_received_at(), []);
        shared.cut_calls("its time is up");
        assert_eq!(last_received_at(), [Input::Cut([to.worker.clone()].to_vec())]);
        drop(last);
        drop(mark());
        assert_eq!(last_received_at(), [Input::Drained]);
        shared.drain();
        assert_eq!(last_received_at(), [Input::Drained], "there are none");
    }

    #[test]
    fn the_machine_hears_of_failures_that_may_tell_of_deaths_and_of_no_others() {
        let shared = Shared::new();
        let worker = WorkerInfo { name: "b".parse().expect("a name"), id: 1 };
        let to = WorkerLocation { worker: worker.clone(), address: "h:1".into() };
        let mark = ActiveCall { shared: Arc::downgrade(&shared), number: 0, to: Arc::new(to.clone()) };
        let failed = CallFailure::Remote { status: Status::Failed, message: "no luck".into() };
        let lost = CallFailure::ConnectionLost(ConnectionError::Lost("reset".into()));
        for result in [Ok(Vec::new()), Err(failed), Err(lost)] {
            mark.ended(&result.map_err(|why| why.of("f", &worker)));
        }
        assert_eq!(shared.next_input(Duration::ZERO), Some(Input::Lost(to)));
        assert_eq!(shared.next_input(Duration::ZERO), None);
    }
}
