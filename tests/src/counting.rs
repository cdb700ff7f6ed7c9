//! Allocator for tests: the system's, with counts for each thread and one for all of them. A program that counts declares
//! it as its global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS_OF_ALL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread took and has not given back; what another thread gives back counts there.
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn hold(bytes: usize, before: usize) {
    let change = bytes.cast_signed() as i64 - before.cast_signed() as i64;
    HELD_BYTES.try_with(|held| held.set(held.get() + change)).ok();
    ALLOCATED_BYTES.try_with(|bytes_so_far| bytes_so_far.set(bytes_so_far.get() + bytes as u64)).ok();
}

fn count() {
    ALLOCATIONS_OF_ALL.fetch_add(1, Ordering::Relaxed);
    // A thread that is ending has no counter any more, and nobody to read it.
    ALLOCATIONS.try_with(|count| count.set(count.get() + 1)).ok();
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches no allocator, since the
// counter needs neither initialisation nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        hold(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        hold(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        hold(new_size, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(old, layout, new_size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Sum of the sizes for which `work` asks the allocator on this thread.
pub fn allocated_bytes(work: impl FnOnce()) -> u64 {
    let before = ALLOCATED_BYTES.get();
    work();
    ALLOCATED_BYTES.get() - before
}

/// How often `work` asks the allocator for memory on this thread.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The same for all threads of this process. Tests that use it rely on a process of their own, or on running alone.
pub fn allocations_of_all_threads(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS_OF_ALL.load(Ordering::SeqCst);
    work();
    ALLOCATIONS_OF_ALL.load(Ordering::SeqCst) - before
}

/// What `work` makes, and how many bytes more this thread holds with it.
pub fn held_bytes<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = HELD_BYTES.get();
    let made = work();
    (made, HELD_BYTES.get() - before)
}
