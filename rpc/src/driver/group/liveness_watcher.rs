//! Liveness keys of the workers of a group, if the store is a native server's: keys that are deleted with sessions.

use super::shared::GroupShared;
use crate::agent::{Input, liveness_key};
use rendezvous_core::driver::native_client::{Lease, NativeClient, NativeError, Watch, WatchError};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::Operation;

/// Number of keys that are read at a time.
const PAGE: u32 = 1024;
/// Time for a new watch and for all keys after changes were missed. No request is begun after it.
const WATCH_AGAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of marking the key as leaving: the worker's end is also reported otherwise.
const MARK_LEAVING_TIMEOUT: Duration = Duration::from_secs(2);

/// Liveness key of one worker, and its watch on those of the others.
#[derive(Debug)]
pub(super) struct LivenessWatcher {
    client: NativeClient,
    store: Arc<Store>,
    key: Box<str>,
    /// Kept as long as the key.
    _lease: Lease,
    /// All keys when the watch began, until they were returned.
    first: Option<Input>,
    /// `None` once it has ended.
    watch: Option<Watch>,
}

impl LivenessWatcher {
    /// Sets the worker's own key, and reports all keys from now on. `store` is one of a native server, with a session
    /// of this worker.
    pub(super) fn begin(
        store: &Arc<Store>,
        (key, here): (&str, &str),
        shared: &Arc<GroupShared>,
    ) -> Result<Self, CallError> {
        let client = store.native(Operation::Watch)?;
        let watch = watch_keys(&client, shared, Timeout::Default)?;
        // Changes from now on are reported by the watch.
        let first = all_keys(&client, || Some(Timeout::Default))?;
        let lease = client.lease(Duration::ZERO, Timeout::Default)?;
        lease.attach(&[key.as_bytes()], Timeout::Default)?;
        store.set(key.as_bytes(), here.as_bytes(), Timeout::Default)?;
        Ok(Self {
            client,
            store: Arc::clone(store),
            key: key.into(),
            _lease: lease,
            first,
            watch: Some(watch),
        })
    }

    /// Returns the changes of the keys since the last call. It waits only where changes were missed, for a new watch.
    pub(super) fn changes(&mut self, shared: &GroupShared) -> Vec<Input> {
        let mut inputs: Vec<Input> = self.first.take().into_iter().collect();
        while let Some(watch) = &self.watch {
            let why = match watch.next(Duration::ZERO) {
                Ok(None) | Err(WatchError::Cancelled(_)) => break,
                Ok(Some(change)) => {
                    let value = change.value.map(Vec::into_boxed_slice);
                    inputs.extend(short(&change.key).map(|key| Input::LivenessKey(key, value)));
                    continue;
                }
                Err(WatchError::Compacted { .. } | WatchError::Overrun(_)) => {
                    match self.begin_again(shared) {
                        Ok(all) => {
                            inputs.push(all);
                            continue;
                        }
                        Err(why) => why,
                    }
                }
                Err(error) => error.to_string().into(),
            };
            self.watch = None;
            inputs.push(Input::LivenessLost(why));
        }
        inputs
    }

    /// Starts a new watch, and returns all keys.
    fn begin_again(&mut self, shared: &GroupShared) -> Result<Input, Box<str>> {
        // The thread drives the group, too, so it does not wait as long as other calls may.
        let (clock, until) = (shared.clock(), shared.clock().now() + WATCH_AGAIN_TIMEOUT);
        let timeout = || Some(until.since(clock.now())).filter(|left| !left.is_zero()).map(Timeout::After);
        let text = |error: NativeError| error.to_string();
        let watch = watch_keys(&self.client, shared, Timeout::After(WATCH_AGAIN_TIMEOUT));
        self.watch = Some(watch.map_err(text)?);
        let seconds = WATCH_AGAIN_TIMEOUT.as_secs();
        let late = || format!("the liveness keys could not be read anew within {seconds} s").into();
        all_keys(&self.client, timeout).map_err(text)?.ok_or_else(late)
    }

    /// Marks the key as leaving.
    pub(super) fn mark_leaving(&self) {
        // If that fails, the others report a death, as they should.
        self.store.set(self.key.as_bytes(), liveness_key::GOING, Timeout::After(MARK_LEAVING_TIMEOUT)).ok();
    }
}

impl Drop for LivenessWatcher {
    /// Ends the session, and with it the key.
    fn drop(&mut self) {
        self.client.hang_up();
    }
}

/// Returns a key without its prefix, as the state machine expects it.
fn short(key: &[u8]) -> Option<Box<str>> {
    let key = key.strip_prefix(liveness_key::PREFIX.as_bytes())?;
    Some(String::from_utf8_lossy(key).into())
}

fn watch_keys(client: &NativeClient, shared: &GroupShared, timeout: Timeout) -> Result<Watch, NativeError> {
    let watch = client.watch_prefix(liveness_key::PREFIX.as_bytes(), 0, timeout)?;
    watch.wake(shared.waker());
    Ok(watch)
}

/// Reads all keys; `None` if there is no time left for a request.
fn all_keys(
    client: &NativeClient,
    timeout: impl Fn() -> Option<Timeout>,
) -> Result<Option<Input>, NativeError> {
    let (mut after, mut all) = (Vec::new(), Vec::new());
    loop {
        let Some(timeout) = timeout() else { return Ok(None) };
        let page = client.list_page(liveness_key::PREFIX.as_bytes(), &after, PAGE, timeout)?;
        let names: Vec<&[u8]> = page.keys.iter().map(Vec::as_slice).collect();
        let found = if names.is_empty() { Vec::new() } else { client.read(&names, Timeout::Once)? };
        let found = page.keys.iter().zip(found).filter(|(_, found)| found.revision > 0);
        all.extend(found.filter_map(|(key, found)| Some((short(key)?, found.value.into_boxed_slice()))));
        match page.keys.last() {
            Some(last) if page.more => after.clone_from(last),
            _ => return Ok(Some(Input::LivenessKeys(all))),
        }
    }
}
