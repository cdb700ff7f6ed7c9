//! Inputs that other threads send to the agent's own.

use crate::node::Input;
use rendezvous_core::driver::channel::Sender;
use rendezvous_core::driver::event_loop::Waker;

/// Sends inputs to the agent's thread and wakes it.
#[derive(Clone, Debug)]
pub(super) struct InputSender {
    inputs: Sender<Input>,
    waker: Waker,
}

impl InputSender {
    pub(super) const fn new(inputs: Sender<Input>, waker: Waker) -> Self {
        Self { inputs, waker }
    }

    pub(super) fn send(&self, input: Input) {
        // The channel is closed once the agent has ended.
        if self.inputs.send(input).is_ok() {
            self.waker.wake();
        }
    }
}
