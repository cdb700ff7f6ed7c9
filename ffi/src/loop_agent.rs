//! Agents in an event loop of the caller's.

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

/// `rdzv_event.kind`: something happened to an agent. `rdzv_loop_agent_event` tells what.
pub const RDZV_EVENT_AGENT: i32 = 10;

impl LastEvent {
    /// Keeps what an event of an agent lends out, and shows the rest.
    ///
    /// # Errors
    /// It is no event of an agent, and comes back.
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

/// Adds an agent: the loop turns it from now on, and its events have kind `RDZV_EVENT_AGENT` and the number
/// that goes to `*number` in their field `store`. The handle stays yours, to stop the agent, to look at its
/// workers, and for its result; freed, the agent goes on in the loop.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (it is in a loop), `RDZV_REENTRANT` (a thread runs it), `RDZV_EXHAUSTED`
/// (the system failed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_agent(
    event_loop: *mut rdzv_loop,
    agent: *const rdzv_agent,
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let (number, agent) = (out_pointer(number, "number")?, reference(agent, "agent")?);
            let added = this.stores.add_agent(agent.for_loop()?).map_err(|cause| {
                Fault::new(RDZV_EXHAUSTED, format!("the agent cannot be watched: {cause}"))
                    .with(|known| known.os_error = cause.raw_os_error().unwrap_or(0))
            })?;
            number.put(added.as_u32());
            Ok(())
        })
    }
}

/// Takes an agent out of the loop. No event of it follows, and nobody turns it, until it is run or added
/// anew. If its handle was freed, what lives of its workers is killed. An unknown one is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_agent(
    event_loop: *mut rdzv_loop,
    number: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            this.stores.remove_agent(MemberId::from_u32(number));
            Ok(())
        })
    }
}

/// What happened to the agent, when the last event was `RDZV_EVENT_AGENT`; of `*out`, `struct_size` must be
/// set. What it points to is lent until the next call on the loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_agent_event(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_agent_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let given = sized::given_size(out, EVENT_FIRST_SIZE, "out")?;
            let view = this.last_event.agent.as_ref().ok_or_else(|| invalid("the last event has none"))?;
            sized::put(out, given, &view.borrowed());
            Ok(())
        })
    }
}
