//! What other threads tell the agent's own.

use super::last_call::CallSource;
use super::membership::Info;
use super::numbering::Numbered;
use crate::supervisor::{Input, Membership};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use crossbeam_channel::Sender;
use rendezvous_core::driver::event_loop::Waker;

/// One thing told.
#[derive(Debug)]
pub(super) enum AgentInput {
    /// For the machine, as it is.
    Input(Input),
    /// There is a round.
    Met { call: u64, info: Arc<Info> },
    /// The workers have their numbers.
    Numbered { call: u64, numbered: Box<Numbered> },
    /// The thread panicked, with these words, and answers nothing any more.
    Fell { asker: CallSource, message: String },
}

/// Tells, and wakes.
#[derive(Clone, Debug)]
pub(super) struct EventSender {
    events: Sender<AgentInput>,
    waker: Waker,
}

impl EventSender {
    pub(super) const fn new(events: Sender<AgentInput>, waker: Waker) -> Self {
        Self { events, waker }
    }

    pub(super) fn notify(&self, events: AgentInput) {
        // An agent that has ended listens no more.
        if self.events.send(events).is_ok() {
            self.waker.wake();
        }
    }

    pub(super) fn input(&self, input: Input) {
        self.notify(AgentInput::Input(input));
    }

    pub(super) fn member(&self, membership: Membership) {
        self.input(Input::Member(membership));
    }
}
