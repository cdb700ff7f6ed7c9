//! The shared object as it is shipped, and its twin for the tests of the panic guards.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `librendezvous.so` of the release profile.
pub(crate) fn shipped() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build(&["--release"], &crate::target_folder()))
}

/// `librendezvous.so` of the dev profile, with the functions that provoke panics.
pub(crate) fn with_faults() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    // A folder of its own: the plain library must not be replaced by this one, not even for a moment.
    LIBRARY.get_or_init(|| {
        build(&["--features=fault-injection"], &crate::target_folder().join("fault-injection"))
    })
}

/// Only cargo knows whether the library that lies about is that of today's sources. Several tests may ask at a time:
/// cargo lets one after the other in, and with nothing to do it is quick.
fn build(arguments: &[&str], target: &Path) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package=rendezvous-ffi", "--lib", "--message-format=json"])
        .args(arguments)
        .arg("--target-dir")
        .arg(target)
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
        .find(|path| path.file_name().is_some_and(|name| name == "librendezvous.so"))
        .unwrap_or_else(|| panic!("the library does not build: {}", String::from_utf8_lossy(&output.stderr)))
}
