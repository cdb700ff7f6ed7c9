//! The file in which a worker reports its error, in the format of PyTorch's `@record`:
//!
//! ```json
//! {"message": {"message": "RuntimeError: …", "extraInfo": {"py_callstack": "…", "timestamp": "1700000000"}}}
//! ```
//!
//! or, without a call stack, `{"message": "…", "timestamp": 1700000000}`. A file that cannot be read is noted in the
//! failure, whose other fields are still reported.

use crate::limits::ERROR_FILE_BYTES_MAX;
use rendezvous_core::prelude::*;
use serde_json::{Map, Value};
use thiserror::Error;

/// Error that a worker reported.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerError {
    /// Error message.
    pub message: String,
    /// Call stack.
    pub callstack: Option<String>,
    /// Time of the error on the clock of its host, in seconds since 1970; 0 if the file has none.
    pub timestamp_s: u64,
    /// Content of the whole file.
    pub data: Value,
}

/// Reason why an existing file cannot be used, or not completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ErrorFileNote {
    /// Nothing was written.
    #[error("the error file is empty")]
    Empty,
    /// The file exceeds the limit.
    #[error("the error file has more than {ERROR_FILE_BYTES_MAX} bytes")]
    TooLong,
    /// The file is not valid JSON, most likely because its writer died while it wrote.
    #[error("the error file is not valid JSON: wrong or cut short at line {line}, column {column}")]
    NotJson {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
    },
    /// The file is JSON without the fields of an error file.
    #[error("the error file has no message")]
    NoMessage,
    /// The path is not a regular file, but a folder or a pipe.
    #[error("the error file is not a regular file")]
    NotAFile,
    /// The path is a symbolic link, which is not followed.
    #[error("the error file is a symbolic link, which is not followed")]
    SymbolicLink,
    /// Reading failed.
    #[error("the error file cannot be read (errno {errno})")]
    Unreadable {
        /// Error number of the system call.
        errno: i32,
    },
}

/// Error file of a worker that has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ErrorFile {
    /// The worker wrote none, or had no path to write it to.
    #[default]
    Absent,
    /// The file exists.
    Read {
        /// Path of the file.
        path: String,
        /// Its error, or why it has none.
        content: Result<WorkerError, ErrorFileNote>,
    },
}

/// Parses an error file.
///
/// # Errors
/// The content is not that of an error file.
pub fn parse(bytes: &[u8]) -> Result<WorkerError, ErrorFileNote> {
    if bytes.len() > ERROR_FILE_BYTES_MAX {
        return Err(ErrorFileNote::TooLong);
    }
    if bytes.trim_ascii().is_empty() {
        return Err(ErrorFileNote::Empty);
    }
    let data = json(bytes)?;
    let message = data.get("message").ok_or(ErrorFileNote::NoMessage)?;
    let (text, callstack, timestamp) = match message {
        Value::String(text) => (text.clone(), None, data.get("timestamp")),
        Value::Object(_) => {
            let extra = message.get("extraInfo");
            let extra = |name: &str| extra.and_then(|extra| extra.get(name));
            let callstack = extra("py_callstack").and_then(Value::as_str).map(ToString::to_string);
            let text = message
                .get("message")
                .and_then(Value::as_str)
                .or_else(|| callstack.as_deref()?.lines().last());
            (text.ok_or(ErrorFileNote::NoMessage)?.to_string(), callstack, extra("timestamp"))
        }
        _ => return Err(ErrorFileNote::NoMessage),
    };
    let timestamp_s = timestamp.and_then(seconds).unwrap_or(0);
    Ok(WorkerError { message: text, callstack, timestamp_s, data })
}

fn json(bytes: &[u8]) -> Result<Value, ErrorFileNote> {
    serde_json::from_slice(bytes)
        .map_err(|error| ErrorFileNote::NotJson { line: error.line(), column: error.column() })
}

/// Parses a timestamp. PyTorch writes it as text, other writers as a number.
fn seconds(timestamp: &Value) -> Option<u64> {
    match timestamp {
        Value::String(text) => text.trim().split('.').next()?.parse().ok(),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|seconds| (0.0..1e18).contains(seconds));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is within bounds"
            )]
            number.as_u64().or_else(|| whole.map(|seconds| seconds as u64))
        }
        _ => None,
    }
}

/// Error of a worker, to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewError<'a> {
    /// Error message.
    pub message: &'a str,
    /// Call stack; may be empty.
    pub callstack: &'a str,
    /// Additional names and texts.
    pub extra: &'a [(&'a str, &'a str)],
    /// Time of the error in seconds since 1970.
    pub timestamp_s: u64,
}

/// Returns the content of an error file. PyTorch's readers show only `py_callstack` if it is present, so it contains
/// the message, too.
pub fn encode(error: &NewError<'_>) -> Vec<u8> {
    let mut extra = Map::new();
    extra.extend(error.extra.iter().map(|(name, text)| (name.to_string(), Value::from(*text))));
    if !error.callstack.is_empty() {
        let callstack = if error.callstack.contains(error.message) {
            error.callstack.to_string()
        } else {
            format!("{}\n{}", error.message, error.callstack)
        };
        extra.insert("py_callstack".to_string(), Value::from(callstack));
    }
    extra.insert("timestamp".to_string(), Value::from(error.timestamp_s.to_string()));
    let inner = object([("message", Value::from(error.message)), ("extraInfo", Value::Object(extra))]);
    let mut text = object([("message", inner)]).to_string().into_bytes();
    text.push(b'\n');
    text
}

/// Returns a worker's error file with the exit code added, for the agent's own error file. Content that cannot be
/// parsed is returned unchanged.
pub fn with_error_code(bytes: &[u8], exit_code: i32) -> Vec<u8> {
    let Ok(mut data) = json(bytes) else { return bytes.to_vec() };
    if let Some(Value::Object(message)) = data.get_mut("message") {
        message.insert("errorCode".to_string(), Value::from(exit_code));
    }
    data.to_string().into_bytes()
}

/// Returns a JSON object.
pub(super) fn object<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    // `collect` would instantiate a sort for each type of map.
    let mut object = serde_json::Map::new();
    object.extend(pairs.into_iter().map(|(name, value)| (name.to_string(), value)));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_PYTORCH: &str = r#"{"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"t.py\"\nRuntimeError: boom\n", "timestamp": "1700000000"}}}"#;

    #[test]
    fn files_of_pytorch_are_read() {
        let error = parse(OF_PYTORCH.as_bytes()).expect("an error file");
        assert_eq!((error.message.as_str(), error.timestamp_s), ("RuntimeError: boom", 1_700_000_000));
        assert!(error.callstack.expect("a stack").starts_with("Traceback"));
        assert_eq!(error.data["message"]["extraInfo"]["timestamp"], "1700000000");
    }

    #[test]
    fn plain_messages_are_read() {
        let error = parse(br#"{"message": "out of paper", "timestamp": 12}"#).expect("an error file");
        assert_eq!((error.message.as_str(), error.callstack, error.timestamp_s), ("out of paper", None, 12));
        assert_eq!(parse(br#"{"message": "x"}"#).expect("an error file").timestamp_s, 0);
        assert_eq!(parse(br#"{"message": "x", "timestamp": 12.75}"#).expect("an error file").timestamp_s, 12);
        assert_eq!(parse(br#"{"message": "x", "timestamp": -3}"#).expect("an error file").timestamp_s, 0);
        assert_eq!(parse(br#"{"message": "x", "timestamp": 1e300}"#).expect("an error file").timestamp_s, 0);
    }

    #[test]
    fn what_is_missing_does_not_matter_as_long_as_something_is_said() {
        for (text, message, timestamp_s) in [
            (r#"{"message": {"message": "x"}}"#, "x", 0),
            (r#"{"message": {"message": "x", "extraInfo": []}}"#, "x", 0),
            (r#"{"message": {"message": "x", "extraInfo": {"timestamp": 7}}}"#, "x", 7),
            (r#"{"message": {"message": "x", "extraInfo": {"timestamp": "7.9"}}}"#, "x", 7),
            (r#"{"message": {"message": "x", "extraInfo": {"timestamp": "noon"}}}"#, "x", 0),
            (r#"{"message": {"extraInfo": {"py_callstack": "a\nb: c\n"}}}"#, "b: c", 0),
        ] {
            let error = parse(text.as_bytes()).expect(text);
            assert_eq!((error.message.as_str(), error.timestamp_s), (message, timestamp_s), "{text}");
        }
    }

    #[test]
    fn what_is_no_error_file_is_told_apart() {
        let deep = "[".repeat(100_000);
        for (text, note) in [
            ("", "the error file is empty"),
            (" \n", "the error file is empty"),
            (
                "{\"message\":\n \"x",
                "the error file is not valid JSON: wrong or cut short at line 2, column 3",
            ),
            ("\u{1}", "the error file is not valid JSON: wrong or cut short at line 1, column 1"),
            ("[]", "the error file has no message"),
            ("17", "the error file has no message"),
            (r#"{"message": 17}"#, "the error file has no message"),
            (r#"{"message": null}"#, "the error file has no message"),
            (r#"{"message": {}}"#, "the error file has no message"),
            (r#"{"message": {"message": {}}}"#, "the error file has no message"),
            (&deep, "the error file is not valid JSON: wrong or cut short at line 1, column 128"),
        ] {
            assert_eq!(parse(text.as_bytes()).expect_err(text).to_string(), note);
        }
        assert!(matches!(parse(b"{\"message\": \"\xff\"}"), Err(ErrorFileNote::NotJson { .. })));
        let long = alloc::vec![b' '; ERROR_FILE_BYTES_MAX + 1];
        assert_eq!(parse(&long), Err(ErrorFileNote::TooLong));
    }

    #[test]
    fn what_is_written_is_read() {
        let error = NewError {
            message: "std::runtime_error: \"boom\"\u{1}é",
            callstack: "#0 train\n#1 main",
            extra: &[("device", "3"), ("timestamp", "not this one")],
            timestamp_s: 1_700_000_001,
        };
        let read = parse(&encode(&error)).expect("an error file");
        assert_eq!((read.message.as_str(), read.timestamp_s), (error.message, error.timestamp_s));
        let stack = read.callstack.expect("a stack");
        assert_eq!(stack, [error.message, "\n", error.callstack].concat());
        assert_eq!(read.data["message"]["extraInfo"]["device"], "3");

        let bare = parse(&encode(&NewError { message: "x", ..NewError::default() })).expect("an error file");
        assert_eq!(bare.callstack, None);
        let named = NewError { message: "x", callstack: "at x", ..NewError::default() };
        assert_eq!(parse(&encode(&named)).expect("an error file").callstack.as_deref(), Some("at x"));
    }

    #[test]
    fn a_root_cause_is_handed_on_with_its_exit_code() {
        let handed = parse(&with_error_code(OF_PYTORCH.as_bytes(), -11)).expect("an error file");
        assert_eq!(handed.data["message"]["errorCode"], -11);
        assert_eq!(handed.message, "RuntimeError: boom");
        let plain =
            parse(&with_error_code(br#"{"message": "x", "timestamp": 3}"#, 1)).expect("an error file");
        assert_eq!((plain.message.as_str(), plain.timestamp_s), ("x", 3));
        assert_eq!(with_error_code(b"{\"mess", 1), b"{\"mess");
    }

    /// Parsing ends with a result for any content that a dying worker leaves.
    #[test]
    fn no_file_is_too_strange() {
        for length in 0..OF_PYTORCH.len() {
            assert!(parse(&OF_PYTORCH.as_bytes()[..length]).is_err());
        }
        let mut rng = rendezvous_core::rng::Rng::new(1);
        for _ in 0..20_000 {
            let mut bytes = OF_PYTORCH.as_bytes().to_vec();
            for _ in 0..=rng.below(3) {
                let at = usize::try_from(rng.below(bytes.len() as u64)).expect("an index");
                bytes[at] = b"{}[]\",:0\\\xff"[usize::try_from(rng.below(10)).expect("an index")];
            }
            drop((parse(&bytes), with_error_code(&bytes, 1)));
        }
    }
}
