//! Table of the requests that wait for keys, by session and by deadline.

use super::RequestId;
use crate::limits::{REGISTRATION_COST_BYTES, WAIT_COST_BYTES};
use crate::ordered::{Index, Set};
use crate::prelude::*;
use crate::session::table::SessionId;
use crate::store::op::Keys;
use alloc::collections::VecDeque;
use slab::Slab;

/// What a request waits for. Its keys are stored as they are encoded in a frame.
#[derive(Debug)]
pub(super) enum Awaited {
    /// One value.
    Value,
    /// The presence of all its keys.
    KeyPresence,
    /// Several values.
    Values,
    /// An item of a queue.
    Item,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: RequestId,
    pub(super) timeout_ms: u64,
    pub(super) deadline: Instant,
    pub(super) what: Awaited,
    /// Whether the store has ended its wait.
    pub(super) is_released: bool,
    count: usize,
    packed: Vec<u8>,
}

impl Pending {
    pub(super) fn new(
        request: RequestId,
        timeout_ms: u64,
        deadline: Instant,
        what: Awaited,
        keys: Keys<'_>,
    ) -> Self {
        let mut packed = Vec::new();
        for key in keys.iter() {
            packed.extend_from_slice(&(key.len() as u64).to_le_bytes());
            key.pieces().into_iter().for_each(|part| packed.extend_from_slice(part));
        }
        Self { request, timeout_ms, deadline, what, is_released: false, count: keys.len(), packed }
    }

    /// Returns the bytes that the session is charged for the request.
    pub(super) const fn cost(&self) -> u64 {
        self.packed.len() as u64 + self.count as u64 * REGISTRATION_COST_BYTES + WAIT_COST_BYTES
    }

    pub(super) fn keys(&self) -> Keys<'_> {
        Keys::packed(self.count, &self.packed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By the index that names the request at the store.
    slots: Slab<Pending>,
    of_request: Index<(SessionId, u64), u32>,
    deadlines: Set<(Instant, u32)>,
    /// Requests whose wait the store has ended and which the server has not looked at yet. Some may have been removed
    /// since, and another request may have the index: `next_released` skips those.
    released: VecDeque<u32>,
}

impl Waiting {
    /// Returns the index that the next request will have.
    pub(super) fn next_index(&self) -> u32 {
        // invariant: the engine bounds its waits far below 2^32
        u32::try_from(self.slots.vacant_key()).expect("fewer requests wait than there may be waits")
    }

    /// Adds a request at [`Waiting::next_index`].
    pub(super) fn insert(&mut self, pending: Pending) {
        let pending = Pending { is_released: false, ..pending };
        let index = self.next_index();
        self.of_request.insert(pending.request.key(), index);
        self.deadlines.insert((pending.deadline, index));
        self.slots.insert(pending);
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Pending> {
        let pending = self.slots.try_remove(index as usize)?;
        self.of_request.remove(pending.request.key());
        self.deadlines.remove((pending.deadline, index));
        if self.slots.is_empty() && self.slots.capacity() > 1024 {
            self.slots.shrink_to_fit();
        }
        Some(pending)
    }

    /// Notes that the store has ended the wait of a request.
    pub(super) fn release(&mut self, index: u32) {
        if let Some(pending) = self.slots.get_mut(index as usize) {
            pending.is_released = true;
            self.released.push_back(index);
        }
    }

    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Returns the next request whose wait the store has ended.
    pub(super) fn next_released(&mut self) -> Option<u32> {
        let Self { slots, released, .. } = self;
        let is_it = |index: u32| slots.get(index as usize).is_some_and(|pending| pending.is_released);
        core::iter::from_fn(|| released.pop_front()).find(|&index| is_it(index))
    }

    pub(super) fn find(&self, request: RequestId) -> Option<u32> {
        self.of_request.get(request.key())
    }

    pub(super) fn session_of(&self, index: u32) -> Option<SessionId> {
        self.slots.get(index as usize).map(|pending| pending.request.session)
    }

    pub(super) fn of_session(&self, session: SessionId) -> Option<u32> {
        self.of_request.of(session).next().map(|(_, index)| index)
    }

    pub(super) fn expired(&self, now: Instant) -> Option<u32> {
        self.deadlines.first().filter(|&(at, _)| at <= now).map(|(_, index)| index)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at)
    }
}
