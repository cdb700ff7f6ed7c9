//! Search for programs, and information about processes from `/proc`.

use super::guard::stat::Stat;
use rendezvous_core::driver::prelude::*;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Error of searching for a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// No file of that name exists in any of these places.
    #[error("there is no program {name:?}; looked at {}", Places(.looked_at))]
    NotFound {
        /// Name that was searched for.
        name: PathBuf,
        /// Paths that were tried.
        looked_at: Vec<PathBuf>,
    },
    /// The file exists, but is not executable.
    #[error("{} may not be run", .0.display())]
    NotExecutable(PathBuf),
    /// The path is a directory.
    #[error("{} is a directory", .0.display())]
    IsDirectory(PathBuf),
}

struct Places<'a>(&'a [PathBuf]);

impl core::fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing: there is no search path");
        }
        self.0.iter().enumerate().try_for_each(|(number, index)| {
            write!(f, "{}{}", if number == 0 { "" } else { ", " }, index.display())
        })
    }
}

/// Finds a program like `execvp`. A name with a slash is a path. Any other name is searched for in the folders of
/// `path_env`, which are separated by colons; an empty one is the current directory. A file that cannot be executed is
/// skipped, and reported if no program is found.
///
/// The returned path is absolute, so that a worker that starts in another directory runs the same file.
///
/// # Errors
/// See [`FindError`].
pub fn find_program(name: &OsStr, path_env: Option<&OsStr>) -> Result<PathBuf, FindError> {
    let not_found = |looked_at| FindError::NotFound { name: name.into(), looked_at };
    if name.is_empty() {
        return Err(not_found(Vec::new()));
    }
    if name.as_bytes().contains(&b'/') {
        let path = Path::new(name);
        return match look(path) {
            Found::Program => Ok(absolute(path)),
            Found::Nothing => Err(not_found(Vec::from([path.into()]))),
            Found::Unusable(error) => Err(error),
        };
    }
    let mut looked_at = Vec::new();
    let mut unusable = None;
    for folder in path_env.unwrap_or_default().as_bytes().split(|character| *character == b':') {
        if path_env.is_none() {
            break;
        }
        let folder = if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) };
        let path = folder.join(name);
        match look(&path) {
            Found::Program => return Ok(absolute(&path)),
            Found::Nothing => {}
            Found::Unusable(error) => unusable = unusable.or(Some(error)),
        }
        looked_at.push(path);
    }
    Err(unusable.unwrap_or_else(|| not_found(looked_at)))
}

fn absolute(path: &Path) -> PathBuf {
    // This fails only if the current directory is unknown. The relative path works from there.
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

enum Found {
    Program,
    Nothing,
    Unusable(FindError),
}

fn look(path: &Path) -> Found {
    let Ok(is_directory) = path.metadata().map(|of| of.is_dir()) else { return Found::Nothing };
    if is_directory {
        return Found::Unusable(FindError::IsDirectory(path.into()));
    }
    let is_executable = accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    if is_executable { Found::Program } else { Found::Unusable(FindError::NotExecutable(path.into())) }
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs or is ready to run.
    Running,
    /// It waits for an event and can be interrupted.
    Sleeping,
    /// It waits in the kernel, where no signal reaches it: state D.
    Uninterruptible,
    /// It was stopped by a signal or a debugger.
    Stopped,
    /// It has ended and was not reaped.
    Ended,
    /// Another state letter of proc(5).
    Other(u8),
}

fn stat(pid: u32) -> io::Result<Stat> {
    Stat::of(pid.cast_signed()).map_err(|number| match number {
        // It ended between opening and reading the file.
        libc::ESRCH => io::ErrorKind::NotFound.into(),
        number => io::Error::from_raw_os_error(number),
    })
}

/// Returns the parent of a process; 0 for the first process, and for one whose parent is outside of its PID namespace.
///
/// # Errors
/// Like [`process_state`].
pub(in crate::driver) fn parent_of(pid: u32) -> io::Result<u32> {
    Ok(stat(pid)?.parent.cast_unsigned())
}

/// Returns the command line of a process in printable characters, or its name in brackets if it has none. Long ones are
/// cut.
pub(in crate::driver) fn command_of(pid: u32) -> String {
    let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let mut command = file("cmdline");
    while command.pop_if(|last| *last == 0).is_some() {}
    let command =
        if command.is_empty() { [b"[", file("comm").trim_ascii_end(), b"]"].concat() } else { command };
    let text = String::from_utf8_lossy(&command).into_owned();
    let is_long = text.chars().count() > COMMAND_CHARS_MAX;
    let printable = |character: char| if character.is_control() { ' ' } else { character };
    let text: String = text.chars().take(COMMAND_CHARS_MAX).map(printable).collect();
    if is_long { text + "..." } else { text }
}

const COMMAND_CHARS_MAX: usize = 80;

/// Returns the state of a process.
///
/// # Errors
/// `NotFound` if there is no such process; otherwise the error of reading `/proc`.
pub fn process_state(pid: u32) -> io::Result<ProcessState> {
    Ok(match stat(pid)?.state {
        b'R' => ProcessState::Running,
        b'S' | b'I' => ProcessState::Sleeping,
        b'D' => ProcessState::Uninterruptible,
        b'T' | b't' => ProcessState::Stopped,
        b'Z' | b'X' => ProcessState::Ended,
        other => ProcessState::Other(other),
    })
}
