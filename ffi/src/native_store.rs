//! Stores over the native protocol: revisions, prefixes, pages, barriers by name.

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
    call_fault(error.call()).with(|known| known.revision = error.oldest_revision().unwrap_or(0))
}

/// What a store can do beyond the others, if it is a native one.
pub(crate) fn native(store: &rdzv_store, operation: Operation) -> Result<NativeClient, Fault> {
    store.shared.refuse_sink()?;
    store.store.native(operation).map_err(|error| call_fault(&error))
}

/// What is to be done with a native store. No closure behind a pointer, as in [`guard`].
trait OnNative {
    fn run(&mut self, client: &NativeClient, timeout: Timeout) -> Result<(), Fault>;
}

impl<F: FnOnce(&NativeClient, Timeout) -> Result<(), Fault>> OnNative for Option<F> {
    fn run(&mut self, client: &NativeClient, timeout: Timeout) -> Result<(), Fault> {
        self.take().map_or(Ok(()), |body| body(client, timeout))
    }
}

/// Runs an operation that native stores alone have.
unsafe fn operate(
    store: *const rdzv_store,
    operation: Operation,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&NativeClient, Timeout) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { operated((store, operation), timeout_ms, error, &mut Some(body)) }
}

/// Stands once in the library, whatever the number of operations.
#[inline(never)]
unsafe fn operated(
    (store, operation): (*const rdzv_store, Operation),
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
    body: &mut dyn OnNative,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, || {
            let client = native(reference(store, "store")?, operation)?;
            body.run(&client, timeout(timeout_ms)?)
        })
    }
}

/// Connects to a server of ours over the native protocol, trying again until the connect timeout of `options`
/// has passed. The keys are those that `rdzv_store_connect` shows. All calls share one session and one
/// connection, which a thread of the library's drives; handles with prefixes, watches and leases keep the
/// session alive. It ends, and its leases and watches with it, when the last of them is freed, after the
/// grace of `options`; without that at once. `context` may be NULL for a fresh one. On success `*out` is
/// yours until `rdzv_store_free`.
///
/// Errors: as of `rdzv_store_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_connect_native(
    context: *const rdzv_context,
    options: *const rdzv_store_options,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
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

/// Ends the session of a native store with a word to the server, and all that lives on it: leases with their
/// keys, watches, other handles. Nobody takes it for dead, and no grace passes. Later calls fail.
///
/// The store of a round is on the session of its node: this says goodbye for the node, which leaves the run,
/// and the others hear of it. Its handler makes a new session for the next call.
///
/// Errors of this and all operations of native stores: those of `rdzv_store_set`; `RDZV_UNSUPPORTED`, whose
/// message names the kind, of a store of another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_end_session(
    store: *const rdzv_store,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(store, Operation::Bye, timeout_ms, error, |client, _| {
            let span = span(timeout_ms, client.timeouts().call)?;
            client.close(span).map_err(|error| native_fault(&error))
        })
    }
}

/// Reads values with their revisions.
fn read(client: &NativeClient, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Versioned>, Fault> {
    client.read(keys, timeout).map_err(|error| of_keys(native_fault(&error), keys))
}

/// Waits for a key and reads its value into `value`, and the revision of the store that its last change made
/// into `*revision`. With `timeout_ms` 0 a key without a value is no failure: its revision is 0.
///
/// Errors besides: `RDZV_TIMED_OUT` when the key was not set in time.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(store, Operation::MultiGet, timeout_ms, error, |client, timeout| {
            let key = bytes(key, key_len, "key")?;
            let (value, revision) = (reference_mut(value, "value")?, out_pointer(revision, "revision")?);
            let found = read(client, &[key], timeout)?.pop().unwrap_or_default();
            value.put(&found.value);
            revision.put(found.revision);
            Ok(())
        })
    }
}

/// The same for several keys at once: their values replace the content of `values`, in their order, and
/// `revisions` has room for `key_count` numbers.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(store, Operation::MultiGet, timeout_ms, error, |client, timeout| {
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

/// Lists the first `count_max` keys, in byte order, that begin with `prefix` and come behind `after` (with
/// length 0: from the first on); they replace the content of `keys`. Whether others follow, 1 or 0, goes to
/// `*more`; the next page begins behind the last key of this one.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(store, Operation::ListKeys, timeout_ms, error, |client, timeout| {
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

/// Removes all keys that begin with `prefix`, and queues too; `*count` gets the number of keys removed.
/// Keys of rounds that are over stay as they are; `*left`, which may be NULL, gets their number.
///
/// Errors besides: `RDZV_STALE_ROUND` when `prefix` itself lies in a round that is over.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        operate(store, Operation::DeletePrefix, timeout_ms, error, |client, timeout| {
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

/// Arrives at a barrier under `name` (with length 0: the session's, which `rdzv_store_options_set_node`
/// gives) and waits for the others: those of these names, or `count` of them when `name_count` is 0. The
/// first to arrive says who is awaited and until when. Such a barrier is no key, and serves again and again,
/// in generations from 1 on; `generation` 0 is the one that is open or comes next. Which one it was goes to
/// `*released`, which may be NULL.
///
/// Errors besides: `RDZV_TIMED_OUT`, with the missing among the error's nodes as far as they are known;
/// `RDZV_BARRIER_BROKEN`, with who died there; `RDZV_CANCELLED`, also by `rdzv_store_cancel_named_barrier`;
/// the generation of these three is in `rdzv_error_generation`. `RDZV_CONFLICT` (others await other
/// participants), `RDZV_INVALID_ARGUMENT` (nobody awaits this name, or there is none), `RDZV_NOT_FOUND` (the
/// generation is not remembered, or not yet to come).
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        operate(store, Operation::NamedBarrier, timeout_ms, error, |client, timeout| {
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

/// Ends a named barrier for all who wait at it, as `name`, or the session's. Whether somebody did, 1 or 0,
/// goes to `*waited`.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(store, Operation::BarrierCancel, timeout_ms, error, |client, timeout| {
            let (key, name) = (bytes(key, key_len, "key")?, bytes(name, name_len, "name")?);
            let waited = out_pointer(waited, "waited")?;
            let cancelled = client.barrier_cancel(key, name, timeout);
            let somebody = cancelled.map_err(|error| of_keys(native_fault(&error), &[key]))?;
            waited.put(i32::from(somebody));
            Ok(())
        })
    }
}

/// The generation that was released, or how it ended otherwise.
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
        Err(of_keys(Fault::new(status, message).during("barrier"), &[key]).with(|known| {
            (known.nodes, known.generation, known.phase) = (nodes, generation, "waiting".into());
            known.peer = peer.into();
            known.elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        }))
    };
    match end {
        BarrierResult::Released { generation } => Ok(generation),
        BarrierResult::Broken { generation, participant, why } => {
            let description = ("was broken", format!(": {participant} died: {why}"));
            failed(RDZV_BARRIER_BROKEN, generation, description, vec![participant.as_bytes().to_vec()])
        }
        BarrierResult::TimedOut { generation, absent_count, absent } => {
            let mut description = format!(": {absent_count} did not come");
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
