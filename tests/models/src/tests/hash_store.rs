//! Store in this process.

use super::{FOREVER, check, join, spawn};
use crate::backend::{Backend, Span};
use crate::cancel::CancelToken;
use crate::hash_store::{HashStore, HashStoreOptions};
use crate::take::List;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::store::call::{Call, Outcome, WaitMode};
use rendezvous_core::store::op::{Key, Keys, Request};
use rendezvous_core::time::Instant;
use shuttle::sync::Arc;
use shuttle::thread::JoinHandle;

const QUEUE: Key<'static> = Key::raw(b"/q");
const KEY: Key<'static> = Key::raw(b"/k");
const OTHER: Key<'static> = Key::raw(b"/l");

type Performed = Result<(Outcome, Vec<Vec<u8>>), ErrorKind>;

fn store() -> Arc<HashStore> {
    Arc::new(HashStore::new(HashStoreOptions::default()))
}

fn perform(store: &HashStore, request: Request<'_>, token: &CancelToken) -> Performed {
    let (began, deadline) = (Instant::ORIGIN, Instant::ORIGIN + FOREVER);
    let span = Span { began, deadline, wait_mode: WaitMode::Wait, token };
    let mut values = List::default();
    let performed = store.perform(&Call::Store(request, WaitMode::Wait), span, &mut values);
    performed.map(|outcome| (outcome, values.0)).map_err(|refusal| refusal.failure.kind)
}

fn start(store: &Arc<HashStore>, request: Request<'static>, token: &CancelToken) -> JoinHandle<Performed> {
    let (store, token) = (Arc::clone(store), token.clone());
    spawn(move || perform(&store, request, &token))
}

fn cancel(store: &Arc<HashStore>, token: CancelToken) -> JoinHandle<()> {
    let store = Arc::clone(store);
    spawn(move || {
        token.cancel();
        store.wake();
    })
}

fn pop() -> Request<'static> {
    Request::QueuePop { key: QUEUE }
}

fn push(value: &'static [u8]) -> Request<'static> {
    Request::QueuePush { key: QUEUE, value }
}

fn item(value: &[u8]) -> Performed {
    Ok((Outcome::Value, vec![value.to_vec()]))
}

/// A wait for the queue uses up no item, and a pop uses up no wake-up of a wait.
#[test]
fn each_item_goes_to_one_pop_whatever_else_waits() {
    check(|| {
        let (store, never) = (store(), CancelToken::new());
        let popping = [pop(), pop()].map(|pop| start(&store, pop, &never));
        let pushing = [push(b"1"), push(b"2")].map(|push| start(&store, push, &never));
        let waiting = start(&store, Request::Wait { keys: Keys::one(QUEUE) }, &never);
        let mut popped = join(popping);
        popped.sort_by_key(|popped| popped.as_ref().map(|(_, values)| values.clone()).ok());
        assert_eq!(popped, [item(b"1"), item(b"2")]);
        join(pushing);
        // It may have begun when the queue was empty again.
        perform(&store, push(b"3"), &never).expect("pushed");
        assert_eq!(join([waiting]), [Ok((Outcome::Released, Vec::new()))]);
    });
}

#[test]
fn a_cancelled_pop_ends_and_leaves_its_turn_to_the_next() {
    check(|| {
        let (store, token, never) = (store(), CancelToken::new(), CancelToken::new());
        let cancelled = start(&store, pop(), &token);
        let other = start(&store, pop(), &never);
        let canceller = cancel(&store, token);
        perform(&store, push(b"1"), &never).expect("pushed");
        let cancelled = join([cancelled]).remove(0);
        if cancelled == item(b"1") {
            perform(&store, push(b"2"), &never).expect("pushed");
            assert_eq!(join([other]), [item(b"2")]);
        } else {
            assert_eq!(cancelled, Err(ErrorKind::Cancelled));
            assert_eq!(join([other]), [item(b"1")]);
        }
        join([canceller]);
    });
}

#[test]
fn no_wait_misses_its_cancellation() {
    check(|| {
        let (store, token) = (store(), CancelToken::new());
        let requests = [
            pop(),
            Request::Get { key: KEY },
            Request::Wait { keys: Keys::one(KEY) },
            Request::Barrier { key: OTHER, world_size: 2 },
        ];
        let waiting = requests.map(|request| start(&store, request, &token));
        join([cancel(&store, token)]);
        assert_eq!(join(waiting), [const { Err(ErrorKind::Cancelled) }; 4]);
    });
}

#[test]
fn all_threads_that_wait_for_a_key_get_it() {
    check(|| {
        let (store, never) = (store(), CancelToken::new());
        let reading = [(); 2].map(|()| start(&store, Request::Get { key: KEY }, &never));
        let names: &[&[u8]] = &[b"k", b"l"];
        let waiting = start(&store, Request::Wait { keys: Keys::scoped(b"/", names) }, &never);
        let setting = [KEY, OTHER].map(|key| start(&store, Request::Set { key, value: b"v" }, &never));
        assert_eq!(join(reading), [item(b"v"), item(b"v")]);
        assert!(join([waiting]).remove(0).is_ok());
        assert!(join(setting).iter().all(Result::is_ok));
    });
}

/// A read that is woken after the key was deleted waits for its next value.
#[test]
fn a_read_waits_on_when_its_key_is_deleted_before_it_runs() {
    check(|| {
        let (store, never) = (store(), CancelToken::new());
        let reading = start(&store, Request::Get { key: KEY }, &never);
        perform(&store, Request::Set { key: KEY, value: b"1" }, &never).expect("set");
        perform(&store, Request::Delete { key: KEY }, &never).expect("deleted");
        perform(&store, Request::Set { key: KEY, value: b"2" }, &never).expect("set");
        let read = join([reading]).remove(0);
        assert!(read == item(b"1") || read == item(b"2"), "{read:?}");
    });
}

#[test]
fn a_barrier_releases_all_of_its_participants() {
    check(|| {
        let (store, never) = (store(), CancelToken::new());
        let barrier = Request::Barrier { key: KEY, world_size: 3 };
        let arriving = [barrier; 3].map(|barrier| start(&store, barrier, &never));
        assert!(join(arriving).iter().all(|ended| *ended == Ok((Outcome::Released, Vec::new()))));
    });
}
