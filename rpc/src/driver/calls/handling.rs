//! Handlers of a worker, the thread pool that runs some of them, and their responses.

use super::pool::{Pool, PoolJob};
use super::reentrancy::{CallSite, Home};
use super::{Payload, Received};
use crate::connection::{CallFailure, CallKind, PoolLoad, Status};
use crate::handlers::{Callers, HandlerError, Handlers, NoCall, Owner, is_of_the_program};
use crate::intake::QuotaId;
use crate::name::WorkerInfo;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::panic_text;
use rendezvous_core::opaque::opaque_debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::RwLock;

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// On the thread that serves all connections: it must not block. Fastest for handlers that take no time.
    Inline,
    /// On a thread of the pool.
    Pooled,
}

/// Request that a handler gets.
#[derive(Debug)]
pub struct Request {
    /// The caller.
    pub caller: WorkerInfo,
    /// Name of the handler.
    pub handler: Arc<str>,
    /// Payload of the request.
    pub payload: Received,
    /// Whether it has a response.
    pub kind: CallKind,
    /// Time until the caller gives up; `None` if it waits without a limit.
    pub time_left: Option<Duration>,
}

/// Function of a handler.
pub type HandlerFn = dyn Fn(Request, Responder) + Send + Sync;

pub(super) struct Handler {
    name: Arc<str>,
    pub(super) run: Run,
    call: Box<HandlerFn>,
    home: Home,
}

opaque_debug!(Handler);

/// Handlers of a worker, and the thread pool. A server has one; calls of the worker to itself use the same.
#[derive(Debug)]
pub struct Handling {
    handlers: RwLock<Handlers<Arc<Handler>>>,
    pool: Pool<Job>,
    home: Home,
}

impl Handling {
    /// Creates a table without handlers, and a pool of at most this many threads, each of which is started when there
    /// is work for it.
    pub fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self { handlers: RwLock::default(), pool: Pool::new(threads_max), home: Home::default() })
    }

    /// Registers a handler of the program.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register(
        &self,
        name: &str,
        run: Run,
        call: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), HandlerError> {
        self.register_for(Callers::default(), name, run, call)
    }

    /// Registers a handler of the program, which these callers may call.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register_for(
        &self,
        callers: Callers,
        name: &str,
        run: Run,
        call: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), HandlerError> {
        self.register_as((Owner::Program, callers), name, run, Box::new(call))
    }

    /// Registers a handler of the program or of the library.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register_as(
        &self,
        (owner, callers): (Owner, Callers),
        name: &str,
        run: Run,
        call: Box<HandlerFn>,
    ) -> Result<(), HandlerError> {
        let handler = Arc::new(Handler { name: name.into(), run, call, home: self.home.clone() });
        self.handlers.write().unwrap_or_else(PoisonError::into_inner).register(owner, name, callers, handler)
    }

    /// Removes a handler of the program; returns false if there is none. Requests that it has already got are
    /// completed.
    pub fn remove(&self, name: &str) -> bool {
        self.remove_as(Owner::Program, name)
    }

    /// As [`Handling::remove`], for handlers of the library as well.
    pub fn remove_as(&self, owner: Owner, name: &str) -> bool {
        let handler = self.handlers.write().unwrap_or_else(PoisonError::into_inner).remove(owner, name);
        // The handler's state is dropped after the lock is released.
        handler.is_some()
    }

    /// Whether this thread runs one of these handlers, or a callback of a call of the same worker.
    pub fn is_around(&self) -> bool {
        self.home.is_around()
    }

    pub(super) const fn home(&self) -> &Home {
        &self.home
    }

    pub(super) fn find(&self, name: &str, caller: &str) -> Result<Arc<Handler>, NoCall> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).find(name, caller).cloned()
    }

    pub(super) fn submit(&self, job: Job) {
        self.pool.submit(job);
    }

    /// Returns the number of requests that wait for a thread, if all threads are busy.
    pub(super) fn exhaustion(&self) -> Option<PoolLoad> {
        let (threads, waiting) = self.pool.exhaustion()?;
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Some(PoolLoad { threads: count(threads), waiting: count(waiting) })
    }

    /// For a worker that ends: lets the pool execute the queued requests within `grace`, then rejects those that have
    /// not begun, and waits up to `final_timeout` for the others. Returns true if no pooled handler is running any
    /// more; a handler that calls this does not wait for itself.
    pub(in crate::driver) fn finish(&self, grace: Duration, final_timeout: Duration) -> bool {
        let is_around = self.is_around();
        if !is_around && self.pool.rest(grace) {
            return true;
        }
        self.pool.refuse_queued();
        !is_around && self.pool.rest(final_timeout)
    }
}

/// Complete request and its handler.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) handler: Arc<Handler>,
    pub(super) caller: WorkerInfo,
    pub(super) payload: Received,
    pub(super) kind: CallKind,
    pub(super) time_left: Option<Duration>,
    pub(super) to: AnswerTo,
    pub(super) held: Option<Held>,
}

impl PoolJob for Job {
    fn source(&self) -> usize {
        self.to.source.number()
    }

    fn run(self) {
        Self::run(self);
    }

    fn refuse(self, no_thread: Option<&io::Error>) {
        match no_thread {
            None => self.to.fail(Status::Leaving, ""),
            Some(error) => self.to.fail(Status::Exhausted, &format!("no thread could be started: {error}")),
        };
    }
}

impl Job {
    /// Whether it is for a handler of the program.
    pub(super) fn is_of_the_program(&self) -> bool {
        is_of_the_program(&self.handler.name)
    }

    /// Runs the handler, unless the call was given up, or its caller must read other responses first. If the handler
    /// panics, the call fails, and the thread continues.
    pub(super) fn run(self) {
        let begun = match &self.to {
            _ if self.kind == CallKind::OneWay => Some(self),
            to if to.source.begins(to.call) => Some(self),
            to => {
                let AnswerTo { source, call } = to.clone();
                source.begin(call, self)
            }
        };
        let Some(Self { handler, caller, payload, kind, time_left, to, held }) = begun else { return };
        let request = Request { caller, handler: Arc::clone(&handler.name), payload, kind, time_left };
        let name = Arc::clone(&handler.name);
        let responder = Responder { handler: name, to: Some(to.clone()), held };
        let site = match handler.run {
            Run::Inline => CallSite::Inline,
            Run::Pooled => CallSite::Pooled,
        };
        let before = CARRIED_OUT.replace(Some(to.key()));
        let call = || handler.home.run(site, || (handler.call)(request, responder));
        let result = catch_unwind(AssertUnwindSafe(call));
        CARRIED_OUT.set(before);
        if let Err(panic) = result {
            to.fail(Status::Failed, &format!("{} panicked: {}", handler.name, panic_text(&*panic)));
        }
    }
}

/// Identity of a call in this process.
pub(super) type CallKey = (usize, u64);

/// Whether a handler on this thread is executing this call.
pub(super) fn is_carried_out(call: CallKey) -> bool {
    CARRIED_OUT.get() == Some(call)
}

std::thread_local! {
    /// Call that a handler on this thread is executing, the innermost.
    static CARRIED_OUT: Cell<Option<CallKey>> = const { Cell::new(None) };
}

/// Source of calls for handlers: a connection, the worker itself, or a custom backend.
pub(super) trait CallSource: Send + Sync {
    /// Number of the source, by which the pool alternates between sources.
    fn number(&self) -> usize {
        0
    }

    /// Whether the caller waits for the response to a call.
    fn is_wanted(&self, call: u64) -> bool;

    /// Whether the handler of a call may start now.
    fn begins(&self, call: u64) -> bool {
        self.is_wanted(call)
    }

    /// Keeps the job of a call whose handler may not start now, or drops it if the call is not wanted. Returns the job
    /// if the handler may start after all.
    fn begin(&self, call: u64, job: Job) -> Option<Job> {
        let _ = (call, job);
        None
    }

    /// Responds to a call. Returns whether the caller waits for it.
    fn answer(&self, call: u64, payload: Payload) -> bool;

    /// Fails a call. Returns whether the caller waits for it.
    fn fail(&self, call: u64, status: Status, message: &str) -> bool;
}

/// Recipient of a handler's response.
#[derive(Clone)]
pub(super) struct AnswerTo {
    pub(super) source: Arc<dyn CallSource>,
    /// Number of the call; 0 if the source has only one.
    pub(super) call: u64,
}

/// Flag that says whether a response is still wanted. The caller clears it; the handler reads it.
#[derive(Clone, Debug)]
pub struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// Creates the flag of a call; the response to a one-way call is never wanted.
    pub fn new(kind: CallKind) -> Self {
        Self(Arc::new(AtomicBool::new(kind == CallKind::Responded)))
    }

    /// The caller does not wait any more.
    pub fn give_up(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether the caller waits.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Function that gets a handler's response, once.
pub type Listener = Box<dyn FnOnce(Result<Payload, CallFailure>) + Send>;

/// Caller that is not connected by this library.
pub(super) struct External {
    listener: Mutex<Option<Listener>>,
    wanted: Wanted,
}

impl External {
    fn complete(&self, answer: Result<Payload, CallFailure>) -> bool {
        let completion = self.listener.locked().take();
        completion.map(|complete| complete(answer)).is_some()
    }
}

impl CallSource for External {
    fn is_wanted(&self, _: u64) -> bool {
        self.wanted.get() && self.listener.locked().is_some()
    }

    fn answer(&self, _: u64, payload: Payload) -> bool {
        self.complete(Ok(payload))
    }

    fn fail(&self, _: u64, status: Status, message: &str) -> bool {
        self.complete(Err(CallFailure::Remote { status, message: message.into() }))
    }
}

opaque_debug!(AnswerTo);

impl AnswerTo {
    fn key(&self) -> CallKey {
        (Arc::as_ptr(&self.source).addr(), self.call)
    }

    fn is_wanted(&self) -> bool {
        self.source.is_wanted(self.call)
    }

    fn answer(&self, payload: Payload) -> bool {
        self.source.answer(self.call, payload)
    }

    fn fail(&self, status: Status, message: &str) -> bool {
        self.source.fail(self.call, status, message)
    }
}

/// Owner of the count of accepted requests.
pub(super) trait Holder: Send + Sync {
    /// A request with a payload of this many bytes has ended.
    fn let_go(&self, quota: QuotaId, payload_bytes: u64, counted: u64);
}

impl fmt::Debug for dyn Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holder")
    }
}

/// Accepted request; dropping it ends the request.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) holder: Arc<dyn Holder>,
    pub(super) quota: QuotaId,
    pub(super) payload_bytes: u64,
    /// Bytes of the payload that count against the limit of all callers.
    pub(super) counted: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.holder.let_go(self.quota, self.payload_bytes, self.counted);
    }
}

/// Handle for one response, from any thread and at any time. Dropping it without a response fails the call.
#[derive(Debug)]
pub struct Responder {
    handler: Arc<str>,
    to: Option<AnswerTo>,
    held: Option<Held>,
}

impl Responder {
    /// Creates the responder of a request that came through a custom backend.
    pub fn external(handler: Arc<str>, completion: Listener, wanted: Wanted) -> Self {
        let external = External { listener: Mutex::new(Some(completion)), wanted };
        let to = AnswerTo { source: Arc::new(external), call: 0 };
        Self { handler, to: Some(to), held: None }
    }

    /// Sends the response. Returns whether the caller waits for it.
    pub fn answer(mut self, payload: impl Into<Payload>) -> bool {
        self.finish(|to| to.answer(payload.into()))
    }

    /// Fails the call with this message. Returns whether the caller waits for it.
    pub fn fail(mut self, message: &str) -> bool {
        self.finish(|to| to.fail(Status::Failed, message))
    }

    /// Fails the call because the handler cannot decode its request. Returns whether the caller waits for it.
    pub fn refuse_malformed(mut self, message: &str) -> bool {
        self.finish(|to| to.fail(Status::Malformed, message))
    }

    /// Fails the call because the worker has not executed it, and will not.
    pub(in crate::driver) fn decline(mut self, why: Status, message: &str) {
        self.finish(|to| to.fail(why, message));
    }

    /// Whether the caller still waits for a response; for handlers that take long.
    pub fn is_wanted(&self) -> bool {
        self.to.as_ref().is_some_and(AnswerTo::is_wanted)
    }

    fn finish(&mut self, end: impl FnOnce(&AnswerTo) -> bool) -> bool {
        let is_wanted = self.to.take().is_some_and(|to| end(&to));
        self.held = None;
        is_wanted
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let Some(to) = &self.to else { return };
        // If its own handler panics, the code that catches the panic sends its message.
        if !std::thread::panicking() || CARRIED_OUT.get() != Some(to.key()) {
            let message = format!("{} gave no answer", self.handler);
            self.finish(|to| to.fail(Status::Failed, &message));
        }
    }
}
