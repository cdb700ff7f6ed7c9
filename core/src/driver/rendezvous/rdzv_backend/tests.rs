use super::*;
use crate::driver::rendezvous::reserved_port::ReservedPort;
use crate::driver::store::Timeout;
use crate::driver::store_client::StoreOptions;
use crate::rendezvous::parameters::ConfigValue;
use crate::wire::native::Why;
use alloc::string::ToString;
use core::net::{IpAddr, Ipv4Addr};
use socket2::{Domain, Socket, Type};
use std::thread;

const SOON: Duration = Duration::from_secs(20);

/// A server at a port of its own, and the option that says that it runs elsewhere.
fn server() -> (Server, u16, [(&'static str, ConfigValue); 1]) {
    let server = Server::start(crate::driver::server::ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let port = server.local_addr().port();
    (server, port, [("is_host", ConfigValue::Bool(false))])
}

/// A port for nodes that host the server themselves and must know the port before. Another process may take it.
fn free_port() -> u16 {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    ReservedPort::at(any).expect("a port").port()
}

/// A node as in a process of its own.
fn node(
    port: u16,
    name: &str,
    nodes: (i64, i64),
    options: &[(&str, ConfigValue)],
) -> Box<dyn RendezvousHandler> {
    RdzvBackend::new(Arc::default()).create(&parameters(port, name, nodes, options)).expect("valid")
}

/// A node, as its concrete type.
fn bare_node(port: u16, name: &str, nodes: (i64, i64), options: &[(&str, ConfigValue)]) -> RdzvRendezvous {
    let settings = RdzvSettings::read(&parameters(port, name, nodes, options)).expect("valid");
    RdzvRendezvous::new(settings, 0, Arc::default(), Arc::default())
}

fn parameters(
    port: u16,
    name: &str,
    nodes: (i64, i64),
    options: &[(&str, ConfigValue)],
) -> RendezvousParameters {
    let endpoint = format!("127.0.0.1:{port}");
    let mut parameters =
        RendezvousParameters::new(RDZV_BACKEND, &endpoint, "run", nodes.0, nodes.1).expect("valid");
    parameters = parameters.with("node", name).with("join_timeout", 20).with_local_addr("127.0.0.1");
    for (key, value) in options {
        parameters = parameters.with(key, value.clone());
    }
    parameters
}

type Info = RendezvousInfo<Arc<NodeStore>>;

/// Lets all nodes join concurrently, each in a thread.
fn meet(nodes: &[Box<dyn RendezvousHandler>]) -> Vec<Result<Info, HandlerError>> {
    thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| node.next_rendezvous())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn next_event(node: &dyn RendezvousHandler) -> RoundEvent {
    node.next_event(SOON).expect("a session").expect("something happens")
}

fn kind_of(error: HandlerError) -> RendezvousErrorKind {
    let HandlerError::Rendezvous(error) = error else { panic!("{error}") };
    error.kind()
}

#[test]
fn nodes_meet_where_the_first_of_them_hosts_the_server() {
    let port = free_port();
    let nodes = ["a", "b", "c"].map(|name| node(port, name, (3, 3), &[("local_world_size", 2.into())]));
    let infos: Vec<Info> = meet(&nodes).into_iter().map(|info| info.expect("all nodes join")).collect();
    assert_eq!(infos.iter().filter(|info| info.store.server().is_some()).count(), 1, "one hosts");
    for (rank, info) in (0..).zip(&infos) {
        assert_eq!((info.rank, info.world_size), (rank, 3));
        assert_eq!(info.bootstrap_store_info.master_port, port);
        let index = info.position.as_ref().expect("the server knows it");
        assert_eq!((info.round, index.world_size), (Some(0), 6));
        assert_eq!((index.rank_first, index.leader.as_str()), (2 * rank.unsigned_abs(), "127.0.0.1"));
    }
    infos[0].store.set(b"k", b"v", Timeout::Default).expect("applied");
    assert_eq!(infos[2].store.get_owned(b"k", Timeout::Default).expect("set"), b"v");
    // A PyTorch worker has a prefix store over the same keys.
    let prefix = infos[1].position.as_ref().expect("the server knows it").key_prefix.trim_end_matches('/');
    let c10d = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
    let worker = c10d.with_prefix(prefix.as_bytes());
    assert_eq!(worker.get_owned(b"k", Timeout::Default).expect("set"), b"v");
    assert!(nodes.iter().all(|node| node.backend() == RDZV_BACKEND && node.run_id() == "run"));
    assert!(nodes[0].use_agent_store());
}

#[test]
fn a_death_is_reported_and_the_others_meet_again_with_a_spare() {
    let (_server, port, external) = server();
    let mut nodes = Vec::from(["a", "b", "c"].map(|name| node(port, name, (3, 3), &external)));
    let infos = meet(&nodes);
    let old = infos[0].as_ref().expect("all nodes join").store.clone();
    drop(infos);
    let spare = node(port, "d", (3, 3), &[external[0].clone(), ("standby", true.into())]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| spare.next_rendezvous());
        drop(nodes.remove(1));
        for node in &nodes {
            let died =
                RoundEvent::PeerDied { round: 0, node_rank: 1, node: "b".into(), why: Why::Connection };
            assert_eq!(next_event(&**node), died);
            assert_eq!(next_event(&**node), RoundEvent::RoundOver { round: 0, why: Why::TooFewNodes });
        }
        let error = old.set(b"k", b"late", Timeout::Default).expect_err("the round is over");
        assert_eq!(error.kind(), ErrorKind::StaleRound, "{error}");
        let again: Vec<_> = meet(&nodes).into_iter().map(|info| info.expect("with the spare").rank).collect();
        assert_eq!(again, [0, 2], "ranks stay");
        let info = waiting.join().expect("no panic").expect("it slips in");
        assert_eq!((info.rank, info.round), (1, Some(1)));
    });
    assert_eq!(nodes[0].num_nodes_waiting().expect("known"), 0);
    assert!(!nodes[0].is_closed().expect("known"));
    // Leaving does not close the run.
    assert!(nodes.remove(1).shutdown());
    assert!(!nodes[0].is_closed().expect("known"));
    nodes[0].set_closed().expect("closed");
    assert!(spare.is_closed().expect("known"));
    assert_eq!(next_event(&*spare), RoundEvent::RunClosed { by: "a".into() });
    let late = node(port, "e", (3, 3), &external);
    assert_eq!(kind_of(late.next_rendezvous().expect_err("closed")), RendezvousErrorKind::Closed);
}

#[test]
fn a_spare_that_is_not_needed_is_dismissed() {
    let (_server, port, external) = server();
    let nodes = [node(port, "a", (1, 1), &external)];
    meet(&nodes).remove(0).expect("alone");
    let spare = node(port, "b", (1, 1), &external);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| spare.next_rendezvous());
        assert_eq!(nodes_reported_to_a_spare(&*spare), 1);
        nodes[0].set_closed().expect("closed");
        let error = waiting.join().expect("no panic").expect_err("the run is closed");
        assert_eq!(error.to_string(), "The rendezvous 'run' is closed, terminating pending rendezvous.");
        assert_eq!(kind_of(error), RendezvousErrorKind::GracefulExit);
    });
}

/// Waits until the node is a spare and has been notified of it. A spare that joins after a death would wait for the
/// next one.
fn nodes_reported_to_a_spare(spare: &dyn RendezvousHandler) -> u32 {
    let deadline = std::time::Instant::now() + SOON;
    loop {
        match spare.progress() {
            Some(Progress { nodes, stage: Stage::Standby, .. }) => break nodes,
            _ if std::time::Instant::now() < deadline => thread::yield_now(),
            reported => panic!("it is no spare: {reported:?}"),
        }
    }
}

fn spares(port: u16) -> u32 {
    let client = NativeClient::connect("127.0.0.1", port, NativeClientOptions::default()).expect("connected");
    client.run_info(b"run", SOON).expect("known").nodes_standby
}

#[test]
fn a_waiting_node_can_query_the_progress() {
    let (_server, port, external) = server();
    let node = node(port, "a", (2, 3), &external);
    assert_eq!(node.progress(), None, "a look begins no session");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| node.next_rendezvous());
        let deadline = std::time::Instant::now() + SOON;
        let progress = loop {
            match node.progress().filter(|progress| progress.nodes > 0) {
                Some(progress) => break progress,
                None => assert!(std::time::Instant::now() < deadline),
            }
        };
        let last_call = Some(Duration::from_secs(30));
        assert_eq!(
            progress,
            Progress {
                nodes: 1,
                nodes_waiting: 0,
                stage: Stage::Forming,
                last_call,
                waiting_nodes: ["a".into()].into(),
            }
        );
        node.cancel();
        waiting.join().expect("no panic").expect_err("cancelled");
    });
}

#[test]
fn a_join_that_times_out_names_the_present_nodes() {
    let (_server, port, external) = server();
    let alone = node(port, "alone", (2, 2), &[external[0].clone(), ("join_timeout", 1.into())]);
    let error = alone.next_rendezvous().expect_err("no other node joins");
    let text = error.to_string();
    assert!(text.starts_with("The rendezvous 'run' timed out after "), "{text}");
    assert!(text.contains("1 of at least 2 nodes were there (alone)"), "{text}");
    assert_eq!(kind_of(error), RendezvousErrorKind::Timeout);
    let unjoined = node(port, "other", (2, 2), &external);
    let error = unjoined.next_event(Duration::ZERO).expect_err("it has not joined");
    assert_eq!(error.to_string(), "this node has not joined the rendezvous 'run'");
}

#[test]
fn nodes_that_disagree_are_both_named() {
    let (_server, port, external) = server();
    let first = node(port, "first", (2, 2), &external);
    let second = node(port, "second", (2, 3), &external);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.next_rendezvous());
        let deadline = std::time::Instant::now() + SOON;
        let joined = || {
            let client = NativeClient::connect("127.0.0.1", port, NativeClientOptions::default());
            client.is_ok_and(|client| client.run_info(b"run", SOON).is_ok_and(|info| info.nodes > 0))
        };
        while !joined() && std::time::Instant::now() < deadline {}
        let error = second.next_rendezvous().expect_err("other bounds");
        let HandlerError::Store(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains("node second has min:max nodes 2:3"), "{text}");
        assert!(text.contains("begun by node first with 2:2"), "{text}");
        first.cancel();
        let error = waiting.join().expect("no panic").expect_err("cancelled");
        let HandlerError::Store(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn no_server_is_a_connection_that_failed() {
    let options = [("is_host", ConfigValue::Bool(false)), ("join_timeout", 1.into())];
    // Another socket has the port, and does not listen on it.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    taken.bind(&any.into()).expect("a port");
    let port = taken.local_addr().expect("bound").as_socket().expect("of the internet").port();
    let lost = node(port, "lost", (1, 1), &options);
    let error = lost.next_rendezvous().expect_err("no server");
    let inner = std::error::Error::source(&error).expect("it says why").to_string();
    assert!(inner.contains("127.0.0.1:"), "{inner}");
    assert_eq!(error.to_string(), format!("The connection to the rendezvous server has failed: {inner}"));
    assert_eq!(kind_of(error), RendezvousErrorKind::Connection);
}

#[test]
fn a_node_goes_on_with_a_server_that_came_back() {
    let (server, port, external) = server();
    let nodes = ["a", "b"].map(|name| node(port, name, (2, 2), &external));
    assert!(meet(&nodes).iter().all(Result::is_ok));
    server.stop().expect("it ran");
    for node in &nodes {
        let error = node.next_event(SOON).expect_err("the server has ended");
        assert_eq!(kind_of(error), RendezvousErrorKind::Connection);
    }
    drop(server);
    let at = crate::driver::server::ServerOptions::on("127.0.0.1", port);
    let _server = Server::start(at).expect("the same place");
    let infos = meet(&nodes);
    assert!(infos.iter().all(Result::is_ok), "{infos:?}");
}

#[test]
fn a_host_knows_its_own_addresses() {
    let call = CancelToken::new();
    assert!(is_local("127.0.0.1", SOON, &call) && is_local("localhost", SOON, &call));
    // An address reserved for documentation belongs to no host.
    assert!(
        !is_local("192.0.2.1", SOON, &call)
            && !is_local("0.0.0.0", SOON, &call)
            && !is_local("no-such-host.invalid", SOON, &call)
    );
}

fn assert_cancelled<T: core::fmt::Debug>(result: Result<T, HandlerError>) {
    let HandlerError::Store(error) = result.expect_err("cancelled") else { panic!("another error") };
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

#[test]
fn a_cancel_is_never_lost_and_waits_for_nothing() {
    let (_server, port, [external]) = server();
    let spare = [external.clone(), ("standby", true.into())];
    for options in [&spare[..], &[external, ("join_timeout", 600.into())]] {
        let node = bare_node(port, "n", (2, 2), options);
        // Before it looks up the server.
        let call = node.canceller.token();
        node.cancel();
        assert_cancelled(node.join(&call));
        assert!(node.link.locked().is_none(), "who was cancelled makes no session");
        // While it opens a session, or waits for another thread that does.
        let call = node.canceller.token();
        thread::scope(|scope| {
            let link = node.link.locked();
            let joining = scope.spawn(|| node.join(&call));
            node.cancel();
            drop(link);
            assert_cancelled(joining.join().expect("no panic"));
        });
        // Before it sends the request to join.
        let call = node.canceller.token();
        let link = node.link(SOON, Operation::Join, &call).expect("a session");
        node.cancel();
        let error = node.request_join(&link.client.with_token(&call), SOON * 30).expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        let info = node.run_info().expect("known");
        assert_eq!((info.nodes, info.nodes_standby), (0, 0), "the server knows it, too");
        // The calls of a store are unaffected.
        thread::scope(|scope| {
            let store = Store::over(Arc::new(link.client.clone()));
            let waiting = scope.spawn(move || store.get_owned(b"k", Timeout::After(SOON)));
            node.cancel();
            node.run_info().expect("a later call is as ever");
            let other = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
            other.set(b"k", b"v", Timeout::Default).expect("applied");
            assert_eq!(waiting.join().expect("no panic").expect("set"), b"v");
            assert!(other.delete(b"k", Timeout::Default).is_ok());
        });
    }
}

#[test]
fn a_token_ends_the_calls_that_begin_after_it_was_set() {
    let (_server, port, external) = server();
    let node = node(port, "n", (2, 2), &external);
    let token = CancelToken::new();
    node.set_token(&token);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| node.next_rendezvous());
        token.cancel();
        assert_cancelled(waiting.join().expect("no panic"));
    });
    assert_cancelled(node.next_rendezvous());
    assert_cancelled(node.is_closed());
    node.set_token(&CancelToken::new());
    assert!(!node.is_closed().expect("a later call"));
}

#[test]
fn a_cancelled_node_may_join_again_at_once() {
    let (_server, port, external) = server();
    let node = node(port, "n", (2, 2), &external);
    thread::scope(|scope| {
        for _ in 0..50 {
            let waiting = scope.spawn(|| node.next_rendezvous());
            while !waiting.is_finished() {
                node.cancel();
                thread::yield_now();
            }
            assert_cancelled(waiting.join().expect("no panic"));
        }
    });
}

#[test]
fn waiting_for_events_can_be_cancelled() {
    let (_server, port, external) = server();
    let node = node(port, "n", (1, 1), &external);
    meet(core::slice::from_ref(&node)).remove(0).expect("alone");
    let waited = thread::scope(|scope| {
        let waiting = scope.spawn(|| node.next_event(SOON * 30));
        while !waiting.is_finished() {
            node.cancel();
            thread::yield_now();
        }
        waiting.join().expect("no panic")
    });
    assert_cancelled(waited);
}

#[test]
fn a_node_that_is_shut_down_while_it_joins_does_not_rejoin() {
    let (_server, port, [external]) = server();
    let node = bare_node(port, "n", (2, 2), &[external, ("join_timeout", 600.into())]);
    let nodes_there = || {
        let client = NativeClient::connect("127.0.0.1", port, NativeClientOptions::default());
        client.expect("connected").run_info(b"run", SOON).map_or(0, |info| info.nodes)
    };
    // Twice: a later call opens a new session.
    for _ in 0..2 {
        thread::scope(|scope| {
            let joining = scope.spawn(|| node.next_rendezvous());
            while nodes_there() == 0 {
                assert!(!joining.is_finished(), "it joins");
            }
            assert!(node.shutdown(), "it says goodbye");
            assert_cancelled(joining.join().expect("no panic"));
        });
        assert!(node.link.locked().is_none(), "no new session");
        assert_eq!(nodes_there(), 0);
    }
}

#[test]
fn a_goodbye_without_an_answer_can_be_cancelled() {
    use std::io::{Read, Write};
    let (_server, port, [external]) = server();
    // A proxy between node and server, which stops forwarding when the test says so.
    let between = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let long_timeouts = [("close_timeout", 600.into()), ("keep_alive_max_attempt", 1000.into())];
    let options: Vec<_> = [external].into_iter().chain(long_timeouts).collect();
    let node = bare_node(between.local_addr().expect("bound").port(), "n", (2, 2), &options);
    thread::scope(|scope| {
        let joining = scope.spawn(|| node.next_rendezvous());
        let (mut near, _) = between.accept().expect("it comes");
        let mut far = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let (mut near_reader, mut far_reader) =
            (near.try_clone().expect("descriptors"), far.try_clone().expect("descriptors"));
        scope.spawn(move || {
            let mut capacity = [0; 4096];
            while let Ok(count @ 1..) = near_reader.read(&mut capacity) {
                far.write_all(&capacity[..count]).ok();
            }
        });
        let client = || node.link.locked().as_ref().map(|link| link.client.clone());
        let mut capacity = [0; 4096];
        while !client().is_some_and(|client| client.has_opened()) {
            let count = far_reader.read(&mut capacity).expect("it answers");
            near.write_all(&capacity[..count]).expect("it listens");
            let until = std::time::Instant::now() + std::time::Duration::from_secs(1);
            while std::time::Instant::now() < until && !client().is_some_and(|client| client.has_opened()) {
                thread::yield_now();
            }
        }
        let leaving = scope.spawn(|| node.shutdown());
        assert_cancelled(joining.join().expect("no panic"));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !leaving.is_finished() && std::time::Instant::now() < until {
            node.cancel();
            thread::yield_now();
        }
        let is_done = leaving.is_finished();
        near.shutdown(std::net::Shutdown::Both).ok();
        assert!(is_done, "it still waits");
        assert!(!leaving.join().expect("no panic"), "the server did not receive it");
    });
}

#[test]
fn a_second_concurrent_join_is_refused_at_once() {
    let (_server, port, [external]) = server();
    let node = bare_node(port, "n", (1, 1), &[external]);
    let joining = node.joining.locked();
    let error = node.next_rendezvous().expect_err("another thread joins");
    assert_eq!(error.to_string(), "this node is joining the rendezvous 'run' already, in another thread");
    drop(joining);
    node.next_rendezvous().expect("alone");
}

#[test]
fn no_time_counts_while_a_spare_stands_by_also_when_its_server_goes() {
    let (server, port, [external]) = server();
    let spare = [external.clone(), ("standby", true.into()), ("join_timeout", 1.into())];
    let spare = node(port, "spare", (1, 1), &spare);
    let nodes = [node(port, "a", (1, 1), &[external])];
    meet(&nodes).remove(0).expect("alone");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| spare.next_rendezvous());
        let stands_by = || while spares(port) == 0 && !waiting.is_finished() {};
        stands_by();
        // Longer than its join timeout.
        let clock = Clock::new();
        let until = clock.now() + Duration::from_millis(1200);
        while clock.now() < until {
            thread::park_timeout(Duration::from_millis(100));
        }
        drop(server);
        let at = crate::driver::server::ServerOptions::on("127.0.0.1", port);
        let _server = Server::start(at).expect("the same place");
        meet(&nodes).remove(0).expect("alone again");
        stands_by();
        nodes[0].set_closed().expect("closed");
        let error = waiting.join().expect("no panic").expect_err("the run is closed");
        assert_eq!(kind_of(error), RendezvousErrorKind::GracefulExit);
    });
}

#[test]
fn a_spare_that_got_a_place_comes_back_to_it() {
    let (_server, port, external) = server();
    // The round may go on without one node.
    let terms = [external[0].clone(), ("min_to_continue", 1.into())];
    let mut nodes = Vec::from(["a", "b"].map(|name| node(port, name, (2, 2), &terms)));
    assert_eq!(meet(&nodes).len(), 2);
    let spare = node(port, "d", (2, 2), &[terms[0].clone(), terms[1].clone(), ("standby", true.into())]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| spare.next_rendezvous().expect("it slips in").round);
        assert_eq!(nodes_reported_to_a_spare(&*spare), 2);
        drop(nodes.remove(1));
        assert!(matches!(next_event(&*nodes[0]), RoundEvent::PeerDied { .. }));
        assert_eq!(nodes[0].next_rendezvous().expect("with the spare").round, Some(1));
        assert_eq!(waiting.join().expect("no panic"), Some(1));
        // Its own workers failed, so it asks for another round; the other node is notified, and rejoins.
        let again = scope.spawn(|| spare.next_rendezvous().expect("a round").round);
        assert_eq!(next_event(&*nodes[0]), RoundEvent::NodesWaiting { nodes: 1 });
        assert_eq!(nodes[0].next_rendezvous().expect("with the spare").round, Some(2));
        assert_eq!(again.join().expect("no panic"), Some(2));
    });
}

#[test]
fn a_node_that_joins_after_the_job_has_failed_gets_the_cause() {
    let (_server, port, external) = server();
    let first = node(port, "a", (1, 1), &external);
    first.next_rendezvous().expect("alone");
    first.fail("worker 0: code 1").expect("reported");
    assert_eq!(next_event(&*first), RoundEvent::RunClosed { by: "a".into() });
    assert_eq!(next_event(&*first), RoundEvent::JobFailed { message: "worker 0: code 1".into() });
    let late = node(port, "b", (1, 1), &external);
    let error = late.next_rendezvous().expect_err("closed");
    assert_eq!(error.to_string(), "The rendezvous 'run' is closed (by node a): worker 0: code 1.");
    assert_eq!(kind_of(error), RendezvousErrorKind::Closed);
}

#[test]
fn an_abandoned_node_is_missed_whatever_other_calls_are_in_progress() {
    let (_server, port, external) = server();
    let terms = [external[0].clone(), ("min_to_continue", 1.into())];
    let nodes = ["a", "b"].map(|name| bare_node(port, name, (2, 2), &terms));
    thread::scope(|scope| {
        let threads = nodes.each_ref().map(|node| scope.spawn(|| node.next_rendezvous().map(drop)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic").expect("both"));
    });
    // Another thread holds the session at this moment.
    let held = nodes[0].link.locked();
    nodes[0].abandon();
    drop(held);
    assert!(nodes[0].shutdown());
    let event = next_event(&nodes[1]);
    assert!(matches!(event, RoundEvent::PeerDied { why: Why::Stopped, .. }), "{event:?}");
    let text = event.to_string();
    assert!(text.ends_with(" of round 0) left: it was stopped before its work was done"), "{text}");
}
