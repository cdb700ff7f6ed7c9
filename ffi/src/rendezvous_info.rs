//! What a node learns when it has joined.

use crate::argument::{out_pointer, reference};
use crate::buffer::borrowed;
use crate::context::Shared;
use crate::fault::rdzv_error;
use crate::guard;
use crate::status::rdzv_status;
use crate::store::{node_handle, rdzv_store};
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RoundPosition};
use std::ptr::null;
use std::sync::Arc;

/// What a node learns when it has joined. It does not change; any thread may read it.
#[derive(Debug)]
pub struct rdzv_rendezvous_info {
    info: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<Shared>,
}

impl rdzv_rendezvous_info {
    fn placed(&self, number: impl FnOnce(&RoundPosition) -> u64) -> i64 {
        known(self.info.position.as_ref().map(number))
    }
}

fn known(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

pub(crate) fn info_handle(
    info: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<Shared>,
) -> *mut rdzv_rendezvous_info {
    Box::into_raw(Box::new(rdzv_rendezvous_info { info, shared }))
}

/// Frees it. NULL is ignored. Handles of its store live on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_free(info: *mut rdzv_rendezvous_info) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(info) };
}

/// A handle of the store that the nodes share. All handles of one rendezvous share connections, the default
/// timeout, and what is pending, so that cancelling the calls of one cancels those of all; where this
/// process hosts the store, its server lives as long as the last of them, and as the handler that joined. On
/// success `*out` is yours until `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_store(
    info: *const rdzv_rendezvous_info,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let of = reference(info, "info")?;
            out_pointer(out, "out")?.put(node_handle(Arc::clone(&of.info.store), Arc::clone(&of.shared)));
            Ok(())
        })
    }
}

/// This node's rank among those of the rendezvous, from 0; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_rank(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, -1, |of| of.info.rank) }
}

/// How many nodes they are; negative when nobody knows (a URL without a world size), and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_world_size(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, -1, |of| of.info.world_size) }
}

/// Where the ranks of the job find their store: a name or an address, its length in `*len` unless `len` is
/// NULL. Not NUL-terminated; lives as long as the info. Of a rendezvous by URL it is empty. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_master_addr(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(info, null(), |of| borrowed(of.info.bootstrap_store_info.master_addr.as_bytes(), len))
    }
}

/// The port there; 0 of a rendezvous by URL, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_master_port(info: *const rdzv_rendezvous_info) -> u16 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, 0, |of| of.info.bootstrap_store_info.master_port) }
}

/// Whether this process hosts the store, 1 or 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_hosts_store(info: *const rdzv_rendezvous_info) -> i32 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, 0, |of| i32::from(of.info.store.server().is_some())) }
}

/// The round that this node is in, from 0; -1 when the backend has no rounds (as URLs have none), in the first
/// round of `static`, which may be no round to others, and for NULL. The three that follow tell more of the
/// node's place in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_round(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, -1, |of| known(of.info.round)) }
}

/// The global rank of this node's first worker; -1 where the backend does not know it, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_rank_first(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, -1, |of| of.placed(|index| index.rank_first)) }
}

/// How many workers all nodes of the round have; -1 where the backend does not know it, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_worker_count(info: *const rdzv_rendezvous_info) -> i64 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(info, -1, |of| of.placed(|index| index.world_size)) }
}

/// What the keys of the round begin with at its server, with a slash at the end: a client that puts it before
/// its keys shares them with the nodes' store. It differs from round to round and from server to server. Its
/// length goes to `*len` unless `len` is NULL. Not NUL-terminated; lives as long as the info. NULL where the
/// backend does not know it, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_key_prefix(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(info, null(), |of| {
            of.info.position.as_ref().map_or(null(), |index| borrowed(index.key_prefix.as_bytes(), len))
        })
    }
}

/// Where node 0 of the round is reached, as it said; its length goes to `*len` unless `len` is NULL. Not
/// NUL-terminated; lives as long as the info. NULL where the backend does not know it, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_info_leader(
    info: *const rdzv_rendezvous_info,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe {
        guard::read(info, null(), |of| {
            of.info.position.as_ref().map_or(null(), |index| borrowed(index.leader.as_bytes(), len))
        })
    }
}
