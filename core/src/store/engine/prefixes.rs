//! Radix tree of names. It finds the names that are prefixes of a key in one pass over the key.
//!
//! A sorted map needs a search for each length that a name has. Here a lookup visits at most one node for each byte
//! of the key, however many names there are, and compares each byte of the key at most once.

use crate::prelude::*;
use crate::sorted::SortedMap;
use core::cell::Cell;
use core::ops::{Index, IndexMut};
use slab::Slab;

/// Index of a node; stable while its name is there.
pub(super) type NodeId = u32;

const ROOT: NodeId = 0;

/// Number of nodes that are visited in one unit of work.
const NODES_PER_UNIT: u64 = 8;

#[derive(Debug, Default)]
struct Node {
    /// Bytes of the name that follow the parent's name.
    label: Box<[u8]>,
    parent: NodeId,
    /// Children by the first byte of their labels.
    children: SortedMap<u8, NodeId>,
    /// Number of insertions of the name; 0 for a node that only branches.
    insertions: u32,
    /// Number of activations of the name.
    activations: u32,
    /// `activations`, and the number of children for which this is not 0.
    active: u32,
}

#[derive(Debug)]
struct Nodes(Slab<Node>);

impl Index<NodeId> for Nodes {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.0[id as usize]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.0[id as usize]
    }
}

impl Nodes {
    fn insert(&mut self, node: Node) -> NodeId {
        // invariant: there are at most two nodes for each watch and each run, whose numbers have limits
        u32::try_from(self.0.insert(node)).expect("the limits keep the tree small")
    }
}

#[derive(Debug)]
pub(super) struct Prefixes {
    nodes: Nodes,
    /// Number of visited nodes since work was last taken.
    visited: Cell<u64>,
}

impl Default for Prefixes {
    fn default() -> Self {
        let mut nodes = Nodes(Slab::new());
        nodes.insert(Node::default());
        Self { nodes, visited: Cell::new(0) }
    }
}

/// Position of a lookup: what is left of the key, and the node to visit next.
#[derive(Debug)]
pub(super) struct Lookup<'k> {
    pub(super) rest: &'k [u8],
    next: Option<NodeId>,
}

impl<'k> Lookup<'k> {
    pub(super) const fn new(key: &'k [u8]) -> Self {
        Self { rest: key, next: Some(ROOT) }
    }
}

impl Prefixes {
    /// Returns the next active name that is a prefix of the key, the shortest first. Names may be activated and
    /// deactivated between two calls, but not inserted or removed.
    pub(super) fn next(&self, lookup: &mut Lookup<'_>) -> Option<NodeId> {
        while let Some(id) = lookup.next.take() {
            self.visit();
            let node = &self.nodes[id];
            if node.active == 0 {
                return None;
            }
            // The label of the root is empty and has no memory: comparing nothing with it costs more than all the rest.
            if !node.label.is_empty() {
                lookup.rest = lookup.rest.strip_prefix(&*node.label)?;
            }
            lookup.next = self.child(id, lookup.rest);
            if node.activations > 0 {
                return Some(id);
            }
        }
        None
    }

    /// Returns the node of a name, if the name was inserted.
    pub(super) fn find(&self, name: &[u8]) -> Option<NodeId> {
        let (id, rest) = self.descend(name);
        (rest.is_empty() && self.nodes[id].insertions > 0).then_some(id)
    }

    /// Inserts a name, which is not active. The same name may be inserted several times.
    pub(super) fn insert(&mut self, name: &[u8]) -> NodeId {
        let (mut id, mut rest) = self.descend(name);
        if let Some(child) = self.child(id, rest) {
            let label = &self.nodes[child].label;
            let common = label.iter().zip(rest).take_while(|(one, other)| one == other).count();
            id = self.split(child, common);
            rest = &rest[common..];
        }
        if !rest.is_empty() {
            id = self.add(id, rest);
        }
        self.nodes[id].insertions += 1;
        id
    }

    /// Takes back one insertion of a name, which must not be active after its last one.
    pub(super) fn remove(&mut self, mut id: NodeId) {
        self.nodes[id].insertions -= 1;
        // A node that only branches has two children at least, so this ends with the parent.
        while id != ROOT && self.nodes[id].insertions == 0 && self.nodes[id].children.len() < 2 {
            let Node { label, parent, children, active, .. } = self.nodes.0.remove(id as usize);
            let Some((_, &child)) = children.first() else {
                debug_assert_eq!(active, 0, "the name is not active");
                self.nodes[parent].children.remove(&label[0]);
                id = parent;
                continue;
            };
            // The child replaces the node. It is active if the node was, so the parent's count stays.
            let below = &mut self.nodes[child];
            (below.label, below.parent) = ([&*label, &*below.label].concat().into(), parent);
            self.nodes[parent].children.insert(label[0], child);
            break;
        }
        if self.nodes.0.len() == 1 {
            self.nodes.0.shrink_to_fit();
        }
    }

    /// Lets lookups find a name. A name that is activated several times must be deactivated as often.
    pub(super) fn activate(&mut self, id: NodeId) {
        self.nodes[id].activations += 1;
        let mut at = Some(id);
        while let Some(id) = at {
            self.visit();
            let node = &mut self.nodes[id];
            node.active += 1;
            at = (node.active == 1 && id != ROOT).then_some(node.parent);
        }
    }

    /// Takes back one activation of a name.
    pub(super) fn deactivate(&mut self, id: NodeId) {
        self.nodes[id].activations -= 1;
        let mut at = Some(id);
        while let Some(id) = at {
            self.visit();
            let node = &mut self.nodes[id];
            node.active -= 1;
            at = (node.active == 0 && id != ROOT).then_some(node.parent);
        }
    }

    /// Returns the work since the last call, in units.
    pub(super) fn take_work(&self) -> u64 {
        let visited = self.visited.get();
        self.visited.set(visited % NODES_PER_UNIT);
        visited / NODES_PER_UNIT
    }

    fn visit(&self) {
        self.visited.set(self.visited.get() + 1);
    }

    /// Returns the child whose label begins as `rest` does.
    fn child(&self, id: NodeId, rest: &[u8]) -> Option<NodeId> {
        self.nodes[id].children.get(rest.first()?).copied()
    }

    /// Returns the node with the longest name that is a prefix of `name`, and the rest of `name`.
    fn descend<'n>(&self, name: &'n [u8]) -> (NodeId, &'n [u8]) {
        let (mut id, mut rest) = (ROOT, name);
        while let Some(child) = self.child(id, rest) {
            self.visit();
            let Some(after) = rest.strip_prefix(&*self.nodes[child].label) else { break };
            (id, rest) = (child, after);
        }
        (id, rest)
    }

    /// Adds a leaf to a node.
    fn add(&mut self, parent: NodeId, label: &[u8]) -> NodeId {
        let leaf = self.nodes.insert(Node { label: label.into(), parent, ..Node::default() });
        self.nodes[parent].children.insert(label[0], leaf);
        leaf
    }

    /// Divides the label of a node, and returns the new node, which has the first part.
    fn split(&mut self, id: NodeId, length: usize) -> NodeId {
        let below = &mut self.nodes[id];
        let (parent, active) = (below.parent, u32::from(below.active > 0));
        let (label, rest) = below.label.split_at(length);
        let (label, rest): (Box<[u8]>, Box<[u8]>) = (label.into(), rest.into());
        let (first_byte, second_byte) = (label[0], rest[0]);
        below.label = rest;
        let upper = self.nodes.insert(Node { label, parent, active, ..Node::default() });
        self.nodes[upper].children.insert(second_byte, id);
        self.nodes[id].parent = upper;
        self.nodes[parent].children.insert(first_byte, upper);
        upper
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    fn found(prefixes: &Prefixes, key: &[u8]) -> Vec<NodeId> {
        let mut lookup = Lookup::new(key);
        core::iter::from_fn(|| prefixes.next(&mut lookup)).collect()
    }

    #[test]
    fn lookups_find_the_active_names_that_are_prefixes() {
        for seed in 0..40 {
            let (mut rng, mut prefixes) = (Rng::new(seed), Prefixes::default());
            // For each name its node, its insertions and its activations.
            let mut names: BTreeMap<Vec<u8>, (NodeId, u32, u32)> = BTreeMap::new();
            for step in 0..600 {
                let mut name = || {
                    let length = rng.below(6);
                    (0..length).map(|_| b'a' + u8::try_from(rng.below(3)).unwrap_or(0)).collect::<Vec<_>>()
                };
                let (one, key) = (name(), name());
                let entry = names.get(&one).copied();
                match (rng.below(if step < 400 { 4 } else { 8 }), entry) {
                    (0 | 1, _) => {
                        let id = prefixes.insert(&one);
                        let (known, insertions, _) = names.entry(one).or_insert((id, 0, 0));
                        assert_eq!(*known, id, "a node is stable");
                        *insertions += 1;
                    }
                    (2, Some((id, insertions, activations))) => {
                        prefixes.activate(id);
                        names.insert(one, (id, insertions, activations + 1));
                    }
                    (3, Some((id, insertions, activations))) if activations > 0 => {
                        prefixes.deactivate(id);
                        names.insert(one, (id, insertions, activations - 1));
                    }
                    (4.., Some((id, 1, activations))) => {
                        (0..activations).for_each(|_| prefixes.deactivate(id));
                        prefixes.remove(id);
                        names.remove(&one);
                    }
                    (4.., Some((id, insertions, activations))) => {
                        prefixes.remove(id);
                        names.insert(one, (id, insertions - 1, activations));
                    }
                    _ => {}
                }
                let active = (0..=key.len()).filter_map(|length| names.get(&key[..length]));
                let expected: Vec<_> = active.filter(|name| name.2 > 0).map(|name| name.0).collect();
                assert_eq!(found(&prefixes, &key), expected, "seed {seed}, step {step}");
                assert_eq!(
                    prefixes.find(&key),
                    names.get(&key).map(|name| name.0),
                    "seed {seed}, step {step}"
                );
                assert!(prefixes.nodes.0.len() <= 1 + 2 * names.len(), "seed {seed}, step {step}");
            }
            for (id, insertions, activations) in names.into_values() {
                (0..activations).for_each(|_| prefixes.deactivate(id));
                (0..insertions).for_each(|_| prefixes.remove(id));
            }
            assert_eq!((prefixes.nodes.0.len(), prefixes.nodes[ROOT].active), (1, 0), "seed {seed}");
        }
    }

    /// Neither names that the key has in common with others up to some byte, nor prefixes of each other, cost more than
    /// the length of the key.
    #[test]
    fn a_lookup_visits_at_most_one_node_for_each_byte() {
        let (mut prefixes, key) = (Prefixes::default(), [b'x'; 500]);
        for length in 0..500 {
            for last in *b"xAz" {
                let id = prefixes.insert(&[&key[..length], &[last]].concat());
                prefixes.activate(id);
            }
        }
        prefixes.visited.set(0);
        assert_eq!(found(&prefixes, &key).len(), 500);
        assert_eq!(prefixes.visited.get(), 501);
        assert_eq!((prefixes.take_work(), prefixes.take_work(), prefixes.visited.get()), (62, 0, 5));
        // What has nothing in common with a name is not visited at all.
        prefixes.visited.set(0);
        assert_eq!((found(&prefixes, b"y"), prefixes.visited.get()), (vec![], 1));
        assert_eq!((prefixes.find(b"y"), prefixes.visited.get()), (None, 1));
    }
}
