//! One turn of the engine, and of the server machine around it, without sockets.
#![allow(missing_docs, reason = "criterion's macros make the entry points")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rendezvous_benches::frame;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{EngineLimits, HistoryLimits, ServerLimits};
use rendezvous_core::node::server::{Input, Output, Server, ServerInstance};
use rendezvous_core::store::engine::Engine;
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::Instant;
use std::hint::black_box;

const GREETING: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

fn conn(index: usize) -> ConnId {
    ConnId { index: u32::try_from(index).expect("a small table"), generation: 0 }
}

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    for keys in [1_000_usize, 100_000] {
        let mut engine = Engine::new(EngineLimits::default(), 1);
        let names: Vec<String> = (0..keys).map(|index| format!("/key/{index}")).collect();
        for name in &names {
            let request = Request::Set { key: Key::raw(name.as_bytes()), value: &[7; 64] };
            engine.apply(conn(0), &request).expect("there is room");
        }
        let mut position = 0;
        group.bench_function(BenchmarkId::new("get", keys), |bencher| {
            bencher.iter(|| {
                position = (position + 7919) % keys;
                black_box(
                    engine
                        .apply(conn(0), &Request::Get { key: Key::raw(names[position].as_bytes()) })
                        .is_ok(),
                )
            });
        });
        group.bench_function(BenchmarkId::new("set", keys), |bencher| {
            bencher.iter(|| {
                position = (position + 7919) % keys;
                let request = Request::Set { key: Key::raw(names[position].as_bytes()), value: &[7; 64] };
                black_box(engine.apply(conn(0), &request).is_ok())
            });
        });
        group.bench_function(BenchmarkId::new("add", keys), |bencher| {
            bencher.iter(|| {
                black_box(
                    engine.apply(conn(0), &Request::Add { key: Key::raw(b"/counter"), delta: 1 }).is_ok(),
                )
            });
        });
        group.bench_function(BenchmarkId::new("set_fresh_and_delete", keys), |bencher| {
            bencher.iter(|| {
                position = (position + 7919) % keys;
                let name = format!("/key/{position}/fresh");
                let key = Key::raw(name.as_bytes());
                engine.apply(conn(0), &Request::Set { key, value: &[7; 64] }).expect("there is room");
                black_box(engine.apply(conn(0), &Request::Delete { key }).is_ok())
            });
        });
    }
    group.finish();
}

/// Operations on a prefix cost as much as the keys under it, however large the store is.
fn prefixes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefix");
    for keys in [1_000_usize, 100_000, 1_000_000] {
        let mut engine = Engine::new(EngineLimits::default(), 1);
        engine.start_history(HistoryLimits::default());
        let set = |engine: &mut Engine, name: &str| {
            let request = Request::Set { key: Key::raw(name.as_bytes()), value: &[7; 64] };
            engine.apply(conn(0), &request).expect("there is room");
        };
        (0..keys).for_each(|index| set(&mut engine, &format!("/key/{index}")));
        group.bench_function(BenchmarkId::new("set_8_and_discard", keys), |bencher| {
            bencher.iter(|| {
                (0..8).for_each(|index| set(&mut engine, &format!("/key/round/{index}")));
                let mut removal = engine.discard(b"/key/round/");
                while engine.remove_some(&mut removal, 256).is_none() {}
                engine.take_work();
            });
        });
        group.bench_function(BenchmarkId::new("page_of_100", keys), |bencher| {
            bencher.iter(|| {
                let mut list = engine.list(b"/key/", b"/key/5", 100, usize::MAX);
                while !engine.list_some(&mut list, 256) {}
                black_box(list.count())
            });
        });
    }
    group.finish();
}

/// A server machine whose sockets take everything.
struct Rig(Server);

impl Rig {
    fn new(connections: usize) -> Self {
        let mut rig = Self(Server::new(ServerLimits::default(), ServerInstance::from_seed(1)));
        let peer = "127.0.0.1:1".parse().expect("an address");
        for index in 0..connections {
            rig.feed(Input::Accepted { conn: conn(index), peer });
            rig.feed(Input::Received { conn: conn(index), bytes: &GREETING });
        }
        rig
    }

    fn feed(&mut self, input: Input<'_>) {
        self.0.handle(Instant::ORIGIN, input).expect("a legal input");
    }

    fn flush(&mut self) -> usize {
        let mut sent = 0;
        while let Some(output) = self.0.poll_output() {
            if let Output::Transmit { conn } = output {
                let bytes = self.0.unsent(conn).len();
                sent += bytes;
                self.feed(Input::Sent { conn, bytes });
            }
        }
        sent
    }
}

fn server(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("server_machine");
    for depth in [1_usize, 64] {
        let mut rig = Rig::new(1);
        let bytes = frame(Request::Add { key: Key::raw(b"/counter"), delta: 1 }).repeat(depth);
        group.throughput(Throughput::Elements(depth as u64));
        group.bench_function(BenchmarkId::new("add", depth), |bencher| {
            bencher.iter(|| {
                rig.feed(Input::Received { conn: conn(0), bytes: &bytes });
                assert_eq!(rig.flush(), 8 * depth);
            });
        });
    }
    for n in [2_usize, 64, 512] {
        let mut rig = Rig::new(n);
        let mut round = 0_u64;
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::new("barrier", n), |bencher| {
            bencher.iter(|| {
                round += 1;
                let key = format!("/barrier/{round:012}");
                let world_size = i64::try_from(n).expect("a small group");
                let arrive = frame(Request::Barrier { key: Key::raw(key.as_bytes()), world_size });
                for index in 0..n {
                    rig.feed(Input::Received { conn: conn(index), bytes: &arrive });
                }
                assert_eq!(rig.flush(), n);
                rig.feed(Input::Received {
                    conn: conn(0),
                    bytes: &frame(Request::Delete { key: Key::raw(key.as_bytes()) }),
                });
                rig.flush();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, engine, prefixes, server);
criterion_main!(benches);
