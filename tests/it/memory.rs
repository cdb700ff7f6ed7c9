//! How much memory a server takes, and how often it asks for some.

use crate::costs::{entry_of, open};
use crate::counting::{allocations, allocations_of_all_threads, held_bytes};
use crate::net::Client;
use crate::rdzv::RdzvServer;
use rendezvous_core::driver::server::{Server as RunningServer, ServerOptions};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{EngineLimits, HistoryLimits, KEY_COST_BYTES, RendezvousLimits, ServerLimits};
use rendezvous_core::node::server::{Input, Output, Server, ServerInstance};
use rendezvous_core::rendezvous::service::{
    CoolDown, Input as RendezvousInput, Join, NodeName, ParticipantId, Rendezvous, RunSettings,
};
use rendezvous_core::store::engine::Engine;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{ClientFrame, Entry, Label, Why};
use rendezvous_rpc::driver::calls::handling::{Handling, Request as Called, Run};
use rendezvous_rpc::driver::group::{RpcAgent, RpcWorker, Shutdown, TcpOptions};
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use rendezvous_tests::frames;
use rendezvous_tests::rig::{PEER, Rig};

const IDLE_CONNECTIONS: usize = 10_000;
const IDLE_BYTES_MAX: u64 = 2048;
/// What each process needs beside its connections.
const SPARE_DESCRIPTORS: u64 = 200;

/// Lets this process, and those that it starts, have as many descriptors as they need; returns how many they get.
pub(crate) fn raise_descriptor_limit(wanted: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let raised = libc::rlimit { rlim_cur: wanted.max(limit.rlim_cur), rlim_max: wanted.max(limit.rlim_max) };
    // SAFETY: `raised` is valid for reading.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
        return raised.rlim_cur;
    }
    // Only the superuser raises the hard limit.
    let highest = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const highest) }, 0);
    highest.rlim_cur
}

/// Resident memory of the server's process, in bytes.
fn resident_bytes(server: &RdzvServer) -> u64 {
    resident(&server.proc_file("smaps_rollup"))
}

fn resident(rollup: &str) -> u64 {
    let line = rollup.lines().find(|line| line.starts_with("Rss:")).expect("a line on resident memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib * 1024
}

#[test]
fn ten_thousand_idle_connections_take_less_than_two_kib_each() {
    let allowed = raise_descriptor_limit(IDLE_CONNECTIONS as u64 + SPARE_DESCRIPTORS);
    let possible =
        usize::try_from(allowed.saturating_sub(SPARE_DESCRIPTORS)).expect("a number of descriptors");
    let connections = possible.min(IDLE_CONNECTIONS);
    let server = RdzvServer::start();
    // Whatever serving takes once is there before the first measurement.
    let mut first = Client::greet(server.address());
    first.send(&[frames::set(b"/k", &[7; 200]), frames::get(b"/k")].concat());
    assert_eq!(first.receive(208).len(), 208);
    let before = resident_bytes(&server);
    let idle: Vec<Client> = (0..connections)
        .map(|_| {
            // Each has been served, with a frame in two pieces and an answer that is not a short one.
            let mut client = Client::greet(server.address());
            let get = frames::get(b"/k");
            client.send(&get[..5]);
            client.send(&get[5..]);
            assert_eq!(client.receive(208).len(), 208);
            client
        })
        .collect();
    let each = resident_bytes(&server).saturating_sub(before) / connections as u64;
    println!("{connections} idle connections: {each} bytes each");
    assert!(
        each < IDLE_BYTES_MAX,
        "{each} bytes of resident memory for each of {connections} idle connections"
    );
    assert!(each > 100, "{each} bytes: the measurement sees the connections");
    first.is_served();
    drop(idle);
    assert_eq!(
        connections, IDLE_CONNECTIONS,
        "this machine allows {allowed} descriptors (ulimit -Hn), so only {connections} connections were measured, at \
         {each} bytes each: raise the limit to have the figure for {IDLE_CONNECTIONS}",
    );
}

#[test]
fn readers_that_never_read_take_bounded_memory() {
    const READERS: usize = 4;
    const VALUE_BYTES: usize = 8 << 20;
    let server = RdzvServer::start();
    let mut other = Client::greet(server.address());
    other.send(&frames::set(b"/big", &vec![1; VALUE_BYTES]));
    other.is_served();
    let before = resident_bytes(&server);
    let mut greedy: Vec<Client> = (0..READERS).map(|_| Client::greet(server.address())).collect();
    for client in &mut greedy {
        client.send(&frames::get(b"/big").repeat(1000));
    }
    // Turn after turn it has the chance to answer more than it should.
    for _ in 0..1000 {
        other.is_served();
    }
    let more = resident_bytes(&server).saturating_sub(before);
    // One answer each, in a buffer that may have doubled on its way, and the requests that rest.
    let most = (READERS * 2 * VALUE_BYTES + READERS * (1 << 20)) as u64;
    assert!(more <= most, "{more} bytes for {READERS} readers that do not read; {most} are in order");
    // The first answer is whole all the same.
    assert_eq!(greedy[0].receive(8 + VALUE_BYTES)[..8], (VALUE_BYTES as u64).to_le_bytes());
}

/// The machine and one connection, driven as the reactor does it.
struct Wire {
    server: Server,
    conn: ConnId,
    answered: usize,
}

impl Wire {
    fn new() -> Self {
        let conn = ConnId { index: 0, generation: 0 };
        let mut wire = Self {
            server: Server::new(ServerLimits::default(), ServerInstance::from_seed(1)),
            conn,
            answered: 0,
        };
        wire.feed(Input::Accepted { conn, peer: PEER });
        wire.receive(&frames::greeting());
        wire
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.feed(Input::Received { conn: self.conn, bytes });
    }

    fn feed(&mut self, input: Input<'_>) {
        self.server.handle(Instant::ORIGIN, input).expect("a connection of ours");
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Transmit { conn } => {
                    let bytes = self.server.unsent(conn).len();
                    self.answered += bytes;
                    self.server.handle(Instant::ORIGIN, Input::Sent { conn, bytes }).expect("it is there");
                }
                Output::Close { conn } => panic!("{conn:?} was closed"),
                Output::Read { .. } | Output::Event(_) => {}
            }
        }
    }
}

#[test]
fn steady_requests_on_existing_keys_allocate_nothing_in_the_server() {
    let (counter, swapped) = (Key::raw(b"/counter"), Key::raw(b"/swapped"));
    let values: Vec<Vec<u8>> =
        [0, 1, 31, 32, 33, 40, 41, 64, 100, 255, 256].map(|size| vec![b'v'; size]).into();
    let names: [&[u8]; 3] = [b"counter", b"swapped", b"k"];
    let keys = Keys::scoped(b"/", &names);
    let mut mix: Vec<Vec<u8>> = vec![
        frames::ping(1),
        frames::request(Request::Add { key: counter, delta: 1 }),
        frames::request(Request::Get { key: counter }),
        frames::request(Request::Check { keys }),
        frames::request(Request::Wait { keys }),
        frames::request(Request::MultiGet { keys }),
        frames::request(Request::NumKeys),
        frames::request(Request::CancelWait),
    ];
    for value in &values {
        let (key, none) = (Key::raw(b"/k"), b"\xff".as_slice());
        mix.push(frames::request(Request::Set { key, value }));
        mix.push(frames::request(Request::Get { key }));
        mix.push(frames::request(Request::Set { key: swapped, value: b"old" }));
        mix.push(frames::request(Request::CompareSet { key: swapped, expected: b"old", desired: value }));
        mix.push(frames::request(Request::CompareSet { key: swapped, expected: none, desired: b"new" }));
    }
    let pipelined = mix.concat();
    let mut wire = Wire::new();
    let round = |wire: &mut Wire| {
        mix.iter().for_each(|frame| wire.receive(frame));
        wire.receive(&pipelined);
        // In pieces that end within a frame.
        pipelined.chunks(97).for_each(|chunk| wire.receive(chunk));
    };
    (0..3).for_each(|_| round(&mut wire));
    let before = (wire.answered, wire.server.stats().requests);
    let count = allocations(|| (0..100).for_each(|_| round(&mut wire)));
    let requests = wire.server.stats().requests - before.1;
    // Every frame but the ping is a request, and each of three ways carries all of them.
    assert_eq!(requests, 100 * 3 * (mix.len() as u64 - 1));
    assert!(wire.answered - before.0 > 100 * 3 * mix.len(), "they were answered");
    assert_eq!(count, 0, "allocations in {requests} requests");
}

/// The whole stack: the blocking client on this thread, the reactor on its own, sockets between them.
#[test]
fn steady_calls_on_existing_keys_allocate_nothing_on_either_side() {
    let server = RunningServer::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port");
    let store =
        Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default()).expect("it listens");
    let (value, mut got) = ([7; 256], Vec::with_capacity(512));
    let mut round = || {
        store.set(b"key", &value, Timeout::Default).expect("set");
        store.get(b"key", &mut got, Timeout::Default).expect("get");
        assert_eq!(got, value);
        store.add(b"counter", 1, Timeout::Default).expect("add");
        assert!(store.check(&[b"key", b"counter"], Timeout::Default).expect("check"));
        store.wait(&[b"key"], Timeout::Default).expect("wait");
        store.compare_set(b"key", &value, &value, &mut got, Timeout::Default).expect("compare_set");
        store.barrier(b"alone", 1, Timeout::Default).expect("barrier");
        store.queue_len(b"queue", Timeout::Default).expect("queue_len");
        store.num_keys(Timeout::Default).expect("num_keys");
        store.ping(Timeout::Default).expect("ping");
    };
    (0..50).for_each(|_| round());
    assert_eq!(allocations_of_all_threads(|| (0..200).for_each(|_| round())), 0);
    server.stop().expect("it ran");
}

/// What a key takes beside its bytes and those of its value; first with c10d clients alone, and then with the order of
/// names, which native clients need.
#[test]
fn a_key_takes_about_what_it_is_charged() {
    const KEYS: u32 = 100_000;
    let filled = |history: Option<HistoryLimits>| {
        held_bytes(|| {
            let mut engine = Engine::new(EngineLimits::default(), 1);
            if let Some(history) = history {
                engine.start_history(history);
            }
            for number in 0..KEYS {
                let key = format!("/key/{:08x}", number.wrapping_mul(0x9e37_79b9));
                let request = Request::Set { key: Key::raw(key.as_bytes()), value: b"v" };
                engine.apply(ConnId { index: 0, generation: 0 }, &request).expect("there is room");
            }
            engine
        })
    };
    let net = i64::from(KEYS) * 14;
    let (plain, plain_bytes) = filled(None);
    // None of the changes are kept: they are charged elsewhere.
    let (ordered, ordered_bytes) = filled(Some(HistoryLimits { changes_max: 0, ..HistoryLimits::default() }));
    let (each, more) =
        ((plain_bytes - net) / i64::from(KEYS), (ordered_bytes - plain_bytes) / i64::from(KEYS));
    println!("a key takes {each} bytes beside its own, and {more} more with its place in the order");
    assert_eq!((plain.key_count(), ordered.key_count()), (100_000, 100_000));
    // A table that has just doubled has room for twice as many.
    assert!(
        each < 2 * KEY_COST_BYTES.cast_signed(),
        "{each} bytes for a key that is charged {KEY_COST_BYTES}"
    );
    assert!(more <= 12, "{more} bytes for a place in the order");
}

/// Returns the bytes that a rendezvous with this limit holds after `fill` has given it its inputs.
fn rendezvous_bytes(limit: usize, fill: impl Fn(&mut dyn FnMut(RendezvousInput))) -> i64 {
    let limits = RendezvousLimits { remembered_bytes_max: limit, ..RendezvousLimits::default() };
    let (service, held) = held_bytes(|| {
        let (mut service, mut now) = (Rendezvous::new(limits), Instant::ORIGIN);
        fill(&mut |input| {
            now = now + Duration::from_millis(1);
            service.handle(now, input).expect("accepted");
            while service.poll_output().is_some() {}
        });
        service
    });
    drop(service);
    held
}

fn join_of(run_id: &str, participant: u64, nodes: u32) -> RendezvousInput {
    let pause = Duration::from_secs(600);
    RendezvousInput::Join {
        participant: ParticipantId(participant),
        join: Join {
            run_id: run_id.into(),
            node: NodeName::plain(&format!("{participant:0>200}")),
            address: [7; 250].as_slice().into(),
            local_world_size: 1,
            labels: Vec::new(),
            round_min: 0,
            node_rank: None,
            join_timeout: pause,
            settings: RunSettings {
                minimum_to_continue: 1,
                cool_down: Some(CoolDown { failures: 1, window: pause, pause, pause_max: pause }),
                ..RunSettings::between(nodes, nodes)
            },
        },
    }
}

#[test]
fn what_a_rendezvous_remembers_takes_about_what_it_counts() {
    const LIMIT_BYTES: usize = 4 << 20;
    let id = |number: u64| format!("{number:0>900}");
    let message = "m".repeat(1000);
    let ended = |participant| RendezvousInput::Ended {
        participant: ParticipantId(participant),
        why: Why::Connection,
    };
    let of_runs_that_failed = |give: &mut dyn FnMut(RendezvousInput)| {
        for number in 0..10_000 {
            let (run_id, message) = (id(number).into(), message.as_str().into());
            give(RendezvousInput::Fail { participant: ParticipantId(0), run_id, message });
        }
    };
    let of_runs_that_were_left = |give: &mut dyn FnMut(RendezvousInput)| {
        for number in 0..10_000 {
            give(join_of(&id(number), number, 1));
            give(RendezvousInput::Leave { participant: ParticipantId(number) });
        }
    };
    let of_hosts_that_failed = |give: &mut dyn FnMut(RendezvousInput)| {
        for number in 0..40_000 {
            let run_id = (number / 1000).to_string();
            give(join_of(&run_id, number, 2));
            if number % 1000 != 0 {
                give(ended(number));
            }
        }
    };
    let of_nodes_that_are_gone = |give: &mut dyn FnMut(RendezvousInput)| {
        for run in 0..40 {
            let participants = 1000 * run..1000 * run + 500;
            participants.clone().for_each(|participant| give(join_of(&run.to_string(), participant, 500)));
            participants.skip(1).for_each(|participant| {
                give(RendezvousInput::Leave { participant: ParticipantId(participant) })
            });
        }
    };
    for (what, bytes) in [
        ("runs that failed", rendezvous_bytes(LIMIT_BYTES, of_runs_that_failed)),
        ("runs that were left", rendezvous_bytes(LIMIT_BYTES, of_runs_that_were_left)),
        ("hosts that failed", rendezvous_bytes(LIMIT_BYTES, of_hosts_that_failed)),
        ("nodes that are gone", rendezvous_bytes(LIMIT_BYTES, of_nodes_that_are_gone)),
    ] {
        println!("{what}: {bytes} bytes of {LIMIT_BYTES}");
        let limit = LIMIT_BYTES.cast_signed() as i64;
        assert!((limit / 2..limit + limit / 8).contains(&bytes), "{what}: {bytes} bytes of {limit}");
    }
}

/// Returns how many bytes each node takes in runs of `of_run` nodes, and how many its session is charged.
fn node_bytes(of_run: usize, label_count: u8) -> (i64, i64) {
    const NODES: u32 = 1000;
    let mut rig = Rig::new(ServerLimits::default());
    let conns: Vec<ConnId> = (0..NODES).map(|number| open(&mut rig, number.to_string().as_bytes())).collect();
    let names: Vec<Vec<u8>> = (0..label_count).map(|number| vec![b'a' + number; 20]).collect();
    let labels: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &[b'v'; 60][..])).collect();
    let buffered = rig.server.stats().buffered_bytes;
    let ((), held) = held_bytes(|| {
        for (number, &conn) in conns.iter().enumerate() {
            let (run_id, node) = (format!("{:0>30}", number / of_run), format!("{number:0>20}"));
            let entry = Entry {
                run_id: run_id.as_bytes(),
                address: &[b'a'; 20],
                labels: Pairs::scoped(b"", &labels),
                ..entry_of(node.as_bytes(), of_run)
            };
            let label = Label { id: 1, ..Label::default() };
            rig.send(conn, &frames::native(label, &ClientFrame::Join { entry }));
            rig.clients.get_mut(&conn).expect("a client").got = Vec::new();
        }
    });
    let charged = i64::try_from(rig.server.stats().buffered_bytes - buffered).expect("a number");
    (held / i64::from(NODES), charged / i64::from(NODES))
}

#[test]
fn a_node_in_a_run_takes_about_what_its_session_is_charged() {
    for (of_run, label_count) in [(10, 0), (10, 16), (1, 0)] {
        let (held, charged) = node_bytes(of_run, label_count);
        println!("{of_run} nodes with {label_count} labels: {held} bytes each, {charged} charged");
        assert!((held..4 * held).contains(&charged), "{held} bytes, {charged} charged");
    }
}

/// The most that this process has had resident since [`forget_peak`], in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process's own");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line on the peak");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib * 1024
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("this process's own");
}

/// A request of 1 GiB and an answer of 1 GiB, between two workers of this process: what the caller has and what the callee
/// has, and no third copy.
#[test]
fn a_gibibyte_is_held_once_on_each_side_of_a_call() {
    const PAYLOAD_BYTES: usize = 1 << 30;
    /// What sockets, threads and the rest of this process need.
    const SPARE_BYTES: u64 = 64 << 20;
    let server = RunningServer::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port");
    let worker = |name: &str, id| {
        let store = Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default());
        let handling = Handling::new(1);
        handling
            .register("sum", Run::Pooled, |called: Called, responder| {
                let ends = (called.payload.first(), called.payload.last());
                responder.answer(format!("{} {ends:?}", called.payload.len()).into_bytes());
            })
            .expect("free");
        handling
            .register("fill", Run::Pooled, |_, responder| _ = responder.answer(vec![7; PAYLOAD_BYTES]))
            .expect("free");
        let tcp = TcpOptions { handling: Some(handling), ..TcpOptions::default() };
        let me = WorkerInfo { name: name.parse().expect("a name"), id };
        let options = RpcOptions::new("tcp");
        RpcAgent::start(&store.expect("connected").with_prefix(b"group"), me, None, &options, &tcp)
            .expect("a member")
    };
    let (caller, _callee) = (worker("caller", 0), worker("callee", 1));
    let before = resident(&std::fs::read_to_string("/proc/self/smaps_rollup").expect("this process's own"));
    let most = before + 2 * PAYLOAD_BYTES as u64 + SPARE_BYTES;

    forget_peak();
    let answer = caller.call("callee", "sum", vec![7; PAYLOAD_BYTES], None).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), format!("{PAYLOAD_BYTES} (Some(7), Some(7))"));
    let peak = peak_bytes();
    println!("a request of 1 GiB: {} MiB at most", (peak - before) >> 20);
    assert!(peak <= most, "{peak} bytes for a request; {most} are in order");

    forget_peak();
    let answer = caller.call("callee", "fill", Vec::new(), None).expect("an answer");
    assert_eq!((answer.len(), answer.first(), answer.last()), (PAYLOAD_BYTES, Some(&7), Some(&7)));
    let peak = peak_bytes();
    println!("an answer of 1 GiB: {} MiB at most", (peak - before) >> 20);
    assert!(peak <= most, "{peak} bytes for an answer; {most} are in order");
    caller.shutdown(Shutdown::Graceful).expect("a member");
}
