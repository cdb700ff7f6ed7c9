//! What the user is told of a group of workers that failed. Who has failed, and which failure is the root cause, the
//! supervisor decides ([`crate::supervisor::Output::Report`]).

mod signals;
mod text;

use crate::error_file::{ErrorFile, ErrorFileNote, object};
use crate::watchdog::ExpiredTimer;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;
pub use signals::signal_name;

/// What is told where a worker that was not killed left no error file.
pub const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
/// What stands where nothing is known.
pub const NOT_AVAILABLE: &str = "<N/A>";
/// The version of the report's JSON.
pub const REPORT_VERSION: u32 = 1;

/// How a worker failed.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerEnd {
    /// Its place on its host.
    pub local_rank: u32,
    /// Its place in the run.
    pub global_rank: u64,
    /// Its process id.
    pub pid: u32,
    /// Its exit code; the negative number of the signal that killed it.
    pub exit_code: i32,
    /// When its agent saw that, in seconds since 1970.
    pub seen_at_s: u64,
    /// What it left.
    pub error_file: ErrorFile,
    /// The last lines of its standard error, where they went through the agent or into a file.
    pub stderr_tail: Vec<String>,
}

/// Whose workers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdentity<'a> {
    /// The name of the host.
    pub host: &'a str,
    /// The rank of the agent; a host may have several.
    pub group_rank: u64,
}

/// One worker's failure.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessFailure {
    /// The name of its host.
    pub host: String,
    /// The rank of its agent.
    pub group_rank: u64,
    /// Its place on its host.
    pub local_rank: u32,
    /// Its place in the run.
    pub global_rank: u64,
    /// Its process id.
    pub pid: u32,
    /// Its exit code; the negative number of the signal that killed it.
    pub exit_code: i32,
    /// When it failed, in seconds since 1970: what the error file says, or when its agent saw it.
    pub timestamp_s: u64,
    /// Its error file.
    pub error_file: Option<String>,
    /// Why that tells nothing.
    pub note: Option<ErrorFileNote>,
    /// What the error file holds, or what PyTorch has in its place.
    pub data: Value,
    /// What went wrong.
    pub message: String,
    /// Where.
    pub callstack: Option<String>,
    /// The last lines of its standard error.
    pub stderr_tail: Vec<String>,
}

impl ProcessFailure {
    /// The failure that an end is.
    #[must_use]
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
                    // One that does not say when would be the earliest of all.
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

    /// Says by which of these timers it was ended, if by any.
    pub fn name_timer(&mut self, expired: &[ExpiredTimer]) {
        let is_of_it = |timer: &&ExpiredTimer| timer.local_rank == Some(self.local_rank);
        if let Some(timer) = expired.iter().find(is_of_it) {
            self.message = format!("watchdog: {timer} expired. {}", self.message);
        }
    }

    /// Says what its agent found wrong with it.
    pub fn name_cause(&mut self, cause: &str) {
        self.message = cause.to_string();
    }

    /// The name of the signal that killed it.
    #[must_use]
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

/// What PyTorch has for a worker without an error file.
fn no_data(exit_code: i32) -> Value {
    let message = ("message", Value::from("<NONE>"));
    if exit_code < 0 {
        return object([message]);
    }
    let traits = [("category", "system_terminated_error"), ("retryability", "False")];
    object([message, ("errorTraits", object(traits.map(|(name, text)| (name, Value::from(text)))))])
}

/// The failure of a group of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerGroupFailure {
    /// What the workers ran.
    pub name: String,
    /// What came first.
    pub root: ProcessFailure,
    /// All else that failed, by global rank.
    pub others: Vec<ProcessFailure>,
}

impl WorkerGroupFailure {
    /// The failure that these are together, the root cause first; `None` when there are none.
    #[must_use]
    pub fn new(name: &str, mut failures: Vec<ProcessFailure>) -> Option<Self> {
        if failures.is_empty() {
            return None;
        }
        let root = failures.remove(0);
        failures.sort_unstable_by_key(|failure| failure.global_rank);
        Some(Self { name: name.to_string(), root, others: failures })
    }

    /// The report as JSON; the guide on the agent has its schema.
    #[must_use]
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
