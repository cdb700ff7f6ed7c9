//! The transition tables of a run and of a node in it.

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No round is live, and there are fewer nodes than a round needs.
    #[default]
    Gathering,
    /// There are enough nodes; the round waits for more.
    LastCall,
    /// A round is live.
    Complete,
    /// Closed while a round was live: that round goes on, and none follows.
    Draining,
    /// Closed, without a live round.
    Closed,
}

/// Event that changes a run's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseEvent {
    /// There are enough nodes.
    MinimumReached,
    /// There are no longer enough nodes.
    MinimumLost,
    /// The round is formed.
    RoundCompleted,
    /// The live round is over.
    RoundEnded,
    /// A participant closed the run.
    CloseRequested,
}

/// State of a node in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// Not in the run.
    Outside,
    /// In the round that forms.
    Joining,
    /// In the next round, while one is live.
    Waiting,
    /// In the live round.
    Active,
    /// Was in the round that ended, and has a slot in the one that forms.
    Due,
    /// Has no slot: it found none, or asked for that of a missing node only.
    Standby,
}

/// Event that changes a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeStateEvent {
    /// Takes a slot in the round that forms.
    Gather,
    /// Takes a slot in the next round, while one is live.
    Wait,
    /// Queues without a slot.
    Park,
    /// The round is formed.
    RoundCompleted,
    /// The live round is over.
    RoundEnded,
    /// Left at its own request.
    Leave,
    /// Died, or was replaced.
    End,
    /// Its join timed out.
    Expire,
    /// The run was closed.
    Close,
}

use NodeState::{Active, Due, Joining, Outside, Standby, Waiting};
use Phase::{Closed, Complete, Draining, Gathering, LastCall};

type Transitions<S, E> = &'static [(&'static [S], E, S)];

const PHASES: Transitions<Phase, PhaseEvent> = &[
    (&[Gathering], PhaseEvent::MinimumReached, LastCall),
    (&[LastCall], PhaseEvent::MinimumLost, Gathering),
    (&[Gathering, LastCall], PhaseEvent::RoundCompleted, Complete),
    (&[Complete], PhaseEvent::RoundEnded, Gathering),
    (&[Draining], PhaseEvent::RoundEnded, Closed),
    (&[Gathering, LastCall], PhaseEvent::CloseRequested, Closed),
    (&[Complete], PhaseEvent::CloseRequested, Draining),
];

const NODE_STATES: Transitions<NodeState, NodeStateEvent> = &[
    (&[Due, Standby], NodeStateEvent::Gather, Joining),
    (&[Active, Standby], NodeStateEvent::Wait, Waiting),
    // Every new node is parked first, and gets a slot in the order of arrival, possibly at once.
    (&[Outside, Active, Due], NodeStateEvent::Park, Standby),
    (&[Joining], NodeStateEvent::RoundCompleted, Active),
    (&[Due], NodeStateEvent::RoundCompleted, Outside),
    (&[Waiting], NodeStateEvent::RoundEnded, Joining),
    (&[Active], NodeStateEvent::RoundEnded, Due),
    (&[Joining, Waiting, Active, Due, Standby], NodeStateEvent::Leave, Outside),
    (&[Joining, Waiting, Active, Due, Standby], NodeStateEvent::End, Outside),
    (&[Joining, Waiting], NodeStateEvent::Expire, Outside),
    (&[Joining, Waiting, Due, Standby], NodeStateEvent::Close, Outside),
];

fn find<S: Copy + PartialEq, E: PartialEq>(table: Transitions<S, E>, from: S, event: &E) -> Option<S> {
    table.iter().find(|(states, on, _)| on == event && states.contains(&from)).map(|&(_, _, to)| to)
}

impl Phase {
    /// Returns the phase after `event`; `None` where the event is not possible.
    #[must_use]
    pub fn on_event(self, event: PhaseEvent) -> Option<Self> {
        find(PHASES, self, &event)
    }

    /// Whether nodes gather for a round.
    pub const fn is_forming(self) -> bool {
        matches!(self, Gathering | LastCall)
    }

    /// Whether a round is live.
    pub const fn is_live(self) -> bool {
        matches!(self, Complete | Draining)
    }

    /// Whether the run was closed, which is final.
    pub const fn is_closed(self) -> bool {
        matches!(self, Draining | Closed)
    }
}

impl NodeState {
    /// Returns the state after `event`; `None` where the event is not possible.
    #[must_use]
    pub fn on_event(self, event: NodeStateEvent) -> Option<Self> {
        find(NODE_STATES, self, &event)
    }

    /// Whether the node has a slot in the round that forms or follows, and waits for it.
    pub const fn is_gathered(self) -> bool {
        matches!(self, Joining | Waiting)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::fmt::Debug;

    const ALL_PHASES: [Phase; 5] = [Gathering, LastCall, Complete, Draining, Closed];
    const ALL_PHASE_EVENTS: [PhaseEvent; 5] = [
        PhaseEvent::MinimumReached,
        PhaseEvent::MinimumLost,
        PhaseEvent::RoundCompleted,
        PhaseEvent::RoundEnded,
        PhaseEvent::CloseRequested,
    ];
    const ALL_NODE_STATES: [NodeState; 6] = [Outside, Joining, Waiting, Active, Due, Standby];
    const ALL_NODE_STATE_EVENTS: [NodeStateEvent; 9] = [
        NodeStateEvent::Gather,
        NodeStateEvent::Wait,
        NodeStateEvent::Park,
        NodeStateEvent::RoundCompleted,
        NodeStateEvent::RoundEnded,
        NodeStateEvent::Leave,
        NodeStateEvent::End,
        NodeStateEvent::Expire,
        NodeStateEvent::Close,
    ];

    fn table<S: Copy + Debug, E: Copy + Debug>(
        states: &[S],
        events: &[E],
        next: fn(S, E) -> Option<S>,
    ) -> String {
        let mut table = String::new();
        for &state in states {
            for &event in events {
                let to = next(state, event).map_or_else(|| String::from("-"), |to| format!("{to:?}"));
                table += &format!("{state:?} {event:?} -> {to}\n");
            }
        }
        table
    }

    /// Returns the graph; events between the same two states share an arrow.
    fn graph<S: Copy + Debug + PartialEq, E: Copy + Debug>(
        states: &[S],
        events: &[E],
        next: fn(S, E) -> Option<S>,
    ) -> String {
        let mut graph = String::from("stateDiagram-v2\n");
        for &from in states {
            for &to in states {
                let between = events.iter().filter(|&&event| next(from, event) == Some(to));
                let names: alloc::vec::Vec<String> = between.map(|event| format!("{event:?}")).collect();
                if !names.is_empty() {
                    graph += &format!("    {from:?} --> {to:?}: {}\n", names.join(", "));
                }
            }
        }
        graph
    }

    #[test]
    fn every_transition_is_in_the_snapshot() {
        let table = format!(
            "{}{}",
            table(&ALL_PHASES, &ALL_PHASE_EVENTS, Phase::on_event),
            table(&ALL_NODE_STATES, &ALL_NODE_STATE_EVENTS, NodeState::on_event)
        );
        assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
    }

    #[test]
    fn no_transition_contradicts_another() {
        let twice = |states: &[Phase], event: PhaseEvent| {
            states
                .iter()
                .any(|state| PHASES.iter().filter(|row| row.1 == event && row.0.contains(state)).count() > 1)
        };
        assert!(!PHASES.iter().any(|(states, event, _)| twice(states, *event)));
        let twice = |states: &[NodeState], event: NodeStateEvent| {
            states.iter().any(|state| {
                NODE_STATES.iter().filter(|row| row.1 == event && row.0.contains(state)).count() > 1
            })
        };
        assert!(!NODE_STATES.iter().any(|(states, event, _)| twice(states, *event)));
    }

    #[test]
    fn the_graphs_in_the_guide_are_those_of_the_tables() {
        let guide = include_str!("../../../../docs/rendezvous.md");
        for graph in [
            graph(&ALL_PHASES, &ALL_PHASE_EVENTS, Phase::on_event),
            graph(&ALL_NODE_STATES, &ALL_NODE_STATE_EVENTS, NodeState::on_event),
        ] {
            let block = format!("```mermaid\n{graph}```\n");
            assert!(guide.contains(&block), "docs/rendezvous.md does not hold this graph:\n{block}");
        }
    }
}
