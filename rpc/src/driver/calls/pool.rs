//! Threads for handlers that may block.

use crate::fair_queue::FairQueue;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads;

/// Job of a pool.
pub(super) trait PoolJob: Send + 'static {
    /// Number of the source, by which the pool alternates between sources.
    fn source(&self) -> usize;

    fn run(self);

    /// Rejects the job, which no thread will run: the pool is closed, or the system cannot start a thread.
    fn refuse(self, no_thread: Option<&io::Error>);
}

/// Pool that starts a thread whenever there are more jobs than idle threads, up to its limit.
///
/// Jobs are passed on by a mutex and a condition variable. An idle thread must sleep at once, and not spin as the
/// receiver of a channel does, since the thread that it waits for may be on the same core.
#[derive(Debug)]
pub(super) struct Pool<J: PoolJob> {
    queue: Arc<Queue<J>>,
    threads_max: usize,
}

#[derive(Debug)]
struct Queue<J> {
    state: Mutex<QueueState<J>>,
    changed: Condvar,
    rested: Condvar,
}

#[derive(Debug)]
struct QueueState<J> {
    /// Queue that alternates between callers.
    jobs: FairQueue<J>,
    /// Number of threads that wait for a job.
    idle: usize,
    /// Number of threads that execute a job.
    busy: usize,
    threads: usize,
    /// Number of threads that wait until the pool is idle.
    awaits_rest: usize,
    is_closed: bool,
}

impl<J: PoolJob> Queue<J> {
    fn work(&self) {
        let mut state = self.state.locked();
        loop {
            if let Some(job) = state.jobs.pop() {
                state.busy += 1;
                drop(state);
                job.run();
                state = self.state.locked();
                state.busy -= 1;
                if state.awaits_rest > 0 && state.busy == 0 && state.jobs.is_empty() {
                    self.rested.notify_all();
                }
            } else if state.is_closed {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl<J: PoolJob> Pool<J> {
    pub(super) fn new(threads_max: usize) -> Self {
        let jobs = FairQueue::default();
        let state = QueueState { jobs, idle: 0, busy: 0, threads: 0, awaits_rest: 0, is_closed: false };
        let queue = Queue { state: Mutex::new(state), changed: Condvar::new(), rested: Condvar::new() };
        Self { queue: Arc::new(queue), threads_max: threads_max.max(1) }
    }

    pub(super) fn submit(&self, job: J) {
        let mut state = self.queue.state.locked();
        state.jobs.push(job.source(), job);
        let is_awaited = state.idle > 0;
        let grows = state.jobs.len() > state.idle && state.threads < self.threads_max;
        state.threads += usize::from(grows);
        drop(state);
        if is_awaited {
            self.queue.changed.notify_one();
        }
        if grows {
            self.grow();
        }
    }

    fn grow(&self) {
        let queue = Arc::clone(&self.queue);
        if let Err(error) = threads::spawn("rdzv-rpc-work", move || queue.work()) {
            let mut state = self.queue.state.locked();
            state.threads -= 1;
            // If there are other threads, they will execute the jobs.
            if state.threads == 0 {
                self.refuse_all(state, Some(&error));
            }
        }
    }

    /// Returns the numbers of threads and of queued jobs, if all threads are busy and jobs wait.
    pub(super) fn exhaustion(&self) -> Option<(usize, usize)> {
        let state = self.queue.state.locked();
        let is_exhausted = state.idle == 0 && state.threads >= self.threads_max && !state.jobs.is_empty();
        is_exhausted.then(|| (state.threads, state.jobs.len()))
    }

    /// Waits until the pool is idle; returns whether it was within `grace`.
    pub(super) fn rest(&self, grace: Duration) -> bool {
        let mut state = self.queue.state.locked();
        state.awaits_rest += 1;
        let is_at_work = |state: &mut QueueState<J>| state.busy > 0 || !state.jobs.is_empty();
        let waited = self.queue.rested.wait_timeout_while(state, grace, is_at_work);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.awaits_rest -= 1;
        !timeout.timed_out()
    }

    /// Rejects the jobs that no thread has begun.
    pub(super) fn refuse_queued(&self) {
        self.refuse_all(self.queue.state.locked(), None);
    }

    fn refuse_all(&self, mut state: MutexGuard<'_, QueueState<J>>, no_thread: Option<&io::Error>) {
        let left = core::mem::take(&mut state.jobs);
        if state.awaits_rest > 0 && state.busy == 0 {
            self.queue.rested.notify_all();
        }
        drop(state);
        refuse(left, no_thread);
    }
}

fn refuse<J: PoolJob>(mut jobs: FairQueue<J>, no_thread: Option<&io::Error>) {
    while let Some(job) = jobs.pop() {
        job.refuse(no_thread);
    }
}

impl<J: PoolJob> Drop for Pool<J> {
    fn drop(&mut self) {
        // The threads end when their jobs are done; the pool does not wait for handlers of the program.
        let mut state = self.queue.state.locked();
        state.is_closed = true;
        let left = core::mem::take(&mut state.jobs);
        drop(state);
        self.queue.changed.notify_all();
        refuse(left, None);
    }
}
