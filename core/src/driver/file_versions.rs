//! Files that are read again when they have changed: tokens, certificates and keys.

use crate::driver::prelude::*;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Paths of the files. Most have one or two.
pub(in crate::driver) type Files<'a> = [Option<&'a Path>; 3];

/// What changes when a file is written or replaced: its device, number and length, and the times of the last change of
/// its contents and of its attributes. A program can set the first of these times back, but not the second. `None`: there
/// is no file.
type Version = Option<[i64; 7]>;

/// Versions of some files that were read last.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) struct FileVersions {
    read: [Version; 3],
    /// Versions whose reading failed last, for one report of each failure.
    failed: [Version; 3],
}

/// Error of files that are read again.
pub(in crate::driver) trait LoadError {
    /// Returns whether a file could not be read, so that its contents are unknown. The reason may go away while the file
    /// stays as it is: the process may have had no descriptor left.
    fn is_unread(&self) -> bool;
}

impl FileVersions {
    /// Returns the versions of files that the caller is about to read.
    pub(in crate::driver) fn of(files: Files<'_>) -> Self {
        let read = files.map(|file| file.and_then(version));
        Self { read, failed: read }
    }

    /// Calls `load` if a file has changed, and returns its result; `None` if the earlier contents hold and there is
    /// nothing to report. Contents that cannot be used are not read again until they have changed. Files that cannot be
    /// read are tried again each time, and reported once.
    pub(in crate::driver) fn reload<T, E: LoadError>(
        &mut self,
        files: Files<'_>,
        load: impl FnOnce() -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let Self { read: now, .. } = Self::of(files);
        if now == self.read {
            self.failed = now;
            return None;
        }
        let loaded = load();
        if !loaded.as_ref().is_err_and(E::is_unread) {
            self.read = now;
            return Some(loaded);
        }
        let failed = core::mem::replace(&mut self.failed, now);
        (failed != now).then_some(loaded)
    }
}

/// Reads up to `bytes_max` bytes of a regular file. A pipe in its place would block the thread, which may be the only one of a
/// server, until another process writes to it: without `O_NONBLOCK` already when it is opened.
pub(in crate::driver) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn version(file: &Path) -> Version {
    let meta = std::fs::metadata(file).ok()?;
    let [device, number, length] = [meta.dev(), meta.ino(), meta.len()].map(u64::cast_signed);
    Some([device, number, length, meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::testing::TemporaryFile;
    use std::fs;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Failed {
        Unread,
        Unusable,
    }

    impl LoadError for Failed {
        fn is_unread(&self) -> bool {
            *self == Self::Unread
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_tried_again_and_reported_once() {
        let file = TemporaryFile::new("versions-unread");
        let files: Files<'_> = [Some(file.path()), None, None];
        let mut versions = FileVersions::of(files);
        fs::write(file.path(), "new").unwrap();
        assert_eq!(versions.reload(files, || Err::<(), _>(Failed::Unread)), Some(Err(Failed::Unread)));
        assert_eq!(versions.reload(files, || Err::<(), _>(Failed::Unread)), None);
        assert_eq!(versions.reload(files, || Ok::<_, Failed>(1)), Some(Ok(1)));
        assert_eq!(versions.reload(files, || Ok::<_, Failed>(2)), None);
    }

    #[test]
    fn contents_that_cannot_be_used_are_not_read_again_until_they_change() {
        let file = TemporaryFile::new("versions-unusable");
        let files: Files<'_> = [Some(file.path()), None, None];
        let mut versions = FileVersions::of(files);
        fs::write(file.path(), "new").unwrap();
        // They could not be read before, which does not hide that they are wrong.
        assert_eq!(versions.reload(files, || Err::<(), _>(Failed::Unread)), Some(Err(Failed::Unread)));
        assert_eq!(versions.reload(files, || Err::<(), _>(Failed::Unusable)), Some(Err(Failed::Unusable)));
        assert_eq!(versions.reload(files, || Ok::<_, Failed>(1)), None);
        fs::write(file.path(), "newer").unwrap();
        assert_eq!(versions.reload(files, || Ok::<_, Failed>(1)), Some(Ok(1)));
    }

    #[test]
    fn a_pipe_or_a_folder_in_place_of_a_file_is_refused_at_once() {
        let pipe = TemporaryFile::new("versions-pipe");
        let name = std::ffi::CString::new(pipe.path().to_str().unwrap()).unwrap();
        // SAFETY: a name that ends with NUL.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [pipe.path(), &std::env::temp_dir()] {
            assert_eq!(read(path, 1).unwrap_err().to_string(), "it is not a regular file");
        }
    }

    #[test]
    fn a_time_that_is_set_back_hides_no_change() {
        let file = TemporaryFile::new("versions-times");
        fs::write(file.path(), "old").unwrap();
        let files: Files<'_> = [Some(file.path()), None, None];
        let mut versions = FileVersions::of(files);
        let before = fs::metadata(file.path()).unwrap();
        let is_changed =
            |meta: &fs::Metadata| (meta.ctime(), meta.ctime_nsec()) != (before.ctime(), before.ctime_nsec());
        // The clock of the file system takes a few milliseconds for a step.
        while !is_changed(&fs::metadata(file.path()).unwrap()) {
            fs::write(file.path(), "new").unwrap();
            let written = fs::File::options().write(true).open(file.path()).unwrap();
            written.set_modified(before.modified().unwrap()).unwrap();
        }
        assert_eq!(versions.reload(files, || Ok::<_, Failed>(1)), Some(Ok(1)));
    }
}
