//! World of nodes: whole nodes with their sessions, and the rounds, fences, watches, leases and barriers that depend on
//! these, at one server with a few clients of c10d. In a quarter of the worlds the nodes have workers of an
//! RPC group, and other hosts have agents.
//!
//! In the *storm* nodes do anything while mishaps happen to them and to the server. Then mishaps stop. Each run must have
//! a stable round within a bound: see [`world::HEALING_MAX`]. Then the agents must have ended, one worker leaves its
//! group, at last all nodes leave, and the server must hold no session. Each process that talks to the server, the
//! server and each worker has a clock of its own; the agents' machines have the world's.

mod agents;
mod late_writer;
mod mishap;
mod node;
mod order;
mod process;
mod referee;
mod tamper;
mod workers;
mod world;

pub(super) use mishap::Mishap;
pub(super) use world::World;

use agents::AgentCue;
use rendezvous_core::wire::native::Terms;
use workers::WorkerCue;

/// Event of this world that is not caused by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    /// A timer of a process is due; host and process.
    Due(usize, u32),
    /// The resolver has an answer for a connection attempt of a process.
    Resolved(usize, u32, u32),
    /// A node does something.
    Wake(usize, u32),
    /// A host starts a process.
    StartProcess(usize),
    /// A frozen process continues.
    Thaw(usize, u32),
    /// The frozen server process with this number continues.
    ServerThaws(u32),
    LateWriterDue(usize),
    Mishap(Mishap),
    /// The saboteur sends heartbeats for connections that have ended.
    SaboteurHeartbeat,
    /// Something happens to the worker of a process; host and process.
    Worker(usize, u32, WorkerCue),
    /// Something happens to an agent: host, number of the agent.
    Agent(usize, u32, AgentCue),
    /// The next phase may begin.
    PhaseDue,
}

/// Settings that all nodes share, and counts.
#[derive(Clone, Copy, Debug)]
struct Rules {
    runs: usize,
    terms: Terms<'static>,
    join_timeout_ms: u64,
    /// Whether nodes may close a run.
    closes: bool,
    /// Number of processes so far.
    processes: u32,
    /// Number of times so far that a session was resumed.
    resumed: u64,
    /// Number of times so far that a node was refused because of its token.
    unauthenticated: u64,
    /// Number of requests so far that a token did not allow.
    denied: u64,
}
