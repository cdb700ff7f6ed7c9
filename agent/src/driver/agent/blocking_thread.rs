//! A thread that makes one blocking call after the other for the agent, which never blocks itself.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender, unbounded};
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long the end of a thread is waited for. Code that nobody can end is left behind with it then.
const THREAD_END_TIMEOUT: Duration = Duration::from_secs(10);

/// What the thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It waits to be asked.
    #[default]
    Idle,
    /// It makes a call that may be ended.
    Endable,
    /// It makes one that may not.
    Shielded,
    /// It makes none any more.
    Over,
}

/// How far the thread has come. Whoever interrupts it holds this, so that it cannot come to the next ask meanwhile: the
/// last one is never hit.
#[derive(Debug, Default)]
struct ThreadState {
    taken: u64,
    state: State,
}

/// The agent's end. When it is dropped, the call under way is ended, and the thread with it; one that has not ended after
/// [`THREAD_END_TIMEOUT`] is left behind, with what it holds.
pub(super) struct BlockingThread<A> {
    tasks: Option<Sender<A>>,
    requested: u64,
    thread_state: Arc<Mutex<ThreadState>>,
    /// Nobody asks any more.
    is_last: Arc<AtomicBool>,
    /// Ends the call that is under way. One that begins just then may miss it.
    interrupt: Box<dyn Fn() + Send>,
    thread: Option<Thread>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct TaskQueue<A> {
    tasks: Receiver<A>,
    thread_state: Arc<Mutex<ThreadState>>,
    is_last: Arc<AtomicBool>,
}

/// Whether what comes behind ends this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelPolicy {
    /// It is given up at once.
    GivenUp,
    /// It is brought to its end, which is near.
    Finished,
}

/// Something that can be asked for.
pub(super) trait BlockingTask: Send + 'static {
    /// What becomes of it when something else is asked for.
    fn cancel_policy(&self) -> CancelPolicy;
}

impl<A> fmt::Debug for BlockingThread<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").field("asked", &self.requested).finish_non_exhaustive()
    }
}

impl<A: BlockingTask> BlockingThread<A> {
    /// Has `body` run in a thread of its own. If it panics, `fell` is told what it said, and nothing that is asked then is
    /// done any more.
    pub(super) fn start(
        name: &str,
        interrupt: impl Fn() + Send + 'static,
        body: impl FnOnce(TaskQueue<A>) + Send + 'static,
        fell: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, tasks) = unbounded();
        let thread_state: Arc<Mutex<ThreadState>> = Arc::default();
        let is_last: Arc<AtomicBool> = Arc::default();
        let end = TaskQueue { tasks, thread_state: Arc::clone(&thread_state), is_last: Arc::clone(&is_last) };
        let its = Arc::clone(&thread_state);
        let thread = threads::spawn(name, move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(move || body(end))) {
                lock(&its).state = State::Over;
                fell(panic_text(&*panic));
            }
        })?;
        let interrupt = Box::new(interrupt);
        Ok(Self { tasks: Some(sender), requested: 0, thread_state, is_last, interrupt, thread: Some(thread) })
    }

    /// Asks for something; whatever is under way is given up for it.
    pub(super) fn ask(&mut self, ask: A) {
        let Some(tasks) = &self.tasks else { return };
        self.requested += 1;
        // A thread that has ended does nothing any more.
        if tasks.send(ask).is_ok() {
            self.interrupt_call();
        }
    }

    /// Whether the thread has not come to the last ask yet. Until it has, [`BlockingThread::interrupt_call`] it from time to time.
    pub(super) fn is_busy(&self) -> bool {
        let thread_state = lock(&self.thread_state);
        thread_state.taken < self.requested && thread_state.state != State::Over
    }

    /// Ends what is under way before the last ask, if it may be ended.
    pub(super) fn interrupt_call(&self) {
        let thread_state = lock(&self.thread_state);
        if thread_state.taken < self.requested && thread_state.state == State::Endable {
            (self.interrupt)();
        }
    }
}

impl<A: BlockingTask> TaskQueue<A> {
    /// The next ask; `None` when there will be none.
    pub(super) fn next(&self) -> Option<A> {
        lock(&self.thread_state).state = State::Idle;
        let ask = self.tasks.recv().ok()?;
        let mut thread_state = lock(&self.thread_state);
        thread_state.state = match ask.cancel_policy() {
            CancelPolicy::GivenUp => State::Endable,
            CancelPolicy::Finished => State::Shielded,
        };
        thread_state.taken += 1;
        Some(ask)
    }

    /// Whether there is no time for anything else: something was asked, or nothing will be.
    pub(super) fn is_wanted(&self) -> bool {
        !self.tasks.is_empty() || self.is_last.load(Ordering::Acquire)
    }

    /// Waits for so long, or until something is asked, or nothing will be.
    pub(super) fn rest(&self, span: Duration) {
        let mut select = crossbeam_channel::Select::new();
        select.recv(&self.tasks);
        select.ready_timeout(span).ok();
    }
}

impl<A> Drop for BlockingThread<A> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !thread.is_here() {
            // Nobody is there to hear it, and what the thread had locked is locked for ever.
            core::mem::forget(self.tasks.take());
            return thread.join();
        }
        self.tasks = None;
        // The thread sees that nobody asks any more as soon as its call has ended, which one interrupt may miss.
        self.is_last.store(true, Ordering::Release);
        thread.join_timeout(THREAD_END_TIMEOUT, &self.interrupt);
    }
}

fn lock(thread_state: &Mutex<ThreadState>) -> MutexGuard<'_, ThreadState> {
    thread_state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use rendezvous_core::driver::canceller::Canceller;
    use std::sync::mpsc;
    use std::time::Duration;

    impl BlockingTask for u32 {
        fn cancel_policy(&self) -> CancelPolicy {
            CancelPolicy::GivenUp
        }
    }

    /// A thread whose calls only end when they are cancelled.
    fn waiting(notify: mpsc::Sender<u32>) -> BlockingThread<u32> {
        let canceller = Canceller::default();
        let ends = canceller.clone();
        BlockingThread::start(
            "rdzv-test",
            move || ends.cancel(),
            move |tasks| {
                while let Some(ask) = tasks.next() {
                    notify.send(ask).expect("awaited");
                    let call = canceller.begin();
                    let (woken, wait) = mpsc::channel();
                    let _watch = call.watch(move || woken.send(()).unwrap_or_default());
                    if !tasks.is_wanted() {
                        wait.recv().expect("cancelled");
                    }
                }
            },
            |_| {},
        )
        .expect("a thread")
    }

    #[test]
    fn a_new_ask_ends_the_call_before_it() {
        let (notify, event) = mpsc::channel();
        let mut errands = waiting(notify);
        for ask in 0..100 {
            errands.ask(ask);
            let got = loop {
                if let Ok(got) = event.recv_timeout(Duration::from_millis(2)) {
                    break got;
                }
                errands.interrupt_call();
            };
            assert_eq!(got, ask);
        }
        assert!(!errands.is_busy());
    }

    #[test]
    fn what_was_asked_last_is_never_interrupted() {
        let [in_flight, last, hits] = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
        let (seen, expected, count) = (Arc::clone(&in_flight), Arc::clone(&last), Arc::clone(&hits));
        let interrupt = move || {
            if seen.load(Ordering::SeqCst) == expected.load(Ordering::SeqCst) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        let body = move |tasks: TaskQueue<u32>| {
            while let Some(ask) = tasks.next() {
                in_flight.store(ask, Ordering::SeqCst);
                while !tasks.is_wanted() {
                    core::hint::spin_loop();
                }
            }
        };
        let mut errands = BlockingThread::start("rdzv-test", interrupt, body, |_| {}).expect("a thread");
        for ask in 1..100_000 {
            last.store(ask, Ordering::SeqCst);
            errands.ask(ask);
            while errands.is_busy() {
                errands.interrupt_call();
            }
        }
        // The end interrupts whatever there is.
        assert_eq!(hits.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn dropping_ends_the_thread() {
        let (notify, event) = mpsc::channel();
        let mut errands = waiting(notify);
        errands.ask(1);
        assert_eq!(event.recv_timeout(Duration::from_secs(20)), Ok(1));
        drop(errands);
        assert!(event.recv().is_err(), "the thread is gone, and its end of the channel");
    }
}
