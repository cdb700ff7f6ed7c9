//! Conditions and writes of a transaction, as plain data.

use super::op::Key;

/// Condition on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// The key has a value.
    Exists,
    /// The key has no value.
    Absent,
    /// The key last changed at this revision of the store; 0 means that it has no value.
    Revision(u64),
    /// The key has this value.
    Value(&'a [u8]),
}

/// Comparison of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare<'a> {
    /// The key to compare.
    pub key: Key<'a>,
    /// The condition that must hold for the key.
    pub condition: Condition<'a>,
}

/// Write of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum Write<'a> {
    /// Stores a value.
    Set { key: Key<'a>, value: &'a [u8] },
    /// Removes a key, if it exists.
    Delete { key: Key<'a> },
    /// Removes all keys with a prefix.
    DeletePrefix { prefix: Key<'a> },
    /// Adds to a number.
    Add { key: Key<'a>, delta: i64 },
    /// Appends bytes to a value.
    Append { key: Key<'a>, value: &'a [u8] },
}

impl<'a> Write<'a> {
    /// Returns the key that it concerns, or the prefix.
    pub const fn key(&self) -> Key<'a> {
        let (Self::Set { key, .. }
        | Self::Delete { key }
        | Self::DeletePrefix { prefix: key }
        | Self::Add { key, .. }
        | Self::Append { key, .. }) = *self;
        key
    }
}
