//! Folders and files on disk.

use super::error::{LogError, errno};
use super::{LogFolder, attempt_folder};
use crate::limits::TAIL_BYTES_MAX;
use crate::log_layout::run_folder;
use crate::log_lines::{LineOutput, LogLines};
use rendezvous_core::driver::random::random_seed;
use rendezvous_core::driver::temporary::temporary_folder;
use rendezvous_core::prelude::*;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of attempts to find a free name with a random suffix.
const TRIES: u32 = 16;

/// The folder of a run. A temporary one is removed again if it contains no files.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    /// The temporary folder around it, which belongs to the agent alone.
    temporary: Option<PathBuf>,
    /// ID of the process that created it; a forked child does not remove it.
    owner: u32,
    /// Lowest number that the next attempt may get.
    next: u64,
}

impl RunFolder {
    pub(super) fn open(run_id: &str, folder: LogFolder<'_>) -> Result<Self, LogError> {
        let in_new =
            |parent: &Path| make_new(&DirBuilder::new(), parent, |random| run_folder(run_id, random));
        let (path, temporary) = match folder {
            LogFolder::Temporary => {
                let all = temporary_folder();
                let new_folder = make_new(DirBuilder::new().mode(0o700), &all, |random| {
                    format!("torchelastic_{random:08x}")
                })?;
                (in_new(&new_folder)?, Some(new_folder))
            }
            LogFolder::In(folder) => (in_new(&make_folders(folder)?)?, None),
        };
        Ok(Self { path, temporary, owner: std::process::id(), next: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder of an attempt, with the requested number or the next free one.
    pub(super) fn make_attempt(&mut self, attempt: u64) -> Result<(u64, PathBuf), LogError> {
        // The run's folder may have been removed meanwhile, but another process must not have put a link there.
        refuse_link(&self.path)?;
        make_folders(&self.path)?;
        let mut number = attempt.max(self.next);
        loop {
            let path = self.path.join(attempt_folder(number));
            match std::fs::create_dir(&path) {
                Ok(()) => {
                    self.next = number + 1;
                    return Ok((number, path));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    refuse_link(&path)?;
                    number += 1;
                }
                Err(error) => return Err(LogError::Folder { path, errno: errno(&error) }),
            }
        }
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Some(new_folder) = self.temporary.take().filter(|_| self.owner == std::process::id()) {
            remove_bare(new_folder);
        }
    }
}

/// Removes a folder that contains only folders. Any other folder is left unchanged.
fn remove_bare(folder: PathBuf) {
    let mut folders = Vec::from([folder]);
    let mut looked_at = 0;
    while let Some(folder) = folders.get(looked_at) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries {
            match entry {
                Ok(entry) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => folders.push(entry.path()),
                _ => return,
            }
        }
        looked_at += 1;
    }
    // A file created meanwhile keeps its folder and those above it, because they cannot be removed.
    for folder in folders.into_iter().rev() {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Creates a folder with a new name.
fn make_new(builder: &DirBuilder, parent: &Path, name: impl Fn(u32) -> String) -> Result<PathBuf, LogError> {
    let mut tries = 1..=TRIES;
    loop {
        #[expect(clippy::cast_possible_truncation, reason = "some bits of it are as good as all")]
        let path = parent.join(name(random_seed() as u32));
        match builder.create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries.next().is_some() => {}
            Err(error) => return Err(LogError::Folder { path, errno: errno(&error) }),
        }
    }
}

/// Creates the folder and its missing parents. Returns its absolute path: workers may have another working directory.
fn make_folders(path: &Path) -> Result<PathBuf, LogError> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            let file = path.ancestors().find(|part| part.exists() && !part.is_dir());
            LogError::NotAFolder { path: file.unwrap_or(path).into() }
        }
        _ => LogError::Folder { path: path.into(), errno: errno(&error) },
    };
    let absolute = std::path::absolute(path).map_err(refused)?;
    std::fs::create_dir_all(&absolute).map_err(refused)?;
    Ok(absolute)
}

/// Refuses a symbolic link where only this agent makes folders and files.
fn refuse_link(path: &Path) -> Result<(), LogError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(LogError::SymbolicLink { path: path.into() }),
        _ => Ok(()),
    }
}

/// Creates one folder.
pub(super) fn make_folder(path: PathBuf) -> Result<PathBuf, LogError> {
    match std::fs::create_dir(&path) {
        Ok(()) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            refuse_link(&path)?;
            Err(LogError::Folder { path, errno: errno(&error) })
        }
        Err(error) => Err(LogError::Folder { path, errno: errno(&error) }),
    }
}

/// A file that is only appended to.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    path: PathBuf,
}

impl LogFile {
    /// Creates a new file.
    pub(super) fn create(path: PathBuf) -> Result<Self, LogError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        match options.open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                refuse_link(&path)?;
                Err(LogError::File { path, errno: errno(&error) })
            }
            Err(error) => Err(LogError::File { path, errno: errno(&error) }),
        }
    }

    /// Returns two handles of the file: one for a worker to write, one for [`tail`] to read.
    pub(super) fn shared(self) -> Result<(OwnedFd, File), LogError> {
        match self.file.try_clone() {
            Ok(file) => Ok((file.into(), self.file)),
            Err(error) => Err(LogError::File { path: self.path, errno: errno(&error) }),
        }
    }

    /// Appends to the file, if there is one. A file that refuses the data is closed: if the disk had room again later,
    /// the file would have a gap that nothing marks. Returns a note that says so.
    pub(super) fn write(file: &mut Option<Self>, bytes: &[u8]) -> Option<String> {
        let open = file.as_mut()?;
        let error = open.file.write_all(bytes).err()?;
        let path = open.path.display();
        let note = format!("rdzv: cannot write {path}: {error}; nothing more goes into this file\n");
        *file = None;
        Some(note)
    }
}

/// Returns the last lines of a file.
pub(super) fn tail(file: &File) -> Vec<String> {
    let mut lines = LogLines::unshown();
    if let Ok(end) = end_of(file) {
        lines.push(&end, &mut LineOutput::default());
    }
    lines.tail()
}

fn end_of(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    // The additional byte shows whether a line begins at the start.
    let start = length.saturating_sub(TAIL_BYTES_MAX as u64 + 1);
    let mut end = alloc::vec![0; TAIL_BYTES_MAX + 1];
    let mut count = 0;
    loop {
        match file.read_at(&mut end[count..], start + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    end.truncate(count);
    // The rest of a cut line is dropped, unless nothing else is there.
    if start > 0
        && let Some(at) = end.iter().position(|&byte| byte == b'\n').filter(|at| at + 1 < end.len())
    {
        end.drain(..=at);
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::testing::{end_of as wait_for, in_a_child};

    #[test]
    fn a_forked_child_leaves_its_parents_folder_alone() {
        let mut folder = Some(RunFolder::open("run", LogFolder::Temporary).expect("a folder"));
        let path = folder.as_ref().map(|folder| folder.path().to_path_buf()).expect("it is there");
        let child = in_a_child(|| {
            drop(folder.take());
            Some(())
        });
        assert_eq!(wait_for(child), 0);
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
