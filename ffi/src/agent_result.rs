//! Agent results.

use crate::prelude::*;
use rendezvous_agent::driver::agent::AgentResult;
use rendezvous_agent::failure::{ProcessFailure, WorkerGroupFailure};
use rendezvous_agent::reason::Reason;
use rendezvous_agent::supervisor::Outcome;

/// All workers succeeded.
pub const RDZV_OUTCOME_SUCCEEDED: i32 = 0;
/// The agent was a spare and was not needed; this counts as a success.
pub const RDZV_OUTCOME_NOT_NEEDED: i32 = 1;
/// The agent was requested to stop.
pub const RDZV_OUTCOME_STOPPED: i32 = 2;
/// The workers failed more often than restarts are allowed, or an error occurred that a restart cannot
/// fix.
pub const RDZV_OUTCOME_FAILED: i32 = 3;
/// The agent lost its guard process and can no longer supervise its workers.
pub const RDZV_OUTCOME_GUARD_LOST: i32 = 4;

/// Result of an agent that has ended. Pointers in it are valid as long as the agent, and so are those in
/// the structs that they lead to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_agent_result {
    /// Set to `sizeof(rdzv_agent_result)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// One of the `RDZV_OUTCOME_` numbers.
    pub outcome: i32,
    /// Reason for the outcome. For a success it may say that some other agents did not reach the exit
    /// barrier.
    pub reason: *const c_char,
    /// Report for the user about the failures of the last attempt, root cause first; empty if there were
    /// none.
    pub report: *const c_char,
    /// The report as JSON, or `null` if there were no failures; docs/agent.md has the schema.
    pub report_json: *const c_char,
    /// Workers that failed in the last attempt: the root cause first, the others by global rank.
    pub failures: *const *const rdzv_worker_failure,
    /// Number of `failures`; 0 if the agent succeeded.
    pub failure_count: usize,
    /// Values that the workers returned, in the order of global ranks.
    pub returned: *const rdzv_returned_value,
    /// Number of `returned`: all workers of this agent if they ran a function and succeeded, else 0.
    pub returned_count: usize,
}
growing!(rdzv_agent_result: 64);

/// Value that a worker returned. This struct does not grow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_returned_value {
    /// Rank of the worker in the job.
    pub global_rank: u64,
    /// First byte of the value.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// Failure of one worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_worker_failure {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
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
    /// Name of the signal that ended the worker, such as `SIGSEGV`; NULL if no signal did.
    pub signal: *const c_char,
    /// Name of the worker's host.
    pub host: *const c_char,
    /// Description of the failure, from the worker's error file if it wrote one.
    pub message: *const c_char,
    /// Call stack of the failure; NULL if it is unknown.
    pub callstack: *const c_char,
    /// Last lines of the worker's standard error, oldest first.
    pub stderr_lines: *const *const c_char,
    /// Number of `stderr_lines`: 20 at most.
    pub stderr_line_count: usize,
}

/// Result together with the data that it points to.
#[derive(Debug)]
pub(crate) struct OwnedResult {
    result: AgentResult,
    texts: [CString; 3],
    returned: Vec<rdzv_returned_value>,
    failures: Vec<OwnedFailure>,
    failure_pointers: Vec<*const rdzv_worker_failure>,
}

// SAFETY: its pointers lead to its own memory, which does not change.
unsafe impl Send for OwnedResult {}
// SAFETY: as above.
unsafe impl Sync for OwnedResult {}

/// Failure together with the data that it points to.
#[derive(Debug)]
struct OwnedFailure {
    view: rdzv_worker_failure,
    _texts: Vec<CString>,
    _lines: Vec<*const c_char>,
}

fn message(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Succeeded { missing } => missing.as_ref().unwrap_or(&Reason::Succeeded).to_string(),
        Outcome::NotNeeded => "this agent was a spare and was not needed".into(),
        Outcome::Stopped { cause } => Reason::Stop(*cause).to_string(),
        Outcome::Failed { reason } | Outcome::GuardLost { reason } => reason.to_string(),
    }
}

impl OwnedFailure {
    fn new(of: &ProcessFailure) -> Self {
        let mut texts = Vec::new();
        let mut keep = |text: &str| {
            let kept = c_string(text);
            let pointer = kept.as_ptr();
            texts.push(kept);
            pointer
        };
        let lines: Vec<_> = of.stderr_tail.iter().map(|line| keep(line)).collect();
        let view = rdzv_worker_failure {
            struct_size: struct_size::<rdzv_worker_failure>(),
            local_rank: of.local_rank,
            global_rank: of.global_rank,
            group_rank: of.group_rank,
            pid: of.pid,
            exit_code: of.exit_code,
            timestamp_s: i64::try_from(of.timestamp_s).unwrap_or(i64::MAX),
            signal: of.signal().map_or(null(), &mut keep),
            host: keep(&of.host),
            message: keep(&of.message),
            callstack: of.callstack.as_deref().map_or(null(), &mut keep),
            stderr_lines: lines.as_ptr(),
            stderr_line_count: lines.len(),
        };
        Self { view, _texts: texts, _lines: lines }
    }
}

impl OwnedResult {
    pub(crate) fn new(result: AgentResult) -> Self {
        let failure = result.failure.as_ref();
        let report = failure.map_or_else(String::new, WorkerGroupFailure::to_string);
        let report_json = failure.map_or_else(|| "null".into(), |failure| failure.to_json().to_string());
        let texts = [message(&result.outcome), report, report_json].map(c_string);
        let returned = result.returned.iter().map(|(global_rank, value)| rdzv_returned_value {
            global_rank: *global_rank,
            data: value.as_ptr(),
            len: value.len(),
        });
        let returned = returned.collect();
        let failures: Vec<_> = failure
            .into_iter()
            .flat_map(|failure| std::iter::once(&failure.root).chain(&failure.others))
            .map(OwnedFailure::new)
            .collect();
        let failure_pointers = failures.iter().map(|failure| &raw const failure.view).collect();
        Self { result, texts, returned, failures, failure_pointers }
    }

    /// Returns the result for C; valid while `self` is neither moved nor dropped.
    pub(crate) fn view(&self) -> rdzv_agent_result {
        let [reason, report, report_json] = self.texts.each_ref().map(|text| text.as_ptr());
        rdzv_agent_result {
            struct_size: 0,
            outcome: match self.result.outcome {
                Outcome::Succeeded { .. } => RDZV_OUTCOME_SUCCEEDED,
                Outcome::NotNeeded => RDZV_OUTCOME_NOT_NEEDED,
                Outcome::Stopped { .. } => RDZV_OUTCOME_STOPPED,
                Outcome::Failed { .. } => RDZV_OUTCOME_FAILED,
                Outcome::GuardLost { .. } => RDZV_OUTCOME_GUARD_LOST,
            },
            reason,
            report,
            report_json,
            failures: self.failure_pointers.as_ptr(),
            failure_count: self.failures.len(),
            returned: self.returned.as_ptr(),
            returned_count: self.returned.len(),
        }
    }
}
