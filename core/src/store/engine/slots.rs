//! Hash table of the keys: a request finds the value, queue and waiters of a key with one lookup.

use super::order::Order;
use super::slot::{Slot, SlotId, WaitList};
use super::value::Value;
use crate::key_hash::KeyHash;
use crate::limits::{ITEM_COST_BYTES, KEY_COST_BYTES};
use crate::prelude::*;
use crate::shared::Meter;
use crate::store::value_ref::ValueRef;
use alloc::collections::BinaryHeap;
use core::ops::{Bound, Index, IndexMut};
use hashbrown::HashTable;
use slab::Slab;

/// Capacity that a queue keeps when it becomes shorter, in items.
const QUEUE_KEPT: usize = 64;

fn as_index(index: usize) -> u32 {
    // invariant: stored_bytes_max and registrations_max keep the tables far below 2^32 entries
    u32::try_from(index).expect("the limits keep the table small")
}

#[derive(Debug)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    index: HashTable<SlotId>,
    hasher: KeyHash,
    /// Slots with a value, so that listing skips keys that are only waited for.
    present: Vec<SlotId>,
    /// All slots in key order; built when it is first needed.
    order: Option<Order>,
    stored_bytes: u64,
    /// Counts the bytes of long values, in the slots and elsewhere.
    meter: Meter,
    /// Those of them that belong to the values in the slots.
    shared_present: u64,
}

impl Slots {
    pub(super) fn new(hash_key: u128) -> Self {
        Self {
            slots: Slab::new(),
            index: HashTable::new(),
            hasher: KeyHash::new(hash_key),
            present: Vec::new(),
            order: None,
            stored_bytes: 0,
            meter: Meter::default(),
            shared_present: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) const fn present(&self) -> usize {
        self.present.len()
    }

    pub(super) const fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Returns the bytes of long values that are no longer in a slot, but are still held by the history or for an answer.
    pub(super) fn orphaned_bytes(&self) -> u64 {
        self.meter.bytes().saturating_sub(self.shared_present)
    }

    pub(super) const fn meter(&self) -> &Meter {
        &self.meter
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<SlotId> {
        self.index.find(self.hasher.of(key), |&id| *self[id].key == *key).copied()
    }

    #[inline]
    pub(super) fn find_or_insert(&mut self, key: &[u8]) -> SlotId {
        let hash = self.hasher.of(key);
        let slots = &mut self.slots;
        if let Some(&id) = self.index.find(hash, |&id| *slots[id as usize].key == *key) {
            return id;
        }
        let index = slots.insert(Slot {
            key: key.into(),
            value: Value::Absent,
            revision: 0,
            waiters: WaitList::default(),
            present_at: 0,
            queue: None,
        });
        let id = as_index(index);
        self.stored_bytes += key.len() as u64 + KEY_COST_BYTES;
        let hasher = &self.hasher;
        self.index.insert_unique(hash, id, |&id| hasher.of(&slots[id as usize].key));
        if let Some(order) = &mut self.order {
            order.insert(id, |id| &slots[id as usize].key);
        }
        id
    }

    /// Frees the slot when it has neither a value, a queue nor waiters.
    pub(super) fn release_if_idle(&mut self, id: SlotId) {
        let slot = &self[id];
        if !matches!(slot.value, Value::Absent) || slot.queue.is_some() || !slot.waiters.is_empty() {
            return;
        }
        let hash = self.hasher.of(&slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        if let Some(order) = &mut self.order {
            let slots = &self.slots;
            order.remove(id, |id| &slots[id as usize].key);
        }
        self.stored_bytes -= self.slots.remove(id as usize).key.len() as u64 + KEY_COST_BYTES;
        // Shrinks tables that a burst has enlarged; not on each removal, so that a steady store does not
        // reallocate.
        if self.index.capacity() > 1024 && self.index.len() * 8 < self.index.capacity() {
            let Self { index, slots, hasher, .. } = self;
            index.shrink_to(slots.len() * 2, |&id| hasher.of(&slots[id as usize].key));
            slots.shrink_to_fit();
            self.present.shrink_to(self.present.len() * 2);
        }
    }

    /// Changes a value, and updates the charged bytes and the list of present slots.
    #[inline]
    pub(super) fn change(&mut self, id: SlotId, revision: u64, change: impl FnOnce(&mut Value, &Meter)) {
        let slot = &mut self.slots[id as usize];
        let (was_absent, length_before) = (matches!(slot.value, Value::Absent), slot.value.len());
        self.shared_present -= slot.value.shared_bytes();
        change(&mut slot.value, &self.meter);
        self.shared_present += slot.value.shared_bytes();
        slot.revision = revision;
        let is_absent = matches!(slot.value, Value::Absent);
        self.stored_bytes = self.stored_bytes + slot.value.len() as u64 - length_before as u64;
        match (was_absent, is_absent) {
            (true, false) => {
                slot.present_at = as_index(self.present.len());
                self.present.push(id);
            }
            (false, true) => {
                let index = slot.present_at as usize;
                self.present.swap_remove(index);
                if let Some(&moved) = self.present.get(index) {
                    self[moved].present_at = as_index(index);
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
        self.find(key).is_some_and(|id| {
            let slot = &self[id];
            !matches!(slot.value, Value::Absent) || slot.queue.is_some()
        })
    }

    pub(super) fn push_item(&mut self, id: SlotId, item: &[u8]) {
        self.stored_bytes += item.len() as u64 + ITEM_COST_BYTES;
        self[id].queue.get_or_insert_default().push_back(item.into());
    }

    pub(super) fn pop_item(&mut self, id: SlotId) -> Option<Box<[u8]>> {
        let slot = &mut self[id];
        let queue = slot.queue.as_mut()?;
        let item = queue.pop_front()?;
        // Empty queues are dropped, because `is_ready` checks only whether there is a queue.
        if queue.is_empty() {
            slot.queue = None;
        } else if queue.capacity() > QUEUE_KEPT && queue.len() < queue.capacity() / 8 {
            queue.shrink_to(queue.len() * 2);
        }
        self.stored_bytes -= item.len() as u64 + ITEM_COST_BYTES;
        Some(item)
    }

    pub(super) fn queue_len(&self, id: SlotId) -> i64 {
        self[id].queue.as_ref().map_or(0, |queue| i64::try_from(queue.len()).unwrap_or(i64::MAX))
    }

    /// Drops the queue of a slot. Returns whether there was one.
    pub(super) fn drop_queue(&mut self, id: SlotId) -> bool {
        self.stored_bytes -= self.queue_bytes(id);
        self[id].queue.take().is_some()
    }

    /// Returns the charge of the queued items of a slot.
    pub(super) fn queue_bytes(&self, id: SlotId) -> u64 {
        let items = self[id].queue.iter().flatten();
        items.map(|item| item.len() as u64 + ITEM_COST_BYTES).sum()
    }

    /// Maintains all slots in key order from now on, so that a prefix query visits no other keys. Each new key then
    /// costs a search, so a store with c10d clients only does not enable it.
    pub(super) fn keep_order(&mut self) {
        if self.order.is_none() {
            self.order = Some(self.all_in_order());
        }
    }

    /// Returns the slots with a value, in key order.
    pub(super) fn sorted(&self) -> Vec<SlotId> {
        match &self.order {
            Some(order) => {
                let all = order.range(Bound::Unbounded, |id| &self[id].key);
                all.filter(|&id| self.is_present(id)).collect()
            }
            None => self.in_order(self.present.iter().copied()),
        }
    }

    /// Calls `read` with the slots whose keys begin with `prefix`, in key order, from `from` on.
    pub(super) fn with_prefix<R>(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        read: impl FnOnce(&mut dyn Iterator<Item = SlotId>) -> R,
    ) -> R {
        let made;
        let order = match &self.order {
            Some(order) => order,
            None => {
                made = self.all_in_order();
                &made
            }
        };
        let all = order.range(from, |id| &*self[id].key);
        read(&mut all.take_while(|&id| self[id].key.starts_with(prefix)))
    }

    fn all_in_order(&self) -> Order {
        Order::of_sorted(&self.in_order(self.slots.iter().map(|(index, _)| as_index(index))))
    }

    pub(super) fn is_present(&self, id: SlotId) -> bool {
        !matches!(self[id].value, Value::Absent)
    }

    /// Sorts slots by key. A heap takes far less machine code than a slice sort, and key lists are rare.
    fn in_order(&self, ids: impl Iterator<Item = SlotId>) -> Vec<SlotId> {
        let keyed: BinaryHeap<(&[u8], SlotId)> = ids.map(|id| (&*self[id].key, id)).collect();
        keyed.into_sorted_vec().into_iter().map(|(_, id)| id).collect()
    }
}

impl Index<SlotId> for Slots {
    type Output = Slot;
    #[inline]
    fn index(&self, id: SlotId) -> &Slot {
        &self.slots[id as usize]
    }
}

impl IndexMut<SlotId> for Slots {
    #[inline]
    fn index_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;

    #[test]
    fn a_queue_that_was_long_gives_its_memory_back() {
        let mut slots = Slots::new(1);
        let id = slots.find_or_insert(b"q");
        (0..100_000).for_each(|_| slots.push_item(id, b""));
        (0..99_999).for_each(|_| drop(slots.pop_item(id)));
        let held = slots[id].queue.as_ref().map_or(0, VecDeque::capacity);
        assert!(held <= QUEUE_KEPT, "{held} places held for one item");
    }

    #[test]
    fn the_list_of_present_slots_follows_every_change() {
        let mut slots = Slots::new(1);
        let ids: Vec<SlotId> = (0..20u8).map(|name| slots.find_or_insert(&[name])).collect();
        ids.iter().for_each(|&id| slots.change(id, 1, |value, meter| value.set(b"v", meter)));
        ids.iter().step_by(3).for_each(|&id| slots.change(id, 2, |value, _| *value = Value::Absent));
        let names: Vec<u8> = slots.sorted().into_iter().map(|id| slots[id].key[0]).collect();
        assert_eq!(names, (0..20).filter(|name| name % 3 != 0).collect::<Vec<u8>>());
        assert!(slots.present.iter().enumerate().all(|(index, &id)| slots[id].present_at as usize == index));
    }
}
