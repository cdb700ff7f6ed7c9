//! What one frame of each kind costs a server at worst: the work that it counts and the bytes that it allocates in one
//! turn, with a large store, many waits and watches, a full barrier and a large run.

use crate::counting::allocated_bytes;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::Input;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::{
    Batched, ClientFrame, Entry, Label, LastCall, List, MAGIC, Participants, RankOrder, Terms,
};
use rendezvous_tests::frames;
use rendezvous_tests::rig::Rig;
use std::collections::BTreeSet;

/// Keys of the store. Each has a value of 100 bytes.
const KEYS: usize = 5000;
/// Keys of a long list: the most that a list may have.
const LIST: usize = 131_072;
/// Writes of a transaction that has a condition for each key of the store, too.
const TXN_PARTS: usize = 16_384 - KEYS;
const VALUE: usize = 8 << 20;
/// Sessions that wait for one key, that watch all keys, that have arrived at a barrier and are in a run.
const PEERS: usize = 100;

/// For each kind: the most work and the most allocated KiB of one turn that the frame leads to. A number is about a fifth
/// above what was measured. The budget of a turn is 5,000 units; one request is executed as a whole.
const BOUNDS: &[(&str, u64, u64)] = &[
    ("Hello", 20, 6),
    ("Heartbeat", 20, 4),
    ("Acknowledge", 20, 4),
    ("Bye", 6150, 932),
    ("Cancel", 6144, 3469),
    ("Abandon", 6150, 932),
    ("Sessions", 2497, 4200),
    ("EndSession", 6150, 932),
    ("Set", 10_920, 9868),
    ("CompareSet", 19_670, 9831),
    ("Get", 20, 4),
    ("Add", 1689, 70),
    ("Check", 159_465, 4),
    ("Wait", 316_752, 78_205),
    ("NumKeys", 20, 4),
    ("Delete", 729, 55),
    ("Append", 9960, 9831),
    ("MultiGet", 18_788, 2976),
    ("MultiSet", 652_503, 87_997),
    ("QueuePush", 19_677, 19_662),
    ("QueuePop", 9837, 9831),
    ("QueueLen", 20, 4),
    ("ListKeys", 7378, 1141),
    ("DeletePrefix", 11_202, 37_966),
    ("Txn", 102_063, 7678),
    ("Batch", 48_342, 4344),
    ("WatchKey", 20, 4),
    ("WatchPrefix", 20, 4),
    ("LeaseGrant", 20, 4),
    ("LeaseAttach", 18_080, 1584),
    ("LeaseRenew", 20, 4),
    ("LeaseRevoke", 6150, 932),
    ("Barrier", 612, 8),
    ("BarrierCancel", 612, 22),
    ("Join", 7393, 88),
    ("Standby", 20, 4),
    ("Leave", 20, 4),
    ("Close", 616, 34),
    ("Members", 20, 45),
    ("RunInfo", 20, 4),
    ("Fail", 75, 70),
    ("SET", 10_074, 9838),
    ("COMPARE_SET", 29_493, 19_662),
    ("GET", 20, 4),
    ("ADD", 1683, 70),
    ("CHECK", 159_459, 4),
    ("WAIT", 159_459, 73_290),
    ("GETNUMKEYS", 20, 4),
    ("DELETE_KEY", 723, 55),
    ("APPEND", 9832, 9831),
    ("MULTI_GET", 6706, 633),
    ("MULTI_SET", 652_497, 87_997),
    ("CANCEL_WAIT", 6144, 3469),
    ("QUEUE_PUSH", 9838, 9831),
    ("QUEUE_POP", 9831, 9831),
    ("QUEUE_LEN", 20, 4),
    ("LIST_KEYS", 7372, 836),
    ("BARRIER", 723, 57),
    ("VALIDATE", 20, 4),
    ("PING", 20, 4),
];

struct World {
    rig: Rig,
    conn: ConnId,
    next_id: u64,
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
        Self { rig, conn, next_id: 1 }
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
            for (frame, id) in [get, pop, watch, barrier(&name), join].iter().zip(1..) {
                world.rig.send(conn, &frames::native(Label { id, sequence: 0, flags: 0 }, frame));
            }
        }
        settle(&mut world.rig);
        world
    }

    fn native(&mut self, frame: &ClientFrame<'_>) -> Vec<u8> {
        self.next_id += 1;
        frames::native(Label { id: self.next_id, sequence: 0, flags: 0 }, frame)
    }

    fn does(mut self, frame: &ClientFrame<'_>) -> Self {
        let bytes = self.native(frame);
        self.rig.send(self.conn, &bytes);
        settle(&mut self.rig);
        self
    }

    /// Sends a frame of this world's native client, and returns what it costs.
    fn cost(mut self, frame: &ClientFrame<'_>) -> Cost {
        let bytes = self.native(frame);
        let conn = self.conn;
        cost(&mut self.rig, conn, &bytes)
    }

    /// The same of a c10d client.
    fn cost_of_request(mut self, request: Request<'_>) -> Cost {
        let conn = self.rig.greeted();
        cost(&mut self.rig, conn, &frames::request(request))
    }
}

/// Most work and most allocated bytes of one turn.
type Cost = (u64, u64);

fn cost(rig: &mut Rig, conn: ConnId, bytes: &[u8]) -> Cost {
    // No other client has been active for so long that a costly request is executed at once.
    rig.now = rig.now + Duration::from_millis(300);
    settle(rig);
    assert!(rig.server.wants_read(conn), "nothing is left of earlier requests");
    let mut most = turn(rig, Input::Received { conn, bytes });
    rig.open_window(conn, usize::MAX);
    for _ in 0..1_000_000 {
        if !is_work_left(rig) {
            return most;
        }
        let next = turn(rig, Input::Tick);
        most = (most.0.max(next.0), most.1.max(next.1));
        // A tick of this rig drains what the last one has left.
        rig.open_window(conn, usize::MAX);
    }
    panic!("it never ends")
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

fn open(rig: &mut Rig, node: &[u8]) -> ConnId {
    let conn = rig.connect();
    rig.send(conn, &hello(node));
    conn
}

fn hello(node: &[u8]) -> Vec<u8> {
    let hello = ClientFrame::Hello {
        version_min: 1,
        version_max: 1,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 0,
        heartbeat_ms: 0,
        heartbeats_missed_max: 3,
        node,
        auth: b"",
    };
    [&MAGIC[..], &frames::native(Label::default(), &hello)].concat()
}

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("k{number}").into_bytes()).collect()
}

fn barrier(name: &[u8]) -> ClientFrame<'_> {
    let participants = Participants::Count(u32::try_from(PEERS + 1).expect("few"));
    ClientFrame::Barrier {
        key: Key::raw(b"barrier"),
        generation: 0,
        name,
        timeout_ms: 1_000_000,
        participants,
    }
}

fn entry(node: &[u8]) -> Entry<'_> {
    let nodes = u32::try_from(PEERS + 1).expect("few");
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
    let compares: Vec<_> =
        stored.iter().map(|&key| Compare { key: Key::raw(key), condition: Condition::Exists }).collect();
    let written: Vec<_> = (0..TXN_PARTS / 2).map(|number| format!("n/{number}").into_bytes()).collect();
    let sets = written.iter().map(|name| Write::Set { key: Key::raw(name), value: b"" });
    // The number makes the server plan the writes.
    let number = Write::Add { key: wanted, delta: 1 };
    let removed = written[1..].iter().map(|_| Write::DeletePrefix { prefix: Key::raw(b"n/") });
    let writes: Vec<_> = sets.chain([number]).chain(removed).collect();
    let removals: Vec<_> =
        (0..KEYS).map(|_| Batched(ClientFrame::DeletePrefix { prefix: Key::raw(b"k") })).collect();
    let waits = 1_000_000;
    let mut costs = vec![
        ("Hello", {
            let mut world = World::busy();
            let conn = world.rig.connect();
            cost(&mut world.rig, conn, &hello(&[b'n'; 1024]))
        }),
        ("Heartbeat", World::busy().cost(&ClientFrame::Heartbeat { nonce: 1 })),
        ("Acknowledge", World::busy().cost(&ClientFrame::Acknowledge {})),
        ("Bye", leased().cost(&ClientFrame::Bye {})),
        ("Cancel", {
            let wait = ClientFrame::Wait { timeout_ms: waits, keys: Keys::scoped(b"", &all[KEYS..]) };
            let world = World::busy().does(&wait);
            let request = world.next_id;
            world.cost(&ClientFrame::Cancel { request })
        }),
        ("Abandon", leased().cost(&ClientFrame::Abandon {})),
        ("Sessions", {
            let mut world = World::new();
            for number in 0..1100 {
                open(&mut world.rig, format!("{number:01024}").as_bytes());
            }
            world.cost(&ClientFrame::Sessions { after: 0, count_max: u32::MAX })
        }),
        // Its own session, which is the first one.
        ("EndSession", leased().cost(&ClientFrame::EndSession { session: 1 })),
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
        ("Check", World::busy().cost(&ClientFrame::Check { keys: Keys::scoped(b"", &all) })),
        ("Wait", World::busy().cost(&ClientFrame::Wait { timeout_ms: waits, keys: Keys::scoped(b"", &all) })),
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
        ("MultiSet", World::busy().cost(&ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) })),
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
            World::busy().cost(&ClientFrame::WatchKey { key: Key::raw(b"k1"), from_revision: 1 })
        }),
        ("WatchPrefix", {
            World::busy().cost(&ClientFrame::WatchPrefix { prefix: Key::raw(b"k"), from_revision: 1 })
        }),
        ("LeaseGrant", World::busy().cost(&ClientFrame::LeaseGrant { ttl_ms: 1000 })),
        ("LeaseAttach", {
            let world = World::busy().does(&ClientFrame::LeaseGrant { ttl_ms: 1_000_000 });
            world.cost(&ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", stored) })
        }),
        ("LeaseRenew", leased().cost(&ClientFrame::LeaseRenew { lease: 1 })),
        ("LeaseRevoke", leased().cost(&ClientFrame::LeaseRevoke { lease: 1 })),
        ("Barrier", World::busy().cost(&barrier(b"last"))),
        ("BarrierCancel", {
            World::busy().cost(&ClientFrame::BarrierCancel { key: Key::raw(b"barrier"), name: b"node" })
        }),
        ("Join", World::busy().cost(&ClientFrame::Join { entry: entry(b"last") })),
        ("Standby", World::busy().cost(&ClientFrame::Standby { entry: entry(b"last") })),
    ];
    let joined = || World::busy().does(&ClientFrame::Join { entry: entry(b"last") });
    costs.extend([
        ("Leave", joined().cost(&ClientFrame::Leave { run_id })),
        ("Close", joined().cost(&ClientFrame::Close { run_id })),
        ("Members", {
            let members = ClientFrame::Members { run_id, round: 0, first_node_rank: 0, count_max: u32::MAX };
            joined().cost(&members)
        }),
        ("RunInfo", joined().cost(&ClientFrame::RunInfo { run_id })),
        ("Fail", joined().cost(&ClientFrame::Fail { run_id, message: &long[..60_000] })),
    ]);
    costs
}

/// The same for the requests of c10d.
fn c10d_costs() -> Vec<(&'static str, Cost)> {
    let long = vec![b'x'; VALUE];
    let all = names(LIST);
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
    let conn = world.rig.greeted();
    world.rig.send(conn, &frames::request(Request::Wait { keys: list }));
    settle(&mut world.rig);
    costs.push(("CANCEL_WAIT", cost(&mut world.rig, conn, &frames::request(Request::CancelWait))));
    let conn = world.rig.connect();
    costs.push(("VALIDATE", cost(&mut world.rig, conn, &frames::greeting())));
    costs.push(("PING", cost(&mut world.rig, conn, &frames::ping(1))));
    costs
}

#[test]
fn each_kind_of_request_costs_no_more_than_its_bound() {
    let costs = [native_costs(), c10d_costs()].concat();
    let measured: BTreeSet<&str> = costs.iter().map(|(name, _)| *name).collect();
    for (_, name, _) in ClientFrame::KINDS {
        assert!(measured.contains(name), "{name} has no scenario");
    }
    assert_eq!(measured.len(), costs.len(), "each kind has one scenario");
    assert_eq!(costs.len(), ClientFrame::KINDS.len() + 19, "c10d has 19 kinds of frames");
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
