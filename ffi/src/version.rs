//! Versions.

use crate::guard;
use std::ffi::{CStr, c_char};

/// The version of the ABI that this header describes. It grows by one with each change that an old program
/// would notice. Where it equals `rdzv_abi_version()` of the library that was loaded, the two fit;
/// additions do not raise it.
pub const RDZV_ABI_VERSION: u32 = 1;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version has no NUL in it"),
};

/// The ABI version of the library that was loaded.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_abi_version() -> u32 {
    guard::quiet(0, || RDZV_ABI_VERSION)
}

/// The release of the library that was loaded, such as `0.1.0`. Static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_version() -> *const c_char {
    guard::quiet(c"".as_ptr(), || VERSION.as_ptr())
}
