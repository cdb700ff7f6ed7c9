//! Helpers of the driver tests: temporary files, child processes, and waiting for a descriptor. The tests of the
//! other crates include this file, so it uses nothing of its own crate.

#![allow(dead_code, reason = "not every crate uses all of it")]

use core::time::Duration;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::{Path, PathBuf};
use std::string::ToString;

/// Runs `work` in a child process, which exits with 0 if it succeeds. The child prints panics on standard error.
pub(crate) fn in_a_child(work: impl FnOnce() -> Option<()>) -> libc::pid_t {
    // SAFETY: the child uses what `fork` leaves to one thread: its memory, its descriptors and the allocator, whose
    // locks the C library handles. It exits without running any code of the parent.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // Kills the child when the test fails. SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // The test harness captures what is printed, and would not print it in the child.
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

/// Waits for a child and returns its exit status. A child that runs for more than a minute is killed.
pub(crate) fn end_of(child: libc::pid_t) -> libc::c_int {
    // SAFETY: numbers only; the descriptor is closed below.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) };
    let pidfd = libc::c_int::try_from(pidfd).expect("a descriptor");
    let in_time = becomes_readable(pidfd, Duration::from_secs(60));
    let mut status = 0;
    // SAFETY: the descriptor was opened above; the process is a child that has not been waited for; `status` is valid
    // for writing.
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

/// Environment variable of the process that [`is_alone`] starts.
const ALONE: &str = "RDZV_TEST_IS_ALONE";

/// Returns whether the calling test is the only one in its process, for tests that count what their process has. If
/// it is not, runs the test again in a process of its own, which must succeed, and returns false.
pub(crate) fn is_alone() -> bool {
    let is_set = |name, value: &str| std::env::var_os(name).is_some_and(|set| set == value);
    if is_set(ALONE, "1") || is_set("NEXTEST_EXECUTION_MODE", "process-per-test") {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("threads of tests are named after them");
    let program = std::env::current_exe().expect("a program");
    let mut run = std::process::Command::new(program);
    let output = run.args(["--exact", test]).env(ALONE, "1").output().expect("it runs");
    let text = std::string::String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Takes all descriptors that are left to the process, of which it may have no more than 256 from now on.
pub(crate) fn take_descriptors() -> std::vec::Vec<std::fs::File> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one valid limit to write to and to read from.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = 256;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    core::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// Returns whether a descriptor becomes readable within `span`.
pub(crate) fn becomes_readable(fd: RawFd, span: Duration) -> bool {
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let millis = i32::try_from(span.as_millis()).expect("a short span");
    // SAFETY: one valid `pollfd`.
    unsafe { libc::poll(&raw mut watched, 1, millis) == 1 }
}

/// Temporary file of one test, deleted on drop.
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(std::format!("rdzv-{}-{test}", std::process::id()));
        std::fs::remove_file(&path).ok();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Folder that is removed at the end of the test.
pub(crate) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(std::format!("rdzv-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
