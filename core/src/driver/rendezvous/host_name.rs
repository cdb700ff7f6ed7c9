//! The name of this host.

use alloc::string::String;
use alloc::vec;
use std::io;

/// Returns the host's name as `gethostname` gives it.
///
/// # Errors
/// The error of the system call.
pub fn host_name() -> io::Result<String> {
    let mut name = vec![0_u8; 256];
    // SAFETY: the buffer is one byte longer than the length given, so the last byte stays 0.
    let status = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
    Ok(String::from_utf8_lossy(&name).into_owned())
}
