//! The table of keys. One slot holds all that goes by one name: value, queue and waiters, so that each request finds
//! it with one look-up.

use super::value::{Value, ValueRef};
use super::waits::WaitList;
use crate::limits::{ITEM_COST_BYTES, KEY_COST_BYTES};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::{Index, IndexMut};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;
use slab::Slab;

/// A place in the table; it stays while the slot is in use.
pub(super) type SlotId = u32;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Box<[u8]>,
    pub(super) value: Value,
    /// The store's revision when the value last changed.
    pub(super) revision: u64,
    pub(super) waiters: WaitList,
    queue: Option<VecDeque<Box<[u8]>>>,
}

#[derive(Debug)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    index: HashTable<SlotId>,
    hasher: SeedableRandomState,
    present: usize,
    stored_bytes: u64,
}

impl Slots {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            slots: Slab::new(),
            index: HashTable::new(),
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()),
            present: 0,
            stored_bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) const fn present(&self) -> usize {
        self.present
    }

    pub(super) const fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<SlotId> {
        self.index.find(self.hasher.hash_one(key), |&id| *self[id].key == *key).copied()
    }

    pub(super) fn find_or_insert(&mut self, key: &[u8]) -> SlotId {
        let hash = self.hasher.hash_one(key);
        let slots = &mut self.slots;
        if let Some(&id) = self.index.find(hash, |&id| *slots[id as usize].key == *key) {
            return id;
        }
        let index = slots.insert(Slot {
            key: key.into(),
            value: Value::Absent,
            revision: 0,
            waiters: WaitList::default(),
            queue: None,
        });
        // invariant: stored_bytes_max and registrations_max keep the table far below 2^32 slots
        let id = u32::try_from(index).expect("the limits keep the table small");
        self.stored_bytes += key.len() as u64 + KEY_COST_BYTES;
        let hasher = &self.hasher;
        self.index.insert_unique(hash, id, |&id| hasher.hash_one(&*slots[id as usize].key));
        id
    }

    /// Frees the slot when neither value, queue nor waiter is left in it.
    pub(super) fn release_if_idle(&mut self, id: SlotId) {
        let slot = &self[id];
        if !matches!(slot.value, Value::Absent) || slot.queue.is_some() || !slot.waiters.is_empty() {
            return;
        }
        let hash = self.hasher.hash_one(&*slot.key);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.stored_bytes -= self.slots.remove(id as usize).key.len() as u64 + KEY_COST_BYTES;
        // Tables that a burst has blown up shrink again; not on each removal, so that a steady store never moves.
        if self.index.capacity() > 1024 && self.index.len() * 8 < self.index.capacity() {
            let Self { index, slots, hasher, .. } = self;
            index.shrink_to(slots.len() * 2, |&id| hasher.hash_one(&*slots[id as usize].key));
            slots.shrink_to_fit();
        }
    }

    /// Changes a value and keeps the books.
    pub(super) fn change(&mut self, id: SlotId, revision: u64, change: impl FnOnce(&mut Value)) {
        let slot = &mut self.slots[id as usize];
        let (was_absent, length_before) = (matches!(slot.value, Value::Absent), slot.value.len());
        change(&mut slot.value);
        slot.revision = revision;
        let is_absent = matches!(slot.value, Value::Absent);
        self.stored_bytes = self.stored_bytes + slot.value.len() as u64 - length_before as u64;
        self.present = self.present + usize::from(was_absent) - usize::from(is_absent);
    }

    #[inline]
    pub(super) fn value(&self, key: &[u8]) -> ValueRef<'_> {
        self.find(key).map_or(ValueRef::Bytes(b""), |id| self[id].value.as_ref())
    }

    /// Whether a value or a queued item goes by this name.
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
        // A queue that is there has an item in it: readiness asks no more than whether it is there.
        if queue.is_empty() {
            slot.queue = None;
        }
        self.stored_bytes -= item.len() as u64 + ITEM_COST_BYTES;
        Some(item)
    }

    pub(super) fn queue_len(&self, id: SlotId) -> i64 {
        self[id].queue.as_ref().map_or(0, |queue| i64::try_from(queue.len()).unwrap_or(i64::MAX))
    }

    /// Drops the queue of a slot; whether there was one.
    pub(super) fn drop_queue(&mut self, id: SlotId) -> bool {
        let Some(queue) = self[id].queue.take() else { return false };
        self.stored_bytes -= queue.iter().map(|item| item.len() as u64 + ITEM_COST_BYTES).sum::<u64>();
        true
    }

    /// The slots that have a value, in the order of their keys.
    pub(super) fn sorted(&self) -> Vec<SlotId> {
        self.beneath(b"", |slot| !matches!(slot.value, Value::Absent))
    }

    /// The slots whose keys begin with `prefix` and that are wanted, in the order of their keys.
    pub(super) fn beneath(&self, prefix: &[u8], wanted: impl Fn(&Slot) -> bool) -> Vec<SlotId> {
        let found = self.slots.iter().filter(|(_, slot)| slot.key.starts_with(prefix) && wanted(slot));
        let mut ids: Vec<SlotId> = found.filter_map(|(index, _)| u32::try_from(index).ok()).collect();
        ids.sort_unstable_by(|&a, &b| self[a].key.cmp(&self[b].key));
        ids
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
