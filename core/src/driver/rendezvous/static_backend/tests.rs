use super::super::reserved_port::ReservedPort;
use super::*;
use crate::error::ErrorKind;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::format;
use std::thread;
use std::vec::Vec;

fn free_port() -> u16 {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    ReservedPort::at(any).expect("a port").port()
}

fn handler(port: u16, rank: i64, nodes: i64, timeout_s: i64) -> Box<dyn RendezvousHandler> {
    let endpoint = format!("127.0.0.1:{port}");
    let parameters = RendezvousParameters::new("static", &endpoint, "run", 1, nodes).expect("valid");
    let parameters = parameters.with("rank", rank).with("timeout", timeout_s);
    StaticBackend::new(Arc::default()).create(&parameters).expect("whole")
}

#[test]
fn nodes_meet_under_the_prefix_of_the_run() {
    let port = free_port();
    let reported: Vec<(i64, i64, Vec<u8>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|rank| {
                scope.spawn(move || {
                    let handler = handler(port, rank, 3, 20);
                    let info = handler.next_rendezvous().expect("all nodes join");
                    assert_eq!(info.bootstrap_store_info.master_addr, "127.0.0.1");
                    assert_eq!(info.bootstrap_store_info.master_port, port);
                    assert_eq!(info.store.server().is_some(), rank == 0);
                    assert_eq!(info.round, None, "to PyTorch's nodes it would be none");
                    if rank == 1 {
                        info.store.set(b"k", b"v", Timeout::Default).expect("applied");
                    }
                    let value = info.store.get_owned(b"k", Timeout::Default).expect("set");
                    info.store.barrier_by_keys(b"done", 3, Timeout::Default).expect("all nodes join");
                    if rank == 0 {
                        // PyTorch's prefix store would use these very keys.
                        let bare = StoreOptions { scope: b""[..].into(), ..StoreOptions::default() };
                        let bare = Store::connect("127.0.0.1", port, bare).expect("connected");
                        let there = bare.check(&[b"/run/k", b"init/"], Timeout::Default).expect("answered");
                        assert!(there);
                        bare.wait(&[b"/run/left/last_member"], Timeout::Default).expect("the others left");
                    } else if info.store.add(b"left", 1, Timeout::Default).expect("added") == 2 {
                        info.store.set(b"left/last_member", b"1", Timeout::Default).expect("applied");
                    }
                    (info.rank, info.world_size, value)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(reported, [0, 1, 2].map(|rank| (rank, 3, b"v".to_vec())));
}

type Info = RendezvousInfo<Arc<NodeStore>>;
type Handlers = Vec<Box<dyn RendezvousHandler>>;

const SOON: Duration = Duration::from_secs(20);

/// Lets all of these nodes ask for a round, each in a thread of its own.
fn meet(nodes: &[Box<dyn RendezvousHandler>]) -> Vec<Result<Info, HandlerError>> {
    thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| node.next_rendezvous())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Creates this many nodes and lets them join their first round.
fn group(nodes: i64, timeout_s: i64) -> (Handlers, Vec<Info>) {
    let port = free_port();
    let nodes: Handlers = (0..nodes).map(|rank| handler(port, rank, nodes, timeout_s)).collect();
    let infos = meet(&nodes).into_iter().map(|info| info.expect("all nodes join")).collect();
    (nodes, infos)
}

/// Waits until a node sees that `count` nodes wait for the next round.
fn until_waiting(node: &dyn RendezvousHandler, count: u64) {
    let (clock, until) = (Clock::new(), Clock::new().now() + SOON);
    while node.num_nodes_waiting().expect("the store answers") != count {
        assert!(clock.now() < until, "not so many wait");
        thread::yield_now();
    }
}

#[test]
fn nodes_that_meet_again_have_a_round_of_their_own() {
    let (nodes, first) = group(3, 20);
    assert!(first.iter().all(|info| info.round.is_none()));
    first[1].store.set(b"left", b"1", Timeout::Default).expect("applied");
    for round in 1..3 {
        let infos: Vec<Info> = meet(&nodes).into_iter().map(|info| info.expect("all nodes join")).collect();
        for (info, before) in infos.iter().zip(&first) {
            assert_eq!((info.rank, info.world_size), (before.rank, before.world_size));
            assert_eq!((info.round, info.store.server().is_some()), (Some(round), before.rank == 0));
            assert_eq!(info.bootstrap_store_info, before.bootstrap_store_info);
            // The store has neither the first round's keys nor those of the round before.
            assert!(!info.store.check(&[b"left"], Timeout::Default).expect("answered"));
        }
        infos[2].store.set(b"left", b"1", Timeout::Default).expect("applied");
        infos[0].store.get_owned(b"left", Timeout::Default).expect("they share it");
    }
    assert!(nodes.iter().all(|node| node.num_nodes_waiting().expect("answered") == 0));
}

#[test]
fn running_nodes_see_the_waiting_nodes() {
    let (nodes, _) = group(3, 20);
    thread::scope(|scope| {
        let wait = |rank: usize| {
            let node = &nodes[rank];
            scope.spawn(|| node.next_rendezvous())
        };
        let first = wait(1);
        until_waiting(&*nodes[0], 1);
        assert!(!first.is_finished());
        let second = wait(2);
        until_waiting(&*nodes[0], 2);
        let progress = nodes[1].progress().expect("it waits");
        assert_eq!((progress.nodes, progress.stage), (2, Stage::Forming));
        assert!(matches!(nodes[1].next_rendezvous(), Err(HandlerError::Joining { .. })));
        assert_eq!(nodes[0].next_rendezvous().expect("all are there").round, Some(1));
        for node in [first, second] {
            assert_eq!(node.join().expect("no panic").expect("all are there").round, Some(1));
        }
    });
    until_waiting(&*nodes[0], 0);
}

#[test]
fn a_missing_node_is_named_and_may_join_later() {
    let (nodes, _) = group(3, 1);
    for error in meet(&nodes[..1]) {
        let HandlerError::Rendezvous(error) = error.expect_err("no other node joins") else { panic!() };
        assert_eq!(
            error.to_string(),
            "The rendezvous 'run' timed out: 1 of 3 nodes joined round 1 within 1 s; missing node ranks: 1, 2"
        );
    }
    // It no longer counts as waiting, and no node expects it in the round that it gave up.
    assert_eq!(nodes[1].num_nodes_waiting().expect("answered"), 0);
    let error = nodes[1].next_rendezvous().expect_err("no other node joins");
    assert!(
        error.to_string().ends_with("1 of 3 nodes joined round 1 within 1 s; missing node ranks: 0, 2"),
        "{error}"
    );
    assert!(meet(&nodes).into_iter().all(|info| info.expect("all nodes join").round == Some(1)));
}

#[test]
fn with_nodes_that_do_not_count_there_is_one_round_only() {
    let port = free_port();
    let infos: Vec<(Option<u64>, u64, bool)> = thread::scope(|scope| {
        // A node of PyTorch: it checks in, and does nothing else.
        let other = scope.spawn(move || {
            let store = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
            store.check_in(Timeout::Default).expect("counted");
        });
        let ours: Vec<_> = (0..2)
            .map(|rank| {
                scope.spawn(move || {
                    let node = handler(port, rank, 3, 20);
                    let first = node.next_rendezvous().expect("all nodes join");
                    // However often: nodes are counted, not calls.
                    let again: Vec<Info> = (0..3).map(|_| node.next_rendezvous().expect("at once")).collect();
                    node.set_closed().expect("nothing to do");
                    assert!(!node.is_closed().expect("answered"));
                    let same = again.iter().all(|info| Arc::ptr_eq(&info.store, &first.store));
                    let waiting = node.num_nodes_waiting().expect("answered");
                    first.store.barrier_by_keys(b"done", 2, Timeout::Default).expect("both nodes join");
                    (again[2].round, waiting, same)
                })
            })
            .collect();
        other.join().expect("no panic");
        ours.into_iter().map(|node| node.join().expect("no panic")).collect()
    });
    assert_eq!(infos, [(None, 0, true); 2]);
}

#[test]
fn a_node_that_begins_anew_comes_to_the_next_round() {
    let port = free_port();
    let mut nodes: Handlers = (0..2).map(|rank| handler(port, rank, 2, 20)).collect();
    meet(&nodes).into_iter().for_each(|info| drop(info.expect("all nodes join")));
    meet(&nodes).into_iter().for_each(|info| drop(info.expect("all nodes join")));
    nodes[1] = handler(port, 1, 2, 20);
    thread::scope(|scope| {
        let node = scope.spawn(|| nodes[1].next_rendezvous());
        until_waiting(&*nodes[0], 1);
        assert_eq!(nodes[0].next_rendezvous().expect("both are there").round, Some(2));
        assert_eq!(node.join().expect("no panic").expect("both are there").round, Some(2));
    });
}

#[test]
fn a_node_from_before_a_restart_of_node_zero_leaves_and_its_writes_have_no_effect() {
    let port = free_port();
    let start = || (0..2).map(|rank| handler(port, rank, 2, 20)).collect::<Handlers>();
    let meet_twice = |nodes: &Handlers| {
        assert!(meet(nodes).into_iter().all(|info| info.expect("both nodes join").round.is_none()));
        meet(nodes).into_iter().map(|info| info.expect("both nodes join")).collect::<Vec<Info>>()
    };
    let mut before = start();
    let mut infos = meet_twice(&before);
    let (old_node, old) = (before.remove(1), infos.remove(1));
    drop((before, infos));
    let after = start();
    let infos = meet_twice(&after);
    assert_eq!((old.round, infos[1].round), (Some(1), Some(1)), "the rounds have the same number");
    let (clock, until) = (Clock::new(), Clock::new().now() + SOON);
    while old.store.set(b"late", b"1", Timeout::Default).is_err() {
        assert!(clock.now() < until, "it reaches the new server");
    }
    assert!(!infos[1].store.check(&[b"late"], Timeout::Default).expect("answered"));
    let error = old_node.next_rendezvous().expect_err("it is another store");
    assert_eq!(error.to_string(), "The rendezvous 'run' is closed.");
    assert_eq!(old_node.num_nodes_waiting().expect("answered"), 0);
    assert!(meet(&after).into_iter().all(|info| info.expect("both nodes join").round == Some(2)));
}

#[test]
fn a_run_that_is_closed_ends_the_wait_for_its_next_round() {
    let (nodes, _) = group(3, 600);
    let closed = |error: Result<Info, HandlerError>| {
        let error = error.expect_err("closed");
        assert_eq!(error.to_string(), "The rendezvous 'run' is closed.");
    };
    thread::scope(|scope| {
        let node = scope.spawn(|| nodes[2].next_rendezvous());
        until_waiting(&*nodes[0], 1);
        assert!(!nodes[0].is_closed().expect("answered"));
        nodes[0].set_closed().expect("reported");
        closed(node.join().expect("no panic"));
    });
    assert!(nodes[1].is_closed().expect("answered"));
    assert_eq!(nodes[1].num_nodes_waiting().expect("answered"), 0);
    closed(nodes[1].next_rendezvous());
}

#[test]
fn a_wait_for_the_next_round_is_cancelled_and_begun_again() {
    let (nodes, _) = group(2, 600);
    thread::scope(|scope| {
        let node = scope.spawn(|| nodes[1].next_rendezvous());
        until_waiting(&*nodes[0], 1);
        while !node.is_finished() {
            nodes[1].cancel();
            thread::yield_now();
        }
        assert!(node.join().expect("no panic").expect_err("cancelled").is_cancelled());
    });
    // The other nodes do not count it.
    assert_eq!(nodes[0].num_nodes_waiting().expect("answered"), 0);
    assert!(meet(&nodes).into_iter().all(|info| info.expect("both nodes join").round == Some(1)));
}

#[test]
fn what_else_it_says() {
    let handler = handler(1, 1, 2, 5);
    assert_eq!((handler.backend(), handler.run_id()), ("static", "run"));
    assert!(handler.use_agent_store());
    handler.set_closed().expect("nothing to do");
    assert!(!handler.is_closed().expect("never"));
    assert_eq!(handler.num_nodes_waiting().expect("none"), 0);
    assert_eq!(handler.progress(), None);
    assert!(handler.shutdown());
}

#[test]
fn rank_zero_does_not_wait_for_ever() {
    let error = handler(free_port(), 0, 2, 1).next_rendezvous().expect_err("no other node joins");
    assert_eq!(
        error.to_string(),
        "The rendezvous 'run' timed out: 1 of 2 nodes joined round 0 within 1 s; missing node rank: 1"
    );
}

#[test]
fn a_node_that_is_not_the_host_waits_for_all_and_names_the_missing_nodes() {
    let port = free_port();
    let nodes: Handlers = [(0, 20), (2, 1)].map(|(rank, timeout_s)| handler(port, rank, 4, timeout_s)).into();
    let errors = thread::scope(|scope| {
        let host = scope.spawn(|| nodes[0].next_rendezvous());
        let error = nodes[1].next_rendezvous().expect_err("not all nodes join").to_string();
        nodes[0].cancel();
        while !host.is_finished() {
            nodes[0].cancel();
            thread::yield_now();
        }
        assert!(host.join().expect("no panic").expect_err("cancelled").is_cancelled());
        error
    });
    assert!(errors.ends_with("2 of 4 nodes joined round 0 within 1 s; missing node ranks: 1, 3"), "{errors}");
}

#[test]
fn a_host_that_is_not_there_is_named() {
    let error = handler(free_port(), 1, 2, 1).next_rendezvous().expect_err("no node hosts the store");
    let HandlerError::Rendezvous(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), RendezvousErrorKind::Connection);
    assert!(error.to_string().contains("node 0, which hosts the store"), "{error}");
}

#[test]
fn a_node_that_waits_is_cancelled_wherever_it_is() {
    let port = free_port();
    // Node 0 waits for the others; node 1 waits for a server at a port where there is none.
    for handler in [handler(port, 0, 2, 600), handler(free_port(), 1, 2, 600)] {
        let error = thread::scope(|scope| {
            let node = scope.spawn(|| handler.next_rendezvous());
            while !node.is_finished() {
                handler.cancel();
                thread::yield_now();
            }
            node.join().expect("no panic").expect_err("cancelled")
        });
        let HandlerError::Store(error) = error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let reserved = ReservedPort::at(any).expect("a port");
    let error = handler(reserved.port(), 0, 1, 5).next_rendezvous().expect_err("taken");
    let text = format!("cannot host the store at 127.0.0.1:{}: ", reserved.port());
    assert!(error.to_string().starts_with(&text), "{error}");
}
