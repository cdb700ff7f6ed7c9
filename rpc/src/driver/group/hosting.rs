//! Store of a group that one worker's process hosts: it is kept until the other workers have ended.

use super::store_connection::open_store;
use crate::agent::liveness_key;
use rendezvous_core::driver::native_client::{NativeClient, Watch, WatchError};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::Operation;
use rendezvous_core::time::Duration;

/// Waits until no worker of the group has a session with the store's server any more, up to `timeout` or a
/// cancellation. `store` has the keys of the group.
///
/// # Errors
/// The server cannot be reached, or the wait was cancelled.
pub(super) fn wait_for_the_last(
    store: &Store,
    timeout: Duration,
    token: &CancelToken,
) -> Result<(), CallError> {
    let clock = Clock::new();
    let until = clock.now() + timeout;
    let (store, _) = open_store(store, "host", None, token)?;
    let client = store.native(Operation::Watch)?;
    let watch = watch_keys(&client)?;
    wait_for_end(&mut KeyWatch { client, watch }, || until.since(clock.now()))
}

/// Source of the information whether workers have sessions.
trait LivenessSource {
    /// Whether any worker has a session now.
    fn has_any(&mut self) -> Result<bool, CallError>;
    /// Waits for a change, up to this time.
    fn wait_for_change(&mut self, left: Duration) -> Result<(), WatchError>;
    /// Starts a new watch.
    fn watch_again(&mut self) -> Result<(), CallError>;
}

fn wait_for_end(source: &mut impl LivenessSource, left: impl Fn() -> Duration) -> Result<(), CallError> {
    while source.has_any()? {
        let left = left();
        if left.is_zero() {
            break;
        }
        match source.wait_for_change(left) {
            Ok(()) => {}
            // Many changes came at once. Those that were missed are found by the next check.
            Err(WatchError::Compacted { .. } | WatchError::Overrun(_)) => source.watch_again()?,
            Err(_) => break,
        }
    }
    Ok(())
}

struct KeyWatch {
    client: NativeClient,
    watch: Watch,
}

impl LivenessSource for KeyWatch {
    fn has_any(&mut self) -> Result<bool, CallError> {
        let page = self.client.list_page(liveness_key::PREFIX.as_bytes(), b"", 1, Timeout::Default)?;
        Ok(!page.keys.is_empty())
    }

    fn wait_for_change(&mut self, left: Duration) -> Result<(), WatchError> {
        self.watch.next(left).map(drop)
    }

    fn watch_again(&mut self) -> Result<(), CallError> {
        self.watch = watch_keys(&self.client)?;
        Ok(())
    }
}

fn watch_keys(client: &NativeClient) -> Result<Watch, CallError> {
    Ok(client.watch_prefix(liveness_key::PREFIX.as_bytes(), 0, Timeout::Default)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use rendezvous_core::store::op::Key;
    use rendezvous_core::wire::native::Why;

    /// A source whose watch ends in these ways, one after the other, and whose last worker ends after them.
    struct Ending {
        routes: Vec<WatchError>,
        watches: usize,
    }

    impl LivenessSource for Ending {
        fn has_any(&mut self) -> Result<bool, CallError> {
            Ok(!self.routes.is_empty())
        }

        fn wait_for_change(&mut self, _: Duration) -> Result<(), WatchError> {
            Err(self.routes.remove(0))
        }

        fn watch_again(&mut self) -> Result<(), CallError> {
            self.watches += 1;
            Ok(())
        }
    }

    #[test]
    fn a_watch_that_missed_changes_is_begun_again_and_the_host_waits_on() {
        let of = |why| WatchError::of((why, 9), Duration::ZERO, Key::raw(b"sign"), "host");
        let wait = |routes: Vec<WatchError>| {
            let mut source = Ending { routes, watches: 0 };
            wait_for_end(&mut source, || Duration::from_secs(1)).expect("the server is there");
            (source.watches, source.routes.len())
        };
        let overrun = || WatchError::overrun(Key::raw(b"sign"), "host");
        assert_eq!(wait(alloc::vec![of(Why::Compacted), overrun(), of(Why::Compacted)]), (3, 0));
        assert_eq!(wait(alloc::vec![overrun(), of(Why::Limit), overrun()]), (1, 1), "the server ended it");
        let mut source = Ending { routes: alloc::vec![overrun()], watches: 0 };
        wait_for_end(&mut source, || Duration::ZERO).expect("its time is up");
        assert_eq!(source.routes.len(), 1);
    }
}
