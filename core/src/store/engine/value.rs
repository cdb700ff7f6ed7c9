//! Values. A counter is kept as a number and becomes text when somebody reads it.

use crate::store::number;
use alloc::vec::Vec;

/// Memory that a value may keep though it is shorter, so that one which changes its length within this never moves.
/// A longer one gives its memory back when one of less than half its length takes its place.
const KEPT_CAPACITY: usize = 512;

/// What stands under a key.
#[derive(Debug)]
pub(super) enum Value {
    Absent,
    /// A number; reads as its decimal text.
    Number(i64),
    Bytes(Vec<u8>),
}

/// A value to read.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// Bytes as they were set.
    Bytes(&'a [u8]),
    /// A counter: its bytes are its decimal text.
    Number(i64),
}

impl Value {
    pub(super) const fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Absent => ValueRef::Bytes(b""),
            Self::Number(number) => ValueRef::Number(*number),
            Self::Bytes(bytes) => ValueRef::Bytes(bytes.as_slice()),
        }
    }

    /// The number that the value begins with; 0 when there is no value.
    pub(super) fn as_number(&self) -> Option<i64> {
        match self {
            Self::Absent => Some(0),
            Self::Number(number) => Some(*number),
            Self::Bytes(bytes) => number::parse_leading(bytes),
        }
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Absent => 0,
            // Charged at its longest, so that counting up never needs room.
            Self::Number(_) => number::DIGITS_MAX,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    pub(super) fn set(&mut self, new: &[u8]) {
        match self {
            Self::Bytes(bytes) if bytes.capacity() <= KEPT_CAPACITY.max(new.len().saturating_mul(2)) => {
                bytes.clear();
                bytes.extend_from_slice(new);
            }
            _ => *self = Self::Bytes(new.to_vec()),
        }
    }

    pub(super) fn append(&mut self, more: &[u8]) {
        match self {
            Self::Bytes(bytes) => bytes.extend_from_slice(more),
            Self::Absent => self.set(more),
            Self::Number(number) => {
                let mut text = itoa::Buffer::new();
                let mut bytes = Vec::from(text.format(*number));
                bytes.extend_from_slice(more);
                *self = Self::Bytes(bytes);
            }
        }
    }
}

impl ValueRef<'_> {
    /// Its length in bytes; of a number, the most that its text may have.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => number::DIGITS_MAX,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `read` with the bytes.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => read(bytes),
            Self::Number(number) => read(itoa::Buffer::new().format(*number).as_bytes()),
        }
    }

    /// Whether these bytes are the value.
    #[must_use]
    pub fn equals(&self, other: &[u8]) -> bool {
        self.read(|bytes| bytes == other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_near_what_is_charged() {
        let mut value = Value::Absent;
        value.set(&[0; 1024]);
        value.set(b"x");
        let Value::Bytes(bytes) = &value else { unreachable!("it was set") };
        assert!(bytes.capacity() <= KEPT_CAPACITY, "{} bytes held for one", bytes.capacity());
    }
}
