//! The name of this host.

use crate::driver::cancel::CancelToken;
use crate::driver::resolve;
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

/// Returns the name under which other hosts look for this one: the fully qualified name if the resolver knows it within
/// two seconds and before `token` is cancelled, otherwise that of [`host_name`]. As torchrun publishes it.
///
/// # Errors
/// As [`host_name`].
pub fn full_host_name(token: &CancelToken) -> io::Result<String> {
    let name = host_name()?;
    if name.contains('.') {
        return Ok(name);
    }
    let asked = name.clone();
    let full = resolve::within_limit(token, move || resolve::canonical_name(&asked));
    // A host that knows itself only as `localhost` is not found under that name elsewhere.
    Ok(full.filter(|full| is_full_name(full, &name)).unwrap_or(name))
}

fn is_full_name(full: &str, name: &str) -> bool {
    let labels = full.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
    labels.is_some_and(|domain| !domain.is_empty() && !domain.starts_with("localdomain"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_is_the_name_in_a_domain() {
        assert!(is_full_name("node-3.cluster.example", "node-3"));
        for other in ["node-3", "node-3.", "localhost", "node-33.example", "node-3.localdomain", "10.0.0.1"] {
            assert!(!is_full_name(other, "node-3"), "{other}");
        }
    }

    #[test]
    fn the_published_name_begins_with_the_name_of_the_host() {
        let (name, full) =
            (host_name().expect("a name"), full_host_name(&CancelToken::new()).expect("a name"));
        assert!(full == name || is_full_name(&full, &name), "{full} of {name}");
    }
}
