//! Random choices, all from one seed.

use rendezvous_core::rng::Rng;
use rendezvous_core::time::Duration;

/// Source of random choices. Each actor has its own, so that a change to one does not affect the others.
#[derive(Clone, Debug)]
pub(in crate::sim) struct SimRng(Rng);

impl SimRng {
    /// Returns the source with this number of a seed.
    pub(in crate::sim) fn new(seed: u64, stream: u64) -> Self {
        let mut mix = Rng::new(seed ^ Rng::new(stream).next_u64());
        Self(Rng::new(mix.next_u64()))
    }

    pub(in crate::sim) const fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number from `low` to `high`, both included.
    pub(in crate::sim) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns an index below `length`.
    pub(in crate::sim) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.0.below(length as u64)).unwrap_or(0)
    }

    /// Returns a size from `low` to `high` with a uniform magnitude: small sizes are as likely as large ones.
    pub(in crate::sim) fn size(&mut self, low: usize, high: usize) -> usize {
        let ceiling =
            (low.max(1) << self.index(1 + (high / low.max(1)).max(1).ilog2() as usize)).min(high) * 2;
        (low + self.index(ceiling - low + 1)).min(high)
    }

    pub(in crate::sim) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    pub(in crate::sim) const fn percent(&mut self, chance: u64) -> bool {
        self.0.below(100) < chance
    }

    /// Returns a span from `low` to `high` with a uniform magnitude.
    pub(in crate::sim) fn span(&mut self, low: Duration, high: Duration) -> Duration {
        let mut ceiling = high;
        while ceiling / 2 > low && self.percent(50) {
            ceiling /= 2;
        }
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.between(nanos(low), nanos(ceiling)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_stay_in_their_bounds_and_reach_them() {
        let mut sim_rng = SimRng::new(1, 2);
        let sizes: Vec<usize> = (0..5000).map(|_| sim_rng.size(3, 17)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&3), Some(&17)));
        let low = Duration::from_millis(2);
        let spans: Vec<Duration> = (0..5000).map(|_| sim_rng.span(low, low * 100)).collect();
        assert!(spans.iter().all(|span| (low..=low * 100).contains(span)));
        assert!(spans.iter().any(|span| *span < low * 4) && spans.iter().any(|span| *span > low * 90));
    }
}
