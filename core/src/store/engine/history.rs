//! History of recent changes, and the watches on it. A watch has no queue of its own: it stores the revision of its
//! first undelivered change, and reads on from there in the one shared history.

use super::prefixes::{Lookup, NodeId, Prefixes};
use super::value::KeptValue;
use crate::limits::HistoryLimits;
use crate::ordered::{Map, Set, numbers};
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

/// Number of changes that are looked at in one unit of work.
const CHANGES_PER_UNIT: u64 = 16;
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
    /// Revision of the first undelivered change.
    undelivered: Option<u64>,
    /// Whether the watch is in [`History::ready`].
    queued: bool,
}

/// Index of watches by their names.
#[derive(Debug, Default)]
struct Watchers {
    /// The names of all watches. A name is active once for each idle watch.
    names: Prefixes,
    /// Watches without undelivered changes. Only these are looked at when a key changes, so that many changes in one
    /// turn do not each take time for every watch.
    idle: Set<(NodeId, WatchId)>,
}

impl Watchers {
    fn add_idle(&mut self, node: NodeId, id: WatchId) {
        self.names.activate(node);
        self.idle.insert((node, id));
    }

    fn pop_idle(&mut self, node: NodeId) -> Option<WatchId> {
        let first = self.idle.of(node).next()?;
        self.remove_idle(first);
        Some(first.1)
    }

    fn remove_idle(&mut self, entry: (NodeId, WatchId)) {
        self.names.deactivate(entry.0);
        self.idle.remove(entry);
    }
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
    /// Watches in the order in which they got undelivered changes. Some may have delivered them since, or have
    /// ended: `next_ready` skips those, because searching the queue would take time.
    ready: VecDeque<WatchId>,
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
        let Self { watches, ready, work, of_keys, of_prefixes, .. } = self;
        let mut notify = |watchers: &mut Watchers, node| {
            while let Some(id) = watchers.pop_idle(node) {
                *work += 1;
                if let Some(watch) = watches.get_mut(id) {
                    // A watch begins at the next revision at the latest, and goes on after one that it has delivered.
                    debug_assert!(watch.undelivered.is_none() && watch.from <= revision);
                    watch.undelivered = Some(revision);
                    watch.queue(id, ready);
                }
            }
        };
        if let Some(node) = of_keys.names.find(key) {
            notify(of_keys, node);
        }
        let mut lookup = Lookup::new(key);
        while let Some(node) = of_prefixes.names.next(&mut lookup) {
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
        let mut watch = Watch { is_prefix, name: name.into(), node, from, undelivered: None, queued: false };
        watch.undelivered = self.find(&watch, from);
        let looked_at = self.since(from).len() as u64;
        self.work += looked_at / CHANGES_PER_UNIT;
        if watch.undelivered.is_some() {
            watch.queue(id, &mut self.ready);
        } else {
            self.index(is_prefix).add_idle(node, id);
        }
        self.watches.insert(id, watch);
        Ok(id)
    }

    pub(super) fn unwatch(&mut self, id: WatchId) -> bool {
        let Some(watch) = self.watches.remove(id) else { return false };
        let watchers = self.index(watch.is_prefix);
        if watch.undelivered.is_none() {
            watchers.remove_idle((watch.node, id));
        }
        watchers.names.remove(watch.node);
        true
    }

    /// Queues a watch, if it has undelivered changes.
    pub(super) fn queue(&mut self, id: WatchId) {
        if let Some(watch) = self.watches.get_mut(id).filter(|watch| watch.undelivered.is_some()) {
            watch.queue(id, &mut self.ready);
        }
    }

    /// Returns the bytes that are charged for all changes.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn next_ready(&mut self) -> Option<WatchId> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(watch) = self.watches.get_mut(id) {
                watch.queued = false;
                if watch.undelivered.is_some() {
                    return Some(id);
                }
            }
        }
        None
    }

    pub(super) fn undelivered(&self, id: WatchId) -> Result<impl Iterator<Item = ChangeRef<'_>>, WatchError> {
        let watch = self.watches.get(id).ok_or(WatchError::Unknown)?;
        let from = watch.undelivered.unwrap_or(u64::MAX);
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
        let Some(first) = watch.undelivered else { return };
        let from = through.saturating_add(1).max(watch.from);
        let undelivered = self.find(watch, from);
        let rest = self.since(from).len();
        // Changes of other keys between those that were sent were looked at, too.
        let between = (self.since(first).len() - rest).saturating_sub(sent);
        self.work += (between + 2 * rest) as u64 / CHANGES_PER_UNIT;
        let Self { watches, ready, of_keys, of_prefixes, .. } = self;
        let Some(watch) = watches.get_mut(id) else { return };
        (watch.from, watch.undelivered) = (from, undelivered);
        if undelivered.is_some() {
            return watch.queue(id, ready);
        }
        let watchers = if watch.is_prefix { of_prefixes } else { of_keys };
        watchers.add_idle(watch.node, id);
    }

    const fn index(&mut self, is_prefix: bool) -> &mut Watchers {
        if is_prefix { &mut self.of_prefixes } else { &mut self.of_keys }
    }

    fn find(&self, watch: &Watch, from: u64) -> Option<u64> {
        self.since(from).find(|change| watch.matches(&change.key)).map(|change| change.revision)
    }

    pub(super) fn take_work(&mut self) -> u64 {
        let lookups = self.of_keys.names.take_work() + self.of_prefixes.names.take_work();
        core::mem::take(&mut self.work) + lookups
    }

    /// Returns the changes from a revision on.
    fn since(&self, revision: u64) -> impl ExactSizeIterator<Item = &Change> {
        let start = self.changes.partition_point(|change| change.revision < revision);
        self.changes.range(start..)
    }
}

impl Watch {
    fn queue(&mut self, id: WatchId, ready: &mut VecDeque<WatchId>) {
        if !self.queued {
            self.queued = true;
            ready.push_back(id);
        }
    }

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
    fn changes_between_two_of_a_watched_key_count_for_each_watch() {
        let mut history = History::new(HistoryLimits::default(), 0);
        let watch = history.watch(Watched::Key(b"a"), 1).expect("a watch");
        history.record(1, b"a", None);
        (2..1602).for_each(|revision| history.record(revision, b"b", None));
        history.record(1602, b"a", None);
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
