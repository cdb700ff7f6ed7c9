//! Workers of RPC groups for callers that block: backends by name, and the one that comes with the library.

mod context;
mod hosting;
mod liveness_watcher;
mod mailbox;
mod observing;
mod shared;
mod steps;
mod store_connection;
mod worker;
mod worker_threads;

pub use crate::shutdown::Shutdown;
pub use context::{AnyRpcBackend, RpcContext, RpcInit, TcpBackend};
pub use liveness_watcher::SignsError;
pub use observing::{GroupObserver, ObserverOptions, ObservingError};
pub use shared::{Callee, CalleeName, GroupCallError};
pub use worker::{CallCanceller, GroupCall, RpcAgent, TcpOptions};

use crate::agent::{AgentError, GroupEvent};
use crate::driver::calls::Payload;
use crate::driver::calls::handling::Wanted;
use crate::handlers::HandlerError;
use crate::name::{NameError, WorkerInfo};
use crate::registry::BackendError;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::rendezvous::HandlerError as RendezvousFault;
use rendezvous_core::driver::server::StartError;
use rendezvous_core::time::Duration;
use std::io;

/// What came of a call to a worker of the group.
pub type GroupResult = Result<Vec<u8>, GroupCallError>;

/// A call: whom, what, with which bytes, and for how long; `None`: as the worker's options say.
#[derive(Debug)]
pub struct CallSpec<'a> {
    /// Whom it is for.
    pub callee: Callee<'a>,
    /// The name of the handler.
    pub handler: &'a str,
    /// The bytes of the request.
    pub payload: Payload,
    /// How long it may take.
    pub timeout: Option<Duration>,
}

/// Who is told what came of a call, once, on any thread. It must not block.
pub type OnResult = Box<dyn FnOnce(GroupResult) + Send>;

/// How a call that was begun ends, when it is not answered.
#[derive(Debug)]
pub enum Begun {
    /// At its deadline, or by this.
    Kept(CallCanceller),
    /// The caller ends it, after so long if that is said, and tells the backend so.
    Loose(Option<Duration>, Wanted),
}

/// Hears what happens to a worker, on threads of the library's. It must not block.
pub trait Listener: Send + Sync {
    /// Somebody came, went or died. How many such events are lost, since there is no room for them.
    fn changed(&self, event: GroupEvent) -> u64;

    /// The worker is of its group no more, and whoever has asked something of it is answered, or is not any more.
    fn parted(&self);
}

/// Somebody hears already what happens to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyObserved;

/// A worker of whatever backend, as a context keeps it.
pub trait RpcWorker: Send + Sync {
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

    /// How it ended, if it has and somebody knows; that somebody ended it abruptly is no failure.
    fn end(&self) -> Option<Result<(), AgentError>> {
        None
    }

    /// Begins a call. What came of it is told, unless it was not begun.
    ///
    /// # Errors
    /// It was not begun.
    fn begin_call(&self, call: CallSpec<'_>, on_result: OnResult) -> Result<Begun, GroupCallError>;

    /// Calls what nobody answers.
    ///
    /// # Errors
    /// It was not made.
    fn begin_notify(&self, call: CallSpec<'_>) -> Result<(), GroupCallError>;

    /// Whoever hears what happens from now on, and what nobody has asked for before. Backends of the program's own have
    /// nothing to tell.
    ///
    /// # Errors
    /// Somebody does already.
    fn listen(&self, group_listener: Arc<dyn Listener>) -> Result<(), AlreadyObserved> {
        drop(group_listener);
        Ok(())
    }

    /// Nobody hears any more what happens.
    fn listen_no_more(&self) {}

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
    LivenessWatcher(#[from] SignsError),
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
    #[error("the worker did not join: the store at {store} does not respond")]
    Stuck {
        /// The store.
        store: Box<str>,
    },
    /// What a backend of the program's own says.
    #[error("{message}")]
    Foreign {
        /// Its own number for it.
        status: i32,
        /// Its words.
        message: Box<str>,
    },
}

#[cfg(test)]
pub(super) mod tests;
