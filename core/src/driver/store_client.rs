//! Blocking c10d client: any thread may call, and the calling thread drives a connection of its own.
//!
//! Each call takes a connection from a pool, the last used first, or opens one. So a wait that is pending in one
//! thread never delays another thread's call. A call on a pooled connection costs one send and one receive, and with
//! keys and values of up to 256 bytes no allocation.

mod dial;
mod perform;
mod pool;
mod wire;

use crate::driver::backend::{Backend, CANCELLED, Meeting, NOT_RELEASED, Span};
use crate::driver::call_error::{CallError, Refusal};
use crate::driver::canceller::Cancellable;
use crate::driver::clock::{Clock, from_now};
use crate::driver::last_try::LastTry;
use crate::driver::pauses::Paused;
use crate::driver::random::random_seed;
use crate::driver::socket::{KeepAlive, endpoint_text};
use crate::driver::take::Take;
use crate::driver::timeout::{Timeout, Timeouts};
use crate::error::{Cause, Failure, Operation};
use crate::limits::ClientLimits;
use crate::rng::Rng;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::dial::{DialOptions, Rounds};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use pool::{Ended, Entered, HoldTime, NEW_EPOCH, Pool};
use wire::Wire;

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Timeout of calls that set none.
    pub timeout: Duration,
    /// Timeout of the first connection, with all its attempts.
    pub connect_timeout: Duration,
    /// Timeout of the server's response to a call that does not wait.
    pub answer_timeout: Duration,
    /// Prefix of every key on the wire; PyTorch's clients use `/`.
    pub scope: Box<[u8]>,
    /// Keepalive of the connections; `None`: no keepalive.
    pub keep_alive: Option<KeepAlive>,
    /// Connection attempts.
    pub dial: DialOptions,
    /// Limits of the client.
    pub limits: ClientLimits,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(300),
            answer_timeout: Duration::from_secs(30),
            scope: b"/"[..].into(),
            keep_alive: Some(KeepAlive::default()),
            dial: DialOptions::default(),
            limits: ClientLimits::default(),
        }
    }
}

impl StoreOptions {
    /// Returns the default timeouts of calls.
    #[must_use]
    pub const fn timeouts(&self) -> Timeouts {
        Timeouts { call: self.timeout, answer: self.answer_timeout }
    }

    /// Resolves [`StoreOptions::connect_timeout`]: returns the time until the deadline, and how often each address is
    /// tried.
    #[must_use]
    pub const fn connect_budget(&self) -> (Duration, Rounds) {
        match self.timeouts().wait_budget(Timeout::After(self.connect_timeout)) {
            (span, WaitMode::Once) => (span, Rounds::One),
            (span, WaitMode::Wait) => (span, Rounds::UntilDeadline),
        }
    }
}

/// Client of one server, the backend of a [`Store`](crate::driver::store::Store) over TCP.
#[derive(Debug)]
pub struct Client {
    host: Box<str>,
    port: u16,
    /// `host:port`, for errors.
    peer: Box<str>,
    options: StoreOptions,
    clock: Clock,
    pool: Arc<Pool>,
    seeds: AtomicU64,
    /// Last failed attempt to connect.
    last_try: LastTry,
}

impl Client {
    /// Connects to the store at `host` (a name or an address) and `port`.
    ///
    /// # Errors
    /// The reason why there is no connection by the end of [`StoreOptions::connect_timeout`] (zero: after one attempt
    /// at each address).
    pub fn connect(host: &str, port: u16, options: StoreOptions) -> Result<Self, CallError> {
        Self::new(host, port, options).connected()
    }

    /// As [`Client::connect`], as a step of `call`: cancelling `call` also ends the connecting.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_cancellable(
        host: &str,
        port: u16,
        options: StoreOptions,
        call: &Cancellable,
    ) -> Result<Self, CallError> {
        Self::connect_telling(host, port, options, call, &LastTry::default())
    }

    /// As [`Client::connect_cancellable`], and keeps the last failed attempt in `last_try`.
    ///
    /// # Errors
    /// As [`Client::connect_cancellable`].
    pub fn connect_telling(
        host: &str,
        port: u16,
        options: StoreOptions,
        call: &Cancellable,
        last_try: &LastTry,
    ) -> Result<Self, CallError> {
        let client = Self { last_try: last_try.clone(), ..Self::new(host, port, options) };
        let pool = Arc::clone(&client.pool);
        let _watch = call.watch(move || pool.cancel());
        client.connected()
    }

    fn new(host: &str, port: u16, options: StoreOptions) -> Self {
        Self {
            host: host.into(),
            port,
            peer: endpoint_text(host, port).into(),
            pool: Arc::new(Pool::new(options.limits)),
            options,
            clock: Clock::new(),
            seeds: AtomicU64::new(random_seed()),
            last_try: LastTry::default(),
        }
    }

    /// Opens the first connection. An earlier cancel counts.
    fn connected(self) -> Result<Self, CallError> {
        let (span, rounds) = self.connecting();
        let span = Span { epoch: Some(NEW_EPOCH), ..span };
        let entered = self.enter(HoldTime::Brief, span).and_then(|Entered { ticket, .. }| {
            let dialled = self.dial(ticket, span, rounds);
            let (wire, result) = split(dialled);
            self.pool.leave(ticket, wire);
            result
        });
        match entered {
            Ok(()) => Ok(self),
            Err(failure) => {
                Err(CallError::new(Operation::Connect, (None, 0), &self.peer, self.aged(failure, span)))
            }
        }
    }

    /// Returns the number of connections that no call uses.
    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_count()
    }

    fn seed(&self) -> u64 {
        Rng::new(self.seeds.fetch_add(1, Ordering::Relaxed)).next_u64()
    }
}

impl Backend for Client {
    fn scope(&self) -> &[u8] {
        &self.options.scope
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn endpoint(&self) -> Option<(&str, u16)> {
        Some((&self.host, self.port))
    }

    fn kind(&self) -> &'static str {
        "a store over the c10d protocol"
    }

    fn timeouts(&self) -> Timeouts {
        self.options.timeouts()
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn meeting(&self) -> Meeting {
        Meeting::Native
    }

    fn perform(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.drive(call, span, take).map_err(Refusal::from)
    }

    fn duplicate(&self, call: &Cancellable) -> Result<Arc<dyn Backend>, CallError> {
        Ok(Arc::new(Self::connect_cancellable(&self.host, self.port, self.options.clone(), call)?))
    }

    fn cancel(&self) {
        self.pool.cancel();
    }

    fn epoch(&self) -> u64 {
        self.pool.epoch()
    }

    fn pause(&self, epoch: u64, span: Duration) -> Paused {
        match self.pool.pause(epoch, from_now(span)) {
            Ok(()) => Paused::Over,
            Err(_) => Paused::Cancelled,
        }
    }
}

fn ended(ended: Ended) -> Failure {
    match ended {
        Ended::Cancelled => CANCELLED,
        Ended::TimeUp => Failure { cause: Cause::Unknown, ..NOT_RELEASED },
    }
}

fn split(dialled: Result<Box<Wire>, Failure>) -> (Option<Box<Wire>>, Result<(), Failure>) {
    match dialled {
        Ok(wire) => (Some(wire), Ok(())),
        Err(failure) => (None, Err(failure)),
    }
}

#[cfg(test)]
mod tests;
