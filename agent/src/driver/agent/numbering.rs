//! The thread that meets the other agents in the round's store. It agrees on the workers' ranks and on their own store,
//! and it waits at the exit barrier.

use super::blocking_thread::{BlockingTask, CancelPolicy, TaskQueue};
use super::input::{AgentInput, EventSender, Info, Numbered};
use super::workers::Reach;
use crate::node::rounds::{EXIT_BARRIER_PREFIX, wait_failure};
use crate::ranks::{
    Ranks, RanksError, assign, assigned, assigned_ranks_key, read_assigned, role_info, role_info_key,
};
use crate::spec::{RankAssignment, WorkerSpec};
use crate::supervisor::Input;
use crate::worker_store::{WorkerStore, WorkerStores};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::elastic_store::{MeetingError, arrive};
use rendezvous_core::driver::rendezvous::{HostedServers, HostingError, PublishError, build, host_name};
use rendezvous_core::driver::server::Server;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::elastic_store::barrier::BarrierOptions;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::time::Duration;
use std::io;

const LOOPBACK: &str = "127.0.0.1";

/// Task of the thread.
#[derive(Debug)]
pub(super) enum Ask {
    Assign {
        call: u64,
        info: Arc<Info>,
    },
    Part {
        call: u64,
        info: Arc<Info>,
    },
    /// None: the pending task is cancelled.
    Rest,
}

impl BlockingTask for Ask {
    fn cancel_policy(&self) -> CancelPolicy {
        CancelPolicy::GivenUp
    }
}

/// Longer than any job runs.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 10);

/// Returns the address on which the rendezvous' own store listens, if it is hosted here. The address that other nodes
/// use need not belong to an interface of this host.
fn listening(info: &Info) -> Option<String> {
    info.store.server().map(|server| server.local_addr().ip().to_string())
}

#[derive(Debug, thiserror::Error)]
enum NumberingError {
    #[error("cannot read this host's name: {0}")]
    HostName(#[from] io::Error),
    #[error(transparent)]
    Hosting(#[from] HostingError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Store(#[from] CallError),
    #[error(transparent)]
    Ranks(#[from] RanksError),
}

impl NumberingError {
    /// Returns the kind of the store's error, if the store failed.
    fn of_store(&self) -> Option<ErrorKind> {
        match self {
            Self::Store(error) | Self::Publish(PublishError::Store(error)) => Some(error.kind()),
            Self::HostName(_) | Self::Hosting(_) | Self::Publish(_) | Self::Ranks(_) => None,
        }
    }
}

/// State of the thread.
pub(super) struct Numbering {
    pub(super) spec: WorkerSpec,
    /// Address of the workers' store, if the user has given one.
    pub(super) master: Option<RendezvousStoreInfo>,
    pub(super) stores: WorkerStores,
    /// Whether the rendezvous reports deaths of members.
    pub(super) tells_of_deaths: bool,
    /// Address at which other nodes reach this host, if the caller has given one.
    pub(super) local_addr: Option<String>,
    /// Hosts on which the workers may run.
    pub(super) reach: Reach,
    pub(super) event_sender: EventSender,
}

impl Numbering {
    pub(super) fn run(mut self, tasks: &TaskQueue<Ask>) {
        while let Some(ask) = tasks.next() {
            match ask {
                Ask::Assign { call, info } => match self.number(&info) {
                    Ok(numbered) => {
                        self.event_sender.notify(AgentInput::Numbered { call, numbered: Box::new(numbered) })
                    }
                    Err(error) => {
                        let (kind, message) = (wait_failure(error.of_store()), error.to_string().into());
                        self.event_sender.input(Input::NotAssigned { call, kind, message });
                    }
                },
                Ask::Part { call, info } => self.event_sender.input(self.part(call, &info)),
                Ask::Rest => {}
            }
        }
    }

    fn number(&mut self, info: &Info) -> Result<Numbered, NumberingError> {
        let (rank, world_size) = (info.rank.unsigned_abs(), info.world_size.unsigned_abs());
        let timeout = Timeout::After(self.spec.assign_timeout);
        let store = self.stores.next(info.round, world_size);
        let (master, server) = match (store, &self.master) {
            (WorkerStore::OfTheRound, _) => self.publish(info, timeout)?,
            (WorkerStore::OfTheStart, _) => {
                let master_addr = match self.published_addr(info) {
                    Some(address) if self.local_addr.is_none() => address,
                    _ => info.bootstrap_store_info.master_addr.clone(),
                };
                let server = HostedServers::default().host(&master_addr, 0, None)?;
                let master_port = server.local_addr().port();
                (RendezvousStoreInfo { master_addr, master_port }, Some(server))
            }
            (WorkerStore::Named, Some(master)) => (master.clone(), None),
            (WorkerStore::Named | WorkerStore::OfTheRendezvous(_), _) => {
                (info.bootstrap_store_info.clone(), None)
            }
        };
        let ranks = match self.spec.rank_assignment {
            RankAssignment::ThroughStore => self.learn(&info.store, rank, world_size, timeout)?,
            RankAssignment::Identical => Ranks::of_identical(rank, world_size, self.spec.local_world_size),
        };
        Ok(Numbered { ranks, master, agent_store: store.served(), server })
    }

    /// Returns the published address of a store that this agent hosts, unless the rendezvous chooses it. A store whose
    /// workers all run on this host is published at the loopback address.
    fn published_addr(&self, info: &Info) -> Option<String> {
        let is_alone = info.world_size == 1 && self.reach == Reach::ThisHost;
        self.local_addr.clone().or_else(|| is_alone.then(|| LOOPBACK.into()))
    }

    /// Publishes the store of this round's workers. Each round has a store and an address of its own, so workers never
    /// see keys of an earlier attempt, and never look for a server that ended with its node.
    fn publish(
        &self,
        info: &Info,
        timeout: Timeout,
    ) -> Result<(RendezvousStoreInfo, Option<Arc<Server>>), NumberingError> {
        let mut server = None;
        let mut host = self.published_addr(info);
        if info.rank == 0 {
            let (address, listen_host) = match (&host, &info.position) {
                (Some(address), _) => (address.clone(), None),
                (None, Some(index)) if !index.leader.is_empty() => (index.leader.clone(), None),
                (None, Some(_)) => (host_name()?, None),
                // The nodes reached the rendezvous at this host, so the workers reach it there as well.
                (None, None) => (info.bootstrap_store_info.master_addr.clone(), listening(info)),
            };
            let port = self.spec.master_port.unwrap_or(0);
            server = Some(HostedServers::default().host(&address, port, listen_host.as_deref())?);
            host = Some(address);
        }
        let port = server.as_ref().map(|server| server.local_addr().port());
        let built = build(info.rank, &info.store, host.as_deref(), port, timeout)?;
        Ok((built.info, server))
    }

    fn learn(
        &self,
        store: &Store,
        rank: u64,
        world_size: u64,
        timeout: Timeout,
    ) -> Result<Ranks, NumberingError> {
        let info = role_info(&self.spec.role, rank, self.spec.local_world_size);
        store.set(role_info_key(rank).as_bytes(), &info, timeout)?;
        if rank == 0 {
            let keys: Vec<String> = (0..world_size).map(role_info_key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            let ranks = assign(&store.multi_get(&keys, timeout)?)?;
            let addresses: Vec<(String, Vec<u8>)> = ranks
                .iter()
                .zip(0..)
                .map(|(ranks, rank)| (assigned_ranks_key(rank), assigned(ranks)))
                .collect();
            let addresses: Vec<(&[u8], &[u8])> =
                addresses.iter().map(|(key, value)| (key.as_bytes(), value.as_slice())).collect();
            store.multi_set(&addresses, timeout)?;
        }
        let value = store.get_owned(assigned_ranks_key(rank).as_bytes(), timeout)?;
        Ok(read_assigned(rank, &value)?)
    }

    fn part(&self, call: u64, info: &Info) -> Input {
        // If the rendezvous reports deaths, they end the wait: a healthy job may take any time.
        let timeout = if self.tells_of_deaths { FOR_EVER } else { self.spec.exit_barrier_timeout };
        let options = BarrierOptions { timeout, ..BarrierOptions::new(info.world_size, EXIT_BARRIER_PREFIX) };
        let arrived = || self.event_sender.input(Input::Arrived { call });
        let Err(error) = arrive(&info.store, &options, None, &arrived) else { return Input::Parted { call } };
        let of_store = match &error {
            MeetingError::Store(error) => Some(error.kind()),
            _ => None,
        };
        Input::NotParted { call, kind: wait_failure(of_store), message: error.to_string().into() }
    }
}
