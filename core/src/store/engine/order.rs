//! Ordered index of the keys, for prefix queries: slot ids, sorted by their keys.
//!
//! The ids are stored in chunks of bounded length, so that an insertion or removal moves few ids, and an entry
//! takes little more memory than its id. A lookup is a binary search over the chunks, then one within a chunk.

use super::slot::SlotId;
use alloc::vec::Vec;
use core::ops::Bound;

/// Maximum number of ids in a chunk.
const CHUNK_MAX: usize = 512;
/// Adjacent chunks with at most this many ids together are merged.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

#[derive(Debug, Default)]
pub(super) struct Order {
    /// The chunks in order; none is empty.
    chunks: Vec<Vec<SlotId>>,
}

impl Order {
    /// Returns the work of an insertion or removal: more for many chunks, because the keys that it looks at are then rarely
    /// in the processor's cache.
    pub(super) fn work(&self) -> u64 {
        3 + u64::from((self.chunks.len() | 1).ilog2().saturating_sub(6))
    }

    /// Inserts a slot with a new key.
    #[inline(never)]
    pub(super) fn insert<'k>(&mut self, id: SlotId, key_of: &dyn Fn(SlotId) -> &'k [u8]) {
        let key = key_of(id);
        let last = self.chunks.len().saturating_sub(1);
        let mut index = self.chunk_from(Bound::Included(key), key_of).min(last);
        if self.chunks.is_empty() {
            self.chunks.push(Vec::new());
        }
        let mut at = position_in(&self.chunks[index], Bound::Included(key), key_of);
        let length = self.chunks[index].len();
        if length >= CHUNK_MAX {
            // Keys that are inserted in order leave full chunks.
            let cut = if index == last && at == length { length } else { length / 2 };
            let following = self.chunks[index].split_off(cut);
            self.chunks[index].shrink_to_fit();
            self.chunks.insert(index + 1, following);
            if at >= cut {
                (index, at) = (index + 1, at - cut);
            }
        }
        self.chunks[index].insert(at, id);
    }

    /// Removes a slot; its key must still be readable.
    pub(super) fn remove<'k>(&mut self, id: SlotId, key_of: &dyn Fn(SlotId) -> &'k [u8]) {
        let key = key_of(id);
        let index = self.chunk_from(Bound::Included(key), key_of);
        let Some(chunk) = self.chunks.get_mut(index) else { return };
        let at = position_in(chunk, Bound::Included(key), key_of);
        debug_assert_eq!(chunk.get(at), Some(&id), "each slot is in the index once");
        chunk.remove(at);
        if chunk.is_empty() {
            self.chunks.remove(index);
        } else {
            self.join(index);
        }
        if let Some(before) = index.checked_sub(1) {
            self.join(before);
        }
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }

    /// Merges this chunk and the next, if both are short.
    fn join(&mut self, index: usize) {
        if let Some([one, next]) = self.chunks.get(index..index + 2)
            && one.len() + next.len() <= CHUNK_MIN
        {
            let next = self.chunks.remove(index + 1);
            self.chunks[index].extend_from_slice(&next);
        }
    }

    /// Returns the slots from a key on, in order.
    pub(super) fn range<'o, 'k>(
        &'o self,
        from: Bound<&[u8]>,
        key_of: &dyn Fn(SlotId) -> &'k [u8],
    ) -> impl Iterator<Item = SlotId> + use<'o, 'k> {
        let index = self.chunk_from(from, key_of);
        let at = self.chunks.get(index).map_or(0, |chunk| position_in(chunk, from, key_of));
        let first = self.chunks.get(index).map_or(&[][..], |chunk| &chunk[at..]);
        let others = self.chunks.get(index + 1..).unwrap_or_default();
        first.iter().chain(others.iter().flatten()).copied()
    }

    /// Returns the index of the first chunk that has a key at or after `from`.
    fn chunk_from<'k>(&self, from: Bound<&[u8]>, key_of: &dyn Fn(SlotId) -> &'k [u8]) -> usize {
        let is_before = |chunk: &Vec<SlotId>| chunk.last().is_some_and(|&id| precedes(key_of(id), from));
        self.chunks.partition_point(is_before)
    }
}

/// Returns the position of the first key of a chunk at or after `from`.
fn position_in<'k>(chunk: &[SlotId], from: Bound<&[u8]>, key_of: &dyn Fn(SlotId) -> &'k [u8]) -> usize {
    chunk.partition_point(|&id| precedes(key_of(id), from))
}

fn precedes(key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Included(first) => key < first,
        Bound::Excluded(last) => key <= last,
        Bound::Unbounded => false,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::rng::Rng;
    use core::cell::Cell;
    use std::collections::BTreeSet;
    use std::{format, string::String};

    fn names(count: u32) -> Vec<String> {
        (0..count).map(|number| format!("{:x}", number.wrapping_mul(0x9e37_79b9))).collect()
    }

    #[test]
    fn it_is_as_a_tree_is() {
        let names = names(3000);
        let key_of = |id: SlotId| names[id as usize].as_bytes();
        let mut rng = Rng::new(1);
        let (mut order, mut tree) = (Order::default(), BTreeSet::new());
        // It grows, and then it shrinks to nothing.
        for step in 0..40_000_u32 {
            let id = SlotId::try_from(rng.below(3000)).expect("a small number");
            let grows = rng.below(100) < if step < 15_000 { 70 } else { 30 };
            match (grows, tree.contains(&(key_of(id), id))) {
                (true, false) => {
                    order.insert(id, &key_of);
                    tree.insert((key_of(id), id));
                }
                (false, true) => {
                    order.remove(id, &key_of);
                    tree.remove(&(key_of(id), id));
                }
                _ => {}
            }
            if step % 500 == 0 {
                let from = key_of(id);
                let following = tree.iter().filter(|&&(key, _)| key > from).map(|&(_, id)| id);
                assert!(order.range(Bound::Excluded(from), &key_of).eq(following), "{step}");
                let on = tree.iter().filter(|&&(key, _)| key >= from).map(|&(_, id)| id);
                assert!(order.range(Bound::Included(from), &key_of).eq(on), "{step}");
                assert!(order.range(Bound::Unbounded, &key_of).eq(tree.iter().map(|&(_, id)| id)), "{step}");
                assert!(order.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
            }
        }
        for (_, id) in core::mem::take(&mut tree) {
            order.remove(id, &key_of);
        }
        assert!(order.chunks.is_empty() && order.chunks.capacity() <= 4);
    }

    #[test]
    fn a_name_costs_little_more_than_its_number() {
        let names = names(50_000);
        let key_of = |id: SlotId| names[id as usize].as_bytes();
        let mut sorted: Vec<SlotId> = (0..50_000).collect();
        sorted.sort_unstable_by_key(|&id| key_of(id));
        let places = |order: &Order| order.chunks.iter().map(Vec::capacity).sum::<usize>();
        let (mut in_order, mut at_random) = (Order::default(), Order::default());
        sorted.iter().for_each(|&id| in_order.insert(id, &key_of));
        (0..50_000).for_each(|id| at_random.insert(id, &key_of));
        assert!(places(&in_order) < 51_000, "{} places for names in order", places(&in_order));
        assert!(places(&at_random) < 100_000, "{} places for names at random", places(&at_random));
        sorted.iter().filter(|&&id| id % 100 != 0).for_each(|&id| at_random.remove(id, &key_of));
        let most = 500 * CHUNK_MAX / CHUNK_MIN * 8;
        assert!(places(&at_random) < most, "{} places for 500 names", places(&at_random));
    }

    #[test]
    fn a_prefix_is_found_without_a_look_at_other_keys() {
        let names = names(50_000);
        let looks = Cell::new(0);
        let key_of = |id: SlotId| {
            looks.set(looks.get() + 1);
            names[id as usize].as_bytes()
        };
        let mut order = Order::default();
        (0..49_999).for_each(|id| order.insert(id, &key_of));
        looks.set(0);
        assert_eq!(order.range(Bound::Included(b"8"), &key_of).take(100).count(), 100);
        assert!(looks.take() < 40, "two searches by halves");
        order.insert(49_999, &key_of);
        assert!(looks.take() < 40, "the same");
        order.remove(49_999, &key_of);
        assert!(looks.take() < 40, "the same");
    }
}
