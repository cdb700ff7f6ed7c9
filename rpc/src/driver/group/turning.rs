//! The thread that turns the machine, and the one that makes its calls of the store.

use super::mailbox::Mailbox;
use super::own_store::PRESS_INTERVAL;
use super::shared::Shared;
use super::signs::Signs;
use super::steps::StepStore;
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
pub(super) struct Turning {
    turner: Option<Thread>,
    storer: Option<Thread>,
    /// Told when the one that calls the store has ended.
    has_stored: Awaited<()>,
    store: Arc<StepStore>,
}

impl Turning {
    /// Begins to turn the machine. Its steps are carried out on `store`.
    pub(super) fn start(
        shared: &Arc<Shared>,
        store: Arc<StepStore>,
        signs: Arc<Mutex<Option<Signs>>>,
        door: Admission,
    ) -> io::Result<Self> {
        let steps = Arc::new(Mailbox::default());
        let turner = Turner { shared: Arc::clone(shared), steps: Arc::clone(&steps), signs, door };
        let (told, called) = (Arc::clone(shared), Arc::clone(&store));
        let (ends, has_stored) = ask();
        let storer = threads::spawn("rdzv-rpc-store", move || {
            guarded("of the store", &told, || {
                loop {
                    match steps.next(LONG) {
                        Some(Step::Carry(step)) => {
                            told.tell(Input::Stored(called.carry_out(told.clock(), &step)));
                        }
                        Some(Step::End) => return,
                        None => {}
                    }
                }
            });
            ends.answer(());
        })?;
        let told = Arc::clone(shared);
        let turner = threads::spawn("rdzv-rpc-group", move || {
            guarded("of the group", &told, || turner.run());
            // Nobody turns the machine any more, and if it panicked, nobody has told its end.
            if told.has_panicked() {
                told.close();
                told.decline_all();
                told.over(Err(AgentError::Abandoned));
            }
        })?;
        Ok(Self { turner: Some(turner), storer: Some(storer), has_stored, store })
    }

    /// Waits for both; the machine is over, and the store's calls are cancelled.
    pub(super) fn join(&mut self) {
        let (turner, storer) = (self.turner.take(), self.storer.take());
        let is_here = |thread: &Thread| thread.id() == std::thread::current().id();
        if turner.as_ref().is_some_and(is_here) {
            // A callback ends the worker on the thread that turns its machine: that goes on when the callback has
            // returned, finds that it is over, and ends the other one.
            return;
        }
        if let Some(turner) = turner {
            turner.join();
        }
        let Some(storer) = storer else { return };
        // A call that was about to begin when the store's were cancelled heard nothing of it.
        while storer.is_here() && self.has_stored.look(PRESS_INTERVAL).is_none() {
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
    Carry(StoreStep),
    End,
}

/// Whoever waits so long for nothing waits again.
const LONG: Duration = Duration::from_secs(24 * 3600);

struct Turner {
    shared: Arc<Shared>,
    steps: Arc<Mailbox<Step>>,
    signs: Arc<Mutex<Option<Signs>>>,
    door: Admission,
}

impl Drop for Turner {
    fn drop(&mut self) {
        self.steps.put(Step::End);
    }
}

impl Turner {
    fn run(self) {
        let clock = self.shared.clock();
        let mut go_on = self.carry_out_all();
        while go_on.is_continue() {
            let timeout = self.shared.with_agent(|agent| agent.poll_timeout()).flatten();
            let patience = timeout.map_or(LONG, |at| at.since(clock.now()));
            let input = self.shared.next_input(patience).unwrap_or(Input::Tick);
            self.shared.with_agent(|agent| agent.handle(clock.now(), input));
            go_on = self.carry_out_all();
        }
        self.shared.decline_all();
    }

    fn carry_out_all(&self) -> ControlFlow<()> {
        let outputs = self
            .shared
            .with_agent(|agent| core::iter::from_fn(|| agent.poll_output()).collect::<Vec<Output>>());
        let mut end: ControlFlow<Result<(), AgentError>> = ControlFlow::Continue(());
        for output in outputs.into_iter().flatten() {
            match output {
                Output::Store(step) => _ = self.steps.put(Step::Carry(step)),
                Output::Call(call) => self.shared.call(call),
                Output::Respond(number, answer) => self.shared.respond(number, answer),
                Output::Decline(number) => self.shared.decline(number),
                Output::Drain => self.shared.drain(),
                Output::CutCalls(why) => self.shared.cut_calls(&why),
                Output::EndCalls(why) => self.shared.end_calls(&why),
                Output::EndCallsTo(place, why) => self.shared.end_calls_to(&place, &why),
                Output::PartWith(place) => self.shared.part_with(&place),
                Output::AdmitAgain => self.door.ask_again(),
                Output::SignOff => {
                    let signs = self.signs.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(signs) = &*signs {
                        signs.sign_off();
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
