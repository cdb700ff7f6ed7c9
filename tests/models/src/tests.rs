//! What the drivers promise, in every order of their threads. This file has cancel tokens; each other module has its own.

use crate::cancel::{CancelToken, Canceller};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

mod connection_pool;
mod hash_store;
mod inbox;
mod io_thread;
mod life;
mod pending;
mod plugin_threads;
mod rpc_pool;
mod session;

/// Timeout of a wait that ends otherwise. In a model none passes, so a wake-up that is lost is a deadlock.
const FOREVER: Duration = Duration::from_secs(100_000);

/// Orders of the threads that each model runs: random ones, and those that preempt threads at few points.
const ORDERS: usize = 500;

fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), ORDERS);
    shuttle::check_pct(model, ORDERS, 3);
}

/// Starts a thread of a model.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::spawn(body)
}

fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn a_hook_runs_once_and_not_after_its_guard_is_dropped() {
    check(|| {
        let (token, calls) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
        let is_alive = Arc::new(AtomicBool::new(true));
        let cancelling: Vec<_> = (0..2)
            .map(|_| {
                let token = token.clone();
                thread::spawn(move || token.cancel())
            })
            .collect();
        let (count, alive) = (Arc::clone(&calls), Arc::clone(&is_alive));
        let guard = token.on_cancel(move || {
            assert!(alive.load(Ordering::SeqCst), "the hook runs after its guard was dropped");
            thread::yield_now();
            assert!(alive.load(Ordering::SeqCst), "the guard was dropped while the hook ran");
            count.fetch_add(1, Ordering::SeqCst);
        });
        drop(guard);
        is_alive.store(false, Ordering::SeqCst);
        cancelling.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(calls.load(Ordering::SeqCst) <= 1, "the hook runs once");
        assert!(token.is_cancelled());
    });
}

#[test]
fn a_hook_that_stays_runs_exactly_once() {
    check(|| {
        let (token, calls) = (CancelToken::new(), Arc::new(AtomicU64::new(0)));
        let cancelling: Vec<_> = (0..2)
            .map(|_| {
                let token = token.clone();
                thread::spawn(move || token.cancel())
            })
            .collect();
        let count = Arc::clone(&calls);
        let guard = token.on_cancel(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        cancelling.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        drop(guard);
    });
}

#[test]
fn no_wait_misses_a_cancellation() {
    check(|| {
        let token = CancelToken::new();
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let token = token.clone();
                thread::spawn(move || assert!(token.wait(FOREVER)))
            })
            .collect();
        token.cancel();
        waiting.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn a_child_that_is_dropped_while_its_parent_is_cancelled_blocks_nothing() {
    check(|| {
        let (parent, other) = (CancelToken::new(), CancelToken::new());
        let child = CancelToken::child_of(&[&parent, &other]);
        let (cancelled, waits) = (parent.clone(), child.clone());
        let threads = [
            thread::spawn(move || cancelled.cancel()),
            thread::spawn(move || assert!(waits.wait(FOREVER))),
            thread::spawn(move || drop(child)),
            thread::spawn(move || other.cancel()),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(CancelToken::child_of(&[&parent]).is_cancelled());
    });
}

#[test]
fn a_canceller_ends_what_has_begun_whatever_happens_at_the_same_time() {
    check(|| {
        let wakes = Arc::new(AtomicU64::new(0));
        let (parent, count) = (CancelToken::new(), Arc::clone(&wakes));
        let wake = std::sync::Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let canceller = Canceller::of(&parent, Some(wake));
        let begun = canceller.token();
        let others = [canceller.clone(), canceller.clone()];
        let threads = others.map(|canceller| thread::spawn(move || canceller.cancel()));
        let later = thread::spawn({
            let (canceller, parent) = (canceller.clone(), parent.clone());
            move || {
                let token = canceller.token();
                parent.cancel();
                assert!(token.is_cancelled(), "a call that has begun ends with the parent");
            }
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        later.join().expect("no panic");
        assert!(begun.is_cancelled() && wakes.load(Ordering::SeqCst) > 0);
        assert!(canceller.token().is_cancelled(), "its parent is");
    });
}

/// The models can fail: a hook under a lock that the canceling thread's caller holds is a deadlock.
#[test]
fn a_deadlock_is_found() {
    let model = || {
        let (token, lock) = (CancelToken::new(), Arc::new(Mutex::new(())));
        let in_hook = Arc::clone(&lock);
        let guard = token.on_cancel(move || drop(in_hook.lock()));
        let cancelling = thread::spawn(move || token.cancel());
        let held = lock.lock().expect("no panic");
        // Waits for a hook that waits for this lock.
        drop(guard);
        drop(held);
        cancelling.join().expect("no panic");
    };
    let found = catch_unwind(AssertUnwindSafe(|| shuttle::check_random(model, ORDERS)));
    assert!(found.is_err(), "no order deadlocks");
}
