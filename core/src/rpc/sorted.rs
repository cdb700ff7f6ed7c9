//! A map for few entries, which is a sorted list: a tree of the standard library costs ten kilobytes of code for each pair
//! of types.

use alloc::vec::Vec;
use core::borrow::Borrow;

/// Entries in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Without entries.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    /// What stands by a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// The same, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    /// Whether something stands by a key.
    #[must_use]
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Puts a value by a key, and hands out what stood there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(place) => self.0.get_mut(place).map(|(_, old)| core::mem::replace(old, value)),
            Err(place) => {
                self.0.insert(place, (key, value));
                None
            }
        }
    }

    /// Takes out what stands by a key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    /// Of two with the same key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
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
