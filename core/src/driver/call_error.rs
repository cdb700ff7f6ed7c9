//! A failed call as an owned error, with what the operating system has to say.

use super::resolve::error_text;
use crate::error::{Cause, ErrorKind, Failure, OneLine, Operation, Phase, Sentence};
use crate::store::call::Call;
use crate::store::op::Key;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::fmt;
use core::fmt::Write as _;

/// Why a call failed. Its text is one sentence that names operation, key, server, time, phase and cause.
#[derive(Clone, PartialEq, Eq)]
pub struct CallError(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    operation: Operation,
    key: Option<Box<str>>,
    keys_count: usize,
    peer: Box<str>,
    failure: Failure,
    /// What a store's own code said of it.
    message: Option<Box<str>>,
}

/// A call that a store did not perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How it failed.
    pub failure: Failure,
    /// What the store's own code said of it.
    pub message: Option<Box<str>>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, message: None }
    }
}

impl CallError {
    /// The failure of `operation` on these keys: the first and their number.
    #[must_use]
    pub fn new(
        operation: Operation,
        (key, keys_count): (Option<Key<'_>>, usize),
        peer: &str,
        failure: Failure,
    ) -> Self {
        let key = key.map(|key| shortened(key.to_string()));
        Self(Box::new(Inner { operation, key, keys_count, peer: peer.into(), failure, message: None }))
    }

    /// The same with what a store's own code said of it.
    #[must_use]
    pub fn with_message(mut self, message: Option<Box<str>>) -> Self {
        self.0.message = message;
        self
    }

    pub(super) fn of_call(call: &Call<'_>, peer: &str, failure: Failure) -> Self {
        Self::new(call.operation(), call.keys(), peer, failure)
    }

    /// Which kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.failure.kind
    }

    /// What was wanted.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// How far it had come.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.0.failure.phase
    }

    /// From the call to its failure.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.failure.elapsed
    }

    /// What stands behind it.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.0.failure.cause
    }

    /// All that is known about how it failed.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.0.failure
    }

    /// The first key, as on the wire and shortened to [`KEY_TEXT_BYTES_MAX`].
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// How many keys there were.
    #[must_use]
    pub fn keys_count(&self) -> usize {
        self.0.keys_count
    }

    /// The store: a server as `host:port`, a path, a name.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.0.peer
    }
}

/// The longest key text that an error keeps, in bytes.
pub const KEY_TEXT_BYTES_MAX: usize = 256;

fn shortened(mut text: String) -> Box<str> {
    if text.len() > KEY_TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(KEY_TEXT_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    text.into()
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, key, keys_count, peer, failure, message } = &*self.0;
        let os_text = match failure.cause {
            Cause::Os(number) => Some(std::io::Error::from_raw_os_error(number).to_string()),
            Cause::Resolver(number) => Some(error_text(number)),
            _ => None,
        };
        let sentence = Sentence {
            operation: *operation,
            key: key.as_ref().map(|key| key as &dyn fmt::Display),
            keys_count: *keys_count,
            peer,
            failure: *failure,
            os_text: os_text.as_ref().map(|text| text as &dyn fmt::Display),
        };
        fmt::Display::fmt(&sentence, f)?;
        message.as_ref().map_or(Ok(()), |message| write!(OneLine(f), ": {message}"))
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind())
    }
}

impl core::error::Error for CallError {}
