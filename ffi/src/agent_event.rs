//! Agent events.

use crate::fault::one_line;
use crate::prelude::*;
use crate::worker_group::{OwnedGroup, rdzv_worker_group};
use rendezvous_agent::driver::agent::{AgentEvent, Moment};
use rendezvous_agent::group::WorkerGroup;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::Reason;
use rendezvous_agent::supervisor::Notice;

/// The agent has not started.
pub const RDZV_PHASE_IDLE: i32 = 0;
/// The agent joins the rendezvous and waits for a round.
pub const RDZV_PHASE_MEETING: i32 = 1;
/// The agent determines the ranks of its workers.
pub const RDZV_PHASE_ASSIGNING: i32 = 2;
/// The agent starts its workers.
pub const RDZV_PHASE_STARTING: i32 = 3;
/// The workers run.
pub const RDZV_PHASE_RUNNING: i32 = 4;
/// The agent stops its workers, then joins the rendezvous again.
pub const RDZV_PHASE_RESTARTING: i32 = 5;
/// All workers succeeded; the agent waits for the other agents.
pub const RDZV_PHASE_EXIT_BARRIER: i32 = 6;
/// The agent stops all processes that remain and does not restart them.
pub const RDZV_PHASE_ENDING: i32 = 7;
/// The agent leaves the rendezvous.
pub const RDZV_PHASE_CLOSING: i32 = 8;
/// The agent has ended.
pub const RDZV_PHASE_OVER: i32 = 9;

/// The agent moved from phase `from` to phase `to`; `message` has the reason.
pub const RDZV_AGENT_EVENT_PHASE: i32 = 1;
/// All workers of `attempt` run; the five `*_us` fields have the time of each step.
pub const RDZV_AGENT_EVENT_RUNNING: i32 = 2;
/// Worker `local_rank` exited with `exit_code`; `was_stopped` is 1 if the agent had stopped it. `message`
/// says how it ended or, if it was stopped, why.
pub const RDZV_AGENT_EVENT_EXITED: i32 = 3;
/// The agent kills the remaining processes; `message` has the reason.
pub const RDZV_AGENT_EVENT_KILLING: i32 = 4;
/// The agent gave up, after `stop_us`, on processes that survived the kill; `message` names them.
pub const RDZV_AGENT_EVENT_GAVE_UP: i32 = 5;
/// Workers of one attempt failed and none of its processes is alive; `message` has the report.
pub const RDZV_AGENT_EVENT_WORKERS_FAILED: i32 = 6;
/// The agent has ended; `rdzv_agent_get_result` returns its result.
pub const RDZV_AGENT_EVENT_OVER: i32 = 7;
/// A timer set by a worker expired; `message` names the timer and the worker. `local_rank` is the
/// worker's, or 4294967295 if the process that set the timer has left its worker.
pub const RDZV_AGENT_EVENT_TIMER_EXPIRED: i32 = 8;
/// Information for the user in `message`; the state of the agent does not change.
pub const RDZV_AGENT_EVENT_REMARK: i32 = 9;

/// Event of an agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_agent_event {
    /// In an event that the library passes to a callback: the size of this struct in that library, in
    /// bytes; fields beyond that size are absent. In an event that you request: set it as for
    /// `rdzv_event`.
    pub struct_size: u32,
    /// One of the `RDZV_AGENT_EVENT_` numbers; later versions may add more.
    pub kind: i32,
    /// Previous phase, one of the `RDZV_PHASE_` numbers.
    pub from: i32,
    /// New phase, one of the `RDZV_PHASE_` numbers.
    pub to: i32,
    /// Number of the attempt (start of the group); 0 is the first.
    pub attempt: u64,
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Exit code of the worker; the negated signal number if a signal ended it.
    pub exit_code: i32,
    /// 1 if the agent had stopped the worker, else 0.
    pub was_stopped: i32,
    /// Restarts that remain for failures of the group's own workers.
    pub restarts_left: u32,
    /// Time from the death of a worker until the agent noticed it, in microseconds.
    pub detect_us: i64,
    /// Time taken to stop all processes of the previous attempt, in microseconds.
    pub stop_us: i64,
    /// Time spent in the rendezvous until the round was complete, in microseconds.
    pub rendezvous_us: i64,
    /// Time taken to assign the ranks, in microseconds.
    pub assign_us: i64,
    /// Time taken to start all workers, in microseconds.
    pub start_us: i64,
    /// Text for the user; may be empty. Valid as long as the event.
    pub message: *const c_char,
    /// Workers at the time of the event; `rdzv_agent_get_worker_group` may return a later state. Valid as
    /// long as the event; do not free it.
    pub group: *const rdzv_worker_group,
}
growing!(rdzv_agent_event: 96);

/// Callback for the events of an agent; the event is valid during the call only. It must not throw. It
/// may stop the agent, signal its workers and read its worker group, but must not run or free the agent.
pub type rdzv_agent_listener =
    Option<unsafe extern "C" fn(user_data: *mut c_void, event: *const rdzv_agent_event)>;

fn number_of(phase: Phase) -> i32 {
    let index = Phase::ALL.iter().position(|known| *known == phase);
    index.and_then(|index| i32::try_from(index).ok()).unwrap_or(-1)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Event together with the data that it points to.
#[derive(Debug)]
pub(crate) struct AgentEventView {
    event: rdzv_agent_event,
    message: CString,
    group: OwnedGroup,
}

impl AgentEventView {
    pub(crate) fn new(event: &AgentEvent, moment: &Moment) -> Self {
        let (event, message) = projected(event, &moment.group);
        let event = rdzv_agent_event { restarts_left: moment.restarts_left, ..event };
        Self { event, message: c_string(message), group: OwnedGroup::new(&moment.group) }
    }

    /// Returns the event with its pointers set; valid while `self` is neither moved nor dropped.
    pub(crate) fn borrowed(&self) -> rdzv_agent_event {
        rdzv_agent_event {
            struct_size: struct_size::<rdzv_agent_event>(),
            message: self.message.as_ptr(),
            group: self.group.view(),
            ..self.event
        }
    }
}

/// Converts an event to the C struct and its message; the struct does not point to the message yet.
fn projected(event: &AgentEvent, group: &WorkerGroup) -> (rdzv_agent_event, String) {
    let of = |kind| rdzv_agent_event { kind, ..Default::default() };
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
        AgentEvent::Notice(Notice::Exited { local_rank, exit, stopped_for }) => {
            let view = rdzv_agent_event {
                local_rank: *local_rank,
                exit_code: exit.exit_code(),
                was_stopped: i32::from(stopped_for.is_some()),
                ..of(RDZV_AGENT_EVENT_EXITED)
            };
            let text = |worker| Notice::exit_text(worker, *exit, stopped_for.as_ref());
            (view, group.ranks_of(*local_rank).map(text).unwrap_or_default())
        }
        AgentEvent::Notice(Notice::TimerExpired(timer)) => {
            let worker = timer.local_rank.and_then(|local_rank| group.ranks_of(local_rank));
            let reason = Reason::TimerExpired { worker, timer: timer.clone() };
            let local_rank = timer.local_rank.unwrap_or(u32::MAX);
            (rdzv_agent_event { local_rank, ..of(RDZV_AGENT_EVENT_TIMER_EXPIRED) }, reason.to_string())
        }
        AgentEvent::Notice(Notice::Remark { message } | Notice::StillAtWork { message }) => {
            (of(RDZV_AGENT_EVENT_REMARK), one_line(message))
        }
        AgentEvent::Notice(Notice::Killing { reason }) => (of(RDZV_AGENT_EVENT_KILLING), reason.to_string()),
        AgentEvent::Notice(Notice::GaveUp { since, left }) => {
            let stop_us = micros(*since);
            (rdzv_agent_event { stop_us, ..of(RDZV_AGENT_EVENT_GAVE_UP) }, left.to_string())
        }
        AgentEvent::WorkersFailed(failure) => (of(RDZV_AGENT_EVENT_WORKERS_FAILED), failure.to_string()),
        AgentEvent::Over => (of(RDZV_AGENT_EVENT_OVER), String::new()),
    }
}

/// Returns the name of a phase, such as `running`, or `unknown` for any other number. Never NULL; the
/// string is static.
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
            c"exit_barrier",
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
