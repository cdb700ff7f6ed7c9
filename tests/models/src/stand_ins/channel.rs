//! Channels. As in those of crossbeam, messages vanish with their receiver.

use shuttle::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

struct State<T> {
    messages: VecDeque<T>,
    capacity: usize,
    senders: usize,
    has_receiver: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

pub struct Sender<T>(Arc<Shared<T>>);

pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().expect("no panic").senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().expect("no panic").senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().expect("no panic");
        state.has_receiver = false;
        let messages = std::mem::take(&mut state.messages);
        drop(state);
        drop(messages);
        self.0.changed.notify_all();
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { messages: VecDeque::new(), capacity, senders: 1, has_receiver: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

impl<T> Sender<T> {
    fn put(&self, message: T, waits: bool) -> Result<(), ()> {
        let mut state = self.0.state.lock().expect("no panic");
        while waits && state.has_receiver && state.messages.len() >= state.capacity {
            state = self.0.changed.wait(state).expect("no panic");
        }
        if !state.has_receiver || state.messages.len() >= state.capacity {
            return Err(());
        }
        state.messages.push_back(message);
        self.0.changed.notify_all();
        Ok(())
    }

    pub fn send(&self, message: T) -> Result<(), ()> {
        self.put(message, true)
    }

    pub fn try_send(&self, message: T) -> Result<(), ()> {
        self.put(message, false)
    }
}

impl<T> Receiver<T> {
    fn take(&self, waits: bool) -> Result<T, ()> {
        let mut state = self.0.state.lock().expect("no panic");
        while waits && state.senders > 0 && state.messages.is_empty() {
            state = self.0.changed.wait(state).expect("no panic");
        }
        let message = state.messages.pop_front().ok_or(());
        self.0.changed.notify_all();
        message
    }

    pub fn recv(&self) -> Result<T, ()> {
        self.take(true)
    }

    pub fn recv_deadline(&self, _: std::time::Instant) -> Result<T, ()> {
        self.recv()
    }

    pub fn try_recv(&self) -> Result<T, ()> {
        self.take(false)
    }
}
