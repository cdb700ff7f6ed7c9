//! Requests to the traced keys: writes to several of them at once, and reads beside the watches on them.

use super::super::order::Order;
use super::super::process::SubmitPath;
use super::Node;
use crate::sim::harness::revisions::TRACED;
use crate::sim::world::SimContext;
use rendezvous_core::error::Operation;
use rendezvous_core::store::op::{Key, Keys, Pairs};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::wire::native::{ClientFrame, List, ServerFrame};

/// Number of traced keys.
pub(super) const TRACED_KEYS: usize = 4;

fn key(number: usize) -> Vec<u8> {
    [TRACED, number.to_string().as_bytes()].concat()
}

impl Node {
    /// Returns a value that no request has had before.
    pub(super) fn make_value(&mut self) -> Vec<u8> {
        self.values += 1;
        format!("{} of node {}", self.values, self.number).into_bytes()
    }

    /// Notes the revisions and values of a read of all traced keys.
    pub(super) fn note_found(&mut self, frame: &ServerFrame<'_>) {
        let ServerFrame::Values { values } = frame else { return };
        for (number, found) in values.iter().enumerate() {
            if let Some(value) = found.value {
                self.found.insert(key(number), (found.revision, value.to_vec()));
            }
        }
    }

    /// Uses the traced keys. Several requests may be under way at a time.
    pub(super) fn use_traced(&mut self, context: &mut SimContext) {
        for _ in 0..self.sim_rng.pick(&[1, 2, 4]) {
            if !self.process.as_ref().is_some_and(super::Process::has_capacity) {
                return;
            }
            match self.sim_rng.index(20) {
                0..3 => self.mark(context, TRACED),
                3..10 => self.transact(context),
                10..12 => self.write_traced(context),
                _ => self.read_traced(context),
            }
        }
    }

    /// Returns traced keys in an order at random.
    fn shuffled(&mut self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = (0..TRACED_KEYS).map(key).collect();
        for last in (1..keys.len()).rev() {
            keys.swap(last, self.sim_rng.index(last + 1));
        }
        keys
    }

    fn transact(&mut self, context: &mut SimContext) {
        let (tested, changed) = (self.shuffled(), self.shuffled());
        let found = self.found.clone();
        let tests = 1 + self.sim_rng.index(2);
        let compares: Vec<Compare<'_>> = tested[..tests]
            .iter()
            .map(|key| {
                let (revision, value) = found.get(key).map_or((0, &b"none"[..]), |(at, value)| (*at, value));
                let condition = match self.sim_rng.index(6) {
                    0 | 1 => Condition::Exists,
                    2 => Condition::Absent,
                    3 | 4 => Condition::Revision(revision),
                    _ => Condition::Value(value),
                };
                Compare { key: Key::raw(key), condition }
            })
            .collect();
        let values: Vec<Vec<u8>> = changed.iter().map(|_| self.make_value()).collect();
        let set = |slot: usize| Write::Set { key: Key::raw(&changed[slot]), value: &values[slot] };
        // Deletions come first: only then does the last revision say which ones the others have.
        let mut then = vec![set(1), set(2)];
        match self.sim_rng.index(4) {
            0 => then.insert(0, Write::Delete { key: Key::raw(&changed[0]) }),
            1 => then.push(set(0)),
            _ => {}
        }
        let otherwise = [set(3)];
        let txn = ClientFrame::Txn {
            compares: List::new(&compares),
            then: List::new(&then),
            otherwise: List::new(&otherwise[..self.sim_rng.index(2)]),
        };
        self.change_traced(context, Operation::Txn, "txn", &txn);
    }

    fn write_traced(&mut self, context: &mut SimContext) {
        let keys = self.shuffled();
        let [first, second] = [self.make_value(), self.make_value()];
        match self.sim_rng.index(3) {
            0 => {
                let delete = ClientFrame::Delete { key: Key::raw(&keys[0]) };
                self.change_traced(context, Operation::Delete, "delete", &delete);
            }
            1 => {
                let pairs: [(&[u8], &[u8]); 2] = [(&keys[0], &first), (&keys[1], &second)];
                let multi_set = ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) };
                self.change_traced(context, Operation::MultiSet, "multi set", &multi_set);
            }
            _ => {
                let expected = self.found.get(&keys[0]).map(|(_, value)| value.clone()).unwrap_or_default();
                let (key, expected, desired) = (Key::raw(&keys[0]), &expected[..], &first[..]);
                let compare_set = ClientFrame::CompareSet { key, expected, desired };
                self.change_traced(context, Operation::CompareSet, "compare set", &compare_set);
            }
        }
    }

    fn change_traced(
        &mut self,
        context: &mut SimContext,
        operation: Operation,
        what: &'static str,
        frame: &ClientFrame<'_>,
    ) {
        let order = Order::Other { what, key: TRACED.to_vec(), began: context.now };
        self.ask(context, SubmitPath::Plain, operation, self.span(), frame, order);
    }

    fn read_traced(&mut self, context: &mut SimContext) {
        let (all, some) = ((0..TRACED_KEYS).map(key).collect::<Vec<_>>(), self.shuffled());
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let some: Vec<&[u8]> = some[..2].iter().map(Vec::as_slice).collect();
        let (operation, frame) = match self.sim_rng.index(10) {
            0 => (Operation::Check, ClientFrame::Check { keys: Keys::scoped(b"", &some) }),
            1 => {
                let (prefix, after) = (Key::raw(TRACED), Key::raw(b""));
                (Operation::ListKeys, ClientFrame::ListKeys { prefix, after, count_max: u32::MAX })
            }
            2 => {
                let timeout_ms = self.sim_rng.between(50, 400);
                (Operation::MultiGet, ClientFrame::MultiGet { timeout_ms, keys: Keys::scoped(b"", &all) })
            }
            _ => {
                (Operation::MultiGet, ClientFrame::MultiGet { timeout_ms: 0, keys: Keys::scoped(b"", &all) })
            }
        };
        self.ask(context, SubmitPath::Plain, operation, self.span(), &frame, Order::Read);
    }
}
