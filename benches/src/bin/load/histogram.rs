//! Many times in little memory.

use std::time::Duration;

/// A time is known to this many digits.
const DIGITS: u8 = 3;

/// Counts times in buckets whose width grows with the time.
#[derive(Clone, Debug)]
pub(super) struct Histogram(hdrhistogram::Histogram<u64>);

impl Histogram {
    pub(super) fn new() -> Self {
        Self(hdrhistogram::Histogram::new(DIGITS).expect("at most five digits"))
    }

    pub(super) fn record(&mut self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(ns).expect("it grows");
    }

    /// Returns the time that this share of the times does not exceed; zero when there are none.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for ns in (1..=100).rev() {
            histogram.record(Duration::from_nanos(ns));
        }
        for (share, ns) in [(0.0, 1), (0.01, 1), (0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100)] {
            assert_eq!(histogram.quantile(share), Duration::from_nanos(ns), "{share}");
        }
        let hour = Duration::from_secs(3600);
        histogram.record(hour);
        assert!((hour..hour.mul_f64(1.001)).contains(&histogram.quantile(1.0)), "{histogram:?}");
    }
}
