//! Event loops. One thread at a time uses one.
//!
//! User code that a call on the loop runs, such as a custom backend, may not use the loop. All functions except
//! [`operate`], [`submit`] and [`remove`] must be called inside a guard.

use crate::argument::{bytes, invalid, out_pointer, reference_mut};
use crate::context::Home;
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::loop_event::LastEvent;
use crate::status::{RDZV_INVALID_ARGUMENT, RDZV_REENTRANT, rdzv_status};
use crate::store::{call_fault, timeout};
use rendezvous_core::driver::loop_client::{Loop, MemberId, SubmitError};
use rendezvous_core::driver::native_client::NativeRequest;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::store::call::CallId;
use rendezvous_core::store::op::{Key, Request};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Stores that live in the caller's event loop. Add `rdzv_loop_fd` to your poll, epoll or select; when it
/// is readable, call `rdzv_loop_poll`, then `rdzv_loop_next_event` until it returns `RDZV_EVENT_NONE`.
/// Deadlines, pauses and name look-ups make the descriptor readable too, so you need no timer. One thread
/// at a time may use a loop.
///
/// User code invoked by a call on the loop must not use that loop: functions return `RDZV_REENTRANT`, or
/// NULL if they return a pointer. This concerns the following code. `rdzv_loop_rpc_call` and `_notify` may
/// invoke a custom backend, and `release`; `rdzv_loop_cancel` may invoke `release`. `rdzv_loop_next_event`,
/// `rdzv_loop_poll`, `rdzv_loop_rpc_shutdown`, `rdzv_loop_remove_rpc` and `rdzv_loop_free` may invoke the
/// `done` of `rdzv_rpc_handlers_dispatch` for requests that end without an answer.
///
/// Two functions are exceptions. `rdzv_loop_free` frees the loop when the outer call returns, which then
/// reports no event. `rdzv_loop_remove_rpc` removes a worker, whose events are then not reported.
#[derive(Debug)]
pub struct rdzv_loop {
    pub(crate) stores: Loop,
    home: Arc<Home>,
    /// Data that the last event points to.
    pub(crate) last_event: LastEvent,
    /// Dropped last: until then, user code run by the other fields' destructors is refused.
    pub(crate) gate: Arc<Gate>,
}

impl rdzv_loop {
    pub(crate) fn new(stores: Loop, home: Arc<Home>) -> Self {
        let gate = Gate::new(stores.fd());
        Self { stores, home, last_event: LastEvent::default(), gate }
    }

    fn refuse_sink(&self) -> Result<(), Fault> {
        self.home.refuse_sink()
    }
}

/// State of a loop that is checked before anything else in the loop is touched.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) poison: Poison,
    fd: i32,
    users: Mutex<LoopUsers>,
}

/// Current user of a loop, and work deferred until it leaves.
#[derive(Debug, Default)]
struct LoopUsers {
    state: LoopState,
    /// Workers removed by user code inside a call.
    removed: Vec<(MemberId, Removal)>,
}

/// Function that removes a worker from a loop.
type Removal = fn(&mut Loop, MemberId);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoopState {
    #[default]
    Free,
    /// This thread uses the loop.
    Busy(ThreadId),
    /// This thread uses the loop and frees it when it leaves.
    FreeOnLeave(ThreadId),
}

impl Gate {
    fn new(fd: i32) -> Arc<Self> {
        Arc::new(Self { poison: Poison::default(), fd, users: Mutex::default() })
    }

    fn users(&self) -> MutexGuard<'_, LoopUsers> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the loop; returns false if it is in use.
    fn try_enter(&self) -> bool {
        let mut users = self.users();
        let is_free = users.state == LoopState::Free;
        if is_free {
            users.state = LoopState::Busy(std::thread::current().id());
        }
        is_free
    }

    /// Leaves the loop and lets the next user enter; returns false for a loop that is to be freed.
    fn leave(&self) -> bool {
        let mut users = self.users();
        let is_busy = matches!(users.state, LoopState::Busy(_));
        if is_busy {
            users.state = LoopState::Free;
        }
        is_busy
    }

    /// Marks the loop to be freed by its current user; returns true if it was idle, so the caller must free
    /// it.
    fn free_on_leave(&self) -> bool {
        let mut users = self.users();
        let (thread, is_free) = match users.state {
            LoopState::Free => (std::thread::current().id(), true),
            LoopState::Busy(thread) | LoopState::FreeOnLeave(thread) => (thread, false),
        };
        users.state = LoopState::FreeOnLeave(thread);
        is_free
    }

    /// Returns true if the loop is freed as soon as its current user leaves.
    pub(crate) fn is_freed_on_leave(&self) -> bool {
        matches!(self.users().state, LoopState::FreeOnLeave(_))
    }

    /// Defers the removal of a worker until the current user leaves; returns false if this thread is not
    /// inside the loop.
    fn defer_removal(&self, worker: MemberId, removal: Removal) -> bool {
        let mut users = self.users();
        let is_inside = match users.state {
            LoopState::Free => false,
            LoopState::Busy(thread) | LoopState::FreeOnLeave(thread) => thread == std::thread::current().id(),
        };
        if is_inside {
            users.removed.push((worker, removal));
        }
        is_inside
    }

    fn next_removed(&self) -> Option<(MemberId, Removal)> {
        self.users().removed.pop()
    }
}

/// Returns the gate of a loop, which may be in use; `None` for NULL. Returns a reference count of its own,
/// because the current user may free the loop.
unsafe fn gate_of(event_loop: *const rdzv_loop) -> Option<Arc<Gate>> {
    // SAFETY: NULL or a live loop, whose current user does not replace the gate.
    (!event_loop.is_null()).then(|| unsafe { Arc::clone(&(*event_loop).gate) })
}

/// Exclusive use of a loop; ends when dropped.
struct Inside {
    gate: Arc<Gate>,
    event_loop: *mut rdzv_loop,
}

/// Executes deferred removals when dropped, then leaves the loop, even if a removal panics.
struct Leaving(Inside);

impl Drop for Inside {
    fn drop(&mut self) {
        if !self.gate.leave() {
            // SAFETY: the program gave the loop up while it was in use, and the gate stays shut.
            drop(unsafe { Box::from_raw(self.event_loop) });
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // A loop in which a call panicked can only be freed.
        if !std::thread::panicking() {
            // SAFETY: a live loop that this thread alone uses, and the body has returned.
            remove_now(unsafe { &mut *self.0.event_loop }, None);
        }
    }
}

/// Removes the workers that user code has removed during this call, including those removed by code that a
/// removal runs. Returns true if `watched` was one of them.
pub(crate) fn remove_now(this: &mut rdzv_loop, watched: Option<MemberId>) -> bool {
    let mut was_removed = false;
    while let Some((worker, removal)) = this.gate.next_removed() {
        was_removed |= watched == Some(worker);
        removal(&mut this.stores, worker);
    }
    was_removed
}

/// Runs an operation on a loop inside a guard.
pub(crate) unsafe fn operate(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut(&mut rdzv_loop) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        let gate = gate_of(event_loop);
        guard::call_on(gate.as_deref().map(|gate| &gate.poison), error, &mut || {
            enter(gate.as_ref(), event_loop, body)
        })
    }
}

/// Runs the body of an operation; the caller provides the guard.
unsafe fn enter(
    gate: Option<&Arc<Gate>>,
    event_loop: *mut rdzv_loop,
    body: &mut dyn FnMut(&mut rdzv_loop) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if gate.is_some_and(|gate| !gate.try_enter()) {
        let message = "the event loop is in use, by another thread or by a caller of this function";
        return Err(Fault::new(RDZV_REENTRANT, message));
    }
    let inside = gate.map(|gate| Leaving(Inside { gate: Arc::clone(gate), event_loop }));
    // SAFETY: NULL, which is refused, or a live loop that this thread alone uses.
    let this = unsafe { reference_mut(event_loop, "event_loop") }?;
    let done = this.refuse_sink().and_then(|()| body(this));
    drop(inside);
    done
}

/// Removes a worker inside a guard: at once, or when the current user leaves if that is this thread.
pub(crate) unsafe fn remove(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
    worker: MemberId,
    removal: Removal,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        let gate = gate_of(event_loop);
        guard::call_on(gate.as_deref().map(|gate| &gate.poison), error, &mut || {
            if gate.as_ref().is_some_and(|gate| gate.defer_removal(worker, removal)) {
                return Ok(());
            }
            let mut remove = |this: &mut rdzv_loop| {
                removal(&mut this.stores, worker);
                Ok(())
            };
            enter(gate.as_ref(), event_loop, &mut remove)
        })
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
    match gate {
        Some(gate) if gate.try_enter() => {
            let _inside = Leaving(Inside { gate, event_loop: event_loop.cast_mut() });
            // SAFETY: a live loop that this thread alone uses.
            read(unsafe { &*event_loop })
        }
        _ => fallback,
    }
}

/// Returns the descriptor of a loop, which may be in use; -1 for NULL.
pub(crate) unsafe fn fd_of(event_loop: *const rdzv_loop) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { gate_of(event_loop) }.map_or(-1, |gate| gate.fd)
}

/// Frees a loop, or marks it to be freed by its current user.
pub(crate) unsafe fn free(event_loop: *mut rdzv_loop) {
    // SAFETY: NULL or valid, as the header requires.
    if unsafe { gate_of(event_loop) }.is_some_and(|gate| gate.free_on_leave()) {
        // SAFETY: the program gives the loop up, and no thread can enter it any more.
        drop(unsafe { Box::from_raw(event_loop) });
    }
}

/// Submits an operation; `request` receives the store's key scope.
pub(crate) unsafe fn submit(
    (event_loop, store): (*mut rdzv_loop, u32),
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
    request: &mut dyn FnMut(&mut Submission<'_>) -> Result<CallId, Fault>,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        operate(event_loop, error, &mut |this| {
            let (operation, timeout) = (out_pointer(operation, "operation")?, timeout(timeout_ms)?);
            let store = MemberId::from_u32(store);
            let scope = this.stores.scope(store).map(Box::<[u8]>::from);
            let scope = scope.ok_or_else(|| invalid(SubmitError::UnknownStore.to_string()))?;
            let mut submission = Submission { stores: &mut this.stores, store, timeout, scope: &scope };
            operation.put(request(&mut submission)?.0);
            Ok(())
        })
    }
}

/// Store that a request is submitted to, and its timeout.
pub(crate) struct Submission<'a> {
    stores: &'a mut Loop,
    store: MemberId,
    timeout: Timeout,
    pub(crate) scope: &'a [u8],
}

impl<'a> Submission<'a> {
    pub(crate) unsafe fn key(&self, key: *const u8, key_len: usize) -> Result<Key<'a>, Fault> {
        // SAFETY: passed on unchanged.
        Ok(Key::scoped(self.scope, unsafe { bytes(key, key_len, "key") }?))
    }

    #[inline(never)]
    pub(crate) fn begin(&mut self, request: Request<'_>) -> Result<CallId, Fault> {
        self.stores.submit(self.store, request, self.timeout).map_err(submit_fault)
    }

    pub(crate) fn ping(&mut self) -> Result<CallId, Fault> {
        self.stores.ping(self.store, self.timeout).map_err(submit_fault)
    }

    /// Submits a request that only native stores have.
    pub(crate) fn native(&mut self, request: &NativeRequest<'_>) -> Result<CallId, Fault> {
        let session = self.stores.native(self.store, request.operation());
        session.and_then(|mut session| session.submit(request, self.timeout)).map_err(submit_fault)
    }
}

pub(crate) fn submit_fault(error: SubmitError) -> Fault {
    match error {
        SubmitError::UnknownStore => Fault::new(RDZV_INVALID_ARGUMENT, error.to_string()),
        SubmitError::Call(error) => call_fault(&error),
    }
}
