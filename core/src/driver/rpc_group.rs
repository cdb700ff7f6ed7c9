//! Workers of RPC groups for callers that block: backends by name, and the one that comes with the library.

mod context;
mod mailbox;
mod observing;
mod own_store;
mod shared;
mod signs;
mod steps;
mod turning;
mod worker;

pub use context::{AnyRpcBackend, RpcContext, RpcInit, TcpBackend};
pub use observing::{GroupObserver, ObserverOptions, ObservingError};
pub use shared::{Callee, GroupCallError};
pub use signs::SignsError;
pub use worker::{CallCanceller, GroupCall, RpcAgent, Shutdown, TcpOptions};

use crate::driver::call_error::CallError;
use crate::driver::rendezvous::HandlerError as RendezvousFault;
use crate::driver::server::StartError;
use crate::rpc::agent::AgentError;
use crate::rpc::handlers::HandlerError;
use crate::rpc::name::{NameError, WorkerInfo};
use crate::rpc::registry::BackendError;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use std::io;

/// What came of a call to a worker of the group.
pub type GroupResult = Result<Vec<u8>, GroupCallError>;

/// A worker of whatever backend, as a context keeps it.
pub trait Agency: Send + Sync {
    /// Who it is.
    fn me(&self) -> &WorkerInfo;

    /// All workers of its group.
    ///
    /// # Errors
    /// A backend of the program's own does not know.
    fn workers(&self) -> Result<Vec<WorkerInfo>, AgentError>;

    /// Ends it.
    ///
    /// # Errors
    /// It ended otherwise than it should. It has ended all the same, but for [`AgentError::Reentrant`].
    fn shutdown(&self, how: Shutdown) -> Result<(), AgentError>;

    /// Ends it at once and without a word, from wherever: what cannot be waited for here ends by itself.
    fn abandon(&self) {
        self.shutdown(Shutdown::Abrupt).ok();
    }

    /// The same as one of the backend `tcp`, if it is that.
    fn tcp(&self) -> Option<&RpcAgent> {
        None
    }

    /// The same as whatever a backend of the program's own makes, for who knows what that is.
    fn foreign(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}

/// Why a process is no worker of a group. Nothing is left of the attempt in this process.
#[derive(Debug, thiserror::Error)]
pub enum RpcInitError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The backend, its options, or that there is a worker already.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// There is no store at which the workers could meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousFault),
    /// The rank that the rendezvous gave is no worker's number.
    #[error("the rank {rank} is no worker's number: those are from 0 to 65535")]
    Rank {
        /// The rank.
        rank: i64,
    },
    /// Nothing can listen for calls.
    #[error(transparent)]
    Listen(#[from] StartError),
    /// The store failed before the group was reached.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The worker's sign of life could not be set.
    #[error(transparent)]
    Signs(#[from] SignsError),
    /// The system has no descriptors or threads left.
    #[error("the system has no room for an RPC worker: {0}")]
    System(io::Error),
    /// The handlers are another worker's.
    #[error(transparent)]
    Handlers(#[from] HandlerError),
    /// The worker did not become a member.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The store said nothing for longer than any of its deadlines.
    #[error("the worker did not join: the store at {store} does not come back with an answer")]
    Stuck {
        /// The store.
        store: Box<str>,
    },
    /// What a backend of the program's own says.
    #[error("{words}")]
    Foreign {
        /// Its own number for it.
        status: i32,
        /// Its words.
        words: Box<str>,
    },
}

#[cfg(test)]
mod tests;
