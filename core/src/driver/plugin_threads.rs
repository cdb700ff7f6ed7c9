//! Threads that run code of the program (plug-ins), which may block and may never return.

use crate::driver::channel::{Sender, bounded};
use crate::driver::clock::from_now;
use crate::driver::prelude::*;
use crate::driver::threads;
use alloc::collections::VecDeque;
use core::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::ThreadId;

/// Reason why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The timeout passed.
    TimeUp {
        /// Whether the job had started, so that it goes on without its caller.
        is_running: bool,
    },
    /// The token was cancelled.
    Cancelled {
        /// As above.
        is_running: bool,
    },
    /// The request came from the plug-in that it calls.
    CalledBack,
    /// The maximum number of jobs is running.
    TooMany,
    /// The system cannot start a thread; its error number.
    NoThread(i32),
    /// The job panicked.
    Panicked,
}

/// Pool with one thread for each concurrent job.
pub(super) struct PluginThreads {
    shared: Arc<PluginThreadsShared>,
    name: &'static str,
    threads_max: usize,
}

impl fmt::Debug for PluginThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Default)]
struct PluginThreadsShared {
    state: Mutex<PluginThreadsState>,
    /// Signalled when a job is queued.
    job_added: Condvar,
}

#[derive(Default)]
struct PluginThreadsState {
    queue: VecDeque<Task>,
    threads: Vec<ThreadId>,
    idle: usize,
    tasks: u64,
    is_closing: bool,
}

struct Task {
    number: u64,
    job: Job,
    /// Receives the result. `None` if no caller waits for it.
    reply: Option<Sender<JobResult>>,
}

/// Call into a plug-in.
type Job = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;
/// Result of a job, of the type that its caller expects.
type JobResult = Result<Box<dyn Any + Send>, Ended>;

impl PluginThreads {
    /// Makes a pool whose threads are called `name`.
    pub(super) fn new(name: &'static str, threads_max: usize) -> Self {
        Self { shared: Arc::default(), name, threads_max }
    }

    /// Runs `job` and waits for its result, for at most `timeout` and until `token` is cancelled. All that the job
    /// holds is dropped before the result is delivered.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
        timeout: Duration,
        token: &CancelToken,
    ) -> Result<T, Ended> {
        let result = self.ask_boxed(Box::new(|| Box::new(job())), timeout, token)?;
        Ok(*result.downcast().expect("the job returns this type"))
    }

    /// [`ask`](Self::ask) for every type of result: its machine code exists once.
    fn ask_boxed(&self, job: Job, timeout: Duration, token: &CancelToken) -> JobResult {
        // The result and the cancellation.
        let (reply, answers) = bounded(2);
        let cancelled = reply.clone();
        let until = from_now(timeout);
        let number = {
            let mut state = self.shared.lock();
            if state.threads.contains(&std::thread::current().id()) {
                return Err(Ended::CalledBack);
            }
            if token.is_cancelled() {
                return Err(Ended::Cancelled { is_running: false });
            }
            self.enqueue(&mut state, job, Some(reply))?
        };
        let ended = Ended::Cancelled { is_running: true };
        let _guard = token.on_cancel(move || _ = cancelled.send(Err(ended)));
        // A thread answers every job that it takes, and a job that is not taken stays in the queue.
        let mut result = answers.recv_deadline(until).unwrap_or(Err(Ended::TimeUp { is_running: true }));
        if matches!(result, Err(Ended::TimeUp { .. } | Ended::Cancelled { .. }))
            && let Ok(late @ (Ok(_) | Err(Ended::Panicked))) = answers.try_recv()
        {
            // The job has just returned.
            result = late;
        }
        if let Err(Ended::TimeUp { is_running } | Ended::Cancelled { is_running }) = &mut result {
            let mut state = self.shared.lock();
            let unstarted = state.queue.iter().position(|task| task.number == number);
            let unstarted = unstarted.and_then(|index| state.queue.remove(index));
            *is_running = unstarted.is_none();
            // The job belongs to the program, and dropping it may call this pool.
            drop(state);
            drop(unstarted);
        }
        result
    }

    /// Queues `job` without waiting for it.
    pub(super) fn start(&self, job: impl FnOnce() + Send + 'static) {
        let job = || -> Box<dyn Any + Send> {
            job();
            Box::new(())
        };
        // If no thread can be started, the job is dropped: no caller waits for an error.
        self.enqueue(&mut self.shared.lock(), Box::new(job), None).ok();
    }

    fn enqueue(
        &self,
        state: &mut PluginThreadsState,
        job: Job,
        reply: Option<Sender<JobResult>>,
    ) -> Result<u64, Ended> {
        state.tasks += 1;
        let number = state.tasks;
        if state.idle <= state.queue.len() {
            self.add_thread(state)?;
        }
        state.queue.push_back(Task { number, job, reply });
        self.shared.job_added.notify_one();
        Ok(number)
    }

    fn add_thread(&self, state: &mut PluginThreadsState) -> Result<(), Ended> {
        if state.threads.len() >= self.threads_max {
            return Err(Ended::TooMany);
        }
        let shared = Arc::clone(&self.shared);
        let thread = threads::spawn(self.name, move || shared.work());
        let thread = thread.map_err(|error| Ended::NoThread(error.raw_os_error().unwrap_or(0)))?;
        state.threads.push(thread.id());
        state.idle += 1;
        Ok(())
    }
}

impl Drop for PluginThreads {
    /// Idle threads end after the remaining jobs. A thread that is in the program's code ends when that returns; this
    /// does not wait for it.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        drop(state);
        self.shared.job_added.notify_all();
    }
}

impl PluginThreadsShared {
    fn lock(&self) -> MutexGuard<'_, PluginThreadsState> {
        // No code that holds the lock panics in the middle of a change.
        self.state.locked()
    }

    /// Main loop of a thread; a new thread counts as idle.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Task { job, reply, .. }) = state.queue.pop_front() {
                state.idle -= 1;
                drop(state);
                let result = catch_unwind(AssertUnwindSafe(job)).map_err(|_| Ended::Panicked);
                state = self.lock();
                // The thread is free for the next call of the caller that gets the result.
                state.idle += 1;
                drop(state);
                if let Some(reply) = reply {
                    // A caller that has given up does not receive, and the result is dropped here.
                    reply.send(result).ok();
                }
                state = self.lock();
            } else if state.is_closing {
                let this = std::thread::current().id();
                state.threads.retain(|&thread| thread != this);
                return;
            } else {
                state = self.job_added.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
