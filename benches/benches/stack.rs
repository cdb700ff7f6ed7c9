//! The whole stack on loopback: client library, sockets, server.
//!
//! Placement decides these figures: run with `taskset -c 0` to see one core, or leave them to the scheduler.
#![allow(missing_docs, reason = "criterion's macros make the entry points")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::store_client::{Store, StoreOptions, Timeout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port")
}

fn client(server: &Server) -> Store {
    Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default())
        .expect("the server listens")
}

fn operations(criterion: &mut Criterion) {
    let server = server();
    let store = client(&server);
    store.set(b"key", &[7; 64], Timeout::Default).expect("set");
    let mut group = criterion.benchmark_group("stack");
    group.bench_function("add", |bencher| {
        bencher.iter(|| store.add(b"counter", 1, Timeout::Default).expect("add"));
    });
    group.bench_function("set_64", |bencher| {
        bencher.iter(|| store.set(b"key", &[7; 64], Timeout::Default).expect("set"));
    });
    let mut value = Vec::new();
    group.bench_function("get_64", |bencher| {
        bencher.iter(|| store.get(b"key", &mut value, Timeout::Default).expect("get"));
    });
    group.bench_function("check", |bencher| {
        bencher.iter(|| store.check(&[b"key"], Timeout::Default).expect("check"));
    });
    store.set(b"large", &vec![7; 1 << 20], Timeout::Default).expect("set");
    group.bench_function("get_1MiB", |bencher| {
        bencher.iter(|| store.get(b"large", &mut value, Timeout::Default).expect("get"));
    });
    group.finish();
}

/// One sample is a run of rounds: `n` threads arrive under a fresh key each time.
fn barriers(criterion: &mut Criterion) {
    let server = server();
    let mut group = criterion.benchmark_group("barrier_latency");
    let runs = Arc::new(AtomicU64::new(0));
    for n in [2_u32, 8, 64] {
        let stores: Vec<Store> = (0..n).map(|_| client(&server)).collect();
        group.bench_function(BenchmarkId::from_parameter(n), |bencher| {
            bencher.iter_custom(|rounds| {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                std::thread::scope(|scope| {
                    let ranks: Vec<_> =
                        stores.iter().map(|store| scope.spawn(move || rank(store, n, run, rounds))).collect();
                    ranks.into_iter().map(|rank| rank.join().expect("a rank")).max().unwrap_or_default()
                })
            });
        });
    }
    group.finish();
}

fn rank(store: &Store, n: u32, run: u64, rounds: u64) -> Duration {
    let arrive = |round: u64| {
        let key = format!("bench/{run}/{round}");
        store.barrier(key.as_bytes(), i64::from(n), Timeout::Default).expect("barrier");
    };
    arrive(u64::MAX);
    let began = Instant::now();
    (0..rounds).for_each(arrive);
    began.elapsed()
}

criterion_group!(benches, operations, barriers);
criterion_main!(benches);
