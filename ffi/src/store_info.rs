//! Address at which the ranks of a job find their store.

use crate::prelude::*;
use crate::store::{rdzv_store, timeout};
use rendezvous_core::driver::rendezvous::{Built, build};
use std::os::fd::IntoRawFd;

/// Address at which the ranks of a job find their store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_store_info {
    /// Set to `sizeof(rdzv_store_info)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// Listening socket that reserves the port, on the rank that published a port of its own; 0 for none.
    /// The caller owns and closes it. It is bound to all interfaces, has the close-on-exec flag, and keeps
    /// early clients in its backlog until a server takes it over as `rdzv_server_options.listen_fd`.
    pub listen_fd: i32,
    /// Port of the store.
    pub master_port: u16,
    /// Reserved; 0.
    pub reserved: u16,
    /// Name or literal address of the store's host, as it was published. NUL-terminated.
    pub master_addr: [c_char; 256],
}
growing!(rdzv_store_info: 268);

fn filled(Built { info, reserved }: Built) -> Result<rdzv_store_info, Fault> {
    let mut master_addr = [0; 256];
    let address = info.master_addr.as_bytes();
    if address.len() >= master_addr.len() || address.contains(&0) {
        let message = format!("MASTER_ADDR has {} bytes; a host has at most 255, and no NUL", address.len());
        return Err(Fault::new(RDZV_RENDEZVOUS_STATE, message));
    }
    for (to, from) in master_addr.iter_mut().zip(address) {
        *to = from.cast_signed();
    }
    // A duplicate never has the number 0, which stands for none.
    let duplicate = reserved.map(|port| port.into_socket().try_clone()).transpose();
    let socket = duplicate.map_err(|error| {
        Fault::os(RDZV_EXHAUSTED, "the socket that reserves the port cannot be duplicated", &error)
    })?;
    let listen_fd = socket.map_or(0, IntoRawFd::into_raw_fd);
    Ok(rdzv_store_info { struct_size: 0, listen_fd, master_port: info.master_port, reserved: 0, master_addr })
}

/// Publishes or reads the address of the store: rank 0 publishes an address and a port under the keys
/// `MASTER_ADDR` and `MASTER_PORT`; all ranks, including rank 0, wait for the keys and read them into
/// `*out`. Each rank calls this with its `rank`.
///
/// `local_addr` is published unchanged and is not resolved; with length 0 the host's own name is used.
/// `server_port` is the port of a server that is already running. If it is 0, rank 0 takes a free port and
/// reserves it with `out->listen_fd`; closing that socket releases the port. `timeout_ms` applies to each of
/// the four operations on the store.
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
    out: *mut rdzv_store_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| {
        if rank < 0 {
            return Err(invalid(format!("`rank` is {rank}; it must be 0 or above")));
        }
        let local_addr = text(local_addr, local_addr_len, "local_addr")?;
        let local_addr = if local_addr.is_empty() { None } else { Some(local_addr) };
        filled(build(rank, &store.store, local_addr, Some(server_port), timeout(timeout_ms)?)?)
    })
}
