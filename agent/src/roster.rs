//! Who of a start may still live, for an agent that is only told of its workers.

use alloc::vec::Vec;

/// The workers of one start. Whatever is told of another start is not about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    attempt: u64,
    /// By local rank: whether nothing was heard of its end.
    lives: Vec<bool>,
    /// Somebody waits to hear that nobody lives.
    is_awaited: bool,
}

impl Roster {
    /// So many workers are to be started. Those of the start before are forgotten.
    pub fn start(&mut self, attempt: u64, workers: usize) {
        self.attempt = attempt;
        self.lives.clear();
        self.lives.resize(workers, true);
        self.is_awaited = false;
    }

    /// Whether this is a worker of the start that has not ended.
    #[must_use]
    pub fn has(&self, attempt: u64, local_rank: u32) -> bool {
        let index = usize::try_from(local_rank).unwrap_or(usize::MAX);
        attempt == self.attempt && self.lives.get(index).is_some_and(|lives| *lives)
    }

    /// A worker ended, or was not started; whether it is one of these, and had not ended before.
    pub fn end(&mut self, attempt: u64, local_rank: u32) -> bool {
        let has = self.has(attempt, local_rank);
        if has {
            self.lives[local_rank as usize] = false;
        }
        has
    }

    /// All are to end: [`Roster::poll_empty`] tells when they have.
    pub const fn stop(&mut self) {
        self.is_awaited = true;
    }

    /// Whether anybody may live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.lives.contains(&true)
    }

    /// Whether nobody lives any more; told once after each [`Roster::stop`].
    pub fn poll_empty(&mut self) -> bool {
        let is_empty = self.is_awaited && self.is_empty();
        self.is_awaited &= !is_empty;
        is_empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_all_is_told_once_after_each_stop() {
        let mut roster = Roster::default();
        assert!(!roster.poll_empty(), "nobody asked");
        roster.stop();
        assert!(roster.poll_empty() && !roster.poll_empty());
        roster.start(3, 2);
        roster.stop();
        assert!(roster.end(3, 1) && !roster.poll_empty());
        assert!(roster.has(3, 0) && roster.end(3, 0));
        assert!(roster.poll_empty() && !roster.poll_empty());
        roster.stop();
        assert!(roster.poll_empty());
    }

    #[test]
    fn what_is_told_of_others_counts_for_nothing() {
        let mut roster = Roster::default();
        roster.start(1, 2);
        assert!(!roster.end(0, 0), "of the start before");
        assert!(!roster.end(1, 2), "there is no such worker");
        assert!(roster.end(1, 0) && !roster.end(1, 0), "it ends once");
        assert!(!roster.has(1, 0) && roster.has(1, 1) && !roster.is_empty());
        // The next start has them all anew, and an old stop is not about them.
        roster.stop();
        roster.start(2, 1);
        assert!(roster.end(2, 0) && !roster.poll_empty());
    }
}
