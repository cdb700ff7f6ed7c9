//! Hosts that fall silent: a pair of virtual Ethernet devices between two private network namespaces, one of which is
//! taken down. The kernel says nothing to anybody, as when a cable is pulled.
//!
//! Each test runs once more in a process that has a namespace of its own; all of it is gone when that process ends.

use super::node::{Node, enter};
use super::{died, hears};
use crate::net::Deadline;
use crate::process::run;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::node::server::{CloseReason, Event};
use rendezvous_core::time::{Duration, Instant};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc;

const INSIDE: &str = "RDZV_TEST_HAS_A_NETWORK";
const NEAR: &str = "10.77.0.1";
const TWO: [&str; 2] = ["nodes_min=2", "nodes_max=2"];

/// Two hosts and the link between them.
struct Hosts {
    far: File,
}

/// Two hosts, in the process that has a network of its own; `None` in the one that has run it, where all is done.
///
/// # Panics
/// When the machine lets nobody have one: a host that falls silent cannot be had otherwise, so this is no success.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "this is how a test knows that it is run inside")]
fn hosts(test: &str) -> Option<Hosts> {
    if std::env::var_os(INSIDE).is_some() {
        return Some(Hosts::new());
    }
    let mut command = Command::new("unshare");
    // SAFETY: it has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--net");
    let possible = run(Command::new("unshare").args(command.get_args()).arg("true"), Duration::from_secs(60));
    assert!(
        possible.status.success(),
        "NOT TESTED: this machine forbids private network namespaces: {}",
        possible.stderr
    );
    let this = std::env::current_exe().expect("the path of this binary");
    command.arg(this).args([&format!("liveness::silent_host::{test}"), "--exact", "--nocapture"]);
    let ran = run(command.env(INSIDE, "1"), Duration::from_secs(120)).or_fail(test);
    assert!(ran.stdout.contains("1 passed"), "{ran:?}");
    None
}

impl Hosts {
    fn new() -> Self {
        // A namespace lives as long as somebody holds it open.
        let unshared = std::thread::spawn(|| {
            // SAFETY: it takes no memory, and concerns this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "a second namespace");
            File::open("/proc/thread-self/ns/net").expect("a namespace is a file")
        });
        let hosts = Self { far: unshared.join().expect("no panic") };
        let far = format!("/proc/{}/fd/{}", std::process::id(), hosts.far.as_raw_fd());
        hosts.near("link set lo up");
        hosts.near("link add near type veth peer name far");
        hosts.near(&format!("link set far netns {far}"));
        hosts.near(&format!("addr add {NEAR}/24 dev near"));
        hosts.near("link set near up");
        hosts.far("addr add 10.77.0.2/24 dev far");
        hosts.far("link set far up");
        hosts
    }

    fn near(&self, arguments: &str) {
        run(Command::new("ip").args(arguments.split(' ')), Duration::from_secs(60)).or_fail(arguments);
    }

    fn far(&self, arguments: &str) {
        let mut command = Command::new("ip");
        enter(&mut command, Some(&self.far));
        run(command.args(arguments.split(' ')), Duration::from_secs(60)).or_fail(arguments);
    }

    fn node_far_away(&self, server: &Server, name: &str, settings: &[&str]) -> Node {
        let mut node = Node::spawn(server.local_addr(), name, settings, Some(&self.far));
        node.says("open");
        node
    }
}

fn serve(keep_alive: KeepAlive) -> (Server, mpsc::Receiver<Event>) {
    let (notify, reported) = mpsc::channel();
    let observer = Box::new(move |event: &Event| drop(notify.send(event.clone())));
    let options = ServerOptions { observer, keep_alive: Some(keep_alive), ..ServerOptions::on(NEAR, 0) };
    (Server::start(options).expect("a free port"), reported)
}

/// Waits until all that was sent in this namespace has been acknowledged: what is on its way is another case.
fn all_has_arrived() {
    let deadline = Deadline::new();
    let is_sent = |line: &str| {
        let queues = line.split_whitespace().nth(4).and_then(|queues| queues.split_once(':'));
        queues.is_some_and(|(unsent, _)| unsent.bytes().all(|digit| digit == b'0'))
    };
    loop {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table");
        if table.lines().skip(1).all(is_sent) {
            return;
        }
        assert!(!deadline.has_passed(), "{table}");
        std::thread::yield_now();
    }
}

fn host_fell_silent(event: &Event) -> Option<()> {
    match event {
        Event::Closed { reason: CloseReason::HostSilent(_), .. } => Some(()),
        Event::Closed { reason, .. } => panic!("{reason}"),
        _ => None,
    }
}

#[test]
fn a_host_that_falls_silent_is_noticed_by_the_kernel_before_heartbeats_are_missed() {
    let Some(hosts) = hosts("a_host_that_falls_silent_is_noticed_by_the_kernel_before_heartbeats_are_missed")
    else {
        return;
    };
    // All as usual: this is what a user gets who sets nothing.
    let (server, reported) = serve(KeepAlive::default());
    let mut near = Node::start(server.local_addr(), "n0", &TWO);
    let mut far = hosts.node_far_away(&server, "n1", &TWO);
    super::meet(&mut [&mut near, &mut far], 0);
    all_has_arrived();
    hosts.far("link set far down");
    hears(&reported, host_fell_silent);
    near.says_next(&died("n1", 1, 0, "the host fell silent"));
    near.says_next(super::TOO_FEW);
    // The process over there lives, and finds that it is alone.
    let over = far.says("session failed: ServerGone");
    assert!(over.contains(&server.local_addr().to_string()), "{over}");
}

#[test]
fn a_host_that_falls_silent_with_bytes_on_their_way_is_given_up_when_they_are_overdue() {
    let Some(hosts) =
        hosts("a_host_that_falls_silent_with_bytes_on_their_way_is_given_up_when_they_are_overdue")
    else {
        return;
    };
    // Neither probes nor heartbeats would tell of it within the patience of a test.
    let (server, reported) = serve(KeepAlive {
        idle: Duration::from_secs(3600),
        unacknowledged_max: Some(Duration::from_secs(2)),
        ..KeepAlive::default()
    });
    let patient = [&TWO[..], &["heartbeat_ms=3600000"]].concat();
    let mut near = Node::start(server.local_addr(), "n0", &TWO);
    let mut far = hosts.node_far_away(&server, "n1", &patient);
    super::meet(&mut [&mut near, &mut far], 0);
    far.reported("watch news/");
    far.says("watching");
    all_has_arrived();
    hosts.far("link set far down");
    near.reported("set news/1 lost");
    near.says("set done");
    hears(&reported, host_fell_silent);
    near.says_next(&died("n1", 1, 0, "the host fell silent"));
    near.says_next(super::TOO_FEW);
}

#[test]
fn a_server_with_defaults_gives_up_a_silent_host_whatever_is_on_its_way_there() {
    let Some(hosts) = hosts("a_server_with_defaults_gives_up_a_silent_host_whatever_is_on_its_way_there")
    else {
        return;
    };
    let (server, reported) = serve(KeepAlive::default());
    let port = server.local_addr().port();
    let mut near = Node::start(server.local_addr(), "n0", &TWO);
    let mut far = hosts.node_far_away(&server, "n1", &TWO);
    super::meet(&mut [&mut near, &mut far], 0);
    far.reported("watch news/");
    far.says("watching");
    let there = hosts.far.try_clone().expect("another descriptor");
    let waiting = std::thread::spawn(move || {
        // SAFETY: it takes no memory, and concerns this thread only.
        assert_eq!(unsafe { libc::setns(there.as_raw_fd(), libc::CLONE_NEWNET) }, 0, "the other host");
        let store = Store::connect(NEAR, port, StoreOptions::default()).expect("a server");
        store.get(b"news/1", &mut Vec::new(), Timeout::Default).expect_err("the server is silent")
    });
    let deadline = Deadline::new();
    while server.stats().expect("it runs").waiting == 0 {
        assert!(!deadline.has_passed(), "the c10d client waits");
    }
    all_has_arrived();
    let clock = Clock::new();
    hosts.far("link set far down");
    // Both are told, and nothing else is sent to them: the kernel would send these bytes again for 15 minutes.
    near.reported("set news/1 lost");
    near.says("set done");
    for _ in 0..2 {
        hears(&reported, host_fell_silent);
    }
    let after = clock.now().since(Instant::ORIGIN);
    // Five seconds as of the probes, and as much again for what is on its way and for a slow machine.
    assert!(after < Duration::from_secs(10), "after {after:?}");
    near.says_next(&died("n1", 1, 0, "the host fell silent"));
    near.says_next(super::TOO_FEW);
    waiting.join().expect("no panic");
}

#[test]
fn a_node_whose_server_falls_silent_is_told_by_its_own_deadlines() {
    let Some(hosts) = hosts("a_node_whose_server_falls_silent_is_told_by_its_own_deadlines") else { return };
    let (server, _told) = serve(KeepAlive::default());
    let peer = server.local_addr().to_string();
    let mut waiting = hosts.node_far_away(&server, "n0", &[&TWO[..], &["heartbeat_ms=3600000"]].concat());
    let brief = [&TWO[..], &["heartbeat_ms=300", "heartbeats_missed_max=5"]].concat();
    let mut asking = hosts.node_far_away(&server, "n1", &brief);
    let mut faithful = hosts.node_far_away(&server, "n2", &[&TWO[..], &["grace_ms=1000"]].concat());
    waiting.reported("join");
    waiting.says("seated");
    for node in [&mut asking, &mut faithful] {
        node.reported("get never");
    }
    all_has_arrived();
    hosts.near("link set near down");
    for (node, beginning, peer, message) in [
        // Its heartbeats are not answered.
        (
            &mut asking,
            "get failed: ServerGone: get",
            format!("from {peer} lost its server"),
            "while waiting: nothing came from the peer for too long",
        ),
        // It sends none, so the kernel's probes tell.
        (
            &mut waiting,
            "join failed: ServerGone Waiting",
            format!("at {peer} lost its server"),
            "while waiting: Connection timed out",
        ),
        // The session would outlive the connection, if there were another one in time.
        (
            &mut faithful,
            "get failed: ServerGone: get",
            format!("from {peer} lost its server"),
            "while waiting: the session was not resumed within its grace",
        ),
    ] {
        let failed = node.says(beginning);
        assert!(failed.contains(&peer) && failed.contains(message), "{failed}");
        let over = node.has_said("session failed");
        assert!(over.contains(&server.local_addr().to_string()), "{over}");
    }
}

#[test]
fn a_client_with_defaults_gives_up_a_silent_server_whatever_is_on_its_way_there() {
    let Some(hosts) = hosts("a_client_with_defaults_gives_up_a_silent_server_whatever_is_on_its_way_there")
    else {
        return;
    };
    let (server, _told) = serve(KeepAlive::default());
    let port = server.local_addr().port();
    let mut idle = hosts.node_far_away(&server, "n0", &[]);
    let mut asking = hosts.node_far_away(&server, "n1", &[]);
    let far = hosts.far.try_clone().expect("another descriptor");
    let (clock, (go, gone)) = (Clock::new(), mpsc::channel());
    let c10d = std::thread::spawn(move || {
        // SAFETY: it takes no memory, and concerns this thread only.
        assert_eq!(unsafe { libc::setns(far.as_raw_fd(), libc::CLONE_NEWNET) }, 0, "the other host");
        let store = Store::connect(NEAR, port, StoreOptions::default()).expect("a server");
        store.set(b"k", b"v", Timeout::Default).expect("set");
        let gone = gone.recv().expect("the link is taken down");
        let error = store.set(b"k", b"w", Timeout::Default).expect_err("the server is silent");
        (error.to_string(), clock.now().since(gone))
    });
    all_has_arrived();
    hosts.near("link set near down");
    let began = clock.now();
    go.send(began).expect("it waits");
    asking.reported("set k v");
    // Five seconds of the kernel's probes, and as much again for what is on its way and for a slow machine. Without
    // looks at the connection, the heartbeat that is due meanwhile keeps the kernel from its verdict.
    let soon =
        |what: &str, after: Duration| assert!(after < Duration::from_secs(10), "{what} after {after:?}");
    let failed = asking.says("set failed: ServerGone");
    soon(&failed, clock.now().since(began));
    assert!(failed.contains("Connection timed out"), "{failed}");
    let over = idle.says("session failed");
    soon(&over, clock.now().since(began));
    let (error, after) = c10d.join().expect("no panic");
    assert!(error.contains("Connection timed out"), "{error}");
    soon(&error, after);
}
