//! Stages of a worker's life.

use super::{FOREVER, check, join, spawn};
use crate::life::{Life, LifeStage};
use crate::stand_ins::clock::Clock;
use rendezvous_core::time::Instant;
use rendezvous_rpc::membership::error::MembershipError;
use shuttle::sync::Arc;

fn life() -> (Arc<Life>, Instant) {
    (Arc::new(Life::new(Clock)), Instant::ORIGIN + FOREVER)
}

#[test]
fn all_threads_that_wait_for_a_stage_are_woken() {
    check(|| {
        let (life, until) = life();
        let joining = [(); 2].map(|()| {
            let life = Arc::clone(&life);
            spawn(move || life.wait_joined(until))
        });
        let ending = {
            let life = Arc::clone(&life);
            spawn(move || life.wait_over(until))
        };
        life.set(LifeStage::Member);
        // Otherwise a waiting join may see the end only.
        for joined in join(joining) {
            assert_eq!(joined, Some(Ok(())));
        }
        life.set(LifeStage::Over(Err(MembershipError::Abandoned)));
        assert_eq!(join([ending]), [Some(Err(MembershipError::Abandoned))]);
    });
}

#[test]
fn a_join_that_fails_ends_all_waits() {
    check(|| {
        let (life, until) = life();
        let joining = {
            let life = Arc::clone(&life);
            spawn(move || life.wait_joined(until))
        };
        let ending = {
            let life = Arc::clone(&life);
            spawn(move || life.wait_over(until))
        };
        life.set(LifeStage::Over(Err(MembershipError::Abandoned)));
        assert_eq!(join([joining, ending]), [(); 2].map(|()| Some(Err(MembershipError::Abandoned))));
    });
}

/// The time for undoing a join passes at once, so a wait that misses the cancellation is a deadlock.
#[test]
fn no_wait_for_the_join_misses_its_cancellation() {
    check(|| {
        let (life, until) = life();
        let joining = [(); 2].map(|()| {
            let life = Arc::clone(&life);
            spawn(move || life.wait_joined(until))
        });
        let ending = {
            let life = Arc::clone(&life);
            spawn(move || life.wait_over(until))
        };
        life.cancel_join();
        assert_eq!(join(joining), [(); 2].map(|()| Some(Err(MembershipError::Cancelled))));
        life.set(LifeStage::Over(Err(MembershipError::Cancelled)));
        assert_eq!(join([ending]), [Some(Err(MembershipError::Cancelled))]);
    });
}
