//! The store's file while this process holds its lock.

use super::{CANCELLED, FileAccess, NOT_RELEASED};
use crate::driver::prelude::*;
use crate::error::{Cause, ErrorKind, Failure, Phase};
use crate::store::file_log::append;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Maximum number of bytes in one read.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of bytes that one write takes (write(2)).
const WRITE_BYTES_MAX: usize = 0x7fff_f000;
/// First and longest pause before the lock is tried again.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// Access of one operation to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads, under a shared lock.
    Read,
    /// Appends, under an exclusive lock. Unlike PyTorch, this never creates the file: processes that have the old one
    /// open would not see what is written.
    Write,
    /// Appends, and creates the file if it is missing.
    Create,
}

impl Access {
    /// Opens the file for one operation.
    pub(super) fn open(self, path: &Path) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(self != Self::Read).mode(0o644);
        // Opening a pipe must not block.
        options.create(self == Self::Create).custom_flags(libc::O_NONBLOCK);
        options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if self != Self::Create => {
                Failure::new(ErrorKind::ServerGone, Phase::Opening, Cause::FileRemoved)
            }
            _ => os(Phase::Opening, &error),
        })
    }

    const fn lock(self) -> FlockOperation {
        match self {
            Self::Read => FlockOperation::NonBlockingLockShared,
            Self::Write | Self::Create => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

/// Identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

pub(super) fn identity_and_length(file: &File) -> Result<(Identity, u64), Failure> {
    let metadata = file.metadata().map_err(|error| os(Phase::Reading, &error))?;
    Ok((Identity::of(&metadata), metadata.len()))
}

/// Open, locked file. Dropping this releases the lock.
#[derive(Debug)]
pub(super) struct Locked {
    file: Arc<File>,
    metadata: Metadata,
}

impl Drop for Locked {
    /// Closing the file would not suffice: a child that another thread has forked meanwhile shares the open file, and
    /// the lock belongs to that.
    fn drop(&mut self) {
        flock(&self.file, FlockOperation::Unlock).ok();
    }
}

impl Locked {
    /// Waits for the lock until the deadline.
    pub(super) fn take(file: File, access: Access, file_access: &FileAccess<'_>) -> Result<Self, Failure> {
        let (mut pause, longest) = (PAUSES[0], PAUSES[1]);
        loop {
            match flock(&file, access.lock()) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(os(Phase::Locking, &error.into())),
            }
            let left = file_access.span.deadline.since(file_access.clock.now());
            if left.is_zero() {
                return Err(Failure { phase: Phase::Locking, cause: Cause::Locked, ..NOT_RELEASED });
            }
            if file_access.span.token.wait(pause.min(left)) {
                return Err(Failure { phase: Phase::Locking, ..CANCELLED });
            }
            pause = longest.min(pause * 2);
        }
        let metadata = file.metadata().map_err(|error| os(Phase::Reading, &error))?;
        if !metadata.is_file() {
            let kind = ErrorKind::InvalidArgument;
            return Err(Failure { kind, ..os(Phase::Opening, &io::Error::from_raw_os_error(libc::EINVAL)) });
        }
        Ok(Self { file: Arc::new(file), metadata })
    }

    pub(super) fn identity(&self) -> Identity {
        Identity::of(&self.metadata)
    }

    /// Returns the length of the file in bytes, which is constant while the lock is held.
    pub(super) fn bytes(&self) -> u64 {
        self.metadata.len()
    }

    /// Returns whether `path` still names this file.
    pub(super) fn is_named(&self, path: &Path) -> Result<bool, Failure> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Identity::of(&metadata) == self.identity()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(os(Phase::Opening, &error)),
        }
    }

    /// Fails unless the file has this identity and still has a name.
    pub(super) fn expect(&self, identity: Identity) -> Result<(), Failure> {
        let cause = match (self.identity() == identity, self.metadata.nlink()) {
            (true, 1..) => return Ok(()),
            (true, 0) => Cause::FileRemoved,
            (false, _) => Cause::FileReplaced,
        };
        Err(Failure::new(ErrorKind::ServerGone, Phase::Opening, cause))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes `records` at `end`, the end of the file: everything or nothing, also if the process is killed
    /// meanwhile.
    pub(super) fn append(&self, records: &[u8], end: u64) -> Result<(), Failure> {
        // A write that begins at the process's limit would kill the process (SIGXFSZ).
        if end.saturating_add(records.len() as u64) > file_bytes_max() {
            return Err(os(Phase::Writing, &io::Error::from_raw_os_error(libc::EFBIG)));
        }
        append(records, end, |at, bytes| self.write(at, bytes)).inspect_err(|_| {
            // If that fails too, the next reader reports the position.
            self.file.set_len(end).ok();
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut written = 0;
        while written < bytes.len() {
            let (rest, at) = (&bytes[written..], at + written as u64);
            match self.file.write_at(rest, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // One write takes at most this much.
                Ok(count) if count == WRITE_BYTES_MAX => written += count,
                Ok(count) if count == rest.len() => return Ok(()),
                // A second write would return the error. It is a full disk, since the process's limit was checked
                // before.
                Ok(_) => return Err(os(Phase::Writing, &io::Error::from_raw_os_error(libc::ENOSPC))),
                Err(error) => return Err(os(Phase::Writing, &error)),
            }
        }
        Ok(())
    }

    /// Releases the lock and keeps the file open.
    pub(super) fn unlock(self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}

/// Reads `bytes` bytes at `offset`, which the file is known to have had.
pub(super) fn read_at(file: &File, offset: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
    let mut chunk = vec![0; usize::try_from(bytes).unwrap_or(CHUNK_BYTES)];
    match file.read_exact_at(&mut chunk, offset) {
        Ok(()) => Ok(chunk),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Failure::new(ErrorKind::ServerGone, Phase::Reading, Cause::FileReplaced))
        }
        Err(error) => Err(os(Phase::Reading, &error)),
    }
}

/// Returns the maximum file size in bytes for this process.
fn file_bytes_max() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

pub(super) fn removed(error: &io::Error) -> Failure {
    os(Phase::Writing, error)
}

fn os(phase: Phase, error: &io::Error) -> Failure {
    let cause = error.raw_os_error().map_or(Cause::Unknown, Cause::Os);
    Failure::new(ErrorKind::Io, phase, cause)
}
