//! Who may come into an event loop: one at a time. Code of the program's that a call on the loop runs, such as a handler
//! of a worker that calls itself, is refused. All of it is for bodies within a guard.

use crate::argument::reference_mut;
use crate::error::Fault;
use crate::event_loop::rdzv_loop;
use crate::guard::Poison;
use crate::status::RDZV_REENTRANT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is asked of a loop before anything in it is touched.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) poison: Poison,
    fd: i32,
    is_busy: AtomicBool,
    /// Whoever leaves frees the loop.
    is_doomed: AtomicBool,
}

impl Gate {
    pub(crate) fn new(fd: i32) -> Arc<Self> {
        let (is_busy, is_doomed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { poison: Poison::default(), fd, is_busy, is_doomed })
    }

    /// Whether nobody was in.
    fn shut(&self) -> bool {
        !self.is_busy.swap(true, Ordering::Acquire)
    }
}

/// The gate of a loop, be somebody in or not; `None` for NULL. Its own count, since who is in may free the loop.
pub(crate) unsafe fn gate_of(event_loop: *const rdzv_loop) -> Option<Arc<Gate>> {
    // SAFETY: NULL, or a live loop; who is in it does not touch the gate.
    (!event_loop.is_null()).then(|| unsafe { Arc::clone(&(*event_loop).gate) })
}

/// As long as it lives, nobody else comes in.
struct Inside {
    gate: Arc<Gate>,
    event_loop: *mut rdzv_loop,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.gate.is_doomed.load(Ordering::Acquire) {
            // SAFETY: the program gave the loop up while it was in use, and the gate stays shut.
            drop(unsafe { Box::from_raw(self.event_loop) });
        } else {
            self.gate.is_busy.store(false, Ordering::Release);
        }
    }
}

/// Runs a body on a loop, within a guard.
pub(crate) unsafe fn enter(
    event_loop: *mut rdzv_loop,
    body: impl FnOnce(&mut rdzv_loop) -> Result<(), Fault>,
) -> Result<(), Fault> {
    // SAFETY: NULL, or a live loop.
    let gate = unsafe { gate_of(event_loop) };
    let inside = match gate {
        Some(gate) if !gate.shut() => {
            let words = "the event loop is in use, by another thread or around this call";
            return Err(Fault::new(RDZV_REENTRANT, words));
        }
        gate => gate.map(|gate| Inside { gate, event_loop }),
    };
    // SAFETY: NULL, which is refused, or a live loop that nobody else uses.
    let this = unsafe { reference_mut(event_loop, "event_loop") }?;
    let done = this.refuse_sink().and_then(|()| body(this));
    drop(inside);
    done
}

/// Reads something of a loop; `fallback` for NULL, and while somebody is in.
pub(crate) unsafe fn read<R>(
    event_loop: *const rdzv_loop,
    fallback: R,
    read: impl FnOnce(&rdzv_loop) -> R,
) -> R {
    // SAFETY: as the header wants it.
    let gate = unsafe { gate_of(event_loop) };
    match gate {
        Some(gate) if gate.shut() => {
            let _inside = Inside { gate, event_loop: event_loop.cast_mut() };
            // SAFETY: a live loop, in which nobody else is.
            read(unsafe { &*event_loop })
        }
        _ => fallback,
    }
}

/// The descriptor of a loop, be somebody in or not; -1 for NULL.
pub(crate) unsafe fn fd_of(event_loop: *const rdzv_loop) -> i32 {
    // SAFETY: as the header wants it.
    unsafe { gate_of(event_loop) }.map_or(-1, |gate| gate.fd)
}

/// Frees a loop, or has whoever is in free it.
pub(crate) unsafe fn free(event_loop: *mut rdzv_loop) {
    // SAFETY: as the header wants it.
    match unsafe { gate_of(event_loop) } {
        Some(gate) if !gate.shut() => gate.is_doomed.store(true, Ordering::Release),
        // SAFETY: a loop that the program gives up, and that nobody comes into any more.
        Some(_) => drop(unsafe { Box::from_raw(event_loop) }),
        None => {}
    }
}
