//! Connections of a blocking client.

use super::{FOREVER, check, join, spawn};
use crate::cancel::CancelToken;
use crate::connection_pool::{Ended, HoldTime, Pool, Registration};
use crate::stand_ins::Wire;
use crate::stand_ins::clock::from_now;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::limits::ClientLimits;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

/// Returns a pool of at most two connections, of which long calls may have one.
fn pool() -> Arc<Pool> {
    let pool = Pool::new(ClientLimits { connections_max: 1, ..ClientLimits::default() });
    Arc::new(pool)
}

#[test]
fn each_call_gets_a_slot_and_no_more_than_the_limit_have_one() {
    check(|| {
        let (pool, all, long) = (pool(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let calls = [HoldTime::Long, HoldTime::Brief, HoldTime::Long, HoldTime::Brief].map(|hold_time| {
            let (pool, all, long) = (Arc::clone(&pool), Arc::clone(&all), Arc::clone(&long));
            spawn(move || {
                let is_long = usize::from(hold_time == HoldTime::Long);
                let entered = pool.enter(hold_time, FOREVER, &CancelToken::new()).expect("a slot");
                assert!(
                    all.fetch_add(1, Ordering::SeqCst) < 2 && long.fetch_add(is_long, Ordering::SeqCst) <= 1
                );
                thread::yield_now();
                all.fetch_sub(1, Ordering::SeqCst);
                long.fetch_sub(is_long, Ordering::SeqCst);
                pool.leave(entered.ticket, entered.idle.or_else(|| Some(Box::new(Wire::open(1)))));
            })
        });
        join(calls);
    });
}

#[test]
fn a_cancelled_call_ends_though_no_slot_becomes_free() {
    check(|| {
        let (pool, token) = (pool(), CancelToken::new());
        let never = CancelToken::new();
        let held = [(); 2].map(|()| pool.enter(HoldTime::Brief, FOREVER, &never).expect("a slot"));
        let calls = [HoldTime::Long, HoldTime::Brief].map(|hold_time| {
            let (pool, token) = (Arc::clone(&pool), token.clone());
            spawn(move || pool.enter(hold_time, FOREVER, &token).expect_err("no slot").kind)
        });
        token.cancel();
        pool.wake();
        assert_eq!(join(calls), [ErrorKind::Cancelled; 2]);
        held.into_iter().for_each(|entered| pool.leave(entered.ticket, None));
    });
}

/// A slot that becomes free while its waiter is cancelled goes to the other one.
#[test]
fn a_cancelled_call_leaves_its_slot_to_the_next() {
    check(|| {
        let (pool, token) = (pool(), CancelToken::new());
        let never = CancelToken::new();
        let held = [(); 2].map(|()| pool.enter(HoldTime::Brief, FOREVER, &never).expect("a slot"));
        let calls = [token.clone(), never].map(|token| {
            let pool = Arc::clone(&pool);
            spawn(move || {
                let entered = pool.enter(HoldTime::Brief, FOREVER, &token);
                entered.map(|entered| pool.leave(entered.ticket, None)).is_ok()
            })
        });
        let canceller = {
            let pool = Arc::clone(&pool);
            spawn(move || {
                token.cancel();
                pool.wake();
            })
        };
        let [first, _second] = held;
        pool.leave(first.ticket, None);
        assert!(join(calls)[1], "it was not cancelled");
        join([canceller]);
    });
}

/// The stand-in for a socket checks that nothing shuts it down once it is closed.
#[test]
fn a_cancelled_call_is_woken_and_no_closed_socket_is_shut_down() {
    check(|| {
        let (pool, token) = (pool(), CancelToken::new());
        let canceller = {
            let (pool, token) = (Arc::clone(&pool), token.clone());
            spawn(move || {
                token.cancel();
                pool.wake();
            })
        };
        if let Ok(entered) = pool.enter(HoldTime::Long, FOREVER, &token) {
            let mut registration = Registration::new(&pool, entered.ticket);
            registration.set(Some(Wire::open(3)));
            thread::yield_now();
            registration.set(Some(Wire::open(4)));
            // The driver checks the token after it has registered a socket, and before it waits for it.
            if !token.is_cancelled() {
                Wire::wait_until_shut_down(4);
            }
            drop(registration);
            pool.leave(entered.ticket, None);
        }
        join([canceller]);
    });
}

#[test]
fn all_threads_that_wait_for_an_address_get_it() {
    check(|| {
        let (pool, token) = (pool(), CancelToken::new());
        let address = ([127, 0, 0, 1], 1).into();
        let calls = [token.clone(), CancelToken::new(), CancelToken::new()].map(|token| {
            let pool = Arc::clone(&pool);
            spawn(move || {
                let begun = Arc::clone(&pool);
                // The look-up goes on when its caller is cancelled: others may wait for it.
                let begin = || drop(thread::spawn(move || begun.end_lookup(Ok(vec![address]))));
                pool.addresses(&token, from_now(FOREVER), begin)
            })
        });
        token.cancel();
        pool.wake();
        let [cancelled, others @ ..] = &join(calls)[..] else { unreachable!("three calls") };
        assert!(matches!(cancelled, Ok(Ok(_)) | Err(Ended::Cancelled)));
        assert_eq!(others, [Ok(Ok(vec![address])), Ok(Ok(vec![address]))]);
    });
}
