//! Blocking c10d client: any thread may call, and the calling thread drives a connection of its own.
//!
//! Each call takes a connection from a pool, the last used first, or opens one. So a wait that is pending in one
//! thread never delays another thread's call. A call on a pooled connection costs one send and one receive, and with
//! keys and values of up to 256 bytes no allocation.

mod dial;
mod perform;
mod pool;
mod wire;

use crate::driver::backend::{Backend, BarrierMethod, CANCELLED, Description, Span};
use crate::driver::call_error::Refusal;
use crate::driver::last_try::LastTry;
use crate::driver::prelude::*;
use crate::driver::random::random_seed;
use crate::driver::socket::{KeepAlive, endpoint_text};
use crate::driver::take::Take;
use crate::driver::timeout::{Timeout, Timeouts};
use crate::error::{Failure, Operation};
use crate::limits::ClientLimits;
use crate::rng::Rng;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::dial::{DialOptions, Rounds};
use core::sync::atomic::{AtomicU64, Ordering};
use pool::{Entered, HoldTime, Pool};

/// Options of a client.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Timeout of calls that set none.
    pub timeout: Duration,
    /// Timeout of the first connection, with all its attempts.
    pub connect_timeout: Duration,
    /// Timeout of the server's response to a call that does not wait.
    pub response_timeout: Duration,
    /// Prefix of every key on the wire; PyTorch's clients use `/`.
    pub scope: Box<[u8]>,
    /// Keepalive of the connections; `None`: no keepalive.
    pub keep_alive: Option<KeepAlive>,
    /// Connection attempts.
    pub dial: DialOptions,
    /// Limits of the client.
    pub limits: ClientLimits,
    /// Ends the connecting. The calls of the store have tokens of their own.
    pub token: CancelToken,
    /// Receives the last failed attempt to connect.
    pub last_try: LastTry,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(300),
            response_timeout: Duration::from_secs(30),
            scope: b"/"[..].into(),
            keep_alive: Some(KeepAlive::default()),
            dial: DialOptions::default(),
            limits: ClientLimits::default(),
            token: CancelToken::new(),
            last_try: LastTry::default(),
        }
    }
}

impl StoreOptions {
    /// Returns the default timeouts of calls.
    pub const fn timeouts(&self) -> Timeouts {
        Timeouts { call: self.timeout, answer: self.response_timeout }
    }

    /// Resolves [`StoreOptions::connect_timeout`]: returns the time until the deadline, and how often each address is
    /// tried.
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
}

impl Client {
    /// Connects to the store at `host` (a name or an address) and `port`.
    ///
    /// # Errors
    /// The reason why there is no connection by the end of [`StoreOptions::connect_timeout`] (zero: after one attempt
    /// at each address), or [`ErrorKind::Cancelled`](crate::error::ErrorKind::Cancelled).
    pub fn connect(host: &str, port: u16, options: StoreOptions) -> Result<Self, CallError> {
        let token = options.token.clone();
        let client = Self {
            host: host.into(),
            port,
            peer: endpoint_text(host, port).into(),
            pool: Arc::new(Pool::new(options.limits)),
            options,
            clock: Clock::new(),
            seeds: AtomicU64::new(random_seed()),
        };
        let pool = Arc::clone(&client.pool);
        let _guard = token.on_cancel(move || pool.wake());
        let ((after, rounds), began) = (client.options.connect_budget(), client.clock.now());
        let span = Span { began, deadline: began + after, wait_mode: WaitMode::Wait, token: &token };
        let entered =
            client.pool.enter(HoldTime::Brief, after, &token).and_then(|Entered { ticket, .. }| {
                let dialled = client.dial(ticket, span, rounds);
                let result = dialled.as_ref().map(drop).map_err(|&failure| failure);
                client.pool.leave(ticket, dialled.ok());
                result
            });
        match entered {
            Ok(()) => Ok(client),
            Err(failure) => {
                let failure = Failure { elapsed: client.clock.now().since(began), ..failure };
                Err(CallError::new(Operation::Connect, (None, 0), &client.peer, failure))
            }
        }
    }

    /// Returns the number of connections that no call uses.
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_count()
    }

    fn seed(&self) -> u64 {
        Rng::new(self.seeds.fetch_add(1, Ordering::Relaxed)).next_u64()
    }
}

impl Backend for Client {
    fn description(&self) -> Description<'_> {
        Description {
            scope: &self.options.scope,
            peer: &self.peer,
            kind: "a store over the c10d protocol",
            endpoint: Some((&self.host, self.port)),
            timeouts: self.options.timeouts(),
            clock: self.clock,
            barrier_method: BarrierMethod::Native,
        }
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.drive(call, span, take).map_err(Refusal::from)
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        let options = StoreOptions { token: token.clone(), ..self.options.clone() };
        Ok(Arc::new(Self::connect(&self.host, self.port, options)?))
    }

    fn wake(&self) {
        self.pool.wake();
    }
}

#[cfg(test)]
mod tests;
