//! Thread that drives the state machine, and thread that executes its store operations.

use super::liveness_watcher::LivenessWatcher;
use super::shared::GroupShared;
use super::steps::StepStore;
use crate::agent::{Input, Output};
use crate::driver::calls::serving::Admission;
use crate::membership::StoreStep;
use crate::membership::error::MembershipError;
use core::ops::ControlFlow;
use rendezvous_core::driver::channel::{Sender, unbounded};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Threads of one worker.
#[derive(Debug)]
pub(super) struct GroupThreads {
    group_thread: Option<Thread>,
    store_thread: Option<Thread>,
}

impl GroupThreads {
    /// Starts to drive the state machine. Its steps are executed on `store`.
    pub(super) fn start(
        shared: &Arc<GroupShared>,
        store: Arc<StepStore>,
        liveness_watcher: Arc<Mutex<Option<LivenessWatcher>>>,
        admission: Admission,
    ) -> io::Result<Self> {
        let (steps, step_receiver) = unbounded();
        let group_thread = GroupDriver { shared: Arc::clone(shared), steps, liveness_watcher, admission };
        let on_result = Arc::clone(shared);
        let store_thread = threads::spawn("rdzv-rpc-store", move || {
            guarded("of the store", &on_result, || {
                while let Ok(step) = step_receiver.recv() {
                    on_result.push_input(Input::Stored(store.execute(on_result.clock(), &step)));
                }
            });
        })?;
        let on_result = Arc::clone(shared);
        let group_thread = threads::spawn("rdzv-rpc-group", move || {
            guarded("of the group", &on_result, || group_thread.run());
            // No thread drives the state machine any more, and if this one panicked, the end has not been reported.
            if on_result.has_panicked() {
                on_result.close();
                on_result.decline_all();
                on_result.over(Err(MembershipError::Abandoned));
            }
        })?;
        Ok(Self { group_thread: Some(group_thread), store_thread: Some(store_thread) })
    }

    /// Waits for both threads; the state machine has ended, and the store's operations are cancelled.
    pub(super) fn join(&mut self) {
        let (group_thread, store_thread) = (self.group_thread.take(), self.store_thread.take());
        let is_here = |thread: &Thread| thread.id() == std::thread::current().id();
        if group_thread.as_ref().is_some_and(is_here) {
            // A callback ends the worker on the thread that drives its state machine. That thread continues when the
            // callback has returned, finds that the worker has ended, and ends the other thread.
            return;
        }
        if let Some(group_thread) = group_thread {
            group_thread.join();
        }
        if let Some(store_thread) = store_thread {
            store_thread.join();
        }
    }
}

/// Runs a thread's work; if it panics, the worker ends.
fn guarded(thread: &str, shared: &GroupShared, work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        shared.panicked(&format!("the thread {thread} panicked: {}", panic_text(&*panic)));
    }
}

/// Practically unlimited; the wait is repeated.
const LONG: Duration = Duration::from_secs(24 * 3600);

struct GroupDriver {
    shared: Arc<GroupShared>,
    /// Dropping it ends the store thread.
    steps: Sender<StoreStep>,
    liveness_watcher: Arc<Mutex<Option<LivenessWatcher>>>,
    admission: Admission,
}

impl GroupDriver {
    fn run(self) {
        let clock = self.shared.clock();
        let mut go_on = self.execute_all();
        while go_on.is_continue() {
            let timeout = self.shared.with_agent(|agent| agent.poll_timeout()).flatten();
            let wait = timeout.map_or(LONG, |at| at.since(clock.now()));
            let input = self.shared.next_input(wait).unwrap_or(Input::Tick);
            let changes = match &mut *self.liveness_watcher() {
                Some(liveness_watcher) => liveness_watcher.changes(&self.shared),
                None => Vec::new(),
            };
            for input in [input].into_iter().chain(changes) {
                self.shared.with_agent(|agent| agent.handle(clock.now(), input));
            }
            go_on = self.execute_all();
        }
        self.shared.decline_all();
    }

    fn liveness_watcher(&self) -> MutexGuard<'_, Option<LivenessWatcher>> {
        self.liveness_watcher.locked()
    }

    fn execute_all(&self) -> ControlFlow<()> {
        let outputs = self
            .shared
            .with_agent(|agent| core::iter::from_fn(|| agent.poll_output()).collect::<Vec<Output>>());
        let mut end: ControlFlow<Result<(), MembershipError>> = ControlFlow::Continue(());
        for output in outputs.into_iter().flatten() {
            match output {
                Output::Store(step) => _ = self.steps.send(step),
                Output::Call(call) => self.shared.call(call),
                Output::Respond(number, answer) => self.shared.respond(number, answer),
                Output::Decline(number) => self.shared.decline(number),
                Output::Drain => self.shared.drain(),
                Output::CutCalls(why) => self.shared.cut_calls(&why),
                Output::EndCalls(why) => self.shared.end_calls(&why),
                Output::EndCallsTo(location, why) => self.shared.end_calls_to(&location, &why),
                Output::PartWith(location) => self.shared.part_with(&location),
                Output::AdmitAgain => self.admission.ask_again(),
                Output::MarkLeaving => {
                    if let Some(liveness_watcher) = &*self.liveness_watcher() {
                        liveness_watcher.mark_leaving();
                    }
                }
                Output::Joined => self.shared.joined(),
                Output::Event(event) => self.shared.happened(event),
                Output::Over(result) => end = ControlFlow::Break(result),
            }
        }
        // A thread that waits for the end finds everything done that came before it.
        end.map_break(|result| self.shared.over(result))
    }
}
