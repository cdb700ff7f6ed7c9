//! What PyTorch 2.15.0 said and was told, byte for byte. See `tests/golden/README.md`.

use crate::net::{Client, start};
use rendezvous_core::driver::server::Server;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::rng::Rng;
use rendezvous_core::wire::c10d::parse_frame;
use rendezvous_tests::frames;
use rendezvous_tests::rig::Rig;
use serde_json::Value;

pub(crate) struct Trace {
    name: String,
    group: String,
    setup: Vec<u8>,
    request: Vec<u8>,
    response: Vec<u8>,
    segments: Vec<(Direction, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

fn bytes_of(hex: &Value) -> Vec<u8> {
    let digits: Vec<u8> = hex.as_str().unwrap_or("").chars().map(nibble).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn nibble(digit: char) -> u8 {
    u8::try_from(digit.to_digit(16).expect("a hexadecimal digit")).expect("below 16")
}

fn traces() -> Vec<Trace> {
    let all: Vec<Value> = serde_json::from_str(include_str!("../golden/c10d.json")).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let segment = |segment: &Value| {
        let direction = if segment[0] == ">" { Direction::ToServer } else { Direction::ToClient };
        (direction, usize::try_from(segment[1].as_u64().expect("a size")).expect("a size"))
    };
    let trace = |value: &Value| Trace {
        name: text(&value["name"]),
        group: text(&value["group"]),
        setup: bytes_of(&value["setup_hex"]),
        request: bytes_of(&value["request_hex"]),
        response: bytes_of(&value["response_hex"]),
        segments: value["segments"]
            .as_array()
            .map(|all| all.iter().map(segment).collect())
            .unwrap_or_default(),
    };
    all.iter().map(trace).collect()
}

/// A server that has just started, and connections to it.
pub(crate) trait World {
    fn connect(&mut self) -> usize;
    fn send(&mut self, conn: usize, bytes: &[u8]);
    fn receive(&mut self, conn: usize, bytes: usize) -> Vec<u8>;
    /// All that comes until the server closes the connection, as it must.
    fn receive_all(&mut self, conn: usize) -> Vec<u8>;

    /// Sends a PING; its echo must be the next that comes.
    fn is_quiet(&mut self, conn: usize, name: &str) {
        self.send(conn, &frames::ping(0x1234_5678));
        assert_eq!(
            self.receive(conn, 4),
            0x1234_5678_u32.to_le_bytes(),
            "{name}: more came than was recorded"
        );
    }

    fn greeted(&mut self) -> usize {
        let conn = self.connect();
        self.send(conn, &frames::greeting());
        conn
    }

    fn answers(&mut self, conn: usize, trace: &Trace) {
        self.send(conn, &trace.setup);
        self.send(conn, &trace.request);
        assert_eq!(self.receive(conn, trace.response.len()), trace.response, "{}", trace.name);
        self.is_quiet(conn, &trace.name);
    }
}

/// In which pieces bytes are sent.
#[derive(Clone, Copy, Debug)]
enum Pieces {
    Whole,
    OneByOne,
    /// From this seed.
    Random(u64),
}

impl Pieces {
    fn cut<'a>(self, bytes: &'a [u8], rng: &mut Rng) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = match self {
                Self::Whole => rest.len(),
                Self::OneByOne => 1,
                Self::Random(_) => 1 + usize::try_from(rng.below(rest.len() as u64)).expect("below a length"),
            };
            let (chunk, remaining) = rest.split_at(length);
            pieces.push(chunk);
            rest = remaining;
        }
        pieces
    }
}

struct Machine {
    rig: Rig,
    conns: Vec<(ConnId, Vec<u8>)>,
    pieces: Pieces,
    rng: Rng,
}

impl Machine {
    fn new(pieces: Pieces) -> Self {
        let seed = if let Pieces::Random(seed) = pieces { seed } else { 0 };
        Self { rig: Rig::new(ServerLimits::default()), conns: Vec::new(), pieces, rng: Rng::new(seed) }
    }
}

impl World for Machine {
    fn connect(&mut self) -> usize {
        self.conns.push((self.rig.connect(), Vec::new()));
        self.conns.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        for chunk in self.pieces.cut(bytes, &mut self.rng) {
            self.rig.send(self.conns[conn].0, chunk);
        }
    }

    fn receive(&mut self, conn: usize, bytes: usize) -> Vec<u8> {
        let (id, got) = &mut self.conns[conn];
        got.extend(self.rig.take(*id));
        assert!(got.len() >= bytes, "{bytes} bytes are due, {} have come", got.len());
        got.drain(..bytes).collect()
    }

    fn receive_all(&mut self, conn: usize) -> Vec<u8> {
        let (id, got) = &mut self.conns[conn];
        got.extend(self.rig.take(*id));
        assert!(!self.rig.is_open(*id), "the server did not close");
        core::mem::take(got)
    }
}

struct Sockets {
    server: Server,
    clients: Vec<Client>,
    pieces: Pieces,
}

impl Sockets {
    fn new(pieces: Pieces) -> Self {
        Self { server: start(ServerLimits::default()), clients: Vec::new(), pieces }
    }
}

impl World for Sockets {
    fn connect(&mut self) -> usize {
        self.clients.push(Client::dial(self.server.local_addr()));
        self.clients.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        for chunk in self.pieces.cut(bytes, &mut Rng::new(1)) {
            self.clients[conn].try_send(chunk);
        }
    }

    fn receive(&mut self, conn: usize, bytes: usize) -> Vec<u8> {
        self.clients[conn].receive(bytes)
    }

    fn receive_all(&mut self, conn: usize) -> Vec<u8> {
        self.clients[conn].rest()
    }
}

/// What other clients have stored before, where the recorded answer hangs on it. A trace of the client group that is
/// in neither this list nor the next has never been thought about, and fails.
fn stored_before(name: &str) -> Vec<u8> {
    match name {
        "torch_client_get" | "torch_client_wait_timeout" => frames::set(b"/foo", b"bar"),
        "torch_client_multi_get" => [frames::set(b"/m1", b"x"), frames::set(b"/m2", b"yy")].concat(),
        "torch_client_queue_pop_block" => {
            [frames::push(b"/q", b"item1"), frames::push(b"/q", b"item2")].concat()
        }
        "torch_client_queue_pop_noblock" => frames::push(b"/q", b"item2"),
        "torch_client_barrier_1of1_again" => frames::set(b"/b1", b"1"),
        "torch_client_prefix_numkeys" => {
            (0..17).flat_map(|number| frames::set(format!("/{number}").as_bytes(), b"")).collect()
        }
        "torch_client_prefix_qpop" => frames::push(b"/pre/q", b"v"),
        "torch_client_prefix_mget" => frames::set(b"/pre/k", b"v"),
        _ if NEEDS_NOTHING.contains(&name) => Vec::new(),
        _ => panic!("{name}: say what is stored before it"),
    }
}

const NEEDS_NOTHING: [&str; 16] = [
    "torch_client_connect",
    "torch_client_get_missing_timeout",
    "torch_client_multi_get_empty",
    "torch_client_queue_pop_empty_noblock",
    "torch_client_queue_pop_block_timeout",
    "torch_client_barrier_1of1",
    "torch_client_barrier_timeout",
    "torch_client_set_empty_key",
    "torch_client_unicode_key",
    "torch_client_clone",
    "torch_client_prefix_set",
    "torch_client_prefix_nested",
    "torch_client_prefix_empty",
    "torch_client_prefix_barrier",
    "torch_client_prefix_barrier_2",
    "torch_client_prefix_qpush",
];

/// What PyTorch's client sent, in its own pieces, waiting for each answer where it did.
fn replay_client(world: &mut impl World, trace: &Trace) {
    let other = world.greeted();
    world.send(other, &stored_before(&trace.name));
    world.is_quiet(other, &trace.name);
    let greets = trace.request.starts_with(&frames::greeting());
    let conn = if greets { world.connect() } else { world.greeted() };
    let (mut request, mut response) = (trace.request.as_slice(), trace.response.as_slice());
    for &(direction, size) in &trace.segments {
        if direction == Direction::ToServer {
            world.send(conn, request.split_off(..size).expect("segments cover the request"));
        } else {
            let due = response.split_off(..size).expect("segments cover the response");
            assert_eq!(world.receive(conn, size), due, "{}", trace.name);
        }
    }
    assert!(request.is_empty() && response.is_empty(), "{}: segments cover all", trace.name);
    world.is_quiet(conn, &trace.name);
}

fn replay_with_another(world: &mut impl World, trace: &Trace) {
    let (conn, other) = (world.greeted(), world.greeted());
    let requests = frames::split(&trace.request);
    world.send(conn, requests[0]);
    world.is_quiet(conn, &trace.name);
    match trace.name.as_str() {
        "wait_released_by_other_connection" => world.send(other, &frames::set(b"/later", b"")),
        "wait_released_before_cancel" => world.send(other, &frames::set(b"/race", b"")),
        "barrier_two_connections_each" => {
            world.send(other, &trace.request);
            assert_eq!(world.receive(other, trace.response.len()), trace.response, "{}", trace.name);
        }
        _ => panic!("{}: say what the other connection does", trace.name),
    }
    world.is_quiet(other, &trace.name);
    requests[1..].iter().for_each(|request| world.send(conn, request));
    assert_eq!(world.receive(conn, trace.response.len()), trace.response, "{}", trace.name);
    world.is_quiet(conn, &trace.name);
}

/// Replays everything; returns how many traces that were.
pub(crate) fn replay_all<W: World>(new: impl Fn() -> W) -> usize {
    let mut ordered = new();
    let ordered_conn = ordered.greeted();
    for trace in &traces() {
        let mut world = new();
        match trace.group.as_str() {
            "handshake" => {
                let conn = world.connect();
                world.answers(conn, trace);
            }
            "ordered" => ordered.answers(ordered_conn, trace),
            "fresh" => {
                let conn = world.greeted();
                world.answers(conn, trace);
            }
            "close" => {
                let (conn, other) = (world.greeted(), world.greeted());
                world.send(conn, &trace.setup);
                world.is_quiet(conn, &trace.name);
                world.send(conn, &trace.request);
                assert_eq!(world.receive_all(conn), trace.response, "{}", trace.name);
                world.is_quiet(other, &trace.name);
            }
            "multi" => replay_with_another(&mut world, trace),
            "client" => replay_client(&mut world, trace),
            // PyTorch's server waits for one more segment before it closes; ours has seen enough.
            "unvalidated" => {
                let conn = world.connect();
                world.send(conn, &trace.request);
                assert_eq!(world.receive_all(conn), trace.response, "{}", trace.name);
            }
            other => panic!("{}: group {other} is new", trace.name),
        }
    }
    traces().len()
}

#[test]
fn the_server_machine_answers_as_pytorch_does_whatever_the_pieces() {
    assert_eq!(replay_all(|| Machine::new(Pieces::Whole)), 89);
    assert_eq!(replay_all(|| Machine::new(Pieces::OneByOne)), 89);
    for seed in 0..50 {
        assert_eq!(replay_all(|| Machine::new(Pieces::Random(seed))), 89, "seed {seed}");
    }
}

/// The whole group at once, so that pieces end anywhere but where frames end.
#[test]
fn pipelined_requests_are_answered_as_those_sent_one_by_one() {
    let ordered: Vec<Trace> = traces().into_iter().filter(|trace| trace.group == "ordered").collect();
    let requests: Vec<u8> = ordered.iter().flat_map(|trace| trace.request.clone()).collect();
    let responses: Vec<u8> = ordered.iter().flat_map(|trace| trace.response.clone()).collect();
    for seed in 0..200 {
        let mut world = Machine::new(Pieces::Random(seed));
        let conn = world.greeted();
        world.send(conn, &requests);
        assert_eq!(world.receive(conn, responses.len()), responses, "seed {seed}");
        world.is_quiet(conn, "ordered");
    }
}

#[test]
fn the_server_on_sockets_answers_as_pytorch_does() {
    assert_eq!(replay_all(|| Sockets::new(Pieces::Whole)), 89);
}

#[test]
fn the_server_on_sockets_answers_as_pytorch_does_byte_by_byte() {
    assert_eq!(replay_all(|| Sockets::new(Pieces::OneByOne)), 89);
}

#[test]
fn every_recorded_frame_is_written_as_it_was_read() {
    let mut frames_seen = 0;
    for trace in traces() {
        // What the server refuses is no whole frame of the protocol, but for two that are merely out of place.
        let refused =
            ["close_unknown_opcode", "close_key_too_long", "close_payload_too_long", "close_too_many_keys"];
        let mut bytes = [trace.setup.as_slice(), &trace.request].concat();
        if refused.contains(&trace.name.as_str()) {
            continue;
        }
        if trace.name == "close_after_valid_request" {
            let bad = bytes.iter().position(|&byte| byte == 0xff).expect("an opcode that is none");
            bytes.remove(bad);
        }
        for frame in frames::split(&bytes) {
            let parsed = parse_frame(frame).expect("a whole frame");
            assert_eq!(frames::encoded(&parsed), frame, "{}", trace.name);
            frames_seen += 1;
        }
    }
    assert!(frames_seen > 110, "{frames_seen}");
}
