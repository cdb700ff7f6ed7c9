//! Event loops. One thread at a time uses one.
//!
//! Code of the program's that a call on the loop runs, such as a handler of a worker that calls itself, is refused. What
//! is neither [`operate`] nor [`remove`] is for bodies within a guard.

use crate::argument::reference_mut;
use crate::context::Home;
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::loop_event::LastEvent;
use crate::status::{RDZV_INVALID_ARGUMENT, RDZV_REENTRANT, rdzv_status};
use crate::store::call_fault;
use rendezvous_core::driver::loop_client::{Loop, MemberId, SubmitError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Stores that live in an event loop of yours. Put `rdzv_loop_fd` into your poll, epoll or select; when it
/// is readable, call `rdzv_loop_poll` and then `rdzv_loop_next_event` until it gives `RDZV_EVENT_NONE`.
/// Deadlines, pauses and name look-ups make the descriptor readable too, so no timer of yours is needed.
/// One thread at a time. Code of yours that a call on the loop runs may not use the loop: that is
/// `RDZV_REENTRANT`, and what would lend something gives NULL. Such code is: within `rdzv_loop_rpc_call` and
/// `_notify` an inline handler of a worker that calls itself, a backend of your own, and `release`, which
/// `rdzv_loop_cancel` may run, too; and the `done` of `rdzv_rpc_call_with` and `rdzv_rpc_handlers_dispatch`
/// for requests that end without an answer, within `rdzv_loop_next_event`, `rdzv_loop_poll`,
/// `rdzv_loop_rpc_shutdown`, `rdzv_loop_remove_rpc` and `rdzv_loop_free`. It may free the loop, which goes
/// when the call returns and shows no event, and remove RPC workers, of which no event is shown.
#[derive(Debug)]
pub struct rdzv_loop {
    pub(crate) stores: Loop,
    home: Arc<Home>,
    /// What the last event lends out.
    pub(crate) last_event: LastEvent,
    /// The last to go: until then, code of the program's that the others run is refused.
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

/// What is asked of a loop before anything in it is touched.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) poison: Poison,
    fd: i32,
    users: Mutex<LoopUsers>,
}

/// Who is in, and what is to be done when they leave.
#[derive(Debug, Default)]
struct LoopUsers {
    state: State,
    /// Workers that code within has removed.
    removed: Vec<(MemberId, Removal)>,
}

/// How a worker is removed from a loop.
type Removal = fn(&mut Loop, MemberId);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// This thread is in.
    Busy(ThreadId),
    /// This thread is in, and frees the loop on leaving it.
    FreeOnLeave(ThreadId),
}

impl Gate {
    fn new(fd: i32) -> Arc<Self> {
        Arc::new(Self { poison: Poison::default(), fd, users: Mutex::default() })
    }

    fn users(&self) -> MutexGuard<'_, LoopUsers> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes in, if nobody is.
    fn shut(&self) -> bool {
        let mut users = self.users();
        let is_free = users.state == State::Free;
        if is_free {
            users.state = State::Busy(std::thread::current().id());
        }
        is_free
    }

    /// Leaves, and lets the next one in; but for a loop that is to be freed.
    fn open(&self) -> bool {
        let mut users = self.users();
        let is_busy = matches!(users.state, State::Busy(_));
        if is_busy {
            users.state = State::Free;
        }
        is_busy
    }

    /// Has whoever is in free the loop on leaving it. Whether that is the one who asks, since nobody was.
    fn doom(&self) -> bool {
        let mut users = self.users();
        let (thread, is_free) = match users.state {
            State::Free => (std::thread::current().id(), true),
            State::Busy(thread) | State::FreeOnLeave(thread) => (thread, false),
        };
        users.state = State::FreeOnLeave(thread);
        is_free
    }

    /// Whether the loop goes as soon as whoever is in leaves it.
    pub(crate) fn is_freed_on_leave(&self) -> bool {
        matches!(self.users().state, State::FreeOnLeave(_))
    }

    /// Has a worker removed on leaving, if this thread is in.
    fn removes_later(&self, worker: MemberId, removal: Removal) -> bool {
        let mut users = self.users();
        let is_inside = match users.state {
            State::Free => false,
            State::Busy(thread) | State::FreeOnLeave(thread) => thread == std::thread::current().id(),
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

/// The gate of a loop, be somebody in or not; `None` for NULL. Its own count, since who is in may free the loop.
unsafe fn gate_of(event_loop: *const rdzv_loop) -> Option<Arc<Gate>> {
    // SAFETY: NULL, or a live loop; who is in it does not touch the gate.
    (!event_loop.is_null()).then(|| unsafe { Arc::clone(&(*event_loop).gate) })
}

/// As long as it lives, nobody else comes in.
struct Inside {
    gate: Arc<Gate>,
    event_loop: *mut rdzv_loop,
}

/// Does what code within has left to be done, and leaves: whether or not that panics, somebody else may come in then.
struct Leaving(Inside);

impl Drop for Inside {
    fn drop(&mut self) {
        if !self.gate.open() {
            // SAFETY: the program gave the loop up while it was in use, and the gate stays shut.
            drop(unsafe { Box::from_raw(self.event_loop) });
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // A loop in which something panicked is only to be freed.
        if !std::thread::panicking() {
            // SAFETY: a live loop that nobody else uses, and the body is over.
            remove_now(unsafe { &mut *self.0.event_loop }, None);
        }
    }
}

/// Removes the workers that code within has removed; again, where that runs such code. Whether `watched` was one of them.
pub(crate) fn remove_now(this: &mut rdzv_loop, watched: Option<MemberId>) -> bool {
    let mut was_removed = false;
    while let Some((worker, removal)) = this.gate.next_removed() {
        was_removed |= watched == Some(worker);
        removal(&mut this.stores, worker);
    }
    was_removed
}

/// What is to be done in a loop. No closure behind a pointer, as in [`guard`].
trait Work {
    fn run(&mut self, this: &mut rdzv_loop) -> Result<(), Fault>;
}

impl<F: FnOnce(&mut rdzv_loop) -> Result<(), Fault>> Work for Option<F> {
    fn run(&mut self, this: &mut rdzv_loop) -> Result<(), Fault> {
        self.take().map_or(Ok(()), |body| body(this))
    }
}

/// Runs an operation on a loop, in a guard.
pub(crate) unsafe fn operate(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&mut rdzv_loop) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { operated(event_loop, error, &mut Some(body)) }
}

/// Stands once in the library, whatever the number of operations.
#[inline(never)]
unsafe fn operated(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
    body: &mut dyn Work,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        let gate = gate_of(event_loop);
        guard::call_on(gate.as_deref().map(|gate| &gate.poison), error, || {
            enter(gate.as_ref(), event_loop, body)
        })
    }
}

/// Does what is to be done, within a guard.
unsafe fn enter(
    gate: Option<&Arc<Gate>>,
    event_loop: *mut rdzv_loop,
    body: &mut dyn Work,
) -> Result<(), Fault> {
    if gate.is_some_and(|gate| !gate.shut()) {
        let message = "the event loop is in use, by another thread or around this call";
        return Err(Fault::new(RDZV_REENTRANT, message));
    }
    let inside = gate.map(|gate| Leaving(Inside { gate: Arc::clone(gate), event_loop }));
    // SAFETY: NULL, which is refused, or a live loop that nobody else uses.
    let this = unsafe { reference_mut(event_loop, "event_loop") }?;
    let done = this.refuse_sink().and_then(|()| body.run(this));
    drop(inside);
    done
}

/// Removes a worker, in a guard: at once, or on leaving where this thread is in.
pub(crate) unsafe fn remove(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
    worker: MemberId,
    removal: Removal,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        let gate = gate_of(event_loop);
        guard::call_on(gate.as_deref().map(|gate| &gate.poison), error, || {
            if gate.as_ref().is_some_and(|gate| gate.removes_later(worker, removal)) {
                return Ok(());
            }
            let remove = |this: &mut rdzv_loop| {
                removal(&mut this.stores, worker);
                Ok(())
            };
            enter(gate.as_ref(), event_loop, &mut Some(remove))
        })
    }
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
            let _inside = Leaving(Inside { gate, event_loop: event_loop.cast_mut() });
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
    if unsafe { gate_of(event_loop) }.is_some_and(|gate| gate.doom()) {
        // SAFETY: a loop that the program gives up, and that nobody comes into any more.
        drop(unsafe { Box::from_raw(event_loop) });
    }
}

pub(crate) fn submit_fault(error: SubmitError) -> Fault {
    match error {
        SubmitError::UnknownStore => Fault::new(RDZV_INVALID_ARGUMENT, error.to_string()),
        SubmitError::Call(error) => call_fault(&error),
    }
}
