//! Threads that run code of the program (plug-ins), which may block and may never return.

use crate::driver::clock::from_now;
use crate::driver::threads;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Result of a job. It can have any type: one kind of thread serves all plug-ins.
pub(super) type Answer = Box<dyn Any + Send>;
/// Call into a plug-in.
pub(super) type Job = Box<dyn FnOnce() -> Answer + Send>;

/// Reason why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    TimeUp,
    Cancelled,
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
pub(super) struct Workers {
    shared: Arc<WorkersShared>,
    name: &'static str,
    threads_max: usize,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Default)]
struct WorkersShared {
    state: Mutex<WorkersState>,
    /// Signalled when a job is queued.
    job_added: Condvar,
    /// Signalled when a job has a result, and when callers should check whether they were cancelled.
    result_ready: Condvar,
}

#[derive(Default)]
struct WorkersState {
    queue: Vec<Task>,
    answers: Vec<(u64, Option<Answer>)>,
    /// Jobs whose callers have returned.
    abandoned: Vec<u64>,
    threads: Vec<ThreadId>,
    idle: usize,
    tasks: u64,
    is_closing: bool,
}

struct Task {
    number: u64,
    job: Job,
}

impl Workers {
    /// Makes a pool whose threads are called `name`.
    pub(super) fn new(name: &'static str, threads_max: usize) -> Self {
        Self { shared: Arc::default(), name, threads_max }
    }

    /// Runs `job` and waits for its result, for at most `timeout` and while `is_cancelled` returns false. All that
    /// the job holds is dropped before the result is delivered.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
        timeout: Duration,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<T, Ended> {
        let answer = self.ask_any(Box::new(|| Box::new(job()) as Answer), timeout, &is_cancelled)?;
        // The result has the type of the job.
        answer.downcast::<T>().map(|answer| *answer).map_err(|_| Ended::Panicked)
    }

    /// As [`Workers::ask`], for results of any type.
    pub(super) fn ask_any(
        &self,
        job: Job,
        timeout: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Answer, Ended> {
        let until = from_now(timeout);
        let mut state = self.shared.lock();
        if state.threads.contains(&std::thread::current().id()) {
            return Err(Ended::CalledBack);
        }
        let number = self.enqueue(&mut state, job)?;
        loop {
            if let Some(index) = state.answers.iter().position(|&(of, _)| of == number) {
                return state.answers.swap_remove(index).1.ok_or(Ended::Panicked);
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            let ended = if is_cancelled() {
                Ended::Cancelled
            } else if left.is_zero() {
                Ended::TimeUp
            } else {
                let waited = self.shared.result_ready.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            let unstarted = state.queue.iter().position(|task| task.number == number);
            let unstarted = unstarted.map(|index| state.queue.swap_remove(index));
            if unstarted.is_none() {
                state.abandoned.push(number);
            }
            // The job belongs to the program, and dropping it may call this pool.
            drop(state);
            drop(unstarted);
            return Err(ended);
        }
    }

    /// Queues `job` without waiting for it.
    pub(super) fn start(&self, job: impl FnOnce() + Send + 'static) {
        let result_ready = || {
            job();
            Box::new(()) as Answer
        };
        let mut state = self.shared.lock();
        // If no thread can be started, the job is dropped: no caller waits for an error.
        if let Ok(number) = self.enqueue(&mut state, Box::new(result_ready)) {
            state.abandoned.push(number);
        }
    }

    fn enqueue(&self, state: &mut WorkersState, job: Job) -> Result<u64, Ended> {
        state.tasks += 1;
        let number = state.tasks;
        if state.idle <= state.queue.len() {
            self.add_thread(state)?;
        }
        state.queue.push(Task { number, job });
        self.shared.job_added.notify_one();
        Ok(number)
    }

    fn add_thread(&self, state: &mut WorkersState) -> Result<(), Ended> {
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

    /// Wakes the callers so that they check whether they were cancelled.
    pub(super) fn look_up(&self) {
        drop(self.shared.lock());
        self.shared.result_ready.notify_all();
    }
}

impl Drop for Workers {
    /// Idle threads end after the remaining jobs. A thread that is in the program's code ends when that returns; this
    /// does not wait for it.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        drop(state);
        self.shared.job_added.notify_all();
    }
}

impl WorkersShared {
    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        // No code that holds the lock panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Main loop of a thread; a new thread counts as idle.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Task { number, job }) = state.queue.pop() {
                state.idle -= 1;
                drop(state);
                // The job and all that it holds are dropped before a caller learns the result. A caller that then
                // drops the plug-in holds the last reference to it.
                let answer = catch_unwind(AssertUnwindSafe(job)).ok();
                state = self.lock();
                state.idle += 1;
                match state.abandoned.iter().position(|&of| of == number) {
                    Some(index) => {
                        state.abandoned.swap_remove(index);
                        drop(state);
                        drop(answer);
                        state = self.lock();
                    }
                    None => state.answers.push((number, answer)),
                }
                self.result_ready.notify_all();
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
