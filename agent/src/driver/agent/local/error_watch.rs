//! Which workers of a start have written error files, and in which order.
//!
//! File times have a resolution of some milliseconds, within which a whole job may fail. So the order comes from
//! inotify, which queues the events of the workers' folders without waking a thread.

use crate::driver::worker_logs::error_file_age;
use crate::log_layout::ERROR_FILE;
use core::mem::MaybeUninit;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::sort_by;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// The error files of one start.
#[derive(Debug)]
pub(super) struct ErrorWatch {
    /// Paths of the error files, by local rank.
    paths: Vec<Option<PathBuf>>,
    /// The inotify descriptor. Without one, files are ordered by their times and ranks.
    list: Option<OwnedFd>,
    /// The inotify watch of each worker's folder, by local rank.
    folders: Vec<Option<i32>>,
}

impl ErrorWatch {
    pub(super) fn new() -> Self {
        Self {
            paths: Vec::new(),
            list: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok(),
            folders: Vec::new(),
        }
    }

    /// Returns the inotify descriptor. The kernel takes about 10 ms to close its last reference, and the peers of a
    /// killed agent would see that agent's connections close that much later. So another process has to hold it, too.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.list.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Watches the folders of the next start's workers.
    pub(super) fn begin(&mut self, paths: Vec<Option<PathBuf>>) {
        if let Some(list) = &self.list {
            for folder in self.folders.drain(..).flatten() {
                inotify::remove_watch(list, folder).ok();
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
        // Of one index, the older file first.
        sort_by(&mut written, |a, b| (index(a.0), b.1) < (index(b.0), a.1));
        written
    }

    /// Returns the local ranks whose files were created, in this order.
    fn order(&mut self) -> Vec<u32> {
        let mut ranks = Vec::new();
        let Some(list) = &self.list else { return ranks };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(list, &mut buffer);
        while let Ok(event) = events.next() {
            if event.file_name().is_some_and(|name| name.to_bytes() == ERROR_FILE.as_bytes()) {
                let folder = Some(event.wd());
                ranks.extend(
                    (0..).zip(&self.folders).find(|(_, known)| **known == folder).map(|(rank, _)| rank),
                );
            }
        }
        ranks
    }
}

/// Returns the watch of a worker's folder, if there is one.
fn watch(list: &OwnedFd, path: Option<&Path>) -> Option<i32> {
    inotify::add_watch(list, path?.parent()?, WatchFlags::CREATE | WatchFlags::MOVED_TO).ok()
}
