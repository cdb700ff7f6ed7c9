//! Channels for one message. No timeout passes.

use super::channel;
use std::time::Duration;

pub struct Sender<T>(channel::Sender<T>);

pub struct Receiver<T>(channel::Receiver<T>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    Timeout,
    Disconnected,
}

pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = channel::bounded(1);
    (Sender(sender), Receiver(receiver))
}

impl<T> Sender<T> {
    pub fn send(self, message: T) -> Result<(), ()> {
        self.0.send(message)
    }
}

impl<T> Receiver<T> {
    pub fn recv_timeout(&self, _: Duration) -> Result<T, RecvTimeoutError> {
        self.0.recv().map_err(|()| RecvTimeoutError::Disconnected)
    }
}
