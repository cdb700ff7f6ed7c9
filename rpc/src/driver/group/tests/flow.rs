//! One worker that calls another too often, and the group around them.

use super::*;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::vec;

#[test]
fn notices_of_one_worker_stop_neither_calls_of_others_nor_the_group() {
    let (_server, port) = server();
    let a = joined(port, "a", 0);
    let (gate, done) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let (shut, counted) = (Arc::clone(&gate), Arc::clone(&done));
    let work = move |_, _| {
        let is_open = shut.0.lock().expect("no panic");
        drop(shut.1.wait_timeout_while(is_open, SOON, |open| !*open).expect("no panic"));
        counted.fetch_add(1, Ordering::SeqCst);
    };
    a.register("work", Run::Pooled, work).expect("free");
    let (b, c) = (joined(port, "b", 1), joined(port, "c", 2));
    let made = (0..150_000).take_while(|_| b.notify("a", "work", vec![7; 100], None).is_ok()).count();
    let quick = Some(Duration::from_secs(10));
    assert_eq!(c.call("a", "echo", b"x".to_vec(), quick), Ok(b"x".to_vec()), "{made} notices");
    let d = joined(port, "d", 3);
    assert_eq!(d.call("a", "echo", b"y".to_vec(), quick), Ok(b"y".to_vec()));
    assert_eq!(d.shutdown(Shutdown::Graceful), Ok(()));
    *gate.0.lock().expect("no panic") = true;
    gate.1.notify_all();
    let until = std::time::Instant::now() + SOON;
    while done.load(Ordering::SeqCst) < made {
        assert!(std::time::Instant::now() < until, "{} of {made} notices", done.load(Ordering::SeqCst));
        thread::yield_now();
    }
    for agent in [b, c, a] {
        assert_eq!(agent.shutdown(Shutdown::Graceful), Ok(()));
    }
}
