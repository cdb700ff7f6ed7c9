//! Results of joining a rendezvous.

use crate::prelude::*;
use crate::store::{node_handle, rdzv_store};
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::rendezvous::store_info::RendezvousInfo;

/// Rendezvous that this node has joined. It is immutable; any thread may read it.
#[derive(Debug)]
pub struct rdzv_rendezvous {
    joined: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<ContextShared>,
    master_addr: CString,
    /// Address of node 0 and prefix of the round's keys, if the backend knows the node's position.
    position: Option<(CString, CString)>,
}

/// What a node learns when it has joined. Strings are NUL-terminated and valid as long as the rendezvous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_info {
    /// Set to `sizeof(rdzv_rendezvous_info)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// 1 if this process hosts the store, else 0.
    pub hosts_store: u32,
    /// Rank of this node among the nodes, from 0.
    pub rank: i64,
    /// Number of nodes; negative if it is unknown (a URL without a world size).
    pub world_size: i64,
    /// Name or address at which the ranks of the job find their store; empty for a rendezvous by URL.
    pub master_addr: *const c_char,
    /// Port that goes with `master_addr`; 0 for a rendezvous by URL.
    pub master_port: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Round that this node is in, from 0. -1: the backend has no rounds, as a URL has none, or this is the
    /// first round of `static`, which other nodes may not count as a round.
    pub round: i64,
    /// Global rank of this node's first worker; -1 if the backend does not know it.
    pub rank_first: i64,
    /// Number of workers of all nodes of the round; -1 if the backend does not know it.
    pub worker_count: i64,
    /// Address that node 0 of the round published for itself; NULL if the backend does not know it.
    pub leader: *const c_char,
    /// Prefix of the round's keys at its server, with a trailing slash; NULL if the backend does not know
    /// it. A client that puts it before its keys shares them with the nodes' store. It differs between
    /// rounds and between servers.
    pub key_prefix: *const c_char,
}
growing!(rdzv_rendezvous_info: 80);

fn or_unknown(number: Option<u64>) -> i64 {
    number.map_or(-1, |number| i64::try_from(number).unwrap_or(i64::MAX))
}

pub(crate) fn rendezvous_handle(
    joined: RendezvousInfo<Arc<NodeStore>>,
    shared: Arc<ContextShared>,
) -> *mut rdzv_rendezvous {
    let master_addr = c_string(&joined.bootstrap_store_info.master_addr);
    let position = joined.position.as_ref().map(|of| (c_string(&of.leader), c_string(&of.key_prefix)));
    boxed(rdzv_rendezvous { joined, shared, master_addr, position })
}

/// Frees a rendezvous. Handles of its store remain valid. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_free(rendezvous: *mut rdzv_rendezvous) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(rendezvous) };
}

/// Creates a handle of the store that the nodes share. All handles of one rendezvous share connections, the
/// default timeout and the pending calls, so cancelling the calls of one handle cancels those of all. If
/// this process hosts the store, the server runs until the last of these handles and the handler that
/// joined are freed. On success the caller owns `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_rendezvous(
    rendezvous: *const rdzv_rendezvous,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let of = reference(rendezvous, "rendezvous")?;
        Ok(node_handle(Arc::clone(&of.joined.store), Arc::clone(&of.shared)))
    })
}

/// Fills `*out`, whose `struct_size` the caller has set, with what this node learned when it joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_get_info(
    rendezvous: *const rdzv_rendezvous,
    out: *mut rdzv_rendezvous_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let of = reference(rendezvous, "rendezvous")?;
        let (joined, position) = (&of.joined, of.joined.position.as_ref());
        Ok(rdzv_rendezvous_info {
            hosts_store: u32::from(joined.store.server().is_some()),
            rank: joined.rank,
            world_size: joined.world_size,
            master_addr: of.master_addr.as_ptr(),
            master_port: joined.bootstrap_store_info.master_port.into(),
            round: or_unknown(joined.round),
            rank_first: or_unknown(position.map(|of| of.rank_first)),
            worker_count: or_unknown(position.map(|of| of.world_size)),
            leader: of.position.as_ref().map_or(null(), |(leader, _)| leader.as_ptr()),
            key_prefix: of.position.as_ref().map_or(null(), |(_, prefix)| prefix.as_ptr()),
            ..Default::default()
        })
    })
}
