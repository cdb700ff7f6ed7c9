//! Connection to a store, from the first connection attempt to the last byte: a dialer and a protocol machine.

use crate::error::Violation;
use crate::limits::ClientLimits;
use crate::store::client_conn::{ClientConn, Event};
use crate::store::dial::{DialInput, DialOptions, DialState, Dialer, Rounds};
use crate::time::Instant;

/// Link with capacity for `PENDING` calls.
#[derive(Debug)]
pub struct Link<const PENDING: usize> {
    /// Establishes the connection. A ready link has no timers: deadlines belong to calls.
    pub dialer: Dialer,
    /// Accepts calls once the link is ready. Each connection attempt that succeeds begins with [`ClientConn::greet`].
    pub conn: ClientConn<PENDING>,
}

impl<const PENDING: usize> Link<PENDING> {
    /// Creates a link that starts connecting at `now`. `seed` randomizes the retry delays and the number that PING
    /// carries.
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
        }
    }

    /// Parses received bytes, as [`ClientConn::receive`] does. The echo of the greeting leads to
    /// [`DialOutput::Ready`](crate::store::dial::DialOutput::Ready), anything else in its place to
    /// [`DialOutput::Failed`](crate::store::dial::DialOutput::Failed).
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
            Err(violation) if self.dialer.state() == DialState::Greeting => {
                self.dialer.handle(now, DialInput::Violated(violation));
                Ok(None)
            }
            other => other,
        }
    }
}
