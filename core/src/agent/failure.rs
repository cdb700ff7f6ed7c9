//! Why a group of workers failed: each worker's end, which of them came first, and what the user is told.
//!
//! The root cause is the earliest end that nobody asked for. Under one agent that is the end which it saw first; the
//! times in error files are whole seconds of many clocks, and decide only between ends that were seen at once and between
//! agents. A worker that the agent itself stopped has not failed.

mod signals;
mod text;

use crate::agent::error_file::{ErrorFile, ErrorFileNote, object};
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

/// Whether the agent was stopping a worker when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ran undisturbed.
    NotAsked,
    /// The agent had sent this signal.
    Asked {
        /// Its number.
        signal: i32,
    },
}

/// How a worker ended.
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
    /// Whether it was asked to end.
    pub stop: Stop,
    /// In which order the agent saw ends; the same for those that it saw at once.
    pub seen: u64,
    /// When it saw this one, in seconds since 1970.
    pub seen_at_s: u64,
    /// What it left.
    pub error_file: ErrorFile,
    /// The last lines of its standard error, where they went through the agent or into a file.
    pub stderr_tail: Vec<String>,
}

/// What an end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was done.
    Succeeded,
    /// It ended because the agent stopped it.
    Stopped,
    /// It failed.
    Failed,
    /// It was to end, but that is not how: it crashed, or left an error. Most often another's failure made it fail.
    FailedWhileStopping,
}

const SIGKILL: i32 = 9;
/// What a shell, and many a program, adds to the number of a signal that it ends for.
const SIGNAL_BASE: i32 = 128;

impl WorkerEnd {
    /// What it means.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.stop {
            _ if self.exit_code == 0 => Verdict::Succeeded,
            Stop::NotAsked => Verdict::Failed,
            Stop::Asked { signal } => {
                let obeyed = [-signal, -SIGKILL, SIGNAL_BASE + signal].contains(&self.exit_code);
                // With an exit code of its own and nothing to say, it has handled the signal in its way.
                let is_silent = self.exit_code > 0 && self.error_file == ErrorFile::Absent;
                if obeyed || is_silent { Verdict::Stopped } else { Verdict::FailedWhileStopping }
            }
        }
    }
}

/// Whose workers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
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
    /// Whether it failed by itself.
    pub verdict: Verdict,
    /// In which order its agent saw ends.
    pub seen: u64,
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
    /// The failure that an end is; `None` for those that are none.
    #[must_use]
    pub fn new(place: Place<'_>, end: WorkerEnd) -> Option<Self> {
        let verdict = end.verdict();
        if matches!(verdict, Verdict::Succeeded | Verdict::Stopped) {
            return None;
        }
        let mut failure = Self {
            host: place.host.to_string(),
            group_rank: place.group_rank,
            local_rank: end.local_rank,
            global_rank: end.global_rank,
            pid: end.pid,
            exit_code: end.exit_code,
            verdict,
            seen: end.seen,
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
        Some(failure)
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
            ("while_stopping", Value::from(self.verdict == Verdict::FailedWhileStopping)),
            ("timestamp", Value::from(self.timestamp_s)),
            ("message", Value::from(self.message.as_str())),
            ("callstack", text(&self.callstack)),
            ("error_file", text(&self.error_file)),
            ("error_file_note", self.note.map_or(Value::Null, |note| Value::from(note.to_string()))),
            ("error_file_data", self.data.clone()),
            ("stderr_tail", Value::from(tail)),
        ])
    }

    /// Which of two failures under one agent came first.
    fn order(&self) -> impl Ord + use<> {
        (self.verdict == Verdict::FailedWhileStopping, self.seen, self.timestamp_s, self.global_rank)
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
    /// The failure that these are together, of one agent or of many; `None` when there are none.
    #[must_use]
    pub fn new(name: &str, mut failures: Vec<ProcessFailure>) -> Option<Self> {
        let is_its_agents_first = |failure: &ProcessFailure| {
            let under_the_same = failures.iter().filter(|other| other.group_rank == failure.group_rank);
            under_the_same.map(ProcessFailure::order).min().is_some_and(|order| order == failure.order())
        };
        let of_agents = failures.iter().enumerate().filter(|(_, failure)| is_its_agents_first(failure));
        let root = of_agents.min_by_key(|(_, failure)| {
            (failure.verdict == Verdict::FailedWhileStopping, failure.timestamp_s, failure.global_rank)
        });
        let root = failures.swap_remove(root?.0);
        failures.sort_by_key(|failure| failure.global_rank);
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
