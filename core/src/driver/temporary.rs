//! Folder for temporary files.

use rustix::fs::{Access, access};
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
    folder.is_dir() && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
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
