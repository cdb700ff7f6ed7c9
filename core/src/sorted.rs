//! Sorting with little machine code, for what is not on the way of a request: a map that is a sorted list, and a sort
//! (docs/adr/0012-size-of-maps.md).

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::fmt;

/// Sorts `items`, for which `is_less` gives the order; equal ones come in any order.
///
/// A heap sort has a tenth of the code of the sort of the standard library, which exists for each type and order.
pub fn sort_by<T>(items: &mut [T], is_less: impl Fn(&T, &T) -> bool) {
    let len = items.len();
    // The first third of the iterations builds the heap; each of the others takes its largest item.
    for step in (0..len + len / 2).rev() {
        let (mut parent, end) = match step.checked_sub(len) {
            Some(parent) => (parent, len),
            None => {
                items.swap(0, step);
                (0, step)
            }
        };
        loop {
            let mut child = 2 * parent + 1;
            if child + 1 < end && is_less(&items[child], &items[child + 1]) {
                child += 1;
            }
            if child >= end || !is_less(&items[parent], &items[child]) {
                break;
            }
            items.swap(parent, child);
            parent = child;
        }
    }
}

/// Map whose entries are in a list, in the order of their keys.
///
/// An insertion moves all entries with larger keys, so it is for maps with at most some hundred entries, or maps that
/// are filled in the order of their keys. One pair of types takes less than a kilobyte of code, and a tree of the
/// standard library seven. [`ordered`](crate::ordered) has maps for any number of entries.
#[derive(Clone, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> SortedMap<K, V> {
    /// Creates an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the entry with the first key.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.0.first().map(|(key, value)| (key, value))
    }

    /// Returns the entries in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + DoubleEndedIterator + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the entries in the order of their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(at, _)| at.borrow().cmp(key))
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.position(key).ok().and_then(|index| self.0.get(index)).map(|(_, value)| value)
    }

    /// Returns the value of a key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.position(key).ok().and_then(|index| self.0.get_mut(index)).map(|(_, value)| value)
    }

    /// Returns whether there is an entry for a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.position(key).is_ok()
    }

    /// Inserts an entry, and returns the value that it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position(&key) {
            Ok(index) => Some(core::mem::replace(&mut self.0[index].1, value)),
            Err(index) => {
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// Removes an entry, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.position(key).ok().map(|index| self.0.remove(index).1)
    }

    /// Returns the value of a key; inserts `fresh()` if there is none.
    pub fn entry(&mut self, key: K, fresh: impl FnOnce() -> V) -> &mut V {
        let index = match self.position(&key) {
            Ok(index) => index,
            Err(index) => {
                self.0.insert(index, (key, fresh()));
                index
            }
        };
        &mut self.0[index].1
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = alloc::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn items_are_sorted() {
        for len in 0..40_u64 {
            let mut items: Vec<u64> = (0..len).map(|number| number * 7 % 31).collect();
            let mut expected = items.clone();
            expected.sort_unstable();
            sort_by(&mut items, |a, b| a < b);
            assert_eq!(items, expected);
        }
    }

    #[test]
    fn map_is_as_a_tree_is() {
        let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
        // Multiples of 7 take every remainder modulo 32.
        for step in 0..500_u64 {
            let key = step * 7 % 32;
            match step % 4 {
                0 => assert_eq!(map.remove(&key), tree.remove(&key)),
                1 => assert_eq!(map.entry(key, || step), tree.entry(key).or_insert(step)),
                _ => assert_eq!(map.insert(key, step), tree.insert(key, step)),
            }
            assert_eq!(map.get(&key), tree.get(&key));
            assert_eq!(map.get_mut(&key), tree.get_mut(&key));
            assert_eq!((map.contains_key(&key), map.len()), (tree.contains_key(&key), tree.len()));
            assert!(map.iter().eq(tree.iter()), "{map:?}");
        }
        assert!(map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
        map.retain(|key, _| key % 2 == 0);
        tree.retain(|key, _| key % 2 == 0);
        assert!(!map.is_empty() && map.iter_mut().eq(tree.iter_mut()));
        assert_eq!(map.clone().into_iter().rev().collect::<SortedMap<_, _>>(), map);
        map.clear();
        assert!(map.is_empty());
    }
}
