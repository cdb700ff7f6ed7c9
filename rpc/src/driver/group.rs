//! Workers of RPC groups with a blocking interface: registered backends, and the library's own backend `tcp`.

mod context;
mod hosting;
mod life;
mod liveness_watcher;
mod observing;
mod pending;
pub mod registry;
mod shared;
mod steps;
mod store_connection;
mod worker;
mod worker_threads;

use crate::membership::error::MembershipError;
pub use crate::shutdown::Shutdown;
pub use context::{RpcContext, RpcInit, TcpBackend};
pub use observing::{GroupObserver, ObserverOptions, ObservingError};
pub use pending::PendingCall;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::tls::TlsError;
pub use shared::{Callee, CalleeName, GroupCallError};
pub use worker::{CallCanceller, GroupTls, RpcAgent, TcpOptions};

use crate::agent::GroupEvent;
use crate::driver::calls::Payload;
use crate::driver::calls::handling::Wanted;
use crate::handlers::HandlerError;
use crate::name::{NameError, WorkerInfo};
use registry::BackendError;
use rendezvous_core::driver::channel::{Receiver, bounded};
use rendezvous_core::driver::rendezvous::HandlerError as RendezvousFault;
use rendezvous_core::driver::server::StartError;

/// Result of a call to a worker of the group.
pub type GroupResult = Result<Vec<u8>, GroupCallError>;

/// Parameters of a call to a worker of the group.
#[derive(Debug)]
pub struct CallSpec<'a> {
    /// The callee.
    pub callee: Callee<'a>,
    /// Name of the handler.
    pub handler: &'a str,
    /// Payload of the request.
    pub payload: Payload,
    /// Timeout; `None` uses the worker's `rpc_timeout`.
    pub timeout: Option<Duration>,
}

/// Callee and handler of a call.
#[derive(Clone, Debug)]
pub struct Called {
    /// The callee.
    pub callee: CalleeName,
    /// Name of the handler.
    pub handler: Box<str>,
}

impl Called {
    /// Returns those of this call.
    pub fn of(call: &CallSpec<'_>) -> Self {
        Self { callee: call.callee.into(), handler: call.handler.into() }
    }

    /// Returns the text for the error of a call.
    pub(super) fn text(&self) -> Box<str> {
        self.to_string().into()
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.handler, self.callee)
    }
}

/// Function that gets the result of a call, once, on any thread. It must not block.
pub type OnResult = Box<dyn FnOnce(GroupResult) + Send>;

/// How a pending call ends if it gets no response.
#[derive(Debug)]
pub enum Begun {
    /// The backend ends it at its deadline; this cancels it before.
    Kept(CallCanceller),
    /// The caller ends it, after this timeout if there is one, and tells the backend by the flag.
    Loose(Option<Duration>, Wanted),
}

/// Listener of a worker's events, on threads of the library. It must not block.
pub trait Listener: Send + Sync {
    /// A worker joined, left or died. Returns the number of events that were dropped because the listener has no
    /// capacity for them.
    fn changed(&self, event: GroupEvent) -> u64;

    /// The worker is not in its group any more, and all requests that it had have got their responses or have ended
    /// without.
    fn parted(&self);
}

/// The worker has a listener already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlreadyObserved;

/// Worker of any backend, as a context keeps it.
pub trait RpcWorker: Send + Sync {
    /// Name and number of the worker.
    fn me(&self) -> &WorkerInfo;

    /// Returns all workers of its group.
    ///
    /// # Errors
    /// A custom backend failed.
    fn workers(&self) -> Result<Vec<WorkerInfo>, MembershipError>;

    /// Ends the worker.
    ///
    /// # Errors
    /// It did not end as it should. It has ended nevertheless, except for [`MembershipError::Reentrant`].
    fn shutdown(&self, how: Shutdown) -> Result<(), MembershipError>;

    /// Ends the worker at once without notifying the others, on any thread. What cannot be waited for on this thread
    /// ends by itself.
    fn abandon(&self) {
        self.shutdown(Shutdown::Abrupt).ok();
    }

    /// Whether this thread runs a handler or a callback of the worker.
    fn is_calling_back(&self) -> bool {
        false
    }

    /// Returns how it ended, if it has and that is known; an abrupt end is not a failure.
    fn end(&self) -> Option<Result<(), MembershipError>> {
        None
    }

    /// Starts a call. If it was started, its result is passed to `on_result`.
    ///
    /// # Errors
    /// It was not started.
    fn begin_call(&self, call: CallSpec<'_>, on_result: OnResult) -> Result<Begun, GroupCallError>;

    /// Makes a one-way call.
    ///
    /// # Errors
    /// It was not made.
    fn begin_notify(&self, call: CallSpec<'_>) -> Result<(), GroupCallError>;

    /// Sets the listener of all events from now on, and of those that have not been taken yet. Custom backends have no
    /// events.
    ///
    /// # Errors
    /// The worker has a listener already.
    fn listen(&self, group_listener: Arc<dyn Listener>) -> Result<(), AlreadyObserved> {
        drop(group_listener);
        Ok(())
    }

    /// Removes the listener.
    fn listen_no_more(&self) {}

    /// Returns the worker if its backend is `tcp`.
    fn tcp(&self) -> Option<&RpcAgent> {
        None
    }
}

/// Returns the next item of a channel, or `None` after `timeout`, after a cancellation, or if the channel is closed.
fn next_unless<T: 'static>(items: &Receiver<T>, timeout: Duration, token: &CancelToken) -> Option<T> {
    let (wake, woken) = bounded(1);
    let _guard = token.on_cancel(move || _ = wake.try_send(()));
    items.recv_unless(&woken, timeout)
}

/// Reason why a process did not become a worker. Nothing is left of the attempt in this process.
#[derive(Debug, thiserror::Error)]
pub enum RpcInitError {
    /// The worker's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The backend or its options are invalid, or the context has a worker already.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The rendezvous failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousFault),
    /// The rank of the rendezvous is not valid as a worker's number.
    #[error("the rank {rank} is not a worker's number: those are from 0 to 65535")]
    Rank {
        /// The rank.
        rank: i64,
    },
    /// The worker cannot listen for calls.
    #[error(transparent)]
    Listen(#[from] StartError),
    /// A file of certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The store failed before the group was reached, or the worker's liveness key could not be set.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The system has no descriptors or threads left.
    #[error("the system has no resources for an RPC worker: {0}")]
    System(io::Error),
    /// Another worker uses the handlers.
    #[error(transparent)]
    Handlers(#[from] HandlerError),
    /// The worker did not become a member.
    #[error(transparent)]
    Agent(#[from] MembershipError),
    /// The store did not respond within any of its deadlines.
    #[error("the worker did not join: the store at {store} does not respond")]
    Stuck {
        /// Address of the store.
        store: Box<str>,
    },
    /// Error of a custom backend.
    #[error("{message}")]
    Foreign {
        /// Status code of the backend.
        status: i32,
        /// Message of the backend.
        message: Box<str>,
    },
}

#[cfg(test)]
pub(super) mod tests;
