//! Connection to a group's store that no other code waits on.

use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::{Store, Timeouts};
use rendezvous_core::driver::tls::TlsConnector;
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::error::Operation;

/// Timeout of the attempt to speak the native protocol with the store's server.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the token that the store's session proves, if it does.
pub(super) fn auth_token_of(store: &Store) -> Option<ClientToken> {
    store.native(Operation::Session).ok()?.options().auth_token.clone()
}

/// Opens another connection to the same keys, and returns whether it is over a session of this name: some servers have
/// sessions and watches. `token` ends the attempt, and later the calls of the new store.
///
/// # Errors
/// There is no connection.
pub(super) fn open_store(
    store: &Store,
    node: &str,
    tls: Option<TlsConnector>,
    token: &CancelToken,
) -> Result<(Store, bool), CallError> {
    if let Some((host, port)) = store.endpoint() {
        let of_store = store.native(Operation::Session).ok().and_then(|client| client.options().tls.clone());
        let options = NativeClientOptions {
            tls: of_store.or(tls),
            auth_token: auth_token_of(store),
            node: node.to_string(),
            connect_timeout: Duration::ZERO,
            timeouts: Timeouts { answer: NATIVE_TIMEOUT, ..Timeouts::default() },
            token: token.clone(),
            ..NativeClientOptions::default()
        };
        match NativeClient::connect(host, port, options) {
            Ok(client) => {
                let store = store.on_another(Arc::new(client));
                return Ok((store.with_token(token), true));
            }
            Err(error) if token.is_cancelled() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok((store.with_token(token).duplicate()?.with_token(token), false))
}
