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

/// Counts of what happened to agents, in one run or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Agents that began.
    pub agents: u64,
    /// Worker groups that were started.
    pub starts: u64,
    /// Restarts that were charged to the budget.
    pub paid: u64,
    /// Restarts that were not charged.
    pub unpaid: u64,
    /// Failures that were excused because another agent had died.
    pub excused: u64,
    /// Workers that failed.
    pub failed_workers: u64,
    /// Worker groups that had to be killed.
    pub killed: u64,
    /// Processes that survived SIGKILL and were given up.
    pub given_up: u64,
    /// Agents that died.
    pub dead: u64,
    /// Agents that succeeded together with all others.
    pub succeeded: u64,
    /// Agents that succeeded without waiting for all others.
    pub succeeded_alone: u64,
    /// Agents that were not needed.
    pub not_needed: u64,
    /// Agents that failed.
    pub failed: u64,
    /// Agents that were stopped.
    pub stopped: u64,
    /// Agents that lost the guard of their workers.
    pub guard_lost: u64,
}

impl AgentCounts {
    /// Returns all counts with their names.
    #[must_use]
    pub const fn all(&self) -> [(&'static str, u64); 15] {
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

    /// Returns the sums of both.
    #[must_use]
    pub const fn and(self, other: &Self) -> Self {
        Self {
            agents: self.agents + other.agents,
            starts: self.starts + other.starts,
            paid: self.paid + other.paid,
            unpaid: self.unpaid + other.unpaid,
            excused: self.excused + other.excused,
            failed_workers: self.failed_workers + other.failed_workers,
            killed: self.killed + other.killed,
            given_up: self.given_up + other.given_up,
            dead: self.dead + other.dead,
            succeeded: self.succeeded + other.succeeded,
            succeeded_alone: self.succeeded_alone + other.succeeded_alone,
            not_needed: self.not_needed + other.not_needed,
            failed: self.failed + other.failed,
            stopped: self.stopped + other.stopped,
            guard_lost: self.guard_lost + other.guard_lost,
        }
    }
}
