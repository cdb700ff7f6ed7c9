//! One answer, from one thread to another.

use crate::time::Duration;
use alloc::sync::Arc;
use core::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whoever shall answer, and whoever waits for it.
#[must_use]
pub fn reply<T>() -> (Reply<T>, Awaited<T>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Open), changed: Condvar::new() });
    (Reply(Arc::clone(&shared)), Awaited(shared))
}

/// Gives the answer. To drop it without one is to say that none will come.
pub struct Reply<T>(Arc<Shared<T>>);

/// Gets the answer.
pub struct Awaited<T>(Arc<Shared<T>>);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// None came in time.
    TimedOut,
    /// Nobody is left to give one.
    Gone,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Open,
    Given(T),
    Gone,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Reply<T> {
    /// Answers. That nobody waits any more is no matter.
    pub fn give(self, answer: T) {
        *self.0.lock() = State::Given(answer);
    }
}

impl<T> Awaited<T> {
    /// Waits for the answer; `None`: there will be none.
    #[must_use]
    pub fn wait(self) -> Option<T> {
        let open = |state: &mut State<T>| matches!(state, State::Open);
        let mut state =
            self.0.changed.wait_while(self.0.lock(), open).unwrap_or_else(PoisonError::into_inner);
        match core::mem::replace(&mut *state, State::Gone) {
            State::Given(answer) => Some(answer),
            State::Open | State::Gone => None,
        }
    }

    /// Waits for the answer within `patience`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait_within(self, patience: Duration) -> Result<T, NoReply> {
        let open = |state: &mut State<T>| matches!(state, State::Open);
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), patience, open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match core::mem::replace(&mut *state, State::Gone) {
            State::Given(answer) => Ok(answer),
            State::Open => Err(NoReply::TimedOut),
            State::Gone => Err(NoReply::Gone),
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

impl<T> fmt::Debug for Awaited<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Awaited")
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if matches!(*state, State::Open) {
            *state = State::Gone;
        }
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn an_answer_comes_from_another_thread_and_before_or_after_the_wait_for_it() {
        let (reply_of_7, seven) = reply();
        let thread = std::thread::spawn(move || reply_of_7.give(7));
        assert_eq!(seven.wait_within(SOON), Ok(7));
        thread.join().expect("no panic");
        let (reply_of_8, eight) = reply();
        reply_of_8.give(8);
        assert_eq!(eight.wait(), Some(8));
    }

    #[test]
    fn whoever_is_gone_without_an_answer_is_not_waited_for() {
        let (gone, nothing) = reply::<()>();
        drop(gone);
        assert_eq!(nothing.wait_within(SOON), Err(NoReply::Gone));
        let (going, nothing) = reply::<()>();
        let thread = std::thread::spawn(move || drop(going));
        assert_eq!(nothing.wait(), None);
        thread.join().expect("no panic");
        let (silent, nothing) = reply::<()>();
        assert_eq!(nothing.wait_within(Duration::from_millis(1)), Err(NoReply::TimedOut));
        silent.give(());
    }
}
