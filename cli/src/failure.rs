//! Failures as people and scripts meet them: a sentence or JSON on stderr, and an exit code.

use crate::log::one_line;
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::error::{ErrorKind, Operation};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The exit codes, for the help of each command that has them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no: check found a key missing, or there was nothing to pop at once
  2  wrong usage
  3  timed out
  4  no connection: refused, no address for the host, or no way to it
  5  the server or the file went away, or is none of this kind
  6  anything else, such as a value over a limit
  7  the server does not know the token, or it does not allow the request";

/// A line on stderr. One that is closed is no reason to end otherwise.
pub(crate) fn complain(text: &dyn std::fmt::Display) {
    writeln!(std::io::stderr(), "{text}").ok();
}

/// Text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Text,
    Json,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// One sentence.
    pub(crate) message: String,
    /// The call of the client that failed, if it was one.
    call: Option<CallError>,
}

impl Failure {
    /// A failure of which there is nothing more to say than its sentence.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), call: None }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::QueueEmpty | ErrorKind::NotFound => 1,
            ErrorKind::InvalidArgument => 2,
            ErrorKind::TimedOut => 3,
            ErrorKind::Refused | ErrorKind::Unresolved | ErrorKind::Unreachable => 4,
            ErrorKind::ServerGone
            | ErrorKind::SessionEnded
            | ErrorKind::WrongProtocol
            | ErrorKind::Corrupt => 5,
            ErrorKind::Cancelled
            | ErrorKind::LimitExceeded
            | ErrorKind::Unsupported
            | ErrorKind::Reentrant
            | ErrorKind::Io
            | ErrorKind::Exhausted
            | ErrorKind::Conflict
            | ErrorKind::StaleRound
            | ErrorKind::Compacted
            | ErrorKind::Closed
            | ErrorKind::Replaced => 6,
            ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => 7,
        }
    }

    /// Tells of it on stderr.
    pub(crate) fn report(&self, command: &str, report: Report) -> ExitCode {
        match report {
            Report::Text => complain(&format_args!("{command}: {}", one_line(&self.message))),
            Report::Json => complain(&json!({ "error": self.to_json() })),
        }
        ExitCode::from(self.exit_code())
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.into(), value);
        put("kind", self.kind.name().into());
        put("message", self.message.as_str().into());
        if let Some(call) = &self.call {
            put("operation", operation_name(call.operation()).into());
            put("key", call.key().into());
            put("peer", call.peer().into());
            put("phase", call.phase().name().into());
            put("elapsed_ms", milliseconds(call.elapsed()).into());
        }
        Value::Object(fields)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { kind: error.kind(), message: error.to_string(), call: Some(error) }
    }
}

/// Whole milliseconds.
pub(crate) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// An operation as it is called on the command line.
pub(crate) fn operation_name(operation: Operation) -> String {
    match operation {
        Operation::ListKeys => "list".into(),
        Operation::BarrierByKeys => "barrier".into(),
        other => other.name().replace('_', "-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_exit_code_of_the_help() {
        for (kind, code) in [
            (ErrorKind::QueueEmpty, 1),
            (ErrorKind::NotFound, 1),
            (ErrorKind::InvalidArgument, 2),
            (ErrorKind::TimedOut, 3),
            (ErrorKind::Refused, 4),
            (ErrorKind::Unresolved, 4),
            (ErrorKind::Unreachable, 4),
            (ErrorKind::ServerGone, 5),
            (ErrorKind::WrongProtocol, 5),
            (ErrorKind::Corrupt, 5),
            (ErrorKind::Cancelled, 6),
            (ErrorKind::LimitExceeded, 6),
            (ErrorKind::Unsupported, 6),
            (ErrorKind::Reentrant, 6),
            (ErrorKind::Io, 6),
            (ErrorKind::Exhausted, 6),
            (ErrorKind::Unauthenticated, 7),
            (ErrorKind::PermissionDenied, 7),
        ] {
            assert_eq!(Failure::new(kind, "").exit_code(), code, "{kind:?}");
            assert!(EXIT_CODES.contains(&format!("\n  {code}  ")), "{code}");
        }
    }

    #[test]
    fn json_names_what_is_known_and_nothing_else() {
        let bare = Failure::new(ErrorKind::Io, "no room").to_json();
        assert_eq!(bare, json!({ "kind": "io", "message": "no room" }));
    }
}
