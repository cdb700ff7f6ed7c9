//! The store of a group that one worker's process hosts: it stays until the other workers have ended.

use super::own_store::own_store;
use crate::driver::call_error::CallError;
use crate::driver::canceller::Cancellable;
use crate::driver::clock::Clock;
use crate::driver::store::{Store, Timeout};
use crate::error::Operation;
use crate::rpc::agent::sign;
use crate::time::Duration;
use alloc::sync::Arc;

/// Waits until no worker of the group has a session with the store's server any more, for so long at most, and no longer
/// than until this is cancelled. `store` has the keys of the group.
///
/// # Errors
/// The server is gone, or this was cancelled: nobody is to be waited for.
pub(super) fn wait_for_the_last(
    store: &Store,
    timeout: Duration,
    call: &Cancellable,
) -> Result<(), CallError> {
    let clock = Clock::new();
    let until = clock.now() + timeout;
    let (store, _) = own_store(store, "host", call)?;
    let client = store.native(Operation::Watch)?;
    let watch = Arc::new(client.watch_prefix(sign::PREFIX.as_bytes(), 0, Timeout::Default)?);
    let cancelled = Arc::clone(&watch);
    let _cancels = call.watch(move || cancelled.cancel());
    loop {
        let page = client.list_page(sign::PREFIX.as_bytes(), b"", 1, Timeout::Default)?;
        let left = until.since(clock.now());
        if page.keys.is_empty() || left.is_zero() || watch.next(left).is_err() {
            return Ok(());
        }
    }
}
