//! Deadlines of connections, soonest first. An entry whose matter is settled stays until it is due and is looked at
//! then; nothing is searched or removed on the way of a request.

use crate::ids::ConnId;
use crate::time::Instant;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// What a connection must do in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// Greet. Armed once, when it is accepted.
    Handshake,
    /// Go on with a frame that has begun. Armed when the first piece of one is kept.
    Frame,
    /// Read its answers. Armed when the socket takes no more of them.
    Stall,
}

#[derive(Debug, Default)]
pub(super) struct Deadlines(BinaryHeap<Reverse<(Instant, ConnId, Deadline)>>);

impl Deadlines {
    pub(super) fn arm(&mut self, at: Instant, deadline: Deadline, conn: ConnId) {
        self.0.push(Reverse((at, conn, deadline)));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops the entries that `keep` does not want.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Deadline, ConnId) -> bool) {
        self.0.retain(|Reverse((_, conn, deadline))| keep(*deadline, *conn));
        self.0.shrink_to(self.0.len() * 2);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }

    pub(super) fn expired(&mut self, now: Instant) -> Option<(Deadline, ConnId)> {
        let top = self.0.peek_mut().filter(|top| top.0.0 <= now)?;
        let Reverse((_, conn, deadline)) = alloc::collections::binary_heap::PeekMut::pop(top);
        Some((deadline, conn))
    }
}
