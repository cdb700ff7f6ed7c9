//! State that all calls of a client share.

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

/// What the client's thread drives: a connection, or a call of the worker to itself.
pub(super) trait Target: Send + Sync {
    /// The watched socket is ready.
    fn ready(self: Arc<Self>, scratch: &mut Vec<u8>);

    /// A scheduled time has come.
    fn tick(self: Arc<Self>, now: Instant);

    /// Fails the program's calls with this message.
    fn cut(self: Arc<Self>, message: &str);

    /// Fails all calls, and accepts no further ones.
    fn end(self: Arc<Self>, why: &ConnectionError);
}

/// State that all calls of a client share.
pub(super) struct ClientShared {
    pub(super) me: WorkerInfo,
    pub(super) group: Box<[u8]>,
    pub(super) limits: RpcLimits,
    pub(super) keep_alive: Option<KeepAlive>,
    /// Worker whose callbacks these are.
    pub(super) home: Home,
    pub(super) clock: Clock,
    pub(super) watcher: Watcher,
    pub(super) waker: Waker,
    pub(super) targets: Mutex<Slab<Weak<dyn Target>>>,
    pub(super) timers: Mutex<Set<(Instant, usize)>>,
    /// Time until which the client's thread sleeps unless it is woken.
    pub(super) sleeps_until: AtomicU64,
    /// Notified when a link has no more calls after a goodbye.
    pub(super) left: (Mutex<()>, Condvar),
    /// Reason why no calls are accepted any more. Set before the pending calls fail.
    pub(super) end: OnceLock<ConnectionError>,
}

impl fmt::Debug for ClientShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientShared").field("me", &self.me).finish_non_exhaustive()
    }
}

impl ClientShared {
    pub(super) fn targets(&self) -> MutexGuard<'_, Slab<Weak<dyn Target>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_target(&self, target: Weak<dyn Target>) -> usize {
        self.targets().insert(target)
    }

    pub(super) fn remove_target(&self, token: usize) {
        let target = self.targets().try_remove(token);
        // Dropping the target may drop what it refers to, which needs the table unlocked.
        drop(target);
    }

    /// Removes a time that was scheduled.
    pub(super) fn unschedule(&self, at: Instant, token: usize) {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).remove((at, token));
    }

    /// Schedules a call of [`Target::tick`] at this time.
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
