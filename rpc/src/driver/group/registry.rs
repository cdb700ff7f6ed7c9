//! Registry of the backends of RPC groups, by name.
//!
//! A backend creates the worker, for which it needs a store. The caller creates the store, so the registry only selects
//! the backend.

use super::{RpcInitError, RpcWorker};
use crate::name::WorkerInfo;
use crate::options::RpcOptions;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::Store;

/// Backend of this library, which is the default.
pub const DEFAULT_BACKEND: &str = "tcp";

/// Parameters of an agent in addition to its options.
#[derive(Debug)]
pub struct InitRequest {
    /// Store in which the members of the group find each other; no other data has its prefix.
    pub store: Store,
    /// Name and number of this member.
    pub worker: WorkerInfo,
    /// Number of members of the group; `None` for a dynamic group.
    pub world_size: Option<u16>,
    /// Token that ends the call that creates the agent.
    pub token: CancelToken,
}

/// Backend of RPC groups.
pub trait RpcBackend: Send + Sync {
    /// Creates a member's agent, which is in the group when this returns.
    ///
    /// # Errors
    /// It is not in the group, and nothing is left of it.
    fn init_backend(
        &self,
        request: InitRequest,
        options: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError>;
}

/// Error of the registry, or of creating an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The name is taken, even if by the same backend.
    #[error("RPC backend {name}: already registered")]
    AlreadyRegistered {
        /// The name.
        name: Box<str>,
    },
    /// The name is empty.
    #[error("RPC backend names must be non-empty")]
    Unnamed,
    /// The name is not registered.
    #[error("Argument backend must be a member of BackendType, got {name}; registered are {known:?}")]
    NotRegistered {
        /// The name.
        name: Box<str>,
        /// The registered names.
        known: Vec<Box<str>>,
    },
    /// This context has an agent in this process already.
    #[error("RPC is already initialized")]
    AlreadyInitialized,
}

/// Registered backend and its name.
#[derive(Clone)]
struct Registered {
    name: Arc<str>,
    backend: Arc<dyn RpcBackend>,
}

/// Registered backends of a context.
#[derive(Clone, Default)]
pub(super) struct RpcBackendRegistry {
    /// The newest first.
    backends: Vec<Registered>,
}

impl RpcBackendRegistry {
    /// Registers a backend.
    ///
    /// # Errors
    /// The name is taken, even if by the same backend.
    pub(super) fn register(&mut self, name: &str, backend: Arc<dyn RpcBackend>) -> Result<(), BackendError> {
        if name.is_empty() {
            return Err(BackendError::Unnamed);
        }
        if self.names().any(|known| known == name) {
            return Err(BackendError::AlreadyRegistered { name: name.into() });
        }
        self.backends.insert(0, Registered { name: name.into(), backend });
        Ok(())
    }

    /// Returns the names of the backends, the newest first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(|known| &*known.name)
    }

    /// Returns the backend with this name.
    ///
    /// # Errors
    /// The name is not registered.
    pub(super) fn find(&self, name: &str) -> Result<&Arc<dyn RpcBackend>, BackendError> {
        let found = self.backends.iter().find(|known| *known.name == *name);
        found.map(|known| &known.backend).ok_or_else(|| BackendError::NotRegistered {
            name: name.into(),
            known: self.names().map(Box::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// A backend that creates no agents.
    struct Stub;

    impl RpcBackend for Stub {
        fn init_backend(
            &self,
            request: InitRequest,
            _: RpcOptions,
        ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
            Err(RpcInitError::Rank { rank: request.worker.id.into() })
        }
    }

    fn registry() -> RpcBackendRegistry {
        let mut registry = RpcBackendRegistry::default();
        let tcp: Arc<dyn RpcBackend> = Arc::new(Stub);
        registry.register("tcp", tcp).expect("free");
        registry
    }

    #[test]
    fn a_name_has_one_backend_and_the_newest_comes_first() {
        let mut registry = registry();
        let ucx: Arc<dyn RpcBackend> = Arc::new(Stub);
        registry.register("UCX", ucx.clone()).expect("free");
        let error = registry.register("UCX", ucx.clone()).expect_err("taken, though by the same");
        assert_eq!(error.to_string(), "RPC backend UCX: already registered");
        assert_eq!(registry.register("", ucx.clone()), Err(BackendError::Unnamed));
        registry.register("ucx", ucx).expect("names are exact");
        assert_eq!(registry.names().collect::<Vec<_>>(), ["ucx", "UCX", "tcp"]);
        let error = registry.find("Ucx").map(drop).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "Argument backend must be a member of BackendType, got Ucx; registered are [\"ucx\", \"UCX\", \"tcp\"]"
        );
    }
}
