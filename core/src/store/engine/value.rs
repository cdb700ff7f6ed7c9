//! Values. A counter is stored as a number and formatted as text when it is read.

use crate::store::number;
use alloc::vec::Vec;

/// Capacity that a value keeps when it becomes shorter, in bytes, so that changes of length below this do not
/// reallocate. A longer value releases its memory when a value of less than half its length replaces it.
const KEPT_CAPACITY: usize = 512;

/// Value of a key.
#[derive(Debug)]
pub(super) enum Value {
    Absent,
    /// A counter; its value is the decimal text of the number.
    Number(i64),
    Bytes(Vec<u8>),
}

/// Borrowed value.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// Bytes as they were set.
    Bytes(&'a [u8]),
    /// A counter; its value is the decimal text of the number.
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

    /// Returns the number at the start of the value; 0 when there is no value, `None` when there is no number.
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
            // Charged at its maximum length, so that incrementing a counter never needs capacity.
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
    /// Returns the length in bytes; for a counter, the maximum length of its text.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => number::DIGITS_MAX,
        }
    }

    /// Returns whether the value is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `read` with the bytes of the value.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => read(bytes),
            Self::Number(number) => read(itoa::Buffer::new().format(*number).as_bytes()),
        }
    }

    /// Returns whether the value equals `other`.
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
