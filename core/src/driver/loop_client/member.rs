//! Members of a loop beside stores and sessions: anything that implements [`Member`].

use super::{CALLS_PER_MEMBER_BITS, Loop, LoopEvent};
use crate::driver::clock::Clock;
use crate::driver::event_loop::{Ready, Token, Waker, Watcher};
use crate::driver::threads::Thread;
use crate::store::call::CallId;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use std::io;

/// Identifier of one member of a loop. Members, stores and sessions share one sequence of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u32);

impl MemberId {
    /// Returns the id as a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Makes the id from [`MemberId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// Returns the loop's id of a call that has this number at the member.
    #[must_use]
    pub const fn call(self, number: u64) -> CallId {
        CallId(((self.0 as u64) << CALLS_PER_MEMBER_BITS) + number)
    }

    /// Returns the member's own number of a call, from [`MemberId::call`].
    #[must_use]
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
    /// Adds descriptors to the loop, under tokens of [`MemberContext::token`].
    pub watcher: Watcher,
    /// Clock of the loop.
    pub clock: Clock,
}

impl MemberContext {
    /// Returns a token of this member: [`Member::ready`] gets what becomes ready under it.
    #[must_use]
    pub const fn token(&self, number: u32) -> Token {
        Token(((self.id.0 as u64) << 32) | number as u64)
    }
}

/// Event of a member, of a type that the member's users know.
pub type MemberEvent = Box<dyn Any + Send>;

/// Adds events of a member to the queue of its loop.
#[derive(Debug)]
pub struct MemberEvents<'a> {
    id: MemberId,
    queue: &'a mut VecDeque<LoopEvent>,
}

impl MemberEvents<'_> {
    /// Adds an event at the end of the queue.
    pub fn push(&mut self, event: MemberEvent) {
        self.queue.push_back(LoopEvent::Member(self.id, event));
    }
}

/// Object that a loop owns and drives. No method may block; dropping it may.
pub trait Member: Any + fmt::Debug + Send {
    /// Called when a descriptor that the member watches is ready.
    ///
    /// # Errors
    /// The error of the system; the loop's own call fails with it.
    fn ready(&mut self, ready: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        let _ = (ready, events);
        Ok(())
    }

    /// Called once in each call of [`Loop::poll`], after everything else.
    fn poll(&mut self, now: Instant) {
        let _ = now;
    }

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

    /// Cancels a call of [`MemberId::call`]. An unknown one is ignored.
    fn cancel(&mut self, call: CallId) {
        let _ = call;
    }

    /// Called when the member is removed or the loop ends: the member starts to shut down. No event of it is taken
    /// any more.
    fn leave(&mut self) {}

    /// Hands over its threads, which the loop joins when it ends. The member is dropped next.
    fn take_threads(&mut self) -> Vec<Thread> {
        Vec::new()
    }
}

/// Time that the end of a loop waits for threads of its members.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Members of a loop.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<(MemberId, Box<dyn Member>)>,
    /// Index of the member whose events come next, so that each member gets its turn.
    poll: usize,
    /// Threads of members that were removed.
    left: Vec<Thread>,
}

impl Members {
    fn index(&self, id: MemberId) -> Option<usize> {
        self.members.iter().position(|(member, _)| *member == id)
    }

    fn get(&mut self, id: MemberId) -> Option<&mut dyn Member> {
        let index = self.index(id)?;
        Some(&mut *self.members[index].1)
    }

    fn get_as<M: Member>(&mut self, id: MemberId) -> Option<&mut M> {
        <dyn Any>::downcast_mut(self.get(id)?)
    }

    /// Passes the readiness of a descriptor to its member. An unknown token is ignored.
    pub(super) fn ready(&mut self, ready: Ready, queue: &mut VecDeque<LoopEvent>) -> io::Result<()> {
        let id = MemberId((ready.token.0 >> 32) as u32);
        self.get(id).map_or(Ok(()), |member| member.ready(ready, &mut MemberEvents { id, queue }))
    }

    pub(super) fn poll(&mut self, now: Instant) {
        self.members.iter_mut().for_each(|(_, member)| member.poll(now));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.members.iter().filter_map(|(_, member)| member.poll_timeout()).min()
    }

    pub(super) fn cancel(&mut self, id: MemberId, call: CallId) {
        if let Some(member) = self.get(id) {
            member.cancel(call);
        }
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
        let id = MemberId(self.next_number());
        let (waker, watcher, clock) = (self.events.waker(), self.events.watcher(), *self.events.clock());
        let member = make(&MemberContext { id, waker, watcher, clock })?;
        self.members.members.push((id, Box::new(member)));
        Ok(id)
    }

    /// Calls `work` with a member. `None`: the loop has no member with this id and type.
    pub fn with_member<M: Member, T>(
        &mut self,
        id: MemberId,
        work: impl FnOnce(&mut M, &mut MemberEvents<'_>) -> T,
    ) -> Option<T> {
        let member = self.members.get_as::<M>(id)?;
        let done = work(member, &mut MemberEvents { id, queue: &mut self.event_queue });
        self.changed();
        Some(done)
    }

    /// Removes a member: no event of it follows. Ignored if there is no such member of type `M`.
    pub fn remove_member<M: Member>(&mut self, id: MemberId) {
        let Some(member) = self.members.get_as::<M>(id) else { return };
        member.leave();
        self.members.forget(id);
        self.event_queue.retain(|event| !matches!(event, LoopEvent::Member(of, _) if *of == id));
    }
}
