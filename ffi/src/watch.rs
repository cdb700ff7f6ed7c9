//! Watches and leases of a native server.

use crate::argument::{bytes, list, out_pointer, rdzv_bytes, reference, reference_mut, zero_or_more_ms};
use crate::buffer::rdzv_buffer;
use crate::context::ContextShared;
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::native_store::{native, native_fault};
use crate::sized;
use crate::status::rdzv_status;
use crate::store::{call_fault, of_keys, rdzv_store, span, timeout};
use rendezvous_core::driver::native_client::{Change, Lease, NativeClient, NativeError, Watch, WatchError};
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::Operation;
use std::sync::Arc;
use std::time::Duration;

/// `rdzv_change.kind`: no change occurred in time.
pub const RDZV_CHANGE_NONE: i32 = 0;
/// `rdzv_change.kind`: the key has a new value.
pub const RDZV_CHANGE_PUT: i32 = 1;
/// `rdzv_change.kind`: the key was deleted.
pub const RDZV_CHANGE_DELETE: i32 = 2;

/// Change that a watch reports.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_change {
    /// Set to `sizeof(rdzv_change)` before the call. The library sets it to the number of bytes it filled.
    pub struct_size: u32,
    /// `RDZV_CHANGE_NONE`, `RDZV_CHANGE_PUT` or `RDZV_CHANGE_DELETE`.
    pub kind: i32,
    /// Store revision of the change.
    pub revision: u64,
}

const CHANGE_FIRST_SIZE: usize = 16;

/// Watch of a key, or of all keys under a prefix. It reports changes in the order of their revisions, each
/// once. Any thread may use it. It keeps its store's session alive; the store's handle may be freed first.
#[derive(Debug)]
pub struct rdzv_watch {
    poison: Poison,
    watch: Watch,
    default: Duration,
    shared: Arc<ContextShared>,
}

/// Lease: its attached keys are deleted when it ends, with its session, by being revoked, or at its
/// deadline. Any thread may use it. It keeps its store's session alive; the store's handle may be freed
/// first.
#[derive(Debug)]
pub struct rdzv_lease {
    poison: Poison,
    lease: Lease,
    default: Duration,
    shared: Arc<ContextShared>,
}

#[cold]
#[inline(never)]
pub(crate) fn watch_fault(error: &WatchError) -> Fault {
    let known = call_fault(error.call());
    known.with(|details| details.revision = error.oldest_revision().unwrap_or(details.revision))
}

/// Creates a watch or a lease.
unsafe fn open<T>(
    (store, operation): (*const rdzv_store, Operation),
    timeout_ms: i64,
    out: *mut *mut T,
    error: *mut *mut rdzv_error,
    make: impl Fn(&NativeClient, Timeout, Duration, Arc<ContextShared>) -> Result<T, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, &mut || {
            let store = reference(store, "store")?;
            let client = native(store, operation)?;
            let (out, timeout) = (out_pointer(out, "out")?, timeout(timeout_ms)?);
            let made = make(&client, timeout, store.store.timeout(), Arc::clone(&store.shared))?;
            out.put(Box::into_raw(Box::new(made)));
            Ok(())
        })
    }
}

/// Watches a key: reports each change from `from_revision` on; 0: from now on. The current value is not
/// reported. To know a key and miss no change, watch it first and then read it. On success the caller owns
/// `*out` and frees it with `rdzv_watch_free`.
///
/// Errors: those of `rdzv_store_end_session`; `RDZV_COMPACTED` (the server no longer has that revision;
/// `rdzv_error_revision` has the oldest that it has).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_watch_key(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    from_revision: u64,
    timeout_ms: i64,
    out: *mut *mut rdzv_watch,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        open((store, Operation::Watch), timeout_ms, out, error, |client, timeout, default, shared| {
            let key = bytes(key, key_len, "key")?;
            watch(client.watch_key(key, from_revision, timeout), key, default, shared)
        })
    }
}

/// Watches all keys that begin with `prefix`, as `rdzv_store_watch_key` watches a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_watch_prefix(
    store: *const rdzv_store,
    prefix: *const u8,
    prefix_len: usize,
    from_revision: u64,
    timeout_ms: i64,
    out: *mut *mut rdzv_watch,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        open((store, Operation::Watch), timeout_ms, out, error, |client, timeout, default, shared| {
            let prefix = bytes(prefix, prefix_len, "prefix")?;
            watch(client.watch_prefix(prefix, from_revision, timeout), prefix, default, shared)
        })
    }
}

/// Converts a new watch to its C handle.
fn watch(
    begun: Result<Watch, NativeError>,
    key: &[u8],
    default: Duration,
    shared: Arc<ContextShared>,
) -> Result<rdzv_watch, Fault> {
    let watch = begun.map_err(|error| of_keys(native_fault(&error), &[key]))?;
    Ok(rdzv_watch { poison: Poison::default(), watch, default, shared })
}

/// Ends a watch and frees it. No other call on it may be in progress: cancel such calls and wait for them
/// first. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_free(watch: *mut rdzv_watch) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(watch) };
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
/// read the keys again and create a new watch), `RDZV_LIMIT_EXCEEDED` (4,096 unread packets of changes are
/// queued in this process), `RDZV_CANCELLED`, `RDZV_SERVER_GONE` (the session has ended). After an error,
/// all later calls return the same one, except for `RDZV_CANCELLED` by `rdzv_store_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_next(
    watch: *const rdzv_watch,
    timeout_ms: i64,
    change: *mut rdzv_change,
    key: *mut rdzv_buffer,
    value: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call_on(watch.as_ref().map(|watch| &watch.poison), error, &mut || {
            let of = reference(watch, "watch")?;
            of.shared.refuse_sink()?;
            let given = sized::given_size(change, CHANGE_FIRST_SIZE, "change")?;
            let next = of.watch.next(span(timeout_ms, of.default)?);
            let next = next.map_err(|error| of_keys(watch_fault(&error), &[of.watch.key()]))?;
            let (kind, revision) = match &next {
                None => (RDZV_CHANGE_NONE, 0),
                Some(Change { value: None, revision, .. }) => (RDZV_CHANGE_DELETE, *revision),
                Some(Change { value: Some(_), revision, .. }) => (RDZV_CHANGE_PUT, *revision),
            };
            let next_change = next.unwrap_or_default();
            if let Ok(key) = reference_mut(key, "key") {
                key.put(&next_change.key);
            }
            if let Ok(value) = reference_mut(value, "value") {
                value.put(&next_change.value.unwrap_or_default());
            }
            sized::put(change, given, &rdzv_change { struct_size: 0, kind, revision });
            Ok(())
        })
    }
}

/// Cancels current and later calls of `rdzv_watch_next`, on all threads; they return `RDZV_CANCELLED`. A
/// thread that is to stop is thus stopped, even if it is not waiting yet. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_watch_cancel(watch: *const rdzv_watch) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(watch, (), |of| of.watch.cancel()) };
}

/// Creates a lease that ends `ttl_ms` milliseconds after it was granted or last renewed, or with its
/// session if that ends first; with 0, only with its session. On success the caller owns `*out` and frees
/// it with `rdzv_lease_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_grant_lease(
    store: *const rdzv_store,
    ttl_ms: i64,
    timeout_ms: i64,
    out: *mut *mut rdzv_lease,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        open((store, Operation::LeaseGrant), timeout_ms, out, error, |client, timeout, default, shared| {
            let lease = client.lease(zero_or_more_ms(ttl_ms, "ttl_ms")?, timeout);
            let lease = lease.map_err(|error| native_fault(&error))?;
            Ok(rdzv_lease { poison: Poison::default(), lease, default, shared })
        })
    }
}

/// Frees a lease's handle without ending the lease. No other call on it may be in progress. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_free(lease: *mut rdzv_lease) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(lease) };
}

/// Returns the lease's number at the server; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_number(lease: *const rdzv_lease) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(lease, 0, |of| of.lease.number()) }
}

/// Runs an operation on a lease.
unsafe fn on_lease(
    lease: *const rdzv_lease,
    error: *mut *mut rdzv_error,
    body: impl Fn(&rdzv_lease) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(lease.as_ref().map(|lease| &lease.poison), error, &mut || {
            let lease = reference(lease, "lease")?;
            lease.shared.refuse_sink()?;
            body(lease)
        })
    }
}

/// Attaches keys to the lease, so that they are deleted when it ends. Attach keys before setting them, so
/// that none remains if this process dies in between. A key is attached to one lease, the last one;
/// deleting the key detaches it.
///
/// Also returns: `RDZV_NOT_FOUND` (the lease has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_attach(
    lease: *const rdzv_lease,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        on_lease(lease, error, |of| {
            let keys = list(keys, key_count, "keys")?;
            let attached = of.lease.attach(&keys, timeout(timeout_ms)?);
            attached.map_err(|error| of_keys(native_fault(&error), &keys))
        })
    }
}

/// Renews the lease: it ends `ttl_ms` from now.
///
/// Also returns: `RDZV_NOT_FOUND` (the lease has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_renew(
    lease: *const rdzv_lease,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        on_lease(lease, error, |of| {
            of.lease.renew(timeout(timeout_ms)?).map_err(|error| native_fault(&error))
        })
    }
}

/// Ends the lease and deletes its keys. Their number goes to `*count`, unless `count` is NULL.
///
/// Also returns: `RDZV_NOT_FOUND` (the lease has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_revoke(
    lease: *const rdzv_lease,
    timeout_ms: i64,
    count: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        on_lease(lease, error, |of| {
            let removed = of.lease.revoke(timeout(timeout_ms)?).map_err(|error| native_fault(&error))?;
            if let Ok(count) = out_pointer(count, "count") {
                count.put(removed);
            }
            Ok(())
        })
    }
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
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        on_lease(lease, error, |of| {
            let (why, span) = (out_pointer(why, "why")?, span(timeout_ms, of.default)?);
            let over = of.lease.wait_over(span).map_err(|error| native_fault(&error))?;
            why.put(over.map_or(0, |over| i32::from(over.number())));
            Ok(())
        })
    }
}

/// Cancels current and later calls of `rdzv_lease_wait_over`, on all threads; they return `RDZV_CANCELLED`.
/// The lease is not affected. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_lease_cancel(lease: *const rdzv_lease) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(lease, (), |of| of.lease.cancel_wait()) };
}
