//! Sessions and nodes of a loop: their drivers, and the results of their calls.

use super::loop_store::LoopStore;
use super::member::{Member, MemberContext, MemberEvents, MemberId, MemberStore};
use super::{CallOver, Loop, LoopEvent, SubmitError, SubmitResult, names_of};
use crate::driver::event_loop::Ready;
use crate::driver::native_client::calls::{check, settle};
use crate::driver::native_client::ops::Listing;
use crate::driver::native_client::session_driver::{EncodedRequest, SessionDriver, SessionOutput};
use crate::driver::native_client::{
    Change, Loss, NativeClientOptions, NativeError, NativeRequest, NativeResponse, NodeEvent, OwnedFrame,
    PendingRequest, WatchError,
};
use crate::driver::prelude::*;
use crate::driver::random::random_seed;
use crate::driver::rendezvous::{
    HandlerError, LastRounds, entry_of, full_host_name, host_name, labels_of, session_options, with_units,
};
use crate::driver::socket::endpoint_text;
use crate::driver::store::{Timeout, not_native};
use crate::driver::take::{List, strip_scope};
use crate::error::Operation;
use crate::node::multi_client::Answer;
use crate::node::native_client::Ending;
use crate::ordered::Map;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::store::call::{Call, CallId, Outcome, WaitMode};
use crate::store::op::{Key, Request};
use crate::time::Poller;
use crate::wire::native::{ServerFrame, Why};

/// Event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session is open, for the first time or again after a lost connection.
    Open,
    /// A call is over that was not made on the session's store.
    Completed {
        /// Number of the call.
        call: CallId,
        /// Requested operation.
        operation: Operation,
        /// First key, without the scope.
        key: Option<Vec<u8>>,
        /// Time from its beginning to its end.
        elapsed: Duration,
        /// Response to the call.
        result: Result<NativeResponse, NativeError>,
    },
    /// A watch reports a change.
    Changed(CallId, Change),
    /// A watch is over.
    WatchOver(CallId, WatchError),
    /// A lease has ended by itself, and its keys are removed.
    LeaseOver {
        /// Call that granted the lease.
        call: CallId,
        /// Number of the lease at the server.
        lease: u64,
        /// Reason for its end.
        why: Why,
    },
    /// The node has an event.
    Node(NodeEvent),
    /// The session is over; no event follows. `Ok`: this side closed it.
    Over(Result<(), NativeError>),
}

/// Listing of keys in pages.
#[derive(Debug)]
struct Listed {
    call: CallId,
    deadline: Instant,
    listing: Listing,
    keys: List,
}

/// One session.
#[derive(Debug)]
pub(super) struct LoopSession {
    id: MemberId,
    began: Instant,
    pub(super) peer: Box<str>,
    pub(super) options: NativeClientOptions,
    pub(super) driver: SessionDriver,
    /// Settings of a node that was added with [`Loop::add_node`](super::Loop::add_node), its address for the other
    /// nodes, and the last rounds of the loop's nodes.
    pub(super) settings: Option<(RdzvSettings, Box<str>, Arc<LastRounds>)>,
    /// Calls in progress by their requests. A call on the session's store that is one request needs no entry.
    calls: Map<u64, LoopCall>,
}

/// Call of a session that is in progress.
#[derive(Debug)]
enum LoopCall {
    /// A request awaits its response.
    Request(PendingRequest),
    /// The next page of a listing was requested.
    Listing(Listed),
    /// A watch has begun.
    Watch {
        /// Time at which the request began.
        began: Instant,
        /// Request that began it.
        pending: PendingRequest,
        /// Size in bytes of the changes that were not taken yet.
        untaken: usize,
    },
}

const LIST_KEYS: Call<'static> = Call::Store(Request::ListKeys, WaitMode::Wait);

impl LoopSession {
    /// Makes a session, which starts to connect when it is executed.
    pub(super) fn new(
        context: &MemberContext,
        (host, port): (&str, u16),
        options: NativeClientOptions,
    ) -> Self {
        let (id, clock, seed) = (context.id, context.clock, random_seed());
        let watch = (id.token(0), Poller::Program);
        let driver = SessionDriver::new((host, port), &options, (clock, seed), watch);
        let peer = endpoint_text(host, port).into();
        Self { id, began: clock.now(), peer, options, driver, settings: None, calls: Map::new() }
    }

    /// Submits a request.
    pub(super) fn request(
        &mut self,
        request: &NativeRequest<'_>,
        timeout: Timeout,
        events: &mut MemberEvents<'_>,
    ) -> SubmitResult {
        let Self { options, peer, .. } = self;
        let budget = options.timeouts.wait_budget(timeout);
        let encoded = request.encode((&options.scope, options, peer), budget);
        let (pending, encoded) = encoded.map_err(CallError::from)?;
        let id = match self.driver.begin(encoded) {
            Ok(id) => id,
            Err(loss) => return Err(CallError::from(pending.error(loss, &options.scope, peer)).into()),
        };
        self.calls.insert(id, LoopCall::Request(pending));
        if matches!(request, NativeRequest::Join(..)) {
            let session = self.id;
            let is_earlier = |event: &LoopEvent| matches!(event, LoopEvent::Session(of, SessionEvent::Node(_)) if *of == session);
            events.queue.retain(|event| !is_earlier(event));
        }
        self.execute(events);
        Ok(self.id.call(id))
    }

    /// Joins the next round, if the session has settings of a node.
    pub(super) fn next_round(&mut self, events: &mut MemberEvents<'_>) -> Option<SubmitResult> {
        let (settings, address, rounds) = self.settings.take()?;
        let (labels, node) = (labels_of(&settings), self.options.node.clone());
        let join_terms = (settings.timeouts.join, rounds.next(&settings));
        let (entry, role) = entry_of(&settings, (&node, &address), &labels, join_terms);
        let begun = self.request(&NativeRequest::Join(entry, role), Timeout::Default, events);
        self.settings = Some((settings, address, rounds));
        Some(begun)
    }

    /// Executes all pending work and queues the events.
    pub(super) fn execute(&mut self, events: &mut MemberEvents<'_>) {
        loop {
            self.driver.execute(events.event_loop);
            let Some(output) = self.driver.next_output() else { return };
            self.handle_event(output, events);
            while let Some(output) = self.driver.next_output() {
                self.handle_event(output, events);
            }
        }
    }

    fn handle_event(&mut self, output: SessionOutput, events: &mut MemberEvents<'_>) {
        let now = events.now();
        let event = match output {
            SessionOutput::Open => SessionEvent::Open,
            SessionOutput::Ended(id, encoded, answer) => {
                return events.queue.extend(self.ended(now, id, &encoded, answer));
            }
            SessionOutput::Pushed(push) => return self.pushed(&push, events),
            SessionOutput::Node(event) => SessionEvent::Node(event),
            SessionOutput::Over(ending) => SessionEvent::Over(self.over(now, ending)),
        };
        events.queue.push_back(LoopEvent::Session(self.id, event));
    }

    fn pushed(&mut self, push: &OwnedFrame, events: &mut MemberEvents<'_>) {
        let (call, limits) = (self.id.call(push.id), *self.driver.limits());
        let event = match push.frame(&limits) {
            Some(ServerFrame::LeaseOver { lease, why }) => SessionEvent::LeaseOver { call, lease, why },
            // Changes that were under way when the watch was cancelled are dropped.
            Some(ServerFrame::Changed { changes }) => {
                let Some(LoopCall::Watch { pending, untaken, .. }) = self.calls.get_mut(push.id) else {
                    return;
                };
                if *untaken < self.options.pushed_bytes_max {
                    let changes = changes.iter().map(|change| Change::of(&change, &self.options.scope));
                    let output = changes.map(|change| {
                        *untaken += change.bytes();
                        LoopEvent::Session(self.id, SessionEvent::Changed(call, change))
                    });
                    return events.queue.extend(output);
                }
                let overrun = WatchError::overrun(watched_key(pending, &self.options.scope), &self.peer);
                self.calls.remove(push.id);
                self.driver.forget(push.id);
                SessionEvent::WatchOver(call, overrun)
            }
            Some(ServerFrame::WatchOver { why, oldest }) => {
                let Some(LoopCall::Watch { began, pending, .. }) = self.calls.remove(push.id) else {
                    return;
                };
                let key = watched_key(&pending, &self.options.scope);
                let elapsed = events.now().since(began);
                SessionEvent::WatchOver(call, WatchError::of((why, oldest), elapsed, key, &self.peer))
            }
            // A message of a later version.
            _ => return,
        };
        events.queue.push_back(LoopEvent::Session(self.id, event));
    }

    /// Accounts for a change that the program has taken.
    pub(super) fn taken(&mut self, call: CallId, change: &Change) {
        if let Some(LoopCall::Watch { untaken, .. }) = self.calls.get_mut(self.id.number_of(call)) {
            *untaken -= change.bytes();
        }
    }

    fn over(&self, now: Instant, ending: Ending) -> Result<(), NativeError> {
        let operation = match ending {
            Ending::Left => return Ok(()),
            Ending::Dialling(_) => Operation::Connect,
            Ending::Session(..) => Operation::Session,
        };
        let mut loss = Loss::of_ending(ending);
        loss.failure.elapsed = now.since(self.began);
        Err(loss.into_error(operation, (None, 0), &self.peer))
    }

    /// Handles the end of a request and returns the event for its caller.
    fn ended(
        &mut self,
        now: Instant,
        request: u64,
        encoded: &EncodedRequest,
        answer: Result<OwnedFrame, Loss>,
    ) -> Option<LoopEvent> {
        let (limits, call, elapsed) =
            (*self.driver.limits(), self.id.call(request), encoded.since_begun(now));
        let pending = match self.calls.remove(request) {
            Some(LoopCall::Request(pending) | LoopCall::Watch { pending, .. }) => pending,
            Some(LoopCall::Listing(listed)) => return self.page_ended(now, listed, encoded, answer),
            None => {
                let (of_store, mut values) = (encoded.call()?, List::default());
                let outcome = settle(&of_store, answer, &limits, &self.options.scope, &mut values);
                return Some(self.call_ended(call, &of_store, elapsed, outcome, values));
            }
        };
        let (operation, scope, peer) = (pending.operation, &*self.options.scope, &*self.peer);
        let result = pending.settle(answer, elapsed, &limits, (scope, peer));
        if let (Ok(NativeResponse::Joined(joined)), Some((settings, _, rounds))) = (&result, &self.settings) {
            rounds.entered(settings, joined.round);
        }
        let key = match &result {
            // For a transaction, the key that its error names.
            Err(error) if operation == Operation::Txn => {
                let text = error.fault().map(|fault| &*fault.text).filter(|key| !key.is_empty());
                text.map(|key| key.strip_prefix(scope).unwrap_or(key))
            }
            _ => pending.first_key(),
        };
        let key = key.map(<[u8]>::to_vec);
        if let Ok(NativeResponse::Watching(_)) = result {
            self.calls.insert(request, LoopCall::Watch { began: encoded.began(), pending, untaken: 0 });
        }
        let event = SessionEvent::Completed { call, operation, key, elapsed, result };
        Some(LoopEvent::Session(self.id, event))
    }

    /// Handles the end of the request for a page of keys.
    fn page_ended(
        &mut self,
        now: Instant,
        mut listed: Listed,
        encoded: &EncodedRequest,
        answer: Result<OwnedFrame, Loss>,
    ) -> Option<LoopEvent> {
        let (id, limits) = (listed.call, *self.driver.limits());
        let page = answer.and_then(|answer| listed.listing.take_page(&answer, &limits, &mut listed.keys));
        let outcome = match page {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => match self.driver.begin(listed.listing.page(listed.deadline.since(now))) {
                Ok(request) => {
                    self.calls.insert(request, LoopCall::Listing(listed));
                    return None;
                }
                Err(loss) => Err(loss),
            },
            Err(loss) => Err(loss),
        };
        strip_scope(&mut listed.keys.0, &self.options.scope);
        Some(self.call_ended(id, &LIST_KEYS, encoded.since_begun(now), outcome, listed.keys))
    }

    /// Makes the event for the end of a call on the session's store.
    fn call_ended(
        &self,
        id: CallId,
        call: &Call<'_>,
        elapsed: Duration,
        outcome: Result<Outcome, Loss>,
        values: List,
    ) -> LoopEvent {
        let outcome = outcome.and_then(|outcome| match outcome.failure(call.operation()) {
            None => Ok(outcome),
            Some(failure) => Err(Loss::of(failure)),
        });
        let (keys, result) = match outcome {
            Ok(outcome) => (Vec::new(), Ok(Answer { outcome, values: values.0 })),
            Err(mut loss) => {
                loss.failure.elapsed = elapsed;
                let error = CallError::from(loss.into_error(call.operation(), call.keys(), &self.peer));
                let scope = &*self.options.scope;
                (names_of(call, scope), Err(error.without_scope(scope)))
            }
        };
        let operation = call.operation();
        LoopEvent::Store(CallOver { store: self.id, call: id, operation, keys, result })
    }
}

impl Member for LoopSession {
    fn wake(&mut self, _: Instant, _: &mut MemberEvents<'_>) {
        self.driver.wake();
    }

    fn ready(&mut self, _: Instant, ready: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        self.driver.ready(ready, events.buffer);
        self.execute(events);
        Ok(())
    }

    fn poll(&mut self, now: Instant, events: &mut MemberEvents<'_>) {
        if self.driver.is_due(now) {
            self.driver.step(now);
            self.execute(events);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.driver.poll_timeout()
    }

    fn store(&self) -> Option<MemberStore<'_>> {
        let Self { options, driver, .. } = self;
        Some(MemberStore { scope: &options.scope, timeouts: options.timeouts, pending: driver.pending() })
    }

    fn submit(&mut self, call: &Call<'_>, span: Duration, events: &mut MemberEvents<'_>) -> SubmitResult {
        let is_listing = matches!(call, Call::Store(Request::ListKeys, _));
        let listing = Listing::default();
        let encoded = if is_listing { Some(listing.page(span)) } else { EncodedRequest::of_call(call, span) };
        let begun = check(call, &self.options.limits)
            .and_then(|()| encoded.ok_or_else(Loss::no_operation))
            .and_then(|encoded| self.driver.begin(encoded));
        let error = |loss: Loss| CallError::from(loss.into_error(call.operation(), call.keys(), &self.peer));
        let request = begun.map_err(error)?;
        let id = self.id.call(request);
        if is_listing {
            let listed = Listed { call: id, deadline: events.now() + span, listing, keys: List::default() };
            self.calls.insert(request, LoopCall::Listing(listed));
        }
        self.execute(events);
        Ok(id)
    }

    /// Cancels a call, or ends the watch that it began.
    fn cancel(&mut self, call: CallId, events: &mut MemberEvents<'_>) {
        let first = self.id.number_of(call);
        if let Some(LoopCall::Watch { began, pending, .. }) = self.calls.get(first) {
            let mut loss = Loss::cancelled();
            loss.failure.elapsed = events.now().since(*began);
            let cancelled = pending.error(loss, &self.options.scope, &self.peer);
            self.calls.remove(first);
            self.driver.forget(first);
            let over = SessionEvent::WatchOver(call, WatchError::Cancelled(cancelled));
            events.queue.push_back(LoopEvent::Session(self.id, over));
        } else {
            // For a call of several requests, the one in progress.
            let page = self.calls.iter().find_map(|(request, running)| match running {
                LoopCall::Listing(listed) if listed.call == call => Some(request),
                _ => None,
            });
            self.driver.cancel(page.unwrap_or(first));
        }
        self.execute(events);
    }
}

impl Loop {
    /// Adds a session with the server at `host` (a name or an address) and `port`, which starts to connect at once.
    /// Without a grace period, the calls that are made before the next [`Loop::poll`] are sent together with the
    /// greeting, in one round trip.
    pub fn add_session(&mut self, host: &str, port: u16, options: NativeClientOptions) -> MemberId {
        let context = self.member_context();
        let id = self.insert(context.id, LoopSession::new(&context, (host, port), options));
        self.with_member(id, LoopSession::execute);
        id
    }

    /// Adds a session for the node that these parameters of the `rdzv` backend describe, which joins with
    /// [`Session::next_round`]. A node without a name gets `HOST_PID_NUMBER`. A loop hosts no server.
    ///
    /// # Errors
    /// The parameters are invalid, of another backend, or want this node to host the server.
    pub fn add_node(&mut self, parameters: &RendezvousParameters) -> Result<MemberId, HandlerError> {
        let settings = RdzvSettings::read_for_loop(&with_units(parameters)?)?;
        let host = settings.address.clone().unwrap_or_else(host_name);
        let address = settings.address.clone().unwrap_or_else(|| full_host_name(&CancelToken::new()));
        // Rendezvous handlers of this process, and other loops, number their nodes from 0 on.
        let number = (random_seed() >> 32) as u32;
        let node = settings.node_name(&host, std::process::id(), number);
        let options = session_options(&settings, &node, settings.timeouts.join)?;
        let id = self.add_session(&settings.host, settings.port, options);
        let settings = (settings, address.into(), Arc::clone(&self.last_rounds));
        self.with_member(id, |session: &mut LoopSession, _| session.settings = Some(settings));
        Ok(id)
    }

    /// Closes a session's connection without a goodbye, as when the process dies: if the node is in a round, the
    /// other nodes see it as dead. [`NativeRequest::Close`] says goodbye. No event of the session follows.
    pub fn remove_session(&mut self, session: MemberId) {
        self.remove_member::<LoopSession>(session);
    }

    /// Returns a session of the loop, to submit calls. `None`: the loop has no such session.
    pub fn session(&mut self, session: MemberId) -> Option<Session<'_>> {
        self.members.get_as::<LoopSession>(session)?;
        Some(Session { events: self, id: session })
    }

    /// Returns the session whose keys form this store, for an operation that needs one.
    ///
    /// # Errors
    /// The store is not that of a session ([`crate::error::ErrorKind::Unsupported`], with the store's kind), or there
    /// is no such store.
    pub fn native(&mut self, store: MemberId, operation: Operation) -> Result<Session<'_>, SubmitError> {
        if let Some(member) = self.members.get_as::<LoopStore>(store) {
            return Err(not_native(operation, &member.peer, "a store over the c10d protocol").into());
        }
        self.session(store).ok_or(SubmitError::UnknownStore)
    }
}

/// Session of a loop, to submit requests.
#[derive(Debug)]
pub struct Session<'l> {
    events: &'l mut Loop,
    id: MemberId,
}

impl Session<'_> {
    /// Submits a request, whose end is a [`SessionEvent::Completed`].
    ///
    /// A watch reports [`SessionEvent::Changed`] events until [`SessionEvent::WatchOver`]; cancelling the call ends it.
    /// [`SessionEvent::LeaseOver`] follows when a lease ends by itself. A join drops the node's earlier events that
    /// were not taken.
    ///
    /// # Errors
    /// The session is over, the request exceeds a limit, or the node's part in its run does not allow it.
    pub fn submit(&mut self, request: &NativeRequest<'_>, timeout: Timeout) -> SubmitResult {
        let submit = |session: &mut LoopSession, events: &mut MemberEvents<'_>| {
            session.request(request, timeout, events)
        };
        self.events.with_member(self.id, submit).ok_or(SubmitError::UnknownStore)?
    }

    /// Joins the run that the node was added for. `None`: it was not added with [`Loop::add_node`].
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn next_round(&mut self) -> Option<SubmitResult> {
        self.events.with_member(self.id, LoopSession::next_round)?
    }

    fn member(&self) -> Option<&LoopSession> {
        self.events.members.get_as(self.id)
    }

    /// Returns the run that the node was added for, if it was added with [`Loop::add_node`].
    pub fn run_id(&self) -> Option<&str> {
        Some(self.member()?.settings.as_ref()?.0.run_id.as_str())
    }

    /// Returns the server's name in error messages.
    pub fn peer(&self) -> &str {
        self.member().map_or("", |session| &session.peer)
    }

    /// Returns the random number that identifies the start of the session's server; 0 before the session was open.
    pub fn incarnation(&self) -> u64 {
        self.member().map_or(0, |session| session.driver.incarnation())
    }

    /// Returns the node's name.
    pub fn node(&self) -> &str {
        self.member().map_or("", |session| session.options.node.as_str())
    }
}

/// Returns the key of a watch, as the server knows it.
fn watched_key<'a>(pending: &'a PendingRequest, scope: &'a [u8]) -> Key<'a> {
    Key::scoped(scope, pending.first_key().unwrap_or_default())
}
