//! Map from call numbers to values. Numbers grow, and calls end in about the order in which they began. So a sorted
//! deque is fast at both ends, and needs no allocation for each call.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Map from increasing numbers to entries.
#[derive(Debug)]
pub struct ByNumber<C>(VecDeque<(u64, C)>);

/// Capacity that an empty map keeps, in entries.
const CAPACITY_KEPT: usize = 2048;

impl<C> Default for ByNumber<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> ByNumber<C> {
    /// Creates an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn search(&self, number: u64) -> Result<usize, usize> {
        match self.0.back() {
            Some(&(last, _)) if last >= number => self.0.binary_search_by_key(&number, |&(known, _)| known),
            _ => Err(self.0.len()),
        }
    }

    /// Returns the entry with the lowest number.
    #[must_use]
    pub fn first(&self) -> Option<(u64, &C)> {
        self.0.front().map(|(number, entry)| (*number, entry))
    }

    /// Returns the entry with this number.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&C> {
        let index = self.search(number).ok()?;
        self.0.get(index).map(|(_, entry)| entry)
    }

    /// Returns the entry with this number for modification.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut C> {
        let index = self.search(number).ok()?;
        self.0.get_mut(index).map(|(_, entry)| entry)
    }

    /// Inserts an entry and returns the previous one of this number.
    pub fn insert(&mut self, number: u64, entry: C) -> Option<C> {
        match self.search(number) {
            Ok(index) => self.0.get_mut(index).map(|(_, old)| core::mem::replace(old, entry)),
            Err(index) => {
                self.0.insert(index, (number, entry));
                None
            }
        }
    }

    /// Removes the entry with this number.
    pub fn remove(&mut self, number: u64) -> Option<C> {
        let index = self.search(number).ok()?;
        let (_, entry) = self.0.remove(index)?;
        if self.0.is_empty() && self.0.capacity() > CAPACITY_KEPT {
            self.0 = VecDeque::new();
        }
        Some(entry)
    }

    /// Returns all numbers in ascending order.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.0.iter().map(|&(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use rendezvous_core::rng::Rng;

    #[test]
    fn it_is_as_a_tree_is() {
        let (mut list, mut tree, mut rng) = (ByNumber::new(), BTreeMap::new(), Rng::new(1));
        for step in 0..4000_u64 {
            let number = if step % 2 == 0 { step } else { rng.below(step + 1) };
            if rng.below(5) < 2 {
                assert_eq!(list.insert(number, step), tree.insert(number, step));
            } else {
                assert_eq!(list.remove(number), tree.remove(&number));
            }
            let request = rng.below(step + 1);
            assert_eq!(list.get(request), tree.get(&request));
            assert_eq!(list.get_mut(number), tree.get_mut(&number));
            assert_eq!(list.first(), tree.first_key_value().map(|(number, entry)| (*number, entry)));
            assert_eq!((list.len(), list.is_empty()), (tree.len(), tree.is_empty()));
        }
        assert!(list.numbers().into_iter().eq(tree.into_keys()));
    }

    #[test]
    fn a_list_that_was_long_gives_its_memory_back() {
        let mut list = ByNumber::new();
        (0..100_000_u64).for_each(|number| assert_eq!(list.insert(number, number), None));
        (0..100_000).for_each(|number| assert_eq!(list.remove(number), Some(number)));
        assert_eq!(list.0.capacity(), 0);
    }
}
