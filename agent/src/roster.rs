//! Living workers of a start, for an agent that only gets reports about its workers.

use alloc::vec::Vec;

/// The workers of one start. Reports about other starts are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    attempt: u64,
    /// Whether a worker has no reported end, by local rank.
    lives: Vec<bool>,
    /// Whether [`Roster::poll_empty`] is to report the end of all workers.
    is_awaited: bool,
}

impl Roster {
    /// Replaces the workers by those of a new start.
    pub fn start(&mut self, attempt: u64, workers: usize) {
        self.attempt = attempt;
        self.lives.clear();
        self.lives.resize(workers, true);
        self.is_awaited = false;
    }

    /// Returns whether this is a worker of the start that has not ended.
    pub fn has(&self, attempt: u64, local_rank: u32) -> bool {
        let index = usize::try_from(local_rank).unwrap_or(usize::MAX);
        attempt == self.attempt && self.lives.get(index).is_some_and(|lives| *lives)
    }

    /// Records that a worker ended or was not started. Returns whether it is a worker of this start that had not ended
    /// before.
    pub fn end(&mut self, attempt: u64, local_rank: u32) -> bool {
        let has = self.has(attempt, local_rank);
        if has {
            self.lives[local_rank as usize] = false;
        }
        has
    }

    /// Records that all workers are being stopped: [`Roster::poll_empty`] reports when they have ended.
    pub const fn stop(&mut self) {
        self.is_awaited = true;
    }

    /// Returns whether no worker is alive.
    pub fn is_empty(&self) -> bool {
        !self.lives.contains(&true)
    }

    /// Returns true once after each [`Roster::stop`], when no worker is alive any more.
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
    fn the_end_of_all_is_reported_once_after_each_stop() {
        let mut roster = Roster::default();
        assert!(!roster.poll_empty(), "no stop was requested");
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
    fn reports_about_other_workers_are_ignored() {
        let mut roster = Roster::default();
        roster.start(1, 2);
        assert!(!roster.end(0, 0), "of the start before");
        assert!(!roster.end(1, 2), "there is no such worker");
        assert!(roster.end(1, 0) && !roster.end(1, 0), "it ends once");
        assert!(!roster.has(1, 0) && roster.has(1, 1) && !roster.is_empty());
        // The next start has all workers again, and an old stop does not apply to it.
        roster.stop();
        roster.start(2, 1);
        assert!(roster.end(2, 0) && !roster.poll_empty());
    }
}
