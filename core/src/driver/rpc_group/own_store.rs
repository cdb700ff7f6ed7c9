//! A way to a group's store that nobody else waits in.

use crate::driver::call_error::CallError;
use crate::driver::canceller::Cancellable;
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::native_store::NativeStore;
use crate::driver::store::{Store, Timeouts};
use crate::time::Duration;
use alloc::string::ToString;
use alloc::sync::Arc;

/// How long it is tried whether the store's server speaks the native protocol.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);

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
pub(super) fn own_store(
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
        match NativeClient::connect_within(host, port, options, call) {
            Ok(client) => {
                return Ok((store.on_another(Arc::new(NativeStore::new(&client))), Sessions::Native));
            }
            Err(error) if call.is_cancelled() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok((store.duplicate_within(call)?, Sessions::None))
}
