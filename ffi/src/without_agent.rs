//! Replacement of `loop_agent` in a library built without agents.

use crate::loop_event::{LastEvent, rdzv_event};
use rendezvous_core::driver::loop_client::MemberEvent;

impl LastEvent {
    /// Returns the event unchanged: none is an agent's.
    pub(crate) fn keep_agent(&mut self, _: &mut rdzv_event, event: MemberEvent) -> Result<(), MemberEvent> {
        Err(event)
    }
}
