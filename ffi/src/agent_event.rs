//! What an agent tells of.

use crate::context::struct_size;
use crate::guard;
use crate::worker_group::rdzv_worker_group;
use rendezvous_agent::driver::agent::{AgentEvent, Moment};
use rendezvous_agent::group::WorkerGroup;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::Reason;
use rendezvous_agent::supervisor::Notice;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

/// The agent has not begun.
pub const RDZV_PHASE_IDLE: i32 = 0;
/// It joins the rendezvous, and waits for a round.
pub const RDZV_PHASE_MEETING: i32 = 1;
/// It learns the ranks of its workers.
pub const RDZV_PHASE_ASSIGNING: i32 = 2;
/// It starts its workers.
pub const RDZV_PHASE_STARTING: i32 = 3;
/// Its workers run.
pub const RDZV_PHASE_RUNNING: i32 = 4;
/// It stops them, to meet again.
pub const RDZV_PHASE_RESTARTING: i32 = 5;
/// They have succeeded, and it waits for the other agents.
pub const RDZV_PHASE_EXIT_BARRIER: i32 = 6;
/// It stops whatever still lives, for good.
pub const RDZV_PHASE_ENDING: i32 = 7;
/// It tells the rendezvous that it goes.
pub const RDZV_PHASE_CLOSING: i32 = 8;
/// It is done.
pub const RDZV_PHASE_OVER: i32 = 9;

/// The agent went from phase `from` to `to`; why is in `message`.
pub const RDZV_AGENT_EVENT_PHASE: i32 = 1;
/// All workers of `attempt` run; what that took is in the five times.
pub const RDZV_AGENT_EVENT_RUNNING: i32 = 2;
/// The worker `local_rank` ended with `exit_code`; `was_stopped` tells whether the agent had told it to.
pub const RDZV_AGENT_EVENT_EXITED: i32 = 3;
/// What lives is killed; why is in `message`.
pub const RDZV_AGENT_EVENT_KILLING: i32 = 4;
/// Processes that outlived that are left to themselves, after `stop_us`.
pub const RDZV_AGENT_EVENT_GAVE_UP: i32 = 5;
/// Workers of one start failed, and nothing of it lives any more; the report is in `message`.
pub const RDZV_AGENT_EVENT_WORKERS_FAILED: i32 = 6;
/// The agent is done: `rdzv_agent_get_result` says how.
pub const RDZV_AGENT_EVENT_OVER: i32 = 7;
/// A timer that a worker had set has expired; `message` names timer and worker. `local_rank` is the worker's,
/// or 4294967295 when the process that had set it has left its worker.
pub const RDZV_AGENT_EVENT_TIMER_EXPIRED: i32 = 8;
/// Something that changes nothing and that the user should know is in `message`.
pub const RDZV_AGENT_EVENT_REMARK: i32 = 9;

/// Something that happened to an agent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_agent_event {
    /// Handed to you, the size of this struct in the library that made it; later fields are absent when it is
    /// smaller. Of an event that you ask for, as with `rdzv_event`.
    pub struct_size: u32,
    /// One of `RDZV_AGENT_EVENT_PHASE` and so on; there may be more one day.
    pub kind: i32,
    /// One of `RDZV_PHASE_IDLE` and so on.
    pub from: i32,
    /// The same.
    pub to: i32,
    /// Which start; 0 is the first.
    pub attempt: u64,
    /// Which worker.
    pub local_rank: u32,
    /// Its exit code; minus the number of the signal that ended it.
    pub exit_code: i32,
    /// 1 or 0.
    pub was_stopped: i32,
    /// How often the group may still be started again after a failure of its own workers.
    pub restarts_left: u32,
    /// Microseconds from the death of a worker to its being noticed.
    pub detect_us: i64,
    /// Until nothing of the last start was left.
    pub stop_us: i64,
    /// Until there was a round.
    pub rendezvous_us: i64,
    /// Until the ranks were known.
    pub assign_us: i64,
    /// Until all workers were started.
    pub start_us: i64,
    /// UTF-8, not NUL-terminated; lent as long as the event.
    pub message: *const u8,
    /// Its length.
    pub message_len: usize,
    /// The workers as they were then: `rdzv_agent_get_worker_group` may be ahead of it. Lent as long as the
    /// event; not to be freed.
    pub group: *const rdzv_worker_group,
}

/// The size of `rdzv_agent_event` in the first header.
pub(crate) const EVENT_FIRST_SIZE: usize = 104;

const NO_EVENT: rdzv_agent_event = rdzv_agent_event {
    struct_size: 0,
    kind: 0,
    from: 0,
    to: 0,
    attempt: 0,
    local_rank: 0,
    exit_code: 0,
    was_stopped: 0,
    restarts_left: 0,
    detect_us: 0,
    stop_us: 0,
    rendezvous_us: 0,
    assign_us: 0,
    start_us: 0,
    message: null(),
    message_len: 0,
    group: null(),
};

/// Hears of what happens to an agent; the event is lent during the call. It must not throw, and may stop the
/// agent, signal its workers and look at them, but not run or free it.
pub type rdzv_agent_listener =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const rdzv_agent_event)>;

fn number_of(phase: Phase) -> i32 {
    let index = Phase::ALL.iter().position(|known| *known == phase);
    index.and_then(|index| i32::try_from(index).ok()).unwrap_or(-1)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// An event with what it lends.
#[derive(Debug)]
pub(crate) struct AgentEventView {
    event: rdzv_agent_event,
    message: String,
    group: rdzv_worker_group,
}

impl AgentEventView {
    pub(crate) fn new(event: &AgentEvent, moment: &Moment) -> Self {
        let (event, message) = projected(event, &moment.group);
        let event = rdzv_agent_event { restarts_left: moment.restarts_left, ..event };
        Self { event, message, group: rdzv_worker_group { group: Arc::clone(&moment.group) } }
    }

    /// As it is shown, as long as this lives where it is.
    pub(crate) fn borrowed(&self) -> rdzv_agent_event {
        rdzv_agent_event {
            struct_size: struct_size::<rdzv_agent_event>(),
            message: self.message.as_ptr(),
            message_len: self.message.len(),
            group: &raw const self.group,
            ..self.event
        }
    }
}

/// An event and its words, to which it does not point yet.
fn projected(event: &AgentEvent, group: &WorkerGroup) -> (rdzv_agent_event, String) {
    let of = |kind| rdzv_agent_event { kind, ..NO_EVENT };
    match event {
        AgentEvent::Notice(Notice::Phase { from, to, reason }) => {
            let (from, to) = (number_of(*from), number_of(*to));
            (rdzv_agent_event { from, to, ..of(RDZV_AGENT_EVENT_PHASE) }, reason.to_string())
        }
        AgentEvent::Notice(Notice::Running { attempt, timing }) => {
            let view = rdzv_agent_event {
                attempt: *attempt,
                detect_us: micros(timing.detect),
                stop_us: micros(timing.stop),
                rendezvous_us: micros(timing.rendezvous),
                assign_us: micros(timing.assign),
                start_us: micros(timing.start),
                ..of(RDZV_AGENT_EVENT_RUNNING)
            };
            (view, String::new())
        }
        AgentEvent::Notice(Notice::Exited { local_rank, exit, was_stopped }) => {
            let view = rdzv_agent_event {
                local_rank: *local_rank,
                exit_code: exit.exit_code(),
                was_stopped: i32::from(*was_stopped),
                ..of(RDZV_AGENT_EVENT_EXITED)
            };
            (view, String::new())
        }
        AgentEvent::Notice(Notice::TimerExpired(timer)) => {
            let worker = timer.local_rank.and_then(|local_rank| group.ranks_of(local_rank));
            let reason = Reason::TimerExpired { worker, timer: timer.clone() };
            let local_rank = timer.local_rank.unwrap_or(u32::MAX);
            (rdzv_agent_event { local_rank, ..of(RDZV_AGENT_EVENT_TIMER_EXPIRED) }, reason.to_string())
        }
        AgentEvent::Notice(Notice::Remark { message }) => (of(RDZV_AGENT_EVENT_REMARK), message.to_string()),
        AgentEvent::Notice(Notice::Killing { reason }) => (of(RDZV_AGENT_EVENT_KILLING), reason.to_string()),
        AgentEvent::Notice(Notice::GaveUp { since, left }) => {
            let stop_us = micros(*since);
            (rdzv_agent_event { stop_us, ..of(RDZV_AGENT_EVENT_GAVE_UP) }, left.to_string())
        }
        AgentEvent::WorkersFailed(failure) => (of(RDZV_AGENT_EVENT_WORKERS_FAILED), failure.to_string()),
        AgentEvent::Over => (of(RDZV_AGENT_EVENT_OVER), String::new()),
    }
}

/// The name of a phase, such as `running`; `unknown` for any other number. Never NULL; static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_agent_phase_name(phase: i32) -> *const c_char {
    guard::quiet(c"unknown".as_ptr(), || {
        const NAMES: [&CStr; 10] = [
            c"idle",
            c"meeting",
            c"assigning",
            c"starting",
            c"running",
            c"restarting",
            c"parting",
            c"ending",
            c"closing",
            c"over",
        ];
        let name = usize::try_from(phase).ok().and_then(|index| NAMES.get(index));
        name.map_or(c"unknown".as_ptr(), |name| name.as_ptr())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_their_numbers_and_names() {
        let numbers = [
            RDZV_PHASE_IDLE,
            RDZV_PHASE_MEETING,
            RDZV_PHASE_ASSIGNING,
            RDZV_PHASE_STARTING,
            RDZV_PHASE_RUNNING,
            RDZV_PHASE_RESTARTING,
            RDZV_PHASE_EXIT_BARRIER,
            RDZV_PHASE_ENDING,
            RDZV_PHASE_CLOSING,
            RDZV_PHASE_OVER,
        ];
        assert!(Phase::ALL.into_iter().map(number_of).eq(numbers));
        for phase in Phase::ALL {
            // SAFETY: the names are static.
            let name = unsafe { CStr::from_ptr(rdzv_agent_phase_name(number_of(phase))) };
            assert_eq!(name.to_str(), Ok(phase.name()));
        }
    }
}
