//! Decisions drawn from bytes, so that a fuzzer controls them and a seed repeats them.

use rendezvous_core::rng::Rng;

/// Source of decisions. When the bytes are used up, every draw is 0 and [`Entropy::is_empty`] returns true.
#[derive(Clone, Copy, Debug)]
pub struct Entropy<'a>(&'a [u8]);

impl<'a> Entropy<'a> {
    /// Creates a source from these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether all bytes are used up.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// Returns one of these.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns up to `most` bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = self.below(most + 1).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}

/// Returns `length` bytes that follow from a seed.
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let message = core::iter::repeat_with(|| rng.next_u64().to_le_bytes());
    message.flatten().take(length).collect()
}
