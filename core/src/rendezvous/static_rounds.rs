//! Rounds of nodes that share only a store. Each round has a log there, to which a node appends that it joins, that
//! it leaves, or that the run is closed. All readers of a log reach the same result: a round is complete from the
//! first entry on with which all nodes are present, unless it was closed before.
//!
//! The first round is also complete when as many nodes have checked in as there are, since nodes of PyTorch do not
//! write its log. While some nodes are missing from that log they may be PyTorch's, and there are no further rounds.
//!
//! If node 0 is restarted, its store is empty, and its rounds have the numbers of earlier ones. So the first node that
//! joins writes a random number into the store, and the keys of all rounds but the first lie below it. A node that finds
//! another number than before leaves. What it still writes for its round concerns no other node.
//!
//! Call [`StaticRounds::begin`], then perform each [`StaticRounds::next_step`] and report its result, until it is
//! [`Step::Over`]. Report a failed step, of any kind, with [`StaticRounds::failed`]: the node then withdraws what it has
//! written. An attempt that was given up is resumed by the next one.

use crate::error::{Effect, ErrorKind};
use crate::prelude::*;

/// Largest number of missing nodes in an error: enough to tell whether one host is missing or several.
pub const MISSING_MAX: usize = 16;

/// Key of the store's incarnation, under the run's prefix.
pub const INCARNATION_KEY: &[u8] = b"rdzv/static/incarnation";

/// Returns the value of [`INCARNATION_KEY`].
pub fn incarnation_text(incarnation: u64) -> String {
    format!("{incarnation:016x}")
}

/// Returns the key of a round's log, under the run's prefix. For the first round, the incarnation of the store has no
/// effect.
pub fn log_key(incarnation: u64, round: u64) -> String {
    key(incarnation, round, "log")
}

/// Returns the key that is set once the log decides how the wait for the round ends.
pub fn ended_key(incarnation: u64, round: u64) -> String {
    key(incarnation, round, "told")
}

/// Returns the key prefix of a round's own store. The first round uses the rendezvous' own store.
pub fn store_prefix(incarnation: u64, round: u64) -> String {
    key(incarnation, round, "store")
}

fn key(incarnation: u64, round: u64, part: &str) -> String {
    match round {
        0 => format!("rdzv/static/0/{part}"),
        _ => format!("rdzv/static/{incarnation:016x}/{round}/{part}"),
    }
}

/// An entry of a round's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The node is present.
    Arrive,
    /// The node no longer waits.
    Leave,
    /// No node may join any more.
    Closes,
}

impl Entry {
    /// Returns the bytes to append, for the node of this rank.
    pub fn text(self, rank: u64) -> String {
        let mark = match self {
            Self::Arrive => '+',
            Self::Leave => '-',
            Self::Closes => 'x',
        };
        format!("{mark}{rank} ")
    }
}

/// State of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundState {
    /// Nodes are missing.
    Open,
    /// All nodes have joined.
    Whole,
    /// The run was closed before all nodes had joined.
    Closed,
}

/// The content of a round's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attendance {
    world_size: u64,
    /// Ranks of the present nodes, sorted.
    present: Vec<u64>,
    round_state: RoundState,
}

impl Attendance {
    /// Parses the log of a round of `world_size` nodes. Invalid entries are ignored.
    pub fn read(log: &[u8], world_size: u64) -> Self {
        let mut attendance = Self { world_size, present: Vec::new(), round_state: RoundState::Open };
        for entry in log.split(|&byte| byte == b' ') {
            let Some((&mark, digits)) = entry.split_first() else { continue };
            let rank = core::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            let Some(rank) = rank.filter(|&rank| rank < world_size) else { continue };
            match (mark, attendance.present.binary_search(&rank)) {
                (b'+', Err(index)) => attendance.present.insert(index, rank),
                (b'-', Ok(index)) => drop(attendance.present.remove(index)),
                (b'x', _) => attendance.round_state = RoundState::Closed,
                _ => {}
            }
            if attendance.arrived() == world_size && attendance.round_state == RoundState::Open {
                attendance.round_state = RoundState::Whole;
            }
            // Entries after the decision change nothing.
            if attendance.round_state != RoundState::Open {
                break;
            }
        }
        attendance
    }

    /// Returns the state of the round.
    pub const fn round_state(&self) -> RoundState {
        self.round_state
    }

    /// Returns the number of present nodes.
    pub const fn arrived(&self) -> u64 {
        self.present.len() as u64
    }

    /// Returns the ranks of the present nodes, sorted.
    pub fn present(&self) -> &[u64] {
        &self.present
    }

    fn is_there(&self, rank: u64) -> bool {
        self.present.binary_search(&rank).is_ok()
    }

    fn missing_but(&self, claim: u64) -> Vec<u64> {
        (0..self.world_size).filter(|&rank| rank != claim && !self.is_there(rank)).take(MISSING_MAX).collect()
    }
}

/// The nodes of a round that timed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Number of the round.
    pub round: u64,
    /// Number of nodes that were present, including this node.
    pub arrived: u64,
    /// Ranks of missing nodes, at most [`MISSING_MAX`].
    pub missing: Vec<u64>,
}

/// How an attempt to join a round ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The node is in this round.
    Entered {
        /// Number of the round; 0 is the first.
        round: u64,
    },
    /// A node closed the run, or the store is not the one in which this node joined earlier rounds.
    Closed,
    /// The time was up, and the node's log entry was withdrawn.
    Short(Shortfall),
    /// The store ended with its host while the node waited for the first round.
    HostLeft {
        /// Ranks of nodes that were missing when the log was last read, at most [`MISSING_MAX`].
        missing: Vec<u64>,
    },
    /// A step failed for another reason, or the log entry could not be withdrawn.
    GivenUp,
}

/// The next step of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read [`INCARNATION_KEY`], and pass its value, empty if there is none, to [`StaticRounds::identified`]. If `may_set`,
    /// set it before to a random number, unless it has a value.
    Identify {
        /// Whether the node may set the key.
        may_set: bool,
    },
    /// Read the round's log, and pass it to [`StaticRounds::saw`]. A missing log is empty.
    Read {
        /// Number of the round.
        round: u64,
    },
    /// Append this node's entry, then call [`StaticRounds::done`].
    Append {
        /// Number of the log's round.
        round: u64,
        /// The entry.
        entry: Entry,
    },
    /// Check in to the first round, then call [`StaticRounds::done`].
    CheckIn,
    /// Withdraw the check-in, report [`StaticRounds::checked_out_of`], then call [`StaticRounds::done`].
    CheckOut,
    /// Check that this node still has its rank, then call [`StaticRounds::done`].
    KeepClaim,
    /// Wait briefly until as many nodes have checked in as there are. Call [`StaticRounds::done`] if they have, and
    /// [`StaticRounds::not_all_yet`] if not.
    Gather,
    /// Wait for the round's [`ended_key`], then call [`StaticRounds::done`].
    Wait {
        /// Number of the round.
        round: u64,
    },
    /// Set the round's [`ended_key`], so that the waiting nodes read its log, then call [`StaticRounds::done`].
    Notify {
        /// Number of the round.
        round: u64,
    },
    /// Stop: the attempt is over.
    Over(Outcome),
}

/// Stage of an attempt to join a round.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// Reads the incarnation of the store.
    Identifying,
    /// Searches for the first round that is not complete.
    Searching,
    Arriving,
    /// Checks in to the first round.
    CheckingIn,
    /// Waits until all nodes have checked in to the first round.
    Gathering,
    /// Checks that the node still has its rank while it waits for the first round.
    Claiming,
    /// Reads the first round's log for the nodes that have joined so far.
    Surveying,
    /// Reads the log to see whether this node was the last one to join.
    Confirming,
    Waiting,
    /// Reads the log after the wait for [`ended_key`].
    Settling,
    Leaving,
    /// Withdraws the check-in to the first round.
    CheckingOut,
    /// Reads the log to see whether the round was complete before the node left it.
    ConfirmingLeave,
    /// Notifies the other nodes that the round is complete.
    Notifying,
    Over(Outcome),
}

/// The state machine of one node, across all its rounds.
#[derive(Clone, Debug)]
pub struct StaticRounds {
    rank: u64,
    world_size: u64,
    /// Incarnation of the store, once this node has read it.
    incarnation: Option<u64>,
    /// Number of the round that the node is in.
    entered: Option<u64>,
    /// Number of a round whose log may contain this node and that it has not entered.
    pending: Option<u64>,
    /// Whether this process may have appended to the first round's log.
    has_arrived: bool,
    /// Whether this node counts as checked in to the first round, as far as it knows.
    is_counted: bool,
    /// Number of the round of the attempt.
    round: u64,
    stage: Stage,
    /// Ranks of nodes that were missing from the log when it was last read; [`MISSING_MAX`] at most.
    missing: Vec<u64>,
    /// Number of nodes that had checked in when this one gave up the first round.
    checked_in: u64,
    /// Kind of the first failure of the attempt.
    problem: Option<ErrorKind>,
}

impl StaticRounds {
    /// Creates a node of this rank, which is in no round.
    pub const fn new(rank: u64, world_size: u64) -> Self {
        Self {
            rank,
            world_size,
            incarnation: None,
            entered: None,
            pending: None,
            has_arrived: false,
            is_counted: false,
            round: 0,
            stage: Stage::Searching,
            missing: Vec::new(),
            checked_in: 0,
            problem: None,
        }
    }

    /// Begins an attempt to join the next round.
    pub fn begin(&mut self) {
        self.round = self.pending.or(self.entered).unwrap_or(0);
        (self.checked_in, self.problem) = (0, None);
        self.stage = Stage::Identifying;
    }

    /// Returns the incarnation of the store; 0 before the node has read it.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.unwrap_or(0)
    }

    /// Returns the next step.
    pub fn next_step(&self) -> Step {
        let round = self.round;
        match &self.stage {
            Stage::Identifying => Step::Identify { may_set: self.incarnation.is_none() },
            Stage::Searching
            | Stage::Surveying
            | Stage::Confirming
            | Stage::Settling
            | Stage::ConfirmingLeave => Step::Read { round },
            Stage::CheckingIn => Step::CheckIn,
            Stage::Gathering => Step::Gather,
            Stage::Claiming => Step::KeepClaim,
            Stage::CheckingOut => Step::CheckOut,
            Stage::Arriving => Step::Append { round, entry: Entry::Arrive },
            Stage::Leaving => Step::Append { round, entry: Entry::Leave },
            Stage::Waiting => Step::Wait { round },
            Stage::Notifying => Step::Notify { round },
            Stage::Over(outcome) => Step::Over(outcome.clone()),
        }
    }

    /// Handles the value that [`Step::Identify`] requested.
    pub fn identified(&mut self, value: &[u8]) {
        let text = core::str::from_utf8(value).ok();
        let found = text.and_then(|text| u64::from_str_radix(text, 16).ok());
        match found {
            Some(found) if self.incarnation.is_none_or(|known| known == found) => {
                self.incarnation = Some(found);
                self.stage = Stage::Searching;
            }
            _ => self.give_up(Outcome::Closed),
        }
    }

    /// Handles the log that [`Step::Read`] requested.
    pub fn saw(&mut self, log: &[u8]) {
        if !matches!(self.next_step(), Step::Read { .. }) {
            return;
        }
        let attendance = Attendance::read(log, self.world_size);
        self.missing = attendance.missing_but(self.rank);
        match (attendance.round_state, &self.stage) {
            (RoundState::Closed, _) => self.give_up(Outcome::Closed),
            (RoundState::Whole, Stage::Searching) if self.pending != Some(self.round) => self.round += 1,
            (RoundState::Whole, _) => self.whole(),
            (RoundState::Open, Stage::Searching) if self.round == 0 && attendance.is_there(self.rank) => {
                if self.entered.is_some() {
                    self.enter();
                } else {
                    // A process that has died checked in under this rank.
                    self.is_counted |= !self.has_arrived;
                    self.pending = Some(0);
                    self.gather();
                }
            }
            (RoundState::Open, Stage::Searching) => {
                self.pending = Some(self.round);
                self.stage = Stage::Arriving;
            }
            (RoundState::Open, Stage::Surveying) => self.stage = Stage::Gathering,
            (RoundState::Open, Stage::Confirming) => self.stage = Stage::Waiting,
            (RoundState::Open, Stage::ConfirmingLeave) => {
                self.pending = None;
                let missing = core::mem::take(&mut self.missing);
                // Nodes of PyTorch check in to the first round, and do not write its log.
                let arrived = (attendance.arrived() + 1).max(self.checked_in);
                self.give_up(Outcome::Short(Shortfall { round: self.round, arrived, missing }));
            }
            // `Settling`: no node sets the key of an open round, so the log is unexpected; there is nothing to wait for
            // any more.
            (RoundState::Open, _) => self.stage = Stage::Leaving,
        }
    }

    /// Handles the completion of the current step.
    pub fn done(&mut self) {
        match self.stage {
            Stage::Arriving if self.round == 0 => {
                self.has_arrived = true;
                self.gather();
            }
            Stage::CheckingIn => {
                self.is_counted = true;
                self.gather();
            }
            Stage::Gathering => self.enter(),
            Stage::Claiming => self.stage = Stage::Surveying,
            Stage::Arriving => self.stage = Stage::Confirming,
            Stage::Waiting => self.stage = Stage::Settling,
            Stage::Leaving if self.round == 0 && self.is_counted => self.stage = Stage::CheckingOut,
            Stage::Leaving => self.stage = Stage::ConfirmingLeave,
            Stage::CheckingOut => {
                self.is_counted = false;
                self.stage = Stage::ConfirmingLeave;
            }
            Stage::Notifying => self.enter(),
            _ => {}
        }
    }

    /// Handles that not all nodes have checked in to the first round yet.
    pub fn not_all_yet(&mut self) {
        if self.stage == Stage::Gathering {
            self.stage = Stage::Claiming;
        }
    }

    /// Handles that this node has checked out of the first round, to which `nodes` nodes had checked in.
    pub const fn checked_out_of(&mut self, nodes: u64) {
        self.checked_in = nodes;
    }

    /// Handles the failure or cancellation of the current step. A check-in or check-out that may have taken effect
    /// counts as done. Otherwise the other nodes would wait for a node that they already count, or rely on one that
    /// has left.
    pub fn failed(&mut self, kind: ErrorKind, effect: Effect) {
        let may_be_done = effect != Effect::None;
        match self.stage {
            Stage::Arriving => self.has_arrived |= self.round == 0,
            Stage::CheckingIn => self.is_counted = may_be_done,
            Stage::CheckingOut => self.is_counted = !may_be_done,
            _ => {}
        }
        self.stage = match self.stage {
            Stage::Gathering | Stage::Claiming | Stage::Surveying
                if matches!(kind, ErrorKind::ServerGone | ErrorKind::Refused) =>
            {
                Stage::Over(Outcome::HostLeft { missing: core::mem::take(&mut self.missing) })
            }
            // The other nodes must not rely on this node.
            Stage::Arriving
            | Stage::CheckingIn
            | Stage::Gathering
            | Stage::Claiming
            | Stage::Surveying
            | Stage::Confirming
            | Stage::Waiting
            | Stage::Settling => Stage::Leaving,
            _ => Stage::Over(Outcome::GivenUp),
        };
        self.problem.get_or_insert(kind);
    }

    /// Ends the attempt. A failure other than a timeout says more than the outcome that it led to.
    fn give_up(&mut self, outcome: Outcome) {
        let timed_out = self.problem.is_none_or(|kind| kind == ErrorKind::TimedOut);
        self.stage = Stage::Over(if timed_out { outcome } else { Outcome::GivenUp });
    }

    /// Continues with a node that is in the first round's log.
    fn gather(&mut self) {
        self.stage = if self.is_counted { Stage::Gathering } else { Stage::CheckingIn };
    }

    /// Handles that the round is complete. Every node that sees this notifies the others, since the last one to join
    /// may have died before it could.
    fn whole(&mut self) {
        // No node waits for the key of the first round.
        if self.round == 0 { self.enter() } else { self.stage = Stage::Notifying }
    }

    fn enter(&mut self) {
        self.entered = Some(self.round);
        self.pending = None;
        self.stage = Stage::Over(Outcome::Entered { round: self.round });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use alloc::collections::{BTreeMap, BTreeSet};
    use alloc::vec;

    #[test]
    fn a_log_is_read_in_one_way() {
        use RoundState::{Closed, Open, Whole};
        for (log, round_state, arrived) in [
            ("", Open, 0),
            ("+0 ", Open, 1),
            ("+1 +1 +1 ", Open, 1),
            ("+0 +1 +2 ", Whole, 3),
            ("+2 +0 -2 +1 ", Open, 2),
            ("+2 +0 -2 +1 +2 ", Whole, 3),
            ("-1 +1 ", Open, 1),
            // Entries of nodes that leave, close or join too late change nothing.
            ("+0 +1 +2 -1 x0 ", Whole, 3),
            ("+0 +1 x2 +2 ", Closed, 2),
            // Entries that are not this library's.
            ("+3 +99999999999999999999 +x ?1 +  y +0", Open, 1),
        ] {
            let attendance = Attendance::read(log.as_bytes(), 3);
            assert_eq!((attendance.round_state(), attendance.arrived()), (round_state, arrived), "{log}");
        }
        assert_eq!(Attendance::read(b"+0 ", 1).round_state(), Whole);
        assert_eq!(Entry::Arrive.text(3) + &Entry::Leave.text(12) + &Entry::Closes.text(0), "+3 -12 x0 ");
    }

    #[test]
    fn a_node_leaves_a_store_that_is_not_the_one_it_knows() {
        let closed = Step::Over(Outcome::Closed);
        let mut rounds = StaticRounds::new(1, 2);
        rounds.begin();
        assert_eq!(rounds.next_step(), Step::Identify { may_set: true });
        let text = incarnation_text(0xab);
        rounds.identified(text.as_bytes());
        assert_eq!((rounds.incarnation(), rounds.next_step()), (0xab, Step::Read { round: 0 }));
        rounds.entered = Some(2);
        for (found, next) in [
            (&*text, Step::Read { round: 2 }),
            // Node 0 was restarted, and another node has joined there, or none.
            ("00000000000000ac", closed.clone()),
            ("", closed.clone()),
            ("not a number", closed),
        ] {
            rounds.begin();
            assert_eq!(rounds.next_step(), Step::Identify { may_set: false });
            rounds.identified(found.as_bytes());
            assert_eq!(rounds.next_step(), next, "{found}");
        }
        let keys = [0, 1].map(|round| log_key(0xab, round));
        assert_eq!(keys, ["rdzv/static/0/log", "rdzv/static/00000000000000ab/1/log"]);
    }

    /// Reads these logs from round 0 on, as node 1 of 2, until the next step changes one.
    fn looking(rounds: &mut StaticRounds, logs: &[&str]) -> Step {
        rounds.begin();
        loop {
            match rounds.next_step() {
                Step::Identify { .. } => rounds.identified(b"5"),
                Step::Read { round } => {
                    let log = logs.get(usize::try_from(round).expect("few")).copied().unwrap_or_default();
                    rounds.saw(log.as_bytes());
                }
                step => return step,
            }
        }
    }

    #[test]
    fn the_first_step_of_an_attempt_follows_from_the_logs() {
        let joins = |round| Step::Append { round, entry: Entry::Arrive };
        let entered = |round| Step::Over(Outcome::Entered { round });
        for (in_round, logs, step) in [
            // The first node to join, the last one, and one that has joined before.
            (None, &[""][..], joins(0)),
            (None, &["+0 "], joins(0)),
            (None, &["+1 "], Step::Gather),
            // Some nodes may be PyTorch's.
            (Some(0), &["+1 "], entered(0)),
            (Some(0), &["+1 +0 "], joins(1)),
            (Some(0), &["+1 +0 ", "+0 "], joins(1)),
            (Some(1), &["+1 +0 ", "+0 +1 "], joins(2)),
            (Some(0), &["+1 +0 ", "x0 "], Step::Over(Outcome::Closed)),
            // A node that restarted: the others are in round 2, or wait for it.
            (None, &["+1 +0 ", "+0 +1 ", "+1 +0 "], joins(3)),
            (None, &["+1 +0 ", "+0 +1 ", "+0 "], joins(2)),
        ] {
            let mut rounds = StaticRounds { entered: in_round, ..StaticRounds::new(1, 2) };
            assert_eq!(looking(&mut rounds, logs), step, "{in_round:?} {logs:?}");
        }
    }

    #[test]
    fn a_node_that_gives_up_withdraws_its_entry() {
        let mut rounds = StaticRounds { entered: Some(0), ..StaticRounds::new(1, 3) };
        looking(&mut rounds, &["+0 +1 +2 "]);
        rounds.done();
        rounds.saw(b"+2 +1 ");
        assert_eq!(rounds.next_step(), Step::Wait { round: 1 });
        rounds.failed(ErrorKind::TimedOut, Effect::None);
        assert_eq!(rounds.next_step(), Step::Append { round: 1, entry: Entry::Leave });
        rounds.done();
        let mut too_late = rounds.clone();
        rounds.saw(b"+2 +1 -1 ");
        let shortfall = Shortfall { round: 1, arrived: 2, missing: vec![0] };
        assert_eq!(rounds.next_step(), Step::Over(Outcome::Short(shortfall)));
        // The last node joined just before.
        too_late.saw(b"+2 +1 +0 -1 ");
        assert_eq!(too_late.next_step(), Step::Notify { round: 1 });
        too_late.done();
        assert_eq!(too_late.next_step(), Step::Over(Outcome::Entered { round: 1 }));
    }

    #[test]
    fn an_attempt_that_was_given_up_is_resumed() {
        let mut rounds = StaticRounds { entered: Some(0), ..StaticRounds::new(1, 2) };
        let whole = "+0 +1 ";
        assert_eq!(looking(&mut rounds, &[whole]), Step::Append { round: 1, entry: Entry::Arrive });
        // Each of the two steps may or may not have had its effect.
        rounds.failed(ErrorKind::TimedOut, Effect::Possible);
        assert_eq!(rounds.next_step(), Step::Append { round: 1, entry: Entry::Leave });
        rounds.failed(ErrorKind::TimedOut, Effect::Possible);
        assert_eq!(rounds.next_step(), Step::Over(Outcome::GivenUp));
        // The other nodes have entered that round with it in the meantime, so it must not skip to the round after.
        let mut met = rounds.clone();
        assert_eq!(looking(&mut met, &[whole, "+1 +0 "]), Step::Notify { round: 1 });
        assert_eq!(looking(&mut rounds, &[whole, "+1 "]), Step::Append { round: 1, entry: Entry::Arrive });
    }

    #[test]
    fn the_first_round_is_complete_when_all_have_checked_in_or_are_in_its_log() {
        let arrived = || {
            let mut rounds = StaticRounds::new(1, 4);
            looking(&mut rounds, &["+0 "]);
            rounds.done();
            assert_eq!(rounds.next_step(), Step::CheckIn);
            rounds.done();
            assert_eq!(rounds.next_step(), Step::Gather);
            rounds.not_all_yet();
            assert_eq!(rounds.next_step(), Step::KeepClaim);
            rounds.done();
            assert_eq!(rounds.next_step(), Step::Read { round: 0 });
            rounds
        };
        let entered = Step::Over(Outcome::Entered { round: 0 });
        let mut by_log = arrived();
        by_log.saw(b"+0 +1 +3 +2 ");
        assert_eq!(by_log.next_step(), entered);
        let mut by_count = arrived();
        by_count.saw(b"+0 +1 ");
        assert_eq!((by_count.next_step(), &by_count.missing[..]), (Step::Gather, &[2, 3][..]));
        let mut given_up = by_count.clone();
        by_count.done();
        assert_eq!(by_count.next_step(), entered);
        // A node that gives up withdraws its entry here, too. One of the nodes that checked in is PyTorch's.
        given_up.failed(ErrorKind::TimedOut, Effect::None);
        assert_eq!(given_up.next_step(), Step::Append { round: 0, entry: Entry::Leave });
        given_up.done();
        assert_eq!(given_up.next_step(), Step::CheckOut);
        given_up.checked_out_of(3);
        given_up.done();
        given_up.saw(b"+0 +1 -1 ");
        let shortfall = Shortfall { round: 0, arrived: 3, missing: vec![2, 3] };
        assert_eq!(given_up.next_step(), Step::Over(Outcome::Short(shortfall)));
        assert_eq!(looking(&mut given_up, &["+0 +1 -1 "]), Step::Append { round: 0, entry: Entry::Arrive });
    }

    /// For each step of node 1 of 2 that fails in the first round, with its effect: whether the node withdraws its
    /// check-in.
    #[test]
    fn what_is_taken_back_is_what_was_done() {
        let [none, possible] = [Effect::None, Effect::Possible];
        for (log, step, effect, takes_back) in [
            ("", Step::Append { round: 0, entry: Entry::Arrive }, none, false),
            ("", Step::Append { round: 0, entry: Entry::Arrive }, possible, false),
            ("", Step::CheckIn, none, false),
            ("", Step::CheckIn, possible, true),
            ("", Step::Gather, none, true),
            // A node that cannot check its rank must not leave its entry in the log either.
            ("", Step::KeepClaim, none, true),
            ("", Step::Read { round: 0 }, none, true),
            // A process that died was counted.
            ("+1 ", Step::Gather, none, true),
        ] {
            let mut rounds = StaticRounds::new(1, 2);
            looking(&mut rounds, &[log]);
            while rounds.next_step() != step {
                if rounds.next_step() == Step::Gather { rounds.not_all_yet() } else { rounds.done() }
            }
            rounds.failed(ErrorKind::TimedOut, effect);
            assert_eq!(rounds.next_step(), Step::Append { round: 0, entry: Entry::Leave }, "{step:?}");
            rounds.done();
            assert_eq!(rounds.next_step() == Step::CheckOut, takes_back, "{step:?} {effect:?}");
        }
    }

    #[test]
    fn an_attempt_ends_with_its_first_failure_unless_that_was_a_timeout() {
        let gathering = || {
            let mut rounds = StaticRounds::new(1, 3);
            looking(&mut rounds, &["+0 "]);
            (0..2).for_each(|_| rounds.done());
            assert_eq!(rounds.next_step(), Step::Gather);
            rounds
        };
        for kind in [ErrorKind::ServerGone, ErrorKind::Refused] {
            let mut rounds = gathering();
            rounds.failed(kind, Effect::None);
            assert_eq!(rounds.next_step(), Step::Over(Outcome::HostLeft { missing: vec![2] }), "{kind:?}");
        }
        for (kind, log, outcome) in [
            (ErrorKind::Cancelled, &b"+0 "[..], Outcome::GivenUp),
            (ErrorKind::Cancelled, b"+0 x0 ", Outcome::GivenUp),
            (ErrorKind::TimedOut, b"+0 x0 ", Outcome::Closed),
            // The last node joined just before.
            (ErrorKind::Cancelled, b"+0 +2 +1 ", Outcome::Entered { round: 0 }),
        ] {
            let mut rounds = gathering();
            rounds.failed(kind, Effect::None);
            (0..2).for_each(|_| rounds.done());
            rounds.saw(log);
            assert_eq!(rounds.next_step(), Step::Over(outcome), "{kind:?}");
        }
    }

    #[test]
    fn a_node_checks_in_once_whatever_was_left_in_the_middle() {
        let mut rounds = StaticRounds::new(1, 2);
        looking(&mut rounds, &[""]);
        rounds.done();
        // It has not checked in, and its leave entry cannot be written either.
        rounds.failed(ErrorKind::TimedOut, Effect::None);
        rounds.failed(ErrorKind::TimedOut, Effect::None);
        assert_eq!(looking(&mut rounds, &["+1 "]), Step::CheckIn);
        rounds.done();
        rounds.failed(ErrorKind::TimedOut, Effect::None);
        rounds.done();
        // It is no longer in the log, and still counted.
        rounds.failed(ErrorKind::TimedOut, Effect::None);
        assert_eq!(looking(&mut rounds, &["+1 -1 "]), Step::Append { round: 0, entry: Entry::Arrive });
        rounds.done();
        assert_eq!(rounds.next_step(), Step::Gather);
    }

    #[test]
    fn at_most_missing_max_nodes_are_named() {
        let mut rounds = StaticRounds { entered: Some(0), pending: Some(1), ..StaticRounds::new(5, 1 << 40) };
        rounds.begin();
        (rounds.stage, rounds.round) = (Stage::ConfirmingLeave, 1);
        rounds.saw(b"+0 ");
        let Step::Over(Outcome::Short(shortfall)) = rounds.next_step() else { panic!("it is over") };
        assert_eq!((shortfall.arrived, shortfall.missing.len()), (2, MISSING_MAX));
        assert_eq!(shortfall.missing[..5], [1, 2, 3, 4, 6]);
    }

    /// In every order of the steps, and whichever nodes give up meanwhile: no node enters a round that some node did
    /// not join, and no node waits for a complete round.
    #[test]
    fn nodes_agree_on_their_rounds_in_every_order() {
        const NODES: u64 = 3;
        for seed in 0..3000 {
            let mut rng = Rng::new(seed);
            let mut logs: BTreeMap<u64, String> = BTreeMap::new();
            let mut ended: BTreeSet<u64> = BTreeSet::new();
            let mut nodes: Vec<StaticRounds> =
                (0..NODES).map(|rank| StaticRounds::new(rank, NODES)).collect();
            // All nodes join the first round.
            while nodes.iter().any(|node| !matches!(node.next_step(), Step::Over(_))) {
                nodes.iter_mut().for_each(|node| step(node, &mut logs, &mut ended));
            }
            nodes.iter_mut().for_each(StaticRounds::begin);
            for _ in 0..200 {
                let node = &mut nodes[usize::try_from(rng.next_u64() % NODES).expect("few")];
                match node.next_step() {
                    Step::Over(Outcome::Entered { round }) => {
                        let attendance = Attendance::read(logs[&round].as_bytes(), NODES);
                        assert_eq!(attendance.round_state(), RoundState::Whole, "seed {seed}: {logs:?}");
                        node.begin();
                    }
                    Step::Over(_) => node.begin(),
                    _ if rng.next_u64().is_multiple_of(20) => node.failed(ErrorKind::TimedOut, Effect::None),
                    _ => step(node, &mut logs, &mut ended),
                }
            }
            // No node gives up any more: all join the same round, and the next ones.
            let last = logs.keys().max().copied().unwrap_or(0);
            let mut iterations = 0;
            while nodes.iter().any(|node| node.entered < Some(last + 1)) {
                iterations += 1;
                assert!(iterations < 1000, "seed {seed}: they do not meet: {nodes:?} {logs:?}");
                for node in &mut nodes {
                    match node.next_step() {
                        Step::Over(_) if node.entered < Some(last + 1) => node.begin(),
                        _ => step(node, &mut logs, &mut ended),
                    }
                }
            }
        }
    }

    fn step(node: &mut StaticRounds, logs: &mut BTreeMap<u64, String>, ended: &mut BTreeSet<u64>) {
        match node.next_step() {
            Step::Identify { .. } => node.identified(b"5"),
            Step::Read { round } => node.saw(logs.entry(round).or_default().as_bytes()),
            Step::Append { round, entry } => {
                *logs.entry(round).or_default() += &entry.text(node.rank);
                node.done();
            }
            Step::Notify { round } => {
                ended.insert(round);
                node.done();
            }
            Step::CheckIn | Step::CheckOut | Step::KeepClaim => node.done(),
            Step::Gather => node.not_all_yet(),
            Step::Wait { round } if ended.contains(&round) => node.done(),
            Step::Wait { .. } | Step::Over(_) => {}
        }
    }
}
