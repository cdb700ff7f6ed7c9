//! Lists of workers of an RPC group.

use crate::buffer::borrowed;
use crate::guard;
use rendezvous_rpc::membership::change::WorkerLocation;
use rendezvous_rpc::name::WorkerInfo;
use std::ptr::null;

/// List of workers, ordered by id. Any thread may read it.
#[derive(Debug, Default)]
pub struct rdzv_rpc_workers {
    pub(crate) workers: Vec<WorkerLocation>,
}

impl rdzv_rpc_workers {
    /// Lists workers whose addresses are not known.
    pub(crate) fn of_group(workers: Vec<WorkerInfo>) -> Self {
        let located = |worker| WorkerLocation { worker, address: Box::default() };
        Self { workers: workers.into_iter().map(located).collect() }
    }
}

/// Frees a list. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_free(workers: *mut rdzv_rpc_workers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(workers) };
}

/// Returns the number of workers; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_count(workers: *const rdzv_rpc_workers) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(workers, 0, |of| of.workers.len()) }
}

/// Returns the name of the worker at `index` (from 0) and writes its length to `*len` unless `len` is NULL.
/// The string is not NUL-terminated and is valid as long as the list. Returns NULL past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_name(
    workers: *const rdzv_rpc_workers,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(workers, null(), |of| {
            of.workers.get(index).map_or_else(null, |seen| borrowed(seen.worker.name.as_bytes(), len))
        })
    }
}

/// Returns the id of the worker at `index`; -1 past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_id(workers: *const rdzv_rpc_workers, index: usize) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(workers, -1, |of| of.workers.get(index).map_or(-1, |seen| i32::from(seen.worker.id)))
    }
}

/// Returns the address on which the worker at `index` accepts calls, in the same form as
/// `rdzv_rpc_workers_name`. The length is 0 if the address has not been published yet, and in lists of a
/// backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_address(
    workers: *const rdzv_rpc_workers,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(workers, null(), |of| {
            of.workers.get(index).map_or_else(null, |worker| borrowed(worker.address.as_bytes(), len))
        })
    }
}
