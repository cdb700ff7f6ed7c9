//! State table of a generation.

/// Phase of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No participant waits: the next arrival sets the participants and the deadline.
    Unbegun,
    /// At least one participant waits for the others.
    Open,
    /// All participants arrived.
    Released,
    /// The session of a participant ended.
    Broken,
    /// The deadline passed.
    TimedOut,
    /// A client cancelled the generation.
    Cancelled,
}

/// Event of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseEvent {
    /// A participant arrived.
    Arrived,
    /// The last participant arrived.
    Completed,
    /// A waiting participant withdrew, and others still wait.
    TakenBack,
    /// The only waiting participant withdrew.
    Emptied,
    /// The session of a participant ended.
    Lost,
    /// The deadline passed.
    Expired,
    /// A client cancelled the generation.
    CancelRequested,
    /// The generation had ended, and a participant arrived for the next one.
    Followed,
}

use Phase::{Broken, Cancelled, Open, Released, TimedOut, Unbegun};

const PHASES: &[(&[Phase], PhaseEvent, Phase)] = &[
    (&[Unbegun, Open], PhaseEvent::Arrived, Open),
    (&[Open], PhaseEvent::Completed, Released),
    (&[Open], PhaseEvent::TakenBack, Open),
    (&[Open], PhaseEvent::Emptied, Unbegun),
    (&[Open], PhaseEvent::Lost, Broken),
    (&[Open], PhaseEvent::Expired, TimedOut),
    (&[Open], PhaseEvent::CancelRequested, Cancelled),
    (&[Released, Broken, TimedOut, Cancelled], PhaseEvent::Followed, Unbegun),
];

impl Phase {
    /// Returns the next phase; `None` if the event cannot happen in this phase.
    #[must_use]
    pub fn on_event(self, event: PhaseEvent) -> Option<Self> {
        PHASES.iter().find(|(states, on, _)| *on == event && states.contains(&self)).map(|&(_, _, to)| to)
    }

    /// Returns whether the generation has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, Unbegun | Open)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    const ALL_PHASES: [Phase; 6] = [Unbegun, Open, Released, Broken, TimedOut, Cancelled];
    const ALL_EVENTS: [PhaseEvent; 8] = [
        PhaseEvent::Arrived,
        PhaseEvent::Completed,
        PhaseEvent::TakenBack,
        PhaseEvent::Emptied,
        PhaseEvent::Lost,
        PhaseEvent::Expired,
        PhaseEvent::CancelRequested,
        PhaseEvent::Followed,
    ];

    #[test]
    fn every_transition_is_in_the_snapshot() {
        let mut table = String::new();
        for phase in ALL_PHASES {
            for event in ALL_EVENTS {
                let to = phase.on_event(event).map_or_else(|| String::from("-"), |to| format!("{to:?}"));
                table += &format!("{phase:?} {event:?} -> {to}\n");
            }
        }
        assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
    }

    #[test]
    fn no_transition_contradicts_another() {
        for phase in ALL_PHASES {
            for event in ALL_EVENTS {
                let rows = PHASES.iter().filter(|row| row.1 == event && row.0.contains(&phase));
                assert!(rows.count() <= 1, "{phase:?} {event:?}");
            }
        }
    }

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("stateDiagram-v2\n");
        for from in ALL_PHASES {
            for to in ALL_PHASES {
                let between = ALL_EVENTS.iter().filter(|&&event| from.on_event(event) == Some(to));
                let names: Vec<String> = between.map(|event| format!("{event:?}")).collect();
                if !names.is_empty() {
                    graph += &format!("    {from:?} --> {to:?}: {}\n", names.join(", "));
                }
            }
        }
        let block = format!("```mermaid\n{graph}```\n");
        let guide = include_str!("../../../../docs/barrier.md");
        assert!(guide.contains(&block), "docs/barrier.md does not hold this graph:\n{block}");
    }
}
