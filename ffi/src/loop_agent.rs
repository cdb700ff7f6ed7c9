//! Agents in the caller's event loop.

use crate::agent::rdzv_agent;
use crate::agent_event::{AgentEventView, EVENT_FIRST_SIZE, rdzv_agent_event};
use crate::argument::{invalid, out_pointer, reference};
use crate::fault::{Fault, rdzv_error};
use crate::loop_event::{LastEvent, rdzv_event};
use crate::loop_gate::{self, rdzv_loop};
use crate::sized;
use crate::status::{RDZV_EXHAUSTED, rdzv_status};
use rendezvous_agent::driver::loop_member::{AgentLoop, LoopAgentEvent};
use rendezvous_core::driver::loop_client::{MemberEvent, MemberId};

/// `rdzv_event.kind`: event of an agent; `rdzv_loop_agent_event` returns it.
pub const RDZV_EVENT_AGENT: i32 = 10;

impl LastEvent {
    /// Stores the data of an agent's event and fills the C event.
    ///
    /// # Errors
    ///
    /// Returns the event if it is not one of an agent.
    pub(crate) fn keep_agent(
        &mut self,
        view: &mut rdzv_event,
        event: MemberEvent,
    ) -> Result<(), MemberEvent> {
        let LoopAgentEvent { event, moment } = *event.downcast()?;
        view.kind = RDZV_EVENT_AGENT;
        self.agent = Some(AgentEventView::new(&event, &moment));
        Ok(())
    }
}

/// Adds an agent, which the loop drives from now on. Its events have kind `RDZV_EVENT_AGENT` and, in the
/// field `store`, the number that goes to `*number`. The caller keeps the handle, to stop the agent, to
/// read its worker group and to get its result. If the handle is freed, the agent continues in the loop.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (it is in a loop), `RDZV_REENTRANT` (a thread is running it),
/// `RDZV_EXHAUSTED` (a system call failed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_agent(
    event_loop: *mut rdzv_loop,
    agent: *const rdzv_agent,
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (number, agent) = (out_pointer(number, "number")?, reference(agent, "agent")?);
            let added = this.stores.add_agent(agent.for_loop()?).map_err(|cause| {
                Fault::new(RDZV_EXHAUSTED, format!("the agent cannot be watched: {cause}"))
                    .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
            })?;
            number.put(added.as_u32());
            Ok(())
        })
    }
}

/// Removes an agent from the loop. No event of it follows, and it makes no progress until it is run or
/// added again. If its handle was freed, its live workers are killed. An unknown agent is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_agent(
    event_loop: *mut rdzv_loop,
    number: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            this.stores.remove_agent(MemberId::from_u32(number));
            Ok(())
        })
    }
}

/// Returns the agent's event if the last event was `RDZV_EVENT_AGENT`. Set `out->struct_size` first. What
/// `*out` points to is valid until the next call on the loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_agent_event(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_agent_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let given = sized::given_size(out, EVENT_FIRST_SIZE, "out")?;
            let view = this
                .last_event
                .agent
                .as_ref()
                .ok_or_else(|| invalid("the last event is not RDZV_EVENT_AGENT"))?;
            sized::put(out, given, &view.borrowed());
            Ok(())
        })
    }
}
