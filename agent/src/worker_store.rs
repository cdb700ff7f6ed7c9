//! Choice of the store that the workers of a start use, and of its server.

use super::environment::AgentStore;

/// Store of the workers of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStore {
    /// The store that the user has given. The worker of rank 0 serves it.
    Named,
    /// A store for this round alone. The first agent serves it, and the others read its address from the round's store.
    OfTheRound,
    /// A store for this start alone, whose address no other agent needs.
    OfTheStart,
    /// The store of the rendezvous.
    OfTheRendezvous(AgentStore),
}

/// State from which the store of the next start follows.
#[derive(Clone, Copy, Debug)]
pub struct WorkerStores {
    named: Named,
    of_rendezvous: AgentStore,
    /// Whether workers have used the store of the rendezvous before: they may have left keys there.
    was_shared: bool,
}

/// Whether the user has given a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// An address and a port are given.
    Yes,
    /// The agents choose a store.
    No,
}

impl WorkerStores {
    /// Creates the state for an agent. `of_rendezvous` says which process serves the store of the rendezvous.
    pub const fn new(named: Named, of_rendezvous: AgentStore) -> Self {
        Self { named, of_rendezvous, was_shared: false }
    }

    /// Returns the store of the next start. `round` is the number of the round, for backends that number their rounds.
    /// Where the agents can agree on another store, workers do not see keys of an earlier start.
    pub fn next(&mut self, round: Option<u64>, group_world_size: u64) -> WorkerStore {
        match (self.named, round) {
            (Named::Yes, _) => WorkerStore::Named,
            (Named::No, Some(_)) => WorkerStore::OfTheRound,
            (Named::No, None) if group_world_size == 1 && self.was_shared => WorkerStore::OfTheStart,
            (Named::No, None) => {
                self.was_shared = self.of_rendezvous == AgentStore::Shared;
                WorkerStore::OfTheRendezvous(self.of_rendezvous)
            }
        }
    }
}

impl WorkerStore {
    /// Returns which process serves the store.
    pub const fn served(self) -> AgentStore {
        match self {
            Self::Named => AgentStore::OfRankZero,
            Self::OfTheRound | Self::OfTheStart => AgentStore::Shared,
            Self::OfTheRendezvous(agent_store) => agent_store,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AgentStore::{OfRankZero, Shared};

    /// Returns the stores of three starts.
    fn stores(named: Named, of_rendezvous: AgentStore, round: Option<u64>, nodes: u64) -> [WorkerStore; 3] {
        let mut stores = WorkerStores::new(named, of_rendezvous);
        [0, 1, 2].map(|start| stores.next(round.map(|first| first + start), nodes))
    }

    #[test]
    fn every_start_has_a_store_of_its_own_where_that_can_be() {
        let rendezvous = WorkerStore::OfTheRendezvous;
        for (named, of_rendezvous, round, nodes, expected) in [
            (Named::Yes, Shared, Some(0), 2, [WorkerStore::Named; 3]),
            (Named::No, Shared, Some(0), 1, [WorkerStore::OfTheRound; 3]),
            (Named::No, OfRankZero, Some(0), 2, [WorkerStore::OfTheRound; 3]),
            (
                Named::No,
                Shared,
                None,
                1,
                [rendezvous(Shared), WorkerStore::OfTheStart, WorkerStore::OfTheStart],
            ),
            (Named::No, Shared, None, 2, [rendezvous(Shared); 3]),
            (Named::No, OfRankZero, None, 1, [rendezvous(OfRankZero); 3]),
        ] {
            assert_eq!(
                stores(named, of_rendezvous, round, nodes),
                expected,
                "{named:?} {of_rendezvous:?} {round:?} {nodes}"
            );
        }
    }

    #[test]
    fn who_serves() {
        assert_eq!(
            WorkerStore::Named.served(),
            OfRankZero,
            "the user has said where, and nothing is there yet"
        );
        assert_eq!(WorkerStore::OfTheRound.served(), Shared);
        assert_eq!(WorkerStore::OfTheStart.served(), Shared);
        assert_eq!(WorkerStore::OfTheRendezvous(OfRankZero).served(), OfRankZero);
    }
}
