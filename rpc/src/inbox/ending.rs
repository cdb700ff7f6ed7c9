//! End of a worker of an event loop: at the program's request, or because it is not in its group any more.

use crate::shutdown::Shutdown;

/// Owner of a worker, which ends it if the program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The loop, for which it was created.
    Loop,
    /// Other code, which has added it to the loop.
    Others,
}

/// State of a worker in its group, as the loop knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// The event that it is a member was not taken yet.
    Joining,
    /// It is a member.
    Member,
    /// It is not a member any more, and has not ended.
    Parted,
}

/// Next action of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cancel joining.
    GiveUp,
    /// End it in this mode.
    End(Shutdown),
    /// Report that it has ended; another owner ends it.
    Notify,
}

/// State machine of a worker's end.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    keeper: Keeper,
    end_request: Option<Shutdown>,
    begun: Option<Step>,
}

impl Ending {
    /// Creates the state of a worker whose end was not requested.
    pub const fn new(keeper: Keeper) -> Self {
        Self { keeper, end_request: None, begun: None }
    }

    /// Owner of the worker.
    pub const fn keeper(&self) -> Keeper {
        self.keeper
    }

    /// The program requests an end in this mode. An abrupt end is not changed by a later request.
    pub fn end_request(&mut self, how: Shutdown) {
        if self.end_request != Some(Shutdown::Abrupt) {
            self.end_request = Some(how);
        }
    }

    /// Returns the next action, repeatedly until [`begun`](Self::begun) is called for it.
    pub fn next(&self, group_state: GroupState) -> Option<Step> {
        let step = match (group_state, self.end_request, self.keeper) {
            (GroupState::Joining, Some(_), _) => Step::GiveUp,
            (_, Some(how), _) => Step::End(how),
            // It has left the group: what remains is to complete its pending requests.
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

    /// The action has begun.
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

    /// An action that has begun in a state is not begun again, and only an abrupt end follows another one.
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
                    // The program changes its request.
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
