//! Error details for a C program to branch on and to print.

use crate::fault::Details;
use crate::prelude::*;
use std::sync::LazyLock;

/// Returns the short name of a status, such as `timed out`, or `unknown status` for any other number.
/// Never NULL; the string is static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_status_name(status: rdzv_status) -> *const c_char {
    guard::quiet(c"unknown status".as_ptr(), || name_of(status).as_ptr())
}

/// Creates an error from a status and a UTF-8 message, for user code that reports errors as the library
/// does. The caller frees it with `rdzv_error_free`. Never NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_new(
    status: rdzv_status,
    message: *const u8,
    message_len: usize,
) -> *mut rdzv_error {
    let description = || {
        // SAFETY: NULL or valid, as the header requires.
        let message = unsafe { bytes(message, message_len, "message") };
        message.map(String::from_utf8_lossy).unwrap_or_default()
    };
    guard::quiet(null_mut(), || boxed(rdzv_error::new(Fault::new(status, description()))))
}

/// Copies an error with all its details; the caller frees the copy with `rdzv_error_free`. For errors
/// that are valid during a callback only. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_clone(error: *const rdzv_error) -> *mut rdzv_error {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, null_mut(), |error| boxed(error.clone())) }
}

/// Frees an error. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_free(error: *mut rdzv_error) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(error) };
}

/// Returns the status that the failed call returned; `RDZV_OK` for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_status(error: *const rdzv_error) -> rdzv_status {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, RDZV_OK, |error| error.status()) }
}

/// Returns a one-line message: what failed, on which peer, in which phase, after how long and why.
/// Control characters of keys and names are escaped. Empty for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_message(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.details.message.as_ptr().cast()) }
}

/// What an error tells. The strings are UTF-8 and NUL-terminated; they and the lists are valid as long as
/// the error.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_error_info {
    /// Set to `sizeof(rdzv_error_info)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// Status that the failed call returned.
    pub status: rdzv_status,
    /// The text of `rdzv_error_message`.
    pub message: *const c_char,
    /// Operation that failed, such as `get`. Empty if there is none.
    pub operation: *const c_char,
    /// Peer as `HOST:PORT`. Empty if there is none.
    pub peer: *const c_char,
    /// Phase that the operation had reached: `resolving`, `connecting`, `greeting`, `sending`, `waiting`
    /// or `receiving`. Empty if it failed before any of them. An RPC call in `connecting` or `sending`
    /// has not reached a handler; one in `waiting` may have been executed. The phase is also empty for an
    /// RPC call that was cancelled or whose response is too long; such a call may have been executed.
    pub phase: *const c_char,
    /// Underlying cause, which the message contains too: for a rendezvous whose connection failed or
    /// whose state cannot be read, the inner error; for an RPC call whose handler failed, the handler's
    /// message. Empty if there is none.
    pub cause: *const c_char,
    /// Time from the call to the failure, in milliseconds.
    pub elapsed_ms: i64,
    /// The operating system's error number (`errno`); 0 if there is none.
    pub os_error: i32,
    /// Reserved; 0.
    pub reserved: u32,
    /// For `RDZV_COMPACTED`, the oldest revision whose changes the server still has: read the keys again
    /// and watch from that revision on. 0 for other errors.
    pub revision: u64,
    /// Generation of a named barrier that was not released. 0 for other errors.
    pub generation: u64,
    /// Keys that were passed to the failed operation, the first 64 at most.
    pub keys: *const rdzv_bytes,
    /// Number of keys.
    pub key_count: usize,
    /// Names of the ranks, in the same order, if the caller named its ranks. For a barrier with named
    /// participants, those that did not arrive, 256 at most, or the one that died. For an RPC call, the
    /// callee. For an RPC group, the worker that died, was not reached, already has the name, or has
    /// devices that do not match; or the workers whose calls had not finished, 16 at most.
    pub nodes: *const rdzv_bytes,
    /// Number of names.
    pub node_count: usize,
    /// Ranks known to be missing, in ascending order, 16 at most; for an RPC call to an id that no known
    /// worker has, that id.
    pub ranks: *const i64,
    /// Number of ranks.
    pub rank_count: usize,
}
growing!(rdzv_error_info: 128);

/// What NULL tells.
static NO_ERROR: LazyLock<rdzv_error> = LazyLock::new(|| rdzv_error::new(Fault::new(RDZV_OK, "")));

/// Writes what an error tells to `*info`, whose `struct_size` is set. For NULL, that is the status
/// `RDZV_OK`, empty strings and empty lists.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (`info` is NULL or its `struct_size` is too small).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_get_info(
    error: *const rdzv_error,
    info: *mut rdzv_error_info,
) -> rdzv_status {
    guard::call!(null_mut(), info, || Ok(info_of(error.as_ref().unwrap_or(&NO_ERROR))))
}

fn info_of(error: &rdzv_error) -> rdzv_error_info {
    let Details { status, message, operation, peer, phase, cause, .. } = &error.details;
    let Details { elapsed_ms, os_error, revision, generation, ranks, .. } = &error.details;
    rdzv_error_info {
        status: *status,
        message: message.as_ptr().cast(),
        operation: operation.as_ptr().cast(),
        peer: peer.as_ptr().cast(),
        phase: phase.as_ptr().cast(),
        cause: cause.as_ptr().cast(),
        elapsed_ms: *elapsed_ms,
        os_error: *os_error,
        revision: *revision,
        generation: *generation,
        keys: error.keys.as_ptr(),
        key_count: error.keys.len(),
        nodes: error.nodes.as_ptr(),
        node_count: error.nodes.len(),
        ranks: ranks.as_ptr(),
        rank_count: ranks.len(),
        ..Default::default()
    }
}
