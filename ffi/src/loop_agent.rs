//! Agents in the caller's event loop.

use crate::agent::rdzv_agent;
use crate::agent_event::{AgentEventView, rdzv_agent_event};
use crate::loop_event::{RDZV_EVENT_AGENT, rdzv_event};
use crate::loop_gate::{rdzv_loop, rdzv_loop_member};
use crate::prelude::*;
use rendezvous_agent::driver::loop_member::{AgentLoop, LoopAgentEvent};
use rendezvous_core::driver::loop_client::MemberEvent;

impl rdzv_loop {
    /// Stores the data of an agent's event and returns the event for C.
    ///
    /// # Errors
    ///
    /// Returns the event if it is not one of an agent.
    pub(crate) fn show_agent(
        &mut self,
        view: rdzv_event,
        event: MemberEvent,
    ) -> Result<rdzv_event, MemberEvent> {
        let LoopAgentEvent { event, moment } = *event.downcast()?;
        self.last_event.agent = Some(AgentEventView::new(&event, &moment));
        Ok(rdzv_event { kind: RDZV_EVENT_AGENT, ..view })
    }
}

/// Adds an agent, which the loop drives from now on; its events have kind `RDZV_EVENT_AGENT`. `user_data`
/// and `*member` are as for `rdzv_loop_add_store`. The caller keeps the agent's handle, to stop the
/// agent, to read its worker group and to get its result. If that handle is freed, the agent continues in
/// the loop.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (it is in a loop), `RDZV_REENTRANT` (a thread is running it),
/// `RDZV_EXHAUSTED` (a system call failed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_agent(
    event_loop: *mut rdzv_loop,
    agent: *const rdzv_agent,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let added = this.stores.add_agent(reference(agent, "agent")?.for_loop()?).map_err(|cause| {
            Fault::os(RDZV_EXHAUSTED, format!("the agent cannot be watched: {cause}"), &cause)
        })?;
        Ok(this.add(added, user_data, AgentLoop::remove_agent))
    })
}

/// Returns the agent's event if the last event was `RDZV_EVENT_AGENT`. Set `out->struct_size` first. What
/// `*out` points to is valid until the next call on the loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_agent_event(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_agent_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, out, |this| {
        let view = this.last_event.agent.as_ref();
        Ok(view.ok_or_else(|| invalid("the last event is not RDZV_EVENT_AGENT"))?.borrowed())
    })
}
