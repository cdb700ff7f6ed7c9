//! Workers of an RPC group, one in each process of a node: they call each other, with the TLS and the tokens of the world.
//!
//! A worker lives, freezes and dies with its process. It calls the others at the addresses of their hosts, whichever
//! process is there. The machines are those of the library, and the driver of RPC groups is imitated.

mod ledger;
mod line;
mod worker;

use super::super::Counts;
use super::super::tokens::TokenKind;
use super::super::world::SimContext;
use super::node::Node;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use ledger::Ledger;
use rendezvous_core::time::Duration;
use worker::Worker;

/// Event of a worker that is not caused by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum WorkerCue {
    /// A timer of a machine is due.
    Due,
    /// It calls another worker.
    Call,
    /// A handler answers a call on a connection: its number there, and in the ledger.
    Answer(Stream, u64, usize),
}

/// Name of the worker of a host.
fn name(host: usize) -> String {
    format!("worker{host}")
}

pub(super) struct Workers {
    seed: u64,
    workers: Vec<Option<Worker>>,
    ledger: Ledger,
}

impl Workers {
    /// Returns the workers of the processes on the first `hosts` hosts: of all, or of none.
    pub(super) fn new(seed: u64, hosts: usize) -> Self {
        Self { seed, workers: (0..hosts).map(|_| None).collect(), ledger: Ledger::default() }
    }

    /// Starts, stops, freezes, continues and ends workers as their processes do.
    pub(super) fn follow(&mut self, context: &mut SimContext, nodes: &[Node]) -> Result<(), CheckError> {
        for ((host, node), slot) in nodes.iter().enumerate().zip(&mut self.workers) {
            let process = node.process_number();
            if let Some(worker) = slot.take_if(|worker| Some(worker.process) != process) {
                worker.end(context);
            }
            match (process, slot) {
                (Some(process), slot @ None) => {
                    let sim_rng = SimRng::new(self.seed, 5000 + u64::from(process));
                    *slot = Some(Worker::start(context, (host, process, node.token_kind()), sim_rng));
                }
                (_, Some(worker)) if node.is_frozen() => worker.freeze(),
                (_, Some(worker)) => worker.thaw(context, &mut self.ledger)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Handles a notice of the network, if it is for a worker. Returns whether it is.
    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) -> Result<bool, CheckError> {
        let host = match notice {
            Notice::Accept(stream)
            | Notice::Readable(stream, Side::Server)
            | Notice::Writable(stream, Side::Server) => context.network.worker_of(stream),
            Notice::Connected(stream)
            | Notice::Refused(stream)
            | Notice::Readable(stream, Side::Client)
            | Notice::Writable(stream, Side::Client) => self
                .workers
                .iter()
                .position(|worker| worker.as_ref().is_some_and(|worker| worker.owns(stream))),
        };
        let Some(host) = host else { return Ok(false) };
        if let Some(worker) = &mut self.workers[host] {
            worker.noticed(context, &mut self.ledger, notice)?;
        }
        Ok(true)
    }

    pub(super) fn handle(
        &mut self,
        context: &mut SimContext,
        (host, process): (usize, u32),
        cue: WorkerCue,
        nodes: &[Node],
    ) -> Result<(), CheckError> {
        let Self { workers, ledger, .. } = self;
        let Some(worker) = workers[host].as_mut().filter(|worker| worker.process == process) else {
            return Ok(());
        };
        // After the storm, calls are among those that must succeed.
        let is_callable = |host: &usize| context.stormy || nodes[*host].token_kind() == TokenKind::Full;
        let hosts: Vec<usize> = (0..nodes.len()).filter(is_callable).collect();
        worker.handle(context, ledger, cue, &hosts)
    }

    /// Checks that no call outlives its deadline.
    pub(super) fn check(&self, context: &SimContext) -> Result<(), CheckError> {
        let late = self.workers.iter().flatten().find_map(|worker| worker.overdue(context.now, &self.ledger));
        match late {
            Some(number) => {
                let record = self.ledger.get(number);
                Err(CheckError(format!("call {number} outlives its deadline: {record:?}")))
            }
            None => Ok(()),
        }
    }

    /// Checks that the last call of each worker with the right token to each other one was answered.
    pub(super) fn check_healed(&self, nodes: &[Node]) -> Result<(), CheckError> {
        let workers = nodes.iter().zip(&self.workers).enumerate();
        let full = workers.filter(|(_, (node, _))| node.token_kind() == TokenKind::Full);
        for (host, (_, worker)) in full.clone() {
            let Some(worker) = worker else { continue };
            if let Some((other, _)) =
                full.clone().find(|(other, _)| *other != host && !worker.reaches(*other))
            {
                let (caller, callee) = (name(host), name(other));
                return Err(CheckError(format!("{caller} does not reach {callee}")));
            }
        }
        Ok(())
    }

    /// Returns how long one worker leaves while the others call it: longer than each of them pauses.
    pub(super) fn leaving_time(&self) -> Duration {
        if self.workers.is_empty() { Duration::ZERO } else { Duration::from_secs(3) }
    }

    /// Lets one worker say goodbye, while the others continue to call it.
    pub(super) fn begin_to_leave(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        let Some(host) = self.workers.iter().position(Option::is_some) else { return Ok(()) };
        self.ledger.leaving = Some(host);
        context.note(format_args!("{} leaves", name(host)));
        match &mut self.workers[host] {
            Some(worker) => worker.leave(context, &mut self.ledger),
            None => Ok(()),
        }
    }

    /// Lets all workers say goodbye.
    pub(super) fn leave(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        for worker in self.workers.iter_mut().flatten() {
            worker.leave(context, &mut self.ledger)?;
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> Counts {
        let Ledger { answered, failed, lost, refused, .. } = self.ledger;
        vec![
            ("calls of workers that were answered or sent", answered),
            ("calls that failed", failed),
            ("calls whose connection was lost", lost),
            ("calls that were refused for a token", refused),
        ]
    }
}
