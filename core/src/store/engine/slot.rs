//! Slot of the key table: the value, queue and waiters of one key.

use super::queue::Queue;
use super::value::Value;
use alloc::boxed::Box;

/// Index of a slot in the table; stable while the slot is in use.
pub(super) type SlotId = u32;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Box<[u8]>,
    pub(super) value: Value,
    /// Revision of the store at which the value last changed.
    pub(super) revision: u64,
    pub(super) waiters: WaitList,
    /// Index in the list of slots with a value; meaningful only while the slot has one.
    pub(super) present_at: u32,
    /// Queued items.
    pub(super) queue: Option<Box<Queue>>,
}

impl Slot {
    /// Returns whether the key has a value or a queued item.
    pub(super) const fn is_ready(&self) -> bool {
        !matches!(self.value, Value::Absent) || self.queue.is_some()
    }
}

/// Null index of a list of registrations.
pub(super) const NONE: u32 = u32::MAX;

/// List of the registrations with one key: first those for its presence, then those for an item, each oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitList {
    pub(super) head: u32,
    pub(super) tail: u32,
    /// Last of the registrations for the presence of the key.
    pub(super) presence_tail: u32,
}

impl Default for WaitList {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, presence_tail: NONE }
    }
}

impl WaitList {
    pub(super) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}
