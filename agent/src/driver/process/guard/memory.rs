//! The guard's memory, all of which is there before it begins.

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
    /// 0: the slot is free.
    pub(super) pid: pid_t,
    /// Readable when the worker has ended; -1 where there is none.
    pub(super) pidfd: RawFd,
    pub(super) stage: Stage,
    /// The guard's end of the worker's [`lifeline`](super::lifeline); -1 where there is none any more.
    pub(super) lifeline: RawFd,
    /// When the worker was seen to be ending, before any stop; 0: it was not.
    pub(super) ending_ns: u64,
}

impl Slot {
    /// It has a worker whose end was not seen.
    pub(super) const fn lives(&self) -> bool {
        matches!(self.stage, Stage::Watched | Stage::Unwatched)
    }

    /// It was seen to be ending before that, and its end was not seen yet.
    pub(super) const fn ends_before(&self, at_ns: u64) -> bool {
        self.lives() && self.ending_ns != 0 && self.ending_ns < at_ns
    }
}

/// How far a worker is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The slot is free. Memory begins as zeros, and so does a slot.
    Free = 0,
    /// Its end is seen by its pidfd.
    Watched = 1,
    /// Its end is seen by `SIGCHLD`.
    Unwatched = 2,
    /// It has ended, and that is to be told.
    Ended = 3,
}

/// A report that is to be sent, and the slot that it tells of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportEntry {
    pub(super) report: Report,
    pub(super) slot: usize,
}

/// The parts of the memory.
pub(super) struct Rooms {
    pub(super) slots: &'static mut [Slot],
    pub(super) reports: &'static mut [ReportEntry],
    /// Processes directly beneath the guard, as they were last looked at.
    pub(super) descendants: &'static mut [pid_t],
    /// Process groups that were told to stop, and processes that have come to one of those since.
    pub(super) signalled: &'static mut [pid_t],
    /// The upper end of the stack on which a child runs until it is a program.
    pub(super) stack_top: *mut libc::c_void,
}

/// Processes directly beneath the guard that one look takes; what ends makes it look again.
const DESCENDANTS_MAX: usize = 4096;
/// Groups and processes that are remembered; one beyond may be told twice.
const SIGNALLED_MAX: usize = 4096;
/// Letters beside those of workers: answers.
const ANSWERS_MAX: usize = 64;
const STACK_BYTES: usize = 256 * 1024;

/// A piece of memory of its own, which the guard gets by being forked. The agent gives its copy back.
#[derive(Debug)]
pub(crate) struct GuardMemory {
    start: *mut u8,
    bytes: usize,
    workers_max: usize,
}

impl GuardMemory {
    /// # Errors
    /// The system's number.
    pub(crate) fn new(workers_max: u32) -> Result<Self, c_int> {
        let workers_max = workers_max as usize;
        let bytes = Plan::of(workers_max).bytes;
        // SAFETY: new memory, at an address that the system chooses.
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

    /// The parts.
    ///
    /// # Safety
    /// Called once, in the guard, where the memory is never given back.
    pub(super) unsafe fn open(&self) -> Rooms {
        let plan = Plan::of(self.workers_max);
        // SAFETY: the plan lays the parts beside each other within the memory, each aligned to 64 bytes; memory that was
        // never written holds zeros, which are a value of each type; the caller promises the rest.
        unsafe {
            Rooms {
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
        // SAFETY: it was mapped by `new`, and in this process nobody has looked into it.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

const fn reports_max(workers_max: usize) -> usize {
    // A start and an end of each, and the answers.
    2 * workers_max + ANSWERS_MAX
}

/// Where the parts lie.
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

/// # Safety
/// `count` values of the type lie there, nobody else refers to them, and they stay.
unsafe fn part<T>(start: *mut u8, offset: usize, count: usize) -> &'static mut [T] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(start.add(offset).cast(), count) }
}
