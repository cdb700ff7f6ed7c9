//! Search for the ranks without a mark, with few requests: it checks whole ranges, and halves a range with a
//! missing mark.

use crate::prelude::*;
use core::ops::Range;

/// Maximum number of missing ranks to find: enough to see whether one host or several are missing.
pub(super) const MISSING_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// Ranges still to be checked, the lowest ranks last.
    open: Vec<Range<i64>>,
    missing: Vec<i64>,
}

impl Survey {
    /// Creates a survey of the ranks from 0 to below `world_size`. Rank 0 is checked first, on its own.
    pub(super) fn new(world_size: i64) -> Self {
        let mut open = vec![];
        if world_size > 1 {
            open.push(1..world_size);
        }
        open.push(0..1);
        Self { open, missing: Vec::new() }
    }

    /// Returns the range to check next; `None` when the survey is complete or has found enough ranks.
    pub(super) fn next(&self) -> Option<Range<i64>> {
        self.open.last().filter(|_| self.missing.len() < MISSING_MAX).cloned()
    }

    /// Handles the result of a check: whether all ranks of the range have left their marks.
    pub(super) fn answer(&mut self, all_there: bool) {
        let Some(range) = self.open.pop() else { return };
        let middle = range.start + (range.end - range.start) / 2;
        match range.end - range.start {
            _ if all_there => {}
            1 => self.missing.push(range.start),
            _ => self.open.extend([middle..range.end, range.start..middle]),
        }
    }

    /// Returns whether every rank was checked.
    pub(super) fn is_complete(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the ranks without a mark, in order.
    pub(super) fn missing(&self) -> &[i64] {
        &self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(world_size: i64, absent: &[i64]) -> (Vec<i64>, bool, usize) {
        let mut survey = Survey::new(world_size);
        let mut questions = 0;
        while let Some(range) = survey.next() {
            questions += 1;
            survey.answer(!absent.iter().any(|rank| range.contains(rank)));
        }
        (survey.missing().to_vec(), survey.is_complete(), questions)
    }

    #[test]
    fn the_missing_are_found_in_order() {
        for (world_size, absent, questions) in [
            (1, &[][..], 1),
            (1, &[0], 1),
            (2, &[], 2),
            (2, &[1], 2),
            (5, &[2, 4], 8),
            (1000, &[0], 2),
            (1000, &[617], 22),
        ] {
            let (missing, is_complete, count) = survey(world_size, absent);
            assert_eq!((missing.as_slice(), is_complete, count), (absent, true, questions), "{world_size}");
        }
    }

    #[test]
    fn it_stops_when_enough_are_found() {
        let absent: Vec<i64> = (3..1000).collect();
        let (missing, is_complete, count) = survey(1000, &absent);
        assert_eq!(missing, (3..19).collect::<Vec<_>>());
        assert!(!is_complete && count < 60, "{count}");
        let sixteen: Vec<i64> = (984..1000).collect();
        assert_eq!(survey(1000, &sixteen).0, sixteen);
    }
}
