//! The file of a PyTorch `FileStore` as a log of records: how its bytes are read, and what an operation adds to them.
//!
//! The file has no header and is only ever appended to. Integers are little-endian; the last record of a key wins:
//!
//! ```text
//! record := u32 key length, key, u32 value length, value
//! ```
//!
//! | key of the record | meaning |
//! |---|---|
//! | `/` and a user's key | an assignment; the value may be empty |
//! | `-` and a whole key, such as `-/foo` | that key is deleted; the value says nothing |
//! | `refcount/` | how many store objects are alive, as decimal text |
//! | `cleanup/` | how many have ever been closed |
//!
//! No participant writes a record without a key. PyTorch reads one all the same, and fails when it lists its keys; here
//! it is refused with its offset, since zeros are what the crash of a host leaves of what was being written.
//!
//! [`Log`] holds what the records up to [`Log::offset`] say. Whoever carries the bytes locks the file, hands in what is
//! behind the offset, asks for an answer, and appends what the answer wants to be appended, with [`append`].

mod appending;

pub use appending::append;

use crate::error::LimitError;
use crate::limits::{KEY_COST_BYTES, LogLimits};
use crate::ordered::Named;
use crate::store::number;
use crate::store::op::{Key, Keys, Request};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Bound;

/// What stands before every user's key.
pub const KEY_SCOPE: &[u8] = b"/";
const DELETION: u8 = b'-';
/// How many store objects are alive.
pub const REFERENCES_KEY: &[u8] = b"refcount/";
/// How many store objects have ever been closed.
pub const CLOSED_KEY: &[u8] = b"cleanup/";

/// Bytes of the two lengths of a record.
const LENGTHS_BYTES: u64 = 8;
/// A record of so many bytes is read whatever the limits: it may be no more than a counter, or a key to be deleted.
const READ_BYTES_MIN: u64 = 1 << 20;

/// The bytes of a log, or a request on it, are not as they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The record at this offset goes beyond the end of the file.
    #[error("a torn record at offset {0}")]
    Torn(u64),
    /// The record at this offset has no key: these are zeros, and no log.
    #[error("a record without a key at offset {0}")]
    Nameless(u64),
    /// More is stored than may be.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// ADD on a value that does not begin with a number of 64 bits.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber,
    /// A file has no queues and no server that could release a barrier.
    #[error("a file store does not have this operation")]
    Unsupported,
}

/// What a request on a log answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// It is done when the records are written.
    Applied,
    /// A number, true when the records are written.
    Number(i64),
    /// A value, true when the records are written.
    Value(Cow<'a, [u8]>),
    /// Values in the order of their keys.
    Values(Vec<&'a [u8]>),
    /// Every key is there.
    Ready,
    /// Some key is not there.
    NotReady,
}

/// What the records of a file say.
#[derive(Debug)]
pub struct Log {
    values: Named<Box<[u8]>>,
    offset: u64,
    /// The two counters cost nothing: whoever is there is counted, however full the store is.
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
    /// The log of an empty file.
    #[must_use]
    pub const fn new(limits: LogLimits) -> Self {
        Self { values: Named::new(), offset: 0, stored_bytes: 0, limits, keeps: Keeps::Everything }
    }

    /// Forgets all but the two counters, and keeps only them from now on. A store object that ends needs no more, and
    /// what others have stored beyond its limits is then no reason not to count it out.
    pub fn keep_counters_only(&mut self) {
        self.keeps = Keeps::Counters;
        let all = core::mem::take(&mut self.values);
        for (key, value) in all.iter().filter(|(key, _)| is_counter(key)) {
            self.values.insert(key, value.clone());
        }
        self.stored_bytes = self.values.iter().map(|(key, value)| cost(key, value)).sum();
    }

    /// Begins anew, with another file.
    pub fn restart(&mut self) {
        *self = Self { keeps: self.keeps, ..Self::new(self.limits) };
    }

    /// Where the next record begins: all before it has been read.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the whole records at the front of `bytes`, which stand at [`Log::offset`] of a file that ends at `end`.
    /// Returns how many bytes the next record takes at least; 0 when the end is reached. The offset may go beyond `bytes`:
    /// what is not kept need not be read.
    ///
    /// # Errors
    /// [`LogError::Torn`] when a record goes beyond the end, [`LogError::Nameless`] when it has no key; all before it has
    /// been read. A limit.
    pub fn replay(&mut self, mut bytes: &[u8], end: u64) -> Result<u64, LogError> {
        loop {
            let left = end.saturating_sub(self.offset);
            if left == 0 {
                return Ok(0);
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

    /// How long the record at the front is, if no byte of it matters beyond those that are there.
    fn passed_over(&self, bytes: &[u8], left: u64) -> Option<u64> {
        let (key, tail) = split_run(bytes, LENGTHS_BYTES).ok()?;
        let matters = self.keeps == Keeps::Everything || is_counter(key);
        let value_bytes = u32::from_le_bytes(*tail.first_chunk::<4>()?);
        let record_bytes = LENGTHS_BYTES + key.len() as u64 + u64::from(value_bytes);
        (!matters && record_bytes <= left).then_some(record_bytes)
    }

    /// Nobody needs to read what may not be kept.
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

    /// The value under a whole key.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(|value| &**value)
    }

    /// How many keys there are, the two counters among them.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.values.len()
    }

    /// The whole keys that begin with `scope`, in order.
    pub fn keys_with_prefix<'a>(&'a self, scope: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let from = (Bound::Included(scope), Bound::Unbounded);
        let keys = self.values.range(from).map(|(key, _)| key);
        keys.take_while(move |key| key.starts_with(scope))
    }

    /// The number under a whole key: 0 when it is missing or empty.
    ///
    /// # Errors
    /// [`LogError::NotANumber`].
    pub fn number(&self, key: &[u8]) -> Result<i64, LogError> {
        match self.value(key) {
            None | Some([]) => Ok(0),
            Some(text) => number::parse_leading(text).ok_or(LogError::NotANumber),
        }
    }

    /// Answers a request from what has been read, and puts the records that it takes into `records`: to [`append`] them
    /// all, at [`Log::offset`] and under the lock of the reading, carries it out.
    ///
    /// Differences from PyTorch's own file store, on purpose: APPEND never loses what it appends; deleting says whether
    /// the key was there, and writes nothing when it was not; several values are set in one turn, and read in one.
    ///
    /// # Errors
    /// Why it cannot be answered; nothing is to be written then.
    pub fn answer<'a>(&'a self, request: &Request<'a>, records: &mut Vec<u8>) -> Result<Reply<'a>, LogError> {
        records.clear();
        let reply = self.decide(request, records)?;
        let more = match request {
            // It makes room.
            Request::Delete { .. } => 0,
            Request::MultiSet { pairs } => records.len() as u64 + pairs.len() as u64 * KEY_COST_BYTES,
            _ => records.len() as u64 + KEY_COST_BYTES,
        };
        // A record's length has 32 bits, whatever the limit.
        let bytes_max = self.limits.stored_bytes_max.min(u64::from(u32::MAX));
        if more > 0 && !records.is_empty() && self.stored_bytes + more > bytes_max {
            return Err(LimitError::Stored { bytes_max }.into());
        }
        appending::pad(records, self.offset);
        Ok(reply)
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
                    // Nothing is created, and the expectation comes back: indistinguishable from success, as in PyTorch.
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

    /// The records of a store object that begins to use the file.
    ///
    /// # Errors
    /// [`LogError::NotANumber`] when the counter is none.
    pub fn enter(&self, records: &mut Vec<u8>) -> Result<(), LogError> {
        records.clear();
        self.count(REFERENCES_KEY, 1, records)?;
        appending::pad(records, self.offset);
        Ok(())
    }

    /// The records of a store object that ends, and whether it leaves nobody behind: then the file goes, if
    /// `closed_min` objects or more have been closed by now.
    ///
    /// # Errors
    /// [`LogError::NotANumber`] when a counter is none.
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

/// What a store object leaves when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// The file: others use it, or a later run may.
    File,
    /// Nothing: the file is to be removed.
    Nothing,
}

struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Of the whole record.
    bytes: u64,
    tail: &'a [u8],
}

/// The record at the front, or how many bytes it takes at least.
fn split_record(bytes: &[u8]) -> Result<Record<'_>, u64> {
    let (key, tail) = split_run(bytes, LENGTHS_BYTES)?;
    let before_value = (bytes.len() - tail.len()) as u64;
    let (value, tail) = split_run(tail, LENGTHS_BYTES / 2).map_err(|wanted| before_value + wanted)?;
    Ok(Record { key, value, bytes: (bytes.len() - tail.len()) as u64, tail })
}

/// Bytes behind their length, or how many bytes are wanted in all; `least` is what a record takes from here on.
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

/// What does not fit into 32 bits does not fit into the log either, and is never written.
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
