//! The thread that turns the machine, and the one that makes its calls of the store.

use super::liveness_watcher::LivenessWatcher;
use super::mailbox::Mailbox;
use super::shared::Shared;
use super::steps::StepStore;
use super::store_connection::INTERRUPT_INTERVAL;
use crate::agent::{AgentError, Input, Output};
use crate::driver::calls::serving::Admission;
use crate::membership::StoreStep;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use rendezvous_core::driver::reply::{Awaited, ask};
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Threads of one worker.
#[derive(Debug)]
pub(super) struct GroupThreads {
    worker_threads: Option<Thread>,
    storer: Option<Thread>,
    /// Told when the one that calls the store has ended.
    has_stored: Awaited<()>,
    store: Arc<StepStore>,
}

impl GroupThreads {
    /// Begins to turn the machine. Its steps are carried out on `store`.
    pub(super) fn start(
        shared: &Arc<Shared>,
        store: Arc<StepStore>,
        liveness_watcher: Arc<Mutex<Option<LivenessWatcher>>>,
        door: Admission,
    ) -> io::Result<Self> {
        let steps = Arc::new(Mailbox::default());
        let worker_threads =
            ThreadSet { shared: Arc::clone(shared), steps: Arc::clone(&steps), liveness_watcher, door };
        let (on_result, called) = (Arc::clone(shared), Arc::clone(&store));
        let (ends, has_stored) = ask();
        let storer = threads::spawn("rdzv-rpc-store", move || {
            guarded("of the store", &on_result, || {
                loop {
                    match steps.next(LONG) {
                        Some(Step::Execute(step)) => {
                            on_result.push_input(Input::Stored(called.execute(on_result.clock(), &step)));
                        }
                        Some(Step::End) => return,
                        None => {}
                    }
                }
            });
            ends.answer(());
        })?;
        let on_result = Arc::clone(shared);
        let worker_threads = threads::spawn("rdzv-rpc-group", move || {
            guarded("of the group", &on_result, || worker_threads.run());
            // Nobody turns the machine any more, and if it panicked, nobody has told its end.
            if on_result.has_panicked() {
                on_result.close();
                on_result.decline_all();
                on_result.over(Err(AgentError::Abandoned));
            }
        })?;
        Ok(Self { worker_threads: Some(worker_threads), storer: Some(storer), has_stored, store })
    }

    /// Waits for both; the machine is over, and the store's calls are cancelled.
    pub(super) fn join(&mut self) {
        let (worker_threads, storer) = (self.worker_threads.take(), self.storer.take());
        let is_here = |thread: &Thread| thread.id() == std::thread::current().id();
        if worker_threads.as_ref().is_some_and(is_here) {
            // A callback ends the worker on the thread that turns its machine: that goes on when the callback has
            // returned, finds that it is over, and ends the other one.
            return;
        }
        if let Some(worker_threads) = worker_threads {
            worker_threads.join();
        }
        let Some(storer) = storer else { return };
        // A call that was about to begin when the store's were cancelled heard nothing of it.
        while storer.is_here() && self.has_stored.look(INTERRUPT_INTERVAL).is_none() {
            self.store.cancel();
        }
        storer.join();
    }
}

/// Does a thread's work; if that panics, the worker ends.
fn guarded(thread: &str, shared: &Shared, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        shared.panicked(&format!("the thread {thread} panicked: {}", panic_text(&*panic)));
    }
}

/// What the thread that calls the store is told.
enum Step {
    Execute(StoreStep),
    End,
}

/// Whoever waits so long for nothing waits again.
const LONG: Duration = Duration::from_secs(24 * 3600);

struct ThreadSet {
    shared: Arc<Shared>,
    steps: Arc<Mailbox<Step>>,
    liveness_watcher: Arc<Mutex<Option<LivenessWatcher>>>,
    door: Admission,
}

impl Drop for ThreadSet {
    fn drop(&mut self) {
        self.steps.put(Step::End);
    }
}

impl ThreadSet {
    fn run(self) {
        let clock = self.shared.clock();
        let mut go_on = self.execute_all();
        while go_on.is_continue() {
            let timeout = self.shared.with_agent(|agent| agent.poll_timeout()).flatten();
            let wait = timeout.map_or(LONG, |at| at.since(clock.now()));
            let input = self.shared.next_input(wait).unwrap_or(Input::Tick);
            self.shared.with_agent(|agent| agent.handle(clock.now(), input));
            go_on = self.execute_all();
        }
        self.shared.decline_all();
    }

    fn execute_all(&self) -> ControlFlow<()> {
        let outputs = self
            .shared
            .with_agent(|agent| core::iter::from_fn(|| agent.poll_output()).collect::<Vec<Output>>());
        let mut end: ControlFlow<Result<(), AgentError>> = ControlFlow::Continue(());
        for output in outputs.into_iter().flatten() {
            match output {
                Output::Store(step) => _ = self.steps.put(Step::Execute(step)),
                Output::Call(call) => self.shared.call(call),
                Output::Respond(number, answer) => self.shared.respond(number, answer),
                Output::Decline(number) => self.shared.decline(number),
                Output::Drain => self.shared.drain(),
                Output::CutCalls(why) => self.shared.cut_calls(&why),
                Output::EndCalls(why) => self.shared.end_calls(&why),
                Output::EndCallsTo(location, why) => self.shared.end_calls_to(&location, &why),
                Output::PartWith(location) => self.shared.part_with(&location),
                Output::AdmitAgain => self.door.ask_again(),
                Output::MarkLeaving => {
                    let liveness_watcher =
                        self.liveness_watcher.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(liveness_watcher) = &*liveness_watcher {
                        liveness_watcher.mark_leaving();
                    }
                }
                Output::Joined => self.shared.joined(),
                Output::Event(event) => self.shared.happened(event),
                Output::Over(result) => end = ControlFlow::Break(result),
            }
        }
        // Whoever waits for the end finds everything done that came before it.
        end.map_break(|result| self.shared.over(result))
    }
}
