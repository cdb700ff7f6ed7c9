//! The key/value engine: keys, values, revisions, queues, and waiters.
//!
//! The engine knows neither the wire format nor connections; a connection is only the id of a waiter. One call of
//! [`Engine::apply`] is atomic. The engine behaves as PyTorch 2.15's server does towards correct clients (c10d
//! protocol, section 4), with these intended differences: a MULTI_SET, or each part of it, is atomic; a COMPARE_SET that stores nothing
//! wakes no waiter; a waiter that a queue push released is removed from that queue's list; a WAIT on a non-empty
//! queue and a missing key is released when the key is set.

mod ahead;
mod distinct;
mod fences;
mod growth;
mod history;
mod leases;
mod listing;
mod native;
mod order;
mod prefixes;
mod queue;
mod slot;
mod slots;
mod value;
mod waits;

pub use crate::store::value_ref::ValueRef;
pub use fences::Stale;
pub use history::{ChangeRef, WatchError, WatchId, Watched};
pub use leases::{LeaseError, LeaseId};
pub use listing::Listing;
pub use native::{LeasedKeys, PrefixRemoved, PrefixScan, Removal, TxnApplied};
pub use value::KeptValue;

use crate::ids::WaiterId;
use crate::limits::{EngineLimits, ITEM_COST_BYTES, KEY_COST_BYTES};
use crate::prelude::*;
use crate::store::number;
use crate::store::op::{Key, Keys, Pairs, Request};
use core::cell::Cell;
use fences::Fences;
use native::Extras;
use slot::{NONE, SlotId};
use slots::Slots;
use value::Value;
use waits::{WaitKind, Waits};

/// Answer to a request.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The protocol has no reply to this request.
    Nothing,
    /// A number.
    Number(i64),
    /// A value.
    Value(ValueRef<'a>),
    /// Values in the order of their keys.
    Values(Values<'a>),
    /// Whether every key existed.
    Readiness(Readiness),
    /// The wait or barrier has already ended.
    Released,
    /// The connection waits; a later call names it in [`Applied::released`].
    Parked,
    /// The waits of the connection, if any, were cancelled.
    WaitCanceled,
    /// The length of a queue before the pop, and the item that was at its front.
    Popped {
        /// Items in the queue before this pop.
        length_before: i64,
        /// The item; the caller owns it.
        item: Option<Box<[u8]>>,
    },
    /// All keys, sorted.
    KeyList(Box<Listing>),
}

/// Result of a CHECK: whether all keys exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Readiness {
    Ready,
    NotReady,
}

/// Position of a part in its request.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PartPosition {
    pub is_first: bool,
    pub is_last: bool,
}

impl PartPosition {
    /// A request that is applied as a whole.
    pub const WHOLE: Self = Self { is_first: true, is_last: true };
}

/// Result of applying one request.
#[derive(Debug)]
pub struct Applied<'a> {
    /// The answer to the requester.
    pub answer: Answer<'a>,
    /// Waiters whose wait or barrier this request ended, in order of arrival, native requests first. A waiter is listed
    /// once for each of its waits. Their replies must be sent before `answer`.
    pub released: &'a [WaiterId],
}

/// Error of a request. The c10d protocol has no error reply, so the server closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// ADD or BARRIER on a value that does not begin with a 64-bit decimal number.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber,
    /// The store has reached its maximum size, in bytes.
    #[error("the store is full ({0} bytes)")]
    Full(u64),
    /// One transaction or batch would remove more keys than this.
    #[error(
        "more than {0} keys begin with the prefixes or were just added: remove them outside transactions and batches"
    )]
    TooManyKeys(usize),
    /// One connection, or all of them together, have too many pending waits.
    #[error("too many pending waits ({0})")]
    TooManyWaits(usize),
    /// The key belongs to a round that has ended.
    #[error("round {} is over, and so are all up to {}: its keys can no longer be changed", .0.round, .0.over)]
    Stale(Stale),
}

/// Values of several keys.
#[derive(Debug)]
pub struct Values<'a> {
    slots: &'a Slots,
    found: &'a [SlotId],
}

impl<'a> Values<'a> {
    /// Returns the values in order; the value of a missing key is empty.
    pub fn iter(&self) -> impl Iterator<Item = ValueRef<'a>> + use<'a> {
        let Self { slots, found } = *self;
        found.iter().map(|&id| if id == NONE { ValueRef::Bytes(b"") } else { slots[id].value.as_ref() })
    }
}

/// Capacity that the list of slots keeps when a shorter MULTI_GET follows.
const FOUND_KEPT: usize = 1024;

/// Key/value store of one server.
#[derive(Debug)]
pub struct Engine {
    slots: Slots,
    waits: Waits,
    /// Waiters that the current request released.
    released: Vec<WaiterId>,
    /// Slots of the keys of the current MULTI_GET; [`NONE`] for a missing key.
    found: Vec<SlotId>,
    /// Buffer to join a key that is in several pieces.
    joined: Vec<u8>,
    /// Revision of the last change.
    revision: u64,
    /// Bytes that are charged for attached keys.
    leased_bytes: u64,
    limits: EngineLimits,
    /// Work since [`Engine::take_work`] was last called.
    work: Cell<u64>,
    /// Part of that work that ends waits of others than the requester.
    work_for_others: Cell<u64>,
    /// History, watches and leases; created by the first native session.
    extras: Option<Box<Extras>>,
    /// Fences; created when the first round ends.
    fences: Option<Box<Fences>>,
}

impl Engine {
    /// Creates an empty store. `hash_key` must be secret: it is the key of the table's hash, and has no visible effect.
    pub fn new(limits: EngineLimits, hash_key: u128) -> Self {
        Self {
            slots: Slots::new(hash_key),
            waits: Waits::default(),
            released: Vec::new(),
            found: Vec::new(),
            joined: Vec::new(),
            revision: 0,
            leased_bytes: 0,
            limits,
            work: Cell::new(0),
            work_for_others: Cell::new(0),
            extras: None,
            fences: None,
        }
    }

    /// Returns this store, which is empty, at another revision than 0.
    #[must_use]
    pub const fn at_revision(mut self, revision: u64) -> Self {
        self.revision = revision;
        self
    }

    /// Returns the revision of the store. It grows by one with each change.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the revision at which `key` last changed, or `None` when the key does not exist.
    pub fn revision_of(&self, key: &[u8]) -> Option<u64> {
        let slot = &self.slots[self.slots.find(key)?];
        (!matches!(slot.value, Value::Absent)).then_some(slot.revision)
    }

    /// Returns the number of keys with a value.
    pub const fn key_count(&self) -> usize {
        self.slots.present()
    }

    /// Returns the bytes that are charged for keys, values and queued items.
    pub const fn stored_bytes(&self) -> u64 {
        self.slots.stored_bytes() + self.leased_bytes
    }

    /// Returns the bytes of long values that only unsent answers still hold, but for at most those that the history's
    /// own limit allows.
    pub fn orphaned_bytes(&self) -> u64 {
        let history = self.extras.as_ref().map_or(0, |extras| extras.history_bytes());
        self.slots.orphaned_bytes().saturating_sub(history)
    }

    /// Returns the number of pending waits and barriers.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Returns the work since the last call, in the units of [`work_per_input_max`](crate::limits::ServerLimits::work_per_input_max).
    pub fn take_work(&self) -> u64 {
        self.work.take()
            + self.slots.take_work()
            + self.fences.as_ref().map_or(0, |fences| fences.take_work())
    }

    /// Returns the part of the work since the last call of this that ended waits of others than the requester.
    pub fn take_work_for_others(&self) -> u64 {
        self.work_for_others.take()
    }

    #[inline]
    fn count_work(&self, units: u64) {
        self.work.set(self.work.get() + units);
    }

    /// Counts the waits that a request has ended: as many as there were `before`, less those that are left.
    #[inline]
    fn count_ended_waits(&self, before: usize) {
        self.count_work_for_others((before - self.waits.registrations()) as u64);
    }

    /// Returns the number of table entries that keys, queues and waiters occupy; 0 for an empty store.
    pub fn footprint(&self) -> usize {
        self.slots.len() + self.waits.len() + self.waits.registrations()
    }

    /// Applies one request of `waiter`.
    ///
    /// # Errors
    /// The reason that the request fails; the store is unchanged.
    pub fn apply<'a>(
        &'a mut self,
        waiter: impl Into<WaiterId>,
        request: &Request<'a>,
    ) -> Result<Applied<'a>, ApplyError> {
        self.apply_part(waiter, request, PartPosition::WHOLE)
    }

    /// Applies one request of `waiter`, or a part of its long list. A wait ends at its last part at the earliest. The waiter has no
    /// other requests between the parts.
    ///
    /// # Errors
    /// The reason that the request fails; this part has not changed the store.
    #[inline]
    pub fn apply_part<'a>(
        &'a mut self,
        waiter: impl Into<WaiterId>,
        request: &Request<'a>,
        part: PartPosition,
    ) -> Result<Applied<'a>, ApplyError> {
        self.execute(waiter.into(), request, part)
    }

    fn execute<'a>(
        &'a mut self,
        waiter: WaiterId,
        request: &Request<'a>,
        part: PartPosition,
    ) -> Result<Applied<'a>, ApplyError> {
        self.released.clear();
        self.count_work(work_of(request));
        if self.fences.is_some() {
            self.check_fences(request)?;
        }
        let answer = match *request {
            Request::Set { key, value } => self.set(key, value)?,
            Request::CompareSet { key, expected, desired } => {
                return self.compare_set(key, expected, desired);
            }
            Request::Get { key } => {
                let value = self.slots.value(contiguous_key(key, &mut self.joined));
                return Ok(Applied { answer: Answer::Value(value), released: &self.released });
            }
            Request::Add { key, delta } => self.add(key, delta)?,
            Request::Check { keys } => Answer::Readiness(self.check(keys)),
            Request::Wait { keys } => self.wait(waiter, keys, part)?,
            Request::NumKeys => Answer::Number(i64::try_from(self.slots.present()).unwrap_or(i64::MAX)),
            Request::Delete { key } => self.delete(key),
            Request::Append { key, value } => self.append(key, value)?,
            Request::MultiGet { keys } => {
                let (slots, joined) = (&self.slots, &mut self.joined);
                self.found.clear();
                self.found.shrink_to(FOUND_KEPT.max(keys.len()));
                self.found.reserve(keys.len());
                let mut ahead = keys.iter();
                for (number, key) in keys.iter().enumerate() {
                    slots.read_ahead(number, &mut || ahead.next());
                    self.found.push(slots.find(contiguous_key(key, joined)).unwrap_or(NONE));
                }
                let values = Values { slots, found: &self.found };
                return Ok(Applied { answer: Answer::Values(values), released: &self.released });
            }
            Request::MultiSet { pairs } => self.multi_set(pairs)?,
            Request::CancelWait => {
                self.forget_waits(waiter);
                Answer::WaitCanceled
            }
            Request::QueuePush { key, value } => self.queue_push(key, value)?,
            Request::QueuePop { key } => self.queue_pop(key),
            Request::QueueLen { key } => self.queue_len(key),
            Request::ListKeys => {
                let mut listing = self.list(b"", b"", u64::MAX, usize::MAX);
                while !self.list_some(&mut listing, usize::MAX) {}
                Answer::KeyList(Box::new(listing))
            }
            Request::Barrier { key, world_size } => self.barrier(waiter, key, world_size)?,
        };
        Ok(Applied { answer, released: &self.released })
    }

    /// Prepares a transaction that removes keys with a prefix, by a look at up to `keys_max` keys. Returns whether that is
    /// done. Until then such a transaction takes as long as the rest of it, and counts keys of waits that have ended.
    ///
    /// A request that may add many keys has to wait for it, too, if [`Engine::has_unordered`].
    pub fn order_keys(&mut self, keys_max: usize) -> bool {
        self.free_waits(keys_max);
        self.slots.order_some(keys_max) && !self.waits.has_ended()
    }

    /// Returns whether requests have added more keys than they have put in order. Further requests that add many would make
    /// those that need the order wait without end.
    pub fn has_unordered(&self) -> bool {
        self.slots.added_unordered() > 0
    }

    /// Releases the memory for connections with a table index of `places` or more; the caller has none of those
    /// left.
    pub fn forget_places(&mut self, places: usize) {
        self.waits.forget_places(places);
    }

    /// Ends all waits of a waiter that has disconnected or cancels. Its barrier arrivals stay counted. If it waits for
    /// many keys, [`Engine::free_some`] has to free the rest.
    pub fn forget_waits(&mut self, waiter: impl Into<WaiterId>) {
        self.waits.give_up(waiter.into());
        self.free_some(FREED_AT_ONCE);
    }

    /// Returns whether something that has ended is still to be freed, though no request sees it any more.
    pub const fn has_to_free(&self) -> bool {
        self.waits.has_ended() || self.slots.has_dropped()
    }

    /// Frees a part of what has ended: the places of up to `count_max` keys in waits, and as many pages of values.
    pub fn free_some(&mut self, count_max: usize) {
        self.free_waits(count_max);
        let freed = self.slots.free_some(count_max);
        self.count_work_for_others(freed as u64);
    }

    fn free_waits(&mut self, count_max: usize) {
        let before = self.waits.registrations();
        self.waits.free_some(count_max, &mut self.slots);
        self.count_work_for_others(2 * (before - self.waits.registrations()) as u64);
    }

    /// Counts work that is not that of the connection which is served.
    fn count_work_for_others(&self, work: u64) {
        self.count_work(work);
        self.work_for_others.set(self.work_for_others.get() + work);
    }

    /// Checks the capacity for a wait for so many keys.
    fn check_waits(&mut self, waiter: WaiterId, keys: usize) -> Result<(), ApplyError> {
        if self.waits.registrations() + keys > self.limits.registrations_max {
            self.free_some(keys);
        }
        self.waits.check_capacity(waiter, keys, &self.limits).map_err(ApplyError::TooManyWaits)
    }

    fn set(&mut self, key: Key<'_>, value: &[u8]) -> Result<Answer<'static>, ApplyError> {
        self.capacity_to_replace(key, value.len())?;
        self.set_unchecked(key, value);
        Ok(Answer::Nothing)
    }

    /// Sets a value for which there is capacity.
    fn set_unchecked(&mut self, key: Key<'_>, value: &[u8]) {
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        self.store(slot, value);
    }

    fn multi_set(&mut self, pairs: Pairs<'_>) -> Result<Answer<'static>, ApplyError> {
        let gross = pairs.iter().map(|(key, value)| cost(key, value.len())).sum();
        if self.check_capacity(gross).is_err() {
            self.count_work(pairs.len() as u64);
            let mut list = pairs.iter().map(|(key, value)| (key, value.len()));
            let mut ahead = pairs.iter().map(|(key, _)| key);
            let more = self.slots.growth(&mut list, &mut || ahead.next(), &|slot| slot.value.len());
            self.check_growth(more.bytes)?;
        }
        let mut ahead = pairs.iter().map(|(key, _)| key);
        for (number, (key, value)) in pairs.iter().enumerate() {
            self.slots.read_ahead(number, &mut || ahead.next());
            self.set_unchecked(key, value);
        }
        Ok(Answer::Nothing)
    }

    fn compare_set<'a>(
        &'a mut self,
        key: Key<'_>,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> Result<Applied<'a>, ApplyError> {
        let whole = contiguous_key(key, &mut self.joined);
        let found = self.slots.find(whole).filter(|&slot| !matches!(self.slots[slot].value, Value::Absent));
        let answer = match found {
            Some(slot) if self.slots[slot].value.as_ref().equals(expected) => {
                self.capacity_to_replace(key, desired.len())?;
                self.store(slot, desired);
                ValueRef::Bytes(desired)
            }
            Some(slot) => self.slots[slot].value.as_ref(),
            None if expected.is_empty() => {
                self.capacity_to_replace(key, desired.len())?;
                let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
                self.store(slot, desired);
                ValueRef::Bytes(desired)
            }
            // Nothing is created, and `expected` is returned: indistinguishable from success, as in PyTorch.
            None => ValueRef::Bytes(expected),
        };
        Ok(Applied { answer: Answer::Value(answer), released: &self.released })
    }

    #[inline]
    fn add(&mut self, key: Key<'_>, delta: i64) -> Result<Answer<'static>, ApplyError> {
        self.capacity_to_replace(key, number::DIGITS_MAX)?;
        self.add_unchecked(key, delta)
    }

    /// Adds to a number for which there is capacity.
    #[inline]
    fn add_unchecked(&mut self, key: Key<'_>, delta: i64) -> Result<Answer<'static>, ApplyError> {
        let (slot, current) = self.counter(key)?;
        let sum = current.wrapping_add(delta);
        self.count(slot, sum);
        self.wake_all(slot);
        Ok(Answer::Number(sum))
    }

    fn append(&mut self, key: Key<'_>, more: &[u8]) -> Result<Answer<'static>, ApplyError> {
        if self.check_capacity(cost(key, more.len())).is_err() {
            let slot = self.slots.find(contiguous_key(key, &mut self.joined));
            let value = slot.map(|slot| &self.slots[slot].value);
            let grown = cost(key, value.map_or(0, Value::text_bytes) + more.len());
            let held = value.map_or(0, |value| cost(key, value.len()));
            self.check_growth(grown.saturating_sub(held))?;
        }
        self.append_unchecked(key, more);
        Ok(Answer::Nothing)
    }

    /// Appends to a value for which there is capacity.
    fn append_unchecked(&mut self, key: Key<'_>, more: &[u8]) {
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        self.revision += 1;
        self.slots.change(slot, self.revision, |value, meter| value.append(more, meter));
        self.changed(slot);
        self.wake_all(slot);
    }

    fn delete(&mut self, key: Key<'_>) -> Answer<'static> {
        let Some(slot) = self.slots.find(contiguous_key(key, &mut self.joined)) else {
            return Answer::Number(0);
        };
        if matches!(self.slots[slot].value, Value::Absent) {
            return Answer::Number(0);
        }
        // A removal in steps counts its keys itself.
        self.count_work(self.slots.removal_work());
        self.clear(slot);
        Answer::Number(1)
    }

    /// Removes the value of a slot that has one.
    fn clear(&mut self, slot: SlotId) {
        self.revision += 1;
        self.slots.replace(slot, self.revision, |value, _| *value = Value::Absent);
        self.changed(slot);
        self.slots.release_if_idle(slot);
    }

    fn check(&mut self, keys: Keys<'_>) -> Readiness {
        if self.first_missing(keys).is_none() { Readiness::Ready } else { Readiness::NotReady }
    }

    /// Returns the position of the first key that has neither a value nor a queued item.
    fn first_missing(&mut self, keys: Keys<'_>) -> Option<usize> {
        let mut ahead = keys.iter();
        for (number, key) in keys.iter().enumerate() {
            self.slots.read_ahead(number, &mut || ahead.next());
            if !self.slots.is_ready(contiguous_key(key, &mut self.joined)) {
                return Some(number);
            }
        }
        None
    }

    fn wait(
        &mut self,
        waiter: WaiterId,
        keys: Keys<'_>,
        part: PartPosition,
    ) -> Result<Answer<'static>, ApplyError> {
        let kind = match waiter {
            WaiterId::Conn(_) => WaitKind::Item,
            WaiterId::Request(_) => WaitKind::Presence,
        };
        let mut wait = self.waits.partial(waiter);
        if part.is_first && !part.is_last {
            self.check_waits(waiter, 0)?;
            wait = Some(self.waits.open_partial(waiter, kind));
        } else if !part.is_first && wait.is_none() {
            // It has been given up since the first part: its client has ended, or one of its keys can no longer be set.
            return Ok(Answer::Parked);
        }
        if let Some(first) = self.first_missing(keys) {
            // It frees what has ended, so it comes before the growth is computed.
            self.check_waits(waiter, keys.len())?;
            let gross = keys.iter().map(|key| cost(key, 0)).sum();
            if self.check_capacity(gross).is_err() {
                self.count_work(keys.len() as u64);
                // Keys that are in the table keep their values.
                let mut ahead = keys.iter();
                let mut list = keys.iter().map(|key| (key, 0));
                let more = self.slots.growth(&mut list, &mut || ahead.next(), &|_| 0);
                self.check_growth(more.bytes)?;
            }
            let wait = *wait.get_or_insert_with(|| self.waits.open(waiter, kind));
            let mut ahead = keys.iter().skip(first);
            for (number, key) in keys.iter().skip(first).enumerate() {
                self.slots.read_ahead(number, &mut || ahead.next());
                let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
                if !self.slots[slot].is_ready() && !self.waits.is_registered(wait, slot, &self.slots) {
                    self.waits.register(wait, slot, &mut self.slots);
                }
            }
        }
        Ok(match wait {
            _ if !part.is_last => Answer::Nothing,
            Some(wait) if !self.waits.complete(wait, waiter) => Answer::Parked,
            _ => Answer::Released,
        })
    }

    fn barrier(
        &mut self,
        waiter: WaiterId,
        key: Key<'_>,
        world_size: i64,
    ) -> Result<Answer<'static>, ApplyError> {
        self.check_waits(waiter, 1)?;
        self.capacity_to_replace(key, number::DIGITS_MAX)?;
        let (slot, arrived) = self.counter(key)?;
        let arrived = arrived.wrapping_add(1);
        self.count(slot, arrived);
        if arrived >= world_size {
            self.wake_all(slot);
            return Ok(Answer::Released);
        }
        let wait = self.waits.open(waiter, WaitKind::Item);
        self.waits.register(wait, slot, &mut self.slots);
        Ok(Answer::Parked)
    }

    fn queue_push(&mut self, key: Key<'_>, item: &[u8]) -> Result<Answer<'static>, ApplyError> {
        self.check_capacity_beside(key, item.len() as u64 + ITEM_COST_BYTES)?;
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        self.slots.push_item(slot, item);
        self.revision += 1;
        if !self.slots.is_present(slot) {
            self.slots[slot].revision = self.revision;
        }
        let before = self.waits.registrations();
        self.waits.satisfy_presence(slot, &mut self.slots, &mut self.released);
        self.waits.release_first(slot, &mut self.slots, &mut self.released);
        self.count_ended_waits(before);
        Ok(Answer::Nothing)
    }

    fn queue_pop(&mut self, key: Key<'_>) -> Answer<'static> {
        let Some(slot) = self.slots.find(contiguous_key(key, &mut self.joined)) else {
            return Answer::Popped { length_before: 0, item: None };
        };
        let length_before = self.slots.queue_len(slot);
        let item = self.slots.pop_item(slot);
        self.revision += u64::from(item.is_some());
        self.slots.release_if_idle(slot);
        Answer::Popped { length_before, item }
    }

    fn queue_len(&mut self, key: Key<'_>) -> Answer<'static> {
        let slot = self.slots.find(contiguous_key(key, &mut self.joined));
        Answer::Number(slot.map_or(0, |slot| self.slots.queue_len(slot)))
    }

    /// Returns the number under `key`, 0 when there is none; creates the slot.
    #[inline]
    fn counter(&mut self, key: Key<'_>) -> Result<(SlotId, i64), ApplyError> {
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        let current = self.slots[slot].value.as_number().ok_or(ApplyError::NotANumber)?;
        Ok((slot, current))
    }

    #[inline]
    fn count(&mut self, slot: SlotId, number: i64) {
        self.revision += 1;
        self.slots.replace(slot, self.revision, |value, _| *value = Value::Number(number));
        self.changed(slot);
    }

    #[inline]
    fn store(&mut self, slot: SlotId, bytes: &[u8]) {
        self.revision += 1;
        self.slots.replace(slot, self.revision, |value, meter| value.set(bytes, meter));
        self.changed(slot);
        self.wake_all(slot);
    }

    /// Records a changed value in the history, if there is one.
    #[inline]
    fn changed(&mut self, slot: SlotId) {
        if self.extras.is_some() {
            self.record(slot);
        }
    }

    #[inline]
    fn wake_all(&mut self, slot: SlotId) {
        let before = self.waits.registrations();
        self.waits.satisfy_all(slot, &mut self.slots, &mut self.released);
        self.count_ended_waits(before);
    }

    /// Checks the capacity to replace the value of `key` by one of `bytes` bytes. A value that does not grow always
    /// fits.
    #[inline]
    fn capacity_to_replace(&mut self, key: Key<'_>, bytes: usize) -> Result<(), ApplyError> {
        let gross = cost(key, bytes);
        self.check_capacity(gross).or_else(|_| {
            let held = self.held(key);
            self.check_growth(gross.saturating_sub(held))
        })
    }

    /// Checks the capacity for `more` bytes in addition to the current value of `key`.
    fn check_capacity_beside(&mut self, key: Key<'_>, more: u64) -> Result<(), ApplyError> {
        self.check_capacity(cost(key, 0) + more).or_else(|_| {
            let held = self.held(key).min(cost(key, 0));
            self.check_growth(cost(key, 0) + more - held)
        })
    }

    /// Returns what is currently charged for a key and its value, in bytes.
    fn held(&mut self, key: Key<'_>) -> u64 {
        let slot = self.slots.find(contiguous_key(key, &mut self.joined));
        slot.map_or(0, |slot| cost(key, self.slots[slot].value.len()))
    }

    #[inline]
    fn check_capacity(&mut self, more: u64) -> Result<(), ApplyError> {
        if self.has_capacity(more) { Ok(()) } else { self.make_capacity(more) }
    }

    /// Checks the capacity for a growth that was computed key by key. It frees nothing: keys that counted as held may be held by
    /// ended waits only, and would be charged again.
    fn check_growth(&self, more: u64) -> Result<(), ApplyError> {
        if self.has_capacity(more) { Ok(()) } else { Err(ApplyError::Full(self.limits.stored_bytes_max)) }
    }

    #[inline]
    const fn has_capacity(&self, more: u64) -> bool {
        let held = self.stored_bytes() + self.slots.dropped_bytes();
        held.saturating_add(more) <= self.limits.stored_bytes_max
    }

    /// Frees what has ended until there is capacity for `more` bytes, but no more than fits into a turn.
    #[cold]
    fn make_capacity(&mut self, more: u64) -> Result<(), ApplyError> {
        for _ in 0..FREED_FOR_CAPACITY / FREED_AT_ONCE {
            self.free_some(FREED_AT_ONCE);
            if self.has_capacity(more) {
                return Ok(());
            }
            if !self.has_to_free() {
                break;
            }
        }
        Err(ApplyError::Full(self.limits.stored_bytes_max))
    }
}

/// Keys of an ended wait that are freed without delay.
const FREED_AT_ONCE: usize = 256;

/// Keys of ended waits, and pages of values, that one request frees at most because it needs their bytes.
const FREED_FOR_CAPACITY: usize = 64 * FREED_AT_ONCE;

/// Returns the work of a request, as far as the request itself shows it; copying its bytes is not counted.
#[inline]
pub fn work_of(request: &Request<'_>) -> u64 {
    match request {
        Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => keys.len() as u64,
        Request::MultiSet { pairs } => 3 * pairs.len() as u64,
        _ => 1,
    }
}

/// Returns the maximum charge of a key with a value of `value_bytes` bytes.
#[inline]
const fn cost(key: Key<'_>, value_bytes: usize) -> u64 {
    (key.len() + value_bytes) as u64 + KEY_COST_BYTES
}

/// Returns the key as one slice; joins it in `joined` if it has several pieces.
#[inline]
fn contiguous_key<'k>(key: Key<'k>, joined: &'k mut Vec<u8>) -> &'k [u8] {
    match key.as_contiguous() {
        Some(whole) => whole,
        None => {
            joined.clear();
            key.pieces().into_iter().for_each(|part| joined.extend_from_slice(part));
            joined
        }
    }
}

#[cfg(test)]
mod tests;
