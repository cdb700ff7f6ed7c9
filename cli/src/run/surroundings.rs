//! Environment variables of torchrun that are no flags.

use std::ffi::OsString;

/// The one place where `rdzv run` looks at the environment by itself.
#[expect(clippy::disallowed_methods, reason = "this is the command line")]
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The same, where it is text.
pub(super) fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}
