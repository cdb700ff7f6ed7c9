//! One connection of a client: its link, its unsent bytes and its stream.

use super::super::world::SimContext;
use crate::sim::harness::network::{Side, Stream};
use rendezvous_core::limits::ClientLimits;
use rendezvous_core::node::client::link::Link;
use rendezvous_core::store::call::{Call, CallId, GetMode, Outcome};
use rendezvous_core::store::client_conn::{BeginError, Event};
use rendezvous_core::store::dial::{DialOptions, DialState, Rounds};
use rendezvous_core::time::{Duration, Instant};

/// Calls that a connection can have in its table: few, so that it is sometimes full.
const PENDING: usize = 3;

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) number: u32,
    pub(super) link: Link<PENDING>,
    pub(super) dial_timeout: Duration,
    pub(super) stream: Option<Stream>,
    /// Number of the server's process at the other end.
    pub(super) epoch: Option<u32>,
    /// Unsent bytes.
    pub(super) out: Vec<u8>,
    /// Bytes of calls that `out` has taken so far.
    pub(super) taken: u64,
    /// Whether a call has begun on it.
    pub(super) used: bool,
}

/// Meaning of received bytes, and the call that they belong to.
pub(super) struct ConnectionEvent<'b> {
    pub(super) call: CallId,
    pub(super) what: What<'b>,
}

pub(super) enum What<'b> {
    Count,
    Value(usize),
    Chunk(&'b [u8]),
    Proceed,
    Done(Outcome),
}

impl<'b> ConnectionEvent<'b> {
    pub(super) fn of(event: Event<'b>) -> Self {
        let (call, what) = match event {
            // The link handles this event itself. Id 0 stands for the greeting.
            Event::Greeted => (CallId(0), What::Count),
            Event::Count { id, .. } => (id, What::Count),
            Event::ValueStart { id, bytes } => (id, What::Value(usize::try_from(bytes).unwrap_or(0))),
            Event::ValueChunk { id, bytes } => (id, What::Chunk(bytes)),
            Event::Proceed { id } => (id, What::Proceed),
            Event::Done { id, outcome } => (id, What::Done(outcome)),
        };
        Self { call, what }
    }
}

impl ClientConnection {
    pub(super) fn dial(number: u32, now: Instant, timeout: Duration, rounds: Rounds, seed: u64) -> Self {
        let (options, limits) = (DialOptions::default(), ClientLimits::default());
        let link = Link::new(now, now + timeout, rounds, options, limits, seed);
        Self {
            number,
            link,
            dial_timeout: timeout,
            stream: None,
            epoch: None,
            out: Vec::new(),
            taken: 0,
            used: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.link.dialer.state() == DialState::Ready
    }

    /// Returns this connection, if a call can begin on it.
    pub(super) fn if_free(&mut self) -> Option<&mut Self> {
        (self.is_ready() && self.link.conn.may_begin().is_ok()).then_some(self)
    }

    /// Returns the number of bytes of calls that were sent.
    pub(super) fn left(&self) -> u64 {
        self.taken.saturating_sub(self.out.len() as u64)
    }

    pub(super) fn begin(&mut self, id: CallId, call: &Call<'_>, mode: GetMode) -> Result<(), BeginError> {
        let mut bytes = Vec::new();
        self.link.conn.begin(id, call, mode, &mut bytes)?;
        self.used = true;
        self.push(&bytes);
        Ok(())
    }

    pub(super) fn proceed(&mut self, id: CallId, call: &Call<'_>) -> Result<(), BeginError> {
        let mut bytes = Vec::new();
        self.link.conn.proceed(id, call, &mut bytes)?;
        self.push(&bytes);
        Ok(())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.taken += bytes.len() as u64;
        self.out.extend_from_slice(bytes);
    }

    /// Sends as many bytes as the network accepts.
    pub(super) fn flush(&mut self, context: &mut SimContext) {
        let Some(stream) = self.stream else { return };
        if self.out.is_empty() {
            return;
        }
        // A broken connection is reported to its reader.
        let count = context.network.write(context.now, stream, Side::Client, &self.out).unwrap_or(0);
        self.out.drain(..count);
    }

    pub(super) fn hang_up(&mut self, context: &mut SimContext) {
        self.out.clear();
        if let Some(stream) = self.stream.take() {
            context.network.close(context.now, stream, Side::Client);
        }
    }
}
