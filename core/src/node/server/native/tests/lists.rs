//! Requests for the keys with a prefix, in a store of many keys: they are served in turns, and what they hold is charged.

use super::super::RequestId;
use super::super::jobs::{Job, Jobs, PendingJob};
use super::turns::{TURN, fill};
use super::*;
use crate::limits::SessionLimits;
use crate::node::server::tests::{frame, get, set};

const KEYS: usize = 3000;

fn rig() -> Rig {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() });
    fill(&mut rig, "/k/", KEYS);
    rig
}

/// Splits an answer to LIST_KEYS from what follows it.
fn key_list(bytes: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let (count, mut rest) = (number(bytes), &bytes[8..]);
    let keys = (0..count).map(|_| {
        let (key, following) = rest[8..].split_at(usize::try_from(number(rest)).expect("short"));
        rest = following;
        key
    });
    (keys.collect(), rest)
}

#[test]
fn all_keys_are_listed_in_turns_and_the_answers_keep_their_order() {
    let mut rig = rig();
    let (lister, other) = (rig.greeted(0), rig.greeted(1));
    rig.send(lister, &[set(b"/a", b"1"), frame(Request::ListKeys), get(b"/a")].concat());
    for step in 0..100_u32 {
        assert!(rig.got(lister).is_empty() && rig.has_work(), "step {step}: a list takes longer");
        rig.send(other, &[set(format!("/k/{step}").as_bytes(), b"2"), get(b"/a")].concat());
        assert_eq!(rig.got(other), [&1_u64.to_le_bytes()[..], b"1"].concat());
    }
    rig.finish();
    let got = rig.got(lister);
    let (keys, rest) = key_list(&got);
    assert_eq!((keys.len(), rest), (KEYS + 1, &[&1_u64.to_le_bytes()[..], b"1"].concat()[..]));
    assert!(keys.is_sorted() && keys[0] == b"/a");
    assert_eq!(rig.server.stats().buffered_bytes, 0, "nothing is left of it");
    assert_eq!(rig.server.stats().requests, 3 + 200, "each is counted once");
}

#[test]
fn a_list_ends_with_its_connection_and_at_the_limit_of_answers() {
    let mut rig = rig();
    let conn = rig.greeted(0);
    rig.send(conn, &frame(Request::ListKeys));
    // By then it has listed keys.
    while rig.server.stats().buffered_bytes == 0 {
        rig.feed(Input::Tick);
    }
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert_eq!(rig.server.stats().buffered_bytes, 0);
    rig.finish();
    let limits = ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() };
    let mut rig = Rig::new(ServerLimits { answer_bytes_max: 1000, ..limits });
    fill(&mut rig, "/k/", KEYS);
    let conn = rig.greeted(0);
    rig.send(conn, &frame(Request::ListKeys));
    rig.finish();
    assert!(
        matches!(rig.closed[&conn], CloseReason::AnswerTooLong(bytes) if bytes > 1000),
        "{:?}",
        rig.closed
    );
}

/// Without that the buffers of the server would be held by connections that no limit finds.
#[test]
fn a_list_that_exceeds_the_buffers_ends_its_connection_and_no_other() {
    let limits =
        ServerLimits { work_per_input_max: TURN, buffered_bytes_max: 20_000, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    fill(&mut rig, "/k/", KEYS);
    let (lister, other) = (rig.greeted(0), rig.greeted(1));
    rig.send(other, &set(b"/unfinished", b"value")[..20]);
    rig.send(lister, &frame(Request::ListKeys));
    rig.finish();
    assert!(matches!(rig.closed[&lister], CloseReason::BuffersFull(_)), "{:?}", rig.closed);
    assert_eq!(rig.closed.len(), 1);
}

#[test]
fn a_page_has_no_more_keys_than_fit_into_a_mebibyte() {
    let mut rig = rig();
    fill(&mut rig, &format!("/long/{}", "x".repeat(2000)), 1000);
    let (conn, mut after, mut pages, mut listed) = (rig.open(0, "n"), String::new(), 0, 0);
    loop {
        pages += 1;
        let list = ClientFrame::ListKeys { prefix: key("/long/"), after: key(&after), count_max: u32::MAX };
        rig.ask(conn, pages, &list);
        rig.finish();
        let lines = rig.lines(conn);
        let [line] = &lines[..] else { panic!("{} answers", lines.len()) };
        let (keys, more) = line.rsplit_once(' ').expect("a list");
        let keys = keys.split_once("KeyList ").expect("a list").1;
        listed += keys.split(',').count();
        after = keys.rsplit(',').next().expect("the last key").into();
        assert!(keys.len() < (1 << 20) + 3000, "{} bytes", keys.len());
        if more == "more=false" {
            break;
        }
    }
    assert_eq!((pages, listed), (2, 1000));
}

#[test]
fn what_jobs_hold_is_charged_to_their_session_until_they_are_done() {
    let session = SessionLimits { waiting_bytes_max: 100_000, ..SessionLimits::default() };
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, session, ..ServerLimits::default() });
    fill(&mut rig, "/k/", 10 * KEYS);
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    let before = rig.server.stats().buffered_bytes;
    for id in 1..=10 {
        rig.ask(conn, id, &ClientFrame::DeletePrefix { prefix: key("/k/1") });
        // The pause of a costly client is over by then, and the jobs are not.
        rig.now = rig.now + Duration::from_millis(300);
        rig.feed(Input::Tick);
    }
    let lines = rig.lines(conn);
    assert!(lines.iter().any(|line| line.contains("Error TooMany 100000")), "{lines:?}");
    assert!(rig.server.stats().buffered_bytes > before + 50_000, "they are charged");
    assert_eq!(rig.wanted(other, 1, &ClientFrame::DeletePrefix { prefix: key("/none/") }), [""; 0]);
    rig.finish();
    assert_eq!(rig.lines(other), ["1 Number 0"], "each session has its own limit");
    assert_eq!(rig.server.stats().buffered_bytes, before, "nothing is left of them");
}

/// Returns the number of turns until a list is answered beside `others` lists of another session.
fn turns_of_a_list(others: u64) -> usize {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() });
    fill(&mut rig, "/k/", 10 * KEYS);
    let (busy, conn) = (rig.open(0, "n"), rig.open(1, "m"));
    rig.ask(conn, 1, &ClientFrame::ListKeys { prefix: key("/k/"), after: key(""), count_max: 1 });
    rig.finish();
    rig.lines(conn);
    let list = ClientFrame::ListKeys { prefix: key("/k/"), after: key(""), count_max: u32::MAX };
    for id in 1..=others {
        // Pacing would delay the requests of one client, so they begin here.
        rig.server.with_native(|native, context| {
            let session = native.sessions.of(busy).expect("it is open");
            let listing = context.engine.list(b"/k/", b"", u64::MAX, usize::MAX);
            native.begin(context, Job::List(listing), Some(RequestId { session, id }));
        });
    }
    rig.ask(conn, 2, &list);
    let mut turns = 0;
    while rig.lines(conn).is_empty() {
        rig.feed(Input::Tick);
        turns += 1;
    }
    turns
}

#[test]
fn sessions_take_turns_however_many_lists_one_has_requested() {
    let (alone, beside) = (turns_of_a_list(0), turns_of_a_list(20));
    assert!(alone > 10 && beside <= 3 * alone, "{alone} turns alone, {beside} beside others");
}

/// The keys of nodes that have died must not stay because many clients list keys.
#[test]
fn every_second_job_is_one_of_the_servers_own() {
    let mut jobs = Jobs::default();
    for session in [1, 2, 2, 0, 0] {
        jobs.push(PendingJob::of(Job::EndSession {
            session: crate::session::table::SessionId(session),
            until: 0,
        }));
    }
    let order: Vec<u64> = core::iter::from_fn(|| jobs.pop().map(|job| job.session())).collect();
    assert_eq!(order, [0, 1, 0, 2, 2]);
}

/// A request that is refused must have removed nothing.
#[test]
fn a_removal_that_cannot_be_charged_does_not_begin() {
    let session = SessionLimits { waiting_bytes_max: 10_000, ..SessionLimits::default() };
    let mut rig = Rig::new(ServerLimits { session, ..ServerLimits::default() });
    fill(&mut rig, "/k/", 10);
    let conn = rig.open(0, "n");
    let refused = rig.wanted(conn, 1, &ClientFrame::DeletePrefix { prefix: key("/k/") });
    assert!(refused[0].contains("Error TooMany 10000"), "{refused:?}");
    assert_eq!(rig.server.engine.key_count(), 10);
}

/// Nothing else would own their bytes: above the limit of all buffers, innocent connections would end for them.
#[test]
fn the_lists_of_a_session_end_with_it() {
    let limits = ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    fill(&mut rig, "/k/", KEYS);
    let other = rig.greeted(100);
    rig.send(other, &set(b"/unfinished", b"value")[..20]);
    let before = rig.server.stats().buffered_bytes;
    for index in 0..20 {
        let conn = rig.open(index, "n");
        let list = ClientFrame::ListKeys { prefix: key(""), after: key(""), count_max: u32::MAX };
        rig.ask(conn, 1, &list);
        rig.ask(conn, 2, &ClientFrame::DeletePrefix { prefix: key("/none") });
        rig.feed(Input::Lost { conn, os_error: 104 });
        assert_eq!(rig.server.stats().buffered_bytes, before);
    }
    rig.finish();
    assert!(!rig.closed.contains_key(&other) && rig.server.engine.key_count() == KEYS);
}

/// All that it removes must be found in one turn, so it waits until the keys are in order.
#[test]
fn a_transaction_that_removes_a_prefix_waits_for_the_order_of_the_keys() {
    let mut rig = rig();
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    let (compares, otherwise) = (List::new(&[]), List::new(&[]));
    let set = [Write::Set { key: key("/p"), value: b"v" }];
    let then = List::new(&set);
    let txn = ClientFrame::Txn { compares, then, otherwise };
    assert_eq!(rig.wanted(conn, 1, &txn), ["1 Outcome true"], "it needs no order");
    let delete = [Write::DeletePrefix { prefix: key("/k/99") }];
    rig.ask(conn, 2, &ClientFrame::Txn { compares, then: List::new(&delete), otherwise });
    let batch = [Batched(ClientFrame::DeletePrefix { prefix: key("/k/98") })];
    rig.ask(other, 1, &ClientFrame::Batch { requests: List::new(&batch) });
    assert!(rig.lines(conn).is_empty() && rig.lines(other).is_empty() && rig.has_work());
    assert!(rig.finish() > 10);
    assert_eq!(rig.lines(conn), ["2 Outcome true"]);
    assert_eq!(rig.lines(other), ["1 BatchDone 11"]);
    assert_eq!(rig.server.engine.key_count(), KEYS + 1 - 22);
}
