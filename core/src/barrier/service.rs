//! Barriers of a server. No participant passes a barrier before all have arrived, and all get the same result if one of
//! them can no longer arrive. `docs/barrier.md` describes the behaviour and the reasons.
//!
//! The caller passes events to [`Barriers::handle`], drains [`Barriers::poll_output`], and sends [`Input::Tick`] at
//! [`Barriers::poll_timeout`]. Time never goes back between inputs.
use crate::prelude::*;

mod barrier;
mod deadlines;
mod event;
mod members;
mod phase;

#[cfg(test)]
mod tests;

pub use event::{ArrivalId, Arrive, End, EndedNode, Input, Names, Output, OwnerId, Refusal};
pub use phase::{Phase, PhaseEvent};

use crate::key_hash::KeyHash;
use crate::limits::{BARRIER_COST_BYTES, BarrierLimits};
use crate::ordered::{Index, Named, Set, numbers};
use crate::wire::native::{Participants, Why};
use alloc::collections::VecDeque;
use barrier::{Awaited, Barrier, Found, named};
use members::{MemberId, Members};
use slab::Slab;

/// Index of a barrier in the table. It does not change while the barrier exists.
type BarrierId = usize;

/// Barrier at which an arrival waits, and the member that it belongs to.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    barrier: BarrierId,
    member: MemberId,
}

// The limits keep both tables far below 2^32 entries, so both indexes fit into one number.
numbers! {
    Waiter: waiter => waiter.barrier.number() << 32 | waiter.member.number(),
        number => Self {
            barrier: usize::from_number(number >> 32),
            member: usize::from_number(number & u64::from(u32::MAX)),
        };
}

/// Number of members that are looked at, or of their names that are compared, in one unit of work.
const LOOKS_PER_UNIT: usize = 8;
/// Work of ending the wait of one arrival, beside that of its answer.
const END_WORK: u64 = 3;
/// Number of arrivals that one step ends; the end of a generation is one step, however many wait there.
const ENDS_PER_STEP: usize = 4096;
/// Most idle barriers that one arrival makes the service forget.
const FORGOTTEN_AT_ONCE_MAX: usize = 16_384;
/// Work after which a step ends no further arrival.
const STEP_WORK: u64 = ENDS_PER_STEP as u64 * END_WORK;

/// All barriers of a server.
#[derive(Debug)]
pub struct Barriers {
    limits: BarrierLimits,
    hasher: KeyHash,
    barriers: Slab<Barrier>,
    keys: Named<BarrierId>,
    /// Arrivals that wait.
    arrivals: Index<ArrivalId, Waiter>,
    deadlines: Set<(Instant, BarrierId)>,
    /// Waiting members whose deadline is before that of their generation.
    early: Set<(Instant, Waiter)>,
    /// The hashes of the names that open barriers list and that do not wait there.
    awaited_names: Set<(u64, BarrierId)>,
    /// Barriers without waiting arrivals, in the order in which that began.
    idle: Index<u64, BarrierId>,
    idle_last: u64,
    stored_bytes: u64,
    released: Arc<End>,
    outputs: VecDeque<Output>,
    /// Barriers whose open generation has a pending end.
    broken: VecDeque<BarrierId>,
    /// When the last step of what is due was done.
    stepped_at: Instant,
    /// Work that is left in that step.
    step_work_left: u64,
    /// Work since it was last taken, and the part of it that ended the waits of others.
    work: u64,
    work_for_others: u64,
}

impl Barriers {
    /// Creates an empty table. `hash_key` must be secret: it is the key of the tables' hash.
    pub fn new(limits: BarrierLimits, hash_key: u128) -> Self {
        Self {
            limits,
            hasher: KeyHash::new(hash_key),
            barriers: Slab::new(),
            keys: Named::new(),
            arrivals: Index::new(),
            deadlines: Set::new(),
            early: Set::new(),
            awaited_names: Set::new(),
            idle: Index::new(),
            idle_last: 0,
            stored_bytes: 0,
            released: Arc::new(End::Released),
            outputs: VecDeque::new(),
            broken: VecDeque::new(),
            stepped_at: Instant::ORIGIN,
            step_work_left: STEP_WORK,
            work: 0,
            work_for_others: 0,
        }
    }

    /// Handles one event, after a step of what was due by `now`, unless one was done at that instant:
    /// [`Barriers::poll_timeout`] returns when the rest is due. An arrival that has not ended yet counts as waiting.
    ///
    /// # Errors
    /// The arrival or cancel is refused. The caller answers it with [`Refusal::fault`]; nothing has changed.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), Refusal> {
        if self.stepped_at != now || matches!(input, Input::Tick) {
            (self.stepped_at, self.step_work_left) = (now, STEP_WORK);
            self.end_due(now);
        }
        match input {
            Input::Arrive(arrive) => return self.arrive(now, &arrive),
            Input::Withdraw { arrival } => self.withdraw(arrival),
            Input::Cancel { request, key, by } => return self.cancel(request, key, by),
            Input::Ended { owner, node, why } => self.ended(owner, node, why),
            Input::Fence { prefix, round } => self.fence(prefix, round),
            Input::Tick => {}
        }
        Ok(())
    }

    /// Returns the next answer; `None` if there is none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns whether [`Barriers::poll_output`] has an answer.
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Returns the work since it was last taken. One unit is about the time to hash a name of a list.
    pub fn take_work(&mut self) -> u64 {
        core::mem::take(&mut self.work)
    }

    /// Returns the part of that which ended generations: it is not the work of the client that arrived last. To be taken with
    /// [`Barriers::take_work`].
    pub fn take_work_for_others(&mut self) -> u64 {
        core::mem::take(&mut self.work_for_others)
    }

    /// Returns when [`Input::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.broken.is_empty() {
            return Some(self.stepped_at);
        }
        let early = self.early.first().map(|(when, _)| when);
        self.deadlines.first().map(|(when, _)| when).into_iter().chain(early).min()
    }

    /// Returns the number of arrivals that wait, at all barriers together.
    pub fn waiting(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns whether arrivals wait at the barrier with this key.
    pub fn is_open(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|&id| self.barriers[id].phase == Phase::Open)
    }

    /// Returns whether arrivals wait at barriers whose keys have this prefix. After [`Input::Fence`], the caller repeats the
    /// input until none does.
    pub fn waits_below(&self, prefix: &[u8]) -> bool {
        self.below(prefix).next().is_some()
    }

    /// Returns the barriers where arrivals wait and whose keys have a prefix.
    fn below(&self, prefix: &[u8]) -> impl Iterator<Item = BarrierId> {
        let with_prefix = self.keys.range(prefix..).take_while(move |(key, _)| key.starts_with(prefix));
        with_prefix.map(|(_, &id)| id).filter(|&id| self.barriers[id].members.waiting() > 0)
    }

    /// Returns whether this request waits.
    pub fn waits(&self, arrival: ArrivalId) -> bool {
        self.arrivals.contains(arrival)
    }

    fn arrive(&mut self, now: Instant, arrive: &Arrive<'_>) -> Result<(), Refusal> {
        if let Participants::Names(names) = arrive.participants {
            self.work += (names.len() / LOOKS_PER_UNIT) as u64;
        }
        self.check(arrive)?;
        // The barrier may be forgotten with the end of its generation.
        if let Some(&id) = self.keys.get(arrive.key)
            && self.barriers[id].phase == Phase::Open
            && (self.barriers[id].pending_end.is_some() || self.barriers[id].deadline <= now)
        {
            self.conclude_due(id);
        }
        let id = self.keys.get(arrive.key).copied();
        let Some(id) = id else {
            return match arrive.generation {
                0 | 1 => self.arrive_first(now, None, arrive),
                _ => Err(Refusal::UnknownGeneration { oldest: 0, next: 1 }),
            };
        };
        let is_as_before = self.barriers[id].awaits(&arrive.participants, &self.hasher);
        match self.barriers[id].find(arrive, is_as_before, &self.hasher)? {
            Found::Recorded(generation) => {
                self.report_end(id, generation, arrive, is_as_before);
                Ok(())
            }
            Found::NotYet if self.barriers[id].phase == Phase::Open => {
                if !is_as_before {
                    return Err(self.barriers[id].conflict());
                }
                self.arrive_next(now, id, arrive)
            }
            Found::NotYet if is_as_before => self.arrive_again(now, id, arrive),
            Found::NotYet => self.arrive_first(now, Some(id), arrive),
        }
    }

    /// Checks what does not depend on the state of the barrier.
    fn check(&self, arrive: &Arrive<'_>) -> Result<(), Refusal> {
        let Arrive { arrival, name, participants, .. } = arrive;
        if self.waits(*arrival) {
            return Err(Refusal::WaitsAlready(*arrival));
        }
        if name.is_empty() {
            return Err(Refusal::Invalid("the name is empty"));
        }
        self.check_name(name)?;
        let participants = match participants {
            Participants::Count(count) => *count,
            Participants::Names(names) => u32::try_from(names.len()).unwrap_or(u32::MAX),
        };
        if participants == 0 {
            return Err(Refusal::Invalid("there are no participants"));
        }
        let limit = self.limits.participants_max;
        if participants > limit {
            return Err(Refusal::TooMany { what: "participants", limit: limit.into() });
        }
        Ok(())
    }

    const fn check_name(&self, name: &[u8]) -> Result<(), Refusal> {
        let limit = self.limits.name_bytes_max;
        if name.len() > limit {
            return Err(Refusal::TooLong { length: name.len(), limit });
        }
        Ok(())
    }

    /// Handles an arrival that may begin a generation with new participants, or a new barrier.
    fn arrive_first(
        &mut self,
        now: Instant,
        id: Option<BarrierId>,
        arrive: &Arrive<'_>,
    ) -> Result<(), Refusal> {
        let (awaited, members) = match arrive.participants {
            Participants::Count(count) => (Awaited::Count(count), Members::default()),
            Participants::Names(names) => {
                self.work += names.len() as u64;
                (Awaited::Listed, Members::listed(names, &self.limits, &self.hasher)?)
            }
        };
        let listed = members.find(arrive.name, &self.hasher);
        if awaited == Awaited::Listed && listed.is_none() {
            return Err(Refusal::NotAParticipant);
        }
        let participants = awaited.participants(&members);
        if arrive.timeout.is_zero() && participants > 1 {
            let absent = match awaited {
                Awaited::Count(_) => Names::default(),
                Awaited::Listed => named(&members, &self.limits, &mut self.work, |id, _| Some(id) != listed),
            };
            let generation = id.map_or(1, |id| self.barriers[id].over() + 1);
            let end = Arc::new(End::TimedOut { absent_count: participants - 1, absent });
            self.outputs.push_back(Output::Over { arrival: arrive.arrival, generation, end });
            return Ok(());
        }
        self.check_arrivals()?;
        if id.is_none() {
            self.make_slot()?;
        }
        let key_bytes = if id.is_none() { arrive.key.len() as u64 + BARRIER_COST_BYTES } else { 0 };
        let name_bytes = if listed.is_none() { members::cost(arrive.name) } else { 0 };
        self.free_capacity(key_bytes + members.bytes() + name_bytes, id)?;
        let id = id.unwrap_or_else(|| self.insert(arrive.key));
        let barrier = &mut self.barriers[id];
        barrier.awaited = awaited;
        barrier.members = members;
        barrier.was_theirs = false;
        self.begin(now, id, listed, arrive);
        Ok(())
    }

    /// Handles an arrival that may begin a generation with the participants of the last one.
    fn arrive_again(&mut self, now: Instant, id: BarrierId, arrive: &Arrive<'_>) -> Result<(), Refusal> {
        let barrier = &self.barriers[id];
        let member = barrier.members.find(arrive.name, &self.hasher);
        if barrier.awaited == Awaited::Listed && member.is_none() {
            return Err(Refusal::NotAParticipant);
        }
        if arrive.timeout.is_zero() && barrier.participants() > 1 {
            self.report_absent(id, member, arrive.arrival);
            return Ok(());
        }
        self.check_arrivals()?;
        if member.is_none() {
            self.free_capacity(members::cost(arrive.name), Some(id))?;
        }
        self.begin(now, id, member, arrive);
        Ok(())
    }

    /// Handles an arrival at an open generation.
    fn arrive_next(&mut self, now: Instant, id: BarrierId, arrive: &Arrive<'_>) -> Result<(), Refusal> {
        let barrier = &self.barriers[id];
        let member = barrier.members.find(arrive.name, &self.hasher);
        if barrier.awaited == Awaited::Listed && member.is_none() {
            return Err(Refusal::NotAParticipant);
        }
        let earlier = member.and_then(|member| barrier.members.get(member)).and_then(|member| member.arrival);
        let completes = earlier.is_none() && barrier.members.waiting() + 1 >= barrier.participants();
        if arrive.timeout.is_zero() && !completes {
            if let Some(earlier) = earlier {
                self.outputs.push_back(Output::Superseded { arrival: earlier, by: arrive.arrival });
            }
            self.report_absent(id, member, arrive.arrival);
            if let Some(earlier) = earlier {
                self.withdraw(earlier);
            }
            return Ok(());
        }
        if earlier.is_none() {
            self.check_arrivals()?;
        }
        if member.is_none() {
            self.free_capacity(members::cost(arrive.name), Some(id))?;
        }
        self.add_waiter(now, id, member, arrive);
        Ok(())
    }

    fn begin(&mut self, now: Instant, id: BarrierId, known: Option<MemberId>, arrive: &Arrive<'_>) {
        let barrier = &mut self.barriers[id];
        if barrier.phase.is_over() {
            barrier.step(PhaseEvent::Followed);
            barrier.generation += 1;
        }
        self.idle.remove(barrier.idle_since);
        barrier.deadline = now + arrive.timeout;
        self.deadlines.insert((barrier.deadline, id));
        self.await_names(id);
        self.add_waiter(now, id, known, arrive);
    }

    /// Adds a waiting arrival. `known` is the member with its name, if there is one. The last arrival releases all.
    fn add_waiter(&mut self, now: Instant, id: BarrierId, known: Option<MemberId>, arrive: &Arrive<'_>) {
        let barrier = &mut self.barriers[id];
        let is_first = barrier.phase == Phase::Unbegun;
        let member = known.unwrap_or_else(|| {
            barrier.forget_surplus_names(&self.hasher);
            barrier.members.insert(arrive.name, &self.hasher)
        });
        if is_first {
            barrier.set_by = member;
        }
        barrier.step(PhaseEvent::Arrived);
        let earlier = barrier.members.start_waiting(member, arrive.arrival);
        if let Some(earlier) = earlier {
            self.arrivals.remove(earlier);
            self.outputs.push_back(Output::Superseded { arrival: earlier, by: arrive.arrival });
        } else if barrier.awaited == Awaited::Listed {
            self.awaited_names.remove((self.hasher.of(arrive.name), id));
        }
        self.arrivals.insert(arrive.arrival, Waiter { barrier: id, member });
        let until = now + arrive.timeout;
        let is_early = until < barrier.deadline;
        self.set_until(id, member, is_early.then_some(until));
        let barrier = &self.barriers[id];
        let missing = barrier.participants() - barrier.members.waiting();
        if missing == 0 {
            self.conclude(id, PhaseEvent::Completed, self.released.clone(), None);
        } else if known.is_none() || is_first {
            self.charge(id);
        }
    }

    /// Answers an arrival that does not wait with the names of the missing participants.
    fn report_absent(&mut self, id: BarrierId, member: Option<MemberId>, arrival: ArrivalId) {
        let (generation, end) = (self.barriers[id].over() + 1, self.missed(id, member));
        self.outputs.push_back(Output::Over { arrival, generation, end });
    }

    /// Returns the timeout that names the missing participants, without `member`.
    fn missed(&mut self, id: BarrierId, member: Option<MemberId>) -> Arc<End> {
        let (absent_count, absent) = self.barriers[id].absent(Some(member), &self.limits, &mut self.work);
        Arc::new(End::TimedOut { absent_count, absent })
    }

    /// Answers a late arrival with the end of its generation. A participant that knows of a failed generation may begin
    /// the next one.
    fn report_end(&mut self, id: BarrierId, generation: u64, arrive: &Arrive<'_>, is_as_before: bool) {
        let barrier = &mut self.barriers[id];
        let Some(end) = barrier.end(generation).cloned() else { return };
        let is_news = barrier.phase != Phase::Open && generation == barrier.over() && *end != End::Released;
        if is_news && is_as_before && barrier.was_theirs {
            let known = barrier.members.find(arrive.name, &self.hasher);
            let has_capacity = barrier.members.len() < barrier.members_max()
                && self.stored_bytes + members::cost(arrive.name) <= self.limits.stored_bytes_max;
            let may_stay = barrier.awaited != Awaited::Listed && has_capacity;
            let member =
                known.or_else(|| may_stay.then(|| barrier.members.insert(arrive.name, &self.hasher)));
            if let Some(member) = member {
                barrier.members.notify_of_end(member, generation);
            }
            self.charge(id);
        }
        self.outputs.push_back(Output::Over { arrival: arrive.arrival, generation, end });
    }

    fn withdraw(&mut self, arrival: ArrivalId) {
        let Some(Waiter { barrier: id, member }) = self.arrivals.remove(arrival) else { return };
        self.work += END_WORK;
        self.set_until(id, member, None);
        let barrier = &mut self.barriers[id];
        if barrier.members.waiting() > 1 {
            barrier.members.withdraw(member);
            barrier.step(PhaseEvent::TakenBack);
            self.await_name(id, member);
            return;
        }
        self.await_no_names(id);
        let barrier = &mut self.barriers[id];
        barrier.members.withdraw(member);
        barrier.pending_end = None;
        barrier.step(PhaseEvent::Emptied);
        self.mark_idle(id);
        if self.barriers[id].ends.is_empty() {
            self.remove(id);
        }
    }

    fn cancel(&mut self, request: ArrivalId, key: &[u8], by: &[u8]) -> Result<(), Refusal> {
        self.check_name(by)?;
        let open = self.keys.get(key).copied().filter(|&id| self.barriers[id].phase == Phase::Open);
        if let Some(id) = open {
            self.conclude(id, PhaseEvent::CancelRequested, Arc::new(End::Cancelled { by: by.into() }), None);
        }
        self.outputs.push_back(Output::CancelDone { request, had_waiters: open.is_some() });
        Ok(())
    }

    fn ended(&mut self, owner: OwnerId, node: Option<EndedNode<'_>>, why: Why) {
        let mine: Vec<(ArrivalId, Waiter)> = self.arrivals.of(owner).collect();
        for (arrival, Waiter { barrier: id, member }) in mine {
            let barrier = &self.barriers[id];
            let is_counted = matches!(barrier.awaited, Awaited::Count(_));
            match barrier.members.get(member) {
                Some(member) if why != Why::Left || !is_counted => {
                    let end = End::Broken { participant: member.name.clone(), why };
                    self.break_later(id, Arc::new(end), Some(owner));
                }
                _ => self.withdraw(arrival),
            }
        }
        if let Some(EndedNode { name, could_arrive }) = node {
            let hash = self.hasher.of(name);
            let awaits = |&id: &BarrierId| {
                let barrier = &self.barriers[id];
                // Another name may have the same hash.
                barrier.members.find_hashed(name, hash).is_some() && could_arrive(&barrier.key)
            };
            let same_hash = self.awaited_names.of(hash).map(|(_, id)| id);
            let (awaiting, others): (Vec<BarrierId>, Vec<BarrierId>) = same_hash.partition(awaits);
            self.work += others.len() as u64;
            let end = Arc::new(End::Broken { participant: name.into(), why });
            awaiting.into_iter().for_each(|id| self.break_later(id, Arc::clone(&end), None));
        }
        self.break_some();
    }

    /// Leaves the end of an open generation, whose participant can no longer arrive, to a step.
    #[inline(never)]
    fn break_later(&mut self, id: BarrierId, end: Arc<End>, ended_owner: Option<OwnerId>) {
        self.work += 1;
        let barrier = &mut self.barriers[id];
        if barrier.pending_end.is_none() {
            barrier.pending_end = Some((end, ended_owner));
            self.broken.push_back(id);
        }
    }

    /// Ends generations with a pending end, as many as the step allows.
    fn break_some(&mut self) {
        while self.step_work_left > 0
            && let Some(id) = self.broken.pop_front()
        {
            // It may have ended since, or its barrier may be another one now.
            if self.barriers.get(id).is_some_and(|barrier| barrier.pending_end.is_some()) {
                self.conclude_in_step(id);
            }
        }
    }

    fn conclude_in_step(&mut self, id: BarrierId) {
        let before = self.work;
        self.conclude_due(id);
        self.step_work_left = self.step_work_left.saturating_sub(self.work - before);
    }

    fn fence(&mut self, prefix: &[u8], round: u64) {
        let work_max = self.work + STEP_WORK;
        let mut arrivals: Vec<ArrivalId> = Vec::new();
        let mut looks = 0;
        for id in self.below(prefix) {
            let members = &self.barriers[id].members;
            looks += members.len();
            arrivals.extend(members.iter().filter_map(|(_, member)| member.arrival).take(ENDS_PER_STEP));
            if arrivals.len() >= ENDS_PER_STEP {
                break;
            }
        }
        self.work += (looks / LOOKS_PER_UNIT) as u64;
        for arrival in arrivals {
            self.outputs.push_back(Output::Stale { arrival, round });
            self.withdraw(arrival);
            if self.work >= work_max {
                return;
            }
        }
    }

    /// Ends a generation with a pending end, or whose deadline has passed.
    #[inline(never)]
    fn conclude_due(&mut self, id: BarrierId) {
        if let Some((end, ended_owner)) = self.barriers[id].pending_end.take() {
            return self.conclude(id, PhaseEvent::Lost, end, ended_owner);
        }
        let (absent_count, absent) = self.barriers[id].absent(None, &self.limits, &mut self.work);
        self.conclude(id, PhaseEvent::Expired, Arc::new(End::TimedOut { absent_count, absent }), None);
    }

    /// Ends a generation: answers all arrivals that wait, except those of an owner that has ended.
    fn conclude(&mut self, id: BarrierId, event: PhaseEvent, end: Arc<End>, ended_owner: Option<OwnerId>) {
        self.await_no_names(id);
        let before = self.work;
        let Self { barriers, arrivals, early, outputs, hasher, work, .. } = self;
        let barrier = &mut barriers[id];
        *work +=
            u64::from(barrier.members.waiting()) * END_WORK + (barrier.members.len() / LOOKS_PER_UNIT) as u64;
        barrier.step(event);
        let generation = barrier.generation;
        outputs.reserve(barrier.members.waiting() as usize);
        // Usually no arrival waits at another barrier. Then the whole index is dropped instead of one entry after
        // another.
        let all_are_here = arrivals.len() == barrier.members.waiting() as usize;
        if all_are_here {
            *arrivals = Index::new();
        }
        barrier.members.conclude(generation, |member, arrival, until| {
            if let Some(until) = until {
                early.remove((until, Waiter { barrier: id, member }));
            }
            if !all_are_here {
                arrivals.remove(arrival);
            }
            if Some(arrival.owner) != ended_owner {
                outputs.push_back(Output::Over { arrival, generation, end: end.clone() });
            }
        });
        if barrier.awaited != Awaited::Listed {
            let known = barrier.members.len();
            barrier.members.retain(hasher, |_, member| member.last_seen_generation == generation);
            *work += (known - barrier.members.len()) as u64 * END_WORK;
        }
        barrier.was_theirs = true;
        barrier.pending_end = None;
        barrier.record(end, self.limits.ends_kept_max);
        self.work_for_others += self.work - before;
        self.mark_idle(id);
        self.charge(id);
        // An end is always recorded, even over the limit: other barriers are then forgotten.
        while self.stored_bytes > self.limits.stored_bytes_max && self.forget_oldest(None) {}
    }

    /// Marks a barrier as idle: no arrival waits there any more.
    fn mark_idle(&mut self, id: BarrierId) {
        let barrier = &mut self.barriers[id];
        self.deadlines.remove((barrier.deadline, id));
        self.idle_last += 1;
        barrier.idle_since = self.idle_last;
        self.idle.insert(self.idle_last, id);
    }

    /// Notes that an open barrier awaits the names of its list that do not wait there.
    fn await_names(&mut self, id: BarrierId) {
        let Self { barriers, awaited_names, hasher, work, .. } = self;
        if barriers[id].awaited == Awaited::Listed {
            *work += barriers[id].members.len() as u64;
            let absent = barriers[id].members.iter().filter(|(_, member)| member.arrival.is_none());
            absent.for_each(|(_, member)| awaited_names.insert((hasher.of(&member.name), id)));
        }
    }

    fn await_name(&mut self, id: BarrierId, member: MemberId) {
        let barrier = &self.barriers[id];
        if let (Awaited::Listed, Some(member)) = (barrier.awaited, barrier.members.get(member)) {
            self.awaited_names.insert((self.hasher.of(&member.name), id));
        }
    }

    /// Reverts [`Barriers::await_names`]. To be called while those that wait there still do.
    fn await_no_names(&mut self, id: BarrierId) {
        let Self { barriers, awaited_names, hasher, work, .. } = self;
        let barrier = &barriers[id];
        if barrier.awaited == Awaited::Listed && barrier.members.waiting() < barrier.participants() {
            *work += barrier.members.len() as u64;
            let absent = barrier.members.iter().filter(|(_, member)| member.arrival.is_none());
            absent.for_each(|(_, member)| awaited_names.remove((hasher.of(&member.name), id)));
        }
    }

    fn insert(&mut self, key: &[u8]) -> BarrierId {
        self.keys.insert(key, self.barriers.vacant_key());
        self.barriers.insert(Barrier::new(key))
    }

    /// Forgets a barrier at which no arrival waits.
    fn remove(&mut self, id: BarrierId) {
        let barrier = self.barriers.remove(id);
        self.keys.remove(&barrier.key);
        self.idle.remove(barrier.idle_since);
        self.stored_bytes -= barrier.charged;
    }

    /// Forgets the barrier that has been idle for longest, other than `but`. Returns whether there was one.
    fn forget_oldest(&mut self, but: Option<BarrierId>) -> bool {
        let oldest = self.idle.iter().map(|(_, id)| id).find(|&id| Some(id) != but);
        if let Some(id) = oldest {
            self.remove(id);
        }
        oldest.is_some()
    }

    fn charge(&mut self, id: BarrierId) {
        let barrier = &mut self.barriers[id];
        let cost = barrier.cost();
        self.stored_bytes = self.stored_bytes - barrier.charged + cost;
        barrier.charged = cost;
    }

    fn check_arrivals(&self) -> Result<(), Refusal> {
        let limit = self.limits.arrivals_max;
        if self.arrivals.len() >= limit {
            return Err(Refusal::TooMany { what: "arrivals", limit: limit as u64 });
        }
        Ok(())
    }

    /// Makes space for another barrier.
    fn make_slot(&mut self) -> Result<(), Refusal> {
        let limit = self.limits.barriers_max;
        while self.barriers.len() >= limit {
            if !self.forget_oldest(None) {
                return Err(Refusal::TooMany { what: "barriers", limit: limit as u64 });
            }
        }
        Ok(())
    }

    /// Makes space for this many bytes at the barrier `but`, or at a new one.
    fn free_capacity(&mut self, bytes: u64, but: Option<BarrierId>) -> Result<(), Refusal> {
        let limit = self.limits.stored_bytes_max;
        let mut forgotten = 0;
        while self.stored_bytes + bytes > limit {
            if forgotten == FORGOTTEN_AT_ONCE_MAX || !self.forget_oldest(but) {
                return Err(Refusal::TooMany { what: "bytes of names", limit });
            }
            forgotten += 1;
            self.work += END_WORK;
        }
        Ok(())
    }
}
