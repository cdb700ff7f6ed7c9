//! Errors of the workers' output.

use crate::streams::Stream;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Error of the workers' output. `errno` is the error number of the system call.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// A file exists where a folder is needed.
    #[error("log_dir: {} is a file", path.display())]
    NotAFolder {
        /// Path of the file.
        path: PathBuf,
    },
    /// A symbolic link is where the agent makes a folder or a file of its own. It is not followed.
    #[error(
        "{} is a symbolic link where a new log folder or file belongs; it is not followed: remove it, or use a log_dir \
         that only this user can write to",
        path.display()
    )]
    SymbolicLink {
        /// Path of the link.
        path: PathBuf,
    },
    /// A folder cannot be created.
    #[error("cannot make the log folder {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Error number.
        errno: i32,
    },
    /// A file cannot be created or written.
    #[error("cannot make the file {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error number.
        errno: i32,
    },
    /// A file cannot be read.
    #[error("cannot read the file {}: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Unread {
        /// Path of the file.
        path: PathBuf,
        /// Error number.
        errno: i32,
    },
    /// The pipe for a worker's stream cannot be created.
    #[error("cannot make a pipe for the {} of local rank {local_rank}: {}", stream.name(), io::Error::from_raw_os_error(*errno))]
    Pipe {
        /// Local rank of the worker.
        local_rank: u32,
        /// The stream.
        stream: Stream,
        /// Error number.
        errno: i32,
    },
    /// The thread or its event loop cannot be created.
    #[error("cannot start the thread for the workers' output: {}", io::Error::from_raw_os_error(*errno))]
    NotCarried {
        /// Error number.
        errno: i32,
    },
}

impl LogError {
    /// Returns the path of the folder or file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::NotAFolder { path }
            | Self::SymbolicLink { path }
            | Self::Folder { path, .. }
            | Self::File { path, .. }
            | Self::Unread { path, .. } => Some(path),
            Self::Pipe { .. } | Self::NotCarried { .. } => None,
        }
    }

    /// Returns the error number of the system call.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotAFolder { .. } => libc::ENOTDIR,
            Self::SymbolicLink { .. } => libc::ELOOP,
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

/// Returns the error number, or 0 if the error has none.
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}
