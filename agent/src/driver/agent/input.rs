//! Events that other threads send to the agent's own.

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

/// The round, as the rendezvous returned it.
pub(super) type Info = RendezvousInfo<Arc<NodeStore>>;

/// The ranks and the store of a round's workers.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) ranks: Ranks,
    pub(super) master: RendezvousStoreInfo,
    /// Which process serves the workers' store.
    pub(super) agent_store: AgentStore,
    /// The workers' store, if this agent hosts it.
    #[expect(dead_code, reason = "held: it serves until the next round")]
    pub(super) server: Option<Arc<Server>>,
}

/// Event for the agent's thread.
#[derive(Debug)]
pub(super) enum AgentInput {
    /// An input of the supervisor, passed on unchanged.
    Input(Input),
    /// A round was formed.
    Met { call: u64, info: Arc<Info> },
    /// The workers' ranks and store are known.
    Numbered { call: u64, numbered: Box<Numbered> },
    /// The thread panicked with this message, and answers no more calls.
    ThreadPanicked { call_source: CallSource, message: String },
}

/// Sends events to the agent's thread and wakes it.
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
        // The channel is closed once the agent has ended.
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
