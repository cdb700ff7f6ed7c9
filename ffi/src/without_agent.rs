//! Replacement of `loop_agent` in a library built without agents.

use crate::loop_event::rdzv_event;
use crate::loop_gate::rdzv_loop;
use rendezvous_core::driver::loop_client::MemberEvent;

impl rdzv_loop {
    /// Returns the event unchanged: none is an agent's.
    pub(crate) const fn show_agent(
        &self,
        _: rdzv_event,
        event: MemberEvent,
    ) -> Result<rdzv_event, MemberEvent> {
        Err(event)
    }
}
