//! Table of the keys: a request finds the value, queue and waiters of a key with one lookup.

use super::ahead::read_ahead;
use super::distinct::{Growth, growth};
use super::order::Order;
use super::queue::{self, Queue};
use super::slot::{Slot, SlotId, WaitList};
use super::value::Value;
use crate::hash_index::{HashIndex, id_of};
use crate::key_hash::KeyHash;
use crate::limits::KEY_COST_BYTES;
use crate::prelude::*;
use crate::shared::{Chunk, Meter};
use crate::store::op::Key;
use crate::store::value_ref::ValueRef;
use alloc::collections::VecDeque;
use core::cell::Cell;
use core::hint::black_box;
use core::ops::{Bound, Index, IndexMut, Range};
use slab::Slab;

/// Number of the tables of the index and of the slots. A table that grows or shrinks moves or looks at all of its entries at
/// once: with one table, a store of millions of keys would be busy with that for a second.
const TABLES: usize = 16;

/// Length above which a value is freed in steps, in bytes.
const FREED_AT_ONCE_BYTES: u64 = 256 << 10;

/// Bytes whose release takes about as long as a look at a key.
const PAGE_BYTES: usize = 4096;

/// Items of a queue that cost as much to free as a look at a key.
const ITEMS_PER_KEY: usize = 4;

/// Work after which a request puts no more of its new slots in key order, and frees no more long values. They wait for
/// [`Slots::order_some`] and [`Slots::free_some`]. It suffices for 256 slots: a request with no more keys does not wait until
/// those of earlier ones are in order.
const OWN_WORK_MAX: u64 = 5000;

/// Returns the table for a key with this hash.
const fn table_of(hash: u64) -> usize {
    hash.to_le_bytes()[0] as usize % TABLES
}

#[derive(Debug)]
pub(super) struct Slots {
    /// By the tables of the index.
    slots: [Slab<Slot>; TABLES],
    index: [HashIndex; TABLES],
    hasher: KeyHash,
    /// Slots with a value, so that listing skips keys that are only waited for.
    present: Vec<SlotId>,
    /// Slots in key order: all but those in `unordered`. It is made when it is first needed.
    order: Option<Order>,
    unordered: Unordered,
    /// Work for the order and for the release of values since [`Slots::take_work`] was last called.
    own_work: Cell<u64>,
    stored_bytes: u64,
    /// Counts the bytes of long values, in the slots and elsewhere.
    meter: Meter,
    /// Those of them that belong to the values in the slots.
    shared_present: u64,
    /// Chunks of long values that were replaced or removed, which are freed in steps.
    dropped: Vec<Arc<Chunk>>,
    dropped_bytes: u64,
    /// Queues that were removed, likewise.
    dropped_queues: Vec<Queue>,
}

impl Slots {
    pub(super) fn new(hash_key: u128) -> Self {
        Self {
            slots: [const { Slab::new() }; TABLES],
            index: [const { HashIndex::new() }; TABLES],
            hasher: KeyHash::new(hash_key),
            present: Vec::new(),
            order: None,
            unordered: Unordered::default(),
            own_work: Cell::new(0),
            stored_bytes: 0,
            meter: Meter::default(),
            shared_present: 0,
            dropped: Vec::new(),
            dropped_bytes: 0,
            dropped_queues: Vec::new(),
        }
    }

    pub(super) const fn hasher(&self) -> KeyHash {
        self.hasher
    }

    pub(super) fn len(&self) -> usize {
        self.slots.iter().map(Slab::len).sum()
    }

    pub(super) const fn present(&self) -> usize {
        self.present.len()
    }

    pub(super) const fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Returns the bytes of values that [`Slots::free_some`] has still to free.
    pub(super) const fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Returns whether [`Slots::free_some`] has something to free.
    pub(super) const fn has_dropped(&self) -> bool {
        self.dropped_bytes > 0 || !self.dropped_queues.is_empty()
    }

    /// Returns the bytes of long values that are no longer in a slot, but are still held by the history or for an answer.
    pub(super) fn orphaned_bytes(&self) -> u64 {
        self.meter.bytes().saturating_sub(self.shared_present + self.dropped_bytes)
    }

    pub(super) const fn meter(&self) -> &Meter {
        &self.meter
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<SlotId> {
        self.find_hashed(key, self.hasher.of(key))
    }

    #[inline]
    pub(super) fn find_hashed(&self, key: &[u8], hash: u64) -> Option<SlotId> {
        self.index[table_of(hash)].find(hash, |id| *self[id].key == *key)
    }

    /// Reads ahead for the lookups of the keys of a list, from key `number` on, as [`read_ahead`].
    pub(super) fn read_ahead<'k>(&self, number: usize, ahead: &mut dyn FnMut() -> Option<Key<'k>>) {
        let parts_of = |id| {
            let slot = &self[id];
            let value = if let Value::Bytes(bytes) = &slot.value { &bytes[..] } else { b"" };
            // A slot is longer than what the cache reads at once.
            black_box(slot.revision);
            [&*slot.key, value]
        };
        read_ahead(number, ahead, self.hasher, &|hash| &self.index[table_of(hash)], &parts_of);
    }

    /// Returns what keys with values of these lengths add to the table. `ahead` returns the keys alone, and
    /// `length_of` the length of what a slot has, as far as that counts.
    #[cold]
    pub(super) fn growth<'k>(
        &self,
        list: &mut dyn Iterator<Item = (Key<'k>, usize)>,
        ahead: &mut dyn FnMut() -> Option<Key<'k>>,
        length_of: &dyn Fn(&Slot) -> usize,
    ) -> Growth {
        growth(self.hasher, list, &mut |number, hash, key| {
            self.read_ahead(number, ahead);
            self.find_hashed(key, hash).map(|id| length_of(&self[id]))
        })
    }

    #[inline]
    pub(super) fn find_or_insert(&mut self, key: &[u8]) -> SlotId {
        let hash = self.hasher.of(key);
        if let Some(id) = self.find_hashed(key, hash) {
            return id;
        }
        self.insert(key, hash)
    }

    /// Adds a slot for a key that has none.
    fn insert(&mut self, key: &[u8], hash: u64) -> SlotId {
        let table = table_of(hash);
        let at = self.slots[table].insert(Slot {
            key: key.into(),
            value: Value::Absent,
            revision: 0,
            waiters: WaitList::default(),
            present_at: 0,
            queue: None,
        });
        let id = id_of(at * TABLES + table);
        self.stored_bytes += key.len() as u64 + KEY_COST_BYTES;
        self.index[table].insert(hash, id);
        if !self.unordered.contains(id)
            && let Some(order) = &mut self.order
        {
            if *self.own_work.get_mut() < OWN_WORK_MAX {
                *self.own_work.get_mut() += order.work();
                let slots = &self.slots;
                order.insert(id, &|id| &slot_of(slots, id).key);
            } else {
                self.unordered.push(id);
            }
        }
        id
    }

    /// Frees the slot when it has neither a value, a queue nor waiters.
    pub(super) fn release_if_idle(&mut self, id: SlotId) {
        let slot = &self[id];
        if slot.is_ready() || !slot.waiters.is_empty() {
            return;
        }
        let hash = self.hasher.of(&slot.key);
        let table = &mut self.index[table_of(hash)];
        table.remove(hash, id);
        let is_short = table.shrink_if_sparse();
        if !self.unordered.contains(id)
            && let Some(order) = &mut self.order
        {
            let slots = &self.slots;
            order.remove(id, &|id| &slot_of(slots, id).key);
        }
        let slots = &mut self.slots[id as usize % TABLES];
        self.stored_bytes -= slots.remove(id as usize / TABLES).key.len() as u64 + KEY_COST_BYTES;
        if is_short {
            slots.shrink_to_fit();
            // All tables become short at about the same time.
            if table_of(hash) == 0 {
                self.present.shrink_to(self.present.len() * 2);
            }
        }
    }

    /// Changes a value as [`Slots::change`], and leaves a long one that it had to [`Slots::free_some`].
    #[inline]
    pub(super) fn replace(&mut self, id: SlotId, revision: u64, change: impl FnOnce(&mut Value, &Meter)) {
        if let Value::Shared(_) = self[id].value {
            self.set_aside(id);
        }
        self.change(id, revision, change);
    }

    /// Empties a long value, unless the request may free it itself.
    #[cold]
    fn set_aside(&mut self, id: SlotId) {
        let (held, work) = (self[id].value.shared_bytes(), self.own_work.get_mut());
        if held <= FREED_AT_ONCE_BYTES && *work < OWN_WORK_MAX {
            *work += held / PAGE_BYTES as u64;
            return;
        }
        let slot = &mut self[id];
        if let Value::Shared(bytes) = core::mem::replace(&mut slot.value, Value::Bytes(Vec::new())) {
            self.stored_bytes -= bytes.len() as u64;
            self.shared_present -= held;
            self.dropped_bytes += held;
            self.dropped.append(&mut bytes.into_chunks());
        }
    }

    /// Frees chunks of values that were replaced or removed, and queued items, as many as cost no more than `pages_max` pages.
    /// Returns the cost. No chunk is longer than the value of one request. If one has other holders, the last of them frees
    /// it.
    pub(super) fn free_some(&mut self, pages_max: usize) -> usize {
        let (bytes_max, mut freed) = (pages_max.saturating_mul(PAGE_BYTES), 0);
        while freed < bytes_max
            && let Some(chunk) = self.dropped.pop()
        {
            freed += chunk.held_bytes();
            self.dropped_bytes -= chunk.held_bytes() as u64;
        }
        while freed < bytes_max
            && let Some(queue) = self.dropped_queues.last_mut()
        {
            let Some(item) = queue.pop_last() else {
                self.dropped_queues.pop();
                continue;
            };
            freed += item.len() + PAGE_BYTES / ITEMS_PER_KEY;
        }
        freed / PAGE_BYTES
    }

    /// Changes a value, and updates the charged bytes and the list of present slots.
    #[inline]
    pub(super) fn change(&mut self, id: SlotId, revision: u64, change: impl FnOnce(&mut Value, &Meter)) {
        let slot = &mut self.slots[id as usize % TABLES][id as usize / TABLES];
        let (was_absent, length_before) = (matches!(slot.value, Value::Absent), slot.value.len());
        self.shared_present -= slot.value.shared_bytes();
        change(&mut slot.value, &self.meter);
        self.shared_present += slot.value.shared_bytes();
        slot.revision = revision;
        let is_absent = matches!(slot.value, Value::Absent);
        self.stored_bytes = self.stored_bytes + slot.value.len() as u64 - length_before as u64;
        match (was_absent, is_absent) {
            (true, false) => {
                slot.present_at = id_of(self.present.len());
                self.present.push(id);
            }
            (false, true) => {
                let index = slot.present_at as usize;
                self.present.swap_remove(index);
                if let Some(&moved) = self.present.get(index) {
                    self[moved].present_at = id_of(index);
                }
            }
            _ => {}
        }
    }

    #[inline]
    pub(super) fn value(&self, key: &[u8]) -> ValueRef<'_> {
        self.find(key).map_or(ValueRef::Bytes(b""), |id| self[id].value.as_ref())
    }

    /// Returns whether the key has a value or a queued item.
    #[inline]
    pub(super) fn is_ready(&self, key: &[u8]) -> bool {
        self.find(key).is_some_and(|id| self[id].is_ready())
    }

    pub(super) fn push_item(&mut self, id: SlotId, item: &[u8]) {
        self.stored_bytes += queue::charge_of(item);
        self[id].queue.get_or_insert_default().push(item);
    }

    pub(super) fn pop_item(&mut self, id: SlotId) -> Option<Box<[u8]>> {
        let slot = &mut self[id];
        let queue = slot.queue.as_mut()?;
        let item = queue.pop()?;
        // Empty queues are dropped, because `Slot::is_ready` checks only whether there is a queue.
        if queue.len() == 0 {
            slot.queue = None;
        }
        self.stored_bytes -= queue::charge_of(&item);
        Some(item)
    }

    pub(super) fn queue_len(&self, id: SlotId) -> i64 {
        self[id].queue.as_ref().map_or(0, |queue| i64::try_from(queue.len()).unwrap_or(i64::MAX))
    }

    /// Removes the queue of a slot, which [`Slots::free_some`] frees. Returns whether there was one.
    pub(super) fn remove_queue(&mut self, id: SlotId) -> bool {
        let Some(queue) = self[id].queue.take() else { return false };
        self.stored_bytes -= queue.charge();
        self.dropped_queues.push(*queue);
        true
    }

    /// Returns the charge of the queued items of a slot.
    pub(super) fn queue_bytes(&self, id: SlotId) -> u64 {
        self[id].queue.as_ref().map_or(0, |queue| queue.charge())
    }

    /// Adds up to `count_max` further slots to those in key order, the oldest first. Returns whether all are in order. From
    /// then on each new key has to be added, so the order is made only when a request needs it.
    pub(super) fn order_some(&mut self, count_max: usize) -> bool {
        let Self { slots, order, unordered, own_work, .. } = self;
        let order = order.get_or_insert_with(|| {
            unordered.first = 0..TABLES * slots.iter().map(Slab::capacity).max().unwrap_or_default();
            Order::default()
        });
        for _ in 0..count_max {
            let Some(id) = unordered.pop() else { break };
            *own_work.get_mut() += order.work();
            if slots[id as usize % TABLES].contains(id as usize / TABLES) {
                order.insert(id, &|id| &slot_of(slots, id).key);
            }
        }
        unordered.is_empty()
    }

    /// Returns a mark for [`Slots::is_ordered_to`].
    pub(super) fn order_mark(&self) -> u64 {
        self.unordered.taken + self.unordered.later.len() as u64
    }

    /// Returns whether all slots are in key order that there were when [`Slots::order_mark`] returned this mark.
    pub(super) fn is_ordered_to(&self, mark: u64) -> bool {
        self.order.is_some() && self.unordered.first.is_empty() && self.unordered.taken >= mark
    }

    /// Returns the number of slots that were added since the order was made, and are not in it.
    pub(super) fn added_unordered(&self) -> usize {
        self.unordered.later.len()
    }

    /// Returns the work of removing a slot from those in order.
    pub(super) fn removal_work(&self) -> u64 {
        self.order.as_ref().map_or(0, Order::work)
    }

    /// Returns the work for the order since the last call.
    pub(super) fn take_work(&self) -> u64 {
        self.own_work.take()
    }

    /// Returns the keys with a value, in any order.
    pub(super) fn present_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.present.iter().map(|&id| &*self[id].key)
    }

    /// Returns all slots in key order.
    pub(super) fn ordered(&mut self) -> Ordered<'_> {
        self.order_some(usize::MAX);
        self.ordered_so_far()
    }

    /// Returns those slots in key order that were added to the order.
    pub(super) const fn ordered_so_far(&self) -> Ordered<'_> {
        Ordered(self)
    }

    pub(super) fn is_present(&self, id: SlotId) -> bool {
        !matches!(self[id].value, Value::Absent)
    }
}

/// Slots that are still to be added to those in key order. Any of them may be vacant.
#[derive(Debug, Default)]
struct Unordered {
    /// Those that there were when the order was made.
    first: Range<usize>,
    /// Those that were added since, the oldest first.
    later: VecDeque<SlotId>,
    /// Whether a slot is in `later`, a bit for each.
    is_later: Vec<u64>,
    /// Number of slots that were taken from `later`.
    taken: u64,
}

impl Unordered {
    fn contains(&self, id: SlotId) -> bool {
        let word = self.is_later.get(id as usize / 64).copied().unwrap_or(0);
        self.first.contains(&(id as usize)) || word & 1 << (id % 64) != 0
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.later.is_empty()
    }

    /// Adds a slot that it does not have.
    fn push(&mut self, id: SlotId) {
        let word = id as usize / 64;
        if self.is_later.len() <= word {
            self.is_later.resize(word + 1, 0);
        }
        self.is_later[word] |= 1 << (id % 64);
        self.later.push_back(id);
    }

    fn pop(&mut self) -> Option<SlotId> {
        if let Some(index) = self.first.next() {
            return Some(id_of(index));
        }
        let Some(id) = self.later.pop_front() else {
            (self.later, self.is_later) = (VecDeque::new(), Vec::new());
            return None;
        };
        self.taken += 1;
        self.is_later[id as usize / 64] &= !(1 << (id % 64));
        Some(id)
    }
}

/// Slots in key order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered<'s>(&'s Slots);

impl<'s> Ordered<'s> {
    fn from(self, from: Bound<&[u8]>) -> impl Iterator<Item = SlotId> + use<'s, '_> {
        let Self(slots) = self;
        slots.order.iter().flat_map(move |order| order.range(from, &|id| &*slots[id].key))
    }

    /// Returns the slots whose keys begin with `prefix`, from `from` on.
    pub(super) fn with_prefix<'p>(
        self,
        prefix: &'p [u8],
        from: Bound<&'p [u8]>,
    ) -> impl Iterator<Item = SlotId> + use<'s, 'p> {
        self.from(from).take_while(move |&id| self.0[id].key.starts_with(prefix))
    }
}

impl Index<SlotId> for Slots {
    type Output = Slot;
    #[inline]
    fn index(&self, id: SlotId) -> &Slot {
        slot_of(&self.slots, id)
    }
}

impl IndexMut<SlotId> for Slots {
    #[inline]
    fn index_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id as usize % TABLES][id as usize / TABLES]
    }
}

#[inline]
fn slot_of(slots: &[Slab<Slot>; TABLES], id: SlotId) -> &Slot {
    &slots[id as usize % TABLES][id as usize / TABLES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_frees_few_long_values_and_few_items_and_leaves_the_others_to_steps() {
        let mut slots = Slots::new(1);
        // Half of `FREED_AT_ONCE_BYTES`.
        let value = [0; 128 << 10];
        let ids: Vec<SlotId> = (0..200u8).map(|name| slots.find_or_insert(&[name])).collect();
        for &id in &ids {
            slots.replace(id, 1, |slot, meter| slot.set(&value, meter));
            slots.push_item(id, &value);
        }
        ids.iter().for_each(|&id| slots.replace(id, 2, |slot, _| *slot = Value::Absent));
        let pages = (value.len() / PAGE_BYTES) as u64;
        let work = slots.take_work();
        assert!((OWN_WORK_MAX..OWN_WORK_MAX + 2 * pages).contains(&work), "{work}");
        assert!(slots.dropped_bytes() >= 200 * value.len() as u64 - (OWN_WORK_MAX + 2 * pages) * 4096);
        assert!(ids.iter().all(|&id| slots.remove_queue(id) && !slots.remove_queue(id)));
        let (mut steps, mut freed) = (0, 0);
        while slots.has_dropped() {
            let pages_freed = slots.free_some(256);
            assert!(pages_freed < 256 + 2 * pages as usize, "{pages_freed} in one step");
            (steps, freed) = (steps + 1, freed + pages_freed);
        }
        assert!(steps >= 20 && freed as u64 >= 200 * pages, "{freed} in {steps} steps");
        assert_eq!((slots.dropped_bytes(), slots.orphaned_bytes(), slots.meter().bytes()), (0, 0, 0));
    }

    #[test]
    fn the_list_of_present_slots_follows_every_change() {
        let mut slots = Slots::new(1);
        let ids: Vec<SlotId> = (0..20u8).map(|name| slots.find_or_insert(&[name])).collect();
        ids.iter().for_each(|&id| slots.change(id, 1, |value, meter| value.set(b"v", meter)));
        ids.iter().step_by(3).for_each(|&id| slots.change(id, 2, |value, _| *value = Value::Absent));
        let all: Vec<SlotId> = slots.ordered().with_prefix(b"", Bound::Unbounded).collect();
        let present = all.into_iter().filter(|&id| slots.is_present(id));
        let names: Vec<u8> = present.map(|id| slots[id].key[0]).collect();
        assert_eq!(names, (0..20).filter(|name| name % 3 != 0).collect::<Vec<u8>>());
        assert!(slots.present.iter().enumerate().all(|(index, &id)| slots[id].present_at as usize == index));
    }

    #[test]
    fn one_request_orders_few_new_slots_and_all_are_ordered_when_they_are_needed() {
        let mut rng = crate::rng::Rng::new(1);
        let mut slots = Slots::new(1);
        let mut model = alloc::collections::BTreeMap::new();
        slots.order_some(0);
        for step in 0..60_000_u32 {
            // It grows to beyond what is ordered at once, and becomes short again.
            let name = rng.below(6000).to_be_bytes();
            if rng.below(100) < [90, 30][step as usize / 10_000 % 2] {
                let id = slots.find_or_insert(&name);
                model.insert(name, id);
            } else if let Some(id) = model.remove(&name) {
                slots.release_if_idle(id);
            }
            if step % 100 == 0 {
                let (mark, before): (_, Vec<SlotId>) =
                    (slots.order_mark(), model.values().copied().collect());
                slots.order_some(70);
                if slots.is_ordered_to(mark) {
                    let ids: Vec<SlotId> =
                        slots.ordered_so_far().with_prefix(b"", Bound::Unbounded).collect();
                    assert_eq!(ids, before, "step {step}");
                }
            }
            if step % 5_000 == 4_999 {
                let work = slots.take_work();
                assert!((1..OWN_WORK_MAX + 4 * (1 + 50 * 70)).contains(&work), "{work} in step {step}");
                let ids: Vec<SlotId> = slots.ordered().with_prefix(b"", Bound::Unbounded).collect();
                assert!(ids.into_iter().eq(model.values().copied()), "step {step}");
                assert!(slots.is_ordered_to(slots.order_mark()));
                slots.take_work();
            }
        }
        slots.order_some(1);
        assert!(slots.unordered.is_later.is_empty() && slots.unordered.later.capacity() == 0);
    }
}
