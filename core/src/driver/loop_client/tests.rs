use super::*;
use crate::driver::event_loop::{Interest, Ready, Watch};
use crate::driver::server::{Server, ServerOptions};
use crate::driver::testing::becomes_readable;
use crate::error::ErrorKind;
use crate::limits::ClientLimits;
use crate::store::call::Outcome;
use crate::store::op::{Key, Keys};
use alloc::string::ToString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

const SOON: Duration = Duration::from_secs(20);

fn server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server")
}

/// Polls the loop until it has an event, as a program with a poll of its own would.
fn next(events: &mut Loop) -> CallOver {
    loop {
        match events.next_event() {
            Some(LoopEvent::Store(over)) => return over,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(becomes_readable(events.fd(), SOON), "no further event");
        events.poll().expect("polled");
    }
}

fn key(name: &[u8]) -> Key<'_> {
    Key::scoped(b"/", name)
}

fn answered(event: &CallOver) -> (Outcome, Vec<&[u8]>) {
    let answer = event.result.as_ref().expect("it went well");
    (answer.outcome, answer.values.iter().map(Vec::as_slice).collect())
}

#[test]
fn one_loop_serves_several_stores() {
    let (one, two) = (server(), server());
    let mut events = Loop::new().expect("a loop");
    let stores = [&one, &two]
        .map(|server| events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default()));
    let [first, second] = stores;
    // A wait on each store, and a set on each that releases the wait on the next one.
    for store in stores {
        events.submit(store, Request::Get { key: key(b"k") }, Timeout::Default).expect("submitted");
    }
    events
        .submit(second, Request::Set { key: key(b"k"), value: b"two" }, Timeout::Default)
        .expect("submitted");
    for expected in [Operation::Set, Operation::Get] {
        let event = next(&mut events);
        assert_eq!((event.store, event.operation), (second, expected), "{event:?}");
    }
    assert_eq!(events.pending(first), 1);
    events
        .submit(first, Request::Set { key: key(b"k"), value: b"one" }, Timeout::Default)
        .expect("submitted");
    assert_eq!(next(&mut events).operation, Operation::Set);
    let event = next(&mut events);
    assert_eq!(answered(&event), (Outcome::Value, alloc::vec![&b"one"[..]]));
    assert_eq!(event.store, first);
    events.submit(first, Request::ListKeys, Timeout::Default).expect("submitted");
    assert_eq!(answered(&next(&mut events)), (Outcome::Values(1), alloc::vec![&b"k"[..]]));
    assert!(!becomes_readable(events.fd(), Duration::ZERO), "at rest");
}

#[test]
fn the_earliest_deadline_makes_the_descriptor_readable() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let [later, store, last] =
        [(); 3].map(|()| events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default()));
    let began = events.events.clock().now();
    for (one, millis) in [(later, 40_000), (store, 200), (last, 30_000)] {
        let after = Timeout::After(Duration::from_millis(millis));
        events.submit(one, Request::Wait { keys: Keys::one(key(b"never")) }, after).expect("submitted");
    }
    let over = next(&mut events);
    assert_eq!(over.store, store);
    assert_eq!(over.keys, [b"never"]);
    let error = over.result.expect_err("the key is never set");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Operation::Wait));
    let took = events.events.clock().now().since(began);
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(5), "{took:?}");
    events.ping(store, Timeout::Default).expect("submitted");
    assert_eq!(answered(&next(&mut events)).0, Outcome::Alive);
    events.submit(store, Request::QueuePop { key: key(b"q") }, Timeout::Once).expect("submitted");
    assert_eq!(next(&mut events).result.expect_err("empty").kind(), ErrorKind::QueueEmpty);
}

/// A member that fails when it can read.
struct Failing {
    _watch: Watch,
    near: UnixStream,
}

impl Member for Failing {
    fn ready(&mut self, _: Instant, _: Ready, _: &mut MemberEvents<'_>) -> io::Result<()> {
        self.near.read_exact(&mut [0])?;
        Err(io::ErrorKind::OutOfMemory.into())
    }
}

#[test]
fn the_timer_is_set_for_the_others_after_a_member_has_failed() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let (near, mut far) = UnixStream::pair().expect("a pair");
    let failing = |context: &MemberContext| -> io::Result<Failing> {
        let watch = context.watcher.watch(near.as_raw_fd(), Interest::Read, context.id.token(0))?;
        Ok(Failing { _watch: watch, near })
    };
    events.add_member(failing).expect("added");
    let store = events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    events.ping(store, Timeout::Default).expect("submitted");
    assert_eq!(answered(&next(&mut events)).0, Outcome::Alive);
    let after = Timeout::After(Duration::from_secs(40));
    events.submit(store, Request::Wait { keys: Keys::one(key(b"never")) }, after).expect("submitted");
    events.events.wake_at(Instant::ORIGIN);
    assert!(becomes_readable(events.fd(), SOON), "the timer has gone off");
    far.write_all(b"x").expect("written");
    assert_eq!(events.poll().expect_err("it fails").kind(), io::ErrorKind::OutOfMemory);
    let due = events.members.poll_timeout().expect("the call has a deadline");
    assert!(events.events.wakes_by(due));
}

#[test]
fn refused_and_unresolvable_hosts_fail_with_their_names() {
    let closed_port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let mut events = Loop::new().expect("a loop");
    let refused = events.add_store("127.0.0.1", closed_port, StoreOptions::default());
    let unknown = events.add_store("no-such-host.invalid", 1, StoreOptions::default());
    let after = Timeout::After(Duration::from_millis(300));
    for store in [refused, unknown] {
        events.ping(store, after).expect("submitted");
    }
    let mut kinds = [next(&mut events), next(&mut events)].map(|event| {
        let error = event.result.expect_err("no server");
        (event.store, error.kind())
    });
    kinds.sort();
    assert_eq!(kinds[0], (refused, ErrorKind::Refused));
    // Where the resolver itself is slow or out of reach, the deadline passes first.
    assert_eq!(kinds[1].0, unknown);
    assert!(matches!(kinds[1].1, ErrorKind::Unresolved | ErrorKind::TimedOut), "{kinds:?}");
}

#[test]
fn cancelling_and_removing_end_calls() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let store = events.add_store("localhost", server.local_addr().port(), StoreOptions::default());
    let call = events.submit(store, Request::Get { key: key(b"k") }, Timeout::Default).expect("submitted");
    events.cancel(store, call);
    let event = next(&mut events);
    assert_eq!((event.call, event.result.expect_err("cancelled").kind()), (call, ErrorKind::Cancelled));
    events.submit(store, Request::Get { key: key(b"k") }, Timeout::Default).expect("submitted");
    events.remove_store(store);
    assert!(events.next_event().is_none());
    let departed = events.submit(store, Request::NumKeys, Timeout::Default);
    assert!(matches!(departed, Err(SubmitError::UnknownStore)));
}

#[test]
fn values_larger_than_any_buffer_go_both_ways() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let store = events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    let value: Vec<u8> = (0..8_u32 << 20).map(|index| index.to_le_bytes()[index as usize % 4]).collect();
    events
        .submit(store, Request::Set { key: key(b"big"), value: &value }, Timeout::Default)
        .expect("submitted");
    assert_eq!(answered(&next(&mut events)).0, Outcome::Applied);
    for _ in 0..4 {
        events.submit(store, Request::Get { key: key(b"big") }, Timeout::Once).expect("submitted");
    }
    for _ in 0..4 {
        let event = next(&mut events);
        assert!(answered(&event).1 == [&value[..]]);
    }
    let error = events
        .submit(store, Request::Set { key: key(b"big"), value: &[0; (8 << 20) + 1] }, Timeout::Default)
        .expect_err("over the limit");
    assert!(error.to_string().contains("is over the limit of 8388608"), "{error}");
}

/// A wait holds the only connection, and no further one is accepted: the call that needs one fails at once.
#[test]
fn a_refused_further_connection_is_tried_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (waits, is_waiting) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut socket = listener.accept().expect("a client").0;
        drop(listener);
        let mut greeting = [0; 10];
        socket.read_exact(&mut greeting).expect("a greeting");
        socket.write_all(&greeting[6..]).expect("sent");
        socket.read_exact(&mut [0; 1 + 8 + 8 + 2]).expect("a wait");
        waits.send(()).expect("the test waits for it");
        let _ = socket.read(&mut greeting);
    });
    let mut events = Loop::new().expect("a loop");
    let store = events.add_store("127.0.0.1", port, StoreOptions::default());
    let keys = Keys::one(key(b"k"));
    events.submit(store, Request::Wait { keys }, Timeout::After(SOON)).expect("submitted");
    let began = events.events.clock().now();
    while is_waiting.try_recv().is_err() {
        assert!(events.events.clock().now().since(began) < SOON, "the wait never arrives");
        becomes_readable(events.fd(), Duration::from_millis(20));
        events.poll().expect("polled");
    }
    let after = Timeout::After(Duration::from_secs(2));
    events.submit(store, Request::Add { key: key(b"n"), delta: 1 }, after).expect("submitted");
    let event = next(&mut events);
    let error = event.result.expect_err("no listener");
    assert_eq!((event.operation, error.kind()), (Operation::Add, ErrorKind::Refused), "{error}");
    assert!(error.elapsed() < Duration::from_secs(2), "{error}");
    assert_eq!(events.pending(store), 1, "the wait goes on");
    drop(events);
    server.join().expect("no panic");
}

/// The calls that wait never take the connection of the call that ends them, however many they are.
#[test]
fn waits_at_the_limit_are_ended_by_a_call_of_the_same_store() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    for connections_max in 1..=3 {
        let limits = ClientLimits { connections_max, ..ClientLimits::default() };
        let options = StoreOptions { limits, ..StoreOptions::default() };
        let store = events.add_store("127.0.0.1", server.local_addr().port(), options);
        let name = [b'0' + u8::try_from(connections_max).expect("a digit")];
        let after = Timeout::After(SOON);
        for _ in 0..6 {
            events.submit(store, Request::Wait { keys: Keys::one(key(&name)) }, after).expect("submitted");
        }
        events.submit(store, Request::NumKeys, after).expect("submitted");
        assert_eq!(next(&mut events).operation, Operation::NumKeys, "nothing ends the waits");
        events.submit(store, Request::Set { key: key(&name), value: b"" }, after).expect("submitted");
        let mut outcomes: Vec<Outcome> = (0..7).map(|_| answered(&next(&mut events)).0).collect();
        outcomes.retain(|&outcome| outcome == Outcome::Released);
        assert_eq!((outcomes.len(), events.pending(store)), (6, 0));
    }
}

#[test]
fn a_connect_timeout_of_zero_is_one_attempt_and_time_for_an_answer() {
    let server = server();
    let closed_port = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let mut events = Loop::new().expect("a loop");
    let options = StoreOptions { connect_timeout: Duration::ZERO, ..StoreOptions::default() };
    let there = events.add_store("127.0.0.1", server.local_addr().port(), options.clone());
    events.ping(there, Timeout::After(SOON)).expect("submitted");
    assert_eq!(answered(&next(&mut events)).0, Outcome::Alive);
    let nowhere = events.add_store("127.0.0.1", closed_port, options);
    events.ping(nowhere, Timeout::After(SOON)).expect("submitted");
    let error = next(&mut events).result.expect_err("no listener");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.elapsed() < Duration::from_secs(5), "once is once: {error}");
}

#[test]
fn a_failure_that_a_value_explains_says_so() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let store = events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    let set = Request::Set { key: key(b"text"), value: b"none" };
    let (after, gate) = (Timeout::After(Duration::from_millis(30)), key(b"gate"));
    let number = "the value is not a decimal number of 64 bits";
    events.submit(store, set, Timeout::Default).expect("submitted");
    assert!(next(&mut events).result.is_ok());
    for (request, kind, end) in [
        (Request::Add { key: key(b"text"), delta: 1 }, ErrorKind::InvalidArgument, number),
        (Request::Barrier { key: key(b"text"), world_size: 2 }, ErrorKind::InvalidArgument, number),
        (
            Request::Barrier { key: gate, world_size: 3 },
            ErrorKind::TimedOut,
            "1 of 3 have arrived; its arrival stays counted",
        ),
    ] {
        let call = events.submit(store, request, after).expect("submitted");
        let event = next(&mut events);
        let error = event.result.expect_err("explained");
        assert_eq!((event.call, error.kind()), (call, kind), "{error}");
        assert!(error.to_string().ends_with(end), "{error}");
    }
    assert_eq!(events.pending(store), 0);
}
