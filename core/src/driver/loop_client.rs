//! Stores, sessions and other members inside the program's own event loop, without callbacks and without blocking
//! calls.
//!
//! Put [`Loop::fd`] into the program's own poll. When it is readable, call [`Loop::poll`] and take the
//! [`Loop::next_event`]s. Deadlines, pauses and look-ups also make the descriptor readable.

mod loop_store;
mod member;
mod node;
mod session;

pub use member::{Member, MemberContext, MemberEvent, MemberEvents, MemberId};
pub use node::Session;
pub use session::SessionEvent;

use super::call_error::CallError;
use super::event_loop::EventLoop;
use super::random::random_seed;
use super::rendezvous::LastRounds;
use super::socket::endpoint_text;
use super::store::{Timeout, Timeouts};
use super::store_client::StoreOptions;
use crate::error::{Failure, Operation, Phase};
use crate::node::multi_client::Answer;
use crate::store::call::{Call, CallId};
use crate::store::op::{Key, Request};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use loop_store::LoopStore;
use member::Members;
use session::LoopSession;
use std::io;
use std::os::fd::RawFd;

/// Number of low bits of a call's number that count the calls of one store, session or worker: enough for months. The
/// bits above them are the number of that store, session or worker, enough for 16 million of these.
const CALLS_PER_MEMBER_BITS: u32 = 40;

/// Identifier of one store of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(u32);

impl StoreId {
    /// Returns the id as a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Makes the id from [`StoreId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }
}

/// Identifier of one session of a loop. Stores and sessions share one sequence of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u32);

impl SessionId {
    /// Returns the id as a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Makes the id from [`SessionId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// Returns the keys of the session's server as a store of the loop. Calls on it use the session.
    #[must_use]
    pub const fn store(self) -> StoreId {
        StoreId(self.0)
    }
}

/// Event of a loop.
#[derive(Debug)]
pub enum LoopEvent {
    /// A call on a store is over.
    Store(CallOver),
    /// A session has an event.
    Session(SessionId, SessionEvent),
    /// Another member has an event. Its content is documented where that member is added.
    Member(MemberId, MemberEvent),
}

/// Completed or failed call.
#[derive(Debug)]
pub struct CallOver {
    /// Store of the call.
    pub store: StoreId,
    /// Number of the call.
    pub call: CallId,
    /// Requested operation.
    pub operation: Operation,
    /// Keys of a failed call without the scope, at most the first 64.
    pub keys: Vec<Vec<u8>>,
    /// Response to the call. The keys of `list_keys` are without their scope.
    pub result: Result<Answer, CallError>,
}

/// Reason why a call was not submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The loop has no such store.
    #[error("the loop has no store of this number")]
    UnknownStore,
    /// The call exceeds a limit.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Event loop for stores. See the module's documentation.
#[derive(Debug)]
pub struct Loop {
    events: EventLoop,
    stores: BTreeMap<StoreId, Box<LoopStore>>,
    sessions: BTreeMap<SessionId, Box<LoopSession>>,
    members: Members,
    members_made: u32,
    event_queue: VecDeque<LoopEvent>,
    last_rounds: Arc<LastRounds>,
    buffer: Vec<u8>,
}

/// Maximum number of bytes in one read.
const READ_BYTES: usize = 64 * 1024;

impl Loop {
    /// Makes a loop without stores.
    ///
    /// # Errors
    /// The error of the system: most likely no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            events: EventLoop::new()?,
            stores: BTreeMap::new(),
            sessions: BTreeMap::new(),
            members: Members::default(),
            members_made: 0,
            event_queue: VecDeque::new(),
            last_rounds: Arc::default(),
            buffer: alloc::vec![0; READ_BYTES],
        })
    }

    /// Returns the descriptor that is readable when [`Loop::poll`] has something to do. It stays the same for the
    /// loop's life.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Adds a store. The first call connects it, so a wrong address fails that call.
    pub fn add_store(&mut self, host: &str, port: u16, options: StoreOptions) -> StoreId {
        let id = StoreId(self.next_number());
        let (peer, seed) = (endpoint_text(host, port), random_seed());
        let member = LoopStore::new(id, host, port, &peer, options, seed);
        self.stores.insert(id, Box::new(member));
        id
    }

    const fn next_number(&mut self) -> u32 {
        self.members_made += 1;
        self.members_made
    }

    /// Removes a store with its connections. Its calls end without an event. The store of a session ends as with
    /// [`Loop::remove_session`].
    pub fn remove_store(&mut self, store: StoreId) {
        if self.stores.remove(&store).is_some() {
            let is_of_it = |event: &LoopEvent| matches!(event, LoopEvent::Store(over) if over.store == store);
            self.event_queue.retain(|event| !is_of_it(event));
        } else {
            self.remove_session(SessionId(store.0));
        }
    }

    /// Submits a request whose keys already include the store's scope; see [`Loop::scope`]. `timeout` has the same
    /// meaning as for a blocking client.
    ///
    /// # Errors
    /// The request exceeds a limit, or there is no such store.
    pub fn submit(
        &mut self,
        store: StoreId,
        request: Request<'_>,
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let (span, wait_mode) = self.timeouts(store).ok_or(SubmitError::UnknownStore)?.wait_budget(timeout);
        self.submit_call(store, &Call::Store(request, wait_mode), span)
    }

    /// As [`Loop::submit`], for a call with a timeout of its own: a pop that does not wait, or a PING.
    ///
    /// # Errors
    /// As [`Loop::submit`].
    pub fn submit_call(
        &mut self,
        store: StoreId,
        call: &Call<'_>,
        span: Duration,
    ) -> Result<CallId, SubmitError> {
        let now = self.events.clock().now();
        if let Some(session) = self.sessions.get_mut(&SessionId(store.0)) {
            let id = session.begin_call(now, call, span)?;
            session.execute(&self.events, &mut self.event_queue);
            self.changed();
            return Ok(id);
        }
        let member = self.stores.get_mut(&store).ok_or(SubmitError::UnknownStore)?;
        let submitted = member.client.submit(now, call, span);
        let id = submitted
            .map_err(|limit| CallError::of_call(call, &member.peer, Failure::limit(Phase::Sending, limit)))?;
        member.execute(&mut self.events, &mut self.event_queue);
        self.changed();
        Ok(id)
    }

    /// Submits a PING, whose result is whether the store responds.
    ///
    /// # Errors
    /// As [`Loop::submit`].
    pub fn ping(&mut self, store: StoreId, timeout: Timeout) -> Result<CallId, SubmitError> {
        let (span, _) = self.timeouts(store).ok_or(SubmitError::UnknownStore)?.wait_budget(timeout);
        self.submit_call(store, &Call::Ping, span)
    }

    /// Returns the prefix of the keys of a store, or of a session's store.
    #[must_use]
    pub fn scope(&self, store: StoreId) -> Option<&[u8]> {
        let of_session = || self.sessions.get(&SessionId(store.0)).map(|session| &*session.options.scope);
        self.stores.get(&store).map(|member| &*member.options.scope).or_else(of_session)
    }

    fn timeouts(&self, store: StoreId) -> Option<Timeouts> {
        let of_session = || self.sessions.get(&SessionId(store.0)).map(|session| session.options.timeouts);
        self.stores.get(&store).map(|member| member.options.timeouts()).or_else(of_session)
    }

    /// Cancels a call. Its event is an error of kind [`crate::error::ErrorKind::Cancelled`], unless the call is already over.
    pub fn cancel(&mut self, store: StoreId, call: CallId) {
        let now = self.events.clock().now();
        if let Some(member) = self.stores.get_mut(&store) {
            member.client.cancel(now, call);
            member.execute(&mut self.events, &mut self.event_queue);
        } else if let Some(session) = self.sessions.get_mut(&SessionId(store.0)) {
            session.cancel(call, &mut self.event_queue);
            session.execute(&self.events, &mut self.event_queue);
        } else {
            self.members.cancel(MemberId::from_u32(store.0), call);
        }
        self.changed();
    }

    /// Does all pending work without blocking.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll(&mut self) -> io::Result<()> {
        // Read before the poll, so that all bytes that have arrived by now are read before a timeout is reported.
        let now = self.events.clock().now();
        let ready = self.events.poll()?;
        self.sessions.values_mut().for_each(|session| session.driver.wake());
        for member in self.stores.values_mut() {
            member.flush_all(now);
            member.execute(&mut self.events, &mut self.event_queue);
        }
        for one in ready {
            if let Some(member) = self.stores.get_mut(&LoopStore::of_token(one.token)) {
                member.ready(now, one, &mut self.buffer);
                member.execute(&mut self.events, &mut self.event_queue);
            } else if let Some(session) = self.sessions.get_mut(&SessionId(LoopStore::of_token(one.token).0))
            {
                session.ready(one, &mut self.buffer);
                session.execute(&self.events, &mut self.event_queue);
            } else {
                self.members.ready(one, &mut self.event_queue)?;
            }
        }
        for member in self.stores.values_mut() {
            if member.step(now) {
                member.execute(&mut self.events, &mut self.event_queue);
            }
        }
        for session in self.sessions.values_mut() {
            if session.driver.is_due(now) {
                session.driver.step(now);
                session.execute(&self.events, &mut self.event_queue);
            }
        }
        self.members.poll(now);
        self.arm();
        Ok(())
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<LoopEvent> {
        let Some(event) = self.event_queue.pop_front() else { return self.members.next_event() };
        if let LoopEvent::Session(session, SessionEvent::Changed(call, change)) = &event
            && let Some(session) = self.sessions.get_mut(session)
        {
            session.taken(*call, change);
        }
        Some(event)
    }

    /// Returns the number of a store's calls in progress.
    #[must_use]
    pub fn pending(&self, store: StoreId) -> usize {
        let of_session = || self.sessions.get(&SessionId(store.0)).map(|session| session.driver.pending());
        self.stores.get(&store).map(|member| member.client.pending()).or_else(of_session).unwrap_or(0)
    }

    /// Must follow a change outside of [`Loop::poll`]: makes the descriptor readable if the change produced events.
    fn changed(&mut self) {
        if !self.event_queue.is_empty() {
            self.events.waker().wake();
        }
        self.arm();
    }

    fn arm(&mut self) {
        let stores = self.stores.values().filter_map(|member| member.client.poll_timeout());
        let sessions = self.sessions.values().filter_map(|session| session.driver.poll_timeout());
        if let Some(due) = stores.chain(sessions).chain(self.members.poll_timeout()).min() {
            self.events.wake_at(due);
        }
    }
}

/// Maximum number of keys in an event.
const KEYS_NAMED_MAX: usize = 64;

/// Returns the keys of a call without the scope.
fn names_of(call: &Call<'_>, scope: &[u8]) -> Vec<Vec<u8>> {
    let name = |key: Key<'_>| {
        let whole = key.pieces().concat();
        whole.strip_prefix(scope).map(<[u8]>::to_vec).unwrap_or(whole)
    };
    match *call {
        Call::Store(Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys }, _) => {
            keys.iter().take(KEYS_NAMED_MAX).map(name).collect()
        }
        Call::Store(Request::MultiSet { pairs }, _) => {
            pairs.iter().take(KEYS_NAMED_MAX).map(|(key, _)| name(key)).collect()
        }
        _ => call.keys().0.map(name).into_iter().collect(),
    }
}

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
