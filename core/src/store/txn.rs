//! What a transaction asks and does, as plain data.

use super::op::Key;

/// What must hold for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// It has a value.
    Exists,
    /// It has none.
    Absent,
    /// It last changed at this revision of the store; 0 means that it has no value.
    Revision(u64),
    /// This is its value.
    Value(&'a [u8]),
}

/// One question of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare<'a> {
    /// About which key.
    pub key: Key<'a>,
    /// What must hold.
    pub condition: Condition<'a>,
}

/// One change that a transaction makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum Write<'a> {
    /// Stores a value.
    Set { key: Key<'a>, value: &'a [u8] },
    /// Removes a key, if it is there.
    Delete { key: Key<'a> },
    /// Removes all keys beneath a prefix.
    DeletePrefix { prefix: &'a [u8] },
    /// Adds to a number.
    Add { key: Key<'a>, delta: i64 },
    /// Adds bytes behind a value.
    Append { key: Key<'a>, value: &'a [u8] },
}
