//! Finding the end of a frame in bytes that arrive in pieces, with every length checked before its bytes are kept.

use super::{Field, MAGIC, Opcode};
use crate::limits::FrameLimits;

/// What a peer did that no c10d frame allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The opcode is not assigned, or not allowed here.
    #[error("opcode {0} is not one of this protocol's, or not allowed here")]
    Opcode(u8),
    /// VALIDATE carried another number.
    #[error("the greeting carried {0:#010x} where {MAGIC:#010x} is due")]
    Magic(u32),
    /// A key is longer than the limit.
    #[error("a key of {0} bytes is over the limit")]
    KeyTooLong(u64),
    /// A value is longer than the limit.
    #[error("a value of {0} bytes is over the limit")]
    ValueTooLong(u64),
    /// A list has more keys than the limit.
    #[error("a list of {0} keys is over the limit")]
    TooManyKeys(u64),
    /// The frame as a whole is longer than the limit.
    #[error("a frame of at least {0} bytes is over the limit")]
    FrameTooLong(u64),
}

/// Where a scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The first `bytes` bytes are one whole frame.
    Whole {
        /// Length of the frame.
        bytes: usize,
    },
    /// The frame goes on; it has at least `bytes` bytes in all.
    Partial {
        /// A lower bound of the frame's length.
        bytes: usize,
    },
}

/// Walks one frame. It remembers how far it came, so bytes that arrive one by one are not walked again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanner {
    /// Bytes of the frame that were found good.
    offset: usize,
    /// Fields of the opcode that are behind `offset`.
    field: usize,
    /// Byte strings of the current list that are still to come; a pair counts two.
    strings_left: u64,
}

impl Scanner {
    /// Looks at the frame that starts at `bytes[0]`. Call it with the same start and more bytes until it is whole;
    /// after that, the next call starts a new frame.
    ///
    /// # Errors
    /// What the frame violates; the connection is of no use then.
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

    /// A field of fixed width. The inner error is the number of bytes that the frame has at least.
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
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let Some(end) = end.filter(|&end| end <= limits.frame_bytes_max) else {
            return Err(FrameError::FrameTooLong((start as u64).saturating_add(length)));
        };
        if bytes.len() < end {
            return Ok(Err(end));
        }
        self.offset = end;
        Ok(Ok(()))
    }
}

#[inline]
fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}
