//! One session of a loop: its driver, and the results of its calls.

use super::{CALLS_PER_MEMBER_BITS, CallOver, LoopEvent, SessionId, StoreId, names_of};
use crate::driver::call_error::CallError;
use crate::driver::event_loop::{EventLoop, Ready, Token};
use crate::driver::native_client::calls::{check, settle};
use crate::driver::native_client::listing::Listing;
use crate::driver::native_client::session_driver::{EncodedRequest, SessionDriver, SessionOutput};
use crate::driver::native_client::{
    Change, Loss, NativeClientOptions, NativeError, NativeRequest, NativeResponse, NodeEvent, OwnedFrame,
    PendingRequest, WatchError,
};
use crate::driver::rendezvous::LastRounds;
use crate::driver::store::Timeout;
use crate::driver::take::{List, strip_scope};
use crate::error::Operation;
use crate::node::multi_client::Answer;
use crate::node::native_client::Ending;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::store::call::{Call, CallId, Outcome, WaitMode};
use crate::store::op::{Key, Request};
use crate::time::{Duration, Instant, Poller};
use crate::wire::native::{ServerFrame, Why};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::collections::HashMap;

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
    id: SessionId,
    began: Instant,
    pub(super) peer: Box<str>,
    pub(super) options: NativeClientOptions,
    pub(super) driver: SessionDriver,
    /// Settings of a node that was added with [`Loop::add_node`](super::Loop::add_node), its address for the other
    /// nodes, and the last rounds of the loop's nodes.
    pub(super) settings: Option<(RdzvSettings, Box<str>, Arc<LastRounds>)>,
    /// Calls in progress by their requests. A call on the session's store that is one request needs no entry.
    calls: HashMap<u64, LoopCall>,
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
        /// Request that began it.
        pending: PendingRequest,
        /// Size in bytes of the changes that were not taken yet.
        untaken: usize,
    },
}

const LIST_KEYS: Call<'static> = Call::Store(Request::ListKeys, WaitMode::Wait);

impl LoopSession {
    /// Makes a session that starts to connect, and watches under tokens of this number.
    pub(super) fn new(
        id: SessionId,
        server: (&str, u16),
        peer: Box<str>,
        options: NativeClientOptions,
        events: &EventLoop,
        seed: u64,
    ) -> Self {
        let (clock, token) = (*events.clock(), Token(u64::from(id.as_u32()) << 32));
        let driver = SessionDriver::new(server, &options, (clock, seed), (token, Poller::Program));
        Self { id, began: clock.now(), peer, options, driver, settings: None, calls: HashMap::new() }
    }

    fn call_id(&self, request: u64) -> CallId {
        CallId((u64::from(self.id.as_u32()) << CALLS_PER_MEMBER_BITS) + request)
    }

    fn request_of(&self, call: CallId) -> u64 {
        call.0.wrapping_sub(u64::from(self.id.as_u32()) << CALLS_PER_MEMBER_BITS)
    }

    /// Begins a request.
    pub(super) fn begin(
        &mut self,
        request: &NativeRequest<'_>,
        timeout: Timeout,
    ) -> Result<CallId, CallError> {
        let Self { options, peer, .. } = self;
        let budget = options.timeouts.wait_budget(timeout);
        let (pending, encoded) = request.encode((&options.scope, options, peer), budget)?;
        match self.driver.begin(encoded) {
            Ok(id) => {
                self.calls.insert(id, LoopCall::Request(pending));
                Ok(self.call_id(id))
            }
            Err(loss) => Err(pending.error(loss, &options.scope, peer).into()),
        }
    }

    /// Begins a call on the session's store.
    pub(super) fn begin_call(
        &mut self,
        now: Instant,
        call: &Call<'_>,
        span: Duration,
    ) -> Result<CallId, CallError> {
        let is_listing = matches!(call, Call::Store(Request::ListKeys, _));
        let listing = Listing::default();
        let encoded = if is_listing { Some(listing.page(span)) } else { EncodedRequest::of_call(call, span) };
        let begun = check(call, &self.options.limits)
            .and_then(|()| encoded.ok_or_else(Loss::no_operation))
            .and_then(|encoded| self.driver.begin(encoded));
        let request = begun.map_err(|loss| loss.into_error(call.operation(), call.keys(), &self.peer))?;
        let id = self.call_id(request);
        if is_listing {
            let listed = Listed { call: id, deadline: now + span, listing, keys: List::default() };
            self.calls.insert(request, LoopCall::Listing(listed));
        }
        Ok(id)
    }

    /// Cancels a call, or ends the watch that it began.
    pub(super) fn cancel(&mut self, call: CallId, event_queue: &mut VecDeque<LoopEvent>) {
        let first = self.request_of(call);
        if let Some(LoopCall::Watch { pending, .. }) = self.calls.get(&first) {
            let cancelled = pending.error(Loss::cancelled(), &self.options.scope, &self.peer);
            self.calls.remove(&first);
            self.driver.forget(first);
            let over = SessionEvent::WatchOver(call, WatchError::Cancelled(cancelled));
            event_queue.push_back(LoopEvent::Session(self.id, over));
            return;
        }
        // For a call of several requests, the one in progress.
        let is_page =
            |running: &LoopCall| matches!(running, LoopCall::Listing(listed) if listed.call == call);
        let page = self.calls.iter().find(|(_, running)| is_page(running)).map(|(&request, _)| request);
        self.driver.cancel(page.unwrap_or(first));
    }

    /// Handles a ready socket.
    pub(super) fn ready(&mut self, ready: Ready, buffer: &mut [u8]) {
        self.driver.ready(ready, buffer);
    }

    /// Executes all pending work and queues the events.
    pub(super) fn execute(&mut self, events: &EventLoop, event_queue: &mut VecDeque<LoopEvent>) {
        loop {
            self.driver.execute(events);
            let Some(output) = self.driver.next_output() else { return };
            self.handle_event(events.clock().now(), output, event_queue);
            while let Some(output) = self.driver.next_output() {
                self.handle_event(events.clock().now(), output, event_queue);
            }
        }
    }

    fn handle_event(&mut self, now: Instant, output: SessionOutput, event_queue: &mut VecDeque<LoopEvent>) {
        let event = match output {
            SessionOutput::Open => SessionEvent::Open,
            SessionOutput::Ended(id, encoded, answer) => {
                event_queue.extend(self.ended(now, id, &encoded, answer));
                return;
            }
            SessionOutput::Pushed(push) => return self.pushed(&push, event_queue),
            SessionOutput::Node(event) => SessionEvent::Node(event),
            SessionOutput::Over(ending) => SessionEvent::Over(self.over(now, ending)),
        };
        event_queue.push_back(LoopEvent::Session(self.id, event));
    }

    fn pushed(&mut self, push: &OwnedFrame, event_queue: &mut VecDeque<LoopEvent>) {
        let (call, limits) = (self.call_id(push.id), *self.driver.limits());
        let event = match push.frame(&limits) {
            Some(ServerFrame::LeaseOver { lease, why }) => SessionEvent::LeaseOver { call, lease, why },
            // Changes that were under way when the watch was cancelled are dropped.
            Some(ServerFrame::Changed { changes }) => {
                let Some(LoopCall::Watch { pending, untaken }) = self.calls.get_mut(&push.id) else { return };
                if *untaken < self.options.pushed_bytes_max {
                    let changes = changes.iter().map(|change| Change::of(&change, &self.options.scope));
                    let output = changes.map(|change| {
                        *untaken += change.bytes();
                        LoopEvent::Session(self.id, SessionEvent::Changed(call, change))
                    });
                    return event_queue.extend(output);
                }
                let overrun = WatchError::overrun(watched_key(pending, &self.options.scope), &self.peer);
                self.calls.remove(&push.id);
                self.driver.forget(push.id);
                SessionEvent::WatchOver(call, overrun)
            }
            Some(ServerFrame::WatchOver { why, oldest }) => {
                let Some(LoopCall::Watch { pending, .. }) = self.calls.remove(&push.id) else { return };
                let key = watched_key(&pending, &self.options.scope);
                SessionEvent::WatchOver(call, WatchError::of(why, oldest, key, &self.peer))
            }
            // A message of a later version.
            _ => return,
        };
        event_queue.push_back(LoopEvent::Session(self.id, event));
    }

    /// Accounts for a change that the program has taken.
    pub(super) fn taken(&mut self, call: CallId, change: &Change) {
        let request = self.request_of(call);
        if let Some(LoopCall::Watch { untaken, .. }) = self.calls.get_mut(&request) {
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
        let limits = *self.driver.limits();
        let pending = match self.calls.remove(&request) {
            Some(LoopCall::Request(pending) | LoopCall::Watch { pending, .. }) => pending,
            Some(LoopCall::Listing(listed)) => return self.page_ended(now, listed, encoded, answer),
            None => {
                let (call, mut values) = (encoded.call()?, List::default());
                let outcome = settle(&call, answer, &limits, &mut values);
                return Some(self.call_ended(
                    self.call_id(request),
                    &call,
                    encoded.since_begun(now),
                    outcome,
                    values,
                ));
            }
        };
        let (operation, call, elapsed) = (pending.operation, self.call_id(request), encoded.since_begun(now));
        let (scope, peer) = (&*self.options.scope, &*self.peer);
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
            self.calls.insert(request, LoopCall::Watch { pending, untaken: 0 });
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
        let (outcome, mut values) = match page {
            Ok(Some(outcome)) => (Ok(outcome), listed.keys),
            Ok(None) => match self.next_page(now, listed) {
                Ok(()) => return None,
                Err(loss) => (Err(loss), List::default()),
            },
            Err(loss) => (Err(loss), List::default()),
        };
        strip_scope(&mut values.0, &self.options.scope);
        Some(self.call_ended(id, &LIST_KEYS, encoded.since_begun(now), outcome, values))
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
                let error = loss.into_error(call.operation(), call.keys(), &self.peer).into();
                (names_of(call, &self.options.scope), Err(error))
            }
        };
        let (store, operation) = (StoreId(self.id.as_u32()), call.operation());
        LoopEvent::Store(CallOver { store, call: id, operation, keys, result })
    }

    fn next_page(&mut self, now: Instant, listed: Listed) -> Result<(), Loss> {
        let request = self.driver.begin(listed.listing.page(listed.deadline.since(now)))?;
        self.calls.insert(request, LoopCall::Listing(listed));
        Ok(())
    }
}

/// Returns the key of a watch, as the server knows it.
fn watched_key<'a>(pending: &'a PendingRequest, scope: &'a [u8]) -> Key<'a> {
    Key::scoped(scope, pending.first_key().unwrap_or_default())
}
