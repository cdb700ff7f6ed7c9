//! Finds the ranks that left no mark, with few questions: whole ranges are asked for, and halved where one is missing.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// How many missing ranks are named: enough to see whether it is one host or several.
pub(super) const MISSING_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// What is still to be asked, the lowest ranks last.
    open: Vec<Range<i64>>,
    missing: Vec<i64>,
}

impl Survey {
    /// Of ranks 0 to `world_size`; 0 is asked for on its own, and first.
    pub(super) fn new(world_size: i64) -> Self {
        let mut open = vec![];
        if world_size > 1 {
            open.push(1..world_size);
        }
        open.push(0..1);
        Self { open, missing: Vec::new() }
    }

    /// The ranks to ask for; `None`: nothing more is to be found, or enough is.
    pub(super) fn next(&self) -> Option<Range<i64>> {
        self.open.last().filter(|_| self.missing.len() < MISSING_MAX).cloned()
    }

    /// Whether all of the ranks that were asked for left their marks.
    pub(super) fn answer(&mut self, all_there: bool) {
        let Some(range) = self.open.pop() else { return };
        let middle = range.start + (range.end - range.start) / 2;
        match range.end - range.start {
            _ if all_there => {}
            1 => self.missing.push(range.start),
            _ => self.open.extend([middle..range.end, range.start..middle]),
        }
    }

    /// Whether every rank was looked at.
    pub(super) fn is_complete(&self) -> bool {
        self.open.is_empty()
    }

    /// The ranks without a mark, in order.
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
            let (missing, is_complete, range) = survey(world_size, absent);
            assert_eq!((missing.as_slice(), is_complete, range), (absent, true, questions), "{world_size}");
        }
    }

    #[test]
    fn it_stops_when_enough_are_found() {
        let absent: Vec<i64> = (3..1000).collect();
        let (missing, is_complete, range) = survey(1000, &absent);
        assert_eq!(missing, (3..19).collect::<Vec<_>>());
        assert!(!is_complete && range < 60, "{range}");
        let sixteen: Vec<i64> = (984..1000).collect();
        assert_eq!(survey(1000, &sixteen).0, sixteen);
    }
}
