//! Observer of a group from outside.

use super::next_unless;
use super::steps::execute;
use super::store_connection::open_store;
use crate::membership::change::WorkerLocation;
use crate::membership::observer::{Observation, Observer, ObserverError, ObserverOutput};
use rendezvous_core::driver::channel::{Receiver, Sender, bounded, unbounded};
use rendezvous_core::driver::native_client::{Watch, WatchError};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::error::Operation;

/// Prefix of the keys that name the workers of a group.
const NAMES: &[u8] = b"names/";
/// Maximum number of events that are kept until they are taken; then the observer waits.
const EVENTS_MAX: usize = 4096;

/// Options of a [`GroupObserver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserverOptions {
    /// Interval between two reads of the keys. A native server also notifies of changes at once.
    pub pause: Duration,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self { pause: Duration::from_millis(500) }
    }
}

/// Reason why an observer did not start.
#[derive(Debug, thiserror::Error)]
pub enum ObservingError {
    /// The store cannot be reached.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The thread could not be started.
    #[error("no thread for the observer: {0}")]
    Thread(io::Error),
}

/// Observer of the workers of a group that is not a member. It writes no key.
#[derive(Debug)]
pub struct GroupObserver {
    events: Receiver<Result<Observation, ObserverError>>,
    seen: Arc<Mutex<Vec<WorkerLocation>>>,
    /// Ends the thread.
    token: CancelToken,
    thread: Option<Thread>,
}

impl GroupObserver {
    /// Starts to observe the group whose keys this handle has: `rpc_prefix_0` under a job's store for its first group.
    ///
    /// # Errors
    /// There is no connection, or no thread.
    pub fn start(store: &Store, options: ObserverOptions) -> Result<Self, ObservingError> {
        let token = CancelToken::new();
        let (store, has_session) = open_store(store, "observer", None, &token)?;
        // Without a watch, the observer sees changes a little later.
        let watch = has_session.then(|| {
            store.native(Operation::Watch)?.watch_prefix(NAMES, 0, Timeout::Default).map_err(Into::into)
        });
        let watch = watch.and_then(|begun: Result<_, CallError>| begun.ok());
        let seen = Arc::default();
        let (sender, events) = bounded(EVENTS_MAX);
        let observing = ObserverThread {
            clock: Clock::new(),
            observer: Observer::new(options.pause),
            store,
            watch,
            seen: Arc::clone(&seen),
            sender,
            token: token.clone(),
        };
        let thread =
            threads::spawn("rdzv-rpc-look", move || observing.run()).map_err(ObservingError::Thread)?;
        Ok(Self { events, seen, token, thread: Some(thread) })
    }

    /// Returns the next event, or `None` after `timeout`, or if `token` is cancelled.
    ///
    /// # Errors
    /// The observer has failed. This is returned once.
    pub fn next(&self, timeout: Duration, token: &CancelToken) -> Result<Option<Observation>, ObserverError> {
        next_unless(&self.events, timeout, token).transpose()
    }

    /// Workers seen so far, in the order of their numbers.
    pub fn seen(&self) -> Vec<WorkerLocation> {
        self.seen.locked().clone()
    }
}

impl Drop for GroupObserver {
    fn drop(&mut self) {
        self.token.cancel();
        // Unblocks a thread that waits for capacity of the channel.
        self.events = unbounded().1;
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

struct ObserverThread {
    clock: Clock,
    observer: Observer,
    store: Store,
    watch: Option<Watch>,
    seen: Arc<Mutex<Vec<WorkerLocation>>>,
    sender: Sender<Result<Observation, ObserverError>>,
    token: CancelToken,
}

impl ObserverThread {
    fn run(mut self) {
        loop {
            while let Some(output) = self.observer.poll_output() {
                let sent = match output {
                    ObserverOutput::Store(step) => {
                        let reply = execute(&self.store, self.clock, &step);
                        self.observer.handle(self.clock.now(), reply);
                        *self.seen.locked() = self.observer.seen().to_vec();
                        continue;
                    }
                    ObserverOutput::Observation(observation) => self.sender.send(Ok(observation)),
                    ObserverOutput::Failed(error) => self.sender.send(Err(error)),
                };
                if sent.is_err() {
                    return;
                }
            }
            let Some(until) = self.observer.poll_timeout() else { return };
            let pause = until.since(self.clock.now());
            match self.watch.as_ref().map(|watch| watch.next(pause)) {
                Some(Ok(Some(_))) => self.observer.keys_changed(),
                Some(Ok(None)) => {}
                // A watch that fell behind, or lost its session, is replaced by reads at the interval.
                Some(Err(WatchError::Cancelled(_))) => {}
                Some(Err(_)) => self.watch = None,
                None => _ = self.token.wait(pause),
            }
            if self.token.is_cancelled() {
                return;
            }
            self.observer.tick(self.clock.now());
        }
    }
}
