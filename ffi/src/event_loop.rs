//! Stores in the caller's event loop, without callbacks and without blocking calls.

use crate::argument::{bytes, list, out_pointer, participants, rdzv_bytes, reference};
use crate::context::{home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::loop_event::{LastEvent, RDZV_EVENT_COMPLETED, RDZV_EVENT_NONE, rdzv_event};
use crate::loop_gate::{self, rdzv_loop};
use crate::loop_node::NodeEventView;
use crate::sized;
use crate::status::{RDZV_EXHAUSTED, RDZV_IO, RDZV_OK, rdzv_status};
use crate::store::call_fault;
use crate::store_options::rdzv_store_options;
use rendezvous_core::driver::loop_client::{Loop, LoopEvent, MemberId, Session};
use rendezvous_core::store::call::{CallId, Outcome};
use rendezvous_core::store::op::{Keys, Pairs, Request};
use std::ptr::null;

const NO_EVENT: rdzv_event = rdzv_event {
    struct_size: 0,
    kind: RDZV_EVENT_NONE,
    operation: 0,
    store: 0,
    status: RDZV_OK,
    number: 0,
    data: null(),
    len: 0,
    item_count: 0,
    error: null(),
    revision: 0,
};

/// Size of `rdzv_event` in the first release of the header.
const EVENT_FIRST_SIZE: usize = 64;

/// Creates a loop without stores. `context` may be NULL, which creates a new one. On success the caller
/// owns `*out` and frees it with `rdzv_loop_free`.
///
/// Errors: `RDZV_EXHAUSTED` if no descriptor is available.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_new(
    context: *const rdzv_context,
    out: *mut *mut rdzv_loop,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let home = home(context)?;
            let stores = Loop::new().map_err(|cause| {
                Fault::new(RDZV_EXHAUSTED, format!("no descriptors for an event loop: {cause}"))
                    .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
            })?;
            out.put(Box::into_raw(Box::new(rdzv_loop::new(stores, home))));
            Ok(())
        })
    }
}

/// Frees a loop, closes the connections of all its stores, and closes its descriptor. RPC workers that were
/// created for the loop end abruptly. This call waits for them up to 5 s in total; workers that take
/// longer, for example because a handler is running, finish without the loop. A handler is certain not to
/// be called again only once its `destroy` was called. Must not be called in a forked child, because
/// workers and requests belong to the parent. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_free(event_loop: *mut rdzv_loop) {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet((), || unsafe { loop_gate::free(event_loop) });
}

/// Returns the descriptor that is readable when `rdzv_loop_poll` has work to do. It stays the same for the
/// life of the loop; do not read or close it. -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_fd(event_loop: *const rdzv_loop) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(-1, || unsafe { loop_gate::fd_of(event_loop) })
}

/// Processes all pending work without blocking.
///
/// Errors: `RDZV_IO` if the operating system's event queue failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_poll(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            this.stores.poll().map_err(|cause| {
                Fault::new(RDZV_IO, format!("the event queue failed: {cause}"))
                    .during("poll")
                    .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
            })
        })
    }
}

/// Writes the next event to `*event`; its kind is `RDZV_EVENT_NONE` if there is none. Set
/// `event->struct_size` first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_next_event(
    event_loop: *mut rdzv_loop,
    event: *mut rdzv_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let view = loop {
                let next = this.stores.next_event();
                let view = this.last_event.show(&mut this.stores, next);
                // Taking an event may run user code, which may remove the worker that the event is of.
                let was_removed = loop_gate::remove_now(this, Some(MemberId::from_u32(view.store)));
                // The event would point to data that is freed together with the loop.
                if this.gate.is_freed_on_leave() {
                    break NO_EVENT;
                }
                if !was_removed {
                    break view;
                }
            };
            sized::put(event, given, &view);
            Ok(())
        })
    }
}

/// Returns the item at `index` (from 0) of the last event and writes its length to `*len` unless `len` is
/// NULL; NULL if `index` is out of range. Valid until the next call on the loop. Not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_item(
    event_loop: *const rdzv_loop,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| crate::buffer::item(&this.last_event.items, index, len))
    })
}

/// Adds a store; the loop connects to it when its first operation is submitted. `options` are copied. The
/// store's number in this loop, which is above 0, goes to `*store`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the options have no endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_store(
    event_loop: *mut rdzv_loop,
    options: *const rdzv_store_options,
    store: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (store, options) = (out_pointer(store, "store")?, reference(options, "options")?);
            let (host, port) = options.endpoint()?;
            store.put(this.stores.add_store(host, port, options.options.clone()).as_u32());
            Ok(())
        })
    }
}

/// Closes a store's connections and removes it from the loop. No event of its operations follows. The
/// session of a native store ends without notice to the server; use `rdzv_loop_node_shutdown` to end it in
/// an orderly way. An unknown store is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_store(
    event_loop: *mut rdzv_loop,
    store: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            this.stores.remove_store(MemberId::from_u32(store));
            Ok(())
        })
    }
}

/// Cancels an operation: its event has status `RDZV_CANCELLED`, unless it has already completed. `store`
/// may be an RPC worker and `operation` one of its calls. An unknown store or operation is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_cancel(
    event_loop: *mut rdzv_loop,
    store: u32,
    operation: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            this.stores.cancel(MemberId::from_u32(store), CallId(operation));
            Ok(())
        })
    }
}

impl LastEvent {
    /// Stores the data of an event and returns the event for C.
    fn show(&mut self, stores: &mut Loop, event: Option<LoopEvent>) -> rdzv_event {
        *self = Self::default();
        let mut view = NO_EVENT;
        let event = match event {
            None => return view,
            Some(LoopEvent::Store(event)) => event,
            Some(LoopEvent::Member(member, event)) => {
                view.store = member.as_u32();
                if let Err(event) = self.keep_agent(&mut view, event)
                    && let Some(fault) = self.keep_rpc(&mut view, event)
                {
                    self.fail(&mut view, fault);
                }
                return view;
            }
            Some(LoopEvent::Session(session, event)) => {
                let member = stores.session(session);
                let run_id = member.as_ref().and_then(Session::run_id);
                let node = member.as_ref().map_or("", Session::node);
                let peer = member.as_ref().map_or("", Session::peer);
                let NodeEventView { kind, operation, number, revision, fault } =
                    self.keep((run_id, node, peer), event);
                (view.kind, view.operation, view.number) = (kind, operation, number);
                (view.store, view.revision) = (session.as_u32(), revision);
                view.item_count = self.members.len() + self.items.len() + self.answers.count() + self.left;
                if !self.value.is_empty() {
                    (view.data, view.len) = (self.value.as_ptr(), self.value.len());
                }
                if let Some(fault) = fault {
                    self.fail(&mut view, fault);
                }
                return view;
            }
        };
        view.kind = RDZV_EVENT_COMPLETED;
        view.operation = event.call.0;
        view.store = event.store.as_u32();
        match event.result {
            Ok(answer) => match answer.outcome {
                Outcome::Number(number) => view.number = number,
                Outcome::Ready => view.number = 1,
                Outcome::Value => {
                    self.value = answer.values.into_iter().next().unwrap_or_default();
                    view.data = self.value.as_ptr();
                    view.len = self.value.len();
                }
                Outcome::Values(_) => {
                    self.items = answer.values;
                    view.item_count = self.items.len();
                }
                Outcome::Applied
                | Outcome::Alive
                | Outcome::NotReady
                | Outcome::Released
                | Outcome::Missing
                | Outcome::QueueEmpty => {}
            },
            Err(failure) => {
                self.fail(&mut view, call_fault(&failure).with(|details| details.keys = event.keys))
            }
        }
        view
    }

    fn fail(&mut self, view: &mut rdzv_event, fault: Fault) {
        let error = self.error.insert(Box::new(rdzv_error::new(fault)));
        view.status = error.status();
        view.error = &raw const **error;
    }
}

/// Submits `rdzv_store_set` to a store of the loop. Barriers by keys and worker counts take several
/// operations and are available for blocking stores only.
///
/// This function and all submissions below return at once. They copy their arguments and write the
/// operation's number to `*operation`; its event follows by its deadline at the latest. `timeout_ms` and
/// the statuses of events are as for a blocking store. Operations on one store may complete in another
/// order than they were submitted: if an operation depends on another one, wait for the event of that one
/// first.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (also for an unknown store), `RDZV_LIMIT_EXCEEDED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_set(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Set { key, value: bytes(value, value_len, "value")? })
        })
    }
}

/// Submits `rdzv_store_get`; the event has the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_get(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Get { key })
        })
    }
}

/// Submits `rdzv_store_add`; the event's number is the sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_add(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    delta: i64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Add { key, delta })
        })
    }
}

/// Submits `rdzv_store_compare_set`; the event has the value afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_compare_set(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
    desired: *const u8,
    desired_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            let expected = bytes(expected, expected_len, "expected")?;
            let desired = bytes(desired, desired_len, "desired")?;
            submission.begin(Request::CompareSet { key, expected, desired })
        })
    }
}

/// Submits `rdzv_store_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_wait(
    event_loop: *mut rdzv_loop,
    store: u32,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let keys = list(keys, key_count, "keys")?;
            let keys = Keys::scoped(submission.scope, &keys);
            submission.begin(Request::Wait { keys })
        })
    }
}

/// Submits `rdzv_store_check`; the event's number is 1 if every key exists, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_check(
    event_loop: *mut rdzv_loop,
    store: u32,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let keys = list(keys, key_count, "keys")?;
            let keys = Keys::scoped(submission.scope, &keys);
            submission.begin(Request::Check { keys })
        })
    }
}

/// Submits `rdzv_store_delete_key`; the event's number is 1 if the key existed, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_delete_key(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Delete { key })
        })
    }
}

/// Submits `rdzv_store_num_keys`; the event's number is the count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_num_keys(
    event_loop: *mut rdzv_loop,
    store: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.begin(Request::NumKeys)
        })
    }
}

/// Submits `rdzv_store_list_keys`; the event has the keys as items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_list_keys(
    event_loop: *mut rdzv_loop,
    store: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.begin(Request::ListKeys)
        })
    }
}

/// Submits `rdzv_store_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_append(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Append { key, value: bytes(value, value_len, "value")? })
        })
    }
}

/// Submits `rdzv_store_multi_get`; the event has the values as items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_multi_get(
    event_loop: *mut rdzv_loop,
    store: u32,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let keys = list(keys, key_count, "keys")?;
            let keys = Keys::scoped(submission.scope, &keys);
            submission.begin(Request::MultiGet { keys })
        })
    }
}

/// Submits `rdzv_store_multi_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_multi_set(
    event_loop: *mut rdzv_loop,
    store: u32,
    keys: *const rdzv_bytes,
    values: *const rdzv_bytes,
    count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let (keys, values) = (list(keys, count, "keys")?, list(values, count, "values")?);
            let pairs: Vec<(&[u8], &[u8])> = keys.into_iter().zip(values).collect();
            submission.begin(Request::MultiSet { pairs: Pairs::scoped(submission.scope, &pairs) })
        })
    }
}

/// Submits `rdzv_store_queue_push`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_queue_push(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    item: *const u8,
    item_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::QueuePush { key, value: bytes(item, item_len, "item")? })
        })
    }
}

/// Submits `rdzv_store_queue_pop`; the event has the item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_queue_pop(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::QueuePop { key })
        })
    }
}

/// Submits `rdzv_store_queue_len`; the event's number is the length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_queue_len(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::QueueLen { key })
        })
    }
}

/// Submits `rdzv_store_barrier`; the event follows when all participants have arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_barrier(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    world_size: i64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let key = submission.key(key, key_len)?;
            submission.begin(Request::Barrier { key, world_size: participants(world_size)? })
        })
    }
}

/// Submits `rdzv_store_ping`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_ping(
    event_loop: *mut rdzv_loop,
    store: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.ping()
        })
    }
}
