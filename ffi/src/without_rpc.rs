//! Replacement of `loop_rpc` in a library built without RPC.

use crate::fault::Fault;
use crate::loop_event::{LastEvent, rdzv_event};
use rendezvous_core::driver::loop_client::MemberEvent;

impl LastEvent {
    /// Drops the event: none is a worker's.
    pub(crate) fn keep_rpc(&mut self, _: &mut rdzv_event, _: MemberEvent) -> Option<Fault> {
        None
    }
}
