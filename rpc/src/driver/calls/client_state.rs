//! What all calls of a client have in common.

use super::reentrancy::Home;
use crate::connection::ConnectionError;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::event_loop::{Waker, Watcher};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::RpcLimits;
use rendezvous_core::ordered::Set;
use rendezvous_core::time::Instant;
use slab::Slab;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the client's thread looks after: a connection, or a call of the worker to itself.
pub(super) trait Target: Send + Sync {
    /// The socket that is watched has become ready.
    fn ready(self: Arc<Self>, scratch: &mut Vec<u8>);

    /// A time that was scheduled has come.
    fn tick(self: Arc<Self>, now: Instant);

    /// Calls of the program's fail at once, in these words.
    fn cut(self: Arc<Self>, message: &str);

    /// All calls fail at once, and there are no further ones.
    fn end(self: Arc<Self>, why: &ConnectionError);
}

/// What all calls of a worker have in common.
pub(super) struct Shared {
    pub(super) me: WorkerInfo,
    pub(super) group: Box<[u8]>,
    pub(super) limits: RpcLimits,
    pub(super) keep_alive: Option<KeepAlive>,
    /// Whose callbacks there are.
    pub(super) home: Home,
    pub(super) clock: Clock,
    pub(super) watcher: Watcher,
    pub(super) waker: Waker,
    pub(super) targets: Mutex<Slab<Weak<dyn Target>>>,
    pub(super) timers: Mutex<Set<(Instant, usize)>>,
    /// Until when the client's thread sleeps if nobody wakes it.
    pub(super) sleeps_until: AtomicU64,
    /// Told when somebody has left.
    pub(super) left: (Mutex<()>, Condvar),
    /// Why nobody is called any more. Set before the calls that there are end.
    pub(super) end: OnceLock<ConnectionError>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn targets(&self) -> MutexGuard<'_, Slab<Weak<dyn Target>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_target(&self, target: Weak<dyn Target>) -> usize {
        self.targets().insert(target)
    }

    pub(super) fn remove_target(&self, token: usize) {
        let target = self.targets().try_remove(token);
        // What it refers to may go with it, and must find the table unlocked.
        drop(target);
    }

    /// The one with this token need not be looked at then.
    pub(super) fn unschedule(&self, at: Instant, token: usize) {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).remove((at, token));
    }

    /// At that time, at the latest, the one with this token is looked at.
    pub(super) fn schedule(&self, at: Instant, token: usize) {
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        timers.insert((at, token));
        let is_earlier = at.as_nanos() < self.sleeps_until.load(Ordering::Acquire);
        drop(timers);
        if is_earlier {
            self.waker.wake();
        }
    }
}
