//! Workers of a guard, as the agent knows them.

use super::GuardError;
use super::event::Returned;
use super::function::{ReturnedHead, outcome};
use super::program::memory_file;
use alloc::vec::Vec;
use core::mem::size_of;
use rendezvous_core::sorted::SortedMap;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Workers that were requested and have not ended, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Workers(SortedMap<u32, Worker>);

#[derive(Debug)]
struct Worker {
    /// Refers to this process as long as it is open, even if the ID is reused.
    pidfd: Option<OwnedFd>,
    returned: Option<ReturnFile>,
}

impl Workers {
    pub(super) fn has(&self, worker: u32) -> bool {
        self.0.contains_key(&worker)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a worker whose start was requested.
    pub(super) fn ask(&mut self, worker: u32, returned: Option<ReturnFile>) {
        self.0.insert(worker, Worker { pidfd: None, returned });
    }

    pub(super) fn started(&mut self, worker: u32, pidfd: Option<OwnedFd>) {
        if let Some(worker) = self.0.get_mut(&worker) {
            worker.pidfd = pidfd;
        }
    }

    /// Removes a worker that was not started.
    pub(super) fn forget(&mut self, worker: u32) {
        self.0.remove(&worker);
    }

    /// Removes a worker that has ended. Returns the value that it returned.
    pub(super) fn ended(&mut self, worker: u32, bytes_max: usize) -> Returned {
        let file = self.0.remove(&worker).and_then(|worker| worker.returned);
        file.map_or(Returned::Nothing, |mut file| file.read(bytes_max))
    }

    /// Kills the process groups of all workers when no guard is left to do so. A group is identified by the pidfd of
    /// its leader, even after the leader has ended, so no other group can be hit.
    pub(super) fn kill_groups(&mut self) {
        for pidfd in self.0.values().filter_map(|worker| worker.pidfd.as_ref()) {
            for flags in [PIDFD_SIGNAL_PROCESS_GROUP, 0] {
                // SAFETY: passes an open descriptor, a signal, no information, and flags. A kernel that does not know
                // the flag sends the signal to the leader alone, which also gets its parent-death signal.
                let sent = unsafe {
                    let information = core::ptr::null::<libc::siginfo_t>();
                    let fd = pidfd.as_raw_fd();
                    libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, information, flags)
                };
                if sent == 0 {
                    break;
                }
            }
        }
    }
}

/// Supported since Linux 6.9.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// File in memory that receives the return value of a function. It is read after the process has ended, so no thread
/// has to read meanwhile, and a copy of the descriptor in a child of the process has no effect.
#[derive(Debug)]
pub(super) struct ReturnFile(File);

impl ReturnFile {
    pub(super) fn new() -> Result<Self, GuardError> {
        let file = memory_file(c"rdzv-returned", MemfdFlags::CLOEXEC);
        Ok(Self(file.map_err(|error| GuardError::NotPrepared(super::number_of(&error)))?))
    }

    /// Reads the return value after the process has ended.
    fn read(&mut self, bytes_max: usize) -> Returned {
        let mut head = [0; size_of::<ReturnedHead>()];
        match self.0.read_exact_at(&mut head, 0) {
            Ok(()) => {}
            // The process ended before it wrote a value.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Returned::Nothing,
            Err(error) => return Returned::Failed(super::number_of(&error)),
        }
        let (outcome, value) = head.split_at(size_of::<u64>());
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let value = number(value);
        match number(outcome) {
            outcome::WHOLE if value <= bytes_max as u64 => {
                self.bytes(value).map_or_else(Returned::Failed, Returned::Bytes)
            }
            outcome::WHOLE | outcome::TOO_LONG => Returned::TooLong { bytes: value, bytes_max },
            outcome::FAILED => Returned::Failed(i32::try_from(value).unwrap_or(libc::EIO)),
            _ => Returned::Nothing,
        }
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, i32> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(count).unwrap_or(usize::MAX)).map_err(|_| libc::ENOMEM)?;
        // The worker shares the file's offset.
        let read = self
            .0
            .seek(SeekFrom::Start(size_of::<ReturnedHead>() as u64))
            .and_then(|_| (&mut self.0).take(count).read_to_end(&mut bytes));
        match read {
            Ok(read) if read as u64 == count => Ok(bytes),
            Ok(_) => Err(libc::EIO),
            Err(error) => Err(super::number_of(&error)),
        }
    }
}

impl AsFd for ReturnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
