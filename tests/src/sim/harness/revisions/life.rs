//! One life of the server: its changes by revision, and the checks of all requests against them.

use super::{Action, Change, Content, Counts, Found, Outcome, Request, Revisions, TRACED, Test, Watch};
use crate::sim::harness::history::{CheckError, Record};
use crate::sim::harness::sim_operation::{Answer, End, SimOperation, Text};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Number in place of that of a process, for operations of c10d.
const C10D: u32 = u32::MAX;

/// Position of a request with writes.
#[derive(Clone, Copy, Debug)]
struct Position {
    branch: usize,
    /// Revision before its first write; `None` if it is unknown which of its deletions found a value.
    first: Option<u64>,
    last: u64,
}

/// Write that a value comes from.
#[derive(Clone, Copy, Debug)]
struct Origin<'r> {
    request: &'r Request,
    branch: usize,
    /// Number of writes after it.
    after: u64,
}

/// State of a key at a revision.
#[derive(Clone, Copy, Debug)]
enum State<'s> {
    Value(u64, &'s Content),
    Absent,
    /// A request whose position is unknown may have changed it.
    Unsure,
}

/// Revisions that clients had seen, each with the moment from which on.
#[derive(Default)]
struct Seen(Vec<(u64, u64)>);

impl Seen {
    fn push(&mut self, moment: u64, revision: u64) {
        let before = self.0.last().map_or(0, |&(_, revision)| revision);
        self.0.push((moment, before.max(revision)));
    }

    /// Returns the highest revision that was seen before a moment.
    fn before(&self, moment: u64) -> u64 {
        let count = self.0.partition_point(|&(at, _)| at < moment);
        count.checked_sub(1).map_or(0, |slot| self.0[slot].1)
    }
}

/// Something that clients saw: an answer, or a frame of a watch with its last revision.
#[derive(Clone, Copy)]
enum Sight {
    Answer(usize),
    Frame(u64),
}

pub(super) struct Life<'a> {
    number: u32,
    /// Highest revision of earlier lives.
    before: Option<u64>,
    requests: Vec<&'a Request>,
    watches: Vec<&'a Watch>,
    /// What clients saw, in order, and when.
    sights: Vec<(u64, Sight)>,
    /// What they had seen when, as far as it does not depend on the positions of reads.
    seen: Seen,
    changes: BTreeMap<u64, Cow<'a, Change>>,
    /// Revisions of the changes of each key.
    keys: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// Requests, as slots in `requests`, to which changes belong, as far as that is known.
    owners: BTreeMap<u64, usize>,
    /// Positions of requests with writes, by their slots in `requests`.
    positions: BTreeMap<usize, Position>,
    /// Keys that requests without an answer may have changed, and after which revision.
    doubts: BTreeMap<&'a [u8], u64>,
}

fn wrong<T>(what: String) -> Result<T, CheckError> {
    Err(CheckError(what))
}

impl<'a> Life<'a> {
    /// Orders the requests of a life. `located` has more of them.
    pub(super) fn new(
        number: u32,
        before: Option<u64>,
        history: &'a Revisions,
        located: &'a [Request],
    ) -> Result<Self, CheckError> {
        let all = history.requests.iter().chain(located);
        let mut life = Self {
            number,
            before,
            requests: all.filter(|request| request.life == Some(number)).collect(),
            watches: history.watches.values().filter(|watch| watch.life == number).collect(),
            sights: Vec::new(),
            seen: Seen::default(),
            changes: BTreeMap::new(),
            keys: BTreeMap::new(),
            owners: BTreeMap::new(),
            positions: BTreeMap::new(),
            doubts: BTreeMap::new(),
        };
        life.look()?;
        life.collect()?;
        life.recover(history)?;
        for (&revision, change) in &life.changes {
            if change.content != Content::Queue {
                life.keys.entry(change.key.clone()).or_default().insert(revision);
            }
        }
        life.doubt();
        life.resolve_deletions()?;
        Ok(life)
    }

    /// Returns the highest revision that clients saw.
    pub(super) fn last(&self) -> Option<u64> {
        self.seen.0.last().map(|&(_, revision)| revision)
    }

    /// Orders what clients saw. Its revisions are above those of earlier lives.
    fn look(&mut self) -> Result<(), CheckError> {
        let answers = self.requests.iter().enumerate().map(|(slot, one)| (one.ended, Sight::Answer(slot)));
        let frames = self.watches.iter().flat_map(|watch| &watch.frames);
        self.sights = answers.chain(frames.map(|&(at, last)| (at, Sight::Frame(last)))).collect();
        self.sights.sort_by_key(|&(at, _)| at);
        for &(at, sight) in &self.sights {
            let revisions = match sight {
                Sight::Frame(last) => vec![last],
                Sight::Answer(slot) => match &self.requests[slot].outcome {
                    Outcome::Applied { last, .. } | Outcome::Revision(last) => vec![*last],
                    Outcome::Found(found) => found.iter().filter_map(|(_, found)| found.revision()).collect(),
                    Outcome::Listed(_) | Outcome::Failed | Outcome::Lost => Vec::new(),
                },
            };
            let Some(highest) = revisions.iter().copied().max() else { continue };
            if let Some(before) = self.before
                && let Some(lowest) = revisions.iter().find(|&&revision| revision <= before)
            {
                return wrong(format!(
                    "revision {lowest} of life {} is not above {before}, which an earlier life had",
                    self.number
                ));
            }
            self.seen.push(at, highest);
        }
        Ok(())
    }

    /// Notes what is known of a revision.
    fn add(&mut self, revision: u64, change: Cow<'a, Change>) -> Result<(), CheckError> {
        let Some(known) = self.changes.get_mut(&revision) else {
            self.changes.insert(revision, change);
            return Ok(());
        };
        match (&known.content, &change.content) {
            _ if known.key != change.key => {}
            (Content::Unknown, Content::Value(_)) => {
                *known = change;
                return Ok(());
            }
            (Content::Value(_), Content::Unknown) => return Ok(()),
            (known, content) if known == content => return Ok(()),
            _ => {}
        }
        wrong(format!("revision {revision} of life {} is of two changes: {known}, and {change}", self.number))
    }

    /// Notes what answers and watches say.
    fn collect(&mut self) -> Result<(), CheckError> {
        for slot in 0..self.requests.len() {
            let request = self.requests[slot];
            match &request.outcome {
                &Outcome::Applied { branch, last } => self.put(slot, branch, last)?,
                Outcome::Found(found) => {
                    for (key, found) in found {
                        if let Found::Value(revision, value) = found {
                            let (key, content) = (key.clone(), Content::Value(value.clone()));
                            self.add(*revision, Cow::Owned(Change { key, content }))?;
                        }
                    }
                }
                _ => {}
            }
        }
        for watch in self.watches.clone() {
            watch
                .reports
                .iter()
                .try_for_each(|report| self.add(report.revision, Cow::Borrowed(&report.change)))?;
        }
        Ok(())
    }

    /// Puts a request into the order. Its writes after the last deletion have known revisions.
    fn put(&mut self, slot: usize, branch: usize, last: u64) -> Result<(), CheckError> {
        let Action::Txn { branches, .. } = &self.requests[slot].action else { return Ok(()) };
        let mut first = Some(last);
        for change in branches[branch].iter().rev() {
            if change.content == Content::Absent {
                first = None;
                break;
            }
            let revision = first.unwrap_or(0);
            self.add(revision, Cow::Borrowed(change))?;
            self.owners.insert(revision, slot);
            first = revision.checked_sub(1);
        }
        self.positions.insert(slot, Position { branch, first, last });
        Ok(())
    }

    /// Finds the origin of each value of a traced key, and so the requests without an answer that were applied.
    fn recover(&mut self, history: &'a Revisions) -> Result<(), CheckError> {
        let mut origins: BTreeMap<(&[u8], &[u8]), Origin<'_>> = BTreeMap::new();
        for request in &history.requests {
            let Action::Txn { branches, .. } = &request.action else { continue };
            for (branch, writes) in branches.iter().enumerate() {
                for (after, change) in (0..).zip(writes.iter().rev()) {
                    if let Content::Value(value) = &change.content {
                        origins.insert((&change.key, value), Origin { request, branch, after });
                    }
                }
            }
        }
        let slots: BTreeMap<_, _> =
            self.requests.iter().enumerate().map(|(slot, request)| (request.key, slot)).collect();
        let traced = self.changes.iter().filter(|(_, change)| change.key.starts_with(TRACED));
        for (revision, change) in traced.map(|(&at, change)| (at, change.clone())).collect::<Vec<_>>() {
            let Content::Value(value) = &change.content else { continue };
            let found = |what: &str| {
                wrong(format!("{change} at revision {revision} of life {}, which {what}", self.number))
            };
            let Some(&Origin { request, branch, after }) = origins.get(&(&change.key[..], &value[..])) else {
                return found("no request wrote");
            };
            let Some(&slot) = slots.get(&request.key).filter(|_| request.life == Some(self.number)) else {
                return found(&format!("{request} of life {:?} wrote", request.life));
            };
            let last = revision + after;
            match (self.positions.get(&slot), &request.outcome) {
                (Some(known), _) if known.branch == branch && known.last == last => {}
                (Some(known), _) => {
                    let list = ["first", "second"][known.branch];
                    return found(&format!(
                        "{request} did not write: its {list} list ended at {}",
                        known.last
                    ));
                }
                (None, Outcome::Lost) => self.put(slot, branch, last)?,
                (None, _) => return found(&format!("{request} did not write, which failed or only read")),
            }
        }
        Ok(())
    }

    /// Returns those operations of c10d whose positions follow from the values that they name; of lists, each key as one if
    /// the server `splits_lists`.
    pub(super) fn locate<'r>(
        &self,
        records: impl Iterator<Item = &'r Record>,
        splits_lists: bool,
    ) -> Vec<Request> {
        let values = self.changes.iter().filter_map(|(&revision, change)| match &change.content {
            Content::Value(value) => Some(((&change.key[..], &value[..]), revision)),
            _ => None,
        });
        let revisions: BTreeMap<_, _> = values.collect();
        let key_of = |name: &str| format!("/{name}").into_bytes();
        let revision_of = |name: &str, value: &[u8]| revisions.get(&(&key_of(name)[..], value)).copied();
        let found = |name: &str, value: &[u8]| {
            Some((key_of(name), Found::Value(revision_of(name, value)?, value.to_vec())))
        };
        let set =
            |name: &str, value: &[u8]| Change { key: key_of(name), content: Content::Value(value.to_vec()) };
        let read = |pairs: &mut dyn Iterator<Item = (&String, &Vec<u8>)>| {
            let found: Vec<_> = pairs.filter_map(|(name, value)| found(name, value)).collect();
            (!found.is_empty()).then_some((Vec::new(), Outcome::Found(found)))
        };
        let applied = |pairs: &[(String, Vec<u8>)]| {
            let (name, value) = pairs.last()?;
            let writes = pairs.iter().map(|(name, value)| set(name, value)).collect();
            Some((writes, Outcome::Applied { branch: 0, last: revision_of(name, value)? }))
        };
        let locate = |operation: &SimOperation, answer: &Answer| -> Vec<_> {
            match (operation, answer) {
                (SimOperation::Get { name, .. }, Answer::Value(value)) => {
                    read(&mut core::iter::once((name, value))).into_iter().collect()
                }
                (SimOperation::MultiGet { names, .. }, Answer::Values(values)) => {
                    let parts = if splits_lists { 1 } else { names.len() };
                    let parts = names.chunks(parts).zip(values.chunks(parts));
                    parts.filter_map(|(names, values)| read(&mut names.iter().zip(values))).collect()
                }
                (SimOperation::Set { name, value }, Answer::Done) => {
                    applied(&[(name.clone(), value.clone())]).into_iter().collect()
                }
                (SimOperation::MultiSet { pairs }, Answer::Done) => {
                    pairs.chunks(if splits_lists { 1 } else { pairs.len() }).filter_map(applied).collect()
                }
                _ => Vec::new(),
            }
        };
        let of_life = records.filter(|record| record.epoch == Some(self.number));
        let answered = of_life.filter_map(|record| {
            let Some((ended, End::Responded(answer))) = &record.ended else { return None };
            Some((record, *ended, locate(&record.sim_operation, answer)))
        });
        let located = answered.flat_map(|(record, ended, parts)| {
            parts.into_iter().map(move |(writes, outcome)| (record, ended, writes, outcome))
        });
        let located = (0..).zip(located).map(|(id, (record, ended, writes, outcome))| {
            let action = Action::Txn { tests: Vec::new(), branches: [writes, Vec::new()] };
            let (key, began, life) = ((C10D, id), record.began, record.epoch);
            Request { key, action, is_immediate: false, began, ended, life, outcome }
        });
        located.collect()
    }

    /// Notes which traced keys the requests may have changed whose positions are unknown.
    fn doubt(&mut self) {
        for (slot, request) in self.requests.iter().enumerate() {
            let Action::Txn { branches, .. } = &request.action else { continue };
            if !matches!(request.outcome, Outcome::Lost) || self.positions.contains_key(&slot) {
                continue;
            }
            let after = self.seen.before(request.began);
            for change in branches.iter().flatten() {
                let doubt = self.doubts.entry(&change.key).or_insert(after);
                *doubt = after.min(*doubt);
            }
        }
    }

    /// Finds out which deletions of transactions found a value: only those have a revision.
    fn resolve_deletions(&mut self) -> Result<(), CheckError> {
        let open = self.positions.iter().filter(|(_, position)| position.first.is_none());
        let mut open: Vec<_> = open.map(|(&slot, &position)| (slot, position)).collect();
        open.sort_by_key(|(_, position)| position.last);
        for (slot, mut position) in open {
            let Action::Txn { branches, .. } = &self.requests[slot].action else { continue };
            let mut at = Some(position.last);
            for change in branches[position.branch].iter().rev() {
                let Some(revision) = at else { break };
                let has_revision = match change.content {
                    Content::Absent => self.has_deleted(slot, change, revision)?,
                    _ => Some(true),
                };
                if change.content == Content::Absent && has_revision == Some(true) {
                    self.changes.insert(revision, Cow::Borrowed(change));
                    self.keys.entry(change.key.clone()).or_default().insert(revision);
                    self.owners.insert(revision, slot);
                }
                at = has_revision.and_then(|has_revision| revision.checked_sub(u64::from(has_revision)));
            }
            position.first = at;
            self.positions.insert(slot, position);
        }
        Ok(())
    }

    /// Returns whether a deletion of a request found a value and has this revision, if it has one; `None` if that is
    /// unknown.
    fn has_deleted(&self, slot: usize, deletion: &Change, at: u64) -> Result<Option<bool>, CheckError> {
        let key = &deletion.key[..];
        let is_excluded = match self.changes.get(&at) {
            Some(known) => **known != *deletion || self.owners.contains_key(&at),
            None => self.is_reported(key, at.saturating_sub(1), at),
        };
        // A change that belongs to no request may be that of one without an answer.
        let is_doubted = self.doubts.get(key).is_some_and(|&after| after < at);
        match self.state(key, at.saturating_sub(u64::from(!is_excluded))) {
            State::Value(revision, _) if is_excluded => wrong(format!(
                "{} did not delete {} of revision {revision} at {at}",
                self.requests[slot],
                key.escape_ascii()
            )),
            State::Value(..) if !is_doubted => Ok(Some(true)),
            State::Value(..) => Ok(None),
            State::Absent => Ok(Some(false)),
            State::Unsure => Ok(is_excluded.then_some(false)),
        }
    }

    /// Returns whether a watch reports each change of a key after `from` and up to `to`.
    fn is_reported(&self, key: &[u8], from: u64, to: u64) -> bool {
        let reports = |watch: &&&Watch| watch.from <= from && to <= watch.last() && watch.watched.covers(key);
        self.watches.iter().any(|watch| reports(&watch))
    }

    fn state(&self, key: &[u8], at: u64) -> State<'_> {
        let last = self.keys.get(key).and_then(|revisions| revisions.range(..=at).next_back().copied());
        let since = last.unwrap_or(0);
        let is_traced = key.starts_with(TRACED) && self.doubts.get(key).is_none_or(|&after| at <= after);
        let is_sure = is_traced
            || last.is_some()
                && (since == at
                    || self.is_reported(key, since, at)
                    || self.changes.range(since + 1..=at).count() as u64 == at - since);
        match last {
            _ if !is_sure => State::Unsure,
            None => State::Absent,
            Some(revision) => match &self.changes[&revision].content {
                Content::Absent => State::Absent,
                content => State::Value(revision, content),
            },
        }
    }

    /// Returns whether a test holds at a revision, if that is known.
    fn holds(&self, key: &[u8], test: &Test, at: u64) -> Option<bool> {
        if let Test::Revision(wanted @ 1..) = test
            && self.before.is_some_and(|before| *wanted <= before)
        {
            return Some(false);
        }
        match (self.state(key, at), test) {
            (State::Unsure, _) | (State::Value(_, Content::Unknown), Test::Value(_)) => None,
            (State::Value(..), Test::Exists) | (State::Absent, Test::Absent | Test::Revision(0)) => {
                Some(true)
            }
            (State::Value(revision, _), Test::Revision(wanted)) => Some(revision == *wanted),
            (State::Value(_, Content::Value(value)), Test::Value(wanted)) => Some(value == wanted),
            _ => Some(false),
        }
    }

    pub(super) fn check(&self, counts: &mut Counts) -> Result<(), CheckError> {
        self.watches.iter().try_for_each(|watch| self.check_watch(watch, counts))?;
        let (mut seen, mut by_process) = (Seen::default(), BTreeMap::<u32, (u64, u64)>::new());
        for &(at, sight) in &self.sights {
            let slot = match sight {
                Sight::Frame(last) => {
                    seen.push(at, last);
                    continue;
                }
                Sight::Answer(slot) => slot,
            };
            let request = self.requests[slot];
            let mut from = seen.before(request.began);
            let of_process = by_process.entry(request.key.0).or_default();
            // Errors are noted later than answers.
            if request.is_immediate && of_process.0 < request.key.1 {
                from = from.max(of_process.1);
            }
            let position = match &request.outcome {
                Outcome::Applied { branch, last } => {
                    let first = self.positions.get(&slot).map_or(Some(*last), |position| position.first);
                    self.is_not_before(request, first.unwrap_or(*last), from)?;
                    self.judge(request, *branch, first, counts)?;
                    *last
                }
                Outcome::Revision(revision) => {
                    self.is_not_before(request, *revision, from)?;
                    *revision
                }
                Outcome::Found(found) => {
                    let found: Vec<_> = found.iter().map(|(key, found)| (&key[..], found)).collect();
                    self.find(request, from, &found, counts)?
                }
                Outcome::Listed(listed) => {
                    let Action::List { prefix } = &request.action else { continue };
                    let known = self.keys.keys().chain(listed).filter(|key| key.starts_with(prefix));
                    let known: BTreeSet<_> = known.collect();
                    let found = known.into_iter().map(|key| {
                        (&key[..], if listed.contains(key) { &Found::Present } else { &Found::Absent })
                    });
                    self.find(request, from, &found.collect::<Vec<_>>(), counts)?
                }
                Outcome::Failed | Outcome::Lost => continue,
            };
            if request.is_immediate {
                *of_process = (request.key.1.max(of_process.0), position.max(of_process.1));
            }
            seen.push(at, position);
        }
        for (&slot, position) in &self.positions {
            let (request, &Position { branch, first, last }) = (self.requests[slot], position);
            if matches!(request.outcome, Outcome::Lost) {
                counts.recovered += 1;
                self.is_not_before(request, first.unwrap_or(last), seen.before(request.began))?;
                self.judge(request, branch, first, counts)?;
            }
        }
        Ok(())
    }

    /// Checks that a request is not before what had been seen when it began.
    fn is_not_before(&self, request: &Request, at: u64, seen: u64) -> Result<(), CheckError> {
        if seen <= at {
            return Ok(());
        }
        let number = self.number;
        wrong(format!("{request} is after revision {at} of life {number}, and {seen} had been seen before"))
    }

    /// Checks the tests of a transaction that applied one of its lists.
    fn judge(
        &self,
        request: &Request,
        branch: usize,
        first: Option<u64>,
        counts: &mut Counts,
    ) -> Result<(), CheckError> {
        let (Action::Txn { tests, .. }, Some(first)) = (&request.action, first) else { return Ok(()) };
        let holds: Vec<_> = tests.iter().map(|(key, test)| self.holds(key, test, first)).collect();
        counts.transactions += u64::from(!tests.is_empty() && holds.iter().all(Option::is_some));
        let is_wrong = match branch {
            0 => holds.contains(&Some(false)),
            _ => holds.iter().all(|holds| *holds == Some(true)),
        };
        if !is_wrong {
            return Ok(());
        }
        let states = tests.iter().zip(&holds).map(|((key, test), holds)| {
            format!("; {} {test:?}: {holds:?}, {}", key.escape_ascii(), self.state(key, first))
        });
        let (answer, states) = (branch == 0, states.collect::<String>());
        wrong(format!(
            "{request} answered {answer} at revision {first} of life {}, which its tests deny{states}",
            self.number
        ))
    }

    /// Returns the first position from `from` on at which a read fits.
    fn find(
        &self,
        request: &Request,
        from: u64,
        found: &[(&[u8], &Found)],
        counts: &mut Counts,
    ) -> Result<u64, CheckError> {
        counts.reads += u64::from(found.len() > 1);
        let mut at = found.iter().filter_map(|(_, found)| found.revision()).fold(from, u64::max);
        while let Some((key, _)) = found.iter().find(|(key, found)| !self.fits(key, found, at)) {
            at = self.next_state(key, at);
            // The last change may be one that no client saw.
            let is_passed = found
                .iter()
                .any(|(key, found)| found.revision().is_some_and(|since| self.is_changed(key, since, at)));
            if is_passed || self.last().is_none_or(|last| last + 1 < at) {
                let found: String = found
                    .iter()
                    .map(|(key, found)| {
                        format!("; {}: found {found}, is {}", key.escape_ascii(), self.state(key, from))
                    })
                    .collect();
                return wrong(format!(
                    "{request} found a state that was not there from revision {from} of life {} on{found}",
                    self.number
                ));
            }
        }
        Ok(at)
    }

    /// Returns the next revision at which the state of a key may be another.
    fn next_state(&self, key: &[u8], at: u64) -> u64 {
        let (all, doubt) = (self.keys.get(key), self.doubts.get(key));
        let next = all.and_then(|all| all.range(at + 1..).next().copied());
        let is_known = all.is_some_and(|all| all.range(..=at).next().is_some());
        if is_known && (doubt.is_some() || !key.starts_with(TRACED)) {
            // It may become unsure at any revision, where no watch reports the key.
            return at + 1;
        }
        let doubt = doubt.map(|after| after + 1).filter(|&doubt| at < doubt);
        next.into_iter().chain(doubt).min().unwrap_or(u64::MAX)
    }

    fn fits(&self, key: &[u8], found: &Found, at: u64) -> bool {
        match (found, self.state(key, at)) {
            (Found::Value(revision, _), _) => !self.is_changed(key, *revision, at),
            (Found::Present, State::Absent) | (Found::Absent, State::Value(..)) => false,
            (Found::Present | Found::Absent, _) => true,
        }
    }

    /// Returns whether a key is known to have changed after one revision and up to another.
    fn is_changed(&self, key: &[u8], after: u64, to: u64) -> bool {
        after < to && self.keys.get(key).is_some_and(|all| all.range(after + 1..=to).next().is_some())
    }

    /// Checks that a watch reports its changes once and in order, and all of them.
    fn check_watch(&self, watch: &Watch, counts: &mut Counts) -> Result<(), CheckError> {
        let mut previous = watch.from;
        let (process, id) = watch.key;
        let name = format!("watch {id} of process {process} in life {}", self.number);
        if let Some(before) = self.before.filter(|&before| watch.from < before) {
            return wrong(format!("{name} begins after {}, and an earlier life had {before}", watch.from));
        }
        for report in &watch.reports {
            if report.revision <= previous {
                return wrong(format!("{name} reports revision {} after {previous}", report.revision));
            }
            if !watch.watched.covers(&report.change.key) {
                return wrong(format!("{name} reports another key: {}", report.change));
            }
            previous = report.revision;
        }
        counts.reports += watch.reports.len() as u64;
        let frames: BTreeMap<u64, usize> =
            watch.reports.iter().map(|report| (report.revision, report.frame)).collect();
        for (revision, change) in self.changes.range(watch.from + 1..=previous.max(watch.from + 1)) {
            let is_due = *revision <= previous && change.content != Content::Queue;
            if is_due && watch.watched.covers(&change.key) && !frames.contains_key(revision) {
                return wrong(format!("{name} leaves out revision {revision}: {change}"));
            }
        }
        for position in self.positions.values() {
            let Some(first) = position.first.filter(|&first| first < position.last) else { continue };
            let mut of_txn = frames.range(first + 1..=position.last).map(|(_, frame)| frame);
            if of_txn.next().is_some_and(|frame| of_txn.any(|other| other != frame)) {
                return wrong(format!("{name} reports revisions {first} to {} apart", position.last));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.key.escape_ascii())?;
        match &self.content {
            Content::Value(value) => write!(f, "= {}", Text(value)),
            Content::Unknown => f.write_str("= something"),
            Content::Absent => f.write_str("is deleted"),
            Content::Queue => f.write_str("gets an item"),
        }
    }
}

impl fmt::Display for State<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(revision, Content::Value(value)) => write!(f, "{} since {revision}", Text(value)),
            Self::Value(revision, _) => write!(f, "something since {revision}"),
            Self::Absent => f.write_str("nothing"),
            Self::Unsure => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(revision, value) => write!(f, "{} since {revision}", Text(value)),
            Self::Present => f.write_str("something"),
            Self::Absent => f.write_str("nothing"),
        }
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("exists"),
            Self::Absent => f.write_str("is absent"),
            Self::Revision(revision) => write!(f, "is of {revision}"),
            Self::Value(value) => write!(f, "is {}", Text(value)),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of process {}", self.key.1, self.key.0)
    }
}
