//! Pending waits. A wait is registered with each of its missing keys. The registrations of a key form a list in
//! order of arrival, those that take no item first; those of a wait form a chain, so that a wait that ends can leave all
//! lists.

use super::slot::{NONE, SlotId};
use super::slots::Slots;
use crate::ids::WaiterId;
use crate::limits::EngineLimits;
use alloc::vec::Vec;
use slab::Slab;

/// What ends a wait besides a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitKind {
    /// Any item of the queue. The waiter takes none, so one item ends all these waits.
    Presence,
    /// An item that the waiter may take, so one item ends one of these waits. A c10d client waits before it takes an
    /// item, and its WAIT does not say for what.
    Item,
}

#[derive(Debug)]
struct Wait {
    /// `None` once the waiter has given it up: then it releases nothing, and its registrations are freed in steps.
    waiter: Option<WaiterId>,
    kind: WaitKind,
    /// Whether further keys follow, so that the wait does not end yet.
    is_partial: bool,
    /// Number of keys that have not been set yet.
    missing: u32,
    /// First of the chain of this wait's registrations.
    first: u32,
    /// Next of the chain of this waiter's waits.
    next_of_waiter: u32,
}

#[derive(Debug)]
struct Registration {
    wait: u32,
    slot: SlotId,
    /// Neighbours in the list of the key.
    previous: u32,
    next: u32,
    /// Neighbours in the chain of the wait.
    previous_of_wait: u32,
    next_of_wait: u32,
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: Slab<Wait>,
    registrations: Slab<Registration>,
    /// Newest wait of each connection, by the connection's table index. A closed connection has no waits, so the
    /// next connection with the same index starts with none.
    of_conn: Vec<u32>,
    /// Newest wait of each request, by the request's table index.
    of_request: Vec<u32>,
    /// Waits that were given up and are still to be freed.
    ended: Vec<u32>,
}

impl Waits {
    pub(super) fn len(&self) -> usize {
        self.waits.len() - self.ended.len()
    }

    pub(super) const fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn registrations(&self) -> usize {
        self.registrations.len()
    }

    /// # Errors
    /// The limit that one more wait on `keys` keys would exceed, or the waiter's partial wait with so many more.
    pub(super) fn check_capacity(
        &self,
        waiter: WaiterId,
        keys: usize,
        limits: &EngineLimits,
    ) -> Result<(), usize> {
        if self.registrations.len() + keys > limits.registrations_max {
            return Err(limits.registrations_max);
        }
        let (mut count, mut registrations) = (0, keys);
        let mut next = self.newest(waiter);
        while next != NONE {
            let wait = &self.waits[next as usize];
            count += usize::from(!wait.is_partial);
            registrations += wait.missing as usize;
            next = wait.next_of_waiter;
        }
        if count >= limits.waits_per_connection_max {
            return Err(limits.waits_per_connection_max);
        }
        if registrations > limits.registrations_per_connection_max {
            return Err(limits.registrations_per_connection_max);
        }
        Ok(())
    }

    /// Returns the wait of the waiter to which keys are still being added.
    pub(super) fn partial(&self, waiter: WaiterId) -> Option<u32> {
        let newest = self.newest(waiter);
        (newest != NONE && self.waits[newest as usize].is_partial).then_some(newest)
    }

    pub(super) fn open(&mut self, waiter: WaiterId, kind: WaitKind) -> u32 {
        let next_of_waiter = self.newest(waiter);
        let opened =
            Wait { waiter: Some(waiter), kind, is_partial: false, missing: 0, first: NONE, next_of_waiter };
        let wait = as_link(self.waits.insert(opened));
        let (table, table_index) = self.locate(waiter);
        if table.len() <= table_index {
            table.resize(table_index + 1, NONE);
        }
        table[table_index] = wait;
        wait
    }

    /// Adds a wait that does not end before [`Waits::complete`], because its keys are added in several parts.
    pub(super) fn open_partial(&mut self, waiter: WaiterId, kind: WaitKind) -> u32 {
        let wait = self.open(waiter, kind);
        self.waits[wait as usize].is_partial = true;
        wait
    }

    /// Notes that a wait has all its keys. Returns whether none of them is missing; then the wait has ended.
    pub(super) fn complete(&mut self, wait_id: u32, waiter: WaiterId) -> bool {
        let wait = &mut self.waits[wait_id as usize];
        wait.is_partial = false;
        let has_ended = wait.missing == 0;
        if has_ended {
            self.close(wait_id, waiter);
        }
        has_ended
    }

    fn newest(&self, waiter: WaiterId) -> u32 {
        let newest = match waiter {
            WaiterId::Conn(conn) => self.of_conn.get(conn.index as usize),
            WaiterId::Request(table_index) => self.of_request.get(table_index as usize),
        };
        newest.copied().unwrap_or(NONE)
    }

    const fn locate(&mut self, waiter: WaiterId) -> (&mut Vec<u32>, usize) {
        match waiter {
            WaiterId::Conn(conn) => (&mut self.of_conn, conn.index as usize),
            WaiterId::Request(table_index) => (&mut self.of_request, table_index as usize),
        }
    }

    /// Returns whether the wait to which keys are being added misses this one already, because its list names it twice. If the
    /// list is added in several parts, and another wait for the key came between them, it may not be found. Then the wait needs
    /// two items if the key is a queue.
    pub(super) fn is_registered(&self, wait: u32, slot: SlotId, slots: &Slots) -> bool {
        let list = &slots[slot].waiters;
        let newest = match self.waits[wait as usize].kind {
            WaitKind::Item => list.tail,
            WaitKind::Presence => list.presence_tail,
        };
        newest != NONE && self.registrations[newest as usize].wait == wait
    }

    /// Adds a registration to the list of a key, after those of its kind.
    pub(super) fn register(&mut self, wait: u32, slot: SlotId, slots: &mut Slots) {
        let list = &mut slots[slot].waiters;
        let Wait { kind, first: next_of_wait, .. } = self.waits[wait as usize];
        let (previous, next) = match (kind, list.presence_tail) {
            (WaitKind::Item, _) => (list.tail, NONE),
            (WaitKind::Presence, NONE) => (NONE, list.head),
            (WaitKind::Presence, tail) => (tail, self.registrations[tail as usize].next),
        };
        let id = as_link(self.registrations.insert(Registration {
            wait,
            slot,
            previous,
            next,
            previous_of_wait: NONE,
            next_of_wait,
        }));
        match previous {
            NONE => list.head = id,
            previous => self.registrations[previous as usize].next = id,
        }
        match next {
            NONE => list.tail = id,
            next => self.registrations[next as usize].previous = id,
        }
        if kind == WaitKind::Presence {
            list.presence_tail = id;
        }
        if next_of_wait != NONE {
            self.registrations[next_of_wait as usize].previous_of_wait = id;
        }
        let wait = &mut self.waits[wait as usize];
        wait.first = id;
        wait.missing += 1;
    }

    /// Removes all registrations with a key that was set. Adds the waits with no missing key left to `released`.
    #[inline]
    pub(super) fn satisfy_all(&mut self, slot: SlotId, slots: &mut Slots, released: &mut Vec<WaiterId>) {
        while !slots[slot].waiters.is_empty() {
            self.satisfy_oldest(slot, slots, released);
        }
    }

    /// Ends the waits for the presence of a key, after an item was queued. Those that miss other keys keep waiting for
    /// them.
    pub(super) fn satisfy_presence(&mut self, slot: SlotId, slots: &mut Slots, released: &mut Vec<WaiterId>) {
        while slots[slot].waiters.presence_tail != NONE {
            self.satisfy_oldest(slot, slots, released);
        }
    }

    /// Releases the oldest wait for an item that misses no other key. The waits before it have seen the item too, and
    /// keep waiting for their other keys.
    pub(super) fn release_first(&mut self, slot: SlotId, slots: &mut Slots, released: &mut Vec<WaiterId>) {
        let before = released.len();
        while released.len() == before && !slots[slot].waiters.is_empty() {
            self.satisfy_oldest(slot, slots, released);
        }
    }

    fn satisfy_oldest(&mut self, slot: SlotId, slots: &mut Slots, released: &mut Vec<WaiterId>) {
        let wait_id = self.unlink(slots[slot].waiters.head, slots);
        let wait = &mut self.waits[wait_id as usize];
        wait.missing -= 1;
        if wait.missing == 0
            && !wait.is_partial
            && let Some(waiter) = wait.waiter
        {
            released.push(waiter);
            self.close(wait_id, waiter);
        }
    }

    /// Removes a registration from the list of its key and the chain of its wait. Returns the wait.
    fn unlink(&mut self, id: u32, slots: &mut Slots) -> u32 {
        let removed = self.registrations.remove(id as usize);
        let list = &mut slots[removed.slot].waiters;
        if list.presence_tail == id {
            // What precedes it in the list is of the same kind.
            list.presence_tail = removed.previous;
        }
        match removed.previous {
            NONE => list.head = removed.next,
            previous => self.registrations[previous as usize].next = removed.next,
        }
        match removed.next {
            NONE => list.tail = removed.previous,
            next => self.registrations[next as usize].previous = removed.previous,
        }
        match removed.previous_of_wait {
            NONE => self.waits[removed.wait as usize].first = removed.next_of_wait,
            previous => self.registrations[previous as usize].next_of_wait = removed.next_of_wait,
        }
        if removed.next_of_wait != NONE {
            self.registrations[removed.next_of_wait as usize].previous_of_wait = removed.previous_of_wait;
        }
        removed.wait
    }

    /// Removes the oldest registration with a key that can no longer be set. Returns its waiter, whose waits it has given
    /// up, unless they had ended.
    pub(super) fn fail_oldest(&mut self, slot: SlotId, slots: &mut Slots) -> Option<WaiterId> {
        let wait = self.unlink(slots[slot].waiters.head, slots);
        let waiter = self.waits[wait as usize].waiter?;
        self.give_up(waiter);
        Some(waiter)
    }

    /// Releases the memory for connections with a table index of `places` or more, which are closed.
    pub(super) fn forget_places(&mut self, places: usize) {
        self.of_conn.truncate(places);
        self.of_conn.shrink_to(places);
    }

    /// Ends all waits of a waiter: nothing releases them any more. [`Waits::free_some`] frees them.
    pub(super) fn give_up(&mut self, waiter: WaiterId) {
        let mut next = self.newest(waiter);
        if next == NONE {
            return;
        }
        let (table, table_index) = self.locate(waiter);
        table[table_index] = NONE;
        while next != NONE {
            self.ended.push(next);
            let wait = &mut self.waits[next as usize];
            wait.waiter = None;
            next = wait.next_of_waiter;
        }
    }

    /// Frees up to `count_max` registrations of waits that were given up, the latest first.
    pub(super) fn free_some(&mut self, count_max: usize, slots: &mut Slots) {
        for _ in 0..count_max {
            let Some(&wait) = self.ended.last() else { break };
            let id = self.waits[wait as usize].first;
            if id != NONE {
                let slot = self.registrations[id as usize].slot;
                self.unlink(id, slots);
                slots.release_if_idle(slot);
            }
            if self.waits[wait as usize].first == NONE {
                self.ended.pop();
                self.waits.remove(wait as usize);
            }
        }
        // Releases the memory that a burst of waiters has taken.
        if self.registrations.is_empty() && self.registrations.capacity() > 4096 {
            self.registrations.shrink_to_fit();
            self.waits.shrink_to_fit();
            if self.waits.is_empty() {
                self.of_request = Vec::new();
            }
        }
    }

    fn close(&mut self, wait: u32, waiter: WaiterId) {
        let ended = self.waits.remove(wait as usize);
        let (table, table_index) = self.locate(waiter);
        let first = &mut table[table_index];
        if *first == wait {
            *first = ended.next_of_waiter;
            return;
        }
        let mut before = *first;
        while before != NONE {
            let next = self.waits[before as usize].next_of_waiter;
            if next == wait {
                self.waits[before as usize].next_of_waiter = ended.next_of_waiter;
                return;
            }
            before = next;
        }
    }
}

fn as_link(index: usize) -> u32 {
    // invariant: registrations_max and the number of connections keep the tables far below 2^32 entries
    u32::try_from(index).expect("the limits keep the table small")
}
