//! Results of joining a rendezvous.

use crate::argument::{out_pointer, reference};
use crate::buffer::borrowed;
use crate::context::ContextShared;
use crate::fault::rdzv_error;
use crate::guard;
use crate::status::rdzv_status;
use crate::store::{node_handle, rdzv_store};
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RoundPosition};
use std::ptr::null;
use std::sync::Arc;

/// Result of joining a rendezvous. It is immutable; any thread may read it.
#[derive(Debug)]
pub struct rdzv_rendezvous_info {
    info: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<ContextShared>,
}

impl rdzv_rendezvous_info {
    fn position_number(&self, number: impl FnOnce(&RoundPosition) -> u64) -> i64 {
        or_unknown(self.info.position.as_ref().map(number))
    }
}

fn or_unknown(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

pub(crate) fn info_handle(
    info: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<ContextShared>,
) -> *mut rdzv_rendezvous_info {
    Box::into_raw(Box::new(rdzv_rendezvous_info { info, shared }))
}

/// Frees the result. Handles of its store remain valid. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_free(info: *mut rdzv_rendezvous_info) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(info) };
}

/// Creates a handle of the store that the nodes share. All handles of one rendezvous share connections, the
/// default timeout and the pending calls, so cancelling the calls of one handle cancels those of all. If
/// this process hosts the store, the server runs until the last of these handles and the handler that
/// joined are freed. On success the caller owns `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_store(
    info: *const rdzv_rendezvous_info,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let of = reference(info, "info")?;
            out_pointer(out, "out")?.put(node_handle(Arc::clone(&of.info.store), Arc::clone(&of.shared)));
            Ok(())
        })
    }
}

/// Returns this node's rank among the nodes of the rendezvous, from 0; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_rank(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, -1, |of| of.info.rank) }
}

/// Returns the number of nodes; negative if it is unknown (a URL without a world size) and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_world_size(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, -1, |of| of.info.world_size) }
}

/// Returns the name or address at which the ranks of the job find their store, and writes its length to
/// `*len` unless `len` is NULL. The string is not NUL-terminated and is valid as long as the info. It is
/// empty for a rendezvous by URL. Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_master_addr(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(info, null(), |of| borrowed(of.info.bootstrap_store_info.master_addr.as_bytes(), len))
    }
}

/// Returns the port that goes with `rdzv_rendezvous_info_master_addr`; 0 for a rendezvous by URL and for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_master_port(info: *const rdzv_rendezvous_info) -> u16 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, 0, |of| of.info.bootstrap_store_info.master_port) }
}

/// Returns 1 if this process hosts the store, else 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_hosts_store(info: *const rdzv_rendezvous_info) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, 0, |of| i32::from(of.info.store.server().is_some())) }
}

/// Returns the round that this node is in, from 0. Returns -1 if the backend has no rounds (a URL has
/// none), in the first round of `static`, which other nodes may not count as a round, and for NULL. The
/// four functions that follow describe the node's position in the round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_round(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, -1, |of| or_unknown(of.info.round)) }
}

/// Returns the global rank of this node's first worker; -1 if the backend does not know it and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_rank_first(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, -1, |of| of.position_number(|index| index.rank_first)) }
}

/// Returns the number of workers of all nodes of the round; -1 if the backend does not know it and for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_worker_count(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(info, -1, |of| of.position_number(|index| index.world_size)) }
}

/// Returns the prefix of the round's keys at its server, with a trailing slash; writes its length to `*len`
/// unless `len` is NULL. A client that prepends it to its keys shares them with the nodes' store. It
/// differs between rounds and between servers. The string is not NUL-terminated and is valid as long as the
/// info. Returns NULL if the backend does not know it and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_key_prefix(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(info, null(), |of| {
            of.info.position.as_ref().map_or(null(), |index| borrowed(index.key_prefix.as_bytes(), len))
        })
    }
}

/// Returns the address that node 0 of the round published for itself; writes its length to `*len` unless
/// `len` is NULL. The string is not NUL-terminated and is valid as long as the info. Returns NULL if the
/// backend does not know it and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_leader(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(info, null(), |of| {
            of.info.position.as_ref().map_or(null(), |index| borrowed(index.leader.as_bytes(), len))
        })
    }
}
