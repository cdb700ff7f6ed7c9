//! A pipe that tells when a worker begins to end.
//!
//! A process that ends closes its descriptors first, and is seen to have ended later: much later, if it has to wait for a
//! processor just then. Its peers see their connections to it close, fail, and may be gone before it is. So each worker
//! holds one end of a pipe, of which the guard has the other. The system closes the descriptor with the highest number
//! first; that is this one, so the guard's end hangs up before any peer can know.
//!
//! Who has a copy of the worker's end, such as a child that it has forked, keeps the pipe open; a worker that closes what
//! it did not open closes it early. So a pipe that hangs up is a reason to look at the process, and nothing else depends
//! on it.

use super::system::{check, close};
use libc::c_int;
use std::os::fd::RawFd;

/// Neither program nor library has descriptors of this number by itself: they are given out from below.
const NUMBER_MAX: RawFd = 1023;
const NUMBER_MIN: RawFd = 63;

/// The number of the worker's end in the worker; -1: there are too few for that.
pub(super) fn number() -> RawFd {
    let limit = limit();
    if limit > NUMBER_MIN { limit.wrapping_sub(1).min(NUMBER_MAX) } else { -1 }
}

/// How many descriptors this process may have.
fn limit() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX)
}

/// The two ends of a lifeline, the guard's first; both -1 where descriptors are scarce: then they are left to what cannot
/// do without them.
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
