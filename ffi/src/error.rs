//! Error details for a C program to branch on and to print.

use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::{RDZV_OK, name_of, rdzv_status};
use std::ffi::c_char;
use std::ptr::null;

/// Returns the short name of a status, such as `timed out`, or `unknown status` for any other number. Never
/// NULL; the string is static.
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
        let message = unsafe { crate::argument::bytes(message, message_len, "message") };
        message.map(String::from_utf8_lossy).unwrap_or_default()
    };
    guard::quiet(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(rdzv_error::new(Fault::new(status, description()))))
    })
}

/// Copies an error with all its details; the caller frees the copy with `rdzv_error_free`. For errors that
/// are valid during a callback only. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_clone(error: *const rdzv_error) -> *mut rdzv_error {
    let copy = |error: &rdzv_error| Box::into_raw(Box::new(error.clone()));
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, std::ptr::null_mut(), copy) }
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
    unsafe { guard::read(error, RDZV_OK, |error| error.status) }
}

/// Returns a one-line message: what failed, on which peer, in which phase, after how long and why. Control
/// characters of keys and names are escaped. Empty for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_message(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.message.as_ptr()) }
}

/// Returns the operation that failed, such as `get`. Empty if there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_operation(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.operation.as_ptr()) }
}

/// Returns the peer as `HOST:PORT`. Empty if there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_peer(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.peer.as_ptr()) }
}

/// Returns the phase that the operation had reached: `resolving`, `connecting`, `greeting`, `sending`,
/// `waiting` or `receiving`. Empty if it failed before any of them, and for NULL. An RPC call in
/// `connecting` or `sending` has not reached a handler; one in `waiting` may have been executed. The phase
/// is also empty for an RPC call that was cancelled or whose answer is too long; such a call may have been
/// executed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_phase(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.phase.as_ptr()) }
}

/// Returns the time from the call to the failure, in milliseconds. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_elapsed_ms(error: *const rdzv_error) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.elapsed_ms) }
}

/// Returns the operating system's error number (`errno`); 0 if there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_os_error(error: *const rdzv_error) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.os_error) }
}

/// Returns the number of keys in the error: those passed to the failed operation, the first 64 at most. 0
/// for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_key_count(error: *const rdzv_error) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.keys.len()) }
}

/// Returns the key at `index` (from 0) and writes its length to `*len` unless `len` is NULL; NULL if
/// `index` is out of range. Not NUL-terminated. Valid as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_key(
    error: *const rdzv_error,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, null(), |error| crate::buffer::item(&error.keys, index, len)) }
}

/// Returns the underlying cause, which the message contains too: for a rendezvous whose connection failed
/// or whose state cannot be read, the inner error; for an RPC call whose handler failed, the handler's
/// message. Empty if there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_cause(error: *const rdzv_error) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.cause.as_ptr()) }
}

/// Returns the number of ranks in the error: the ranks known to be missing, 16 at most; for an RPC call to
/// an id that no known worker has, that id. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_rank_count(error: *const rdzv_error) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.ranks.len()) }
}

/// Returns the rank at `index` (from 0), in ascending order; -1 if `index` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_rank(error: *const rdzv_error, index: usize) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, -1, |error| error.ranks.get(index).copied().unwrap_or(-1)) }
}

/// Returns the number of node names in the error; 0 if there are none, and for NULL. They are the names of
/// the ranks, in the same order, if the caller named its ranks. For a barrier with named participants, they
/// are those that did not arrive, 256 at most, or the one that died. For an RPC call, it is the callee. For
/// an RPC group, it is the worker that died, was not reached, already has the name, or has devices that do
/// not match; or the workers whose calls had not finished, 16 at most.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_node_count(error: *const rdzv_error) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.nodes.len()) }
}

/// Returns the node name at `index` (from 0) and writes its length to `*len` unless `len` is NULL; NULL if
/// `index` is out of range. Not NUL-terminated. Valid as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_node(
    error: *const rdzv_error,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, null(), |error| crate::buffer::item(&error.nodes, index, len)) }
}

/// For `RDZV_COMPACTED`, returns the oldest revision whose changes the server still has: read the keys
/// again and watch from that revision on. 0 for other errors, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_revision(error: *const rdzv_error) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.revision) }
}

/// Returns the generation of a named barrier that was not released. 0 for other errors, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_generation(error: *const rdzv_error) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(error, 0, |error| error.generation) }
}
