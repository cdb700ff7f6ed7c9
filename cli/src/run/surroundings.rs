//! What the host says: variables of torchrun's that are no flags, and files of the system.

use std::ffi::OsString;
use std::io;

/// The one place where `rdzv run` looks at the environment by itself.
#[expect(clippy::disallowed_methods, reason = "this is the command line")]
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The same, where it is text.
pub(super) fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// A file of the system that is short; `None` where there is none.
pub(super) fn system_file(path: &str) -> Option<String> {
    let read = |path: &str| -> io::Result<String> { std::fs::read_to_string(path) };
    read(path).ok()
}
