//! Fences: keys that can no longer be changed, because their round has ended.

use crate::ordered::{Index, Named};

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
    over: Named<u64>,
    /// Lengths of the stems, with the number of stems of each length, so that a lookup tries no other lengths.
    lengths: Index<usize, usize>,
}

impl Fences {
    pub(super) fn raise(&mut self, stem: &[u8], number: u64) {
        if !self.over.contains(stem) {
            let count = self.lengths.get(stem.len()).unwrap_or(0);
            self.lengths.insert(stem.len(), count + 1);
        }
        let over = self.over.entry(stem, || number);
        *over = number.max(*over);
    }

    pub(super) fn lift(&mut self, stem: &[u8]) {
        if self.over.remove(stem).is_none() {
            return;
        }
        match self.lengths.get(stem.len()) {
            Some(count) if count > 1 => self.lengths.insert(stem.len(), count - 1),
            _ => self.lengths.remove(stem.len()),
        };
    }

    /// Returns the fence that covers `key`, if any.
    pub(super) fn find(&self, key: &[u8]) -> Option<Stale> {
        self.lengths.iter().find_map(|(length, _)| {
            let (stem, rest) = key.split_at_checked(length)?;
            let &over = self.over.get(stem)?;
            number(rest).filter(|&round| round <= over).map(|round| Stale { round, over })
        })
    }
}

/// Parses the number before the first slash, which must be in canonical form, without leading zeros.
fn number(text: &[u8]) -> Option<u64> {
    let end = text.iter().position(|&byte| byte == b'/')?;
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
    fn a_fence_that_is_lifted_leaves_those_of_the_same_length() {
        let mut fences = Fences::default();
        for stem in [&b"/r.a."[..], b"/r.b.", b"/r.job."] {
            fences.raise(stem, 1);
        }
        for (stem, left) in [(&b"/r.b."[..], 2), (b"/r.b.", 2), (b"/r.job.", 1), (b"/r.a.", 0)] {
            fences.lift(stem);
            let held = [&b"/r.a.1/k"[..], b"/r.b.1/k", b"/r.job.1/k"];
            assert_eq!(held.iter().filter(|key| fences.find(key).is_some()).count(), left);
        }
        assert!(fences.lengths.is_empty());
    }
}
