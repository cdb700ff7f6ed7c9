//! The whole stack on loopback: client library, sockets, server.
//!
//! Placement decides these figures: run with `taskset -c 0` to see one core, or leave them to the scheduler.
#![allow(missing_docs, reason = "criterion's macros make the entry points")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rendezvous_core::driver::loop_client::{Loop, LoopEvent, SessionEvent};
use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions, NativeRequest};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
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

fn native_client(server: &Server) -> Store {
    let session =
        NativeClient::connect("127.0.0.1", server.local_addr().port(), NativeClientOptions::default());
    Store::over(Arc::new(session.expect("the server listens")))
}

/// Each thread drives its own socket in c10d; a session is driven by its thread, to which the caller hands each call.
fn operations(criterion: &mut Criterion) {
    let server = server();
    operations_of(criterion, "stack", &client(&server));
    operations_of(criterion, "stack_by_session", &native_client(&server));
}

fn operations_of(criterion: &mut Criterion, name: &str, store: &Store) {
    store.set(b"key", &[7; 64], Timeout::Default).expect("set");
    let mut group = criterion.benchmark_group(name);
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

/// One request of the native language, of a session that its thread drives, and of one in a loop that the caller turns.
fn session_threads(criterion: &mut Criterion) {
    let server = server();
    let port = server.local_addr().port();
    let mut group = criterion.benchmark_group("run_info");
    let session =
        NativeClient::connect("127.0.0.1", port, NativeClientOptions::default()).expect("the server listens");
    group.bench_function("by_session_thread", |bencher| {
        bencher.iter(|| session.run_info(b"run", Duration::from_secs(10)).expect("answered"));
    });
    let mut events = Loop::new().expect("an event queue");
    let id = events.add_session("127.0.0.1", port, NativeClientOptions::default());
    group.bench_function("by_calling_thread", |bencher| {
        bencher.iter(|| {
            let mut session = events.session(id).expect("it is there");
            session.submit(&NativeRequest::RunInfo { run_id: b"run" }, Timeout::Default).expect("submitted");
            while !completes(&mut events) {}
        });
    });
    group.finish();
}

/// Waits for the next event of a loop; whether a call was answered.
fn completes(events: &mut Loop) -> bool {
    events.poll().expect("a turn");
    let Some(event) = events.next_event() else {
        let mut fd = libc::pollfd { fd: events.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor of a loop that lives on.
        unsafe { libc::poll(&raw mut fd, 1, 1000) };
        return false;
    };
    match event {
        LoopEvent::Session(_, SessionEvent::Completed { result, .. }) => result.is_ok(),
        _ => false,
    }
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

criterion_group!(benches, operations, session_threads, barriers);
criterion_main!(benches);
