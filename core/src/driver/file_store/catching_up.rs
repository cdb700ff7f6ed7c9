//! Locking of the file with everything read that was appended, in steps that end with the operation's deadline. Much
//! is read without the lock, so that no process waits for a reader of a large file. Each step under the lock is
//! short.

use super::locked::{Access, CHUNK_BYTES, Identity, Locked, read_at};
use super::{CANCELLED, Clock, FileState, NOT_RELEASED, Span, lock_state, log_failure};
use crate::driver::prelude::*;
use crate::error::{Cause, ErrorKind, Failure, Phase};
use std::fs::File;
use std::path::Path;

/// Size of a read where most of the file can be skipped.
const HEADER_CHUNK_BYTES: u64 = 4096;

/// One operation with its deadline and its token.
pub(super) struct FileAccess<'a> {
    pub(super) clock: &'a Clock,
    pub(super) span: Span<'a>,
}

impl FileAccess<'_> {
    /// Opens and locks the file and reads all records. The file is the `expected` one, if given; otherwise one that
    /// has this name.
    pub(super) fn begin<'s>(
        &self,
        path: &Path,
        access: Access,
        expected: Option<Identity>,
        state: &'s Mutex<FileState>,
    ) -> Result<(Locked, MutexGuard<'s, FileState>), Failure> {
        // Open as long as its log is in use: no other file can get the same inode number.
        let mut begun: Option<(Arc<File>, Identity)> = None;
        if self.span.token.is_cancelled() {
            return Err(Failure { phase: Phase::Opening, ..CANCELLED });
        }
        loop {
            let locked = Locked::take(access.open(path)?, access, self)?;
            match expected {
                Some(identity) => locked.expect(identity)?,
                // The last store of an earlier run may have removed the file meanwhile.
                None if !locked.is_named(path)? => continue,
                None => {}
            }
            let mut held = lock_state(state);
            if begun.as_ref().is_some_and(|&(_, identity)| identity != locked.identity()) {
                held.log.restart();
            }
            if locked.bytes().saturating_sub(held.log.offset()) <= CHUNK_BYTES as u64 {
                held.catch_up(&locked)?;
                return Ok((locked, held));
            }
            drop(held);
            let (identity, end) = (locked.identity(), locked.bytes());
            let file = locked.unlock();
            self.read_ahead(&file, end, state)?;
            begun = Some((file, identity));
        }
    }

    /// Reads up to `end`, an earlier end of the file.
    fn read_ahead(&self, file: &File, end: u64, state: &Mutex<FileState>) -> Result<(), Failure> {
        let (mut buffer, mut start, mut wanted) = (Vec::new(), u64::MAX, 0);
        let mut chunk_bytes = CHUNK_BYTES as u64;
        loop {
            let offset = lock_state(state).log.offset();
            if offset >= end {
                return Ok(());
            }
            self.check(offset)?;
            if offset != start {
                // The first iteration, or another thread has read on, or a part was skipped.
                (start, wanted) = (offset, 0);
                buffer.clear();
            }
            let read_end = start + buffer.len() as u64;
            let chunk = read_at(file, read_end, chunk_bytes.min(end - read_end))?;
            if buffer.is_empty() {
                buffer = chunk;
            } else {
                buffer.extend_from_slice(&chunk);
            }
            let mut held = lock_state(state);
            if (buffer.len() as u64) < wanted || held.log.offset() != start {
                continue;
            }
            wanted = held.log.replay(&buffer, end).map_err(log_failure)?;
            let read = usize::try_from(held.log.offset() - start).unwrap_or(usize::MAX);
            drop(held);
            if read <= buffer.len() {
                buffer.drain(..read);
                start += read as u64;
                chunk_bytes = (chunk_bytes * 2).min(CHUNK_BYTES as u64);
            } else {
                // Reads little at a time, to find out what else can be skipped.
                chunk_bytes = HEADER_CHUNK_BYTES;
            }
        }
    }

    fn check(&self, offset: u64) -> Result<(), Failure> {
        if self.span.token.is_cancelled() {
            return Err(Failure { phase: Phase::Reading, ..CANCELLED });
        }
        if self.clock.now() >= self.span.deadline {
            return Err(Failure { phase: Phase::Reading, cause: Cause::ReadUpTo(offset), ..NOT_RELEASED });
        }
        Ok(())
    }
}

impl FileState {
    /// Reads what others have appended, at most one chunk.
    fn catch_up(&mut self, locked: &Locked) -> Result<(), Failure> {
        let (end, offset) = (locked.bytes(), self.log.offset());
        if end < offset {
            return Err(Failure::new(ErrorKind::ServerGone, Phase::Reading, Cause::FileReplaced));
        }
        let buffer = read_at(locked.file(), offset, end - offset)?;
        self.log.replay(&buffer, end).map_err(log_failure).map(drop)
    }
}
