//! Where a member of a dynamic group stands.

/// The phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Says that the group is dynamic.
    Checking,
    /// Waits for the right to change the group.
    Queueing,
    /// Reads who is in it.
    Reading,
    /// Reads where they are.
    Locating,
    /// Reads which of them show that they live.
    Probing,
    /// Asks them for their devices.
    Asking,
    /// Writes its name.
    Writing,
    /// Writes its address.
    Addressing,
    /// Enters itself into the list of members, and strikes out the dead.
    Listing,
    /// Removes what the dead left.
    Sweeping,
    /// Tells the others.
    Telling,
    /// Gives the right back.
    Unlocking,
    /// Is a member.
    Member,
    /// Waits for the right to leave.
    LeaveQueueing,
    /// Reads who is in the group.
    Rereading,
    /// Looks whether the one from whom it took the right is gone.
    Doubting,
    /// Reads whether its name is still its own.
    Verifying,
    /// Strikes itself out of the list.
    Delisting,
    /// Removes its name and address.
    Wiping,
    /// Tells the others that it goes.
    Leaving,
    /// Gives the right back, and is no member.
    Closing,
    /// Is no member, for good.
    Over,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEvent {
    /// What was asked of the store was done.
    Done,
    /// The right to change the group is there, or was given back.
    Token,
    /// Everybody has answered.
    AllAnswered,
    /// Some of those who were told are dead.
    FoundDead,
    /// Somebody else changed the list.
    Raced,
    /// The member is to leave.
    Leave,
    /// Something went wrong.
    Fault,
    /// The right was taken away, the store failed, or the others go on without this member.
    Lost,
}

impl Phase {
    /// The phase that follows; `None` when the event cannot happen.
    #[must_use]
    pub const fn on(self, event: PhaseEvent) -> Option<Self> {
        use PhaseEvent as E;
        Some(match (self, event) {
            (Self::Over, _) => return None,
            (Self::Checking, E::Done) => Self::Queueing,
            (Self::Queueing, E::Token) | (Self::Listing, E::Raced) => Self::Reading,
            (Self::Reading, E::Done) => Self::Locating,
            (Self::Locating, E::Done) => Self::Probing,
            (Self::Probing, E::Done) => Self::Asking,
            (Self::Asking, E::AllAnswered) => Self::Writing,
            (Self::Writing, E::Done) => Self::Addressing,
            (Self::Addressing, E::Done) | (Self::Telling, E::FoundDead) => Self::Listing,
            (Self::Listing, E::Done) => Self::Sweeping,
            (Self::Sweeping, E::Done) => Self::Telling,
            (Self::Telling, E::AllAnswered) => Self::Unlocking,
            (Self::Unlocking, E::Token) => Self::Member,
            (Self::Member, E::Leave) => Self::LeaveQueueing,
            (Self::LeaveQueueing, E::Token) | (Self::Delisting, E::Raced) => Self::Rereading,
            (Self::Rereading, E::Done) => Self::Doubting,
            (Self::Doubting, E::AllAnswered) => Self::Verifying,
            (Self::Verifying, E::Done) => Self::Delisting,
            (Self::Delisting, E::Done) => Self::Wiping,
            (Self::Wiping, E::Done) => Self::Leaving,
            (Self::Leaving, E::AllAnswered)
            | (Self::Reading | Self::Locating | Self::Probing | Self::Asking, E::Fault) => Self::Closing,
            // What may stand in the list, or be known to others, is taken back.
            (Self::Writing | Self::Addressing | Self::Listing | Self::Sweeping | Self::Telling, E::Fault) => {
                Self::Rereading
            }
            // What cannot be taken back is left to the others, who will find nobody there.
            (
                Self::Rereading
                | Self::Doubting
                | Self::Verifying
                | Self::Delisting
                | Self::Wiping
                | Self::Leaving,
                E::Fault,
            ) => Self::Closing,
            (Self::Closing, E::Token)
            | (Self::Checking | Self::Queueing | Self::LeaveQueueing, E::Fault)
            | (_, E::Lost) => Self::Over,
            _ => return None,
        })
    }

    /// Whether others may tell of changes: they know this member.
    #[must_use]
    pub const fn is_known(self) -> bool {
        matches!(
            self,
            Self::Telling
                | Self::Unlocking
                | Self::Member
                | Self::LeaveQueueing
                | Self::Rereading
                | Self::Doubting
                | Self::Verifying
                | Self::Delisting
                | Self::Wiping
                | Self::Leaving
                | Self::Closing
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::fmt::Write;

    use Phase as P;
    use PhaseEvent as E;

    const PHASES: [P; 22] = [
        P::Checking,
        P::Queueing,
        P::Reading,
        P::Locating,
        P::Probing,
        P::Asking,
        P::Writing,
        P::Addressing,
        P::Listing,
        P::Sweeping,
        P::Telling,
        P::Unlocking,
        P::Member,
        P::LeaveQueueing,
        P::Rereading,
        P::Doubting,
        P::Verifying,
        P::Delisting,
        P::Wiping,
        P::Leaving,
        P::Closing,
        P::Over,
    ];
    const EVENTS: [E; 8] =
        [E::Done, E::Token, E::AllAnswered, E::FoundDead, E::Raced, E::Leave, E::Fault, E::Lost];

    #[test]
    fn the_table_of_phases_and_events_is_as_written_down() {
        let mut table = String::new();
        for phase in PHASES {
            for event in EVENTS {
                let next = phase.on(event).map_or("-".into(), |next| format!("{next:?}"));
                writeln!(table, "{phase:?} {event:?} -> {next}").expect("a string");
            }
        }
        assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
    }

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for from in PHASES {
            for to in PHASES {
                // That everything can be lost is said beside the graph.
                let between = EVENTS.iter().filter(|&&event| event != E::Lost && from.on(event) == Some(to));
                let names: alloc::vec::Vec<String> = between.map(|event| format!("{event:?}")).collect();
                if !names.is_empty() {
                    writeln!(graph, "    {from:?} --> {to:?}: {}", names.join(", ")).expect("a string");
                }
            }
        }
        graph += "```\n";
        let guide = include_str!("../../../../docs/rpc.md");
        assert!(guide.contains(&graph), "docs/rpc.md does not hold this graph:\n{graph}");
    }
}
