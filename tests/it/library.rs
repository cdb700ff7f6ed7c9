//! The shared object as it is shipped, and the one for the tests of the panic guards.

use crate::process::run;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// For cargo and the linker, where the library has not been built yet.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(600);

/// `librendezvous.so` of the release profile.
pub(crate) fn shipped() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(build)
}

/// Returns `librendezvous_abi.so`, with the functions that provoke panics. These tests depend on its package, so cargo
/// has built it together with them.
pub(crate) fn with_faults() -> PathBuf {
    crate::profile_folder().join("deps/librendezvous_abi.so")
}

/// Links the shared object from the archive as `make lib` does, once for all tests that ask at a time.
fn build() -> PathBuf {
    let archive = build_archive();
    let folder = archive.parent().expect("a folder");
    let lock = File::create(crate::target_folder().join("tmp/library.lock")).expect("cargo makes the folder");
    lock.lock().expect("a lock");
    let mut link = Command::new(crate::repository().join("ffi/link.sh"));
    run(link.arg(folder), BUILD_TIMEOUT).or_fail("ffi/link.sh");
    folder.join("librendezvous.so")
}

/// Only cargo knows whether the archive that lies about is that of today's sources. Several tests may ask at a time:
/// cargo lets one after the other in, and with nothing to do it is quick.
fn build_archive() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package=rendezvous-ffi", "--lib", "--message-format=json"])
        .arg("--target-dir")
        .arg(crate::target_folder())
        .current_dir(crate::repository())
        .output()
        .expect("cargo runs");
    let messages = String::from_utf8_lossy(&output.stdout);
    let files = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["filenames"].as_array().cloned()
    });
    let mut paths = files.flatten().filter_map(|file| file.as_str().map(PathBuf::from));
    paths
        .find(|path| path.file_name().is_some_and(|name| name == "librendezvous.a"))
        .unwrap_or_else(|| panic!("the library does not build: {}", String::from_utf8_lossy(&output.stderr)))
}
