//! Lists of workers of an RPC group.

use crate::buffer::borrowed;
use crate::guard;
use rendezvous_rpc::membership::observer::Seen;
use rendezvous_rpc::name::WorkerInfo;
use std::ptr::null;

/// Workers in the order of their numbers. Any thread may read it.
#[derive(Debug, Default)]
pub struct rdzv_rpc_workers {
    pub(crate) workers: Vec<Listed>,
}

/// One of them. Nothing that C sees.
#[derive(Debug)]
pub(crate) struct Listed {
    name: String,
    id: u16,
    address: String,
}

impl rdzv_rpc_workers {
    pub(crate) fn of_group(workers: Vec<WorkerInfo>) -> Self {
        let listed = |worker: WorkerInfo| Listed {
            name: worker.name.as_str().into(),
            id: worker.id,
            address: String::new(),
        };
        Self { workers: workers.into_iter().map(listed).collect() }
    }

    pub(crate) fn of_seen(workers: Vec<Seen>) -> Self {
        let listed = |seen: Seen| Listed {
            name: seen.worker.name.as_str().into(),
            id: seen.worker.id,
            address: seen.address.into(),
        };
        Self { workers: workers.into_iter().map(listed).collect() }
    }
}

/// Frees a list. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_free(workers: *mut rdzv_rpc_workers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(workers) };
}

/// How many workers. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_count(workers: *const rdzv_rpc_workers) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(workers, 0, |of| of.workers.len()) }
}

/// The name of the worker at `index` (from 0), its length in `*len` unless `len` is NULL. The string is not
/// NUL-terminated and is valid as long as the list. NULL beyond the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_name(
    workers: *const rdzv_rpc_workers,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(workers, null(), |of| {
            of.workers.get(index).map_or_else(null, |worker| borrowed(worker.name.as_bytes(), len))
        })
    }
}

/// The number of the worker at `index`; -1 beyond the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_workers_id(workers: *const rdzv_rpc_workers, index: usize) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(workers, -1, |of| of.workers.get(index).map_or(-1, |worker| i32::from(worker.id))) }
}

/// Where the worker at `index` takes calls, as its name is given. Length 0 where nobody has written it yet,
/// and in lists of a backend of yours.
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
