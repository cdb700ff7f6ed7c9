use super::*;
use crate::driver::server::{Server, ServerOptions};
use crate::driver::testing::TemporaryFile;
use crate::error::Effect;
use std::string::ToString;
use std::thread;

/// Longer than anything here takes. A test that needs it has failed.
const SOON: Duration = Duration::from_secs(20);
const DEFAULT: Timeout = Timeout::Default;
const TIMEOUTS: Timeouts = Timeouts { call: SOON, answer: SOON };

fn millis(count: u64) -> Timeout {
    Timeout::After(Duration::from_millis(count))
}

/// One store of each kind, each with and without a prefix, and the objects that keep them alive.
struct Family {
    members: Vec<(&'static str, Store)>,
    _servers: [Server; 2],
    _files: [TemporaryFile; 2],
}

impl Family {
    fn new(test: &str) -> Self {
        let start = || Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
        let servers = [start(), start()];
        let files =
            [TemporaryFile::new(&(test.to_string() + "-a")), TemporaryFile::new(&(test.to_string() + "-b"))];
        let options = StoreOptions { timeout: SOON, connect_timeout: SOON, ..StoreOptions::default() };
        let tcp = Store::connect("127.0.0.1", servers[0].local_addr().port(), options).expect("connected");
        let options = NativeClientOptions { timeouts: TIMEOUTS, ..NativeClientOptions::default() };
        let port = servers[1].local_addr().port();
        let native = Store::connect_native("127.0.0.1", port, options).expect("connected");
        let in_process =
            || Store::in_process(HashStoreOptions { timeouts: TIMEOUTS, ..HashStoreOptions::default() });
        let open = |file: &TemporaryFile| {
            let options = FileStoreOptions { timeouts: TIMEOUTS, ..FileStoreOptions::default() };
            Store::open_file(file.path(), options).expect("opened")
        };
        let members = std::vec![
            // The keys of the second are also keys of the first, so the order matters.
            ("tcp", tcp.duplicate().expect("connected")),
            ("tcp with a prefix", tcp.with_prefix(b"job/7")),
            ("native", native.duplicate().expect("connected")),
            ("native with a prefix", native.with_prefix(b"job/7")),
            ("in process", in_process()),
            ("in process with a prefix", in_process().with_prefix(b"p")),
            ("file", open(&files[0])),
            ("file with prefixes", open(&files[1]).with_prefix(b"p").with_prefix(b"")),
        ];
        Self { members, _servers: servers, _files: files }
    }
}

fn has_queues(name: &str) -> bool {
    !name.starts_with("file")
}

#[test]
fn every_operation_of_every_kind() {
    let family = Family::new("every");
    for (name, store) in &family.members {
        let mut value = Vec::new();
        let keys_before = store.num_keys(DEFAULT).expect("counted");
        store.ping(DEFAULT).expect("alive");
        store.set(b"k", b"value", DEFAULT).expect("set");
        store.get(b"k", &mut value, DEFAULT).expect("got");
        assert_eq!(value, b"value");
        store.set(b"empty", b"", DEFAULT).expect("set");
        for timeout in [DEFAULT, Timeout::Once] {
            assert_eq!(store.get_owned(b"empty", timeout).expect("got"), b"", "{name}");
            assert_eq!(store.get_owned(b"k", timeout).expect("got"), b"value", "{name}");
        }
        assert_eq!(store.get_owned(b"none", Timeout::Once).expect_err("missing").kind(), ErrorKind::TimedOut);
        assert_eq!(store.add(b"n", 5, DEFAULT).expect("added"), 5);
        assert_eq!(store.add(b"n", -7, DEFAULT).expect("added"), -2);
        store.compare_set(b"c", b"", b"new", &mut value, DEFAULT).expect("answered");
        assert_eq!(value, b"new", "{name}");
        store.compare_set(b"c", b"other", b"newer", &mut value, DEFAULT).expect("answered");
        assert_eq!(value, b"new", "{name}");
        store.compare_set(b"absent", b"some", b"newer", &mut value, DEFAULT).expect("answered");
        assert_eq!(value, b"some", "{name}");
        store.wait(&[b"k", b"n"], DEFAULT).expect("there");
        store.wait(&[], DEFAULT).expect("nothing to wait for");
        assert!(store.check(&[b"k", b"n"], DEFAULT).expect("answered"), "{name}");
        assert!(store.check(&[], DEFAULT).expect("answered"), "{name}");
        assert!(!store.check(&[b"k", b"none"], DEFAULT).expect("answered"), "{name}");
        assert!(store.delete(b"c", DEFAULT).expect("answered"), "{name}");
        assert!(!store.delete(b"c", DEFAULT).expect("answered"), "{name}");
        store.append(b"k", b"+", DEFAULT).expect("appended");
        store.append(b"k", b"+", DEFAULT).expect("appended");
        store.multi_set(&[(b"m1", b"x"), (b"m2", b"yy")], DEFAULT).expect("set");
        for timeout in [DEFAULT, Timeout::Once] {
            let values = store.multi_get(&[b"m1", b"m2", b"k"], timeout).expect("got");
            assert_eq!(values, [&b"x"[..], b"yy", b"value++"], "{name}");
        }
        assert!(store.multi_get(&[], DEFAULT).expect("nothing").is_empty());
        assert_eq!(store.num_keys(DEFAULT).expect("counted"), keys_before + 5, "{name}");
        let mut keys = store.list_keys(DEFAULT).expect("listed");
        keys.sort();
        assert_eq!(keys, [&b"empty"[..], b"k", b"m1", b"m2", b"n"], "{name}");
        store.barrier(b"b", 1, DEFAULT).expect("alone");
        for alone in [
            store.barrier(b"b2", 2, Timeout::Once),
            store.barrier(b"b3", 2, millis(30)),
            store.barrier_by_keys(b"b4", 2, millis(30)),
        ] {
            let error = alone.expect_err("the second has not come");
            assert_eq!((error.kind(), error.failure().effect), (ErrorKind::TimedOut, Effect::Kept), "{name}");
            let end = "while waiting: 1 of 2 have arrived; its arrival stays counted";
            assert!(error.to_string().ends_with(end), "{error}");
        }
        store.barrier(b"b2", 2, Timeout::Once).expect("the second");
        store.barrier_by_keys(b"bk", 1, DEFAULT).expect("alone");
        let twin = store.duplicate().expect("a second handle");
        assert_eq!(twin.get_owned(b"k", DEFAULT).expect("got"), b"value++", "{name}");
        twin.set(b"of the twin", b"1", DEFAULT).expect("set");
        assert_eq!(store.get_owned(b"of the twin", Timeout::Once).expect("got"), b"1", "{name}");
    }
}

#[test]
fn queues_of_every_kind_that_has_them() {
    let family = Family::new("queues");
    for (name, store) in &family.members {
        let mut value = Vec::new();
        if !has_queues(name) {
            let error = store.queue_push(b"q", b"x", DEFAULT).expect_err("no queues");
            assert_eq!((error.kind(), error.cause()), (ErrorKind::Unsupported, Cause::NoQueues), "{name}");
            assert!(error.to_string().ends_with("queue support is not implemented."), "{error}");
            assert_eq!(
                store.queue_pop(b"q", &mut value, DEFAULT).expect_err("none").kind(),
                ErrorKind::Unsupported
            );
            assert_eq!(store.queue_len(b"q", DEFAULT).expect_err("none").kind(), ErrorKind::Unsupported);
            continue;
        }
        store.queue_push(b"q", b"first", DEFAULT).expect("pushed");
        store.queue_push(b"q", b"", DEFAULT).expect("pushed");
        assert_eq!(store.queue_len(b"q", DEFAULT).expect("counted"), 2, "{name}");
        store.queue_pop(b"q", &mut value, DEFAULT).expect("popped");
        assert_eq!(value, b"first", "{name}");
        store.queue_pop(b"q", &mut value, Timeout::Once).expect("popped");
        assert_eq!(value, b"", "{name}");
        let empty = store.queue_pop(b"q", &mut value, Timeout::Once);
        assert_eq!(empty.expect_err("empty").kind(), ErrorKind::QueueEmpty, "{name}");
        assert_eq!(
            store.queue_pop(b"q", &mut value, millis(30)).expect_err("late").kind(),
            ErrorKind::TimedOut
        );
        thread::scope(|scope| {
            let popped = scope.spawn(|| {
                let mut item = Vec::new();
                store.queue_pop(b"q", &mut item, DEFAULT).map(|()| item)
            });
            store.queue_push(b"q", b"late", DEFAULT).expect("pushed");
            assert_eq!(popped.join().expect("no panic").expect("popped"), b"late", "{name}");
        });
    }
}

/// PyTorch's server then ends the wait for an item at once.
#[test]
fn a_pop_of_a_key_with_a_value_says_why_it_found_nothing() {
    let family = Family::new("value and queue");
    for (name, store) in family.members.iter().filter(|(name, _)| name.starts_with("tcp")) {
        store.set(b"both", b"value", DEFAULT).expect("set");
        let error = store.queue_pop(b"both", &mut Vec::new(), DEFAULT).expect_err("no item");
        assert_eq!(error.kind(), ErrorKind::QueueEmpty, "{name}");
        assert!(error.to_string().contains("found the queue empty: 1,000 attempts"), "{error}");
    }
}

#[test]
fn workers_are_counted_by_every_kind() {
    let family = Family::new("workers");
    for (name, store) in &family.members {
        // The counter has no prefix, so all handles of one store count together.
        let counted = store.check_in(DEFAULT).expect("counted");
        store.wait_for_workers(counted, DEFAULT).expect("all");
        let error = store.wait_for_workers(counted + 1, millis(30)).expect_err("one is missing");
        let reported = (error.kind(), error.operation());
        assert_eq!(reported, (ErrorKind::TimedOut, Operation::WaitForWorkers), "{name}");
    }
}

#[test]
fn waits_end_with_the_key_or_at_their_deadline() {
    let family = Family::new("waits");
    for (name, store) in &family.members {
        let attempts: [&dyn Fn() -> Result<(), CallError>; 5] = [
            &|| store.get_owned(b"none", millis(80)).map(drop),
            &|| store.wait(&[b"none", b"neither"], millis(80)),
            &|| store.multi_get(&[b"none"], millis(80)).map(drop),
            &|| store.barrier(b"b", 2, millis(80)),
            &|| store.barrier_by_keys(b"bk", 2, millis(80)),
        ];
        for attempt in attempts {
            let began = std::time::Instant::now();
            let error = attempt().expect_err("nothing happens");
            let took = began.elapsed();
            assert_eq!(
                (error.kind(), error.phase()),
                (ErrorKind::TimedOut, Phase::Waiting),
                "{name}: {error}"
            );
            assert!(took >= Duration::from_millis(79) && took < Duration::from_secs(5), "{name}: {took:?}");
            assert!(error.elapsed() >= Duration::from_millis(79), "{name}: {error}");
        }
        thread::scope(|scope| {
            let got = scope.spawn(|| store.get_owned(b"late", DEFAULT));
            let waited = scope.spawn(|| store.wait(&[b"late", b"later"], DEFAULT));
            let gate = scope.spawn(|| store.barrier(b"gate", 2, DEFAULT));
            store.set(b"late", b"came", DEFAULT).expect("set");
            store.duplicate().expect("a twin").set(b"later", b"", DEFAULT).expect("set");
            store.barrier(b"gate", 2, DEFAULT).expect("both");
            assert_eq!(got.join().expect("no panic").expect("got"), b"came", "{name}");
            waited.join().expect("no panic").expect("there");
            gate.join().expect("no panic").expect("both");
        });
    }
}

type Attempt<'a> = &'a (dyn Fn() -> Result<(), CallError> + Sync);

#[test]
fn cancelled_calls_end_and_later_ones_do_not() {
    let family = Family::new("cancel");
    for (name, store) in &family.members {
        let attempts: [(Operation, Attempt<'_>); 4] = [
            (Operation::Wait, &|| store.wait(&[b"never"], DEFAULT)),
            (Operation::Get, &|| store.get_owned(b"never", DEFAULT).map(drop)),
            (Operation::Barrier, &|| store.barrier(b"alone", 1 << 40, DEFAULT)),
            (Operation::WaitForWorkers, &|| store.wait_for_workers(1 << 40, DEFAULT)),
        ];
        for (operation, attempt) in attempts {
            let error = thread::scope(|scope| {
                let pending = scope.spawn(attempt);
                while !pending.is_finished() {
                    store.cancel();
                    thread::yield_now();
                }
                pending.join().expect("no panic").expect_err("cancelled")
            });
            let reported = (error.kind(), error.operation());
            assert_eq!(reported, (ErrorKind::Cancelled, operation), "{name}: {error}");
        }
        assert_eq!(store.add(b"n", 1, DEFAULT).expect("a later call"), 1, "{name}");
    }
}

#[test]
fn threads_of_one_handle_lose_nothing() {
    let family = Family::new("threads");
    for (name, store) in &family.members {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        store.add(b"n", 1, DEFAULT).expect("added");
                        store.append(b"log", b"x", DEFAULT).expect("appended");
                    }
                });
            }
        });
        assert_eq!(store.add(b"n", 0, DEFAULT).expect("added"), 200, "{name}");
        assert_eq!(store.get_owned(b"log", DEFAULT).expect("got").len(), 200, "{name}");
    }
}

#[test]
fn prefixes_nest_as_those_of_pytorch() {
    let family = Family::new("prefix");
    for (name, store) in &family.members {
        let (inner, empty) = (store.with_prefix(b"a").with_prefix(b"b"), store.with_prefix(b""));
        inner.set(b"k", b"deep", DEFAULT).expect("set");
        empty.set(b"k", b"behind a slash", DEFAULT).expect("set");
        assert_eq!(store.get_owned(b"a/b/k", Timeout::Once).expect("got"), b"deep", "{name}");
        assert_eq!(store.get_owned(b"/k", Timeout::Once).expect("got"), b"behind a slash", "{name}");
        let mut all = store.list_keys(DEFAULT).expect("listed");
        all.sort();
        assert_eq!(all, [&b"/k"[..], b"a/b/k"], "{name}");
        assert_eq!(inner.list_keys(DEFAULT).expect("listed"), [b"k"], "{name}");
        assert_eq!(store.with_prefix(b"a").list_keys(DEFAULT).expect("listed"), [b"b/k"], "{name}");
        assert_eq!(
            inner.num_keys(DEFAULT).expect("counted"),
            store.num_keys(DEFAULT).expect("counted"),
            "{name}"
        );
        let twin = inner.duplicate().expect("a twin");
        assert_eq!(twin.get_owned(b"k", Timeout::Once).expect("got"), b"deep", "{name}");
        let error = inner.get_owned(b"none", Timeout::Once).expect_err("missing").to_string();
        assert!(error.starts_with("get \"none\" "), "as the caller gave it: {name}: {error}");
        // A barrier under a prefix is one by keys, whatever kind the store's own is.
        inner.barrier(b"gate", 1, DEFAULT).expect("alone");
        assert_eq!(inner.get_owned(b"gate/num_members", Timeout::Once).expect("got"), b"1", "{name}");
        assert_eq!(inner.get_owned(b"gate/last_member", Timeout::Once).expect("got"), b"1", "{name}");
    }
}

#[test]
fn values_that_are_no_numbers_and_sizes_that_are_too_large() {
    let family = Family::new("numbers");
    for (name, store) in &family.members {
        store.set(b"text", b"no number", DEFAULT).expect("set");
        let error = store.add(b"text", 1, DEFAULT).expect_err("no number");
        let text = "the value is not a decimal number of 64 bits";
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
        assert!(error.to_string().ends_with(text), "{name}: {error}");
        assert_eq!(store.get_owned(b"text", DEFAULT).expect("got"), b"no number", "{name}");
        for error in
            [store.set(b"big", &std::vec![0; (8 << 20) + 1], DEFAULT), store.set(&[b'k'; 8192], b"", DEFAULT)]
        {
            assert_eq!(error.expect_err("over the limit").kind(), ErrorKind::LimitExceeded, "{name}");
        }
    }
}

#[test]
fn a_default_timeout_is_the_handles_own_and_goes_on_to_those_made_from_it() {
    let family = Family::new("timeout");
    for (name, store) in &family.members {
        let short = Duration::from_millis(30);
        assert_eq!(store.set_timeout(short), SOON, "{name}");
        assert_eq!(store.timeouts(), Timeouts { call: short, answer: store.timeouts().answer }, "{name}");
        let (with_scope, twin) = (store.with_prefix(b"t"), store.duplicate().expect("a twin"));
        for handle in [store, &with_scope, &twin] {
            let error = handle.wait(&[b"never"], DEFAULT).expect_err("the key is never set");
            assert_eq!((error.kind(), handle.timeout()), (ErrorKind::TimedOut, short), "{name}: {error}");
        }
        with_scope.set_timeout(SOON);
        assert_eq!((store.set_timeout(Duration::ZERO), twin.timeout()), (short, short), "{name}");
        let error = store.wait(&[b"never"], DEFAULT).expect_err("zero is to look once");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{name}: {error}");
    }
}

/// Handles with a prefix share the calls in progress, also between the steps of a call.
#[test]
fn a_cancel_between_the_parts_of_one_call_ends_it() {
    let family = Family::new("cancel-between");
    for (name, store) in &family.members {
        let part = store.for_one_call();
        part.set(b"k", b"v", DEFAULT).expect("applied");
        store.cancel();
        assert_eq!(part.get_owned(b"k", DEFAULT).expect_err("over").kind(), ErrorKind::Cancelled, "{name}");
        let ended = [part.barrier_by_keys(b"b", 1, DEFAULT), part.wait_for_workers(0, DEFAULT)];
        assert!(
            ended.iter().all(|ended| ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::Cancelled)),
            "{name}"
        );
        store.get_owned(b"k", DEFAULT).expect("the handle goes on");
    }
}

#[test]
fn cancelling_beneath_a_prefix_ends_the_calls_of_all() {
    let family = Family::new("cancel-prefixed");
    for (name, store) in &family.members {
        let with_scope = store.with_prefix(b"below");
        let attempts: [Attempt<'_>; 2] = [&|| store.wait_for_workers(1 << 40, DEFAULT), &|| {
            store.barrier_by_keys(b"alone", 1 << 40, DEFAULT)
        }];
        for attempt in attempts {
            let error = thread::scope(|scope| {
                let pending = scope.spawn(attempt);
                while !pending.is_finished() {
                    with_scope.cancel();
                    thread::yield_now();
                }
                pending.join().expect("no panic").expect_err("cancelled")
            });
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{name}: {error}");
        }
    }
}

/// Returns the error of a call that ends when its token is cancelled, once before the call and once during it, when
/// `is_waiting` has returned.
fn cancelled<T: Send>(call: &(dyn Fn(&CancelToken) -> Result<T, CallError> + Sync), is_waiting: &dyn Fn()) {
    let token = CancelToken::new();
    let during = thread::scope(|scope| {
        let pending = scope.spawn(|| call(&token));
        is_waiting();
        token.cancel();
        pending.join().expect("no panic")
    });
    for ended in [during, call(&token)] {
        let error = ended.err().expect("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
}

#[test]
fn a_token_ends_calls_whenever_it_is_cancelled() {
    let family = Family::new("token");
    for (_, store) in &family.members {
        cancelled(&|token| store.with_token(token).wait(&[b"never"], DEFAULT), &|| ());
        cancelled(&|token| store.with_token(token).barrier(b"alone", 1 << 40, DEFAULT), &|| ());
        cancelled(&|token| store.with_token(token).wait_for_workers(1 << 40, DEFAULT), &|| ());
        let token = CancelToken::new();
        let bound = store.with_token(&token);
        bound.set(b"k", b"v", DEFAULT).expect("set");
        bound.cancel();
        bound.with_prefix(b"below").set(b"k", b"v", DEFAULT).expect("a later call");
        let other = bound.duplicate().expect("connected");
        token.cancel();
        for ended in [
            bound.set(b"k", b"v", DEFAULT),
            bound.with_prefix(b"below").set(b"k", b"v", DEFAULT),
            bound.duplicate().map(drop),
        ] {
            assert_eq!(ended.expect_err("cancelled").kind(), ErrorKind::Cancelled);
        }
        if let Ok(client) = bound.native(Operation::LeaseGrant) {
            let error = client.lease(Duration::ZERO, DEFAULT).expect_err("cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
        other.set(b"k", b"v", DEFAULT).expect("it has no token");
        store.set(b"k", b"v", DEFAULT).expect("the first handle goes on");
    }
}

#[test]
fn a_token_ends_connecting() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = mute.local_addr().expect("bound").port();
    let accepts = || drop(mute.accept().map(core::mem::forget));
    let connect = |token: &CancelToken| {
        let options = StoreOptions { token: token.clone(), ..StoreOptions::default() };
        Store::connect("127.0.0.1", port, options)
    };
    cancelled(&connect, &accepts);
    let connect = |token: &CancelToken| {
        let options = NativeClientOptions { token: token.clone(), ..NativeClientOptions::default() };
        Store::connect_native("127.0.0.1", port, options)
    };
    cancelled(&connect, &accepts);
    // No server is there, or one that has gone.
    drop(mute);
    cancelled(&connect, &|| ());
    let Family { members, _servers: servers, .. } = Family::new("token-connect");
    for server in servers {
        server.stop().expect("it ran");
    }
    for (_, store) in members.iter().filter(|(name, _)| !name.starts_with("in") && !name.starts_with("file"))
    {
        cancelled(&|token| store.with_token(token).duplicate(), &|| ());
    }
}

#[test]
fn a_token_ends_the_wait_for_the_lock_of_a_file() {
    use crate::driver::rendezvous::{Context, HandlerError, UrlOptions};
    let file = TemporaryFile::new("token-lock");
    let store = Store::open_file(file.path(), FileStoreOptions::default()).expect("opened");
    let holder = std::fs::File::open(file.path()).expect("the file");
    holder.lock().expect("the lock is free");
    cancelled(&|token| store.with_token(token).set(b"k", b"v", DEFAULT), &|| ());
    cancelled(&|token| store.with_token(token).duplicate(), &|| ());
    let open = |token: &CancelToken| {
        let options = FileStoreOptions { token: token.clone(), ..FileStoreOptions::default() };
        Store::open_file(file.path(), options)
    };
    cancelled(&open, &|| ());
    let url = std::format!("file://{}?rank=0&world_size=2", file.path().display());
    let meet = |token: &CancelToken| {
        let options = UrlOptions { canceller: Canceller::of(token, None), ..UrlOptions::default() };
        let met = Context::default().rendezvous(&url, options).and_then(|mut meeting| meeting.next());
        met.map_err(|error| match error {
            HandlerError::Store(error) => error,
            error => panic!("{error}"),
        })
    };
    cancelled(&meet, &|| ());
}
