//! Handlers: who they are, the threads that some of them run on, and how they answer.

use super::reentrancy::{CallSite, Home};
use super::{Payload, Received};
use crate::connection::{CallFailure, CallKind, PoolLoad, Status};
use crate::fair_queue::FairQueue;
use crate::handlers::{HandlerError, Handlers, Owner, is_of_the_program};
use crate::intake::QuotaId;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::threads::{self, panic_text};
use rendezvous_core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// On the thread that serves all connections: it must not block. The quickest way for what takes no time.
    Inline,
    /// On a thread of the pool.
    Pooled,
}

/// What a handler is asked.
#[derive(Debug)]
pub struct Request {
    /// Who calls.
    pub caller: WorkerInfo,
    /// The handler's own name.
    pub handler: Arc<str>,
    /// The bytes of the request.
    pub payload: Received,
    /// Whether it is to be answered.
    pub kind: CallKind,
    /// How long the caller waits from now; `None`: as long as it takes.
    pub time_left: Option<Duration>,
}

/// What is called.
pub type HandlerFn = dyn Fn(Request, Responder) + Send + Sync;

pub(super) struct Handler {
    name: Arc<str>,
    pub(super) run: Run,
    call: Box<HandlerFn>,
    home: Home,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("name", &self.name).field("run", &self.run).finish_non_exhaustive()
    }
}

/// The handlers of a worker and the threads of the pooled ones. A server has one; whoever calls itself has the same.
#[derive(Debug)]
pub struct Handling {
    handlers: RwLock<Handlers<Arc<Handler>>>,
    pool: Pool,
    home: Home,
}

impl Handling {
    /// No handlers yet, and a pool of so many threads at most, of which each is started when there is work for it.
    #[must_use]
    pub fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self { handlers: RwLock::default(), pool: Pool::new(threads_max), home: Home::default() })
    }

    /// Registers a handler of the program's.
    ///
    /// # Errors
    /// The name cannot be had.
    pub fn register(
        &self,
        name: &str,
        run: Run,
        call: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), HandlerError> {
        self.register_as(Owner::Program, name, run, Box::new(call))
    }

    /// Registers a handler of the program's or of the library's.
    ///
    /// # Errors
    /// The name cannot be had.
    pub fn register_as(
        &self,
        owner: Owner,
        name: &str,
        run: Run,
        call: Box<HandlerFn>,
    ) -> Result<(), HandlerError> {
        let handler = Arc::new(Handler { name: name.into(), run, call, home: self.home.clone() });
        self.handlers.write().unwrap_or_else(PoisonError::into_inner).register(owner, name, handler)
    }

    /// Takes a handler of the program's out; whether there was one. Requests that it has are carried out to their end.
    pub fn remove(&self, name: &str) -> bool {
        self.remove_as(Owner::Program, name)
    }

    /// As [`Handling::remove`], for the library's as well.
    pub fn remove_as(&self, owner: Owner, name: &str) -> bool {
        let handler = self.handlers.write().unwrap_or_else(PoisonError::into_inner).remove(owner, name);
        // What it holds goes when the lock is free again.
        handler.is_some()
    }

    /// Whether this thread runs one of these handlers, or a callback of a call that whoever has them made.
    #[must_use]
    pub fn is_around(&self) -> bool {
        self.home.is_around()
    }

    pub(super) const fn home(&self) -> &Home {
        &self.home
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Handler>> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn submit(&self, job: Job) {
        self.pool.submit(job);
    }

    /// How many requests wait for a thread, where all there may be are busy.
    pub(super) fn exhaustion(&self) -> Option<PoolLoad> {
        let waiting = self.pool.queue.lock();
        let is_exhausted =
            waiting.idle == 0 && waiting.threads >= self.pool.threads_max && !waiting.jobs.is_empty();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        is_exhausted.then(|| PoolLoad { threads: count(waiting.threads), waiting: count(waiting.jobs.len()) })
    }

    /// For a worker that ends: has its pooled requests carried out within `grace`, gives up those that have not begun by
    /// then, and waits up to `final_timeout` for the others. Whether no pooled handler is at work any more; one that asks this
    /// itself does not wait for itself.
    pub(in crate::driver) fn finish(&self, grace: Duration, final_timeout: Duration) -> bool {
        let queue = &self.pool.queue;
        let is_around = self.is_around();
        if !is_around && queue.rest(grace) {
            return true;
        }
        let left = core::mem::take(&mut queue.lock().jobs);
        refuse(left, Status::Leaving, "");
        !is_around && queue.rest(final_timeout)
    }
}

/// A request that is complete, and the handler that it is for.
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

impl Job {
    /// Whether it is for a handler of the program's.
    pub(super) fn is_of_the_program(&self) -> bool {
        is_of_the_program(&self.handler.name)
    }

    /// Has the handler carry it out, unless the call was given up, or its caller is to take other answers first. A handler
    /// that panics has failed, and the thread lives on.
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

/// One call, among all that this process answers.
pub(super) type CallKey = (usize, u64);

/// Whether a handler on this thread carries this call out.
pub(super) fn is_carried_out(call: CallKey) -> bool {
    CARRIED_OUT.get() == Some(call)
}

std::thread_local! {
    /// The call that a handler on this thread carries out, the innermost.
    static CARRIED_OUT: Cell<Option<CallKey>> = const { Cell::new(None) };
}

/// Where calls that handlers answer come from: a connection, the worker itself, or a backend of the program's.
pub(super) trait CallSource: Send + Sync {
    /// Its number, among those whose pooled handlers take turns.
    fn number(&self) -> usize {
        0
    }

    /// Whether somebody waits for the answer to a call.
    fn is_wanted(&self, call: u64) -> bool;

    /// Whether the handler of a call begins now.
    fn begins(&self, call: u64) -> bool {
        self.is_wanted(call)
    }

    /// Keeps the job of a call whose handler does not begin now, for later, or drops that of one that is not wanted. Where
    /// the handler begins after all, it comes back.
    fn begin(&self, call: u64, job: Job) -> Option<Job> {
        let _ = (call, job);
        None
    }

    /// Answers a call. Whether anybody waits for it.
    fn answer(&self, call: u64, payload: Payload) -> bool;

    /// Fails a call. Whether anybody waits for it.
    fn fail(&self, call: u64, status: Status, message: &str) -> bool;
}

/// Whom a handler answers.
#[derive(Clone)]
pub(super) struct AnswerTo {
    pub(super) source: Arc<dyn CallSource>,
    /// Which of its calls; 0 where there is one.
    pub(super) call: u64,
}

/// Whether an answer is still wanted. The caller gives it up; the code that is to answer looks.
#[derive(Clone, Debug)]
pub struct Wanted(Arc<AtomicBool>);

impl Wanted {
    /// A call of this kind: the answer to a one-way call is never wanted.
    #[must_use]
    pub fn new(kind: CallKind) -> Self {
        Self(Arc::new(AtomicBool::new(kind == CallKind::Responded)))
    }

    /// The caller waits no longer.
    pub fn give_up(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether the caller waits.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Whoever is told what a handler says, once.
pub type Listener = Box<dyn FnOnce(Result<Payload, CallFailure>) + Send>;

/// A caller that no connection of this library's leads to.
pub(super) struct External {
    listener: Mutex<Option<Listener>>,
    wanted: Wanted,
}

impl External {
    fn complete(&self, answer: Result<Payload, CallFailure>) -> bool {
        let completion = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        completion.map(|complete| complete(answer)).is_some()
    }
}

impl CallSource for External {
    fn is_wanted(&self, _: u64) -> bool {
        self.wanted.get() && self.listener.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn answer(&self, _: u64, payload: Payload) -> bool {
        self.complete(Ok(payload))
    }

    fn fail(&self, _: u64, status: Status, message: &str) -> bool {
        self.complete(Err(CallFailure::Remote { status, message: message.into() }))
    }
}

impl fmt::Debug for AnswerTo {
    // Not the source: the table of a trait object keeps all that it names in the library.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerTo").field("call", &self.call).finish_non_exhaustive()
    }
}

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

/// Who counts what is taken in.
pub(super) trait Holder: fmt::Debug + Send + Sync {
    /// A request with a payload of so many bytes is done with.
    fn let_go(&self, quota: QuotaId, payload_bytes: u64);
}

/// A request that is taken in, until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) holder: Arc<dyn Holder>,
    pub(super) quota: QuotaId,
    pub(super) payload_bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.holder.let_go(self.quota, self.payload_bytes);
    }
}

/// The way back for one answer, from any thread and at any time. Dropped without an answer, it tells the caller so.
#[derive(Debug)]
pub struct Responder {
    handler: Arc<str>,
    to: Option<AnswerTo>,
    held: Option<Held>,
}

impl Responder {
    /// That of a request which came by a backend of the program's own.
    #[must_use]
    pub fn external(handler: Arc<str>, completion: Listener, wanted: Wanted) -> Self {
        let external = External { listener: Mutex::new(Some(completion)), wanted };
        let to = AnswerTo { source: Arc::new(external), call: 0 };
        Self { handler, to: Some(to), held: None }
    }

    /// Answers. Whether anybody waits for it.
    pub fn answer(mut self, payload: impl Into<Payload>) -> bool {
        self.finish(|to| to.answer(payload.into()))
    }

    /// The call failed, in these words. Whether anybody waits for it.
    pub fn fail(mut self, message: &str) -> bool {
        self.finish(|to| to.fail(Status::Failed, message))
    }

    /// The handler cannot read its request, for this reason. Whether anybody waits for it.
    pub fn refuse_malformed(mut self, message: &str) -> bool {
        self.finish(|to| to.fail(Status::Malformed, message))
    }

    /// The worker has not carried this one out, and will not, for this reason.
    pub(in crate::driver) fn decline(mut self, why: Status, message: &str) {
        self.finish(|to| to.fail(why, message));
    }

    /// Whether anybody waits for an answer still; for who has much to do for it.
    #[must_use]
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
        // Where its own handler panics, whoever catches that has the words.
        if !std::thread::panicking() || CARRIED_OUT.get() != Some(to.key()) {
            let message = format!("{} gave no answer", self.handler);
            self.finish(|to| to.fail(Status::Failed, &message));
        }
    }
}

/// Threads for handlers that may block. There is one more whenever there are more jobs than threads that wait for one, up
/// to the limit.
///
/// Jobs are handed over by a lock and a condition: a thread that waits for one is to sleep at once, and not to look again
/// and again as a receiver of a channel does, since the thread that it waits for may be on the same core.
#[derive(Debug)]
struct Pool {
    queue: Arc<Queue>,
    threads_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
    rested: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Each caller has its turn.
    jobs: FairQueue<Job>,
    /// Threads that wait for one.
    idle: usize,
    /// Threads that have one in hand.
    busy: usize,
    threads: usize,
    /// Whoever waits for the pool to come to rest.
    awaits_rest: usize,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut waiting = self.lock();
        loop {
            if let Some(job) = waiting.jobs.pop() {
                waiting.busy += 1;
                drop(waiting);
                job.run();
                waiting = self.lock();
                waiting.busy -= 1;
                if waiting.awaits_rest > 0 && waiting.busy == 0 && waiting.jobs.is_empty() {
                    self.rested.notify_all();
                }
            } else if waiting.is_closed {
                return;
            } else {
                waiting.idle += 1;
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                waiting.idle -= 1;
            }
        }
    }
}

impl Pool {
    fn new(threads_max: usize) -> Self {
        Self { queue: Arc::default(), threads_max: threads_max.max(1) }
    }

    fn submit(&self, job: Job) {
        let source = job.to.source.number();
        let mut waiting = self.queue.lock();
        waiting.jobs.push(source, job);
        let is_awaited = waiting.idle > 0;
        let grows = waiting.jobs.len() > waiting.idle && waiting.threads < self.threads_max;
        waiting.threads += usize::from(grows);
        drop(waiting);
        if is_awaited {
            self.queue.changed.notify_one();
        }
        if grows {
            self.grow();
        }
    }

    fn grow(&self) {
        let queue = Arc::clone(&self.queue);
        if let Err(error) = threads::spawn("rdzv-rpc-work", move || queue.work()) {
            let mut waiting = self.queue.lock();
            waiting.threads -= 1;
            // Where there are others, they come to it in their turn.
            let left =
                if waiting.threads == 0 { core::mem::take(&mut waiting.jobs) } else { FairQueue::default() };
            drop(waiting);
            refuse(left, Status::Exhausted, &format!("no thread could be started: {error}"));
        }
    }
}

impl Queue {
    /// Waits until there is nothing to do; whether that was so within `grace`.
    fn rest(&self, grace: Duration) -> bool {
        let mut waiting = self.lock();
        waiting.awaits_rest += 1;
        let is_at_work = |waiting: &mut Waiting| waiting.busy > 0 || !waiting.jobs.is_empty();
        let waited = self.rested.wait_timeout_while(waiting, grace, is_at_work);
        let (mut waiting, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.awaits_rest -= 1;
        !timeout.timed_out()
    }
}

/// Nobody will ever carry these out.
fn refuse(mut jobs: FairQueue<Job>, why: Status, message: &str) {
    while let Some(job) = jobs.pop() {
        job.to.fail(why, message);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The threads end when they have done what they do; who is in a handler of the program's is left to it.
        let mut waiting = self.queue.lock();
        waiting.is_closed = true;
        let left = core::mem::take(&mut waiting.jobs);
        drop(waiting);
        self.queue.changed.notify_all();
        refuse(left, Status::Leaving, "");
    }
}
