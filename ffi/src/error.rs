//! What went wrong, for a C program to branch on and to print.

use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::{RDZV_OK, name_of, rdzv_status};
use std::ffi::c_char;
use std::ptr::null;

/// The short name of a status, such as `timed out`; `unknown status` for any other number. Never NULL;
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_status_name(status: rdzv_status) -> *const c_char {
    guard::quiet(c"unknown status".as_ptr(), || name_of(status).as_ptr())
}

/// Makes an error of a status and words in UTF-8, for code of yours that reports as the library does. Yours
/// until `rdzv_error_free`. Never NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_new(
    status: rdzv_status,
    message: *const u8,
    message_len: usize,
) -> *mut rdzv_error {
    let description = || {
        // SAFETY: as the header wants it.
        let message = unsafe { crate::argument::bytes(message, message_len, "message") };
        message.map(String::from_utf8_lossy).unwrap_or_default()
    };
    guard::quiet(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(rdzv_error::new(Fault::new(status, description()))))
    })
}

/// A copy with all that is known, yours until `rdzv_error_free`: for an error that was only lent, as to a
/// callback. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_clone(error: *const rdzv_error) -> *mut rdzv_error {
    let copy = |error: &rdzv_error| Box::into_raw(Box::new(error.clone()));
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, std::ptr::null_mut(), copy) }
}

/// Frees an error. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_free(error: *mut rdzv_error) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(error) };
}

/// The status that the failed call returned; `RDZV_OK` for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_status(error: *const rdzv_error) -> rdzv_status {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, RDZV_OK, |error| error.status) }
}

/// One sentence that tells what failed, where, in which phase, after how long and why, in one line: control
/// characters of keys and names are written as escapes. Empty for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_message(error: *const rdzv_error) -> *const c_char {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.message.as_ptr()) }
}

/// The operation that failed, such as `get`. Empty when there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_operation(error: *const rdzv_error) -> *const c_char {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.operation.as_ptr()) }
}

/// The peer, as `HOST:PORT`. Empty when there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_peer(error: *const rdzv_error) -> *const c_char {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.peer.as_ptr()) }
}

/// How far the operation had come: `resolving`, `connecting`, `greeting`, `sending`, `waiting` or
/// `receiving`. Empty when the failure came before any of them, and for NULL. An RPC call that had only
/// come to `connecting` or `sending` has reached no handler; one that was `waiting` may have been carried
/// out. Empty, too, for a call that was given up, or whose answer is too long: it may have been carried
/// out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_phase(error: *const rdzv_error) -> *const c_char {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.phase.as_ptr()) }
}

/// Milliseconds from the call to the failure. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_elapsed_ms(error: *const rdzv_error) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.elapsed_ms) }
}

/// The operating system's error number (`errno`); 0 when there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_os_error(error: *const rdzv_error) -> i32 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.os_error) }
}

/// How many keys the error names: those that were given to the operation that failed, the first 64 at most. 0
/// for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_key_count(error: *const rdzv_error) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.keys.len()) }
}

/// The key at `index` (from 0), its length in `*len` unless `len` is NULL; NULL beyond the last. Not
/// NUL-terminated. Lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_key(
    error: *const rdzv_error,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, null(), |error| crate::buffer::item(&error.keys, index, len)) }
}

/// What stands behind the failure, in words that the message has too: the inner error of a rendezvous whose
/// connection failed, or whose state cannot be read; of an RPC call whose handler failed, the handler's words.
/// Empty when there is none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_cause(error: *const rdzv_error) -> *const c_char {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, c"".as_ptr(), |error| error.cause.as_ptr()) }
}

/// How many ranks the error names: those that are known to be missing, 16 at most; of an RPC call the number
/// that it was for, where no worker is known to have it. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_rank_count(error: *const rdzv_error) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.ranks.len()) }
}

/// The rank at `index` (from 0), in rising order; -1 beyond the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_rank(error: *const rdzv_error, index: usize) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, -1, |error| error.ranks.get(index).copied().unwrap_or(-1)) }
}

/// How many nodes the error names: the names of its ranks, in their order, where the caller gave names to
/// ranks; of a barrier whose participants have names, those who did not come, 256 at most, or the one who
/// died; of an RPC call the worker that it was for; of an RPC group the worker that died, was not reached,
/// has the name, or whose devices do not fit, or those who had not done with their calls, 16 at most. 0
/// when there are none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_node_count(error: *const rdzv_error) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.nodes.len()) }
}

/// The node's name at `index` (from 0), its length in `*len` unless `len` is NULL; NULL beyond the last. Not
/// NUL-terminated. Lives as long as the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_node(
    error: *const rdzv_error,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, null(), |error| crate::buffer::item(&error.nodes, index, len)) }
}

/// Of `RDZV_COMPACTED`, the oldest revision that the server can tell of: read the keys afresh, and watch from
/// then on. 0 otherwise, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_revision(error: *const rdzv_error) -> u64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.revision) }
}

/// The generation of a named barrier that was not released. 0 otherwise, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_generation(error: *const rdzv_error) -> u64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(error, 0, |error| error.generation) }
}
