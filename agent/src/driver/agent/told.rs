//! What other threads tell the agent's own.

use super::asked::Asker;
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
pub(super) enum Told {
    /// For the machine, as it is.
    Input(Input),
    /// There is a round.
    Met { call: u64, info: Arc<Info> },
    /// The workers have their numbers.
    Numbered { call: u64, numbered: Box<Numbered> },
    /// The thread panicked, with these words, and answers nothing any more.
    Fell { asker: Asker, words: String },
}

/// Tells, and wakes.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    told: Sender<Told>,
    waker: Waker,
}

impl Teller {
    pub(super) const fn new(told: Sender<Told>, waker: Waker) -> Self {
        Self { told, waker }
    }

    pub(super) fn tell(&self, told: Told) {
        // An agent that has ended listens no more.
        if self.told.send(told).is_ok() {
            self.waker.wake();
        }
    }

    pub(super) fn input(&self, input: Input) {
        self.tell(Told::Input(input));
    }

    pub(super) fn member(&self, membership: Membership) {
        self.input(Input::Member(membership));
    }
}
