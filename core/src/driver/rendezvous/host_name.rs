//! What this host calls itself.

use alloc::string::String;
use alloc::vec;
use std::io;

/// The host's own name, as the system keeps it.
///
/// # Errors
/// That of the system.
pub fn host_name() -> io::Result<String> {
    let mut name = vec![0_u8; 256];
    // SAFETY: the buffer has the length that is named; the last byte stays 0 whatever the system writes.
    let status = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
    Ok(String::from_utf8_lossy(&name).into_owned())
}
