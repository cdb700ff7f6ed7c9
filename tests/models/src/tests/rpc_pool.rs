//! Threads for handlers of RPC workers.

use super::{FOREVER, check, join, spawn};
use crate::rpc_pool::{Pool, PoolJob};
use crate::stand_ins::threads::REFUSED;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::io;

#[derive(Default)]
struct Counts {
    run: AtomicUsize,
    refused: AtomicUsize,
    running: AtomicUsize,
}

struct Job(usize, Arc<Counts>);

impl PoolJob for Job {
    fn source(&self) -> usize {
        self.0
    }

    fn run(self) {
        assert!(self.1.running.fetch_add(1, Ordering::SeqCst) < 2, "two threads");
        thread::yield_now();
        self.1.running.fetch_sub(1, Ordering::SeqCst);
        self.1.run.fetch_add(1, Ordering::SeqCst);
    }

    fn refuse(self, _: Option<&io::Error>) {
        self.1.refused.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counts {
    fn get(&self) -> (usize, usize) {
        (self.run.load(Ordering::SeqCst), self.refused.load(Ordering::SeqCst))
    }
}

#[test]
fn all_jobs_have_run_when_the_pool_rests() {
    check(|| {
        let (pool, counts) = (Arc::new(Pool::new(2)), Arc::new(Counts::default()));
        let submitting = [0, 1].map(|source| {
            let (pool, counts) = (Arc::clone(&pool), Arc::clone(&counts));
            spawn(move || (0..2).for_each(|_| pool.submit(Job(source, Arc::clone(&counts)))))
        });
        join(submitting);
        let resting = [(); 2].map(|()| {
            let (pool, counts) = (Arc::clone(&pool), Arc::clone(&counts));
            spawn(move || {
                assert!(pool.rest(FOREVER));
                assert_eq!(counts.get(), (4, 0));
            })
        });
        join(resting);
        assert_eq!(pool.exhaustion(), None);
    });
}

#[test]
fn the_pool_rests_when_no_thread_can_be_started() {
    check(|| {
        let (pool, counts) = (Arc::new(Pool::new(2)), Arc::new(Counts::default()));
        REFUSED.store(2, Ordering::SeqCst);
        let submitting = [0, 1].map(|source| {
            let (pool, counts) = (Arc::clone(&pool), Arc::clone(&counts));
            spawn(move || pool.submit(Job(source, counts)))
        });
        assert!(pool.rest(FOREVER));
        join(submitting);
        assert_eq!(counts.get(), (0, 2));
        // The system can start threads again.
        pool.submit(Job(0, Arc::clone(&counts)));
        assert!(pool.rest(FOREVER));
        assert_eq!(counts.get(), (1, 2));
    });
}

#[test]
fn an_idle_thread_runs_the_next_job() {
    check(|| {
        let (pool, counts) = (Pool::new(1), Arc::new(Counts::default()));
        for round in 1..=3 {
            pool.submit(Job(0, Arc::clone(&counts)));
            assert!(pool.rest(FOREVER));
            assert_eq!(counts.get(), (round, 0));
        }
    });
}

/// The thread that waits for the rest is woken, also if the last jobs are not run but refused.
#[test]
fn the_pool_rests_when_the_queued_jobs_are_refused() {
    check(|| {
        let (pool, counts) = (Arc::new(Pool::new(1)), Arc::new(Counts::default()));
        (0..2).for_each(|source| pool.submit(Job(source, Arc::clone(&counts))));
        let resting = {
            let pool = Arc::clone(&pool);
            spawn(move || assert!(pool.rest(FOREVER)))
        };
        pool.refuse_queued();
        join([resting]);
        let (run, refused) = counts.get();
        assert_eq!(run + refused, 2, "each job is run or refused, once");
    });
}

#[test]
fn each_job_is_run_or_refused_when_the_pool_is_dropped() {
    check(|| {
        let (pool, counts) = (Pool::new(2), Arc::new(Counts::default()));
        (0..3).for_each(|source| pool.submit(Job(source, Arc::clone(&counts))));
        drop(pool);
        // The threads of the pool hold the counts until they have run what they had begun.
        while Arc::strong_count(&counts) > 1 {
            thread::yield_now();
        }
        let (run, refused) = counts.get();
        assert_eq!(run + refused, 3);
    });
}
