//! The threads on which code is called that the program brought: it may block, and may never come back.

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

/// Any type: there is one kind of thread for all plug-ins.
pub(super) type Answer = Box<dyn Any + Send>;
/// What is done on such a thread.
pub(super) type Job = Box<dyn FnOnce() -> Answer + Send>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    TimeUp,
    Cancelled,
    /// The question came from the code that is being asked.
    CalledBack,
    /// As many questions as may be are being answered.
    TooMany,
    /// The system has no thread; its error number.
    NoThread(i32),
    /// The code panicked.
    Panicked,
}

/// As many threads as there are questions at a time.
pub(super) struct Workers {
    shared: Arc<Shared>,
    name: &'static str,
    threads_max: usize,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told of questions.
    job_added: Condvar,
    /// Told of answers, and of calls that are to look whether they were cancelled.
    result_ready: Condvar,
}

#[derive(Default)]
struct State {
    questions: Vec<Task>,
    answers: Vec<(u64, Option<Answer>)>,
    /// Tasks whose callers have gone.
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
    /// `name` is that of the threads.
    pub(super) fn new(name: &'static str, threads_max: usize) -> Self {
        Self { shared: Arc::default(), name, threads_max }
    }

    /// Has `job` done, and waits for its answer: so long at most, and while `is_cancelled` says no. What the job holds is
    /// given up before the answer is told.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
        wait_mode: Duration,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<T, Ended> {
        let answer = self.ask_any(Box::new(|| Box::new(job()) as Answer), wait_mode, &is_cancelled)?;
        // The job's answer has the type that the job has.
        answer.downcast::<T>().map(|answer| *answer).map_err(|_| Ended::Panicked)
    }

    /// The same for any type.
    pub(super) fn ask_any(
        &self,
        job: Job,
        wait_mode: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Answer, Ended> {
        let until = from_now(wait_mode);
        let mut state = self.shared.lock();
        if state.threads.contains(&std::thread::current().id()) {
            return Err(Ended::CalledBack);
        }
        let number = self.give(&mut state, job)?;
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
            let given_up = state.questions.iter().position(|task| task.number == number);
            let given_up = given_up.map(|index| state.questions.swap_remove(index));
            if given_up.is_none() {
                state.abandoned.push(number);
            }
            // What the job holds is the program's, and may come back here as it goes.
            drop(state);
            drop(given_up);
            return Err(ended);
        }
    }

    /// Has `job` done, and waits for nothing.
    pub(super) fn start(&self, job: impl FnOnce() + Send + 'static) {
        let result_ready = || {
            job();
            Box::new(()) as Answer
        };
        let mut state = self.shared.lock();
        // Without a thread for it, there is nobody to tell.
        if let Ok(number) = self.give(&mut state, Box::new(result_ready)) {
            state.abandoned.push(number);
        }
    }

    fn give(&self, state: &mut State, job: Job) -> Result<u64, Ended> {
        state.tasks += 1;
        let number = state.tasks;
        if state.idle <= state.questions.len() {
            self.add_thread(state)?;
        }
        state.questions.push(Task { number, job });
        self.shared.job_added.notify_one();
        Ok(number)
    }

    fn add_thread(&self, state: &mut State) -> Result<(), Ended> {
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

    /// Makes the calls look whether they were cancelled.
    pub(super) fn look_up(&self) {
        drop(self.shared.lock());
        self.shared.result_ready.notify_all();
    }
}

impl Drop for Workers {
    /// Idle threads end, when they have done what nobody waits for. One that is still in the program's code ends when
    /// that does; nobody waits for it.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        drop(state);
        self.shared.job_added.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread; it is born idle.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(Task { number, job }) = state.questions.pop() {
                state.idle -= 1;
                drop(state);
                // The job is gone with what it holds before anybody knows of the answer, so that whoever ends the plug-in
                // then is the last to hold it.
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
