//! A connection to a store from its first address to its last byte: dialling and talking, composed.

use crate::error::{Cause, ErrorKind, Failure, Phase, Violation};
use crate::limits::ClientLimits;
use crate::store::call::CallId;
use crate::store::client_conn::{ClientConn, Event, GREETING_BYTES};
use crate::store::dial::{DialInput, DialOptions, DialOutput, DialState, Dialer, Family, Rounds};
use crate::time::Instant;

/// What happened to a link. Received bytes go to [`Link::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkInput<'a> {
    /// The host has addresses of these families, in the resolver's order.
    Resolved(&'a [Family]),
    /// The host has no address; the resolver's error number.
    Unresolved(ErrorKind, Cause),
    /// The address accepted.
    Connected,
    /// The connection was not made.
    ConnectFailed(ErrorKind, Cause),
    /// The connection ended.
    Ended(Cause),
    /// Time passed.
    Tick,
}

/// What is to be done for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOutput {
    /// Look the host's addresses up.
    Resolve,
    /// Connect to the address with this index in what was resolved.
    Connect(u8),
    /// Send these bytes in one write.
    Greet([u8; GREETING_BYTES]),
    /// Close the connection, or stop making it.
    Disconnect,
    /// Calls may begin.
    Ready,
    /// There will be no connection.
    Failed(Failure),
}

/// One link, with room for `PENDING` calls.
#[derive(Debug)]
pub struct Link<const PENDING: usize> {
    dialer: Dialer,
    conn: ClientConn<PENDING>,
    limits: ClientLimits,
    nonce: u32,
}

impl<const PENDING: usize> Link<PENDING> {
    /// Sets out at `now`; the first output is [`LinkOutput::Resolve`]. `seed` spreads the pauses and numbers the PINGs.
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

    /// Takes in what happened. After [`LinkInput::Ended`] on a ready link, ask [`ClientConn::lose`] for its calls.
    pub fn handle(&mut self, now: Instant, input: LinkInput<'_>) {
        let input = match input {
            LinkInput::Resolved(families) => DialInput::Resolved(families),
            LinkInput::Unresolved(kind, cause) => DialInput::Unresolved(kind, cause),
            LinkInput::Connected => {
                // A greeting that was lost with its connection is forgotten with it.
                self.conn = ClientConn::new(self.limits, self.nonce);
                DialInput::Connected
            }
            LinkInput::ConnectFailed(kind, cause) => DialInput::Failed(kind, cause),
            LinkInput::Ended(cause) => DialInput::Failed(ErrorKind::ServerGone, cause),
            LinkInput::Tick => DialInput::Tick,
        };
        self.dialer.handle(now, input);
    }

    /// What is to be done next, in order.
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

    /// When [`LinkInput::Tick`] is due. A ready link has no timers of its own: deadlines belong to calls.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.dialer.poll_timeout()
    }

    /// Reads on in received bytes, as [`ClientConn::receive`] does. The greeting's echo becomes
    /// [`LinkOutput::Ready`], and what is no echo [`LinkOutput::Failed`].
    ///
    /// # Errors
    /// The peer broke the protocol after the greeting; the link is of no use any more.
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

    /// Where the link stands.
    #[must_use]
    pub const fn state(&self) -> DialState {
        self.dialer.state()
    }

    /// What a caller would be told if dialling ended now.
    #[must_use]
    pub fn failure(&self, now: Instant) -> Failure {
        self.dialer.failure(now)
    }

    /// How far a call has come.
    #[must_use]
    pub fn phase(&self, id: CallId) -> Option<Phase> {
        self.conn.phase(id)
    }

    /// The connection of a ready link.
    pub const fn conn(&mut self) -> &mut ClientConn<PENDING> {
        &mut self.conn
    }
}
