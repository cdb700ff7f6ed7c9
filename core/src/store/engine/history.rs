//! History of recent changes, and the watches on it. A watch has no queue of its own: it stores the revision of its
//! first undelivered change, and reads on from there in the one shared history.

use super::value::KeptValue;
use crate::limits::HistoryLimits;
use crate::ordered::{Index, Map, Named, Set, numbers};
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
/// Charge of a change in addition to its key and value, in bytes.
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
    /// Lowest revision to deliver.
    from: u64,
    /// Revision of the first undelivered change.
    undelivered: Option<u64>,
    /// Whether the watch is in [`History::ready`].
    queued: bool,
}

/// The watches of one key or prefix.
#[derive(Debug, Default)]
struct Watchers {
    count: usize,
    /// Those without undelivered changes. Only these are looked at when a key changes, so that many changes in one turn
    /// do not each take time for every watch.
    idle: Set<WatchId>,
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
    of_key: Named<Watchers>,
    of_prefix: Named<Watchers>,
    /// Lengths of the watched prefixes, with the number of watches of each length.
    prefix_lengths: Index<usize, usize>,
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
            of_key: Named::new(),
            of_prefix: Named::new(),
            prefix_lengths: Index::new(),
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
        let Self { watches, ready, work, of_key, of_prefix, prefix_lengths, .. } = self;
        let mut notify = |watchers: Option<&mut Watchers>| {
            *work += 1;
            let Some(watchers) = watchers else { return };
            while let Some(id) = watchers.idle.pop_first() {
                *work += 1;
                if let Some(watch) = watches.get_mut(id) {
                    // A watch begins at the next revision at the latest, and goes on after one that it has delivered.
                    debug_assert!(watch.undelivered.is_none() && watch.from <= revision);
                    watch.undelivered = Some(revision);
                    watch.queue(id, ready);
                }
            }
        };
        notify(of_key.get_mut(key));
        for (length, _) in prefix_lengths.iter().take_while(|&(length, _)| length <= key.len()) {
            notify(of_prefix.get_mut(&key[..length]));
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
        let mut watch = Watch { is_prefix, name: name.into(), from, undelivered: None, queued: false };
        watch.undelivered = self.find(&watch, from);
        let looked_at = self.since(from).len() as u64;
        self.work += looked_at / CHANGES_PER_UNIT;
        if watch.undelivered.is_some() {
            watch.queue(id, &mut self.ready);
        }
        let is_idle = watch.undelivered.is_none();
        let watchers = self.index(is_prefix).entry(name, Watchers::default);
        watchers.count += 1;
        if is_idle {
            watchers.idle.insert(id);
        }
        if is_prefix {
            self.count_length(name.len(), |count| count + 1);
        }
        self.watches.insert(id, watch);
        Ok(id)
    }

    pub(super) fn unwatch(&mut self, id: WatchId) -> bool {
        let Some(watch) = self.watches.remove(id) else { return false };
        let index = self.index(watch.is_prefix);
        if let Some(watchers) = index.get_mut(&watch.name) {
            watchers.count -= 1;
            watchers.idle.remove(id);
            if watchers.count == 0 {
                index.remove(&watch.name);
            }
        }
        if watch.is_prefix {
            self.count_length(watch.name.len(), |count| count.saturating_sub(1));
        }
        true
    }

    fn count_length(&mut self, length: usize, change: impl FnOnce(usize) -> usize) {
        match change(self.prefix_lengths.get(length).unwrap_or(0)) {
            0 => self.prefix_lengths.remove(length),
            count => self.prefix_lengths.insert(length, count),
        };
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

    pub(super) fn delivered(&mut self, id: WatchId, through: u64) {
        let Some(watch) = self.watches.get(id).filter(|watch| watch.undelivered.is_some()) else { return };
        let from = through.saturating_add(1).max(watch.from);
        let undelivered = self.find(watch, from);
        let looked_at = self.since(from).len() as u64;
        // They were looked at to be sent, too.
        self.work += 2 * looked_at / CHANGES_PER_UNIT;
        let Self { watches, ready, of_key, of_prefix, .. } = self;
        let Some(watch) = watches.get_mut(id) else { return };
        (watch.from, watch.undelivered) = (from, undelivered);
        if undelivered.is_some() {
            return watch.queue(id, ready);
        }
        let index = if watch.is_prefix { of_prefix } else { of_key };
        if let Some(watchers) = index.get_mut(&watch.name) {
            watchers.idle.insert(id);
        }
    }

    const fn index(&mut self, is_prefix: bool) -> &mut Named<Watchers> {
        if is_prefix { &mut self.of_prefix } else { &mut self.of_key }
    }

    fn find(&self, watch: &Watch, from: u64) -> Option<u64> {
        self.since(from).find(|change| watch.matches(&change.key)).map(|change| change.revision)
    }

    pub(super) const fn take_work(&mut self) -> u64 {
        core::mem::replace(&mut self.work, 0)
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
        let value = self.value.as_ref().map_or(0, |value| value.as_ref().len());
        (self.key.len() + value) as u64 + CHANGE_COST_BYTES
    }

    /// Returns the change, unless its value was too long to be kept.
    fn as_ref(&self) -> Option<ChangeRef<'_>> {
        let value = self.value.as_ref().map(KeptValue::as_ref);
        (!self.is_lost).then_some(ChangeRef { revision: self.revision, key: &self.key, value })
    }
}
