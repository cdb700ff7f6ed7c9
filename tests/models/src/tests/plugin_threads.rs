//! Threads for plug-ins.

use super::{FOREVER, check, join, spawn};
use crate::cancel::CancelToken;
use crate::plugin_threads::{Ended, PluginThreads};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

#[test]
fn each_job_runs_once_and_its_caller_gets_its_result() {
    check(|| {
        let (pool, runs) = (Arc::new(PluginThreads::new("plug-in", 2)), Arc::new(AtomicUsize::new(0)));
        let callers = [1, 2, 3].map(|number| {
            let (pool, runs) = (Arc::clone(&pool), Arc::clone(&runs));
            spawn(move || {
                let job = move || {
                    runs.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    number
                };
                match pool.ask(job, FOREVER, &CancelToken::new()) {
                    Ok(result) => {
                        assert_eq!(result, number);
                        1
                    }
                    Err(refused) => {
                        assert_eq!(refused, Ended::TooMany);
                        0
                    }
                }
            })
        });
        let answered: usize = join(callers).into_iter().sum();
        assert!(answered >= 2, "two threads are allowed");
        assert_eq!(runs.load(Ordering::SeqCst), answered);
    });
}

#[test]
fn a_cancelled_caller_knows_whether_its_job_has_begun() {
    check(|| {
        let (pool, token) = (PluginThreads::new("plug-in", 1), CancelToken::new());
        let begun = Arc::new(AtomicUsize::new(0));
        let canceller = {
            let token = token.clone();
            spawn(move || token.cancel())
        };
        let begins = Arc::clone(&begun);
        let result = pool.ask(move || begins.fetch_add(1, Ordering::SeqCst), FOREVER, &token);
        join([canceller]);
        match result {
            Ok(_) => assert_eq!(begun.load(Ordering::SeqCst), 1),
            Err(Ended::Cancelled { is_running }) => {
                // A job that has not begun never begins.
                let before = begun.load(Ordering::SeqCst);
                assert!(is_running || before == 0);
                let next = pool.ask(|| (), FOREVER, &CancelToken::new());
                assert!(matches!(next, Ok(()) | Err(Ended::TooMany)), "{next:?}");
                assert!(is_running || begun.load(Ordering::SeqCst) == 0);
            }
            Err(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn jobs_run_though_the_pool_is_dropped() {
    check(|| {
        let (pool, runs) = (PluginThreads::new("plug-in", 2), Arc::new(AtomicUsize::new(0)));
        let (ended, all) = shuttle::sync::mpsc::channel();
        for _ in 0..2 {
            let (runs, ended) = (Arc::clone(&runs), ended.clone());
            pool.start(move || {
                runs.fetch_add(1, Ordering::SeqCst);
                ended.send(()).expect("it is awaited");
            });
        }
        drop(pool);
        (0..2).for_each(|_| all.recv().expect("each job ends"));
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    });
}
