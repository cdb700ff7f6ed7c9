//! What the agent knows of its workers.

use super::GuardError;
use super::event::Returned;
use super::function::ReturnedHead;
use crate::driver::event_loop::{EventLoop, Interest, Token, Watch};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::size_of;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};

/// Those that were asked for and have not ended, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Workers(BTreeMap<u32, Worker>);

#[derive(Debug)]
struct Worker {
    /// Names the process as long as it is held, whatever becomes of its number.
    pidfd: Option<OwnedFd>,
    pipe: Option<PipeEnd>,
}

impl Workers {
    pub(super) fn has(&self, worker: u32) -> bool {
        self.0.contains_key(&worker)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// It was asked for.
    pub(super) fn ask(&mut self, worker: u32, pipe: Option<PipeEnd>) {
        self.0.insert(worker, Worker { pidfd: None, pipe });
    }

    pub(super) fn started(&mut self, worker: u32, pidfd: Option<OwnedFd>) {
        if let Some(worker) = self.0.get_mut(&worker) {
            worker.pidfd = pidfd;
        }
    }

    /// It did not come to be.
    pub(super) fn forget(&mut self, worker: u32) {
        self.0.remove(&worker);
    }

    /// It has ended: what it returned.
    pub(super) fn ended(&mut self, worker: u32, bytes_max: usize) -> Returned {
        let pipe = self.0.remove(&worker).and_then(|worker| worker.pipe);
        pipe.map_or(Returned::Nothing, |pipe| pipe.finish(bytes_max))
    }

    /// Takes what a function has returned so far.
    pub(super) fn read_pipe(&mut self, worker: u64, bytes_max: usize) {
        let worker = u32::try_from(worker).ok().and_then(|worker| self.0.get_mut(&worker));
        if let Some(pipe) = worker.and_then(|worker| worker.pipe.as_mut()) {
            pipe.read(bytes_max);
        }
    }

    /// Kills the groups of all, when there is no guard any more that would. A group is named by its leader's descriptor,
    /// also when the leader is gone, so no other group can be meant.
    pub(super) fn kill_groups(&mut self) {
        for pidfd in self.0.values().filter_map(|worker| worker.pidfd.as_ref()) {
            for flags in [PIDFD_SIGNAL_PROCESS_GROUP, 0] {
                // SAFETY: a descriptor that lives, a signal, no information, and flags. A system that does not know the
                // flag takes the signal for the leader alone, which its parent's death reaches, too.
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

/// Since Linux 6.9.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// Where a function's result comes out.
#[derive(Debug)]
pub(super) struct PipeEnd {
    // Goes before the pipe. `None` when nothing more can come.
    watch: Option<Watch>,
    pipe: File,
    bytes: Vec<u8>,
}

/// What one read takes.
const READ_BYTES: usize = 16 * 1024;
/// Reads of one pipe in a row: more than any pipe holds, so that none is left when its function has ended.
const READS_MAX: usize = 256;

impl PipeEnd {
    pub(super) fn new(pipe: OwnedFd, events: &EventLoop, token: Token) -> Result<Self, GuardError> {
        let watched =
            set_nonblocking(&pipe).and_then(|()| events.watch(pipe.as_raw_fd(), Interest::Read, token));
        let watch = watched.map_err(|error| GuardError::NotPrepared(super::number_of(&error)))?;
        Ok(Self { watch: Some(watch), pipe: File::from(pipe), bytes: Vec::new() })
    }

    /// Takes what has come. No more is kept than a function may return; what is beyond is thrown away.
    fn read(&mut self, bytes_max: usize) {
        let kept_max = bytes_max.saturating_add(size_of::<ReturnedHead>());
        let mut room = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            match self.pipe.read(&mut room) {
                Ok(0) => return self.watch = None,
                Ok(count) => {
                    let kept = count.min(kept_max.saturating_sub(self.bytes.len()));
                    self.bytes.extend_from_slice(&room[..kept]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.watch = None,
            }
        }
    }

    /// The function has ended; what it has started may hold the pipe open for ever.
    fn finish(mut self, bytes_max: usize) -> Returned {
        self.read(bytes_max);
        let Some((head, bytes)) = self.bytes.split_first_chunk() else { return Returned::Nothing };
        let announced = u64::from_ne_bytes(*head);
        match usize::try_from(announced) {
            Ok(announced) if announced == bytes.len() => Returned::Bytes(bytes.to_vec()),
            Ok(announced) if announced <= bytes_max => Returned::Nothing,
            _ => Returned::TooLong(announced),
        }
    }
}

fn set_nonblocking(fd: &OwnedFd) -> std::io::Result<()> {
    // SAFETY: numbers only.
    let set = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if set < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
