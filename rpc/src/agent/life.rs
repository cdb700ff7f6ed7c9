//! States of a worker in a group.

/// States of [`Agent`](super::Agent).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Exchanges data with the others through the keys of the store.
    Joining,
    /// Is in the group, and waits until all members are known to be callable.
    Meeting,
    /// Makes and accepts calls.
    Member,
    /// Finishes its own calls.
    Draining,
    /// Leaves the group: waits for the others, or notifies them. It accepts calls until then.
    Leaving,
    /// Is not in a group any more. Final.
    Over,
}

/// Events of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeEvent {
    /// It is in the list of members.
    Joined,
    /// All members are callable.
    Met,
    /// The caller wants to leave.
    Leave,
    /// Its own calls have finished.
    Drained,
    /// It has left.
    Left,
    /// A step failed, or the caller has abandoned the worker.
    Fault,
}

impl Life {
    /// Returns the next state; `None` if the event is not valid in this one.
    #[must_use]
    pub const fn on(self, event: LifeEvent) -> Option<Self> {
        use LifeEvent as E;
        Some(match (self, event) {
            (Self::Over, _) => return None,
            (Self::Joining, E::Joined) => Self::Meeting,
            (Self::Meeting, E::Met) => Self::Member,
            (Self::Member, E::Leave) => Self::Draining,
            (Self::Draining, E::Drained) => Self::Leaving,
            (Self::Leaving, E::Left) | (_, E::Fault) => Self::Over,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::fmt::Write;

    use Life as L;
    use LifeEvent as E;

    const STATES: [L; 6] = [L::Joining, L::Meeting, L::Member, L::Draining, L::Leaving, L::Over];
    const EVENTS: [E; 6] = [E::Joined, E::Met, E::Leave, E::Drained, E::Left, E::Fault];

    #[test]
    fn the_table_of_states_and_events_is_as_written_down() {
        let mut table = String::new();
        for state in STATES {
            for event in EVENTS {
                let next = state.on(event).map_or("-".into(), |next| format!("{next:?}"));
                writeln!(table, "{state:?} {event:?} -> {next}").expect("a string");
            }
        }
        assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
    }

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for from in STATES {
            for to in STATES {
                // That every state can fail is stated beside the graph.
                let between = EVENTS.iter().filter(|&&event| event != E::Fault && from.on(event) == Some(to));
                let names: alloc::vec::Vec<String> = between.map(|event| format!("{event:?}")).collect();
                if !names.is_empty() {
                    writeln!(graph, "    {from:?} --> {to:?}: {}", names.join(", ")).expect("a string");
                }
            }
        }
        graph += "```\n";
        let guide = include_str!("../../../docs/rpc.md");
        assert!(guide.contains(&graph), "docs/rpc.md does not hold this graph:\n{graph}");
    }
}
