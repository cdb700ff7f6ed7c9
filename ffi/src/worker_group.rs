//! Snapshots of the workers of an agent.

use crate::argument::{invalid, reference};
use crate::buffer::borrowed;
use crate::fault::rdzv_error;
use crate::guard;
use crate::sized;
use crate::status::rdzv_status;
use rendezvous_agent::group::{Worker, WorkerGroup, WorkerState};
use std::ffi::{CStr, c_char};
use std::ptr::null;
use std::sync::Arc;

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

/// Snapshot of the workers of an agent. It is immutable; any thread may read it.
#[derive(Debug)]
pub struct rdzv_worker_group {
    pub(crate) group: Arc<WorkerGroup>,
}

/// Properties that the workers of a group have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_worker_group_info {
    /// Set to `sizeof(rdzv_worker_group_info)` before the call. The library sets it to the number of bytes
    /// it filled.
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
    /// Number of workers; 0 until their ranks are known.
    pub worker_count: u32,
}

const INFO_FIRST_SIZE: usize = 48;

/// State of one worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_worker {
    /// Set to `sizeof(rdzv_worker)` before the call. The library sets it to the number of bytes it filled.
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
    /// Reserved; 0.
    pub reserved: u32,
}

const WORKER_FIRST_SIZE: usize = 56;

pub(crate) fn group_handle(group: Arc<WorkerGroup>) -> *mut rdzv_worker_group {
    Box::into_raw(Box::new(rdzv_worker_group { group }))
}

fn signed(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

/// Frees a snapshot. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_group_free(group: *mut rdzv_worker_group) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(group) };
}

/// Fills `*info`, whose `struct_size` the caller has set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_group_get_info(
    group: *const rdzv_worker_group,
    info: *mut rdzv_worker_group_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let group = &reference(group, "group")?.group;
            let given = sized::given_size(info, INFO_FIRST_SIZE, "info")?;
            let state = WorkerState::ALL.iter().position(|state| *state == group.state).unwrap_or(0);
            let view = rdzv_worker_group_info {
                struct_size: 0,
                state: i32::try_from(state).unwrap_or(RDZV_WORKERS_UNKNOWN),
                group_rank: signed(group.group_rank),
                group_world_size: signed(Some(group.group_world_size)),
                round: signed(group.round),
                attempt: group.attempt,
                restart_count: group.restart_count,
                worker_count: u32::try_from(group.workers.len()).unwrap_or(u32::MAX),
            };
            sized::put(info, given, &view);
            Ok(())
        })
    }
}

/// Fills `*worker`, whose `struct_size` the caller has set, with the worker of this local rank.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_group_worker(
    group: *const rdzv_worker_group,
    local_rank: u32,
    worker: *mut rdzv_worker,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let group = &reference(group, "group")?.group;
            let given = sized::given_size(worker, WORKER_FIRST_SIZE, "worker")?;
            let of: &Worker = usize::try_from(local_rank)
                .ok()
                .and_then(|index| group.workers.get(index))
                .ok_or_else(|| invalid(format!("the group has no worker {local_rank}")))?;
            let view = rdzv_worker {
                struct_size: 0,
                local_rank: of.local_rank,
                global_rank: of.global_rank,
                role_rank: of.role_rank,
                world_size: of.world_size,
                role_world_size: of.role_world_size,
                pid: of.pid.unwrap_or(0),
                has_exited: i32::from(of.exit.is_some()),
                exit_code: of.exit.map_or(0, |exit| exit.exit_code()),
                reserved: 0,
            };
            sized::put(worker, given, &view);
            Ok(())
        })
    }
}

/// Returns the role of the workers and writes its length to `*len` unless `len` is NULL. The string is not
/// NUL-terminated and is valid as long as the group. Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_group_role(
    group: *const rdzv_worker_group,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(group, null(), |of| borrowed(of.group.role.as_bytes(), len)) }
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
