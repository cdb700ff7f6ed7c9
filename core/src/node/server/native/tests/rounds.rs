//! Runs and their rounds.

use super::*;
use crate::limits::{RendezvousLimits, SessionLimits};
use crate::node::server::native::rounds::NODE_COST_BYTES;

#[test]
fn nodes_meet_and_hear_of_each_others_end_at_once() {
    let mut rig = rig();
    let (a, b, c) = (rig.open(0, "a"), rig.open(1, "b"), rig.open(2, "c"));
    assert_eq!(rig.wanted(a, 1, &join("a")), ["1 Placed is_participant=true ahead=0"]);
    rig.ask(b, 1, &join("b"));
    let namespace = key_of("run", 0, "");
    assert_eq!(rig.lines(a), [format!("1 Round 0 rank=0/2 workers=0/8 leader=a {namespace}")]);
    assert_eq!(
        rig.lines(b),
        [
            "1 Placed is_participant=true ahead=0".to_string(),
            format!("1 Round 0 rank=1/2 workers=4/8 leader=a {namespace}")
        ]
    );
    let members = ClientFrame::Members { run_id: key("run"), round: 0, first_node_rank: 1, count_max: 10 };
    assert_eq!(rig.wanted(a, 2, &members), ["2 MemberList 0 2 1:b@b"]);
    assert_eq!(rig.wanted(c, 1, &join("c")), ["1 Placed is_participant=false ahead=0"]);
    assert_eq!(rig.lines(a), [""; 0], "a spare does not affect the round");
    assert_eq!(
        rig.wanted(c, 2, &ClientFrame::RunInfo { run_id: key("run") }),
        ["2 RunState 0 complete=true closed=false 2+0+1"]
    );
    rig.ask(a, 3, &ClientFrame::Set { key: key(&key_of("run", 0, "k")), value: b"1" });
    rig.got(a);
    rig.feed(Input::HostSilent { conn: b, os_error: 110 });
    assert_eq!(
        rig.lines(a),
        [
            "1 PeerDied b rank=1 round=0: the host fell silent",
            "1 RoundOver 0: fewer nodes are left than it needs to go on"
        ]
    );
    let log: Vec<String> = rig.events.iter().map(ToString::to_string).collect();
    assert!(log.contains(&"session 2 ended node=b run=run: the host fell silent".into()), "{log:#?}");
    let written = key_of("run", 0, "k");
    let late = ClientFrame::Set { key: key(&written), value: b"2" };
    assert_eq!(rig.wanted(a, 4, &late), ["4 Error StaleRound 0 1 "]);
    rig.ask(a, 5, &join("a"));
    assert_eq!(
        rig.lines(c),
        [
            "1 Placed is_participant=true ahead=0".to_string(),
            format!("1 Round 1 rank=1/2 workers=4/8 leader=a {}", key_of("run", 1, ""))
        ]
    );
    let close = ClientFrame::Close { run_id: key("run") };
    assert_eq!(rig.wanted(c, 3, &close), ["1 RunClosed by=c", "3 Done"]);
    assert!(rig.lines(a).ends_with(&["5 RunClosed by=c".to_string()]));
    let fail = ClientFrame::Fail { run_id: key("run"), message: b"c: exit code 1" };
    assert_eq!(rig.wanted(c, 4, &fail), ["1 JobFailed c: exit code 1", "4 Done"]);
    assert_eq!(rig.lines(a), ["5 JobFailed c: exit code 1"]);
    assert_eq!(
        rig.wanted(a, 6, &join("a")),
        ["6 Error RunClosed 0 0 the rendezvous 'run' is closed (by node c): c: exit code 1"]
    );
    // Its failure ended the round before it left it.
    assert_eq!(
        rig.lines(c),
        [
            "1 PeerDied a rank=0 round=1: it wanted another round, and the run is closed",
            "1 RoundOver 1: fewer nodes are left than it needs to go on"
        ]
    );
    let fail = |message| ClientFrame::Fail { run_id: key("run"), message };
    assert_eq!(
        rig.wanted(c, 5, &fail(&[b'x'; 1025])),
        ["5 Error TooMany 1024 0 bytes of a failure: 1025 is over the limit of 1024"]
    );
    assert_eq!(rig.wanted(c, 6, &fail(b"\xff")), ["6 Error InvalidArgument 0 0 the failure is not UTF-8"]);
}

#[test]
fn members_that_are_forgotten_are_left_out_and_the_others_keep_their_ranks() {
    let rendezvous = RendezvousLimits { remembered_bytes_max: 0, ..RendezvousLimits::default() };
    let mut rig = Rig::new(ServerLimits { rendezvous, ..ServerLimits::default() });
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    rig.ask(a, 1, &join("a"));
    rig.ask(b, 1, &join("b"));
    rig.ask(a, 2, &ClientFrame::Leave { run_id: key("run") });
    rig.got(b);
    for (first_node_rank, listed) in [(0, "1:b@b"), (1, "1:b@b"), (2, "")] {
        let members = ClientFrame::Members { run_id: key("run"), round: 0, first_node_rank, count_max: 1 };
        let id = 2 + u64::from(first_node_rank);
        assert_eq!(rig.wanted(b, id, &members), [format!("{id} MemberList 0 2 {listed}")]);
    }
}

#[test]
fn a_session_is_charged_for_its_node_as_long_as_it_is_in_a_run() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    let held = |rig: &Rig| rig.server.native.as_ref().map_or(0, |native| native.held_bytes());
    let before = held(&rig);
    // Beside the charge for each node, the sessions hold the answers, which are short.
    let nodes = |rig: &Rig| (held(rig) - before) / NODE_COST_BYTES;
    rig.ask(a, 1, &join("a"));
    assert_eq!(nodes(&rig), 1);
    rig.ask(a, 2, &join("a"));
    assert_eq!(nodes(&rig), 1, "a Join that is refused changes nothing");
    rig.ask(b, 1, &join("b"));
    rig.ask(b, 2, &join("b"));
    assert_eq!(nodes(&rig), 2, "the second Join takes the place of the first");
    rig.ask(a, 3, &ClientFrame::Leave { run_id: key("run") });
    rig.ask(b, 3, &ClientFrame::Leave { run_id: key("run") });
    assert_eq!(nodes(&rig), 0);
    rig.ask(a, 4, &join("a"));
    rig.ask(a, 5, &ClientFrame::Cancel { request: 4 });
    assert_eq!(nodes(&rig), 0, "a Join that was cancelled");
    rig.ask(a, 6, &join("a"));
    rig.ask(b, 4, &join("b"));
    rig.ask(a, 7, &ClientFrame::Close { run_id: key("run") });
    assert_eq!(nodes(&rig), 2, "the round of a closed run goes on");
    rig.ask(b, 5, &ClientFrame::Leave { run_id: key("run") });
    assert_eq!(nodes(&rig), 1);
    rig.lines(a);
    assert!(rig.wanted(a, 8, &join("a"))[0].starts_with("8 Error RunClosed"));
    assert_eq!(nodes(&rig), 0, "a refused Join takes the node out of the closed run");
    let session = SessionLimits { waiting_bytes_max: 1000, ..SessionLimits::default() };
    let mut rig = Rig::new(ServerLimits { session, ..ServerLimits::default() });
    let a = rig.open(0, "a");
    assert!(rig.wanted(a, 1, &join("a"))[0].starts_with("1 Error TooMany 1000 0"));
    let runs = rig.server.native.as_ref().map(|native| native.rendezvous.status("run"));
    assert_eq!(runs, Some(None), "the run was not created");
}

#[test]
fn those_that_have_come_for_a_round_are_told() {
    let mut rig = rig();
    let (a, b, c) = (rig.open(0, "a"), rig.open(1, "b"), rig.open(2, "c"));
    let members = |round, first_node_rank, count_max| ClientFrame::Members {
        run_id: key("run"),
        round,
        first_node_rank,
        count_max,
    };
    assert_eq!(rig.wanted(c, 1, &members(0, 0, 10)), ["1 Error UnknownRound 0 0 round 0 of the run 'run'"]);
    rig.ask(a, 1, &join("a"));
    assert_eq!(rig.wanted(c, 2, &members(0, 0, 10)), ["2 MemberList 0 1 0:a@a"]);
    rig.ask(b, 1, &join("b"));
    assert_eq!(rig.wanted(c, 3, &members(0, 0, 1)), ["3 MemberList 0 2 0:a@a"], "those of the round");
    assert_eq!(rig.wanted(c, 4, &members(1, 0, 10)), ["4 MemberList 1 0 "], "no node has joined again");
    rig.ask(b, 2, &ClientFrame::Leave { run_id: key("run") });
    rig.ask(a, 2, &join("a"));
    assert_eq!(rig.wanted(c, 5, &members(1, 0, 10)), ["5 MemberList 1 1 0:a@a"]);
    assert_eq!(rig.wanted(c, 6, &members(0, 1, 10)), ["6 MemberList 0 2 1:b@b"], "the last round is known");
    assert_eq!(rig.wanted(c, 7, &members(2, 0, 10)), ["7 Error UnknownRound 2 0 round 2 of the run 'run'"]);
}

#[test]
fn a_dead_rounds_c10d_workers_are_closed_and_counted() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    let worker = rig.greeted(2);
    rig.ask(a, 1, &join("a"));
    rig.ask(b, 1, &join("b"));
    rig.send(worker, &crate::node::server::tests::set(key_of("run", 0, "k").as_bytes(), b"1"));
    assert!(!rig.closed.contains_key(&worker), "the round lives");
    rig.feed(Input::Lost { conn: b, os_error: 0 });
    rig.send(worker, &crate::node::server::tests::get(key_of("run", 0, "k").as_bytes()));
    assert_eq!(rig.got(worker).len(), 9, "reading goes on");
    rig.send(worker, &crate::node::server::tests::set(key_of("run", 0, "k").as_bytes(), b"2"));
    assert!(matches!(rig.closed[&worker], CloseReason::Refused(_)));
    assert_eq!(
        rig.closed[&worker].to_string(),
        "request refused: round 0 is over, and so are all up to 0: its keys can no longer be changed"
    );
    assert_eq!(rig.server.stats().stale_writes, 1);
}

#[test]
fn who_waits_for_a_key_of_a_round_that_ends_waits_no_more() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    let (worker, late, bystander) = (rig.greeted(2), rig.greeted(3), rig.greeted(4));
    rig.ask(a, 1, &join("a"));
    rig.ask(b, 1, &join("b"));
    rig.got(a);
    rig.send(worker, &crate::node::server::tests::wait(key_of("run", 0, "k").as_bytes()));
    rig.send(bystander, &crate::node::server::tests::wait(key_of("run", 1, "k").as_bytes()));
    rig.ask(a, 2, &ClientFrame::Get { timeout_ms: 60_000, key: key(&key_of("run", 0, "k")) });
    rig.ask(a, 3, &ClientFrame::QueuePop { timeout_ms: 60_000, key: key(&key_of("run", 0, "q")) });
    rig.feed(Input::Lost { conn: b, os_error: 0 });
    let reported = rig.lines(a);
    for expected in ["2 Error StaleRound 0 1 ", "3 Error StaleRound 0 1 "] {
        assert!(reported.iter().any(|line| line == expected), "{reported:?}");
    }
    assert!(matches!(rig.closed[&worker], CloseReason::Refused(_)), "c10d has no word for it");
    rig.send(late, &crate::node::server::tests::wait(key_of("run", 0, "k").as_bytes()));
    assert!(matches!(rig.closed[&late], CloseReason::Refused(_)), "it will never be there");
    assert!(!rig.closed.contains_key(&bystander), "the next round's keys may still come");
    assert_eq!((rig.server.stats().waiting, rig.server.stats().stale_writes), (1, 4));
}

#[test]
fn who_waits_at_a_barrier_of_a_round_that_ends_waits_no_more() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    rig.ask(a, 1, &join("a"));
    rig.ask(b, 1, &join("b"));
    rig.got(a);
    let keys = [0, 1].map(|round| key_of("run", round, "barrier"));
    let barrier = |at: usize, generation, name| ClientFrame::Barrier {
        key: key(&keys[at]),
        generation,
        name,
        timeout_ms: 60_000,
        participants: Participants::Count(2),
    };
    assert!(rig.wanted(a, 2, &barrier(0, 0, b"w0")).is_empty());
    assert_eq!(rig.wanted(a, 3, &barrier(0, 0, b"w1")).len(), 2, "released");
    assert!(rig.wanted(a, 4, &barrier(0, 0, b"w0")).is_empty());
    assert!(rig.wanted(a, 5, &barrier(1, 0, b"w0")).is_empty());
    rig.feed(Input::Lost { conn: b, os_error: 0 });
    let reported = rig.lines(a);
    assert!(reported.iter().any(|line| line == "4 Error StaleRound 0 1 "), "{reported:?}");
    assert_eq!(rig.server.stats().waiting, 1, "the next round's may still be released");
    assert_eq!(rig.wanted(a, 6, &barrier(0, 0, b"w0")), ["6 Error StaleRound 0 1 "]);
    assert_eq!(rig.wanted(a, 7, &barrier(0, 1, b"w0")), ["7 BarrierOver 1 Released"], "that is known");
    assert_eq!((rig.server.stats().waiting, rig.server.stats().stale_writes), (1, 2));
}

#[test]
fn joins_that_make_no_sense_are_told_what_is_wrong() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    let with = |terms: Terms<'static>, run_id: &'static [u8], node: &'static [u8]| ClientFrame::Join {
        entry: Entry {
            run_id,
            node,
            address: b"",
            local_world_size: 1,
            node_rank: -1,
            join_timeout_ms: 1000,
            terms,
            labels: Pairs::scoped(b"", &[]),
            round_min: 0,
        },
    };
    let ranked = |node_rank| {
        let ClientFrame::Join { entry } = with(TERMS, b"run", b"a") else { unreachable!("it is one") };
        ClientFrame::Join { entry: Entry { node_rank, ..entry } }
    };
    let mut id = 0;
    for (frame, error) in [
        (ranked(-2), "InvalidArgument 0 0 node_rank is -2, not from -1 to 2147483647"),
        (ranked(i32::MIN), "InvalidArgument 0 0 node_rank is -2147483648, not from -1 to 2147483647"),
        (
            with(Terms { nodes_min: 0, ..TERMS }, b"run", b"a"),
            "InvalidArgument 0 0 The minimum number of nodes (0)",
        ),
        (
            with(Terms { nodes_min: 3, ..TERMS }, b"run", b"a"),
            "InvalidArgument 0 0 The maximum number of nodes (2)",
        ),
        (with(TERMS, b"", b"a"), "InvalidArgument 0 0 The run id must be a non-empty string."),
        (with(TERMS, b"run", b""), "InvalidArgument 0 0 "),
        (with(TERMS, b"run", b"\xff"), "InvalidArgument 0 0 the node's name is not UTF-8"),
        (with(TERMS, b"\xff", b"a"), "InvalidArgument 0 0 the run id is not UTF-8"),
        (
            with(Terms { last_call: LastCall::Other(9), ..TERMS }, b"run", b"a"),
            "InvalidArgument 0 0 this server knows no last call 9",
        ),
        (
            with(Terms { rank_order: RankOrder::Other(9), ..TERMS }, b"run", b"a"),
            "InvalidArgument 0 0 this server knows no rank order 9",
        ),
        (ClientFrame::Leave { run_id: key("run") }, "UnknownRound 0 0 this session is not in the run 'run'"),
        (
            ClientFrame::Members { run_id: key("run"), round: 3, first_node_rank: 0, count_max: 1 },
            "UnknownRound 3 0 round 3 of the run 'run'",
        ),
    ] {
        id += 1;
        let reported = rig.wanted(a, id, &frame);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].starts_with(&format!("{id} Error {error}")), "{reported:?}");
    }
    rig.ask(a, 20, &join("a"));
    assert!(rig.wanted(a, 21, &join("a"))[1].starts_with("21 Error AlreadyJoined"));
    let other = with(Terms { nodes_max: 5, ..TERMS }, b"run", b"b");
    assert_eq!(
        rig.wanted(b, 1, &other),
        [
            "1 Error BoundsConflict 0 0 node b has min:max nodes 2:5, but the run 'run' was begun by node a with 2:2"
        ]
    );
    assert_eq!(
        rig.wanted(a, 22, &ClientFrame::Leave { run_id: key("run") }),
        ["20 Error Cancelled 0 0 left", "22 Done"]
    );
    rig.ask(a, 23, &join("a"));
    rig.got(a);
    rig.after(Duration::from_millis(10_000));
    let reported = rig.lines(a).join("");
    assert!(
        reported.starts_with(
            "23 Error TimedOut 10000 0 round 0 was not formed: 1 of at least 2 nodes were there (a)"
        ),
        "{reported}"
    );
    rig.ask(a, 24, &join("a"));
    rig.got(a);
    assert_eq!(
        rig.wanted(a, 25, &ClientFrame::Cancel { request: 24 }),
        ["24 Error Cancelled 0 0 a", "25 Outcome true"]
    );
}

#[test]
fn who_leaves_or_is_told_to_hears_the_last_word() {
    let mut rig = rig();
    let conn = rig.open(0, "n");
    assert_eq!(rig.wanted(conn, 1, &ClientFrame::Bye {}), ["1 Done", "0 SessionOver { why: Left }"]);
    assert_eq!(rig.closed[&conn], CloseReason::SessionOver(Why::Left));
    assert_eq!(rig.server.stats().expelled, 0);
    let (a, b, c10d) = (rig.open(1, "a"), rig.open(2, "b"), rig.greeted(3));
    rig.ask(a, 1, &join("a"));
    rig.ask(b, 1, &join("b"));
    rig.got(a);
    rig.got(b);
    rig.feed(Input::Stop);
    for conn in [a, b] {
        assert_eq!(
            rig.lines(conn),
            ["0 SessionOver { why: ServerStopped }"],
            "and nothing of the other's end"
        );
    }
    assert!(!rig.closed.contains_key(&c10d));
}

#[test]
fn a_join_that_arrives_after_its_round_was_due_is_answered() {
    a_late_join_is_answered(&mut rig());
}

/// So many other runs are due that a tick leaves this one for later.
#[test]
fn a_join_that_arrives_after_its_round_and_others_were_due_is_answered() {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: 20, ..ServerLimits::default() });
    for index in 10..60 {
        let (conn, name) = (rig.open(index, &index.to_string()), index.to_string());
        rig.ask(conn, 1, &join_of(name.as_bytes(), name.as_bytes(), 4950));
    }
    a_late_join_is_answered(&mut rig);
}

/// A Join that waits for another node.
fn join_of<'f>(run_id: &'f [u8], node: &'f [u8], join_timeout_ms: u64) -> ClientFrame<'f> {
    let ClientFrame::Join { entry } = join("a") else { unreachable!("it is a Join") };
    ClientFrame::Join { entry: Entry { run_id, node, join_timeout_ms, ..entry } }
}

fn a_late_join_is_answered(rig: &mut Rig) {
    let terms = Terms { nodes_min: 3, nodes_max: 4, last_call_ms: 5000, fast_quorum: false, ..TERMS };
    let join = |node: &'static str| match join(node) {
        ClientFrame::Join { entry } => ClientFrame::Join { entry: Entry { terms, ..entry } },
        other => other,
    };
    let names = ["a", "b", "c", "d"];
    let conns = [0, 1, 2, 3].map(|index| rig.open(index, names[index as usize]));
    conns.iter().zip(names).for_each(|(&conn, name)| rig.ask(conn, 1, &join(name)));
    let late = conns[3];
    rig.after(Duration::ZERO);
    assert!(rig.lines(late).last().is_some_and(|last| last.starts_with("1 Round 0 rank=3/4")));
    conns.iter().zip(names).take(3).for_each(|(&conn, name)| rig.ask(conn, 2, &join(name)));
    rig.after(Duration::ZERO);
    rig.got(late);
    // The last call is over, but no tick has come before the Join of the fourth node.
    rig.after(Duration::from_millis(4900));
    rig.now = rig.now + Duration::from_millis(300);
    let outsider = rig.open(4, "outsider");
    let info = ClientFrame::RunInfo { run_id: key("run") };
    assert_eq!(rig.wanted(outsider, 1, &info), ["1 RunState 1 complete=true closed=false 3+0+0"]);
    rig.ask(late, 2, &join("d"));
    rig.finish_at_once();
    let lines = rig.lines(late);
    assert_eq!(lines, ["1 Excluded { run_id: \"run\", round: 1 }", "2 Placed is_participant=true ahead=0"]);
    rig.after(Duration::from_secs(10));
    let lines = rig.lines(late);
    assert!(lines[0].starts_with("2 Error TimedOut"), "{lines:?}");
}

#[test]
fn a_cancel_of_a_join_that_arrives_after_its_round_was_due_does_not_affect_it() {
    let mut rig = rig();
    let ClientFrame::Join { entry } = join("a") else { unreachable!("it is a Join") };
    let terms = Terms { nodes_min: 2, nodes_max: 3, last_call_ms: 5000, ..entry.terms };
    let join = |node: &'static [u8]| ClientFrame::Join { entry: Entry { node, terms, ..entry } };
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    rig.ask(a, 1, &join(b"a"));
    assert_eq!(rig.wanted(b, 1, &join(b"b")), ["1 Placed is_participant=true ahead=0"]);
    rig.now = rig.now + Duration::from_millis(5200);
    let lines = rig.wanted(b, 2, &ClientFrame::Cancel { request: 1 });
    assert!(lines[0].starts_with("1 Round 0 rank=1/2"), "{lines:?}");
    assert_eq!(lines[1..], ["2 Outcome false"]);
}

#[test]
fn runs_that_are_due_at_once_are_updated_in_turns() {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: 50, ..ServerLimits::default() });
    let names: Vec<String> = (0..100).map(|index| index.to_string()).collect();
    let enter = |rig: &mut Rig, index: u32| {
        let name = &names[index as usize];
        let conn = rig.open(index, name);
        rig.ask(conn, 1, &join_of(name.as_bytes(), name.as_bytes(), 1000));
        conn
    };
    let nodes: Vec<ConnId> = (0..100).map(|index| enter(&mut rig, index)).collect();
    rig.now = rig.now + Duration::from_secs(1);
    let mut turns = 0;
    while rig.server.poll_timeout().is_some_and(|at| at <= rig.now) {
        rig.feed(Input::Tick);
        let work = rig.server.work();
        assert!(work < 200, "a turn of {work}");
        turns += 1;
    }
    assert!(turns > 10, "{turns} turns");
    for conn in nodes {
        let last = rig.lines(conn).pop();
        assert!(last.as_ref().is_some_and(|last| last.starts_with("1 Error TimedOut")), "{last:?}");
    }
}

#[test]
fn a_run_that_can_never_be_formed_is_refused() {
    let mut rig = rig();
    let conn = rig.open(0, "a");
    let ClientFrame::Join { entry } = join("a") else { unreachable!("it is a Join") };
    let terms = Terms { nodes_min: 32_769, nodes_max: 40_000, ..entry.terms };
    let lines = rig.wanted(conn, 1, &ClientFrame::Join { entry: Entry { terms, ..entry } });
    assert!(lines[0].starts_with("1 Error TooMany 32768"), "{lines:?}");
}

/// Many nodes die at once, and each other node is notified of each.
#[test]
fn the_nodes_of_a_large_round_are_notified_in_turns() {
    const NODES: u32 = 300;
    let mut rig = Rig::new(ServerLimits { work_per_input_max: 200, ..ServerLimits::default() });
    let enter = |rig: &mut Rig, index: u32| {
        let (conn, name) = (rig.open(index, &index.to_string()), index.to_string());
        let ClientFrame::Join { entry } = join(&name) else { unreachable!("it is a Join") };
        let terms = Terms { nodes_min: NODES, nodes_max: NODES, continue_min: 2, ..entry.terms };
        rig.ask(conn, 1, &ClientFrame::Join { entry: Entry { terms, ..entry } });
        conn
    };
    let nodes: Vec<ConnId> = (0..NODES).map(|index| enter(&mut rig, index)).collect();
    let last = nodes[nodes.len() - 1];
    assert!(rig.server.work() < 1000, "{} units for the last Join", rig.server.work());
    assert!(rig.finish() >= 7, "of the begin of the round");
    for &conn in &nodes {
        assert_eq!(rig.lines(conn).iter().filter(|line| line.contains("Round 0 rank=")).count(), 1);
    }
    for &conn in &nodes[..10] {
        rig.feed(Input::Lost { conn, os_error: 104 });
        assert!(rig.server.work() < 1000, "{} units for a death", rig.server.work());
    }
    let deaths: Vec<String> =
        (0..10).map(|rank| format!("1 PeerDied {rank} rank={rank} round=0: the connection ended")).collect();
    // What concerns a node comes before the answer to its next request.
    rig.ask(last, 2, &ClientFrame::Leave { run_id: key("run") });
    assert!(rig.has_work(), "the others are still to be notified");
    assert_eq!(rig.lines(last), [&deaths[..], &["2 Done".into()]].concat());
    assert!(rig.finish() >= 50, "for 3,000 notifications");
    for &conn in &nodes[10..nodes.len() - 1] {
        assert_eq!(rig.lines(conn), deaths);
    }
}

/// The graces of many nodes end at one instant, and each end concerns all others.
#[test]
fn the_sessions_of_a_large_round_end_in_turns() {
    const NODES: u32 = 300;
    let mut rig = Rig::new(ServerLimits { work_per_input_max: 200, ..ServerLimits::default() });
    for index in 0..NODES {
        let (conn, name) = (rig.connect(index), index.to_string());
        rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 1000, &name)));
        let ClientFrame::Join { entry } = join(&name) else { unreachable!("it is a Join") };
        let terms = Terms { nodes_min: NODES, nodes_max: NODES, continue_min: 1, ..entry.terms };
        rig.ask(conn, 1, &ClientFrame::Join { entry: Entry { terms, ..entry } });
    }
    rig.finish_at_once();
    for index in 0..NODES {
        rig.feed(Input::Lost { conn: ConnId { index, generation: 0 }, os_error: 104 });
    }
    let ended =
        |rig: &Rig| rig.events.iter().filter(|event| matches!(event, Event::SessionEnded { .. })).count();
    rig.now = rig.now + Duration::from_secs(1);
    rig.feed(Input::Tick);
    assert!((1..10).contains(&ended(&rig)), "{} in the first turn", ended(&rig));
    while rig.server.poll_timeout().is_some_and(|at| at <= rig.now) {
        rig.feed(Input::Tick);
        let work = rig.server.work();
        assert!(work < 2000, "a turn of {work}");
    }
    assert_eq!(ended(&rig), NODES as usize);
}
