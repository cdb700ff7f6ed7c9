//! Queue of future events. Events at the same time are processed in the order in which they were added.

use rendezvous_core::time::Instant;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Entry<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Queue of future events.
pub(in crate::sim) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    entered: u64,
}

impl<E> EventQueue<E> {
    pub(in crate::sim) fn new() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }

    pub(in crate::sim) fn schedule(&mut self, at: Instant, event: E) {
        self.entered += 1;
        self.heap.push(Reverse(Entry { at, number: self.entered, event }));
    }

    pub(in crate::sim) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(in crate::sim) fn pop(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}
