//! Folder for temporary files.

use alloc::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folder that every POSIX system has for temporary files.
const FALLBACK: &str = concat!("/", "tmp");

/// Returns the absolute path of the folder for temporary files. It is the one that `TMPDIR` names if that is a folder
/// that this process may write to, and the system's otherwise, as in Python. A job's environment often names a folder
/// of another host.
pub fn temporary_folder() -> PathBuf {
    let named = std::env::temp_dir();
    let folder = if is_usable(&named) || !is_usable(FALLBACK.as_ref()) { named } else { FALLBACK.into() };
    std::path::absolute(&folder).unwrap_or(folder)
}

fn is_usable(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` ends with a zero and lives during the call.
    folder.is_dir() && unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_is_usable() {
        assert!(is_usable(&std::env::temp_dir()));
        for path in ["", "/nowhere/at/all", "/proc/version"] {
            assert!(!is_usable(path.as_ref()), "{path}");
        }
    }
}
