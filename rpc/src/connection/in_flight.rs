//! Pending calls of a connection by their numbers, the sum of their bytes, and their deadlines. Both ends use it.

use alloc::collections::BTreeMap;
use rendezvous_core::ordered::Set;
use rendezvous_core::prelude::*;

#[derive(Debug)]
pub(crate) struct InFlight<C> {
    // Each call looks for its entry several times: a map of `ordered` makes 64 calls at a time 5 % slower.
    calls: BTreeMap<u64, Entry<C>>,
    deadlines: Set<(Instant, u64)>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry<C> {
    payload_bytes: u64,
    deadline: Option<Instant>,
    call: C,
}

impl<C> InFlight<C> {
    pub(crate) const fn new() -> Self {
        Self { calls: BTreeMap::new(), deadlines: Set::new(), bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the sum of the bytes with this many more.
    pub(crate) const fn bytes_with(&self, payload_bytes: u64) -> u64 {
        self.bytes.saturating_add(payload_bytes)
    }

    pub(crate) fn insert(&mut self, id: u64, payload_bytes: u64, deadline: Option<Instant>, call: C) {
        self.bytes = self.bytes_with(payload_bytes);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
        self.calls.insert(id, Entry { payload_bytes, deadline, call });
    }

    /// Returns the call with the lowest number.
    pub(crate) fn first(&self) -> Option<(u64, &C)> {
        self.calls.first_key_value().map(|(&id, entry)| (id, &entry.call))
    }

    pub(crate) fn get(&self, id: u64) -> Option<&C> {
        self.calls.get(&id).map(|entry| &entry.call)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut C> {
        self.calls.get_mut(&id).map(|entry| &mut entry.call)
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<C> {
        let Entry { payload_bytes, deadline, call } = self.calls.remove(&id)?;
        self.bytes = self.bytes.saturating_sub(payload_bytes);
        if let Some(deadline) = deadline {
            self.deadlines.remove((deadline, id));
        }
        Some(call)
    }

    /// Removes a call whose deadline has passed.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Option<(u64, C)> {
        let (_, id) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.take(id).map(|call| (id, call))
    }

    /// Returns the call with the first deadline, and that deadline.
    pub(crate) fn first_due(&self) -> Option<(Instant, &C)> {
        let (at, id) = self.deadlines.first()?;
        self.get(id).map(|call| (at, call))
    }

    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at)
    }

    pub(crate) fn ids_of(&self, is_it: impl Fn(&C) -> bool) -> Vec<u64> {
        self.calls.iter().filter(|(_, entry)| is_it(&entry.call)).map(|(&id, _)| id).collect()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.calls.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_deadlines_go_with_their_calls() {
        let at = Instant::from_millis;
        let mut calls = InFlight::new();
        calls.insert(1, u64::MAX, Some(at(5)), 'a');
        calls.insert(2, 7, Some(at(3)), 'b');
        calls.insert(3, 0, None, 'c');
        assert_eq!((calls.bytes_with(0), calls.first_deadline(), calls.len()), (u64::MAX, Some(at(3)), 3));
        assert_eq!(calls.take_overdue(at(2)), None);
        assert_eq!(calls.take_overdue(at(9)), Some((2, 'b')));
        assert_eq!(calls.take_overdue(at(9)), Some((1, 'a')));
        assert_eq!(calls.take_overdue(at(9)), None);
        assert_eq!((calls.take(1), calls.bytes_with(0), calls.first_deadline()), (None, 0, None));
        assert_eq!((calls.ids(), calls.get(3), calls.is_empty()), (alloc::vec![3], Some(&'c'), false));
    }
}
