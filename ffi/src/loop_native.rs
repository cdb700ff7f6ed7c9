//! Native stores in the caller's event loop: watches, leases, transactions and batches.

use crate::argument::{bytes, invalid, list, out_pointer, rdzv_bytes, reference, zero_or_more_ms};
use crate::batch::{ANSWER_FIRST_SIZE, rdzv_answer, rdzv_batch, rdzv_txn};
use crate::fault::rdzv_error;
use crate::loop_gate::{self, rdzv_loop};
use crate::sized;
use crate::status::rdzv_status;
use crate::store_options::rdzv_store_options;
use rendezvous_core::driver::native_client::NativeRequest;

/// `rdzv_event.kind`: a change that the watch `operation` observed. `data` and `len` have the key,
/// `revision` the store's revision, and item 0 (`rdzv_loop_item`) the new value; `item_count` is 0 if the
/// key was removed.
pub const RDZV_EVENT_CHANGE: i32 = 7;
/// `rdzv_event.kind`: the watch `operation` has ended, for the reason in `status`.
pub const RDZV_EVENT_WATCH_OVER: i32 = 8;
/// `rdzv_event.kind`: the lease that `operation` granted has ended by itself and its keys were deleted;
/// `number` is the reason, such as `RDZV_WHY_DEADLINE`.
pub const RDZV_EVENT_LEASE_OVER: i32 = 9;

/// Adds a store over the native protocol and starts to connect to its server. `options` are copied. The
/// store's number in this loop, which is above 0, goes to `*store`. The store supports all operations of
/// stores except `rdzv_loop_store_barrier`, and of the operations of nodes `rdzv_loop_node_barrier` and
/// `rdzv_loop_node_shutdown`. `RDZV_EVENT_NODE_OPEN` reports that its session is open, and
/// `RDZV_EVENT_NODE_OVER` that the session has ended, together with its leases and watches.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the options have no endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_native_store(
    event_loop: *mut rdzv_loop,
    options: *const rdzv_store_options,
    store: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (store, options) = (out_pointer(store, "store")?, reference(options, "options")?);
            let (host, port) = options.endpoint()?;
            store.put(this.stores.add_session(host, port, options.native()).as_u32());
            Ok(())
        })
    }
}

/// Submits `rdzv_store_watch_key`. The event's revision is the store's when the watch started. An event of
/// kind `RDZV_EVENT_CHANGE` follows for each change, until `rdzv_loop_cancel` ends the operation or an
/// event of kind `RDZV_EVENT_WATCH_OVER` reports why the watch has ended.
///
/// Errors of this and the submissions below: those of `rdzv_loop_store_set`; `RDZV_UNSUPPORTED` for a store
/// that is neither a native store nor a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_watch_key(
    event_loop: *mut rdzv_loop,
    store: u32,
    key: *const u8,
    key_len: usize,
    from_revision: u64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::WatchKey { key: bytes(key, key_len, "key")?, from_revision })
        })
    }
}

/// Submits `rdzv_store_watch_prefix`; events are as for `rdzv_loop_store_watch_key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_watch_prefix(
    event_loop: *mut rdzv_loop,
    store: u32,
    prefix: *const u8,
    prefix_len: usize,
    from_revision: u64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            let prefix = bytes(prefix, prefix_len, "prefix")?;
            submission.native(&NativeRequest::WatchPrefix { prefix, from_revision })
        })
    }
}

/// Submits `rdzv_store_grant_lease`. The event's number is the lease's number, which the operations below
/// take. If the lease ends by itself, an event of kind `RDZV_EVENT_LEASE_OVER` follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_grant_lease(
    event_loop: *mut rdzv_loop,
    store: u32,
    ttl_ms: i64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::LeaseGrant { ttl: zero_or_more_ms(ttl_ms, "ttl_ms")? })
        })
    }
}

/// Submits `rdzv_lease_attach` for the lease with this number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_attach_lease(
    event_loop: *mut rdzv_loop,
    store: u32,
    lease: u64,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::LeaseAttach { lease, keys: &list(keys, key_count, "keys")? })
        })
    }
}

/// Submits `rdzv_lease_renew` for the lease with this number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_renew_lease(
    event_loop: *mut rdzv_loop,
    store: u32,
    lease: u64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::LeaseRenew { lease })
        })
    }
}

/// Submits `rdzv_lease_revoke` for the lease with this number; the event's number is the number of deleted
/// keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_revoke_lease(
    event_loop: *mut rdzv_loop,
    store: u32,
    lease: u64,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::LeaseRevoke { lease })
        })
    }
}

/// Submits `rdzv_store_delete_prefix`; the event's number is the number of deleted keys, and its
/// `item_count` the number of keys left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_delete_prefix(
    event_loop: *mut rdzv_loop,
    store: u32,
    prefix: *const u8,
    prefix_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::DeletePrefix { prefix: bytes(prefix, prefix_len, "prefix")? })
        })
    }
}

/// Submits `rdzv_store_commit`; the event's number is 1 if all tests held, else 0, and its revision is the
/// store's after the commit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_commit(
    event_loop: *mut rdzv_loop,
    store: u32,
    txn: *const rdzv_txn,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::Txn(&reference(txn, "txn")?.txn))
        })
    }
}

/// Submits `rdzv_store_batch`; the event's `item_count` is the number of answers, which `rdzv_loop_answer`
/// returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_store_batch(
    event_loop: *mut rdzv_loop,
    store: u32,
    batch: *const rdzv_batch,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::submit((event_loop, store), timeout_ms, operation, error, &mut |submission| {
            submission.native(&NativeRequest::Batch(&reference(batch, "batch")?.batch))
        })
    }
}

/// Returns the answer at `index` (from 0) if the last event completed an `rdzv_loop_store_batch`. Set
/// `out->struct_size` first. What `*out` points to is valid until the next call on the loop.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if `index` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_answer(
    event_loop: *mut rdzv_loop,
    index: usize,
    out: *mut rdzv_answer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let given = sized::given_size(out, ANSWER_FIRST_SIZE, "out")?;
            let view = this.last_event.answers.view(index);
            sized::put(
                out,
                given,
                &view.ok_or_else(|| invalid("the last event has no answer with this index"))?,
            );
            Ok(())
        })
    }
}
