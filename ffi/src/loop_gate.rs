//! Who may come into an event loop: one at a time. Code of the program's that a call on the loop runs, such as a handler
//! of a worker that calls itself, is refused. All of it is for bodies within a guard.

use crate::argument::reference_mut;
use crate::error::Fault;
use crate::event_loop::rdzv_loop;
use crate::guard::Poison;
use crate::status::RDZV_REENTRANT;
use rendezvous_core::driver::loop_client::RpcId;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is asked of a loop before anything in it is touched.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) poison: Poison,
    fd: i32,
    state: AtomicU8,
    /// Workers that code within has removed: whoever leaves does it.
    removed: Mutex<Vec<RpcId>>,
}

const FREE: u8 = 0;
/// Somebody is in.
const BUSY: u8 = 1;
/// Somebody is in, and frees the loop on leaving it.
const DOOMED: u8 = 2;

impl Gate {
    pub(crate) fn new(fd: i32) -> Arc<Self> {
        let (poison, removed) = (Poison::default(), Mutex::default());
        Arc::new(Self { poison, fd, state: AtomicU8::new(FREE), removed })
    }

    /// From one state to another, if it is in that.
    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether nobody was in.
    fn shut(&self) -> bool {
        self.turn(FREE, BUSY)
    }

    /// Whether the loop goes as soon as whoever is in leaves it.
    pub(crate) fn is_doomed(&self) -> bool {
        self.state.load(Ordering::Acquire) == DOOMED
    }

    fn removed(&self) -> MutexGuard<'_, Vec<RpcId>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate of a loop, be somebody in or not; `None` for NULL. Its own count, since who is in may free the loop.
pub(crate) unsafe fn gate_of(event_loop: *const rdzv_loop) -> Option<Arc<Gate>> {
    // SAFETY: NULL, or a live loop; who is in it does not touch the gate.
    (!event_loop.is_null()).then(|| unsafe { Arc::clone(&(*event_loop).gate) })
}

/// Does what code within has left to be done: whether or not that panics, somebody else may come in then.
struct Inside(Leaving);

/// As long as it lives, nobody else comes in.
struct Leaving {
    gate: Arc<Gate>,
    event_loop: *mut rdzv_loop,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.gate.turn(BUSY, FREE) {
            // SAFETY: the program gave the loop up while it was in use, and the gate stays shut.
            drop(unsafe { Box::from_raw(self.event_loop) });
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A loop in which something panicked is only to be freed.
        if !std::thread::panicking() {
            // SAFETY: a live loop that nobody else uses, and the body is over.
            remove_now(unsafe { &mut *self.0.event_loop });
        }
    }
}

/// Removes the workers that code within has removed; again, where that runs such code.
pub(crate) fn remove_now(this: &mut rdzv_loop) {
    loop {
        let removed = this.gate.removed().pop();
        let Some(worker) = removed else { break };
        this.stores.remove_rpc(worker);
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
        gate => gate.map(|gate| Inside(Leaving { gate, event_loop })),
    };
    // SAFETY: NULL, which is refused, or a live loop that nobody else uses.
    let this = unsafe { reference_mut(event_loop, "event_loop") }?;
    let done = this.refuse_sink().and_then(|()| body(this));
    drop(inside);
    done
}

/// Has whoever is in remove a worker on leaving; whether somebody is.
pub(crate) unsafe fn remove_later(event_loop: *const rdzv_loop, worker: RpcId) -> bool {
    // SAFETY: as the header wants it.
    let gate = unsafe { gate_of(event_loop) }.filter(|gate| !gate.turn(FREE, FREE));
    gate.inspect(|gate| gate.removed().push(worker)).is_some()
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
            let _inside = Inside(Leaving { gate, event_loop: event_loop.cast_mut() });
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
    let Some(gate) = (unsafe { gate_of(event_loop) }) else { return };
    // Whoever leaves frees it, unless nobody is in.
    while !gate.turn(BUSY, DOOMED) && !gate.is_doomed() {
        if gate.shut() {
            // SAFETY: a loop that the program gives up, and that nobody comes into any more.
            drop(unsafe { Box::from_raw(event_loop) });
            break;
        }
    }
}
