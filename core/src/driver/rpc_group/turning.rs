//! The thread that turns the machine, and the one that makes its calls of the store.

use super::shared::Shared;
use super::signs::Signs;
use super::steps::carry_out;
use crate::driver::store::Store;
use crate::driver::threads::{self, Thread};
use crate::rpc::agent::{AgentError, Input, Output};
use crate::rpc::membership::StoreStep;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
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
        inbox: Receiver<Input>,
        store: Arc<Store>,
        signs: Arc<Mutex<Option<Signs>>>,
    ) -> io::Result<Self> {
        let (steps, asked) = unbounded::<StoreStep>();
        let told = Arc::clone(shared);
        let storer = threads::spawn("rdzv-rpc-store", move || {
            while let Ok(step) = asked.recv() {
                told.tell(Input::Stored(carry_out(&store, told.clock(), &step)));
            }
        })?;
        let turned = Arc::clone(shared);
        let turner =
            threads::spawn("rdzv-rpc-group", move || Turner { shared: turned, steps, signs }.run(&inbox))?;
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

struct Turner {
    shared: Arc<Shared>,
    steps: Sender<StoreStep>,
    signs: Arc<Mutex<Option<Signs>>>,
}

impl Turner {
    fn run(self, inbox: &Receiver<Input>) {
        let clock = self.shared.clock();
        let mut go_on = self.carry_out_all();
        while go_on.is_continue() {
            let timeout = self.shared.with_agent(|agent| agent.poll_timeout()).flatten();
            let input = match timeout {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_timeout(at.since(clock.now())),
            };
            let input = input.unwrap_or_else(|end| match end {
                RecvTimeoutError::Timeout => Input::Tick,
                RecvTimeoutError::Disconnected => Input::Abandon,
            });
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
                Output::Store(step) => _ = self.steps.send(step),
                Output::Call(call) => self.shared.call(call),
                Output::Respond(number, answer) => self.shared.respond(number, answer),
                Output::Drain => self.shared.drain(),
                Output::EndCalls(why) => self.shared.end_calls(&why),
                Output::EndCallsTo(place, why) => self.shared.end_calls_to(&place, &why),
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
