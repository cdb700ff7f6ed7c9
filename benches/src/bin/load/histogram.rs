//! Many times in little memory.

use std::time::Duration;

/// Buckets of one power of two: a time is known to 1 in 256.
const STEPS: u64 = 256;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();

/// Counts times in buckets whose width grows with the time.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max_ns: u64,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { counts: vec![0; bucket_of(u64::MAX) + 1].into(), total: 0, max_ns: 0 }
    }

    pub(super) fn record(&mut self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The time that so many of a thousand do not exceed; zero when there are none.
    pub(super) fn per_mille(&self, share: u64) -> Duration {
        let rank = (self.total * share).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(last_of(bucket).min(self.max_ns));
            }
        }
        Duration::ZERO
    }

    pub(super) const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
}

fn bucket_of(ns: u64) -> usize {
    let shift = (u64::BITS - STEPS_LOG2 - 1).saturating_sub(ns.leading_zeros());
    let bucket = u64::from(shift) * STEPS + (ns >> shift);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

/// The longest time of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / STEPS).saturating_sub(1);
    let first = bucket - shift * STEPS;
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_a_bucket_that_is_as_long_and_hardly_longer() {
        let mut ns = 1_u64;
        while ns < u64::MAX / 3 {
            for ns in [ns - 1, ns, ns + 1] {
                let last = last_of(bucket_of(ns));
                assert!(last >= ns && last - ns <= ns / STEPS, "{ns} becomes {last}");
            }
            ns = ns * 5 / 2 + 1;
        }
        assert_eq!(last_of(bucket_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn buckets_are_in_order_and_have_no_gap() {
        for bucket in 0..bucket_of(u64::MAX) {
            assert_eq!(bucket_of(last_of(bucket)), bucket);
            assert_eq!(bucket_of(last_of(bucket) + 1), bucket + 1);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.per_mille(500), Duration::ZERO);
        for ns in (1..=100).rev() {
            histogram.record(Duration::from_nanos(ns));
        }
        for (share, ns) in [(0, 1), (10, 1), (500, 50), (900, 90), (990, 99), (1000, 100)] {
            assert_eq!(histogram.per_mille(share), Duration::from_nanos(ns), "{share}");
        }
        assert_eq!(histogram.max(), Duration::from_nanos(100));
    }
}
