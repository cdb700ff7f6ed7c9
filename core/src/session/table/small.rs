//! Small lookup tables of the session table. Each frame uses them.

use super::SessionId;
use crate::ids::ConnId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Requests that have not been answered yet. They arrive in the order of their ids and are mostly answered in it, so a
/// queue keeps them sorted. A request that is answered at once does not allocate memory.
#[derive(Debug, Default)]
pub(super) struct Pending(VecDeque<u64>);

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.0.front() == Some(&id) || self.0.binary_search(&id).is_ok()
    }

    pub(super) fn insert(&mut self, id: u64) {
        if self.0.back().is_none_or(|&last| last < id) {
            self.0.push_back(id);
        } else if let Err(index) = self.0.binary_search(&id) {
            self.0.insert(index, id);
        }
    }

    pub(super) fn remove(&mut self, id: u64) {
        if self.0.front() == Some(&id) {
            self.0.pop_front();
        } else if let Ok(index) = self.0.binary_search(&id) {
            self.0.remove(index);
        }
        shrink_if_sparse(&mut self.0);
    }
}

/// Capacity that a queue of a session keeps, in entries.
const ENTRIES_KEPT: usize = 4;

/// Frees most of the memory of a queue that was long: a session is not charged for it.
#[inline(never)]
pub(super) fn shrink_if_sparse<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > ENTRIES_KEPT && queue.len() < queue.capacity() / 8 {
        queue.shrink_to(queue.len().max(ENTRIES_KEPT / 2) * 2);
    }
}

/// Session of each connection, by the slot of the connection.
#[derive(Debug, Default)]
pub(super) struct OfConn(Vec<Option<(u32, SessionId)>>);

impl OfConn {
    pub(super) fn get(&self, conn: ConnId) -> Option<SessionId> {
        let (generation, session) = (*self.0.get(conn.index as usize)?)?;
        (generation == conn.generation).then_some(session)
    }

    pub(super) fn insert(&mut self, conn: ConnId, session: SessionId) {
        let index = conn.index as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some((conn.generation, session));
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        if self.get(conn).is_some() {
            self.0[conn.index as usize] = None;
        }
        while let Some(None) = self.0.last() {
            self.0.pop();
        }
        if self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(SLOTS_KEPT);
        }
    }
}

/// Capacity that the table keeps, in slots.
const SLOTS_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_requests_are_found_and_go_in_any_order() {
        let mut pending = Pending::default();
        for id in [3, 5, 9, 4] {
            pending.insert(id);
            pending.insert(id);
        }
        assert_eq!(pending.0, [3, 4, 5, 9]);
        for id in [5, 3, 7, 9] {
            assert_eq!(pending.contains(id), id != 7);
            pending.remove(id);
        }
        assert_eq!(pending.0, [4]);
    }

    /// A session is charged for what its queues have, and not for what they once had.
    #[test]
    fn a_queue_that_was_long_gives_its_memory_back() {
        let mut pending = Pending::default();
        (0..4096).for_each(|id| pending.insert(id));
        // The first one waits for long.
        (1..4096).for_each(|id| pending.remove(id));
        assert!(pending.0.capacity() < 64, "{}", pending.0.capacity());
        pending.remove(0);
        assert!(pending.0.capacity() <= ENTRIES_KEPT, "{}", pending.0.capacity());
    }

    #[test]
    fn a_connection_is_not_taken_for_the_one_that_had_its_place() {
        let conn = |index, generation| ConnId { index, generation };
        let mut of_conn = OfConn::default();
        of_conn.insert(conn(2, 7), SessionId(1));
        assert_eq!(of_conn.get(conn(2, 7)), Some(SessionId(1)));
        for other in [conn(2, 6), conn(1, 7), conn(3, 7)] {
            of_conn.remove(other);
            assert_eq!(of_conn.get(other), None);
        }
        assert_eq!(of_conn.0.len(), 3);
        of_conn.remove(conn(2, 7));
        assert!(of_conn.0.is_empty());
    }
}
