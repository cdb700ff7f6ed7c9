//! Small sorted map. With few entries, a sorted list is as fast as a tree and needs a tenth of its code.

use alloc::vec::Vec;

/// Map for tens of entries: inserting or removing one moves those after it.
#[derive(Debug)]
pub(super) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> SortedMap<K, V> {
    fn search(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |&(key, _)| key)
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.search(key).ok().map(|index| &self.0[index].1)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.search(key).ok().map(|index| &mut self.0[index].1)
    }

    /// Inserts an entry, or replaces the one with the same key.
    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.search(key) {
            Ok(index) => self.0[index].1 = value,
            Err(index) => self.0.insert(index, (key, value)),
        }
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        self.search(key).ok().map(|index| self.0.remove(index).1)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(K) -> bool) {
        self.0.retain(|&(key, _)| keep(key));
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
impl<K, V> SortedMap<K, V> {
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn it_is_as_a_tree_is() {
        let (mut map, mut tree) = (SortedMap::default(), BTreeMap::new());
        // 7 and 32 have no common divisor, so the keys run through all remainders of 32.
        for step in 0..200_u32 {
            let key = step * 7 % 32;
            if step % 3 == 0 {
                assert_eq!(map.remove(key), tree.remove(&key), "{step}");
            } else {
                map.insert(key, step);
                tree.insert(key, step);
            }
            assert_eq!(map.get(step % 32), tree.get(&(step % 32)), "{step}");
            assert_eq!(map.get_mut(step % 31), tree.get_mut(&(step % 31)), "{step}");
            assert!(map.values().eq(tree.values()) && map.values_mut().eq(tree.values_mut()), "{step}");
        }
        map.retain(|key| key % 2 == 0);
        tree.retain(|key, _| key % 2 == 0);
        assert!(map.len() == tree.len() && map.iter_mut().map(|(key, value)| (key, *value)).eq(tree));
    }
}
