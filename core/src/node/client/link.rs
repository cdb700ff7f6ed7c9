//! Connection to a store, from the first connection attempt to the last byte: a dialer and a protocol machine.

use crate::error::{Failure, Phase, Violation};
use crate::limits::ClientLimits;
use crate::store::call::CallId;
use crate::store::client_conn::{ClientConn, Event};
use crate::store::dial::{DialInput, DialOptions, DialOutput, DialState, Dialer, Rounds};
use crate::time::Instant;
use core::net::SocketAddr;

/// Link with capacity for `PENDING` calls.
#[derive(Debug)]
pub struct Link<const PENDING: usize> {
    dialer: Dialer,
    conn: ClientConn<PENDING>,
    limits: ClientLimits,
    nonce: u32,
}

impl<const PENDING: usize> Link<PENDING> {
    /// Creates a link that starts connecting at `now`. The first output is [`DialOutput::Resolve`]. `seed` randomizes
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

    /// Handles an event of the connection that is being established.
    pub fn handle(&mut self, now: Instant, input: DialInput<'_>) {
        if input == DialInput::Connected {
            // Discards the state of a greeting that was lost with an earlier connection.
            self.conn = ClientConn::new(self.limits, self.nonce);
        }
        self.dialer.handle(now, input);
    }

    /// Returns the next action, in order. The greeting is [`ClientConn::greet`].
    pub fn poll_output(&mut self) -> Option<DialOutput> {
        self.dialer.poll_output()
    }

    /// Returns when [`DialInput::Tick`] is due. A ready link has no timers: deadlines belong to calls.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.dialer.poll_timeout()
    }

    /// Parses received bytes, as [`ClientConn::receive`] does. The echo of the greeting leads to [`DialOutput::Ready`],
    /// anything else in its place to [`DialOutput::Failed`].
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

    /// Returns the address that is being tried, or that is connected.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.dialer.current()
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
