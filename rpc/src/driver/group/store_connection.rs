//! Connection to a group's store that no other code waits on.

use alloc::string::ToString;
use alloc::sync::Arc;
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::canceller::{Cancellable, Watch};
use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions};
use rendezvous_core::driver::native_store::NativeStore;
use rendezvous_core::driver::reply::{Reply, ask};
use rendezvous_core::driver::store::{Store, Timeouts};
use rendezvous_core::driver::threads;
use rendezvous_core::time::Duration;
use std::sync::{Mutex, PoisonError};

/// Timeout of the attempt to speak the native protocol with the store's server.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which the store's operations are cancelled again.
pub(super) const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the server has sessions and watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sessions {
    Native,
    None,
}

/// Opens another connection to the same keys: with a session of this name if the server has sessions. Cancelling `call`
/// ends the attempt.
///
/// # Errors
/// There is no connection.
pub(super) fn open_store(
    store: &Store,
    node: &str,
    call: &Cancellable,
) -> Result<(Store, Sessions), CallError> {
    if let Some((host, port)) = store.endpoint() {
        let options = NativeClientOptions {
            node: node.to_string(),
            connect_timeout: Duration::ZERO,
            timeouts: Timeouts { answer: NATIVE_TIMEOUT, ..Timeouts::default() },
            ..NativeClientOptions::default()
        };
        match NativeClient::connect_cancellable(host, port, options, call) {
            Ok(client) => {
                return Ok((store.on_another(Arc::new(NativeStore::new(&client))), Sessions::Native));
            }
            Err(error) if call.is_cancelled() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok((store.duplicate_cancellable(call)?, Sessions::None))
}

/// Guard that cancels the store's operations when the call is cancelled.
#[derive(Debug)]
pub(super) struct CancelGuard {
    /// Declared first, so that it is dropped before the end of the cancelling thread.
    _watch: Watch,
    _ends: Reply<()>,
}

impl CancelGuard {
    /// Watches `call`. An operation that starts just after a cancellation is not cancelled by it, so the cancellation
    /// is repeated until the guard is dropped.
    pub(super) fn begin(store: &Arc<Store>, call: &Cancellable) -> Self {
        let (ends, ended) = ask();
        let (store, ended) = (Arc::clone(store), Mutex::new(Some(ended)));
        let watch = call.watch(move || {
            store.cancel();
            let first = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(ended) = first else { return };
            let store = Arc::clone(&store);
            let interrupt = move || {
                while ended.look(INTERRUPT_INTERVAL).is_none() {
                    store.cancel();
                }
            };
            // Without a thread, the operations were cancelled once.
            drop(threads::spawn("rdzv-rpc-press", interrupt));
        });
        Self { _watch: watch, _ends: ends }
    }
}
