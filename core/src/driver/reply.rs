//! One reply from one thread to another, with a deadline.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Sending side. Dropping it without a reply closes the channel.
pub struct Reply<T>(Arc<ReplyShared<T>>);

/// Receiving side.
pub struct Awaited<T>(Arc<ReplyShared<T>>);

struct ReplyShared<T> {
    state: Mutex<ReplyState<T>>,
    changed: Condvar,
}

enum ReplyState<T> {
    /// There is no reply yet and no thread waits. Sending then needs no wake-up, which would be a system call.
    Open,
    Awaited,
    Answer(T),
    Closed,
}

/// Reason why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The timeout expired.
    TimedOut,
    /// The sending side was dropped.
    Closed,
}

/// Makes both sides of a reply.
#[must_use]
pub fn ask<T>() -> (Reply<T>, Awaited<T>) {
    let shared = Arc::new(ReplyShared { state: Mutex::new(ReplyState::Open), changed: Condvar::new() });
    (Reply(Arc::clone(&shared)), Awaited(shared))
}

impl<T> ReplyShared<T> {
    fn end(&self, end: ReplyState<T>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &*state {
            ReplyState::Open | ReplyState::Awaited => core::mem::replace(&mut *state, end),
            ReplyState::Answer(_) | ReplyState::Closed => return,
        };
        drop(state);
        if let ReplyState::Awaited = before {
            self.changed.notify_one();
        }
    }
}

impl<T> Reply<T> {
    /// Sends the reply. The receiver may have stopped waiting.
    pub fn answer(self, answer: T) {
        self.0.end(ReplyState::Answer(answer));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.0.end(ReplyState::Closed);
    }
}

impl<T> Awaited<T> {
    /// Returns the reply, or the reason why there will be none, if either is known within `timeout`. The result is
    /// returned once.
    pub fn look(&self, timeout: Duration) -> Option<Result<T, NoAnswer>> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let (ReplyState::Open, false) = (&*state, timeout.is_zero()) {
            *state = ReplyState::Awaited;
            let waits = |state: &mut ReplyState<T>| matches!(state, ReplyState::Awaited);
            let waited = self.0.changed.wait_timeout_while(state, timeout, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match core::mem::replace(&mut *state, ReplyState::Closed) {
            ReplyState::Answer(answer) => Some(Ok(answer)),
            ReplyState::Closed => Some(Err(NoAnswer::Closed)),
            ReplyState::Open | ReplyState::Awaited => {
                *state = ReplyState::Open;
                None
            }
        }
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn wait(self, timeout: Duration) -> Result<T, NoAnswer> {
        self.look(timeout).unwrap_or(Err(NoAnswer::TimedOut))
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn an_answer_comes_or_it_is_known_that_none_will() {
        let (reply, awaited) = ask();
        std::thread::scope(|scope| {
            scope.spawn(|| reply.answer(7));
            assert_eq!(awaited.wait(SOON), Ok(7));
        });
        let (reply, awaited) = ask::<u8>();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(reply));
            assert_eq!(awaited.wait(SOON), Err(NoAnswer::Closed));
        });
        let (reply, awaited) = ask::<u8>();
        assert_eq!(awaited.wait(Duration::from_millis(1)), Err(NoAnswer::TimedOut));
        reply.answer(7);
    }
}
