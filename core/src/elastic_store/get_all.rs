//! End of a data exchange: every rank announces that it has read all data, and rank 0, which often hosts the store,
//! waits for that.

use super::survey::Survey;
use super::{Step, UnexpectedOutcome, counter_key, joined, last_member_key, owned};
use crate::error::{OneLine, Span};
use crate::store::call::Outcome;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write as _;

/// Returns the key of one rank's data: the prefix directly followed by the rank.
#[must_use]
pub fn data_key(prefix: &str, rank: i64) -> Box<str> {
    joined(&[prefix, &rank.to_string()])
}

/// Returns the keys of all ranks' data, in order.
#[must_use]
pub fn data_keys(prefix: &str, world_size: i64) -> Vec<Box<str>> {
    (0..world_size).map(|rank| data_key(prefix, rank)).collect()
}

/// Timeout of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeTimeout {
    /// Key prefix of the exchange.
    pub prefix: Box<str>,
    /// Address of the store.
    pub peer: Box<str>,
    /// The rank that waited.
    pub rank: i64,
    /// Number of ranks.
    pub world_size: i64,
    /// Timeout of the wait for the others.
    pub timeout: Duration,
    /// What is missing from the other ranks.
    pub lacking: Lacking,
}

/// What is missing from the ranks of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// These ranks provided no data. If `more`, there may be others.
    Data {
        /// The ranks, in order.
        ranks: Vec<i64>,
        /// Whether the search stopped before it had checked all ranks.
        more: bool,
    },
    /// This number of ranks have not read all data. The keys do not tell which ranks.
    Reading(i64),
}

impl fmt::Display for ExchangeTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, peer, rank, world_size, timeout, lacking } = self;
        let f = &mut OneLine(f);
        let timeout = Span(*timeout);
        write!(f, "the exchange under \"{prefix}\" at {peer} timed out after {timeout} on rank {rank}: ")?;
        match lacking {
            Lacking::Data { ranks, more } => {
                let at_least = if *more { "at least " } else { "" };
                write!(f, "{at_least}{} of {world_size} ranks gave no data: ", ranks.len())?;
                for (index, rank) in ranks.iter().enumerate() {
                    write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
                }
                if *more { f.write_str(", ...") } else { Ok(()) }
            }
            Lacking::Reading(count) => {
                write!(f, "{count} of {world_size} ranks did not read the data of all")
            }
        }
    }
}

impl core::error::Error for ExchangeTimeout {}

/// Search for the ranks that provided no data.
#[derive(Clone, Debug)]
pub struct DataSearch {
    prefix: Box<str>,
    survey: Survey,
}

impl DataSearch {
    /// Creates the search in an exchange of `world_size` ranks under `prefix`.
    #[must_use]
    pub fn new(prefix: &str, world_size: i64) -> Self {
        Self { prefix: owned(prefix), survey: Survey::new(world_size) }
    }

    /// Returns the next step; `None` when [`DataSearch::lacking`] has the result.
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        let range = self.survey.next()?;
        Some(Step::Check { keys: range.map(|rank| data_key(&self.prefix, rank)).collect() })
    }

    /// Handles the outcome of the step.
    pub fn handle(&mut self, outcome: Outcome) {
        self.survey.answer(outcome == Outcome::Ready);
    }

    /// Returns the ranks that provided no data; `None` if all have by now.
    #[must_use]
    pub fn lacking(&self) -> Option<Lacking> {
        let ranks = self.survey.missing().to_vec();
        (!ranks.is_empty()).then_some(Lacking::Data { ranks, more: !self.survey.is_complete() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchState {
    Counting,
    Announcing,
    Waiting { until: Instant },
    Done,
}

/// Steps of a rank after it has read all data.
#[derive(Clone, Debug)]
pub struct ReadConfirmation {
    prefix: Box<str>,
    rank: i64,
    world_size: i64,
    timeout: Duration,
    state: SearchState,
}

impl ReadConfirmation {
    /// Creates the steps of `rank` in an exchange under `prefix`; rank 0 waits `timeout` for the others.
    #[must_use]
    pub fn new(prefix: &str, rank: i64, world_size: i64, timeout: Duration) -> Self {
        let prefix = joined(&[&owned(prefix), "/finished"]);
        Self { prefix, rank, world_size, timeout, state: SearchState::Counting }
    }

    /// Returns the next step; `None` when this rank may leave.
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        match self.state {
            SearchState::Counting => Some(Step::Add { key: counter_key(&self.prefix), delta: 1 }),
            SearchState::Announcing => Some(Step::Mark { key: last_member_key(&self.prefix) }),
            SearchState::Waiting { until } => Some(Step::Wait { key: last_member_key(&self.prefix), until }),
            SearchState::Done => None,
        }
    }

    /// Returns the step that counts the ranks that have read all data, for use after a timeout. The outcome is
    /// their number.
    #[must_use]
    pub fn count_step(&self) -> Step {
        Step::Add { key: counter_key(&self.prefix), delta: 0 }
    }

    /// Handles the outcome of the step. The caller handles a wait that times out as an error.
    ///
    /// # Errors
    /// The outcome does not belong to that step.
    pub fn handle(&mut self, now: Instant, outcome: Outcome) -> Result<(), UnexpectedOutcome> {
        self.state = match (self.state, outcome) {
            (SearchState::Counting, Outcome::Number(count)) if count >= self.world_size => {
                SearchState::Announcing
            }
            (SearchState::Counting, Outcome::Number(_)) if self.rank == 0 => {
                SearchState::Waiting { until: now + self.timeout }
            }
            (SearchState::Counting, Outcome::Number(_))
            | (SearchState::Announcing, Outcome::Applied)
            | (SearchState::Waiting { .. }, Outcome::Released) => SearchState::Done,
            (_, outcome) => return Err(UnexpectedOutcome { step: self.next_step(), outcome }),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(5);

    fn steps(rank: i64, outcomes: &[Outcome]) -> Vec<Option<Step>> {
        let mut confirmation = ReadConfirmation::new("data/", rank, 3, Duration::from_millis(7));
        let mut steps = alloc::vec![confirmation.next_step()];
        for &outcome in outcomes {
            confirmation.handle(NOW, outcome).expect("belongs to the step");
            steps.push(confirmation.next_step());
        }
        steps
    }

    #[test]
    fn rank_zero_leaves_last() {
        let add = Some(Step::Add { key: "data//finished/num_members".into(), delta: 1 });
        let mark = Some(Step::Mark { key: "data//finished/last_member".into() });
        let until = Instant::from_millis(12);
        let wait = Some(Step::Wait { key: "data//finished/last_member".into(), until });
        let (first, last) = (Outcome::Number(1), Outcome::Number(3));
        assert_eq!(steps(1, &[first]), [add.clone(), None]);
        assert_eq!(steps(1, &[last, Outcome::Applied]), [add.clone(), mark.clone(), None]);
        assert_eq!(steps(0, &[first, Outcome::Released]), [add.clone(), wait, None]);
        assert_eq!(steps(0, &[last, Outcome::Applied]), [add, mark, None]);
    }

    #[test]
    fn outcomes_of_other_steps_are_refused() {
        let mut confirmation = ReadConfirmation::new("data", 0, 3, Duration::ZERO);
        let error = confirmation.handle(NOW, Outcome::Applied).expect_err("a number was due");
        assert_eq!(error.step, confirmation.next_step());
        confirmation.handle(NOW, Outcome::Number(1)).expect("fits");
        confirmation.handle(NOW, Outcome::Missing).expect_err("the caller's error");
    }

    #[test]
    fn numbers_stand_right_behind_the_prefix() {
        assert_eq!(data_keys("p/", 2), ["p/0".into(), "p/1".into()]);
        assert_eq!(data_key("p", 11), "p11".into());
    }
}
