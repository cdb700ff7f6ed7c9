//! A process of a test's own, which runs what the test gives it.

use super::event_loop::becomes_readable;
use crate::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::string::ToString;

/// Runs `work` in another process, which ends with 0 if it succeeds. Panics there are told on standard error.
pub(super) fn in_a_child(work: impl FnOnce() -> Option<()>) -> libc::pid_t {
    // SAFETY: the child uses what `fork` leaves to one thread: its memory, its descriptors and the allocator, whose
    // locks the C library takes care of. It ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // Nothing is left of it when the test fails. SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // The harness of the tests keeps what is printed, and nobody would ask it here.
        set_hook(std::boxed::Box::new(|panic| {
            let text = panic.to_string() + "\n";
            // SAFETY: so many bytes are valid for reading.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
        let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok_and(|done| done.is_some());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!is_done)) }
    }
    child
}

/// Waits for a child, which is killed when it is not done after a minute; how it ended.
pub(super) fn end_of(child: libc::pid_t) -> libc::c_int {
    // SAFETY: numbers only; the descriptor is closed below.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) };
    let pidfd = libc::c_int::try_from(pidfd).expect("a descriptor");
    let in_time = becomes_readable(pidfd, Duration::from_secs(60));
    let mut status = 0;
    // SAFETY: the descriptor was opened above; the process is a child that nobody has waited for; `status` is valid for
    // writing.
    unsafe {
        libc::close(pidfd);
        if !in_time {
            libc::kill(child, libc::SIGKILL);
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(in_time, "the process is not done");
    status
}
