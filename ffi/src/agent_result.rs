//! How an agent ended.

use crate::argument::{invalid, reference};
use crate::buffer::borrowed;
use crate::fault::rdzv_error;
use crate::guard;
use crate::sized;
use crate::status::rdzv_status;
use rendezvous_agent::driver::agent::AgentResult;
use rendezvous_agent::failure::{ProcessFailure, WorkerGroupFailure};
use rendezvous_agent::reason::Reason;
use rendezvous_agent::supervisor::Outcome;
use std::ptr::null;

/// All workers ended well.
pub const RDZV_OUTCOME_SUCCEEDED: i32 = 0;
/// The agent stood by, and was not needed: a success, too.
pub const RDZV_OUTCOME_NOT_NEEDED: i32 = 1;
/// Somebody asked it to stop.
pub const RDZV_OUTCOME_STOPPED: i32 = 2;
/// Its workers failed too often, or something else did that no restart mends.
pub const RDZV_OUTCOME_FAILED: i32 = 3;
/// It lost sight of its workers.
pub const RDZV_OUTCOME_GUARD_LOST: i32 = 4;

/// How an agent ended. It does not change; any thread may read it. What it lends lives as long as it does.
#[derive(Debug)]
pub struct rdzv_agent_result {
    result: AgentResult,
    reason: String,
    report: String,
    report_json: String,
}

/// One worker's failure. What it points to is UTF-8, not NUL-terminated, and lives as long as the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_worker_failure {
    /// Set it to `sizeof(rdzv_worker_failure)` before the call; afterwards it tells how many bytes were
    /// filled.
    pub struct_size: u32,
    /// Its number on its agent.
    pub local_rank: u32,
    /// Its number in the job.
    pub global_rank: u64,
    /// The rank of its agent.
    pub group_rank: u64,
    /// Its process.
    pub pid: u32,
    /// Its exit code; minus the number of the signal that ended it.
    pub exit_code: i32,
    /// When it failed, in seconds since 1970.
    pub timestamp_s: i64,
    /// The name of the signal that ended it, such as `SIGSEGV`; length 0 when none did.
    pub signal: *const u8,
    /// Its length.
    pub signal_len: usize,
    /// The name of its host.
    pub host: *const u8,
    /// Its length.
    pub host_len: usize,
    /// What went wrong: what the worker has left in its error file, if it has.
    pub message: *const u8,
    /// Its length.
    pub message_len: usize,
    /// Where; length 0 when that is not known.
    pub callstack: *const u8,
    /// Its length.
    pub callstack_len: usize,
    /// How many lines of its standard error `rdzv_agent_result_stderr_line` has: the last 20 at most.
    pub stderr_line_count: usize,
}

const FAILURE_FIRST_SIZE: usize = 112;

impl rdzv_agent_result {
    fn failure(&self, index: usize) -> Option<&ProcessFailure> {
        let failure = self.result.failure.as_ref()?;
        match index.checked_sub(1) {
            None => Some(&failure.root),
            Some(index) => failure.others.get(index),
        }
    }
}

fn message(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Succeeded { missing } => missing.as_ref().unwrap_or(&Reason::Succeeded).to_string(),
        Outcome::NotNeeded => "this agent stood by, and was not needed".into(),
        Outcome::Stopped { cause } => Reason::Stop(*cause).to_string(),
        Outcome::Failed { reason } | Outcome::GuardLost { reason } => reason.to_string(),
    }
}

pub(crate) fn result_handle(result: AgentResult) -> *mut rdzv_agent_result {
    let failure = result.failure.as_ref();
    let report = failure.map_or_else(String::new, WorkerGroupFailure::to_string);
    let report_json = failure.map_or_else(|| "null".into(), |failure| failure.to_json().to_string());
    let reason = message(&result.outcome);
    Box::into_raw(Box::new(rdzv_agent_result { result, reason, report, report_json }))
}

/// Frees a result. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_free(result: *mut rdzv_agent_result) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(result) };
}

/// One of `RDZV_OUTCOME_SUCCEEDED` and so on; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_outcome(result: *const rdzv_agent_result) -> i32 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(result, -1, |of| match of.result.outcome {
            Outcome::Succeeded { .. } => RDZV_OUTCOME_SUCCEEDED,
            Outcome::NotNeeded => RDZV_OUTCOME_NOT_NEEDED,
            Outcome::Stopped { .. } => RDZV_OUTCOME_STOPPED,
            Outcome::Failed { .. } => RDZV_OUTCOME_FAILED,
            Outcome::GuardLost { .. } => RDZV_OUTCOME_GUARD_LOST,
        })
    }
}

/// Why, in words, their length in `*len` unless `len` is NULL. Of a success it may tell that not all other
/// agents came to the end. Not NUL-terminated. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_reason(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(result, null(), |of| borrowed(of.reason.as_bytes(), len)) }
}

/// Of how many workers there is what they returned: all of this agent, when they were functions and ended
/// well, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_returned_count(result: *const rdzv_agent_result) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(result, 0, |of| of.result.returned.len()) }
}

/// What a worker returned, at `index` (from 0) in the order of global ranks; the rank goes to `*global_rank`
/// and the length to `*len`, unless they are NULL. NULL beyond the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_returned(
    result: *const rdzv_agent_result,
    index: usize,
    global_rank: *mut u64,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it; NULL is not written to.
    unsafe {
        guard::read(result, null(), |of| {
            let Some((rank, bytes)) = of.result.returned.iter().nth(index) else { return null() };
            if let Some(target) = global_rank.as_mut() {
                *target = *rank;
            }
            borrowed(bytes, len)
        })
    }
}

/// How many workers failed in the last start; 0 when the agent ended well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_failure_count(result: *const rdzv_agent_result) -> usize {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(result, 0, |of| of.result.failure.as_ref().map_or(0, |failure| 1 + failure.others.len()))
    }
}

/// Fills `*failure`, of which `struct_size` must be set, with the failure at `index`: 0 is the root cause,
/// and the others follow by global rank.
///
/// Errors: `RDZV_INVALID_ARGUMENT` when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_failure(
    result: *const rdzv_agent_result,
    index: usize,
    failure: *mut rdzv_worker_failure,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let result = reference(result, "result")?;
            let given = sized::given_size(failure, FAILURE_FIRST_SIZE, "failure")?;
            let of = result
                .failure(index)
                .ok_or_else(|| invalid(format!("the result has no failure of index {index}")))?;
            let (signal, callstack) =
                (of.signal().unwrap_or_default(), of.callstack.as_deref().unwrap_or_default());
            let view = rdzv_worker_failure {
                struct_size: 0,
                local_rank: of.local_rank,
                global_rank: of.global_rank,
                group_rank: of.group_rank,
                pid: of.pid,
                exit_code: of.exit_code,
                timestamp_s: i64::try_from(of.timestamp_s).unwrap_or(i64::MAX),
                signal: signal.as_ptr(),
                signal_len: signal.len(),
                host: of.host.as_ptr(),
                host_len: of.host.len(),
                message: of.message.as_ptr(),
                message_len: of.message.len(),
                callstack: callstack.as_ptr(),
                callstack_len: callstack.len(),
                stderr_line_count: of.stderr_tail.len(),
            };
            sized::put(failure, given, &view);
            Ok(())
        })
    }
}

/// A line of the standard error of the worker whose failure is at `index`, the oldest at `line` 0; its length
/// goes to `*len` unless `len` is NULL. NULL beyond the last. Not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_stderr_line(
    result: *const rdzv_agent_result,
    index: usize,
    line: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(result, null(), |of| {
            let line = of.failure(index).and_then(|failure| failure.stderr_tail.get(line));
            line.map_or(null(), |line| borrowed(line.as_bytes(), len))
        })
    }
}

/// The report of the failures of the last start, the root cause first, as a user is to read it; empty when
/// there were none. Its length goes to `*len` unless `len` is NULL. Not NUL-terminated. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_report(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(result, null(), |of| borrowed(of.report.as_bytes(), len)) }
}

/// The same as JSON, of which docs/agent.md has the schema; `null` when there were none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_report_json(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(result, null(), |of| borrowed(of.report_json.as_bytes(), len)) }
}
