//! How much work may still be done for one input.

use super::KEYS_PER_STEP;
use super::conns::Conns;
use crate::limits::COPIED_BYTES_PER_UNIT;
use crate::store::engine::Engine;

/// Work that may still be done for one input, in the units of [`crate::limits::ServerLimits::work_per_input_max`].
#[derive(Debug, Default)]
pub(super) struct Budget {
    left: u64,
    /// Work since the budget was renewed.
    pub(super) spent: u64,
    /// Work for the same input that had a budget of its own.
    pub(super) before: u64,
    /// Part of the work that other connections than that of the input cause: the ends of waits, and the answers to them.
    pub(super) for_others: u64,
    /// Copied bytes that are less than a unit.
    copied_bytes: u64,
}

impl Budget {
    /// Starts anew with this much work left.
    pub(super) const fn renew(&mut self, work: u64) {
        *self = Self { left: work, spent: 0, before: self.before + self.spent, ..*self };
    }

    /// Returns the work that the connection of the input causes.
    pub(super) const fn own(&self) -> u64 {
        (self.before + self.spent).saturating_sub(self.for_others)
    }

    /// Subtracts the work since the last call. Returns whether nothing is left.
    #[inline]
    pub(super) fn spend(&mut self, engine: &Engine, conns: &mut Conns) -> bool {
        self.copied_bytes += conns.pool.take_copied_bytes();
        self.for_others += engine.take_work_for_others();
        self.subtract(engine.take_work() + self.copied_bytes / COPIED_BYTES_PER_UNIT);
        self.copied_bytes %= COPIED_BYTES_PER_UNIT;
        self.left == 0
    }

    /// Puts keys in order as far as this turn allows. Returns whether all are.
    pub(super) fn order_keys(&mut self, engine: &mut Engine, conns: &mut Conns) -> bool {
        loop {
            if engine.order_keys(KEYS_PER_STEP) {
                return true;
            }
            if self.spend(engine, conns) {
                return false;
            }
        }
    }

    /// Subtracts the work of copying `bytes` bytes.
    #[inline]
    pub(super) const fn copied(&mut self, bytes: usize) {
        self.copied_bytes += bytes as u64;
    }

    /// Subtracts work.
    #[inline]
    pub(super) const fn subtract(&mut self, work: u64) {
        self.left = self.left.saturating_sub(work);
        self.spent += work;
    }
}
