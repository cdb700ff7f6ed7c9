//! Report of a failed group of workers. The supervisor decides which workers have failed and which failure is the root
//! cause ([`crate::supervisor::Output::Report`]).

mod signals;
mod text;

use crate::error_file::{ErrorFile, ErrorFileNote, object};
use crate::watchdog::ExpiredTimer;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::sort_by;
use serde_json::Value;
pub use signals::signal_name;

/// Message of a worker that was not killed and left no error file.
pub const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
/// Placeholder for an unknown value.
pub const NOT_AVAILABLE: &str = "<N/A>";
/// Version of the report's JSON.
pub const REPORT_VERSION: u32 = 1;

/// End of a failed worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerEnd {
    /// Rank on its agent.
    pub local_rank: u32,
    /// Rank in the run.
    pub global_rank: u64,
    /// Process ID.
    pub pid: u32,
    /// Exit code; the negative number of the signal that killed it.
    pub exit_code: i32,
    /// Time at which its agent detected the end, in seconds since 1970.
    pub seen_at_s: u64,
    /// Error file of the worker.
    pub error_file: ErrorFile,
    /// Last lines of its standard error, if it went through the agent or into a file.
    pub stderr_tail: Vec<String>,
}

/// Node of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdentity<'a> {
    /// Host name.
    pub host: &'a str,
    /// Rank of the agent; a host may have several agents.
    pub group_rank: u64,
}

/// Failure of one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessFailure {
    /// Host name.
    pub host: String,
    /// Rank of its agent.
    pub group_rank: u64,
    /// Rank on its agent.
    pub local_rank: u32,
    /// Rank in the run.
    pub global_rank: u64,
    /// Process ID.
    pub pid: u32,
    /// Exit code; the negative number of the signal that killed it.
    pub exit_code: i32,
    /// Time of the failure in seconds since 1970: from the error file, or when its agent detected it.
    pub timestamp_s: u64,
    /// Path of its error file.
    pub error_file: Option<String>,
    /// Why the error file could not be used.
    pub note: Option<ErrorFileNote>,
    /// Content of the error file, or the value that PyTorch uses without one.
    pub data: Value,
    /// Error message.
    pub message: String,
    /// Call stack of the error.
    pub callstack: Option<String>,
    /// Last lines of its standard error.
    pub stderr_tail: Vec<String>,
}

impl ProcessFailure {
    /// Creates the failure from the end of a worker.
    pub fn new(node: NodeIdentity<'_>, end: WorkerEnd) -> Self {
        let mut failure = Self {
            host: node.host.to_string(),
            group_rank: node.group_rank,
            local_rank: end.local_rank,
            global_rank: end.global_rank,
            pid: end.pid,
            exit_code: end.exit_code,
            timestamp_s: end.seen_at_s,
            error_file: None,
            note: None,
            data: Value::Null,
            message: String::new(),
            callstack: None,
            stderr_tail: end.stderr_tail,
        };
        if let ErrorFile::Read { path, content } = end.error_file {
            failure.error_file = Some(path);
            match content {
                Ok(error) => {
                    failure.message = error.message;
                    failure.callstack = error.callstack;
                    failure.data = error.data;
                    // A file without a time would count as the earliest of all.
                    if error.timestamp_s > 0 {
                        failure.timestamp_s = error.timestamp_s;
                    }
                }
                Err(note) => failure.note = Some(note),
            }
        }
        if failure.data.is_null() {
            failure.data = no_data(failure.exit_code);
        }
        if failure.message.is_empty() {
            failure.message = match failure.signal() {
                Some(name) => {
                    format!("Signal {} ({name}) received by PID {}", -failure.exit_code, failure.pid)
                }
                None => NO_TRACEBACK.to_string(),
            };
        }
        failure
    }

    /// Prepends the timer that ended the worker to the message, if one of these did.
    pub fn name_timer(&mut self, expired: &[ExpiredTimer]) {
        let is_of_it = |timer: &&ExpiredTimer| timer.local_rank == Some(self.local_rank);
        if let Some(timer) = expired.iter().find(is_of_it) {
            self.message = format!("watchdog: {timer} expired. {}", self.message);
        }
    }

    /// Replaces the message by a cause that the agent has found.
    pub fn name_cause(&mut self, cause: &str) {
        self.message = cause.to_string();
    }

    /// Returns the name of the signal that killed the worker.
    pub fn signal(&self) -> Option<&'static str> {
        (self.exit_code < 0).then(|| signal_name(-self.exit_code).unwrap_or(NOT_AVAILABLE))
    }

    fn to_json(&self) -> Value {
        let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, Value::from);
        let signal = self.signal().filter(|name| *name != NOT_AVAILABLE);
        let tail: Vec<Value> = self.stderr_tail.iter().map(|line| Value::from(line.as_str())).collect();
        object([
            ("host", Value::from(self.host.as_str())),
            ("group_rank", Value::from(self.group_rank)),
            ("global_rank", Value::from(self.global_rank)),
            ("local_rank", Value::from(self.local_rank)),
            ("pid", Value::from(self.pid)),
            ("exit_code", Value::from(self.exit_code)),
            ("signal", signal.map_or(Value::Null, Value::from)),
            ("timestamp", Value::from(self.timestamp_s)),
            ("message", Value::from(self.message.as_str())),
            ("callstack", text(&self.callstack)),
            ("error_file", text(&self.error_file)),
            ("error_file_note", self.note.map_or(Value::Null, |note| Value::from(note.to_string()))),
            ("error_file_data", self.data.clone()),
            ("stderr_tail", Value::from(tail)),
        ])
    }
}

/// Returns PyTorch's value for a worker without an error file.
fn no_data(exit_code: i32) -> Value {
    let message = ("message", Value::from("<NONE>"));
    if exit_code < 0 {
        return object([message]);
    }
    let traits = [("category", "system_terminated_error"), ("retryability", "False")];
    object([message, ("errorTraits", object(traits.map(|(name, text)| (name, Value::from(text)))))])
}

/// Failure of a group of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerGroupFailure {
    /// Name of the workers' program.
    pub name: String,
    /// The root cause.
    pub root: ProcessFailure,
    /// The other failures, by global rank.
    pub others: Vec<ProcessFailure>,
}

impl WorkerGroupFailure {
    /// Combines failures, of which the first is the root cause; `None` if there are none.
    pub fn new(name: &str, mut failures: Vec<ProcessFailure>) -> Option<Self> {
        if failures.is_empty() {
            return None;
        }
        let root = failures.remove(0);
        sort_by(&mut failures, |a, b| a.global_rank < b.global_rank);
        Some(Self { name: name.to_string(), root, others: failures })
    }

    /// Returns the report as JSON. The guide on the agent documents its schema.
    pub fn to_json(&self) -> Value {
        let others: Vec<Value> = self.others.iter().map(ProcessFailure::to_json).collect();
        object([
            ("version", Value::from(REPORT_VERSION)),
            ("name", Value::from(self.name.as_str())),
            ("root_cause", self.root.to_json()),
            ("other_failures", Value::from(others)),
        ])
    }
}

#[cfg(test)]
mod tests;
