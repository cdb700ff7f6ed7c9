//! A thread that makes one blocking call after the other for the agent, which itself never blocks.

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

/// Longest wait for the end of the thread. A thread in code that cannot be cancelled is detached then.
const THREAD_END_TIMEOUT: Duration = Duration::from_secs(10);

/// What the thread is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TaskState {
    /// It waits for a task.
    #[default]
    Idle,
    /// It executes a task that may be cancelled.
    Endable,
    /// It executes a task that must not be cancelled.
    Shielded,
    /// It has ended.
    Over,
}

/// Progress of the thread. The canceller holds this lock, so the thread cannot begin the next task meanwhile, and the
/// last task is never cancelled.
#[derive(Debug, Default)]
struct ThreadState {
    taken: u64,
    state: TaskState,
}

/// The agent's handle of the thread. Dropping it cancels the current task and ends the thread. A thread that has not
/// ended after [`THREAD_END_TIMEOUT`] is detached with everything it holds.
pub(super) struct BlockingThread<A> {
    tasks: Option<Sender<A>>,
    requested: u64,
    thread_state: Arc<Mutex<ThreadState>>,
    /// Set when no more tasks will come.
    is_last: Arc<AtomicBool>,
    /// Cancels the blocking call in progress. A call that is just beginning may miss it.
    interrupt: Box<dyn Fn() + Send>,
    thread: Option<Thread>,
}

/// The thread's end of the task channel.
#[derive(Debug)]
pub(super) struct TaskQueue<A> {
    tasks: Receiver<A>,
    thread_state: Arc<Mutex<ThreadState>>,
    is_last: Arc<AtomicBool>,
}

/// Whether a later task cancels this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelPolicy {
    /// It is cancelled at once.
    GivenUp,
    /// It runs to its end, which is near.
    Finished,
}

/// A task for the thread.
pub(super) trait BlockingTask: Send + 'static {
    /// Returns what happens to this task when another one arrives.
    fn cancel_policy(&self) -> CancelPolicy;
}

impl<A> fmt::Debug for BlockingThread<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingThread").field("requested", &self.requested).finish_non_exhaustive()
    }
}

impl<A: BlockingTask> BlockingThread<A> {
    /// Starts a thread that runs `body`. If it panics, `on_panic` is called with the panic message, and later tasks are
    /// ignored.
    pub(super) fn start(
        name: &str,
        interrupt: impl Fn() + Send + 'static,
        body: impl FnOnce(TaskQueue<A>) + Send + 'static,
        on_panic: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, tasks) = unbounded();
        let thread_state: Arc<Mutex<ThreadState>> = Arc::default();
        let is_last: Arc<AtomicBool> = Arc::default();
        let end = TaskQueue { tasks, thread_state: Arc::clone(&thread_state), is_last: Arc::clone(&is_last) };
        let its = Arc::clone(&thread_state);
        let thread = threads::spawn(name, move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(move || body(end))) {
                lock(&its).state = TaskState::Over;
                on_panic(panic_text(&*panic));
            }
        })?;
        let interrupt = Box::new(interrupt);
        Ok(Self { tasks: Some(sender), requested: 0, thread_state, is_last, interrupt, thread: Some(thread) })
    }

    /// Sends a task. The current one is cancelled if its policy allows that.
    pub(super) fn ask(&mut self, ask: A) {
        let Some(tasks) = &self.tasks else { return };
        self.requested += 1;
        // A thread that has ended executes no more tasks.
        if tasks.send(ask).is_ok() {
            self.interrupt_call();
        }
    }

    /// Returns whether the thread has not yet begun the last task. Until it has, call
    /// [`BlockingThread::interrupt_call`] from time to time.
    pub(super) fn is_busy(&self) -> bool {
        let thread_state = lock(&self.thread_state);
        thread_state.taken < self.requested && thread_state.state != TaskState::Over
    }

    /// Cancels the task before the last one, if it may be cancelled.
    pub(super) fn interrupt_call(&self) {
        let thread_state = lock(&self.thread_state);
        if thread_state.taken < self.requested && thread_state.state == TaskState::Endable {
            (self.interrupt)();
        }
    }
}

impl<A: BlockingTask> TaskQueue<A> {
    /// Returns the next task, or `None` when there will be none.
    pub(super) fn next(&self) -> Option<A> {
        lock(&self.thread_state).state = TaskState::Idle;
        let ask = self.tasks.recv().ok()?;
        let mut thread_state = lock(&self.thread_state);
        thread_state.state = match ask.cancel_policy() {
            CancelPolicy::GivenUp => TaskState::Endable,
            CancelPolicy::Finished => TaskState::Shielded,
        };
        thread_state.taken += 1;
        Some(ask)
    }

    /// Returns whether the current task should end: another one has arrived, or the thread is to end.
    pub(super) fn is_wanted(&self) -> bool {
        !self.tasks.is_empty() || self.is_last.load(Ordering::Acquire)
    }

    /// Sleeps for `span`, or until a task arrives or the channel closes.
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
            // In a forked child the thread does not exist, and a lock that it held stays locked for ever.
            core::mem::forget(self.tasks.take());
            return thread.join();
        }
        self.tasks = None;
        // The thread sees that it is to end as soon as its call has ended. One cancellation may miss that call, so it
        // is repeated.
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
    use rendezvous_core::driver::cancel::Canceller;
    use std::sync::mpsc;
    use std::time::Duration;

    impl BlockingTask for u32 {
        fn cancel_policy(&self) -> CancelPolicy {
            CancelPolicy::GivenUp
        }
    }

    /// Starts a thread whose calls only end when they are cancelled.
    fn waiting(notify: mpsc::Sender<u32>) -> BlockingThread<u32> {
        let canceller = Canceller::default();
        let ends = canceller.clone();
        BlockingThread::start(
            "rdzv-test",
            move || ends.cancel(),
            move |tasks| {
                while let Some(ask) = tasks.next() {
                    notify.send(ask).expect("awaited");
                    let call = canceller.token();
                    let (woken, wait) = mpsc::channel();
                    let _guard = call.on_cancel(move || woken.send(()).unwrap_or_default());
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
        let mut blocking_thread = waiting(notify);
        for ask in 0..100 {
            blocking_thread.ask(ask);
            let got = loop {
                if let Ok(got) = event.recv_timeout(Duration::from_millis(2)) {
                    break got;
                }
                blocking_thread.interrupt_call();
            };
            assert_eq!(got, ask);
        }
        assert!(!blocking_thread.is_busy());
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
        let mut blocking_thread =
            BlockingThread::start("rdzv-test", interrupt, body, |_| {}).expect("a thread");
        for ask in 1..100_000 {
            last.store(ask, Ordering::SeqCst);
            blocking_thread.ask(ask);
            while blocking_thread.is_busy() {
                blocking_thread.interrupt_call();
            }
        }
        // Dropping it cancels the current task, so this is checked before.
        assert_eq!(hits.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn dropping_ends_the_thread() {
        let (notify, event) = mpsc::channel();
        let mut blocking_thread = waiting(notify);
        blocking_thread.ask(1);
        assert_eq!(event.recv_timeout(Duration::from_secs(20)), Ok(1));
        drop(blocking_thread);
        assert!(event.recv().is_err(), "the thread has ended, and dropped its end of the channel");
    }
}
