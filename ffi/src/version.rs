//! Versions.

use crate::guard;
use std::ffi::{CStr, c_char};

/// Version of the ABI that this header describes. It increases by one with each change that affects an old
/// program; additions do not increase it. Header and loaded library are compatible if it equals
/// `rdzv_abi_version()`.
pub const RDZV_ABI_VERSION: u32 = 2;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version has no NUL in it"),
};

/// Returns the ABI version of the loaded library.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_abi_version() -> u32 {
    guard::quiet(0, || RDZV_ABI_VERSION)
}

/// Returns the release of the loaded library, for example `0.2.0`. The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_version() -> *const c_char {
    guard::quiet(c"".as_ptr(), || VERSION.as_ptr())
}
