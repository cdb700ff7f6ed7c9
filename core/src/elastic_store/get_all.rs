//! Keys and errors of a data exchange. It ends with a barrier at which every rank confirms that it has read all data,
//! and where only rank 0, which often hosts the store, waits.

use super::barrier::BarrierOptions;
use super::survey::Survey;
use super::{Step, joined};
use crate::error::{OneLine, Span};
use crate::prelude::*;
use crate::store::call::Outcome;
use core::fmt::Write as _;

/// Returns the key of one rank's data: the prefix directly followed by the rank.
pub fn data_key(prefix: &str, rank: i64) -> Box<str> {
    joined(&[prefix, &rank.to_string()])
}

/// Returns the keys of all ranks' data, in order.
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
    pub fn new(prefix: &str, world_size: i64) -> Self {
        Self { prefix: prefix.into(), survey: Survey::new(world_size) }
    }

    /// Returns the next step; `None` when [`DataSearch::lacking`] has the result.
    pub fn next_step(&self) -> Option<Step> {
        let range = self.survey.next()?;
        Some(Step::Check { keys: range.map(|rank| data_key(&self.prefix, rank)).collect() })
    }

    /// Handles the outcome of the step.
    pub fn handle(&mut self, outcome: Outcome) {
        self.survey.answer(outcome == Outcome::Ready);
    }

    /// Returns the ranks that provided no data; `None` if all have by now.
    pub fn lacking(&self) -> Option<Lacking> {
        let ranks = self.survey.missing().to_vec();
        (!ranks.is_empty()).then_some(Lacking::Data { ranks, more: !self.survey.is_complete() })
    }
}

/// Returns the options of the barrier at which the ranks of an exchange under `prefix` confirm that they have read all
/// data. Only rank 0 waits there, for up to `timeout`; the others leave once they have arrived.
pub fn read_confirmation(prefix: &str, world_size: i64, timeout: Duration) -> BarrierOptions {
    BarrierOptions { timeout, ..BarrierOptions::new(world_size, &joined(&[prefix, "/finished"])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_behind_the_prefix() {
        assert_eq!(data_keys("p/", 2), ["p/0".into(), "p/1".into()]);
        assert_eq!(data_key("p", 11), "p11".into());
    }
}
