//! Histories by hand. The wrong ones are refused for their own reason.

use super::{Counts, RequestKey, Revisions};
use crate::sim::harness::history::History;
use crate::sim::harness::sim_operation::{Answer, End, SimOperation};
use rendezvous_core::error::Effect;
use rendezvous_core::store::call::WaitMode;
use rendezvous_core::store::op::{Key, Keys};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::store::value_ref::ValueRef;
use rendezvous_core::wire::native::{Change, ClientFrame, Found, List, ServerFrame};

const A: &[u8] = b"/w/a";
const B: &[u8] = b"/w/b";

/// Revision, key and value of a change.
type Reported<'a> = (u64, &'a [u8], Option<&'a [u8]>);

#[derive(Default)]
struct Story {
    revisions: Revisions,
    life: u32,
    id: u64,
    /// Operations of c10d.
    records: History,
}

impl Story {
    fn next_moment(&mut self) -> u64 {
        self.records.moment()
    }

    fn ask(&mut self, process: u32, frame: &ClientFrame<'_>) -> RequestKey {
        self.id += 1;
        let key = (process, self.id);
        let moment = self.next_moment();
        self.revisions.begin(moment, key, frame);
        key
    }

    fn answer(&mut self, key: RequestKey, frame: &ServerFrame<'_>) {
        let moment = self.next_moment();
        self.revisions.answered(moment, key, self.life, frame);
    }

    fn call(&mut self, process: u32, frame: &ClientFrame<'_>, answer: &ServerFrame<'_>) -> RequestKey {
        let key = self.ask(process, frame);
        self.answer(key, answer);
        key
    }

    fn fail(&mut self, key: RequestKey, effect: Effect) {
        let moment = self.next_moment();
        self.revisions.failed(moment, key, Some(self.life), (effect, None));
    }

    fn set(&mut self, process: u32, key: &[u8], value: &[u8], revision: u64) {
        self.call(process, &set(key, value), &ServerFrame::Done { revision });
    }

    /// Sets both keys if a condition holds for the first one.
    fn ask_txn(&mut self, process: u32, condition: Condition<'_>, values: [&[u8]; 2]) -> RequestKey {
        let compares = [Compare { key: Key::raw(A), condition }];
        let then = [A, B].map(Key::raw).into_iter().zip(values);
        let then: Vec<_> = then.map(|(key, value)| Write::Set { key, value }).collect();
        let (compares, then, otherwise) = (List::new(&compares), List::new(&then), List::new(&[]));
        self.ask(process, &ClientFrame::Txn { compares, then, otherwise })
    }

    fn txn(&mut self, condition: Condition<'_>, values: [&[u8]; 2], (holds, revision): (bool, u64)) {
        let key = self.ask_txn(1, condition, values);
        self.answer(key, &ServerFrame::Outcome { holds, revision });
    }

    /// Reads both keys.
    fn read(&mut self, process: u32, found: [Option<(u64, &[u8])>; 2]) {
        let found = found.map(|found| Found {
            revision: found.map_or(0, |(revision, _)| revision),
            value: found.map(|(_, value)| ValueRef::Bytes(value)),
        });
        let frame = ClientFrame::MultiGet { timeout_ms: 0, keys: Keys::scoped(b"", &[A, B]) };
        self.call(process, &frame, &ServerFrame::Values { values: List::new(&found) });
    }

    fn watch(&mut self, from_revision: u64, revision: u64) -> RequestKey {
        let prefix = Key::raw(b"/w/");
        self.call(9, &ClientFrame::WatchPrefix { prefix, from_revision }, &ServerFrame::Done { revision })
    }

    fn report(&mut self, watch: RequestKey, changes: &[Reported<'_>]) {
        let changes: Vec<_> = changes
            .iter()
            .map(|&(revision, key, value)| Change {
                revision,
                key: Key::raw(key),
                value: value.map(ValueRef::Bytes),
            })
            .collect();
        let moment = self.next_moment();
        self.revisions.pushed(moment, watch, &ServerFrame::Changed { changes: List::new(&changes) });
    }

    fn restart(&mut self) {
        self.life += 1;
    }

    #[track_caller]
    fn is_refused(&self, reason: &str) {
        let refused =
            self.revisions.check(self.records.records().iter(), false).expect_err("a wrong history").0;
        assert!(refused.contains(reason), "{refused}");
    }

    #[track_caller]
    fn is_accepted(&self) -> Counts {
        self.revisions.check(self.records.records().iter(), false).expect("a correct history")
    }
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> ClientFrame<'a> {
    ClientFrame::Set { key: Key::raw(key), value }
}

/// A history with a watch, a transaction that is applied, and one that is not.
fn story() -> Story {
    let mut story = Story::default();
    story.set(1, A, b"1", 1);
    let watch = story.watch(0, 1);
    story.txn(Condition::Revision(1), [b"2", b"3"], (true, 3));
    story.report(watch, &[(2, A, Some(b"2")), (3, B, Some(b"3"))]);
    story.txn(Condition::Value(b"1"), [b"4", b"5"], (false, 3));
    story
}

#[test]
fn a_correct_history_is_accepted() {
    let mut story = story();
    story.read(2, [Some((2, b"2")), Some((3, b"3"))]);
    let delete = ClientFrame::Delete { key: Key::raw(A) };
    story.call(2, &delete, &ServerFrame::Number { number: 1, revision: 4 });
    story.read(1, [None, Some((3, b"3"))]);
    story.restart();
    story.read(3, [None, None]);
    story.set(3, A, b"6", 100);
    let counts = story.is_accepted();
    assert_eq!(counts, Counts { transactions: 3, reads: 3, recovered: 0, reports: 2, located: 0 });
}

#[test]
fn a_read_beside_a_write_sees_it_or_not() {
    for found in [Some((2, &b"2"[..])), Some((1, b"1"))] {
        let mut story = Story::default();
        story.set(1, A, b"1", 1);
        let write = story.ask(1, &set(A, b"2"));
        story.read(2, [found, None]);
        story.answer(write, &ServerFrame::Done { revision: 2 });
        story.is_accepted();
    }
}

#[test]
fn a_request_without_an_answer_is_applied_or_not() {
    for found in [[Some((2, &b"2"[..])), Some((3, &b"3"[..]))], [Some((1, b"1")), None]] {
        let mut story = Story::default();
        story.set(1, A, b"1", 1);
        let lost = story.ask_txn(1, Condition::Revision(1), [b"2", b"3"]);
        story.fail(lost, Effect::Possible);
        story.read(2, found);
        assert_eq!(story.is_accepted().recovered, u64::from(found[1].is_some()));
    }
}

#[test]
fn a_revision_is_of_one_change() {
    let mut story = story();
    story.set(2, A, b"7", 3);
    story.is_refused("is of two changes");
}

#[test]
fn the_writes_of_a_transaction_are_not_interrupted() {
    let mut story = Story::default();
    let txn = story.ask_txn(1, Condition::Absent, [b"1", b"2"]);
    story.set(2, A, b"3", 2);
    story.answer(txn, &ServerFrame::Outcome { holds: true, revision: 3 });
    story.read(2, [Some((1, b"1")), None]);
    story.is_refused("is of two changes");
    // The same without an answer: half of it is found, and the other half cannot have been applied.
    let mut story = Story::default();
    let lost = story.ask_txn(1, Condition::Absent, [b"1", b"2"]);
    story.fail(lost, Effect::Possible);
    story.set(2, A, b"3", 2);
    story.read(2, [Some((2, b"3")), Some((3, b"2"))]);
    story.is_refused("is of two changes");
}

#[test]
fn conditions_are_judged_just_before_the_writes() {
    let mut wrongly_applied = story();
    wrongly_applied.txn(Condition::Revision(1), [b"7", b"8"], (true, 5));
    wrongly_applied.is_refused("which its tests deny");
    let mut wrongly_refused = story();
    wrongly_refused.txn(Condition::Value(b"2"), [b"7", b"8"], (false, 3));
    wrongly_refused.is_refused("which its tests deny");
}

#[test]
fn a_read_finds_all_keys_at_one_position() {
    let mut story = story();
    story.read(2, [Some((1, b"1")), Some((3, b"3"))]);
    story.is_refused("found a state that was not there");
}

#[test]
fn what_was_seen_stays() {
    // A write that had been answered.
    let mut stale = story();
    stale.read(2, [Some((1, b"1")), None]);
    stale.is_refused("found a state that was not there");
    // A change that a watch had reported, though the writer has no answer yet.
    let mut stale = Story::default();
    let watch = stale.watch(0, 0);
    let write = stale.ask(1, &set(A, b"1"));
    stale.report(watch, &[(1, A, Some(b"1"))]);
    stale.read(2, [None, None]);
    stale.answer(write, &ServerFrame::Done { revision: 1 });
    stale.is_refused("found a state that was not there");
    // A request that was sent earlier in the same session.
    let mut reordered = Story::default();
    let write = reordered.ask(1, &set(A, b"1"));
    let read = reordered.ask(1, &ClientFrame::Check { keys: Keys::one(Key::raw(A)) });
    reordered.answer(write, &ServerFrame::Done { revision: 1 });
    reordered.answer(read, &ServerFrame::Outcome { holds: false, revision: 0 });
    reordered.is_refused("had been seen before");
}

#[test]
fn a_watch_reports_each_change_of_a_transaction_together() {
    let begin = || {
        let mut story = Story::default();
        let watch = story.watch(0, 0);
        story.txn(Condition::Absent, [b"1", b"2"], (true, 2));
        story.set(1, A, b"3", 3);
        (story, watch)
    };
    let (mut lossy, watch) = begin();
    lossy.report(watch, &[(1, A, Some(b"1")), (3, A, Some(b"3"))]);
    lossy.is_refused("leaves out revision 2");
    let (mut torn, watch) = begin();
    torn.report(watch, &[(1, A, Some(b"1"))]);
    torn.report(watch, &[(2, B, Some(b"2")), (3, A, Some(b"3"))]);
    torn.is_refused("apart");
    let (mut twice, watch) = begin();
    twice.report(watch, &[(1, A, Some(b"1")), (2, B, Some(b"2"))]);
    twice.report(watch, &[(2, B, Some(b"2"))]);
    twice.is_refused("reports revision 2 after 2");
}

#[test]
fn each_value_has_an_origin() {
    let mut story = Story::default();
    story.read(1, [Some((1, b"1")), None]);
    story.is_refused("no request wrote");
    let mut story = Story::default();
    let failed = story.ask(1, &set(A, b"1"));
    story.fail(failed, Effect::None);
    story.read(1, [Some((1, b"1")), None]);
    story.is_refused("which failed");
    // A transaction that was not applied.
    let mut story = self::story();
    story.read(1, [Some((4, b"4")), Some((3, b"3"))]);
    story.is_refused("did not write");
    // One that was applied twice.
    let mut story = self::story();
    story.read(2, [Some((4, b"2")), Some((3, b"3"))]);
    story.is_refused("did not write");
}

#[test]
fn a_restarted_server_has_other_revisions_and_no_data() {
    let mut continued = story();
    continued.restart();
    continued.set(2, A, b"7", 3);
    continued.is_refused("which an earlier life had");
    let mut kept = story();
    kept.restart();
    kept.read(2, [Some((100, b"2")), None]);
    kept.is_refused("of life Some(0) wrote");
    let mut stale = story();
    stale.restart();
    stale.set(2, A, b"7", 100);
    stale.txn(Condition::Revision(2), [b"8", b"9"], (true, 102));
    stale.is_refused("which its tests deny");
    let mut stale = story();
    stale.restart();
    stale.set(2, A, b"7", 100);
    stale.watch(3, 100);
    stale.is_refused("begins after 2");
}

/// A client of c10d reads and writes what a native one reads.
#[test]
fn answers_of_c10d_are_in_the_same_order() {
    let (name, timeout) = ("w/a".to_owned(), WaitMode::Once);
    let get = SimOperation::Get { name, timeout };
    let mut story = story();
    let id = story.records.begin(5, get.clone());
    story.records.end(id, End::Responded(Answer::Value(b"2".to_vec())), Some(0)).expect("one end");
    assert_eq!(story.is_accepted().located, 1);
    // The native client had overwritten that value before.
    let mut stale = self::story();
    let id = stale.records.begin(5, get);
    stale.records.end(id, End::Responded(Answer::Value(b"1".to_vec())), Some(0)).expect("one end");
    stale.is_refused("found a state that was not there");
    // A native client does not see what this one had written.
    let mut unseen = self::story();
    let set = SimOperation::Set { name: "r/0".to_owned(), value: b"6".to_vec() };
    let id = unseen.records.begin(5, set);
    unseen.records.end(id, End::Responded(Answer::Done), Some(0)).expect("one end");
    unseen.set(2, A, b"7", 4);
    let get = ClientFrame::Get { timeout_ms: 0, key: Key::raw(b"/r/0") };
    unseen.call(2, &get, &ServerFrame::Value { revision: 5, value: Some(ValueRef::Bytes(b"6")) });
    unseen.is_refused("had been seen before");
}
