//! The names of the store in order, for those who ask by prefix: numbers of slots, sorted by the keys that stand in them.
//!
//! They lie in pieces of bounded length, so that a name that comes or goes moves few others, and a name costs little more
//! than its number. Where a key stands is found by halving, first among the pieces and then within one.

use super::slot::SlotId;
use alloc::vec::Vec;
use core::ops::Bound;

/// Most numbers of a piece.
const CHUNK_MAX: usize = 512;
/// Two neighbours that have no more than this together become one.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

#[derive(Debug, Default)]
pub(super) struct Order {
    /// None of them is empty.
    pieces: Vec<Vec<SlotId>>,
}

impl Order {
    /// Of slots that are in the order of their keys.
    pub(super) fn of_sorted(ids: &[SlotId]) -> Self {
        // What comes later has room before pieces must be cut.
        Self { pieces: ids.chunks(CHUNK_MAX * 3 / 4).map(<[SlotId]>::to_vec).collect() }
    }

    /// Takes a slot in whose key is new.
    pub(super) fn insert<'k>(&mut self, id: SlotId, key_of: impl Fn(SlotId) -> &'k [u8]) {
        let key = key_of(id);
        let last = self.pieces.len().saturating_sub(1);
        let mut index = self.chunk_from(Bound::Included(key), &key_of).min(last);
        if self.pieces.is_empty() {
            self.pieces.push(Vec::new());
        }
        let mut at = position_in(&self.pieces[index], Bound::Included(key), &key_of);
        let length = self.pieces[index].len();
        if length >= CHUNK_MAX {
            // Names that come in order leave full pieces behind.
            let cut = if index == last && at == length { length } else { length / 2 };
            let following = self.pieces[index].split_off(cut);
            self.pieces[index].shrink_to_fit();
            self.pieces.insert(index + 1, following);
            if at >= cut {
                (index, at) = (index + 1, at - cut);
            }
        }
        self.pieces[index].insert(at, id);
    }

    /// Takes a slot out whose key stands there still.
    pub(super) fn remove<'k>(&mut self, id: SlotId, key_of: impl Fn(SlotId) -> &'k [u8]) {
        let key = key_of(id);
        let index = self.chunk_from(Bound::Included(key), &key_of);
        let Some(chunk) = self.pieces.get_mut(index) else { return };
        let at = position_in(chunk, Bound::Included(key), &key_of);
        debug_assert_eq!(chunk.get(at), Some(&id), "each slot stands in the order once");
        chunk.remove(at);
        if chunk.is_empty() {
            self.pieces.remove(index);
        } else {
            self.join(index);
        }
        if let Some(before) = index.checked_sub(1) {
            self.join(before);
        }
        if self.pieces.len() < self.pieces.capacity() / 4 {
            self.pieces.shrink_to(self.pieces.len() * 2);
        }
    }

    /// Makes one piece of this one and the next, if they are short.
    fn join(&mut self, index: usize) {
        if let Some([one, next]) = self.pieces.get(index..index + 2)
            && one.len() + next.len() <= CHUNK_MIN
        {
            let next = self.pieces.remove(index + 1);
            self.pieces[index].extend_from_slice(&next);
        }
    }

    /// The slots from a key on, in order.
    pub(super) fn range<'k>(
        &self,
        from: Bound<&[u8]>,
        key_of: impl Fn(SlotId) -> &'k [u8],
    ) -> impl Iterator<Item = SlotId> {
        let index = self.chunk_from(from, &key_of);
        let at = self.pieces.get(index).map_or(0, |chunk| position_in(chunk, from, &key_of));
        let first = self.pieces.get(index).map_or(&[][..], |chunk| &chunk[at..]);
        let others = self.pieces.get(index + 1..).unwrap_or_default();
        first.iter().chain(others.iter().flatten()).copied()
    }

    /// The first piece that has a key from there on.
    fn chunk_from<'k>(&self, from: Bound<&[u8]>, key_of: &impl Fn(SlotId) -> &'k [u8]) -> usize {
        let is_before = |chunk: &Vec<SlotId>| chunk.last().is_some_and(|&id| precedes(key_of(id), from));
        self.pieces.partition_point(is_before)
    }
}

/// The first place of a piece with a key from there on.
fn position_in<'k>(chunk: &[SlotId], from: Bound<&[u8]>, key_of: &impl Fn(SlotId) -> &'k [u8]) -> usize {
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
                    order.insert(id, key_of);
                    tree.insert((key_of(id), id));
                }
                (false, true) => {
                    order.remove(id, key_of);
                    tree.remove(&(key_of(id), id));
                }
                _ => {}
            }
            if step % 500 == 0 {
                let from = key_of(id);
                let following = tree.iter().filter(|&&(key, _)| key > from).map(|&(_, id)| id);
                assert!(order.range(Bound::Excluded(from), key_of).eq(following), "{step}");
                let on = tree.iter().filter(|&&(key, _)| key >= from).map(|&(_, id)| id);
                assert!(order.range(Bound::Included(from), key_of).eq(on), "{step}");
                assert!(order.range(Bound::Unbounded, key_of).eq(tree.iter().map(|&(_, id)| id)), "{step}");
                assert!(order.pieces.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
            }
        }
        for (_, id) in core::mem::take(&mut tree) {
            order.remove(id, key_of);
        }
        assert!(order.pieces.is_empty() && order.pieces.capacity() <= 4);
    }

    #[test]
    fn a_name_costs_little_more_than_its_number() {
        let names = names(50_000);
        let key_of = |id: SlotId| names[id as usize].as_bytes();
        let mut sorted: Vec<SlotId> = (0..50_000).collect();
        sorted.sort_unstable_by_key(|&id| key_of(id));
        let places = |order: &Order| order.pieces.iter().map(Vec::capacity).sum::<usize>();
        let (mut in_order, mut at_random) = (Order::default(), Order::default());
        sorted.iter().for_each(|&id| in_order.insert(id, key_of));
        (0..50_000).for_each(|id| at_random.insert(id, key_of));
        assert!(places(&in_order) < 51_000, "{} places for names in order", places(&in_order));
        assert!(places(&at_random) < 100_000, "{} places for names at random", places(&at_random));
        sorted.iter().filter(|&&id| id % 100 != 0).for_each(|&id| at_random.remove(id, key_of));
        let most = 500 * CHUNK_MAX / CHUNK_MIN * 8;
        assert!(places(&at_random) < most, "{} places for 500 names", places(&at_random));
        assert!(Order::of_sorted(&sorted).range(Bound::Unbounded, key_of).eq(sorted.iter().copied()));
    }
    #[test]
    fn what_lies_beneath_a_prefix_is_found_without_a_look_at_the_others() {
        let names = names(50_000);
        let looks = Cell::new(0);
        let key_of = |id: SlotId| {
            looks.set(looks.get() + 1);
            names[id as usize].as_bytes()
        };
        let mut order = Order::default();
        (0..49_999).for_each(|id| order.insert(id, key_of));
        looks.set(0);
        assert_eq!(order.range(Bound::Included(b"8"), key_of).take(100).count(), 100);
        assert!(looks.take() < 40, "two searches by halves");
        order.insert(49_999, key_of);
        assert!(looks.take() < 40, "the same");
        order.remove(49_999, key_of);
        assert!(looks.take() < 40, "the same");
    }
}
