//! Handlers: who they are, the threads that some of them run on, and how they answer.

use super::Payload;
use super::own::OwnCall;
use super::serving::Conn;
use crate::driver::threads::{self, Thread, panic_text};
use crate::rpc::connection::{CallKind, Status};
use crate::rpc::handlers::{HandlerError, Handlers, Owner};
use crate::rpc::name::WorkerInfo;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicIsize, Ordering};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, RwLock};

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
    /// The bytes of the request; they may be sent back as they are.
    pub payload: Vec<u8>,
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
}

impl Handling {
    /// No handlers yet, and a pool of so many threads at most, of which each is started when there is work for it.
    #[must_use]
    pub fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self { handlers: RwLock::default(), pool: Pool::new(threads_max) })
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
        let handler = Arc::new(Handler { name: name.into(), run, call });
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

    pub(super) fn get(&self, name: &str) -> Option<Arc<Handler>> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn submit(&self, job: Job) {
        self.pool.submit(job);
    }
}

/// A request that is complete, and the handler that it is for.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) handler: Arc<Handler>,
    pub(super) caller: WorkerInfo,
    pub(super) payload: Vec<u8>,
    pub(super) kind: CallKind,
    pub(super) time_left: Option<Duration>,
    pub(super) to: AnswerTo,
    pub(super) held: Option<Held>,
}

impl Job {
    /// Has the handler carry it out. One that panics has failed, and the thread lives on.
    pub(super) fn run(self) {
        let Self { handler, caller, payload, kind, time_left, to, held } = self;
        if kind == CallKind::Answered && !to.is_wanted() {
            return;
        }
        let request = Request { caller, handler: Arc::clone(&handler.name), payload, kind, time_left };
        let responder = Responder { handler: Arc::clone(&handler), to: Some(to.clone()), held };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (handler.call)(request, responder))) {
            to.fail(Status::Failed, &format!("{} panicked: {}", handler.name, panic_text(&*panic)));
        }
    }
}

/// Whom a handler answers.
#[derive(Clone, Debug)]
pub(super) enum AnswerTo {
    Conn(Arc<Conn>, u64),
    Own(Arc<OwnCall>),
}

impl AnswerTo {
    fn is_wanted(&self) -> bool {
        match self {
            Self::Conn(conn, call) => conn.is_wanted(*call),
            Self::Own(own) => own.is_wanted(),
        }
    }

    fn answer(&self, payload: Payload) -> bool {
        match self {
            Self::Conn(conn, call) => conn.answer(*call, payload),
            Self::Own(own) => own.answer(&payload),
        }
    }

    fn fail(&self, status: Status, words: &str) -> bool {
        match self {
            Self::Conn(conn, call) => conn.fail(*call, status, words),
            Self::Own(own) => own.fail(status, words),
        }
    }
}

/// Something that is told when it is dropped that a request is done with.
pub(super) struct Held(pub(super) Box<dyn FnMut() + Send + Sync>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The way back for one answer, from any thread and at any time. Dropped without an answer, it tells the caller so.
#[derive(Debug)]
pub struct Responder {
    handler: Arc<Handler>,
    to: Option<AnswerTo>,
    held: Option<Held>,
}

impl Responder {
    /// Answers. Whether anybody waits for it.
    pub fn answer(mut self, payload: impl Into<Payload>) -> bool {
        self.finish(|to| to.answer(payload.into()))
    }

    /// The call failed, in these words. Whether anybody waits for it.
    pub fn fail(mut self, words: &str) -> bool {
        self.finish(|to| to.fail(Status::Failed, words))
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
        // Whoever catches the panic has its words.
        if self.to.is_some() && !std::thread::panicking() {
            let words = format!("{} gave no answer", self.handler.name);
            self.finish(|to| to.fail(Status::Failed, &words));
        }
    }
}

/// Threads for handlers that may block. There is one more whenever all have something to do, up to the limit.
#[derive(Debug)]
struct Pool {
    jobs: Sender<Job>,
    inbox: Receiver<Job>,
    /// Threads without a job less jobs without a thread.
    free: Arc<AtomicIsize>,
    threads: Mutex<Vec<Thread>>,
    threads_max: usize,
}

impl Pool {
    fn new(threads_max: usize) -> Self {
        let (jobs, inbox) = unbounded();
        let free = Arc::new(AtomicIsize::new(0));
        Self { jobs, inbox, free, threads: Mutex::default(), threads_max: threads_max.max(1) }
    }

    fn submit(&self, job: Job) {
        // The pool has the other end of the channel.
        self.jobs.send(job).ok();
        if self.free.fetch_sub(1, Ordering::AcqRel) <= 0 {
            self.grow();
        }
    }

    fn grow(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.len() >= self.threads_max {
            return;
        }
        let (inbox, free) = (self.inbox.clone(), Arc::clone(&self.free));
        // It counts as free before it is there: its first job may be waiting.
        free.fetch_add(1, Ordering::AcqRel);
        let thread = threads::spawn("rdzv-rpc-work", move || {
            while let Ok(job) = inbox.recv() {
                job.run();
                free.fetch_add(1, Ordering::AcqRel);
            }
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                self.free.fetch_sub(1, Ordering::AcqRel);
                if threads.is_empty() {
                    drop(threads);
                    self.refuse(&format!("no thread could be started for it: {error}"));
                }
            }
        }
    }

    /// Nobody will ever carry out what waits.
    fn refuse(&self, words: &str) {
        while let Ok(job) = self.inbox.try_recv() {
            self.free.fetch_add(1, Ordering::AcqRel);
            job.to.fail(Status::Failed, words);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The threads end when they find the channel closed; who is in a handler of the program's is left to it.
        let (jobs, _) = unbounded();
        self.jobs = jobs;
        self.refuse("the worker ended");
    }
}
