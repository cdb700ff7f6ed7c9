//! A queue between threads. Senders never block.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A queue of up to `items_max` items with one receiver.
#[must_use]
pub fn channel<T>(items_max: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { items: VecDeque::new(), senders: 1, is_received: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), items_max });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

/// Where items go in. Its clones feed the same queue.
pub struct Sender<T>(Arc<Shared<T>>);

/// Where items come out.
pub struct Receiver<T>(Arc<Shared<T>>);

/// Why an item was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// As many wait as may.
    Full,
    /// Nobody will receive it.
    Closed,
}

/// Why there is no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// None came in time.
    TimedOut,
    /// None is there, and nobody is left to send one.
    Closed,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    items_max: usize,
}

struct State<T> {
    items: VecDeque<T>,
    senders: usize,
    is_received: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Puts an item at the end.
    ///
    /// # Errors
    /// Why it was not taken; it is dropped then.
    pub fn send(&self, item: T) -> Result<(), SendError> {
        let mut state = self.0.lock();
        if !state.is_received {
            return Err(SendError::Closed);
        }
        if state.items.len() >= self.0.items_max {
            return Err(SendError::Full);
        }
        state.items.push_back(item);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Takes the item at the front, if there is one.
    #[must_use]
    pub fn try_receive(&self) -> Option<T> {
        self.0.lock().items.pop_front()
    }

    /// Takes the item at the front; waits for one, but no longer than there are senders.
    #[must_use]
    pub fn receive(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            match state.items.pop_front() {
                None if state.senders > 0 => {}
                other => return other,
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same within `patience`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn receive_within(&self, patience: Duration) -> Result<T, ReceiveError> {
        let waits = |state: &mut State<T>| state.items.is_empty() && state.senders > 0;
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), patience, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.items.pop_front() {
            Some(item) => Ok(item),
            None if state.senders > 0 => Err(ReceiveError::TimedOut),
            None => Err(ReceiveError::Closed),
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_received = false;
        // What nobody will receive may hold senders of other queues: they are told by its end.
        let items = core::mem::take(&mut state.items);
        drop(state);
        drop(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn items_come_out_as_they_went_in_from_any_thread() {
        let (sender, receiver) = channel(usize::MAX);
        let other = sender.clone();
        let thread = std::thread::spawn(move || (0..100).try_for_each(|item| other.send(item)));
        let received: alloc::vec::Vec<i32> =
            (0..100).map(|_| receiver.receive_within(SOON).expect("an item")).collect();
        assert!(received.into_iter().eq(0..100));
        thread.join().expect("no panic").expect("taken");
        assert_eq!(receiver.try_receive(), None);
        assert_eq!(receiver.receive_within(Duration::from_millis(1)), Err(ReceiveError::TimedOut));
        sender.send(7).expect("taken");
        drop(sender);
        assert_eq!((receiver.receive(), receiver.receive()), (Some(7), None));
        assert_eq!(receiver.receive_within(SOON), Err(ReceiveError::Closed));
    }

    #[test]
    fn a_full_queue_and_one_without_a_receiver_take_nothing() {
        let (sender, receiver) = channel(1);
        let (inner, told) = channel::<()>(1);
        assert_eq!(sender.send(inner), Ok(()));
        let (another, _) = channel(1);
        assert_eq!(sender.send(another), Err(SendError::Full));
        drop(receiver);
        assert_eq!(told.receive(), None, "what was queued is gone");
        let (another, _) = channel(1);
        assert_eq!(sender.send(another), Err(SendError::Closed));
    }
}
