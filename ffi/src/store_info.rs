//! Address at which the ranks of a job find their store.

use crate::argument::{invalid, out_pointer, reference, reference_mut, text};
use crate::buffer::borrowed;
use crate::context::{rdzv_context, shared};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rendezvous_fault::publish_fault;
use crate::server::{rdzv_server, start};
use crate::server_options::rdzv_server_options;
use crate::status::{RDZV_EXHAUSTED, rdzv_status};
use crate::store::{rdzv_store, timeout};
use rendezvous_core::driver::rendezvous::{Built, ReservedPort, build};
use rendezvous_core::driver::server::Listen;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use std::os::fd::IntoRawFd;
use std::ptr::null;

/// Address at which the ranks of a job find their store and, on the rank that published it, a port that is
/// reserved for a server. One thread at a time.
#[derive(Debug)]
pub struct rdzv_store_info {
    info: RendezvousStoreInfo,
    reserved: Option<ReservedPort>,
}

fn nothing_reserved() -> Fault {
    invalid("no port is kept here: it was given, or published by another rank, or taken already")
}

/// Creates an info from a known address: a name or a literal address, and a port. The name is not resolved.
/// On success the caller owns `*out` and frees it with `rdzv_store_info_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_new(
    master_addr: *const u8,
    master_addr_len: usize,
    master_port: u16,
    out: *mut *mut rdzv_store_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let master_addr = text(master_addr, master_addr_len, "master_addr")?.into();
            let info = RendezvousStoreInfo { master_addr, master_port };
            out.put(Box::into_raw(Box::new(rdzv_store_info { info, reserved: None })));
            Ok(())
        })
    }
}

/// Publishes or reads the address of the store: rank 0 publishes an address and a port under the keys
/// `MASTER_ADDR` and `MASTER_PORT`; all ranks, including rank 0, wait for the keys and read them. Each rank
/// calls this with its `rank`.
///
/// `local_addr` is published unchanged and is not resolved; with length 0 the host's own name is used.
/// `server_port` is the port of a server that is already running. If it is 0, rank 0 takes a free port and
/// reserves it with a listening socket, in whose backlog early clients wait. `rdzv_store_info_serve` starts
/// a server on that port; `rdzv_store_info_take_socket` returns the socket for a server elsewhere; freeing
/// the info releases the port. `timeout_ms` applies to each of the four operations on the store. On success
/// the caller owns `*out` and frees it with `rdzv_store_info_free`.
///
/// Errors: those of `rdzv_store_set` and `rdzv_store_get`; `RDZV_EXHAUSTED` (no free port), `RDZV_IO` (the
/// host's own name is not known), `RDZV_RENDEZVOUS_STATE` (the published value is not an address).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_build(
    store: *const rdzv_store,
    rank: i64,
    local_addr: *const u8,
    local_addr_len: usize,
    server_port: u16,
    timeout_ms: i64,
    out: *mut *mut rdzv_store_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, &mut || {
            let store = reference(store, "store")?;
            store.shared.refuse_sink()?;
            let out = out_pointer(out, "out")?;
            if rank < 0 {
                return Err(invalid(format!("`rank` is {rank}; it must be 0 or above")));
            }
            let local_addr = text(local_addr, local_addr_len, "local_addr")?;
            let local_addr = if local_addr.is_empty() { None } else { Some(local_addr) };
            let built = build(rank, &store.store, local_addr, Some(server_port), timeout(timeout_ms)?);
            let Built { info, reserved } = built.map_err(|error| publish_fault(&error))?;
            out.put(Box::into_raw(Box::new(rdzv_store_info { info, reserved })));
            Ok(())
        })
    }
}

/// Frees an info and releases the port if one is still reserved. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_free(info: *mut rdzv_store_info) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(info) };
}

/// Returns the address and writes its length to `*len` unless `len` is NULL. The string is not
/// NUL-terminated and is valid as long as the info. Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_master_addr(
    info: *const rdzv_store_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, null(), |of| borrowed(of.info.master_addr.as_bytes(), len)) }
}

/// Returns the port; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_master_port(info: *const rdzv_store_info) -> u16 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, 0, |of| of.info.master_port) }
}

/// Returns 1 if the info has a port reserved for a server, else 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_has_socket(info: *const rdzv_store_info) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, 0, |of| i32::from(of.reserved.is_some())) }
}

/// Returns the listening socket that reserves the port, once; the caller owns `*fd` and closes it. The
/// socket is bound to all interfaces and has the close-on-exec flag.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the info has no reserved port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_take_socket(
    info: *mut rdzv_store_info,
    fd: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let info = reference_mut(info, "info")?;
            let fd = out_pointer(fd, "fd")?;
            fd.put(info.reserved.take().ok_or_else(nothing_reserved)?.into_socket().into_raw_fd());
            Ok(())
        })
    }
}

/// Starts a store server on the reserved port, once. `context` may be NULL, which creates a new one;
/// `options` may be NULL for the defaults, and their address is ignored. On success the caller owns `*out`,
/// which does not depend on the info, and frees it with `rdzv_server_free`. On failure the port is
/// released.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the info has no reserved port; else those of `rdzv_server_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_info_serve(
    info: *mut rdzv_store_info,
    context: *const rdzv_context,
    options: *const rdzv_server_options,
    out: *mut *mut rdzv_server,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let info = reference_mut(info, "info")?;
            let out = out_pointer(out, "out")?;
            let shared = shared(context)?;
            let defaults = rdzv_server_options::default();
            let mut options = options.as_ref().unwrap_or(&defaults).project().map_err(|cause| {
                Fault::new(RDZV_EXHAUSTED, format!("cannot duplicate the descriptor: {cause}"))
            })?;
            options.listen =
                Listen::Adopted(info.reserved.take().ok_or_else(nothing_reserved)?.into_socket());
            out.put(start(shared, options)?);
            Ok(())
        })
    }
}
