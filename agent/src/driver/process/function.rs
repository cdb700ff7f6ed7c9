//! Workers that are functions of the agent's own program.

use super::guard::packet::{Plain, pointer};
use super::guard::system::errno;
use core::ffi::CStr;
use libc::{c_char, off_t};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::opaque::opaque_debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A function that a worker can run. It gets its call and a buffer for its return value, and returns the exit code, of
/// which the system keeps the lowest eight bits.
///
/// It runs in a process of its own, forked from the guard, which was forked from the agent's program when
/// [`Guard::start`](super::Guard::start) was called. This has consequences:
/// - It sees the program's memory as it was then. Later changes are missing.
/// - Its own thread is the only one. A lock that another thread held at that time stays locked for ever. The
///   allocator's locks are handled.
/// - Of the program's descriptors only standard input, output and error are open. Every signal has its default action.
/// - Its environment is the requested one, in the C library and so in `std::env`.
/// - When it returns, the process ends at once: no destructors and no exit handlers run, and output that is not flushed
///   is lost.
/// - A panic is the exit code [`PANICKED`], and no value is returned.
/// - Its return value arrives complete or not at all. If it does not arrive although the exit code is 0, the exit code
///   becomes [`NOT_RETURNED`].
pub type Function = dyn Fn(&Call<'_>, &mut Vec<u8>) -> i32 + Send + Sync;

/// Exit code of a function that panicked.
pub const PANICKED: i32 = 101;

/// Exit code of a function that succeeded but whose return value could not be transferred.
pub const NOT_RETURNED: i32 = 102;

/// A function in the options of a guard.
#[derive(Clone)]
pub struct Registered(pub(super) Arc<Function>);

opaque_debug!(Registered);

impl Registered {
    /// Registers a function for workers.
    pub fn new(function: impl Fn(&Call<'_>, &mut Vec<u8>) -> i32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

/// Arguments of a call.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    worker: u32,
    arguments: Vec<&'a CStr>,
}

impl<'a> Call<'a> {
    /// Returns the number under which the worker was started.
    pub const fn worker(&self) -> u32 {
        self.worker
    }

    /// Returns all arguments.
    pub fn arguments(&self) -> &[&'a CStr] {
        &self.arguments
    }

    /// # Safety
    /// The list ends with a null pointer. The list and its strings live for `'a`.
    pub(super) unsafe fn new(worker: u32, mut list: *const *const c_char) -> Self {
        let mut arguments = Vec::new();
        // SAFETY: guaranteed by the caller.
        unsafe {
            while !(*list).is_null() {
                arguments.push(CStr::from_ptr(*list));
                list = list.add(1);
            }
        }
        Self { worker, arguments }
    }

    /// Calls the function in a process that exists only for this, and ends the process. The return value is written to
    /// the file `returned`, up to `bytes_max` bytes.
    pub(super) fn run(&self, function: &Function, returned: RawFd, bytes_max: usize) -> ! {
        let (mut bytes, file) = (Vec::new(), identity(returned));
        let code = catch_unwind(AssertUnwindSafe(|| function(self, &mut bytes)));
        // The function may have closed the descriptor and opened another file with the same number.
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

/// Header of the file before a function's return value. It is written last: a process that dies before that has
/// returned nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnedHead {
    /// One of [`outcome`]; 0 until a value was returned.
    pub(super) outcome: u64,
    /// Number of bytes, or the error number.
    pub(super) value: u64,
}

/// Whether the bytes were written.
pub(super) mod outcome {
    pub(crate) const WHOLE: u64 = 1;
    pub(crate) const TOO_LONG: u64 = 2;
    pub(crate) const FAILED: u64 = 3;
}

// SAFETY: two numbers of one size.
unsafe impl Plain for ReturnedHead {}

/// Returns the device and inode of the file that is open as this descriptor.
fn identity(file: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the buffer has room for one status, which is filled on success.
    unsafe {
        (libc::fstat(file, status.as_mut_ptr()) == 0).then(|| {
            let status = status.assume_init();
            (status.st_dev, status.st_ino)
        })
    }
}

/// Writes the return value for the agent. Returns true if it was written completely.
fn hand_over(file: RawFd, bytes: &[u8], bytes_max: usize) -> bool {
    let (outcome, value) = if bytes.len() > bytes_max {
        (outcome::TOO_LONG, bytes.len() as u64)
    } else {
        // A limit on file sizes is then reported as an error instead of a signal. SAFETY: passes numbers only; this
        // process does nothing but this any more.
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

/// Writes all bytes at an offset, or returns the error number.
fn write_all(file: RawFd, mut from: *const u8, mut bytes: usize, mut at: usize) -> Result<(), i32> {
    while bytes > 0 {
        let offset = off_t::try_from(at).map_err(|_| libc::EFBIG)?;
        // SAFETY: the caller's memory is valid for reading that many bytes.
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
