//! What peers and machines do wrong to a server. Each ends in a close or a clear error, and disturbs nobody else.

use crate::net::{Client, Deadline, start, until};
use crate::rdzv::{RdzvServer, run_server};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::limits::{KEY_BYTES_MAX, KEYS_MAX, ServerLimits, VALUE_BYTES_MAX};
use rendezvous_core::node::server::{CloseReason, Event};
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::c10d::{MAGIC, Opcode};
use rendezvous_tests::frames;
use std::net::Shutdown;
use std::sync::mpsc;

/// Bytes that end a connection at once: what they are, whether the peer has greeted, and the bytes.
fn refused() -> Vec<(String, Greeted, Vec<u8>)> {
    let mut all = vec![
        ("wrong magic".to_owned(), Greeted::No, [&[0][..], &(MAGIC ^ 1).to_le_bytes()].concat()),
        ("wrong magic, cut short".to_owned(), Greeted::No, vec![0, 0xce, 0xf8]),
        ("another protocol".to_owned(), Greeted::No, b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a second greeting".to_owned(), Greeted::Yes, frames::greeting()),
    ];
    for opcode in &Opcode::ALL[1..] {
        all.push((format!("{opcode:?} before the greeting"), Greeted::No, vec![*opcode as u8]));
    }
    for opcode in [19, 20, 0x7f, 0x80, 0xff] {
        all.push((format!("opcode {opcode}"), Greeted::Yes, vec![opcode]));
        all.push((format!("opcode {opcode} before the greeting"), Greeted::No, vec![opcode]));
    }
    use Opcode::{
        Add, Append, Barrier, Check, CompareSet, Delete, Get, MultiGet, MultiSet, QueueLen, QueuePop,
        QueuePush, Set, Wait,
    };
    let lengths = |max: u64| [max + 1, 1 << 63, u64::MAX];
    let length = |length: u64| length.to_le_bytes().to_vec();
    for opcode in [Set, CompareSet, Get, Add, Delete, Append, QueuePush, QueuePop, QueueLen, Barrier] {
        for bytes in lengths(KEY_BYTES_MAX) {
            let frame = [vec![opcode as u8], length(bytes)].concat();
            all.push((format!("{opcode:?} with a key of {bytes} bytes"), Greeted::Yes, frame));
        }
    }
    for opcode in [Set, CompareSet, Append, QueuePush] {
        for bytes in lengths(VALUE_BYTES_MAX) {
            let frame = [vec![opcode as u8], frames::string(b"/k"), length(bytes)].concat();
            all.push((format!("{opcode:?} with a value of {bytes} bytes"), Greeted::Yes, frame));
        }
    }
    for bytes in lengths(VALUE_BYTES_MAX) {
        let frame =
            [vec![CompareSet as u8], frames::string(b"/k"), frames::string(b""), length(bytes)].concat();
        all.push((format!("CompareSet to a value of {bytes} bytes"), Greeted::Yes, frame));
        let frame = [vec![MultiSet as u8], length(1), frames::string(b"/k"), length(bytes)].concat();
        all.push((format!("MultiSet with a value of {bytes} bytes"), Greeted::Yes, frame));
    }
    for opcode in [Check, Wait, MultiGet, MultiSet] {
        for count in lengths(KEYS_MAX) {
            let frame = [vec![opcode as u8], length(count)].concat();
            all.push((format!("{opcode:?} of {count} keys"), Greeted::Yes, frame));
        }
        for bytes in lengths(KEY_BYTES_MAX) {
            let frame = [vec![opcode as u8], length(1), length(bytes)].concat();
            all.push((format!("{opcode:?} with a key of {bytes} bytes"), Greeted::Yes, frame));
        }
    }
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Greeted {
    Yes,
    No,
}

#[test]
fn what_is_no_c10d_closes_that_connection_and_no_other() {
    let server = start(ServerLimits::default());
    let address = server.local_addr();
    let mut neighbour = Client::greet(address);
    neighbour.send(&frames::wait(b"/later"));
    let refused = refused();
    for (what, greeted, bytes) in &refused {
        let mut client =
            if *greeted == Greeted::Yes { Client::greet(address) } else { Client::dial(address) };
        client.send(bytes);
        assert!(client.rest().is_empty(), "{what}");
        neighbour.is_served();
    }
    let stats = until(&server, |stats| stats.connections == 1);
    assert_eq!((stats.expelled, stats.buffered_bytes), (refused.len() as u64, 0));
    neighbour.send(&frames::set(b"/later", b""));
    assert_eq!(neighbour.receive(1), [0]);
    neighbour.is_served();
}

#[test]
fn rdzv_server_closes_on_bad_bytes_and_logs_whose_they_were() {
    let server = RdzvServer::with(&["--bind", "127.0.0.1:0", "--log", "warn"], None);
    let mut neighbour = Client::greet(server.address());
    let mut peers = Vec::new();
    for (what, greeted, bytes) in &refused() {
        let address = server.address();
        let mut client =
            if *greeted == Greeted::Yes { Client::greet(address) } else { Client::dial(address) };
        client.send(bytes);
        assert!(client.rest().is_empty(), "{what}");
        neighbour.is_served();
        peers.push(client.0.local_addr().expect("it was connected"));
    }
    let ended = server.end_with(libc::SIGTERM);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), peers.len(), "{lines:#?}");
    for (line, peer) in lines.iter().zip(peers) {
        assert!(line.contains("Z warn rdzv server: ") && line.contains(&format!("peer={peer}")), "{line}");
    }
    assert!(
        ended.stderr.contains("the greeting carried 0x3c85f7cf where 0x3c85f7ce is due"),
        "{}",
        ended.stderr
    );
}

/// A server that tells why it closes, with these limits.
fn watched(limits: ServerLimits) -> (Server, mpsc::Receiver<CloseReason>) {
    let (reasons, reported) = mpsc::channel();
    let observer = Box::new(move |event: &Event| {
        if let Event::Closed { reason, .. } = event {
            reasons.send(*reason).ok();
        }
    });
    let options = ServerOptions { limits, observer, ..ServerOptions::on("127.0.0.1", 0) };
    (Server::start(options).expect("a free port"), reported)
}

#[test]
fn silence_before_or_within_the_greeting_ends_the_connection() {
    let limits = ServerLimits { handshake_timeout: Duration::from_secs(1), ..ServerLimits::default() };
    let (server, reported) = watched(limits);
    let mut greeted = Client::greet(server.local_addr());
    let greeting = frames::greeting();
    let clients: Vec<Client> = (0..greeting.len())
        .map(|cut| {
            let mut client = Client::dial(server.local_addr());
            client.send(&greeting[..cut]);
            client
        })
        .collect();
    for mut client in clients {
        assert!(client.rest().is_empty());
        assert_eq!(reported.recv(), Ok(CloseReason::HandshakeTimeout));
    }
    greeted.is_served();
    let stats = until(&server, |stats| stats.connections == 1);
    assert_eq!((stats.expelled, stats.buffered_bytes), (greeting.len() as u64, 0));
}

#[test]
fn a_frame_cut_anywhere_and_then_silence_ends_the_connection() {
    let limits = ServerLimits { frame_timeout: Duration::from_millis(100), ..ServerLimits::default() };
    let (server, reported) = watched(limits);
    let mut between_frames = Client::greet(server.local_addr());
    let key = Key::raw(b"/k");
    let keys = Keys::scoped(b"/", &[b"a", b"b"]);
    let cut_frames: Vec<Vec<u8>> = [
        Request::Set { key, value: b"v" },
        Request::CompareSet { key, expected: b"", desired: b"v" },
        Request::Add { key, delta: 1 },
        Request::Wait { keys },
        Request::MultiSet { pairs: Pairs::scoped(b"/", &[(b"a", b"1"), (b"b", b"2")]) },
        Request::QueuePush { key, value: b"v" },
        Request::Barrier { key, world_size: 1 },
    ]
    .into_iter()
    .map(frames::request)
    .chain([frames::ping(1)])
    .flat_map(|frame| (1..frame.len()).map(move |cut| frame[..cut].to_vec()).collect::<Vec<_>>())
    .collect();
    let clients: Vec<Client> = cut_frames
        .iter()
        .map(|cut| {
            let mut client = Client::greet(server.local_addr());
            // What stands before the cut is carried out and answered all the same.
            client.send(&[&frames::get(b"/none"), cut.as_slice()].concat());
            client
        })
        .collect();
    for mut client in clients {
        assert_eq!(client.rest(), frames::string(b""));
        assert_eq!(reported.recv(), Ok(CloseReason::FrameTimeout));
    }
    between_frames.is_served();
    let stats = until(&server, |stats| stats.connections == 1);
    assert_eq!((stats.keys, stats.waiting, stats.buffered_bytes), (0, 0, 0), "nothing of them was applied");
    assert_eq!(stats.expelled, cut_frames.len() as u64);
}

#[test]
fn rdzv_server_serves_one_byte_at_a_time() {
    let server = RdzvServer::start();
    let mut client = Client::dial(server.address());
    let value = vec![7; 3000];
    for byte in [frames::greeting(), frames::set(b"/k", &value), frames::get(b"/k")].concat() {
        client.send(&[byte]);
    }
    assert_eq!(client.receive(3008), frames::string(&value));
}

#[test]
fn half_close_answers_what_was_asked_and_abandons_the_wait() {
    let server = start(ServerLimits::default());
    let (mut waiter, mut other) = (Client::greet(server.local_addr()), Client::greet(server.local_addr()));
    waiter.send(&[frames::wait(b"/k"), frames::wait(b"/q"), frames::add(b"/n", 5)].concat());
    assert_eq!(waiter.receive(8), 5i64.to_le_bytes());
    until(&server, |stats| stats.waiting == 2);
    waiter.send(&frames::get(b"/n"));
    waiter.0.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(waiter.rest(), frames::string(b"5"));
    until(&server, |stats| stats.waiting == 0 && stats.connections == 1);
    // A queued item goes to nobody who has left.
    other.send(&[frames::set(b"/k", b"v"), frames::push(b"/q", b"item")].concat());
    other.send(&frames::request(Request::QueueLen { key: Key::raw(b"/q") }));
    assert_eq!(other.receive(8), 1i64.to_le_bytes());
}

#[test]
fn counting_on_a_value_that_is_no_number_closes_that_connection_only() {
    let (server, reported) = watched(ServerLimits::default());
    let mut neighbour = Client::greet(server.local_addr());
    let key = Key::raw(b"/k");
    for value in [&b"abc"[..], b"", b"-", b"9223372036854775808"] {
        neighbour.send(&frames::set(b"/k", value));
        neighbour.is_served();
        for request in [Request::Add { key, delta: 1 }, Request::Barrier { key, world_size: 1 }] {
            let mut client = Client::greet(server.local_addr());
            client.send(&frames::request(request));
            assert!(client.rest().is_empty());
            assert!(matches!(reported.recv(), Ok(CloseReason::Refused(_))));
            neighbour.send(&frames::get(b"/k"));
            assert_eq!(neighbour.receive(8 + value.len()), frames::string(value), "the value is untouched");
        }
    }
}

/// Descriptors that `rdzv server` may have in the test below.
const DESCRIPTORS_MAX: u64 = 32;

#[test]
fn out_of_descriptors_it_serves_those_it_has_and_accepts_again_when_others_leave() {
    let server = RdzvServer::with(&["--bind", "127.0.0.1:0"], Some(DESCRIPTORS_MAX));
    let limits = server.proc_file("limits");
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line on open files");
    assert_eq!(limit.split_whitespace().nth(3), Some("32"), "the restriction holds");

    let most = usize::try_from(DESCRIPTORS_MAX).expect("a small number");
    let mut served: Vec<Client> = (0..most - server.descriptors_below(DESCRIPTORS_MAX))
        .map(|_| Client::greet(server.address()))
        .collect();
    assert_eq!(server.descriptors_below(DESCRIPTORS_MAX), most, "none is left");
    // The system completes their connections, and the server cannot take them yet.
    let mut waiting: Vec<Client> = (0..5)
        .map(|_| {
            let mut client = Client::dial(server.address());
            client.send(&[frames::greeting(), frames::ping(7)].concat());
            client
        })
        .collect();
    for _ in 0..100 {
        served.iter_mut().for_each(Client::is_served);
    }
    assert_eq!(server.descriptors_below(DESCRIPTORS_MAX), most);
    for client in &mut waiting {
        client.0.set_nonblocking(true).expect("the option can be set");
        let early = std::io::Read::read(&mut client.0, &mut [0; 1]);
        assert_eq!(
            early.map_err(|error| error.kind()),
            Err(std::io::ErrorKind::WouldBlock),
            "nobody took it"
        );
        client.0.set_nonblocking(false).expect("the option can be set");
    }
    // One leaves, one comes in, in the order in which they came.
    for client in &mut waiting {
        drop(served.pop());
        assert_eq!(client.receive(4), 7u32.to_le_bytes());
        client.is_served();
    }
    served.iter_mut().for_each(Client::is_served);
    drop((served, waiting));
    let deadline = Deadline::new();
    while server.descriptors_below(DESCRIPTORS_MAX) > most / 2 {
        assert!(!deadline.has_passed(), "descriptors of connections that are gone are given back");
    }
    Client::greet(server.address()).is_served();
    assert!(server.end_with(libc::SIGTERM).status.success());
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let server = RdzvServer::start();
    let bind = server.address().to_string();
    let ended = run_server(&["--bind", &bind]);
    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(1), ""));
    let due = format!("rdzv server: cannot listen on {bind}: the address is in use");
    assert!(ended.stderr.contains(&due), "{}", ended.stderr);
    Client::greet(server.address()).is_served();
}

#[test]
fn an_address_that_is_none_is_an_error_before_anything_starts() {
    for (bind, due) in [
        (":29400", "a host is missing"),
        ("127.0.0.1:70000", "is not a port"),
        ("no.such.name.invalid:0", "the name has no address"),
        ("192.0.2.1:0", "the address is not one of this host"),
    ] {
        let ended = run_server(&["--bind", bind]);
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{bind}: {ended:?}");
        assert!(ended.stderr.contains(due), "{bind}: {}", ended.stderr);
    }
}

#[test]
fn rdzv_server_says_where_it_listens_and_ends_cleanly_when_told() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let server = RdzvServer::start();
        assert_ne!(server.address().port(), 0);
        let mut client = Client::greet(server.address());
        client.send(&frames::wait(b"/never"));
        client.is_served();
        let ended = server.end_with(signal);
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{ended:?}");
        assert!(ended.stderr.contains("Z info rdzv server: version "), "{ended:?}");
        assert!(client.rest().is_empty(), "its clients see the end at once");
    }
}
