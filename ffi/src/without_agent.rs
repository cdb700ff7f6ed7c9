//! In the place of `loop_agent` where the library is built without agents.

use crate::loop_event::{LastEvent, rdzv_event};
use rendezvous_core::driver::loop_client::MemberEvent;

impl LastEvent {
    /// Gives the event back: none is an agent's.
    pub(crate) fn keep_agent(&mut self, _: &mut rdzv_event, event: MemberEvent) -> Result<(), MemberEvent> {
        Err(event)
    }
}
