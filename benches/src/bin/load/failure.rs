//! Failures of a measurement: one sentence or one JSON object on stderr, and an exit code.

use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::error::ErrorKind;
use serde_json::json;
use std::process::ExitCode;

/// Failure of a measurement.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// One sentence.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Writes the failure to stderr and returns the exit code.
    pub(crate) fn report(&self, is_json: bool) -> ExitCode {
        let message = &self.message;
        if is_json {
            eprintln!("{}", json!({ "error": { "kind": format!("{:?}", self.kind), "message": message } }));
        } else {
            eprintln!("load: {message}");
        }
        ExitCode::from(match self.kind {
            ErrorKind::InvalidArgument => 2,
            ErrorKind::TimedOut => 3,
            ErrorKind::Refused | ErrorKind::Unresolved | ErrorKind::Unreachable => 4,
            ErrorKind::ServerGone | ErrorKind::WrongProtocol => 5,
            _ => 6,
        })
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}
