//! How many sockets this process may have.

/// Raises the soft limit on open files to the hard one, and returns it. Nothing here uses `select`, which is what the
/// low soft limit is kept for.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return u64::MAX;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: `raised` is valid for reading.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    if done { raised.rlim_cur } else { limit.rlim_cur }
}
