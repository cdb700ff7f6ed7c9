//! Snapshots of the workers of an agent.

use crate::prelude::*;
use rendezvous_agent::group::{Worker, WorkerGroup, WorkerState};

/// The agent does not know the state of its workers.
pub const RDZV_WORKERS_UNKNOWN: i32 = 0;
/// The workers have not been started.
pub const RDZV_WORKERS_INIT: i32 = 1;
/// All workers run.
pub const RDZV_WORKERS_HEALTHY: i32 = 2;
/// All workers run, and at least one makes no progress.
pub const RDZV_WORKERS_UNHEALTHY: i32 = 3;
/// The agent stopped the workers.
pub const RDZV_WORKERS_STOPPED: i32 = 4;
/// All workers succeeded.
pub const RDZV_WORKERS_SUCCEEDED: i32 = 5;
/// At least one worker failed.
pub const RDZV_WORKERS_FAILED: i32 = 6;

/// Workers of an agent at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_worker_group {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// One of the `RDZV_WORKERS_` constants.
    pub state: i32,
    /// Rank of the agent among the agents; -1 while there is no round.
    pub group_rank: i64,
    /// Number of agents.
    pub group_world_size: i64,
    /// Number of the round; -1 if there is none.
    pub round: i64,
    /// Number of earlier starts of the group, for any reason.
    pub attempt: u64,
    /// Number of restarts because the group's own workers failed.
    pub restart_count: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Role of the workers.
    pub role: *const c_char,
    /// Workers in the order of their local ranks.
    pub workers: *const *const rdzv_worker,
    /// Number of `workers`; 0 until their ranks are known.
    pub worker_count: usize,
}

/// State of one worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_worker {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Rank among the workers of this agent.
    pub local_rank: u32,
    /// Rank among the workers of the job.
    pub global_rank: u64,
    /// Rank among the workers of its role.
    pub role_rank: u64,
    /// Number of workers of the job.
    pub world_size: u64,
    /// Number of workers of its role.
    pub role_world_size: u64,
    /// Process id; 0 until the worker is started.
    pub pid: u32,
    /// 1 if the worker has exited, else 0.
    pub has_exited: i32,
    /// Exit code, if the worker has exited; minus the signal number if a signal ended it.
    pub exit_code: i32,
    /// Unused; 0.
    pub reserved: u32,
}

/// Group together with the data that it points to.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct OwnedGroup {
    /// First, so that a pointer to it is one to the whole.
    view: rdzv_worker_group,
    role: CString,
    workers: Box<[rdzv_worker]>,
    pointers: Box<[*const rdzv_worker]>,
}

fn signed(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn worker(of: &Worker) -> rdzv_worker {
    rdzv_worker {
        struct_size: struct_size::<rdzv_worker>(),
        local_rank: of.local_rank,
        global_rank: of.global_rank,
        role_rank: of.role_rank,
        world_size: of.world_size,
        role_world_size: of.role_world_size,
        pid: of.pid.unwrap_or(0),
        has_exited: i32::from(of.exit.is_some()),
        exit_code: of.exit.map_or(0, |exit| exit.exit_code()),
        reserved: 0,
    }
}

impl OwnedGroup {
    pub(crate) fn new(group: &WorkerGroup) -> Self {
        let state = WorkerState::ALL.iter().position(|state| *state == group.state).unwrap_or(0);
        let view = rdzv_worker_group {
            struct_size: struct_size::<rdzv_worker_group>(),
            state: i32::try_from(state).unwrap_or(RDZV_WORKERS_UNKNOWN),
            group_rank: signed(group.group_rank),
            group_world_size: signed(Some(group.group_world_size)),
            round: signed(group.round),
            attempt: group.attempt,
            restart_count: group.restart_count,
            reserved: 0,
            role: null(),
            workers: null(),
            worker_count: group.workers.len(),
        };
        let (role, workers) = (c_string(&group.role), group.workers.iter().map(worker).collect::<Box<_>>());
        let pointers = workers.iter().map(std::ptr::from_ref).collect::<Box<_>>();
        let view = rdzv_worker_group { role: role.as_ptr(), workers: pointers.as_ptr(), ..view };
        Self { view, role, workers, pointers }
    }

    pub(crate) const fn view(&self) -> *const rdzv_worker_group {
        std::ptr::from_ref(self).cast()
    }

    pub(crate) fn into_handle(self) -> *const rdzv_worker_group {
        boxed(self).cast()
    }
}

/// Frees a group that `rdzv_agent_get_worker_group` returned. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_group_free(group: *const rdzv_worker_group) {
    // SAFETY: NULL or the first field of an owned group, as the header requires.
    unsafe { guard::free(group.cast::<OwnedGroup>().cast_mut()) };
}

/// Returns the name of a state, for example `HEALTHY`; `UNKNOWN` for any other number. Never NULL; the
/// string is static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_worker_state_name(state: i32) -> *const c_char {
    guard::quiet(c"UNKNOWN".as_ptr(), || {
        const NAMES: [&CStr; 7] =
            [c"UNKNOWN", c"INIT", c"HEALTHY", c"UNHEALTHY", c"STOPPED", c"SUCCEEDED", c"FAILED"];
        let index = usize::try_from(state).unwrap_or(0);
        NAMES.get(index).unwrap_or(&NAMES[0]).as_ptr()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_their_numbers_and_names() {
        let numbers = [
            RDZV_WORKERS_UNKNOWN,
            RDZV_WORKERS_INIT,
            RDZV_WORKERS_HEALTHY,
            RDZV_WORKERS_UNHEALTHY,
            RDZV_WORKERS_STOPPED,
            RDZV_WORKERS_SUCCEEDED,
            RDZV_WORKERS_FAILED,
        ];
        for (index, (number, state)) in numbers.into_iter().zip(WorkerState::ALL).enumerate() {
            assert_eq!(usize::try_from(number), Ok(index));
            // SAFETY: the names are static strings.
            let name = unsafe { CStr::from_ptr(rdzv_worker_state_name(number)) };
            assert_eq!(name.to_str(), Ok(state.name()));
        }
    }
}
