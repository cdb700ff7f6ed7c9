//! Ordered maps and sets with little machine code, for state machines.
//!
//! Each pair of types for which a program instantiates a tree of the standard library takes about seven kilobytes of
//! code. So this module has only two trees, one keyed by pairs of numbers and one by bytes, and each maps to a number.
//! Values that are not numbers are stored in a list beside the tree. See docs/adr/0012-size-of-maps.md.

use crate::ids::ConnId;
use crate::prelude::*;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Range;
use core::borrow::Borrow;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};

/// Type that converts to a number and back. The numbers have the same order as the values.
pub trait Number: Copy {
    fn number(self) -> u64;
    /// Converts a result of `number` back.
    fn from_number(number: u64) -> Self;
}

/// Type that converts to a pair of numbers and back. The pairs have the same order as the values.
pub trait Id: Copy {
    fn pair(self) -> Pair;
    /// Converts a result of `pair` back.
    fn from_pair(pair: Pair) -> Self;
}

pub type Pair = (u64, u64);

/// Implements [`Number`]: how a value becomes a number, and the number the value again.
macro_rules! numbers {
    ($($type:ty: $value:ident => $to:expr, $number:ident => $from:expr);* $(;)?) => {$(
        #[allow(clippy::cast_possible_truncation, reason = "only results of `number` are converted back")]
        impl $crate::ordered::Number for $type {
            fn number(self) -> u64 {
                let $value = self;
                $to
            }

            fn from_number($number: u64) -> Self {
                $from
            }
        }
    )*};
}

pub(crate) use numbers;

numbers! {
    u64: value => value, number => number;
    u32: value => value.into(), number => number as Self;
    usize: value => value as u64, number => number as Self;
    Instant: at => at.as_nanos(), number => Self::from_nanos(number);
    // Up to 584 years; longer spans are that one.
    Duration: span => span.as_nanos().try_into().unwrap_or(u64::MAX), number => Self::from_nanos(number);
    ConnId: conn => u64::from(conn.index) << 32 | u64::from(conn.generation),
        number => Self { index: u32::from_number(number >> 32), generation: u32::from_number(number) };
}

impl<N: Number> Id for N {
    fn pair(self) -> Pair {
        (self.number(), 0)
    }

    fn from_pair((number, _): Pair) -> Self {
        Self::from_number(number)
    }
}

impl<A: Number, B: Number> Id for (A, B) {
    fn pair(self) -> Pair {
        (self.0.number(), self.1.number())
    }

    fn from_pair((first, second): Pair) -> Self {
        (A::from_number(first), B::from_number(second))
    }
}

/// Tree whose methods are never inlined, so that their code exists once.
#[derive(Debug)]
struct Tree<K>(BTreeMap<K, u64>);

impl<K: Ord> Tree<K> {
    #[inline(never)]
    fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        self.0.get(key).copied()
    }

    #[inline(never)]
    fn insert(&mut self, key: K, number: u64) -> Option<u64> {
        self.0.insert(key, number)
    }

    #[inline(never)]
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        self.0.remove(key)
    }

    #[inline(never)]
    fn range<Q: Ord + ?Sized>(&self, from: Bound<&Q>, through: Bound<&Q>) -> Steps<'_, K>
    where
        K: Borrow<Q>,
    {
        Steps(self.0.range((from, through)))
    }
}

#[derive(Clone)]
struct Steps<'t, K>(Range<'t, K, u64>);

impl<'t, K> Iterator for Steps<'t, K> {
    type Item = (&'t K, u64);

    #[inline(never)]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, &number)| (key, number))
    }
}

/// A map from numbers to numbers.
pub struct Index<K, V> {
    tree: Tree<Pair>,
    kind: PhantomData<(K, V)>,
}

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Index<K, V> {
    pub const fn new() -> Self {
        Self { tree: Tree(BTreeMap::new()), kind: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.tree.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tree.0.is_empty()
    }
}

impl<K: Id, V: Number> Index<K, V> {
    pub fn get(&self, key: K) -> Option<V> {
        self.tree.get(&key.pair()).map(V::from_number)
    }

    pub fn contains(&self, key: K) -> bool {
        self.tree.get(&key.pair()).is_some()
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.tree.insert(key.pair(), value.number()).map(V::from_number)
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        self.tree.remove(&key.pair()).map(V::from_number)
    }

    pub fn first(&self) -> Option<(K, V)> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = (K, V)> + Clone {
        self.between((0, 0), (u64::MAX, u64::MAX))
    }

    /// Returns the entries whose first number is `first`.
    pub fn of(&self, first: impl Number) -> impl Iterator<Item = (K, V)> + Clone {
        self.between((first.number(), 0), (first.number(), u64::MAX))
    }

    fn between(&self, from: Pair, through: Pair) -> impl Iterator<Item = (K, V)> + Clone {
        let steps = self.tree.range(Bound::Included(&from), Bound::Included(&through));
        steps.map(|(&key, number)| (K::from_pair(key), V::from_number(number)))
    }
}

impl<K: Id + fmt::Debug, V: Number + fmt::Debug> fmt::Debug for Index<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A set of numbers. A set of deadlines has pairs of an instant and the id of its owner.
pub struct Set<K>(Index<K, u64>);

impl<K> Default for Set<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Set<K> {
    pub const fn new() -> Self {
        Self(Index::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Id> Set<K> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn pop_first(&mut self) -> Option<K> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    pub fn insert(&mut self, key: K) {
        self.0.insert(key, 0);
    }

    pub fn remove(&mut self, key: K) {
        self.0.remove(key);
    }

    pub fn first(&self) -> Option<K> {
        self.0.first().map(|(key, _)| key)
    }

    pub fn iter(&self) -> impl Iterator<Item = K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    pub fn contains(&self, key: K) -> bool {
        self.0.contains(key)
    }

    /// Returns the entries whose first number is `first`.
    pub fn of(&self, first: impl Number) -> impl Iterator<Item = K> + Clone {
        self.0.of(first).map(|(key, _)| key)
    }
}

impl<K: Id + fmt::Debug> fmt::Debug for Set<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Values in a vector without gaps, and a tree of their indices.
#[derive(Debug)]
struct List<K, V> {
    places: Tree<K>,
    entries: Vec<(K, V)>,
}

/// Capacity that a list keeps when it becomes shorter, in entries.
const PLACES_KEPT: usize = 64;

impl<K: Ord + Clone, V> List<K, V> {
    const fn new() -> Self {
        Self { places: Tree(BTreeMap::new()), entries: Vec::new() }
    }

    fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.at(self.places.get(key)?).map(|(_, value)| value)
    }

    fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = usize::from_number(self.places.get(key)?);
        self.entries.get_mut(index).map(|(_, value)| value)
    }

    fn at(&self, index: u64) -> Option<&(K, V)> {
        self.entries.get(usize::from_number(index))
    }

    fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.get_mut(&key) {
            Some(old) => Some(core::mem::replace(old, value)),
            None => {
                self.places.insert(key.clone(), self.entries.len().number());
                self.entries.push((key, value));
                None
            }
        }
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.places.remove(key)?;
        let (_, value) = self.entries.swap_remove(usize::from_number(index));
        if let Some((moved, _)) = self.at(index) {
            self.places.insert(moved.clone(), index);
        }
        if self.entries.capacity() > PLACES_KEPT && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        Some(value)
    }

    fn range<Q: Ord + ?Sized>(
        &self,
        from: Bound<&Q>,
        through: Bound<&Q>,
    ) -> impl Iterator<Item = &(K, V)> + Clone
    where
        K: Borrow<Q>,
    {
        self.places.range(from, through).filter_map(|(_, index)| self.at(index))
    }

    fn after(&self, key: &K) -> impl Iterator<Item = &(K, V)> + use<'_, K, V> {
        self.places.range(Bound::Excluded(key), Bound::Unbounded).filter_map(|(_, index)| self.at(index))
    }
}

/// A map from numbers to values of any type.
pub struct Map<K, V> {
    list: List<Pair, V>,
    kind: PhantomData<K>,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Map<K, V> {
    pub const fn new() -> Self {
        Self { list: List { places: Tree(BTreeMap::new()), entries: Vec::new() }, kind: PhantomData }
    }

    pub const fn len(&self) -> usize {
        self.list.entries.len()
    }

    /// Returns the number of entries for which there is memory.
    pub const fn capacity(&self) -> usize {
        self.list.entries.capacity()
    }

    pub const fn is_empty(&self) -> bool {
        self.list.entries.is_empty()
    }
}

impl<K: Id, V> Map<K, V> {
    pub fn get(&self, key: K) -> Option<&V> {
        self.list.get(&key.pair())
    }

    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.list.get_mut(&key.pair())
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.list.insert(key.pair(), value)
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        self.list.remove(&key.pair())
    }

    /// Returns the values, in no order.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.list.entries.into_iter().map(|(_, value)| value)
    }

    pub fn first(&self) -> Option<(K, &V)> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let all = self.list.range::<Pair>(Bound::Unbounded, Bound::Unbounded);
        all.map(|(key, value)| (K::from_pair(*key), value))
    }

    pub fn after(&self, key: K) -> impl Iterator<Item = (K, &V)> {
        self.list.after(&key.pair()).map(|(key, value)| (K::from_pair(*key), value))
    }
}

impl<K: Id + fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A map from byte strings to values of any type.
#[derive(Debug)]
pub struct Named<V>(List<Arc<[u8]>, V>);

impl<V> Default for Named<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Named<V> {
    pub const fn new() -> Self {
        Self(List::new())
    }

    pub const fn len(&self) -> usize {
        self.0.entries.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.0.entries.is_empty()
    }

    pub fn get(&self, name: &[u8]) -> Option<&V> {
        self.0.get(name)
    }

    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        self.0.get_mut(name)
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.places.get(name).is_some()
    }

    pub fn insert(&mut self, name: &[u8], value: V) -> Option<V> {
        match self.get_mut(name) {
            Some(old) => Some(core::mem::replace(old, value)),
            None => self.0.insert(name.into(), value),
        }
    }

    /// Returns the value of a name; inserts `fresh()` if there is none.
    pub fn entry(&mut self, name: &[u8], fresh: impl FnOnce() -> V) -> &mut V {
        if !self.contains(name) {
            self.0.insert(name.into(), fresh());
        }
        // invariant: it existed, or was just inserted
        self.get_mut(name).expect("the name is there")
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<V> {
        self.0.remove(name)
    }

    /// Removes the first entry whose name begins with `prefix`, and returns its name.
    pub fn pop_prefix(&mut self, prefix: &[u8]) -> Option<Arc<[u8]>> {
        let (name, _) = self.0.range::<[u8]>(Bound::Included(prefix), Bound::Unbounded).next()?;
        let name = Some(name).filter(|name| name.starts_with(prefix))?.clone();
        self.remove(&name);
        Some(name)
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> + Clone {
        self.range(..)
    }

    pub fn range<'q>(&self, names: impl RangeBounds<&'q [u8]>) -> impl Iterator<Item = (&[u8], &V)> + Clone {
        let range = self.0.range::<[u8]>(names.start_bound().cloned(), names.end_bound().cloned());
        range.map(|(name, value)| (&**name, value))
    }
}

impl<V: Clone> Clone for Named<V> {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        for (name, value) in self.iter() {
            copy.insert(name, value.clone());
        }
        copy
    }
}

impl<V: Eq> Eq for Named<V> {}

impl<V: PartialEq> PartialEq for Named<V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_as_a_tree_is() {
        let (mut map, mut named, mut index, mut set) = (Map::new(), Named::new(), Index::new(), Set::new());
        let (mut tree, mut by_name) = (BTreeMap::new(), BTreeMap::new());
        // Multiples of 7 take every remainder modulo 320.
        for step in 0..2000_u64 {
            let key = (step * 7 % 320 / 10, step * 7 % 10);
            let name = [u8::try_from(key.0).unwrap_or(0), u8::try_from(key.1).unwrap_or(0)];
            let name = &name[..1 + usize::from(key.1 != 0)];
            if step % 3 == 0 || step > 1800 {
                let old = tree.remove(&key);
                assert_eq!((map.remove(key), index.remove(key)), (old, old), "{step}");
                assert_eq!(named.remove(name), by_name.remove(name), "{step}");
                set.remove(key);
            } else {
                let old = tree.insert(key, step);
                assert_eq!((map.insert(key, step), index.insert(key, step)), (old, old), "{step}");
                assert_eq!(named.insert(name, step), by_name.insert(name.to_vec(), step), "{step}");
                set.insert(key);
            }
            let request = (step % 32, step % 10);
            let found = tree.get(&request).copied();
            assert_eq!((map.get(request).copied(), index.get(request)), (found, found), "{step}");
            assert_eq!(index.contains(request), found.is_some());
            assert_eq!(named.get(name), by_name.get(name), "{step}");
            if step % 50 == 0 {
                assert!(map.iter().map(|(key, &value)| (key, value)).eq(tree.clone()), "{step}");
                assert!(index.iter().eq(tree.clone()) && set.iter().eq(tree.keys().copied()), "{step}");
                assert!(named.iter().eq(by_name.iter().map(|(name, value)| (&**name, value))), "{step}");
                assert_eq!(set.first(), tree.first_key_value().map(|(&key, _)| key), "{step}");
                let of = tree.range((request.0, 0)..=(request.0, u64::MAX)).map(|(&key, _)| key);
                assert!(set.of(request.0).eq(of), "{step}");
                let rest = (Bound::Excluded(name), Bound::Unbounded);
                let expected = by_name.range::<[u8], _>(rest).map(|(name, value)| (&**name, value));
                assert!(named.range(rest).eq(expected), "{step}");
            }
            assert_eq!((map.len(), index.len(), set.iter().count()), (tree.len(), tree.len(), tree.len()));
            assert_eq!(named.len(), by_name.len());
        }
    }

    #[test]
    fn a_list_that_was_long_gives_its_memory_back() {
        let mut map: Map<u64, u64> = Map::new();
        (0..100_000).for_each(|key| assert_eq!(map.insert(key, key), None));
        (0..99_999).for_each(|key| assert_eq!(map.remove(key), Some(key)));
        assert!(map.list.entries.capacity() <= PLACES_KEPT, "{} places", map.list.entries.capacity());
        assert_eq!(map.get(99_999), Some(&99_999));
    }

    #[test]
    fn numbers_come_back_as_they_went_in() {
        let conn = ConnId { index: 7, generation: u32::MAX };
        assert_eq!(ConnId::from_pair(conn.pair()), conn);
        let deadline = (Instant::MAX, 5_u32);
        assert_eq!(<(Instant, u32)>::from_pair(deadline.pair()), deadline);
    }
}
