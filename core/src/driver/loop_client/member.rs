//! What a loop owns beside stores and sessions: anything that implements [`Member`].

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

/// Names one member of a loop. Members, stores and sessions are numbered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u32);

impl MemberId {
    /// As a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// From [`MemberId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }

    /// The name in the loop of a call that the member counts itself.
    #[must_use]
    pub const fn call(self, number: u64) -> CallId {
        CallId(((self.0 as u64) << CALLS_PER_MEMBER_BITS) + number)
    }

    /// The member's own number of a call, from [`MemberId::call`].
    #[must_use]
    pub const fn number_of(self, call: CallId) -> u64 {
        call.0.wrapping_sub((self.0 as u64) << CALLS_PER_MEMBER_BITS)
    }
}

/// What a member gets from its loop when it is added.
#[derive(Clone, Debug)]
pub struct MemberContext {
    /// The name of the member.
    pub id: MemberId,
    /// Makes the loop's descriptor readable, from any thread.
    pub waker: Waker,
    /// Has descriptors watched by the loop, under tokens of [`MemberContext::token`].
    pub watcher: Watcher,
    /// The loop's clock.
    pub clock: Clock,
}

impl MemberContext {
    /// A token that leads to this member: [`Member::ready`] gets what becomes ready under it.
    #[must_use]
    pub const fn token(&self, number: u32) -> Token {
        Token(((self.id.0 as u64) << 32) | number as u64)
    }
}

/// An event of a member, of a type that the member's users know.
pub type MemberEvent = Box<dyn Any + Send>;

/// Takes events of a member into the queue of its loop.
#[derive(Debug)]
pub struct MemberEvents<'a> {
    id: MemberId,
    queue: &'a mut VecDeque<LoopEvent>,
}

impl MemberEvents<'_> {
    /// Puts an event behind all others.
    pub fn push(&mut self, event: MemberEvent) {
        self.queue.push_back(LoopEvent::Member(self.id, event));
    }
}

/// Something that a loop drives and owns. No method may block, but for dropping it.
pub trait Member: Any + fmt::Debug + Send {
    /// A descriptor that it has watched is ready.
    ///
    /// # Errors
    /// That of the system; the loop's own call fails with it.
    fn ready(&mut self, ready: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        let _ = (ready, events);
        Ok(())
    }

    /// Called once in each call of [`Loop::poll`], after everything else.
    fn poll(&mut self, now: Instant) {
        let _ = now;
    }

    /// When it is to be called again at the latest.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Takes an event that it keeps itself. The loop asks when its own queue is empty, each member in its turn.
    fn next_event(&mut self) -> Option<MemberEvent> {
        None
    }

    /// Whether no event follows: the loop forgets it then.
    fn is_over(&self) -> bool {
        false
    }

    /// Gives up a call of [`MemberId::call`]. An unknown one is ignored.
    fn cancel(&mut self, call: CallId) {
        let _ = call;
    }

    /// It is removed, or the loop ends: what has to end begins to. No event of it is taken any more.
    fn leave(&mut self) {}

    /// Gives up its threads, which the end of the loop waits for. It is dropped then.
    fn take_threads(&mut self) -> Vec<Thread> {
        Vec::new()
    }
}

/// How long the end of a loop waits for threads of its members.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The members of a loop.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<(MemberId, Box<dyn Member>)>,
    /// Who comes next, so that each does.
    poll: usize,
    /// Threads of members that the loop has no more.
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

    /// Hands out that a descriptor is ready. An unknown token is ignored.
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
    /// Adds what `make` makes, for which the loop has a name.
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

    /// Does `work` with a member. `None`: the loop has none of this name that is such.
    pub fn with_member<M: Member, T>(
        &mut self,
        id: MemberId,
        work: impl FnOnce(&mut M, &mut MemberEvents<'_>) -> T,
    ) -> Option<T> {
        let member = self.members.get_as::<M>(id)?;
        let done = work(member, &mut MemberEvents { id, queue: &mut self.happened });
        self.changed();
        Some(done)
    }

    /// Forgets a member: no event of it follows. An unknown one is ignored, and one that is no `M`.
    pub fn remove_member<M: Member>(&mut self, id: MemberId) {
        let Some(member) = self.members.get_as::<M>(id) else { return };
        member.leave();
        self.members.forget(id);
        self.happened.retain(|event| !matches!(event, LoopEvent::Member(of, _) if *of == id));
    }
}
