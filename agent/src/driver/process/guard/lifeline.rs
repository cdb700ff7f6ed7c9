//! A pipe that reports when a worker begins to end.
//!
//! A process that ends closes its descriptors first, and is reported as ended later: much later, if it has to wait for
//! a CPU just then. Its peers see their connections to it close, fail, and may have ended before it. So each worker
//! holds one end of a pipe, and the guard holds the other. The kernel closes the descriptor with the highest number
//! first. That is this one, so the guard's end hangs up before any peer can notice.
//!
//! A process with a copy of the worker's end, such as a forked child, keeps the pipe open. A worker that closes
//! descriptors that it did not open closes it early. So a hang-up is only a reason to inspect the process.

use super::system::{check, close};
use libc::c_int;
use std::os::fd::RawFd;

/// Programs and libraries do not get descriptors of this number: the kernel allocates the lowest free number.
const NUMBER_MAX: RawFd = 1023;
const NUMBER_MIN: RawFd = 63;

/// Returns the number of the worker's end in the worker, or -1 if the descriptor limit is too low.
pub(super) fn number() -> RawFd {
    let limit = limit();
    if limit > NUMBER_MIN { limit.wrapping_sub(1).min(NUMBER_MAX) } else { -1 }
}

/// Returns the descriptor limit of this process.
fn limit() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX)
}

/// Opens a lifeline and returns its two ends, the guard's first. Both are -1 if descriptors are scarce: they are left
/// to what needs them.
pub(super) fn open() -> [RawFd; 2] {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: `ends` is valid for writing.
    if check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }).is_err() {
        return [-1; 2];
    }
    if ends.into_iter().any(|end| end > limit() / 2) {
        ends.into_iter().for_each(close);
        return [-1; 2];
    }
    ends
}
