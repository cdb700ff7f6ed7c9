//! Connection to a store, from the first connection attempt to the last byte: a dialer and a protocol machine.

use crate::error::{Cause, ErrorKind, Failure, Phase, Violation};
use crate::limits::ClientLimits;
use crate::store::call::CallId;
use crate::store::client_conn::{ClientConn, Event, GREETING_BYTES};
use crate::store::dial::{DialInput, DialOptions, DialOutput, DialState, Dialer, Family, Rounds};
use crate::time::Instant;

/// Event of a link. Received bytes are passed to [`Link::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkInput<'a> {
    /// The name was resolved: the families of its addresses, in the resolver's order.
    Resolved(&'a [Family]),
    /// The name was not resolved: the kind of failure and the resolver's error number.
    Unresolved(ErrorKind, Cause),
    /// The connection was established.
    Connected,
    /// The connection was not established.
    ConnectFailed(ErrorKind, Cause),
    /// The established connection ended.
    Ended(Cause),
    /// Time passed.
    Tick,
}

/// Action that the caller carries out for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOutput {
    /// Resolve the name of the host.
    Resolve,
    /// Connect to the resolved address with this index.
    Connect(u8),
    /// Send these bytes in one write.
    Greet([u8; GREETING_BYTES]),
    /// Close the connection, or stop connecting.
    Disconnect,
    /// The link is ready for calls.
    Ready,
    /// The link will never be ready.
    Failed(Failure),
}

/// Link with capacity for `PENDING` calls.
#[derive(Debug)]
pub struct Link<const PENDING: usize> {
    dialer: Dialer,
    conn: ClientConn<PENDING>,
    limits: ClientLimits,
    nonce: u32,
}

impl<const PENDING: usize> Link<PENDING> {
    /// Creates a link that starts connecting at `now`. The first output is [`LinkOutput::Resolve`]. `seed` randomizes
    /// the retry delays and the number that PING carries.
    #[must_use]
    pub fn new(
        now: Instant,
        deadline: Instant,
        rounds: Rounds,
        options: DialOptions,
        limits: ClientLimits,
        seed: u64,
    ) -> Self {
        let nonce = u32::try_from(seed >> 32).unwrap_or_default();
        Self {
            dialer: Dialer::new(now, deadline, rounds, options, seed),
            conn: ClientConn::new(limits, nonce),
            limits,
            nonce,
        }
    }

    /// Handles an event. After [`LinkInput::Ended`] on a ready link, [`ClientConn::lose`] returns the calls it had.
    pub fn handle(&mut self, now: Instant, input: LinkInput<'_>) {
        let input = match input {
            LinkInput::Resolved(families) => DialInput::Resolved(families),
            LinkInput::Unresolved(kind, cause) => DialInput::Unresolved(kind, cause),
            LinkInput::Connected => {
                // Discards the state of a greeting that was lost with an earlier connection.
                self.conn = ClientConn::new(self.limits, self.nonce);
                DialInput::Connected
            }
            LinkInput::ConnectFailed(kind, cause) => DialInput::Failed(kind, cause),
            LinkInput::Ended(cause) => DialInput::Failed(ErrorKind::ServerGone, cause),
            LinkInput::Tick => DialInput::Tick,
        };
        self.dialer.handle(now, input);
    }

    /// Returns the next action, in order.
    pub fn poll_output(&mut self) -> Option<LinkOutput> {
        Some(match self.dialer.poll_output()? {
            DialOutput::Resolve => LinkOutput::Resolve,
            DialOutput::Connect(index) => LinkOutput::Connect(index),
            DialOutput::Greet => LinkOutput::Greet(self.conn.greet()),
            DialOutput::Disconnect => LinkOutput::Disconnect,
            DialOutput::Ready => LinkOutput::Ready,
            DialOutput::Failed(failure) => LinkOutput::Failed(failure),
        })
    }

    /// Returns when [`LinkInput::Tick`] is due. A ready link has no timers: deadlines belong to calls.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.dialer.poll_timeout()
    }

    /// Parses received bytes, as [`ClientConn::receive`] does. The echo of the greeting leads to [`LinkOutput::Ready`],
    /// anything else in its place to [`LinkOutput::Failed`].
    ///
    /// # Errors
    /// The peer violated the protocol after the greeting. The caller must close the connection.
    pub fn receive<'b>(
        &mut self,
        now: Instant,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Event<'b>>, Violation> {
        match self.conn.receive(bytes) {
            Ok(Some(Event::Greeted)) => {
                self.dialer.handle(now, DialInput::Greeted);
                self.conn.receive(bytes)
            }
            Err(violation) if self.state() == DialState::Greeting => {
                self.dialer.handle(now, DialInput::Violated(violation));
                Ok(None)
            }
            other => other,
        }
    }

    /// Returns the state of the dialer.
    #[must_use]
    pub const fn state(&self) -> DialState {
        self.dialer.state()
    }

    /// Returns the failure that the callers would get if connecting ended now.
    #[must_use]
    pub fn failure(&self, now: Instant) -> Failure {
        self.dialer.failure(now)
    }

    /// Returns the phase of a call.
    #[must_use]
    pub fn phase(&self, id: CallId) -> Option<Phase> {
        self.conn.phase(id)
    }

    /// Returns the protocol machine. It accepts calls once the link is ready.
    pub const fn conn(&mut self) -> &mut ClientConn<PENDING> {
        &mut self.conn
    }
}
