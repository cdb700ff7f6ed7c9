//! Ends of sessions with much to clean up, and of much at one instant: they take many turns, and nothing is left of them.

use super::turns::TURN;
use super::*;
use crate::limits::{HistoryLimits, SessionLimits};
use crate::node::server::tests::{frame, set};

const COUNT: u64 = 1500;

fn rig() -> Rig {
    Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() })
}

fn wait(name: &str, timeout_ms: u64) -> ClientFrame<'_> {
    ClientFrame::QueuePop { timeout_ms, key: key(name) }
}

#[test]
fn what_a_session_leaves_behind_is_removed_in_turns() {
    let history = HistoryLimits { leases_max: 2000, watches_max: 2000, ..HistoryLimits::default() };
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, history, ..ServerLimits::default() });
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    let names: Vec<String> = (0..COUNT).map(|number| format!("/{number}")).collect();
    for (name, id) in names.iter().zip(1..) {
        rig.ask(conn, 3 * id, &ClientFrame::WatchKey { key: key(name), from_revision: 0 });
        rig.ask(conn, 3 * id + 1, &ClientFrame::LeaseGrant { ttl_ms: 0 });
        rig.ask(conn, 3 * id + 2, &wait(name, 1_000_000));
        rig.finish();
    }
    let waits = rig.server.engine.waiting();
    assert_eq!(waits, usize::try_from(COUNT).expect("small"));
    rig.feed(Input::Lost { conn, os_error: 104 });
    let mut turns = 0;
    while rig.has_work() {
        turns += 1;
        assert!(rig.server.budget.spent <= TURN + 500, "a turn of {}", rig.server.budget.spent);
        let add = ClientFrame::Add { key: key("/n"), delta: 1 };
        assert_eq!(rig.wanted(other, turns, &add), [format!("{turns} Number {turns}")]);
        rig.feed(Input::Tick);
    }
    assert!(turns > 50, "{turns} turns");
    assert_eq!((rig.server.engine.waiting(), rig.server.engine.footprint()), (0, 1), "the counter is left");
    // Others may have as many watches and leases as there may be.
    for id in (0..2000).map(|number| 100_000 + 2 * number) {
        rig.ask(other, id, &ClientFrame::WatchKey { key: key("/w"), from_revision: 0 });
        rig.ask(other, id + 1, &ClientFrame::LeaseGrant { ttl_ms: 0 });
        rig.finish();
    }
    let refused: Vec<String> = rig.lines(other).into_iter().filter(|line| line.contains("Error")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// A node that comes back at once sets its key again, while the server still removes what its last session has left.
#[test]
fn what_is_set_after_the_end_of_a_session_stays() {
    let mut rig = rig();
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "n"));
    for id in 1..=300 {
        rig.ask(conn, 3 * id, &ClientFrame::LeaseGrant { ttl_ms: 0 });
        let name = format!("live/{id}");
        let keys: [&[u8]; 1] = [name.as_bytes()];
        rig.ask(conn, 3 * id + 1, &ClientFrame::Set { key: key(&format!("/{name}")), value: b"v" });
        rig.ask(conn, 3 * id + 2, &ClientFrame::LeaseAttach { lease: id, keys: Keys::scoped(b"/", &keys) });
        rig.finish();
    }
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert!(rig.has_work() && rig.server.engine.key_count() > 200, "it takes longer");
    rig.ask(other, 1, &ClientFrame::Set { key: key("/live/300"), value: b"again" });
    rig.finish();
    assert_eq!(rig.server.engine.keys_with_prefix(b"/"), [b"/live/300"]);
}

/// Until its end has been carried out, the store releases waits of a session that has ended.
#[test]
fn an_item_does_not_go_to_a_session_that_has_ended() {
    let mut rig = rig();
    let (conn, other, writer) = (rig.open(0, "n"), rig.open(1, "m"), rig.greeted(2));
    for id in 1..=COUNT {
        rig.ask(conn, id, &wait("/other", 1_000_000));
        rig.finish();
    }
    rig.ask(conn, COUNT + 1, &wait("/q", 1_000_000));
    rig.ask(other, 1, &wait("/q", 1_000_000));
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert!(rig.has_work() && rig.server.engine.waiting() > 500, "it takes longer");
    rig.send(writer, &frame(Request::QueuePush { key: key("/q"), value: b"item" }));
    rig.finish();
    assert_eq!(rig.lines(other), ["1 Popped 1 item"]);
    assert_eq!(rig.server.engine.waiting(), 0);
}

#[test]
fn leases_are_charged_to_their_session() {
    let session = SessionLimits { waiting_bytes_max: 2000, ..SessionLimits::default() };
    let mut rig = Rig::new(ServerLimits { session, ..ServerLimits::default() });
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    let before = rig.server.stats().buffered_bytes;
    let grant = ClientFrame::LeaseGrant { ttl_ms: 0 };
    let granted: Vec<String> = (1..=11).flat_map(|id| rig.wanted(conn, id, &grant)).collect();
    assert!(granted[..10].iter().all(|line| line.contains("Number")), "{granted:?}");
    assert!(granted[10].contains("Error TooMany 2000"), "{granted:?}");
    assert_eq!(rig.wanted(other, 1, &grant).len(), 1, "others are not affected");
    rig.wanted(other, 2, &ClientFrame::LeaseRevoke { lease: 11 });
    rig.wanted(conn, 12, &ClientFrame::LeaseRevoke { lease: 3 });
    assert!(rig.wanted(conn, 13, &grant)[0].contains("Number"), "one has been given back");
    for lease in [1, 2, 4, 5, 6, 7, 8, 9, 10, 12] {
        rig.wanted(conn, 100 + lease, &ClientFrame::LeaseRevoke { lease });
    }
    assert_eq!(rig.server.stats().buffered_bytes, before);
}

#[test]
fn leases_and_waits_that_end_at_one_instant_end_in_turns() {
    let mut rig = rig();
    let conn = rig.open(0, "n");
    let names: Vec<String> = (0..COUNT).map(|number| format!("/{number}")).collect();
    for (name, id) in names.iter().zip(1..) {
        rig.ask(conn, 2 * id, &ClientFrame::LeaseGrant { ttl_ms: 5000 });
        rig.ask(conn, 2 * id + 1, &wait(name, 5000));
        rig.finish_at_once();
    }
    rig.lines(conn);
    rig.now = rig.now + Duration::from_millis(5000);
    let mut turns = 0;
    while rig.server.poll_timeout().is_some_and(|due| due <= rig.now) {
        rig.feed(Input::Tick);
        assert!(rig.server.budget.spent <= TURN + 500, "a turn of {}", rig.server.budget.spent);
        turns += 1;
    }
    assert!(turns > 50, "{turns} turns");
    let lines = rig.lines(conn);
    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!((count("LeaseOver"), count("Error TimedOut")), (names.len(), names.len()));
}

#[test]
fn a_connection_waits_for_no_more_keys_than_its_limit() {
    let engine = crate::limits::EngineLimits { registrations_per_connection_max: 10, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { engine, ..ServerLimits::default() });
    let (conn, other) = (rig.greeted(0), rig.greeted(1));
    let keys = |count: u8| -> Vec<[u8; 1]> { (0..count).map(|number| [number]).collect() };
    let wait = |count: u8| {
        let names = keys(count);
        let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        frame(Request::Wait { keys: Keys::scoped(b"", &names) })
    };
    rig.send(conn, &[wait(6), wait(4)].concat());
    assert!(rig.closed.is_empty() && rig.server.engine.waiting() == 2);
    // Of the first wait, one key has been set.
    rig.send(other, &set(&[5], b""));
    rig.send(conn, &wait(1));
    assert!(rig.closed.is_empty());
    rig.send(conn, &wait(1));
    assert!(rig.closed[&conn].to_string().contains("too many pending waits (10)"), "{}", rig.closed[&conn]);
    assert_eq!(rig.server.engine.waiting(), 0);
}

#[test]
fn a_wait_for_many_keys_ends_in_turns() {
    let names: Vec<String> = (0..10_000).map(|number| format!("{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let keys = Keys::scoped(b"/", &names);
    let c10d_wait = frame(Request::Wait { keys });
    for how in ["Cancel", "timeout", "Bye", "Lost", "CANCEL_WAIT", "lost"] {
        let mut rig = rig();
        let conn = if how.to_uppercase() == how || how == "lost" { rig.greeted(0) } else { rig.open(0, "n") };
        let waits = match how {
            "CANCEL_WAIT" | "lost" => c10d_wait.clone(),
            _ => encoded(1, 0, &ClientFrame::Wait { timeout_ms: 5000, keys }),
        };
        rig.send(conn, &waits);
        rig.finish_at_once();
        assert_eq!(rig.server.engine.waiting(), 1, "{how}");
        match how {
            "Cancel" => rig.ask(conn, 2, &ClientFrame::Cancel { request: 1 }),
            "timeout" => {
                rig.now = rig.now + Duration::from_millis(5000);
                rig.feed(Input::Tick);
            }
            "Bye" => rig.ask(conn, 2, &ClientFrame::Bye {}),
            "CANCEL_WAIT" => rig.send(conn, &frame(Request::CancelWait)),
            _ => rig.feed(Input::Lost { conn, os_error: 104 }),
        }
        // An error of a wait says how many keys are missing.
        let mut bound = if how == "timeout" { 10_000 + 2000 } else { 2000 };
        let mut turns = 0;
        while rig.has_work() {
            assert!(rig.server.work() <= bound, "{how}: a turn of {}", rig.server.work());
            assert_eq!(rig.server.engine.waiting(), 0, "{how}");
            rig.now = rig.now.max(rig.server.poll_timeout().expect("when the work goes on"));
            rig.feed(Input::Tick);
            (bound, turns) = (2000, turns + 1);
        }
        assert!(turns > 20, "{how}: {turns} turns");
        assert_eq!(rig.server.engine.footprint(), 0, "{how}");
    }
}

/// The keys of an ended wait are freed in turns before a transaction counts what it removes.
#[test]
fn a_transaction_after_the_end_of_a_wait_for_many_keys_counts_none_of_them() {
    let names: Vec<String> = (0..10_000).map(|number| format!("x{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let engine = crate::limits::EngineLimits { removed_at_once_max: 100, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { engine, work_per_input_max: TURN, ..ServerLimits::default() });
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    let wait = ClientFrame::Wait { timeout_ms: 5000, keys: Keys::scoped(b"/", &names) };
    rig.send(conn, &encoded(1, 0, &wait));
    rig.finish_at_once();
    rig.feed(Input::Lost { conn, os_error: 104 });
    rig.ask(
        other,
        1,
        &ClientFrame::Txn {
            compares: List::new(&[]),
            then: List::new(&[
                Write::DeletePrefix { prefix: key("/x") },
                Write::Add { key: key("/n"), delta: 1 },
            ]),
            otherwise: List::new(&[]),
        },
    );
    let mut answer = rig.lines(other);
    while answer.is_empty() {
        // Each kind of work of a tick may exceed its budget by a step of 512 units. All at once would be 20,000.
        assert!(rig.has_work() && rig.server.work() <= 4000, "a turn of {}", rig.server.work());
        rig.now = rig.now.max(rig.server.poll_timeout().expect("when the work goes on"));
        rig.feed(Input::Tick);
        answer = rig.lines(other);
    }
    assert_eq!(answer, ["1 Outcome true"]);
}

#[test]
fn a_client_that_greets_and_leaves_at_once_makes_way_for_no_other() {
    let mut rig = rig();
    let conn = rig.connect(0);
    rig.now = rig.now + Duration::from_secs(10);
    let frames = [encoded(1, 0, &ClientFrame::Bye {}), encoded(2, 0, &ClientFrame::NumKeys {})];
    let bytes = [opening(0, &hello(0, 0, [0; 16], 0, "n")), frames.concat()].concat();
    for input in [Input::Received { conn, bytes: &bytes }, Input::AcceptFailed] {
        rig.server.handle(rig.now, input).expect("a legal input");
    }
    rig.feed(Input::Tick);
    assert_eq!(rig.lines(conn)[..2], ["0 Welcome resumed=false", "1 Done"]);
    let displaced = |event: &Event| matches!(event, Event::Closed { reason: CloseReason::Displaced, .. });
    assert!(!rig.events.iter().any(displaced), "{:?}", rig.events);
}
