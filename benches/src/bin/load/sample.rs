//! What repetitions took, and the middle of many.

use std::time::Duration;

/// What a repetition did.
pub(super) struct Done {
    /// From begin to end.
    pub(super) time: Duration,
    /// Of one unit of the work, where that is not the time divided by their number.
    pub(super) unit_ns: Option<f64>,
    /// Units of the work.
    pub(super) units: usize,
    /// What the server's CPU time is divided by; 0 when it was not spent on the work alone.
    pub(super) cpu_units: usize,
}

/// What one repetition on one target took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Of one unit of the work.
    pub(super) time_ns: f64,
    /// Units in a second.
    pub(super) per_second: f64,
    /// The server's, where it is known.
    pub(super) cpu_ns: Option<f64>,
}

/// The middle one, or what lies between the two in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median([4.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
