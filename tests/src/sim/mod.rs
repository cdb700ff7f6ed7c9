//! The simulator: one server machine and many client machines in one thread, on virtual time, over a network that
//! delays, splits, holds back, cuts and resets. One seed decides everything.
//!
//! A run has four acts. In the *storm* clients do anything while faults happen. When the storm is over and every deed
//! has ended by its deadline, the *job* does what a training job does with its store, and each of its steps must
//! succeed. Then one client *clears* the store, everybody *leaves*, and the server must be as good as new. What all
//! clients saw is put before the oracle, which knows none of the machines.

mod agenda;
mod agents;
mod client;
pub mod command;
mod elastic;
mod faults;
mod half_closer;
mod history;
mod host;
mod linear;
mod network;
mod oracle;
pub mod replay;
mod script;
mod sim_operation;
mod sim_rng;
mod trace;
mod world;

pub use agents::Sights;
pub use faults::Sabotage;
pub use trace::Voice;

use rendezvous_core::time::{Duration, Instant};
use std::fmt;

/// Which kind of world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Clients of c10d and their store.
    #[default]
    Store,
    /// Nodes with their sessions and rounds.
    Elastic,
    /// Agents with their workers.
    Agents,
}

/// How to play.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which kind of world.
    pub world: Kind,
    /// What is to be wrong on purpose.
    pub sabotage: Sabotage,
    /// Where the trace goes.
    pub voice: Voice,
}

impl Default for Options {
    fn default() -> Self {
        Self { world: Kind::Store, sabotage: Sabotage::None, voice: Voice::Quiet }
    }
}

/// A run in which all was well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// One number for all that happened: the same for each run of a seed.
    pub trace_hash: u64,
    /// Lines in the trace.
    pub trace_lines: u64,
    /// Things that happened.
    pub events: u64,
    /// What clients set out to do.
    pub deeds: usize,
    /// What of it was answered.
    pub answered: usize,
    /// How many clients there were, without those that close by halves.
    pub clients: usize,
    /// Histories of one key that were too long to be decided.
    pub undecided: usize,
    /// How long it took in the world.
    pub virtual_time: Duration,
    /// Rounds that were formed.
    pub rounds: u64,
    /// Sessions that were taken up again.
    pub resumed: u64,
    /// Changes that watches told of.
    pub changes: u64,
    /// Arrivals that a barrier released.
    pub released: u64,
    /// Writes that were refused since their round was over.
    pub stale: u64,
    /// What happened to agents.
    pub sights: Sights,
}

/// A run in which something was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed that brings it about.
    pub seed: u64,
    /// In which kind of world.
    pub world: Kind,
    /// What was wrong on purpose.
    pub sabotage: Sabotage,
    /// What was wrong.
    pub what: String,
    /// When.
    pub now: Instant,
    /// What happened before.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the last lines of the trace:")?;
        self.trace.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        let world = self.world.name();
        let seed = self.seed;
        write!(
            f,
            "all of it: cargo run -p rendezvous-tests --bin sim -- --world {world} --seed {seed} --trace"
        )?;
        if self.sabotage == Sabotage::None { Ok(()) } else { write!(f, " --sabotage {:?}", self.sabotage) }
    }
}

/// Plays one seed.
///
/// # Errors
/// Something was wrong.
pub fn run(seed: u64, options: &Options) -> Result<Report, Failure> {
    match options.world {
        Kind::Store => world::World::new(seed, options).play(seed),
        Kind::Elastic => elastic::World::new(seed, options).play(seed),
        Kind::Agents => agents::World::new(seed, options).play(seed),
    }
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Store, Self::Elastic, Self::Agents];

    /// As the command line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Elastic => "elastic",
            Self::Agents => "agents",
        }
    }

    /// What can be wrong in it on purpose.
    #[must_use]
    pub const fn sabotages(self) -> &'static [Sabotage] {
        match self {
            Self::Store => &Sabotage::STORE,
            Self::Elastic => &Sabotage::ELASTIC,
            // Their bugs are planted in the machines.
            Self::Agents => &[],
        }
    }
}
