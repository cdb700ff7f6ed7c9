//! Which workers of a start have written error files, and in which order.
//!
//! File times have a resolution of some milliseconds, within which a whole job may fail. So the order comes from
//! inotify, which queues the events of the workers' folders without waking a thread.

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
    /// Paths of the error files, by local rank.
    paths: Vec<Option<PathBuf>>,
    /// The inotify descriptor. Without one, files are ordered by their times and ranks.
    list: Option<File>,
    /// The inotify watch of each worker's folder, by local rank.
    folders: Vec<libc::c_int>,
}

impl ErrorWatch {
    pub(super) fn new() -> Self {
        Self { paths: Vec::new(), list: open(), folders: Vec::new() }
    }

    /// Returns the inotify descriptor. The kernel takes about 10 ms to close its last reference, and the peers of a
    /// killed agent would see that agent's connections close that much later. So another process has to hold it, too.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.list.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Watches the folders of the next start's workers.
    pub(super) fn begin(&mut self, paths: Vec<Option<PathBuf>>) {
        if let Some(list) = &self.list {
            for folder in self.folders.drain(..).filter(|folder| *folder >= 0) {
                // SAFETY: passes numbers only.
                unsafe { libc::inotify_rm_watch(list.as_raw_fd(), folder) };
            }
            self.folders = paths.iter().map(|path| watch(list, path.as_deref())).collect();
        }
        self.paths = paths;
    }

    /// Returns the path of a worker's error file.
    pub(super) fn path(&self, local_rank: u32) -> Option<&Path> {
        self.paths.get(usize::try_from(local_rank).ok()?)?.as_deref()
    }

    /// Returns the workers that have written an error file, in their order, with the age of each file.
    pub(super) fn written(&mut self) -> Vec<(u32, Duration)> {
        let order = self.order();
        let index = |local_rank: u32| order.iter().position(|rank| *rank == local_rank).unwrap_or(usize::MAX);
        let aged = |(rank, path): (u32, &Option<PathBuf>)| Some((rank, error_file_age(path.as_deref()?)?));
        let mut written: Vec<(u32, Duration)> = (0..).zip(&self.paths).filter_map(aged).collect();
        written.sort_unstable_by_key(|(rank, age)| (index(*rank), core::cmp::Reverse(*age)));
        written
    }

    /// Returns the local ranks whose files were created, in this order.
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
    // SAFETY: passes flags only.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    // SAFETY: the descriptor was just opened and has no other owner.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// Returns the watch of a folder, or -1 if there is none.
fn watch(list: &File, path: Option<&Path>) -> libc::c_int {
    let Some(folder) = path.and_then(Path::parent) else { return -1 };
    let Ok(folder) = CString::new(folder.as_os_str().as_bytes()) else { return -1 };
    // SAFETY: the path is null-terminated.
    unsafe { libc::inotify_add_watch(list.as_raw_fd(), folder.as_ptr(), libc::IN_CREATE | libc::IN_MOVED_TO) }
}
