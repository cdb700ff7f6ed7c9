//! Assignment of ranks in the store of a round, with the choice of the workers' own store.

use super::request::{Answer, JoinedRound, Request, ServeStore, StoreOperation};
use crate::environment::AgentStore;
use crate::ranks::{
    Ranks, RanksError, assign, assigned, assigned_ranks_key, read_assigned, role_info, role_info_key,
};
use crate::spec::RankAssignment;
use crate::worker_store::WorkerStore;
use rendezvous_core::prelude::*;
use rendezvous_core::rendezvous::store_info::{RendezvousStoreInfo, StoreInfoError};

const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
const LOOPBACK: &str = "127.0.0.1";

/// What an agent contributes to the assignment of a round.
#[derive(Clone, Debug)]
pub(super) struct AssignmentSettings {
    pub(super) role: Box<str>,
    /// Name of the agent, for messages of the others.
    pub(super) name: Box<str>,
    pub(super) local_world_size: u32,
    pub(super) rank_assignment: RankAssignment,
    /// Port of a store that this agent serves; without it, any free port.
    pub(super) master_port: Option<u16>,
    /// Address of the workers' store, if the user has given one.
    pub(super) master: Option<RendezvousStoreInfo>,
    /// Address at which other nodes reach this host, if the user has given one.
    pub(super) local_addr: Option<Box<str>>,
    /// Address on which this agent listens, if the user has given one.
    pub(super) listen_addr: Option<Box<str>>,
    /// Whether all workers of this agent run on its host.
    pub(super) is_local: bool,
}

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssignmentStep {
    /// Serve a store for the workers.
    Serve,
    /// Write the address of the workers' store.
    WriteAddress,
    /// Read the address of the workers' store.
    ReadAddress,
    /// Write the role and the size of this agent.
    Introduce,
    /// Read the roles and sizes of all agents.
    Gather,
    /// Write the ranks of all agents.
    WriteRanks,
    /// Read the ranks of this agent.
    ReadRanks,
    Done,
}

/// Invalid value in the round's store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AssignmentError {
    #[error(transparent)]
    Ranks(#[from] RanksError),
    #[error(transparent)]
    StoreInfo(#[from] StoreInfoError),
    #[error("the answer does not fit the request")]
    Unexpected,
}

/// Assignment of the ranks of one round. The owner makes each [`Assignment::next_request`] and passes its answer to
/// [`Assignment::handle`], until there is none.
#[derive(Debug)]
pub(super) struct Assignment {
    settings: AssignmentSettings,
    round: JoinedRound,
    until: Instant,
    store: WorkerStore,
    master: RendezvousStoreInfo,
    /// The ranks of all agents, on the first one.
    all: Vec<Ranks>,
    ranks: Ranks,
    step: AssignmentStep,
}

impl Assignment {
    /// Begins an assignment that must be over at `until`.
    pub(super) fn new(
        settings: AssignmentSettings,
        round: JoinedRound,
        store: WorkerStore,
        until: Instant,
    ) -> Self {
        let ranks = Ranks::of_identical(round.rank, round.world_size, settings.local_world_size);
        let master = match (store, &settings.master) {
            (WorkerStore::Named, Some(master)) => master.clone(),
            _ => round.store_info.clone(),
        };
        let mut assignment = Self {
            settings,
            round,
            until,
            store,
            master,
            all: Vec::new(),
            ranks,
            step: AssignmentStep::Done,
        };
        assignment.step = match store {
            WorkerStore::OfTheStart => AssignmentStep::Serve,
            WorkerStore::OfTheRound if assignment.round.rank == 0 => AssignmentStep::Serve,
            WorkerStore::OfTheRound => AssignmentStep::ReadAddress,
            WorkerStore::Named | WorkerStore::OfTheRendezvous(_) => assignment.first_rank_step(),
        };
        assignment
    }

    fn first_rank_step(&self) -> AssignmentStep {
        match self.settings.rank_assignment {
            RankAssignment::ThroughStore => AssignmentStep::Introduce,
            RankAssignment::Identical => AssignmentStep::Done,
        }
    }

    /// Returns the next request; `None` when the ranks are known.
    pub(super) fn next_request(&self, now: Instant) -> Option<Request> {
        let rank = self.round.rank;
        let operation = match self.step {
            AssignmentStep::Serve => return Some(Request::ServeStore(self.serve_store())),
            AssignmentStep::WriteAddress => StoreOperation::Set(vec![
                (MASTER_ADDR.into(), self.master.master_addr.clone().into_bytes()),
                (MASTER_PORT.into(), self.master.master_port.to_string().into_bytes()),
            ]),
            AssignmentStep::ReadAddress => StoreOperation::Get(vec![MASTER_ADDR.into(), MASTER_PORT.into()]),
            AssignmentStep::Introduce => {
                let AssignmentSettings { role, name, local_world_size, .. } = &self.settings;
                let info = role_info(role, rank, *local_world_size, name);
                StoreOperation::Set(vec![(role_info_key(rank).into(), info)])
            }
            AssignmentStep::Gather => StoreOperation::Get(
                (0..self.round.world_size).map(|rank| role_info_key(rank).into()).collect(),
            ),
            AssignmentStep::WriteRanks => {
                let key = |rank| assigned_ranks_key(rank).into();
                let pairs = (0..).zip(&self.all).map(|(rank, ranks)| (key(rank), assigned(ranks)));
                StoreOperation::Set(pairs.collect())
            }
            AssignmentStep::ReadRanks => StoreOperation::Get(vec![assigned_ranks_key(rank).into()]),
            AssignmentStep::Done => return None,
        };
        Some(Request::Store { operation, timeout: self.until.since(now) })
    }

    /// Returns the store that this agent serves for the workers.
    fn serve_store(&self) -> ServeStore {
        let AssignmentSettings { local_addr, listen_addr, master_port, is_local, .. } = &self.settings;
        let is_alone = self.round.world_size == 1 && *is_local;
        let host: Option<Box<str>> = match (local_addr, &self.round.leader) {
            (Some(address), _) => Some(address.clone()),
            (None, _) if is_alone => Some(LOOPBACK.into()),
            (None, Some(leader)) => Some(leader.clone()).filter(|leader| !leader.is_empty()),
            // The nodes reached the rendezvous at this host, so the workers reach it there as well.
            (None, None) => Some(self.round.store_info.master_addr.as_str().into()),
        };
        let port = if self.store == WorkerStore::OfTheRound { master_port.unwrap_or(0) } else { 0 };
        ServeStore { host, listen_addr: listen_addr.clone(), port }
    }

    /// Handles the answer to the request.
    ///
    /// # Errors
    /// A value in the store is invalid.
    pub(super) fn handle(&mut self, answer: Answer) -> Result<(), AssignmentError> {
        use AssignmentStep as Step;
        self.step = match (self.step, answer) {
            (Step::Serve, Answer::Serving(master)) => {
                self.master = master;
                match self.store {
                    WorkerStore::OfTheRound => Step::WriteAddress,
                    _ => self.first_rank_step(),
                }
            }
            (Step::WriteAddress, Answer::Done) => self.first_rank_step(),
            (Step::ReadAddress, Answer::Values(values)) => {
                let [address, port] = values.as_slice() else { return Err(AssignmentError::Unexpected) };
                self.master = RendezvousStoreInfo::from_values(address, port)?;
                self.first_rank_step()
            }
            (Step::Introduce, Answer::Done) if self.round.rank == 0 => Step::Gather,
            (Step::Introduce, Answer::Done) => Step::ReadRanks,
            (Step::Gather, Answer::Values(values)) => {
                self.all = assign(&values)?;
                self.ranks = *self.all.first().ok_or(AssignmentError::Unexpected)?;
                Step::WriteRanks
            }
            (Step::WriteRanks, Answer::Done) => Step::Done,
            (Step::ReadRanks, Answer::Values(values)) => {
                self.ranks = read_assigned(self.round.rank, &values.concat())?;
                Step::Done
            }
            _ => return Err(AssignmentError::Unexpected),
        };
        Ok(())
    }

    /// Returns the ranks and the workers' store. They are valid when there is no next request.
    pub(super) fn result(&self) -> (Ranks, StartStore) {
        (self.ranks, StartStore { master: self.master.clone(), agent_store: self.store.served() })
    }
}

/// Store of the workers of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartStore {
    /// Address of the store.
    pub master: RendezvousStoreInfo,
    /// Which process serves it.
    pub agent_store: AgentStore,
}
