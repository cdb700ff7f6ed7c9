//! State that the threads of one worker share: state machine, connections, and waiting callers.

use super::life::{Life, LifeStage};
use super::{AlreadyObserved, Listener, next_unless};
use crate::agent::{Agent, Called, ControlCall, GroupEvent, Input, NotCallable, indicates_death, no_answer};
use crate::connection::{CallError, Refusal, Status};
use crate::driver::calls::calling::{Call, CallGuard, CallResult, RpcClient, RpcPeer};
use crate::driver::calls::handling::{Request, Responder};
use crate::membership::Member;
use crate::membership::change::WorkerLocation;
use crate::membership::changing::NoAnswer;
use crate::membership::error::{MembershipError, has_left};
use crate::name::WorkerInfo;
use alloc::sync::Weak;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rendezvous_core::driver::channel::{Receiver, Sender, bounded, unbounded};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::error::Span;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::rendezvous::parse::Endpoint;
use slab::Slab;

/// Maximum number of events that are kept until they are taken.
const EVENTS_MAX: usize = 4096;

/// Callee of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callee<'a> {
    /// The worker with this name.
    Name(&'a str),
    /// The worker with this number.
    Id(u16),
}

/// Owned form of [`Callee`], for messages about the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalleeName {
    /// The worker with this name.
    #[error("{0}")]
    Name(Box<str>),
    /// The worker with this number.
    #[error("id {0}")]
    Id(u16),
}

impl CalleeName {
    /// Returns the borrowed form.
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

/// Error of a call to a worker of the group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupCallError {
    /// The worker cannot be called.
    #[error(transparent)]
    NotCallable(#[from] NotCallable),
    /// The call was not made, or failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// This backend cannot call the worker's address.
    #[error("the address of {worker} is not a host and port: {address}")]
    Address {
        /// The worker.
        worker: WorkerInfo,
        /// Its address.
        address: Box<str>,
    },
    /// A thread of this worker has panicked, and it is not a member any more.
    #[error("this worker ended: {message}")]
    Panicked {
        /// Name of the thread, and message of the panic.
        message: Box<str>,
    },
    /// The system has no descriptors left.
    #[error("no connection to {worker}: {message}")]
    System {
        /// The worker.
        worker: WorkerInfo,
        /// Message of the system.
        message: Box<str>,
    },
    /// A custom backend failed the call.
    #[error("{call}: {message}")]
    Foreign {
        /// Handler and callee.
        call: Box<str>,
        /// Status code of the backend.
        status: i32,
        /// Message of the backend.
        message: Box<str>,
        /// Message of the handler, if it failed.
        cause: Box<str>,
    },
    /// The caller cancelled a call of a custom backend.
    #[error("{call}: it was cancelled")]
    Cancelled {
        /// Handler and callee.
        call: Box<str>,
    },
    /// A custom backend did not respond to a call in time.
    #[error("{call}: no answer in {}", Span(*.elapsed))]
    Late {
        /// Handler and callee.
        call: Box<str>,
        /// Time for which the caller waited.
        elapsed: Duration,
    },
    /// The result was returned before, or was lost when a thread of the worker panicked.
    #[error("{call}: it has no result any more: that was returned before, or lost by a panic")]
    NoResult {
        /// Handler and callee.
        call: Box<str>,
    },
    /// The thread may not wait for the call: it is in an inline handler or in a callback.
    #[error("{call}: it cannot be awaited in an inline handler or in a callback")]
    Reentrant {
        /// Handler and callee.
        call: Box<str>,
    },
    /// An event loop has too many calls.
    #[error("{calls_max} calls of this worker are pending or have results that were not taken")]
    Untaken {
        /// The limit.
        calls_max: usize,
    },
}

/// Connection to the worker at one address.
struct Route {
    location: WorkerLocation,
    peer: RpcPeer,
}

#[derive(Default)]
struct Answers {
    open: Vec<(u64, Responder)>,
    /// The state machine has ended: no call is responded to any more.
    is_over: bool,
}

pub(super) struct GroupShared {
    clock: Clock,
    inputs: (Sender<Input>, Receiver<Input>),
    /// Wakes the thread that drives the state machine.
    wakes: (Sender<()>, Receiver<()>),
    /// `None` until the worker's address is known.
    agent: Mutex<Option<Agent>>,
    client: OnceLock<RpcClient>,
    routes: Mutex<Vec<Route>>,
    /// Calls of the library's own handlers whose response is pending.
    answers: Mutex<Answers>,
    last_answer: AtomicU64,
    calls: Mutex<Calls>,
    life: Life,
    /// `None` after the end: no more events are added.
    event_sender: Mutex<Option<Sender<GroupEvent>>>,
    events: Receiver<GroupEvent>,
    events_lost: AtomicU64,
    /// Name of the thread that panicked, and message of the panic.
    panic: OnceLock<Box<str>>,
    /// Receives the events instead of `events`.
    group_listener: Mutex<Option<Arc<dyn Listener>>>,
    /// The listener gets no more events. Changed under its lock.
    has_parted: AtomicBool,
    /// The end was returned to a caller that asks for events.
    has_reported_end: AtomicBool,
    /// Hook for the creation of a route.
    #[cfg(test)]
    between: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

opaque_debug!(GroupShared);

/// Pending calls of the user, each with its callee.
#[derive(Default)]
struct Calls {
    in_flight: Slab<Arc<WorkerLocation>>,
    /// The state machine waits until there are none.
    is_draining: bool,
}

impl Calls {
    /// Whether the state machine is to be notified that there are none, which is done once.
    fn is_drained(&mut self) -> bool {
        self.in_flight.is_empty() && core::mem::take(&mut self.is_draining)
    }
}

/// Parses an address; `None` if it is not a host and port.
fn host_and_port(address: &str) -> Option<(Box<str>, u16)> {
    let endpoint = Endpoint::parse(address).ok()?;
    Some((endpoint.host.into(), endpoint.port?))
}

/// Guard of a pending call of the user.
#[derive(Debug)]
pub(super) struct ActiveCall {
    shared: Weak<GroupShared>,
    number: usize,
    to: Arc<WorkerLocation>,
}

impl CallGuard for ActiveCall {
    /// Notifies the state machine of a failure that may mean a death.
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
        let mut calls = shared.calls.locked();
        calls.in_flight.try_remove(self.number);
        let is_drained = calls.is_drained();
        drop(calls);
        if is_drained {
            shared.push_input(Input::Drained);
        }
    }
}

impl GroupShared {
    pub(super) fn new() -> Arc<Self> {
        let (event_sender, events) = unbounded();
        let clock = Clock::new();
        Arc::new(Self {
            clock,
            inputs: unbounded(),
            wakes: bounded(1),
            agent: Mutex::default(),
            client: OnceLock::new(),
            routes: Mutex::default(),
            answers: Mutex::default(),
            last_answer: AtomicU64::new(0),
            calls: Mutex::default(),
            life: Life::new(clock),
            event_sender: Mutex::new(Some(event_sender)),
            events,
            events_lost: AtomicU64::new(0),
            panic: OnceLock::new(),
            group_listener: Mutex::default(),
            has_parted: AtomicBool::new(false),
            has_reported_end: AtomicBool::new(false),
            #[cfg(test)]
            between: Mutex::default(),
        })
    }

    /// Runs this once between the query of the state machine and the creation of a route.
    #[cfg(test)]
    pub(super) fn set_between(&self, happen: impl FnOnce() + Send + 'static) {
        *self.between.locked() = Some(Box::new(happen));
    }

    #[cfg(test)]
    fn fail_routes(&self) {
        let happen = self.between.locked().take();
        if let Some(happen) = happen {
            happen();
        }
    }

    /// Workers to which there are routes.
    #[cfg(test)]
    pub(super) fn routes(&self) -> Vec<WorkerInfo> {
        self.routes.locked().iter().map(|route| route.location.worker.clone()).collect()
    }

    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Sets the state machine and the client that makes its calls.
    pub(super) fn begin(&self, agent: Agent, client: RpcClient) {
        self.client.set(client).ok();
        *self.agent.locked() = Some(agent);
    }

    /// Queues an input of the state machine.
    pub(super) fn push_input(&self, input: Input) {
        // The receiver lives as long as this.
        self.inputs.0.send(input).ok();
    }

    /// Returns a channel that wakes the thread that drives the state machine.
    pub(super) fn waker(&self) -> Sender<()> {
        self.wakes.0.clone()
    }

    /// Returns the next input of the state machine, or `None` after `timeout` or when the thread is woken.
    pub(super) fn next_input(&self, timeout: Duration) -> Option<Input> {
        self.inputs.1.recv_unless(&self.wakes.1, timeout)
    }

    pub(super) fn with_agent<T>(&self, look: impl FnOnce(&mut Agent) -> T) -> Option<T> {
        self.agent.locked().as_mut().map(look)
    }

    pub(super) fn admit(&self, claimed: &WorkerInfo) -> Result<(), (Refusal, Box<str>)> {
        self.with_agent(|agent| agent.admit(claimed)).unwrap_or(Ok(()))
    }

    /// Processes a call of one of the library's own handlers.
    pub(super) fn called(&self, request: Request, responder: Responder) {
        let number = self.last_answer.fetch_add(1, Ordering::Relaxed) + 1;
        let mut answers = self.answers.locked();
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
        let open = &mut self.answers.locked().open;
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

    /// Rejects all calls of the library's own handlers, the pending ones and later ones.
    pub(super) fn decline_all(&self) {
        let over = Answers { is_over: true, ..Answers::default() };
        let answers = core::mem::replace(&mut *self.answers.locked(), over);
        answers.open.into_iter().for_each(|(_, responder)| responder.decline(Status::Leaving, ""));
    }

    fn known_route(&self, location: &WorkerLocation) -> Option<RpcPeer> {
        Some(self.routes.locked().iter().find(|known| known.location == *location)?.peer.clone())
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
        let client = self.client.get().ok_or_else(over)?;
        let (host, port) = host_and_port(&location.address)
            .ok_or_else(|| GroupCallError::Address { worker: worker(), address: location.address.clone() })?;
        let system =
            |error: io::Error| GroupCallError::System { worker: worker(), message: error.to_string().into() };
        // Created under no lock, since dropping a route may need one.
        let peer = client.peer(&location.worker, &host, port).map_err(system)?;
        let mut routes = self.routes.locked();
        if let Some(other) = routes.iter().find(|known| known.location == *location) {
            let other = other.peer.clone();
            drop(routes);
            return Ok(other);
        }
        routes.push(Route { location: location.clone(), peer: peer.clone() });
        Ok(peer)
    }

    /// Resolves the callee of a user's call, and registers the call as pending.
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
            // Registered while the state machine is locked: a leave that starts later waits for this call.
            let number = self.calls.locked().in_flight.insert(Arc::clone(&to));
            Ok(ActiveCall { shared: Arc::downgrade(self), number, to })
        });
        Ok(marked.unwrap_or(Err(NotCallable::NoMember))?)
    }

    /// Returns the connection to a member for a user's call, and the guard of the call.
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
            // If the worker died or left meanwhile, the route was created too late to be ended with it.
            let is_it = |member: &Member| member.location() == *to;
            match self.with_agent(|agent| agent.callee(&to.worker.name).map(is_it)) {
                Some(Ok(true)) => return Ok((peer, mark)),
                Some(Err(NotCallable::Dead { why, .. })) => self.end_calls_to(to, &why),
                _ => self.part_with(to),
            }
        }
    }

    /// Makes a call for the state machine, which gets the result as an input.
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
                // This address may never be called again. The address of a member is kept, since it may have pending
                // calls, which end with the route.
                shared.forget_route(&location);
            }
            on_answer(result.map_err(|error| no_answer(&error)));
        };
        if let Err(error) = peer.start_with(wanted, payload.into_vec(), callback) {
            self.push_input(Input::Ended(number, Err(no_answer(&error))));
        }
    }

    fn forget_route(&self, location: &WorkerLocation) -> Option<RpcPeer> {
        let mut routes = self.routes.locked();
        let at = routes.iter().position(|known| known.location == *location)?;
        Some(routes.swap_remove(at).peer)
    }

    /// Removes the route to a worker, and its connection: pending calls keep the connection.
    fn forget_connection(&self, location: &WorkerLocation, forget: impl FnOnce(&RpcClient, &str, u16)) {
        let route = self.forget_route(location);
        if let (Some(client), Some((host, port))) = (self.client.get(), host_and_port(&location.address)) {
            forget(client, &host, port);
        }
        drop(route);
    }

    pub(super) fn end_calls_to(&self, location: &WorkerLocation, why: &str) {
        self.forget_connection(location, |client, host, port| {
            client.mark_dead(&location.worker, host, port, why)
        });
    }

    pub(super) fn part_with(&self, location: &WorkerLocation) {
        self.forget_connection(location, |client, host, port| client.part_with(&location.worker, host, port));
    }

    /// Fails the pending calls of the user, and reports their callees to the state machine.
    pub(super) fn cut_calls(&self, why: &str) {
        let busy: Vec<Arc<WorkerLocation>> =
            self.calls.locked().in_flight.iter().map(|(_, to)| Arc::clone(to)).collect();
        self.push_input(Input::Cut(busy.iter().map(|to| to.worker.clone()).collect()));
        if let Some(client) = self.client.get() {
            client.cut(why);
        }
    }

    /// Fails all calls, and accepts no further ones.
    pub(super) fn end_calls(&self, why: &str) {
        let Some(client) = self.client.get() else { return };
        match self.panic.get() {
            Some(message) => client.stop_in_panic(message),
            None => client.stop(why),
        }
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.forget_routes();
        // If the reason is another one, the state machine has ended the calls before.
        self.end_calls(&MembershipError::Abandoned.to_string());
    }

    pub(super) fn forget_routes(&self) {
        // Dropping a route may run callbacks that look for another one.
        let routes = core::mem::take(&mut *self.routes.locked());
        drop(routes);
    }

    /// Notifies the state machine when no call of the user is pending, possibly at once.
    pub(super) fn drain(&self) {
        let mut calls = self.calls.locked();
        calls.is_draining = true;
        let is_drained = calls.is_drained();
        drop(calls);
        if is_drained {
            self.push_input(Input::Drained);
        }
    }

    /// Reports an event. If too many have not been taken, the oldest are dropped.
    pub(super) fn happened(&self, event: GroupEvent) {
        // Under the lock, so that the listener gets the events in order.
        let group_listener = self.group_listener.locked();
        if let Some(group_listener) = &*group_listener {
            self.events_lost.fetch_add(group_listener.changed(event), Ordering::Relaxed);
            return;
        }
        if let Some(sender) = &*self.event_sender.locked() {
            sender.send(event).ok();
        }
        if self.events.len() > EVENTS_MAX && self.events.try_recv().is_ok() {
            self.events_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the listener, and passes it the events that have not been taken.
    pub(super) fn listen(&self, listener: Arc<dyn Listener>) -> Result<(), AlreadyObserved> {
        let mut group_listener = self.group_listener.locked();
        if group_listener.is_some() {
            return Err(AlreadyObserved);
        }
        while let Ok(event) = self.events.try_recv() {
            self.events_lost.fetch_add(listener.changed(event), Ordering::Relaxed);
        }
        if self.has_parted.load(Ordering::Relaxed) {
            listener.parted();
        }
        *group_listener = Some(listener);
        Ok(())
    }

    pub(super) fn listen_no_more(&self) {
        let group_listener = self.group_listener.locked().take();
        // The listener's state is dropped after the lock is released.
        drop(group_listener);
    }

    /// Returns the next event, or `None` after `timeout`, after the end, or after a cancellation.
    pub(super) fn next_event(&self, timeout: Duration, token: &CancelToken) -> Option<GroupEvent> {
        next_unless(&self.events, timeout, token)
    }

    /// Returns true at the first call, for callers that return the end only once.
    pub(super) fn take_end_once(&self) -> bool {
        !self.has_reported_end.swap(true, Ordering::Relaxed)
    }

    pub(super) fn events_lost(&self) -> u64 {
        self.events_lost.load(Ordering::Relaxed)
    }

    pub(super) fn joined(&self) {
        self.life.set(LifeStage::Member);
    }

    /// A thread of the worker has panicked: the worker ends abruptly with this reason.
    pub(super) fn panicked(&self, message: &str) {
        self.panic.get_or_init(|| message.into());
        self.push_input(Input::Abandon);
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.panic.get().is_some()
    }

    pub(super) fn over(&self, end: Result<(), MembershipError>) {
        let end = match self.panic.get() {
            Some(message) => Err(MembershipError::Panicked { message: message.clone() }),
            None => end,
        };
        // A worker that has left completes its pending requests first.
        let has_parted = !has_left(&end);
        self.life.set(LifeStage::Over(end));
        // Wakes the threads that wait for an event.
        self.event_sender.locked().take();
        if has_parted {
            self.parted();
        }
    }

    /// Notifies the listener that there are no more events and requests.
    pub(super) fn parted(&self) {
        let group_listener = self.group_listener.locked();
        self.has_parted.store(true, Ordering::Relaxed);
        if let Some(group_listener) = &*group_listener {
            group_listener.parted();
        }
    }

    /// Cancels the join.
    pub(super) fn cancel_join(&self) {
        self.push_input(Input::Cancel);
        self.life.cancel_join();
    }

    /// Waits until the worker is a member or has failed; `None` at the deadline.
    pub(super) fn wait_joined(&self, until: Instant) -> Option<Result<(), MembershipError>> {
        self.life.wait_joined(until)
    }

    /// Waits until the worker is not in a group any more; `None` at the deadline.
    pub(super) fn wait_over(&self, until: Instant) -> Option<Result<(), MembershipError>> {
        self.life.wait_over(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{CallFailure, ConnectionError};

    #[test]
    fn the_machine_hears_once_that_no_call_is_under_way() {
        let shared = GroupShared::new();
        let to = Arc::new(WorkerLocation {
            worker: WorkerInfo { name: "b".parse().expect("a name"), id: 1 },
            address: "h:1".into(),
        });
        let mark = || {
            let number = shared.calls.locked().in_flight.insert(Arc::clone(&to));
            ActiveCall { shared: Arc::downgrade(&shared), number, to: Arc::clone(&to) }
        };
        let inputs = || core::iter::from_fn(|| shared.next_input(Duration::ZERO)).collect::<Vec<Input>>();
        drop(mark());
        assert_eq!(inputs(), [], "it has not asked");
        let marks = [mark(), mark()];
        shared.drain();
        let [first, last] = marks;
        drop(first);
        assert_eq!(inputs(), []);
        shared.cut_calls("its time is up");
        assert_eq!(inputs(), [Input::Cut([to.worker.clone()].to_vec())]);
        drop(last);
        drop(mark());
        assert_eq!(inputs(), [Input::Drained]);
        shared.drain();
        assert_eq!(inputs(), [Input::Drained], "there are none");
    }

    #[test]
    fn the_machine_hears_of_failures_that_may_tell_of_deaths_and_of_no_others() {
        let shared = GroupShared::new();
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
