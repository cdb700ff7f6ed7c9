//! Members of a loop: stores, sessions, and anything else that implements [`Member`].

use super::{Loop, LoopEvent, SubmitError, SubmitResult};
use crate::driver::event_loop::{EventLoop, Ready, Token, Waker, Watcher};
use crate::driver::prelude::*;
use crate::driver::store::Timeouts;
use crate::driver::threads::Thread;
use crate::store::call::{Call, CallId};
use alloc::collections::VecDeque;
use core::any::Any;

/// Number of low bits of a call's number that count the calls of one member: enough for months. The bits above them
/// are the member's number, enough for 16 million members.
const CALLS_PER_MEMBER_BITS: u32 = 40;

/// Identifier of one member of a loop: a store, a session, or another one. The id of a session is also that of the
/// store of its server's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u32);

impl MemberId {
    /// Returns the id as a number, for callers that keep numbers.
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Makes the id from [`MemberId::as_u32`].
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// Returns the member that watches under this token of [`MemberId::token`].
    pub(super) const fn of_token(token: Token) -> Self {
        Self((token.0 >> 32) as u32)
    }

    /// Returns a token of this member: [`Member::ready`] gets what becomes ready under it.
    pub const fn token(self, number: u32) -> Token {
        Token(((self.0 as u64) << 32) | number as u64)
    }

    /// Returns the loop's id of a call that has this number at the member.
    pub const fn call(self, number: u64) -> CallId {
        CallId(((self.0 as u64) << CALLS_PER_MEMBER_BITS) + number)
    }

    /// Returns the member's own number of a call, from [`MemberId::call`].
    pub const fn number_of(self, call: CallId) -> u64 {
        call.0.wrapping_sub((self.0 as u64) << CALLS_PER_MEMBER_BITS)
    }
}

/// Context that a loop passes to a new member.
#[derive(Clone, Debug)]
pub struct MemberContext {
    /// Id of the member.
    pub id: MemberId,
    /// Makes the loop's descriptor readable, from any thread.
    pub waker: Waker,
    /// Adds descriptors to the loop, under tokens of [`MemberId::token`].
    pub watcher: Watcher,
    /// Clock of the loop.
    pub clock: Clock,
}

/// Event of a member, of a type that the member's users know.
pub type MemberEvent = Box<dyn Any + Send>;

/// Access of a member to its loop during a call: the queue of the loop's events, and for the members of this module
/// the event loop and its read buffer.
#[derive(Debug)]
pub struct MemberEvents<'a> {
    id: MemberId,
    pub(super) queue: &'a mut VecDeque<LoopEvent>,
    pub(super) event_loop: &'a EventLoop,
    pub(super) buffer: &'a mut [u8],
}

impl MemberEvents<'_> {
    /// Adds an event at the end of the queue.
    pub fn push(&mut self, event: MemberEvent) {
        self.queue.push_back(LoopEvent::Member(self.id, event));
    }

    /// Returns the time of the loop's clock.
    pub(super) fn now(&self) -> Instant {
        self.event_loop.clock().now()
    }
}

/// Keys of a member that is a store.
#[derive(Clone, Copy, Debug)]
pub struct MemberStore<'a> {
    /// Prefix of its keys.
    pub scope: &'a [u8],
    /// Default timeouts of its calls.
    pub timeouts: Timeouts,
    /// Number of its calls in progress.
    pub pending: usize,
}

/// Object that a loop owns and drives. No method may block; dropping it may.
pub trait Member: Any + Send {
    /// Called first in each call of [`Loop::poll`], which began at `now`.
    fn wake(&mut self, _now: Instant, _events: &mut MemberEvents<'_>) {}

    /// Called when a descriptor that the member watches is ready.
    ///
    /// # Errors
    /// The error of the system; the loop's own call fails with it.
    fn ready(&mut self, _now: Instant, _ready: Ready, _events: &mut MemberEvents<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called once in each call of [`Loop::poll`], after all that is ready. All that arrived by `now` has been read.
    fn poll(&mut self, _now: Instant, _events: &mut MemberEvents<'_>) {}

    /// Returns the time by which the member must be called again.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Takes an event from the member's own queue. The loop calls this when its own queue is empty, for the members
    /// in turn.
    fn next_event(&mut self) -> Option<MemberEvent> {
        None
    }

    /// Returns whether no event follows. The loop then removes the member.
    fn is_over(&self) -> bool {
        false
    }

    /// Returns its keys, if it is a store.
    fn store(&self) -> Option<MemberStore<'_>> {
        None
    }

    /// Submits a call on its keys: [`LoopEvent::Store`] has the result.
    ///
    /// # Errors
    /// The call exceeds a limit, or the member is no store.
    fn submit(&mut self, _call: &Call<'_>, _span: Duration, _events: &mut MemberEvents<'_>) -> SubmitResult {
        Err(SubmitError::UnknownStore)
    }

    /// Cancels a call of [`MemberId::call`]. An unknown one is ignored.
    fn cancel(&mut self, _call: CallId, _events: &mut MemberEvents<'_>) {}

    /// Called when the member is removed or the loop ends: the member starts to shut down. No event of it is taken
    /// any more.
    fn leave(&mut self) {}

    /// Hands over its threads, which the loop joins when it ends. The member is dropped next.
    fn take_threads(&mut self) -> Vec<Thread> {
        Vec::new()
    }
}

// Its fields are not shown: that of all types behind the trait would be 20 KB of the library.
impl fmt::Debug for dyn Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Member")
    }
}

/// Time that the end of a loop waits for threads of its members.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Members of a loop.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// In the order of their ids.
    members: Vec<(MemberId, Box<dyn Member>)>,
    /// Index of the member whose events come next, so that each member gets its turn.
    poll: usize,
    /// Threads of members that were removed.
    left: Vec<Thread>,
}

impl Members {
    fn index(&self, id: MemberId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |(member, _)| *member).ok()
    }

    pub(super) fn get(&self, id: MemberId) -> Option<&dyn Member> {
        Some(&*self.members[self.index(id)?].1)
    }

    fn get_mut(&mut self, id: MemberId) -> Option<&mut dyn Member> {
        let index = self.index(id)?;
        Some(&mut *self.members[index].1)
    }

    pub(super) fn get_as<M: Member>(&self, id: MemberId) -> Option<&M> {
        <dyn Any>::downcast_ref(self.get(id)?)
    }

    pub(super) fn get_as_mut<M: Member>(&mut self, id: MemberId) -> Option<&mut M> {
        <dyn Any>::downcast_mut(self.get_mut(id)?)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.members.iter().filter_map(|(_, member)| member.poll_timeout()).min()
    }

    pub(super) fn next_event(&mut self) -> Option<LoopEvent> {
        for _ in 0..self.members.len() {
            let index = self.poll % self.members.len();
            self.poll = index + 1;
            let (id, member) = &mut self.members[index];
            let Some(event) = member.next_event() else { continue };
            let (id, is_over) = (*id, member.is_over());
            if is_over {
                self.forget(id);
            }
            return Some(LoopEvent::Member(id, event));
        }
        None
    }

    fn forget(&mut self, id: MemberId) {
        let Some(index) = self.index(id) else { return };
        let (_, mut member) = self.members.remove(index);
        self.left.retain(|thread| !thread.has_ended());
        self.left.append(&mut member.take_threads());
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|(_, member)| member.leave());
        for (_, mut member) in self.members.drain(..) {
            self.left.append(&mut member.take_threads());
        }
        let clock = Clock::new();
        let until = clock.now() + CLOSE_TIMEOUT;
        for thread in self.left.drain(..) {
            thread.join_timeout(until.since(clock.now()), || {});
        }
    }
}

impl Loop {
    /// Adds the member that `make` makes from its context.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn add_member<M: Member, E>(
        &mut self,
        make: impl FnOnce(&MemberContext) -> Result<M, E>,
    ) -> Result<MemberId, E> {
        let context = self.member_context();
        let member = make(&context)?;
        Ok(self.insert(context.id, member))
    }

    /// Makes the context of the next member.
    pub(super) fn member_context(&mut self) -> MemberContext {
        self.members_made += 1;
        let (waker, watcher, clock) = (self.events.waker(), self.events.watcher(), *self.events.clock());
        MemberContext { id: MemberId(self.members_made), waker, watcher, clock }
    }

    /// Adds the member of the last context that was made.
    pub(super) fn insert<M: Member>(&mut self, id: MemberId, member: M) -> MemberId {
        self.members.members.push((id, Box::new(member)));
        id
    }

    /// Returns a member and its access to the loop.
    pub(super) fn member(&mut self, id: MemberId) -> Option<(&mut dyn Member, MemberEvents<'_>)> {
        let Self { events, members, event_queue: queue, buffer, .. } = self;
        Some((members.get_mut(id)?, MemberEvents { id, queue, event_loop: events, buffer }))
    }

    pub(super) fn for_each_member(&mut self, mut work: impl FnMut(&mut dyn Member, &mut MemberEvents<'_>)) {
        let Self { events: event_loop, members, event_queue: queue, buffer, .. } = self;
        for (id, member) in &mut members.members {
            work(&mut **member, &mut MemberEvents { id: *id, queue, event_loop, buffer });
        }
    }

    /// Calls `work` with a member. `None`: the loop has no member with this id and type.
    pub fn with_member<M: Member, T>(
        &mut self,
        id: MemberId,
        work: impl FnOnce(&mut M, &mut MemberEvents<'_>) -> T,
    ) -> Option<T> {
        let (member, mut events) = self.member(id)?;
        let done = work(<dyn Any>::downcast_mut(member)?, &mut events);
        self.changed(id);
        Some(done)
    }

    /// Removes a member: no event of it follows. Ignored if there is no such member of type `M`.
    pub fn remove_member<M: Member>(&mut self, id: MemberId) {
        if self.members.get_as::<M>(id).is_some() {
            self.remove(id);
        }
    }

    pub(super) fn remove(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.leave();
        self.members.forget(id);
        self.event_queue.retain(|event| event.member() != id);
    }
}
