//! Handle of any kind of store.
//!
//! A [`Store`] is a [`Backend`] and a scope. The backend performs requests on whole keys: over TCP, on a file, in
//! this process, or in code of the program. The scope is the prefix of the handle's keys: first the backend's own
//! (`/`, as PyTorch has it), then each requested prefix, followed by a `/`. So prefixes cost nothing, nest in the
//! order in which they were made, and no backend knows of them.

pub use crate::driver::backend::{Backend, BarrierMethod, Span};
pub use crate::driver::timeout::{Timeout, Timeouts};

use crate::barrier::by_keys::{COUNTER_SUFFIX, KeyBarrier, KeyBarrierState};
use crate::driver::backend::{CANCELLED, Description, NOT_RELEASED};
use crate::driver::call_error::Refusal;
use crate::driver::cancel::Canceller;
use crate::driver::file_store::{FileStore, FileStoreOptions};
use crate::driver::hash_store::{HashStore, HashStoreOptions};
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::prelude::*;
use crate::driver::store_client::{Client, StoreOptions};
use crate::driver::take::{List, NoValue, OneValue, Take, strip_scope};
use crate::error::{Cause, ErrorKind, Failure, Operation, Phase};
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::clue::{CLUE_TIMEOUT, Clue};
use crate::store::number::parse_leading;
use crate::store::op::{Key, Keys, Pairs, Request};
use crate::workers::{CHECK_IN, CHECK_OUT, WORKERS_KEY, WorkersStep, WorkersWait};
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;

/// Handle of a store.
pub struct Store {
    backend: Arc<dyn Backend>,
    clock: Clock,
    /// Prefix of every key of this handle.
    scope: Box<[u8]>,
    barrier_method: BarrierMethod,
    /// Default timeout of calls in nanoseconds, initially [`Timeouts::call`] of the backend.
    timeout_nanos: AtomicU64,
    canceller: Canceller,
}

impl fmt::Debug for Store {
    // Only the name: formatting the trait object would keep all that its vtable names in the library.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.peer())
    }
}

impl Store {
    /// Connects to the server at `host` (a name or an address) and `port`, which may be one of this library or of
    /// PyTorch.
    ///
    /// # Errors
    /// The reason why there is no connection by the end of [`StoreOptions::connect_timeout`] (zero: after one attempt
    /// at each address).
    pub fn connect(host: &str, port: u16, options: StoreOptions) -> Result<Self, CallError> {
        Client::connect(host, port, options).map(|client| Self::over(Arc::new(client)))
    }

    /// Connects to a server of this library over the native protocol. All calls share one connection, which is
    /// restored when it ends, as long as the session's grace period allows. The keys are those that
    /// [`Store::connect`] shows.
    ///
    /// # Errors
    /// The reason why the session could not be opened.
    pub fn connect_native(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, CallError> {
        Ok(Self::over(Arc::new(NativeClient::connect(host, port, options)?)))
    }

    /// Opens a file as a store that PyTorch's `FileStore`s can share. Creates it if it is missing.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub fn open_file(path: &Path, options: FileStoreOptions) -> Result<Self, CallError> {
        FileStore::open(path, options).map(|file| Self::over(Arc::new(file)))
    }

    /// Makes a new, empty store in this process.
    pub fn in_process(options: HashStoreOptions) -> Self {
        Self::over(Arc::new(HashStore::new(options)))
    }

    /// Makes a handle of any kind of store.
    pub fn over(backend: Arc<dyn Backend>) -> Self {
        let canceller = canceller_of(&backend, &CancelToken::new());
        let Description { clock, scope, barrier_method, timeouts, .. } = backend.description();
        let (scope, timeout_nanos) = (scope.into(), AtomicU64::new(nanos(timeouts.call)));
        Self { backend, clock, scope, barrier_method, timeout_nanos, canceller }
    }

    /// Returns a handle of the same keys with the same default timeout.
    fn again(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            clock: self.clock,
            scope: self.scope.clone(),
            barrier_method: self.barrier_method,
            timeout_nanos: AtomicU64::new(self.timeout_nanos.load(Ordering::Relaxed)),
            canceller: self.canceller.clone(),
        }
    }

    /// Returns a handle of the same keys whose calls end when `token` is cancelled, and end at once if it already is.
    /// It shares the connection with this handle and starts with its default timeout. [`Store::cancel`] of one handle
    /// does not affect the calls of the other.
    #[must_use]
    pub fn with_token(&self, token: &CancelToken) -> Self {
        Self { canceller: canceller_of(&self.backend, token), ..self.again() }
    }

    /// Returns a handle for a call of several steps: a cancel of the calls in progress ends that call, including the
    /// steps that begin later.
    #[must_use]
    pub fn for_one_call(&self) -> Self {
        self.with_token(&self.canceller.token())
    }

    /// Returns a handle for the keys under `prefix`: key `k` is `prefix/k`, also when `prefix` is empty. Its barriers
    /// are held by keys, as those of PyTorch's `PrefixStore`. Both handles share the store and its calls in progress:
    /// cancelling the calls of one cancels those of the other. The new handle starts with this handle's default
    /// timeout.
    #[must_use]
    pub fn with_prefix(&self, prefix: &[u8]) -> Self {
        let scope = [&self.scope, prefix, b"/"].concat().into();
        Self { scope, barrier_method: BarrierMethod::ByKeys, ..self.again() }
    }

    /// Opens a second, independent handle of the same store, with the same prefix and default timeout. A cancel of
    /// this handle's calls also ends the connecting. The new handle has no token.
    ///
    /// # Errors
    /// As those of the function that made this handle, or [`ErrorKind::Cancelled`].
    pub fn duplicate(&self) -> Result<Self, CallError> {
        Ok(self.on_another(self.backend.duplicate(&self.canceller.token())?))
    }

    /// Returns a handle with the same keys and default timeout over another backend of the same store.
    #[must_use]
    pub fn on_another(&self, backend: Arc<dyn Backend>) -> Self {
        let other = Self::over(backend);
        other.set_timeout(self.timeout());
        Self { scope: self.scope.clone(), barrier_method: self.barrier_method, ..other }
    }

    /// Returns the prefix of every key of this handle.
    pub fn scope(&self) -> &[u8] {
        &self.scope
    }

    /// Returns host and port of the server, if clients connect to one.
    pub fn endpoint(&self) -> Option<(&str, u16)> {
        self.backend.description().endpoint
    }

    /// Returns a client for the operations that only the native protocol has, with this handle's keys and default
    /// timeout.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], of this operation, with the store's kind: the store is of another kind.
    pub fn native(&self, operation: Operation) -> Result<NativeClient, CallError> {
        match self.backend.native() {
            Some(client) => {
                Ok(client.with_scope(&self.scope, self.timeouts()).with_canceller(&self.canceller))
            }
            None => Err(not_native(operation, self.peer(), self.backend.description().kind)),
        }
    }

    /// Returns the number that identifies this start of the server, if the store is a native one whose session is open.
    pub fn incarnation(&self) -> Option<u64> {
        self.backend.native().and_then(NativeClient::incarnation)
    }

    /// Returns the name of the store in error messages: `host:port`, a path, a name.
    pub fn peer(&self) -> &str {
        self.backend.description().peer
    }

    /// Returns the default timeouts of this handle's calls.
    pub fn timeouts(&self) -> Timeouts {
        Timeouts { call: self.timeout(), ..self.backend.description().timeouts }
    }

    /// Returns the timeout of calls that set none: initially the one in the store's options, then the last one set.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos.load(Ordering::Relaxed))
    }

    /// Sets the timeout of calls that set none, for later calls in all threads. Returns the previous one.
    pub fn set_timeout(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.timeout_nanos.swap(nanos(timeout), Ordering::Relaxed))
    }

    /// Ends the calls in progress of this handle and of those made from it with a prefix, in all threads, with
    /// [`ErrorKind::Cancelled`]. Later calls are not affected: to end a call that may not have begun, use
    /// [`Store::with_token`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Performs a request whose keys include [`Store::scope`]. The values of the response go to `take`, listed keys
    /// without the scope.
    ///
    /// # Errors
    /// Those of the method that is named as the request.
    pub fn request(
        &self,
        request: Request<'_>,
        timeout: Timeout,
        take: &mut dyn Take,
    ) -> Result<Outcome, CallError> {
        match request {
            Request::Barrier { key, world_size } => {
                self.barrier(key.name(), world_size, timeout).map(|()| Outcome::Released)
            }
            Request::ListKeys => {
                let keys = self.list_keys(timeout)?;
                keys.iter().for_each(|key| take.whole(key));
                Ok(Outcome::Values(keys.len() as u64))
            }
            request => self.call(request, timeout, take),
        }
    }

    /// Stores a value. The store has it when this returns.
    ///
    /// # Errors
    /// The reason why the value may not be stored. As for all calls below, [`CallError::kind`] says what happened.
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

    /// Adds to the number under a key (0 if the key is absent) and returns the sum.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the value is not a number. A c10d server then closes the connection, and
    /// the value is read over another one to find out why.
    pub fn add(&self, key: &[u8], delta: i64, timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::Add { key: self.key(key), delta }, timeout)
    }

    /// Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty. Writes the
    /// resulting value into `value`. If the key is absent and `expected` is not empty, `value` becomes `expected`.
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

    /// Waits until every key is set.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when some key was not set in time.
    pub fn wait(&self, keys: &[&[u8]], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::Wait { keys: self.keys(keys) }, timeout).map(drop)
    }

    /// Returns whether every key is set.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn check(&self, keys: &[&[u8]], timeout: Timeout) -> Result<bool, CallError> {
        let outcome = self.plain(Request::Check { keys: self.keys(keys) }, timeout)?;
        Ok(outcome == Outcome::Ready)
    }

    /// Removes a key. Returns whether it was set.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn delete(&self, key: &[u8], timeout: Timeout) -> Result<bool, CallError> {
        Ok(self.number(Request::Delete { key: self.key(key) }, timeout)? == 1)
    }

    /// Counts the store's keys, including those of other scopes and the internal ones of a file store.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn num_keys(&self, timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::NumKeys, timeout)
    }

    /// Returns the keys of this scope, in no order.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn list_keys(&self, timeout: Timeout) -> Result<Vec<Vec<u8>>, CallError> {
        let mut keys = List::default();
        self.call(Request::ListKeys, timeout, &mut keys)?;
        strip_scope(&mut keys.0, &self.scope);
        Ok(keys.0)
    }

    /// Appends bytes to a value, which is created if missing.
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

    /// Adds an item at the end of a queue.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn queue_push(&self, key: &[u8], value: &[u8], timeout: Timeout) -> Result<(), CallError> {
        self.plain(Request::QueuePush { key: self.key(key), value }, timeout).map(drop)
    }

    /// Removes the item at the front of a queue and writes it into `value`. Waits if the queue is empty.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when no item was added in time; with [`Timeout::Once`], [`ErrorKind::QueueEmpty`]. A c10d
    /// client also returns [`ErrorKind::QueueEmpty`] after 1,000 attempts without an item: the key has a value besides the
    /// queue, for which WAIT returns as well, or other clients took each item first.
    pub fn queue_pop(&self, key: &[u8], value: &mut Vec<u8>, timeout: Timeout) -> Result<(), CallError> {
        self.call(Request::QueuePop { key: self.key(key) }, timeout, &mut OneValue(value)).map(drop)
    }

    /// Counts the items of a queue.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn queue_len(&self, key: &[u8], timeout: Timeout) -> Result<i64, CallError> {
        self.number(Request::QueueLen { key: self.key(key) }, timeout)
    }

    /// Arrives at a barrier and waits until `world_size` participants have. A key serves one barrier. The arrival of
    /// a caller whose wait ends early stays counted. The kind of store and its prefixes decide how the participants
    /// find each other, as with PyTorch's stores.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when not all arrived in time.
    pub fn barrier(&self, key: &[u8], world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        match self.barrier_method {
            BarrierMethod::Native => {
                self.plain(Request::Barrier { key: self.key(key), world_size }, timeout).map(drop)
            }
            BarrierMethod::ByKeys => self.meet_by_keys(Operation::Barrier, key, world_size, timeout),
        }
    }

    /// Adds the cause to an error, where a value of the store tells it.
    #[cold]
    fn explained(&self, error: CallError, call: &Call<'_>, token: &CancelToken) -> CallError {
        let Some(clue) = Clue::of(call, &error.failure()) else { return error };
        let (began, mut value) = (self.clock.now(), Vec::new());
        let span = Span { began, deadline: began + CLUE_TIMEOUT, wait_mode: WaitMode::Once, token };
        match self.perform(&clue.call(), span, &mut OneValue(&mut value)) {
            Ok(Outcome::Value) => {
                let failure = clue.explain(error.failure(), &value);
                error.with_failure(failure)
            }
            _ => error,
        }
    }

    /// As [`Store::barrier`], but with plain keys under `key` on every kind of store.
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
        let (token, key) = (self.canceller.token(), self.key(key));
        let span = self.span(timeout, &token);
        let mut barrier = KeyBarrier::new(world_size, span.wait_mode);
        let ended = loop {
            let Some(call) = barrier.next_call(key) else {
                let released = barrier.state() == KeyBarrierState::Released;
                break if released { Ok(()) } else { Err(NOT_RELEASED.into()) };
            };
            match self.perform(&call, self.resumed(span), &mut NoValue) {
                // The machine accepts every outcome that its calls can have.
                Ok(outcome) if barrier.handle(outcome).is_err() => break Err(NOT_RELEASED.into()),
                Ok(_) => {}
                Err(refusal) => break Err(refusal),
            }
        };
        ended.map_err(|refusal: Refusal| {
            let effect = barrier.effect_when_given_up(refusal.failure.effect);
            let refusal = Refusal { failure: Failure { effect, ..refusal.failure }, ..refusal };
            let error = self.error(operation, (Some(key), 1), refusal, span);
            let arrival = Request::Barrier { key: key.with_suffix(COUNTER_SUFFIX), world_size };
            self.explained(error, &Call::Store(arrival, span.wait_mode), &token)
        })
    }

    /// Checks that the store responds.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn ping(&self, timeout: Timeout) -> Result<(), CallError> {
        let token = self.canceller.token();
        self.finish(&Call::Ping, self.span(timeout, &token), &mut NoValue).map(drop)
    }

    /// Counts this worker, as PyTorch's clients do when they connect, and returns how many have checked in.
    ///
    /// # Errors
    /// See [`Store::set`].
    pub fn check_in(&self, timeout: Timeout) -> Result<i64, CallError> {
        self.count_workers(CHECK_IN, timeout)
    }

    /// Takes back this worker's check-in. Returns the number of workers that are left.
    ///
    /// # Errors
    /// The reason why it is not known whether that was done.
    pub(super) fn check_out(&self, timeout: Timeout) -> Result<i64, CallError> {
        self.count_workers(CHECK_OUT, timeout)
    }

    fn count_workers(&self, request: Request<'static>, timeout: Timeout) -> Result<i64, CallError> {
        let token = self.canceller.token();
        let span = self.span(timeout, &token);
        let call = Call::Store(request, span.wait_mode);
        match self.perform(&call, span, &mut NoValue) {
            Ok(Outcome::Number(count)) => Ok(count),
            // The response to such a call is always a number.
            Ok(_) => Ok(0),
            Err(refusal) => Err(self.error(Operation::CheckIn, (Some(WORKERS_KEY), 1), refusal, span)),
        }
    }

    /// Waits until `world_size` workers have checked in.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when fewer have in time.
    pub fn wait_for_workers(&self, world_size: i64, timeout: Timeout) -> Result<(), CallError> {
        let token = self.canceller.token();
        let span = self.span(timeout, &token);
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
                    if token.wait(until.since(now)) {
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
        let token = self.canceller.token();
        let span = self.span(timeout, &token);
        self.finish(&Call::Store(request, span.wait_mode), span, take)
    }

    /// Performs a call and makes the error of a failure.
    fn finish(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, CallError> {
        let refusal = match self.perform(call, span, take) {
            Ok(outcome) => match outcome.failure(call.operation()) {
                None => return Ok(outcome),
                Some(failure) => failure.into(),
            },
            Err(refusal) => refusal,
        };
        Err(self.explained(self.error(call.operation(), call.keys(), refusal, span), call, span.token))
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        if span.token.is_cancelled() {
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
        span: Span<'_>,
    ) -> CallError {
        let elapsed = self.clock.now().since(span.began);
        let failure = Failure { elapsed, ..refusal.failure };
        CallError::new(operation, keys, self.peer(), failure).with_message(refusal.message)
    }

    fn span<'a>(&self, timeout: Timeout, token: &'a CancelToken) -> Span<'a> {
        let began = self.clock.now();
        let (after, wait_mode) = self.timeouts().wait_budget(timeout);
        Span { began, deadline: began + after, wait_mode, token }
    }

    /// Returns the same deadline for the next of several calls. Each counts its time from a fresh reading of the
    /// clock.
    fn resumed<'a>(&self, span: Span<'a>) -> Span<'a> {
        Span { began: self.clock.now(), ..span }
    }
}

/// Makes the canceller of a handle whose calls `token` ends.
fn canceller_of(backend: &Arc<dyn Backend>, token: &CancelToken) -> Canceller {
    let backend = Arc::clone(backend);
    Canceller::of(token, Some(Arc::new(move || backend.wake())))
}

/// Makes the error of an operation that only the native protocol has, on another kind of store.
#[cold]
pub(super) fn not_native(operation: Operation, peer: &str, kind: &str) -> CallError {
    let failure = Failure::new(ErrorKind::Unsupported, Phase::Sending, Cause::NoOperation);
    CallError::new(operation, (None, 0), peer, failure)
        .with_message(Some(alloc::format!("it is {kind}").into()))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests;
