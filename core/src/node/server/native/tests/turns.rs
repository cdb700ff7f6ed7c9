//! Requests that cost much: what they make the server hold, how much of them fits into one turn, and that others are
//! served in between.

use super::*;
use crate::limits::HistoryLimits;
use crate::node::server::tests::{frame, wait};

/// Work of a turn in these tests.
pub(super) const TURN: u64 = 200;
/// Work by which a turn may exceed that: its last request, or the last step of a job.
const EXCESS: u64 = 2500;

fn rig() -> Rig {
    Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() })
}

impl Rig {
    /// Ticks until nothing is left to do. Returns the number of turns.
    pub(super) fn finish(&mut self) -> usize {
        self.finish_within(TURN + EXCESS)
    }

    /// The same, with at most so much work in a turn.
    fn finish_within(&mut self, work_max: u64) -> usize {
        for turns in 0..1_000_000 {
            assert!(self.server.budget.spent <= work_max, "a turn of {}", self.server.budget.spent);
            if !self.has_work() {
                return turns;
            }
            self.now = self.now.max(self.server.poll_timeout().expect("when the work goes on"));
            self.feed(Input::Tick);
        }
        panic!("it never ends")
    }

    /// Ticks until nothing is left to do, without a wait.
    pub(super) fn finish_at_once(&mut self) {
        while self.has_work() {
            self.feed(Input::Tick);
        }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.server.parked.is_empty()
            || self.server.engine.has_to_free()
            || self.server.native.as_ref().is_some_and(|native| native.has_work(&self.server.engine))
    }
}

/// Returns a request that looks for `count` keys, `/k0` and so on.
fn check(id: u64, count: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|number| format!("/k{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    encoded(id, 0, &ClientFrame::Check { keys: Keys::scoped(b"", &names) })
}

pub(super) fn fill(rig: &mut Rig, prefix: &str, count: usize) {
    for number in 0..count {
        let name = format!("{prefix}{number}");
        let set = Request::Set { key: key(&name), value: b"v" };
        rig.server.engine.apply(ConnId { index: 0, generation: 0 }, &set).expect("there is capacity");
    }
    rig.server.engine.take_work();
}

/// Sets a value of 8 MiB and deletes it, while 640 clients, whose sockets accept nothing, have sent this frame. Returns the bytes
/// that the server holds for their answers after each, and the number of turns in which the first are answered.
fn held_for(frame: &ClientFrame<'_>, history: HistoryLimits) -> ([u64; 2], usize) {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, history, ..ServerLimits::default() });
    let clients: Vec<ConnId> = (0..640).map(|index| rig.open(index, "n")).collect();
    for &conn in &clients {
        rig.wanted(conn, 1, frame);
    }
    let writer = rig.open(1000, "writer");
    let before = rig.server.stats().buffered_bytes;
    rig.window = 0;
    let value = std::vec![7; 8 << 20];
    let set = ClientFrame::Set { key: key("/k"), value: &value };
    let [(set, turns), (deleted, _)] =
        [(1, set), (2, ClientFrame::Delete { key: key("/k") })].map(|(id, frame)| {
            rig.send(writer, &encoded(id, 0, &frame));
            let turns = rig.finish();
            (rig.server.stats().buffered_bytes.saturating_sub(before), turns)
        });
    rig.window = usize::MAX;
    for conn in clients {
        rig.pump(conn);
        let got = rig.got(conn);
        assert!(got.len() > value.len() && got[got.len() - value.len() / 2..][..1000] == value[..1000]);
    }
    ([set, deleted], turns)
}

#[test]
fn a_long_value_is_not_copied_for_those_who_wait_for_it() {
    // The history does not hold it. When the value is removed, the answers are its last holders, and it is held once.
    let history = HistoryLimits { bytes_max: 1 << 20, ..HistoryLimits::default() };
    let keys: [&[u8]; 1] = [b"/k"];
    let multi_get = ClientFrame::MultiGet { timeout_ms: 60_000, keys: Keys::scoped(b"", &keys) };
    for frame in [ClientFrame::Get { timeout_ms: 60_000, key: key("/k") }, multi_get] {
        let ([set, deleted], turns) = held_for(&frame, history);
        assert!(turns > 10, "{turns} turns");
        assert!(set < 1 << 20, "{set} bytes");
        assert!((7 << 20..10 << 20).contains(&deleted), "{deleted} bytes");
    }
}

#[test]
fn a_long_value_is_not_copied_for_those_who_watch_it() {
    let watch = ClientFrame::WatchKey { key: key("/k"), from_revision: 0 };
    let ([set, deleted], _) = held_for(&watch, HistoryLimits::default());
    assert!(set < 1 << 20 && deleted < 10 << 20, "{set} and {deleted} bytes");
}

#[test]
fn a_very_long_value_is_freed_in_turns() {
    let mut rig = rig();
    let (conn, other) = (rig.greeted(0), rig.open(1, "n"));
    for _ in 0..8 {
        rig.send(conn, &frame(Request::Append { key: key("/k"), value: &std::vec![7; 5 << 20] }));
        rig.after(Duration::from_millis(500));
    }
    rig.send(conn, &frame(Request::Delete { key: key("/k") }));
    assert_eq!(rig.wanted(other, 1, &ClientFrame::NumKeys {}), ["1 Number 0"]);
    assert!(rig.finish() >= 7, "a part in each turn");
    assert_eq!(rig.server.engine.footprint(), 0);
}

#[test]
fn a_client_that_asks_for_much_does_not_delay_the_others() {
    let mut rig = rig();
    fill(&mut rig, "/k", 100);
    let (greedy, other) = (rig.open(0, "greedy"), rig.open(1, "other"));
    rig.send(greedy, &(1..=100).flat_map(|id| check(id, 100)).collect::<Vec<u8>>());
    assert!(rig.lines(greedy).is_empty(), "they wait for a turn of their own");
    assert!(!rig.server.wants_read(greedy) && rig.server.wants_read(other));
    assert_eq!(rig.wanted(other, 1, &ClientFrame::Add { key: key("/n"), delta: 1 }), ["1 Number 1"]);
    let turns = rig.finish();
    assert!(turns > 20, "{turns} turns");
    assert_eq!(rig.lines(greedy).len(), 100);
    assert!(rig.server.wants_read(greedy) && rig.readable.contains(&greedy));
}

/// A leader sets one key for which all others wait.
#[test]
fn a_client_that_ends_many_waits_is_not_costly() {
    let mut rig = Rig::new(ServerLimits::default());
    let waiting: Vec<ConnId> = (0..2000).map(|index| rig.greeted(index)).collect();
    for &conn in &waiting {
        rig.send(conn, &wait(b"/k"));
    }
    let (leader, other) = (rig.open(2000, "leader"), rig.open(2001, "other"));
    assert_eq!(rig.wanted(leader, 1, &ClientFrame::Set { key: key("/k"), value: b"v" }).len(), 1);
    for id in 1..=3 {
        let add = ClientFrame::Add { key: key("/n"), delta: 1 };
        assert_eq!(rig.wanted(other, id, &add).len(), 1);
        assert_eq!(rig.wanted(leader, 1 + id, &add).len(), 1, "it is served at once");
    }
    assert!(waiting.iter().all(|&conn| rig.got(conn) == [0]));
}

#[test]
fn costly_work_is_done_in_slices_whose_pauses_grow_while_others_are_active() {
    let mut rig = Rig::new(ServerLimits::default());
    let (costly, light) = (rig.open(0, "costly"), rig.open(1, "light"));
    rig.send(costly, &check(1, 2000));
    assert_eq!(rig.lines(costly).len(), 1, "nothing was costly before");
    let mut waits_us = Vec::new();
    let mut id = 1;
    for count in [1000, 2000, 5000, 1000] {
        rig.send(costly, &check(2 + waits_us.len() as u64, count));
        let began = rig.now;
        while rig.lines(costly).is_empty() {
            // Another client goes on all the time, and is served at once.
            let add = ClientFrame::Add { key: key("/n"), delta: 1 };
            assert_eq!(rig.wanted(light, id, &add).len(), 1);
            id += 1;
            rig.after(Duration::from_micros(100));
            assert!(rig.now.since(began) < Duration::from_secs(1), "no answer");
        }
        waits_us.push(rig.now.since(began).as_micros());
    }
    // A unit counts 0.2 us: after a slice of 1,000 units, 0.2 ms for itself and as much again; after one of 5,000, 1 ms and
    // 25 times that, and something for the bytes.
    assert_eq!(waits_us, [100, 400, 2000, 27_200]);
}

#[test]
fn costly_requests_delay_neither_pushes_nor_the_jobs_of_others() {
    let mut rig = Rig::new(ServerLimits::default());
    let (costly, light, other) = (rig.open(0, "costly"), rig.open(1, "light"), rig.open(2, "other"));
    let writer = rig.open(3, "writer");
    let watchers: Vec<ConnId> = (10..1010).map(|index| rig.open(index, "watcher")).collect();
    for &conn in &watchers {
        let watch = ClientFrame::WatchKey { key: key("/watched"), from_revision: 0 };
        assert_eq!(rig.wanted(conn, 1, &watch), ["1 Done"]);
    }
    fill(&mut rig, "/old/", 20_000);
    let mut costly_id = 0;
    for step in 1..=50 {
        if rig.server.wants_read(costly) {
            costly_id += 1;
            rig.send(costly, &check(costly_id, 20_000));
        }
        assert_eq!(rig.wanted(light, 10 * step, &ClientFrame::Add { key: key("/n"), delta: 1 }).len(), 1);
        if step == 10 {
            rig.ask(other, 1, &ClientFrame::DeletePrefix { prefix: key("/old/") });
            let set = ClientFrame::Set { key: key("/watched"), value: b"v" };
            assert_eq!(rig.wanted(writer, 1, &set), ["1 Done"]);
        }
        rig.after(Duration::from_millis(1));
    }
    assert!((1..10).contains(&costly_id), "{costly_id} costly requests in 50 ms");
    assert_eq!(rig.lines(other), ["1 Number 20000"]);
    let pushed = watchers.iter().filter(|&&conn| rig.lines(conn).len() == 1).count();
    assert_eq!(pushed, 1000);
}

#[test]
fn a_session_whose_frames_wait_is_alive() {
    let mut rig = Rig::new(ServerLimits::default());
    let (costly, light) = (rig.connect(0), rig.open(1, "light"));
    let mut hello = hello(0, 0, [0; 16], 0, "costly");
    if let ClientFrame::Hello { heartbeat_ms, .. } = &mut hello {
        *heartbeat_ms = 20;
    }
    rig.send(costly, &opening(0, &hello));
    assert_eq!(rig.lines(costly), ["0 Welcome resumed=false"]);
    let mut waits_ms = Vec::new();
    for (id, steps) in [(1, 2), (2, 300)] {
        let began = rig.now;
        rig.send(costly, &check(id, 20_000));
        for step in 0..steps {
            let add = ClientFrame::Add { key: key("/n"), delta: 1 };
            assert_eq!(rig.wanted(light, 1000 * id + step, &add).len(), 1);
            if !rig.lines(costly).is_empty() {
                waits_ms.push(rig.now.since(began).as_millis());
                break;
            }
            rig.after(Duration::from_millis(1));
        }
    }
    assert!(
        matches!(waits_ms[..], [0..=1, wait] if wait > 60),
        "three heartbeats are missed after 60 ms: {waits_ms:?}"
    );
    assert!(rig.closed.is_empty(), "{:?}", rig.closed);
}

#[test]
fn a_lease_lives_while_the_frames_of_its_owner_wait() {
    let mut rig = Rig::new(ServerLimits::default());
    let (costly, light) = (rig.open(0, "costly"), rig.open(1, "light"));
    let add = ClientFrame::Add { key: key("/n"), delta: 1 };
    // No other client is active.
    rig.after(Duration::from_millis(300));
    let granted = rig.wanted(costly, 1, &ClientFrame::LeaseGrant { ttl_ms: 20 });
    assert_eq!(granted, ["1 Number 1"]);
    rig.send(costly, &check(2, 20_000));
    assert_eq!(rig.wanted(light, 1, &add).len(), 1);
    // These wait until the pause after the first is over.
    let renewal = encoded(4, 0, &ClientFrame::LeaseRenew { lease: 1 });
    rig.send(costly, &[check(3, 20_000), renewal].concat());
    let began = rig.now;
    let mut lines = Vec::new();
    for id in 2..500 {
        assert_eq!(rig.wanted(light, id, &add).len(), 1);
        lines.extend(rig.lines(costly));
        if lines.len() == 3 {
            break;
        }
        rig.after(Duration::from_millis(1));
    }
    assert!(rig.now.since(began) > Duration::from_millis(60), "{:?}", rig.now.since(began));
    assert_eq!(lines, ["2 Outcome false", "3 Outcome false", "4 Done"]);
    // Without frames that wait it ends in time.
    rig.after(Duration::from_millis(21));
    let over = rig.lines(costly);
    assert!(over.len() == 1 && over[0].contains("LeaseOver"), "{over:?}");
}

#[test]
fn a_client_alone_does_not_wait_for_others() {
    let mut rig = Rig::new(ServerLimits::default());
    let (conn, other) = (rig.open(0, "alone"), rig.open(1, "silent"));
    assert_eq!(rig.wanted(other, 1, &ClientFrame::NumKeys {}).len(), 1);
    rig.after(Duration::from_millis(300));
    for id in 1..20 {
        rig.send(conn, &check(id, 5000));
        assert_eq!(rig.lines(conn).len(), 1, "request {id} is answered at once");
    }
}

#[test]
fn a_costly_client_beside_one_that_is_seldom_active_is_hardly_slowed() {
    let mut rig = Rig::new(ServerLimits::default());
    let (costly, seldom) = (rig.open(0, "costly"), rig.open(1, "seldom"));
    let (mut answered, mut waited) = (0, Duration::ZERO);
    for step in 0..1000 {
        if step % 100 == 0 {
            let add = ClientFrame::Add { key: key("/n"), delta: 1 };
            assert_eq!(rig.wanted(seldom, 1 + step, &add).len(), 1);
        }
        rig.send(costly, &check(1 + step, 5000));
        let began = rig.now;
        while rig.lines(costly).is_empty() {
            assert!(rig.now.since(began) < Duration::from_secs(1), "no answer");
            rig.now = rig.server.poll_timeout().expect("when it is answered").max(rig.now);
            rig.feed(Input::Tick);
        }
        answered += 1;
        waited += rig.now.since(began);
        rig.after(Duration::from_millis(1));
    }
    assert_eq!(answered, 1000);
    // 2 ms for each of the other's ten requests.
    assert!(waited <= Duration::from_millis(20), "{waited:?}");
}

#[test]
fn frames_that_are_parked_are_served_though_their_client_sends_no_more() {
    let mut rig = rig();
    let conn = rig.greeted(0);
    let keys: Vec<String> = (0..300).map(|number| format!("/k{number}")).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let check = crate::node::server::tests::frame(Request::Check { keys: Keys::scoped(b"", &keys) });
    rig.send(conn, &[&check[..], &check, &check].concat());
    rig.feed(Input::ReadClosed { conn });
    assert!(rig.closed.is_empty() && rig.has_work());
    assert_eq!(rig.finish(), 2);
    assert_eq!(rig.got(conn).len(), 3);
    assert_eq!(rig.closed.get(&conn), Some(&CloseReason::PeerClosed));
}

/// Returns a rig with the pops of one queue that clients 0 and 1 wait for. A push has released the first, and its turn
/// ended before it was served.
fn rig_with_a_released_pop() -> (Rig, ConnId, ConnId) {
    let mut rig = rig();
    let (first, second, pusher) = (rig.open(0, "first"), rig.open(1, "second"), rig.open(2, "pusher"));
    let pop = |timeout_ms| ClientFrame::QueuePop { timeout_ms, key: key("/q") };
    assert!(rig.wanted(first, 1, &pop(1000)).is_empty());
    assert!(rig.wanted(second, 1, &pop(60_000)).is_empty());
    let names: Vec<String> = (0..300).map(|number| format!("/k{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    fill(&mut rig, "/k", 300);
    let requests = [
        Batched(ClientFrame::Check { keys: Keys::scoped(b"", &names) }),
        Batched(ClientFrame::QueuePush { key: key("/q"), value: b"item" }),
    ];
    rig.ask(pusher, 1, &ClientFrame::Batch { requests: List::new(&requests) });
    assert!(rig.has_work() && rig.lines(first).is_empty());
    (rig, first, second)
}

#[test]
fn a_released_pop_that_ends_before_it_is_served_leaves_the_item_to_the_next() {
    // It is cancelled.
    let (mut rig, first, second) = rig_with_a_released_pop();
    let cancelled = rig.wanted(first, 2, &ClientFrame::Cancel { request: 1 });
    assert_eq!(cancelled, ["1 Error Cancelled 0 0 first", "2 Outcome true"]);
    rig.finish();
    assert_eq!(rig.lines(second), ["1 Popped 1 item"]);
    // Its session ends.
    let (mut rig, first, second) = rig_with_a_released_pop();
    rig.ask(first, 2, &ClientFrame::Bye {});
    rig.finish();
    assert_eq!(rig.lines(second), ["1 Popped 1 item"]);
    // Its timeout has passed.
    let (mut rig, first, second) = rig_with_a_released_pop();
    rig.is_stopped_for(Duration::from_millis(1001));
    rig.finish();
    let got = (rig.lines(first).join(";"), rig.lines(second).join(";"));
    assert!(
        got == ("1 Error TimedOut 1000 0 /q".into(), "1 Popped 1 item".into())
            || got == ("1 Popped 1 item".into(), String::new()),
        "{got:?}"
    );
}

#[test]
fn a_request_does_not_end_because_of_a_released_one_whose_index_it_has() {
    let (mut rig, first, _) = rig_with_a_released_pop();
    rig.ask(first, 2, &ClientFrame::Cancel { request: 1 });
    let none: [&[u8]; 1] = [b"/none"];
    rig.ask(first, 3, &ClientFrame::Wait { timeout_ms: 60_000, keys: Keys::scoped(b"", &none) });
    rig.finish();
    assert_eq!(rig.lines(first), ["1 Error Cancelled 0 0 first", "2 Outcome true"]);
}

#[test]
fn many_keys_are_removed_in_turns_and_what_is_set_meanwhile_stays() {
    let mut rig = rig();
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    fill(&mut rig, "/p/", 20_000);
    assert!(rig.wanted(conn, 1, &ClientFrame::DeletePrefix { prefix: key("/p/") }).is_empty());
    for name in ["/p/9999", "/p/new"] {
        let set = ClientFrame::Set { key: key(name), value: b"later" };
        assert_eq!(rig.wanted(other, if name == "/p/new" { 2 } else { 1 }, &set).len(), 1);
    }
    assert!(rig.finish() > 50);
    let removed = rig.lines(conn);
    assert_eq!(removed, ["1 Number 19999"]);
    assert_eq!(rig.server.engine.key_count(), 2);
    // In a batch and in a transaction it happens at once, or not at all.
    let limits = ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() };
    let engine = crate::limits::EngineLimits { removed_at_once_max: 10, ..limits.engine };
    let mut rig = Rig::new(ServerLimits { engine, ..limits });
    let conn = rig.open(0, "n");
    fill(&mut rig, "/p/", 11);
    let delete = ClientFrame::DeletePrefix { prefix: key("/p/") };
    let batch = rig.wanted(conn, 1, &ClientFrame::Batch { requests: List::new(&[Batched(delete)]) });
    assert_eq!(batch, ["1 BatchDone TooMany"]);
    let then = [Write::Set { key: key("/q"), value: b"v" }, Write::DeletePrefix { prefix: key("/p/") }];
    let (compares, otherwise) = (List::new(&[]), List::new(&[]));
    let txn = rig.wanted(conn, 2, &ClientFrame::Txn { compares, then: List::new(&then), otherwise });
    assert!(txn[0].starts_with("2 Error TooMany 10 0"), "{txn:?}");
    assert_eq!(rig.server.engine.key_count(), 11);
}

/// Lets all but one of the participants arrive, in one session, and returns its connection.
fn arrive(rig: &mut Rig, names: &[String], timeout_ms: u64) -> ConnId {
    let conn = rig.open(0, "n");
    let participants = Participants::Count(u32::try_from(names.len()).expect("few") + 1);
    for (name, id) in names.iter().zip(1..) {
        let name = name.as_bytes();
        let barrier = ClientFrame::Barrier { key: key("/b"), generation: 0, name, timeout_ms, participants };
        assert!(rig.wanted(conn, id, &barrier).is_empty());
        rig.finish();
    }
    conn
}

#[test]
fn those_who_wait_at_a_barrier_are_answered_in_turns() {
    let names: Vec<String> = (0..500).map(|number| format!("n{number}")).collect();
    let last = |rig: &mut Rig| {
        let (other, participants) = (rig.open(1, "m"), Participants::Count(501));
        let barrier = ClientFrame::Barrier {
            key: key("/b"),
            generation: 0,
            name: b"m",
            timeout_ms: 60_000,
            participants,
        };
        rig.ask(other, 1, &barrier);
        other
    };
    let mut rig = rig();
    let conn = arrive(&mut rig, &names, 60_000);
    let other = last(&mut rig);
    let at_once = rig.lines(conn).len();
    assert_eq!(at_once, 0, "the end of the barrier takes that turn");
    assert_eq!(rig.wanted(other, 2, &ClientFrame::NumKeys {}), ["2 Number 0"], "others do not wait for it");
    let turns = rig.finish();
    assert!(turns > 10, "{turns} turns");
    assert_eq!(rig.lines(conn).len(), 500 - at_once);
    assert_eq!(rig.lines(other), ["1 BarrierOver 1 Released"]);

    // The same when their time is up.
    let mut rig = self::rig();
    let conn = arrive(&mut rig, &names, 10);
    rig.is_stopped_for(Duration::from_millis(10));
    let at_once = rig.lines(conn).len();
    assert_eq!(at_once, 0, "the end of the barrier takes that turn");
    rig.finish();
    assert_eq!(rig.lines(conn).len(), 500 - at_once);

    // A server that stops has no later turn.
    let mut rig = self::rig();
    let conn = arrive(&mut rig, &names, 60_000);
    last(&mut rig);
    rig.feed(Input::Stop);
    let lines = rig.lines(conn);
    assert_eq!(lines.iter().filter(|line| line.contains("BarrierOver 1 Released")).count(), 500);
}

#[test]
fn the_end_of_a_barrier_is_not_the_work_of_its_last_arrival() {
    let names: Vec<String> = (0..500).map(|number| format!("n{number}")).collect();
    let mut rig = Rig::new(ServerLimits::default());
    let conn = arrive(&mut rig, &names, 60_000);
    let last = rig.open(1, "m");
    let (key, participants) = (key("/b"), Participants::Count(501));
    rig.ask(
        last,
        1,
        &ClientFrame::Barrier { key, generation: 0, name: b"m", timeout_ms: 60_000, participants },
    );
    assert!(!rig.server.conns.get(last).expect("it is open").usage.is_costly(rig.now));
    rig.finish();
    assert_eq!(rig.lines(conn).len(), 500);
}

/// Most work of a turn with a step that ends arrivals: the budget, the step, and what one of its generations exceeds it by.
const ENDS_WORK_MAX: u64 = 10_000 + 12_288 + 2000;

/// Opens three sessions, each of which waits at all of these barriers.
fn all_arrive<'k>(rig: &mut Rig, keys: impl Iterator<Item = &'k str> + Clone) -> [ConnId; 3] {
    [(10, "a"), (11, "b"), (12, "c")].map(|(index, node)| {
        let conn = rig.open(index, node);
        for (barrier, id) in keys.clone().zip(1..) {
            let name = format!("{node}{id}");
            let barrier = ClientFrame::Barrier {
                key: key(barrier),
                generation: 0,
                name: name.as_bytes(),
                timeout_ms: 60_000,
                participants: Participants::Count(100_000),
            };
            rig.ask(conn, id, &barrier);
            rig.finish_within(ENDS_WORK_MAX);
        }
        conn
    })
}

#[test]
fn more_arrivals_than_one_step_ends_are_ended_with_their_session_or_their_round() {
    const MANY: usize = 4000;
    let limits = || ServerLimits { work_per_input_max: 10_000, ..ServerLimits::default() };
    let keys: Vec<String> = (0..MANY).map(|number| format!("/b/{number}")).collect();
    let mut rig = Rig::new(limits());
    let [a, b, c] = all_arrive(&mut rig, keys.iter().map(String::as_str));
    rig.feed(Input::Lost { conn: a, os_error: 104 });
    assert!(rig.server.stats().waiting > 0, "not all in one turn");
    rig.finish_within(ENDS_WORK_MAX);
    for conn in [b, c] {
        let lines = rig.lines(conn);
        assert_eq!((lines.len(), rig.server.stats().waiting), (MANY, 0));
        assert!(lines.iter().all(|line| line.contains("Broken")), "{}", lines[0]);
    }

    let mut rig = Rig::new(limits());
    let nodes = [rig.open(0, "m"), rig.open(1, "n")];
    rig.ask(nodes[0], 1, &join("m"));
    rig.ask(nodes[1], 1, &join("n"));
    let round_key = key_of("run", 0, "barrier");
    let all = all_arrive(&mut rig, core::iter::repeat_n(&*round_key, MANY));
    rig.feed(Input::Lost { conn: nodes[1], os_error: 104 });
    assert!(rig.server.stats().waiting > 0, "not all in one turn");
    rig.finish_within(ENDS_WORK_MAX);
    for conn in all {
        let lines = rig.lines(conn);
        assert_eq!((lines.len(), rig.server.stats().waiting), (MANY, 0));
        assert!(lines.iter().all(|line| line.contains("StaleRound")), "{}", lines[0]);
    }
}

#[test]
fn the_work_of_a_batch_is_bounded_and_what_exceeds_it_is_refused() {
    const WORK_MAX: u64 = 1000;
    let mut rig = Rig::new(ServerLimits { batch_work_max: WORK_MAX, ..ServerLimits::default() });
    fill(&mut rig, "/k", 100);
    let value = std::vec![7; 100 * 1024];
    let set = Request::Set { key: key("/long"), value: &value };
    rig.server.engine.apply(ConnId { index: 0, generation: 0 }, &set).expect("there is capacity");
    rig.server.engine.take_work();
    let conn = rig.open(0, "n");
    let names: Vec<String> = (0..100).map(|number| format!("/k{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let costly = [
        ClientFrame::Check { keys: Keys::scoped(b"", &names) },
        ClientFrame::CompareSet { key: key("/long"), expected: b"", desired: b"" },
    ];
    for (frame, id) in costly.into_iter().zip(1..) {
        let mut items: Vec<_> = (0..300).map(|_| Batched(frame)).collect();
        items.push(Batched(ClientFrame::Set { key: key("/last"), value: b"v" }));
        let answer = rig.wanted(conn, id, &ClientFrame::Batch { requests: List::new(&items) });
        let refused = answer[0].matches("TooMany").count();
        assert!((288..295).contains(&refused) && answer[0].ends_with("TooMany"), "{refused}");
        assert!(rig.server.budget.spent < 4 * WORK_MAX, "{}", rig.server.budget.spent);
    }
    assert_eq!(rig.server.engine.key_count(), 101, "the last was not executed");
    // A request that would exceed the budget is refused before its work, and so is each after it. The first is not.
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|&name| (name, &b"v"[..])).cycle().take(400).collect();
    let multi_set = || Batched(ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) });
    let items = [multi_set(), multi_set(), Batched(ClientFrame::NumKeys {})];
    let answer = rig.wanted(conn, 3, &ClientFrame::Batch { requests: List::new(&items) });
    assert_eq!(answer[0].matches("TooMany").count(), 2, "{answer:?}");
    // Each batch has a budget of its own.
    let items = [Batched(ClientFrame::Set { key: key("/last"), value: b"v" })];
    let answer = rig.wanted(conn, 4, &ClientFrame::Batch { requests: List::new(&items) });
    assert_eq!(answer, ["4 BatchDone 0x8010"]);
    assert_eq!(rig.server.engine.key_count(), 102);
}

#[test]
fn the_keys_of_a_lease_are_removed_in_turns_when_its_session_ends() {
    let mut rig = rig();
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    assert_eq!(rig.wanted(conn, 1, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["1 Number 1"]);
    fill(&mut rig, "/l/", 5000);
    let names: Vec<String> = (0..5000).map(|number| format!("/l/{number}")).collect();
    for (names, id) in names.chunks(500).zip(2..) {
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let attach = ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", &names) };
        rig.ask(conn, id, &attach);
        rig.finish();
        assert_eq!(rig.lines(conn), [format!("{id} Done")]);
    }
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert!(rig.has_work());
    let set = ClientFrame::Set { key: key("/l/0"), value: b"later" };
    assert_eq!(rig.wanted(other, 1, &set), ["1 Done"]);
    assert!(rig.finish() > 10);
    assert_eq!(rig.server.engine.key_count(), 1, "the one that was set again");
}

#[test]
fn attached_keys_take_space_in_the_store() {
    let engine = crate::limits::EngineLimits { stored_bytes_max: 100_000, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { engine, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    assert_eq!(rig.wanted(conn, 1, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["1 Number 1"]);
    let names: Vec<String> = (0..1000).map(|number| format!("{number:04000}")).collect();
    let refused = names.iter().zip(2..).find_map(|(name, id)| {
        let attach = ClientFrame::LeaseAttach { lease: 1, keys: Keys::one(key(name)) };
        let answer = rig.wanted(conn, id, &attach);
        (answer != [format!("{id} Done")]).then_some((id, answer))
    });
    assert_eq!(refused, Some((26, std::vec!["26 Error StoreFull 100000 0 ".to_string()])));
    // Values have no more space then, either.
    let set = ClientFrame::Set { key: key("/k"), value: &[7; 5000] };
    assert_eq!(rig.wanted(conn, 27, &set), ["27 Error StoreFull 100000 0 "]);
    rig.wanted(conn, 28, &ClientFrame::LeaseRevoke { lease: 1 });
    assert_eq!(rig.wanted(conn, 29, &set), ["29 Done"]);
    assert_eq!(rig.server.stats().stored_bytes, 5000 + 2 + crate::limits::KEY_COST_BYTES);
}

#[test]
fn the_watches_of_a_session_that_reads_again_are_served_in_turns() {
    let mut rig = rig();
    let (conn, writer) = (rig.open(0, "n"), rig.greeted(1));
    let names: Vec<String> = (0..300).map(|number| format!("/w/{number}")).collect();
    for (name, id) in names.iter().zip(1..) {
        rig.send(conn, &encoded(id, 0, &ClientFrame::WatchKey { key: key(name), from_revision: 0 }));
        rig.finish();
    }
    assert_eq!(rig.lines(conn).len(), 300);
    // Its outbox is full.
    rig.window = 0;
    rig.server.limits.unsent_bytes_high = 1;
    for name in &names {
        rig.send(writer, &crate::node::server::tests::set(name.as_bytes(), b"v"));
        rig.finish();
    }
    assert!(rig.server.native.as_ref().is_some_and(|native| native.watching.is_held_back()));
    rig.server.limits.unsent_bytes_high = usize::MAX;
    rig.window = usize::MAX;
    rig.pump(conn);
    rig.finish();
    assert_eq!(rig.lines(conn).len(), 300, "each change once");
}

#[test]
fn a_transaction_removes_a_bounded_number_of_keys_with_all_its_prefixes() {
    let engine = crate::limits::EngineLimits { removed_at_once_max: 10, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { engine, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    fill(&mut rig, "/p/", 6);
    fill(&mut rig, "/q/", 5);
    let then = ["/p/", "/q/"].map(|prefix| Write::DeletePrefix { prefix: key(prefix) });
    let (compares, otherwise) = (List::new(&[]), List::new(&[]));
    let txn = rig.wanted(conn, 1, &ClientFrame::Txn { compares, then: List::new(&then), otherwise });
    assert!(txn[0].starts_with("1 Error TooMany 10 0"), "{txn:?}");
    assert_eq!(rig.server.engine.key_count(), 11);
    // What a prefix removes, a later Add in the same transaction does not find.
    rig.wanted(conn, 2, &ClientFrame::Set { key: key("/p/0"), value: b"no number" });
    let then = [Write::DeletePrefix { prefix: key("/p/") }, Write::Add { key: key("/p/0"), delta: 3 }];
    let txn = rig.wanted(conn, 3, &ClientFrame::Txn { compares, then: List::new(&then), otherwise });
    assert_eq!(txn, ["3 Outcome true"]);
    let get = ClientFrame::Get { timeout_ms: 0, key: key("/p/0") };
    assert_eq!(rig.wanted(conn, 4, &get), ["4 Value 3"]);
}

#[test]
fn a_transaction_has_a_bounded_number_of_conditions_and_writes() {
    let mut rig = Rig::new(ServerLimits { txn_parts_max: 3, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    let compares = [Compare { key: key("/a"), condition: Condition::Absent }];
    let write = Write::Set { key: key("/a"), value: b"v" };
    let (one, two) = ([write], [write, write]);
    let txn = |then, otherwise| {
        let compares = List::new(&compares);
        ClientFrame::Txn { compares, then: List::new(then), otherwise: List::new(otherwise) }
    };
    assert_eq!(rig.wanted(conn, 1, &txn(&one, &one)), ["1 Outcome true"]);
    let refused = rig.wanted(conn, 2, &txn(&one, &two));
    assert!(refused[0].starts_with("2 Error TooMany 3 0 conditions and writes"), "{refused:?}");
}
