//! Bugs that are planted in the machines, one at a time, for the simulator to find. Only with the feature
//! `planted-bugs`, which no crate of the workspace enables by default; without it, `planted/absent.rs` replaces
//! this module.

mod bug;

pub use bug::Bug;

use core::hint::black_box;
use core::sync::atomic::{AtomicU8, Ordering};

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 19] = [
        Self::SkippedFence,
        Self::ShortFence,
        Self::ForgottenWaiter,
        Self::RepeatedRequest,
        Self::LostAnswer,
        Self::ReusedRound,
        Self::UntoldSurvivor,
        Self::ReopenedRun,
        Self::EarlyBarrier,
        Self::UndyingLease,
        Self::KeptSlot,
        Self::PaidNewcomer,
        Self::UnheardStop,
        Self::BlindExitBarrier,
        Self::SilentLeave,
        Self::FormerRanks,
        Self::UnforgivenFailure,
        Self::SparedWorkers,
        Self::BlamedVictim,
    ];
}

/// String that is part of every program in which bugs can be planted, so that a test can search a library for it.
pub const MARK: &str = "librendezvous, built so that bugs can be planted in it";

/// Number of the planted bug plus one; 0 for none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants this bug and no other, in the whole process; `None` removes it.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8 + 1), Ordering::Relaxed);
}

/// Returns whether this bug is planted.
pub fn has(bug: Bug) -> bool {
    black_box(MARK);
    PLANTED.load(Ordering::Relaxed) == bug as u8 + 1
}
