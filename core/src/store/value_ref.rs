//! A value, borrowed from the store or from a frame.

use super::number;
use crate::shared::SharedBytes;
use core::fmt;

/// Borrowed value.
#[derive(Clone, Copy)]
pub enum ValueRef<'a> {
    /// Bytes as they were set.
    Bytes(&'a [u8]),
    /// A counter; its value is the decimal text of the number.
    Number(i64),
    /// Bytes of a long value. Encoders share them where they can.
    Shared(&'a SharedBytes),
}

impl<'a> ValueRef<'a> {
    /// Returns the length in bytes; for a counter, the maximum length of its text, so that incrementing it never needs
    /// capacity.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => number::DIGITS_MAX,
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Returns whether the value is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number at the start of the value, if there is one in its first [`number::TEXT_BYTES_MAX`] bytes.
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => number::parse_leading(self.head(&mut [0; number::TEXT_BYTES_MAX])),
        }
    }

    /// Copies the start of the value, in which a number is looked for, into `buffer`.
    pub fn head<'b>(&self, buffer: &'b mut [u8; number::TEXT_BYTES_MAX]) -> &'b [u8] {
        let mut used = 0;
        self.chunks(|chunk| {
            let count = chunk.len().min(buffer.len() - used);
            buffer[used..used + count].copy_from_slice(&chunk[..count]);
            used += count;
        });
        &buffer[..used]
    }

    /// Calls `take` with the bytes of the value, in one chunk or several.
    pub fn chunks(&self, mut take: impl FnMut(&[u8])) {
        match self {
            Self::Bytes(bytes) => take(bytes),
            Self::Number(number) => take(itoa::Buffer::new().format(*number).as_bytes()),
            Self::Shared(bytes) => bytes.chunks().iter().for_each(|chunk| take(chunk)),
        }
    }

    /// Calls `read` with the bytes of the value. Joins them if they are in several chunks.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => read(bytes),
            Self::Number(number) => read(itoa::Buffer::new().format(*number).as_bytes()),
            Self::Shared(bytes) => bytes.read(read),
        }
    }

    /// Returns whether the value equals `other`.
    pub fn equals(&self, other: &[u8]) -> bool {
        match self {
            Self::Shared(bytes) => bytes.equals(other),
            _ => self.read(|bytes| bytes == other),
        }
    }
}

impl PartialEq for ValueRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.read(|bytes| other.equals(bytes))
    }
}

impl Eq for ValueRef<'_> {}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read(|bytes| bytes.fmt(f))
    }
}
