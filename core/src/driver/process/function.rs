//! Workers that are functions of the agent's own program.

use super::guard::packet::{Plain, pointer};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt;
use libc::{c_char, c_int};
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
/// - a panic is the exit code [`PANICKED`], and nothing is returned.
pub type Function = dyn Fn(&Call<'_>, &mut Vec<u8>) -> i32 + Send + Sync;

/// The exit code of a function that panicked.
pub const PANICKED: i32 = 101;

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

    /// Calls the function in a process that is there for nothing else, and ends it.
    pub(super) fn run(&self, function: &Function, returned: RawFd) -> ! {
        let mut bytes = Vec::new();
        let code = catch_unwind(AssertUnwindSafe(|| function(self, &mut bytes)));
        let mut head = ReturnedHead { bytes: bytes.len() as u64 };
        // What was not written is seen as cut by whoever reads.
        if code.is_ok() && write_all(returned, pointer(&mut head).cast(), size_of::<ReturnedHead>()) {
            write_all(returned, bytes.as_ptr(), bytes.len());
        }
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code.unwrap_or(PANICKED)) }
    }
}

/// Stands before what a function returned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnedHead {
    pub(super) bytes: u64,
}

// SAFETY: a number.
unsafe impl Plain for ReturnedHead {}

/// Whether all was written.
fn write_all(fd: RawFd, mut from: *const u8, mut bytes: usize) -> bool {
    while bytes > 0 {
        // SAFETY: the callers' memory is valid for reading so many bytes.
        let written = unsafe { libc::write(fd, from.cast(), bytes) };
        match usize::try_from(written) {
            Ok(written) => {
                from = from.wrapping_add(written);
                bytes -= written;
            }
            Err(_) if super::guard::system::errno() == libc::EINTR as c_int => {}
            Err(_) => return false,
        }
    }
    true
}
