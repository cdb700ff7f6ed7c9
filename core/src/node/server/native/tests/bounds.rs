//! Limits on what native clients make a server hold, and what happens to clients that exceed them.

use super::*;
use crate::limits::{RendezvousLimits, SessionLimits};

fn limited(waiting_bytes_max: u64, buffered_bytes_max: u64) -> Rig {
    let session = SessionLimits { waiting_bytes_max, ..SessionLimits::default() };
    Rig::new(ServerLimits { session, buffered_bytes_max, ..ServerLimits::default() })
}

fn wait(name: &str) -> ClientFrame<'_> {
    ClientFrame::Get { timeout_ms: 1000, key: key(name) }
}

/// Opens a session with a grace period.
fn open_for_long(rig: &mut Rig, index: u32, node: &str) -> ConnId {
    let conn = rig.connect(index);
    rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 60_000, node)));
    assert_eq!(rig.lines(conn), ["0 Welcome resumed=false"]);
    conn
}

#[test]
fn a_session_waits_and_watches_within_its_bound_and_has_it_back_when_that_is_over() {
    let mut rig = limited(1000, u64::MAX);
    let conn = rig.open(0, "n");
    let idle = rig.server.stats().buffered_bytes;
    let long = "k".repeat(400);
    assert!(rig.wanted(conn, 1, &wait(&long)).is_empty());
    let watch = ClientFrame::WatchKey { key: key("/w"), from_revision: 0 };
    assert_eq!(rig.wanted(conn, 2, &watch), ["2 Done"]);
    let held = rig.server.stats().buffered_bytes;
    assert!(held >= idle + 600, "{held} bytes");
    let refusal = "Error TooMany 1000 0 bytes of requests that wait or are not done, of watches, of leases and of a \
                   node in a run";
    for (id, frame) in [
        (3, wait(&long)),
        (4, ClientFrame::QueuePop { timeout_ms: 1000, key: key(&long) }),
        (5, ClientFrame::WatchPrefix { prefix: key(&long), from_revision: 0 }),
    ] {
        assert_eq!(rig.wanted(conn, id, &frame), [format!("{id} {refusal}")]);
    }
    assert_eq!(rig.server.stats().buffered_bytes, held, "what was refused is not held");
    let other = rig.open(1, "m");
    assert!(rig.wanted(other, 1, &wait(&long)).is_empty(), "the bound is each session's own");

    // An answer, a cancel and a deadline each free capacity.
    let set = ClientFrame::Set { key: key(&long), value: b"v" };
    assert_eq!(rig.wanted(conn, 6, &set), ["6 Done", "1 Value v"]);
    assert_eq!(rig.lines(other), ["1 Value v"]);
    let cancel = rig.wanted(conn, 7, &ClientFrame::Cancel { request: 2 });
    assert!(cancel[0].starts_with("2 WatchOver"), "{cancel:?}");
    assert_eq!(rig.server.stats().buffered_bytes, 2 * idle);
    assert!(rig.wanted(conn, 8, &wait("other")).is_empty());
    rig.after(Duration::from_secs(1));
    assert!(rig.lines(conn)[0].starts_with("8 Error TimedOut"));
    assert_eq!(rig.server.stats().buffered_bytes, 2 * idle);

    // The end of the session frees it, too.
    assert!(rig.wanted(conn, 9, &wait("another")).is_empty());
    assert!(rig.server.stats().buffered_bytes > 2 * idle);
    rig.feed(Input::Lost { conn, os_error: 104 });
    rig.feed(Input::Lost { conn: other, os_error: 104 });
    assert_eq!(rig.server.stats().buffered_bytes, 0);
}

#[test]
fn a_session_is_charged_for_its_name_which_is_not_long() {
    let mut rig = limited(u64::MAX, 100_000);
    let long = "n".repeat(1025);
    let conn = rig.connect(0);
    rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 0, &long)));
    assert_eq!(rig.lines(conn), ["0 Error TooLong 1025 1024 the name of the node"]);
    assert_eq!(rig.closed[&conn], CloseReason::SessionRefused(FaultCode::TooLong));
    assert_eq!(rig.server.stats().buffered_bytes, 0);
    // Sessions that do nothing are within the server's bound, too.
    for index in 1..=100 {
        let conn = rig.connect(index);
        rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 60_000, &long[1..])));
    }
    let stats = rig.server.stats();
    assert!((30..40).contains(&stats.sessions) && stats.buffered_bytes <= 100_000, "{stats:?}");
}

#[test]
fn where_the_buffers_are_full_the_session_that_holds_most_ends_though_it_has_no_connection() {
    let mut rig = limited(u64::MAX, 450_000);
    let set = ClientFrame::Set { key: key("/a"), value: &[7; 20_000] };
    let writer = rig.open(0, "writer");
    assert_eq!(rig.wanted(writer, 1, &set), ["1 Done"]);
    let get = ClientFrame::Get { timeout_ms: 0, key: key("/a") };
    // The client acknowledges nothing, so its answers are kept; then it is disconnected for a while.
    let away = open_for_long(&mut rig, 1, "away");
    (1..=18).for_each(|id| assert_eq!(rig.wanted(away, id, &get).len(), 1));
    rig.feed(Input::Lost { conn: away, os_error: 104 });
    assert_eq!(rig.server.stats().sessions, 2, "its grace runs");
    assert!(rig.server.stats().buffered_bytes > 18 * 20_000);
    let other = open_for_long(&mut rig, 2, "other");
    (1..=10).for_each(|id| assert_eq!(rig.wanted(other, id, &get).len(), 1));
    let is_full = |event: &Event| matches!(event, Event::SessionEnded { why: Why::Limit, .. });
    assert!(rig.events.iter().any(is_full), "it holds most");
    assert_eq!(rig.server.stats().sessions, 2);
    assert!(rig.server.stats().buffered_bytes < 300_000);
    // A session with a connection is notified of the reason. The writer is idle, so the other need not wait for it.
    rig.after(Duration::from_millis(300));
    let mut reported = Vec::new();
    for id in 11..=30 {
        if !rig.closed.contains_key(&other) {
            reported = rig.wanted(other, id, &get);
        }
    }
    assert_eq!(reported.last().map(String::as_str), Some("0 SessionOver { why: Limit }"));
    assert_eq!(rig.closed[&other], CloseReason::SessionOver(Why::Limit));
    assert_eq!(
        rig.wanted(writer, 2, &ClientFrame::NumKeys {}),
        ["2 Number 1"],
        "other clients are not affected"
    );
}

#[test]
fn the_keys_of_a_run_that_is_forgotten_go_and_nothing_is_left_of_its_fence() {
    let rendezvous = RendezvousLimits { runs_max: 1, ..RendezvousLimits::default() };
    let mut rig = Rig::new(ServerLimits { rendezvous, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    let join = |run_id| match join("n") {
        ClientFrame::Join { entry } => ClientFrame::Join {
            entry: Entry { run_id, terms: Terms { nodes_min: 1, nodes_max: 1, ..entry.terms }, ..entry },
        },
        other => other,
    };
    rig.ask(conn, 1, &join(b"old"));
    let written = &key_of("old", 0, "k");
    rig.ask(conn, 2, &ClientFrame::Set { key: key(written), value: b"v" });
    rig.ask(conn, 3, &ClientFrame::Leave { run_id: key("old") });
    rig.ask(conn, 4, &ClientFrame::Set { key: key(written), value: b"w" });
    let reported = rig.lines(conn);
    assert_eq!(reported.last().map(String::as_str), Some("4 Error StaleRound 0 1 "), "{reported:?}");
    assert_eq!(rig.server.engine().key_count(), 1);
    let reported = rig.wanted(conn, 5, &join(b"new"));
    assert!(reported.iter().any(|line| line.starts_with("5 Round 1 ")), "{reported:?}");
    assert_eq!(rig.server.engine().key_count(), 0);
    assert_eq!(rig.wanted(conn, 6, &ClientFrame::Set { key: key(written), value: b"w" }), ["6 Done"]);
    let other = rig.open(1, "m");
    let refused = rig.wanted(other, 1, &ClientFrame::Close { run_id: key("third") });
    assert_eq!(refused, ["1 Error TooMany 1 0 runs: 2 is over the limit of 1"]);
}

#[test]
fn an_answer_that_another_client_causes_is_counted_at_once() {
    let mut rig = rig();
    let (waiting, writer) = (rig.open(0, "n"), rig.open(1, "writer"));
    rig.wanted(writer, 1, &ClientFrame::Set { key: key("/k"), value: &[7; 1000] });
    let keys: Vec<&[u8]> = core::iter::once(&b"/missing"[..]).chain([&b"/k"[..]; 300]).collect();
    let multi_get = ClientFrame::MultiGet { timeout_ms: 60_000, keys: Keys::scoped(b"", &keys) };
    assert!(rig.wanted(waiting, 1, &multi_get).is_empty());
    let before = rig.server.stats().buffered_bytes;
    let set = encoded(2, 0, &ClientFrame::Set { key: key("/missing"), value: b"" });
    rig.server.handle(rig.now, Input::Received { conn: writer, bytes: &set }).expect("a legal input");
    let more = rig.server.stats().buffered_bytes - before;
    assert!(more >= 300_000, "{more} bytes before anything is sent");
}

#[test]
fn answers_that_others_cause_count_with_the_bytes_that_tls_holds() {
    let mut rig = rig();
    let (waiting, other) = (rig.open(0, "waiting"), rig.open(1, "other"));
    rig.server.charge_tls(waiting, 4096);
    rig.ask(waiting, 1, &ClientFrame::Get { timeout_ms: 1000, key: key("k") });
    let set = encoded(1, 0, &ClientFrame::Set { key: key("k"), value: &[0; 1000] });
    // With TLS, the server is not asked for further bytes before the earlier ones have been sent.
    rig.server.handle(rig.now, Input::Received { conn: other, bytes: &set }).expect("it is connected");
    let before = rig.server.stats().buffered_bytes;
    rig.server.charge_tls(waiting, 4096);
    let counted = rig.server.stats().buffered_bytes - before;
    assert!(counted >= 1000, "{counted}");
}
