//! The threads on which a store's own code is called.

use super::{Plugin, PluginAnswer, PluginError, Question};
use crate::driver::store_client::from_now;
use crate::driver::threads;
use crate::error::ErrorKind;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

pub(super) type Asked = Result<PluginAnswer, PluginError>;

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
}

/// As many threads as there are questions at a time.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told of questions.
    asked: Condvar,
    /// Told of answers, and of calls that are to look whether they were cancelled.
    answered: Condvar,
}

#[derive(Default)]
struct State {
    questions: Vec<Task>,
    answers: Vec<(u64, Asked)>,
    /// Tasks whose callers have gone.
    abandoned: Vec<u64>,
    threads: Vec<ThreadId>,
    idle: usize,
    tasks: u64,
    is_closing: bool,
}

struct Task {
    number: u64,
    plugin: Arc<dyn Plugin>,
    question: Question,
}

impl Workers {
    pub(super) fn new(threads_max: usize) -> Self {
        Self { shared: Arc::default(), threads_max }
    }

    /// Asks, and waits for the answer: so long at most, and while `is_cancelled` says no.
    pub(super) fn ask(
        &self,
        plugin: &Arc<dyn Plugin>,
        question: Question,
        patience: Duration,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Asked, Ended> {
        let until = from_now(patience);
        let mut state = self.shared.lock();
        if state.threads.contains(&std::thread::current().id()) {
            return Err(Ended::CalledBack);
        }
        state.tasks += 1;
        let number = state.tasks;
        if state.idle <= state.questions.len() {
            self.add_thread(&mut state)?;
        }
        state.questions.push(Task { number, plugin: Arc::clone(plugin), question });
        self.shared.asked.notify_one();
        loop {
            if let Some(place) = state.answers.iter().position(|&(of, _)| of == number) {
                return Ok(state.answers.swap_remove(place).1);
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            let ended = if is_cancelled() {
                Ended::Cancelled
            } else if left.is_zero() {
                Ended::TimeUp
            } else {
                let waited = self.shared.answered.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            match state.questions.iter().position(|task| task.number == number) {
                Some(place) => drop(state.questions.swap_remove(place)),
                None => state.abandoned.push(number),
            }
            return Err(ended);
        }
    }

    fn add_thread(&self, state: &mut State) -> Result<(), Ended> {
        if state.threads.len() >= self.threads_max {
            return Err(Ended::TooMany);
        }
        let shared = Arc::clone(&self.shared);
        let thread = threads::spawn("rdzv-store", move || shared.work());
        let thread = thread.map_err(|error| Ended::NoThread(error.raw_os_error().unwrap_or(0)))?;
        state.threads.push(thread.thread().id());
        state.idle += 1;
        Ok(())
    }

    /// Makes the calls look whether they were cancelled.
    pub(super) fn look_up(&self) {
        drop(self.shared.lock());
        self.shared.answered.notify_all();
    }
}

impl Drop for Workers {
    /// Idle threads end. One that is still in the store's own code ends when that does; nobody waits for it.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        state.questions.clear();
        drop(state);
        self.shared.asked.notify_all();
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
            if let Some(Task { number, plugin, question }) = state.questions.pop() {
                state.idle -= 1;
                drop(state);
                let answer = catch_unwind(AssertUnwindSafe(|| plugin.ask(&question)));
                let answer = answer.unwrap_or_else(|_| {
                    Err(PluginError { kind: ErrorKind::Io, words: Some("it panicked".into()) })
                });
                // Before anybody knows of the answer, so that whoever ends the store then is the last to hold it.
                drop(plugin);
                state = self.lock();
                state.idle += 1;
                match state.abandoned.iter().position(|&of| of == number) {
                    Some(place) => drop(state.abandoned.swap_remove(place)),
                    None => state.answers.push((number, answer)),
                }
                self.answered.notify_all();
            } else if state.is_closing {
                let this = std::thread::current().id();
                state.threads.retain(|&thread| thread != this);
                return;
            } else {
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
