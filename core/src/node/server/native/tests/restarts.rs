//! Clients that have met an earlier start of the server.

use super::*;
use crate::node::server::Server;

#[test]
fn a_revision_of_an_earlier_server_means_nothing_to_the_next() {
    let mut revisions = Vec::new();
    for first_revision in [1_000, 2_000] {
        let mut rig = rig();
        let instance = ServerInstance { first_revision, ..ServerInstance::from_seed(first_revision) };
        rig.server = Server::new(ServerLimits::default(), instance);
        let conn = rig.open(0, "n");
        assert_eq!(rig.wanted(conn, 1, &ClientFrame::Set { key: key("/k"), value: b"v" }), ["1 Done"]);
        revisions.extend(rig.server.engine.revision_of(b"/k"));
        // The test of the first server's revision, at each of them.
        let compares = [Compare { key: key("/k"), condition: Condition::Revision(revisions[0]) }];
        let txn = ClientFrame::Txn {
            compares: List::new(&compares),
            then: List::new(&[]),
            otherwise: List::new(&[]),
        };
        let holds = format!("2 Outcome {}", revisions.len() == 1);
        assert_eq!(rig.wanted(conn, 2, &txn), [holds]);
        let watch = ClientFrame::WatchKey { key: key("/k"), from_revision: revisions[0] };
        let answer = if revisions.len() == 1 { "3 Done" } else { "3 Error Compacted 2001 0 " };
        assert_eq!(rig.wanted(conn, 3, &watch)[0], answer);
    }
    assert_eq!(revisions, [1_001, 2_001]);
}

#[test]
fn a_watch_from_a_revision_that_the_store_has_not_reached_is_refused() {
    let mut rig = rig();
    let conn = rig.open(0, "n");
    for id in 1..=3 {
        rig.ask(conn, id, &ClientFrame::Add { key: key("/k"), delta: 1 });
    }
    rig.lines(conn);
    let watch_key = |from_revision| ClientFrame::WatchKey { key: key("/k"), from_revision };
    let watch_prefix = |from_revision| ClientFrame::WatchPrefix { prefix: key("/"), from_revision };
    assert_eq!(rig.wanted(conn, 4, &watch_key(5000)), ["4 Error Compacted 1 3 "]);
    assert_eq!(rig.wanted(conn, 5, &watch_prefix(5)), ["5 Error Compacted 1 3 "]);
    assert_eq!(rig.wanted(conn, 6, &watch_key(4)), ["6 Done"], "the next one may be watched");
}

/// Freezes clients of round 0, restarts the server, and forms round 0 of the same run there.
#[test]
fn a_client_that_slept_through_a_restart_writes_nothing_into_the_round_that_replaced_its_own() {
    let mut rigs = [1, 2].map(|seed| {
        let mut rig = rig();
        rig.server = Server::new(ServerLimits::default(), ServerInstance::from_seed(seed));
        let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
        rig.ask(a, 1, &join("a"));
        rig.ask(b, 1, &join("b"));
        let formed = rig.lines(a).pop().expect("a round");
        assert!(formed.starts_with("1 Round 0 "), "{formed}");
        let (_, namespace) = formed.rsplit_once(' ').expect("the prefix of its keys");
        (rig, namespace.to_string())
    });
    let [(_, slept), (rig, current)] = &mut rigs;
    assert_ne!(slept, current);
    let (old, new) = (format!("{slept}/leader"), format!("{current}/leader"));
    // A worker reconnects: c10d knows no restart.
    let worker = rig.greeted(2);
    rig.send(worker, &crate::node::server::tests::set(old.as_bytes(), b"stale"));
    // Its agent's session is refused, so that only a session that is new there can write.
    let resumed = rig.connect(3);
    let incarnation = ServerInstance::from_seed(1).incarnation;
    rig.send(resumed, &opening(0, &hello(1, incarnation, [0; 16], 0, "a")));
    assert_eq!(rig.lines(resumed), ["0 Error SessionEnded 0 0 "]);
    let fresh = rig.open(4, "c");
    assert_eq!(rig.wanted(fresh, 1, &ClientFrame::Add { key: key(&old), delta: 1 }).len(), 1);
    let read = ClientFrame::Get { timeout_ms: 0, key: key(&new) };
    assert_eq!(rig.wanted(fresh, 2, &read), ["2 Error NotFound 0 0 "]);
}
