//! How a worker of an event loop comes to its end: as its program wishes, or because it is of its group no more.

use crate::shutdown::Shutdown;

/// Who ends a worker for which nobody has wished anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The loop, for which it was made.
    Loop,
    /// Somebody else, who has added it.
    Others,
}

/// What a worker is to its group, as the loop was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Its program has not heard yet that it is a member.
    Joining,
    /// It is a member.
    Member,
    /// It is none any more, and has not ended.
    Parted,
}

/// What is to be done for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is not to become a member.
    GiveUp,
    /// It is to be ended so.
    End(Shutdown),
    /// That it has ended is to be told; somebody else sees to it.
    Notify,
}

/// The end of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    keeper: Keeper,
    end_request: Option<Shutdown>,
    begun: Option<Step>,
}

impl Ending {
    /// Of a worker that nobody ends yet.
    #[must_use]
    pub const fn new(keeper: Keeper) -> Self {
        Self { keeper, end_request: None, begun: None }
    }

    /// Who ends it, if nobody wishes anything.
    #[must_use]
    pub const fn keeper(&self) -> Keeper {
        self.keeper
    }

    /// The program wishes it to end so. Who wished an abrupt end wishes no other.
    pub fn end_request(&mut self, how: Shutdown) {
        if self.end_request != Some(Shutdown::Abrupt) {
            self.end_request = Some(how);
        }
    }

    /// What is to be done now, if anything. It is asked again until that has [`begun`](Self::begun).
    #[must_use]
    pub fn next(&self, group_state: GroupState) -> Option<Step> {
        let step = match (group_state, self.end_request, self.keeper) {
            (GroupState::Joining, Some(_), _) => Step::GiveUp,
            (_, Some(how), _) => Step::End(how),
            // It has said its last word to the group: what is left is to answer those who have asked.
            (GroupState::Parted, None, Keeper::Loop) => Step::End(Shutdown::Graceful),
            (GroupState::Parted, None, Keeper::Others) => Step::Notify,
            (GroupState::Joining | GroupState::Member, None, _) => return None,
        };
        let is_begun = match (self.begun, step) {
            (Some(Step::Notify | Step::End(Shutdown::Abrupt)), _) => true,
            (Some(Step::End(Shutdown::Graceful)), _) => step != Step::End(Shutdown::Abrupt),
            (Some(Step::GiveUp), _) => step == Step::GiveUp,
            (None, _) => false,
        };
        (!is_begun).then_some(step)
    }

    /// That is under way.
    pub const fn begun(&mut self, step: Step) {
        self.begun = Some(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::fmt::Write;
    use std::format;

    const STANDINGS: [GroupState; 3] = [GroupState::Joining, GroupState::Member, GroupState::Parted];
    const WISHES: [Option<Shutdown>; 3] = [None, Some(Shutdown::Graceful), Some(Shutdown::Abrupt)];

    /// What is begun in a state is not begun again, and only an abrupt end comes after another one.
    #[test]
    fn each_state_has_its_steps() {
        let mut table = String::new();
        for keeper in [Keeper::Loop, Keeper::Others] {
            for end_request in WISHES {
                for group_state in STANDINGS {
                    let mut ending = Ending::new(keeper);
                    end_request.into_iter().for_each(|how| ending.end_request(how));
                    let mut steps = Vec::new();
                    while let Some(step) = ending.next(group_state) {
                        steps.push(format!("{step:?}"));
                        ending.begun(step);
                    }
                    // The program changes its mind.
                    ending.end_request(Shutdown::Abrupt);
                    let later = ending.next(group_state);
                    let end_request = end_request.map_or("nothing".into(), |how| format!("{how:?}"));
                    let steps = steps.join(", ");
                    writeln!(table, "{keeper:?} {group_state:?} {end_request}: [{steps}] then {later:?}")
                        .expect("text");
                }
            }
        }
        assert_eq!(table, TABLE, "{table}");
    }

    const TABLE: &str = "\
Loop Joining nothing: [] then Some(GiveUp)
Loop Member nothing: [] then Some(End(Abrupt))
Loop Parted nothing: [End(Graceful)] then Some(End(Abrupt))
Loop Joining Graceful: [GiveUp] then None
Loop Member Graceful: [End(Graceful)] then Some(End(Abrupt))
Loop Parted Graceful: [End(Graceful)] then Some(End(Abrupt))
Loop Joining Abrupt: [GiveUp] then None
Loop Member Abrupt: [End(Abrupt)] then None
Loop Parted Abrupt: [End(Abrupt)] then None
Others Joining nothing: [] then Some(GiveUp)
Others Member nothing: [] then Some(End(Abrupt))
Others Parted nothing: [Notify] then None
Others Joining Graceful: [GiveUp] then None
Others Member Graceful: [End(Graceful)] then Some(End(Abrupt))
Others Parted Graceful: [End(Graceful)] then Some(End(Abrupt))
Others Joining Abrupt: [GiveUp] then None
Others Member Abrupt: [End(Abrupt)] then None
Others Parted Abrupt: [End(Abrupt)] then None
";

    #[test]
    fn who_has_given_up_and_became_a_member_all_the_same_is_ended() {
        let mut ending = Ending::new(Keeper::Loop);
        ending.end_request(Shutdown::Abrupt);
        ending.end_request(Shutdown::Graceful);
        ending.begun(Step::GiveUp);
        assert_eq!(ending.next(GroupState::Joining), None);
        assert_eq!(ending.next(GroupState::Member), Some(Step::End(Shutdown::Abrupt)));
    }
}
