//! What one frame of each kind costs a server at worst: the work that it counts and the bytes that it allocates in one
//! turn, with a large store, many waits and watches, a full barrier and a large run. The same for the loss of a
//! connection.

use crate::counting::allocated_bytes;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{FrameLimits, ServerLimits};
use rendezvous_core::node::server::Input;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::{
    Batched, ClientFrame, Entry, From, Header, Label, LastCall, List, Participants, RankOrder, Terms,
};
use rendezvous_tests::frames;
use rendezvous_tests::rig::Rig;
use std::collections::BTreeSet;

/// Keys of the store. Each has a value of 100 bytes.
const KEYS: usize = 5000;
/// Keys of a long list: the most that a list of a native request may have, and one of a c10d request.
const LIST: usize = 32_768;
const C10D_LIST: usize = 131_072;
/// Conditions of the longest transaction, and its writes.
const TXN_CONDITIONS: usize = 2048;
const TXN_WRITES: usize = 4096 - TXN_CONDITIONS;
/// Oldest revision in the history, which begins with the first session.
const OLDEST: u64 = KEYS as u64 + 1;
const VALUE: usize = 8 << 20;
/// Sessions that wait for one key, that watch all keys, that have arrived at a barrier and are in a run.
const PEERS: usize = 100;
/// Kind of the frame that answers a request that failed.
const ERROR: u16 = 0x80ff;
/// Sessions that have arrived at a barrier with a long list.
const LISTED: usize = 4;
/// Leases, watches and waits of the session that ends, each.
const ENDS: usize = 2000;
/// Nodes of the run whose members are listed.
const NODES: usize = 4096;

/// For each kind: the most work and the most allocated KiB of one turn that the frame leads to. A number is about a fifth
/// above what was measured. The budget of a turn is 5,000 units; one request is executed as a whole.
const BOUNDS: &[(&str, u64, u64)] = &[
    ("Hello", 20, 6),
    ("Heartbeat", 20, 4),
    ("Acknowledge", 20, 4),
    ("Bye", 15_608, 16_083),
    ("Cancel", 6144, 740),
    ("Abandon", 15_685, 17_930),
    ("Sessions", 2497, 4200),
    ("EndSession", 15_685, 17_930),
    ("Set", 10_804, 9867),
    ("CompareSet", 19_670, 9831),
    ("Get", 20, 4),
    ("Add", 1689, 39),
    ("Check", 39_852, 4),
    ("Wait", 79_186, 14_744),
    ("NumKeys", 20, 4),
    ("Delete", 729, 24),
    ("Append", 9841, 9831),
    ("MultiGet", 6789, 2550),
    ("MultiSet", 158_163, 17_125),
    ("QueuePush", 19_677, 19_662),
    ("QueuePop", 9837, 9831),
    ("QueueLen", 20, 4),
    ("ListKeys", 6457, 992),
    ("DeletePrefix", 9976, 13_050),
    ("Txn", 26_023, 1303),
    ("Batch", 45_909, 4286),
    ("WatchKey", 20, 4),
    ("WatchPrefix", 20, 4),
    ("LeaseGrant", 20, 4),
    ("LeaseAttach", 18_080, 892),
    ("LeaseRenew", 20, 4),
    ("LeaseRevoke", 6150, 932),
    ("Barrier", 84_088, 8010),
    ("BarrierCancel", 44_257, 22),
    ("Join", 7393, 88),
    ("Standby", 20, 4),
    ("Leave", 20, 4),
    ("Close", 616, 8),
    ("Members", 542, 1516),
    ("RunInfo", 20, 4),
    ("Fail", 75, 70),
    ("Fail that ends the run", 1364, 199),
    ("SET", 10_074, 9838),
    ("COMPARE_SET", 29_493, 19_662),
    ("GET", 20, 4),
    ("ADD", 1683, 70),
    ("CHECK", 159_459, 4),
    ("WAIT", 6234, 22_143),
    ("GETNUMKEYS", 20, 4),
    ("DELETE_KEY", 723, 55),
    ("APPEND", 9832, 9831),
    ("MULTI_GET", 6706, 633),
    ("MULTI_SET", 12_205, 39_760),
    ("CANCEL_WAIT", 6144, 2660),
    ("QUEUE_PUSH", 9838, 9831),
    ("QUEUE_POP", 9831, 9831),
    ("QUEUE_LEN", 20, 4),
    ("LIST_KEYS", 6451, 687),
    ("BARRIER", 723, 57),
    ("VALIDATE", 20, 4),
    ("PING", 20, 4),
    ("loss of a c10d client", 6144, 2660),
    ("loss of a session", 15_685, 29_707),
    ("MultiGet of one key", 44_358, 10_675),
    ("MULTI_GET of one key", 10_963, 2612),
    ("WatchPrefix of many changes", 216, 1062),
    ("LeaseAttach of a long list", 118_495, 4365),
];

struct World {
    rig: Rig,
    conn: ConnId,
    next_id: u64,
    /// Sequence number of the last frame that this world's native client has received.
    received: u64,
}

impl World {
    /// A store with keys, without other clients.
    fn new() -> Self {
        let mut rig = Rig::new(ServerLimits::default());
        let writer = rig.greeted();
        let keys = names(KEYS);
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &[7; 100][..])).collect();
        rig.send(writer, &frames::request(Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) }));
        settle(&mut rig);
        let conn = open(&mut rig, b"node");
        Self { rig, conn, next_id: 1, received: 0 }
    }

    /// The same with sessions that wait, watch and have arrived, and a run that lacks one node.
    fn busy() -> Self {
        let mut world = Self::new();
        for peer in 0..PEERS {
            let name = format!("peer{peer}").into_bytes();
            let conn = open(&mut world.rig, &name);
            let get = ClientFrame::Get { timeout_ms: 1_000_000, key: Key::raw(b"wanted") };
            let pop = ClientFrame::QueuePop { timeout_ms: 1_000_000, key: Key::raw(b"queue") };
            let watch = ClientFrame::WatchPrefix { prefix: Key::raw(b""), from_revision: 0 };
            let join = ClientFrame::Join { entry: entry(&name) };
            // A barrier that ends with the session "node".
            let pair: [&[u8]; 2] = [&name, b"node"];
            let meet = arrival(&name, &name, Participants::Names(Keys::scoped(b"", &pair)));
            for (frame, id) in [get, pop, watch, barrier(&name), meet, join].iter().zip(1..) {
                world.rig.send(conn, &frames::native(Label { id, sequence: 0, flags: 0 }, frame));
            }
        }
        settle(&mut world.rig);
        world
    }

    /// The same, and this world's session has as much to end as it may have of waits, and much of all else.
    fn laden() -> Self {
        let all = names(LIST);
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let (stored, absent) = (&all[..KEYS], &all[KEYS..]);
        let mut frames = vec![
            ClientFrame::LeaseGrant { ttl_ms: 1_000_000 },
            ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", stored) },
            ClientFrame::Wait { timeout_ms: 1_000_000, keys: Keys::scoped(b"", absent) },
            arrival(b"own", b"node", Participants::Count(2)),
            ClientFrame::Join { entry: entry(b"last") },
        ];
        let (wanted, queue) = (Key::raw(b"wanted"), Key::raw(b"queue"));
        for &key in &stored[..ENDS] {
            let key = Key::raw(key);
            frames.push(ClientFrame::LeaseGrant { ttl_ms: 1_000_000 });
            frames.push(ClientFrame::WatchKey { key, from_revision: 0 });
            frames.push(ClientFrame::WatchPrefix { prefix: key, from_revision: 0 });
            frames.push(ClientFrame::Get { timeout_ms: 1_000_000, key: wanted });
        }
        // The peers' pops wait behind these.
        frames.extend((0..PEERS).map(|_| ClientFrame::QueuePop { timeout_ms: 1_000_000, key: queue }));
        let world = frames.iter().fold(Self::busy(), Self::does);
        // Each peer waits for a key, for an item and at two barriers; this session at one, and for keys and items.
        assert_eq!(world.rig.server.stats().waiting, 5 * PEERS + ENDS + 2, "no request is refused");
        world
    }

    /// A store, and a run of so many nodes that lacks one.
    fn crowded() -> Self {
        let mut world = Self::new();
        for node in 0..NODES {
            let name = format!("node{node}").into_bytes();
            let conn = open(&mut world.rig, &name);
            let join = ClientFrame::Join { entry: entry_of(&name, NODES + 1) };
            world.rig.send(conn, &frames::native(Label { id: 1, sequence: 0, flags: 0 }, &join));
        }
        settle(&mut world.rig);
        world
    }

    /// A store, and sessions that have arrived at a barrier whose list is as long as one may be.
    fn listed(list: &[&[u8]]) -> Self {
        let mut world = Self::new();
        for name in &list[..LISTED] {
            let conn = open(&mut world.rig, name);
            let arrive = listed_barrier(name, list);
            send(&mut world.rig, conn, &frames::native(Label { id: 1, sequence: 0, flags: 0 }, &arrive));
        }
        assert_eq!(world.rig.server.stats().waiting, LISTED, "they have arrived");
        world
    }

    fn native(&mut self, frame: &ClientFrame<'_>) -> Vec<u8> {
        self.next_id += 1;
        frames::native(Label { id: self.next_id, sequence: self.received, flags: 0 }, frame)
    }

    /// Sends a request, which must not fail.
    fn does(mut self, frame: &ClientFrame<'_>) -> Self {
        let bytes = self.native(frame);
        send(&mut self.rig, self.conn, &bytes);
        self.take_answers(frame);
        self
    }

    /// Reads the answers to a request, which must not have failed.
    fn take_answers(&mut self, frame: &ClientFrame<'_>) {
        let answers = self.rig.take(self.conn);
        let mut rest = &answers[..];
        while let Some((header, body)) = rest.split_first_chunk() {
            let header = Header::read(header, From::Server, &FrameLimits::default()).expect("a frame");
            // A request that this one cancels is answered with an error.
            assert!(header.id != self.next_id || header.kind != ERROR, "the answer to {frame:?}");
            self.received = self.received.max(header.sequence);
            rest = &body[header.body_bytes as usize..];
        }
    }

    /// Sends a frame of this world's native client, which must not fail, and returns what it costs.
    fn cost(mut self, frame: &ClientFrame<'_>) -> Cost {
        let bytes = self.native(frame);
        let conn = self.conn;
        let cost = cost(&mut self.rig, conn, &bytes);
        self.take_answers(frame);
        cost
    }

    /// The same of a c10d client.
    fn cost_of_request(mut self, request: Request<'_>) -> Cost {
        let conn = self.rig.greeted();
        cost(&mut self.rig, conn, &frames::request(request))
    }

    /// Adds a c10d client that waits for as many keys as one may.
    fn with_wait(&mut self) -> ConnId {
        let all = names(KEYS + C10D_LIST);
        let absent: Vec<&[u8]> = all[KEYS..].iter().map(Vec::as_slice).collect();
        let conn = self.rig.greeted();
        let waiting = self.rig.server.stats().waiting;
        send(&mut self.rig, conn, &frames::request(Request::Wait { keys: Keys::scoped(b"", &absent) }));
        settle(&mut self.rig);
        assert_eq!(self.rig.server.stats().waiting, waiting + 1, "it waits");
        conn
    }
}

/// Most work and most allocated bytes of one turn.
type Cost = (u64, u64);

/// The more costly one of two scenarios, for each of both figures.
fn worse(one: Cost, other: Cost) -> Cost {
    (one.0.max(other.0), one.1.max(other.1))
}

fn cost(rig: &mut Rig, conn: ConnId, bytes: &[u8]) -> Cost {
    cost_of_input(rig, conn, Input::Received { conn, bytes })
}

/// What the loss of a connection costs.
fn cost_of_loss(rig: &mut Rig, conn: ConnId) -> Cost {
    cost_of_input(rig, conn, Input::Lost { conn, os_error: 104 })
}

fn cost_of_input(rig: &mut Rig, conn: ConnId, input: Input<'_>) -> Cost {
    // No other client has been active for so long that a costly request is executed at once.
    rig.now = rig.now + Duration::from_millis(300);
    settle(rig);
    assert!(rig.server.wants_read(conn), "nothing is left of earlier requests");
    let mut most = turn(rig, input);
    rig.open_window(conn, usize::MAX);
    for _ in 0..1_000_000 {
        if !is_work_left(rig) {
            return most;
        }
        most = worse(most, turn(rig, Input::Tick));
        // A tick of this rig drains what the last one has left.
        rig.open_window(conn, usize::MAX);
    }
    panic!("it never ends")
}

/// Sends a request, and lets the server execute it.
fn send(rig: &mut Rig, conn: ConnId, bytes: &[u8]) {
    rig.send(conn, bytes);
    settle(rig);
    while !rig.server.wants_read(conn) {
        // A costly request comes after those of clients that have been active lately.
        rig.pass(Duration::from_millis(100));
        settle(rig);
    }
}

fn turn(rig: &mut Rig, input: Input<'_>) -> Cost {
    let (now, server) = (rig.now, &mut rig.server);
    let allocated = allocated_bytes(|| server.handle(now, input).expect("a connection of this rig"));
    (rig.server.work(), allocated)
}

fn settle(rig: &mut Rig) {
    while is_work_left(rig) {
        rig.feed(Input::Tick);
    }
}

fn is_work_left(rig: &Rig) -> bool {
    rig.server.poll_timeout().is_some_and(|due| due <= rig.now)
}

pub(crate) fn open(rig: &mut Rig, node: &[u8]) -> ConnId {
    let conn = rig.connect();
    rig.send(conn, &frames::hello(node));
    conn
}

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("k{number}").into_bytes()).collect()
}

fn barrier(name: &[u8]) -> ClientFrame<'_> {
    let participants = Participants::Count(u32::try_from(PEERS + 1).expect("few"));
    arrival(b"barrier", name, participants)
}

fn listed_barrier<'a>(name: &'a [u8], list: &'a [&'a [u8]]) -> ClientFrame<'a> {
    arrival(b"listed", name, Participants::Names(Keys::scoped(b"", list)))
}

fn arrival<'a>(key: &'a [u8], name: &'a [u8], participants: Participants<'a>) -> ClientFrame<'a> {
    ClientFrame::Barrier { key: Key::raw(key), generation: 0, name, timeout_ms: 1_000_000, participants }
}

fn entry(node: &[u8]) -> Entry<'_> {
    entry_of(node, PEERS + 1)
}

/// Entry in a run of so many nodes.
pub(crate) fn entry_of(node: &[u8], nodes: usize) -> Entry<'_> {
    let nodes = u32::try_from(nodes).expect("few");
    Entry {
        run_id: b"run",
        node,
        address: b"host",
        local_world_size: 8,
        node_rank: -1,
        join_timeout_ms: 1_000_000,
        terms: Terms {
            nodes_min: nodes,
            nodes_max: nodes,
            continue_min: 0,
            last_call: LastCall::Off,
            last_call_ms: 0,
            fast_quorum: false,
            rank_order: RankOrder::Host,
            rank_label: b"",
            cool_down_failures: 0,
            cool_down_window_ms: 0,
            cool_down_pause_ms: 0,
            cool_down_pause_ms_max: 0,
        },
        labels: Pairs::scoped(b"", &[]),
        round_min: 0,
    }
}

/// What a frame of each kind costs at worst.
fn native_costs() -> Vec<(&'static str, Cost)> {
    let long = vec![b'x'; VALUE];
    let all = names(LIST);
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let stored = &all[..KEYS];
    let pairs: Vec<(&[u8], &[u8])> = all.iter().map(|&key| (key, &b"v"[..])).collect();
    let (wanted, queue, run_id) = (Key::raw(b"wanted"), Key::raw(b"queue"), Key::raw(b"run"));
    let leased = || {
        let attach = ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", stored) };
        World::new().does(&ClientFrame::LeaseGrant { ttl_ms: 1_000_000 }).does(&attach)
    };
    let compares: Vec<_> = stored[..TXN_CONDITIONS]
        .iter()
        .map(|&key| Compare { key: Key::raw(key), condition: Condition::Exists })
        .collect();
    let written: Vec<_> = (0..TXN_WRITES / 2).map(|number| format!("n/{number}").into_bytes()).collect();
    let sets = written.iter().map(|name| Write::Set { key: Key::raw(name), value: b"" });
    // The number makes the server plan the writes.
    let number = Write::Add { key: wanted, delta: 1 };
    let removed = written[1..].iter().map(|_| Write::DeletePrefix { prefix: Key::raw(b"n/") });
    let writes: Vec<_> = sets.chain([number]).chain(removed).collect();
    // One key as often as a list may name it: one that is stored, or that is not.
    let (same, absent) = (vec![all[1]; LIST], vec![&b"absent"[..]; LIST]);
    let same_pairs: Vec<(&[u8], &[u8])> = same.iter().map(|&key| (key, &b"v"[..])).collect();
    let removals: Vec<_> =
        (0..KEYS).map(|_| Batched(ClientFrame::DeletePrefix { prefix: Key::raw(b"k") })).collect();
    let waits = 1_000_000;
    let mut costs = vec![
        ("Hello", {
            let mut world = World::busy();
            let conn = world.rig.connect();
            cost(&mut world.rig, conn, &frames::hello(&[b'n'; 1024]))
        }),
        ("Heartbeat", World::busy().cost(&ClientFrame::Heartbeat { nonce: 1 })),
        ("Acknowledge", World::busy().cost(&ClientFrame::Acknowledge {})),
        ("Bye", World::laden().cost(&ClientFrame::Bye {})),
        ("Cancel", {
            let wait = ClientFrame::Wait { timeout_ms: waits, keys: Keys::scoped(b"", &all[KEYS..]) };
            let world = World::busy().does(&wait);
            let request = world.next_id;
            world.cost(&ClientFrame::Cancel { request })
        }),
        ("Abandon", World::laden().cost(&ClientFrame::Abandon {})),
        ("Sessions", {
            let mut world = World::new();
            for number in 0..1100 {
                open(&mut world.rig, format!("{number:01024}").as_bytes());
            }
            world.cost(&ClientFrame::Sessions { after: 0, count_max: u32::MAX })
        }),
        // Its own session, which is the first one.
        ("EndSession", World::laden().cost(&ClientFrame::EndSession { session: 1 })),
        ("Set", World::busy().cost(&ClientFrame::Set { key: wanted, value: &long })),
        ("CompareSet", {
            let world = World::new().does(&ClientFrame::Set { key: wanted, value: &long });
            world.cost(&ClientFrame::CompareSet { key: wanted, expected: &long, desired: &long })
        }),
        ("Get", {
            let world = World::new().does(&ClientFrame::Set { key: wanted, value: &long });
            world.cost(&ClientFrame::Get { timeout_ms: 0, key: wanted })
        }),
        ("Add", World::busy().cost(&ClientFrame::Add { key: wanted, delta: 1 })),
        ("Check", {
            let cost = |keys| World::busy().cost(&ClientFrame::Check { keys: Keys::scoped(b"", keys) });
            worse(cost(&all), cost(&same))
        }),
        ("Wait", {
            let wait = |keys| ClientFrame::Wait { timeout_ms: waits, keys: Keys::scoped(b"", keys) };
            let end = World::busy()
                .does(&wait(&absent))
                .cost(&ClientFrame::Set { key: Key::raw(b"absent"), value: b"" });
            worse(World::busy().cost(&wait(&all)), worse(World::busy().cost(&wait(&absent)), end))
        }),
        ("NumKeys", World::busy().cost(&ClientFrame::NumKeys {})),
        ("Delete", World::busy().cost(&ClientFrame::Delete { key: Key::raw(b"k1") })),
        ("Append", {
            let world = World::busy().does(&ClientFrame::Set { key: Key::raw(b"long"), value: &long });
            world.cost(&ClientFrame::Append { key: Key::raw(b"long"), value: &long })
        }),
        ("MultiGet", {
            let keys = Keys::scoped(b"", stored);
            World::busy().cost(&ClientFrame::MultiGet { timeout_ms: 0, keys })
        }),
        ("MultiSet", {
            let cost =
                |pairs| World::busy().cost(&ClientFrame::MultiSet { pairs: Pairs::scoped(b"", pairs) });
            worse(cost(&pairs), cost(&same_pairs))
        }),
        ("QueuePush", World::busy().cost(&ClientFrame::QueuePush { key: queue, value: &long })),
        ("QueuePop", {
            let world = World::new().does(&ClientFrame::QueuePush { key: queue, value: &long });
            world.cost(&ClientFrame::QueuePop { timeout_ms: 0, key: queue })
        }),
        ("QueueLen", World::busy().cost(&ClientFrame::QueueLen { key: queue })),
        ("ListKeys", {
            let (prefix, after) = (Key::raw(b""), Key::raw(b""));
            World::busy().cost(&ClientFrame::ListKeys { prefix, after, count_max: u32::MAX })
        }),
        ("DeletePrefix", World::busy().cost(&ClientFrame::DeletePrefix { prefix: Key::raw(b"") })),
        ("Txn", {
            let (compares, then) = (List::new(&compares), List::new(&writes));
            World::busy().cost(&ClientFrame::Txn { compares, then, otherwise: List::new(&[]) })
        }),
        ("Batch", World::busy().cost(&ClientFrame::Batch { requests: List::new(&removals) })),
        ("WatchKey", {
            World::busy().cost(&ClientFrame::WatchKey { key: Key::raw(b"k1"), from_revision: OLDEST })
        }),
        ("WatchPrefix", {
            World::busy().cost(&ClientFrame::WatchPrefix { prefix: Key::raw(b"k"), from_revision: OLDEST })
        }),
        ("LeaseGrant", World::busy().cost(&ClientFrame::LeaseGrant { ttl_ms: 1000 })),
        ("LeaseAttach", {
            let world = World::busy().does(&ClientFrame::LeaseGrant { ttl_ms: 1_000_000 });
            world.cost(&ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", stored) })
        }),
        ("LeaseRenew", leased().cost(&ClientFrame::LeaseRenew { lease: 1 })),
        ("LeaseRevoke", leased().cost(&ClientFrame::LeaseRevoke { lease: 1 })),
        // The last one to arrive at a counted barrier, and the first and a further one of a long list.
        ("Barrier", {
            let last = World::busy().cost(&barrier(b"last"));
            let first = World::new().cost(&listed_barrier(all[0], &all));
            let further = World::listed(&all).cost(&listed_barrier(all[LISTED], &all));
            worse(last, worse(first, further))
        }),
        ("BarrierCancel", {
            let counted = ClientFrame::BarrierCancel { key: Key::raw(b"barrier"), name: b"node" };
            let listed = ClientFrame::BarrierCancel { key: Key::raw(b"listed"), name: all[0] };
            worse(World::busy().cost(&counted), World::listed(&all).cost(&listed))
        }),
        ("Join", World::busy().cost(&ClientFrame::Join { entry: entry(b"last") })),
        ("Standby", World::busy().cost(&ClientFrame::Standby { entry: entry(b"last") })),
    ];
    let joined = || World::busy().does(&ClientFrame::Join { entry: entry(b"last") });
    costs.extend([
        ("Leave", joined().cost(&ClientFrame::Leave { run_id })),
        ("Close", joined().cost(&ClientFrame::Close { run_id })),
        // Of a round, and of nodes that wait for one.
        ("Members", {
            let members = ClientFrame::Members { run_id, round: 0, first_node_rank: 0, count_max: u32::MAX };
            let last = ClientFrame::Join { entry: entry_of(b"last", NODES + 1) };
            let mut world = World::crowded();
            let (conn, request) = (world.conn, world.native(&members));
            let waiting = cost(&mut world.rig, conn, &request);
            worse(waiting, world.does(&last).cost(&members))
        }),
        ("RunInfo", joined().cost(&ClientFrame::RunInfo { run_id })),
        ("Fail", {
            // It is refused, because it is too long.
            let mut world = joined();
            let message = world.native(&ClientFrame::Fail { run_id, message: &long[..60_000] });
            cost(&mut world.rig, world.conn, &message)
        }),
    ]);
    costs
}

/// The same for the requests of c10d.
fn c10d_costs() -> Vec<(&'static str, Cost)> {
    let long = vec![b'x'; VALUE];
    let all = names(C10D_LIST);
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let pairs: Vec<(&[u8], &[u8])> = all.iter().map(|&key| (key, &b"v"[..])).collect();
    let (wanted, queue) = (Key::raw(b"wanted"), Key::raw(b"queue"));
    let set = |key: Key<'static>| World::new().does(&ClientFrame::Set { key, value: &long });
    let name = |request: &Request<'_>| match request {
        // A new request needs a line below.
        Request::Set { .. } => "SET",
        Request::CompareSet { .. } => "COMPARE_SET",
        Request::Get { .. } => "GET",
        Request::Add { .. } => "ADD",
        Request::Check { .. } => "CHECK",
        Request::Wait { .. } => "WAIT",
        Request::NumKeys => "GETNUMKEYS",
        Request::Delete { .. } => "DELETE_KEY",
        Request::Append { .. } => "APPEND",
        Request::MultiGet { .. } => "MULTI_GET",
        Request::MultiSet { .. } => "MULTI_SET",
        Request::CancelWait => "CANCEL_WAIT",
        Request::QueuePush { .. } => "QUEUE_PUSH",
        Request::QueuePop { .. } => "QUEUE_POP",
        Request::QueueLen { .. } => "QUEUE_LEN",
        Request::ListKeys => "LIST_KEYS",
        Request::Barrier { .. } => "BARRIER",
    };
    let list = Keys::scoped(b"", &all);
    let worlds = [
        (World::busy(), Request::Set { key: wanted, value: &long }),
        (set(wanted), Request::CompareSet { key: wanted, expected: &long, desired: &long }),
        (set(wanted), Request::Get { key: wanted }),
        (World::busy(), Request::Add { key: wanted, delta: 1 }),
        (World::busy(), Request::Check { keys: list }),
        (World::busy(), Request::Wait { keys: list }),
        (World::busy(), Request::NumKeys),
        (World::busy(), Request::Delete { key: Key::raw(b"k1") }),
        (set(Key::raw(b"long")), Request::Append { key: Key::raw(b"long"), value: &long }),
        (World::busy(), Request::MultiGet { keys: Keys::scoped(b"", &all[..KEYS]) }),
        (World::busy(), Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) }),
        (World::busy(), Request::QueuePush { key: queue, value: &long }),
        (
            World::new().does(&ClientFrame::QueuePush { key: queue, value: &long }),
            Request::QueuePop { key: queue },
        ),
        (World::busy(), Request::QueueLen { key: queue }),
        (World::busy(), Request::ListKeys),
        (World::busy(), Request::Barrier { key: wanted, world_size: 2 }),
    ];
    let mut costs: Vec<_> =
        worlds.into_iter().map(|(world, request)| (name(&request), world.cost_of_request(request))).collect();
    let mut world = World::busy();
    let conn = world.with_wait();
    costs.push(("CANCEL_WAIT", cost(&mut world.rig, conn, &frames::request(Request::CancelWait))));
    let mut world = World::busy();
    let conn = world.rig.connect();
    costs.push(("VALIDATE", cost(&mut world.rig, conn, &frames::greeting())));
    costs.push(("PING", cost(&mut world.rig, conn, &frames::ping(1))));
    costs
}

/// What the loss of a connection costs, and lists as long as they may be, where those above are shorter.
fn other_costs() -> Vec<(&'static str, Cost)> {
    let mut world = World::laden();
    let session = cost_of_loss(&mut world.rig, world.conn);
    let mut world = World::busy();
    let conn = world.with_wait();
    let same = vec![&b"k1"[..]; LIST];
    let all = names(LIST);
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let (keys, to_attach) = (Keys::scoped(b"", &same), Keys::scoped(b"", &all));
    let stored: Vec<(&[u8], &[u8])> = all[..KEYS].iter().map(|&key| (key, &b"v"[..])).collect();
    let changed = World::new().does(&ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &stored) });
    let c10d_keys = vec![&b"k1"[..]; C10D_LIST];
    let c10d_keys = Keys::scoped(b"", &c10d_keys);
    let leasing = World::busy().does(&ClientFrame::LeaseGrant { ttl_ms: 1_000_000 });
    vec![
        ("loss of a session", session),
        ("loss of a c10d client", cost_of_loss(&mut world.rig, conn)),
        ("MultiGet of one key", World::busy().cost(&ClientFrame::MultiGet { timeout_ms: 0, keys })),
        ("MULTI_GET of one key", World::busy().cost_of_request(Request::MultiGet { keys: c10d_keys })),
        ("Fail that ends the run", {
            let joined = World::busy().does(&ClientFrame::Join { entry: entry(b"last") });
            joined.cost(&ClientFrame::Fail { run_id: Key::raw(b"run"), message: &[b'x'; 1024] })
        }),
        ("WatchPrefix of many changes", {
            changed.cost(&ClientFrame::WatchPrefix { prefix: Key::raw(b""), from_revision: OLDEST })
        }),
        ("LeaseAttach of a long list", leasing.cost(&ClientFrame::LeaseAttach { lease: 1, keys: to_attach })),
    ]
}

#[test]
fn each_kind_of_request_costs_no_more_than_its_bound() {
    let others = other_costs();
    let costs = [native_costs(), c10d_costs(), others.clone()].concat();
    let measured: BTreeSet<&str> = costs.iter().map(|(name, _)| *name).collect();
    for (_, name, _) in ClientFrame::KINDS {
        assert!(measured.contains(name), "{name} has no scenario");
    }
    assert_eq!(measured.len(), costs.len(), "each kind has one scenario");
    let frames = costs.len() - others.len();
    assert_eq!(frames, ClientFrame::KINDS.len() + 19, "c10d has 19 kinds of frames");
    let mut table = String::new();
    let mut broken = Vec::new();
    for (name, (work, allocated)) in &costs {
        let kib = allocated.div_ceil(1024);
        table += &format!("    (\"{name}\", {}, {}),\n", (work + work / 5).max(20), (kib + kib / 5).max(4));
        match BOUNDS.iter().find(|(known, ..)| known == name) {
            Some((_, work_max, kib_max)) if work <= work_max && kib <= *kib_max => {}
            bound => {
                broken.push(format!("{name}: {work} units of work and {kib} KiB; the bound is {bound:?}"))
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}\nmeasured, with a fifth more:\n{table}");
}
