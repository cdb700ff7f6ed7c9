//! Fair queue of several sources: it takes one item of each source in turn, however many each of them has.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Queue with round-robin order over its sources, which are small numbers.
#[derive(Debug)]
pub struct FairQueue<T> {
    queues: Vec<VecDeque<T>>,
    /// Sources with items, in the order in which they are served.
    turns: VecDeque<usize>,
    len: usize,
}

/// Capacity that the empty queue of a source keeps, in items.
const CAPACITY_KEPT: usize = 64;

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: Vec::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Number of items.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no items.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an item to those of its source.
    pub fn push(&mut self, source: usize, item: T) {
        if self.queues.len() <= source {
            self.queues.resize_with(source + 1, VecDeque::new);
        }
        if let Some(queue) = self.queues.get_mut(source) {
            if queue.is_empty() {
                self.turns.push_back(source);
            }
            queue.push_back(item);
            self.len += 1;
        }
    }

    /// Takes the first item of the next source.
    pub fn pop(&mut self) -> Option<T> {
        let source = self.turns.pop_front()?;
        let queue = self.queues.get_mut(source)?;
        let item = queue.pop_front()?;
        self.len -= 1;
        if !queue.is_empty() {
            self.turns.push_back(source);
        } else if queue.capacity() > CAPACITY_KEPT {
            *queue = VecDeque::new();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_its_turn_and_its_own_order() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|at| queue.push(3, (3, at)));
        queue.push(0, (0, 0));
        queue.push(7, (7, 0));
        queue.push(7, (7, 1));
        assert_eq!((queue.len(), queue.is_empty()), (1003, false));
        let first: Vec<_> = (0..6).filter_map(|_| queue.pop()).collect();
        assert_eq!(first, [(3, 0), (0, 0), (7, 0), (3, 1), (7, 1), (3, 2)]);
        queue.push(0, (0, 1));
        assert_eq!((queue.pop(), queue.pop()), (Some((3, 3)), Some((0, 1))));
        let rest: Vec<_> = core::iter::from_fn(|| queue.pop()).collect();
        assert!(rest.into_iter().eq((4..1000).map(|at| (3, at))));
        assert_eq!((queue.pop(), queue.len(), queue.queues[3].capacity()), (None, 0, 0));
    }
}
