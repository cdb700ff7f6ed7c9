//! Names that a barrier knows: those of its list, or those that arrived at a barrier with a count. They are kept
//! between generations, so that a barrier in a steady loop stores nothing new.

use super::event::{ArrivalId, Refusal};
use crate::hash_index::{HashIndex, id_of};
use crate::key_hash::KeyHash;
use crate::limits::{BarrierLimits, MEMBER_COST_BYTES};
use crate::prelude::*;
use crate::store::op::{Key, Keys};
use alloc::borrow::Cow;
use slab::Slab;

/// Index of a member in the table. It does not change while the member exists.
pub(super) type MemberId = usize;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Box<[u8]>,
    /// Its request, while it waits.
    pub(super) arrival: Option<ArrivalId>,
    /// Deadline of its request, if that is before the generation's deadline.
    pub(super) until: Option<Instant>,
    /// The last generation of whose end it was notified; 0: none.
    pub(super) last_seen_generation: u64,
}

#[derive(Debug, Default)]
pub(super) struct Members {
    members: Slab<Member>,
    index: HashIndex,
    name_bytes: u64,
    waiting: u32,
    /// The last generation that ended; 0: none.
    over: u64,
    /// Number of members that were notified of that end and do not wait now.
    away: u32,
    /// Number of members that were visited in iterations, and of look-ups.
    #[cfg(test)]
    pub(super) looked_at: core::cell::Cell<u64>,
}

/// Returns the bytes that a name costs.
pub(super) const fn cost(name: &[u8]) -> u64 {
    name.len() as u64 + MEMBER_COST_BYTES
}

fn contiguous(key: Key<'_>) -> Cow<'_, [u8]> {
    key.as_contiguous()
        .map_or_else(|| Cow::Owned(key.pieces().into_iter().flatten().copied().collect()), Cow::Borrowed)
}

impl Members {
    /// Creates the members of a list.
    pub(super) fn listed(names: Keys<'_>, limits: &BarrierLimits, hasher: &KeyHash) -> Result<Self, Refusal> {
        let mut listed = Self::default();
        for name in names.iter() {
            let name = contiguous(name);
            if name.is_empty() {
                return Err(Refusal::Invalid("a name in the list is empty"));
            }
            if name.len() > limits.name_bytes_max {
                return Err(Refusal::TooLong { length: name.len(), limit: limits.name_bytes_max });
            }
            let hash = hasher.of(&name);
            if listed.find_hashed(&name, hash).is_some() {
                return Err(Refusal::Invalid("a name is listed twice"));
            }
            listed.insert_hashed(&name, hash);
        }
        Ok(listed)
    }

    /// Returns whether they are the names of a list, in any order.
    pub(super) fn are(&self, names: Keys<'_>, hasher: &KeyHash) -> bool {
        if names.len() != self.members.len() {
            return false;
        }
        let same = |(name, (_, member)): (Key<'_>, (_, &Member))| match name.as_contiguous() {
            Some(name) => *name == *member.name,
            None => name == Key::raw(&member.name),
        };
        if names.iter().zip(&self.members).all(same) {
            return true;
        }
        // The table has no gaps, so as many different known names are all of them.
        let mut seen = vec![false; self.members.len()];
        names.iter().all(|name| {
            self.find(&contiguous(name), hasher).is_some_and(|id| !core::mem::replace(&mut seen[id], true))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the number of members that were notified of the last end and do not wait now.
    pub(super) const fn away(&self) -> u32 {
        self.away
    }

    const fn was_there(&self, last_seen_generation: u64) -> bool {
        last_seen_generation != 0 && last_seen_generation == self.over
    }

    /// Notes that a member that does not wait was notified of the end of `generation`.
    pub(super) fn notify_of_end(&mut self, id: MemberId, generation: u64) {
        let Some(member) = self.members.get_mut(id) else { return };
        let before = core::mem::replace(&mut member.last_seen_generation, generation);
        self.away += u32::from(self.was_there(generation) && !self.was_there(before));
    }

    /// Returns the bytes that all of them cost.
    pub(super) fn bytes(&self) -> u64 {
        self.name_bytes + self.members.len() as u64 * MEMBER_COST_BYTES
    }

    pub(super) fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn get_mut(&mut self, id: MemberId) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    /// Iterates in the order of the list, or of their insertion.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        let members = self.members.iter();
        #[cfg(test)]
        let members = members.inspect(|_| self.looked_at.set(self.looked_at.get() + 1));
        members
    }

    pub(super) fn find(&self, name: &[u8], hasher: &KeyHash) -> Option<MemberId> {
        self.find_hashed(name, hasher.of(name))
    }

    pub(super) fn find_hashed(&self, name: &[u8], hash: u64) -> Option<MemberId> {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
        let found = self.index.find(hash, |id| *self.members[id as usize].name == *name);
        found.map(|id| id as usize)
    }

    /// Adds a name that is not there yet.
    pub(super) fn insert(&mut self, name: &[u8], hasher: &KeyHash) -> MemberId {
        self.insert_hashed(name, hasher.of(name))
    }

    fn insert_hashed(&mut self, name: &[u8], hash: u64) -> MemberId {
        let member = Member { name: name.into(), arrival: None, until: None, last_seen_generation: 0 };
        let id = self.members.insert(member);
        self.index.insert(hash, id_of(id));
        self.name_bytes += name.len() as u64;
        id
    }

    /// Notes that a member waits. Returns the request of this member that it replaces.
    pub(super) fn start_waiting(&mut self, id: MemberId, arrival: ArrivalId) -> Option<ArrivalId> {
        let member = self.members.get_mut(id)?;
        let (earlier, last_seen_generation) = (member.arrival.replace(arrival), member.last_seen_generation);
        self.waiting += u32::from(earlier.is_none());
        self.away -= u32::from(earlier.is_none() && self.was_there(last_seen_generation));
        earlier
    }

    /// Notes that a member no longer waits.
    pub(super) fn withdraw(&mut self, id: MemberId) -> Option<ArrivalId> {
        let member = self.members.get_mut(id)?;
        let (earlier, last_seen_generation) = (member.arrival.take(), member.last_seen_generation);
        self.waiting -= u32::from(earlier.is_some());
        self.away += u32::from(earlier.is_some() && self.was_there(last_seen_generation));
        earlier
    }

    /// Ends a generation: all members that waited count as notified of it. Calls `notify` with each of them, its
    /// request and its own deadline.
    pub(super) fn conclude(
        &mut self,
        generation: u64,
        mut notify: impl FnMut(MemberId, ArrivalId, Option<Instant>),
    ) {
        for (id, member) in &mut self.members {
            if let Some(arrival) = member.arrival.take() {
                member.last_seen_generation = generation;
                notify(id, arrival, member.until.take());
            }
        }
        (self.over, self.away, self.waiting) = (generation, self.waiting, 0);
    }

    /// Removes the members for which `keep` returns false.
    pub(super) fn retain(&mut self, hasher: &KeyHash, keep: impl Fn(MemberId, &Member) -> bool) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + self.members.len() as u64);
        let removed: Vec<MemberId> =
            self.members.iter().filter(|&(id, member)| !keep(id, member)).map(|(id, _)| id).collect();
        for id in removed {
            let member = self.members.remove(id);
            self.name_bytes -= member.name.len() as u64;
            self.waiting -= u32::from(member.arrival.is_some());
            self.away -= u32::from(member.arrival.is_none() && self.was_there(member.last_seen_generation));
            self.index.remove(hasher.of(&member.name), id_of(id));
        }
        if self.index.shrink_if_sparse() {
            self.members.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_names_that_were_forgotten_is_freed() {
        let (mut members, hasher) = (Members::default(), KeyHash::new(1));
        for number in 0..10_000_u32 {
            members.insert(&number.to_le_bytes(), &hasher);
        }
        members.retain(&hasher, |id, _| id < 10);
        assert!(!members.index.shrink_if_sparse(), "it was sparse");
        assert!(members.members.capacity() < 100, "{} members", members.members.capacity());
        assert_eq!(members.find(&9_u32.to_le_bytes(), &hasher), Some(9));
        assert_eq!(members.find(&10_u32.to_le_bytes(), &hasher), None);
    }
}
