//! Why workers' output cannot be taken.

use crate::streams::Stream;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why workers' output cannot be taken. Numbers are those of the system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// A folder is wanted where a file is.
    #[error("log_dir: {} is a file", path.display())]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// A folder cannot be made.
    #[error("cannot make the log folder {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        errno: i32,
    },
    /// A file cannot be made.
    #[error("cannot make the file {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        errno: i32,
    },
    /// A file cannot be read.
    #[error("cannot read the file {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Unread {
        /// The file.
        path: PathBuf,
        /// Why.
        errno: i32,
    },
    /// There is no pipe for a worker's stream.
    #[error("cannot make a pipe for the {} of local rank {local_rank}: {}", stream.name(), io::Error::from_raw_os_error(*errno))]
    Pipe {
        /// The worker.
        local_rank: u32,
        /// Its stream.
        stream: Stream,
        /// Why.
        errno: i32,
    },
    /// There is no thread, or no event loop for it.
    #[error("cannot carry the workers' output: {}", io::Error::from_raw_os_error(*errno))]
    NotCarried {
        /// Why.
        errno: i32,
    },
}

impl LogError {
    /// The folder or file that it is about.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::NotAFolder { path }
            | Self::Folder { path, .. }
            | Self::File { path, .. }
            | Self::Unread { path, .. } => Some(path),
            Self::Pipe { .. } | Self::NotCarried { .. } => None,
        }
    }

    /// The system's number.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotAFolder { .. } => libc::ENOTDIR,
            Self::Folder { errno, .. }
            | Self::File { errno, .. }
            | Self::Unread { errno, .. }
            | Self::Pipe { errno, .. }
            | Self::NotCarried { errno } => *errno,
        }
    }

    pub(super) fn not_carried(error: &io::Error) -> Self {
        Self::NotCarried { errno: errno(error) }
    }
}

/// 0 for an error that is not the system's.
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}
