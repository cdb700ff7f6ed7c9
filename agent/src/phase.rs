//! Life cycle of an agent: its phases and the transitions between them.

named! {
    /// Phase of an agent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Phase {
        /// The agent has not begun.
        #[default]
        Idle: "idle",
        /// It joins the rendezvous, and waits for a round.
        Meeting: "meeting",
        /// It agrees on the ranks of its workers.
        Assigning: "assigning",
        /// It starts its workers.
        Starting: "starting",
        /// Its workers run.
        Running: "running",
        /// It stops its workers, to join the rendezvous again.
        Restarting: "restarting",
        /// Its workers have succeeded, and it waits for the other agents.
        ExitBarrier: "exit_barrier",
        /// It stops all its descendants for good.
        Ending: "ending",
        /// It leaves the rendezvous.
        Closing: "closing",
        /// It has ended.
        Over: "over",
    }
}

/// Event that changes the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseEvent {
    /// The agent begins.
    Begin,
    /// A round was formed.
    Join,
    /// The ranks are known.
    Assign,
    /// All workers run.
    Start,
    /// All workers have succeeded.
    Succeed,
    /// The round is unusable, and another attempt follows.
    Renew,
    /// No descendant is alive any more, or the living ones were abandoned.
    Clear,
    /// All agents have arrived at the exit barrier, or the agent leaves it without them.
    ExitBarrierOver,
    /// No other attempt follows.
    GiveUp,
    /// The failure that would have ended the agent was caused by another agent's death.
    Excuse,
    /// The rendezvous was left.
    Close,
}

use Phase::{Assigning, Closing, Ending, ExitBarrier, Idle, Meeting, Over, Restarting, Running, Starting};
use rendezvous_core::named::named;

impl Phase {
    /// Returns the phase after `event`; `None` if the event is not allowed.
    #[must_use]
    pub const fn on(self, event: PhaseEvent) -> Option<Self> {
        use PhaseEvent as E;
        Some(match (self, event) {
            (Idle, E::Begin) | (Assigning, E::Renew) | (Restarting, E::Clear) => Meeting,
            (Meeting, E::Join) => Assigning,
            (Assigning, E::Assign) => Starting,
            (Starting, E::Start) => Running,
            (Starting | Running | ExitBarrier, E::Renew) => Restarting,
            (Running, E::Succeed) => ExitBarrier,
            (ExitBarrier, E::ExitBarrierOver) => Ending,
            (Idle | Meeting | Assigning | Starting | Running | Restarting | ExitBarrier, E::GiveUp) => Ending,
            (Ending, E::Excuse) => Restarting,
            (Ending, E::Clear) => Closing,
            (Closing, E::Close) => Over,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::fmt::Write;

    const EVENTS: [PhaseEvent; 11] = {
        use PhaseEvent as E;
        [
            E::Begin,
            E::Join,
            E::Assign,
            E::Start,
            E::Succeed,
            E::Renew,
            E::Clear,
            E::ExitBarrierOver,
            E::GiveUp,
            E::Excuse,
            E::Close,
        ]
    };

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for from in Phase::ALL {
            for to in Phase::ALL {
                let names: Vec<_> = EVENTS
                    .iter()
                    .filter(|&&event| from.on(event) == Some(to))
                    .map(|event| alloc::format!("{event:?}"))
                    .collect();
                if !names.is_empty() {
                    writeln!(graph, "    {from:?} --> {to:?}: {}", names.join(", ")).expect("a string");
                }
            }
        }
        graph += "```\n";
        let guide = include_str!("../../docs/agent-phases.md");
        assert!(guide.contains(&graph), "docs/agent-phases.md does not hold this graph:\n{graph}");
    }

    #[test]
    fn every_phase_but_the_last_ends_in_it() {
        for phase in Phase::ALL {
            let mut reached = alloc::vec![phase];
            while let Some(more) = EVENTS
                .iter()
                .flat_map(|&event| reached.iter().filter_map(move |phase| phase.on(event)))
                .find(|phase| !reached.contains(phase))
            {
                reached.push(more);
            }
            assert!(reached.contains(&Over), "{phase:?}");
        }
    }
}
