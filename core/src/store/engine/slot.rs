//! One slot of the table of keys. It holds all that goes by one name: value, queue and waiters.

use super::value::Value;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// A place in the table; it stays while the slot is in use.
pub(super) type SlotId = u32;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Box<[u8]>,
    pub(super) value: Value,
    /// The store's revision when the value last changed.
    pub(super) revision: u64,
    pub(super) waiters: WaitList,
    /// Where it stands in the list of slots with a value, if it has one.
    pub(super) present_at: u32,
    pub(super) queue: Option<VecDeque<Box<[u8]>>>,
}

/// No registration.
pub(super) const NONE: u32 = u32::MAX;

/// The registrations with one key, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitList {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Default for WaitList {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl WaitList {
    pub(super) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}
