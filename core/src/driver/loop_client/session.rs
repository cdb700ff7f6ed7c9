//! One session of a loop: its driver, and the results of its calls.

use super::{CALLS_PER_MEMBER_BITS, CallOver, LoopEvent, SessionId, StoreId, names_of};
use crate::driver::call_error::CallError;
use crate::driver::event_loop::{EventLoop, Ready, Token};
use crate::driver::native_client::calls::{Listing, check, settle};
use crate::driver::native_client::session_driver::{EncodedRequest, SessionDriver, SessionOutput};
use crate::driver::native_client::{
    BarrierResult, BatchAnswer, Change, Joined, Loss, MemberInfo, NativeClientOptions, NativeError,
    NodeEvent, OwnedFrame, RunInfo, SubmitPath, TxnResult, WatchError, removed_in,
};
use crate::driver::rendezvous::LastRounds;
use crate::driver::take::{List, strip_scope};
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::node::multi_client::Answer;
use crate::node::native_client::Ending;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::store::call::{Call, CallId, Outcome, WaitMode};
use crate::store::engine::PrefixRemoved;
use crate::store::op::{Key, Request};
use crate::time::{Duration, Instant, Poller};
use crate::wire::native::{Batched, ClientFrame, ServerFrame, Why};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::collections::HashMap;

/// Response to a session's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionAnswer {
    /// The operation is done: the node has left, the run or the session is closed.
    Done,
    /// The node is in a round.
    Joined(Joined),
    /// State of the run.
    RunInfo(RunInfo),
    /// Members of a round.
    Members(Vec<MemberInfo>),
    /// Result of a barrier.
    Barrier(BarrierResult),
    /// The watch has begun, at this revision of the store.
    Watching(u64),
    /// A number: the id of a lease, or how many of its keys were removed.
    Number(i64),
    /// Keys that were removed under a prefix.
    Removed(PrefixRemoved),
    /// Result of a transaction.
    Txn(TxnResult),
    /// Responses to a batch, in order.
    Batch(Vec<BatchAnswer>),
}

impl SessionAnswer {
    /// Converts a response; `None` when it does not fit the operation.
    fn of(
        operation: Operation,
        answer: &OwnedFrame,
        limits: &FrameLimits,
        peer: &str,
        key_of: &dyn Fn(usize) -> Vec<u8>,
    ) -> Option<Self> {
        let frame = answer.frame(limits)?;
        Some(match operation {
            Operation::Join | Operation::Standby => Self::Joined(Joined::of(&frame)?),
            Operation::RunInfo => Self::RunInfo(RunInfo::of(&frame)?),
            Operation::Members => Self::Members(MemberInfo::list_of(&frame)?),
            Operation::NamedBarrier => Self::Barrier(BarrierResult::of(&frame)?),
            Operation::Txn => Self::Txn(TxnResult::of(&frame)?),
            Operation::Batch => Self::Batch(BatchAnswer::list_of(&frame, peer, key_of)?),
            Operation::Watch => match frame {
                ServerFrame::Done { revision } => Self::Watching(revision),
                _ => return None,
            },
            Operation::DeletePrefix => Self::Removed(removed_in(&frame)?),
            Operation::LeaseGrant | Operation::LeaseRevoke => match frame {
                ServerFrame::Number { number, .. } => Self::Number(number),
                _ => return None,
            },
            // The other operations have no result: an answer with one does not fit them.
            _ => match frame {
                ServerFrame::Done { .. } => Self::Done,
                _ => return None,
            },
        })
    }
}

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
        result: Result<SessionAnswer, NativeError>,
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
    /// Listings by the request for the next page.
    listed: HashMap<u64, Listed>,
    /// Watches in progress by their requests.
    watches: HashMap<u64, Watched>,
}

#[derive(Debug)]
struct Watched {
    /// Key with its scope, as the server knows it.
    key: Vec<u8>,
    /// Size in bytes of the changes that were not taken yet.
    untaken: usize,
}

const LIST_KEYS: Call<'static> = Call::Store(Request::ListKeys, WaitMode::Wait);

/// Returns the first key of a request and the number of keys, for errors.
fn keys_of<'a>(frame: &ClientFrame<'a>) -> (Option<Key<'a>>, usize) {
    match *frame {
        ClientFrame::Join { entry } | ClientFrame::Standby { entry } => (Some(Key::raw(entry.run_id)), 1),
        ClientFrame::Leave { run_id: key }
        | ClientFrame::Close { run_id: key }
        | ClientFrame::Fail { run_id: key, .. }
        | ClientFrame::RunInfo { run_id: key }
        | ClientFrame::Members { run_id: key, .. }
        | ClientFrame::WatchKey { key, .. }
        | ClientFrame::WatchPrefix { prefix: key, .. }
        | ClientFrame::DeletePrefix { prefix: key }
        | ClientFrame::Barrier { key, .. }
        | ClientFrame::BarrierCancel { key, .. }
        | ClientFrame::Get { key, .. }
        | ClientFrame::QueuePop { key, .. }
        | ClientFrame::Set { key, .. }
        | ClientFrame::CompareSet { key, .. }
        | ClientFrame::Add { key, .. }
        | ClientFrame::Delete { key }
        | ClientFrame::Append { key, .. }
        | ClientFrame::QueuePush { key, .. }
        | ClientFrame::QueueLen { key } => (Some(key), 1),
        ClientFrame::LeaseAttach { keys, .. }
        | ClientFrame::Check { keys }
        | ClientFrame::Wait { keys, .. }
        | ClientFrame::MultiGet { keys, .. } => (keys.iter().next(), keys.len()),
        ClientFrame::MultiSet { pairs } => (pairs.iter().next().map(|(key, _)| key), pairs.len()),
        ClientFrame::Hello { .. }
        | ClientFrame::Heartbeat { .. }
        | ClientFrame::Acknowledge {}
        | ClientFrame::Bye {}
        | ClientFrame::Cancel { .. }
        | ClientFrame::NumKeys {}
        | ClientFrame::ListKeys { .. }
        | ClientFrame::Txn { .. }
        | ClientFrame::Batch { .. }
        | ClientFrame::LeaseGrant { .. }
        | ClientFrame::LeaseRenew { .. }
        | ClientFrame::LeaseRevoke { .. } => (None, 0),
    }
}

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
        Self {
            id,
            began: clock.now(),
            peer,
            options,
            driver,
            settings: None,
            listed: HashMap::new(),
            watches: HashMap::new(),
        }
    }

    fn call_id(&self, request: u64) -> CallId {
        CallId((u64::from(self.id.as_u32()) << CALLS_PER_MEMBER_BITS) + request)
    }

    fn request_of(&self, call: CallId) -> u64 {
        call.0.wrapping_sub(u64::from(self.id.as_u32()) << CALLS_PER_MEMBER_BITS)
    }

    /// Begins a call.
    pub(super) fn begin(
        &mut self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        span: Duration,
        submit_path: SubmitPath,
    ) -> Result<CallId, CallError> {
        self.begin_encoded(EncodedRequest::new(operation, frame), keys_of(frame), span, submit_path)
    }

    /// Begins an encoded call.
    pub(super) fn begin_encoded(
        &mut self,
        encoded: EncodedRequest,
        keys: (Option<Key<'_>>, usize),
        span: Duration,
        submit_path: SubmitPath,
    ) -> Result<CallId, CallError> {
        let operation = encoded.operation;
        match self.driver.begin(encoded, span, submit_path) {
            Ok(request) => Ok(self.call_id(request)),
            Err(loss) => Err(loss.into_error(operation, keys, &self.peer).into()),
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
        let encoded = if is_listing {
            Some(EncodedRequest::new(Operation::ListKeys, &listing.page()))
        } else {
            EncodedRequest::of_call(call, span)
        };
        let begun = check(call, &self.options.limits)
            .and_then(|()| encoded.ok_or_else(Loss::no_operation))
            .and_then(|encoded| self.driver.begin(encoded, span, SubmitPath::Plain));
        let request = begun.map_err(|loss| loss.into_error(call.operation(), call.keys(), &self.peer))?;
        let id = self.call_id(request);
        if is_listing {
            let listed = Listed { call: id, deadline: now + span, listing, keys: List::default() };
            self.listed.insert(request, listed);
        }
        Ok(id)
    }

    /// Cancels a call, or ends the watch that it began.
    pub(super) fn cancel(&mut self, call: CallId, event_queue: &mut VecDeque<LoopEvent>) {
        // For a call of several requests, the one in progress.
        let page = self.listed.iter().find(|(_, listed)| listed.call == call).map(|(&request, _)| request);
        let first = self.request_of(call);
        if let Some(watched) = self.watches.remove(&first) {
            self.driver.forget(first);
            let cancelled = Loss::cancelled();
            let keys = (Some(Key::raw(&watched.key)), 1);
            let cancelled = cancelled.into_error(Operation::Watch, keys, &self.peer);
            let over = SessionEvent::WatchOver(call, WatchError::Cancelled(cancelled));
            event_queue.push_back(LoopEvent::Session(self.id, over));
            return;
        }
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
            SessionOutput::OwnedFrame(encoded, answer) => {
                let id = answer.id;
                if let Some((settings, _, rounds)) = &self.settings
                    && let Some(joined) = answer.frame(self.driver.limits()).as_ref().and_then(Joined::of)
                {
                    rounds.entered(settings, joined.round);
                }
                event_queue.extend(self.ended(now, id, &encoded, Ok(answer)));
                return;
            }
            SessionOutput::Failed(id, encoded, loss) => {
                event_queue.extend(self.ended(now, id, &encoded, Err(loss)));
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
                let Some(Watched { key, untaken }) = self.watches.get_mut(&push.id) else { return };
                if *untaken < self.options.pushed_bytes_max {
                    let changes = changes.iter().map(|change| Change::of(&change, &self.options.scope));
                    let output = changes.map(|change| {
                        *untaken += change.bytes();
                        LoopEvent::Session(self.id, SessionEvent::Changed(call, change))
                    });
                    return event_queue.extend(output);
                }
                let overrun = WatchError::overrun(Key::raw(key), &self.peer);
                self.watches.remove(&push.id);
                self.driver.forget(push.id);
                SessionEvent::WatchOver(call, overrun)
            }
            Some(ServerFrame::WatchOver { why, oldest }) => {
                let Some(watched) = self.watches.remove(&push.id) else { return };
                SessionEvent::WatchOver(call, WatchError::of(why, oldest, Key::raw(&watched.key), &self.peer))
            }
            // A message of a later version.
            _ => return,
        };
        event_queue.push_back(LoopEvent::Session(self.id, event));
    }

    /// Accounts for a change that the program has taken.
    pub(super) fn taken(&mut self, call: CallId, change: &Change) {
        let request = self.request_of(call);
        if let Some(watched) = self.watches.get_mut(&request) {
            watched.untaken -= change.bytes();
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
        let is_listing = self.listed.contains_key(&request);
        if let Some(call) = encoded.call().or(is_listing.then_some(LIST_KEYS)) {
            return self.call_ended(now, request, (encoded, &call), answer);
        }
        let (operation, frame) = (encoded.operation, encoded.frame(&limits)?);
        let scope = &*self.options.scope;
        let (first, count) = keys_of(&frame);
        let first = first.map(|key| key.pieces().concat());
        if let (Operation::Watch, Ok(_), Some(key)) = (operation, &answer, &first) {
            self.watches.insert(request, Watched { key: key.clone(), untaken: 0 });
        }
        let key_of = |index: usize| match &frame {
            ClientFrame::Batch { requests } => {
                let request = requests.iter().nth(index).and_then(|Batched(request)| keys_of(&request).0);
                request.map(|key| key.pieces().concat()).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let answer = match answer {
            Ok(answer) => SessionAnswer::of(operation, &answer, &limits, &self.peer, &key_of)
                .ok_or_else(|| Loss::of_wrong_answer(operation)),
            // Closing is done when the session is over, whatever the server's last message was.
            Err(loss) if operation == Operation::Bye && self.driver.ending() == Some(Ending::Left) => {
                drop(loss);
                Ok(SessionAnswer::Done)
            }
            Err(loss) => Err(loss),
        };
        let result = answer.map_err(|mut loss| {
            loss.failure.elapsed = encoded.since_begun(now);
            // Store keys are reported without their scope.
            let key = first.as_deref().map(|key| match key.strip_prefix(scope) {
                Some(name) => Key::scoped(scope, name),
                None => Key::raw(key),
            });
            loss.into_error(operation, (key, count), &self.peer)
        });
        // For a transaction, the key that its error names.
        let output = result.as_ref().err().and_then(|error| error.fault().map(|fault| fault.text.to_vec()));
        let key = if operation == Operation::Txn { output.filter(|key| !key.is_empty()) } else { first };
        let key = key.map(|key| key.strip_prefix(scope).map(<[u8]>::to_vec).unwrap_or(key));
        let (call, elapsed) = (self.call_id(request), encoded.since_begun(now));
        let event = SessionEvent::Completed { call, operation, key, elapsed, result };
        Some(LoopEvent::Session(self.id, event))
    }

    fn call_ended(
        &mut self,
        now: Instant,
        request: u64,
        (encoded, call): (&EncodedRequest, &Call<'_>),
        answer: Result<OwnedFrame, Loss>,
    ) -> Option<LoopEvent> {
        let limits = *self.driver.limits();
        let (mut id, mut values) = (self.call_id(request), List::default());
        let outcome = match self.listed.remove(&request) {
            Some(mut listed) => {
                id = listed.call;
                let page =
                    answer.and_then(|answer| listed.listing.take_page(&answer, &limits, &mut listed.keys));
                match page {
                    Ok(Some(outcome)) => {
                        values = listed.keys;
                        strip_scope(&mut values.0, &self.options.scope);
                        Ok(outcome)
                    }
                    Ok(None) => match self.next_page(now, listed) {
                        Ok(()) => return None,
                        Err(loss) => Err(loss),
                    },
                    Err(loss) => Err(loss),
                }
            }
            None => settle(call, answer, &limits, &mut values),
        };
        let outcome = outcome.and_then(|outcome: Outcome| match outcome.failure(call.operation()) {
            None => Ok(outcome),
            Some(failure) => Err(Loss::of(failure)),
        });
        let (keys, result) = match outcome {
            Ok(outcome) => (Vec::new(), Ok(Answer { outcome, values: values.0 })),
            Err(mut loss) => {
                loss.failure.elapsed = encoded.since_begun(now);
                let error = loss.into_error(call.operation(), call.keys(), &self.peer).into();
                (names_of(call, &self.options.scope), Err(error))
            }
        };
        let (store, operation) = (StoreId(self.id.as_u32()), call.operation());
        Some(LoopEvent::Store(CallOver { store, call: id, operation, keys, result }))
    }

    fn next_page(&mut self, now: Instant, listed: Listed) -> Result<(), Loss> {
        let encoded = EncodedRequest::new(Operation::ListKeys, &listed.listing.page());
        let request = self.driver.begin(encoded, listed.deadline.since(now), SubmitPath::Plain)?;
        self.listed.insert(request, listed);
        Ok(())
    }
}
