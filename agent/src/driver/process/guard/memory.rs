//! Memory of the guard, all of which is allocated before it begins.

use super::packet::Report;
use super::system::errno;
use core::mem::size_of;
use libc::{c_int, pid_t};
use std::os::fd::RawFd;

/// A worker in the guard's table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) worker: u32,
    /// Process ID; 0 if the slot is free.
    pub(super) pid: pid_t,
    /// The worker's pidfd; -1 if there is none.
    pub(super) pidfd: RawFd,
    pub(super) stage: Stage,
    /// The guard's end of the worker's [`lifeline`](super::lifeline); -1 if there is none any more.
    pub(super) lifeline: RawFd,
    /// Monotonic time in nanoseconds at which the worker was seen to be ending, before any stop; 0 if it was not.
    pub(super) ending_ns: u64,
}

impl Slot {
    /// Returns whether the slot has a worker that has not been reaped.
    pub(super) const fn lives(&self) -> bool {
        matches!(self.stage, Stage::Watched | Stage::Unwatched)
    }

    /// Returns whether the worker was seen to be ending before that time, and has not been reaped.
    pub(super) const fn ends_before(&self, at_ns: u64) -> bool {
        self.lives() && self.ending_ns != 0 && self.ending_ns < at_ns
    }
}

/// State of a slot.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The slot is free. The memory starts as zeros, and so does a slot.
    Free = 0,
    /// The end of the worker is detected by its pidfd.
    Watched = 1,
    /// The end of the worker is detected by `SIGCHLD`.
    Unwatched = 2,
    /// The worker has ended, and its exit report was not sent yet.
    Ended = 3,
}

/// A report to send, and the slot of its worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportEntry {
    pub(super) report: Report,
    pub(super) slot: usize,
}

/// Parts of the memory.
pub(super) struct MemoryParts {
    pub(super) slots: &'static mut [Slot],
    pub(super) reports: &'static mut [ReportEntry],
    /// Children of the guard at the last check.
    pub(super) descendants: &'static mut [pid_t],
    /// Process groups that got the signal of a stop, and processes that joined such a group later.
    pub(super) signalled: &'static mut [pid_t],
    /// Upper end of the stack on which a child runs until it executes its program.
    pub(super) stack_top: *mut libc::c_void,
}

/// Maximum number of children that one check handles. Each end of a child triggers another check.
const DESCENDANTS_MAX: usize = 4096;
/// Maximum number of groups and processes that are remembered. Beyond it, a process may get a signal twice.
const SIGNALLED_MAX: usize = 4096;
/// Maximum number of reports beside those of workers: answers to requests.
const ANSWERS_MAX: usize = 64;
const STACK_BYTES: usize = 256 * 1024;

/// A private mapping, which the guard inherits by `fork`. The agent unmaps its copy.
#[derive(Debug)]
pub(crate) struct GuardMemory {
    start: *mut u8,
    bytes: usize,
    workers_max: usize,
}

impl GuardMemory {
    /// Maps the memory.
    ///
    /// # Errors
    /// The error number.
    pub(crate) fn new(workers_max: u32) -> Result<Self, c_int> {
        let workers_max = workers_max as usize;
        let bytes = Plan::of(workers_max).bytes;
        // SAFETY: new memory at an address that the system chooses.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(Self { start: start.cast(), bytes, workers_max })
    }

    /// Returns the parts.
    ///
    /// # Safety
    /// Called once, in the guard, where the memory is never unmapped.
    pub(super) unsafe fn open(&self) -> MemoryParts {
        let plan = Plan::of(self.workers_max);
        // SAFETY: the plan places the parts beside each other within the memory, each aligned to 64 bytes; memory that
        // was never written holds zeros, which are a value of each type; the caller guarantees the rest.
        unsafe {
            MemoryParts {
                slots: part(self.start, plan.slots, self.workers_max),
                reports: part(self.start, plan.reports, reports_max(self.workers_max)),
                descendants: part(self.start, plan.descendants, DESCENDANTS_MAX),
                signalled: part(self.start, plan.signalled, SIGNALLED_MAX),
                stack_top: self.start.add(plan.bytes).cast(),
            }
        }
    }
}

impl Drop for GuardMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and this process has no references into it.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

const fn reports_max(workers_max: usize) -> usize {
    // A start and an end of each worker, and the answers.
    2 * workers_max + ANSWERS_MAX
}

/// Offsets of the parts.
struct Plan {
    slots: usize,
    reports: usize,
    descendants: usize,
    signalled: usize,
    bytes: usize,
}

impl Plan {
    const fn of(workers_max: usize) -> Self {
        let slots = 0;
        let reports = after(slots, workers_max * size_of::<Slot>());
        let descendants = after(reports, reports_max(workers_max) * size_of::<ReportEntry>());
        let signalled = after(descendants, DESCENDANTS_MAX * size_of::<pid_t>());
        let stack = after(signalled, SIGNALLED_MAX * size_of::<pid_t>());
        Self { slots, reports, descendants, signalled, bytes: after(stack, STACK_BYTES) }
    }
}

const fn after(start: usize, bytes: usize) -> usize {
    (start + bytes).next_multiple_of(64)
}

/// Returns a part.
///
/// # Safety
/// `count` values of the type lie at the offset, without other references, and stay there.
unsafe fn part<T>(start: *mut u8, offset: usize, count: usize) -> &'static mut [T] {
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts_mut(start.add(offset).cast(), count) }
}
