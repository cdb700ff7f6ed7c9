//! Where a worker stands in its life in a group.

/// The states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Meets the others at the keys of the store.
    Joining,
    /// Is of the group, and waits until it is certain that everybody can be called.
    Meeting,
    /// Calls and is called.
    Member,
    /// Finishes its calls.
    Draining,
    /// Agrees with the others, or tells them, that it goes; it is called until then.
    Leaving,
    /// Is of no group any more, for good.
    Over,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeEvent {
    /// It is in the list of members.
    Joined,
    /// Everybody can be called.
    Met,
    /// It is to go.
    Leave,
    /// It has no more calls under way.
    Drained,
    /// It has gone.
    Left,
    /// Something went wrong, or nobody wants it to go on.
    Fault,
}

impl Life {
    /// The state that follows; `None` when the event cannot happen.
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
                // That everything can fail is said beside the graph.
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
