use super::*;
use crate::driver::native_client::{NativeClient, NativeClientOptions, NativeRequest};
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store_client::StoreOptions;
use crate::elastic_store::get_all::{ExchangeTimeout, Lacking};
use crate::error::Phase;
use std::format;
use std::thread;
use std::vec;

/// Longer than anything here takes. A test that needs it has failed.
const SOON: Duration = Duration::from_secs(20);

fn server() -> (Server, Store) {
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let store = connect(&server);
    (server, store)
}

fn connect(server: &Server) -> Store {
    let options = StoreOptions { timeout: SOON, connect_timeout: SOON, ..StoreOptions::default() };
    Store::connect("127.0.0.1", server.local_addr().port(), options).expect("connected")
}

fn options(world_size: i64, rank: Option<i64>, timeout_ms: u64) -> BarrierOptions {
    let timeout = Duration::from_millis(timeout_ms);
    BarrierOptions { rank, timeout, trace_timeout: SOON, ..BarrierOptions::new(world_size, "tr") }
}

/// Returns the result of each of `ranks` at one barrier, and the duration of the slowest.
fn meet(world_size: i64, ranks: &[i64], timeout_ms: u64) -> (Vec<String>, Duration) {
    let (server, _) = server();
    let clock = Clock::new();
    let reported = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|&rank| {
                let server = &server;
                scope.spawn(move || {
                    let name = |rank| format!("host{rank}");
                    barrier(&connect(server), &options(world_size, Some(rank), timeout_ms), Some(&name))
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        ended.map(|result| result.map_or_else(|error| error.to_string(), |()| "met".to_string())).collect()
    });
    (reported, clock.now().since(Instant::ORIGIN))
}

#[test]
fn all_come_to_a_barrier() {
    assert_eq!(meet(4, &[2, 0, 3, 1], 20_000).0, ["met"; 4]);
}

#[test]
fn the_missing_are_named() {
    let text = |rank: i64, missing: &str| {
        format!(
            "Timed out waiting on barrier on rank {rank}, for key prefix: tr (world_size=4, \
             missing_ranks=[{missing}], timeout=0.3)"
        )
    };
    let ask = "[<check rank 0 (host0) for missing rank info>]";
    let (reported, took) = meet(4, &[0, 2], 300);
    assert_eq!(reported, [text(0, "host1, host3"), text(2, ask)]);
    assert!(took < SOON, "the trace timeout was not waited out: {took:?}");
    // A missing rank 0 is named, and costs no second wait.
    let (reported, took) = meet(4, &[1, 2, 3], 300);
    assert_eq!(reported, [1, 2, 3].map(|rank| text(rank, "host0")));
    assert!(took < SOON, "{took:?}");
}

#[test]
fn without_a_rank_the_waits_own_error_is_told() {
    let (_server, store) = server();
    let error = barrier(&store, &options(2, None, 100), None).expect_err("no other rank arrives");
    let MeetingError::Store(error) = error else { panic!("{error}") };
    assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("tr/last_member")));
    let error = barrier(&store, &options(2, None, 100), Some(&|_| String::new())).expect_err("no rank");
    assert_eq!(error.to_string(), "Tracing requires rank information");
    let error = barrier(&store, &options(0, None, 100), None).expect_err("no world");
    assert_eq!(error.to_string(), "The world size (0) must be greater than zero.");
    assert_eq!(store.timeout(), SOON, "nothing is left behind");
}

#[test]
fn a_server_that_is_gone_is_told() {
    let (server, store) = server();
    server.stop().expect("stopped");
    let error = barrier(&store, &options(2, Some(0), 100), None).expect_err("no other rank arrives");
    let MeetingError::Store(error) = error else { panic!("{error}") };
    assert_ne!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn everybody_gets_the_data_of_all() {
    let (server, store) = server();
    let exchanged: Vec<Vec<Vec<u8>>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|rank| {
                let server = &server;
                scope.spawn(move || {
                    let data = format!("data of {rank}");
                    synchronize(&connect(server), data.as_bytes(), rank, 4, "sync/", SOON).expect("all came")
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let all: Vec<Vec<u8>> = (0..4).map(|rank| format!("data of {rank}").into_bytes()).collect();
    assert_eq!(exchanged, [all.clone(), all.clone(), all.clone(), all]);
    let mut keys = store.list_keys(Timeout::Default).expect("keys");
    keys.sort();
    let finished = ["sync//finished/last_member", "sync//finished/num_members"].map(String::from);
    let expected: Vec<Vec<u8>> = finished
        .into_iter()
        .chain((0..4).map(|rank| format!("sync/{rank}")))
        .map(String::into_bytes)
        .collect();
    assert_eq!(keys, expected);
    let value = store.get_owned(b"sync//finished/last_member", Timeout::Default).expect("there");
    assert_eq!(value, b"<val_ignored>");
}

#[test]
fn rank_zero_waits_for_the_others_and_they_for_the_data() {
    let (_server, store) = server();
    let short = Duration::from_millis(100);
    let error = synchronize(&store, b"x", 1, 2, "a", short).expect_err("no data of rank 0");
    let after = "timed out after 100 ms on rank";
    let expected =
        format!("the exchange under \"a\" at {} {after} 1: 1 of 2 ranks gave no data: 0", store.peer());
    assert_eq!(error.to_string(), expected);
    let error = synchronize(&store, b"x", 0, 2, "a", short).expect_err("rank 1 has not read it");
    let expected = format!(
        "the exchange under \"a\" at {} {after} 0: 1 of 2 ranks did not read the data of all",
        store.peer()
    );
    assert_eq!(error.to_string(), expected);
    // The others do not wait for a confirmation.
    (0..2).for_each(|rank| store.set(format!("b{rank}").as_bytes(), b"x", Timeout::Default).expect("set"));
    let both = vec![b"x".to_vec(); 2];
    assert_eq!(get_all(&store, 1, "b", 2, short).expect("rank 0 has not read it"), both);
    assert_eq!(get_all(&store, 0, "b", 2, short).expect("all have read it"), both);
    // Of many missing ranks, those are named that show whether it is one host or several.
    let error = synchronize(&store, b"x", 3, 100, "many", short).expect_err("alone");
    let first: Vec<String> = (0..17).filter(|&rank| rank != 3).map(|rank: i64| rank.to_string()).collect();
    let end = format!("on rank 3: at least 16 of 100 ranks gave no data: {}, ...", first.join(", "));
    assert!(error.to_string().ends_with(&end), "{error}");
    let MeetingError::Exchange(ExchangeTimeout { lacking: Lacking::Data { ranks, more: true }, .. }) = error
    else {
        panic!("{error}")
    };
    assert_eq!(ranks.len(), 16);
    let error = synchronize(&store, b"x", 2, 2, "a", short).expect_err("no such rank");
    assert_eq!(error.to_string(), "The rank (2) must be at least 0 and less than the world size (2).");
}

#[test]
fn the_data_of_more_ranks_than_one_native_request_may_name_are_read() {
    const RANKS: i64 = 40_000;
    let (server, _) = server();
    let native = NativeClientOptions { connect_timeout: SOON, ..NativeClientOptions::default() };
    let client = NativeClient::connect("127.0.0.1", server.local_addr().port(), native).expect("connected");
    let many = NativeRequest::LeaseAttach { lease: 1, keys: &[&b"k"[..]; 32_769] };
    let error = client.request(&many, Timeout::After(SOON)).expect_err("refused");
    assert_eq!((error.kind(), error.call().phase()), (ErrorKind::LimitExceeded, Phase::Sending));
    let store = Store::over(Arc::new(client));
    let keys = data_keys("data", RANKS);
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), key.as_bytes())).collect();
    pairs.chunks(30_000).for_each(|some| store.multi_set(some, Timeout::After(SOON)).expect("set"));
    let data = get_all(&store, 1, "data", RANKS, SOON).expect("all data is there");
    assert!(data.len() == keys.len() && data.iter().zip(&keys).all(|(data, key)| **data == *key.as_bytes()));
}
