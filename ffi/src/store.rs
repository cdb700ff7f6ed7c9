//! Clients of a store.

use crate::prelude::*;
use crate::store_options::{rdzv_store_options, store_options};
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::{Cause, ErrorKind};

/// Handle of a store: on a server (this library's or PyTorch's), in a file, in this process, or in user
/// code, each of them optionally under a prefix. Any thread may use it, and a wait in one thread never
/// delays another. Operations have the same meaning for all kinds, except where noted. Over TCP, each
/// call drives a connection of its own on the calling thread. A handle has up to 256 connections, of
/// which one is reserved for calls that do not wait; further calls queue until their deadlines. On the
/// wire, keys get the prefix `/`, like those of PyTorch's clients. No call waits without a limit:
/// `timeout_ms` is above 0, or 0 to try once, or -1 for the handle's default.
#[derive(Debug)]
pub struct rdzv_store {
    pub(crate) state: HandleState,
    pub(crate) store: Arc<NodeStore>,
    peer: CString,
    pub(crate) shared: Arc<ContextShared>,
}
guard::handle!(rdzv_store, shared);
faults! { CallError => call_fault, }

impl rdzv_store {
    /// Creates a handle of another view of the same store.
    pub(crate) fn sibling(&self, store: Store) -> *mut Self {
        let store = NodeStore::new(store, self.store.server().cloned());
        node_handle(Arc::new(store), Arc::clone(&self.shared))
    }
}

/// Returns the status of a kind of failure.
pub(crate) const fn status_of(kind: ErrorKind) -> rdzv_status {
    match kind {
        ErrorKind::TimedOut => RDZV_TIMED_OUT,
        ErrorKind::Refused => RDZV_REFUSED,
        ErrorKind::ServerGone => RDZV_SERVER_GONE,
        ErrorKind::WrongProtocol => RDZV_WRONG_PROTOCOL,
        ErrorKind::Unresolved => RDZV_UNRESOLVED,
        ErrorKind::Unreachable => RDZV_UNREACHABLE,
        ErrorKind::Cancelled => RDZV_CANCELLED,
        ErrorKind::LimitExceeded => RDZV_LIMIT_EXCEEDED,
        ErrorKind::QueueEmpty => RDZV_QUEUE_EMPTY,
        ErrorKind::InvalidArgument => RDZV_INVALID_ARGUMENT,
        ErrorKind::Unsupported => RDZV_UNSUPPORTED,
        ErrorKind::Corrupt => RDZV_CORRUPT,
        ErrorKind::Reentrant => RDZV_REENTRANT,
        ErrorKind::Io => RDZV_IO,
        ErrorKind::Exhausted => RDZV_EXHAUSTED,
        ErrorKind::NotFound => RDZV_NOT_FOUND,
        ErrorKind::Conflict => RDZV_CONFLICT,
        ErrorKind::StaleRound => RDZV_STALE_ROUND,
        ErrorKind::Compacted => RDZV_COMPACTED,
        ErrorKind::SessionEnded => RDZV_SERVER_GONE,
        ErrorKind::Closed => RDZV_CLOSED,
        ErrorKind::Replaced => RDZV_RENDEZVOUS_REPLACED,
        ErrorKind::Unauthenticated => RDZV_UNAUTHENTICATED,
        ErrorKind::PermissionDenied => RDZV_PERMISSION_DENIED,
    }
}

/// Returns the kind of failure that the status of a plug-in stands for: [`ErrorKind::Io`] for a status
/// that no kind has.
pub(crate) const fn kind_of(status: rdzv_status) -> ErrorKind {
    match status {
        RDZV_TIMED_OUT => ErrorKind::TimedOut,
        RDZV_REFUSED => ErrorKind::Refused,
        RDZV_SERVER_GONE => ErrorKind::ServerGone,
        RDZV_WRONG_PROTOCOL => ErrorKind::WrongProtocol,
        RDZV_UNRESOLVED => ErrorKind::Unresolved,
        RDZV_UNREACHABLE => ErrorKind::Unreachable,
        RDZV_CANCELLED => ErrorKind::Cancelled,
        RDZV_LIMIT_EXCEEDED => ErrorKind::LimitExceeded,
        RDZV_QUEUE_EMPTY => ErrorKind::QueueEmpty,
        RDZV_INVALID_ARGUMENT => ErrorKind::InvalidArgument,
        RDZV_UNSUPPORTED => ErrorKind::Unsupported,
        RDZV_CORRUPT => ErrorKind::Corrupt,
        RDZV_REENTRANT => ErrorKind::Reentrant,
        RDZV_EXHAUSTED => ErrorKind::Exhausted,
        RDZV_NOT_FOUND => ErrorKind::NotFound,
        RDZV_CONFLICT => ErrorKind::Conflict,
        RDZV_STALE_ROUND => ErrorKind::StaleRound,
        RDZV_COMPACTED => ErrorKind::Compacted,
        RDZV_CLOSED => ErrorKind::Closed,
        RDZV_RENDEZVOUS_REPLACED => ErrorKind::Replaced,
        RDZV_UNAUTHENTICATED => ErrorKind::Unauthenticated,
        RDZV_PERMISSION_DENIED => ErrorKind::PermissionDenied,
        _ => ErrorKind::Io,
    }
}

#[cold]
#[inline(never)]
pub(crate) fn call_fault(error: &CallError) -> Fault {
    let status = status_of(error.kind());
    Fault::new(status, error.to_string()).during(error.operation().name()).with(|details| {
        (details.peer, details.phase) = (error.peer().into(), error.phase().name().into());
        details.elapsed_ms = millis(error.elapsed());
        details.os_error = if let Cause::Os(number) = error.cause() { number } else { 0 };
    })
}

/// Converts `timeout_ms` from C.
#[inline(never)]
pub(crate) fn timeout(timeout_ms: i64) -> Result<Timeout, Fault> {
    match timeout_ms {
        -1 => Ok(Timeout::Default),
        0 => Ok(Timeout::Once),
        1.. => Ok(Timeout::After(Duration::from_millis(timeout_ms.unsigned_abs()))),
        _ => Err(invalid(format!(
            "`timeout_ms` is {timeout_ms}: it must be above 0, or 0 to try once, or -1 for the default"
        ))),
    }
}

/// Converts the timeout of a call that waits on the client side.
pub(crate) fn span(timeout_ms: i64, default: Duration) -> Result<Duration, Fault> {
    Ok(match timeout(timeout_ms)? {
        Timeout::Default => default,
        Timeout::Once => Duration::ZERO,
        Timeout::After(span) => span,
    })
}

/// Maximum number of keys in an error.
const KEYS_NAMED_MAX: usize = 64;

/// Adds the keys of an operation to its failure.
#[cold]
#[inline(never)]
pub(crate) fn of_keys(fault: Fault, keys: &[&[u8]]) -> Fault {
    fault.with(|details| details.keys = keys.iter().take(KEYS_NAMED_MAX).map(|key| key.to_vec()).collect())
}

/// Converts the result of an operation on these keys.
#[inline(never)]
fn done<T>(result: Result<T, CallError>, keys: &[&[u8]]) -> Result<T, Fault> {
    result.map_err(|error| of_keys(call_fault(&error), keys))
}

pub(crate) fn handle(store: Store, shared: Arc<ContextShared>) -> *mut rdzv_store {
    node_handle(Arc::new(NodeStore::new(store, None)), shared)
}

/// Creates a handle of a store whose server may live as long as the handle.
pub(crate) fn node_handle(store: Arc<NodeStore>, shared: Arc<ContextShared>) -> *mut rdzv_store {
    let peer = c_string(store.peer());
    boxed(rdzv_store { state: HandleState::default(), store, peer, shared })
}

/// Connects to the store that `options` names and retries until its connect timeout has passed. `context`
/// may be NULL, which creates a new one. On success the caller owns `*out` and frees it with
/// `rdzv_store_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (no endpoint); at the timeout, the status of the last attempt:
/// `RDZV_REFUSED`, `RDZV_UNRESOLVED`, `RDZV_UNREACHABLE`, `RDZV_TIMED_OUT`, `RDZV_SERVER_GONE` or
/// `RDZV_EXHAUSTED` (no descriptors); at once: `RDZV_WRONG_PROTOCOL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new(
    context: *const rdzv_context,
    options: *const rdzv_store_options,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        let (host, port, options) = store_options(options)?;
        Ok(handle(Store::connect(host, port, options)?, shared))
    })
}

/// Creates a second, independent handle of the same store with the same prefix. For a server it has a
/// connection of its own; in a file it counts as one more store. On success the caller owns `*out` and
/// frees it with `rdzv_store_free`. The token of the first handle ends the cloning, and the new handle
/// has no token. Errors: those of the function that created the first handle, and `RDZV_CANCELLED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_clone(
    store: *const rdzv_store,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| Ok(store.sibling(store.store.duplicate()?)))
}

/// Closes and frees a store handle. No other call on it may be in progress: cancel such calls and wait
/// for them first. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_free(store: *mut rdzv_store) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(store, "rdzv_store_free") };
}

/// Returns the name of the store in errors: `HOST:PORT` for a server, the path for a file. The string is
/// NUL-terminated and valid as long as the handle. Empty for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_peer(store: *const rdzv_store) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(store, c"".as_ptr(), |store| store.peer.as_ptr()) }
}

/// Cancels every operation in progress on this handle, cloning included, on all threads; each returns
/// `RDZV_CANCELLED`. Later calls are not affected: to end one that may not have begun, use
/// `rdzv_store_new_cancellable`. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_cancel(store: *const rdzv_store) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::notify(store, |store| store.store.cancel()) };
}

/// Stores a value of up to 8 MiB under a key of up to 8192 bytes with its prefix. When it returns `RDZV_OK`,
/// the store has the value.
///
/// Errors of this and all operations below: `RDZV_TIMED_OUT`, `RDZV_SERVER_GONE` (the message says whether
/// the operation may have been applied), `RDZV_REFUSED`, `RDZV_WRONG_PROTOCOL`, `RDZV_LIMIT_EXCEEDED`,
/// `RDZV_CANCELLED`, `RDZV_INVALID_ARGUMENT`, `RDZV_POISONED`, `RDZV_REENTRANT`; for a native store also
/// `RDZV_STALE_ROUND` (the key belongs to an ended round), `RDZV_PERMISSION_DENIED` (the token lacks the
/// right) and `RDZV_UNAUTHENTICATED` (the server no longer accepts the token); for a file also `RDZV_IO`,
/// `RDZV_CORRUPT` (a torn record; the message has its offset), and `RDZV_SERVER_GONE` (the file was removed
/// or replaced); `RDZV_UNSUPPORTED` for a kind that lacks the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_set(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let key = bytes(key, key_len, "key")?;
        let value = bytes(value, value_len, "value")?;
        done(store.store.set(key, value, timeout(timeout_ms)?), &[key])
    })
}

/// Waits for a key and reads its value into `value`, replacing its content. Takes one round trip if the
/// key exists.
///
/// Also returns: `RDZV_TIMED_OUT` (the key was not set in time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_get(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    value: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let key = bytes(key, key_len, "key")?;
        let (value, timeout) = (reference_mut(value, "value")?, timeout(timeout_ms)?);
        done(value.fill(|value| store.store.get(key, value, timeout)), &[key])
    })
}

/// Adds `delta` to the decimal number under a key (0 if missing), wrapping at 64 bits. The sum goes to
/// `*sum`.
///
/// Also returns: `RDZV_INVALID_ARGUMENT` (the value is not a number).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_add(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    delta: i64,
    timeout_ms: i64,
    sum: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, sum, |store| {
        let key = bytes(key, key_len, "key")?;
        done(store.store.add(key, delta, timeout(timeout_ms)?), &[key])
    })
}

/// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty. The value
/// after the operation goes to `value`. If the key is missing and `expected` is not empty, nothing is
/// stored and `value` receives `expected`, as with PyTorch's server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_compare_set(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
    desired: *const u8,
    desired_len: usize,
    timeout_ms: i64,
    value: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let key = bytes(key, key_len, "key")?;
        let expected = bytes(expected, expected_len, "expected")?;
        let desired = bytes(desired, desired_len, "desired")?;
        let (value, timeout) = (reference_mut(value, "value")?, timeout(timeout_ms)?);
        done(value.fill(|value| store.store.compare_set(key, expected, desired, value, timeout)), &[key])
    })
}

/// Waits until every key has existed, at least once. At most 131,072 keys, which have 16 MiB together;
/// over the native protocol 32,768 keys and 8 MiB.
///
/// Also returns: `RDZV_TIMED_OUT` (a key was not set in time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_wait(
    store: *const rdzv_store,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let keys = list(keys, key_count, "keys")?;
        done(store.store.wait(&keys, timeout(timeout_ms)?), &keys)
    })
}

/// Writes 1 to `*ready` if every key exists now, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_check(
    store: *const rdzv_store,
    keys: *const rdzv_bytes,
    key_count: usize,
    timeout_ms: i64,
    ready: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, ready, |store| {
        let keys = list(keys, key_count, "keys")?;
        done(store.store.check(&keys, timeout(timeout_ms)?).map(i32::from), &keys)
    })
}

/// Deletes a key. `*deleted` is 1 if it existed, else 0. Queues are not affected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_delete_key(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    timeout_ms: i64,
    deleted: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, deleted, |store| {
        let key = bytes(key, key_len, "key")?;
        done(store.store.delete(key, timeout(timeout_ms)?).map(i32::from), &[key])
    })
}

/// Arrives at a barrier and waits until `world_size` participants (at least 1) have arrived. A key can be
/// used once; use a new one each time. A participant that times out or is cancelled remains counted. The
/// barrier is compatible with the `barrier` of the same kind of store in PyTorch: over TCP it is the
/// server's own and compatible with `TCPStore.barrier`; under a prefix and in a file it is that of
/// `rdzv_store_barrier_by_keys`.
///
/// Also returns: `RDZV_TIMED_OUT` (some participants did not arrive in time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_barrier(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    world_size: i64,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let key = bytes(key, key_len, "key")?;
        done(store.store.barrier(key, participants(world_size)?, timeout(timeout_ms)?), &[key])
    })
}

/// Waits at a barrier as `rdzv_store_barrier` does, but implemented with add, set and wait on
/// `KEY/num_members` and `KEY/last_member`, as in PyTorch's PrefixStore, FileStore and elastic barriers.
/// The two kinds of barrier are not compatible with each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_barrier_by_keys(
    store: *const rdzv_store,
    key: *const u8,
    key_len: usize,
    world_size: i64,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let key = bytes(key, key_len, "key")?;
        done(store.store.barrier_by_keys(key, participants(world_size)?, timeout(timeout_ms)?), &[key])
    })
}

/// Counts this process among the workers for which PyTorch's `wait_for_workers` waits. The number of
/// workers goes to `*count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_check_in(
    store: *const rdzv_store,
    timeout_ms: i64,
    count: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, count, |store| done(store.store.check_in(timeout(timeout_ms)?), &[]))
}

/// Waits until `world_size` workers (at least 1) have checked in.
///
/// Also returns: `RDZV_TIMED_OUT` (fewer workers checked in in time).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_wait_for_workers(
    store: *const rdzv_store,
    world_size: i64,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| done(
        store.store.wait_for_workers(participants(world_size)?, timeout(timeout_ms)?),
        &[]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses that stand for no kind: a plug-in that returns one has failed as [`ErrorKind::Io`].
    const WITHOUT_KIND: [rdzv_status; 28] = [
        RDZV_OK,
        RDZV_PANIC,
        RDZV_POISONED,
        RDZV_ADDRESS_IN_USE,
        RDZV_RENDEZVOUS_CLOSED,
        RDZV_RENDEZVOUS_TIMED_OUT,
        RDZV_RENDEZVOUS_CONNECTION,
        RDZV_RENDEZVOUS_STATE,
        RDZV_RENDEZVOUS_GRACEFUL_EXIT,
        RDZV_NOT_REGISTERED,
        RDZV_ALREADY_REGISTERED,
        RDZV_BACKEND_MISMATCH,
        RDZV_BARRIER_BROKEN,
        RDZV_RPC_UNKNOWN_WORKER,
        RDZV_RPC_NO_HANDLER,
        RDZV_RPC_HANDLER_FAILED,
        RDZV_RPC_PEER_DIED,
        RDZV_RPC_NO_MEMBER,
        RDZV_RPC_LEAVING,
        RDZV_RPC_ALREADY_INITIALIZED,
        RDZV_RPC_MIXED_GROUP,
        RDZV_RPC_NAME_TAKEN,
        RDZV_RPC_DEVICE_MAP,
        RDZV_RPC_UNREACHED,
        RDZV_RPC_EVICTED,
        RDZV_RPC_MEMBERSHIP,
        RDZV_RPC_MALFORMED,
        RDZV_FREE_REFUSED,
    ];

    #[test]
    fn status_of_a_plugin_becomes_the_kind_with_that_status() {
        let unknown = name_of(rdzv_status::MAX);
        let statuses = (0..).take_while(|&status| name_of(status) != unknown);
        let mut count = 0;
        for status in statuses {
            let expected = if WITHOUT_KIND.contains(&status) { RDZV_IO } else { status };
            assert_eq!(status_of(kind_of(status)), expected, "{}", name_of(status).to_string_lossy());
            count += 1;
        }
        assert!(count >= 48, "{count}");
    }
}
