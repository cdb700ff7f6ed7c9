//! Leases: groups of keys that are removed together, and their expiry.

use super::ahead::read_ahead;
use super::distinct::{Growth, growth};
use crate::hash_index::{HashIndex, id_of};
use crate::key_hash::KeyHash;
use crate::limits::{HistoryLimits, KEY_COST_BYTES};
use crate::ordered::{Map, Set, numbers};
use crate::prelude::*;
use crate::store::op::{Key, Keys};

/// Id of a lease of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

numbers!(LeaseId: id => id.0, number => Self(number));

/// Error of granting or using a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease does not exist.
    #[error("there is no lease {0}")]
    Unknown(u64),
    /// The maximum number of leases, or of leased keys, is reached.
    #[error("as many leases or leased keys as allowed ({0})")]
    TooMany(usize),
    /// The store has reached its maximum size, in bytes.
    #[error("the store is full ({0} bytes)")]
    Full(u64),
}

#[derive(Debug)]
struct Lease {
    /// Its keys, by their positions in [`Leases::attached`].
    keys: Vec<u32>,
    /// Time to live from the grant or last renewal; `None`: until it is revoked.
    ttl: Option<Duration>,
    expires: Instant,
    /// Whether it has ended, and exists only until its keys are removed.
    has_ended: bool,
}

#[derive(Debug)]
struct Attached {
    key: Box<[u8]>,
    lease: LeaseId,
    /// Its position in [`Lease::keys`].
    position: u32,
}

#[derive(Debug)]
pub(super) struct Leases {
    last: u64,
    leases: Map<LeaseId, Lease>,
    /// Number of leases that have not ended.
    live: usize,
    attached: Vec<Attached>,
    index: HashIndex,
    hasher: KeyHash,
    deadlines: Set<(Instant, LeaseId)>,
    bytes: u64,
}

impl Leases {
    pub(super) fn new(hasher: KeyHash) -> Self {
        Self {
            last: 0,
            leases: Map::new(),
            live: 0,
            attached: Vec::new(),
            index: HashIndex::new(),
            hasher,
            deadlines: Set::default(),
            bytes: 0,
        }
    }

    pub(super) fn grant(
        &mut self,
        now: Instant,
        ttl: Option<Duration>,
        limits: &HistoryLimits,
    ) -> Result<LeaseId, LeaseError> {
        if self.live >= limits.leases_max {
            return Err(LeaseError::TooMany(limits.leases_max));
        }
        self.last += 1;
        let id = LeaseId(self.last);
        self.live += 1;
        self.leases.insert(id, Lease { keys: Vec::new(), ttl, expires: now, has_ended: false });
        self.renew(now, id)?;
        Ok(id)
    }

    pub(super) fn renew(&mut self, now: Instant, id: LeaseId) -> Result<(), LeaseError> {
        let lease = live(self.leases.get_mut(id), id)?;
        if let Some(ttl) = lease.ttl {
            self.deadlines.remove((lease.expires, id));
            lease.expires = now + ttl;
            self.deadlines.insert((lease.expires, id));
        }
        Ok(())
    }

    /// Checks whether keys may be attached to a lease.
    pub(super) fn check_live(&mut self, id: LeaseId) -> Result<(), LeaseError> {
        live(self.leases.get_mut(id), id).map(drop)
    }

    /// Returns whether `more` keys may be attached, of whichever lease.
    pub(super) fn has_capacity(&self, more: usize, limits: &HistoryLimits) -> bool {
        self.attached.len().saturating_add(more) <= limits.leased_keys_max
    }

    /// Returns what keys add to those that are attached.
    pub(super) fn growth_of(&self, keys: Keys<'_>) -> Growth {
        let mut ahead = keys.iter();
        growth(self.hasher, &mut keys.iter().map(|key| (key, 0)), &mut |number, hash, name| {
            self.read_ahead(number, &mut || ahead.next());
            self.find(hash, name).map(|_| 0)
        })
    }

    /// Reads ahead for the lookups of the keys of a list, from key `number` on, as [`read_ahead`].
    pub(super) fn read_ahead<'k>(&self, number: usize, ahead: &mut dyn FnMut() -> Option<Key<'k>>) {
        read_ahead(number, ahead, self.hasher, &|_| &self.index, &|id| {
            [&*self.attached[id as usize].key, b""]
        });
    }

    pub(super) fn is_attached(&self, key: &[u8]) -> bool {
        self.find(self.hasher.of(key), key).is_some()
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.index.find(hash, |id| *self.attached[id as usize].key == *key)
    }

    /// Attaches a key to a lease, and to no other one.
    pub(super) fn attach(&mut self, id: LeaseId, key: &[u8]) {
        let hash = self.hasher.of(key);
        let found = self.find(hash, key);
        if found.is_some_and(|at| self.attached[at as usize].lease == id) {
            return;
        }
        let Ok(lease) = live(self.leases.get_mut(id), id) else { return };
        let (of_all, of_lease) =
            (found.unwrap_or_else(|| id_of(self.attached.len())), id_of(lease.keys.len()));
        lease.keys.push(of_all);
        if let Some(at) = found {
            self.take_from_lease(at);
            let attached = &mut self.attached[at as usize];
            (attached.lease, attached.position) = (id, of_lease);
            return;
        }
        self.attached.push(Attached { key: key.into(), lease: id, position: of_lease });
        self.index.insert(hash, of_all);
        self.bytes += cost(key.len());
    }

    pub(super) fn detach(&mut self, key: &[u8]) {
        if !self.attached.is_empty()
            && let Some(position) = self.find(self.hasher.of(key), key)
        {
            self.remove(position);
        }
    }

    /// Removes the key at this position of [`Leases::attached`] from the list of its lease.
    fn take_from_lease(&mut self, at: u32) {
        let Attached { lease, position, .. } = self.attached[at as usize];
        if let Some(lease) = self.leases.get_mut(lease) {
            lease.keys.swap_remove(position as usize);
            if let Some(&moved) = lease.keys.get(position as usize) {
                self.attached[moved as usize].position = position;
            }
            shrink_if_sparse(&mut lease.keys);
        }
    }

    /// Detaches the key at this position of [`Leases::attached`]. The last key moves there.
    fn remove(&mut self, at: u32) -> Box<[u8]> {
        self.take_from_lease(at);
        let removed = self.attached.swap_remove(at as usize).key;
        self.index.remove(self.hasher.of(&removed), at);
        if let Some(Attached { key, lease, position }) = self.attached.get(at as usize) {
            let hash = self.hasher.of(key);
            self.index.remove(hash, id_of(self.attached.len()));
            self.index.insert(hash, at);
            if let Some(lease) = self.leases.get_mut(*lease) {
                lease.keys[*position as usize] = at;
            }
        }
        self.index.shrink_if_sparse();
        shrink_if_sparse(&mut self.attached);
        self.bytes -= cost(removed.len());
        removed
    }

    /// Ends a lease. [`Leases::pop`] returns its keys.
    pub(super) fn end(&mut self, id: LeaseId) -> Result<(), LeaseError> {
        let lease = live(self.leases.get_mut(id), id)?;
        lease.has_ended = true;
        self.live -= 1;
        self.deadlines.remove((lease.expires, id));
        Ok(())
    }

    /// Detaches a key of a lease that has ended, and returns it. Removes the lease if it has no more keys.
    pub(super) fn pop(&mut self, id: LeaseId) -> Option<Box<[u8]>> {
        match self.leases.get(id)?.keys.last() {
            Some(&last) => Some(self.remove(last)),
            None => {
                self.leases.remove(id);
                None
            }
        }
    }

    /// Returns the bytes that the attached keys are charged.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at)
    }

    pub(super) fn expired(&self, now: Instant) -> Option<LeaseId> {
        self.deadlines.first().filter(|&(at, _)| at <= now).map(|(_, id)| id)
    }
}

/// Returns the lease that was found for this id, unless it has ended.
fn live(lease: Option<&mut Lease>, id: LeaseId) -> Result<&mut Lease, LeaseError> {
    lease.filter(|lease| !lease.has_ended).ok_or(LeaseError::Unknown(id.0))
}

/// Releases memory if less than an eighth of it is used.
fn shrink_if_sparse<T>(list: &mut Vec<T>) {
    if list.capacity() > 4 && list.len() * 8 < list.capacity() {
        list.shrink_to(list.len() * 2);
    }
}

/// Returns the charge of an attached key. It is that of a key without a value.
pub(super) const fn cost(key_bytes: usize) -> u64 {
    key_bytes as u64 + KEY_COST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use alloc::collections::BTreeMap;

    /// Checks that the three tables agree with each other and with `model`.
    fn check(leases: &Leases, model: &BTreeMap<Vec<u8>, LeaseId>, seed: u64) {
        assert_eq!(leases.attached.len(), model.len(), "seed {seed}");
        for (key, id) in model {
            let position = leases.find(leases.hasher.of(key), key).expect("it is attached");
            let Attached { lease, position: of_lease, .. } = &leases.attached[position as usize];
            assert_eq!(lease, id, "seed {seed}");
            let keys = &leases.leases.get(*lease).expect("a lease").keys;
            assert_eq!(keys[*of_lease as usize], position, "seed {seed}");
        }
        let of_leases: usize = leases.leases.iter().map(|(_, lease)| lease.keys.len()).sum();
        assert_eq!(of_leases, model.len(), "seed {seed}");
        let live = leases.leases.iter().filter(|(_, lease)| !lease.has_ended).count();
        assert_eq!(leases.live, live, "seed {seed}");
        assert_eq!(leases.bytes(), model.keys().map(|key| cost(key.len())).sum::<u64>(), "seed {seed}");
    }

    #[test]
    fn a_key_belongs_to_the_lease_that_it_was_attached_to_last() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut leases = Leases::new(KeyHash::new(seed.into()));
            let mut model = BTreeMap::new();
            let (mut live, mut ended) = (Vec::new(), Vec::new());
            for step in 0..400 {
                let key = format!("k{}", rng.below(if step < 200 { 300 } else { 20 })).into_bytes();
                match rng.below(20) {
                    0 if live.len() < 4 => {
                        let limits = HistoryLimits { leases_max: 4, ..HistoryLimits::default() };
                        live.push(leases.grant(Instant::ORIGIN, None, &limits).expect("one of four"));
                    }
                    1 if step % 3 == 0 && !live.is_empty() => {
                        let id = live.swap_remove(0);
                        leases.end(id).expect("it lives");
                        let unknown = Err(LeaseError::Unknown(id.0));
                        assert_eq!((leases.end(id), leases.renew(Instant::ORIGIN, id)), (unknown, unknown));
                        assert_eq!(leases.check_live(id), unknown);
                        ended.push(id);
                    }
                    2..6 => {
                        leases.detach(&key);
                        model.remove(&key);
                    }
                    6..9 => {
                        let Some(&id) = ended.first() else { continue };
                        match leases.pop(id) {
                            Some(key) => assert_eq!(model.remove(&*key), Some(id), "seed {seed}"),
                            None => {
                                assert!(!model.values().any(|&of| of == id), "seed {seed}");
                                ended.remove(0);
                            }
                        }
                    }
                    _ => {
                        let Some(&id) = live.last() else { continue };
                        leases.attach(id, &key);
                        model.insert(key, id);
                    }
                }
                assert_eq!(leases.leases.len(), live.len() + ended.len(), "seed {seed}");
                check(&leases, &model, seed);
            }
            for id in live.into_iter().chain(ended) {
                _ = leases.end(id);
                while leases.pop(id).is_some() {}
            }
            assert_eq!((leases.leases.len(), leases.bytes()), (0, 0), "seed {seed}");
            assert!(leases.attached.capacity() <= 4, "{} remain", leases.attached.capacity());
        }
    }
}
