//! RPC of a context: its backends, and the one worker that it may have.

use super::hosting::wait_for_the_last;
use super::registry::{BackendError, DEFAULT_BACKEND, InitRequest, RpcBackend, RpcBackendRegistry};
use super::worker::{RpcAgent, TcpOptions};
use super::{RpcInitError, RpcWorker};
use crate::membership::error::MembershipError;
use crate::name::{WorkerInfo, WorkerName};
use crate::options::RpcOptions;
use crate::shutdown::Shutdown;
use core::sync::atomic::{AtomicU64, Ordering};
use rendezvous_core::driver::cancel::Canceller;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::rendezvous::{Context, NodeStore, UrlOptions};
use rendezvous_core::driver::store::Store;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::rendezvous::url::{RankEnvironment, WorldSize};

/// Timeout of the rendezvous if calls have none.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Backend of this library.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpBackend;

impl RpcBackend for TcpBackend {
    fn init_backend(
        &self,
        request: InitRequest,
        options: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let InitRequest { store, worker, world_size, token } = request;
        let extra_options = options.extra_options::<TcpOptions>().cloned().unwrap_or_default();
        let extra_options = TcpOptions { token, ..extra_options };
        Ok(Arc::new(RpcAgent::start(&store, worker, world_size, &options, &extra_options)?))
    }
}

/// Parameters of [`RpcContext::init`].
#[derive(Debug, Default)]
pub struct RpcInit<'a> {
    /// Name of the worker.
    pub name: &'a str,
    /// Number of the worker; `None` takes it from the URL or the environment.
    pub rank: Option<u16>,
    /// Number of workers; `None` for a dynamic group.
    pub world_size: Option<u16>,
    /// Options, which name the backend; `None` uses the defaults of `tcp`.
    pub options: Option<RpcOptions>,
    /// Values of the environment. Nothing here reads it.
    pub environment: RankEnvironment,
    /// Address at which the worker that hosts the store listens, if it is not that of the URL.
    pub listen_host: Option<String>,
    /// Ends the call in every phase: the rendezvous, joining, and verifying the other workers. Joining is undone at the
    /// workers that were already notified.
    pub token: CancelToken,
}

enum Slot {
    Free,
    /// A thread is creating a worker.
    Busy,
    Taken(Taken),
}

struct Taken {
    agent: Arc<dyn RpcWorker>,
    /// This process may host it.
    _store: Arc<NodeStore>,
    /// The keys of the group in a store that ends with the worker, if this process hosts it.
    hosted: Option<Arc<Store>>,
    /// Ends the wait for the others after the worker has left.
    hosting: CancelToken,
}

/// RPC of one user of the library: its backends, and the one worker that it may have. It uses no global state.
pub struct RpcContext {
    rendezvous: Arc<Context>,
    registry: Mutex<RpcBackendRegistry>,
    slot: Mutex<Slot>,
    /// Number of attempts to create a worker. Consecutive groups have prefixes of their own.
    inits: AtomicU64,
}

opaque_debug!(RpcContext);

impl Default for RpcContext {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

/// Guard of the slot while a worker is being created; frees it if none is.
struct SlotGuard<'a>(&'a Mutex<Slot>);

impl SlotGuard<'_> {
    fn fill(self, agent: Arc<dyn RpcWorker>, store: Arc<NodeStore>, hosted: Option<Arc<Store>>) {
        let hosting = CancelToken::new();
        *self.0.locked() = Slot::Taken(Taken { agent, _store: store, hosted, hosting });
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let mut slot = self.0.locked();
        if matches!(*slot, Slot::Busy) {
            *slot = Slot::Free;
        }
    }
}

impl RpcContext {
    /// Creates a context whose groups meet by the URL schemes of `rendezvous`.
    pub fn new(rendezvous: Arc<Context>) -> Self {
        let context = Self {
            rendezvous,
            registry: Mutex::default(),
            slot: Mutex::new(Slot::Free),
            inits: AtomicU64::new(0),
        };
        // The name cannot be taken yet.
        context.register(DEFAULT_BACKEND, Arc::new(TcpBackend)).ok();
        context
    }

    /// Registers a backend.
    ///
    /// # Errors
    /// The name is taken, even if by the same backend.
    pub fn register(&self, name: &str, backend: Arc<dyn RpcBackend>) -> Result<(), BackendError> {
        self.registry.locked().register(name, backend)
    }

    /// Names of the backends, the newest first.
    pub fn backends(&self) -> Vec<String> {
        self.registry.locked().names().map(String::from).collect()
    }

    /// Returns the worker, if there is one.
    #[must_use]
    pub fn agent(&self) -> Option<Arc<dyn RpcWorker>> {
        match &*self.slot.locked() {
            Slot::Taken(taken) => Some(Arc::clone(&taken.agent)),
            Slot::Free | Slot::Busy => None,
        }
    }

    /// Returns the options, or else those of `tcp`, with the backend that they name.
    fn choose(&self, options: Option<RpcOptions>) -> Result<(Arc<dyn RpcBackend>, RpcOptions), BackendError> {
        let options = options.unwrap_or_else(|| RpcOptions::new(DEFAULT_BACKEND));
        let backend = Arc::clone(self.registry.locked().find(options.backend())?);
        Ok((backend, options))
    }

    /// Frees the slot if this worker has it.
    fn give_back(&self, agent: &Arc<dyn RpcWorker>) {
        let taken = {
            let mut slot = self.slot.locked();
            match &*slot {
                Slot::Taken(known) if Arc::ptr_eq(&known.agent, agent) => {
                    Some(core::mem::replace(&mut *slot, Slot::Free))
                }
                _ => None,
            }
        };
        // A store that this process hosts ends with it, while no lock is held.
        if let Some(Slot::Taken(taken)) = taken {
            taken.hosting.cancel();
        }
    }

    /// Keeps the store of this worker's group until the others have ended, if this process hosts it for the worker.
    fn host_for_the_others(&self, agent: &Arc<dyn RpcWorker>) {
        let hosted = match &*self.slot.locked() {
            Slot::Taken(Taken { agent: known, hosted: Some(store), hosting, .. })
                if Arc::ptr_eq(known, agent) =>
            {
                Some((Arc::clone(store), hosting.clone()))
            }
            _ => None,
        };
        if let (Some((store, token)), Some(tcp)) = (hosted, agent.tcp()) {
            // Without the server, there are no workers to wait for.
            wait_for_the_last(&store, tcp.membership_timeout(), &token).ok();
        }
    }

    fn begin(&self) -> Result<SlotGuard<'_>, BackendError> {
        let mut slot = self.slot.locked();
        if !matches!(*slot, Slot::Free) {
            return Err(BackendError::AlreadyInitialized);
        }
        *slot = Slot::Busy;
        Ok(SlotGuard(&self.slot))
    }

    /// Makes this process a worker of a group, as PyTorch's `init_rpc` does. A context has one worker at a time.
    ///
    /// # Errors
    /// It did not become one, and nothing is left of it in this process.
    pub fn init(&self, init: RpcInit<'_>) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let RpcInit { name, rank, world_size, options, environment, listen_host, token } = init;
        let name = WorkerName::new(name)?;
        let (backend, options) = self.choose(options)?;
        let slot_guard = self.begin()?;
        // A world size of 0 counts as none, as in Python.
        let world_size = world_size.filter(|&size| size > 0);
        let membership_timeout =
            options.extra_options::<TcpOptions>().and_then(|extra_options| extra_options.membership_timeout);
        let timeout = membership_timeout.or(options.rpc_timeout()).unwrap_or(TIMEOUT);
        let url = UrlOptions {
            rank: rank.map_or(-1, i64::from),
            world_size: world_size.map_or(WorldSize::Dynamic, |size| WorldSize::Known(size.into())),
            timeout,
            listen_host,
            environment,
            canceller: Canceller::of(&token, None),
        };
        let meeting = self.rendezvous.rendezvous(options.init_method(), url)?.next()?;
        // Counted as PyTorch's processes count: an attempt whose rendezvous failed does not count.
        let number = self.inits.fetch_add(1, Ordering::Relaxed);
        let id = u16::try_from(meeting.rank).map_err(|_| RpcInitError::Rank { rank: meeting.rank })?;
        let prefix = format!("rpc_prefix_{number}");
        let store = meeting.store.with_prefix(prefix.as_bytes());
        let request = InitRequest { store, worker: WorkerInfo { name, id }, world_size, token };
        let hosted = meeting.store.server().map(|_| Arc::new(meeting.store.with_prefix(prefix.as_bytes())));
        let agent = backend.init_backend(request, options)?;
        slot_guard.fill(Arc::clone(&agent), meeting.store, hosted);
        Ok(agent)
    }

    /// Makes this process a worker of a group over an existing store, whose keys are the group's own. The URL of the
    /// options and the environment are ignored.
    ///
    /// # Errors
    /// As [`RpcContext::init`], or the rank is missing.
    pub fn init_over(
        &self,
        store: Arc<NodeStore>,
        init: RpcInit<'_>,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let RpcInit { name, rank, world_size, options, token, .. } = init;
        let name = WorkerName::new(name)?;
        let id = rank.ok_or(RpcInitError::Rank { rank: -1 })?;
        let (backend, options) = self.choose(options)?;
        let slot_guard = self.begin()?;
        let world_size = world_size.filter(|&size| size > 0);
        // A separate handle, so that cancelling the worker's operations does not cancel the caller's.
        let duplicate = store.with_token(&token).duplicate()?;
        let request = InitRequest { store: duplicate, worker: WorkerInfo { name, id }, world_size, token };
        let agent = backend.init_backend(request, options)?;
        // The caller keeps the store.
        slot_guard.fill(Arc::clone(&agent), store, None);
        Ok(agent)
    }

    /// Ends the worker of this context, which may have another one afterwards. Does nothing if there is none.
    ///
    /// # Errors
    /// It did not end as it should. It has ended nevertheless, except for [`MembershipError::Reentrant`].
    pub fn shutdown(&self, how: Shutdown) -> Result<(), MembershipError> {
        let Some(agent) = self.agent() else { return Ok(()) };
        self.end(&agent, how)
    }

    /// Ends this worker. If it is the one of this context, the context may have another one afterwards. If this process
    /// hosts the group's store for it, a graceful end also waits until the others have ended, with the timeout of
    /// leaving: the store ends with the worker.
    ///
    /// # Errors
    /// As [`RpcContext::shutdown`].
    pub fn end(&self, agent: &Arc<dyn RpcWorker>, how: Shutdown) -> Result<(), MembershipError> {
        let end = agent.shutdown(how);
        if end != Err(MembershipError::Reentrant) {
            if how == Shutdown::Graceful {
                self.host_for_the_others(agent);
            }
            self.give_back(agent);
        }
        end
    }

    /// Ends this worker at once without notifying the others, even within one of its own handlers or callbacks. If it
    /// is the one of this context, the context may have another one afterwards.
    pub fn abandon(&self, agent: &Arc<dyn RpcWorker>) {
        agent.abandon();
        self.give_back(agent);
    }
}
