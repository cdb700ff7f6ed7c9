//! Sessions and nodes of a loop.

use super::loop_store::LoopStore;
use super::member::{MemberEvents, MemberId};
use super::session::LoopSession;
use super::{Loop, SubmitError, SubmitResult};
use crate::driver::cancel::CancelToken;
use crate::driver::native_client::{NativeClientOptions, NativeRequest};
use crate::driver::random::random_seed;
use crate::driver::rendezvous::{HandlerError, full_host_name, host_name, session_options};
use crate::driver::store::{Timeout, not_native};
use crate::error::Operation;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use alloc::sync::Arc;

#[cfg(doc)]
use super::session::SessionEvent;

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
    /// [`Session::next_round`]. A node without a name gets `HOST_PID_NUMBER`. A loop hosts no server, so the
    /// parameters for hosting are ignored.
    ///
    /// # Errors
    /// The parameters are invalid, or the host has no name.
    pub fn add_node(&mut self, parameters: &RendezvousParameters) -> Result<MemberId, HandlerError> {
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
        let settings = (settings, address.into(), Arc::clone(&self.last_rounds));
        self.with_member(id, |session: &mut LoopSession, _| session.settings = Some(settings));
        Ok(id)
    }

    /// Closes a session's connection without a goodbye, as when the process dies: if the node is in a round, the
    /// other nodes see it as dead. [`Session::close`] says goodbye. No event of the session follows.
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
    #[must_use]
    pub fn run_id(&self) -> Option<&str> {
        Some(self.member()?.settings.as_ref()?.0.run_id.as_str())
    }

    /// Returns the server's name in error messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.member().map_or("", |session| &session.peer)
    }

    /// Returns the node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        self.member().map_or("", |session| session.options.node.as_str())
    }
}
