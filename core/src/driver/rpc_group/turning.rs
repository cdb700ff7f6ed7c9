//! The thread that turns the machine, and the one that makes its calls of the store.

use super::mailbox::Mailbox;
use super::shared::Shared;
use super::signs::Signs;
use super::steps::carry_out;
use crate::driver::rpc::serving::Admission;
use crate::driver::store::Store;
use crate::driver::threads::{self, Thread};
use crate::rpc::agent::{AgentError, Input, Output};
use crate::rpc::membership::StoreStep;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Threads of one worker.
#[derive(Debug)]
pub(super) struct Turning {
    turner: Option<Thread>,
    storer: Option<Thread>,
}

impl Turning {
    /// Begins to turn the machine. Its steps are carried out on `store`.
    pub(super) fn start(
        shared: &Arc<Shared>,
        store: Arc<Store>,
        signs: Arc<Mutex<Option<Signs>>>,
        door: Admission,
    ) -> io::Result<Self> {
        let steps = Arc::new(Mailbox::default());
        let turner = Turner { shared: Arc::clone(shared), steps: Arc::clone(&steps), signs, door };
        let told = Arc::clone(shared);
        let storer = threads::spawn("rdzv-rpc-store", move || {
            loop {
                match steps.next(LONG) {
                    Some(Step::Carry(step)) => {
                        told.tell(Input::Stored(carry_out(&store, told.clock(), &step)));
                    }
                    Some(Step::End) => return,
                    None => {}
                }
            }
        })?;
        let turner = threads::spawn("rdzv-rpc-group", move || turner.run())?;
        Ok(Self { turner: Some(turner), storer: Some(storer) })
    }

    /// Waits for both; the machine is over, and the store's calls are cancelled.
    pub(super) fn join(&mut self) {
        for thread in [self.turner.take(), self.storer.take()].into_iter().flatten() {
            if thread.id() != std::thread::current().id() {
                thread.join();
            }
        }
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
        self.shared.drop_answers();
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
                Output::Drain => self.shared.drain(),
                Output::EndCalls(why) => self.shared.end_calls(&why),
                Output::EndCallsTo(place, why) => self.shared.end_calls_to(&place, &why),
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
