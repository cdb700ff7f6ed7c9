use super::*;
use crate::driver::store::Store;
use crate::driver::timeout::Timeout;
use alloc::collections::BTreeMap;
use std::string::ToString;
use std::sync::{Mutex, OnceLock, Weak};
use std::thread;

const DEFAULT: Timeout = Timeout::Default;
const SOON: Duration = Duration::from_secs(20);

/// A map as a user might write a store: with or without a WAIT of its own, and with faults.
#[derive(Default)]
struct Local {
    values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    lists: bool,
    back: OnceLock<Weak<Store>>,
    /// Held while a request for the key `stuck` must not be answered.
    stuck: Mutex<()>,
}

fn unsupported() -> PluginError {
    PluginError { kind: ErrorKind::Unsupported, message: None }
}

fn number(number: i64) -> PluginAnswer {
    PluginAnswer { number: Some(number), values: Vec::new() }
}

fn text(value: &[u8]) -> PluginAnswer {
    PluginAnswer { number: None, values: std::vec![value.to_vec()] }
}

impl Plugin for Local {
    fn ask(&self, question: &Question) -> Result<PluginAnswer, PluginError> {
        let Question { operation, keys, values, .. } = question;
        let key = keys.first().cloned().unwrap_or_default();
        match &key[..] {
            b"stuck" => drop(self.stuck.lock()),
            b"broken" => {
                return Err(PluginError { kind: ErrorKind::Io, message: Some("the disk is on fire".into()) });
            }
            b"mute" => return Ok(PluginAnswer::default()),
            b"back" => {
                let store = self.back.get().and_then(Weak::upgrade).expect("the handle");
                let error = store.set(b"k", b"v", DEFAULT).expect_err("called back");
                let prefixed = store.with_prefix(b"p").num_keys(DEFAULT).expect_err("called back");
                assert_eq!(prefixed.kind(), error.kind());
                return Err(PluginError { kind: error.kind(), message: Some(error.to_string().into()) });
            }
            _ => {}
        }
        let mut map = self.values.lock().expect("no panic");
        Ok(match operation {
            Operation::Set => drop_old(map.insert(key, values[0].clone())),
            Operation::Get => {
                text(map.get(&key).ok_or(PluginError { kind: ErrorKind::TimedOut, message: None })?)
            }
            Operation::Add => {
                let old =
                    map.get(&key).map_or("0".into(), |value| std::string::String::from_utf8_lossy(value));
                let sum = old
                    .parse::<i64>()
                    .map_err(|_| PluginError { kind: ErrorKind::InvalidArgument, message: None })?
                    + question.number;
                map.insert(key, sum.to_string().into_bytes());
                number(sum)
            }
            Operation::CompareSet => {
                let answer = match map.get(&key) {
                    Some(current) if *current != values[0] => return Ok(text(current)),
                    None if !values[0].is_empty() => return Ok(text(&values[0])),
                    _ => text(&values[1]),
                };
                map.insert(key, values[1].clone());
                answer
            }
            Operation::Check => number(keys.iter().all(|key| map.contains_key(key)).into()),
            Operation::Delete => number(map.remove(&key).is_some().into()),
            Operation::NumKeys => number(i64::try_from(map.len()).expect("few")),
            Operation::ListKeys => PluginAnswer { number: None, values: map.keys().cloned().collect() },
            Operation::MultiGet if self.lists => PluginAnswer {
                number: None,
                values: keys.iter().filter_map(|key| map.get(key).cloned()).collect(),
            },
            Operation::MultiSet if self.lists => {
                map.extend(keys.iter().cloned().zip(values.iter().cloned()));
                PluginAnswer::default()
            }
            _ => return Err(unsupported()),
        })
    }
}

fn drop_old(_: Option<Vec<u8>>) -> PluginAnswer {
    PluginAnswer::default()
}

fn store(local: Local) -> (Arc<Store>, Arc<Local>) {
    let local = Arc::new(local);
    let timeouts = Timeouts { call: SOON, answer: SOON };
    let options = PluginStoreOptions { timeouts, questions_max: 8, ..PluginStoreOptions::default() };
    let plugin = PluginStore::new(Arc::clone(&local) as Arc<dyn Plugin>, options);
    let store = Arc::new(Store::over(Arc::new(plugin)));
    local.back.set(Arc::downgrade(&store)).expect("once");
    (store, local)
}

#[test]
fn every_operation_of_own_code_with_and_without_substitutes() {
    for lists in [false, true] {
        let (store, local) = store(Local { lists, ..Local::default() });
        let mut value = Vec::new();
        store.ping(DEFAULT).expect("alive");
        store.set(b"k", b"v", DEFAULT).expect("set");
        assert_eq!(store.get_owned(b"k", DEFAULT).expect("got"), b"v");
        assert_eq!(store.get_owned(b"none", Timeout::Once).expect_err("missing").kind(), ErrorKind::TimedOut);
        assert_eq!(store.add(b"n", 5, DEFAULT).expect("added"), 5);
        store.compare_set(b"c", b"", b"new", &mut value, DEFAULT).expect("answered");
        assert_eq!(value, b"new");
        store.multi_set(&[(b"m1", b"x"), (b"m2", b"")], DEFAULT).expect("set");
        assert_eq!(store.multi_get(&[b"m2", b"m1"], DEFAULT).expect("got"), [&b""[..], b"x"]);
        assert!(store.check(&[b"k", b"m1"], DEFAULT).expect("answered"));
        assert!(store.delete(b"c", DEFAULT).expect("deleted"));
        assert!(!store.delete(b"c", DEFAULT).expect("not there"));
        let prefixed = store.with_prefix(b"p");
        prefixed.set(b"k", b"inner", DEFAULT).expect("set");
        assert_eq!(local.values.lock().expect("no panic").get(&b"p/k"[..]).expect("there"), b"inner");
        assert_eq!(prefixed.list_keys(DEFAULT).expect("listed"), [b"k"]);
        assert_eq!(store.num_keys(DEFAULT).expect("counted"), 5);
        for error in [
            store.append(b"k", b"+", DEFAULT).expect_err("none of its own, and no substitute"),
            store.queue_push(b"q", b"+", DEFAULT).expect_err("none of its own, and no substitute"),
            store.queue_pop(b"q", &mut value, DEFAULT).expect_err("none of its own, and no substitute"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        let twin = store.duplicate().expect("another handle");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get_owned(b"late", DEFAULT));
            let gate = scope.spawn(|| store.barrier(b"gate", 2, DEFAULT));
            twin.set(b"late", b"came", DEFAULT).expect("set");
            twin.barrier(b"gate", 2, DEFAULT).expect("both");
            assert_eq!(waiting.join().expect("no panic").expect("got"), b"came");
            gate.join().expect("no panic").expect("both");
        });
    }
}

#[test]
fn own_code_tells_why_it_failed() {
    let (store, _) = store(Local::default());
    let error = store.set(b"broken", b"", DEFAULT).expect_err("on fire");
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Io, Phase::Calling));
    let reported = error.to_string();
    assert!(reported.ends_with("while calling; it may have been applied: the disk is on fire"), "{reported}");
    assert_eq!(error.failure().effect, Effect::Possible, "its effect is unknown");
    let error = store.add(b"mute", 1, DEFAULT).expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::WrongProtocol, "{error}");
    assert!(error.to_string().ends_with(": it gave no number"), "{error}");
}

#[test]
fn own_code_may_not_call_its_own_handle() {
    let (store, _) = store(Local::default());
    let error = store.set(b"back", b"", DEFAULT).expect_err("called back");
    assert_eq!(error.kind(), ErrorKind::Reentrant);
    assert!(error.to_string().ends_with("it may not call the handle that is calling it"), "{error}");
    store.set(b"k", b"v", DEFAULT).expect("a later call");
}

#[test]
fn own_code_that_is_stuck_costs_the_deadline_and_holds_nobody_up() {
    let (store, local) = store(Local::default());
    let held = local.stuck.lock().expect("no panic");
    let short = Timeout::After(Duration::from_millis(50));
    let error = store.set(b"stuck", b"", short).expect_err("no answer");
    assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, Cause::NoAnswer), "{error}");
    assert!(error.to_string().ends_with("no answer came; it may have been applied"), "{error}");
    store.set(b"other", b"", DEFAULT).expect("meanwhile");
    let error = thread::scope(|scope| {
        let pending = scope.spawn(|| store.set(b"stuck", b"", DEFAULT));
        while !pending.is_finished() {
            store.cancel();
            thread::yield_now();
        }
        pending.join().expect("no panic").expect_err("cancelled")
    });
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    // An abandoned request counts until it ends.
    let mut kinds = (0..10).map(|_| store.set(b"stuck", b"", short).expect_err("no answer").kind());
    assert_eq!(kinds.next_back(), Some(ErrorKind::TimedOut));
    assert!(kinds.any(|kind| kind == ErrorKind::LimitExceeded), "as many as may be are stuck");
    drop(held);
    let ends = std::time::Instant::now() + SOON;
    while store.set(b"k", b"v", short).is_err() {
        assert!(std::time::Instant::now() < ends, "the threads never came free");
    }
    let left = Arc::downgrade(&local);
    drop((store, local));
    while left.strong_count() > 0 {
        assert!(std::time::Instant::now() < ends, "it is still in use");
        thread::yield_now();
    }
}

#[test]
fn own_code_that_panics_is_told_of() {
    struct Panics;
    impl Plugin for Panics {
        fn ask(&self, _: &Question) -> Result<PluginAnswer, PluginError> {
            panic!("provoked")
        }
    }
    let store = Store::over(Arc::new(PluginStore::new(Arc::new(Panics), PluginStoreOptions::default())));
    for _ in 0..2 {
        let error = store.set(b"k", b"v", DEFAULT).expect_err("a panic");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().ends_with(": it panicked"), "{error}");
    }
}
