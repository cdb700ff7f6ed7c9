//! Observers of an RPC group.

use crate::cancel_token::{rdzv_cancel_token, token_or_none};
use crate::prelude::*;
use crate::rpc_workers::{rdzv_rpc_workers, workers};
use crate::store::{rdzv_store, span};
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::store::Timeouts;
use rendezvous_rpc::device_map::GroupKind;
use rendezvous_rpc::driver::group::{GroupObserver, ObserverOptions};
use rendezvous_rpc::membership::observer::Observation;

/// No change was observed.
pub const RDZV_RPC_OBSERVATION_NONE: i32 = 0;
/// The group has started and is static.
pub const RDZV_RPC_OBSERVATION_STATIC: i32 = 1;
/// The group has started and is dynamic.
pub const RDZV_RPC_OBSERVATION_DYNAMIC: i32 = 2;
/// A worker is in the group. If it rejoins at another address, its departure is reported first.
pub const RDZV_RPC_OBSERVATION_JOINED: i32 = 3;
/// A worker is no longer in the group. A worker that died is listed until other workers remove it.
pub const RDZV_RPC_OBSERVATION_LEFT: i32 = 4;

/// Observation of a change in a group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_observation {
    /// Set to `sizeof(rdzv_rpc_observation)` before the call. The library sets it to the number of bytes
    /// it filled.
    pub struct_size: u32,
    /// One of the `RDZV_RPC_OBSERVATION_` constants. Later versions may add more.
    pub kind: i32,
    /// Id of the worker concerned; -1 if there is none.
    pub id: i32,
    /// Reserved; 0.
    pub reserved: u32,
}
growing!(rdzv_rpc_observation: 16);

/// Observer of the workers of a group, PyTorch's or this library's, by its keys alone. It writes nothing,
/// and the group does not know of it. Any thread may use it.
#[derive(Debug)]
pub struct rdzv_rpc_observer {
    state: HandleState,
    observer: GroupObserver,
    shared: Arc<ContextShared>,
    /// Cancels waiting calls from another thread.
    token: CancelToken,
}
guard::handle!(rdzv_rpc_observer, shared);

/// Observes the group whose keys are those of `store`. The keys of a job's first group begin with
/// `rpc_prefix_0`; use `rdzv_store_new_prefix`. The observer has its own connection and thread. It reads
/// the keys twice a second, and at once when a native server reports a change. The caller may free its
/// handle of the store. `token` ends every `rdzv_rpc_observer_next` from another thread; NULL: none does.
/// On success the caller owns `*out` and frees it with `rdzv_rpc_observer_free`.
///
/// Errors: those of `rdzv_store_new`, `RDZV_EXHAUSTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_observer_new(
    store: *const rdzv_store,
    token: *const rdzv_cancel_token,
    out: *mut *mut rdzv_rpc_observer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, out, |store| {
        let observer = GroupObserver::start(&store.store, ObserverOptions::default())?;
        let (state, shared) = (HandleState::default(), Arc::clone(&store.shared));
        Ok(boxed(rdzv_rpc_observer { state, observer, shared, token: token_or_none(token) }))
    })
}

/// Ends an observer and frees it. No other call on it may be in progress. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_observer_free(observer: *mut rdzv_rpc_observer) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(observer, "rdzv_rpc_observer_free") };
}

/// Waits up to `timeout_ms` (0: poll once; -1: 300,000) for the next observation and fills
/// `*observation`, whose `struct_size` the caller has set. If there is none, the kind is
/// `RDZV_RPC_OBSERVATION_NONE`. The name of the worker concerned replaces the content of `name`, and its
/// address, if it has one, that of `address`; both may be NULL. Each observation is delivered once, to
/// one thread.
///
/// Errors, reported once: `RDZV_SERVER_GONE` (the store failed), `RDZV_RPC_MEMBERSHIP` (the keys are not
/// those of a group). `RDZV_CANCELLED` once the token is cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_observer_next(
    observer: *const rdzv_rpc_observer,
    timeout_ms: i64,
    observation: *mut rdzv_rpc_observation,
    name: *mut rdzv_buffer,
    address: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, observer, observation, |of| {
        let next = of.observer.next(span(timeout_ms, Timeouts::default().call)?, &of.token)?;
        if next.is_none() && of.token.is_cancelled() {
            let message = "waiting for an observation was cancelled";
            return Err(Fault::new(RDZV_CANCELLED, message).during("observe"));
        }
        let (kind, worker, index) = match &next {
            None => (RDZV_RPC_OBSERVATION_NONE, None, ""),
            Some(Observation::Begun(GroupKind::Static)) => (RDZV_RPC_OBSERVATION_STATIC, None, ""),
            Some(Observation::Begun(GroupKind::Dynamic)) => (RDZV_RPC_OBSERVATION_DYNAMIC, None, ""),
            Some(Observation::Joined(seen)) => {
                (RDZV_RPC_OBSERVATION_JOINED, Some(&seen.worker), &*seen.address)
            }
            Some(Observation::Left(worker)) => (RDZV_RPC_OBSERVATION_LEFT, Some(worker), ""),
        };
        fill_unless_null(name, worker.map(|worker| &*worker.name));
        fill_unless_null(address, Some(index));
        let id = worker.map_or(-1, |worker| worker.id.into());
        Ok(rdzv_rpc_observation { kind, id, ..Default::default() })
    })
}

/// Lists the workers of the group, as far as observed. On success the caller owns `*out` and frees it
/// with `rdzv_rpc_workers_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_observer_list(
    observer: *const rdzv_rpc_observer,
    out: *mut *mut rdzv_rpc_workers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, observer, out, |of| Ok(workers(of.observer.seen())))
}
