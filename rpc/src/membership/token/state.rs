//! States of a member that acquires, holds and returns the token.

/// States of [`Token`](super::Token). It is held from [`TokenState::Proving`] to [`TokenState::Releasing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    /// Writes its own heartbeat key.
    Claiming,
    /// The heartbeat key has a value of another process with the same name. Waits to learn whether that process is dead
    /// or a live worker with a duplicate name.
    Outwaiting,
    /// Tries to acquire the token.
    Trying,
    /// Waits until the holder returns the token.
    Waiting,
    /// Pauses, since the return mark that it waited for is from an earlier use of the token.
    Pausing,
    /// Sends a heartbeat while it waits.
    Refreshing,
    /// Reads the holder's heartbeat.
    Looking,
    /// Replaces the heartbeat of a dead holder, so that the holder learns of it if it resumes.
    Revoking,
    /// Releases those that wait for the dead holder's token. This comes first, as where a token is returned: a worker
    /// that dies between the two steps leaves none waiting for the holder before it.
    Waking,
    /// Takes the token from the dead holder.
    Seizing,
    /// Another worker has taken the token; removes the replaced heartbeat.
    Tidying,
    /// Has the token, and sends a heartbeat to prove that it is the process of its name that has it. If its heartbeat
    /// key is absent, it writes the key again first: the others cannot take a token whose holder has none.
    Proving,
    /// Removes the dead holder's replaced heartbeat.
    Clearing,
    /// Removes its own old return mark, which would release waiters at once.
    Unmarking,
    /// Holds the token and may change the group.
    Held,
    /// Sends a heartbeat while it holds the token.
    Beating,
    /// Releases those that wait for it. This comes first: a worker that dies between the two steps leaves a token that
    /// can be taken, and none that waits for a mark that never appears.
    Announcing,
    /// Sends a heartbeat before it returns the token, since the last one is not recent.
    Confirming,
    /// Returns the token.
    Releasing,
    /// Removes its heartbeat.
    Forgetting,
    /// Removes its heartbeat without having held the token.
    Withdrawing,
    /// Has returned the token.
    Free,
    /// Stopped waiting at the deadline.
    GaveUp,
    /// Another worker with the same name is alive.
    NotUnique,
    /// Was considered dead, and lost the token.
    Lost,
}

/// Events of the token's state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEvent {
    /// The key has the value that was to be stored.
    Mine,
    /// The key has the value that was to be stored, and the token was taken from a dead holder.
    MineOfDead,
    /// The key has another value.
    Others,
    /// The key has the holder's value still, though the holder's mark says that it returned the token.
    OthersMarked,
    /// The key is absent.
    Absent,
    /// The key has a value that changes: another process is alive.
    OthersAlive,
    /// The wait was released.
    Released,
    /// The wait timed out.
    TimedOut,
    /// The time of the next action has come, or the time for this step has passed.
    Due,
    /// The time of the next action has come, and so has that of reading the holder's heartbeat.
    LookDue,
    /// The holder's heartbeat has stopped.
    Silent,
    /// The holder's heartbeat has not stopped, or it has never sent one.
    NotSilent,
    /// The step succeeded.
    Done,
    /// The member has finished its change of the group.
    Release,
    /// The deadline passed.
    Deadline,
}

impl TokenState {
    /// Returns the next state; `None` if the event is not valid in this one.
    #[must_use]
    pub const fn on(self, event: TokenEvent) -> Option<Self> {
        use TokenEvent as E;
        Some(match (self, event) {
            // After a pause the replaced heartbeat stays: without it, the holder would look like one of PyTorch's.
            (Self::Claiming, E::Mine)
            | (Self::Waking, E::Due)
            | (Self::Waiting, E::Released)
            | (Self::Pausing, E::Due)
            | (Self::Looking, E::NotSilent)
            | (Self::Revoking, E::Others)
            | (Self::Tidying, E::Done) => Self::Trying,
            (Self::Claiming, E::Others) => Self::Outwaiting,
            (Self::Claiming, E::OthersAlive) => Self::NotUnique,
            (Self::Outwaiting, E::Due) | (Self::Proving, E::Absent) => Self::Claiming,
            (Self::Outwaiting, E::Deadline) | (Self::Withdrawing, E::Done) => Self::GaveUp,
            (Self::Trying, E::Mine) | (Self::Seizing, E::MineOfDead) => Self::Proving,
            (Self::Trying, E::Others) => Self::Waiting,
            (Self::Trying, E::OthersMarked) => Self::Pausing,
            (Self::Trying, E::Deadline) => Self::Withdrawing,
            (Self::Waiting, E::TimedOut) | (Self::Pausing, E::LookDue) => Self::Refreshing,
            (Self::Refreshing, E::Mine) => Self::Looking,
            (Self::Looking, E::Silent) => Self::Revoking,
            (Self::Revoking, E::Mine) => Self::Waking,
            (Self::Waking, E::Done) => Self::Seizing,
            (Self::Seizing, E::Others) => Self::Tidying,
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
        S::Revoking,
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
    const EVENTS: [E; 15] = [
        E::Mine,
        E::MineOfDead,
        E::Others,
        E::OthersMarked,
        E::Absent,
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
            let is_end = matches!(
                state,
                TokenState::Free | TokenState::GaveUp | TokenState::NotUnique | TokenState::Lost
            );
            assert_eq!(continues_in, !is_end, "{state:?}");
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
