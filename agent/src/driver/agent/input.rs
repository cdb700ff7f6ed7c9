//! What other threads tell the agent's own.

use super::last_call::CallSource;
use crate::environment::AgentStore;
use crate::ranks::Ranks;
use crate::supervisor::{Input, Membership};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use crossbeam_channel::Sender;
use rendezvous_core::driver::event_loop::Waker;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::server::Server;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};

/// What the round gave.
pub(super) type Info = RendezvousInfo<Arc<NodeStore>>;

/// What the workers of a round are told.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) ranks: Ranks,
    pub(super) master: RendezvousStoreInfo,
    /// Who serves there.
    pub(super) agent_store: AgentStore,
    /// The workers' store, where this agent hosts it.
    #[expect(dead_code, reason = "held: it serves until the next round")]
    pub(super) server: Option<Arc<Server>>,
}

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
