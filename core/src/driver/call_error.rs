//! A failed call as an owned error, with the message of the operating system.

use super::resolve::error_text;
use crate::error::{Cause, ErrorKind, Failure, OneLine, Operation, Phase, Sentence};
use crate::prelude::*;
use crate::store::call::Call;
use crate::store::op::Key;
use core::fmt::Write as _;

/// Reason why a call failed. Its text is one sentence that names operation, key, server, time, phase and cause.
#[derive(Clone, PartialEq, Eq)]
pub struct CallError(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    operation: Operation,
    key: Option<Box<str>>,
    keys_count: usize,
    peer: Box<str>,
    failure: Failure,
    /// Message from the code of a custom store.
    message: Option<Box<str>>,
}

/// Reason why a store did not perform a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind, phase, cause and effect of the failure.
    pub failure: Failure,
    /// Message from the code of a custom store.
    pub message: Option<Box<str>>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, message: None }
    }
}

impl CallError {
    /// Makes the error of `operation` on `keys_count` keys, of which `key` is the first. The error has the key as the
    /// caller gave it, without the scope that it has at the server.
    pub fn new(
        operation: Operation,
        (key, keys_count): (Option<Key<'_>>, usize),
        peer: &str,
        failure: Failure,
    ) -> Self {
        let key = key.map(|key| shortened(Key::raw(key.name()).to_string()));
        Self(Box::new(Inner { operation, key, keys_count, peer: peer.into(), failure, message: None }))
    }

    /// Adds a message from the code of a custom store.
    #[must_use]
    pub fn with_message(mut self, message: Option<Box<str>>) -> Self {
        self.0.message = message;
        self
    }

    /// Replaces what happened.
    pub(super) fn with_failure(mut self, failure: Failure) -> Self {
        self.0.failure = failure;
        self
    }

    /// Removes the scope from a key that the error has in one piece.
    #[must_use]
    pub(super) fn without_scope(mut self, scope: &[u8]) -> Self {
        let name = self.0.key.as_deref().and_then(|key| key.strip_prefix(&*String::from_utf8_lossy(scope)));
        if let Some(name) = name {
            self.0.key = Some(name.into());
        }
        self
    }

    pub(super) fn of_call(call: &Call<'_>, peer: &str, failure: Failure) -> Self {
        Self::new(call.operation(), call.keys(), peer, failure)
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.failure.kind
    }

    /// Returns the operation that was requested.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// Returns the phase in which the call failed.
    pub fn phase(&self) -> Phase {
        self.0.failure.phase
    }

    /// Returns the time from the call to its failure.
    pub fn elapsed(&self) -> Duration {
        self.0.failure.elapsed
    }

    /// Returns the cause of the failure.
    pub fn cause(&self) -> Cause {
        self.0.failure.cause
    }

    /// Returns kind, phase, elapsed time, cause and effect.
    pub fn failure(&self) -> Failure {
        self.0.failure
    }

    /// Returns the first key, as on the wire and shortened to [`KEY_TEXT_BYTES_MAX`].
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Returns the store's name: a server as `host:port`, a path, a name.
    pub fn peer(&self) -> &str {
        &self.0.peer
    }
}

/// Maximum length in bytes of the key text that an error keeps.
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
