//! Bugs that are planted in the machines, one at a time, for the simulator to find. Only with the feature
//! `planted-bugs`, which nothing in the workspace asks for; without it, `planted/absent.rs` stands here.

mod bug;

pub use bug::Bug;

use core::hint::black_box;
use core::sync::atomic::{AtomicU8, Ordering};

impl Bug {
    /// All of them.
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

/// Stands in every program in which a bug could be planted, so that a library can be searched for it.
pub const MARK: &str = "librendezvous, built so that bugs can be planted in it";

/// One more than the number of the bug; 0: there is none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// From now on this one is there, and no other, in the whole process.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8 + 1), Ordering::Relaxed);
}

/// Whether this one is there.
pub fn has(bug: Bug) -> bool {
    black_box(MARK);
    PLANTED.load(Ordering::Relaxed) == bug as u8 + 1
}
