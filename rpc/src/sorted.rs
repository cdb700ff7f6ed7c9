//! Map for few entries, in a sorted vector: a tree of the standard library costs ten kilobytes of code for each pair of
//! types.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::cmp::Ordering;

/// Map sorted by its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Creates an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn search<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let index = self.search(key).ok()?;
        self.0.get(index).map(|(_, value)| value)
    }

    /// Returns the value of a key for modification.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = self.search(key).ok()?;
        self.0.get_mut(index).map(|(_, value)| value)
    }

    /// Whether a key exists.
    #[must_use]
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.search(key).is_ok()
    }

    /// Sets the value of a key, and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.search(&key) {
            Ok(index) => self.0.get_mut(index).map(|(_, old)| core::mem::replace(old, value)),
            Err(index) => {
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.search(key).ok()?;
        Some(self.0.remove(index).1)
    }

    /// Returns keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns the values in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    /// Of two entries with the same key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<Option<(K, V)>> = entries.into_iter().map(Some).collect();
        let key = |index: usize| entries.get(index).and_then(Option::as_ref).map(|(key, _)| key);
        let places = in_order(entries.len(), &|one, other| key(one).cmp(&key(other)));
        let mut sorted: Vec<(K, V)> = Vec::with_capacity(entries.len());
        for (key, value) in places.into_iter().filter_map(|index| entries.get_mut(index)?.take()) {
            match sorted.last_mut() {
                Some(last) if last.0 == key => last.1 = value,
                _ => sorted.push((key, value)),
            }
        }
        Self(sorted)
    }
}

/// Returns the indices of the entries in the order of their keys, equal ones in their original order. It is one
/// function for all types: a sort of the standard library costs kilobytes of code for each.
fn in_order(count: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    places.sort_unstable_by(|&one, &other| compare(one, other).then(one.cmp(&other)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    #[test]
    fn many_entries_in_falling_order_are_compared_a_few_times_each() {
        #[derive(Clone, Debug)]
        struct Counted<'a>(u32, &'a core::cell::Cell<u64>);
        impl PartialEq for Counted<'_> {
            fn eq(&self, other: &Self) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for Counted<'_> {}
        impl PartialOrd for Counted<'_> {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for Counted<'_> {
            fn cmp(&self, other: &Self) -> Ordering {
                self.1.set(self.1.get() + 1);
                self.0.cmp(&other.0)
            }
        }
        const COUNT: u32 = 1 << 16;
        let compared = core::cell::Cell::new(0);
        // So wide that moving each of them past all the others would take minutes.
        let entries = (0..COUNT).rev().map(|key| (Counted(key, &compared), [key; 64]));
        let map: SortedMap<Counted<'_>, [u32; 64]> = entries.collect();
        assert_eq!(map.len(), usize::try_from(COUNT).expect("few"));
        assert!(map.keys().map(|key| key.0).eq(0..COUNT));
        assert!(compared.get() < u64::from(COUNT) * 64, "{} comparisons", compared.get());
    }

    proptest! {
        #[test]
        fn of_equal_keys_the_last_counts(entries in prop::collection::vec((0..8_u8, any::<u8>()), 0..60)) {
            let tree: BTreeMap<u8, u8> = entries.iter().copied().collect();
            let map: SortedMap<u8, u8> = entries.into_iter().collect();
            prop_assert!(map.iter().eq(&tree));
        }

        #[test]
        fn it_is_as_a_tree_is(steps in prop::collection::vec((any::<bool>(), 0..20_u8, any::<u8>()), 0..60)) {
            let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
            for (inserts, key, value) in steps {
                if inserts {
                    prop_assert_eq!(map.insert(key, value), tree.insert(key, value));
                } else {
                    prop_assert_eq!(map.remove(&key), tree.remove(&key));
                }
                prop_assert_eq!(map.get(&value), tree.get(&value));
                prop_assert_eq!(map.get_mut(&key), tree.get_mut(&key));
                prop_assert_eq!(map.contains(&key), tree.contains_key(&key));
                prop_assert_eq!((map.len(), map.is_empty()), (tree.len(), tree.is_empty()));
                prop_assert!(map.iter().eq(&tree) && map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
            }
            prop_assert_eq!(tree.clone().into_iter().rev().collect::<SortedMap<_, _>>(), map);
        }
    }
}
