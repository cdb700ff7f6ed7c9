//! Queue of a key.

use crate::limits::ITEM_COST_BYTES;
use crate::prelude::*;
use alloc::collections::VecDeque;

/// Maximum number of items in a part.
const PART_ITEMS_MAX: usize = 4096;
/// Capacity that a part keeps when it becomes shorter, in items.
const ITEMS_KEPT: usize = 64;

/// Items in parts of bounded length, so that no push and no pop moves many of them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// None is empty.
    parts: VecDeque<VecDeque<Box<[u8]>>>,
    len: usize,
    charge: u64,
}

/// Returns the charge of an item.
pub(super) fn charge_of(item: &[u8]) -> u64 {
    item.len() as u64 + ITEM_COST_BYTES
}

impl Queue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the charge of all items.
    pub(super) const fn charge(&self) -> u64 {
        self.charge
    }

    #[inline(never)]
    pub(super) fn push(&mut self, item: &[u8]) {
        if self.parts.back().is_none_or(|last| last.len() >= PART_ITEMS_MAX) {
            // Many queues have one item.
            self.parts.push_back(VecDeque::with_capacity(1));
        }
        if let Some(last) = self.parts.back_mut() {
            last.push_back(item.into());
        }
        self.len += 1;
        self.charge += charge_of(item);
    }

    #[inline(never)]
    pub(super) fn pop(&mut self) -> Option<Box<[u8]>> {
        let first = self.parts.front_mut()?;
        let item = first.pop_front()?;
        if first.is_empty() {
            self.parts.pop_front();
        } else if first.capacity() > ITEMS_KEPT && first.len() < first.capacity() / 8 {
            first.shrink_to(first.len() * 2);
        }
        self.len -= 1;
        self.charge -= charge_of(&item);
        Some(item)
    }

    /// Returns the newest item of a queue that has been removed. Memory that is freed in the reverse order of its allocation goes
    /// back to the system bit by bit.
    pub(super) fn pop_last(&mut self) -> Option<Box<[u8]>> {
        loop {
            if let Some(item) = self.parts.back_mut()?.pop_back() {
                return Some(item);
            }
            self.parts.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_order_and_long_queues_give_their_memory_back() {
        let mut queue = Queue::default();
        let count = 3 * PART_ITEMS_MAX + 1;
        (0..count).for_each(|number| queue.push(&number.to_be_bytes()));
        assert_eq!((queue.len(), queue.charge()), (count, count as u64 * (8 + ITEM_COST_BYTES)));
        assert_eq!(queue.parts.len(), 4);
        (0..count - 1).for_each(|number| assert_eq!(queue.pop().as_deref(), Some(&number.to_be_bytes()[..])));
        let held: usize = queue.parts.iter().map(VecDeque::capacity).sum();
        assert!(held <= ITEMS_KEPT, "memory for {held} items is held for one");
        assert!(queue.pop().is_some() && queue.pop().is_none());
        assert_eq!((queue.len(), queue.charge()), (0, 0));
        (0..count).for_each(|number| queue.push(&number.to_be_bytes()));
        (0..count)
            .rev()
            .for_each(|number| assert_eq!(queue.pop_last().as_deref(), Some(&number.to_be_bytes()[..])));
        assert_eq!(queue.pop_last(), None);
    }
}
