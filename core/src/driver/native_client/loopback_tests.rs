//! Tests with a real server, over loopback sockets.

use super::tests::{entry, options, terms};
use super::*;
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store::Store;
use crate::driver::store_client::StoreOptions;
use crate::driver::timeout::Timeout;
use crate::rendezvous::participant::{Entry, Role};
use crate::rendezvous::round_event::RoundEvent;
use crate::store::engine::PrefixRemoved;
use crate::store::op::Keys;
use crate::wire::native::{LastCall, Participants, Terms, Why};
use alloc::format;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

const SOON: Duration = Duration::from_secs(20);
const WHILE: Timeout = Timeout::After(SOON);
const NOW: Timeout = Timeout::Once;

pub(super) fn server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server")
}

/// Requests with the kind of response that each has.
impl NativeClient {
    pub(in crate::driver) fn delete_prefix(
        &self,
        prefix: &[u8],
        timeout: Timeout,
    ) -> Result<PrefixRemoved, NativeError> {
        match self.request(&NativeRequest::DeletePrefix { prefix }, timeout)? {
            NativeResponse::Removed(removed) => Ok(removed),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::driver) fn batch(
        &self,
        batch: &Batch,
        timeout: Timeout,
    ) -> Result<Vec<BatchAnswer>, NativeError> {
        match self.request(&NativeRequest::Batch(batch), timeout)? {
            NativeResponse::Batch(answers) => Ok(answers),
            other => panic!("{other:?}"),
        }
    }

    fn barrier(
        &self,
        key: &[u8],
        generation: u64,
        name: &[u8],
        participants: Participants<'_>,
        timeout: Timeout,
    ) -> Result<BarrierResult, NativeError> {
        match self.request(&NativeRequest::Barrier { key, generation, name, participants }, timeout)? {
            NativeResponse::Barrier(result) => Ok(result),
            other => panic!("{other:?}"),
        }
    }

    fn barrier_cancel(&self, key: &[u8], name: &[u8], timeout: Timeout) -> Result<bool, NativeError> {
        match self.request(&NativeRequest::BarrierCancel { key, name }, timeout)? {
            NativeResponse::Outcome(has_waited) => Ok(has_waited),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&self, run_id: &[u8], timeout: Duration) -> Result<(), NativeError> {
        self.request_within(&NativeRequest::Leave { run_id }, timeout).map(drop)
    }

    /// Ends the calls of this handle and its clones.
    pub(super) fn cancel(&self) {
        self.canceller.cancel();
    }

    pub(super) fn renew(&self, lease: &Lease, timeout: Timeout) -> Result<(), NativeError> {
        self.request(&NativeRequest::LeaseRenew { lease: lease.number() }, timeout).map(drop)
    }

    fn revoke(&self, lease: &Lease, timeout: Timeout) -> Result<i64, NativeError> {
        match self.request(&NativeRequest::LeaseRevoke { lease: lease.number() }, timeout)? {
            NativeResponse::Number(removed) => Ok(removed),
            other => panic!("{other:?}"),
        }
    }
}

fn session_of(port: u16, node: &str, grace: Duration) -> NativeClient {
    let options = NativeClientOptions { node: node.into(), ..options(grace) };
    NativeClient::connect("127.0.0.1", port, options).expect("connected")
}

pub(super) fn session(server: &Server, node: &str) -> NativeClient {
    session_of(server.local_addr().port(), node, Duration::ZERO)
}

pub(in crate::driver) fn nodes(nodes_min: u32, nodes_max: u32) -> Terms<'static> {
    Terms { nodes_min, nodes_max, ..terms() }
}

pub(in crate::driver) fn as_node<'a>(node: &'a str, terms: Terms<'a>) -> Entry<'a> {
    Entry { node: node.as_bytes(), address: node.as_bytes(), terms, ..entry() }
}

/// Joins with all sessions at once and returns them in the order of their ranks.
fn join_all(
    clients: Vec<(String, NativeClient)>,
    terms: Terms<'static>,
) -> Vec<(String, NativeClient, Joined)> {
    let threads = clients.into_iter().map(|(name, client)| {
        thread::spawn(move || {
            let joined = client.join(&as_node(&name, terms), Role::Member).expect("a round");
            (name, client, joined)
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut all: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    all.sort_by_key(|(_, _, joined)| joined.node_rank);
    all
}

fn clients(server: &Server, count: u32) -> Vec<(String, NativeClient)> {
    (0..count).map(|index| (format!("n{index}"), session(server, &format!("n{index}")))).collect()
}

/// Returns the next event of a node's round.
fn next_round_event(client: &NativeClient) -> RoundEvent {
    loop {
        match client.next_event(SOON).expect("alive").expect("something happens") {
            NodeEvent::Round(event) => return event,
            NodeEvent::Seated | NodeEvent::Standby { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nodes_become_a_numbered_group() {
    for count in [2, 3, 8] {
        let server = server();
        let all = join_all(clients(&server, count), nodes(count, count));
        for (rank, (name, client, joined)) in (0..).zip(&all) {
            assert_eq!((joined.round, joined.node_rank, joined.nodes), (0, rank, count));
            assert_eq!((joined.rank_first, joined.world_size), (2 * u64::from(rank), 2 * u64::from(count)));
            assert_eq!(&*joined.leader, all[0].0.as_bytes());
            let namespace = String::from_utf8_lossy(&joined.namespace);
            assert!(
                namespace.starts_with("/torch.rendezvous.run.") && namespace.ends_with(".0/"),
                "{namespace}"
            );
            assert_eq!(joined.namespace, all[0].2.namespace);
            let members = client.members(b"run", 0, (rank, 1), SOON).expect("known");
            assert_eq!((&*members[0].node, members[0].local_world_size), (name.as_str(), 2));
            let info = client.run_info(b"run", SOON).expect("known");
            assert_eq!((info.complete, info.closed, info.nodes, info.nodes_waiting), (true, false, count, 0));
        }
        let error = all[0].1.members(b"run", 7, (0, 1), SOON).expect_err("no such round");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_death_is_told_at_once_and_the_survivors_meet_again() {
    let server = server();
    let terms = Terms { continue_min: 1, ..nodes(3, 3) };
    let mut all = join_all(clients(&server, 3), terms);
    let (dead, client, former) = all.remove(1);
    // As if its process had died: the connection closes without a goodbye.
    drop(client);
    for (_, client, _) in &all {
        let died =
            RoundEvent::PeerDied { round: 0, node_rank: 1, node: dead.clone().into(), why: Why::Connection };
        assert_eq!(next_round_event(client), died);
    }
    let survivors = all.into_iter().map(|(name, client, _)| (name, client)).collect();
    let all = join_all(survivors, terms);
    let ranks: Vec<_> =
        all.iter().map(|(name, _, joined)| (name.as_str(), joined.round, joined.nodes)).collect();
    assert_eq!(ranks, [("n0", 1, 2), ("n2", 1, 2)]);
    // The keys of the previous round are fenced, over either protocol.
    let store = Store::over(Arc::new(all[0].1.clone()));
    let scoped = |namespace: &[u8]| store.with_prefix(&namespace[1..namespace.len() - 1]);
    let error = scoped(&former.namespace).set(b"k", b"v", NOW).expect_err("it is over");
    assert_eq!(error.kind(), ErrorKind::StaleRound, "{error}");
    scoped(&all[0].2.namespace).set(b"k", b"v", NOW).expect("it is live");
}

#[test]
fn a_newcomer_is_told_of_and_a_run_that_is_closed_stays_closed() {
    let server = server();
    let terms = Terms { last_call: LastCall::Off, ..nodes(2, 3) };
    let all = join_all(clients(&server, 2), terms);
    let late = session(&server, "late");
    thread::scope(|scope| {
        let joining = scope.spawn(|| late.join(&as_node("late", terms), Role::Member));
        for (_, client, _) in &all {
            assert_eq!(next_round_event(client), RoundEvent::NodesWaiting { nodes: 1 });
        }
        assert_eq!(all[0].1.run_info(b"run", SOON).expect("known").nodes_waiting, 1);
        all[0].1.close_run(b"run", SOON).expect("closed");
        let error = joining.join().expect("no panic").expect_err("closed");
        assert_eq!(
            (error.kind(), error.fault().map(|fault| fault.code)),
            (ErrorKind::Closed, Some(FaultCode::RunClosed))
        );
        assert!(error.to_string().contains("'run' is closed (by node n0)"), "{error}");
    });
    let by = RoundEvent::RunClosed { by: "n0".into() };
    let hears_of_it = |client: &NativeClient| {
        core::iter::from_fn(|| Some(next_round_event(client))).any(|event| event == by)
    };
    assert!(hears_of_it(&all[1].1));
    let again = session(&server, "again").join(&as_node("again", terms), Role::Member).expect_err("for good");
    assert_eq!(again.kind(), ErrorKind::Closed);
    assert!(all[0].1.run_info(b"run", SOON).expect("known").closed);
}

#[test]
fn a_spare_slips_in_or_is_sent_home_and_a_left_node_is_no_loss() {
    let server = server();
    let terms = nodes(2, 2);
    let all = join_all(clients(&server, 2), terms);
    let spare = session(&server, "spare");
    // While the node is a spare, no timeout runs.
    let entry = Entry { join_timeout_ms: 1, ..as_node("spare", terms) };
    thread::scope(|scope| {
        let joining = scope.spawn(|| spare.join(&entry, Role::Spare));
        assert_eq!(spare.next_event(SOON).expect("alive"), Some(NodeEvent::Standby { ahead: 0 }));
        let (_, dead, _) = &all[1];
        dead.close(SOON).expect("confirmed");
        // It left, so no event is sent. The round goes on until the other one joins again.
        assert_eq!(
            all[0]
                .1
                .next_event(Duration::from_millis(50))
                .ok()
                .flatten()
                .filter(|event| *event != NodeEvent::Seated),
            None
        );
        let joined = all[0].1.join(&as_node("n0", terms), Role::Member).expect("with the spare");
        assert_eq!((joined.round, joined.nodes, joined.node_rank), (1, 2, 0));
        let slipped = joining.join().expect("no panic").expect("a seat");
        assert_eq!((slipped.round, slipped.node_rank), (1, 1));
    });
    let idle = session(&server, "idle");
    thread::scope(|scope| {
        let joining = scope.spawn(|| idle.join(&as_node("idle", terms), Role::Spare));
        assert_eq!(idle.next_event(SOON).expect("alive"), Some(NodeEvent::Standby { ahead: 0 }));
        spare.close_run(b"run", SOON).expect("closed");
        let error = joining.join().expect("no panic").expect_err("not needed");
        assert_eq!(error.fault().map(|fault| fault.code), Some(FaultCode::NotNeeded));
    });
}

#[test]
fn a_join_that_is_not_complete_in_time_names_who_was_there() {
    let server = server();
    let client = session(&server, "n0");
    let entry = Entry { join_timeout_ms: 30, ..as_node("n0", nodes(2, 2)) };
    let error = client.join(&entry, Role::Member).expect_err("alone");
    assert_eq!(
        (error.kind(), error.fault().map(|fault| fault.code)),
        (ErrorKind::TimedOut, Some(FaultCode::TimedOut))
    );
    assert!(error.to_string().contains("1 of at least 2 nodes were there (n0)"), "{error}");
    // It is in no run again, and may join once more; another thread may cancel that.
    while client.next_event(Duration::ZERO).expect("alive").is_some() {}
    thread::scope(|scope| {
        let joining = scope.spawn(|| client.join(&as_node("n0", nodes(2, 2)), Role::Member));
        while client.next_event(SOON).expect("alive") != Some(NodeEvent::Seated) {}
        client.cancel();
        let error = joining.join().expect("no panic").expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    // The slot is free again for two others.
    join_all(
        Vec::from([("a".to_string(), session(&server, "a")), ("b".to_string(), session(&server, "b"))]),
        nodes(2, 2),
    );
}

#[test]
fn keys_that_are_too_long_together_are_refused_before_they_are_sent() {
    let server = server();
    let client = session(&server, "n0");
    let key = [b'k'; 8000];
    let keys = [&key[..]; 1100];
    let mut batch = Batch::default();
    keys.iter().for_each(|key| batch.push(key, BatchStep::Check));
    for request in [
        NativeRequest::Read { keys: &keys },
        NativeRequest::LeaseAttach { lease: 1, keys: &keys },
        NativeRequest::Batch(&batch),
    ] {
        let before = server.stats().expect("it runs").requests;
        let error = client.request(&request, WHILE).expect_err("refused");
        assert_eq!((error.kind(), error.call().phase()), (ErrorKind::LimitExceeded, Phase::Sending));
        assert!(error.to_string().contains("bytes together are over the limit of 8388608"), "{error}");
        assert_eq!(server.stats().expect("it runs").requests, before);
    }
    assert!(client.request(&NativeRequest::Read { keys: &keys[..1000] }, NOW).is_ok());
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let server = server();
    let nodes = |least, most| Terms { last_call: LastCall::Off, ..nodes(least, most) };
    let begun = session(&server, "n0");
    let waiting = begun.clone();
    let joining = thread::spawn(move || waiting.join(&as_node("n0", nodes(2, 4)), Role::Member));
    while begun.next_event(SOON).expect("alive") != Some(NodeEvent::Seated) {}
    let other = session(&server, "n1");
    let bad = |entry: Entry<'_>| {
        let error = other.join(&entry, Role::Member).expect_err("refused");
        (error.kind(), error.call().to_string())
    };
    for (entry, kind, message) in [
        (as_node("n1", nodes(3, 2)), ErrorKind::InvalidArgument, "(2) must be greater than or equal to"),
        (as_node("n1", nodes(0, 2)), ErrorKind::InvalidArgument, "(0) must be greater than zero"),
        (
            Entry { run_id: b"", ..as_node("n1", nodes(1, 2)) },
            ErrorKind::InvalidArgument,
            "must be a non-empty string",
        ),
        (as_node("", nodes(2, 4)), ErrorKind::InvalidArgument, "name of a node must be a non-empty string"),
        (
            Entry { local_world_size: 0, ..as_node("n1", nodes(2, 4)) },
            ErrorKind::InvalidArgument,
            "number of local workers",
        ),
        (
            as_node("n1", nodes(2, 5)),
            ErrorKind::Conflict,
            "node n1 has min:max nodes 2:5, but the run 'run' was begun by node n0 with 2:4",
        ),
    ] {
        let (found, text) = bad(entry);
        assert!(found == kind && text.contains(message), "{found:?}: {text}");
    }
    // The same name again: the later session takes the slot, and the earlier one is notified.
    let twin = session(&server, "n0");
    let replacing = thread::spawn(move || twin.join(&as_node("n0", nodes(2, 4)), Role::Member));
    let error = joining.join().expect("no panic").expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
    let mut reported = Vec::new();
    while let Some(event) = begun.next_event(SOON).expect("alive") {
        reported.push(event);
        if matches!(reported.last(), Some(NodeEvent::Replaced { .. })) {
            break;
        }
    }
    let error = begun.join(&as_node("n0", nodes(2, 4)), Role::Member).expect_err("must not come back");
    assert_eq!(error.kind(), ErrorKind::Replaced, "{error}");
    let joined = other.join(&as_node("n1", nodes(2, 4)), Role::Member).expect("a round");
    assert_eq!((joined.nodes, joined.node_rank), (2, 1));
    let joined = replacing.join().expect("no panic").expect("a round");
    assert_eq!((joined.nodes, joined.node_rank), (2, 0));
}

/// Connection to the server that can be cut.
pub(in crate::driver) struct Cut {
    pub(in crate::driver) address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    cuts: mpsc::Receiver<TcpStream>,
}

impl Cut {
    pub(in crate::driver) fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let target = Arc::new(Mutex::new(server.local_addr()));
        let shared = Arc::clone(&target);
        let (notify, cuts) = mpsc::channel();
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let target = *shared.lock().expect("no panic");
                let Ok(far) = TcpStream::connect(target) else { return };
                for (mut from, mut to) in [
                    (near.try_clone().expect("a twin"), far.try_clone().expect("a twin")),
                    (far, near.try_clone().expect("a twin")),
                ] {
                    thread::spawn(move || {
                        let mut buffer = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        to.shutdown(Shutdown::Both).ok();
                        from.shutdown(Shutdown::Both).ok();
                    });
                }
                if notify.send(near).is_err() {
                    return;
                }
            }
        });
        Self { address, target, cuts }
    }

    /// Cuts the latest connection.
    pub(in crate::driver) fn cut(&self) {
        let line = self.cuts.recv_timeout(SOON).expect("a connection");
        line.shutdown(Shutdown::Both).ok();
    }
}

#[test]
fn a_watch_from_a_revision_that_the_server_has_not_reached_says_so() {
    let server = server();
    let client = session_of(server.local_addr().port(), "n0", SOON);
    let Err(error) = client.watch_key(b"k", 1 << 62, WHILE) else { panic!("it waits for that revision") };
    assert_eq!(error.kind(), ErrorKind::Compacted);
    assert!(error.oldest_revision().is_some_and(|oldest| oldest < 1 << 62));
    assert!(error.to_string().contains("the server may have been restarted"), "{error}");
}

#[test]
fn a_restarted_server_uses_no_revision_of_the_one_before() {
    let start = || {
        let server = server();
        let client = session_of(server.local_addr().port(), "n0", SOON);
        assert_eq!(client.incarnation(), Some(server.incarnation()));
        Store::over(Arc::new(client.clone())).set(b"k", b"v", WHILE).expect("set");
        let watch = client.watch_key(b"k", 0, WHILE).expect("begun");
        (watch.revision(), server.incarnation())
    };
    let ((before, first), (after, second)) = (start(), start());
    assert_ne!(first, second);
    assert!(before > 0 && after > before + 1_000, "{before} and {after}");
}

#[test]
fn within_the_grace_a_broken_connection_costs_nothing() {
    let server = server();
    let cut = Cut::before(&server);
    let client = session_of(cut.address.port(), "n0", SOON);
    let store = Store::over(Arc::new(client.clone()));
    let watch = client.watch_key(b"n", 0, WHILE).expect("begun");
    let lease = client.lease(Duration::ZERO, WHILE).expect("granted");
    lease.attach(&[b"mine"], WHILE).expect("attached");
    store.set(b"mine", b"1", WHILE).expect("set");
    for poll in 1..=5 {
        thread::scope(|scope| {
            let adding = scope.spawn(|| (0..20).try_for_each(|_| store.add(b"n", 1, WHILE).map(drop)));
            cut.cut();
            adding.join().expect("no panic").expect("each comes through");
        });
        assert_eq!(store.add(b"n", 0, WHILE).expect("a number"), poll * 20, "each counts once");
    }
    let mut last = Change { revision: 0, key: Vec::new(), value: None };
    for count in 1..=100 {
        let change = watch.next(SOON).expect("alive").expect("each change is reported");
        assert!(change.revision > last.revision);
        last = change;
        let reported = last.value.as_deref().and_then(|value| core::str::from_utf8(value).ok());
        // Adding 0 is a change, too, at the end of each iteration.
        assert!(reported.and_then(|text| text.parse::<i64>().ok()).is_some_and(|number| number <= count));
    }
    assert!(store.check(&[b"mine"], WHILE).expect("asked"), "the session lived on, and its lease with it");
    client.close(SOON).expect("confirmed");
    let other = session(&server, "n1");
    let other = Store::over(Arc::new(other.clone()));
    assert!(!other.check(&[b"mine"], WHILE).expect("asked"), "it ended, and its keys went");
}

#[test]
fn another_server_does_not_take_the_session_up() {
    let (server, another) = (server(), server());
    let cut = Cut::before(&server);
    let client = session_of(cut.address.port(), "n0", SOON);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.join(&as_node("n0", nodes(2, 2)), Role::Member));
        while client.next_event(SOON).expect("alive") != Some(NodeEvent::Seated) {}
        // As if the server had been restarted: it is unknown what became of the request.
        *cut.target.lock().expect("no panic") = another.local_addr();
        cut.cut();
        let error = waiting.join().expect("no panic").expect_err("the session is unknown");
        assert_eq!(
            (error.kind(), error.call().failure().effect),
            (ErrorKind::SessionEnded, Effect::Possible)
        );
        assert!(error.to_string().ends_with("the server does not know the session"), "{error}");
    });
}

#[test]
fn both_protocols_show_the_same_keys_with_the_same_meaning() {
    let server = server();
    let port = server.local_addr().port();
    let tcp = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
    let native = Store::connect_native("127.0.0.1", port, options(Duration::ZERO)).expect("connected");
    native.set(b"k", b"v", NOW).expect("set");
    assert_eq!(tcp.get_owned(b"k", NOW).expect("there"), b"v");
    for (one, other) in [(&tcp, &native), (&native, &tcp)] {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| one.get_owned(b"late", WHILE));
            let popping = scope.spawn(|| {
                let mut item = Vec::new();
                one.queue_pop(b"queue", &mut item, WHILE).map(|()| item)
            });
            other.set(b"late", b"here", WHILE).expect("set");
            other.queue_push(b"queue", b"item", WHILE).expect("pushed");
            assert_eq!(waiting.join().expect("no panic").expect("set"), b"here");
            assert_eq!(popping.join().expect("no panic").expect("pushed"), b"item");
        });
        let mut keys = one.list_keys(NOW).expect("listed");
        keys.sort();
        assert_eq!(keys, [b"k".to_vec(), b"late".to_vec()]);
        assert!(other.delete(b"late", NOW).expect("there"));
        thread::scope(|scope| {
            let meeting = scope.spawn(|| one.barrier_by_keys(b"barrier", 2, WHILE));
            other.barrier_by_keys(b"barrier", 2, WHILE).expect("both came");
            meeting.join().expect("no panic").expect("both came");
        });
        for key in [&b"barrier/num_members"[..], b"barrier/last_member"] {
            one.delete(key, NOW).expect("asked");
        }
    }
    let error =
        native.wait(&[b"k", b"x", b"y"], Timeout::After(Duration::from_millis(20))).expect_err("missing");
    assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, Cause::NotReleased));
    let text = error.to_string();
    assert!(text.starts_with("wait \"k\" and 2 more keys at "), "{text}");
    assert!(text.ends_with("not all of the keys were set: x, y"), "{text}");
    let error = native.add(b"k", 1, NOW).expect_err("no number");
    assert_eq!((error.kind(), error.cause()), (ErrorKind::InvalidArgument, Cause::NotANumber));
    assert_eq!(native.get_owned(b"x", NOW).expect_err("missing").kind(), ErrorKind::TimedOut);
}

#[test]
fn many_threads_share_a_session_and_a_wait_holds_up_nobody() {
    let server = server();
    let native =
        Store::connect_native("127.0.0.1", server.local_addr().port(), options(SOON)).expect("connected");
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..16).map(|_| scope.spawn(|| native.get_owned(b"gate", WHILE))).collect();
        let adding: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..50).try_for_each(|_| native.add(b"n", 1, WHILE).map(drop))))
            .collect();
        adding.into_iter().for_each(|adder| adder.join().expect("no panic").expect("added"));
        assert_eq!(native.add(b"n", 0, WHILE).expect("a number"), 400);
        native.set(b"gate", b"open", WHILE).expect("set");
        waiting.into_iter().for_each(|waiter| drop(waiter.join().expect("no panic").expect("set")));
    });
}

#[test]
fn handles_beneath_a_prefix_have_keys_revisions_and_a_default_timeout_of_their_own() {
    let server = server();
    let options = options(Duration::ZERO);
    let store = Store::connect_native("127.0.0.1", server.local_addr().port(), options).expect("connected");
    let scoped = store.with_prefix(b"job");
    scoped.set_timeout(Duration::from_millis(20));
    let whole = store.native(Operation::Watch).expect("native");
    let client = scoped.native(Operation::Watch).expect("native");
    let watch = client.watch_prefix(b"", 0, WHILE).expect("begun");
    let lease = client.lease(Duration::ZERO, WHILE).expect("granted");
    lease.attach(&[b"mine"], WHILE).expect("attached");
    let mut txn = Txn::default();
    txn.require(b"mine", Test::Revision(0));
    txn.push(Branch::Then, b"mine", Step::Set { value: b"v"[..].into() });
    let revision = client.commit(&txn, WHILE).expect("done").revision;
    store.set(b"other", b"o", WHILE).expect("set");
    scoped.set(b"two", b"2", WHILE).expect("set");
    let value = |value: &[u8], revision| Versioned { revision, value: value.to_vec() };
    let absent = Versioned::default();
    assert_eq!(whole.read(&[b"job/mine", b"mine"], NOW).expect("read"), [value(b"v", revision), absent]);
    assert_eq!(client.read(&[b"mine"], WHILE).expect("read"), [value(b"v", revision)]);
    assert_eq!(client.read(&[b"never"], Timeout::Default).expect_err("late").kind(), ErrorKind::TimedOut);
    let first = client.list_page(b"", b"", 1, WHILE).expect("listed");
    assert_eq!(first, KeysPage { keys: alloc::vec![b"mine".to_vec()], more: true });
    let rest = client.list_page(b"", b"mine", 9, WHILE).expect("listed");
    assert_eq!(rest, KeysPage { keys: alloc::vec![b"two".to_vec()], more: false });
    assert_eq!(client.revoke(&lease, WHILE).expect("ended"), 1);
    assert_eq!(client.delete_prefix(b"", WHILE).expect("removed").removed, 1);
    let reported: Vec<Vec<u8>> =
        (0..4).map(|_| watch.next(SOON).expect("alive").expect("a change").key).collect();
    assert_eq!(reported, [&b"mine"[..], b"two", b"mine", b"two"]);

    let c10d = Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    let error = c10d.expect("connected").native(Operation::Txn).expect_err("another kind");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().ends_with("it is a store over the c10d protocol"), "{error}");
}

#[test]
fn transactions_batches_prefixes_watches_and_leases() {
    let server = server();
    let client = session(&server, "n0");
    let (a, b): (&[u8], &[u8]) = (b"dir/a", b"dir/b");
    let set = |value: &[u8]| Step::Set { value: value.into() };
    let watch = client.watch_prefix(b"dir/", 0, NOW).expect("begun");
    let mut txn = Txn::default();
    txn.require(a, Test::Absent);
    txn.push(Branch::Then, a, set(b"1"));
    txn.push(Branch::Then, b, Step::Add { delta: 2 });
    txn.push(Branch::Otherwise, a, Step::Delete);
    let done = client.commit(&txn, NOW).expect("done");
    let otherwise = client.commit(&txn, NOW).expect("done otherwise");
    assert!(done.holds && !otherwise.holds && otherwise.revision == done.revision + 1);
    let mut batch = Batch::default();
    batch.push(b, BatchStep::Write(Step::Add { delta: 3 }));
    batch.push(a, BatchStep::CompareSet { expected: b""[..].into(), desired: b"new"[..].into() });
    batch.push(b"dir/text", BatchStep::Write(set(b"text")));
    batch.push(b"dir/text", BatchStep::Write(Step::Add { delta: 1 }));
    let answers = client.batch(&batch, NOW).expect("carried out");
    assert_eq!(
        answers[..3],
        [BatchAnswer::Number(5), BatchAnswer::Value(Some(b"new".to_vec())), BatchAnswer::Done]
    );
    let BatchAnswer::Failed(error) = &answers[3] else { panic!("{answers:?}") };
    assert_eq!(error.fault().map(|fault| fault.code), Some(FaultCode::NotANumber));
    let message = error.to_string();
    assert!(
        message.starts_with("batch ") && message.ends_with("not a decimal number of 64 bits"),
        "{message}"
    );
    assert_eq!(client.delete_prefix(b"dir/", NOW).expect("removed").removed, 3);
    let changes: Vec<Change> = (0..9).map(|_| watch.next(SOON).expect("alive").expect("a change")).collect();
    let reported: Vec<(&[u8], Option<&[u8]>)> =
        changes.iter().map(|change| (&change.key[..], change.value.as_deref())).collect();
    assert_eq!(reported[..3], [(&b"dir/a"[..], Some(&b"1"[..])), (b"dir/b", Some(b"2")), (b"dir/a", None)]);
    assert!(reported[6..].iter().all(|(_, value)| value.is_none()), "{reported:?}");
    assert!(changes.is_sorted_by_key(|change| change.revision));
    let again = client.watch_prefix(b"dir/", changes[3].revision, NOW).expect("it is remembered");
    assert_eq!(again.next(SOON).expect("alive").expect("again"), changes[3]);

    let brief = client.lease(Duration::from_millis(30), NOW).expect("granted");
    client.renew(&brief, NOW).expect("it lives");
    brief.attach(&[b"dir/leased"], NOW).expect("attached");
    let mut batch = Batch::default();
    batch.push(b"dir/leased", BatchStep::Write(set(b"")));
    let answer = client.batch(&batch, NOW);
    assert_eq!(answer.expect("carried out"), [BatchAnswer::Done]);
    assert_eq!(brief.wait_over(SOON).expect("alive"), Some(Why::Deadline));
    assert_eq!(client.renew(&brief, NOW).expect_err("it is over").kind(), ErrorKind::NotFound);
    let lease = client.lease(SOON, NOW).expect("granted");
    assert_eq!(client.revoke(&lease, NOW).expect("ended"), 0);
}

#[test]
fn a_stopped_server_is_told_to_those_who_wait() {
    let server = server();
    let client = session(&server, "n0");
    thread::scope(|scope| {
        let joining = scope.spawn(|| client.join(&as_node("n0", nodes(2, 2)), Role::Member));
        while client.next_event(SOON).expect("alive") != Some(NodeEvent::Seated) {}
        server.stop().expect("it ran");
        let error = joining.join().expect("no panic").expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::ServerGone);
        assert!(error.to_string().ends_with("the server ended the session: the server stopped"), "{error}");
    });
    assert!(client.is_over());
}

/// The round remains the node's, whatever it requested.
#[test]
fn a_death_is_told_to_a_node_whose_wish_to_come_back_was_refused() {
    let server = server();
    let mut all = join_all(clients(&server, 2), nodes(2, 2));
    let (_, dead, _) = all.pop().expect("two");
    let (name, client, _) = all.pop().expect("one more");
    drop(dead);
    // All earlier events precede the response that the round is over.
    let began = client.clock().now();
    while client.run_info(b"run", SOON).expect("known").complete {
        assert!(client.clock().now().since(began) < SOON, "it was not noticed");
    }
    let refused = client.join(&as_node(&name, nodes(2, 3)), Role::Member).expect_err("other terms");
    assert_eq!(refused.fault().map(|fault| fault.code), Some(FaultCode::BoundsConflict));
    let died = next_round_event(&client);
    assert!(matches!(died, RoundEvent::PeerDied { round: 0, node_rank: 1, .. }), "{died:?}");
    let over = next_round_event(&client);
    assert_eq!(over, RoundEvent::RoundOver { round: 0, why: Why::TooFewNodes });

    // A new round drops the untaken events of the previous one.
    let other = session(&server, "other");
    let both = [("other".to_string(), other.clone()), (name.clone(), client.clone())];
    join_all(both.into(), nodes(2, 2));
    drop(other);
    while client.run_info(b"run", SOON).expect("known").complete {
        assert!(client.clock().now().since(began) < SOON, "it was not noticed");
    }
    let another = ("another".to_string(), session(&server, "another"));
    let all = join_all(Vec::from([another, (name, client.clone())]), nodes(2, 2));
    assert_eq!(all[0].2.round, 2);
    drop(all);
    let died = next_round_event(&client);
    assert!(matches!(died, RoundEvent::PeerDied { round: 2, .. }), "{died:?}");
}

#[test]
fn to_cancel_what_a_store_was_asked_is_to_cancel_nothing_else() {
    let server = server();
    let client = session(&server, "a");
    let store = || Store::over(Arc::new(client.clone()));
    let (cancelled, spared) = (store(), store());
    let scoped = cancelled.with_prefix(b"inner");
    thread::scope(|scope| {
        let joining = scope.spawn(|| client.join(&as_node("a", nodes(2, 2)), Role::Member));
        while client.next_event(SOON).expect("alive") != Some(NodeEvent::Seated) {}
        let hearing = scope.spawn(|| client.next_event(SOON));
        let reading = scope.spawn(|| spared.get_owned(b"k", WHILE));
        let mut waiting =
            [&cancelled, &scoped].map(|store| Some(scope.spawn(|| store.get_owned(b"k", WHILE))));
        while waiting.iter().flatten().any(|waiting| !waiting.is_finished()) {
            cancelled.cancel();
            thread::yield_now();
        }
        for waiting in &mut waiting {
            let error = waiting.take().expect("once").join().expect("no panic").expect_err("cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        }
        // The join is in progress, and so are the other store's call and the wait for events.
        let other = session(&server, "b");
        assert_eq!(other.join(&as_node("b", nodes(2, 2)), Role::Member).expect("a round").nodes, 2);
        assert_eq!(joining.join().expect("no panic").expect("a round").nodes, 2);
        cancelled.set(b"k", b"v", WHILE).expect("later calls are as ever");
        assert_eq!(reading.join().expect("no panic").expect("set"), b"v");
        drop(other);
        let received = hearing.join().expect("no panic").expect("alive");
        assert!(matches!(received, Some(NodeEvent::Round(RoundEvent::PeerDied { .. }))), "{received:?}");
    });
}

#[test]
fn who_has_less_time_than_others_at_a_barrier_is_told_who_is_missing() {
    const NAMES: &[&[u8]] = &[b"a", b"b", b"c"];
    let server = server();
    let [a, b] = [session(&server, "a"), session(&server, "b")];
    let all = Participants::Names(Keys::scoped(b"", NAMES));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| a.barrier(b"epoch", 0, b"a", all, WHILE));
        let absent = |timeout| match b.barrier(b"epoch", 0, b"b", all, timeout).expect("answered") {
            BarrierResult::TimedOut { absent, .. } => absent,
            other => panic!("{other:?}"),
        };
        let missing = [Box::from("c")];
        let began = b.clock().now();
        while absent(NOW) != missing {
            assert!(b.clock().now().since(began) < SOON, "a has not come");
        }
        assert_eq!(absent(Timeout::After(Duration::from_millis(30))), missing);
        assert!(b.barrier_cancel(b"epoch", b"b", WHILE).expect("answered"), "a waits on");
        let reported = waiting.join().expect("no panic").expect("answered");
        assert!(matches!(reported, BarrierResult::Cancelled { .. }), "{reported:?}");
    });
}

#[test]
fn a_barrier_says_how_it_ended() {
    let server = server();
    let (a, b) = (session(&server, "a"), session(&server, "b"));
    let names: [&[u8]; 2] = [b"a", b"b"];
    let both = Participants::Names(Keys::scoped(b"", &names));
    thread::scope(|scope| {
        let first = scope.spawn(|| a.barrier(b"epoch", 0, b"a", both, WHILE));
        let released = BarrierResult::Released { generation: 1 };
        assert_eq!(b.barrier(b"epoch", 0, b"b", both, WHILE).expect("answered"), released);
        assert_eq!(first.join().expect("no panic").expect("answered"), released);
    });
    let alone =
        a.barrier(b"epoch", 0, b"a", both, Timeout::After(Duration::from_millis(30))).expect("answered");
    let missing = BarrierResult::TimedOut { generation: 2, absent_count: 1, absent: Vec::from(["b".into()]) };
    assert_eq!(alone, missing);
    // A participant that arrives late gets the same result.
    assert_eq!(b.barrier(b"epoch", 0, b"b", both, WHILE).expect("answered"), missing);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| a.barrier(b"stop", 0, b"a", Participants::Count(2), WHILE));
        // Until it has arrived, there is nothing to cancel.
        while !b.barrier_cancel(b"stop", b"b", WHILE).expect("answered") {}
        let cancelled = BarrierResult::Cancelled { generation: 1, by: "b".into() };
        assert_eq!(waiting.join().expect("no panic").expect("answered"), cancelled);
    });
    let error = thread::scope(|scope| {
        let waiting = scope.spawn(|| a.barrier(b"broken", 0, b"a", both, WHILE));
        let odd = loop {
            match b.barrier(b"broken", 0, b"b", Participants::Count(7), NOW) {
                Ok(BarrierResult::TimedOut { .. }) => {}
                other => break other.expect_err("begun by another for others"),
            }
        };
        drop(b);
        let broken = waiting.join().expect("no panic").expect("answered");
        let participant = "b".into();
        assert_eq!(broken, BarrierResult::Broken { generation: 1, participant, why: Why::Connection });
        odd
    });
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().ends_with("the barrier was begun for other participants: a"), "{error}");
}
