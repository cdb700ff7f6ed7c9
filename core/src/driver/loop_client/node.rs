//! A node's membership in a run, from a loop.

use super::session::{LoopSession, SessionEvent};
use super::{Loop, LoopEvent, SessionId, SubmitError};
use crate::driver::call_error::CallError;
use crate::driver::cancel::CancelToken;
use crate::driver::native_client::calls::wait_millis;
use crate::driver::native_client::{NativeClientOptions, SubmitPath, check_reason, participants};
use crate::driver::random::random_seed;
use crate::driver::rendezvous::{
    HandlerError, entry_of, full_host_name, host_name, labels_of, session_options,
};
use crate::driver::socket::endpoint_text;
use crate::driver::store::Timeout;
use crate::error::Operation;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::participant::{Entry, Role};
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::store::call::CallId;
use crate::store::op::Key;
use crate::time::Duration;
use crate::wire::native::ClientFrame;
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

    pub(super) fn session_changed(&mut self, session: SessionId) {
        if let Some(member) = self.sessions.get_mut(&session) {
            member.execute(&self.events, &mut self.event_queue);
        }
        self.changed();
    }
}

/// Session of a loop. Each function but the last ones submits a call, whose end is an event.
#[derive(Debug)]
pub struct Session<'l> {
    pub(super) events: &'l mut Loop,
    pub(super) id: SessionId,
}

impl Session<'_> {
    pub(super) fn begin(
        &mut self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        span: Duration,
        submit_path: SubmitPath,
    ) -> Result<CallId, SubmitError> {
        let member = self.events.sessions.get_mut(&self.id).ok_or(SubmitError::UnknownStore)?;
        let id = member.begin(operation, frame, span, submit_path)?;
        self.events.session_changed(self.id);
        Ok(id)
    }

    pub(super) fn span(&self, timeout: Timeout) -> Duration {
        let member = self.events.sessions.get(&self.id);
        member.map_or(Duration::ZERO, |member| member.options.timeouts.wait_budget(timeout).0)
    }

    /// Joins a run. The response is [`super::SessionAnswer::Joined`], and the entry contains the timeout. While the
    /// node is a spare, no timeout runs. Earlier events of the node that were not taken are dropped.
    ///
    /// # Errors
    /// The node may not join in its current role, the session is over, or a limit is exceeded.
    pub fn join(&mut self, entry: &Entry<'_>, role: Role) -> Result<CallId, SubmitError> {
        let operation = match role {
            Role::Member => Operation::Join,
            Role::Spare => Operation::Standby,
        };
        let (span, submit_path) = (Duration::from_millis(entry.join_timeout_ms), SubmitPath::Join);
        let member = self.events.sessions.get_mut(&self.id).ok_or(SubmitError::UnknownStore)?;
        let id = member.begin(operation, &entry.frame(role), span, submit_path)?;
        let session = self.id;
        let is_earlier = |event: &LoopEvent| match event {
            LoopEvent::Session(of, SessionEvent::Node(_)) => *of == session,
            _ => false,
        };
        self.events.event_queue.retain(|event| !is_earlier(event));
        self.events.session_changed(self.id);
        Ok(id)
    }

    /// Joins the run that the node was added for, as [`Session::join`]. `None`: it was not added with
    /// [`Loop::add_node`].
    ///
    /// # Errors
    /// As [`Session::join`].
    pub fn next_round(&mut self) -> Option<Result<CallId, SubmitError>> {
        let member = self.events.sessions.get_mut(&self.id)?;
        let (settings, address, rounds) = member.settings.take()?;
        let (labels, node) = (labels_of(&settings), member.options.node.clone());
        let join_terms = (settings.timeouts.join, rounds.next(&settings));
        let (entry, role) = entry_of(&settings, (&node, &address), &labels, join_terms);
        let begun = self.join(&entry, role);
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

    /// Leaves the run, which goes on.
    ///
    /// # Errors
    /// The node is in no run, the session is over, or a limit is exceeded.
    pub fn leave(&mut self, run_id: &[u8], timeout: Timeout) -> Result<CallId, SubmitError> {
        let leave = ClientFrame::Leave { run_id: Key::raw(run_id) };
        self.begin(Operation::Leave, &leave, self.span(timeout), SubmitPath::Leave)
    }

    /// Closes a run for good.
    ///
    /// # Errors
    /// The session is over, or a limit is exceeded. So for the functions below.
    pub fn close_run(&mut self, run_id: &[u8], timeout: Timeout) -> Result<CallId, SubmitError> {
        let close = ClientFrame::Close { run_id: Key::raw(run_id) };
        self.begin(Operation::Close, &close, self.span(timeout), SubmitPath::Plain)
    }

    /// Closes a run and notifies its nodes of the reason why the job failed, of at most 1,024 bytes.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn fail_run(
        &mut self,
        run_id: &[u8],
        message: &str,
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        if let Err(loss) = check_reason(message) {
            let peer = self.events.sessions.get(&self.id).map_or("", |member| &member.peer);
            let error = loss.into_error(Operation::Close, (Some(Key::raw(run_id)), 1), peer);
            return Err(CallError::from(error).into());
        }
        let fail = ClientFrame::Fail { run_id: Key::raw(run_id), message: message.as_bytes() };
        self.begin(Operation::Close, &fail, self.span(timeout), SubmitPath::Plain)
    }

    /// Requests the state of a run.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn run_info(&mut self, run_id: &[u8], timeout: Timeout) -> Result<CallId, SubmitError> {
        let ask = ClientFrame::RunInfo { run_id: Key::raw(run_id) };
        self.begin(Operation::RunInfo, &ask, self.span(timeout), SubmitPath::Plain)
    }

    /// Requests members of a round in the order of their ranks: at most `count_max`, from `first` on.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn members(
        &mut self,
        run_id: &[u8],
        round: u64,
        (first, count_max): (u32, u32),
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let run_id = Key::raw(run_id);
        let ask = ClientFrame::Members { run_id, round, first_node_rank: first, count_max };
        self.begin(Operation::Members, &ask, self.span(timeout), SubmitPath::Plain)
    }

    /// Arrives at a barrier under the session's name and waits for the others: those with these names, or `count` of
    /// them when there are no names; as [`crate::driver::native_client::NativeClient::barrier`].
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn barrier(
        &mut self,
        key: &[u8],
        generation: u64,
        (count, names): (u32, &[&[u8]]),
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let member = self.events.sessions.get(&self.id).ok_or(SubmitError::UnknownStore)?;
        let (span, wait_mode) = member.options.timeouts.wait_budget(timeout);
        let (timeout_ms, participants) = (wait_millis(span, wait_mode), participants(count, names));
        let (scope, name) = (member.options.scope.clone(), member.options.node.clone());
        let (key, name) = (Key::scoped(&scope, key), name.as_bytes());
        let barrier = ClientFrame::Barrier { key, generation, name, timeout_ms, participants };
        self.begin(Operation::NamedBarrier, &barrier, span, SubmitPath::Plain)
    }

    /// Ends the session with a goodbye to the server, so that the node is not considered dead.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn close(&mut self, timeout: Timeout) -> Result<CallId, SubmitError> {
        self.begin(Operation::Bye, &ClientFrame::Bye {}, self.span(timeout), SubmitPath::Bye)
    }
}
