//! Event loops and their members. One thread at a time uses a loop.
//!
//! User code that a call on the loop runs, such as a custom backend, may not use the loop.

use crate::last_event::LastEvent;
use crate::op::OpCell;
use crate::prelude::*;
use rendezvous_core::driver::loop_client::{Loop, MemberId};
use rendezvous_core::ordered::Map;
use rendezvous_core::sorted::SortedMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Event loop of the caller, which owns members: stores, nodes, agents and RPC workers. Add
/// `rdzv_loop_fd` to your poll, epoll or select; when it is readable, call `rdzv_loop_poll`, then
/// `rdzv_loop_next_event` until it returns `RDZV_EVENT_NONE`. Deadlines, pauses and name look-ups make
/// the descriptor readable too, so you need no timer. One thread at a time may use a loop and its
/// members.
///
/// User code invoked by a call on the loop must not use that loop or its members: functions return
/// `RDZV_REENTRANT`, or NULL if they return a pointer, and `rdzv_loop_free` has no effect. This concerns
/// the following code. `rdzv_loop_rpc_call` may invoke a custom backend, and `release`;
/// `rdzv_loop_cancel` may invoke `release`. `rdzv_loop_next_event`, `rdzv_loop_poll`,
/// `rdzv_loop_rpc_shutdown`, `rdzv_loop_remove` and `rdzv_loop_free` may invoke the `done` of
/// `rdzv_rpc_responder_new` for requests that end without a response.
#[derive(Debug)]
pub struct rdzv_loop {
    pub(crate) stores: Loop,
    /// Data that the last event points to.
    pub(crate) last_event: LastEvent,
    pub(crate) members: SortedMap<MemberId, Box<rdzv_loop_member>>,
    /// Operations under way with their members, by the numbers of their calls.
    pub(crate) ops: Map<u64, (MemberId, Arc<OpCell>)>,
    /// Dropped after what may run code of the program when it is dropped.
    pub(crate) home: Arc<Home>,
    /// Dropped last: until then, user code run by the other fields' destructors is refused.
    pub(crate) gate: Arc<Gate>,
}

/// Member of an event loop: a store, a node, an agent or an RPC worker. The loop owns it; it is valid
/// until `rdzv_loop_remove` or `rdzv_loop_free`.
#[derive(Debug)]
pub struct rdzv_loop_member {
    pub(crate) event_loop: *mut rdzv_loop,
    pub(crate) id: MemberId,
    pub(crate) user_data: *mut c_void,
    /// Removes the member from the loop.
    pub(crate) remove: fn(&mut Loop, MemberId),
}

impl rdzv_loop {
    pub(crate) fn new(stores: Loop, home: Arc<Home>) -> Self {
        let gate = Gate::new(stores.fd());
        let (members, ops) = (SortedMap::new(), Map::new());
        Self { stores, home, last_event: LastEvent::default(), members, ops, gate }
    }

    /// Makes the handle of a new member.
    pub(crate) fn add(
        &mut self,
        id: MemberId,
        user_data: *mut c_void,
        remove: fn(&mut Loop, MemberId),
    ) -> *mut rdzv_loop_member {
        let event_loop = std::ptr::from_mut(self);
        let mut member = Box::new(rdzv_loop_member { event_loop, id, user_data, remove });
        let handle = &raw mut *member;
        self.members.insert(id, member);
        handle
    }
}

impl Drop for rdzv_loop {
    fn drop(&mut self) {
        self.ops.iter().for_each(|(_, (_, cell))| cell.lock_waiting().abandoned());
    }
}

/// State of a loop that is checked before anything else in the loop is touched.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) state: HandleState,
    fd: i32,
    user: Mutex<Option<ThreadId>>,
}

impl Gate {
    fn new(fd: i32) -> Arc<Self> {
        Arc::new(Self { state: HandleState::default(), fd, user: Mutex::default() })
    }

    fn user(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the loop; returns `None` if it is in use.
    fn enter(self: &Arc<Self>) -> Option<Inside> {
        let mut user = self.user();
        if user.is_some() {
            return None;
        }
        *user = Some(std::thread::current().id());
        Some(Inside(Arc::clone(self)))
    }
}

/// Exclusive use of a loop; ends when dropped.
struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        *self.0.user() = None;
    }
}

/// Returns the gate of a loop, which may be in use; `None` for NULL.
unsafe fn gate_of(event_loop: *const rdzv_loop) -> Option<Arc<Gate>> {
    // SAFETY: NULL or a live loop, whose current user does not replace the gate.
    (!event_loop.is_null()).then(|| unsafe { Arc::clone(&(*event_loop).gate) })
}

impl guard::Target for rdzv_loop {
    type Access<'a> = &'a mut Self;

    unsafe fn enter(
        event_loop: *const Self,
        name: &str,
        error: *mut *mut rdzv_error,
        body: &mut dyn FnMut(&mut Self) -> Result<(), Fault>,
    ) -> rdzv_status {
        // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
        unsafe {
            let gate = gate_of(event_loop);
            guard::call_on(gate.as_deref().map(|gate| &gate.state), error, &mut || {
                let Some(gate) = &gate else { return Err(is_null(name)) };
                let Some(_inside) = gate.enter() else {
                    let message =
                        "the event loop is in use, by another thread or by a caller of this function";
                    return Err(Fault::new(RDZV_REENTRANT, message));
                };
                let this = reference_mut(event_loop.cast_mut(), name)?;
                this.home.refuse_sink()?;
                body(this)
            })
        }
    }
}

impl guard::Target for rdzv_loop_member {
    /// The loop that has the member, and the member's id.
    type Access<'a> = (&'a mut rdzv_loop, MemberId);

    unsafe fn enter(
        member: *const Self,
        name: &str,
        error: *mut *mut rdzv_error,
        body: &mut dyn FnMut((&mut rdzv_loop, MemberId)) -> Result<(), Fault>,
    ) -> rdzv_status {
        // SAFETY: NULL or valid, as the header requires; NULL has no loop, so the body runs for a member only.
        unsafe {
            let event_loop = member.as_ref().map_or(null_mut(), |member| member.event_loop);
            rdzv_loop::enter(event_loop, name, error, &mut |this| body((this, (*member).id)))
        }
    }
}

/// Reads a value of a loop; returns `fallback` for NULL and while the loop is in use.
pub(crate) unsafe fn read<R>(
    event_loop: *const rdzv_loop,
    fallback: R,
    read: impl FnOnce(&rdzv_loop) -> R,
) -> R {
    // SAFETY: NULL or valid, as the header requires.
    let gate = unsafe { gate_of(event_loop) };
    match gate.as_ref().and_then(Gate::enter) {
        // SAFETY: a live loop that this thread alone uses.
        Some(_inside) => read(unsafe { &*event_loop }),
        None => fallback,
    }
}

/// Returns the descriptor of a loop, which may be in use; -1 for NULL.
pub(crate) unsafe fn fd_of(event_loop: *const rdzv_loop) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { gate_of(event_loop) }.map_or(-1, |gate| gate.fd)
}

/// Frees a loop, unless a call on it is in progress.
pub(crate) unsafe fn free(event_loop: *mut rdzv_loop) {
    // SAFETY: NULL or valid, as the header requires.
    let Some(gate) = (unsafe { gate_of(event_loop) }) else { return };
    match gate.enter() {
        // SAFETY: the program gives the loop up, and no thread can enter it any more.
        Some(_inside) => drop(unsafe { Box::from_raw(event_loop) }),
        None => {
            gate.state.refuse_free();
            // SAFETY: the loop is live, and its current user does not replace the context.
            unsafe { (*event_loop).home.warn_free_refused("rdzv_loop_free") };
        }
    }
}
