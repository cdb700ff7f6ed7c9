//! Scanner that finds the end of a frame in bytes that arrive in pieces, and checks every length before its bytes
//! are buffered.

use super::{Field, MAGIC, Opcode};
use crate::limits::FrameLimits;

/// Violation of the c10d protocol by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The opcode is unassigned, or not allowed at this point.
    #[error("opcode {0} is not one of this protocol's, or not allowed here")]
    Opcode(u8),
    /// VALIDATE carries a wrong magic number.
    #[error("the greeting carried {0:#010x} where {MAGIC:#010x} is due")]
    Magic(u32),
    /// A key exceeds the limit; its length in bytes.
    #[error("a key of {0} bytes is over the limit")]
    KeyTooLong(u64),
    /// A value exceeds the limit; its length in bytes.
    #[error("a value of {0} bytes is over the limit")]
    ValueTooLong(u64),
    /// A list has too many keys; their number.
    #[error("a list of {0} keys is over the limit")]
    TooManyKeys(u64),
    /// The keys of a list together exceed the limit; their length so far, in bytes.
    #[error("keys of {0} bytes together are over the limit")]
    KeysTooLong(u64),
    /// The frame exceeds the limit; a lower bound of its length in bytes.
    #[error("a frame of at least {0} bytes is over the limit")]
    FrameTooLong(u64),
}

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The first `bytes` bytes are a complete frame.
    Whole {
        /// Length of the frame, in bytes.
        bytes: usize,
    },
    /// The frame is incomplete; it has at least `bytes` bytes in all.
    Partial {
        /// Lower bound of the frame's length, in bytes.
        bytes: usize,
    },
}

/// Scanner of one frame at a time. It stores its position, so that bytes that arrive one by one are not scanned
/// again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanner {
    /// Number of bytes of the frame that were checked.
    offset: usize,
    /// Number of fields of the opcode before `offset`.
    field: usize,
    /// Number of byte strings of the current list that are still to come; a pair counts as two.
    strings_left: u64,
    /// Length of the frame's keys before `offset`, in bytes.
    key_bytes: u64,
}

impl Scanner {
    /// Scans the frame that starts at `bytes[0]`. Call it with the same start and more bytes until the frame is
    /// complete. The next call then starts a new frame.
    ///
    /// # Errors
    /// The violation of the protocol; the caller must close the connection.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8], limits: &FrameLimits) -> Result<Scan, FrameError> {
        let Some(&first) = bytes.first() else { return Ok(Scan::Partial { bytes: 1 }) };
        let fields = Opcode::from_byte(first).ok_or(FrameError::Opcode(first))?.fields();
        if self.offset == 0 {
            self.offset = 1;
        }
        let kind = |field| match field {
            Field::Key | Field::Keys => (Field::Key, limits.key_bytes_max),
            _ => (Field::Value, limits.value_bytes_max),
        };
        loop {
            let Some(&field) = fields.get(self.field) else {
                let whole = Scan::Whole { bytes: self.offset };
                *self = Self::default();
                return Ok(whole);
            };
            let step = match (field, self.strings_left) {
                (Field::U32, _) => self.fixed(bytes, 4),
                (Field::Number, _) => self.fixed(bytes, 8),
                (Field::Key | Field::Value, _) => {
                    let step = self.string(bytes, kind(field), limits)?;
                    self.field += usize::from(step.is_ok());
                    step
                }
                (Field::Keys | Field::Pairs, 0) => self.count(bytes, field, limits)?,
                (Field::Keys | Field::Pairs, left) => {
                    let is_value = field == Field::Pairs && left % 2 == 1;
                    let step =
                        self.string(bytes, kind(if is_value { Field::Value } else { Field::Key }), limits)?;
                    if step.is_ok() {
                        self.strings_left -= 1;
                        self.field += usize::from(self.strings_left == 0);
                    }
                    step
                }
            };
            if let Err(wanted) = step {
                return Ok(Scan::Partial { bytes: wanted });
            }
        }
    }

    /// Scans a field of fixed width. The error is a lower bound of the frame's length in bytes.
    fn fixed(&mut self, bytes: &[u8], width: usize) -> Result<(), usize> {
        let end = self.offset + width;
        if bytes.len() < end {
            return Err(end);
        }
        self.offset = end;
        self.field += 1;
        Ok(())
    }

    fn count(
        &mut self,
        bytes: &[u8],
        field: Field,
        limits: &FrameLimits,
    ) -> Result<Result<(), usize>, FrameError> {
        let Some(count) = read_u64(bytes, self.offset) else { return Ok(Err(self.offset + 8)) };
        if count > limits.keys_max {
            return Err(FrameError::TooManyKeys(count));
        }
        self.offset += 8;
        self.strings_left = if field == Field::Pairs { count * 2 } else { count };
        self.field += usize::from(count == 0);
        Ok(Ok(()))
    }

    fn string(
        &mut self,
        bytes: &[u8],
        (kind, bytes_max): (Field, u64),
        limits: &FrameLimits,
    ) -> Result<Result<(), usize>, FrameError> {
        let start = self.offset + 8;
        let Some(length) = read_u64(bytes, self.offset) else { return Ok(Err(start)) };
        if length > bytes_max {
            return Err(if kind == Field::Key {
                FrameError::KeyTooLong(length)
            } else {
                FrameError::ValueTooLong(length)
            });
        }
        let key_bytes = self.key_bytes + if kind == Field::Key { length } else { 0 };
        if key_bytes > limits.all_key_bytes_max {
            return Err(FrameError::KeysTooLong(key_bytes));
        }
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let Some(end) = end.filter(|&end| end <= limits.frame_bytes_max) else {
            return Err(FrameError::FrameTooLong((start as u64).saturating_add(length)));
        };
        if bytes.len() < end {
            return Ok(Err(end));
        }
        self.offset = end;
        self.key_bytes = key_bytes;
        Ok(Ok(()))
    }
}

#[inline]
fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}
