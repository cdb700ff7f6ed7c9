//! Which workers of a start have written error files, and in which order.
//!
//! The time of a file is that of a clock that goes by ticks of some milliseconds, in which a whole job may fail. The order
//! is the system's own: it keeps a list of what happens in the workers' folders, and nobody is woken for it.

use crate::driver::worker_logs::error_file_age;
use crate::log_layout::ERROR_FILE;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::mem::offset_of;
use rendezvous_core::time::Duration;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The error files of one start.
#[derive(Debug)]
pub(super) struct ErrorWatch {
    /// By local rank.
    paths: Vec<Option<PathBuf>>,
    /// The system's list; without one, files are in the order of their times and ranks.
    list: Option<File>,
    /// The system's number of each worker's folder, by local rank.
    folders: Vec<libc::c_int>,
}

impl ErrorWatch {
    pub(super) fn new() -> Self {
        Self { paths: Vec::new(), list: open(), folders: Vec::new() }
    }

    /// The system's list. The system takes some 10 ms to close the last descriptor of it, and the peers of an agent that was
    /// killed would hear of that as much later: somebody else has to hold it, too.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.list.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Workers of another start leave theirs at these paths.
    pub(super) fn begin(&mut self, paths: Vec<Option<PathBuf>>) {
        if let Some(list) = &self.list {
            for folder in self.folders.drain(..).filter(|folder| *folder >= 0) {
                // SAFETY: numbers only.
                unsafe { libc::inotify_rm_watch(list.as_raw_fd(), folder) };
            }
            self.folders = paths.iter().map(|path| watch(list, path.as_deref())).collect();
        }
        self.paths = paths;
    }

    /// Where a worker leaves its own.
    pub(super) fn path(&self, local_rank: u32) -> Option<&Path> {
        self.paths.get(usize::try_from(local_rank).ok()?)?.as_deref()
    }

    /// Workers that have written one, and how long ago, in their order.
    pub(super) fn written(&mut self) -> Vec<(u32, Duration)> {
        let order = self.order();
        let index = |local_rank: u32| order.iter().position(|rank| *rank == local_rank).unwrap_or(usize::MAX);
        let aged = |(rank, path): (u32, &Option<PathBuf>)| Some((rank, error_file_age(path.as_deref()?)?));
        let mut written: Vec<(u32, Duration)> = (0..).zip(&self.paths).filter_map(aged).collect();
        written.sort_unstable_by_key(|(rank, age)| (index(*rank), core::cmp::Reverse(*age)));
        written
    }

    /// Ranks whose files came to be, in this order.
    fn order(&mut self) -> Vec<u32> {
        const HEAD: usize = size_of::<libc::inotify_event>();
        let mut ranks = Vec::new();
        let Some(list) = &mut self.list else { return ranks };
        let number = |rest: &[u8], at: usize| {
            rest.get(at..at + 4).and_then(|four| Some(i32::from_ne_bytes(four.try_into().ok()?)))
        };
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = list.read(&mut bytes) {
            let mut rest = &bytes[..count];
            while let (Some(folder), Some(length)) = (
                number(rest, offset_of!(libc::inotify_event, wd)),
                number(rest, offset_of!(libc::inotify_event, len)),
            ) {
                let end = HEAD + length.unsigned_abs() as usize;
                let Some(name) = rest.get(HEAD..end) else { break };
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                let rank =
                    (0..).zip(&self.folders).find(|(_, known)| **known == folder).map(|(rank, _)| rank);
                ranks.extend(rank.filter(|_| name == ERROR_FILE.as_bytes()));
                rest = &rest[end..];
            }
        }
        ranks
    }
}

fn open() -> Option<File> {
    // SAFETY: flags only.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    // SAFETY: it was opened just now, and nobody else knows it.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// The number of a folder's watch; -1: there is none.
fn watch(list: &File, path: Option<&Path>) -> libc::c_int {
    let Some(folder) = path.and_then(Path::parent) else { return -1 };
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { return -1 };
    // SAFETY: the path ends with a zero.
    unsafe { libc::inotify_add_watch(list.as_raw_fd(), folder.as_ptr(), libc::IN_CREATE | libc::IN_MOVED_TO) }
}
