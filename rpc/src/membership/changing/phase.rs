//! Phases of a member of a dynamic group.

/// Phases of [`ChangingGroup`](super::ChangingGroup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Declares that the group is dynamic.
    Checking,
    /// Waits for the token to join.
    Queueing,
    /// Reads the list of members.
    Reading,
    /// Reads the members' addresses.
    Locating,
    /// Reads the members' liveness keys.
    Probing,
    /// Requests the members' cards.
    Asking,
    /// Writes its name.
    Writing,
    /// Writes its address.
    Addressing,
    /// Adds itself to the list of members, and removes dead ones.
    Listing,
    /// Deletes the keys of dead members.
    Sweeping,
    /// Notifies the other members.
    Notifying,
    /// Returns the token.
    Unlocking,
    /// Is a member.
    Member,
    /// Waits for the token to leave.
    LeaveQueueing,
    /// Reads the list of members.
    Rereading,
    /// Checks whether the worker from which it took the token is dead.
    Doubting,
    /// Reads whether its name is still its own.
    Verifying,
    /// Removes itself from the list.
    Delisting,
    /// Deletes its name and address.
    Wiping,
    /// Notifies the other members that it leaves.
    Leaving,
    /// Returns the token, and is not a member.
    Closing,
    /// Is not a member. Final.
    Over,
}

/// Events of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEvent {
    /// The step succeeded.
    Done,
    /// The token was acquired or returned.
    Token,
    /// All workers have responded.
    AllAnswered,
    /// Some of the notified members are dead.
    FoundDead,
    /// Another process has changed the list.
    Raced,
    /// The caller wants to leave.
    Leave,
    /// A step failed.
    Fault,
    /// The token was taken from this worker, the store failed, or the others continue without this member.
    Lost,
}

impl Phase {
    /// Returns the next phase; `None` if the event is not valid in this one.
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
            (Self::Addressing, E::Done) | (Self::Notifying, E::FoundDead) => Self::Listing,
            (Self::Listing, E::Done) => Self::Sweeping,
            (Self::Sweeping, E::Done) => Self::Notifying,
            (Self::Notifying, E::AllAnswered) => Self::Unlocking,
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
            // Undoes what may be in the list or known to other members.
            (
                Self::Writing | Self::Addressing | Self::Listing | Self::Sweeping | Self::Notifying,
                E::Fault,
            ) => Self::Rereading,
            // What cannot be undone is left to the others, which will not reach this worker.
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

    /// Whether this worker leaves, or undoes its join. If the others have removed it meanwhile, it learns that from the
    /// store, and has left.
    pub const fn is_leaving(self) -> bool {
        matches!(
            self,
            Self::LeaveQueueing
                | Self::Rereading
                | Self::Doubting
                | Self::Verifying
                | Self::Delisting
                | Self::Wiping
                | Self::Leaving
                | Self::Closing
        )
    }

    /// Whether other members know this one, and may notify it of changes.
    pub const fn is_known(self) -> bool {
        matches!(self, Self::Notifying | Self::Unlocking | Self::Member) || self.is_leaving()
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
        P::Notifying,
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
                // That the token can be lost in every phase is stated beside the graph.
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
