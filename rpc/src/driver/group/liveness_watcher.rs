//! Liveness keys of the workers of a group, if the store is a native server's: keys that are deleted with sessions.

use super::shared::GroupShared;
use crate::agent::{Input, liveness_key};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use rendezvous_core::driver::native_client::{Lease, NativeClient, NativeError, Watch, WatchError};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::error::Operation;
use rendezvous_core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Number of keys that are read at a time.
const PAGE: u32 = 1024;
/// Practically unlimited; the watch ends or is cancelled before.
const LONG: Duration = Duration::from_secs(24 * 3600);
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
    watch: Arc<Mutex<Arc<Watch>>>,
    thread: Option<Thread>,
}

/// Reason why the liveness keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LivenessError {
    /// The server or the session with it failed.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// The key could not be set.
    #[error(transparent)]
    Store(#[from] rendezvous_core::driver::call_error::CallError),
    /// The watch ended before it began.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The thread could not be started.
    #[error("no thread for the liveness keys: {0}")]
    Thread(io::Error),
}

impl LivenessWatcher {
    /// Sets the worker's own key, and reports all keys from now on. `store` is one of a native server, with a session
    /// of this worker.
    pub(super) fn begin(
        store: &Arc<Store>,
        (key, here): (&str, &str),
        shared: &Arc<GroupShared>,
    ) -> Result<Self, LivenessError> {
        let client = store.native(Operation::Watch)?;
        let watch = Arc::new(client.watch_prefix(liveness_key::PREFIX.as_bytes(), 0, Timeout::Default)?);
        // Changes from now on are reported by the watch.
        push_all(&client, shared)?;
        let lease = client.lease(Duration::ZERO, Timeout::Default)?;
        lease.attach(&[key.as_bytes()], Timeout::Default)?;
        store.set(key.as_bytes(), here.as_bytes(), Timeout::Default)?;
        let watch = Arc::new(Mutex::new(watch));
        let (watcher, stop_watch, weak) = (client.clone(), Arc::clone(&watch), Arc::downgrade(shared));
        let thread = threads::spawn("rdzv-rpc-signs", move || {
            run_watched(&weak, || listen(&watcher, &stop_watch, &weak));
        });
        let thread = Some(thread.map_err(LivenessError::Thread)?);
        Ok(Self { client, store: Arc::clone(store), key: key.into(), _lease: lease, watch, thread })
    }

    /// Marks the key as leaving.
    pub(super) fn mark_leaving(&self) {
        // If that fails, the others report a death, as they should.
        self.store.set(self.key.as_bytes(), liveness_key::GOING, Timeout::After(MARK_LEAVING_TIMEOUT)).ok();
    }

    /// Ends the session, and with it the key.
    pub(super) fn end(&mut self) {
        current(&self.watch).cancel();
        self.client.abandon();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Drop for LivenessWatcher {
    fn drop(&mut self) {
        self.end();
    }
}

fn current(watch: &Mutex<Arc<Watch>>) -> Arc<Watch> {
    Arc::clone(&watch.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns a key without its prefix, as the state machine expects it.
fn short(key: &[u8]) -> Option<Box<str>> {
    let key = key.strip_prefix(liveness_key::PREFIX.as_bytes())?;
    Some(String::from_utf8_lossy(key).into())
}

fn push_input(shared: &GroupShared, key: &[u8], value: Option<Vec<u8>>) {
    if let Some(key) = short(key) {
        shared.push_input(Input::LivenessKey(key, value.map(Vec::into_boxed_slice)));
    }
}

/// Reports all keys.
fn push_all(client: &NativeClient, shared: &GroupShared) -> Result<(), NativeError> {
    let (mut after, mut all) = (Vec::new(), Vec::new());
    loop {
        let page = client.list_page(liveness_key::PREFIX.as_bytes(), &after, PAGE, Timeout::Default)?;
        let names: Vec<&[u8]> = page.keys.iter().map(Vec::as_slice).collect();
        let found = if names.is_empty() { Vec::new() } else { client.read(&names, Timeout::Once)? };
        let found = page.keys.iter().zip(found).filter(|(_, found)| found.revision > 0);
        all.extend(found.filter_map(|(key, found)| Some((short(key)?, found.value.into_boxed_slice()))));
        match page.keys.last() {
            Some(last) if page.more => after.clone_from(last),
            _ => break,
        }
    }
    shared.push_input(Input::LivenessKeys(all));
    Ok(())
}

/// Starts a new watch, and reports what was missed.
fn begin_again(
    client: &NativeClient,
    watch: &Mutex<Arc<Watch>>,
    shared: &GroupShared,
) -> Result<(), LivenessError> {
    let again = client.watch_prefix(liveness_key::PREFIX.as_bytes(), 0, Timeout::Default)?;
    *watch.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(again);
    Ok(push_all(client, shared)?)
}

/// Runs the watching thread; if it panics, the state machine is notified that the watch is lost.
fn run_watched(shared: &Weak<GroupShared>, listen: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(listen))
        && let Some(shared) = shared.upgrade()
    {
        let message = format!("the thread of liveness keys panicked: {}", panic_text(&*panic));
        shared.push_input(Input::LivenessLost(message.into()));
    }
}

fn listen(client: &NativeClient, watch: &Mutex<Arc<Watch>>, shared: &Weak<GroupShared>) {
    loop {
        let watcher = current(watch).next(LONG);
        let Some(shared) = shared.upgrade() else { return };
        match watcher {
            Ok(Some(change)) => push_input(&shared, &change.key, change.value),
            Ok(None) => {}
            Err(WatchError::Compacted { .. } | WatchError::Overrun(_)) => {
                if let Err(error) = begin_again(client, watch, &shared) {
                    return shared.push_input(Input::LivenessLost(error.to_string().into()));
                }
            }
            // The worker ends.
            Err(WatchError::Cancelled(_)) => return,
            Err(error) => return shared.push_input(Input::LivenessLost(error.to_string().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_who_listens_is_told_as_the_end_of_what_it_hears() {
        let shared = GroupShared::new();
        run_watched(&Arc::downgrade(&shared), || ());
        assert_eq!(shared.next_input(Duration::ZERO), None);
        run_watched(&Arc::downgrade(&shared), || panic!("provoked"));
        let why = "the thread of liveness keys panicked: provoked".into();
        assert_eq!(shared.next_input(Duration::ZERO), Some(Input::LivenessLost(why)));
    }
}
