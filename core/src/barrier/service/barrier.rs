//! One barrier: its open generation, its participants, and the ends of the last generations.

use super::LOOKS_PER_UNIT;
use super::event::{Arrive, End, Names, OwnerId, Refusal};
use super::members::{MemberId, Members};
use super::phase::{Phase, PhaseEvent};
use crate::key_hash::KeyHash;
use crate::limits::{BARRIER_COST_BYTES, BarrierLimits};
use crate::prelude::*;
use crate::wire::native::Participants;
use alloc::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Count(u32),
    /// All members.
    Listed,
}

#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) key: Box<[u8]>,
    pub(super) generation: u64,
    pub(super) phase: Phase,
    /// The member that began the open generation. `deadline` is that of the generation.
    pub(super) set_by: MemberId,
    pub(super) deadline: Instant,
    pub(super) awaited: Awaited,
    pub(super) members: Members,
    /// Whether the last generation ended with these participants.
    pub(super) was_theirs: bool,
    /// Ends of the last generations, the latest at the back.
    pub(super) ends: VecDeque<Arc<End>>,
    pub(super) end_bytes: usize,
    /// The end that the open generation gets in a later step, since a participant can no longer arrive, and the owner that has
    /// ended.
    pub(super) pending_end: Option<(Arc<End>, Option<OwnerId>)>,
    /// Its key among the idle barriers.
    pub(super) idle_since: u64,
    /// Bytes that are counted for it.
    pub(super) charged: u64,
}

/// State of the generation that an arrival asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is open, or can begin.
    NotYet,
    /// It has ended.
    Recorded(u64),
}

impl Awaited {
    pub(super) fn participants(self, members: &Members) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Listed => u32::try_from(members.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Most names that a barrier forgets in one turn before a generation ends.
const SURPLUS_NAMES_MAX: usize = 4096;

impl Barrier {
    /// Creates a barrier without arrivals.
    pub(super) fn new(key: &[u8]) -> Self {
        Self {
            key: key.into(),
            generation: 1,
            phase: Phase::Unbegun,
            set_by: 0,
            deadline: Instant::ORIGIN,
            awaited: Awaited::Listed,
            members: Members::default(),
            was_theirs: false,
            ends: VecDeque::new(),
            end_bytes: 0,
            pending_end: None,
            idle_since: 0,
            charged: 0,
        }
    }

    pub(super) fn step(&mut self, event: PhaseEvent) {
        let next = self.phase.on_event(event);
        debug_assert!(next.is_some(), "{:?} {event:?}", self.phase);
        self.phase = next.unwrap_or(self.phase);
    }

    pub(super) fn participants(&self) -> u32 {
        self.awaited.participants(&self.members)
    }

    /// Returns the last generation that ended; 0: none.
    pub(super) const fn over(&self) -> u64 {
        if self.phase.is_over() { self.generation } else { self.generation - 1 }
    }

    /// Returns the end of a generation, if it is remembered.
    pub(super) fn end(&self, generation: u64) -> Option<&Arc<End>> {
        let back = self.over().checked_sub(generation)?;
        let at = self.ends.len().checked_sub(usize::try_from(back).ok()?.checked_add(1)?)?;
        self.ends.get(at)
    }

    pub(super) fn awaits(&self, participants: &Participants<'_>, hasher: &KeyHash) -> bool {
        match (self.awaited, participants) {
            (Awaited::Count(mine), Participants::Count(others)) => mine == *others,
            (Awaited::Listed, Participants::Names(names)) => self.members.are(*names, hasher),
            _ => false,
        }
    }

    /// Returns the state of the generation that an arrival asks for.
    pub(super) fn find(
        &self,
        arrive: &Arrive<'_>,
        is_as_before: bool,
        hasher: &KeyHash,
    ) -> Result<Found, Refusal> {
        let over = self.over();
        match arrive.generation {
            0 if self.phase == Phase::Open => Ok(Found::NotYet),
            0 => {
                let failed = self.was_theirs && self.end(over).is_some_and(|end| **end != End::Released);
                let member =
                    self.members.find(arrive.name, hasher).and_then(|member| self.members.get(member));
                let is_awaited = self.awaited != Awaited::Listed || member.is_some();
                let has_seen_end = member.is_some_and(|member| member.last_seen_generation == over);
                let is_late = failed && is_as_before && is_awaited && !has_seen_end;
                Ok(if is_late { Found::Recorded(over) } else { Found::NotYet })
            }
            wanted if wanted == over + 1 => Ok(Found::NotYet),
            wanted if self.end(wanted).is_some() => Ok(Found::Recorded(wanted)),
            _ => {
                let oldest = if over == 0 { 0 } else { over + 1 - self.ends.len() as u64 };
                Err(Refusal::UnknownGeneration { oldest, next: over + 1 })
            }
        }
    }

    pub(super) fn conflict(&self) -> Refusal {
        let set_by = self.members.get(self.set_by).map(|member| member.name.clone()).unwrap_or_default();
        let count = match self.awaited {
            Awaited::Count(count) => count,
            Awaited::Listed => 0,
        };
        Refusal::Conflict { set_by, count }
    }

    /// Returns the number of missing participants, without the caller, and the first of their names. With a count, the
    /// names are known if the last generation was released, and every participant that waits now was released with it.
    pub(super) fn absent(
        &self,
        includes_caller: Option<Option<MemberId>>,
        limits: &BarrierLimits,
        work: &mut u64,
    ) -> (u32, Names) {
        let mine = includes_caller.flatten();
        let asking = mine.and_then(|mine| self.members.get(mine));
        let is_waiting = asking.is_some_and(|mine| mine.arrival.is_some());
        let own_slot_count = u32::from(includes_caller.is_some() && !is_waiting);
        let count = self.participants() - self.members.waiting() - own_slot_count;
        match self.awaited {
            Awaited::Listed => (count, named(&self.members, limits, work, |id, _| Some(id) != mine)),
            Awaited::Count(_) => {
                let over = self.over();
                let was_there =
                    |id, last_seen_generation| Some(id) != mine && over > 0 && last_seen_generation == over;
                let were_released = self.end(over).is_some_and(|end| **end == End::Released);
                let is_away =
                    !is_waiting && asking.is_some_and(|mine| over > 0 && mine.last_seen_generation == over);
                if were_released && count == self.members.away() - u32::from(is_away) {
                    (count, named(&self.members, limits, work, was_there))
                } else {
                    (count, Names::default())
                }
            }
        }
    }

    pub(super) fn record(&mut self, end: Arc<End>, kept_max: usize) {
        while self.ends.len() >= kept_max.max(1) {
            let forgotten = self.ends.pop_front();
            self.end_bytes -= forgotten.map_or(0, |end| end.bytes());
        }
        self.end_bytes += end.bytes();
        self.ends.push_back(end);
    }

    /// Most names that it learns from late arrivals. A list never has more.
    pub(super) fn members_max(&self) -> usize {
        2 * self.participants() as usize + self.surplus_max()
    }

    /// Most names that it knows in addition to those that wait and those of the last generation.
    fn surplus_max(&self) -> usize {
        (2 * self.participants() as usize + 8).min(SURPLUS_NAMES_MAX)
    }

    /// Makes space for another name at a barrier with a count that has seen too many different names.
    pub(super) fn forget_surplus_names(&mut self, hasher: &KeyHash) {
        let needed = self.members.waiting() as usize + self.members.away() as usize;
        if self.members.len() > needed + self.surplus_max() {
            let (over, set_by) = (self.over(), self.set_by);
            self.members.retain(hasher, |id, member| {
                member.arrival.is_some() || id == set_by || (over > 0 && member.last_seen_generation == over)
            });
        }
    }

    pub(super) fn cost(&self) -> u64 {
        let ends = self.end_bytes as u64 + self.ends.len() as u64 * 64;
        self.key.len() as u64 + BARRIER_COST_BYTES + self.members.bytes() + ends
    }
}

/// Returns the first names of members that do not wait and for which `is_meant` returns true, as far as the limits
/// allow. Adds the work of looking for them.
pub(super) fn named(
    members: &Members,
    limits: &BarrierLimits,
    work: &mut u64,
    is_meant: impl Fn(MemberId, u64) -> bool,
) -> Names {
    let mut bytes_left = limits.absent_named_bytes_max;
    let mut is_within = |name: &[u8]| match bytes_left.checked_sub(name.len()) {
        Some(left) => {
            bytes_left = left;
            true
        }
        None => false,
    };
    let mut looks: usize = 0;
    let absent = members
        .iter()
        .inspect(|_| looks += 1)
        .filter(|(id, member)| member.arrival.is_none() && is_meant(*id, member.last_seen_generation));
    let names = absent.take(limits.absent_named_max).map(|(_, member)| &*member.name);
    let names = names.take_while(|name| is_within(name)).collect();
    *work += (looks / LOOKS_PER_UNIT) as u64;
    names
}

#[cfg(test)]
mod tests {
    use super::super::{ArrivalId, OwnerId};
    use super::*;

    #[test]
    fn the_names_that_are_forgotten_at_once_are_few_however_many_a_barrier_waits_for() {
        let hasher = KeyHash::new(1);
        let mut barrier = Barrier { awaited: Awaited::Count(2000), ..Barrier::new(b"k") };
        let mut most = 0;
        for name in 0..20_000_u32 {
            let before = barrier.members.len();
            barrier.forget_surplus_names(&hasher);
            most = most.max(before - barrier.members.len());
            barrier.members.insert(&name.to_be_bytes(), &hasher);
        }
        assert!((1..=SURPLUS_NAMES_MAX + 1).contains(&most), "{most}");
    }

    /// Where all names are needed, no look at them would find one to forget.
    #[test]
    fn names_are_looked_at_only_if_many_can_be_forgotten() {
        let hasher = KeyHash::new(1);
        let mut barrier = Barrier { awaited: Awaited::Count(6000), ..Barrier::new(b"k") };
        let arrive = |barrier: &mut Barrier, name: u32| {
            barrier.forget_surplus_names(&hasher);
            let arrival = ArrivalId { owner: OwnerId(u64::from(name)), request: 1 };
            let member = barrier.members.insert(&name.to_be_bytes(), &hasher);
            barrier.members.start_waiting(member, arrival);
        };
        (0..6000).for_each(|name| arrive(&mut barrier, name));
        barrier.members.conclude(1, |_, _, _| ());
        (barrier.phase, barrier.generation) = (Phase::Released, 1);
        (6000..11_999).for_each(|name| arrive(&mut barrier, name));
        assert_eq!(barrier.members.len(), 11_999, "those of the last generation are known");
        assert_eq!(barrier.members.looked_at.get(), 0);
    }
}
