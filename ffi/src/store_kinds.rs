//! Stores without a server, and prefixes.

use crate::cancel_token::{rdzv_cancel_token, token_of};
use crate::prelude::*;
use crate::store::{handle, rdzv_store};
use rendezvous_core::driver::file_store::FileStoreOptions;
use rendezvous_core::driver::hash_store::HashStoreOptions;
use rendezvous_core::driver::store::{Store, Timeouts};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the timeouts of a new handle.
pub(crate) fn timeouts(timeout_ms: i64) -> Result<Timeouts, Fault> {
    let defaults = Timeouts::default();
    match timeout_ms {
        -1 => Ok(defaults),
        _ => Ok(Timeouts { call: positive_ms(timeout_ms, "timeout_ms")?, ..defaults }),
    }
}

/// Opens the file at `path` (NUL-terminated), which is created if missing, as a store that the FileStores
/// of PyTorch ranks may share. The file counts its users: when the last handle is freed after
/// `world_size` or more have been opened, the file is removed; with -1 it is never removed. A process
/// that dies remains counted. `timeout_ms` is the default timeout of operations, and that of opening the
/// file; -1: 300,000. `context` may be NULL, which creates a new one. On success the caller owns `*out`
/// and frees it with `rdzv_store_free`.
///
/// Other users see a change within 10 ms. Concurrent changes are never lost, neither additions nor
/// appends. Files have no queues.
///
/// Errors: `RDZV_IO` (the path cannot be opened or written; `rdzv_error_info.os_error` has the reason),
/// `RDZV_CORRUPT` (the file is not a store, or has a torn record), `RDZV_TIMED_OUT` (another process
/// keeps the file locked), `RDZV_INVALID_ARGUMENT`, `RDZV_LIMIT_EXCEEDED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_file(
    context: *const rdzv_context,
    path: *const c_char,
    world_size: i64,
    timeout_ms: i64,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        let path = CStr::from_ptr(reference(path, "path")?).to_bytes();
        if path.is_empty() {
            return Err(invalid("`path` is empty"));
        }
        let world_size = match world_size {
            -1 => None,
            0.. => Some(world_size.unsigned_abs()),
            _ => {
                return Err(invalid(format!("`world_size` is {world_size}: 0 or above, or -1 for none")));
            }
        };
        let options =
            FileStoreOptions { world_size, timeouts: timeouts(timeout_ms)?, ..FileStoreOptions::default() };
        Ok(handle(Store::open_file(Path::new(OsStr::from_bytes(path)), options)?, shared))
    })
}

/// Creates an empty store in this process, without a server or a file; `rdzv_store_clone` creates further
/// handles of it. The store exists as long as its last handle. `timeout_ms` is the default timeout of
/// operations; -1: 300,000. `context` may be NULL, which creates a new one. On success the caller owns
/// `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_hash(
    context: *const rdzv_context,
    timeout_ms: i64,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        let options = HashStoreOptions { timeouts: timeouts(timeout_ms)?, ..HashStoreOptions::default() };
        Ok(handle(Store::in_process(options), shared))
    })
}

/// Creates a handle whose keys are those under `prefix` in `store`: key `k` is `prefix/k` there, even if
/// the prefix is empty. Prefixes compose as in PyTorch's PrefixStore: the prefix of a handle that already
/// has one is appended to it. The number of keys is that of the whole store; lists have only the keys
/// under the prefix, without it; barriers are those of `rdzv_store_barrier_by_keys`. The two handles
/// share connections and pending calls, so cancelling the calls of one cancels those of the other; either
/// may be freed first. On success the caller owns `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_prefix(
    store: *const rdzv_store,
    prefix: *const u8,
    prefix_len: usize,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| {
        let prefix = bytes(prefix, prefix_len, "prefix")?;
        Ok(store.sibling(store.store.with_prefix(prefix)))
    })
}

/// Creates a handle of the same keys whose operations end when `token` is cancelled, and at once if it
/// already is; so does `rdzv_store_clone` of it. The two handles share connections, and
/// `rdzv_store_cancel` on one does not affect the other; either may be freed first, and the token, too.
/// On success the caller owns `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_cancellable(
    store: *const rdzv_store,
    token: *const rdzv_cancel_token,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| Ok(store.sibling(store.store.with_token(&token_of(token)?))))
}
