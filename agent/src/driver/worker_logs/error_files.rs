//! Error files, read and handed on. Whatever a worker leaves in its place, nobody waits for it.

use super::error::{LogError, errno};
use crate::error_file::{ErrorFile, ErrorFileNote, NewError, encode, parse, with_error_code};
use alloc::string::ToString;
use alloc::vec::Vec;
use rendezvous_core::limits::ERROR_FILE_BYTES_MAX;
use rendezvous_core::time::Duration;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What a worker that has ended left at this path.
#[must_use]
pub fn read_error_file(path: &Path) -> ErrorFile {
    let content = match contents(path) {
        Ok(bytes) => bytes.ok_or(ErrorFileNote::NotAFile).and_then(|bytes| parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ErrorFile::Absent,
        Err(error) => Err(ErrorFileNote::Unreadable { errno: errno(&error) }),
    };
    ErrorFile::Read { path: path.to_string_lossy().to_string(), content }
}

/// How long ago a worker wrote its error file, to a tick of the system's clock; `None` if there is nothing in it.
pub fn error_file_age(path: &Path) -> Option<Duration> {
    let found = fs::metadata(path).ok().filter(|found| found.is_file() && found.len() > 0)?;
    Some(found.modified().ok()?.elapsed().unwrap_or_default())
}

/// Writes a worker's error file to where the agent itself is to leave its error, with the worker's exit code in it. What
/// is there is replaced, whole or not at all.
///
/// # Errors
/// The worker's cannot be read, or the agent's not written.
pub fn hand_on_error_file(from: &Path, to: &Path, exit_code: i32) -> Result<(), LogError> {
    let unread = |errno| LogError::Unread { path: from.into(), errno };
    let bytes = contents(from).map_err(|error| unread(errno(&error)))?.ok_or_else(|| unread(libc::EINVAL))?;
    replace(to, &with_error_code(&bytes, exit_code))
}

/// Writes the error of this process, which is a worker, to where its agent looks for it. What is there is replaced, whole
/// or not at all.
///
/// # Errors
/// It cannot be written.
pub fn write_error_file(to: &Path, message: &str, callstack: &str) -> Result<(), LogError> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    replace(to, &encode(&NewError { message, callstack, extra: &[], timestamp_s: since_1970.as_secs() }))
}

fn replace(to: &Path, bytes: &[u8]) -> Result<(), LogError> {
    let mut draft = OsString::from(to);
    draft.push(".part");
    let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, to));
    written.map_err(|error| {
        drop(fs::remove_file(&draft));
        LogError::File { path: to.into(), errno: errno(&error) }
    })
}

/// What the file holds, to just over the limit; `None` when it is no file.
fn contents(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A pipe without a writer does not block then.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(ERROR_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
