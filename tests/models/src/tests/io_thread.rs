//! Timers of the thread that drives the connections of a worker.

use super::{check, join, spawn};
use crate::io_thread::{IoThread, Target};
use crate::stand_ins::clock::Clock;
use crate::stand_ins::server::ServerFailure;
use rendezvous_core::time::Instant;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::sync::{Arc, Mutex};

/// Target that reports its ticks.
struct Ticks {
    sender: Mutex<Sender<Instant>>,
    has_ended: AtomicBool,
}

impl Ticks {
    fn new() -> (Arc<Self>, Receiver<Instant>) {
        let (sender, ticks) = channel();
        (Arc::new(Self { sender: Mutex::new(sender), has_ended: AtomicBool::new(false) }), ticks)
    }
}

impl Target for Ticks {
    fn tick(self: Arc<Self>, now: Instant, _: &mut Vec<u8>) {
        self.sender.lock().expect("no panic").send(now).ok();
    }

    fn thread_ended(self: Arc<Self>, _: &ServerFailure) {
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

fn start() -> Arc<IoThread> {
    Arc::new(IoThread::start(|failure| panic!("{failure}")).expect("it starts"))
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// The clock stands still until a timer that is due has ticked, so one that is late is a deadlock.
#[test]
fn no_timer_is_late_whatever_the_thread_sleeps_for() {
    check(|| {
        let (thread, (target, ticks)) = (start(), Ticks::new());
        let weak = Arc::downgrade(&target);
        let token = thread.shared().add(weak);
        let scheduling = [30, 10, 20].map(|millis| {
            let io = Arc::clone(thread.shared());
            spawn(move || io.schedule(at(millis), token))
        });
        join(scheduling);
        for millis in [10, 20, 30] {
            Clock::set(at(millis));
            assert_eq!(ticks.recv(), Ok(at(millis)));
        }
        thread.stop();
    });
}

#[test]
fn a_timer_that_is_due_already_ticks_at_once() {
    check(|| {
        let (thread, (target, ticks)) = (start(), Ticks::new());
        let weak = Arc::downgrade(&target);
        let token = thread.shared().add(weak);
        let scheduling = [Instant::ORIGIN, at(10)].map(|at| {
            let io = Arc::clone(thread.shared());
            spawn(move || io.schedule(at, token))
        });
        Clock::set(at(10));
        (0..2).for_each(|_| assert!(ticks.recv().is_ok()));
        join(scheduling);
        thread.stop();
        assert!(ticks.try_recv().is_err(), "each timer ticks once");
    });
}

#[test]
fn a_target_learns_of_the_end_whenever_it_is_added() {
    check(|| {
        let (thread, (target, _ticks)) = (start(), Ticks::new());
        let stopping = [(); 2].map(|()| {
            let thread = Arc::clone(&thread);
            spawn(move || thread.stop())
        });
        let weak = Arc::downgrade(&target);
        thread.shared().add(weak);
        let was_late = thread.shared().failure().is_some();
        join(stopping);
        thread.stop();
        // Only the call of `stop` that got the thread has waited for it.
        assert!(was_late || target.has_ended.load(Ordering::SeqCst));
        assert_eq!(thread.shared().failure(), Some(&ServerFailure::Stopped));
    });
}
