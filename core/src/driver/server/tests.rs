use super::*;
use crate::driver::testing::{
    TemporaryFile, TemporaryFolder, end_of, in_a_child, is_alone, take_descriptors,
};
use crate::limits::{FrameLimits, UngreetedLimits};
use crate::wire::native::{self, Label, ServerFrame, plain_hello};
use socket2::Socket;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::vec::Vec;
use std::{format, vec};

fn start() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port")
}

fn dial(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn greet(server: &Server) -> TcpStream {
    let mut stream = dial(server);
    stream.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4]).unwrap();
    assert_eq!(read(&mut stream, 4), [1, 2, 3, 4]);
    stream
}

fn read(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).expect("an answer in time");
    buffer
}

fn at_end(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0))
        || matches!(stream.read(&mut [0; 1]), Err(error) if error.raw_os_error() == Some(libc::ECONNRESET))
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[1][..], &string(key), &string(value)].concat()
}

fn get(key: &[u8]) -> Vec<u8> {
    [&[3][..], &string(key)].concat()
}

/// Requests the statistics until they satisfy `wished`. Each response is an event of the server.
fn until(server: &Server, wished: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let stats = server.stats().expect("it runs");
        if wished(&stats) {
            return stats;
        }
        assert!(std::time::Instant::now() < deadline, "{stats:?}");
    }
}

#[test]
fn a_value_goes_round_and_large_ones_too() {
    let server = start();
    let mut client = greet(&server);
    for size in [0, 1, 40, 41, 5000, 8 << 20] {
        let value = vec![7; size];
        client.write_all(&[set(b"/k", &value), get(b"/k")].concat()).unwrap();
        assert!(read(&mut client, 8 + size) == string(&value), "{size}");
    }
    server.stop().unwrap();
    assert!(at_end(&mut client));
    assert_eq!(server.stats(), Err(ServerFailure::Stopped));
}

#[test]
fn half_close_is_answered_and_then_closed() {
    let server = start();
    let mut client = greet(&server);
    client.write_all(&[set(b"/k", b"v"), get(b"/k")].concat()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read(&mut client, 9), string(b"v"));
    assert!(at_end(&mut client));
    until(&server, |stats| stats.connections == 0);
}

#[test]
fn a_reader_that_never_reads_holds_nobody_up_and_little_memory() {
    let server = start();
    let (mut greedy, mut other) = (greet(&server), greet(&server));
    other.write_all(&[set(b"/big", &vec![1; 8 << 20]), get(b"/none")].concat()).unwrap();
    assert_eq!(read(&mut other, 8), [0; 8]);
    let tasks = get(b"/big").repeat(1000);
    greedy.write_all(&tasks).unwrap();
    let stats = until(&server, |stats| stats.buffered_bytes > 0);
    assert!(stats.buffered_bytes < 40 << 20, "{stats:?}");
    other.write_all(&get(b"/none")).unwrap();
    assert_eq!(read(&mut other, 8), [0; 8]);
    // When it reads at last, it gets every byte.
    for _ in 0..3 {
        assert_eq!(read(&mut greedy, 8 + (8 << 20))[..8], (8u64 << 20).to_le_bytes());
    }
    drop(greedy);
    until(&server, |stats| stats.connections == 1 && stats.buffered_bytes == 0);
}

/// Together they accept more in one iteration than the server writes in one, so most of their sockets have to wait in turn.
#[test]
fn readers_that_begin_to_read_at_once_get_all_and_hold_nobody_up() {
    const READERS: usize = 12;
    const ANSWERS: usize = 6;
    let server = start();
    let mut other = greet(&server);
    let value: Vec<u8> = (0..4u32 << 20).map(|at| (at / 251).to_le_bytes()[0]).collect();
    other.write_all(&[set(b"/big", &value), get(b"/none")].concat()).unwrap();
    assert_eq!(read(&mut other, 8), [0; 8]);
    let mut readers: Vec<TcpStream> = (0..READERS).map(|_| greet(&server)).collect();
    for reader in &mut readers {
        socket2::SockRef::from(&*reader).set_recv_buffer_size(1 << 16).unwrap();
        reader.write_all(&get(b"/big").repeat(ANSWERS)).unwrap();
    }
    until(&server, |stats| stats.requests >= 2 + READERS as u64);
    let expected = string(&value);
    std::thread::scope(|scope| {
        for mut reader in readers {
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..ANSWERS {
                    assert!(read(&mut reader, expected.len()) == *expected);
                }
            });
        }
        for _ in 0..20 {
            other.write_all(&get(b"/none")).unwrap();
            assert_eq!(read(&mut other, 8), [0; 8]);
        }
    });
    until(&server, |stats| stats.connections == 1 && stats.buffered_bytes == 0);
}

#[test]
fn clients_that_do_not_greet_keep_no_other_out() {
    let ungreeted = UngreetedLimits { count_max: 8, time_min: Duration::from_millis(20) };
    let handshake_timeout = Duration::from_secs(3600);
    let limits = ServerLimits { ungreeted, handshake_timeout, ..ServerLimits::default() };
    let server = Server::start(ServerOptions { limits, ..ServerOptions::on("127.0.0.1", 0) }).unwrap();
    let mut member = greet(&server);
    let mut strangers: Vec<TcpStream> = (0..20).map(|_| dial(&server)).collect();
    let mut late = greet(&server);
    let stats = until(&server, |stats| stats.accepted == 22);
    assert!(stats.connections <= 2 + 8 && stats.expelled >= 12, "{stats:?}");
    assert!(at_end(&mut strangers[0]), "the oldest");
    for client in [&mut member, &mut late] {
        client.write_all(&[set(b"/k", b"v"), get(b"/k")].concat()).unwrap();
        assert_eq!(read(client, 9), string(b"v"));
    }
}

#[test]
fn ten_thousand_connections_come_and_go_and_leave_nothing() {
    let server = start();
    for _ in 0..100 {
        let clients: Vec<TcpStream> = (0..100).map(|_| dial(&server)).collect();
        drop(clients);
    }
    let stats = until(&server, |stats| stats.accepted == 10_000 && stats.connections == 0);
    assert_eq!((stats.buffered_bytes, stats.waiting), (0, 0));
}

#[test]
fn a_socket_from_outside_is_adopted_bound_or_listening() {
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    for fd in [OwnedFd::from(listening), OwnedFd::from(bound)] {
        let options = ServerOptions { listen: Listen::Adopted(fd), ..ServerOptions::on("", 0) };
        let server = Server::start(options).unwrap();
        let mut client = greet(&server);
        client.write_all(&get(b"/k")).unwrap();
        assert_eq!(read(&mut client, 8), [0; 8]);
    }
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for fd in [OwnedFd::from(unbound), OwnedFd::from(file)] {
        let options = ServerOptions { listen: Listen::Adopted(fd), ..ServerOptions::on("", 0) };
        assert_eq!(Server::start(options).unwrap_err().kind, StartErrorKind::NotAListener);
    }
}

#[test]
fn what_cannot_be_bound_is_told_with_its_address() {
    let server = start();
    let port = server.local_addr().port();
    let error = Server::start(ServerOptions::on("127.0.0.1", port)).unwrap_err();
    assert_eq!(error.kind, StartErrorKind::AddressInUse);
    assert!(
        format!("{error}").starts_with(&format!("cannot listen on 127.0.0.1:{port}: the address is in use"))
    );
    for (host, kind) in [
        ("192.0.2.1", StartErrorKind::AddressNotAvailable),
        ("no.such.name.invalid", StartErrorKind::Unresolved),
    ] {
        assert_eq!(Server::start(ServerOptions::on(host, 0)).unwrap_err().kind, kind, "{host}");
    }
}

#[test]
fn an_address_is_bound_as_given_and_both_families_only_when_asked() {
    let reaches = |host: &str, family| {
        let listen = Listen::Address { host: host.to_string(), port: 0, family };
        let server = Server::start(ServerOptions { listen, ..ServerOptions::on("", 0) }).unwrap();
        ["127.0.0.1", "::1"].map(|peer| TcpStream::connect((peer, server.local_addr().port())).is_ok())
    };
    assert_eq!(reaches("127.0.0.1", Family::AsGiven), [true, false]);
    assert_eq!(reaches("::1", Family::AsGiven), [false, true]);
    assert_eq!(reaches("::", Family::AsGiven), [false, true]);
    assert_eq!(reaches("::", Family::DualStack), [true, true]);
}

#[test]
fn a_panic_in_the_reactor_ends_the_server_and_closes_its_clients() {
    let options = ServerOptions {
        observer: Box::new(|event| {
            if matches!(event, Event::Closed { .. }) {
                panic!("provoked");
            }
        }),
        ..ServerOptions::on("127.0.0.1", 0)
    };
    let server = Server::start(options).unwrap();
    let (mut stays, goes) = (greet(&server), greet(&server));
    drop(goes);
    assert!(at_end(&mut stays));
    let panicked = ServerFailure::Panicked("provoked".to_string());
    assert_eq!(server.stats(), Err(panicked.clone()));
    assert_eq!(server.stop(), Err(panicked));
}

#[test]
fn an_observer_may_stop_its_server() {
    let index: Arc<OnceLock<Server>> = Arc::default();
    let weak_index = Arc::downgrade(&index);
    let options = ServerOptions {
        observer: Box::new(move |event| {
            if let (Event::Closed { .. }, Some(index)) = (event, weak_index.upgrade()) {
                index.get().map(Server::stop);
            }
        }),
        ..ServerOptions::on("127.0.0.1", 0)
    };
    let server = index.get_or_init(|| Server::start(options).unwrap());
    drop(greet(server));
    assert_eq!(server.wait(), ServerFailure::Stopped);
}

#[test]
fn a_server_that_stops_notifies_its_sessions() {
    let server = start();
    let mut hello = native::MAGIC.to_vec();
    native::encode_frame(&mut hello, Label::default(), &plain_hello(b"n")).unwrap();
    let mut sessions: Vec<TcpStream> = (0..3).map(|_| dial(&server)).collect();
    let frame = |session: &mut TcpStream| {
        let header = read(session, native::HEADER_BYTES);
        let body_bytes = u32::from_le_bytes(header[..4].try_into().unwrap());
        let body = read(session, body_bytes as usize);
        let kind = u16::from_le_bytes(header[4..6].try_into().unwrap());
        ServerFrame::parse(kind, &body, &FrameLimits::default()).unwrap().map(|frame| format!("{frame:?}"))
    };
    for session in &mut sessions {
        session.write_all(&hello).unwrap();
        assert!(frame(session).is_some_and(|frame| frame.starts_with("Welcome")));
    }
    server.stop().unwrap();
    for session in &mut sessions {
        assert_eq!(frame(session).as_deref(), Some("SessionOver { why: ServerStopped }"));
        assert!(at_end(session));
    }
}

/// Returns the processor time of a server's thread: other tests may run in this process.
fn processor_time(server: &Server) -> Duration {
    let running = server.thread.locked();
    let thread = running.as_ref().expect("it runs").pthread();
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the thread has not been joined, and both are valid for writing.
    let known = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    assert_eq!(known, 0, "the thread runs");
    // SAFETY: as above.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[test]
fn a_listener_that_its_owner_shut_down_does_not_spin_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Adopted(OwnedFd::from(listener.try_clone().unwrap()));
    let server = Server::start(ServerOptions { listen, ..ServerOptions::on("", 0) }).unwrap();
    let mut client = greet(&server);
    // SAFETY: the descriptor is open and belongs to this test.
    unsafe { libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&listener), libc::SHUT_RDWR) };
    // A read that times out is a pause that an event could end.
    client.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    let before = processor_time(&server);
    let read_early = client.read(&mut [0; 1]);
    assert!(read_early.is_err(), "the server has nothing to say: {read_early:?}");
    let spent = processor_time(&server) - before;
    assert!(spent < Duration::from_millis(300), "an idle server took {spent:?} of 600 ms");
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(&get(b"/k")).unwrap();
    assert_eq!(read(&mut client, 8), [0; 8], "open connections are served");
}

#[test]
fn a_server_that_other_hosts_may_reach_says_so_once() {
    let tokens = TemporaryFile::new("exposed-tokens");
    std::fs::write(tokens.path(), "0123456789abcdef0123456789abcdef").expect("a token file");
    let exposed = |host: &str, more: &[&str], c10d_from: Option<&str>| {
        let (notify, reported) = crate::driver::channel::unbounded();
        let observer = Box::new(move |event: &Event| {
            if let Event::Exposed { addr, .. } = event {
                notify
                    .send((addr.ip().to_string(), event.severity(), event.to_string()))
                    .expect("it is awaited");
            }
        });
        let listen = |host: &&str| Listen::Address { host: (*host).into(), port: 0, family: Family::AsGiven };
        let more = more.iter().map(listen).collect();
        // With networks of c10d clients, native clients need a token.
        let auth_tokens = c10d_from.map(|_| ServerTokens::open(tokens.path()).expect("a token"));
        let c10d_from = c10d_from.map(|networks| Network::parse_list(networks).expect("networks"));
        let options = ServerOptions { observer, more, auth_tokens, c10d_from, ..ServerOptions::on(host, 0) };
        drop(Server::start(options).expect("a free port"));
        std::iter::from_fn(|| reported.try_recv().ok()).collect::<Vec<_>>()
    };
    assert_eq!(exposed("127.0.0.1", &["127.0.0.2"], None), []);
    let reports = exposed("127.0.0.1", &["0.0.0.0", "0.0.0.0"], None);
    assert_eq!(reports.len(), 1, "{reports:?}");
    let (ip, severity, text) = &reports[0];
    assert_eq!((ip.as_str(), *severity), ("0.0.0.0", crate::node::server::Severity::Warning));
    assert!(
        text.contains("and clients need not authenticate themselves") && text.contains("--auth-token-file"),
        "{text}"
    );
    // An operator who names a network means it, but not one with all addresses.
    assert_eq!(exposed("127.0.0.1", &[], Some("0.0.0.0/0,::/0")), []);
    assert_eq!(exposed("0.0.0.0", &[], Some("loopback,10.0.0.0/8")), []);
    assert_eq!(exposed("0.0.0.0", &[], Some("::/0")), [], "no client has such an address");
    let reports = exposed("0.0.0.0", &[], Some("loopback,0.0.0.0/0"));
    assert_eq!(reports.len(), 1, "{reports:?}");
    let text = &reports[0].2;
    assert!(
        text.contains("and c10d clients need not authenticate") && text.contains("--allow-c10d-from"),
        "{text}"
    );
}

#[test]
fn a_client_that_takes_the_last_descriptor_meets_the_new_tokens() {
    if !is_alone() {
        return;
    }
    let file = TemporaryFile::new("server-tokens");
    let secret = "0123456789abcdef0123456789abcdef";
    std::fs::write(file.path(), format!("one {secret} all\ntwo {secret} all")).unwrap();
    let (events, reported) = std::sync::mpsc::channel();
    let server = Server::start(ServerOptions {
        auth_tokens: Some(ServerTokens::open(file.path()).unwrap()),
        observer: Box::new(move |event| events.send(event.clone()).unwrap_or_default()),
        ..ServerOptions::on("127.0.0.1", 0)
    });
    let server = server.expect("a free port");
    let client = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    // In one step: the server may look at the file at any time.
    let next = TemporaryFile::new("server-tokens-next");
    std::fs::write(next.path(), format!("one {secret} all")).unwrap();
    std::fs::rename(next.path(), file.path()).unwrap();
    let mut taken = take_descriptors();
    taken.pop();
    client.connect(&server.local_addr().into()).expect("the server listens");
    let reloaded = core::iter::from_fn(|| reported.recv_timeout(Duration::from_secs(20)).ok())
        .find(|event| matches!(event, Event::TokensReloaded { .. } | Event::TokensKept { .. }));
    assert_eq!(reloaded, Some(Event::TokensReloaded { count: 1 }));
}

/// A session of one would be resumed at the other.
#[test]
fn servers_of_processes_that_were_forked_from_one_have_different_incarnations() {
    let folder = TemporaryFolder::new("forked-servers");
    let mut incarnations = vec![start().incarnation()];
    for name in ["first", "second"] {
        let path = folder.path().join(name);
        let child = in_a_child(|| std::fs::write(&path, start().incarnation().to_le_bytes()).ok());
        assert_eq!(end_of(child), 0);
        let bytes = std::fs::read(&path).expect("the child wrote it");
        incarnations.push(u64::from_le_bytes(bytes.try_into().expect("8 bytes")));
    }
    incarnations.sort_unstable();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 3, "{incarnations:?}");
}
