//! The second kind of world: whole nodes with their sessions, and the rounds, fences, watches, leases and barriers that
//! hang on them, at one server with a few clients of c10d.
//!
//! A run has three acts. In the *storm* nodes do anything while mishaps happen to them and to the server. Then nothing
//! goes wrong any more, and within a bound each run must stand: see [`world::HEALING_MAX`]. Then everybody leaves, and
//! the server must be as good as new. Each host, the server's too, has a clock of its own.

mod clock;
mod mishap;
mod node;
mod order;
mod process;
mod referee;
mod tamper;
mod trespasser;
mod world;

pub(super) use clock::Clock;
pub(super) use mishap::Mishap;
pub(super) use world::World;

use rendezvous_core::wire::native::Terms;

/// What happens of itself in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    /// Something is due by the clock of a process; host and process.
    Due(usize, u32),
    /// The resolver has an answer for a process's attempt.
    Resolved(usize, u32, u32),
    /// A node does something.
    Wake(usize, u32),
    /// A host starts a process.
    Rise(usize),
    /// A frozen process goes on.
    Thaw(usize, u32),
    /// The frozen server goes on, in this life.
    ServerThaws(u32),
    Trespass(usize),
    Mishap(Mishap),
    /// The saboteur speaks in the name of the dead.
    GhostBeat,
    /// It may be time for the next act.
    Act,
}

/// What all nodes agree on.
#[derive(Clone, Copy, Debug)]
struct Rules {
    runs: usize,
    terms: Terms<'static>,
    join_timeout_ms: u64,
    /// Somebody may close a run.
    closes: bool,
    /// Processes so far.
    processes: u32,
    /// Sessions that were taken up again, so far.
    resumed: u64,
}
