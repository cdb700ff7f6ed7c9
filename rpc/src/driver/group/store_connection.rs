//! A way to a group's store that nobody else waits in.

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

/// How long it is tried whether the store's server speaks the native protocol.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How soon the store's calls are cancelled again.
pub(super) const INTERRUPT_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the server knows sessions, and tells of what changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sessions {
    Native,
    None,
}

/// The same keys over a connection of one's own: a session of this name, where the server knows any. Whoever cancels
/// `call` ends the connecting.
///
/// # Errors
/// Why there is no connection.
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

/// As long as it lives, what is asked of a store ends when somebody cancels.
#[derive(Debug)]
pub(super) struct Pressing {
    /// Goes before what ends the pressing.
    _watch: Watch,
    _ends: Reply<()>,
}

impl Pressing {
    /// Watches `call`. What is about to begin when the store's calls are cancelled hears nothing of it, and so that is done
    /// again and again from then on.
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
            // Without a thread, it was done once.
            drop(threads::spawn("rdzv-rpc-press", interrupt));
        });
        Self { _watch: watch, _ends: ends }
    }
}
