//! The operations of every backend's handler.

use super::hosting::HostingError;
use super::store_info::PublishError;
use crate::driver::last_try::FailedTry;
use crate::driver::prelude::*;
use crate::driver::server::Server;
use crate::driver::store::Store;
use crate::driver::tls::TlsError;
use crate::driver::token_file::TokenFileError;
use crate::error::ErrorKind;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::parameters::{ParametersError, RendezvousParameters};
use crate::rendezvous::rdzv_settings::RdzvError;
use crate::rendezvous::registry::{Identity, RegistryError};
use crate::rendezvous::round_event::RoundEvent;
use crate::rendezvous::static_settings::StaticError;
use crate::rendezvous::store_info::RendezvousInfo;
use crate::rendezvous::url::UrlError;
use core::ops::Deref;
use std::sync::TryLockError;

/// A store client and, where this process hosts the store, its server, which lives as long as the client.
#[derive(Debug)]
pub struct NodeStore {
    // Declared first, so that the client is dropped before its server.
    store: Store,
    server: Option<Arc<Server>>,
}

impl NodeStore {
    /// Combines a client with the server that this process hosts for it, if it does.
    pub const fn new(store: Store, server: Option<Arc<Server>>) -> Self {
        Self { store, server }
    }

    /// Returns the part of the store that belongs to a round: the keys under `round/N/`.
    #[must_use]
    pub fn of_round(&self, round: u64) -> Self {
        Self::new(self.store.with_prefix(format!("round/{round}").as_bytes()), self.server.clone())
    }

    /// Returns the server if this process hosts it.
    #[must_use]
    pub const fn server(&self) -> Option<&Arc<Server>> {
        self.server.as_ref()
    }
}

impl Deref for NodeStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Error of creating a handler or of one of its calls.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// An error of one of the kinds that every backend distinguishes.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The parameters are invalid.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The parameters are invalid for the static backend.
    #[error(transparent)]
    Static(#[from] StaticError),
    /// The parameters are invalid for the `rdzv` backend.
    #[error(transparent)]
    Rdzv(#[from] RdzvError),
    /// A file of certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The call needs a node that has joined.
    #[error("this node has not joined the rendezvous '{run_id}'")]
    NotJoined {
        /// The run's id.
        run_id: Box<str>,
    },
    /// Another thread is already in [`RendezvousHandler::next_rendezvous`].
    #[error("this node is joining the rendezvous '{run_id}' already, in another thread")]
    Joining {
        /// The run's id.
        run_id: Box<str>,
    },
    /// The name of a backend or the scheme of a URL is invalid or unknown.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The token file cannot be used.
    #[error(transparent)]
    Token(#[from] TokenFileError),
    /// This process could not host the store.
    #[error(transparent)]
    Hosting(#[from] HostingError),
    /// A store operation failed.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The address of the ranks' store could not be published or read.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The backend reports no events of a round.
    #[error("the rendezvous backend '{backend}' has no events")]
    NoEvents {
        /// The backend's name.
        backend: Box<str>,
    },
    /// Error of a foreign backend or scheme, without a kind.
    #[error("{0}")]
    Foreign(Box<str>),
    /// Error of a foreign backend or scheme, or of a call to it, with its kind.
    #[error("{message}")]
    Plugin {
        /// Kind of the failure.
        kind: ErrorKind,
        /// The whole error message.
        message: Box<str>,
    },
}

impl HandlerError {
    /// Whether [`RendezvousHandler::cancel`] ended the call.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error.kind(), ErrorKind::Cancelled),
            Self::Plugin { kind, .. } => matches!(kind, ErrorKind::Cancelled),
            _ => false,
        }
    }
}

/// How far a run is on the way to its next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of nodes with a position in the round that forms or, if a round is live, in that one.
    pub nodes: u32,
    /// Number of nodes that wait until the live round is over.
    pub nodes_waiting: u32,
    /// State of the round.
    pub stage: Stage,
    /// Time that more nodes may still join once there are enough, if it is counted from then on without extension.
    pub last_call: Option<Duration>,
    /// Names of nodes that have joined the round that forms: the first [`NODE_NAMES_MAX`] of those known.
    pub waiting_nodes: Vec<Box<str>>,
}

/// Largest number of names in [`Progress::waiting_nodes`].
pub const NODE_NAMES_MAX: u32 = 8;

/// State of the round that a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nodes are joining it.
    Forming,
    /// The round before it is still live.
    Live,
    /// It has no position for this node, which is a spare.
    Standby,
}

/// One node's part in a rendezvous. Any thread may call its functions.
pub trait RendezvousHandler: Send + Sync {
    /// Returns the name of the handler's backend.
    fn backend(&self) -> &str;

    /// Whether the ranks that this node starts shall use the store over which the nodes met.
    fn use_agent_store(&self) -> bool {
        false
    }

    /// Joins the next round and waits until it is complete.
    ///
    /// # Errors
    /// There is no round, or another thread of this node is joining already.
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError>;

    /// Whether the rendezvous is closed. The answer may be out of date, so it does not synchronize nodes.
    ///
    /// # Errors
    /// The store or server cannot be asked.
    fn is_closed(&self) -> Result<bool, HandlerError>;

    /// Closes the rendezvous: no node can join any more.
    ///
    /// # Errors
    /// The rendezvous could not be closed.
    fn set_closed(&self) -> Result<(), HandlerError>;

    /// Closes the run because the job has failed, and reports `message` to the other nodes if the backend can. By
    /// default it only closes the run.
    ///
    /// # Errors
    /// As [`RendezvousHandler::set_closed`].
    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let _ = message;
        self.set_closed()
    }

    /// Returns the number of nodes that wait for the next round.
    ///
    /// # Errors
    /// The store or server cannot be asked.
    fn num_nodes_waiting(&self) -> Result<u64, HandlerError>;

    /// Returns the next event of this node's round, in order; waits up to `timeout` for one. `None`: there was none.
    /// By default this fails, because the backend has no events.
    ///
    /// # Errors
    /// The backend has no events, or the node has lost its server.
    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        let _ = timeout;
        Err(HandlerError::NoEvents { backend: self.backend().into() })
    }

    /// Whether [`RendezvousHandler::next_event`] reports every death and the end of the round. If it does, a node
    /// that waits for others of its round needs no deadline. False by default.
    fn reports_deaths(&self) -> bool {
        false
    }

    /// Returns what is known of the progress to the next round, to show to a user who waits. It may be out of date
    /// and changes nothing. `None` by default, and whenever it cannot be had soon.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// Returns how the last attempt to reach the rendezvous failed, to show to a user who waits. `None` by default,
    /// and once the rendezvous is reached. Does not wait.
    fn failed_try(&self) -> Option<FailedTry> {
        None
    }

    /// Returns the id of the run that this rendezvous is for.
    fn run_id(&self) -> &str;

    /// Releases all resources; returns whether that succeeded. Calls in progress in other threads end with an error.
    fn shutdown(&self) -> bool;

    /// Leaves in the middle of the round with work undone, so that the other nodes learn of it at once and form a new
    /// round. The handler is shut down later. Does not wait, and may be called twice. By default the other nodes are
    /// not notified.
    fn abandon(&self) {}

    /// Ends this handler's calls in progress in other threads with an error of the kind [`ErrorKind::Cancelled`].
    /// Later calls are unaffected. By default no call waits, and this does nothing.
    fn cancel(&self) {}

    /// Sets the token that also ends the calls that begin later; it replaces an earlier one. By default no call waits,
    /// and this does nothing.
    fn set_token(&self, token: &CancelToken) {
        let _ = token;
    }
}

/// Locks what a thread of a node holds while it joins the run `run_id`.
///
/// # Errors
/// Another thread of the node is joining already.
pub(super) fn lock_join<'a, T>(mutex: &'a Mutex<T>, run_id: &str) -> Result<MutexGuard<'a, T>, HandlerError> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(HandlerError::Joining { run_id: run_id.into() }),
    }
}

/// Creator of handlers of one backend.
pub trait CreateHandler: Send + Sync {
    /// Returns the creator's name in errors.
    fn name(&self) -> &str;

    /// Creates a handler.
    ///
    /// # Errors
    /// The backend refuses the parameters.
    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError>;

    /// Returns what distinguishes this creator from others: registering the same one again is no error. By default it
    /// is the object's address.
    fn identity(&self) -> Identity {
        (core::ptr::from_ref(self).cast::<()>().addr(), 0)
    }
}
