//! Stores, sessions and other members inside the program's own event loop, without callbacks and without blocking
//! calls.
//!
//! Put [`Loop::fd`] into the program's own poll. When it is readable, call [`Loop::poll`] and take the
//! [`Loop::next_event`]s. Deadlines, pauses and look-ups also make the descriptor readable.

mod loop_store;
mod member;
mod session;

pub use member::{Member, MemberContext, MemberEvent, MemberEvents, MemberId, MemberStore};
pub use session::{Session, SessionEvent};

use super::call_error::CallError;
use super::event_loop::EventLoop;
use super::native_client::strip_scope;
use super::random::random_seed;
use super::rendezvous::LastRounds;
use super::store::Timeout;
use super::store_client::StoreOptions;
use crate::driver::prelude::*;
use crate::error::Operation;
use crate::node::multi_client::Answer;
use crate::store::call::{Call, CallId, WaitMode};
use crate::store::op::{Key, Request};
use alloc::collections::VecDeque;
use loop_store::LoopStore;
use member::Members;
use session::LoopSession;

/// Event of a loop.
#[derive(Debug)]
pub enum LoopEvent {
    /// A call on a store is over.
    Store(CallOver),
    /// A session has an event.
    Session(MemberId, SessionEvent),
    /// Another member has an event. Its content is documented where that member is added.
    Member(MemberId, MemberEvent),
}

impl LoopEvent {
    const fn member(&self) -> MemberId {
        match self {
            Self::Store(over) => over.store,
            Self::Session(id, _) | Self::Member(id, _) => *id,
        }
    }
}

/// Completed or failed call.
#[derive(Debug)]
pub struct CallOver {
    /// Store of the call.
    pub store: MemberId,
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

/// Number of a submitted call, or the reason why it was not submitted.
pub type SubmitResult = Result<CallId, SubmitError>;

/// Event loop that owns stores, sessions and other members. See the module's documentation.
#[derive(Debug)]
pub struct Loop {
    events: EventLoop,
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
            members: Members::default(),
            members_made: 0,
            event_queue: VecDeque::new(),
            last_rounds: Arc::default(),
            buffer: alloc::vec![0; READ_BYTES],
        })
    }

    /// Returns the descriptor that is readable when [`Loop::poll`] has something to do. It stays the same for the
    /// loop's life.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Adds a store. The first call connects it, so a wrong address fails that call.
    pub fn add_store(&mut self, host: &str, port: u16, options: StoreOptions) -> MemberId {
        let MemberContext { id, .. } = self.member_context();
        self.insert(id, LoopStore::new(id, (host, port), options, random_seed()))
    }

    /// Removes a store with its connections. Its calls end without an event. The store of a session ends as with
    /// [`Loop::remove_session`].
    pub fn remove_store(&mut self, store: MemberId) {
        if self.store(store).is_some() {
            self.remove(store);
        }
    }

    /// Submits a request whose keys already include the store's scope; see [`Loop::scope`]. `timeout` has the same
    /// meaning as for a blocking client.
    ///
    /// # Errors
    /// The request exceeds a limit, or there is no such store.
    pub fn submit(&mut self, store: MemberId, request: Request<'_>, timeout: Timeout) -> SubmitResult {
        let (span, wait_mode) = self.budget(store, timeout)?;
        self.submit_call(store, &Call::Store(request, wait_mode), span)
    }

    /// As [`Loop::submit`], for a call with a timeout of its own: a pop that does not wait, or a PING.
    ///
    /// # Errors
    /// As [`Loop::submit`].
    pub fn submit_call(&mut self, store: MemberId, call: &Call<'_>, span: Duration) -> SubmitResult {
        let (member, mut events) = self.member(store).ok_or(SubmitError::UnknownStore)?;
        let id = member.submit(call, span, &mut events)?;
        self.changed(store);
        Ok(id)
    }

    /// Submits a PING, whose result is whether the store responds.
    ///
    /// # Errors
    /// As [`Loop::submit`].
    pub fn ping(&mut self, store: MemberId, timeout: Timeout) -> SubmitResult {
        let (span, _) = self.budget(store, timeout)?;
        self.submit_call(store, &Call::Ping, span)
    }

    /// Returns the prefix of the keys of a store, or of a session's store.
    pub fn scope(&self, store: MemberId) -> Option<&[u8]> {
        Some(self.store(store)?.scope)
    }

    fn store(&self, store: MemberId) -> Option<MemberStore<'_>> {
        self.members.get(store)?.store()
    }

    fn budget(&self, store: MemberId, timeout: Timeout) -> Result<(Duration, WaitMode), SubmitError> {
        Ok(self.store(store).ok_or(SubmitError::UnknownStore)?.timeouts.wait_budget(timeout))
    }

    /// Cancels a call. Its event is an error of kind [`crate::error::ErrorKind::Cancelled`], unless the call is already over.
    pub fn cancel(&mut self, id: MemberId, call: CallId) {
        if let Some((member, mut events)) = self.member(id) {
            member.cancel(call, &mut events);
            self.changed(id);
        }
    }

    /// Does all pending work without blocking.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll(&mut self) -> io::Result<()> {
        // Read before the poll, so that all bytes that have arrived by now are read before a timeout is reported.
        let now = self.events.clock().now();
        let ready = self.events.poll()?;
        self.for_each_member(|member, events| member.wake(now, events));
        let mut outcome = Ok(());
        for one in ready {
            // An unknown token is that of a member that was removed.
            if let Some((member, mut events)) = self.member(MemberId::of_token(one.token)) {
                let served = member.ready(now, one, &mut events);
                outcome = outcome.and(served);
            }
        }
        // Even after an error, because the other members have deadlines.
        self.for_each_member(|member, events| member.poll(now, events));
        self.arm(self.members.poll_timeout());
        outcome
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<LoopEvent> {
        let Some(event) = self.event_queue.pop_front() else { return self.members.next_event() };
        if let LoopEvent::Session(session, SessionEvent::Changed(call, change)) = &event
            && let Some(session) = self.members.get_as_mut::<LoopSession>(*session)
        {
            session.taken(*call, change);
        }
        Some(event)
    }

    /// Returns the number of a store's calls in progress.
    pub fn pending(&self, store: MemberId) -> usize {
        self.store(store).map_or(0, |store| store.pending)
    }

    /// Must follow a change of a member outside of [`Loop::poll`]: makes the descriptor readable if the change produced
    /// events. The timer is already set for the other members.
    fn changed(&mut self, member: MemberId) {
        if !self.event_queue.is_empty() {
            self.events.waker().wake();
        }
        self.arm(self.members.get(member).and_then(Member::poll_timeout));
        debug_assert!(
            self.members.poll_timeout().is_none_or(|due| self.events.wakes_by(due)),
            "another member has an earlier deadline, for which the timer is not set"
        );
    }

    fn arm(&mut self, due: Option<Instant>) {
        if let Some(due) = due {
            self.events.wake_at(due);
        }
    }
}

/// Maximum number of keys in an event.
const KEYS_NAMED_MAX: usize = 64;

/// Returns the keys of a call without the scope.
fn names_of(call: &Call<'_>, scope: &[u8]) -> Vec<Vec<u8>> {
    let name = |key: Key<'_>| strip_scope(scope, &key);
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
