//! What every backend's handler can do.

use super::hosting::HostingError;
use super::store_info::PublishError;
use crate::driver::call_error::CallError;
use crate::driver::last_try::FailedTry;
use crate::driver::server::Server;
use crate::driver::store::Store;
use crate::error::ErrorKind;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::parameters::{ParametersError, RendezvousParameters};
use crate::rendezvous::rdzv_settings::RdzvError;
use crate::rendezvous::registry::{Identity, RegistryError};
use crate::rendezvous::round_event::RoundEvent;
use crate::rendezvous::static_settings::StaticError;
use crate::rendezvous::store_info::RendezvousInfo;
use crate::rendezvous::url::UrlError;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

/// A store's client and, where this process hosts the store, its server, which lives as long.
#[derive(Debug)]
pub struct NodeStore {
    // The client goes before its server does.
    store: Store,
    server: Option<Arc<Server>>,
}

impl NodeStore {
    /// A client, and the server that this process hosts for it.
    #[must_use]
    pub const fn new(store: Store, server: Option<Arc<Server>>) -> Self {
        Self { store, server }
    }

    /// The server, if this process hosts it.
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

/// Why a handler could not be made, or could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// One of the five kinds that every backend tells apart.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The parameters make no sense.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The parameters make no sense to the static backend.
    #[error(transparent)]
    Static(#[from] StaticError),
    /// The parameters make no sense to the `rdzv` backend.
    #[error(transparent)]
    Rdzv(#[from] RdzvError),
    /// The system does not tell the host's name, and nobody else did.
    #[error("this host's name is not known: {0}")]
    HostName(std::io::Error),
    /// The node asks for what only one that has joined can know.
    #[error("this node has not joined the rendezvous '{run_id}'")]
    NotJoined {
        /// Which rendezvous.
        run_id: Box<str>,
    },
    /// Another thread has this node join already.
    #[error("this node is joining the rendezvous '{run_id}' already, in another thread")]
    Joining {
        /// Which rendezvous.
        run_id: Box<str>,
    },
    /// A backend's name or a URL's scheme.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The URL makes no sense.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The store could not be hosted here.
    #[error(transparent)]
    Hosting(#[from] HostingError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] CallError),
    /// Where the ranks find their store could not be published or read.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The backend tells its nodes nothing while they are in a round.
    #[error("the rendezvous backend '{backend}' has no events")]
    NoEvents {
        /// Its name.
        backend: Box<str>,
    },
    /// A foreign backend's or scheme's own trouble.
    #[error("{0}")]
    Foreign(Box<str>),
    /// The same, or what became of a call to it, with its kind.
    #[error("{message}")]
    Plugin {
        /// Which kind of failure.
        kind: ErrorKind,
        /// All there is to say.
        message: Box<str>,
    },
}

impl HandlerError {
    /// Whether [`RendezvousHandler::cancel`] ended the call.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match self {
            Self::Store(error) => matches!(error.kind(), ErrorKind::Cancelled),
            Self::Plugin { kind, .. } => matches!(kind, ErrorKind::Cancelled),
            _ => false,
        }
    }
}

/// How far a run is on its way to its next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Nodes with a place in the round that forms or, if one is live, in that.
    pub nodes: u32,
    /// Nodes that wait until the live round is over.
    pub nodes_waiting: u32,
    /// What the round does.
    pub stage: Stage,
    /// How long others may still come once there are enough, where that is one span from then on.
    pub last_call: Option<Duration>,
    /// The names of nodes that have come for the round that forms: the first [`NODE_NAMES_MAX`] of them, as far as they are
    /// known.
    pub waiting_nodes: Vec<Box<str>>,
}

/// Most names that [`Progress::waiting_nodes`] has.
pub const NODE_NAMES_MAX: u32 = 8;

/// What the round that a node waits for does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nodes come together for it.
    Forming,
    /// The one before it is still live.
    Live,
    /// There is no place in it for this node, which stands by.
    Standby,
}

/// One node's part in a rendezvous. Any thread may call.
pub trait RendezvousHandler: Send + Sync {
    /// The name of the backend that it is of.
    fn backend(&self) -> &str;

    /// Whether the ranks that this node starts shall use the store that the nodes met over.
    fn use_agent_store(&self) -> bool {
        false
    }

    /// Joins, and waits until the group is whole.
    ///
    /// # Errors
    /// Why there is no group, or that another thread has this node join already.
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError>;

    /// Whether the rendezvous is closed. Not for synchronization: it may be seen late.
    ///
    /// # Errors
    /// Why that is not known.
    fn is_closed(&self) -> Result<bool, HandlerError>;

    /// Closes the rendezvous: nobody may join any more.
    ///
    /// # Errors
    /// Why it is not closed.
    fn set_closed(&self) -> Result<(), HandlerError>;

    /// Closes the run since the job has failed, and has the other nodes told why, as far as the backend can; by default it
    /// only closes the run.
    ///
    /// # Errors
    /// As [`RendezvousHandler::set_closed`].
    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let _ = message;
        self.set_closed()
    }

    /// How many nodes wait for the next round.
    ///
    /// # Errors
    /// Why that is not known.
    fn num_nodes_waiting(&self) -> Result<u64, HandlerError>;

    /// The next thing that happened to this node's round, in order; waits up to `timeout` for it. `None`: nothing
    /// happened. By default a backend has no events, and says so.
    ///
    /// # Errors
    /// The backend has none, or the node has lost its server.
    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        let _ = timeout;
        Err(HandlerError::NoEvents { backend: self.backend().into() })
    }

    /// Whether [`RendezvousHandler::next_event`] tells of every death and of the end of the round: then nobody needs a deadline
    /// when he waits for the others of a round. By default it does not.
    fn tells_of_deaths(&self) -> bool {
        false
    }

    /// What is known of the way to the next round, for a user who waits; it may be old when it is read. It never begins
    /// anything. By default, and whenever it cannot be had soon, nothing is known.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// How the last try to reach the rendezvous failed, while it is not reached, for a user who waits. By default, and once it
    /// is reached, nothing is known. It waits for nothing.
    fn failed_try(&self) -> Option<FailedTry> {
        None
    }

    /// The run that this rendezvous is for.
    fn run_id(&self) -> &str;

    /// Gives everything back; whether all went well. Calls that are under way in other threads end with an error.
    fn shutdown(&self) -> bool;

    /// Goes in the middle of the round, with work undone, so that the other nodes hear of it at once and meet again; to
    /// be shut down later. It does not wait, and may be told twice. By default nobody is told.
    fn abandon(&self) {}

    /// Ends the calls of this handler that are under way in other threads, with an error of the kind
    /// [`ErrorKind::Cancelled`]; later calls are as ever. By default there are none that wait.
    fn cancel(&self) {}
}

/// Makes handlers of one backend.
pub trait CreateHandler: Send + Sync {
    /// How errors name it.
    fn name(&self) -> &str;

    /// Makes a handler.
    ///
    /// # Errors
    /// Why there is none.
    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError>;

    /// Tells creators apart: registering the same one again is fine. By default each object is one of its own.
    fn identity(&self) -> Identity {
        (core::ptr::from_ref(self).cast::<()>().addr(), 0)
    }
}
