use super::*;
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store::Store;
use crate::driver::testing::becomes_readable;
use crate::driver::timeout::Timeout;
use crate::error::{Cause, Effect, ErrorKind, Phase};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;

/// Longer than anything here takes. A test that needs it has failed.
const SOON: Duration = Duration::from_secs(20);
const DEFAULT: Timeout = Timeout::Default;

fn millis(count: u64) -> Timeout {
    Timeout::After(Duration::from_millis(count))
}

fn real_server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server")
}

/// A store, and the client that it is made of.
struct Watched {
    store: Store,
    client: Arc<Client>,
}

impl core::ops::Deref for Watched {
    type Target = Store;
    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Watched {
    fn connect(port: u16, options: StoreOptions) -> Self {
        let client = Arc::new(Client::connect("127.0.0.1", port, options).expect("connected"));
        Self { store: Store::over(Arc::clone(&client) as Arc<dyn Backend>), client }
    }

    fn idle_connections(&self) -> usize {
        self.client.idle_connections()
    }
}

fn connect(port: u16) -> Watched {
    Watched::connect(port, options())
}

fn options() -> StoreOptions {
    StoreOptions { timeout: SOON, connect_timeout: SOON, ..StoreOptions::default() }
}

fn connect_error(host: &str, port: u16, connect_timeout_ms: u64) -> CallError {
    let connect_timeout = Duration::from_millis(connect_timeout_ms);
    Store::connect(host, port, StoreOptions { connect_timeout, ..options() }).expect_err("no server")
}

/// Server that follows the test's scripts, for one connection after the other.
struct Scripted {
    port: u16,
    thread: Option<thread::JoinHandle<()>>,
}

impl Scripted {
    fn new(scripts: Vec<fn(TcpStream)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let thread = thread::spawn(move || {
            for script in scripts {
                script(listener.accept().expect("a client").0);
            }
        });
        Self { port, thread: Some(thread) }
    }

    /// Waits until every script has run.
    fn finish(mut self) {
        self.thread.take().expect("once").join().expect("the script fits the client");
    }
}

fn read_exactly(socket: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = alloc::vec![0; bytes];
    socket.read_exact(&mut buffer).expect("as many bytes");
    buffer
}

/// Answers a greeting as a store does.
fn greet(socket: &mut TcpStream) {
    let greeting = read_exactly(socket, 10);
    assert_eq!(greeting[..6], [0x00, 0xce, 0xf7, 0x85, 0x3c, 0x0d]);
    socket.write_all(&greeting[6..]).expect("sent");
}

/// Reads until the client has closed the connection.
fn drain(mut socket: TcpStream) {
    let _ = socket.read_to_end(&mut Vec::new());
}

const ADD_BYTES: usize = 1 + 8 + 2 + 8;
const GET_BYTES: usize = 1 + 8 + 8 + 2 + 1 + 8 + 2;

#[test]
fn calls_one_after_the_other_share_a_connection() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    for (number, timeout) in [DEFAULT, Timeout::Once, millis(5000)].into_iter().enumerate() {
        store.set(b"k", b"value", timeout).expect("set");
        assert_eq!(store.get_owned(b"k", timeout).expect("got"), b"value");
        store.get_owned(b"none", Timeout::Once).expect_err("missing");
        store.barrier(&[u8::try_from(number).expect("small")], 2, millis(20)).expect_err("alone");
        store.queue_pop(b"q", &mut Vec::new(), Timeout::Once).expect_err("empty");
    }
    assert_eq!(store.idle_connections(), 1, "one connection did it all");
}

#[test]
fn a_pending_wait_delays_nobody() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| store.get_owned(b"later", DEFAULT).expect("set in the end")))
            .collect();
        let popping = scope.spawn(|| {
            let mut item = Vec::new();
            store.queue_pop(b"q", &mut item, DEFAULT).map(|()| item).expect("pushed in the end")
        });
        let barriers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| store.barrier(b"b", 3, DEFAULT).expect("all three"))).collect();
        let by_keys: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| store.barrier_by_keys(b"bk", 3, DEFAULT).expect("all three")))
            .collect();
        for count in 1..=100 {
            assert_eq!(store.add(b"n", 1, DEFAULT).expect("added"), count);
        }
        store.set(b"later", b"now", DEFAULT).expect("set");
        store.queue_push(b"q", b"item", DEFAULT).expect("pushed");
        for thread in waiting {
            assert_eq!(thread.join().expect("no panic"), b"now");
        }
        assert_eq!(popping.join().expect("no panic"), b"item");
        barriers.into_iter().chain(by_keys).for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn deadlines_hold_and_the_connection_goes_on() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    let mut value = Vec::new();
    let attempts: [&dyn Fn() -> Result<(), CallError>; 5] = [
        &|| store.get_owned(b"none", millis(80)).map(drop),
        &|| store.wait(&[b"none", b"neither"], millis(80)),
        &|| store.multi_get(&[b"none"], millis(80)).map(drop),
        &|| store.barrier(b"b", 2, millis(80)),
        &|| store.barrier_by_keys(b"bk", 2, millis(80)),
    ];
    for attempt in attempts {
        let began = std::time::Instant::now();
        let error = attempt().expect_err("nothing happens");
        let took = began.elapsed();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::TimedOut, Phase::Waiting), "{error}");
        assert!(took >= Duration::from_millis(79) && took < Duration::from_secs(5), "{error}: {took:?}");
        assert!(error.elapsed() >= Duration::from_millis(79) && error.elapsed() <= took);
        assert_eq!(store.idle_connections(), 1, "{error}");
    }
    store.queue_pop(b"q", &mut value, millis(80)).expect_err("nothing is pushed");
    store.set(b"none", b"x", DEFAULT).expect("set");
    assert_eq!(store.get_owned(b"none", DEFAULT).expect("got"), b"x");
    let text = store.get_owned(b"never", millis(80)).expect_err("never").to_string();
    let peer = format!("get \"never\" from 127.0.0.1:{} timed out after ", server.local_addr().port());
    assert!(text.starts_with(&peer) && text.ends_with(" while waiting: the key was not set"), "{text}");
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let error = connect_error("127.0.0.1", port, 150);
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Refused, Phase::Connecting), "{error}");
    assert!(error.elapsed() >= Duration::from_millis(150) && error.elapsed() < Duration::from_secs(5));
    assert_eq!(error.cause(), Cause::Os(libc::ECONNREFUSED));
    let error = connect_error("127.0.0.1", port, 0);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.elapsed() < Duration::from_secs(5), "once is once");
}

#[test]
fn a_server_that_comes_up_late_is_found() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let (about_to, wait_for) = mpsc::channel();
    let client = thread::spawn(move || {
        about_to.send(()).expect("the test waits for it");
        connect(port).ping(DEFAULT)
    });
    wait_for.recv_timeout(SOON).expect("it began");
    let server = Server::start(ServerOptions::on("127.0.0.1", port)).expect("the port is free again");
    client.join().expect("no panic").expect("found");
    server.stop().expect("stopped");
}

#[test]
fn an_unknown_host() {
    let error = connect_error("no-such-host.invalid", 1, 150);
    // Where the resolver itself is slow or out of reach, the deadline passes first.
    assert!(matches!(error.kind(), ErrorKind::Unresolved | ErrorKind::TimedOut), "{error}");
    assert_eq!(error.phase(), Phase::Resolving);
    assert!(error.elapsed() < Duration::from_secs(5), "{error}");
}

#[test]
fn a_server_that_accepts_and_never_answers() {
    let server = Scripted::new(alloc::vec![drain]);
    let error = connect_error("127.0.0.1", server.port, 150);
    assert_eq!(
        (error.kind(), error.phase(), error.cause()),
        (ErrorKind::TimedOut, Phase::Greeting, Cause::Silent)
    );
    server.finish();

    let server = Scripted::new(alloc::vec![|mut socket| {
        greet(&mut socket);
        drain(socket);
    }]);
    let store = connect(server.port);
    let error = store.add(b"n", 1, millis(100)).expect_err("no answer");
    assert_eq!(
        (error.kind(), error.phase(), error.cause()),
        (ErrorKind::TimedOut, Phase::Waiting, Cause::NoAnswer)
    );
    assert!(
        error.to_string().ends_with("while waiting: no answer came; it may have been applied"),
        "{error}"
    );
    assert_eq!(store.idle_connections(), 0, "an answer is overdue there");
    server.finish();
}

#[test]
fn a_server_that_answers_garbage() {
    let server = Scripted::new(alloc::vec![|mut socket| {
        read_exactly(&mut socket, 10);
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("sent");
    }]);
    let error = connect_error("127.0.0.1", server.port, 5_000);
    assert_eq!((error.kind(), error.phase()), (ErrorKind::WrongProtocol, Phase::Greeting), "{error}");
    assert!(error.elapsed() < Duration::from_secs(4), "a stranger is final");
    server.finish();

    let server = Scripted::new(alloc::vec![|mut socket| {
        greet(&mut socket);
        read_exactly(&mut socket, GET_BYTES);
        socket.write_all(&[0, 0, 0, 0, 0, 0, 0, 0, 0x80]).expect("sent");
        drain(socket);
    }]);
    let store = connect(server.port);
    let error = store.get_owned(b"k", DEFAULT).expect_err("a length of 2^63");
    assert_eq!((error.kind(), error.phase()), (ErrorKind::WrongProtocol, Phase::Receiving));
    assert!(error.to_string().contains("a length of at most 1073741824 bytes was due"), "{error}");
    server.finish();
}

#[test]
fn a_server_that_goes_in_the_middle_of_an_answer() {
    let server = Scripted::new(alloc::vec![
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, ADD_BYTES);
            socket.write_all(&[1, 0, 0]).expect("sent");
        },
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, GET_BYTES);
            socket.write_all(&[0, 9, 0, 0, 0, 0, 0, 0, 0, b'x']).expect("sent");
        },
    ]);
    let store = connect(server.port);
    let error = store.add(b"n", 1, DEFAULT).expect_err("half an answer");
    assert_eq!((error.kind(), error.phase()), (ErrorKind::ServerGone, Phase::Receiving), "{error}");
    assert!(error.to_string().ends_with("; it may have been applied"), "{error}");
    let error = store.get_owned(b"k", DEFAULT).expect_err("half a value");
    assert_eq!((error.kind(), error.phase()), (ErrorKind::ServerGone, Phase::Receiving), "{error}");
    assert_eq!(error.failure().effect, Effect::None);
    server.finish();
}

#[test]
fn a_pooled_connection_that_went_stale_costs_a_reader_nothing() {
    let server = Scripted::new(alloc::vec![
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, ADD_BYTES);
            socket.write_all(&7_u64.to_le_bytes()).expect("sent");
        },
        |mut socket| {
            greet(&mut socket);
            assert_eq!(read_exactly(&mut socket, 1), [7], "the same question, again");
            socket.write_all(&3_u64.to_le_bytes()).expect("sent");
        },
    ]);
    let store = connect(server.port);
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("added"), 7);
    assert_eq!(store.num_keys(DEFAULT).expect("counted on a fresh connection"), 3);
    server.finish();
    let error = store.num_keys(DEFAULT).expect_err("the server has ended");
    assert_eq!(error.kind(), ErrorKind::ServerGone, "{error}");
}

#[test]
fn a_server_that_drops_on_missing_keys_is_learned() {
    let server = Scripted::new(alloc::vec![
        // The first connection: a response, and then an end that may precede the request.
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, ADD_BYTES);
            socket.write_all(&7_u64.to_le_bytes()).expect("sent");
            read_exactly(&mut socket, GET_BYTES);
        },
        // The second one was fresh, and ended all the same.
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, GET_BYTES);
        },
        |mut socket| {
            greet(&mut socket);
            for _ in 0..2 {
                assert_eq!(read_exactly(&mut socket, 19)[0], 6, "a WAIT alone");
                socket.write_all(&[0]).expect("sent");
                assert_eq!(read_exactly(&mut socket, 12)[..2], [12, 3], "then GET");
                socket.write_all(&[1, 1, 0, 0, 0, 0, 0, 0, 0, b'z']).expect("sent");
            }
        },
    ]);
    let store = connect(server.port);
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("added"), 7);
    for _ in 0..2 {
        assert_eq!(store.get_owned(b"k", DEFAULT).expect("got"), b"z");
    }
    server.finish();
}

/// A connection that ends during a get may have ended for another reason.
#[test]
fn the_slow_way_is_learned_once_it_has_worked() {
    let server = Scripted::new(alloc::vec![
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, ADD_BYTES);
            socket.write_all(&7_u64.to_le_bytes()).expect("sent");
            read_exactly(&mut socket, GET_BYTES);
        },
        // Fresh, and ended all the same.
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, GET_BYTES);
        },
        // So does the slow form, and here the server closes in the middle of a response.
        |mut socket| {
            greet(&mut socket);
            assert_eq!(read_exactly(&mut socket, 19)[0], 6, "a WAIT alone");
            socket.write_all(&[0]).expect("sent");
            read_exactly(&mut socket, 12);
            socket.write_all(&[1, 1, 0]).expect("sent");
        },
        |mut socket| {
            greet(&mut socket);
            assert_eq!(read_exactly(&mut socket, GET_BYTES)[19], 3, "WAIT and GET at once");
            socket.write_all(&[0, 1, 0, 0, 0, 0, 0, 0, 0, b'z']).expect("sent");
        },
    ]);
    let store = connect(server.port);
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("added"), 7);
    let error = store.get_owned(b"k", DEFAULT).expect_err("the server left");
    assert_eq!(error.kind(), ErrorKind::ServerGone, "{error}");
    assert_eq!(store.get_owned(b"k", DEFAULT).expect("got"), b"z");
    server.finish();
}

/// Cancels until the call is over: a cancel ends the calls in progress at that moment.
fn cancelled(store: &Store, call: impl FnOnce() -> Result<(), CallError> + Send) -> CallError {
    thread::scope(|scope| {
        let pending = scope.spawn(call);
        while !pending.is_finished() {
            store.cancel();
            thread::yield_now();
        }
        pending.join().expect("no panic").expect_err("nothing else ends it")
    })
}

#[test]
fn cancel_ends_pending_calls_and_no_later_ones() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    for (operation, error) in [
        (Operation::Wait, cancelled(&store, || store.wait(&[b"k"], DEFAULT))),
        (Operation::Get, cancelled(&store, || store.get_owned(b"k", DEFAULT).map(drop))),
        (Operation::QueuePop, cancelled(&store, || store.queue_pop(b"q", &mut Vec::new(), DEFAULT))),
        (Operation::Barrier, cancelled(&store, || store.barrier(b"b", 2, DEFAULT))),
        (Operation::WaitForWorkers, cancelled(&store, || store.wait_for_workers(1, DEFAULT))),
    ] {
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Cancelled, operation), "{error}");
    }
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("a later call"), 1);
}

#[test]
fn more_calls_than_connections_wait_their_turn() {
    let server = real_server();
    let limits = ClientLimits { connections_max: 2, ..ClientLimits::default() };
    let store = Watched::connect(server.local_addr().port(), StoreOptions { limits, ..options() });
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..50).all(|_| store.add(b"n", 1, DEFAULT).is_ok()))).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join().expect("no panic")));
    });
    assert_eq!(store.add(b"n", 0, DEFAULT).expect("added"), 400);
    assert!(store.idle_connections() <= 2);
}

/// The calls that wait never take the connection of the call that ends them, however many they are.
#[test]
fn waits_at_the_limit_are_ended_by_a_call_of_the_same_client() {
    let server = real_server();
    // Fewer than two count as two.
    for connections_max in 1..=3 {
        let key = [b'0' + u8::try_from(connections_max).expect("a digit")];
        let limits = ClientLimits { connections_max, ..ClientLimits::default() };
        let options = StoreOptions { limits, ..options() };
        let store = Store::connect("127.0.0.1", server.local_addr().port(), options).expect("connected");
        let (store, key) = (&store, &key[..]);
        thread::scope(|scope| {
            let parked: Vec<_> = (0..6).map(|_| scope.spawn(move || store.wait(&[key], DEFAULT))).collect();
            let mut error = store.wait(&[key], millis(30)).expect_err("the key is never set");
            // Until the others have all connections that they can have, this one is merely too early.
            while error.kind() == ErrorKind::TimedOut {
                error = store.wait(&[key], millis(30)).expect_err("the key is never set");
            }
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            assert_eq!(
                store.add(b"n", 1, DEFAULT).expect("added"),
                i64::try_from(connections_max).expect("small")
            );
            store.set(key, b"", DEFAULT).expect("set");
            parked.into_iter().for_each(|thread| thread.join().expect("no panic").expect("released"));
        });
    }
}

/// Time that passed before a call had its connection is not given to it again.
#[test]
fn waiting_for_a_connection_counts() {
    let server = real_server();
    let limits = ClientLimits { connections_max: 2, ..ClientLimits::default() };
    let store = Watched::connect(server.local_addr().port(), StoreOptions { limits, ..options() });
    thread::scope(|scope| {
        let parked = scope.spawn(|| store.barrier(b"b", 2, DEFAULT));
        while store.idle_connections() > 0 {
            thread::yield_now();
        }
        scope.spawn(|| {
            let other = connect(server.local_addr().port());
            other.wait(&[b"k"], millis(1000)).expect_err("the key is never set");
            other.barrier(b"b", 2, DEFAULT).expect("both are there");
        });
        let began = std::time::Instant::now();
        let error = store.wait(&[b"k"], millis(1300)).expect_err("the key is never set");
        let took = began.elapsed();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(took < Duration::from_millis(1900), "{took:?}: {error}");
        parked.join().expect("no panic").expect("released");
    });
}

/// Bytes that were not requested would be read as the response to the next request.
#[test]
fn an_idle_connection_with_unread_bytes_is_not_used() {
    let server = Scripted::new(alloc::vec![
        |mut socket| {
            greet(&mut socket);
            read_exactly(&mut socket, ADD_BYTES);
            socket.write_all(&7_u64.to_le_bytes()).expect("sent");
            socket.write_all(b"noise").expect("sent");
            drain(socket);
        },
        drain,
    ]);
    let store = connect(server.port);
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("added"), 7);
    let client = &store.client;
    let entered = client.pool.enter(HoldTime::Brief, Duration::ZERO, &CancelToken::new());
    let Entered { ticket, idle, .. } = entered.expect("capacity");
    let wire = idle.expect("the connection of the first call");
    assert!(becomes_readable(wire.socket().as_raw_fd(), SOON), "the noise has come");
    let used = wire.used;
    let wire = client
        .usable(ticket, wire, &Call::Ping, used)
        .expect("it was used a moment ago, and is not looked at");
    assert!(client.usable(ticket, wire, &Call::Ping, used + Duration::from_secs(2)).is_none());
    client.pool.leave(ticket, None);
    drop(TcpStream::connect(("127.0.0.1", server.port)).expect("accepted"));
    server.finish();
}

#[test]
fn a_write_is_not_sent_into_a_connection_whose_end_can_be_seen() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (close, closed) = mpsc::channel::<()>();
    // On a thread of its own: when this test fails, no thread waits for a peer that waits.
    let peer = thread::spawn(move || {
        let (mut first, _) = listener.accept().expect("a client");
        greet(&mut first);
        closed.recv_timeout(SOON).expect("the client is connected");
        drop(first);
        let (mut second, _) = listener.accept().expect("the client comes again");
        greet(&mut second);
        read_exactly(&mut second, ADD_BYTES);
        second.write_all(&7_u64.to_le_bytes()).expect("sent");
        drain(second);
    });
    let store = connect(port);
    let client = &store.client;
    let entered = client.pool.enter(HoldTime::Brief, Duration::ZERO, &CancelToken::new());
    let Entered { ticket, idle, .. } = entered.expect("capacity");
    let wire = idle.expect("the connection of the greeting");
    close.send(()).expect("the peer waits");
    assert!(becomes_readable(wire.socket().as_raw_fd(), SOON), "its end has come");
    client.pool.leave(ticket, Some(wire));
    assert_eq!(store.add(b"n", 1, DEFAULT).expect("on a new connection"), 7);
    drop(store);
    peer.join().expect("no panic");
}

#[test]
fn a_limit_is_one_number() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    store.set(&[b'k'; 8191], b"", DEFAULT).expect("the longest key");
    let error = store.set(&[b'k'; 8192], b"", DEFAULT).expect_err("one byte more");
    assert!(
        error.to_string().ends_with(": a key of 8193 bytes with its prefix is over the limit of 8192"),
        "{error}"
    );
    let error = store.with_prefix(b"job").set(&[b'k'; 8188], b"", DEFAULT).expect_err("one byte more");
    assert!(
        error.to_string().ends_with(": a key of 8193 bytes with its prefix is over the limit of 8192"),
        "{error}"
    );
}

#[test]
fn large_values_and_limits() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    let value: Vec<u8> = (0..8_u32 << 20).map(|index| index.to_le_bytes()[index as usize % 4]).collect();
    store.set(b"big", &value, DEFAULT).expect("set");
    store.append(b"big", &value, DEFAULT).expect("appended");
    let got = store.get_owned(b"big", DEFAULT).expect("got");
    assert!(got.len() == 16 << 20 && got[8 << 20..] == value[..]);
    for error in
        [store.set(b"big", &alloc::vec![0; (8 << 20) + 1], DEFAULT), store.set(&[b'k'; 8192], b"", DEFAULT)]
    {
        let error = error.expect_err("over the limit");
        assert_eq!((error.kind(), error.failure().effect), (ErrorKind::LimitExceeded, Effect::None));
        assert!(error.to_string().len() < 500, "{error}");
    }
    assert_eq!(store.idle_connections(), 1, "nothing was sent");
}

extern "C" fn notice_nothing(_: libc::c_int) {}

/// Waits for a response that never arrives while signals do. Returns the failure and how long the wait took.
fn wait_under_signals(store: &Store, timeout: Timeout) -> (CallError, Duration) {
    // SAFETY: all zeros is a valid `sigaction`, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = notice_nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()), 0);
    }
    // SAFETY: returns the id of the calling thread.
    let waiter = unsafe { libc::pthread_self() };
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let until = std::time::Instant::now() + SOON;
            while ended.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout)
                && std::time::Instant::now() < until
            {
                // SAFETY: the thread outlives this scope.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
            }
        });
        let began = std::time::Instant::now();
        let error = store.wait(&[b"never"], timeout).expect_err("the key is never set");
        let took = began.elapsed();
        end.send(()).expect("signals are still being sent");
        (error, took)
    })
}

#[test]
fn signals_do_not_stretch_a_deadline() {
    let server = real_server();
    let store = connect(server.local_addr().port());
    let (error, took) = wait_under_signals(&store, millis(300));
    assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, Cause::NotReleased), "{error}");
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(10), "{took:?}: {error}");
    assert_eq!(store.idle_connections(), 1, "the connection goes on");
}

/// Starts a server that greets, and then reads so slowly that a large request would take minutes. It ends with the
/// client.
fn slow_reader() -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let script = thread::spawn(move || {
        let mut socket = listener.accept().expect("a client").0;
        greet(&mut socket);
        let (_never, tick) = mpsc::channel::<()>();
        let mut buffer = alloc::vec![0; 256 * 1024];
        let until = std::time::Instant::now() + SOON;
        while std::time::Instant::now() < until && socket.read(&mut buffer).is_ok_and(|count| count > 0) {
            // The test depends on the pace of this reading.
            let _ = tick.recv_timeout(Duration::from_millis(100));
        }
    });
    (port, script)
}

#[test]
fn a_slow_reader_does_not_stretch_a_deadline() {
    let (port, script) = slow_reader();
    let store = connect(port);
    let value = alloc::vec![0; 8 << 20];
    let pairs: Vec<(&[u8], &[u8])> = (0..8).map(|_| (&b"k"[..], &value[..])).collect();
    let began = std::time::Instant::now();
    let error = store.multi_set(&pairs, millis(400)).expect_err("it cannot be sent in time");
    let took = began.elapsed();
    assert_eq!((error.kind(), error.phase()), (ErrorKind::TimedOut, Phase::Sending), "{error}");
    assert_eq!(error.failure().effect, Effect::Possible);
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(10), "{took:?}: {error}");
    drop(store);
    script.join().expect("the script fits the client");
}

#[test]
fn a_wait_that_could_not_be_sent_in_time_changed_nothing() {
    let (port, script) = slow_reader();
    let store = connect(port);
    let key = [b'k'; 8000];
    let keys: Vec<&[u8]> = (0..2000).map(|_| &key[..]).collect();
    let error = store.wait(&keys, millis(200)).expect_err("it cannot be sent in time");
    assert_eq!((error.kind(), error.phase()), (ErrorKind::TimedOut, Phase::Sending), "{error}");
    assert_eq!((error.failure().effect, store.idle_connections()), (Effect::None, 0), "{error}");
    drop(store);
    script.join().expect("the script fits the client");
}

/// While connections fail and calls are cancelled, descriptors are closed and opened under the same numbers.
#[test]
fn cancel_touches_no_foreign_descriptor() {
    use core::sync::atomic::AtomicBool;
    use std::os::unix::net::UnixStream;
    const PAIRS: usize = 10_000;
    let server = real_server();
    let store = connect(server.local_addr().port());
    server.stop().expect("stopped");
    let end = AtomicBool::new(false);
    let repeat = |act: &dyn Fn()| {
        while !end.load(Ordering::Relaxed) {
            act()
        }
    };
    let hits = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| repeat(&|| drop(store.ping(millis(500)))));
        }
        scope.spawn(|| repeat(&|| store.cancel()));
        let foreign = || {
            let served = |_: &usize| {
                let (mut near, mut far) = UnixStream::pair().expect("descriptors");
                thread::yield_now();
                near.write_all(b"x").is_ok() && far.read(&mut [0; 1]).is_ok_and(|count| count == 1)
            };
            (0..PAIRS).filter(|pair| !served(pair)).count()
        };
        let threads = [scope.spawn(foreign), scope.spawn(foreign)];
        let hits = threads.map(thread::ScopedJoinHandle::join);
        end.store(true, Ordering::Relaxed);
        hits.map(|hits| hits.expect("no panic")).iter().sum::<usize>()
    });
    assert_eq!(hits, 0, "socket pairs of others were shut down");
}
