use super::*;
use crate::driver::store::Store;
use crate::driver::take::NoValue;
use crate::driver::timeout::Timeout;
use crate::time::Duration;
use std::thread;

const SOON: Duration = Duration::from_secs(20);
const DEFAULT: Timeout = Timeout::Default;

/// Returns a store, and its shared state, in which the test sees the waiting calls.
fn watched() -> (Store, Arc<HashStoreShared>) {
    let timeouts = Timeouts { call: SOON, answer: SOON };
    let store = HashStore::new(HashStoreOptions { timeouts, ..HashStoreOptions::default() });
    let shared = Arc::clone(&store.shared);
    (Store::over(Arc::new(store)), shared)
}

/// Returns when `waits` calls wait for keys and `poppers` for items.
fn until_waiting(shared: &HashStoreShared, waits: usize, poppers: usize) {
    loop {
        let state = shared.state.lock().expect("no panic");
        if (state.waiting.len(), state.poppers.len()) == (waits, poppers) {
            return;
        }
        drop(state);
        thread::yield_now();
    }
}

fn pop(store: &Store) -> Result<Vec<u8>, CallError> {
    let mut item = Vec::new();
    store.queue_pop(b"q", &mut item, DEFAULT).map(|()| item)
}

#[test]
fn a_plain_wait_does_not_take_the_turn_of_who_pops() {
    for waits_first in [1, 2, 5] {
        let (store, shared) = watched();
        thread::scope(|scope| {
            let waits: Vec<_> =
                (0..waits_first).map(|_| scope.spawn(|| store.wait(&[b"q"], DEFAULT))).collect();
            until_waiting(&shared, waits_first, 0);
            let popped = scope.spawn(|| pop(&store));
            until_waiting(&shared, waits_first, 1);
            store.queue_push(b"q", b"item", DEFAULT).expect("pushed");
            assert_eq!(popped.join().expect("no panic").expect("an item"), b"item");
            // One item ends one wait, as over TCP.
            for _ in 1..waits_first {
                store.queue_push(b"q", b"more", DEFAULT).expect("pushed");
            }
            waits.into_iter().for_each(|wait| wait.join().expect("no panic").expect("released"));
        });
    }
}

#[test]
fn a_wait_for_more_than_the_queue_does_not_either() {
    let (store, shared) = watched();
    thread::scope(|scope| {
        let wait = scope.spawn(|| store.wait(&[b"q", b"k"], DEFAULT));
        until_waiting(&shared, 1, 0);
        let popped = scope.spawn(|| pop(&store));
        until_waiting(&shared, 1, 1);
        store.queue_push(b"q", b"item", DEFAULT).expect("pushed");
        assert_eq!(popped.join().expect("no panic").expect("an item"), b"item");
        store.set(b"k", b"", DEFAULT).expect("set");
        wait.join().expect("no panic").expect("both have been there");
    });
}

#[test]
fn items_are_promised_to_those_who_wait() {
    let (store, shared) = watched();
    thread::scope(|scope| {
        let poppers: Vec<_> = (0..4)
            .map(|index| {
                let popper = scope.spawn(|| pop(&store));
                until_waiting(&shared, 0, index + 1);
                popper
            })
            .collect();
        // A later pop gets none of the items that those wait for: all four are pushed before one of them runs.
        let mut state = shared.state.lock().expect("no panic");
        let key = Key::scoped(b"/", b"q");
        for item in [b"0", b"1", b"2", b"3"] {
            let push = Request::QueuePush { key, value: item };
            state.apply(NO_CONNECTION, &push, &mut |answer| outcome(answer, &mut NoValue)).expect("pushed");
        }
        let late = state.next_ticket;
        assert!(!state.is_first_in_line(key, b"/q", late).expect("answered"), "they are promised");
        drop(state);
        shared.changed.notify_all();
        let mut items: Vec<_> =
            poppers.into_iter().map(|popper| popper.join().expect("no panic").expect("an item")).collect();
        items.sort();
        assert_eq!(items, [b"0", b"1", b"2", b"3"]);
    });
    let empty = store.queue_pop(b"q", &mut Vec::new(), Timeout::Once).expect_err("all are taken");
    assert_eq!(empty.kind(), ErrorKind::QueueEmpty);
}

#[test]
fn who_gives_up_leaves_the_turn_to_the_next() {
    let (store, shared) = watched();
    let other = store.duplicate().expect("a handle of its own");
    thread::scope(|scope| {
        let first = scope.spawn(|| pop(&other));
        until_waiting(&shared, 0, 1);
        let second = scope.spawn(|| pop(&store));
        until_waiting(&shared, 0, 2);
        let hasty = store.queue_pop(b"q", &mut Vec::new(), Timeout::After(Duration::from_millis(1)));
        assert_eq!(hasty.expect_err("nothing was pushed").kind(), ErrorKind::TimedOut);
        other.cancel();
        assert_eq!(first.join().expect("no panic").expect_err("cancelled").kind(), ErrorKind::Cancelled);
        until_waiting(&shared, 0, 1);
        store.queue_push(b"q", b"item", DEFAULT).expect("pushed");
        assert_eq!(second.join().expect("no panic").expect("an item"), b"item");
    });
    // No pop waits, so no item is reserved.
    store.queue_push(b"q", b"last", DEFAULT).expect("pushed");
    assert_eq!(pop(&store).expect("it is there"), b"last");
}

#[test]
fn a_value_under_the_name_of_a_queue_ends_a_pop() {
    let (store, shared) = watched();
    thread::scope(|scope| {
        let popped = scope.spawn(|| pop(&store));
        until_waiting(&shared, 0, 1);
        store.set(b"q", b"no item", DEFAULT).expect("set");
        let error = popped.join().expect("no panic").expect_err("the queue is empty");
        assert_eq!(error.kind(), ErrorKind::QueueEmpty);
    });
}

#[test]
fn every_item_finds_a_popper_whatever_else_waits() {
    const ROUNDS: usize = 100;
    let (store, _) = watched();
    thread::scope(|scope| {
        let poppers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..ROUNDS).try_for_each(|_| pop(&store).map(drop)))).collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while store.add(b"over", 0, DEFAULT).expect("answered") == 0 {
                    store.wait(&[b"q"], DEFAULT).expect("released");
                }
            });
        }
        for _ in 0..4 * ROUNDS {
            store.queue_push(b"q", b"item", DEFAULT).expect("pushed");
        }
        poppers.into_iter().for_each(|popper| popper.join().expect("no panic").expect("all are fed"));
        store.add(b"over", 1, DEFAULT).expect("added");
        store.queue_push(b"q", b"end", DEFAULT).expect("pushed");
        store.queue_push(b"q", b"end", DEFAULT).expect("pushed");
    });
}
