//! Data that the last event of a loop points to.

use crate::agent_event::AgentEventView;
use crate::loop_rpc_event::LastRpcEvent;
use crate::prelude::*;
use crate::rendezvous_event::rdzv_round_event;
use crate::watch::rdzv_change;
use rendezvous_core::rendezvous::round_event::RoundEvent;

#[derive(Debug, Default)]
pub(crate) struct LastEvent {
    pub(crate) error: Option<Box<rdzv_error>>,
    /// Change, its key, and its value.
    pub(crate) change: Option<(Box<rdzv_change>, Vec<u8>, Vec<u8>)>,
    /// Event of a round for C, which points to the texts of the event.
    pub(crate) round: Option<(Box<rdzv_round_event>, RoundEvent)>,
    pub(crate) agent: Option<AgentEventView>,
    pub(crate) rpc: LastRpcEvent,
}

impl LastEvent {
    /// Stores a failure; the pointer is valid until the next event.
    pub(crate) fn fail(&mut self, fault: Fault) -> *const rdzv_error {
        &raw const **self.error.insert(Box::new(rdzv_error::new(fault)))
    }
}
