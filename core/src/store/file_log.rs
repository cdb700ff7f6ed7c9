//! Log of a PyTorch `FileStore` file: parses its records, and computes the records that an operation appends.
//!
//! The file has no header and only grows by appending. Integers are little-endian. The last record of a key wins:
//!
//! ```text
//! record := u32 key length, key, u32 value length, value
//! ```
//!
//! | key of the record | meaning |
//! |---|---|
//! | `/` and a user's key | an assignment; the value may be empty |
//! | `-` and a whole key, such as `-/foo` | the key is deleted; the value is ignored |
//! | `refcount/` | number of open store objects, as decimal text |
//! | `cleanup/` | number of store objects ever closed, as decimal text |
//!
//! No participant writes a record with an empty key. PyTorch accepts such a record and fails later, when it lists
//! its keys. This parser rejects it and reports its offset, because a host crash leaves zeros where a record was
//! being written.
//!
//! [`Log`] holds the state that results from the records up to [`Log::offset`]. The caller does the file I/O: it
//! locks the file, passes the bytes from the offset on to [`Log::replay`], calls [`Log::answer`], and writes the
//! resulting records with [`append`].

mod appending;

pub use appending::append;

use crate::error::LimitError;
use crate::limits::{KEY_COST_BYTES, LogLimits};
use crate::ordered::Named;
use crate::prelude::*;
use crate::store::number;
use crate::store::op::{Key, Keys, Request};
use alloc::borrow::Cow;

/// Prefix of every user key.
pub const KEY_SCOPE: &[u8] = b"/";
const DELETION: u8 = b'-';
/// Key of the counter of open store objects.
pub const REFERENCES_KEY: &[u8] = b"refcount/";
/// Key of the counter of store objects that have ever been closed.
pub const CLOSED_KEY: &[u8] = b"cleanup/";

/// Size of the two length fields of a record, in bytes.
const LENGTHS_BYTES: u64 = 8;
/// Records up to this size are read regardless of the limits, in bytes: such a record may be a counter or a
/// deletion.
const READ_BYTES_MIN: u64 = 1 << 20;

/// Error of parsing a log or of a request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The record at this offset extends past the end of the file.
    #[error("a torn record at offset {0}")]
    Torn(u64),
    /// The record at this offset has an empty key: the bytes are zeros and not a log.
    #[error("a record without a key at offset {0}")]
    Nameless(u64),
    /// The stored data exceeds a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// ADD on a value that does not begin with a 64-bit decimal number.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber,
    /// A file store has no queues, and no server that could release a barrier.
    #[error("a file store does not have this operation")]
    Unsupported,
}

/// Reply to a request on a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The request takes effect when the records are written.
    Applied,
    /// A number, valid once the records are written.
    Number(i64),
    /// A value, valid once the records are written.
    Value(Cow<'a, [u8]>),
    /// Values in the order of their keys.
    Values(Vec<&'a [u8]>),
    /// Every key exists.
    Ready,
    /// At least one key is missing.
    NotReady,
}

/// State of a store file, as its records define it.
#[derive(Debug)]
pub struct Log {
    values: Named<Box<[u8]>>,
    offset: u64,
    /// Charged size in bytes. The two counters are free, so that a store object can register even when the store is
    /// full.
    stored_bytes: u64,
    limits: LogLimits,
    keeps: Keeps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Everything,
    Counters,
}

impl Log {
    /// Creates the log of an empty file.
    pub const fn new(limits: LogLimits) -> Self {
        Self { values: Named::new(), offset: 0, stored_bytes: 0, limits, keeps: Keeps::Everything }
    }

    /// Drops everything but the two counters, and keeps only those from now on. Closing a store object needs no
    /// more. Data that others have stored beyond this object's limits then does not prevent the close.
    pub fn keep_counters_only(&mut self) {
        self.keeps = Keeps::Counters;
        let all = core::mem::take(&mut self.values);
        for (key, value) in all.iter().filter(|(key, _)| is_counter(key)) {
            self.values.insert(key, value.clone());
        }
        self.stored_bytes = self.values.iter().map(|(key, value)| cost(key, value)).sum();
    }

    /// Resets the log, for another file.
    pub fn restart(&mut self) {
        *self = Self { keeps: self.keeps, ..Self::new(self.limits) };
    }

    /// Returns the file offset of the next record; everything before it has been read.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the complete records at the front of `bytes`, which start at [`Log::offset`] of a file of `end` bytes.
    /// Returns a lower bound of the next record's size in bytes, or 0 at the end of the file. The offset may
    /// advance beyond `bytes`, because a record that is not kept need not be read.
    ///
    /// # Errors
    /// [`LogError::Torn`] when a record extends past the end, [`LogError::Nameless`] when its key is empty; all
    /// records before it have been read. [`LogError::Limit`] when a limit is exceeded.
    pub fn replay(&mut self, mut bytes: &[u8], end: u64) -> Result<u64, LogError> {
        loop {
            let left = end.saturating_sub(self.offset);
            if left == 0 {
                return Ok(0);
            }
            // So short a rest is no record, whatever its bytes are and however many of them were read.
            if left < LENGTHS_BYTES {
                return Err(LogError::Torn(self.offset));
            }
            if bytes.starts_with(&[0; 4]) {
                return Err(LogError::Nameless(self.offset));
            }
            let record = match split_record(bytes) {
                Ok(record) => record,
                Err(wanted) if wanted > left => return Err(LogError::Torn(self.offset)),
                Err(wanted) => match self.passed_over(bytes, left) {
                    Some(record_bytes) => {
                        self.offset += record_bytes;
                        bytes = &[];
                        continue;
                    }
                    None => return self.check_readable(wanted).map(|()| wanted),
                },
            };
            if record.bytes > left {
                return Err(LogError::Torn(self.offset));
            }
            self.apply(&record)?;
            self.offset += record.bytes;
            bytes = record.tail;
        }
    }

    /// Returns the size of the record at the front if none of its bytes beyond those in `bytes` is needed.
    fn passed_over(&self, bytes: &[u8], left: u64) -> Option<u64> {
        let (key, tail) = split_run(bytes, LENGTHS_BYTES).ok()?;
        let matters = self.keeps == Keeps::Everything || is_counter(key);
        let value_bytes = u32::from_le_bytes(*tail.first_chunk::<4>()?);
        let record_bytes = LENGTHS_BYTES + key.len() as u64 + u64::from(value_bytes);
        (!matters && record_bytes <= left).then_some(record_bytes)
    }

    /// Refuses to read a record that is too large to be kept.
    fn check_readable(&self, wanted: u64) -> Result<(), LogError> {
        let bytes_max = self.limits.stored_bytes_max;
        if wanted > bytes_max.max(READ_BYTES_MIN) {
            Err(LimitError::Stored { bytes_max }.into())
        } else {
            Ok(())
        }
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), LogError> {
        if let Some((&DELETION, key)) = record.key.split_first() {
            if let Some(value) = self.values.remove(key) {
                self.stored_bytes -= cost(key, &value);
            }
            return Ok(());
        }
        if self.keeps == Keeps::Counters && !is_counter(record.key) {
            return Ok(());
        }
        let before = self.values.get(record.key).map_or(0, |value| cost(record.key, value));
        let stored_bytes = self.stored_bytes - before + cost(record.key, record.value);
        if stored_bytes > self.limits.stored_bytes_max {
            return Err(LimitError::Stored { bytes_max: self.limits.stored_bytes_max }.into());
        }
        self.stored_bytes = stored_bytes;
        self.values.insert(record.key, record.value.into());
        Ok(())
    }

    /// Returns the value of a whole key.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|value| &**value)
    }

    /// Returns the number that is stored under a whole key; 0 when the key is missing or its value is empty.
    ///
    /// # Errors
    /// [`LogError::NotANumber`] when the value is not a decimal number.
    pub fn number(&self, key: &[u8]) -> Result<i64, LogError> {
        match self.value(key) {
            None | Some([]) => Ok(0),
            Some(text) => number::parse_leading(text).ok_or(LogError::NotANumber),
        }
    }

    /// Answers a request from the records read so far, and replaces `records` with the records that carry it out.
    /// The caller passes them to [`append`] at [`Log::offset`], under the same lock that it held while reading.
    ///
    /// This differs from PyTorch's file store on purpose: APPEND never loses data; DELETE reports whether the key
    /// existed, and writes nothing when it did not; MULTI_SET and MULTI_GET are atomic.
    ///
    /// # Errors
    /// The reason that the request cannot be answered; the caller must then write nothing.
    pub fn answer<'a>(&'a self, request: &Request<'a>, records: &mut Vec<u8>) -> Result<Reply<'a>, LogError> {
        records.clear();
        let reply = self.decide(request, records)?;
        self.check_capacity(records)?;
        appending::pad(records, self.offset);
        Ok(reply)
    }

    /// Checks that the store does not exceed its limit after any of these records, so that each reader with this limit
    /// can replay them.
    fn check_capacity(&self, records: &[u8]) -> Result<(), LogError> {
        // The length field of a record has 32 bits, whatever the limit.
        if u32::try_from(records.len()).is_err() {
            return Err(LimitError::Stored { bytes_max: u64::from(u32::MAX) }.into());
        }
        let bytes_max = self.limits.stored_bytes_max;
        let (mut stored_bytes, mut planned, mut rest) = (self.stored_bytes, Named::new(), records);
        while let Ok(Record { key, value, tail, .. }) = split_record(rest) {
            rest = tail;
            if key.first() == Some(&DELETION) {
                // It frees capacity, and comes alone.
                continue;
            }
            let stored = self.value(key).map_or(0, |value| cost(key, value));
            let before = planned.insert(key, cost(key, value)).unwrap_or(stored);
            stored_bytes = stored_bytes - before + cost(key, value);
            if stored_bytes > bytes_max {
                return Err(LimitError::Stored { bytes_max }.into());
            }
        }
        Ok(())
    }

    fn decide<'a>(&'a self, request: &Request<'a>, records: &mut Vec<u8>) -> Result<Reply<'a>, LogError> {
        Ok(match *request {
            Request::Set { key, value } => {
                push_record(records, &key.pieces(), value);
                Reply::Applied
            }
            Request::MultiSet { pairs } => {
                pairs.iter().for_each(|(key, value)| push_record(records, &key.pieces(), value));
                Reply::Applied
            }
            Request::CompareSet { key, expected, desired } => {
                Reply::Value(Cow::Borrowed(match self.value(&joined(key)) {
                    Some(current) if current != expected => current,
                    // Nothing is created, and `expected` is returned: indistinguishable from success, as in
                    // PyTorch.
                    None if !expected.is_empty() => expected,
                    _ => {
                        push_record(records, &key.pieces(), desired);
                        desired
                    }
                }))
            }
            Request::Get { key } => match self.value(&joined(key)) {
                Some(value) => Reply::Value(Cow::Borrowed(value)),
                None => Reply::NotReady,
            },
            Request::Add { key, delta } => {
                let sum = self.number(&joined(key))?.wrapping_add(delta);
                push_record(records, &key.pieces(), itoa::Buffer::new().format(sum).as_bytes());
                Reply::Number(sum)
            }
            Request::Append { key, value } => {
                let mut whole = self.value(&joined(key)).unwrap_or_default().to_vec();
                whole.extend_from_slice(value);
                push_record(records, &key.pieces(), &whole);
                Reply::Applied
            }
            Request::Delete { key } => {
                let whole = joined(key);
                let was_there = self.values.contains(&whole);
                if was_there {
                    push_record(records, &[&[DELETION], &whole], b"");
                }
                Reply::Number(i64::from(was_there))
            }
            Request::Check { keys } | Request::Wait { keys } => {
                let mut keys = keys.iter();
                if keys.all(|key| self.values.contains(&joined(key))) {
                    Reply::Ready
                } else {
                    Reply::NotReady
                }
            }
            Request::MultiGet { keys } => self.all(keys).map_or(Reply::NotReady, Reply::Values),
            Request::NumKeys => Reply::Number(i64::try_from(self.values.len()).unwrap_or(i64::MAX)),
            Request::ListKeys => Reply::Values(self.values.iter().map(|(key, _)| key).collect()),
            Request::CancelWait
            | Request::QueuePush { .. }
            | Request::QueuePop { .. }
            | Request::QueueLen { .. }
            | Request::Barrier { .. } => return Err(LogError::Unsupported),
        })
    }

    fn all(&self, keys: Keys<'_>) -> Option<Vec<&[u8]>> {
        keys.iter().map(|key| self.value(&joined(key))).collect()
    }

    /// Writes the records of a store object that opens the file into `records`.
    ///
    /// # Errors
    /// [`LogError::NotANumber`] when the counter is not a number.
    pub fn enter(&self, records: &mut Vec<u8>) -> Result<(), LogError> {
        records.clear();
        self.count(REFERENCES_KEY, 1, records)?;
        appending::pad(records, self.offset);
        Ok(())
    }

    /// Writes the records of a store object that closes the file into `records`. Returns whether the caller must
    /// remove the file: it must if this was the last object, and at least `closed_min` objects have been closed by
    /// now.
    ///
    /// # Errors
    /// [`LogError::NotANumber`] when a counter is not a number.
    pub fn leave(&self, closed_min: Option<u64>, records: &mut Vec<u8>) -> Result<Remains, LogError> {
        records.clear();
        let closed = self.count(CLOSED_KEY, 1, records)?;
        let references = self.count(REFERENCES_KEY, -1, records)?;
        appending::pad(records, self.offset);
        let is_last = closed_min
            .is_some_and(|min| references <= 0 && i64::try_from(min).is_ok_and(|min| closed >= min));
        Ok(if is_last { Remains::Nothing } else { Remains::File })
    }

    fn count(&self, key: &[u8], delta: i64, records: &mut Vec<u8>) -> Result<i64, LogError> {
        let sum = self.number(key)?.wrapping_add(delta);
        push_record(records, &[key], itoa::Buffer::new().format(sum).as_bytes());
        Ok(sum)
    }
}

/// What remains of the file when a store object closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// The file stays: other objects use it, or a later run may.
    File,
    /// The file must be removed.
    Nothing,
}

struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Size of the whole record, in bytes.
    bytes: u64,
    tail: &'a [u8],
}

/// Returns the record at the front, or as the error a lower bound of its size in bytes.
fn split_record(bytes: &[u8]) -> Result<Record<'_>, u64> {
    let (key, tail) = split_run(bytes, LENGTHS_BYTES)?;
    let before_value = (bytes.len() - tail.len()) as u64;
    let (value, tail) = split_run(tail, LENGTHS_BYTES / 2).map_err(|wanted| before_value + wanted)?;
    Ok(Record { key, value, bytes: (bytes.len() - tail.len()) as u64, tail })
}

/// Splits off a length-prefixed byte string. The error is the number of bytes needed in all; `least` is the minimum
/// size of the rest of the record.
fn split_run(bytes: &[u8], least: u64) -> Result<(&[u8], &[u8]), u64> {
    let (length, tail) = bytes.split_first_chunk::<4>().ok_or(least)?;
    let length = u32::from_le_bytes(*length);
    let split = usize::try_from(length).ok().and_then(|length| tail.split_at_checked(length));
    split.ok_or(least + u64::from(length))
}

fn push_record(records: &mut Vec<u8>, key: &[&[u8]], value: &[u8]) {
    let key_bytes = key.iter().map(|part| part.len()).sum();
    records.reserve(key_bytes + value.len() + 8);
    records.extend_from_slice(&length_of(key_bytes));
    key.iter().for_each(|part| records.extend_from_slice(part));
    records.extend_from_slice(&length_of(value.len()));
    records.extend_from_slice(value);
}

/// Encodes a length. One that exceeds 32 bits exceeds the limits as well, so its record is never written.
fn length_of(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

fn joined(key: Key<'_>) -> Cow<'_, [u8]> {
    match key.as_contiguous() {
        Some(whole) => Cow::Borrowed(whole),
        None => Cow::Owned(key.pieces().concat()),
    }
}

fn is_counter(key: &[u8]) -> bool {
    key == REFERENCES_KEY || key == CLOSED_KEY
}

fn cost(key: &[u8], value: &[u8]) -> u64 {
    if is_counter(key) && value.len() <= number::DIGITS_MAX {
        return 0;
    }
    (key.len() + value.len()) as u64 + KEY_COST_BYTES
}

#[cfg(test)]
mod tests;
