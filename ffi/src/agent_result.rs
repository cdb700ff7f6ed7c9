//! Agent results.

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

/// All workers succeeded.
pub const RDZV_OUTCOME_SUCCEEDED: i32 = 0;
/// The agent was a spare and was not needed; this counts as a success.
pub const RDZV_OUTCOME_NOT_NEEDED: i32 = 1;
/// The agent was requested to stop.
pub const RDZV_OUTCOME_STOPPED: i32 = 2;
/// The workers failed more often than restarts are allowed, or an error occurred that a restart cannot fix.
pub const RDZV_OUTCOME_FAILED: i32 = 3;
/// The agent lost its guard process and can no longer supervise its workers.
pub const RDZV_OUTCOME_GUARD_LOST: i32 = 4;

/// Result of an agent that has ended. It is immutable; any thread may read it. Pointers that it returns are
/// valid until it is freed.
#[derive(Debug)]
pub struct rdzv_agent_result {
    result: AgentResult,
    reason: String,
    report: String,
    report_json: String,
}

/// Failure of one worker. Its strings are UTF-8, not NUL-terminated, and valid as long as the result.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_worker_failure {
    /// Set this to `sizeof(rdzv_worker_failure)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// Rank of the worker on its agent.
    pub local_rank: u32,
    /// Rank of the worker in the job.
    pub global_rank: u64,
    /// Rank of the agent.
    pub group_rank: u64,
    /// Process id of the worker.
    pub pid: u32,
    /// Exit code of the worker; the negated signal number if a signal ended it.
    pub exit_code: i32,
    /// Time of the failure, in seconds since 1970-01-01 UTC.
    pub timestamp_s: i64,
    /// Name of the signal that ended the worker, such as `SIGSEGV`; its length is 0 if no signal did.
    pub signal: *const u8,
    /// Length of `signal` in bytes.
    pub signal_len: usize,
    /// Name of the worker's host.
    pub host: *const u8,
    /// Length of `host` in bytes.
    pub host_len: usize,
    /// Description of the failure, from the worker's error file if it wrote one.
    pub message: *const u8,
    /// Length of `message` in bytes.
    pub message_len: usize,
    /// Call stack of the failure; its length is 0 if it is unknown.
    pub callstack: *const u8,
    /// Length of `callstack` in bytes.
    pub callstack_len: usize,
    /// Number of lines of standard error that `rdzv_agent_result_stderr_line` returns: the last 20 at most.
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
        Outcome::NotNeeded => "this agent was a spare and was not needed".into(),
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
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(result) };
}

/// Returns one of the `RDZV_OUTCOME_` numbers; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_outcome(result: *const rdzv_agent_result) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
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

/// Returns the reason for the outcome as text and writes its length to `*len` unless `len` is NULL. For a
/// success it may say that some other agents did not reach the exit barrier. Not NUL-terminated. NULL for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_reason(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(result, null(), |of| borrowed(of.reason.as_bytes(), len)) }
}

/// Returns the number of workers whose return values are available: all workers of this agent if they ran a
/// function and succeeded, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_returned_count(result: *const rdzv_agent_result) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(result, 0, |of| of.result.returned.len()) }
}

/// Returns the bytes returned by the worker at `index` (from 0, in the order of global ranks). Writes its
/// rank to `*global_rank` and the length to `*len` unless they are NULL. NULL if `index` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_returned(
    result: *const rdzv_agent_result,
    index: usize,
    global_rank: *mut u64,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires; NULL is not written to.
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

/// Returns the number of workers that failed in the last attempt; 0 if the agent succeeded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_failure_count(result: *const rdzv_agent_result) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(result, 0, |of| of.result.failure.as_ref().map_or(0, |failure| 1 + failure.others.len()))
    }
}

/// Fills `*failure` with the failure at `index`: 0 is the root cause, the others follow by global rank. Set
/// `failure->struct_size` first.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if `index` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_failure(
    result: *const rdzv_agent_result,
    index: usize,
    failure: *mut rdzv_worker_failure,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let result = reference(result, "result")?;
            let given = sized::given_size(failure, FAILURE_FIRST_SIZE, "failure")?;
            let of = result
                .failure(index)
                .ok_or_else(|| invalid(format!("the result has no failure with index {index}")))?;
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

/// Returns a line of standard error of the worker whose failure is at `index`; `line` 0 is the oldest.
/// Writes the length to `*len` unless `len` is NULL. NULL if `index` or `line` is out of range. Not
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_stderr_line(
    result: *const rdzv_agent_result,
    index: usize,
    line: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(result, null(), |of| {
            let line = of.failure(index).and_then(|failure| failure.stderr_tail.get(line));
            line.map_or(null(), |line| borrowed(line.as_bytes(), len))
        })
    }
}

/// Returns a report for the user about the failures of the last attempt, root cause first; empty if there
/// were none. Writes its length to `*len` unless `len` is NULL. Not NUL-terminated. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_report(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(result, null(), |of| borrowed(of.report.as_bytes(), len)) }
}

/// Returns the report of `rdzv_agent_result_report` as JSON, or `null` if there were no failures;
/// docs/agent.md has the schema. Length, termination and NULL are as for `rdzv_agent_result_report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_result_report_json(
    result: *const rdzv_agent_result,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(result, null(), |of| borrowed(of.report_json.as_bytes(), len)) }
}
