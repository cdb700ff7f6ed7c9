//! Watches and leases of a native server.

use crate::native_store::{native, native_fault};
use crate::op::{OpRequest, rdzv_op};
use crate::prelude::*;
use crate::store::{call_fault, of_keys, rdzv_store, span, timeout};
use rendezvous_core::driver::native_client::{Lease, NativeRequest, Watch, WatchError};
use rendezvous_core::error::Operation;

/// `rdzv_change.kind`: no change occurred in time.
pub const RDZV_CHANGE_NONE: i32 = 0;
/// `rdzv_change.kind`: the key has a new value.
pub const RDZV_CHANGE_PUT: i32 = 1;
/// `rdzv_change.kind`: the key was deleted.
pub const RDZV_CHANGE_DELETE: i32 = 2;

/// Change that a watch reports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_change {
    /// Set to `sizeof(rdzv_change)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// `RDZV_CHANGE_NONE`, `RDZV_CHANGE_PUT` or `RDZV_CHANGE_DELETE`.
    pub kind: i32,
    /// Store revision of the change.
    pub revision: u64,
    /// Changed key, without the prefix of the store. From `rdzv_watch_next` it is in the caller's buffer,
    /// NULL without one.
    pub key: *const u8,
    /// Length of `key` in bytes.
    pub key_len: usize,
    /// New value, likewise; NULL if the key was deleted.
    pub value: *const u8,
    /// Length of `value` in bytes.
    pub value_len: usize,
}
growing!(rdzv_change: 48);

/// Watch of a key, or of all keys under a prefix. It reports changes in the order of their revisions,
/// each once. Any thread may use it. It keeps its store's session alive; the store's handle may be freed
/// first.
#[derive(Debug)]
pub struct rdzv_watch {
    state: HandleState,
    watch: Watch,
    default: Duration,
    shared: Arc<ContextShared>,
}
guard::handle!(rdzv_watch, shared);
faults! { WatchError => watch_fault, }

/// Lease: its attached keys are deleted when it ends, with its session, by being revoked, or at its
/// deadline. Any thread may use it. It keeps its store's session alive; the store's handle may be freed
/// first.
#[derive(Debug)]
pub struct rdzv_lease {
    state: HandleState,
    lease: Lease,
    default: Duration,
    shared: Arc<ContextShared>,
}
guard::handle!(rdzv_lease, shared);

#[cold]
#[inline(never)]
pub(crate) fn watch_fault(error: &WatchError) -> Fault {
    let known = call_fault(error.call());
    known.with(|details| details.revision = error.oldest_revision().unwrap_or(details.revision))
}

/// Returns a change for C, which points to `key` and `value`.
pub(crate) fn change_of(revision: u64, key: &[u8], value: Option<&[u8]>) -> rdzv_change {
    rdzv_change {
        struct_size: struct_size::<rdzv_change>(),
        kind: if value.is_some() { RDZV_CHANGE_PUT } else { RDZV_CHANGE_DELETE },
        revision,
        key: key.as_ptr(),
        key_len: key.len(),
        value: value.map_or_else(null, <[u8]>::as_ptr),
        value_len: value.map_or(0, <[u8]>::len),
    }
}

/// Begins the watch that `op` describes, a request of `rdzv_op_watch_key` or `rdzv_op_watch_prefix`. The
/// operation is copied and can be used again. On success the caller owns `*out` and frees it with
/// `rdzv_watch_free`.
///
/// Errors: those of `rdzv_store_perform`; `RDZV_COMPACTED`; `RDZV_INVALID_ARGUMENT` also if the operation
/// is no watch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_new(
    store: *const rdzv_store,
    op: *const rdzv_op,
    timeout_ms: i64,
    out: *mut *mut rdzv_watch,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| {
        let (body, timeout) = (reference(op, "op")?.cell.enter()?, timeout(timeout_ms)?);
        let client = native(store, Operation::Watch)?;
        let watch = match body.request(&[], b"", b"")? {
            OpRequest::Native(NativeRequest::WatchKey { key, from_revision }) => {
                client.watch_key(key, from_revision, timeout)
            }
            OpRequest::Native(NativeRequest::WatchPrefix { prefix, from_revision }) => {
                client.watch_prefix(prefix, from_revision, timeout)
            }
            _ => return Err(invalid("`op` is no watch")),
        };
        let watch = watch.map_err(|error| of_keys(native_fault(&error), &body.keys()))?;
        let (default, shared) = (store.store.timeout(), Arc::clone(&store.shared));
        Ok(boxed(rdzv_watch { state: HandleState::default(), watch, default, shared }))
    })
}

/// Ends a watch and frees it. No other call on it may be in progress: cancel such calls and wait for them
/// first. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_free(watch: *mut rdzv_watch) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(watch, "rdzv_watch_free") };
}

/// Returns the store's revision at the start of the watch; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_revision(watch: *const rdzv_watch) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(watch, 0, |of| of.watch.revision()) }
}

/// Waits up to `timeout_ms` (0: poll once; -1: the default of the store's handle) for the next change and
/// fills `*change`, whose `struct_size` the caller has set; the kind is `RDZV_CHANGE_NONE` if there was
/// none. The key replaces the content of `key`, and the new value that of `value`; both may be NULL. If
/// several threads wait, each gets a different change.
///
/// Errors: `RDZV_COMPACTED` (the watch was not read for so long that it fell behind the server's history:
/// read the keys again and create a new watch), `RDZV_LIMIT_EXCEEDED` (4,096 unread packets of changes
/// are queued in this process), `RDZV_CANCELLED`, `RDZV_SERVER_GONE` (the session has ended). After an
/// error, all later calls return the same one, except for `RDZV_CANCELLED` by `rdzv_store_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_next(
    watch: *const rdzv_watch,
    timeout_ms: i64,
    change: *mut rdzv_change,
    key: *mut rdzv_buffer,
    value: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, watch, change, |of| {
        let next = of.watch.next(span(timeout_ms, of.default)?);
        let next = next.map_err(|error| of_keys(watch_fault(&error), &[of.watch.key()]))?;
        let value_bytes = next.as_ref().and_then(|next| next.value.as_deref());
        let mut view = match &next {
            Some(next) => change_of(next.revision, &next.key, value_bytes),
            None => rdzv_change::default(),
        };
        // The change is dropped at the end of this call.
        view.key = fill_unless_null(key, next.as_ref().map(|next| &next.key));
        view.value = fill_unless_null(value, value_bytes);
        Ok(view)
    })
}

/// Cancels current and later calls of `rdzv_watch_next`, on all threads; they return `RDZV_CANCELLED`. A
/// thread that is to stop is thus stopped, even if it is not waiting yet. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_cancel(watch: *const rdzv_watch) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::notify(watch, |of| of.watch.cancel()) };
}

/// Grants a lease that ends `ttl_ms` milliseconds after it was granted or last renewed, or with its
/// session if that ends first; with 0, only with its session. `rdzv_op_attach_lease` attaches keys to it.
/// On success the caller owns `*out` and frees it with `rdzv_lease_free`.
///
/// Errors: those of `rdzv_store_perform`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_new(
    store: *const rdzv_store,
    ttl_ms: i64,
    timeout_ms: i64,
    out: *mut *mut rdzv_lease,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| {
        let client = native(store, Operation::LeaseGrant)?;
        let lease = client.lease(zero_or_more_ms(ttl_ms, "ttl_ms")?, timeout(timeout_ms)?);
        let (lease, default, shared) = (lease?, store.store.timeout(), Arc::clone(&store.shared));
        Ok(boxed(rdzv_lease { state: HandleState::default(), lease, default, shared }))
    })
}

/// Frees a lease's handle without ending the lease. No other call on it may be in progress. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_free(lease: *mut rdzv_lease) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(lease, "rdzv_lease_free") };
}

/// Returns the lease's number at the server; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_number(lease: *const rdzv_lease) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(lease, 0, |of| of.lease.number()) }
}

/// Waits up to `timeout_ms` (0: poll once; -1: the default of the store's handle) for the lease to end by
/// itself. `*why` is the reason, `RDZV_WHY_DEADLINE`, or 0 if the lease has not ended. A lease that is
/// revoked does not end by itself.
///
/// Also returns: `RDZV_CANCELLED`; `RDZV_SERVER_GONE` (the session has ended, and the lease with it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_wait_over(
    lease: *const rdzv_lease,
    timeout_ms: i64,
    why: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, lease, why, |of| {
        let over = of.lease.wait_over(span(timeout_ms, of.default)?)?;
        Ok(over.map_or(0, |over| over.number().into()))
    })
}

/// Cancels current and later calls of `rdzv_lease_wait_over`, on all threads; they return
/// `RDZV_CANCELLED`. The lease is not affected. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_cancel(lease: *const rdzv_lease) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::notify(lease, |of| of.lease.cancel_wait()) };
}
