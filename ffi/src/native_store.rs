//! Stores over the native protocol: revisions, prefixes, pages and named barriers.

use crate::argument::{bytes, list, out_pointer, rdzv_bytes, reference, reference_mut};
use crate::buffer::{rdzv_buffer, rdzv_list};
use crate::context::{rdzv_context, shared};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::{RDZV_BARRIER_BROKEN, RDZV_CANCELLED, RDZV_TIMED_OUT, rdzv_status};
use crate::store::{call_fault, handle, of_keys, rdzv_store, span, timeout};
use crate::store_options::rdzv_store_options;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::native_client::{
    BarrierResult, NativeClient, NativeError, Versioned, participants,
};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::{Operation, Span};
use rendezvous_core::store::op::Key;
use std::time::Duration;

#[cold]
#[inline(never)]
pub(crate) fn native_fault(error: &NativeError) -> Fault {
    call_fault(error.call()).with(|details| details.revision = error.oldest_revision().unwrap_or(0))
}

/// Returns the native client of a store.
///
/// # Errors
///
/// `RDZV_UNSUPPORTED` if the store is not a native one.
pub(crate) fn native(store: &rdzv_store, operation: Operation) -> Result<NativeClient, Fault> {
    store.shared.refuse_sink()?;
    store.store.native(operation).map_err(|error| call_fault(&error))
}

/// Runs an operation that only native stores have.
unsafe fn operate(
    store: *const rdzv_store,
    operation: Operation,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut(&NativeClient, Timeout) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, &mut || {
            let client = native(reference(store, "store")?, operation)?;
            body(&client, timeout(timeout_ms)?)
        })
    }
}

/// Connects to a librendezvous server over the native protocol and retries until the connect timeout of
/// `options` has passed. The keys are the same as those of `rdzv_store_connect`. All calls share one
/// session and one connection, which a library thread drives. Handles with prefixes, watches and leases
/// keep the session alive. The session ends, with its leases and watches, when the last of these handles is
/// freed: after the grace period of `options`, or at once if none is set. `context` may be NULL, which
/// creates a new one. On success the caller owns `*out` and frees it with `rdzv_store_free`.
///
/// Errors: those of `rdzv_store_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_connect_native(
    context: *const rdzv_context,
    options: *const rdzv_store_options,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let shared = shared(context)?;
            let options = reference(options, "options")?;
            let (host, port) = options.endpoint()?;
            let store = Store::connect_native(host, port, options.native());
            out.put(handle(store.map_err(|error| call_fault(&error))?, shared));
            Ok(())
        })
    }
}

/// Ends the session of a native store gracefully, with everything that belongs to it: leases with their
/// keys, watches and other handles. The server does not report a death and no grace period passes. Later
/// calls fail.
///
/// The store of a round uses the session of its node: ending it makes the node leave the run, and the other
/// nodes are notified. The node's handler opens a new session for its next call.
///
/// Errors of this and all other operations of native stores: those of `rdzv_store_set`; `RDZV_UNSUPPORTED`
/// for a store of another kind, which the message names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_end_session(
    store: *const rdzv_store,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        operate(store, Operation::Bye, timeout_ms, error, &mut |client, _| {
            let span = span(timeout_ms, client.timeouts().call)?;
            client.close(span).map_err(|error| native_fault(&error))
        })
    }
}

/// Reads values and their revisions.
fn read(client: &NativeClient, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Versioned>, Fault> {
    client.read(keys, timeout).map_err(|error| of_keys(native_fault(&error), keys))
}

/// Waits for a key, copies its value to `value` and writes the store revision of its last change to
/// `*revision`. With `timeout_ms` 0, a key without a value is not an error: its revision is 0.
///
/// Also returns: `RDZV_TIMED_OUT` (the key was not set in time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_get_with_revision(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    value: *mut rdzv_buffer,
    revision: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        operate(store, Operation::MultiGet, timeout_ms, error, &mut |client, timeout| {
            let key = bytes(key, key_len, "key")?;
            let (value, revision) = (reference_mut(value, "value")?, out_pointer(revision, "revision")?);
            let found = read(client, &[key], timeout)?.pop().unwrap_or_default();
            value.put(&found.value);
            revision.put(found.revision);
            Ok(())
        })
    }
}

/// Reads several keys at once, as `rdzv_store_get_with_revision` reads one. The values replace the content
/// of `values`, in the order of `keys`; `revisions` has space for `key_count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_multi_get_with_revisions(
    store: *const rdzv_store,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    values: *mut rdzv_list,
    revisions: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        operate(store, Operation::MultiGet, timeout_ms, error, &mut |client, timeout| {
            let keys = list(keys, key_count, "keys")?;
            let values = reference_mut(values, "values")?;
            out_pointer(revisions, "revisions")?;
            let found = read(client, &keys, timeout)?;
            for (at, versioned) in found.iter().take(key_count).enumerate() {
                revisions.add(at).write(versioned.revision);
            }
            values.items = found.into_iter().map(|versioned| versioned.value).collect();
            Ok(())
        })
    }
}

/// Lists, in byte order, the first `count_max` keys that begin with `prefix` and sort after `after` (length
/// 0: from the first key). They replace the content of `keys`. `*more` is 1 if more keys follow, else 0;
/// pass the last key of a page as `after` to get the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_list_keys_page(
    store: *const rdzv_store,
    prefix: *const u8,
    prefix_len: usize,
    after: *const u8,
    after_len: usize,
    count_max: u32,
    timeout_ms: i64,
    keys: *mut rdzv_list,
    more: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        operate(store, Operation::ListKeys, timeout_ms, error, &mut |client, timeout| {
            let (prefix, after) = (bytes(prefix, prefix_len, "prefix")?, bytes(after, after_len, "after")?);
            let (keys, more) = (reference_mut(keys, "keys")?, out_pointer(more, "more")?);
            let page = client.list_page(prefix, after, count_max, timeout);
            let page = page.map_err(|error| native_fault(&error))?;
            keys.items = page.keys;
            more.put(i32::from(page.more));
            Ok(())
        })
    }
}

/// Deletes all keys and queues whose names begin with `prefix`; `*count` receives the number of keys
/// deleted. Keys of rounds that have ended are not deleted; `*left`, which may be NULL, receives their
/// number.
///
/// Also returns: `RDZV_STALE_ROUND` (`prefix` itself lies in a round that has ended).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_delete_prefix(
    store: *const rdzv_store,
    prefix: *const u8,
    prefix_len: usize,
    timeout_ms: i64,
    count: *mut i64,
    left: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        operate(store, Operation::DeletePrefix, timeout_ms, error, &mut |client, timeout| {
            let (prefix, count) = (bytes(prefix, prefix_len, "prefix")?, out_pointer(count, "count")?);
            let removed = client.delete_prefix(prefix, timeout);
            let done = removed.map_err(|error| of_keys(native_fault(&error), &[prefix]))?;
            let number = |keys| i64::try_from(keys).unwrap_or(i64::MAX);
            count.put(number(done.removed));
            if let Ok(left) = out_pointer(left, "left") {
                left.put(number(done.left));
            }
            Ok(())
        })
    }
}

/// Arrives at a named barrier as participant `name` and waits for the other participants: those in `names`,
/// or any `count` of them if `name_count` is 0. With length 0, `name` is the session's name, set by
/// `rdzv_store_options_set_node`. The first participant to arrive determines the participants and the
/// deadline. A named barrier is not a key and can be reused: its generations are numbered from 1.
/// `generation` 0 means the open generation, or the next one if none is open. The generation that was
/// released goes to `*released`, which may be NULL.
///
/// Also returns: `RDZV_TIMED_OUT` (the error's nodes list the missing participants as far as they are
/// known); `RDZV_BARRIER_BROKEN` (the error's nodes name the participant that died); `RDZV_CANCELLED`, also
/// after `rdzv_store_cancel_named_barrier`; for these three, `rdzv_error_generation` returns the
/// generation. `RDZV_CONFLICT` (the open generation expects other participants), `RDZV_INVALID_ARGUMENT`
/// (`name` is not one of the participants, or the caller has no name), `RDZV_NOT_FOUND` (the generation is
/// no longer remembered, or is still in the future).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_named_barrier(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    generation: u64,
    name: *const u8,
    name_len: usize,
    count: u32,
    names: *const rdzv_bytes,
    name_count: usize,
    timeout_ms: i64,
    released: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        operate(store, Operation::NamedBarrier, timeout_ms, error, &mut |client, timeout| {
            let (key, name) = (bytes(key, key_len, "key")?, bytes(name, name_len, "name")?);
            let names = list(names, name_count, "names")?;
            let clock = Clock::new();
            let began = clock.now();
            let end = client.barrier(key, generation, name, participants(count, &names), timeout);
            let end = end.map_err(|error| of_keys(native_fault(&error), &[key]))?;
            let generation = barrier_end(end, key, clock.now().since(began), client.peer())?;
            if let Ok(released) = out_pointer(released, "released") {
                released.put(generation);
            }
            Ok(())
        })
    }
}

/// Cancels a named barrier for all its waiting participants, on behalf of `name` (length 0: the session's
/// name). `*waited` is 1 if any participant was waiting, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_cancel_named_barrier(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    name: *const u8,
    name_len: usize,
    timeout_ms: i64,
    waited: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        operate(store, Operation::BarrierCancel, timeout_ms, error, &mut |client, timeout| {
            let (key, name) = (bytes(key, key_len, "key")?, bytes(name, name_len, "name")?);
            let waited = out_pointer(waited, "waited")?;
            let cancelled = client.barrier_cancel(key, name, timeout);
            let was_waiting = cancelled.map_err(|error| of_keys(native_fault(&error), &[key]))?;
            waited.put(i32::from(was_waiting));
            Ok(())
        })
    }
}

/// Converts the end of a barrier: the generation that was released, or the failure.
pub(crate) fn barrier_end(
    end: BarrierResult,
    key: &[u8],
    elapsed: Duration,
    peer: &str,
) -> Result<u64, Fault> {
    let failed = |status, generation, description: (&str, String), nodes: Vec<Vec<u8>>| {
        let (what, why) = description;
        let (key_text, after) = (Key::raw(key), Span(elapsed));
        let message = format!("barrier \"{key_text}\" at {peer} {what} after {after} while waiting{why}");
        Err(of_keys(Fault::new(status, message).during("barrier"), &[key]).with(|details| {
            (details.nodes, details.generation, details.phase) = (nodes, generation, "waiting".into());
            details.peer = peer.into();
            details.elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        }))
    };
    match end {
        BarrierResult::Released { generation } => Ok(generation),
        BarrierResult::Broken { generation, participant, why } => {
            let description = ("was broken", format!(": {participant} died: {why}"));
            failed(RDZV_BARRIER_BROKEN, generation, description, vec![participant.as_bytes().to_vec()])
        }
        BarrierResult::TimedOut { generation, absent_count, absent } => {
            let mut description = format!(": {absent_count} did not arrive");
            if !absent.is_empty() {
                description = format!("{description}: {}", absent.join(", "));
            }
            let nodes = absent.iter().map(|name| name.as_bytes().to_vec()).collect();
            failed(RDZV_TIMED_OUT, generation, ("timed out", description), nodes)
        }
        BarrierResult::Cancelled { generation, by } => {
            let description = ("was cancelled", format!(", by {by}"));
            failed(RDZV_CANCELLED, generation, description, Vec::new())
        }
    }
}
