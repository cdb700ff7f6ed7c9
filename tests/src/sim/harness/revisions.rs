//! Linearizability of the whole store of a server, with transactions over several keys and watches. It knows no machine
//! of the library: it records the requests of native clients and what these received.
//!
//! The witness of the order is the revision. Each change has one, so what is known of a revision, from the answer to a
//! write, from a value that was read, or from a watch, must be one change. Then each answer must fit at one *position* of
//! this order, which is the revision of the last change before it:
//!
//! - an answer that carries the store's revision has that position; one that carries revisions of keys has any position
//!   at which all of these are current;
//! - no position is before one that a client had seen when the request began, or before one of an earlier request of the
//!   same session, unless one of the two waits;
//! - the conditions of a transaction hold, or do not, at the position before its writes, which are consecutive;
//! - a watch reports all changes of its keys from its start on, once and in order, those of a transaction in one frame.
//!
//! A request that was not answered may have been applied. It was if one of its values is found, and then as a whole. A
//! request that failed was not. In *traced* keys each value is written once and by native clients only, so that each
//! value that is found has one origin. Where it remains unknown whether a request without an answer changed a key, nothing
//! is concluded from that key's state.
//!
//! Answers of c10d have no revisions. Those that name a value whose revision is known from elsewhere have a position, too.
//!
//! Each process of the server, a *life*, has an order of its own, and all its revisions are above those of earlier
//! lives.

mod life;
#[cfg(test)]
mod tests;

use super::history::{CheckError, Record};
use life::Life;
use rendezvous_core::error::Effect;
use rendezvous_core::store::op::{Key, Keys};
use rendezvous_core::store::txn::{Condition, Write};
use rendezvous_core::wire::native::{ClientFrame, FaultCode, ServerFrame};
use std::collections::{BTreeMap, BTreeSet};

/// Process of a client, and the id of its request.
pub(in crate::sim) type RequestKey = (u32, u64);

/// Prefix of the traced keys.
pub(in crate::sim) const TRACED: &[u8] = b"/w/";

/// What a change made of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Value(Vec<u8>),
    /// A value that the request does not say.
    Unknown,
    Absent,
    /// The change is one of a queue, which no watch reports.
    Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: Vec<u8>,
    content: Content,
}

#[derive(Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    Revision(u64),
    Value(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Action {
    /// Applies the first list if all tests hold, and the second one otherwise. All requests that change keys are of this
    /// kind, and so is one that only learns the store's revision.
    Txn {
        tests: Vec<(Vec<u8>, Test)>,
        branches: [Vec<Change>; 2],
    },
    Read {
        keys: Vec<Vec<u8>>,
    },
    List {
        prefix: Vec<u8>,
    },
    Watch {
        watched: Watched,
        from_revision: u64,
    },
    /// Waits, or is executed in steps.
    Lasting,
}

#[derive(Clone, Debug)]
struct Watched {
    key: Vec<u8>,
    is_prefix: bool,
}

impl Watched {
    fn covers(&self, key: &[u8]) -> bool {
        if self.is_prefix { key.starts_with(&self.key) } else { key == self.key }
    }
}

/// What an answer says of a key.
#[derive(Clone, Debug)]
enum Found {
    /// It has this value since this revision.
    Value(u64, Vec<u8>),
    /// It has a value.
    Present,
    Absent,
}

impl Found {
    const fn revision(&self) -> Option<u64> {
        match self {
            Self::Value(revision, _) => Some(*revision),
            Self::Present | Self::Absent => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Outcome {
    /// The list of writes that was applied, and the store's revision after them.
    Applied {
        branch: usize,
        last: u64,
    },
    Found(Vec<(Vec<u8>, Found)>),
    /// All keys with a prefix.
    Listed(BTreeSet<Vec<u8>>),
    /// The store's revision at some time before the answer.
    Revision(u64),
    /// It had no effect.
    Failed,
    /// It may have had its effect.
    Lost,
}

#[derive(Clone, Debug)]
struct Request {
    key: RequestKey,
    action: Action,
    /// Whether it is executed at once when it arrives.
    is_immediate: bool,
    began: u64,
    ended: u64,
    /// The server's process that answered, or that the request may have reached.
    life: Option<u32>,
    outcome: Outcome,
}

/// Change that a watch reported.
#[derive(Clone, Debug)]
struct Report {
    revision: u64,
    change: Change,
    frame: usize,
}

#[derive(Clone, Debug)]
struct Watch {
    key: RequestKey,
    life: u32,
    watched: Watched,
    /// The revision before the first one that it reports.
    from: u64,
    reports: Vec<Report>,
    /// When each frame came, and its last revision.
    frames: Vec<(u64, u64)>,
}

impl Watch {
    /// Returns the last revision up to which it has reported all changes.
    fn last(&self) -> u64 {
        self.frames.last().map_or(self.from, |&(_, last)| last)
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct Counts {
    /// Transactions whose tests were evaluated.
    pub(in crate::sim) transactions: u64,
    /// Reads of several keys at one position.
    pub(in crate::sim) reads: u64,
    /// Requests without an answer that were applied.
    pub(in crate::sim) recovered: u64,
    /// Changes that watches reported.
    pub(in crate::sim) reports: u64,
    /// Answers of c10d that have a position.
    pub(in crate::sim) located: u64,
}

/// Requests and answers of all native clients. Moments are numbers that grow through the whole run.
#[derive(Debug, Default)]
pub(in crate::sim) struct Revisions {
    requests: Vec<Request>,
    pending: BTreeMap<RequestKey, usize>,
    watches: BTreeMap<RequestKey, Watch>,
}

impl Revisions {
    pub(in crate::sim) fn begin(&mut self, moment: u64, key: RequestKey, frame: &ClientFrame<'_>) {
        let Some((action, is_immediate)) = action_of(frame) else { return };
        self.pending.insert(key, self.requests.len());
        let (ended, life, outcome) = (u64::MAX, None, Outcome::Lost);
        self.requests.push(Request { key, action, is_immediate, began: moment, ended, life, outcome });
    }

    /// Records an answer that is no error.
    pub(in crate::sim) fn answered(
        &mut self,
        moment: u64,
        key: RequestKey,
        life: u32,
        frame: &ServerFrame<'_>,
    ) {
        let Some(slot) = self.pending.remove(&key) else { return };
        let request = &mut self.requests[slot];
        (request.life, request.ended) = (Some(life), moment);
        request.outcome = outcome_of(&mut request.action, frame);
        if let (Action::Watch { watched, from_revision }, Outcome::Applied { last, .. }) =
            (&request.action, &request.outcome)
        {
            let from = if *from_revision == 0 { *last } else { from_revision - 1 };
            let (reports, frames) = (Vec::new(), Vec::new());
            let watch = Watch { key, life, watched: watched.clone(), from, reports, frames };
            self.watches.insert(key, watch);
        }
    }

    /// Records a failure; `code` is that of the server's error, if it sent one.
    pub(in crate::sim) fn failed(
        &mut self,
        moment: u64,
        key: RequestKey,
        life: Option<u32>,
        (effect, code): (Effect, Option<FaultCode>),
    ) {
        let Some(slot) = self.pending.remove(&key) else { return };
        let request = &mut self.requests[slot];
        (request.life, request.ended) = (life, moment);
        request.outcome = match (&request.action, code) {
            (Action::Read { keys }, Some(FaultCode::NotFound)) => {
                Outcome::Found(keys.iter().map(|key| (key.clone(), Found::Absent)).collect())
            }
            _ if effect == Effect::None => Outcome::Failed,
            _ => Outcome::Lost,
        };
    }

    /// Records that a process ended: its pending requests will not be answered.
    pub(in crate::sim) fn process_ended(&mut self, process: u32, life: Option<u32>) {
        let pending = self.pending.range((process, 0)..=(process, u64::MAX));
        for (_, &slot) in pending {
            self.requests[slot].life = life;
        }
    }

    pub(in crate::sim) fn pushed(&mut self, moment: u64, key: RequestKey, frame: &ServerFrame<'_>) {
        let (Some(watch), ServerFrame::Changed { changes }) = (self.watches.get_mut(&key), frame) else {
            return;
        };
        let number = watch.frames.len();
        for change in changes.iter() {
            let content = change.value.map_or(Content::Absent, |value| Content::Value(value.to_vec()));
            let (revision, change) = (change.revision, Change { key: whole(change.key), content });
            watch.reports.push(Report { revision, change, frame: number });
        }
        watch.frames.push((moment, watch.reports.last().map_or(0, |report| report.revision)));
    }

    /// Checks the whole history. `records` has the operations of c10d, of which each key of a list has a position of its own
    /// if the server `splits_lists`.
    pub(in crate::sim) fn check<'r>(
        &self,
        records: impl Iterator<Item = &'r Record> + Clone,
        splits_lists: bool,
    ) -> Result<Counts, CheckError> {
        let lives: BTreeSet<u32> = self.requests.iter().filter_map(|request| request.life).collect();
        let (mut counts, mut before) = (Counts::default(), None);
        for number in lives {
            let located = Life::new(number, before, self, &[])?.locate(records.clone(), splits_lists);
            counts.located += located.len() as u64;
            let life = Life::new(number, before, self, &located)?;
            life.check(&mut counts)?;
            before = life.last().max(before);
        }
        Ok(counts)
    }
}

fn whole(key: Key<'_>) -> Vec<u8> {
    key.pieces().concat()
}

fn all(keys: Keys<'_>) -> Vec<Vec<u8>> {
    keys.iter().map(whole).collect()
}

fn change_of(write: Write<'_>) -> Option<Change> {
    Some(match write {
        Write::Set { key, value } => Change { key: whole(key), content: Content::Value(value.to_vec()) },
        Write::Delete { key } => Change { key: whole(key), content: Content::Absent },
        Write::Add { key, .. } | Write::Append { key, .. } => {
            Change { key: whole(key), content: Content::Unknown }
        }
        // It makes a number of changes.
        Write::DeletePrefix { .. } => return None,
    })
}

/// Returns what a request does to the store, if it is one to the store, and whether it is executed at once.
fn action_of(frame: &ClientFrame<'_>) -> Option<(Action, bool)> {
    let writes = |then: Vec<Change>| Action::Txn { tests: Vec::new(), branches: [then, Vec::new()] };
    let one = |key, content| writes(vec![Change { key: whole(key), content }]);
    let action = match *frame {
        ClientFrame::Set { key, value } => one(key, Content::Value(value.to_vec())),
        ClientFrame::Add { key, .. } | ClientFrame::Append { key, .. } => one(key, Content::Unknown),
        ClientFrame::Delete { key } => one(key, Content::Absent),
        ClientFrame::QueuePush { key, .. } => one(key, Content::Queue),
        ClientFrame::MultiSet { pairs } => {
            let set = |(key, value)| change_of(Write::Set { key, value });
            writes(pairs.iter().filter_map(set).collect())
        }
        ClientFrame::CompareSet { key, expected, desired } => {
            let test = if expected.is_empty() { Test::Absent } else { Test::Value(expected.to_vec()) };
            let (key, content) = (whole(key), Content::Value(desired.to_vec()));
            let tests = vec![(key.clone(), test)];
            Action::Txn { tests, branches: [vec![Change { key, content }], Vec::new()] }
        }
        ClientFrame::Txn { compares, then, otherwise } => {
            let test = |condition| match condition {
                Condition::Exists => Test::Exists,
                Condition::Absent => Test::Absent,
                Condition::Revision(revision) => Test::Revision(revision),
                Condition::Value(value) => Test::Value(value.to_vec()),
            };
            let tests = compares.iter().map(|compare| (whole(compare.key), test(compare.condition)));
            let then: Option<_> = then.iter().map(change_of).collect();
            let otherwise: Option<_> = otherwise.iter().map(change_of).collect();
            match (then, otherwise) {
                (Some(then), Some(otherwise)) => {
                    Action::Txn { tests: tests.collect(), branches: [then, otherwise] }
                }
                _ => Action::Lasting,
            }
        }
        ClientFrame::Check { keys } => {
            let tests = all(keys).into_iter().map(|key| (key, Test::Exists)).collect();
            Action::Txn { tests, branches: [Vec::new(), Vec::new()] }
        }
        ClientFrame::Get { timeout_ms, key } => {
            return Some((Action::Read { keys: vec![whole(key)] }, timeout_ms == 0));
        }
        ClientFrame::MultiGet { timeout_ms, keys } => {
            return Some((Action::Read { keys: all(keys) }, timeout_ms == 0));
        }
        ClientFrame::ListKeys { prefix, after, count_max: u32::MAX } if after.is_empty() => {
            Action::List { prefix: whole(prefix) }
        }
        ClientFrame::WatchKey { key, from_revision } => {
            Action::Watch { watched: Watched { key: whole(key), is_prefix: false }, from_revision }
        }
        ClientFrame::WatchPrefix { prefix, from_revision } => {
            Action::Watch { watched: Watched { key: whole(prefix), is_prefix: true }, from_revision }
        }
        ClientFrame::NumKeys {}
        | ClientFrame::QueueLen { .. }
        | ClientFrame::LeaseGrant { .. }
        | ClientFrame::LeaseAttach { .. } => writes(Vec::new()),
        ClientFrame::Wait { .. } | ClientFrame::DeletePrefix { .. } | ClientFrame::LeaseRevoke { .. } => {
            return Some((Action::Lasting, false));
        }
        _ => return None,
    };
    Some((action, true))
}

/// Returns the outcome of an answer, and completes the action with what only the answer says.
fn outcome_of(action: &mut Action, frame: &ServerFrame<'_>) -> Outcome {
    let found = |key: &Vec<u8>, revision, value: Option<Vec<u8>>| {
        (key.clone(), value.map_or(Found::Absent, |value| Found::Value(revision, value)))
    };
    match (&mut *action, *frame) {
        (
            Action::Lasting,
            ServerFrame::Done { revision }
            | ServerFrame::Number { revision, .. }
            | ServerFrame::Outcome { revision, .. }
            | ServerFrame::PrefixRemoved { revision, .. },
        ) => Outcome::Revision(revision),
        (Action::Txn { tests, branches: [then, _] }, ServerFrame::Number { number, revision }) => {
            match &mut then[..] {
                [Change { content: content @ Content::Unknown, .. }] => {
                    *content = Content::Value(number.to_string().into_bytes());
                }
                [Change { key, content: Content::Absent }] => {
                    let test = if number == 1 { Test::Exists } else { Test::Absent };
                    tests.push((key.clone(), test));
                    then.truncate(usize::from(number == 1));
                }
                _ => {}
            }
            Outcome::Applied { branch: 0, last: revision }
        }
        (Action::Txn { .. } | Action::Watch { .. }, ServerFrame::Done { revision }) => {
            Outcome::Applied { branch: 0, last: revision }
        }
        (Action::Txn { .. }, ServerFrame::Outcome { holds, revision }) => {
            Outcome::Applied { branch: usize::from(!holds), last: revision }
        }
        // A compare-and-set stores a value that is written once.
        (Action::Txn { branches: [then, _], .. }, ServerFrame::Value { revision, value }) => {
            let content = value.map_or(Content::Absent, |value| Content::Value(value.to_vec()));
            match (&then[..], content) {
                ([change], content) if change.content == content => {
                    Outcome::Applied { branch: 0, last: revision }
                }
                ([change], Content::Value(value)) => {
                    Outcome::Found(vec![found(&change.key, revision, Some(value))])
                }
                ([change], _) => Outcome::Found(vec![found(&change.key, 0, None)]),
                _ => Outcome::Lost,
            }
        }
        (Action::Read { keys }, ServerFrame::Value { revision, value }) => {
            Outcome::Found(vec![found(&keys[0], revision, value.map(|value| value.to_vec()))])
        }
        (Action::Read { keys }, ServerFrame::Values { values }) => {
            let values = keys.iter().zip(values.iter());
            Outcome::Found(
                values
                    .map(|(key, one)| found(key, one.revision, one.value.map(|value| value.to_vec())))
                    .collect(),
            )
        }
        (Action::List { .. }, ServerFrame::KeyList { more: false, keys }) => {
            Outcome::Listed(all(keys).into_iter().collect())
        }
        _ => Outcome::Lost,
    }
}
