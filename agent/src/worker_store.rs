//! Where the workers of a start find their store, and who serves it.

use super::environment::AgentStore;

/// Which store they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStore {
    /// The one that the user has named; the worker of rank 0 serves there.
    Named,
    /// One for this round alone, which the first agent serves and all others learn of in the round's store.
    OfTheRound,
    /// One for this start alone, of which no other agent has to learn.
    OfTheStart,
    /// The rendezvous' own.
    OfTheRendezvous(AgentStore),
}

/// What the stores of an agent's starts depend on.
#[derive(Clone, Copy, Debug)]
pub struct WorkerStores {
    named: Named,
    of_rendezvous: AgentStore,
    /// Whether workers were told of the rendezvous' own store before: they may have left something there.
    was_shared: bool,
}

/// Whether the user has named a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// It has an address and a port.
    Yes,
    /// The agents find one.
    No,
}

impl WorkerStores {
    /// For an agent whose rendezvous has its own store served so.
    #[must_use]
    pub const fn new(named: Named, of_rendezvous: AgentStore) -> Self {
        Self { named, of_rendezvous, was_shared: false }
    }

    /// The store of the next start; `round` is the round's number, of backends that have rounds. No worker sees what an
    /// earlier start left, where the agents can tell each other of another store.
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
    /// Who serves there.
    #[must_use]
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

    /// The stores of three starts.
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
