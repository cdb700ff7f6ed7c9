//! One handle for every kind of store.
//!
//! A [`Store`] is a [`Backend`] and a scope. The backend performs requests on whole keys: over TCP, on a file, in this
//! process, or in code that the program brought. The scope is what stands before the handle's keys: what the backend
//! wants there (`/`, as PyTorch has it), and behind it each prefix that was asked for, with a `/`. So prefixes cost
//! nothing, nest in the order in which they were made, and no backend knows of them.

pub use crate::driver::backend::{Backend, Meeting, Span};
pub use crate::driver::pauses::Paused;
pub use crate::driver::timeout::{Timeout, Timeouts};

use crate::barrier::by_keys::{COUNTER_SUFFIX, KeyBarrier, KeyBarrierState};
use crate::driver::backend::{CANCELLED, NOT_RELEASED};
use crate::driver::call_error::{CallError, Refusal};
use crate::driver::canceller::{Cancellable, Canceller};
use crate::driver::clock::Clock;
use crate::driver::file_store::{FileStore, FileStoreOptions};
use crate::driver::hash_store::{HashStore, HashStoreOptions};
use crate::driver::last_try::LastTry;
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::native_store::NativeStore;
use crate::driver::store_client::{Client, StoreOptions};
use crate::driver::take::{List, NoValue, OneValue, Take, strip_scope};
use crate::error::{Cause, Effect, ErrorKind, Failure, Operation, Phase};
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::number::parse_leading;
use crate::store::op::{Key, Keys, Pairs, Request};
use crate::time::Duration;
use crate::workers::{CHECK_IN, CHECK_OUT, WORKERS_KEY, WorkersStep, WorkersWait};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;

/// A handle of a store.
pub struct Store {
    backend: Arc<dyn Backend>,
    clock: Clock,
    /// What stands before every key of this handle.
    scope: Box<[u8]>,
    meeting: Meeting,
    /// [`Timeouts::call`] of the backend at first.
    timeout_nanos: AtomicU64,
    /// For a handle whose calls are one to whoever cancels them: when that one began.
    epoch: Option<u64>,
}

impl fmt::Debug for Store {
    // Only the name: the table of a trait object keeps all that it names in the library.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.peer())
    }
}

impl Store {
    /// Connects to the server at `host` (a name or an address) and `port`: ours or PyTorch's.
    ///
    /// # Errors
    /// Why there is no connection by the end of [`StoreOptions::connect_timeout`] (zero: after one attempt at each
    /// address).
    pub fn connect(host: &str, port: u16, options: StoreOptions) -> Result<Self, CallError> {
        Client::connect(host, port, options).map(|client| Self::over(Arc::new(client)))
    }

    /// Connects to a server of ours over the native protocol: every call shares one connection, which is made again
    /// when it ends, as long as the session's grace allows. The keys are those that [`Store::connect`] shows.
    ///
    /// # Errors
    /// Why there is no session.
    pub fn connect_native(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, CallError> {
        NativeStore::connect(host, port, options).map(|store| Self::over(Arc::new(store)))
    }

    /// The same as a part of `call`: whoever cancels that ends the connecting, too.
    ///
    /// # Errors
    /// As [`Store::connect`], or [`ErrorKind::Cancelled`].
    pub fn connect_cancellable(
        host: &str,
        port: u16,
        options: StoreOptions,
        call: &Cancellable,
    ) -> Result<Self, CallError> {
        Client::connect_cancellable(host, port, options, call).map(|client| Self::over(Arc::new(client)))
    }

    /// The same, and keeps in `last_try` how the last try failed.
    ///
    /// # Errors
    /// As [`Store::connect_cancellable`].
    pub fn connect_telling(
        host: &str,
        port: u16,
        options: StoreOptions,
        call: &Cancellable,
        last_try: &LastTry,
    ) -> Result<Self, CallError> {
        let client = Client::connect_telling(host, port, options, call, last_try)?;
        Ok(Self::over(Arc::new(client)))
    }

    /// Opens a file, making it if it is missing, as a store that PyTorch's `FileStore`s share.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn open_file(path: &Path, options: FileStoreOptions) -> Result<Self, CallError> {
        FileStore::open(path, options).map(|file| Self::over(Arc::new(file)))
    }

    /// A new, empty store in this process.
    #[must_use]
    pub fn in_process(options: HashStoreOptions) -> Self {
        Self::over(Arc::new(HashStore::new(options)))
    }

    /// A handle of any kind of store.
    #[must_use]
    pub fn over(backend: Arc<dyn Backend>) -> Self {
        let (clock, scope, meeting) = (backend.clock(), backend.scope().into(), backend.meeting());
        let timeout_nanos = AtomicU64::new(nanos(backend.timeouts().call));
        Self { backend, clock, scope, meeting, timeout_nanos, epoch: None }
    }

    /// The same handle for a call of several: whoever cancels what is under way ends all that it is asked from now on.
    #[must_use]
    pub fn for_one_call(&self) -> Self {
        let epoch = self.epoch.unwrap_or_else(|| self.backend.epoch());
        let store = Self::over(Arc::clone(&self.backend));
        store.set_timeout(self.timeout());
        Self { scope: self.scope.clone(), meeting: self.meeting, epoch: Some(epoch), ..store }
    }

    /// A handle whose keys are those beneath `prefix` here: key `k` is `prefix/k`, also when `prefix` is empty. Its
    /// barriers are held by keys, as those of PyTorch's `PrefixStore`. The two share the store and what is under way
    /// in it: to cancel the one's calls is to cancel the other's. The default timeout is this one's, and its own from
    /// then on.
    #[must_use]
    pub fn with_prefix(&self, prefix: &[u8]) -> Self {
        let scope = [&self.scope, prefix, b"/"].concat().into();
        let with_scope = Self { scope, meeting: Meeting::ByKeys, ..Self::over(Arc::clone(&self.backend)) };
        with_scope.set_timeout(self.timeout());
        with_scope
    }

    /// A second, independent handle of the same store, with the same prefix and default timeout.
    ///
    /// # Errors
    /// As those of whatever made the first.
    pub fn duplicate(&self) -> Result<Self, CallError> {
        self.duplicate_cancellable(&Canceller::default().begin())
    }

    /// The same as a part of `call`: whoever cancels that ends the connecting, too.
    ///
    /// # Errors
    /// As [`Store::duplicate`], or [`ErrorKind::Cancelled`].
    pub fn duplicate_cancellable(&self, call: &Cancellable) -> Result<Self, CallError> {
        Ok(self.on_another(self.backend.duplicate(call)?))
    }

    /// The same keys, with the same default timeout, over another way to the same store.
    #[must_use]
    pub fn on_another(&self, backend: Arc<dyn Backend>) -> Self {
        let other = Self::over(backend);
        other.set_timeout(self.timeout());
        Self { scope: self.scope.clone(), meeting: self.meeting, ..other }
    }

    /// What stands before every key of this handle.
    pub fn scope(&self) -> &[u8] {
        &self.scope
    }

    /// Host and port of its server, if it has one that clients connect to.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        self.backend.endpoint()
    }

    /// What a store over the native protocol can do beyond the others, with this handle's keys and default timeout.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], of this operation, with the store's kind: it is of another one.
    pub fn native(&self, operation: Operation) -> Result<NativeClient, CallError> {
        match self.backend.native() {
            Some(client) => Ok(client.with_scope(&self.scope, self.timeouts())),
            None => Err(not_native(operation, self.peer(), self.backend.kind())),
        }
    }

    /// What errors call the store: `host:port`, a path, a name.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.backend.peer()
    }

    /// What its timeouts stand for.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { call: self.timeout(), ..self.backend.timeouts() }
    }

    /// How long a call may take that does not say: what the store was made with, or what it was set to since.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos.load(Ordering::Relaxed))
    }

    /// Sets how long a call may take that does not say, for later calls in all threads; returns what held before.
    pub fn set_timeout(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.timeout_nanos.swap(nanos(timeout), Ordering::Relaxed))
    }

    /// Ends all calls that are under way, in whatever thread, with [`ErrorKind::Cancelled`]. Later calls are as ever.
    pub fn cancel(&self) {
        self.backend.cancel();
    }

    /// Stores a value; the store has it when this returns.
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
    /// When the value is not a number, [`ErrorKind::InvalidArgument`]; but [`ErrorKind::ServerGone`] over TCP, where
    /// the server then ends the connection.
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

    /// Counts the store's keys, also those of other scopes, and those that a file keeps for itself.
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
        strip_scope(&mut keys.0, &self.scope);
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
        let pairs = Pairs::scoped(&self.scope, pairs);
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
        let span = Span { wait_mode: WaitMode::Once, ..self.span(timeout) };
        let call = Call::Store(Request::QueuePop { key: self.key(key) }, WaitMode::Once);
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
    /// The kind of store and its prefixes decide how they meet, as with PyTorch's stores.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when not all arrived in time.
    pub fn barrier(&self, key: &[u8], world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        match self.meeting {
            Meeting::Native => {
                let key = self.key(key);
                let met = self.plain(Request::Barrier { key, world_size }, timeout).map(drop);
                met.map_err(|error| self.with_arrivals(error, key, world_size))
            }
            Meeting::ByKeys => self.meet_by_keys(Operation::Barrier, key, world_size, timeout),
        }
    }

    /// The error of a barrier to which not all came, with how many did: the store counts them under `counter`.
    #[cold]
    fn with_arrivals(&self, error: CallError, counter: Key<'_>, world_size: i64) -> CallError {
        if error.kind() != ErrorKind::TimedOut || error.failure().effect != Effect::Kept {
            return error;
        }
        let began = self.clock.now();
        let span =
            Span { deadline: began + COUNT_TIMEOUT, began, wait_mode: WaitMode::Once, epoch: self.epoch };
        let (look, mut count) = (Request::Get { key: counter }, Vec::new());
        let found = self.perform(&Call::Store(look, WaitMode::Once), span, &mut OneValue(&mut count));
        let arrived = found.ok().filter(|&outcome| outcome == Outcome::Value).and(parse_leading(&count));
        error.with_message(arrived.map(|arrived| format!("{arrived} of {world_size} have arrived").into()))
    }

    /// As [`Store::barrier`], out of plain keys beneath `key` with every kind of store.
    ///
    /// # Errors
    /// As [`Store::barrier`].
    pub fn barrier_by_keys(&self, key: &[u8], world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        self.meet_by_keys(Operation::BarrierByKeys, key, world_size, timeout)
    }

    fn meet_by_keys(
        &self,
        operation: Operation,
        key: &[u8],
        world_size: i64,
        timeout: Timeout,
    ) -> Result<(), CallError> {
        let (epoch, key) = (self.epoch.unwrap_or_else(|| self.backend.epoch()), self.key(key));
        let span = Span { epoch: Some(epoch), ..self.span(timeout) };
        let mut barrier = KeyBarrier::new(world_size, span.wait_mode);
        let ended = loop {
            let Some(call) = barrier.next_call(key) else {
                let released = barrier.state() == KeyBarrierState::Released;
                break if released { Ok(()) } else { Err(NOT_RELEASED.into()) };
            };
            match self.perform(&call, self.resumed(span), &mut NoValue) {
                // The machine asks for outcomes that its calls have.
                Ok(outcome) if barrier.handle(outcome).is_err() => break Err(NOT_RELEASED.into()),
                Ok(_) => {}
                Err(refusal) => break Err(refusal),
            }
        };
        ended.map_err(|refusal: Refusal| {
            let effect = barrier.effect_when_given_up(refusal.failure.effect);
            let refusal = Refusal { failure: Failure { effect, ..refusal.failure }, ..refusal };
            let error = self.error(operation, (Some(key), 1), refusal, span);
            self.with_arrivals(error, key.with_suffix(COUNTER_SUFFIX), world_size)
        })
    }

    /// Asks the store for a sign of life.
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
        self.count_workers(CHECK_IN, timeout)
    }

    /// Takes this worker's check-in back. Returns how many are left.
    ///
    /// # Errors
    /// Why it is not known whether that was done.
    pub(super) fn check_out(&self, timeout: Timeout) -> Result<i64, CallError> {
        self.count_workers(CHECK_OUT, timeout)
    }

    fn count_workers(&self, request: Request<'static>, timeout: Timeout) -> Result<i64, CallError> {
        let span = self.span(timeout);
        let call = Call::Store(request, span.wait_mode);
        match self.perform(&call, span, &mut NoValue) {
            Ok(Outcome::Number(count)) => Ok(count),
            // The answer to such a call is a number only.
            Ok(_) => Ok(0),
            Err(refusal) => Err(self.error(Operation::CheckIn, (Some(WORKERS_KEY), 1), refusal, span)),
        }
    }

    /// Waits until `world_size` workers have checked in.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when fewer have in time.
    pub fn wait_for_workers(&self, world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        let epoch = self.epoch.unwrap_or_else(|| self.backend.epoch());
        let span = Span { epoch: Some(epoch), ..self.span(timeout) };
        let (mut wait, mut text) = (WorkersWait::new(world_size, span.wait_mode, span.deadline), Vec::new());
        let refusal = loop {
            let now = self.clock.now();
            match wait.next_step(now) {
                WorkersStep::Look(call) => {
                    match self.perform(&call, Span { began: now, ..span }, &mut OneValue(&mut text)) {
                        Ok(outcome) => wait.looked(self.clock.now(), outcome, &text),
                        Err(refusal) => break refusal,
                    }
                }
                WorkersStep::PauseUntil(until) => {
                    if self.backend.pause(epoch, until.since(now)) == Paused::Cancelled {
                        break CANCELLED.into();
                    }
                }
                WorkersStep::Complete => return Ok(()),
                WorkersStep::TooFew => break NOT_RELEASED.into(),
            }
        };
        let error = self.error(Operation::WaitForWorkers, (Some(WORKERS_KEY), 1), refusal, span);
        Err(match error.cause() {
            Cause::NotReleased => {
                let count = parse_leading(&text).unwrap_or(0);
                error.with_message(Some(format!("{count} of {world_size} have checked in").into()))
            }
            _ => error,
        })
    }

    fn key<'a>(&'a self, name: &'a [u8]) -> Key<'a> {
        Key::scoped(&self.scope, name)
    }

    fn keys<'a>(&'a self, names: &'a [&'a [u8]]) -> Keys<'a> {
        Keys::scoped(&self.scope, names)
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
        self.finish(&Call::Store(request, span.wait_mode), span, take)
    }

    /// Makes a call, and tells of its failure.
    fn finish(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, CallError> {
        let refusal = match self.perform(call, span, take) {
            Ok(outcome) => match outcome.failure(call.operation()) {
                None => return Ok(outcome),
                Some(failure) => failure.into(),
            },
            Err(refusal) => refusal,
        };
        Err(self.error(call.operation(), call.keys(), refusal, span))
    }

    fn perform(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        if span.epoch.is_some_and(|epoch| epoch != self.backend.epoch()) {
            return Err(CANCELLED.into());
        }
        self.backend.perform(call, span, take)
    }

    #[cold]
    fn error(
        &self,
        operation: Operation,
        keys: (Option<Key<'_>>, usize),
        refusal: Refusal,
        span: Span,
    ) -> CallError {
        let elapsed = self.clock.now().since(span.began);
        let failure = Failure { elapsed, ..refusal.failure };
        CallError::new(operation, keys, self.peer(), failure).with_message(refusal.message)
    }

    fn span(&self, timeout: Timeout) -> Span {
        let began = self.clock.now();
        let (after, wait_mode) = self.timeouts().wait_budget(timeout);
        Span { began, deadline: began + after, wait_mode, epoch: self.epoch }
    }

    /// The same deadline for the next of several calls: each counts its time from a fresh reading of the clock.
    fn resumed(&self, span: Span) -> Span {
        Span { began: self.clock.now(), ..span }
    }
}

/// What it may take to count those who came to a barrier, which only makes a message better.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// The store is of another kind than the native one, which alone has the operation.
#[cold]
pub(super) fn not_native(operation: Operation, peer: &str, kind: &str) -> CallError {
    let (kind_of_error, cause, phase) = (ErrorKind::Unsupported, Cause::NoOperation, Phase::Sending);
    let failure = Failure { kind: kind_of_error, cause, phase, ..NOT_RELEASED };
    CallError::new(operation, (None, 0), peer, failure)
        .with_message(Some(alloc::format!("it is {kind}").into()))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests;
