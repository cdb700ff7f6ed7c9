//! What `--report` asks for: how the run ended, for programs to read.

use rendezvous_agent::driver::agent::AgentResult;
use rendezvous_agent::failure::{REPORT_VERSION, WorkerGroupFailure, signal_name};
use rendezvous_agent::reason::{Reason, StopCause};
use rendezvous_agent::supervisor::Outcome;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// How long the last words may take: a disk or a pipe may stand still.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A file, if one is asked for.
pub(super) struct Report(Option<PathBuf>);

/// How a run ended.
struct Ending<'a> {
    outcome: &'static str,
    reason: String,
    failure: Option<&'a WorkerGroupFailure>,
}

impl Report {
    /// Writes to the file that the run has not ended. This replaces an earlier run's report, and a file that cannot be
    /// written is noticed before any work is lost. Pipes and devices are not touched until the end.
    pub(super) fn begin(path: Option<&Path>) -> Result<Self, String> {
        let report = Self(path.map(Path::to_path_buf));
        if let Some(path) = path {
            let is_special = path.metadata().is_ok_and(|of| !of.is_file() && !of.is_dir());
            if !is_special {
                let reason = "the run has not ended".into();
                let running = Ending { outcome: "running", reason, failure: None };
                std::fs::write(path, running.text()).map_err(|error| refused(path, &error))?;
            }
        }
        Ok(report)
    }

    /// Has the file say what came of it. An agent that did not come to its end has words for that.
    pub(super) fn end(&self, ended: Result<&AgentResult, String>) -> Result<(), String> {
        let Some(path) = self.0.clone() else { return Ok(()) };
        let ending = match ended {
            Ok(result) => Ending::of(result),
            Err(reason) => Ending { outcome: "failed", reason, failure: None },
        };
        let text = ending.text();
        let (sender, done) = sync_channel(1);
        let at = path.clone();
        let writer = std::thread::Builder::new().name("rdzv-report".into());
        let written = writer
            .spawn(move || sender.send(std::fs::write(&at, text)))
            .and_then(|_| done.recv_timeout(TIMEOUT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())));
        written.map_err(|error| refused(&path, &error))
    }
}

fn refused(path: &Path, error: &io::Error) -> String {
    format!("the report cannot be written to {}: {error}", path.display())
}

impl<'a> Ending<'a> {
    fn of(result: &'a AgentResult) -> Self {
        let (outcome, reason) = match &result.outcome {
            Outcome::Succeeded { missing } => {
                ("succeeded", missing.as_ref().unwrap_or(&Reason::Succeeded).to_string())
            }
            Outcome::NotNeeded => ("not_needed", "this node stood by, and was not needed".into()),
            Outcome::Stopped { cause } => ("stopped", stopped(*cause)),
            Outcome::Failed { reason } => ("failed", reason.to_string()),
            Outcome::GuardLost { reason } => ("lost_sight", reason.to_string()),
        };
        Self { outcome, reason, failure: result.failure.as_ref() }
    }

    fn text(&self) -> String {
        let failure = self.failure.map_or(Value::Null, WorkerGroupFailure::to_json);
        let report = json!({
            "version": REPORT_VERSION,
            "verdict": self.outcome,
            "reason": self.reason,
            "failure": failure,
        });
        format!("{report}\n")
    }
}

fn stopped(cause: StopCause) -> String {
    match cause {
        StopCause::Signal(signal) => {
            signal_name(signal).map_or_else(|| format!("signal {signal} came"), |name| format!("{name} came"))
        }
        StopCause::Requested => Reason::Stop(cause).to_string(),
    }
}
