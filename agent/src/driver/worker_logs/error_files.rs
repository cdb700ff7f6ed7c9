//! Reading and forwarding of error files. Whatever file type a worker leaves there, reading it does not block.

use super::error::{LogError, errno};
use crate::error_file::{ErrorFile, ErrorFileNote, NewError, encode, parse, with_error_code};
use crate::limits::ERROR_FILE_BYTES_MAX;
use rendezvous_core::prelude::*;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads the error file of a worker that has ended.
pub fn read_error_file(path: &Path) -> ErrorFile {
    let content = match contents(path) {
        Ok(bytes) => bytes.ok_or(ErrorFileNote::NotAFile).and_then(|bytes| parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ErrorFile::Absent,
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Err(ErrorFileNote::SymbolicLink),
        Err(error) => Err(ErrorFileNote::Unreadable { errno: errno(&error) }),
    };
    ErrorFile::Read { path: path.to_string_lossy().to_string(), content }
}

/// Returns the age of a worker's error file, in the resolution of file times; `None` if it is missing or empty.
pub fn error_file_age(path: &Path) -> Option<Duration> {
    let found = fs::symlink_metadata(path).ok().filter(|found| found.is_file() && found.len() > 0)?;
    Some(found.modified().ok()?.elapsed().unwrap_or_default())
}

/// Copies a worker's error file to the path of the agent's own error file, with the worker's exit code added. An
/// existing file is replaced atomically.
///
/// # Errors
/// The worker's file cannot be read, or the agent's file cannot be written.
pub fn hand_on_error_file(from: &Path, to: &Path, exit_code: i32) -> Result<(), LogError> {
    let unread = |errno| LogError::Unread { path: from.into(), errno };
    let bytes = contents(from).map_err(|error| unread(errno(&error)))?.ok_or_else(|| unread(libc::EINVAL))?;
    replace(to, &with_error_code(&bytes, exit_code))
}

/// Writes the error of this process, which is a worker, to the path at which its agent expects it. An existing file is
/// replaced atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write_error_file(to: &Path, message: &str, callstack: &str) -> Result<(), LogError> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    replace(to, &encode(&NewError { message, callstack, extra: &[], timestamp_s: since_1970.as_secs() }))
}

fn replace(to: &Path, bytes: &[u8]) -> Result<(), LogError> {
    let mut draft = OsString::from(to);
    draft.push(".part");
    // A process that was killed may have left one. What another process puts there meanwhile is not written to.
    drop(fs::remove_file(&draft));
    let new = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(&draft);
    let written = new.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&draft, to));
    written.map_err(|error| {
        drop(fs::remove_file(&draft));
        LogError::File { path: to.into(), errno: errno(&error) }
    })
}

/// Reads the file, up to one byte over the limit; `None` if it is not a regular file. A symbolic link is not followed:
/// what a worker may not read must not appear in the agent's reports.
fn contents(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // With the first flag, opening a pipe without a writer does not block.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(ERROR_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
