//! Fences: keys that can no longer be changed, because their round has ended.

use super::prefixes::{Lookup, NodeId, Prefixes};
use crate::ordered::Index;

/// Attempt to change a fenced key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Round number in the key.
    pub round: u64,
    /// Highest round that has ended; all rounds up to it are fenced.
    pub over: u64,
}

/// Families of prefixes: a stem, a number, a slash. In each family, the numbers up to a maximum are fenced.
#[derive(Debug, Default)]
pub(super) struct Fences {
    stems: Prefixes,
    /// The maximum of each stem.
    over: Index<NodeId, u64>,
}

impl Fences {
    pub(super) fn raise(&mut self, stem: &[u8], number: u64) {
        let id = self.stems.find(stem).unwrap_or_else(|| {
            let id = self.stems.insert(stem);
            self.stems.activate(id);
            id
        });
        let over = self.over.get(id).unwrap_or(0);
        self.over.insert(id, number.max(over));
    }

    pub(super) fn lift(&mut self, stem: &[u8]) {
        if let Some(id) = self.stems.find(stem) {
            self.over.remove(id);
            self.stems.deactivate(id);
            self.stems.remove(id);
        }
    }

    /// Returns the fence that covers `key`, if any.
    pub(super) fn find(&self, key: &[u8]) -> Option<Stale> {
        let mut lookup = Lookup::new(key);
        while let Some(id) = self.stems.next(&mut lookup) {
            if let (Some(round), Some(over)) = (number(lookup.rest), self.over.get(id))
                && round <= over
            {
                return Some(Stale { round, over });
            }
        }
        None
    }

    /// Returns the work of all calls since the last one.
    pub(super) fn take_work(&self) -> u64 {
        self.stems.take_work()
    }
}

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Parses the number before the first slash, which must be in canonical form, without leading zeros.
fn number(text: &[u8]) -> Option<u64> {
    let end = text.iter().take(DIGITS_MAX + 1).position(|&byte| byte == b'/')?;
    let digits = core::str::from_utf8(&text[..end]).ok()?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_covers_the_keys_of_its_numbers_and_no_others() {
        let mut fences = Fences::default();
        fences.raise(b"/r.a.", 3);
        fences.raise(b"/r.a.", 2);
        fences.raise(b"/r.job/x.", 0);
        for (key, round) in [("/r.a.0/k", 0), ("/r.a.3/", 3), ("/r.a.2/a/b", 2), ("/r.job/x.0/k", 0)] {
            assert_eq!(fences.find(key.as_bytes()).map(|stale| stale.round), Some(round), "{key}");
        }
        for key in [
            "/r.a.4/k",
            "/r.a.3",
            "/r.a.30/k",
            "/r.a.03/k",
            "/r.a./k",
            "/r.a.+1/k",
            "/r.b.0/k",
            "",
            "/r.job/x.1/k",
        ] {
            assert_eq!(fences.find(key.as_bytes()), None, "{key}");
        }
        assert_eq!(fences.find(b"/r.a.1/k"), Some(Stale { round: 1, over: 3 }));
    }

    #[test]
    fn a_fence_that_is_lifted_leaves_the_others() {
        let mut fences = Fences::default();
        for stem in [&b"/r.a."[..], b"/r.b.", b"/r.job."] {
            fences.raise(stem, 1);
        }
        for (stem, left) in [(&b"/r.b."[..], 2), (b"/r.b.", 2), (b"/r.job.", 1), (b"/r.a.", 0)] {
            fences.lift(stem);
            let held = [&b"/r.a.1/k"[..], b"/r.b.1/k", b"/r.job.1/k"];
            assert_eq!(held.iter().filter(|key| fences.find(key).is_some()).count(), left);
        }
        assert!(fences.over.is_empty());
    }

    #[test]
    fn stems_may_be_prefixes_of_each_other() {
        let mut fences = Fences::default();
        fences.raise(b"/r.a.", 3);
        fences.raise(b"/r.a.1/b.", 5);
        for (key, stale) in
            [("/r.a.1/b.9/k", Some((1, 3))), ("/r.a.1/b.5/k", Some((1, 3))), ("/r.a.7/b.5/k", None)]
        {
            let stale = stale.map(|(round, over)| Stale { round, over });
            assert_eq!(fences.find(key.as_bytes()), stale, "{key}");
        }
        fences.lift(b"/r.a.");
        assert_eq!(fences.find(b"/r.a.1/b.9/k"), None);
        assert_eq!(fences.find(b"/r.a.1/b.5/k"), Some(Stale { round: 5, over: 5 }));
    }

    /// Runs whose ids have all lengths do not slow the writes of keys that have nothing to do with them.
    #[test]
    fn a_lookup_does_not_look_for_each_length() {
        let mut fences = Fences::default();
        for length in 1..=1024 {
            fences.raise(&[b"/r.", &[b'x'; 1024][..length], b"."].concat(), 1);
        }
        fences.take_work();
        let key = [b"/r.y", &[b'x'; 2000][..]].concat();
        (0..8).for_each(|_| assert_eq!(fences.find(&key), None));
        assert_eq!(fences.take_work(), 2, "two nodes for each");
        // At worst as many as the key has bytes.
        let key = [b"/r.", &[b'x'; 1024][..], b".1/k"].concat();
        assert_eq!(fences.find(&key), Some(Stale { round: 1, over: 1 }));
        assert!(fences.take_work() <= key.len() as u64 / 8 + 1);
    }

    #[test]
    fn a_number_is_found_without_a_look_at_the_whole_key() {
        assert_eq!(number(b"18446744073709551615/x"), Some(u64::MAX));
        assert_eq!(number(b"118446744073709551615/x"), None);
        assert_eq!(number(&[b'1'; 100_000]), None);
    }
}
