//! What the native protocol asks of the engine beyond c10d: watches, leases, transactions, prefixes.
//!
//! None of it costs a c10d server anything but one look at whether it was ever asked for.

use super::fences::Fences;
use super::history::{ChangeRef, History, WatchError, WatchId, Watched};
use super::leases::{LeaseError, LeaseId, Leases};
use super::slot::SlotId;
use super::value::{Value, ValueRef};
use super::{ApplyError, Engine, KeyList, contiguous_key, cost, number};
use crate::ids::WaiterId;
use crate::limits::HistoryLimits;
use crate::ordered::Named;
use crate::store::op::{Key, Keys, Request};
use crate::store::txn::{Compare, Condition, Write};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Bound;

/// What native sessions need beside the keys.
#[derive(Debug)]
pub(super) struct Extras {
    limits: HistoryLimits,
    history: History,
    leases: Leases,
}

/// What became of the keys beneath a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixRemoved {
    /// So many keys are gone.
    pub removed: u64,
    /// So many keys stay: they are of rounds that are over.
    pub left: u64,
}

/// What becomes of keys behind a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fenced {
    Stays,
    Drop,
}

/// What a transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnApplied<'a> {
    /// Whether all conditions held.
    pub holds: bool,
    /// Those whose wait ended, as in [`super::Applied`].
    pub released: &'a [WaiterId],
}

impl Engine {
    /// Keeps a history of changes from here on, and makes room for watches and leases. Does nothing when it is there.
    pub fn start_history(&mut self, limits: HistoryLimits) {
        let revision = self.revision;
        self.extras.get_or_insert_with(|| {
            let history = History::new(limits, revision);
            Box::new(Extras { limits, history, leases: Leases::default() })
        });
        // Now, and not when the store has grown: native clients ask by prefix.
        self.slots.keep_order();
    }

    /// The oldest change that can be told of; `None` while there is no history.
    #[must_use]
    pub fn history_oldest(&self) -> Option<u64> {
        self.extras.as_ref().map(|extras| extras.history.oldest())
    }

    /// The value of a key and the revision at which it last changed, if it has one.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<(u64, ValueRef<'_>)> {
        let slot = &self.slots[self.slots.find(key)?];
        (!matches!(slot.value, Value::Absent)).then(|| (slot.revision, slot.value.as_ref()))
    }

    /// The first `count_max` keys in byte order that begin with `prefix` and come behind `after`, and whether there are
    /// more.
    #[must_use]
    pub fn page(&self, prefix: &[u8], after: &[u8], count_max: usize) -> (KeyList<'_>, bool) {
        let is_inside = !after.is_empty() && after >= prefix;
        let from = if is_inside { Bound::Excluded(after) } else { Bound::Included(prefix) };
        self.slots.with_scope(prefix, from, |all| {
            let mut following = all.filter(|&id| self.slots.is_present(id));
            let sorted = following.by_ref().take(count_max).collect();
            (KeyList { slots: &self.slots, sorted }, following.next().is_some())
        })
    }

    /// Removes all keys beneath a prefix, and the queues there. What is behind a fence stays.
    ///
    /// # Errors
    /// The prefix itself is behind a fence, and so is everything beneath it.
    pub fn delete_prefix(&mut self, prefix: &[u8]) -> Result<PrefixRemoved, ApplyError> {
        self.released.clear();
        self.check_fence(Key::raw(prefix))?;
        Ok(self.remove_prefix(prefix, Fenced::Stays))
    }

    /// From now on, nothing may change keys that begin with `stem`, a number up to `number`, and a slash.
    /// Who waits there waits in vain: they are returned, and wait no more.
    pub fn fence(&mut self, stem: &[u8], number: u64) -> Vec<WaiterId> {
        let fences = self.fences.get_or_insert_with(|| Box::new(Fences::default()));
        fences.raise(stem, number);
        let mut wait_failure = Vec::new();
        if self.waits.registrations() > 0 {
            self.slots.keep_order();
            self.slots.with_scope(stem, Bound::Included(stem), |all| {
                let awaited = all.map(|id| &self.slots[id]).filter(|slot| !slot.waiters.is_empty());
                for slot in awaited.filter(|slot| fences.find(&slot.key).is_some()) {
                    self.waits.list(&slot.waiters, &mut wait_failure);
                }
            });
        }
        wait_failure.iter().for_each(|&waiter| self.waits.forget(waiter, &mut self.slots));
        wait_failure
    }

    /// Takes the fence of these keys away: nobody will use them any more.
    pub fn lift_fence(&mut self, stem: &[u8]) {
        if let Some(fences) = &mut self.fences {
            fences.lift(stem);
        }
    }

    /// Removes all keys beneath a prefix, fenced or not: they are the caller's own.
    pub fn discard(&mut self, prefix: &[u8]) {
        self.released.clear();
        self.remove_prefix(prefix, Fenced::Drop);
    }

    /// Waits for an item of a queue, and for nothing else that its name may hold: `waiter` is named among those released
    /// when there is one for it, or when the name gets a value.
    ///
    /// # Errors
    /// There are too many waits, or the store is full.
    pub fn wait_for_item(&mut self, waiter: WaiterId, key: Key<'_>) -> Result<(), ApplyError> {
        self.released.clear();
        self.capacity_to_replace(key, 0)?;
        self.waits.check_capacity(waiter, 1, &self.limits).map_err(ApplyError::TooManyWaits)?;
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        let wait = self.waits.open(waiter);
        self.waits.register(wait, slot, &mut self.slots);
        Ok(())
    }

    /// Refuses a request that changes what is behind a fence. Out of line: only those come here that have fences.
    #[cold]
    pub(super) fn check_fences(&mut self, request: &Request<'_>) -> Result<(), ApplyError> {
        match *request {
            Request::Set { key, .. }
            | Request::CompareSet { key, .. }
            | Request::Add { key, .. }
            | Request::Delete { key }
            | Request::Append { key, .. }
            | Request::QueuePush { key, .. }
            | Request::QueuePop { key }
            | Request::Barrier { key, .. } => self.check_fence(key),
            Request::MultiSet { pairs } => pairs.iter().try_for_each(|(key, _)| self.check_fence(key)),
            // What is not there will never be.
            Request::Wait { keys } => keys.iter().try_for_each(|key| {
                let is_there = self.slots.is_ready(contiguous_key(key, &mut self.joined));
                if is_there { Ok(()) } else { self.check_fence(key) }
            }),
            Request::Get { .. }
            | Request::Check { .. }
            | Request::NumKeys
            | Request::MultiGet { .. }
            | Request::CancelWait
            | Request::QueueLen { .. }
            | Request::ListKeys => Ok(()),
        }
    }

    fn check_fence(&mut self, key: Key<'_>) -> Result<(), ApplyError> {
        let Some(fences) = &self.fences else { return Ok(()) };
        fences
            .find(contiguous_key(key, &mut self.joined))
            .map_or(Ok(()), |stale| Err(ApplyError::Stale(stale)))
    }

    /// Watches from a revision on; from now on when it is 0.
    ///
    /// # Errors
    /// The history is shorter, or there are too many watches.
    pub fn watch(&mut self, what: Watched<'_>, from_revision: u64) -> Result<WatchId, WatchError> {
        let next = self.revision + 1;
        let Some(extras) = &mut self.extras else { return Err(WatchError::Compacted { oldest: next }) };
        extras.history.watch(what, if from_revision == 0 { next } else { from_revision })
    }

    /// Ends a watch; whether there was one.
    pub fn unwatch(&mut self, watch: WatchId) -> bool {
        self.extras.as_mut().is_some_and(|extras| extras.history.unwatch(watch))
    }

    /// A watch that has something to tell. Each is named once, and again when it got more after [`Engine::delivered`].
    pub fn next_ready_watch(&mut self) -> Option<WatchId> {
        self.extras.as_mut()?.history.next_ready()
    }

    /// What a watch has to tell, in order.
    ///
    /// # Errors
    /// It fell behind the history, or is not there.
    pub fn undelivered(&self, watch: WatchId) -> Result<impl Iterator<Item = ChangeRef<'_>>, WatchError> {
        self.extras.as_ref().ok_or(WatchError::Unknown)?.history.undelivered(watch)
    }

    /// A watch has told of all changes up to a revision.
    pub fn delivered(&mut self, watch: WatchId, through_revision: u64) {
        if let Some(extras) = &mut self.extras {
            extras.history.delivered(watch, through_revision);
        }
    }

    /// Makes a lease that lasts for `ttl` from its last renewal, or until it is revoked.
    ///
    /// # Errors
    /// There are too many.
    pub fn lease_grant(&mut self, now: Instant, ttl: Option<Duration>) -> Result<LeaseId, LeaseError> {
        let extras = self.extras.as_mut().ok_or(LeaseError::TooMany(0))?;
        extras.leases.grant(now, ttl, &extras.limits)
    }

    /// Lets keys vanish with a lease, and with no other.
    ///
    /// # Errors
    /// There is no such lease, or too many keys; nothing was attached.
    pub fn lease_attach(&mut self, lease: LeaseId, keys: Keys<'_>) -> Result<(), LeaseError> {
        let extras = self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?;
        extras.leases.check_capacity(lease, keys.len(), &extras.limits)?;
        for key in keys.iter() {
            extras.leases.attach(lease, contiguous_key(key, &mut self.joined));
        }
        Ok(())
    }

    /// Gives a lease its whole time again.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn lease_renew(&mut self, now: Instant, lease: LeaseId) -> Result<(), LeaseError> {
        self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?.leases.renew(now, lease)
    }

    /// Ends a lease and removes its keys; how many had a value.
    ///
    /// # Errors
    /// There is no such lease.
    pub fn lease_end(&mut self, lease: LeaseId) -> Result<u64, LeaseError> {
        self.released.clear();
        let extras = self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?;
        let keys = extras.leases.end(lease)?;
        Ok(keys.iter().map(|(key, ())| u64::from(self.remove_value(key))).sum())
    }

    /// Ends the lease that is over at `now`, and removes its keys; call it until there is none.
    pub fn lease_expire(&mut self, now: Instant) -> Option<LeaseId> {
        let lease = self.extras.as_ref()?.leases.expired(now)?;
        self.lease_end(lease).ok().map(|_| lease)
    }

    /// When the next lease is over.
    #[must_use]
    pub fn next_lease_expiry(&self) -> Option<Instant> {
        self.extras.as_ref()?.leases.next_expiry()
    }

    /// Does all writes of `then` if all conditions hold, and all of `otherwise` if not, in one turn.
    ///
    /// # Errors
    /// One of the writes cannot be done: none is. The key is that of the write, where it is about one.
    pub fn txn<'w>(
        &mut self,
        compares: impl Iterator<Item = Compare<'w>>,
        then: impl Iterator<Item = Write<'w>> + Clone,
        otherwise: impl Iterator<Item = Write<'w>> + Clone,
    ) -> Result<TxnApplied<'_>, (ApplyError, Option<Key<'w>>)> {
        self.released.clear();
        let holds = { compares }.all(|compare| self.holds(&compare));
        if holds {
            self.write_all(then)?
        } else {
            self.write_all(otherwise)?
        }
        Ok(TxnApplied { holds, released: &self.released })
    }

    fn holds(&mut self, compare: &Compare<'_>) -> bool {
        let key = contiguous_key(compare.key, &mut self.joined);
        let slot = self.slots.find(key).map(|id| &self.slots[id]);
        let found = slot.filter(|slot| !matches!(slot.value, Value::Absent));
        match (compare.condition, found) {
            (Condition::Exists, found) => found.is_some(),
            (Condition::Absent | Condition::Revision(0), found) => found.is_none(),
            (Condition::Revision(revision), found) => found.is_some_and(|slot| slot.revision == revision),
            (Condition::Value(value), found) => found.is_some_and(|slot| slot.value.as_ref().equals(value)),
        }
    }

    fn write_all<'w>(
        &mut self,
        writes: impl Iterator<Item = Write<'w>> + Clone,
    ) -> Result<(), (ApplyError, Option<Key<'w>>)> {
        if self.fences.is_some() {
            writes.clone().try_for_each(|write| {
                let key = match write {
                    Write::Set { key, .. }
                    | Write::Delete { key }
                    | Write::Add { key, .. }
                    | Write::Append { key, .. } => key,
                    Write::DeletePrefix { prefix } => Key::raw(prefix),
                };
                self.check_fence(key).map_err(|error| (error, Some(key)))
            })?;
        }
        let no_key = |error| (error, None);
        self.check_capacity(writes.clone().map(|write| cost_of(&write)).sum()).map_err(no_key)?;
        if writes.clone().any(|write| matches!(write, Write::Add { .. })) {
            self.rehearse(writes.clone())?;
        }
        for write in writes {
            match write {
                Write::Set { key, value } => drop(self.set(key, value).map_err(no_key)?),
                Write::Delete { key } => drop(self.delete(key)),
                Write::DeletePrefix { prefix } => drop(self.remove_prefix(prefix, Fenced::Stays)),
                Write::Add { key, delta } => drop(self.add(key, delta).map_err(no_key)?),
                Write::Append { key, value } => drop(self.append(key, value).map_err(no_key)?),
            }
        }
        Ok(())
    }

    /// Goes through the writes beside the store, to find whether each ADD will meet a number.
    fn rehearse<'w>(
        &mut self,
        writes: impl Iterator<Item = Write<'w>>,
    ) -> Result<(), (ApplyError, Option<Key<'w>>)> {
        let mut beside: Named<Value> = Named::new();
        let mut cleared: Vec<&[u8]> = Vec::new();
        for write in writes {
            let (Write::Set { key, .. }
            | Write::Delete { key }
            | Write::Add { key, .. }
            | Write::Append { key, .. }) = write
            else {
                if let Write::DeletePrefix { prefix } = write {
                    beside.remove_prefix(prefix);
                    cleared.push(prefix);
                }
                continue;
            };
            let (whole, key) = (key, contiguous_key(key, &mut self.joined));
            let stored =
                self.slots.find(key).filter(|_| !cleared.iter().any(|prefix| key.starts_with(prefix)));
            let value = beside.entry(key, || match stored.map(|id| &self.slots[id].value) {
                None | Some(Value::Absent) => Value::Absent,
                Some(Value::Number(number)) => Value::Number(*number),
                Some(Value::Bytes(bytes)) => Value::Bytes(bytes.clone()),
            });
            match write {
                Write::Set { value: new, .. } => value.set(new),
                Write::Append { value: more, .. } => value.append(more),
                Write::Add { delta, .. } => {
                    let number = value.as_number().ok_or((ApplyError::NotANumber, Some(whole)))?;
                    let sum = number.wrapping_add(delta);
                    *value = Value::Number(sum);
                }
                Write::Delete { .. } | Write::DeletePrefix { .. } => *value = Value::Absent,
            }
        }
        Ok(())
    }

    fn remove_prefix(&mut self, prefix: &[u8], fenced: Fenced) -> PrefixRemoved {
        let (mut removed, mut left) = (0, 0);
        self.slots.keep_order();
        let all: Vec<SlotId> = self.slots.with_scope(prefix, Bound::Included(prefix), |all| all.collect());
        for slot in all {
            let fences = self.fences.as_ref().filter(|_| fenced == Fenced::Stays);
            if fences.is_some_and(|fences| fences.find(&self.slots[slot].key).is_some()) {
                left += u64::from(self.slots.is_present(slot));
                continue;
            }
            if self.slots.drop_queue(slot) {
                self.revision += 1;
            }
            let had_value = self.slots.is_present(slot);
            if had_value {
                self.clear(slot);
            } else {
                self.slots.release_if_idle(slot);
            }
            removed += u64::from(had_value);
        }
        PrefixRemoved { removed, left }
    }

    /// Removes a value whose lease is over, if it may still be changed.
    fn remove_value(&mut self, key: &[u8]) -> bool {
        if self.fences.as_ref().is_some_and(|fences| fences.find(key).is_some()) {
            return false;
        }
        let slot = self.slots.find(key).filter(|&id| !matches!(self.slots[id].value, Value::Absent));
        slot.map(|slot| self.clear(slot)).is_some()
    }

    /// Writes a change down. Out of line: c10d servers never come here.
    #[cold]
    pub(super) fn record(&mut self, slot: SlotId) {
        let Some(extras) = &mut self.extras else { return };
        let slot = &self.slots[slot];
        let key = &*slot.key;
        match &slot.value {
            Value::Absent => {
                extras.history.record(self.revision, key, None);
                extras.leases.detach(key);
            }
            value => value.as_ref().read(|bytes| extras.history.record(self.revision, key, Some(bytes))),
        }
    }
}

fn cost_of(write: &Write<'_>) -> u64 {
    match *write {
        Write::Set { key, value } | Write::Append { key, value } => cost(key, value.len()),
        Write::Add { key, .. } => cost(key, number::DIGITS_MAX),
        Write::Delete { .. } | Write::DeletePrefix { .. } => 0,
    }
}

#[cfg(test)]
mod tests;
