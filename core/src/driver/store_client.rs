//! The blocking client: any thread may call, and the calling thread drives a connection of its own.
//!
//! Each call takes a connection from a pool, last used first, or makes one; so a wait that is pending in one thread
//! never delays another thread's call. A call on a connection that is there costs one send and one receive, and with
//! keys and values of up to 256 bytes no allocation.

mod dial;
mod perform;
mod pool;
mod values;
mod wire;

use crate::barrier::{KeyBarrier, KeyBarrierState};
use crate::driver::call_error::CallError;
use crate::driver::clock::Clock;
use crate::driver::socket::KeepAlive;
use crate::error::{Cause, Effect, ErrorKind, Failure, Operation, Phase};
use crate::limits::ClientLimits;
use crate::rng::Rng;
use crate::store::call::{Call, Outcome, Patience};
use crate::store::dial::{DialOptions, Rounds};
use crate::store::op::{Key, Keys, Pairs, Request};
use crate::time::{Duration, Instant};
use crate::workers::{CHECK_IN, WORKERS_KEY, WorkersStep, WorkersWait};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use pool::{Ended, Entered, Pool, Stay};
pub(super) use values::strip_scope;
use values::{List, NoValue, OneValue};
use wire::{Take, Wire};

/// How long a call may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// As long as [`StoreOptions::timeout`] says.
    #[default]
    Default,
    /// Look once, and do not wait for what is not there. The answer itself may take
    /// [`StoreOptions::answer_timeout`].
    Once,
    /// So long from the call. Zero is [`Timeout::Once`].
    After(Duration),
}

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// How long a call may take that does not say.
    pub timeout: Duration,
    /// How long the first connection may take, with all its attempts; zero: one attempt at each address.
    pub connect_timeout: Duration,
    /// How long a server may take to answer a call that does not wait.
    pub answer_timeout: Duration,
    /// What stands before every key on the wire; PyTorch's clients have `/` there.
    pub scope: Box<[u8]>,
    /// How the kernel watches over the connections; `None`: it does not.
    pub keep_alive: Option<KeepAlive>,
    /// How connections are made.
    pub dial: DialOptions,
    /// Bounds.
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
    /// What a timeout means here: the time until the deadline, and whether the call waits.
    #[must_use]
    pub fn patience(&self, timeout: Timeout) -> (Duration, Patience) {
        match timeout {
            Timeout::Default if self.timeout.is_zero() => (self.answer_timeout, Patience::Once),
            Timeout::Default => (self.timeout, Patience::Wait),
            Timeout::Once | Timeout::After(Duration::ZERO) => (self.answer_timeout, Patience::Once),
            Timeout::After(span) => (span, Patience::Wait),
        }
    }

    /// What [`StoreOptions::connect_timeout`] means: the time until the deadline, and how often each address is tried.
    #[must_use]
    pub fn connect_patience(&self) -> (Duration, Rounds) {
        match self.patience(Timeout::After(self.connect_timeout)) {
            (span, Patience::Once) => (span, Rounds::One),
            (span, Patience::Wait) => (span, Rounds::UntilDeadline),
        }
    }
}

/// A client of one store.
#[derive(Debug)]
pub struct Store {
    host: Box<str>,
    port: u16,
    /// `host:port`, for errors.
    peer: Box<str>,
    options: StoreOptions,
    /// [`StoreOptions::timeout`] at first.
    timeout_nanos: AtomicU64,
    clock: Clock,
    pool: Arc<Pool>,
    seeds: AtomicU64,
}

/// The time that a call has, and whether it waits.
#[derive(Clone, Copy, Debug)]
struct Span {
    began: Instant,
    deadline: Instant,
    patience: Patience,
    /// For a call of several: cancelling ends it also between them. `None`: it begins now.
    epoch: Option<u64>,
}

impl Store {
    /// Connects to the store at `host` (a name or an address) and `port`.
    ///
    /// # Errors
    /// Why there is no connection by the end of [`StoreOptions::connect_timeout`] (zero: after one attempt at each
    /// address).
    pub fn connect(host: &str, port: u16, options: StoreOptions) -> Result<Self, CallError> {
        let store = Self {
            host: host.into(),
            port,
            peer: endpoint_text(host, port).into(),
            pool: Arc::new(Pool::new(options.limits)),
            timeout_nanos: AtomicU64::new(nanos(options.timeout)),
            options,
            clock: Clock::new(),
            seeds: AtomicU64::new(random_seed()),
        };
        let span = store.span(Timeout::After(store.options.connect_timeout));
        let (_, rounds) = store.options.connect_patience();
        let entered = store.enter(Stay::Brief, span).and_then(|Entered { ticket, .. }| {
            let dialled = store.dial(ticket, span, rounds);
            let (wire, result) = split(dialled);
            store.pool.leave(ticket, wire);
            result
        });
        match entered {
            Ok(()) => Ok(store),
            Err(failure) => {
                Err(CallError::new(Operation::Connect, (None, 0), &store.peer, store.aged(failure, span)))
            }
        }
    }

    /// A second, independent client of the same store, with the same options and a connection of its own.
    ///
    /// # Errors
    /// As [`Store::connect`].
    pub fn duplicate(&self) -> Result<Self, CallError> {
        let options = StoreOptions { timeout: self.timeout(), ..self.options.clone() };
        Self::connect(&self.host, self.port, options)
    }

    /// The host, as it was given.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How long a call may take that does not say: [`StoreOptions::timeout`], or what it was set to since.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos.load(Ordering::Relaxed))
    }

    /// Sets how long a call may take that does not say, for later calls in all threads; returns what held before.
    pub fn set_timeout(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.timeout_nanos.swap(nanos(timeout), Ordering::Relaxed))
    }

    /// The options, as they were given.
    #[must_use]
    pub const fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// How many connections wait for calls.
    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.pool.idle_count()
    }

    /// Ends all calls that are under way, in whatever thread, with [`ErrorKind::Cancelled`]. Later calls are as ever.
    pub fn cancel(&self) {
        self.pool.cancel();
    }

    /// Stores a value; the server has it when this returns.
    ///
    /// # Errors
    /// Why it may not be stored. So with all calls below: [`CallError::kind`] says what happened.
    pub fn set(&self, key: &[u8], value: &[u8], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::Set { key: self.key(key), value }, timeout).map(drop)
    }

    /// Waits for a key and reads its value into `value`, whose content is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when the key was not set in time.
    pub fn get(&self, key: &[u8], value: &mut Vec<u8>, timeout: Timeout) -> Result<(), CallError> {
        self.call(Request::Get { key: self.key(key) }, timeout, &mut OneValue(value)).map(drop)
    }

    /// Waits for a key and returns its value.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_owned(&self, key: &[u8], timeout: Timeout) -> Result<Vec<u8>, CallError> {
        let mut value = Vec::new();
        self.get(key, &mut value, timeout).map(|()| value)
    }

    /// Adds to the number under a key (0 when there is none) and returns the sum.
    ///
    /// # Errors
    /// [`ErrorKind::ServerGone`] also when the value is not a number: the server then ends the connection.
    pub fn add(&self, key: &[u8], delta: i64, timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::Add { key: self.key(key), delta }, timeout)
    }

    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty. The answer, which goes
    /// into `value`, is the value then; a missing key with a non-empty `expected` answers `expected`.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        value: &mut Vec<u8>,
        timeout: Timeout,
    ) -> Result<(), CallError> {
        let request = Request::CompareSet { key: self.key(key), expected, desired };
        self.call(request, timeout, &mut OneValue(value)).map(drop)
    }

    /// Waits until every key is there.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when some key was not set in time.
    pub fn wait(&self, keys: &[&[u8]], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::Wait { keys: self.keys(keys) }, timeout).map(drop)
    }

    /// Whether every key is there.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn check(&self, keys: &[&[u8]], timeout: Timeout) -> Result<bool, CallError> {
        let outcome = self.plain(Request::Check { keys: self.keys(keys) }, timeout)?;
        Ok(outcome == Outcome::Ready)
    }

    /// Removes a key; whether there was one.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn delete(&self, key: &[u8], timeout: Timeout) -> Result<bool, CallError> {
        Ok(self.number(Request::Delete { key: self.key(key) }, timeout)? == 1)
    }

    /// Counts the server's keys, also those of other scopes.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn num_keys(&self, timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::NumKeys, timeout)
    }

    /// The keys of this scope, in no order.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn list_keys(&self, timeout: Timeout) -> Result<Vec<Vec<u8>>, CallError> {
        let mut keys = List::default();
        self.call(Request::ListKeys, timeout, &mut keys)?;
        strip_scope(&mut keys.0, &self.options.scope);
        Ok(keys.0)
    }

    /// Adds bytes behind a value, which is created if missing.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn append(&self, key: &[u8], value: &[u8], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::Append { key: self.key(key), value }, timeout).map(drop)
    }

    /// Waits for all keys and returns their values, in the same order.
    ///
    /// # Errors
    /// As [`Store::wait`].
    pub fn multi_get(&self, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Vec<u8>>, CallError> {
        let mut values = List::default();
        self.call(Request::MultiGet { keys: self.keys(keys) }, timeout, &mut values)?;
        Ok(values.0)
    }

    /// Stores several values.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn multi_set(&self, pairs: &[(&[u8], &[u8])], timeout: Timeout) -> Result<(), CallError> {
        let pairs = Pairs::scoped(&self.options.scope, pairs);
        self.plain(Request::MultiSet { pairs }, timeout).map(drop)
    }

    /// Puts an item at the end of a queue.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn queue_push(&self, key: &[u8], value: &[u8], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::QueuePush { key: self.key(key), value }, timeout).map(drop)
    }

    /// Takes the item at the front of a queue into `value`; waits for one.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when there was none in time; with [`Timeout::Once`] that is
    /// [`ErrorKind::QueueEmpty`].
    pub fn queue_pop(&self, key: &[u8], value: &mut Vec<u8>, timeout: Timeout) -> Result<(), CallError> {
        self.call(Request::QueuePop { key: self.key(key) }, timeout, &mut OneValue(value)).map(drop)
    }

    /// Takes the item at the front of a queue into `value` if there is one, and does not wait for one.
    ///
    /// # Errors
    /// [`ErrorKind::QueueEmpty`] when there is none.
    pub fn queue_try_pop(&self, key: &[u8], value: &mut Vec<u8>, timeout: Timeout) -> Result<(), CallError> {
        let span = Span { patience: Patience::Once, ..self.span(timeout) };
        let call = Call::Store(Request::QueuePop { key: self.key(key) }, Patience::Once);
        self.finish(&call, span, &mut OneValue(value)).map(drop)
    }

    /// Counts the items of a queue.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn queue_len(&self, key: &[u8], timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::QueueLen { key: self.key(key) }, timeout)
    }

    /// Arrives at a barrier and waits until `world_size` have. A key serves one barrier; whoever gives up stays counted.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when not all arrived in time.
    pub fn barrier(&self, key: &[u8], world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::Barrier { key: self.key(key), world_size }, timeout).map(drop)
    }

    /// As [`Store::barrier`], out of plain keys beneath `key`: for meeting PyTorch's prefix stores, which do it so.
    ///
    /// # Errors
    /// As [`Store::barrier`].
    pub fn barrier_by_keys(&self, key: &[u8], world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        let (epoch, key) = (self.pool.epoch(), self.key(key));
        let span = Span { epoch: Some(epoch), ..self.span(timeout) };
        let mut barrier = KeyBarrier::new(world_size, span.patience);
        let ended = loop {
            let Some(call) = barrier.next_call(key) else {
                break if barrier.state() == KeyBarrierState::Released { Ok(()) } else { Err(NOT_RELEASED) };
            };
            match self.perform(&call, self.resumed(span), &mut NoValue) {
                // The machine asks for outcomes that its calls have.
                Ok(outcome) if barrier.handle(outcome).is_err() => break Err(NOT_RELEASED),
                Ok(_) => {}
                Err(failure) => break Err(failure),
            }
        };
        ended.map_err(|failure| {
            let effect = barrier.effect_when_given_up(failure.effect);
            let failure = self.aged(Failure { effect, ..failure }, span);
            CallError::new(Operation::BarrierByKeys, (Some(key), 1), &self.peer, failure)
        })
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn ping(&self, timeout: Timeout) -> Result<(), CallError> {
        self.finish(&Call::Ping, self.span(timeout), &mut NoValue).map(drop)
    }

    /// Counts this worker in, as PyTorch's clients do when they connect, and returns how many have been.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn check_in(&self, timeout: Timeout) -> Result<i64, CallError> {
        let span = self.span(timeout);
        self.number(CHECK_IN, timeout)
            .map_err(|error| self.renamed(Operation::CheckIn, WORKERS_KEY, span, &error))
    }

    /// Waits until `world_size` workers have checked in.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when fewer have in time.
    pub fn wait_for_workers(&self, world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        let epoch = self.pool.epoch();
        let span = Span { epoch: Some(epoch), ..self.span(timeout) };
        let (mut wait, mut text) = (WorkersWait::new(world_size, span.patience, span.deadline), Vec::new());
        let failure = loop {
            let now = self.clock.now();
            match wait.next_step(now) {
                WorkersStep::Look(call) => {
                    match self.perform(&call, Span { began: now, ..span }, &mut OneValue(&mut text)) {
                        Ok(outcome) => wait.looked(self.clock.now(), outcome, &text),
                        Err(failure) => break failure,
                    }
                }
                WorkersStep::PauseUntil(until) => {
                    if let Err(over) = self.pool.pause(epoch, pool::from_now(until.since(now))) {
                        break ended(over);
                    }
                }
                WorkersStep::Complete => return Ok(()),
                WorkersStep::TooFew => break NOT_RELEASED,
            }
        };
        let keys = (Some(WORKERS_KEY), 1);
        Err(CallError::new(Operation::WaitForWorkers, keys, &self.peer, self.aged(failure, span)))
    }

    fn key<'a>(&'a self, name: &'a [u8]) -> Key<'a> {
        Key::scoped(&self.options.scope, name)
    }

    fn keys<'a>(&'a self, names: &'a [&'a [u8]]) -> Keys<'a> {
        Keys::scoped(&self.options.scope, names)
    }

    fn plain(&self, request: Request<'_>, timeout: Timeout) -> Result<Outcome, CallError> {
        self.call(request, timeout, &mut NoValue)
    }

    fn number(&self, request: Request<'_>, timeout: Timeout) -> Result<i64, CallError> {
        match self.plain(request, timeout)? {
            Outcome::Number(number) => Ok(number),
            // The machine ends such a call with a number only.
            _ => Ok(0),
        }
    }

    fn call(
        &self,
        request: Request<'_>,
        timeout: Timeout,
        take: &mut dyn Take,
    ) -> Result<Outcome, CallError> {
        let span = self.span(timeout);
        self.finish(&Call::Store(request, span.patience), span, take)
    }

    fn renamed(&self, operation: Operation, key: Key<'_>, span: Span, error: &CallError) -> CallError {
        CallError::new(operation, (Some(key), 1), &self.peer, self.aged(error.failure(), span))
    }

    fn seed(&self) -> u64 {
        Rng::new(self.seeds.fetch_add(1, Ordering::Relaxed)).next_u64()
    }
}

/// A wait that was not over in time; the elapsed time is filled in later.
const NOT_RELEASED: Failure = Failure {
    kind: ErrorKind::TimedOut,
    phase: Phase::Waiting,
    elapsed: Duration::ZERO,
    cause: Cause::NotReleased,
    effect: Effect::None,
};

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn ended(ended: Ended) -> Failure {
    match ended {
        Ended::Cancelled => Failure { kind: ErrorKind::Cancelled, cause: Cause::Unknown, ..NOT_RELEASED },
        Ended::TimeUp => Failure { cause: Cause::Unknown, ..NOT_RELEASED },
    }
}

fn split(dialled: Result<Box<Wire>, Failure>) -> (Option<Box<Wire>>, Result<(), Failure>) {
    match dialled {
        Ok(wire) => (Some(wire), Ok(())),
        Err(failure) => (None, Err(failure)),
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn endpoint_text(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        host.to_string() + ":" + &port.to_string()
    }
}

/// Differs from client to client, so that their pauses do.
pub(super) fn random_seed() -> u64 {
    use core::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
