//! History of recent changes, and the watches on it. A watch has no queue of its own: it stores the revision of its
//! first undelivered change, and reads on from there in the one shared history.

use super::prefixes::{Lookup, NodeId, Prefixes};
use super::value::KeptValue;
use crate::limits::HistoryLimits;
use crate::ordered::{Index, Map, Set, numbers};
use crate::prelude::*;
use crate::store::value_ref::ValueRef;
use alloc::collections::VecDeque;

/// Id of a watch of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(u64);

numbers!(WatchId: id => id.0, number => Self(number));

/// Target of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// One key.
    Key(&'a [u8]),
    /// All keys that begin with this prefix.
    Prefix(&'a [u8]),
}

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRef<'a> {
    /// The revision that the change created.
    pub revision: u64,
    /// The key that changed.
    pub key: &'a [u8],
    /// The new value; `None` when the key was removed.
    pub value: Option<ValueRef<'a>>,
}

/// Error of starting or continuing a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The history does not reach back that far.
    #[error("the history begins at revision {oldest}")]
    Compacted {
        /// Oldest revision in the history.
        oldest: u64,
    },
    /// The store has not reached that revision. The caller has it from elsewhere, such as from an earlier start of the
    /// server.
    #[error("the store is at revision {revision}")]
    NotReached {
        /// Revision of the store.
        revision: u64,
        /// Oldest revision in the history.
        oldest: u64,
    },
    /// The maximum number of watches is reached.
    #[error("as many watches as allowed ({0})")]
    TooMany(usize),
    /// The watch does not exist.
    #[error("there is no such watch")]
    Unknown,
}

/// Id of a group of watches of one name, none of which has an undelivered change until the name next changes. Then it
/// is the first undelivered change of each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupId(u64);

numbers!(GroupId: id => id.0, number => Self(number));

/// Number of changes that are looked at in one unit of work.
const CHANGES_PER_UNIT: u64 = 16;
/// Entries of [`History::ready`] that one call looks at.
const LOOKS_MAX: usize = 256;
/// Charge of a change in addition to its key and the memory of its value, in bytes.
const CHANGE_COST_BYTES: u64 = 64;

#[derive(Debug)]
struct Change {
    revision: u64,
    key: Box<[u8]>,
    /// The value, if there was one and it was kept.
    value: Option<KeptValue>,
    /// Whether the value was too long to be kept.
    is_lost: bool,
}

#[derive(Debug)]
struct Watch {
    is_prefix: bool,
    name: Box<[u8]>,
    /// Node of the name.
    node: NodeId,
    /// Lowest revision to deliver.
    from: u64,
    state: State,
    /// Whether the watch is in [`History::ready`].
    queued: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// It has no undelivered change, or its group has changed and it has not been returned by
    /// [`History::next_ready`] since.
    InGroup(GroupId),
    /// Its first undelivered change has this revision.
    Behind(u64),
}

/// Index of watches by their names.
#[derive(Debug, Default)]
struct Watchers {
    /// The names of all watches. A name is active while it has a group in `current`.
    names: Prefixes,
    /// The group of each name whose watches have no undelivered change. Only these are looked at when a key changes, so
    /// that a change does not take time for every watch.
    current: Index<NodeId, GroupId>,
}

#[derive(Clone, Copy, Debug)]
enum Ready {
    Watch(WatchId),
    /// All watches of a group that has changed, with the revision of the change.
    Group(GroupId, u64),
}

#[derive(Debug)]
pub(super) struct History {
    limits: HistoryLimits,
    changes: VecDeque<Change>,
    bytes: u64,
    /// Oldest revision in the history.
    pub(super) oldest: u64,
    last: u64,
    watches: Map<WatchId, Watch>,
    of_keys: Watchers,
    of_prefixes: Watchers,
    last_group: u64,
    /// The watches of all groups.
    members: Set<(GroupId, WatchId)>,
    /// Watches in the order in which they got undelivered changes. Some may have delivered them since, or have
    /// ended: `next_ready` skips those, because searching the queue would take time.
    ready: VecDeque<Ready>,
    /// Work of looking for changes since it was last taken.
    work: u64,
}

impl History {
    /// Creates a history that starts after `revision`.
    pub(super) fn new(limits: HistoryLimits, revision: u64) -> Self {
        Self {
            limits,
            changes: VecDeque::new(),
            bytes: 0,
            oldest: revision + 1,
            last: 0,
            watches: Map::new(),
            of_keys: Watchers::default(),
            of_prefixes: Watchers::default(),
            last_group: 0,
            members: Set::new(),
            ready: VecDeque::new(),
            work: 0,
        }
    }

    pub(super) fn record(&mut self, revision: u64, key: &[u8], value: Option<ValueRef<'_>>) {
        // One long value must not displace everything else.
        let is_lost = value.is_some_and(|value| value.len() as u64 > self.limits.bytes_max / 4);
        let value = value.filter(|_| !is_lost).map(Into::into);
        let change = Change { revision, key: key.into(), value, is_lost };
        self.bytes += change.cost();
        self.changes.push_back(change);
        self.work += 1;
        let Self { ready, work, of_keys, of_prefixes, .. } = self;
        let mut notify = |watchers: &mut Watchers, node| {
            if let Some(group) = watchers.current.remove(node) {
                *work += 1;
                watchers.names.deactivate(node);
                ready.push_back(Ready::Group(group, revision));
            }
        };
        if !of_keys.current.is_empty()
            && let Some(node) = of_keys.names.find(key)
        {
            notify(of_keys, node);
        }
        let mut lookup = Lookup::new(key);
        while !of_prefixes.current.is_empty()
            && let Some(node) = of_prefixes.names.next(&mut lookup)
        {
            notify(of_prefixes, node);
        }
        while self.changes.len() > self.limits.changes_max || self.bytes > self.limits.bytes_max {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.cost();
            self.oldest = oldest.revision + 1;
        }
    }

    pub(super) fn watch(&mut self, what: Watched<'_>, from: u64) -> Result<WatchId, WatchError> {
        if from < self.oldest {
            return Err(WatchError::Compacted { oldest: self.oldest });
        }
        if self.watches.len() >= self.limits.watches_max {
            return Err(WatchError::TooMany(self.limits.watches_max));
        }
        self.last += 1;
        let id = WatchId(self.last);
        let (is_prefix, name) = match what {
            Watched::Key(key) => (false, key),
            Watched::Prefix(prefix) => (true, prefix),
        };
        let node = self.index(is_prefix).names.insert(name);
        let state = State::Behind(from);
        self.watches.insert(id, Watch { is_prefix, name: name.into(), node, from, state, queued: false });
        let looked_at = self.go_on(id, from);
        self.work += looked_at / CHANGES_PER_UNIT;
        Ok(id)
    }

    /// Lets a watch wait for the first change from a revision on, of those that it is to deliver. Returns how many changes
    /// were looked at.
    #[inline(never)]
    fn go_on(&mut self, id: WatchId, from: u64) -> u64 {
        let Some(watch) = self.watches.get(id) else { return 0 };
        let (is_prefix, node) = (watch.is_prefix, watch.node);
        let mut looked_at = 0;
        let matches = |change: &&Change| {
            looked_at += 1;
            watch.matches(&change.key)
        };
        let found = self.since(from).find(matches).map(|change| change.revision);
        let state = found.map_or_else(|| State::InGroup(self.join_group(is_prefix, node, id)), State::Behind);
        if let Some(watch) = self.watches.get_mut(id) {
            (watch.from, watch.state) = (from, state);
        }
        self.queue(id);
        looked_at
    }

    /// Adds a watch to the group of its name that has no undelivered change.
    fn join_group(&mut self, is_prefix: bool, node: NodeId, id: WatchId) -> GroupId {
        let fresh = GroupId(self.last_group + 1);
        let watchers = self.index(is_prefix);
        let group = watchers.current.get(node).unwrap_or_else(|| {
            watchers.names.activate(node);
            watchers.current.insert(node, fresh);
            fresh
        });
        self.last_group = self.last_group.max(group.0);
        self.members.insert((group, id));
        group
    }

    pub(super) fn unwatch(&mut self, id: WatchId) -> bool {
        let Some(watch) = self.watches.remove(id) else { return false };
        let mut emptied = None;
        if let State::InGroup(group) = watch.state {
            self.members.remove((group, id));
            emptied = self.members.of(group).next().is_none().then_some(group);
        }
        let watchers = self.index(watch.is_prefix);
        if emptied.is_some() && watchers.current.get(watch.node) == emptied {
            watchers.current.remove(watch.node);
            watchers.names.deactivate(watch.node);
        }
        watchers.names.remove(watch.node);
        true
    }

    const fn index(&mut self, is_prefix: bool) -> &mut Watchers {
        if is_prefix { &mut self.of_prefixes } else { &mut self.of_keys }
    }

    /// Queues a watch, if it has undelivered changes. One that is in a group is queued with the group.
    pub(super) fn queue(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.get_mut(id)
            && let State::Behind(_) = watch.state
            && !watch.queued
        {
            watch.queued = true;
            self.ready.push_back(Ready::Watch(id));
        }
    }

    /// Returns the bytes that are charged for all changes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next watch with undelivered changes. `None` does not mean that there is none, unless
    /// [`History::has_ready`] says so.
    pub(super) fn next_ready(&mut self) -> Option<WatchId> {
        for _ in 0..LOOKS_MAX {
            let &first = self.ready.front()?;
            self.work += 1;
            let (group, revision) = match first {
                Ready::Watch(id) => {
                    self.ready.pop_front();
                    let Some(watch) = self.watches.get_mut(id) else { continue };
                    watch.queued = false;
                    if let State::Behind(_) = watch.state {
                        return Some(id);
                    }
                    continue;
                }
                Ready::Group(group, revision) => (group, revision),
            };
            let Some((_, id)) = self.members.of(group).next() else {
                self.ready.pop_front();
                continue;
            };
            self.members.remove((group, id));
            if let Some(watch) = self.watches.get_mut(id) {
                // A watch begins at the next revision at the latest, and goes on after one that it has delivered.
                debug_assert!(watch.from <= revision);
                watch.state = State::Behind(revision);
                return Some(id);
            }
        }
        None
    }

    pub(super) fn undelivered(
        &self,
        id: WatchId,
    ) -> Result<impl Iterator<Item = ChangeRef<'_>> + Clone, WatchError> {
        let watch = self.watches.get(id).ok_or(WatchError::Unknown)?;
        let from = if let State::Behind(revision) = watch.state { revision } else { u64::MAX };
        if from < self.oldest {
            return Err(WatchError::Compacted { oldest: self.oldest });
        }
        let mut matching = self.since(from).filter(|change| watch.matches(&change.key)).peekable();
        if let Some(lost) = matching.next_if(|change| change.is_lost) {
            return Err(WatchError::Compacted { oldest: lost.revision + 1 });
        }
        Ok(matching.map_while(Change::as_ref))
    }

    /// Notes that `sent` changes up to a revision were sent.
    pub(super) fn delivered(&mut self, id: WatchId, through: u64, sent: usize) {
        let Some(watch) = self.watches.get(id) else { return };
        let State::Behind(first) = watch.state else { return };
        let from = through.saturating_add(1).max(watch.from);
        // Changes of other keys between those that were sent were looked at to count and to send them.
        let between = (self.since(first).len() - self.since(from).len()).saturating_sub(sent) as u64;
        // Those up to the next one of this watch were looked at then, and are looked at now.
        let looked_at = 2 * (between + self.go_on(id, from));
        self.work += looked_at / CHANGES_PER_UNIT;
    }

    pub(super) fn take_work(&mut self) -> u64 {
        let lookups = self.of_keys.names.take_work() + self.of_prefixes.names.take_work();
        core::mem::take(&mut self.work) + lookups
    }

    /// Returns the changes from a revision on.
    fn since(&self, revision: u64) -> impl ExactSizeIterator<Item = &Change> + Clone {
        let start = self.changes.partition_point(|change| change.revision < revision);
        self.changes.range(start..)
    }
}

impl Watch {
    fn matches(&self, key: &[u8]) -> bool {
        if self.is_prefix { key.starts_with(&self.name) } else { *key == *self.name }
    }
}

impl Change {
    /// Returns the bytes that are charged for it.
    fn cost(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, KeptValue::held_bytes);
        (self.key.len() + value) as u64 + CHANGE_COST_BYTES
    }

    /// Returns the change, unless its value was too long to be kept.
    fn as_ref(&self) -> Option<ChangeRef<'_>> {
        let value = self.value.as_ref().map(KeptValue::as_ref);
        (!self.is_lost).then_some(ChangeRef { revision: self.revision, key: &self.key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a watch of each prefix.
    fn watched<'p>(prefixes: impl Iterator<Item = &'p [u8]>) -> (History, Vec<WatchId>) {
        let mut history = History::new(HistoryLimits::default(), 0);
        let watches = prefixes.map(|prefix| history.watch(Watched::Prefix(prefix), 1).expect("a watch"));
        let watches = watches.collect();
        history.take_work();
        (history, watches)
    }

    #[test]
    fn a_change_looks_at_no_prefix_whose_watches_are_ready() {
        let key = [b'x'; 1000];
        let (mut history, watches) = watched((0..1000).map(|length| &key[..length]));
        history.record(1, &key, None);
        let work = history.take_work();
        assert!((1001..1500).contains(&work), "{work}: each watch becomes ready");
        (2..10).for_each(|revision| history.record(revision, &key, None));
        assert!(history.take_work() <= 8 + 2, "one for each change, and an eighth for a node");
        let ready: Vec<WatchId> = core::iter::from_fn(|| history.next_ready()).collect();
        assert_eq!(ready, watches);
        // One that has delivered its changes is found again, without a look at all of them.
        history.delivered(watches[3], 9, 9);
        history.take_work();
        history.record(10, &key, None);
        assert!(history.take_work() <= 1 + 1 + 2, "the change, the watch and a few nodes");
        assert_eq!((history.next_ready(), history.next_ready()), (Some(watches[3]), None));
        assert_eq!(history.undelivered(watches[3]).expect("kept").count(), 1);
        assert!(watches.iter().all(|&watch| history.unwatch(watch)));
        history.record(11, &key, None);
        assert_eq!(history.next_ready(), None);
    }

    #[test]
    fn a_change_of_a_key_with_many_watches_costs_little_until_they_are_returned() {
        let mut history = History::new(HistoryLimits::default(), 0);
        let watch = |history: &mut History| history.watch(Watched::Key(b"a"), 1).expect("a watch");
        let watches: Vec<WatchId> = (0..1000).map(|_| watch(&mut history)).collect();
        history.take_work();
        history.record(1, b"a", None);
        assert!(history.take_work() < 5, "they are not looked at");
        let revisions = |history: &History, id| {
            let changes = history.undelivered(id).expect("kept");
            changes.map(|change| change.revision).collect::<Vec<u64>>()
        };
        // One delivers its change before the others are returned, and the key changes again.
        assert_eq!(history.next_ready(), Some(watches[0]));
        history.delivered(watches[0], 1, 1);
        assert_eq!(revisions(&history, watches[0]), [0; 0]);
        history.record(2, b"a", None);
        assert!(history.unwatch(watches[1]) && history.unwatch(watches[999]));
        let mut returned = Vec::new();
        while let Some(id) = history.next_ready() {
            let expected: &[u64] = if id == watches[0] { &[2] } else { &[1, 2] };
            assert_eq!(revisions(&history, id), expected);
            history.delivered(id, 2, expected.len());
            returned.push(id);
        }
        returned.sort();
        assert_eq!(returned, [&watches[..1], &watches[2..999]].concat(), "each once");
        assert!(!history.has_ready());
        for id in returned {
            assert!(history.unwatch(id));
        }
        assert!(history.members.is_empty() && history.of_keys.current.is_empty());
    }

    #[test]
    fn ended_watches_are_skipped_in_steps() {
        let mut history = History::new(HistoryLimits::default(), 0);
        history.record(1, b"a", None);
        let mut watch = || history.watch(Watched::Key(b"a"), 1).expect("a watch");
        let watches: Vec<WatchId> = (0..1000).map(|_| watch()).collect();
        for &id in &watches[..999] {
            history.unwatch(id);
        }
        let calls: Vec<Option<WatchId>> = core::iter::repeat_with(|| history.next_ready()).take(4).collect();
        assert_eq!(calls, [None, None, None, Some(watches[999])]);
        assert!(!history.has_ready());
    }

    #[test]
    fn changes_between_two_of_a_watched_key_count_for_each_watch() {
        let mut history = History::new(HistoryLimits::default(), 0);
        let watch = history.watch(Watched::Key(b"a"), 1).expect("a watch");
        history.record(1, b"a", None);
        (2..1602).for_each(|revision| history.record(revision, b"b", None));
        history.record(1602, b"a", None);
        assert_eq!(history.next_ready(), Some(watch));
        assert_eq!(history.undelivered(watch).expect("kept").count(), 2);
        history.take_work();
        history.delivered(watch, 1602, 2);
        assert!(history.take_work() >= 1600 / CHANGES_PER_UNIT, "all of them were looked at");
    }

    #[test]
    fn prefixes_of_all_lengths_that_a_key_does_not_begin_with_cost_little() {
        let prefixes: Vec<Vec<u8>> =
            (0..1000).map(|length| [&[b'x'; 1000][..length], b"A"].concat()).collect();
        let (mut history, _) = watched(prefixes.iter().map(|prefix| &**prefix));
        history.record(1, &[b'x'; 2000], None);
        let work = history.take_work();
        assert!(work <= 1 + 1000 / 8 + 1, "{work}");
        history.record(2, &[b'y'; 2000], None);
        assert!(history.take_work() <= 2);
        assert_eq!(history.next_ready(), None);
    }
}
