//! The simulator: one server machine and many client machines in one thread, on virtual time, over a network that
//! delays, splits, holds back, cuts and resets. One seed decides everything.
//!
//! A run has four phases. In the *storm* clients do anything while faults happen. When the storm is over and every
//! operation has ended by its deadline, the *job* does what a training job does with its store, and each of its steps
//! must succeed. Then one client *clears* the store, all clients *leave*, and the server must hold nothing. The oracle,
//! which knows none of the machines, judges what all clients saw.

mod accepting;
mod agents;
mod client;
pub mod command;
mod elastic;
mod faults;
mod half_closer;
mod harness;
mod host;
mod membership;
pub mod replay;
mod script;
pub(crate) mod tls;
mod tokens;
mod world;

pub use faults::Sabotage;
pub use harness::trace::Verbosity;

use rendezvous_core::time::{Duration, Instant};
use std::fmt;

/// Kind of simulated world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Clients of c10d and their store.
    #[default]
    Store,
    /// Nodes with their sessions and rounds.
    Elastic,
    /// Agents with their workers.
    Agents,
    /// Members of RPC groups, PyTorch's among them, and the list of members in their store.
    Membership,
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Kind of world.
    pub world: Kind,
    /// Fault to inject into the library.
    pub sabotage: Sabotage,
    /// Where the trace is written.
    pub verbosity: Verbosity,
}

impl Default for Options {
    fn default() -> Self {
        Self { world: Kind::Store, sabotage: Sabotage::None, verbosity: Verbosity::Quiet }
    }
}

/// Result of a run without errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hash of the trace: the same for each run of a seed.
    pub trace_hash: u64,
    /// Number of lines in the trace.
    pub trace_lines: u64,
    /// Number of events.
    pub events: u64,
    /// Number of operations that clients began.
    pub operations: usize,
    /// Number of them that were answered.
    pub answered: usize,
    /// Number of clients, without those that half-close.
    pub clients: usize,
    /// Number of histories of one key that were too long to decide.
    pub undecided: usize,
    /// Number of reads of two keys that saw a part of a write only, where the server executes lists in parts.
    pub partial_reads: usize,
    /// Virtual time that the run took.
    pub virtual_time: Duration,
    /// Counts of what happened in this kind of world.
    pub counts: Counts,
}

/// Counts of what happened, with their names.
pub type Counts = Vec<(&'static str, u64)>;

/// Result of a run that found an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Kind of world.
    pub world: Kind,
    /// Fault that was injected.
    pub sabotage: Sabotage,
    /// Description of the error.
    pub what: String,
    /// Virtual time of the error.
    pub now: Instant,
    /// The last lines of the trace.
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
            "the whole trace: cargo run -p rendezvous-tests --bin sim -- --world {world} --seed {seed} --trace"
        )?;
        if self.sabotage == Sabotage::None { Ok(()) } else { write!(f, " --sabotage {:?}", self.sabotage) }
    }
}

/// Runs one seed.
///
/// # Errors
/// Description of the error, with the last lines of the trace.
pub fn run(seed: u64, options: &Options) -> Result<Report, Failure> {
    match options.world {
        Kind::Store => world::World::new(seed, options).play(seed),
        Kind::Elastic => elastic::World::new(seed, options).play(seed),
        Kind::Agents => agents::World::new(seed, options).play(seed),
        Kind::Membership => membership::play(seed, options),
    }
}

impl Kind {
    /// All kinds of worlds.
    pub const ALL: [Self; 4] = [Self::Store, Self::Elastic, Self::Agents, Self::Membership];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Elastic => "elastic",
            Self::Agents => "agents",
            Self::Membership => "membership",
        }
    }

    /// Returns the faults that can be injected in this kind of world.
    #[must_use]
    pub const fn sabotages(self) -> &'static [Sabotage] {
        match self {
            Self::Store => &Sabotage::STORE,
            Self::Elastic => &Sabotage::ELASTIC,
            // Bugs of the others are patches in `tests/planted`.
            Self::Agents | Self::Membership => &[],
        }
    }
}
