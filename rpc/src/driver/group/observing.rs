//! A look at a group from outside.

use super::steps::execute;
use super::store_connection::{Sessions, open_store};
use crate::membership::observer::{Observation, Observer, ObserverError, ObserverOutput, Seen};
use alloc::sync::Arc;
use alloc::vec::Vec;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::canceller::{Cancellable, Canceller};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::native_client::{Watch, WatchError};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::error::Operation;
use rendezvous_core::time::Duration;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Beneath it stands who is in the group.
const NAMES: &[u8] = b"names/";
/// Most sights that are kept until somebody asks for them; then the observer waits.
const SIGHTS_MAX: usize = 4096;

/// How an observer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserverOptions {
    /// How often it looks at the keys. A native server tells of changes at once besides.
    pub pause: Duration,
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self { pause: Duration::from_millis(500) }
    }
}

/// Why nobody observes.
#[derive(Debug, thiserror::Error)]
pub enum ObservingError {
    /// The store cannot be reached.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The system has no room for one more thread.
    #[error("no thread for the observer: {0}")]
    Thread(io::Error),
}

/// Sees who is in a group without being in it. It writes no key.
#[derive(Debug)]
pub struct GroupObserver {
    sights: Receiver<Result<Observation, ObserverError>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    store: Arc<Store>,
    watch: Option<Arc<Watch>>,
    /// Dropped, it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<Thread>,
}

impl GroupObserver {
    /// Looks at the group whose keys are those of this handle: `rpc_prefix_0` beneath a job's store for its first group.
    ///
    /// # Errors
    /// There is no connection, or no thread.
    pub fn start(store: &Store, options: ObserverOptions) -> Result<Self, ObservingError> {
        let (store, sessions) = open_store(store, "observer", &Canceller::default().begin())?;
        let watch = match sessions {
            // Without it, the observer sees the same a little later.
            Sessions::Native => store
                .native(Operation::Watch)
                .and_then(|client| Ok(client.watch_prefix(NAMES, 0, Timeout::Default)?))
                .ok()
                .map(Arc::new),
            Sessions::None => None,
        };
        let (store, seen) = (Arc::new(store), Arc::default());
        let (sender, sights) = bounded(SIGHTS_MAX);
        let (stop, stopped) = unbounded();
        let looking = Looking {
            clock: Clock::new(),
            observer: Observer::new(options.pause),
            store: Arc::clone(&store),
            watch: watch.clone(),
            seen: Arc::clone(&seen),
            sender,
            stopped,
        };
        let thread =
            threads::spawn("rdzv-rpc-look", move || looking.run()).map_err(ObservingError::Thread)?;
        Ok(Self { sights, seen, store, watch, stop: Some(stop), thread: Some(thread) })
    }

    /// What is seen next; waits up to `timeout`. `None`: nothing new.
    ///
    /// # Errors
    /// Nothing can be seen any more; that is told once.
    pub fn next(&self, timeout: Duration) -> Result<Option<Observation>, ObserverError> {
        self.sights.recv_timeout(timeout).ok().transpose()
    }

    /// The same, and no longer than until this is cancelled.
    ///
    /// # Errors
    /// As [`GroupObserver::next`].
    pub fn next_unless(
        &self,
        timeout: Duration,
        cancellable: &Cancellable,
    ) -> Result<Option<Observation>, ObserverError> {
        let (wake, woken) = bounded(1);
        let _watch = cancellable.watch(move || _ = wake.try_send(()));
        crossbeam_channel::select! {
            recv(self.sights) -> observation => observation.ok().transpose(),
            recv(woken) -> _ => Ok(None),
            default(timeout) => Ok(None),
        }
    }

    /// Who is there, as far as was seen, in the order of the numbers.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for GroupObserver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watch) = &self.watch {
            watch.cancel();
        }
        self.store.cancel();
        // A full channel holds the thread up no longer.
        self.sights = unbounded().1;
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

struct Looking {
    clock: Clock,
    observer: Observer,
    store: Arc<Store>,
    watch: Option<Arc<Watch>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    sender: Sender<Result<Observation, ObserverError>>,
    stopped: Receiver<()>,
}

impl Looking {
    fn run(mut self) {
        loop {
            while let Some(output) = self.observer.poll_output() {
                let sighting = match output {
                    ObserverOutput::Store(step) => {
                        let reply = execute(&self.store, self.clock, &step);
                        self.observer.handle(self.clock.now(), reply);
                        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
                            self.observer.seen().to_vec();
                        continue;
                    }
                    ObserverOutput::Observation(observation) => self.sender.send(Ok(observation)),
                    ObserverOutput::Failed(error) => self.sender.send(Err(error)),
                };
                if sighting.is_err() {
                    return;
                }
            }
            let Some(until) = self.observer.poll_timeout() else { return };
            let pause = until.since(self.clock.now());
            match self.watch.as_ref().map(|watch| watch.next(pause)) {
                Some(Ok(Some(_))) => self.observer.keys_changed(),
                Some(Ok(None)) => {}
                // Whoever fell behind, or lost the session, looks as often as everybody.
                Some(Err(WatchError::Cancelled(_))) => {}
                Some(Err(_)) => self.watch = None,
                None if self.stopped.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) => return,
                None => {}
            }
            if self.stopped.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected) {
                return;
            }
            self.observer.tick(self.clock.now());
        }
    }
}
