//! Where a member stands on its way to the token and back.

/// The states. Those that hold the token are from [`TokenState::Proving`] to [`TokenState::Releasing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    /// Takes its own sign of life.
    Claiming,
    /// Somebody of its name left one: dead, or another worker by mistake? That shows in time.
    Outwaiting,
    /// Tries to take the token.
    Trying,
    /// Waits for whoever has it to give it back.
    Waiting,
    /// Rests, since the mark that it waited for is an old one.
    Pausing,
    /// Shows that it lives, while it waits.
    Refreshing,
    /// Looks whether the holder lives.
    Looking,
    /// Takes the sign of life from a holder that is dead, so that it learns of it should it wake.
    Dooming,
    /// Wakes those who wait for it. That comes first, as where a token is given back: who dies between the two has nobody
    /// wait for the one who died before.
    Waking,
    /// Takes the token from it.
    Seizing,
    /// Somebody else was faster; the sign of life is of no use any more.
    Tidying,
    /// Has the token, and shows that it is the one of its name that has.
    Proving,
    /// Removes what is left of the dead holder's sign of life.
    Clearing,
    /// Removes its own old mark, which would wake everybody at once.
    Unmarking,
    /// Has the token; the group is its own.
    Held,
    /// Shows that it lives, while it has the token.
    Beating,
    /// Wakes those who wait for it. That comes first: who dies between the two leaves a token that can be taken, and not
    /// somebody who waits for nothing.
    Announcing,
    /// Shows that it lives before it gives the token back, since it has not for long.
    Confirming,
    /// Gives the token back.
    Releasing,
    /// Takes its sign of life away.
    Forgetting,
    /// The same, though it never had the token.
    Withdrawing,
    /// Has given it back.
    Free,
    /// Has given up waiting.
    GaveUp,
    /// Another worker of its name lives.
    NotUnique,
    /// Was taken for dead, and the token from it.
    Lost,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEvent {
    /// The key holds what was to be put there.
    Mine,
    /// It does, and was taken from a dead holder.
    MineOfDead,
    /// It holds something else.
    Others,
    /// It holds what it held before, though its mark says that it was given back.
    OthersMarked,
    /// It holds something that changes: somebody lives.
    OthersAlive,
    /// The wait was released.
    Released,
    /// It was not.
    TimedOut,
    /// The time has come, or has passed.
    Due,
    /// The time has come, and so has the time to look at the holder.
    LookDue,
    /// The holder shows no more signs of life.
    Silent,
    /// It does, or never has.
    NotSilent,
    /// The step was carried out.
    Done,
    /// The member has done with the group.
    Release,
    /// The deadline passed.
    Deadline,
}

impl TokenState {
    /// The state that follows; `None` when the event cannot happen.
    #[must_use]
    pub const fn on(self, event: TokenEvent) -> Option<Self> {
        use TokenEvent as E;
        Some(match (self, event) {
            (Self::Claiming, E::Mine)
            | (Self::Waiting, E::Released)
            | (Self::Pausing, E::Due)
            | (Self::Looking, E::NotSilent)
            | (Self::Dooming, E::Others)
            | (Self::Tidying, E::Done) => Self::Trying,
            (Self::Claiming, E::Others) => Self::Outwaiting,
            (Self::Claiming, E::OthersAlive) => Self::NotUnique,
            (Self::Outwaiting, E::Due) => Self::Claiming,
            (Self::Outwaiting, E::Deadline) | (Self::Withdrawing, E::Done) => Self::GaveUp,
            (Self::Trying, E::Mine) | (Self::Seizing, E::MineOfDead) => Self::Proving,
            (Self::Trying, E::Others) => Self::Waiting,
            (Self::Trying, E::OthersMarked) => Self::Pausing,
            (Self::Trying, E::Deadline) => Self::Withdrawing,
            (Self::Waiting, E::TimedOut) | (Self::Pausing, E::LookDue) => Self::Refreshing,
            (Self::Refreshing, E::Mine) => Self::Looking,
            (Self::Looking, E::Silent) => Self::Dooming,
            (Self::Dooming, E::Mine) => Self::Waking,
            (Self::Waking, E::Done) => Self::Seizing,
            (Self::Waking, E::Due) | (Self::Seizing, E::Others) => Self::Tidying,
            (Self::Proving, E::Mine) | (Self::Clearing, E::Done) => Self::Unmarking,
            (Self::Proving, E::MineOfDead) => Self::Clearing,
            (Self::Unmarking, E::Done) | (Self::Beating, E::Mine) => Self::Held,
            (Self::Held, E::Due) => Self::Beating,
            (Self::Held, E::Release) => Self::Announcing,
            (Self::Announcing, E::Done) | (Self::Confirming, E::Mine) => Self::Releasing,
            (Self::Announcing, E::Due) => Self::Confirming,
            (Self::Releasing, E::Mine) => Self::Forgetting,
            (Self::Forgetting, E::Done) => Self::Free,
            (
                Self::Refreshing | Self::Proving | Self::Beating | Self::Confirming | Self::Releasing,
                E::Others,
            ) => Self::Lost,
            _ => return None,
        })
    }

    /// Whether nothing comes after it.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Free | Self::GaveUp | Self::NotUnique | Self::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::fmt::Write;

    use TokenEvent as E;
    use TokenState as S;

    const STATES: [S; 25] = [
        S::Claiming,
        S::Outwaiting,
        S::Trying,
        S::Waiting,
        S::Pausing,
        S::Refreshing,
        S::Looking,
        S::Dooming,
        S::Waking,
        S::Seizing,
        S::Tidying,
        S::Proving,
        S::Clearing,
        S::Unmarking,
        S::Held,
        S::Beating,
        S::Announcing,
        S::Confirming,
        S::Releasing,
        S::Forgetting,
        S::Withdrawing,
        S::Free,
        S::GaveUp,
        S::NotUnique,
        S::Lost,
    ];
    const EVENTS: [E; 14] = [
        E::Mine,
        E::MineOfDead,
        E::Others,
        E::OthersMarked,
        E::OthersAlive,
        E::Released,
        E::TimedOut,
        E::Due,
        E::LookDue,
        E::Silent,
        E::NotSilent,
        E::Done,
        E::Release,
        E::Deadline,
    ];

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
    fn only_ends_have_nothing_behind_them() {
        for state in STATES {
            let continues_in = EVENTS.iter().any(|&event| state.on(event).is_some());
            assert_eq!(continues_in, !state.is_over(), "{state:?}");
        }
    }

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for from in STATES {
            for to in STATES {
                let between = EVENTS.iter().filter(|&&event| from.on(event) == Some(to));
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
