//! Leases: groups of keys that are removed together, and their expiry.

use super::contiguous_key;
use crate::limits::{HistoryLimits, KEY_COST_BYTES};
use crate::ordered::{Map, Named, Set, numbers};
use crate::prelude::*;
use crate::store::op::Keys;

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
    keys: Named<()>,
    /// Time to live from the grant or last renewal; `None`: until it is revoked.
    ttl: Option<Duration>,
    expires: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    last: u64,
    leases: Map<LeaseId, Lease>,
    of_key: Named<LeaseId>,
    deadlines: Set<(Instant, LeaseId)>,
    bytes: u64,
}

impl Leases {
    pub(super) fn grant(
        &mut self,
        now: Instant,
        ttl: Option<Duration>,
        limits: &HistoryLimits,
    ) -> Result<LeaseId, LeaseError> {
        if self.leases.len() >= limits.leases_max {
            return Err(LeaseError::TooMany(limits.leases_max));
        }
        self.last += 1;
        let id = LeaseId(self.last);
        self.leases.insert(id, Lease { keys: Named::new(), ttl, expires: now });
        self.renew(now, id)?;
        Ok(id)
    }

    pub(super) fn renew(&mut self, now: Instant, id: LeaseId) -> Result<(), LeaseError> {
        let lease = self.leases.get_mut(id).ok_or(LeaseError::Unknown(id.0))?;
        if let Some(ttl) = lease.ttl {
            self.deadlines.remove((lease.expires, id));
            lease.expires = now + ttl;
            self.deadlines.insert((lease.expires, id));
        }
        Ok(())
    }

    /// Checks whether `more` keys may be attached.
    pub(super) fn check_capacity(
        &self,
        id: LeaseId,
        more: usize,
        limits: &HistoryLimits,
    ) -> Result<(), LeaseError> {
        if self.leases.get(id).is_none() {
            return Err(LeaseError::Unknown(id.0));
        }
        if !self.has_capacity(more, limits) {
            return Err(LeaseError::TooMany(limits.leased_keys_max));
        }
        Ok(())
    }

    /// Returns whether `more` keys may be attached, of whichever lease.
    pub(super) fn has_capacity(&self, more: usize, limits: &HistoryLimits) -> bool {
        self.of_key.len().saturating_add(more) <= limits.leased_keys_max
    }

    /// Returns how many of the keys are attached to no lease, and what they would be charged.
    #[cold]
    pub(super) fn unattached(&self, keys: Keys<'_>, joined: &mut Vec<u8>) -> (usize, u64) {
        let (mut names, mut bytes): (Named<()>, u64) = (Named::new(), 0);
        for key in keys.iter() {
            let name = contiguous_key(key, joined);
            if !self.is_attached(name) && names.insert(name, ()).is_none() {
                bytes += cost(name.len());
            }
        }
        (names.len(), bytes)
    }

    pub(super) fn is_attached(&self, key: &[u8]) -> bool {
        self.of_key.contains(key)
    }

    pub(super) fn attach(&mut self, id: LeaseId, key: &[u8]) {
        self.detach(key);
        if let Some(lease) = self.leases.get_mut(id) {
            self.bytes += cost(key.len());
            lease.keys.insert(key, ());
            self.of_key.insert(key, id);
        }
    }

    pub(super) fn detach(&mut self, key: &[u8]) {
        let Some(id) = self.of_key.remove(key) else { return };
        self.bytes -= cost(key.len());
        if let Some(lease) = self.leases.get_mut(id) {
            lease.keys.remove(key);
        }
    }

    /// Removes a lease, and returns its keys, which [`Leases::detach_from`] detaches.
    pub(super) fn end(&mut self, id: LeaseId) -> Result<Named<()>, LeaseError> {
        let lease = self.leases.remove(id).ok_or(LeaseError::Unknown(id.0))?;
        self.deadlines.remove((lease.expires, id));
        Ok(lease.keys)
    }

    /// Detaches a key of a lease that has ended. Returns whether it was still attached to it.
    pub(super) fn detach_from(&mut self, id: LeaseId, key: &[u8]) -> bool {
        let is_attached = self.of_key.get(key) == Some(&id);
        if is_attached {
            self.detach(key);
        }
        is_attached
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

/// Returns the charge of an attached key, which two tables name.
pub(super) const fn cost(key_bytes: usize) -> u64 {
    2 * key_bytes as u64 + KEY_COST_BYTES
}
