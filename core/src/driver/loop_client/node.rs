//! Sessions and nodes of a loop.

use super::session::{LoopSession, SessionEvent};
use super::{Loop, LoopEvent, SessionId, StoreId, SubmitError};
use crate::driver::cancel::CancelToken;
use crate::driver::native_client::{NativeClientOptions, NativeRequest};
use crate::driver::random::random_seed;
use crate::driver::rendezvous::{
    HandlerError, entry_of, full_host_name, host_name, labels_of, session_options,
};
use crate::driver::socket::endpoint_text;
use crate::driver::store::{Timeout, not_native};
use crate::error::Operation;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::store::call::CallId;
use alloc::boxed::Box;
use alloc::sync::Arc;

impl Loop {
    /// Adds a session with the server at `host` (a name or an address) and `port`, which starts to connect at once.
    /// Without a grace period, the calls that are made before the next [`Loop::poll`] are sent together with the
    /// greeting, in one round trip.
    pub fn add_session(&mut self, host: &str, port: u16, options: NativeClientOptions) -> SessionId {
        let id = SessionId(self.next_number());
        let peer: Box<str> = endpoint_text(host, port).into();
        let session = LoopSession::new(id, (host, port), peer, options, &self.events, random_seed());
        self.sessions.insert(id, Box::new(session));
        self.session_changed(id);
        id
    }

    /// Adds a session for the node that these parameters of the `rdzv` backend describe, which joins with
    /// [`Session::next_round`]. A node without a name gets `HOST_PID_NUMBER`. A loop hosts no server, so the
    /// parameters for hosting are ignored.
    ///
    /// # Errors
    /// The parameters are invalid, or the host has no name.
    pub fn add_node(&mut self, parameters: &RendezvousParameters) -> Result<SessionId, HandlerError> {
        let settings = RdzvSettings::read(parameters)?;
        let (host, address) = match &settings.address {
            Some(address) => (address.clone(), address.clone()),
            None => (
                host_name().map_err(HandlerError::HostName)?,
                full_host_name(&CancelToken::new()).map_err(HandlerError::HostName)?,
            ),
        };
        // Rendezvous handlers of this process, and other loops, number their nodes from 0 on.
        let number = (random_seed() >> 32) as u32;
        let node = settings.node_name(&host, std::process::id(), number);
        let options = session_options(&settings, &node, settings.timeouts.join);
        let id = self.add_session(&settings.host, settings.port, options);
        if let Some(member) = self.sessions.get_mut(&id) {
            member.settings = Some((settings, address.into(), Arc::clone(&self.last_rounds)));
        }
        Ok(id)
    }

    /// Closes a session's connection without a goodbye, as when the process dies: if the node is in a round, the
    /// other nodes see it as dead. [`Session::close`] says goodbye. No event of the session follows.
    pub fn remove_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.event_queue.retain(|event| match event {
            LoopEvent::Store(over) => over.store != session.store(),
            LoopEvent::Session(of, _) => *of != session,
            LoopEvent::Member(..) => true,
        });
    }

    /// Returns a session of the loop, to submit calls. `None`: the loop has no such session.
    pub fn session(&mut self, session: SessionId) -> Option<Session<'_>> {
        self.sessions.get(&session)?;
        Some(Session { events: self, id: session })
    }

    /// Returns the session whose keys form this store, for an operation that needs one.
    ///
    /// # Errors
    /// The store is not that of a session ([`crate::error::ErrorKind::Unsupported`], with the store's kind), or there
    /// is no such store.
    pub fn native(&mut self, store: StoreId, operation: Operation) -> Result<Session<'_>, SubmitError> {
        if let Some(member) = self.stores.get(&store) {
            return Err(not_native(operation, &member.peer, "a store over the c10d protocol").into());
        }
        self.session(SessionId(store.0)).ok_or(SubmitError::UnknownStore)
    }

    pub(super) fn session_changed(&mut self, session: SessionId) {
        if let Some(member) = self.sessions.get_mut(&session) {
            member.execute(&self.events, &mut self.event_queue);
        }
        self.changed();
    }
}

/// Session of a loop, to submit requests.
#[derive(Debug)]
pub struct Session<'l> {
    events: &'l mut Loop,
    id: SessionId,
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
    pub fn submit(&mut self, request: &NativeRequest<'_>, timeout: Timeout) -> Result<CallId, SubmitError> {
        let member = self.events.sessions.get_mut(&self.id).ok_or(SubmitError::UnknownStore)?;
        let id = member.begin(request, timeout)?;
        if matches!(request, NativeRequest::Join(..)) {
            let session = self.id;
            let is_earlier = |event: &LoopEvent| match event {
                LoopEvent::Session(of, SessionEvent::Node(_)) => *of == session,
                _ => false,
            };
            self.events.event_queue.retain(|event| !is_earlier(event));
        }
        self.events.session_changed(self.id);
        Ok(id)
    }

    /// Joins the run that the node was added for. `None`: it was not added with [`Loop::add_node`].
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn next_round(&mut self) -> Option<Result<CallId, SubmitError>> {
        let member = self.events.sessions.get_mut(&self.id)?;
        let (settings, address, rounds) = member.settings.take()?;
        let (labels, node) = (labels_of(&settings), member.options.node.clone());
        let join_terms = (settings.timeouts.join, rounds.next(&settings));
        let (entry, role) = entry_of(&settings, (&node, &address), &labels, join_terms);
        let begun = self.submit(&NativeRequest::Join(entry, role), Timeout::Default);
        if let Some(member) = self.events.sessions.get_mut(&self.id) {
            member.settings = Some((settings, address, rounds));
        }
        Some(begun)
    }

    /// Returns the run that the node was added for, if it was added with [`Loop::add_node`].
    #[must_use]
    pub fn run_id(&self) -> Option<&str> {
        Some(self.events.sessions.get(&self.id)?.settings.as_ref()?.0.run_id.as_str())
    }

    /// Returns the server's name in error messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.events.sessions.get(&self.id).map_or("", |member| &member.peer)
    }

    /// Returns the node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        self.events.sessions.get(&self.id).map_or("", |member| member.options.node.as_str())
    }
}
