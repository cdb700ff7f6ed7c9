//! Thread that drives all connections of a worker: those that it has accepted and those that it has opened.

use alloc::collections::VecDeque;
use alloc::sync::Weak;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Ready, Token, Waker, Watch, Watcher};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::server::ServerFailure;
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::ordered::{Map, Set};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Size of the thread's scratch buffer in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// Connection or listener that the thread drives. Its methods are called on the thread.
pub(super) trait Target: Send + Sync {
    /// The watched socket is ready.
    fn ready(self: Arc<Self>, _: Ready, _: &mut Vec<u8>) {}

    /// A scheduled time has come.
    fn tick(self: Arc<Self>, _: Instant, _: &mut Vec<u8>) {}

    /// It is the connection's turn to go on with its TLS handshake.
    fn handshake(self: Arc<Self>, _: &mut Vec<u8>) {}

    /// The thread has ended. Clients and servers end their connections themselves.
    fn thread_ended(self: Arc<Self>, _: &ServerFailure) {}
}

/// Targets and timers of the thread.
pub(super) struct IoShared {
    pub(super) clock: Clock,
    watcher: Watcher,
    waker: Waker,
    /// By their tokens. No token is used twice, so a late event of one socket is not taken for one of another.
    targets: Mutex<Map<usize, Weak<dyn Target>>>,
    last_token: AtomicUsize,
    timers: Mutex<Set<(Instant, usize)>>,
    /// Time until which the thread sleeps unless it is woken.
    sleeps_until: AtomicU64,
    is_stopped: AtomicBool,
    failure: OnceLock<ServerFailure>,
    /// Connections that wait to go on with their TLS handshakes, in order. A step takes a millisecond or more, and any process
    /// may cause it, so an iteration has one.
    handshakes: Mutex<VecDeque<usize>>,
}

opaque_debug!(IoShared);

impl IoShared {
    /// Adds a target, and returns its token.
    pub(super) fn add(&self, target: Weak<dyn Target>) -> usize {
        let token = self.last_token.fetch_add(1, Ordering::Relaxed) + 1;
        self.targets.locked().insert(token, target);
        token
    }

    pub(super) fn remove(&self, token: usize) {
        let target = self.targets.locked().remove(token);
        // Dropping the target may drop what it refers to, which needs the table unlocked.
        drop(target);
    }

    /// Calls [`Target::ready`] when this socket is ready.
    pub(super) fn watch(&self, fd: RawFd, interest: Interest, token: usize) -> io::Result<Watch> {
        self.watcher.watch(fd, interest, Token(token as u64))
    }

    /// Watches this socket for another interest, or for the first time.
    pub(super) fn rewatch(
        &self,
        watch: &mut Option<Watch>,
        fd: RawFd,
        interest: Interest,
        token: usize,
    ) -> io::Result<()> {
        match watch {
            Some(watch) => watch.change(interest),
            None => self.watch(fd, interest, token).map(|new| *watch = Some(new)),
        }
    }

    /// Schedules a call of [`Target::tick`] at this time, unless `timer` is earlier.
    pub(super) fn advance(&self, timer: &mut Option<Instant>, at: Instant, token: usize) {
        if timer.is_none_or(|timer| at < timer) {
            *timer = Some(at);
            self.schedule(at, token);
        }
    }

    /// Schedules a call of [`Target::tick`] at this time.
    pub(super) fn schedule(&self, at: Instant, token: usize) {
        let mut timers = self.timers.locked();
        timers.insert((at, token));
        let is_earlier = at.as_nanos() < self.sleeps_until.load(Ordering::Acquire);
        drop(timers);
        if is_earlier {
            self.waker.wake();
        }
    }

    /// Calls [`Target::handshake`] when all that have asked before have had their turn. It is called on the thread.
    pub(super) fn queue_handshake(&self, token: usize) {
        self.handshakes.locked().push_back(token);
    }

    /// Reason why the thread has ended; `None` while it runs.
    pub(super) fn failure(&self) -> Option<&ServerFailure> {
        self.failure.get()
    }

    fn find(&self, token: usize) -> Option<Arc<dyn Target>> {
        let target = self.targets.locked().get(token).cloned();
        target.and_then(|target| target.upgrade())
    }

    fn run(&self, events: &mut EventLoop) -> io::Result<()> {
        let mut scratch = Vec::with_capacity(SCRATCH_BYTES);
        while !self.is_stopped.load(Ordering::Acquire) {
            let timers = self.timers.locked();
            let has_handshake = !self.handshakes.locked().is_empty();
            let until = if has_handshake { Some(Instant::ORIGIN) } else { timers.first().map(|(at, _)| at) };
            self.sleeps_until.store(until.unwrap_or(Instant::MAX).as_nanos(), Ordering::Release);
            drop(timers);
            let ready = events.wait(until);
            self.sleeps_until.store(0, Ordering::Release);
            for one in ready? {
                if let Some(target) = usize::try_from(one.token.0).ok().and_then(|token| self.find(token)) {
                    target.ready(one, &mut scratch);
                }
            }
            let now = self.clock.now();
            loop {
                let mut timers = self.timers.locked();
                let Some((at, token)) = timers.first().filter(|(at, _)| *at <= now) else { break };
                timers.remove((at, token));
                drop(timers);
                if let Some(target) = self.find(token) {
                    target.tick(now, &mut scratch);
                }
            }
            let next = self.handshakes.locked().pop_front();
            if let Some(target) = next.and_then(|token| self.find(token)) {
                target.handshake(&mut scratch);
            }
        }
        Ok(())
    }

    fn end(&self, why: ServerFailure) {
        self.failure.set(why.clone()).ok();
        // Clients, which were added after their server, end their calls before that closes connections.
        let targets: Vec<_> = self.targets.locked().iter().map(|(_, target)| target.clone()).collect();
        targets.iter().rev().filter_map(Weak::upgrade).for_each(|target| target.thread_ended(&why));
    }
}

/// Returns the text of a failure of the thread.
pub(in crate::driver) fn failure_text(failure: &ServerFailure) -> String {
    match failure {
        ServerFailure::Panicked(text) => format!("the thread of calls panicked: {text}"),
        other => other.to_string(),
    }
}

/// The running thread. Dropping it stops it.
#[derive(Debug)]
pub(super) struct IoThread {
    shared: Arc<IoShared>,
    thread: Mutex<Option<Thread>>,
}

impl IoThread {
    /// Starts the thread. If it ends without having been stopped, it calls `failed` last.
    pub(super) fn start(failed: impl FnOnce(&ServerFailure) + Send + 'static) -> io::Result<Self> {
        let mut events = EventLoop::new()?;
        let shared = Arc::new(IoShared {
            clock: *events.clock(),
            watcher: events.watcher(),
            waker: events.waker(),
            targets: Mutex::default(),
            last_token: AtomicUsize::new(0),
            timers: Mutex::new(Set::new()),
            sleeps_until: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            failure: OnceLock::new(),
            handshakes: Mutex::default(),
        });
        let thread_shared = Arc::clone(&shared);
        let thread = threads::spawn("rdzv-rpc-io", move || {
            let end = catch_unwind(AssertUnwindSafe(|| thread_shared.run(&mut events)));
            let failure = match end {
                Ok(Ok(())) => ServerFailure::Stopped,
                Ok(Err(error)) => ServerFailure::Poll(error.raw_os_error().unwrap_or(0)),
                Err(panic) => ServerFailure::Panicked(panic_text(&*panic)),
            };
            thread_shared.end(failure.clone());
            if failure != ServerFailure::Stopped {
                failed(&failure);
            }
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) const fn shared(&self) -> &Arc<IoShared> {
        &self.shared
    }

    /// Starts to stop, without waiting.
    pub(super) fn begin_to_stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Stops, and waits for the thread. If this runs on the thread, it ends when the caller has returned.
    pub(super) fn stop(&self) {
        self.begin_to_stop();
        let thread = self.thread.locked().take();
        if let Some(thread) = thread.filter(|thread| thread.id() != std::thread::current().id()) {
            thread.join();
        }
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendezvous_core::driver::channel::{Sender, unbounded};

    /// Connection whose handshake has two steps.
    struct Handshake {
        io: Arc<IoShared>,
        token: OnceLock<usize>,
        steps: AtomicUsize,
        done: Sender<usize>,
    }

    impl Handshake {
        fn token(&self) -> usize {
            *self.token.get().expect("set")
        }
    }

    impl Target for Handshake {
        fn handshake(self: Arc<Self>, _: &mut Vec<u8>) {
            self.done.send(self.token()).expect("the test waits");
            if self.steps.fetch_add(1, Ordering::Relaxed) == 0 {
                self.io.queue_handshake(self.token());
            }
        }
    }

    /// Lets all of them begin at once, on the thread.
    struct Start(Vec<Arc<Handshake>>);

    impl Target for Start {
        fn tick(self: Arc<Self>, _: Instant, _: &mut Vec<u8>) {
            self.0.iter().rev().for_each(|one| one.io.queue_handshake(one.token()));
        }
    }

    #[test]
    fn handshakes_take_turns_in_the_order_in_which_they_wait() {
        let thread = IoThread::start(|_| ()).expect("started");
        let (io, (done, steps)) = (thread.shared(), unbounded());
        let handshakes = (0..3).map(|_| {
            let one =
                Handshake { io: Arc::clone(io), token: OnceLock::new(), steps: 0.into(), done: done.clone() };
            let one = Arc::new(one);
            let target: Weak<dyn Target> = Arc::<Handshake>::downgrade(&one);
            one.token.set(io.add(target)).expect("once");
            one
        });
        let start = Arc::new(Start(handshakes.collect()));
        let target: Weak<dyn Target> = Arc::<Start>::downgrade(&start);
        io.schedule(Instant::ORIGIN, io.add(target));
        let soon = Duration::from_secs(60);
        let order: Vec<usize> = (0..6).map(|_| steps.recv_timeout(soon).expect("a step")).collect();
        assert_eq!(order, [3, 2, 1, 3, 2, 1]);
    }
}
