extern crate std;

use super::*;
use crate::limits::{EngineLimits, UngreetedLimits};
use crate::store::op::{Key, Keys, Request};
use crate::time::Duration;
use crate::wire::c10d::{Frame, FrameError};
use crate::wire::c10d::{MAGIC, encode_frame};
use crate::wire::sink::Sink;
use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::vec;

const PEER: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST), 4711);

struct Wire(Vec<u8>);
impl Sink for Wire {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

pub(super) fn frame(request: Request<'_>) -> Vec<u8> {
    let mut wire = Wire(Vec::new());
    encode_frame(&mut wire, &Frame::Request(request));
    wire.0
}

fn greeting() -> Vec<u8> {
    let mut wire = Wire(Vec::new());
    encode_frame(&mut wire, &Frame::Validate { magic: MAGIC });
    wire.0
}

pub(super) fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    frame(Request::Set { key: Key::raw(key), value })
}

pub(super) fn get(key: &[u8]) -> Vec<u8> {
    frame(Request::Get { key: Key::raw(key) })
}

pub(super) fn wait(key: &[u8]) -> Vec<u8> {
    frame(Request::Wait { keys: Keys::scoped(b"", &[key]) })
}

/// Server whose sockets accept as many bytes as the test allows.
pub(super) struct Rig {
    pub(super) server: Server,
    pub(super) now: Instant,
    got: BTreeMap<ConnId, Vec<u8>>,
    pub(super) closed: BTreeMap<ConnId, CloseReason>,
    /// Connections that the server reads again.
    pub(super) readable: Vec<ConnId>,
    /// All events except those of accepted and closed connections.
    pub(super) events: Vec<Event>,
    /// Bytes that each socket accepts at a time.
    pub(super) window: usize,
}

impl Rig {
    pub(super) fn new(limits: ServerLimits) -> Self {
        Self {
            server: Server::new(limits, ServerInstance::from_seed(1)),
            now: Instant::ORIGIN,
            got: BTreeMap::new(),
            closed: BTreeMap::new(),
            readable: Vec::new(),
            events: Vec::new(),
            window: usize::MAX,
        }
    }

    pub(super) fn connect(&mut self, index: u32) -> ConnId {
        let conn = ConnId { index, generation: 0 };
        self.feed(Input::Accepted { conn, peer: PEER });
        conn
    }

    pub(super) fn greeted(&mut self, index: u32) -> ConnId {
        let conn = self.connect(index);
        self.send(conn, &greeting());
        conn
    }

    pub(super) fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.feed(Input::Received { conn, bytes });
    }

    pub(super) fn feed(&mut self, input: Input<'_>) {
        self.server.handle(self.now, input).expect("a legal input");
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Transmit { conn } => {
                    let unsent = self.server.unsent(conn);
                    let bytes = unsent.len().min(self.window);
                    self.got.entry(conn).or_default().extend_from_slice(&unsent[..bytes]);
                    if !unsent.is_empty() {
                        self.window -= if self.window == usize::MAX { 0 } else { bytes };
                        self.server
                            .handle(self.now, Input::Sent { conn, bytes })
                            .expect("it was just asked for");
                    }
                }
                Output::Close { conn } => {
                    assert!(self.server.unsent(conn).is_empty());
                }
                Output::Read { conn } => self.readable.push(conn),
                Output::Event(Event::Closed { conn, reason, .. }) => {
                    self.closed.insert(conn, reason);
                }
                Output::Event(event) => self.events.push(event),
            }
        }
    }

    /// Sends the unsent bytes of `conn`, as far as the socket accepts them.
    pub(super) fn pump(&mut self, conn: ConnId) {
        let unsent = self.server.unsent(conn);
        let bytes = unsent.len().min(self.window);
        self.got.entry(conn).or_default().extend_from_slice(&unsent[..bytes]);
        self.feed(Input::Sent { conn, bytes });
    }

    pub(super) fn got(&mut self, conn: ConnId) -> Vec<u8> {
        self.got.remove(&conn).unwrap_or_default()
    }

    /// Simulates a process that is stopped for `span` and then ticks.
    pub(super) fn is_stopped_for(&mut self, span: Duration) {
        self.now = self.now + span;
        self.feed(Input::Tick);
    }

    pub(super) fn after(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = self.server.poll_timeout().filter(|&at| at <= until) {
            self.now = at.max(self.now);
            self.feed(Input::Tick);
        }
        self.now = until;
        self.feed(Input::Tick);
    }
}

fn rig() -> Rig {
    Rig::new(ServerLimits::default())
}

#[test]
fn the_greeting_may_come_in_pieces_and_anything_else_closes_at_once() {
    for split in 1..5 {
        let mut rig = rig();
        let conn = rig.connect(0);
        let bytes = greeting();
        rig.send(conn, &bytes[..split]);
        rig.send(conn, &bytes[split..]);
        rig.send(conn, &frame(Request::NumKeys));
        assert_eq!(rig.got(conn), 0i64.to_le_bytes());
    }
    for (bytes, reason) in [
        (&[13u8, 1, 0, 0, 0][..], FrameError::Opcode(13)),
        (&[19], FrameError::Opcode(19)),
        (b"GET / HTTP/1.1\r\n\r\n", FrameError::Opcode(b'G')),
        (&[0, 1, 2, 3, 4], FrameError::Magic(0x0403_0201)),
        (&[0, 0xce, 0xf8], FrameError::Magic(0xf8ce)),
    ] {
        let mut rig = rig();
        let conn = rig.connect(0);
        rig.send(conn, bytes);
        assert_eq!(rig.closed.get(&conn), Some(&CloseReason::Protocol(reason)), "{bytes:?}");
        assert_eq!(rig.server.stats().expelled, 1);
    }
}

#[test]
fn requests_before_a_bad_one_are_answered_and_those_behind_it_are_not() {
    let mut rig = rig();
    let conn = rig.greeted(0);
    let bytes = [set(b"k", b"v"), get(b"k"), vec![42], set(b"k", b"w")].concat();
    rig.send(conn, &bytes);
    assert_eq!(rig.got(conn), [&1u64.to_le_bytes()[..], b"v"].concat());
    assert_eq!(rig.closed[&conn], CloseReason::Protocol(FrameError::Opcode(42)));
    assert_eq!(rig.server.stats().requests, 2);
    let other = rig.greeted(0);
    rig.send(other, &[set(b"n", b"abc"), frame(Request::Add { key: Key::raw(b"n"), delta: 1 })].concat());
    assert_eq!(rig.closed[&other], CloseReason::Refused(ApplyError::NotANumber));
}

#[test]
fn one_byte_at_a_time_is_served_and_leaves_no_buffer() {
    let mut rig = rig();
    let conn = rig.connect(0);
    for byte in [greeting(), set(b"key", b"value"), get(b"key")].concat() {
        rig.send(conn, &[byte]);
    }
    assert_eq!(rig.got(conn), [&5u64.to_le_bytes()[..], b"value"].concat());
    assert_eq!(rig.server.stats().buffered_bytes, 0);
}

#[test]
fn a_released_wait_is_answered_before_the_request_that_released_it() {
    let mut rig = rig();
    let (a, b) = (rig.greeted(0), rig.greeted(1));
    rig.send(a, &[wait(b"k"), get(b"k")].concat());
    assert_eq!(rig.got(a), 0u64.to_le_bytes(), "the wait does not hold up the get");
    rig.send(b, &set(b"k", b"v"));
    assert_eq!(rig.got(a), [0]);
    rig.send(a, &[wait(b"j"), frame(Request::Add { key: Key::raw(b"j"), delta: 1 })].concat());
    assert_eq!(rig.got(a), [&[0][..], &1i64.to_le_bytes()].concat());
}

#[test]
fn half_close_answers_what_was_asked_and_abandons_waits() {
    let mut rig = rig();
    let conn = rig.greeted(0);
    rig.send(conn, &[get(b"k"), wait(b"k")].concat());
    rig.feed(Input::ReadClosed { conn });
    assert_eq!(rig.got(conn), 0u64.to_le_bytes());
    assert_eq!(rig.closed[&conn], CloseReason::PeerClosed);
    assert_eq!((rig.server.stats().waiting, rig.server.engine().footprint()), (0, 0));

    // The same with a peer whose receive window is full: its requests wait and are answered once it reads.
    let limits = ServerLimits { unsent_bytes_high: 16, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    let conn = rig.greeted(0);
    rig.window = 0;
    rig.send(conn, &[set(b"k", &[7; 20]), get(b"k"), get(b"k"), get(b"k")].concat());
    rig.feed(Input::ReadClosed { conn });
    assert!(rig.closed.is_empty());
    rig.window = usize::MAX;
    let bytes = rig.server.unsent(conn).len();
    rig.feed(Input::Sent { conn, bytes });
    assert_eq!(bytes + rig.got(conn).len(), 3 * 28);
    assert_eq!(rig.closed[&conn], CloseReason::PeerClosed);
}

#[test]
fn a_peer_that_does_not_read_is_not_read_and_in_the_end_dropped() {
    let limits = ServerLimits { unsent_bytes_high: 1000, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    let (slow, other) = (rig.greeted(0), rig.greeted(1));
    rig.send(other, &set(b"big", &[1; 600]));
    rig.window = 0;
    rig.send(slow, &[get(b"big"), get(b"big"), get(b"big")].concat());
    assert!(!rig.server.wants_read(slow));
    assert!(rig.server.stats().buffered_bytes < 2000, "the third get rests as it came");
    rig.window = 100;
    let unsent = rig.server.unsent(slow).len();
    rig.feed(Input::Sent { conn: slow, bytes: 300 });
    assert!(rig.server.unsent(slow).len() > unsent - 400);
    rig.window = usize::MAX;
    rig.send(other, &get(b"big"));
    assert_eq!(rig.got(other).len(), 608, "other connections are not held up");
    rig.after(limits.stall_timeout - Duration::from_secs(1));
    assert!(rig.closed.is_empty());
    rig.after(Duration::from_secs(2));
    assert_eq!(rig.closed[&slow], CloseReason::StallTimeout);
    assert_eq!(rig.server.stats().buffered_bytes, 0);
}

/// Returns the connections that the server sends to in its next actions.
fn transmits(server: &mut Server) -> Vec<u32> {
    let outputs = core::iter::from_fn(|| server.poll_output());
    let conns = outputs.filter_map(|output| match output {
        Output::Transmit { conn } => Some(conn.index),
        _ => None,
    });
    conns.collect()
}

#[test]
fn short_answers_go_before_long_ones_which_follow_after_sixteen() {
    let mut rig = rig();
    let conns: Vec<_> = (0..22).map(|index| rig.greeted(index)).collect();
    let writer = rig.greeted(22);
    rig.send(writer, &set(b"long", &vec![1; SENT_AT_ONCE_MAX]));
    rig.send(writer, &set(b"short", b"1"));
    // A write of this length is done in the next turn.
    rig.after(Duration::from_millis(1));
    for (&conn, index) in conns.iter().zip(0..) {
        let bytes = get(if index < 2 { b"long" } else { b"short" });
        rig.server.handle(rig.now, Input::Received { conn, bytes: &bytes }).expect("a legal input");
    }
    let expected: Vec<u32> = (2..18).chain([0]).chain(18..22).chain([1]).collect();
    assert_eq!(transmits(&mut rig.server), expected);
}

#[test]
fn silence_is_bounded_before_the_greeting_and_within_a_frame() {
    let mut rig = rig();
    let limits = ServerLimits::default();
    let (mute, greeted, halting, steady) = (rig.connect(0), rig.greeted(1), rig.greeted(2), rig.greeted(3));
    rig.send(halting, &set(b"k", b"v")[..5]);
    rig.after(limits.handshake_timeout);
    assert_eq!(rig.closed, BTreeMap::from([(mute, CloseReason::HandshakeTimeout)]));
    rig.send(halting, &set(b"k", b"v")[5..9]);
    rig.after(limits.frame_timeout - Duration::from_secs(1));
    assert_eq!(rig.closed.len(), 1, "a frame that goes on is in time");
    rig.send(steady, &set(b"k", b"v"));
    rig.after(Duration::from_secs(1));
    assert_eq!(rig.closed.get(&halting), Some(&CloseReason::FrameTimeout));
    rig.after(Duration::from_secs(100_000));
    assert_eq!(rig.closed.len(), 2, "a connection between frames may rest for ever");
    assert_eq!(rig.server.poll_timeout(), None);
    assert!(rig.server.wants_read(greeted) && rig.server.wants_read(steady));
}

#[test]
fn the_oldest_connection_without_a_greeting_makes_way_for_a_new_one() {
    let ungreeted = UngreetedLimits { count_max: 2, time_min: Duration::from_millis(500) };
    let mut rig = Rig::new(ServerLimits { ungreeted, connections_max: 4, ..ServerLimits::default() });
    let (member, oldest) = (rig.greeted(0), rig.connect(1));
    rig.after(Duration::from_millis(200));
    // Part of a greeting is none.
    let slow = rig.connect(2);
    rig.send(slow, &greeting()[..4]);
    assert_eq!(
        rig.server.accepts_at(),
        Some(Instant::ORIGIN + Duration::from_millis(500)),
        "its time to greet"
    );
    rig.after(Duration::from_millis(300));
    assert!(rig.server.accepts_at() <= Some(rig.now));
    let prompt = rig.greeted(3);
    assert_eq!(rig.closed, BTreeMap::from([(oldest, CloseReason::Displaced)]));
    assert_eq!(rig.server.accepts_at(), None);
    rig.connect(1);
    let last = rig.greeted(4);
    assert_eq!(rig.closed[&slow], CloseReason::Displaced);
    assert_eq!((rig.closed.len(), rig.server.stats().expelled, rig.server.stats().connections), (2, 2, 4));
    // All connections are in use, and one of them has not greeted.
    let late = rig.connect(5);
    assert_eq!(rig.closed[&late], CloseReason::TooManyConnections(4), "it has had no time to");
    rig.after(Duration::from_millis(500));
    let late = ConnId { index: 5, generation: 1 };
    rig.feed(Input::Accepted { conn: late, peer: PEER });
    rig.send(late, &greeting());
    assert_eq!((rig.closed.len(), rig.server.stats().connections), (3, 4));
    for conn in [member, prompt, last, late] {
        assert!(rig.server.wants_read(conn), "{conn:?}");
    }
}

#[test]
fn a_lack_of_descriptors_ends_the_oldest_connection_without_a_greeting() {
    let mut rig = rig();
    let (_, stranger) = (rig.greeted(0), rig.connect(1));
    rig.feed(Input::AcceptFailed);
    assert!(rig.closed.is_empty());
    rig.after(ServerLimits::default().ungreeted.time_min);
    rig.feed(Input::AcceptFailed);
    rig.feed(Input::AcceptFailed);
    assert_eq!(rig.closed, BTreeMap::from([(stranger, CloseReason::Displaced)]));
}

#[test]
fn bounds_on_connections_buffers_and_answers_expel_the_one_that_passes_them() {
    let limits = ServerLimits {
        connections_max: 2,
        buffered_bytes_max: 500,
        answer_bytes_max: 200,
        engine: EngineLimits { stored_bytes_max: 1000, ..EngineLimits::default() },
        ..ServerLimits::default()
    };
    let mut rig = Rig::new(limits);
    let (a, b) = (rig.greeted(0), rig.greeted(1));
    let late = rig.connect(2);
    assert_eq!(rig.closed[&late], CloseReason::TooManyConnections(2));
    rig.send(b, &set(b"k", &[0; 600])[..200]);
    rig.send(a, &set(b"k", &[0; 600])[..400]);
    assert_eq!(rig.closed[&a], CloseReason::BuffersFull(500), "it holds most");
    let a = rig.greeted(0);
    rig.send(b, &set(b"k", &[0; 600])[200..]);
    rig.send(b, &get(b"k"));
    assert_eq!(rig.closed[&b], CloseReason::AnswerTooLong(608));
    rig.send(a, &set(b"j", &[0; 600]));
    assert_eq!(rig.closed[&a], CloseReason::Refused(ApplyError::Full(1000)));
    assert_eq!(rig.server.stats().connections, 0);
}

#[test]
fn a_connection_that_is_expelled_waits_no_more_though_its_answers_are_unread() {
    let mut rig = rig();
    let (bad, good) = (rig.greeted(0), rig.greeted(1));
    rig.send(bad, &wait(b"q"));
    rig.send(good, &wait(b"q"));
    rig.window = 0;
    rig.send(bad, &[get(b"k"), vec![42]].concat());
    assert!(rig.closed.is_empty(), "its answer is unread");
    rig.window = usize::MAX;
    rig.send(good, &frame(Request::QueuePush { key: Key::raw(b"q"), value: b"item" }));
    assert_eq!(rig.got(good), [0], "the item goes to the connection that can still fetch it");
}

fn push(queue: &[u8]) -> Vec<u8> {
    frame(Request::QueuePush { key: Key::raw(queue), value: b"item" })
}

fn pop(queue: &[u8]) -> Vec<u8> {
    frame(Request::QueuePop { key: Key::raw(queue) })
}

/// Returns a server with two connections that wait for an item of a queue, the first of which a push has woken.
fn woken(limits: ServerLimits) -> (Rig, ConnId, ConnId) {
    let mut rig = Rig::new(limits);
    let (first, second, producer) = (rig.greeted(0), rig.greeted(1), rig.greeted(2));
    rig.send(first, &wait(b"q"));
    rig.send(second, &wait(b"q"));
    rig.send(producer, &push(b"q"));
    assert_eq!((rig.got(first), rig.got(second)), (vec![0], vec![]));
    (rig, first, second)
}

#[test]
fn a_woken_client_whose_connection_ends_before_it_pops_passes_the_wake_up_on() {
    let ends: [fn(&mut Rig, ConnId); 4] = [
        |rig, conn| rig.feed(Input::Lost { conn, os_error: 104 }),
        |rig, conn| rig.feed(Input::HostSilent { conn, os_error: 110 }),
        |rig, conn| rig.feed(Input::ReadClosed { conn }),
        |rig, conn| rig.send(conn, &[42]),
    ];
    for end in ends {
        let (mut rig, first, second) = woken(ServerLimits::default());
        end(&mut rig, first);
        assert_eq!(rig.got(second), [0]);
        rig.send(second, &pop(b"q"));
        assert_eq!(rig.got(second), [&1u64.to_le_bytes()[..], &4u64.to_le_bytes(), b"item"].concat());
    }
}

#[test]
fn a_woken_client_that_sends_no_more_passes_the_wake_up_on_though_its_answers_are_unread() {
    let (mut rig, first, second) = woken(ServerLimits::default());
    rig.window = 0;
    // These bytes are answered, and begin a frame whose rest never comes.
    let mut ping = Wire(Vec::new());
    encode_frame(&mut ping, &Frame::Ping { nonce: 1 });
    rig.send(first, &[&ping.0[..], &wait(b"q")[..3]].concat());
    rig.feed(Input::ReadClosed { conn: first });
    assert!(rig.closed.is_empty(), "its answer is unread");
    rig.window = usize::MAX;
    rig.pump(second);
    assert_eq!(rig.got(second), [0]);
}

#[test]
fn a_woken_client_that_cancels_passes_the_wake_up_on() {
    let (mut rig, first, second) = woken(ServerLimits::default());
    rig.send(first, &frame(Request::CancelWait));
    assert_eq!((rig.got(first), rig.got(second)), (vec![1], vec![0]));
    // It is passed on once.
    rig.feed(Input::Lost { conn: first, os_error: 104 });
    assert_eq!(rig.got(second), []);
}

#[test]
fn a_woken_client_that_requests_something_else_passes_the_wake_up_on() {
    for request in [
        get(b"k"),
        pop(b"other"),
        push(b"other"),
        wait(b"q"),
        frame(Request::NumKeys),
        frame(Request::ListKeys),
    ] {
        let (mut rig, first, second) = woken(ServerLimits::default());
        rig.send(first, &request);
        assert_eq!(rig.got(second), [0], "{request:?}");
    }
}

#[test]
fn a_woken_client_that_pops_keeps_the_wake_up() {
    let cancel = frame(Request::CancelWait);
    for request in [pop(b"q"), [cancel, pop(b"q")].concat()] {
        let (mut rig, first, second) = woken(ServerLimits::default());
        rig.send(first, &request);
        assert!(rig.got(first).ends_with(b"item"));
        assert_eq!(rig.got(second), []);
        rig.feed(Input::Lost { conn: first, os_error: 104 });
        assert_eq!(rig.got(second), []);
        let producer = ConnId { index: 2, generation: 0 };
        rig.send(producer, &push(b"q"));
        assert_eq!(rig.got(second), [0]);
    }
}

#[test]
fn a_wake_up_by_a_value_is_no_item() {
    let mut rig = rig();
    let (first, second, other) = (rig.greeted(0), rig.greeted(1), rig.greeted(2));
    rig.send(first, &wait(b"q"));
    rig.send(other, &[set(b"q", b"v"), frame(Request::Delete { key: Key::raw(b"q") })].concat());
    rig.send(second, &wait(b"q"));
    assert_eq!((rig.got(first), rig.got(second)), (vec![0], vec![]));
    rig.feed(Input::Lost { conn: first, os_error: 104 });
    assert_eq!(rig.got(second), []);
}

#[test]
fn a_client_that_was_woken_twice_may_pop_twice() {
    let mut rig = rig();
    let (first, second, producer) = (rig.greeted(0), rig.greeted(1), rig.greeted(2));
    rig.send(first, &[wait(b"q"), wait(b"q"), wait(b"r")].concat());
    rig.send(second, &[wait(b"q"), wait(b"r")].concat());
    rig.send(producer, &[push(b"q"), push(b"q"), push(b"r")].concat());
    assert_eq!((rig.got(first), rig.got(second)), (vec![0; 3], vec![]));
    rig.send(first, &[pop(b"q"), pop(b"r")].concat());
    assert_eq!(rig.got(second), [], "one item is left for its other wake-up");
    rig.feed(Input::Lost { conn: first, os_error: 104 });
    assert_eq!(rig.got(second), [0]);
}

#[test]
fn wake_ups_are_counted_with_the_bytes_of_their_connection() {
    let mut rig = rig();
    let (first, producer) = (rig.greeted(0), rig.greeted(1));
    rig.send(first, &wait(&[b'q'; 1000]));
    rig.send(producer, &push(&[b'q'; 1000]));
    assert_eq!(rig.server.stats().buffered_bytes, 1000);
    rig.send(first, &pop(&[b'q'; 1000]));
    assert_eq!(rig.server.stats().buffered_bytes, 0);
}

#[test]
fn inputs_for_connections_that_are_gone_are_refused() {
    let mut rig = rig();
    let conn = rig.connect(0);
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert_eq!(rig.closed[&conn], CloseReason::Lost(104));
    let next = ConnId { index: 0, generation: 1 };
    rig.feed(Input::Accepted { conn: next, peer: PEER });
    let late = rig.server.handle(rig.now, Input::Received { conn, bytes: b"x" });
    assert_eq!(late, Err(InputError::UnknownConnection(conn)));
    let twice = rig.server.handle(rig.now, Input::Accepted { conn, peer: PEER });
    assert_eq!(twice, Err(InputError::SlotTaken(conn)));
}

#[test]
fn a_stall_that_was_made_good_is_forgotten() {
    let mut rig = rig();
    let conn = rig.greeted(0);
    rig.window = 0;
    rig.send(conn, &frame(Request::NumKeys));
    rig.after(Duration::from_secs(1));
    rig.window = usize::MAX;
    let bytes = rig.server.unsent(conn).len();
    rig.feed(Input::Sent { conn, bytes });
    rig.after(Duration::from_secs(298));
    rig.window = 0;
    rig.send(conn, &frame(Request::NumKeys));
    rig.after(Duration::from_secs(2));
    assert_eq!(rig.closed.get(&conn), None, "it stalled for 2 s of 300");
    rig.after(Duration::from_secs(298));
    assert_eq!(rig.closed.get(&conn), Some(&CloseReason::StallTimeout));
}

#[test]
fn full_buffers_cost_the_one_who_fills_them() {
    let mut rig = Rig::new(ServerLimits { buffered_bytes_max: 100, ..ServerLimits::default() });
    let (hog, innocent) = (rig.greeted(0), rig.greeted(1));
    rig.send(hog, &set(b"k", &[0; 1000])[..98]);
    rig.send(innocent, &frame(Request::NumKeys));
    assert_eq!(rig.got(innocent), 0i64.to_le_bytes());
    assert_eq!(rig.closed, BTreeMap::from([(hog, CloseReason::BuffersFull(100))]));
}

/// A connection that has not greeted has nothing to lose.
#[test]
fn full_buffers_cost_strangers_first() {
    let mut rig = Rig::new(ServerLimits { buffered_bytes_max: 200, ..ServerLimits::default() });
    let (member, stranger) = (rig.greeted(0), rig.connect(1));
    rig.send(stranger, &crate::wire::native::MAGIC);
    assert_eq!(rig.closed, BTreeMap::new());
    rig.send(member, &set(b"k", &[0; 1000])[..199]);
    assert_eq!(rig.closed, BTreeMap::from([(stranger, CloseReason::BuffersFull(200))]));
}

/// The end of connections that hold next to nothing would help no one.
#[test]
fn full_buffers_cost_no_stranger_that_holds_little() {
    let mut rig = Rig::new(ServerLimits { buffered_bytes_max: 1000, ..ServerLimits::default() });
    let (hog, silent, prompt) = (rig.greeted(0), rig.connect(1), rig.connect(2));
    rig.send(prompt, &crate::wire::native::MAGIC);
    rig.send(hog, &set(b"k", &[0; 5000])[..1100]);
    assert_eq!(rig.closed, BTreeMap::from([(hog, CloseReason::BuffersFull(1000))]));
    assert!(rig.server.wants_read(silent) && rig.server.wants_read(prompt));
}

/// A connection in a late slot keeps the table long, but the others that end do not search the table for it each time.
#[test]
fn a_table_that_was_long_is_searched_rarely_and_shrinks_at_last() {
    let mut rig = Rig::new(ServerLimits::default());
    let count = 8 * u32::try_from(conns::SLOTS_KEPT).expect("few");
    let all: Vec<ConnId> = (0..count).map(|index| rig.greeted(index)).collect();
    let late = all[count as usize / 2 + 1];
    let lose = |rig: &mut Rig, conn| rig.feed(Input::Lost { conn, os_error: 104 });
    all.into_iter().filter(|&conn| conn != late).for_each(|conn| lose(&mut rig, conn));
    for _ in 0..1000 {
        let early = rig.greeted(0);
        lose(&mut rig, early);
    }
    assert!(rig.server.conns.capacity() >= count as usize);
    let searched = rig.server.conns.searched();
    assert!(searched <= 2 * count as usize, "{searched} slots looked at as {count} connections became one");
    lose(&mut rig, late);
    assert!(rig.server.conns.capacity() <= conns::SLOTS_KEPT, "{}", rig.server.conns.capacity());
}

#[test]
fn connections_that_are_due_at_once_are_closed_in_turns() {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: 100, ..ServerLimits::default() });
    for index in 0..100 {
        rig.connect(index);
    }
    rig.now = rig.now + ServerLimits::default().handshake_timeout;
    rig.feed(Input::Tick);
    assert!((1..20).contains(&rig.closed.len()), "{} in the first turn", rig.closed.len());
    while rig.server.poll_timeout().is_some_and(|at| at <= rig.now) {
        let before = rig.closed.len();
        rig.feed(Input::Tick);
        assert!(rig.closed.len() > before, "a turn without progress");
    }
    assert_eq!(rig.closed.len(), 100);
}

#[test]
fn deadlines_and_places_of_gone_connections_go() {
    let handshake_timeout = Duration::from_secs(1 << 40);
    let mut rig = Rig::new(ServerLimits { handshake_timeout, ..ServerLimits::default() });
    for generation in 0..10_000 {
        let conn = ConnId { index: 0, generation };
        rig.feed(Input::Accepted { conn, peer: PEER });
        rig.send(conn, &greeting());
        rig.feed(Input::Lost { conn, os_error: 104 });
    }
    assert!(rig.server.deadlines.len() < 2 * DEADLINES_KEPT, "{}", rig.server.deadlines.len());
    let conns: Vec<ConnId> = (0..20_000).map(|index| rig.greeted(index)).collect();
    rig.send(conns[19_999], &wait(b"k"));
    for conn in conns {
        rig.feed(Input::Lost { conn, os_error: 104 });
    }
    assert!(rig.server.conns.capacity() <= conns::SLOTS_KEPT, "{}", rig.server.conns.capacity());
    let again = rig.greeted(3);
    rig.send(again, &[wait(b"j"), set(b"j", b"v")].concat());
    assert_eq!(rig.got(again), [0]);
}
