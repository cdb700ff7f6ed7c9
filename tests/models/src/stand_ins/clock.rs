//! Time of a model. It passes only where the model sets the clock, and in waits with a short timeout.

use rendezvous_core::time::{Duration, Instant};
use shuttle::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// State of the clock, and of the one event loop that a model may have.
#[derive(Default)]
pub struct Time {
    pub now: Instant,
    pub is_woken: bool,
}

shuttle::lazy_static! {
    /// The time, and what is signalled when it changes.
    pub static ref TIME: (Mutex<Time>, shuttle::sync::Condvar) = Default::default();
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    pub const fn new() -> Self {
        Self
    }

    pub fn now(&self) -> Instant {
        TIME.0.lock().expect("no panic").now
    }

    pub fn set(now: Instant) {
        TIME.0.lock().expect("no panic").now = now;
        TIME.1.notify_all();
    }
}

pub fn from_now(timeout: Duration) -> std::time::Instant {
    std::time::Instant::now() + timeout
}

/// Waits with a shorter timeout end at once. Others end when they are woken, so a wake-up that is lost is a deadlock.
const SHORT: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// Whether a timeout has passed.
#[derive(Clone, Copy, Debug)]
pub struct Timeout(bool);

impl Timeout {
    pub const fn timed_out(self) -> bool {
        self.0
    }
}

type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, Timeout)>;

impl Condvar {
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> Waited<'a, T> {
        if timeout < SHORT {
            return Ok((guard, Timeout(true)));
        }
        let waited = self.wait(guard).map(|guard| (guard, Timeout(false)));
        waited.map_err(|error| PoisonError::new((error.into_inner(), Timeout(false))))
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut goes_on: impl FnMut(&mut T) -> bool,
    ) -> Waited<'a, T> {
        while goes_on(&mut guard) {
            let waited;
            (guard, waited) = self.wait_timeout(guard, timeout)?;
            if waited.timed_out() {
                return Ok((guard, waited));
            }
        }
        Ok((guard, Timeout(false)))
    }
}
