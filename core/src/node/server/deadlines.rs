//! Deadlines of connections, soonest first. An entry that no longer applies stays in the heap until it is due and is
//! checked then, so that handling a request never searches or removes entries.

use crate::ids::ConnId;
use crate::time::Instant;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// What a connection must do before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deadline {
    /// Complete the handshake. Armed once, when the connection is accepted.
    Handshake,
    /// Send the rest of a frame. Armed when the server stores the first part of an incomplete frame.
    Frame,
    /// Read its answers. Armed when the socket's send buffer is full.
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

    /// Removes the entries for which `keep` returns false.
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
