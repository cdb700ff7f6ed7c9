//! RPC groups whose workers are processes that are killed, stopped and started again.

use crate::net::TIMEOUT;
use crate::process;
use crate::rdzv::RdzvServer;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A running `rpc_worker`. Dropping it kills it.
struct Worker {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(url: &str, name: &str, id: u16, size: u16, settings: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rpc_worker"));
        command.args([url, name, &id.to_string(), &size.to_string()]).args(settings);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (notify, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| notify.send(line)).ok();
        });
        Self { name: name.into(), child, stdin, lines }
    }

    fn reported(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    #[track_caller]
    fn next_line(&self) -> String {
        let line = self.lines.recv_timeout(TIMEOUT);
        line.unwrap_or_else(|error| panic!("{} says nothing more: {error}", self.name))
    }

    /// Its next line, events apart.
    #[track_caller]
    fn says(&self) -> String {
        loop {
            let line = self.next_line();
            if !line.starts_with("event ") {
                return line;
            }
        }
    }

    /// Waits for an event with these words.
    #[track_caller]
    fn hears(&self, message: &str) {
        loop {
            let line = self.next_line();
            if line.starts_with("event ") && line.contains(message) {
                return;
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn url_of(server: &RdzvServer) -> String {
    server.address().to_string()
}

/// A port that nothing listens at.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A static group that has begun; its workers are w0, w1 and so on.
fn begun(url: &str, size: u16) -> Vec<Worker> {
    let workers: Vec<Worker> =
        (0..size).map(|id| Worker::start(url, &format!("w{id}"), id, size, &["20"])).collect();
    workers.iter().for_each(|worker| assert_eq!(worker.says(), "joined", "{}", worker.name));
    workers
}

#[test]
fn a_static_group_that_has_begun_refuses_a_second_worker_of_a_name() {
    let server = RdzvServer::start();
    let url = url_of(&server);
    let mut workers = begun(&url, 3);
    let refusal = "failed: RPC worker name w2 is not unique: the static group has formed with w2 (id 2) at ";
    let second = Worker::start(&url, "w2", 2, 3, &["20"]).says();
    assert!(second.starts_with(refusal), "{second}");
    // Its end counts for nobody's.
    for worker in &mut workers {
        worker.reported("call w2");
        assert_eq!(worker.says(), "answered", "{}", worker.name);
    }
    workers.iter_mut().for_each(|worker| worker.reported("leave"));
    workers.iter().for_each(|worker| assert_eq!(worker.says(), "left", "{}", worker.name));
}

#[test]
fn a_killed_worker_of_a_static_group_does_not_come_back() {
    let server = RdzvServer::start();
    let url = url_of(&server);
    let mut workers = begun(&url, 3);
    workers[2].kill();
    workers[0].hears("PeerDied { worker: WorkerInfo { name: 'w2'");
    let again = Worker::start(&url, "w2", 2, 3, &["20"]).says();
    assert!(again.contains("w2 is not unique: the static group has formed with w2 (id 2)"), "{again}");
    assert!(again.ends_with("restart all its workers with another key prefix"), "{again}");
}

#[test]
fn a_killed_worker_of_a_dynamic_group_joins_anew() {
    let server = RdzvServer::start();
    let url = url_of(&server);
    let mut first = Worker::start(&url, "first", 0, 0, &[]);
    assert_eq!(first.says(), "joined");
    let mut second = Worker::start(&url, "second", 1, 0, &[]);
    assert_eq!(second.says(), "joined");
    second.kill();
    let again = Worker::start(&url, "second", 1, 0, &[]);
    assert_eq!(again.says(), "joined");
    first.reported("call second");
    assert_eq!(first.says(), "answered");
}

#[test]
fn a_death_while_a_static_group_meets_is_told_at_once() {
    let server = RdzvServer::start();
    let url = url_of(&server);
    let (host, port) = (server.address().ip().to_string(), server.address().port());
    let store = Store::connect(&host, port, StoreOptions::default()).expect("connected");
    let waiting = Worker::start(&url, "w0", 0, 3, &["3600"]);
    let mut dying = Worker::start(&url, "w1", 1, 3, &["3600"]);
    let keys: [&[u8]; 2] = [b"rpc_prefix_0/rdzv/cards/0", b"rpc_prefix_0/rdzv/cards/1"];
    store.wait(&keys, Timeout::After(TIMEOUT)).expect("both wait for the third");
    dying.kill();
    let message =
        "failed: w1 (id 1) died while the group was forming: its session with the store's server ended";
    assert_eq!(waiting.says(), message);
}

/// Workers that are busy with each other hear of the end of one that failed for a death before they hear of the death.
#[test]
fn the_dead_worker_is_named_while_a_static_group_ends() {
    for round in 0..4 {
        let server = RdzvServer::start();
        let mut workers = begun(&url_of(&server), 4);
        for (worker, callee) in [(1, "w0"), (2, "w1")] {
            workers[worker].reported(&format!("busy {callee}"));
            workers[worker].reported("leave");
        }
        workers[0].reported("leave");
        workers[3].kill();
        for worker in &workers[..3] {
            let mut line = worker.next_line();
            while !line.starts_with("failed") {
                let is_wrong = line.contains("PeerDied") && !line.contains("'w3'");
                assert!(!is_wrong, "round {round}, {}: {line}", worker.name);
                line = worker.next_line();
            }
            assert!(line.starts_with("failed: w3 (id 3) died while the group was ending"), "{round}: {line}");
        }
    }
}

/// The first hosts the store, and all leave at once.
#[test]
fn the_store_of_a_group_stays_until_all_have_left() {
    let url = format!("tcp://127.0.0.1:{}", free_port());
    for size in [0, 6] {
        let mut workers: Vec<Worker> =
            (0..6).map(|id| Worker::start(&url, &format!("w{id}"), id, size, &["60"])).collect();
        workers.iter().for_each(|worker| assert_eq!(worker.says(), "joined", "{}", worker.name));
        workers.iter_mut().for_each(|worker| worker.reported("leave"));
        workers.iter().for_each(|worker| assert_eq!(worker.says(), "left", "{}", worker.name));
    }
}

#[test]
fn a_worker_joins_a_group_whose_host_has_left_and_waits() {
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let mut host = Worker::start(&url, "host", 0, 0, &["60"]);
    assert_eq!(host.says(), "joined");
    let mut guest = Worker::start(&url, "guest", 1, 0, &["60"]);
    assert_eq!(guest.says(), "joined");
    host.reported("leave");
    guest.hears("Left(WorkerInfo { name: 'host'");
    // The store is there still.
    let mut late = Worker::start(&url, "late", 2, 0, &["60"]);
    assert_eq!(late.says(), "joined");
    for worker in [&mut guest, &mut late] {
        worker.reported("leave");
        assert_eq!(worker.says(), "left", "{}", worker.name);
    }
    assert_eq!(host.says(), "left");
}

/// It hosts the store, and does not wait for ever for those who stay.
#[test]
fn a_host_waits_for_the_others_until_its_time_is_up() {
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let mut host = Worker::start(&url, "host", 0, 0, &["5"]);
    assert_eq!(host.says(), "joined");
    let mut guest = Worker::start(&url, "guest", 1, 0, &["60"]);
    assert_eq!(guest.says(), "joined");
    host.reported("leave");
    assert_eq!(host.says(), "left");
    guest.reported("leave");
    assert!(guest.says().starts_with("failed: the store failed"));
}

/// As a host that is powered off: its session ends after 15 s.
#[test]
fn a_frozen_member_of_a_dynamic_group_holds_up_nobody() {
    let server = RdzvServer::start();
    let url = url_of(&server);
    let mut first = Worker::start(&url, "first", 0, 0, &["20"]);
    assert_eq!(first.says(), "joined");
    let frozen = Worker::start(&url, "frozen", 1, 0, &["20"]);
    assert_eq!(frozen.says(), "joined");
    process::stop(&frozen.child);
    first.hears("PeerDied { worker: WorkerInfo { name: 'frozen'");
    let mut third = Worker::start(&url, "third", 2, 0, &["20"]);
    assert_eq!(third.says(), "joined");
    let again = Worker::start(&url, "frozen", 1, 0, &["20"]);
    assert_eq!(again.says(), "joined");
    third.reported("call frozen");
    assert_eq!(third.says(), "answered");
    third.reported("leave");
    assert_eq!(third.says(), "left");
    // It goes on, without a session, and the others have gone on without it.
    process::signal(&frozen.child, libc::SIGCONT);
    frozen.hears("WatchLost");
    let mut frozen = frozen;
    frozen.reported("leave");
    assert_eq!(frozen.says(), "left");
    first.reported("workers");
    assert_eq!(first.says(), "workers first frozen");
}
