//! The file of a store while this process has its lock.

use super::{CANCELLED, FileAccess, NOT_RELEASED, Paused};
use crate::error::{Cause, ErrorKind, Failure, Phase};
use crate::store::file_log::append;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The most that is read at once.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// The most that one write takes (write(2)).
const WRITE_BYTES_MAX: usize = 0x7fff_f000;
/// The first pause before the lock is tried again, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(2)];

/// What an operation does with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads, under a shared lock.
    Read,
    /// Appends, under an exclusive lock. Unlike PyTorch, it never makes the file anew: whoever still has the old one
    /// would never see what is written.
    Write,
    /// The same, and makes the file if it is missing.
    Create,
}

impl Access {
    /// Opens the file for one operation.
    pub(super) fn open(self, path: &Path) -> Result<File, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(self != Self::Read).mode(0o644);
        // A path to a pipe must not hang.
        options.create(self == Self::Create).custom_flags(libc::O_NONBLOCK);
        options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if self != Self::Create => Failure {
                kind: ErrorKind::ServerGone,
                cause: Cause::FileRemoved,
                ..os(Phase::Opening, &error)
            },
            _ => os(Phase::Opening, &error),
        })
    }

    const fn flock(self) -> libc::c_int {
        match self {
            Self::Read => libc::LOCK_SH,
            Self::Write | Self::Create => libc::LOCK_EX,
        }
    }
}

/// Which file it is, whatever its name.
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

/// An open file with its lock, which goes with it.
#[derive(Debug)]
pub(super) struct Locked {
    file: Arc<File>,
    metadata: Metadata,
}

impl Drop for Locked {
    /// Closing the file would not do: a child that another thread has forked in between has the same open file, and the
    /// lock is that file's.
    fn drop(&mut self) {
        // SAFETY: the descriptor is that of an open file; `flock` touches no memory.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl Locked {
    /// Waits for the lock until the deadline.
    pub(super) fn take(file: File, access: Access, file_access: &FileAccess<'_>) -> Result<Self, Failure> {
        let (mut pause, longest) = (PAUSES[0], PAUSES[1]);
        loop {
            // SAFETY: the descriptor is that of an open file; `flock` touches no memory.
            if unsafe { libc::flock(file.as_raw_fd(), access.flock() | libc::LOCK_NB) } == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) => {}
                Some(libc::EINTR) => continue,
                _ => return Err(os(Phase::Locking, &error)),
            }
            let left = file_access.deadline.since(file_access.clock.now());
            if left.is_zero() {
                return Err(Failure { phase: Phase::Locking, cause: Cause::Locked, ..NOT_RELEASED });
            }
            if file_access.pauses.pause(file_access.epoch, pause.min(left)) == Paused::Cancelled {
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

    /// The length of the file; nobody changes it while the lock is held.
    pub(super) fn bytes(&self) -> u64 {
        self.metadata.len()
    }

    /// Whether it still has its name.
    pub(super) fn is_named(&self, path: &Path) -> Result<bool, Failure> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Identity::of(&metadata) == self.identity()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(os(Phase::Opening, &error)),
        }
    }

    /// Fails unless it is this file, and has a name.
    pub(super) fn expect(&self, identity: Identity) -> Result<(), Failure> {
        let cause = match (self.identity() == identity, self.metadata.nlink()) {
            (true, 1..) => return Ok(()),
            (true, 0) => Cause::FileRemoved,
            (false, _) => Cause::FileReplaced,
        };
        Err(Failure { kind: ErrorKind::ServerGone, cause, phase: Phase::Opening, ..NOT_RELEASED })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes at `end`, where the file ends: everything, or nothing, also if the process is killed meanwhile.
    pub(super) fn append(&self, records: &[u8], end: u64) -> Result<(), Failure> {
        // A write that begins at the limit of the process would end it (SIGXFSZ).
        if end.saturating_add(records.len() as u64) > file_bytes_max() {
            return Err(os(Phase::Writing, &io::Error::from_raw_os_error(libc::EFBIG)));
        }
        append(records, end, |at, bytes| self.write(at, bytes)).inspect_err(|_| {
            // If that fails too, the next reader names the place.
            self.file.set_len(end).ok();
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut written = 0;
        while written < bytes.len() {
            let (rest, at) = (&bytes[written..], at + written as u64);
            match self.file.write_at(rest, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // One write takes this much at most.
                Ok(count) if count == WRITE_BYTES_MAX => written += count,
                Ok(count) if count == rest.len() => return Ok(()),
                // A second write would tell; but it is the disk that is full, as a limit of the process is asked before.
                Ok(_) => return Err(os(Phase::Writing, &io::Error::from_raw_os_error(libc::ENOSPC))),
                Err(error) => return Err(os(Phase::Writing, &error)),
            }
        }
        Ok(())
    }

    /// Gives the lock back and keeps the file.
    pub(super) fn unlock(self) -> Arc<File> {
        Arc::clone(&self.file)
    }
}

/// Reads so many bytes at `offset` of the file, which had them before.
pub(super) fn read_at(file: &File, offset: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
    let mut chunk = vec![0; usize::try_from(bytes).unwrap_or(CHUNK_BYTES)];
    match file.read_exact_at(&mut chunk, offset) {
        Ok(()) => Ok(chunk),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Failure {
            kind: ErrorKind::ServerGone,
            cause: Cause::FileReplaced,
            ..os(Phase::Reading, &error)
        }),
        Err(error) => Err(os(Phase::Reading, &error)),
    }
}

/// How long this process may make a file.
fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

pub(super) fn removed(error: &io::Error) -> Failure {
    os(Phase::Writing, error)
}

fn os(phase: Phase, error: &io::Error) -> Failure {
    let cause = error.raw_os_error().map_or(Cause::Unknown, Cause::Os);
    Failure { kind: ErrorKind::Io, phase, cause, ..NOT_RELEASED }
}
