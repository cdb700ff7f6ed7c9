//! Stages of a worker's life, and the threads that wait for them.

use crate::membership::error::MembershipError;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::prelude::*;

/// Timeout of undoing a cancelled join at the workers that were already notified.
const TAKING_BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Stage of the worker's life, for threads that wait for it.
#[derive(Clone, Debug)]
pub(super) enum LifeStage {
    Joining,
    Member,
    Over(Result<(), MembershipError>),
}

/// Life of a worker.
pub(super) struct Life {
    clock: Clock,
    stage: Mutex<LifeStage>,
    /// The join was cancelled. Changed under the lock of `stage`.
    is_cancelled: AtomicBool,
    changed: Condvar,
}

impl Life {
    pub(super) const fn new(clock: Clock) -> Self {
        Self {
            clock,
            stage: Mutex::new(LifeStage::Joining),
            is_cancelled: AtomicBool::new(false),
            changed: Condvar::new(),
        }
    }

    pub(super) fn set(&self, stage: LifeStage) {
        *self.stage.locked() = stage;
        self.changed.notify_all();
    }

    /// Ends the waits for the join, after a time for undoing it.
    pub(super) fn cancel_join(&self) {
        let stage = self.stage.locked();
        self.is_cancelled.store(true, Ordering::Relaxed);
        drop(stage);
        self.changed.notify_all();
    }

    /// Waits until the worker is a member or has failed; `None` at the deadline.
    pub(super) fn wait_joined(&self, until: Instant) -> Option<Result<(), MembershipError>> {
        let is_cancelled = || self.is_cancelled.load(Ordering::Relaxed);
        let mut stage = self.wait(until, |stage| matches!(stage, LifeStage::Joining) && !is_cancelled());
        if let (LifeStage::Joining, true) = (&stage, is_cancelled()) {
            let until = until.min(self.clock.now() + TAKING_BACK_TIMEOUT);
            stage = self.wait(until, |stage| matches!(stage, LifeStage::Joining));
        }
        match stage {
            LifeStage::Joining if is_cancelled() => Some(Err(MembershipError::Cancelled)),
            LifeStage::Joining => None,
            LifeStage::Member => Some(Ok(())),
            LifeStage::Over(end) => Some(end),
        }
    }

    /// Waits until the worker is not in a group any more; `None` at the deadline.
    pub(super) fn wait_over(&self, until: Instant) -> Option<Result<(), MembershipError>> {
        match self.wait(until, |stage| !matches!(stage, LifeStage::Over(_))) {
            LifeStage::Over(end) => Some(end),
            _ => None,
        }
    }

    fn wait(&self, until: Instant, continues_in: impl Fn(&LifeStage) -> bool) -> LifeStage {
        let timeout = until.since(self.clock.now());
        let waited =
            self.changed.wait_timeout_while(self.stage.locked(), timeout, |stage| continues_in(stage));
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
