//! Operations of the native protocol beyond c10d: watches, leases, transactions, prefixes, fences.
//!
//! A server with c10d clients only pays one check per operation for them.

use super::distinct::Growth;
use super::fences::{Fences, Stale};
use super::history::{ChangeRef, History, WatchError, WatchId, Watched};
use super::leases::{LeaseError, LeaseId, Leases};
use super::slot::SlotId;
use super::value::Value;
use super::waits::WaitKind;
use super::{ApplyError, Engine, contiguous_key, cost, leases, number};
use crate::ids::WaiterId;
use crate::limits::HistoryLimits;
use crate::prelude::*;
use crate::sorted::sort_by;
use crate::store::op::{Key, Keys, Request};
use crate::store::txn::{Compare, Condition, Write};
use crate::store::value_ref::ValueRef;
use core::ops::Bound;

/// Work of a change of the table of leases.
const LEASE_WORK: u64 = 4;

/// State that only native sessions need.
#[derive(Debug)]
pub(super) struct Extras {
    limits: HistoryLimits,
    history: History,
    leases: Leases,
}

impl Extras {
    pub(super) const fn history_bytes(&self) -> u64 {
        self.history.bytes()
    }

    pub(super) fn is_leased(&self, key: &[u8]) -> bool {
        self.leases.is_attached(key)
    }
}

/// Result of removing the keys with a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixRemoved {
    /// Number of keys removed.
    pub removed: u64,
    /// Number of keys that stay, because they belong to rounds that have ended.
    pub left: u64,
}

/// Place in the keys with a prefix, in byte order.
#[derive(Debug)]
pub struct PrefixScan {
    prefix: Box<[u8]>,
    /// The last key that was visited.
    after: Option<Box<[u8]>>,
    /// What has to be in order before the first key is visited: the slots that there were at the first step.
    order_mark: Option<u64>,
    /// Whether the last key was visited.
    pub is_over: bool,
}

impl PrefixScan {
    fn new(prefix: &[u8]) -> Self {
        Self { prefix: prefix.into(), after: None, order_mark: None, is_over: false }
    }

    /// Begins after the key `after`, if that is among the keys with the prefix or follows them.
    pub(super) fn from(prefix: &[u8], after: &[u8]) -> Self {
        let is_inside = !after.is_empty() && after >= prefix;
        Self { after: is_inside.then(|| after.into()), ..Self::new(prefix) }
    }
}

impl Removal {
    /// Returns whether it has looked at a key.
    pub const fn has_begun(&self) -> bool {
        self.scan.after.is_some()
    }
}

/// Removal of the keys with a prefix, in steps.
#[derive(Debug)]
pub struct Removal {
    scan: PrefixScan,
    fenced: Fenced,
    /// Revision at its begin. Values that changed later stay.
    until: u64,
    removed: PrefixRemoved,
}

/// Keys of a lease that has ended, which are to be removed.
#[derive(Debug)]
pub struct LeasedKeys {
    /// The lease.
    pub lease: LeaseId,
    /// Revision at the end of the lease. Values that changed later stay.
    until: u64,
    removed: u64,
}

/// Treatment of fenced keys by a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fenced {
    Stays,
    Drop,
}

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnApplied<'a> {
    /// Whether all conditions held.
    pub holds: bool,
    /// Waiters whose wait ended, as in [`super::Applied`].
    pub released: &'a [WaiterId],
}

impl Engine {
    /// Starts the history of changes, and enables watches and leases. Does nothing if it has been started.
    pub fn start_history(&mut self, limits: HistoryLimits) {
        let (revision, hasher) = (self.revision, self.slots.hasher());
        self.extras.get_or_insert_with(|| {
            let history = History::new(limits, revision);
            Box::new(Extras { limits, history, leases: Leases::new(hasher) })
        });
    }

    /// Returns the value of a key and the revision at which it last changed, if it has one.
    pub fn find(&self, key: &[u8]) -> Option<(u64, ValueRef<'_>)> {
        self.count_work(1);
        let slot = &self.slots[self.slots.find(key)?];
        (!matches!(slot.value, Value::Absent)).then(|| (slot.revision, slot.value.as_ref()))
    }

    /// Passes the results of [`Engine::find`] for several keys to `visit`, in order. Ends when it returns false, and then
    /// returns false.
    pub fn find_each<'e>(
        &'e self,
        keys: Keys<'_>,
        mut visit: impl FnMut(Option<(u64, ValueRef<'e>)>) -> bool,
    ) -> bool {
        let (mut joined, mut ahead) = (Vec::new(), keys.iter());
        for (number, key) in keys.iter().enumerate() {
            self.slots.read_ahead(number, &mut || ahead.next());
            let found = self.find(contiguous_key(key, &mut joined));
            if !visit(found) {
                return false;
            }
        }
        true
    }

    /// Returns the keys that begin with `prefix`, in byte order. It looks at all keys; [`Engine::list_some`] does not.
    pub fn keys_with_prefix(&self, prefix: &[u8]) -> Vec<&[u8]> {
        let mut keys: Vec<&[u8]> = self.slots.present_keys().filter(|key| key.starts_with(prefix)).collect();
        sort_by(&mut keys, |one, other| one < other);
        keys
    }

    /// Begins the removal of all keys with a prefix, and their queues, by a client. Fenced keys stay, and so does what
    /// is set after this call.
    ///
    /// # Errors
    /// The prefix itself is fenced, and so is every key that begins with it.
    pub fn delete_prefix(&mut self, prefix: &[u8]) -> Result<Removal, ApplyError> {
        self.check_fence(Key::raw(prefix))?;
        Ok(self.removal(prefix, Fenced::Stays))
    }

    /// Removes all keys with a prefix, as [`Engine::delete_prefix`], at once.
    ///
    /// # Errors
    /// As there, or there are too many keys.
    pub fn delete_prefix_at_once(&mut self, prefix: &[u8]) -> Result<PrefixRemoved, ApplyError> {
        self.count_to_remove(Key::raw(prefix), 0)?;
        let mut removal = self.delete_prefix(prefix)?;
        Ok(self.remove_some(&mut removal, usize::MAX).unwrap_or_default())
    }

    /// Begins the removal of all keys with a prefix that the caller owns, fenced or not. What is set after this call
    /// stays.
    pub fn discard(&mut self, prefix: &[u8]) -> Removal {
        self.removal(prefix, Fenced::Drop)
    }

    fn removal(&self, prefix: &[u8], fenced: Fenced) -> Removal {
        let removed = PrefixRemoved::default();
        Removal { scan: PrefixScan::new(prefix), fenced, until: self.revision, removed }
    }

    /// Continues a removal with up to `keys_max` keys. Returns the result when it is complete. [`Engine::free_some`] frees
    /// queued items.
    pub fn remove_some(&mut self, removal: &mut Removal, keys_max: usize) -> Option<PrefixRemoved> {
        let Removal { scan, fenced, until, removed } = removal;
        let some = self.next_of(scan, keys_max);
        for slot in some {
            self.count_work(4);
            let is_fenced = |fences: &Fences| fences.find(&self.slots[slot].key).is_some();
            if *fenced == Fenced::Stays && self.fences.as_deref().is_some_and(is_fenced) {
                removed.left += u64::from(self.slots.is_present(slot));
                continue;
            }
            if self.slots[slot].revision > *until {
                continue;
            }
            self.revision += u64::from(self.slots.remove_queue(slot));
            if self.slots.is_present(slot) {
                self.clear(slot);
                removed.removed += 1;
            } else {
                self.slots.release_if_idle(slot);
            }
        }
        scan.is_over.then_some(*removed)
    }

    /// Returns the next slots of a scan: none before the keys of its first step are in order, which it then prepares. Keys that
    /// are added later may be among them or not, so that those who add keys cannot delay it.
    pub(super) fn next_of(&mut self, scan: &mut PrefixScan, keys_max: usize) -> Vec<SlotId> {
        let mark = *scan.order_mark.get_or_insert_with(|| self.slots.order_mark());
        if !self.slots.is_ordered_to(mark) {
            self.slots.order_some(keys_max);
            return Vec::new();
        }
        let from = match &scan.after {
            Some(after) => Bound::Excluded(&**after),
            None => Bound::Included(&*scan.prefix),
        };
        let following = self.slots.ordered_so_far().with_prefix(&scan.prefix, from);
        let some: Vec<SlotId> = following.take(keys_max).collect();
        scan.is_over = some.len() < keys_max;
        scan.after = some.last().map(|&last| self.slots[last].key.clone());
        some
    }

    /// Forbids all changes of keys that begin with `stem`, a number up to `number`, and a slash. Those keys can no
    /// longer be set, so the waits for them must end: [`Engine::fail_waits`] with the scan that this returns.
    pub fn fence(&mut self, stem: &[u8], number: u64) -> PrefixScan {
        self.fences.get_or_insert_with(|| Box::new(Fences::default())).raise(stem, number);
        let is_over = self.waits.registrations() == 0;
        PrefixScan { is_over, ..PrefixScan::new(stem) }
    }

    /// Ends waits for fenced keys among the next `count_max` keys, at most `count_max`, and returns their waiters. Sets
    /// [`PrefixScan::is_over`] after the last key.
    pub fn fail_waits(&mut self, scan: &mut PrefixScan, count_max: usize) -> Vec<WaiterId> {
        let mut failed_waiters = Vec::new();
        if scan.is_over {
            return failed_waiters;
        }
        let (before, mut visited, mut left) = (scan.after.clone(), None, count_max);
        let some = self.next_of(scan, count_max);
        let Some(fences) = self.fences.as_deref() else { return failed_waiters };
        for &id in &some {
            if !self.slots[id].waiters.is_empty() && fences.find(&self.slots[id].key).is_some() {
                while left > 0 && !self.slots[id].waiters.is_empty() {
                    left -= 1;
                    failed_waiters.extend(self.waits.fail_oldest(id, &mut self.slots));
                }
                if left == 0 {
                    // The key may have more, and is looked at again.
                    scan.after = visited.map_or(before, |id: SlotId| Some(self.slots[id].key.clone()));
                    scan.is_over = false;
                    break;
                }
            }
            visited = Some(id);
        }
        some.iter().for_each(|&id| self.slots.release_if_idle(id));
        self.count_work((some.len() + 2 * (count_max - left)) as u64);
        self.free_some(count_max);
        failed_waiters
    }

    /// Returns the fence that covers a key, if any.
    pub fn fence_of(&self, key: &[u8]) -> Option<Stale> {
        self.fences.as_deref()?.find(key)
    }

    /// Removes the fence of a stem; the caller guarantees that its keys are no longer used.
    pub fn lift_fence(&mut self, stem: &[u8]) {
        if let Some(fences) = &mut self.fences {
            fences.lift(stem);
        }
    }

    /// Waits for an item of a queue, whether or not the key has a value. The engine names `waiter` among the
    /// released waiters when there is an item for it, or when the key gets a value.
    ///
    /// # Errors
    /// There are too many waits, or the store is full.
    pub fn wait_for_item(&mut self, waiter: WaiterId, key: Key<'_>) -> Result<(), ApplyError> {
        self.released.clear();
        self.capacity_to_replace(key, 0)?;
        self.check_waits(waiter, 1)?;
        let slot = self.slots.find_or_insert(contiguous_key(key, &mut self.joined));
        let wait = self.waits.open(waiter, WaitKind::Item);
        self.waits.register(wait, slot, &mut self.slots);
        Ok(())
    }

    /// Releases the next waiter for an item of a queue that has one. Call it when a released waiter takes none.
    pub fn pass_on(&mut self, key: Key<'_>) -> &[WaiterId] {
        self.released.clear();
        if let Some(slot) = self.slots.find(contiguous_key(key, &mut self.joined))
            && self.slots.queue_len(slot) > 0
        {
            self.waits.release_first(slot, &mut self.slots, &mut self.released);
        }
        &self.released
    }

    /// Refuses a request that changes fenced keys. Not inlined: only a store with fences calls it.
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
            // A fenced key that does not exist can never be set.
            Request::Wait { keys } => {
                let mut ahead = keys.iter();
                for (number, key) in keys.iter().enumerate() {
                    self.slots.read_ahead(number, &mut || ahead.next());
                    if !self.slots.is_ready(contiguous_key(key, &mut self.joined)) {
                        self.check_fence(key)?;
                    }
                }
                Ok(())
            }
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

    /// Starts a watch at a revision; 0 means the next one.
    ///
    /// # Errors
    /// The history does not reach back to the revision, the store has not reached the one before it, or there are too
    /// many watches.
    pub fn watch(&mut self, what: Watched<'_>, from_revision: u64) -> Result<WatchId, WatchError> {
        let next = self.revision + 1;
        let Some(extras) = &mut self.extras else { return Err(WatchError::Compacted { oldest: next }) };
        if from_revision > next {
            let oldest = extras.history.oldest;
            return Err(WatchError::NotReached { revision: self.revision, oldest });
        }
        let watch = extras.history.watch(what, if from_revision == 0 { next } else { from_revision });
        let work = extras.history.take_work();
        self.count_work(work);
        watch
    }

    /// Ends a watch. Returns whether it existed.
    pub fn unwatch(&mut self, watch: WatchId) -> bool {
        self.extras.as_mut().is_some_and(|extras| extras.history.unwatch(watch))
    }

    /// Returns a watch to the queue of [`Engine::next_ready_watch`], if it has undelivered changes.
    pub fn queue_watch(&mut self, watch: WatchId) {
        if let Some(extras) = &mut self.extras {
            extras.history.queue(watch);
        }
    }

    /// Returns whether [`Engine::next_ready_watch`] may have a watch.
    pub fn has_ready_watch(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.history.has_ready())
    }

    /// Returns the next watch with undelivered changes. Each is returned once, and again when there are more
    /// changes after [`Engine::delivered`]. If there are many that have ended, it returns `None` before the last.
    pub fn next_ready_watch(&mut self) -> Option<WatchId> {
        let history = &mut self.extras.as_mut()?.history;
        let (watch, work) = (history.next_ready(), history.take_work());
        self.count_work(work);
        watch
    }

    /// Returns the undelivered changes of a watch that [`Engine::next_ready_watch`] has returned, in order.
    ///
    /// # Errors
    /// The watch does not exist, or its next change is no longer in the history.
    pub fn undelivered(
        &self,
        watch: WatchId,
    ) -> Result<impl Iterator<Item = ChangeRef<'_>> + Clone, WatchError> {
        self.extras.as_ref().ok_or(WatchError::Unknown)?.history.undelivered(watch)
    }

    /// Marks all changes of a watch up to a revision as delivered, after so many were sent.
    pub fn delivered(&mut self, watch: WatchId, through_revision: u64, sent: usize) {
        if let Some(extras) = &mut self.extras {
            extras.history.delivered(watch, through_revision, sent);
            let work = extras.history.take_work();
            self.count_work(work);
        }
    }

    /// Creates a lease that lasts for `ttl` from its grant or last renewal; without `ttl`, until it is revoked.
    ///
    /// # Errors
    /// There are too many leases.
    pub fn lease_grant(&mut self, now: Instant, ttl: Option<Duration>) -> Result<LeaseId, LeaseError> {
        let extras = self.extras.as_mut().ok_or(LeaseError::TooMany(0))?;
        extras.leases.grant(now, ttl, &extras.limits)
    }

    /// Attaches keys to a lease, and detaches them from any other. They are removed when the lease ends.
    ///
    /// # Errors
    /// The lease does not exist, or there are too many leased keys, or the store is full; nothing was attached.
    pub fn lease_attach(&mut self, lease: LeaseId, keys: Keys<'_>) -> Result<(), LeaseError> {
        self.count_work(3 * keys.len() as u64);
        let bytes = keys.iter().map(|key| leases::cost(key.len())).sum();
        let mut more = Growth { keys: keys.len(), bytes };
        let is_full = self.check_capacity(bytes).is_err();
        let extras = self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?;
        extras.leases.check_live(lease)?;
        if is_full || !extras.leases.has_capacity(more.keys, &extras.limits) {
            // Some of the keys may be attached already, or be given twice.
            more = extras.leases.growth_of(keys);
        }
        if !extras.leases.has_capacity(more.keys, &extras.limits) {
            return Err(LeaseError::TooMany(extras.limits.leased_keys_max));
        }
        self.check_growth(more.bytes).map_err(|_| LeaseError::Full(self.limits.stored_bytes_max))?;
        let Some(extras) = &mut self.extras else { return Ok(()) };
        let mut ahead = keys.iter();
        for (number, key) in keys.iter().enumerate() {
            extras.leases.read_ahead(number, &mut || ahead.next());
            extras.leases.attach(lease, contiguous_key(key, &mut self.joined));
        }
        self.leased_bytes = extras.leases.bytes();
        Ok(())
    }

    /// Restarts the time to live of a lease.
    ///
    /// # Errors
    /// The lease does not exist.
    pub fn lease_renew(&mut self, now: Instant, lease: LeaseId) -> Result<(), LeaseError> {
        self.count_work(LEASE_WORK);
        self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?.leases.renew(now, lease)
    }

    /// Ends a lease. [`Engine::remove_leased`] removes its keys.
    ///
    /// # Errors
    /// The lease does not exist.
    pub fn lease_end(&mut self, lease: LeaseId) -> Result<LeasedKeys, LeaseError> {
        self.lease_end_at(lease, self.revision)
    }

    /// As [`Engine::lease_end`]. Values that changed after the revision `until` stay.
    ///
    /// # Errors
    /// The lease does not exist.
    pub fn lease_end_at(&mut self, lease: LeaseId, until: u64) -> Result<LeasedKeys, LeaseError> {
        self.count_work(LEASE_WORK);
        let extras = self.extras.as_mut().ok_or(LeaseError::Unknown(lease.0))?;
        extras.leases.end(lease)?;
        Ok(LeasedKeys { lease, until, removed: 0 })
    }

    /// Removes up to `keys_max` keys of a lease that has ended, except those that were set or attached to another lease
    /// since. When it is complete, returns how many keys had a value.
    pub fn remove_leased(&mut self, leased: &mut LeasedKeys, keys_max: usize) -> Option<u64> {
        for _ in 0..keys_max {
            let key = self.extras.as_mut().and_then(|extras| extras.leases.pop(leased.lease));
            let Some(key) = key else { return Some(leased.removed) };
            self.count_work(4);
            self.leased_bytes = self.extras.as_ref().map_or(0, |extras| extras.leases.bytes());
            if self.revision_of(&key).is_some_and(|revision| revision <= leased.until) {
                leased.removed += u64::from(self.remove_value(&key));
            }
        }
        None
    }

    /// Returns a lease that has expired at `now`.
    pub fn lease_expired(&self, now: Instant) -> Option<LeaseId> {
        self.extras.as_ref()?.leases.expired(now)
    }

    /// Returns when the next lease expires.
    pub fn next_lease_expiry(&self) -> Option<Instant> {
        self.extras.as_ref()?.leases.next_expiry()
    }

    /// Applies all writes of `then` if all conditions hold, or else all of `otherwise`, atomically.
    ///
    /// # Errors
    /// One of the writes is not possible; none is applied. The key is that of the write, where the error concerns
    /// one key.
    pub fn txn<'w>(
        &mut self,
        compares: impl Iterator<Item = Compare<'w>> + Clone,
        then: impl Iterator<Item = Write<'w>> + Clone,
        otherwise: impl Iterator<Item = Write<'w>> + Clone,
    ) -> Result<TxnApplied<'_>, (ApplyError, Option<Key<'w>>)> {
        self.released.clear();
        let mut ahead = compares.clone().map(|compare| compare.key);
        let holds = compares.enumerate().all(|(number, compare)| {
            self.slots.read_ahead(number, &mut || ahead.next());
            self.holds(&compare)
        });
        if holds {
            self.write_all(then)?
        } else {
            self.write_all(otherwise)?
        }
        Ok(TxnApplied { holds, released: &self.released })
    }

    /// Returns the number of keys with a prefix, if it can be removed at once with `others`.
    fn count_to_remove(&mut self, prefix: Key<'_>, others: usize) -> Result<usize, ApplyError> {
        let limit = self.limits.removed_at_once_max;
        // Putting a key in order takes twice as long as removing one.
        let others = others + 2 * self.slots.added_unordered();
        let left = limit.checked_sub(others).ok_or(ApplyError::TooManyKeys(limit))?;
        let name = contiguous_key(prefix, &mut self.joined);
        let slots = self.slots.ordered();
        let count = slots.with_prefix(name, Bound::Included(name)).take(left + 1).count();
        self.count_work(count as u64);
        if count > left { Err(ApplyError::TooManyKeys(limit)) } else { Ok(count) }
    }

    fn holds(&mut self, compare: &Compare<'_>) -> bool {
        self.count_work(1);
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
                let key = write.key();
                self.check_fence(key).map_err(|error| (error, Some(key)))
            })?;
        }
        let no_key = |error| (error, None);
        let mut removed = 0;
        for write in writes.clone() {
            self.count_work(2);
            if let Write::DeletePrefix { prefix } = write {
                removed += self.count_to_remove(prefix, removed).map_err(|error| (error, Some(prefix)))?;
            }
        }
        let has_capacity = self.check_capacity(writes.clone().map(|write| cost_of(&write)).sum()).is_ok();
        if !has_capacity || writes.clone().any(|write| matches!(write, Write::Add { .. })) {
            self.check_growth_of(writes.clone())?;
        }
        let mut ahead = writes.clone().map(|write| write.key());
        for (number, write) in writes.enumerate() {
            self.slots.read_ahead(number, &mut || ahead.next());
            match write {
                Write::Set { key, value } => self.set_unchecked(key, value),
                Write::Delete { key } => drop(self.delete(key)),
                Write::DeletePrefix { prefix } => {
                    let mut removal = self.removal(&prefix.pieces().concat(), Fenced::Stays);
                    while self.remove_some(&mut removal, usize::MAX).is_none() {}
                }
                Write::Add { key, delta } => drop(self.add_unchecked(key, delta).map_err(no_key)?),
                Write::Append { key, value } => self.append_unchecked(key, value),
            }
        }
        Ok(())
    }

    /// Removes a value whose lease has ended, unless it is fenced.
    fn remove_value(&mut self, key: &[u8]) -> bool {
        if self.fences.as_ref().is_some_and(|fences| fences.find(key).is_some()) {
            return false;
        }
        let slot = self.slots.find(key).filter(|&id| !matches!(self.slots[id].value, Value::Absent));
        slot.map(|slot| self.clear(slot)).is_some()
    }

    /// Records a change in the history. Not inlined: a server with c10d clients only never calls it.
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
            value => extras.history.record(self.revision, key, Some(value.as_ref())),
        }
        self.leased_bytes = extras.leases.bytes();
        let work = extras.history.take_work();
        self.count_work(work);
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
