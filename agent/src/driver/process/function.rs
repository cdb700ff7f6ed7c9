//! Workers that are functions of the agent's own program.

use super::guard::packet::{Plain, pointer};
use super::guard::system::errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt;
use libc::{c_char, off_t};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A function that can be a worker. It gets its call and a place for what it returns, and gives the exit code, of which
/// the system keeps the lowest eight bits.
///
/// It runs in a process of its own, which was forked from the guard, which was forked from the agent's program when
/// [`Guard::start`](super::Guard::start) was called. So:
/// - it sees the program's memory as it was then; what was done since is not there;
/// - of the program's threads there is none but its own. A lock that another thread held then is held for ever. The
///   allocator is taken care of;
/// - of the program's descriptors there are standard input, output and error, no others; every signal has its default
///   action;
/// - its environment is the one that was asked for, in the C library and so in `std::env`;
/// - when it returns, the process ends at once: no destructors, nothing that was to run at exit, and what it has printed
///   but not flushed is gone;
/// - a panic is the exit code [`PANICKED`], and nothing is returned;
/// - what it returns arrives whole or not at all. If it does not, although the exit code is 0, that becomes
///   [`NOT_RETURNED`].
pub type Function = dyn Fn(&Call<'_>, &mut Vec<u8>) -> i32 + Send + Sync;

/// The exit code of a function that panicked.
pub const PANICKED: i32 = 101;

/// The exit code of a function that succeeded and whose bytes could not be handed over.
pub const NOT_RETURNED: i32 = 102;

/// A function in the options of a guard.
#[derive(Clone)]
pub struct Registered(pub(super) Arc<Function>);

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registered")
    }
}

impl Registered {
    /// A function that workers may be.
    pub fn new(function: impl Fn(&Call<'_>, &mut Vec<u8>) -> i32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

/// What a function is told.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    worker: u32,
    arguments: Vec<&'a CStr>,
}

impl<'a> Call<'a> {
    /// The number under which it was started.
    #[must_use]
    pub const fn worker(&self) -> u32 {
        self.worker
    }

    /// Its arguments, all of them.
    #[must_use]
    pub fn arguments(&self) -> &[&'a CStr] {
        &self.arguments
    }

    /// # Safety
    /// The list ends with a null, and it and its texts stay for `'a`.
    pub(super) unsafe fn new(worker: u32, mut list: *const *const c_char) -> Self {
        let mut arguments = Vec::new();
        // SAFETY: the caller's promise.
        unsafe {
            while !(*list).is_null() {
                arguments.push(CStr::from_ptr(*list));
                list = list.add(1);
            }
        }
        Self { worker, arguments }
    }

    /// Calls the function in a process that is there for nothing else, and ends it. What the function returns goes into the
    /// file `returned`, `bytes_max` bytes at most.
    pub(super) fn run(&self, function: &Function, returned: RawFd, bytes_max: usize) -> ! {
        let (mut bytes, file) = (Vec::new(), identity(returned));
        let code = catch_unwind(AssertUnwindSafe(|| function(self, &mut bytes)));
        // The function may have closed the descriptor, and opened another file under its number.
        let is_open = file.is_some() && identity(returned) == file;
        let is_returned = match code {
            Ok(_) if is_open => hand_over(returned, &bytes, bytes_max),
            Ok(_) => bytes.is_empty(),
            Err(_) => true,
        };
        let code = match code {
            // The system keeps the lowest eight bits.
            Ok(code) if code & 0xff == 0 && !is_returned => NOT_RETURNED,
            Ok(code) => code,
            Err(_) => PANICKED,
        };
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) }
    }
}

/// Stands in the file before what a function returned. It is written last: a process that dies before that has returned
/// nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnedHead {
    /// One of [`outcome`]; 0 as long as nothing was returned.
    pub(super) outcome: u64,
    /// The number of bytes, or the error of the system.
    pub(super) value: u64,
}

/// What became of the bytes.
pub(super) mod outcome {
    pub(crate) const WHOLE: u64 = 1;
    pub(crate) const TOO_LONG: u64 = 2;
    pub(crate) const FAILED: u64 = 3;
}

// SAFETY: two numbers of one size.
unsafe impl Plain for ReturnedHead {}

/// Which file is open under this number, by its device and inode.
fn identity(file: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: room for one status, which is filled on success.
    unsafe {
        (libc::fstat(file, status.as_mut_ptr()) == 0).then(|| {
            let status = status.assume_init();
            (status.st_dev, status.st_ino)
        })
    }
}

/// Writes what the agent reads when the process has ended; true: it has all of it.
fn hand_over(file: RawFd, bytes: &[u8], bytes_max: usize) -> bool {
    let (outcome, value) = if bytes.len() > bytes_max {
        (outcome::TOO_LONG, bytes.len() as u64)
    } else {
        // A limit on the size of files is an error then, and no signal.
        // SAFETY: numbers only; this process has nothing left to do but this.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        match write_all(file, bytes.as_ptr(), bytes.len(), size_of::<ReturnedHead>()) {
            Ok(()) => (outcome::WHOLE, bytes.len() as u64),
            Err(errno) => (outcome::FAILED, u64::from(errno.unsigned_abs())),
        }
    };
    let mut head = ReturnedHead { outcome, value };
    let is_written = write_all(file, pointer(&mut head).cast(), size_of::<ReturnedHead>(), 0).is_ok();
    is_written && outcome == outcome::WHOLE
}

/// Writes all of it at an offset, or fails with the system's number.
fn write_all(file: RawFd, mut from: *const u8, mut bytes: usize, mut at: usize) -> Result<(), i32> {
    while bytes > 0 {
        let offset = off_t::try_from(at).map_err(|_| libc::EFBIG)?;
        // SAFETY: the callers' memory is valid for reading so many bytes.
        let written = unsafe { libc::pwrite(file, from.cast(), bytes, offset) };
        match usize::try_from(written) {
            Ok(0) => return Err(libc::ENOSPC),
            Ok(written) => {
                from = from.wrapping_add(written);
                bytes -= written;
                at += written;
            }
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
    Ok(())
}
