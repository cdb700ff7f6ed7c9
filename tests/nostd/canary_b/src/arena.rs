//! An allocator that hands out one piece of memory from front to back and takes nothing back.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

const BYTES: usize = 1 << 20;

struct Arena {
    memory: UnsafeCell<[u8; BYTES]>,
    used: AtomicUsize,
}

// SAFETY: the memory is only handed out, each byte of it once, as `used` moves in one atomic step.
unsafe impl Sync for Arena {}

#[global_allocator]
static ARENA: Arena = Arena { memory: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) };

// SAFETY: the pieces do not overlap, are aligned as asked, and stay for ever.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.memory.get().cast::<u8>();
        let mut start = 0;
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            // Aligned in memory, not just within the arena.
            start = used + base.wrapping_add(used).align_offset(layout.align());
            start.checked_add(layout.size()).filter(|&end| end <= BYTES)
        });
        if taken.is_ok() { base.wrapping_add(start) } else { core::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
