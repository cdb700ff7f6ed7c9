//! System calls of the guard that need more than a line. Nothing here allocates or takes a lock.

use core::ffi::CStr;
use libc::{c_int, c_long, pid_t};
use std::os::fd::RawFd;

/// Returns the error number of the last system call.
pub(crate) fn errno() -> c_int {
    // SAFETY: the address is that of this thread's error number.
    unsafe { *libc::__errno_location() }
}

/// Returns the result of a system call, or its error number.
pub(crate) fn check(returned: c_int) -> Result<c_int, c_int> {
    if returned < 0 { Err(errno()) } else { Ok(returned) }
}

/// Like [`check`], for a system call without a wrapper in the C library.
fn narrow(returned: c_long) -> Result<c_int, c_int> {
    check(c_int::try_from(returned).unwrap_or(c_int::MAX))
}

/// Closes a descriptor.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: passes numbers only. The caller owns the descriptor, or knows that it has no owner.
    unsafe { libc::close(fd) };
}

/// Forks without the C library. Handlers of `pthread_atfork` are not called, and must not be called in a process that
/// has lost the program's threads.
pub(crate) fn fork() -> Result<pid_t, c_int> {
    let (flags, none) = (c_long::from(libc::SIGCHLD), 0_usize);
    // SAFETY: the child has a copy of the memory, as after any fork, and continues on its copy of this stack.
    narrow(unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) })
}

/// Reads one signal from a signalfd. The kernel keeps at most one of each number.
pub(crate) fn take_signal(fd: RawFd) {
    let mut signalled = core::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
    // SAFETY: the buffer has room for one record, which is not used.
    unsafe { libc::read(fd, signalled.as_mut_ptr().cast(), size_of::<libc::signalfd_siginfo>()) };
}

/// Opens a pidfd, which is readable when the process has ended. `ENOSYS` on systems without pidfds.
pub(crate) fn open_pidfd(pid: pid_t) -> Result<RawFd, c_int> {
    // SAFETY: passes numbers only. The kernel sets close-on-exec on the descriptor.
    narrow(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Returns the monotonic clock in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Returns the time since boot in hundredths of a second, the unit of `/proc/PID/stat`.
pub(crate) fn since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let hundredths = now.tv_nsec.cast_unsigned() / 10_000_000;
    now.tv_sec.cast_unsigned().wrapping_mul(100).wrapping_add(hundredths)
}

/// Result of `waitid`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    pub(crate) pid: pid_t,
    /// `CLD_EXITED`, `CLD_KILLED` or `CLD_DUMPED`.
    pub(crate) how: c_int,
    /// The exit code or the signal.
    pub(crate) value: c_int,
}

/// Calls `waitid` for ended children. `None` if there are children, but none has ended.
///
/// # Errors
/// `ECHILD` if there are no children.
pub(crate) fn wait(which: libc::idtype_t, id: libc::id_t, flags: c_int) -> Result<Option<Waited>, c_int> {
    // SAFETY: a record of zeros is valid.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    loop {
        // SAFETY: `info` is valid for writing.
        match check(unsafe { libc::waitid(which, id, &raw mut info, libc::WEXITED | flags) }) {
            Ok(_) => break,
            Err(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: `waitid` filled it in, or left the zeros.
    let (pid, value) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some(Waited { pid, how: info.si_code, value }))
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) {
    // SAFETY: the caller owns all descriptors from there on, and uses none of them any more.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if closed == 0 {
        return;
    }
    // Without `close_range`, descriptors are listed from `/proc`. Closing some may shift the listing, so it is repeated
    // until nothing is left to close.
    loop {
        let mut closed_any = false;
        let listed = each_number(c"/proc/self/fd", &mut |folder, number| {
            // The descriptor of the listing is closed last.
            if number >= first && number != folder {
                // SAFETY: as above.
                closed_any |= unsafe { libc::close(number) } == 0;
            }
        });
        if listed.is_err() {
            // Closing a number that is not open fails without consequences.
            (first..FDS_WITHOUT_PROC).for_each(close);
            return;
        }
        if !closed_any {
            return;
        }
    }
}

/// Closes the descriptors from `first` to `last`. Does nothing for an empty range.
pub(crate) fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: as in `close_from`.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed != 0 {
        (first..=last).for_each(close);
    }
}

/// End of the range that is closed if `/proc` is not readable.
const FDS_WITHOUT_PROC: RawFd = 65_536;

/// Calls `found` with each name in a folder that is a number, and with the folder's own descriptor.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn each_number(folder: &CStr, found: &mut dyn FnMut(RawFd, c_int)) -> Result<(), c_int> {
    let fd = open(libc::AT_FDCWD, folder, libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut buffer = Entries([0; 2048]);
    let ended = loop {
        // SAFETY: `buffer` is valid for writing that many bytes.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.0.as_mut_ptr(), buffer.0.len()) };
        match narrow(read) {
            Ok(0) => break Ok(()),
            Ok(read) => {
                let mut rest = buffer.0.get(..read.cast_unsigned() as usize).unwrap_or(&[]);
                while let Some((entry, following)) = next_entry(rest) {
                    if let Some(number) = decimal(entry) {
                        found(fd, number);
                    }
                    rest = following;
                }
            }
            Err(error) => break Err(error),
        }
    };
    close(fd);
    ended
}

/// Buffer for directory entries, with their alignment.
#[repr(C, align(8))]
struct Entries([u8; 2048]);

/// Returns the name of the first entry and the remaining entries. An entry consists of its inode (8 bytes), its offset
/// (8), its length (2), its type (1), its name and a zero.
fn next_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes([*entries.get(16)?, *entries.get(17)?]));
    let name = entries.get(19..length)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((name.get(..end)?, entries.get(length..)?))
}

/// Parses a text that consists of a decimal number.
pub(crate) fn decimal(text: &[u8]) -> Option<c_int> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_i32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i32::from(digit.wrapping_sub(b'0')))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Opens a file with close-on-exec.
pub(crate) fn open(folder: RawFd, path: &CStr, flags: c_int) -> Result<RawFd, c_int> {
    loop {
        // SAFETY: the path is null-terminated.
        match check(unsafe { libc::openat(folder, path.as_ptr(), flags | libc::O_CLOEXEC) }) {
            Err(libc::EINTR) => {}
            opened => return opened,
        }
    }
}

/// Reads once, at most the length of the buffer.
pub(crate) fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize, c_int> {
    loop {
        // SAFETY: `buffer` is valid for writing that many bytes.
        let taken = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(taken) {
            Ok(taken) => return Ok(taken),
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
}

/// A short path, built without allocation.
#[derive(Debug)]
pub(crate) struct ShortPath {
    text: [u8; 64],
    length: usize,
}

impl ShortPath {
    pub(crate) const fn new() -> Self {
        Self { text: [0; 64], length: 0 }
    }

    /// Appends a text. What does not fit is left out; the last byte stays zero.
    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        for byte in text {
            if let Some(slot) = self.text.get_mut(self.length).filter(|_| self.length < 63) {
                *slot = *byte;
                self.length = self.length.wrapping_add(1);
            }
        }
        self
    }

    pub(crate) fn number(self, number: pid_t) -> Self {
        let mut digits = [0_u8; 10];
        let (mut at, mut rest) = (digits.len(), number.unsigned_abs());
        loop {
            at = at.saturating_sub(1);
            if let Some(slot) = digits.get_mut(at) {
                *slot = b'0'.wrapping_add((rest % 10).to_le_bytes()[0]);
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(digits.get(at..).unwrap_or(&[]))
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.text).unwrap_or(c"")
    }
}
