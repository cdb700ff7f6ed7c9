//! World of agents: whole jobs. It runs the shipped [`rendezvous_agent::node::AgentNode`] and the shipped rendezvous
//! service. The calls that the driver's threads make for a node take virtual time here.
//!
//! A run begins with a plan: which agents start when, with how many workers, and which mishaps happen. Then it
//! continues until all agents have ended. A mishap hits an agent at a time, or as it enters a phase. At the end,
//! closing the run releases the spares.

mod calls;
mod crew;
mod master_server;
mod plan;
mod referee;
mod world;

pub(super) use world::World;

/// Counts of what happened to agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AgentCounts {
    /// Agents that began.
    agents: u64,
    /// Worker groups that were started.
    starts: u64,
    /// Restarts that were charged to the budget.
    paid: u64,
    /// Restarts that were not charged.
    unpaid: u64,
    /// Failures that were excused because another agent had died.
    excused: u64,
    /// Workers that failed.
    failed_workers: u64,
    /// Worker groups that had to be killed.
    killed: u64,
    /// Processes that survived SIGKILL and were given up.
    given_up: u64,
    /// Agents that died.
    dead: u64,
    /// Agents that succeeded together with all others.
    succeeded: u64,
    /// Agents that succeeded without waiting for all others.
    succeeded_alone: u64,
    /// Agents that were not needed.
    not_needed: u64,
    /// Agents that failed.
    failed: u64,
    /// Agents that were stopped.
    stopped: u64,
    /// Agents that lost the guard of their workers.
    guard_lost: u64,
}

impl AgentCounts {
    /// Returns all counts with their names.
    const fn all(&self) -> [(&'static str, u64); 15] {
        [
            ("agents", self.agents),
            ("starts", self.starts),
            ("restarts paid for", self.paid),
            ("restarts for nothing", self.unpaid),
            ("failures excused", self.excused),
            ("workers that failed", self.failed_workers),
            ("groups killed", self.killed),
            ("processes given up", self.given_up),
            ("agents that died", self.dead),
            ("agents that succeeded", self.succeeded),
            ("that succeeded alone", self.succeeded_alone),
            ("that were not needed", self.not_needed),
            ("that failed", self.failed),
            ("that were stopped", self.stopped),
            ("that lost sight", self.guard_lost),
        ]
    }
}
