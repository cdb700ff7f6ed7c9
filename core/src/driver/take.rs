//! Receivers of the values of a response.

use alloc::vec::Vec;

/// Maximum memory in bytes that is reserved before a value's bytes arrive: the length is a claim of the peer.
const PREALLOCATION_BYTES_MAX: u64 = 16 << 20;

fn capacity(bytes: u64) -> usize {
    usize::try_from(bytes.min(PREALLOCATION_BYTES_MAX)).unwrap_or_default()
}

/// Keeps those keys of a server's list that are in this scope, and removes the scope from them.
pub(in crate::driver) fn strip_scope(keys: &mut Vec<Vec<u8>>, scope: &[u8]) {
    keys.retain(|key| key.starts_with(scope));
    keys.iter_mut().for_each(|key| drop(key.drain(..scope.len())));
}

/// Receiver of the values of a response.
pub trait Take {
    /// Announces a list of `count` values.
    fn count(&mut self, count: u64);
    /// Announces a value of `bytes` bytes.
    fn start(&mut self, bytes: u64);
    /// Adds bytes to the value.
    fn chunk(&mut self, bytes: &[u8]);
    /// Discards all values: they belong to an attempt that failed.
    fn reset(&mut self);

    /// Adds a whole value.
    fn whole(&mut self, value: &[u8]) {
        self.start(value.len() as u64);
        self.chunk(value);
    }
}

/// Receiver of one value into the caller's buffer.
pub(in crate::driver) struct OneValue<'a>(pub(in crate::driver) &'a mut Vec<u8>);

impl Take for OneValue<'_> {
    fn count(&mut self, _count: u64) {}

    fn start(&mut self, bytes: u64) {
        self.0.clear();
        self.0.reserve(capacity(bytes));
    }

    fn chunk(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn reset(&mut self) {
        self.0.clear();
    }
}

/// Receiver of any number of values.
#[derive(Debug, Default)]
pub(in crate::driver) struct List(pub(in crate::driver) Vec<Vec<u8>>);

impl Take for List {
    fn count(&mut self, count: u64) {
        self.0.reserve(capacity(count).min(1 << 16));
    }

    fn start(&mut self, bytes: u64) {
        self.0.push(Vec::with_capacity(capacity(bytes)));
    }

    fn chunk(&mut self, bytes: &[u8]) {
        if let Some(value) = self.0.last_mut() {
            value.extend_from_slice(bytes);
        }
    }

    fn reset(&mut self) {
        self.0.clear();
    }
}

/// Receiver for calls without values.
pub(in crate::driver) struct NoValue;

impl Take for NoValue {
    fn count(&mut self, _count: u64) {}
    fn start(&mut self, _bytes: u64) {}
    fn chunk(&mut self, _bytes: &[u8]) {}
    fn reset(&mut self) {}
}
