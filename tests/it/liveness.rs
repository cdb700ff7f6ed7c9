//! What happens to processes and hosts of a run, and what the others hear of it: real processes, sockets and network
//! namespaces. Whoever dies, hangs or falls silent is named with the reason; nobody waits in vain.

mod bytes;
mod node;
mod silent_host;

use crate::net::{Client, Deadline, until};
use crate::rdzv::RdzvServer;
use node::{Node, meet};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::limits::{HistoryLimits, ServerLimits};
use rendezvous_core::node::server::{CloseReason, Event};
use rendezvous_core::time::Duration;
use rendezvous_tests::frames;
use std::sync::mpsc;

const THREE: [&str; 2] = ["nodes_min=3", "nodes_max=3"];
/// Three to begin with; two may go on.
const THREE_OR_TWO: [&str; 3] = ["nodes_min=3", "nodes_max=3", "continue_min=2"];
const CONNECTION: &str = "the connection ended";
const TOO_FEW: &str = "round 0 is over: fewer nodes are left than it needs to go on";

fn died(name: &str, rank: u32, round: u32, why: &str) -> String {
    format!("node {name} (rank {rank} of round {round}) died: {why}")
}

/// A server that tells what happens to it.
fn watched(limits: ServerLimits) -> (Server, mpsc::Receiver<Event>) {
    let (notify, reported) = mpsc::channel();
    let observer = Box::new(move |event: &Event| drop(notify.send(event.clone())));
    let options = ServerOptions { limits, observer, ..ServerOptions::on("127.0.0.1", 0) };
    (Server::start(options).expect("a free port"), reported)
}

/// Waits until the server tells of something, and returns what was wanted of it.
#[track_caller]
fn hears<T>(reported: &mpsc::Receiver<Event>, wanted: impl Fn(&Event) -> Option<T>) -> T {
    loop {
        let event = reported.recv_timeout(crate::net::TIMEOUT).expect("it happens in time");
        if let Some(found) = wanted(&event) {
            return found;
        }
    }
}

/// How the next connection ended.
fn next_close(reported: &mpsc::Receiver<Event>) -> CloseReason {
    hears(reported, |event| match event {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

#[test]
fn a_killed_process_ends_a_round_that_needs_it_and_its_heir_gets_its_rank() {
    let (server, reported) = watched(ServerLimits::default());
    let address = server.local_addr();
    let mut a = Node::start(address, "n0", &THREE);
    let mut b = Node::start(address, "n1", &THREE);
    let mut c = Node::start(address, "n2", &THREE);
    meet(&mut [&mut a, &mut b, &mut c], 0);
    // Nothing is unread, so its kernel says that it will send no more.
    b.kill();
    assert_eq!(next_close(&reported), CloseReason::PeerClosed);
    for node in [&mut a, &mut c] {
        node.says_next(&died("n1", 1, 0, CONNECTION));
        node.says_next(TOO_FEW);
    }
    let mut heir = Node::start(address, "n1", &THREE);
    meet(&mut [&mut a, &mut heir, &mut c], 1);
}

#[test]
fn a_process_that_dies_before_its_round_is_formed_leaves_its_seat_to_others() {
    let (server, reported) = watched(ServerLimits::default());
    let address = server.local_addr();
    // With a grace, it is dead when that is over.
    for grace in ["grace_ms=0", "grace_ms=500"] {
        let mut dead = Node::start(address, "n0", &[&THREE[..], &[grace]].concat());
        dead.reported("join");
        dead.says("seated");
        dead.kill();
        let why = hears(&reported, |event| match event {
            Event::SessionEnded { why, .. } => Some(*why),
            _ => None,
        });
        assert_eq!(why.to_string(), CONNECTION);
    }
    let mut nodes = ["n1", "n2", "n3"].map(|name| Node::start(address, name, &THREE));
    let [a, b, c] = &mut nodes;
    // Nobody waits for the dead, and nobody hears of them.
    meet(&mut [a, b, c], 0);
    assert_eq!(until(&server, |stats| stats.sessions == 3).connections, 3);
}

#[test]
fn a_process_that_is_killed_with_unread_bytes_has_died_just_the_same() {
    let (server, reported) = watched(ServerLimits::default());
    let address = server.local_addr();
    let mut a = Node::start(address, "n0", &THREE_OR_TWO);
    let mut b = Node::start(address, "n1", &THREE_OR_TWO);
    let mut c = Node::start(address, "n2", &THREE_OR_TWO);
    meet(&mut [&mut a, &mut b, &mut c], 0);
    b.reported("watch news/");
    b.says("watching");
    b.stop();
    a.reported("set news/1 unread");
    a.says("set done");
    b.leaves_bytes_unread();
    b.kill();
    // Its kernel throws away what it has not read, and says so: a reset.
    assert_eq!(next_close(&reported), CloseReason::Lost(libc::ECONNRESET));
    for node in [&mut a, &mut c] {
        node.says_next(&died("n1", 1, 0, CONNECTION));
    }
    // Two are enough to go on, so it is for them to decide. The first that comes back ends the round for the other.
    a.reported("join");
    c.says_next(TOO_FEW);
    c.reported("join");
    a.says("joined round 1 as 0/2");
    c.says("joined round 1 as 1/2");
}

#[test]
fn a_process_that_hangs_misses_heartbeats_and_may_come_back_when_it_wakes() {
    let server = RdzvServer::start();
    let brief = [&THREE[..], &["heartbeat_ms=300", "heartbeats_missed_max=10"]].concat();
    let mut a = Node::start(server.address(), "n0", &THREE);
    let mut b = Node::start(server.address(), "n1", &brief);
    let mut c = Node::start(server.address(), "n2", &THREE);
    meet(&mut [&mut a, &mut b, &mut c], 0);
    b.stop();
    for node in [&mut a, &mut c] {
        node.says_next(&died("n1", 1, 0, "heartbeats were missed"));
        node.says_next(TOO_FEW);
    }
    // The survivors ask at once; the round waits for a third.
    a.reported("join");
    c.reported("join");
    b.signal(libc::SIGCONT);
    let over = b.says("session failed");
    assert!(over.starts_with("session failed: SessionEnded"), "{over}");
    assert!(over.ends_with("the server ended the session: heartbeats were missed"), "{over}");
    // Nothing of the old session does anything any more, and it is clear why.
    b.reported("join");
    let refused = b.says("join failed");
    assert!(refused.contains("SessionEnded") && refused.ends_with("heartbeats were missed"), "{refused}");
    b.reported("open");
    b.says("open");
    b.reported("join");
    a.says("joined round 1 as 0/3");
    b.says("joined round 1 as 1/3");
    c.says("joined round 1 as 2/3");
}

#[test]
fn a_server_that_is_told_to_stop_tells_every_node() {
    let stopped = "the server ended the session: the server stopped";
    for is_live in [false, true] {
        let server = RdzvServer::start();
        let peer = server.address().to_string();
        // A grace is of no use to those whose server says that it stops.
        let settings = [&THREE[..], &["grace_ms=30000"]].concat();
        let mut nodes = ["n0", "n1", "n2"].map(|name| Node::start(server.address(), name, &settings));
        let [a, b, c] = &mut nodes;
        if is_live {
            meet(&mut [a, b, c], 0);
        } else {
            for node in [&mut *a, b] {
                node.reported("join");
                node.says("seated");
            }
        }
        let ended = server.end_with(libc::SIGTERM);
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        for (node, is_waiting) in [(a, !is_live), (b, !is_live), (c, false)] {
            let over = node.has_said("session failed: ServerGone");
            assert!(over.contains(&peer) && over.ends_with(stopped), "{over}");
            // Who waited for a round was told the same; who asks now is told it, too.
            if !is_waiting {
                node.reported("join");
            }
            let refused = node.has_said("join failed: ServerGone");
            assert!(refused.contains(&peer) && refused.ends_with(stopped), "{refused}");
        }
    }
}

#[test]
fn a_killed_server_is_named_to_those_whose_connection_it_was() {
    let server = RdzvServer::start();
    let peer = server.address().to_string();
    let mut a = Node::start(server.address(), "n0", &THREE);
    let mut b = Node::start(server.address(), "n1", &THREE);
    b.reported("get never");
    a.reported("join");
    a.says("seated");
    server.end_with(libc::SIGKILL);
    for (node, what) in [(&mut a, "join"), (&mut b, "get")] {
        let failed = node.says(&format!("{what} failed: ServerGone"));
        assert!(failed.contains(&peer), "{failed}");
        assert!(failed.contains("lost its server") && failed.contains("while waiting"), "{failed}");
        let over = node.has_said("session failed: ServerGone");
        assert!(over.contains(&peer), "{over}");
    }
}

#[test]
fn a_server_that_was_started_anew_does_not_know_the_sessions_of_the_one_before() {
    let server = RdzvServer::start();
    let address = server.address();
    let settings = [&THREE[..], &["grace_ms=30000"]].concat();
    let mut nodes = ["n0", "n1", "n2"].map(|name| Node::start(address, name, &settings));
    let [a, b, c] = &mut nodes;
    meet(&mut [a, b, c], 0);
    a.reported("get never");
    server.end_with(libc::SIGKILL);
    let server = RdzvServer::with(&["--bind", &address.to_string()], None);
    let unknown = "the server does not know the session";
    let failed = a.says("get failed: SessionEnded");
    assert!(failed.contains(unknown), "{failed}");
    for node in [a, b, c] {
        let over = node.has_said("session failed: SessionEnded");
        assert!(over.contains(&address.to_string()) && over.ends_with(unknown), "{over}");
        node.reported("open");
        node.says("open");
    }
    // The new server counts from the beginning: it is another store.
    let [a, b, c] = &mut nodes;
    meet(&mut [a, b, c], 0);
    assert!(server.end_with(libc::SIGTERM).status.success());
}

const FLOOD_VALUE_BYTES: usize = 64 * 1024;

#[test]
fn who_reads_nothing_of_a_flood_is_ended_for_it_and_costs_the_others_nothing() {
    let history = HistoryLimits { changes_max: 64, ..HistoryLimits::default() };
    let unsent_bytes_high = 256 * 1024;
    let stall_timeout = Duration::from_secs(2);
    let limits = ServerLimits { unsent_bytes_high, stall_timeout, history, ..ServerLimits::default() };
    let (server, reported) = watched(limits);
    let address = server.local_addr();
    // It is not missed for any other reason.
    let patient = [&THREE_OR_TWO[..], &["heartbeat_ms=3600000"]].concat();
    let mut a = Node::start(address, "n0", &THREE_OR_TWO);
    let mut b = Node::start(address, "n1", &patient);
    let mut c = Node::start(address, "n2", &THREE_OR_TWO);
    meet(&mut [&mut a, &mut b, &mut c], 0);
    b.reported("watch flood/");
    b.says("watching");
    c.reported("watch calm/");
    c.says("watching");
    b.stop();
    let (mut flooder, mut neighbour) = (Client::greet(address), Client::greet(address));
    let flood = frames::set(b"/flood/key", &[7; FLOOD_VALUE_BYTES]);
    let deadline = Deadline::new();
    let (mut most_bytes, mut is_ended) = (0, false);
    // Until its buffers are full and the server's patience is over, and then some.
    while !is_ended {
        flooder.send(&flood);
        flooder.is_served();
        neighbour.is_served();
        most_bytes = most_bytes.max(server.stats().expect("it runs").buffered_bytes);
        is_ended = reported
            .try_iter()
            .any(|event| matches!(event, Event::Closed { reason: CloseReason::StallTimeout, .. }));
        assert!(!deadline.has_passed(), "the stalled reader is still there");
    }
    let bound = 2 * (unsent_bytes_high + 256 * 1024 + FLOOD_VALUE_BYTES);
    assert!(most_bytes <= bound as u64, "{most_bytes} bytes were buffered, {bound} may be");
    for node in [&mut a, &mut c] {
        node.says_next(&died("n1", 1, 0, "it stopped reading"));
    }
    a.reported("set calm/1 x");
    a.says("set done");
    c.says_next("changed calm/1");
    let stats = until(&server, |stats| stats.sessions == 2);
    assert_eq!((stats.connections, stats.expelled), (4, 1));
    b.signal(libc::SIGCONT);
    // It reads what had come before, and the end behind it.
    let over = b.says("session failed");
    assert!(over.starts_with("session failed: ServerGone"), "{over}");
}

#[test]
fn workers_of_a_dead_round_read_its_keys_and_write_them_no_more() {
    let (server, reported) = watched(ServerLimits::default());
    let address = server.local_addr();
    let mut a = Node::start(address, "n0", &["nodes_min=2", "nodes_max=2"]);
    let mut b = Node::start(address, "n1", &["nodes_min=2", "nodes_max=2"]);
    let prefix = meet(&mut [&mut a, &mut b], 0);
    let first = format!("{prefix}k").into_bytes();
    let mut worker = Client::greet(address);
    worker.send(&frames::set(&first, b"of round 0"));
    worker.is_served();
    b.kill();
    a.says_next(&died("n1", 1, 0, CONNECTION));
    a.says_next(TOO_FEW);
    hears(&reported, |event| matches!(event, Event::Closed { .. }).then_some(()));
    let stale = [
        frames::set(&first, b"late"),
        frames::add(&first, 1),
        frames::push(&first, b"late"),
        frames::set(format!("{prefix}new").as_bytes(), b"late"),
    ];
    for (write, count) in stale.iter().zip(1..) {
        let mut orphan = Client::greet(address);
        orphan.send(write);
        assert!(orphan.rest().is_empty(), "c10d has no words for it: the connection ends");
        let reason = next_close(&reported).to_string();
        assert!(reason.starts_with("request refused: round 0 is over"), "{reason}");
        assert_eq!(until(&server, |stats| stats.connections == 2).stale_writes, count);
    }
    // Reading goes on, also on a connection of before.
    worker.send(&frames::get(&first));
    assert_eq!(worker.receive(8 + 10), frames::string(b"of round 0"));
    // Keys of a node stand beneath a slash.
    a.reported(&format!("set {}k late", &prefix[1..]));
    let refused = a.says("set failed");
    assert!(refused.starts_with("set failed: StaleRound"), "{refused}");
    let mut heir = Node::start(address, "n1", &["nodes_min=2", "nodes_max=2"]);
    let prefix = meet(&mut [&mut a, &mut heir], 1);
    let second = format!("{prefix}k").into_bytes();
    worker.send(&frames::set(&second, b"of round 1"));
    worker.send(&frames::get(&second));
    assert_eq!(worker.receive(8 + 10), frames::string(b"of round 1"));
    a.reported(&format!("get {}k", &prefix[1..]));
    a.says_next(&format!("got {}k = of round 1", &prefix[1..]));
}
