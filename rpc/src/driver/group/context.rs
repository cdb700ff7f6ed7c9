//! The RPC of a context: its backends, and the one worker that it may have.

use super::hosting::wait_for_the_last;
use super::worker::{RpcAgent, TcpOptions};
use super::{RpcInitError, RpcWorker};
use crate::agent::AgentError;
use crate::name::{WorkerInfo, WorkerName};
use crate::options::{OptionsError, RpcOptions};
use crate::registry::{
    BackendError, BackendType, BaseOptions, DEFAULT_BACKEND, InitRequest, RpcBackend, RpcBackendRegistry,
    tcp_options,
};
use crate::shutdown::Shutdown;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use rendezvous_core::driver::canceller::{Cancellable, Canceller};
use rendezvous_core::driver::rendezvous::{Context, NodeStore, UrlOptions};
use rendezvous_core::driver::store::Store;
use rendezvous_core::rendezvous::url::{RankEnvironment, WorldSize};
use rendezvous_core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Any backend of a context's.
pub type AnyRpcBackend = dyn RpcBackend<Store = Store, Call = Cancellable, Agent = Arc<dyn RpcWorker>, Error = RpcInitError>
    + Send
    + Sync;

/// How long the rendezvous may take where calls may take as long as they like.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The backend that comes with the library.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpBackend;

impl RpcBackend for TcpBackend {
    type Store = Store;
    type Call = Cancellable;
    type Agent = Arc<dyn RpcWorker>;
    type Error = RpcInitError;

    fn construct_options(
        &self,
        base: BaseOptions<'_>,
        extra_options: &[(&str, &str)],
    ) -> Result<RpcOptions, OptionsError> {
        tcp_options(base, extra_options)
    }

    fn init_backend(
        &self,
        request: InitRequest<Store, Cancellable>,
        options: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let InitRequest { store, worker, world_size, call } = request;
        let extra_options = options.extra_options::<TcpOptions>().cloned().unwrap_or_default();
        let extra_options = TcpOptions { call: Some(call), ..extra_options };
        Ok(Arc::new(RpcAgent::start(&store, worker, world_size, &options, &extra_options)?))
    }
}

/// What a process says to become a worker.
#[derive(Debug, Default)]
pub struct RpcInit<'a> {
    /// Its name.
    pub name: &'a str,
    /// The backend; `None`: what the options are of, or `tcp`.
    pub backend: Option<&'a str>,
    /// Its number; `None`: the URL or the environment says it.
    pub rank: Option<u16>,
    /// How many workers there are; `None`: they come and go.
    pub world_size: Option<u16>,
    /// The options; `None`: those that the backend makes when nobody tells anything.
    pub options: Option<RpcOptions>,
    /// What the environment says. Nothing here reads it.
    pub environment: RankEnvironment,
    /// Where the worker that hosts the store listens, when that is not what the URL says.
    pub listen_host: Option<String>,
    /// Ends it from another thread, wherever it is: while the group meets at its store, while the worker joins, and while
    /// it makes sure of the others. What it has told them is taken back.
    pub canceller: Canceller,
}

enum Slot {
    Free,
    /// A thread makes a worker.
    Busy,
    Taken(Taken),
}

struct Taken {
    agent: Arc<dyn RpcWorker>,
    /// This process may host it.
    _store: Arc<NodeStore>,
    /// The keys of the group in a store that goes with the worker, if this process hosts that.
    hosted: Option<Arc<Store>>,
    /// Ends the waiting for the others when the worker has left.
    hosting: Canceller,
}

/// RPC of one user of the library: its backends, and the one worker that it may have. Nothing of it is global.
pub struct RpcContext {
    rendezvous: Arc<Context>,
    registry: Mutex<RpcBackendRegistry<AnyRpcBackend>>,
    slot: Mutex<Slot>,
    /// How often a worker was to be made. Groups one after the other are beneath prefixes of their own.
    inits: AtomicU64,
}

impl fmt::Debug for RpcContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcContext").field("backends", &self.backends()).finish_non_exhaustive()
    }
}

impl Default for RpcContext {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the place of a worker that is being made, and gives it back if none comes to be.
struct Making<'a>(&'a Mutex<Slot>);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut slot = lock(self.0);
        if matches!(*slot, Slot::Busy) {
            *slot = Slot::Free;
        }
    }
}

impl RpcContext {
    /// Workers of groups that meet by the URL schemes of `rendezvous`.
    #[must_use]
    pub fn new(rendezvous: Arc<Context>) -> Self {
        let context = Self {
            rendezvous,
            registry: Mutex::default(),
            slot: Mutex::new(Slot::Free),
            inits: AtomicU64::new(0),
        };
        // Nothing else has the name yet.
        context.register(DEFAULT_BACKEND, Arc::new(TcpBackend)).ok();
        context
    }

    /// Registers a backend.
    ///
    /// # Errors
    /// The name is taken, be it by the same backend.
    pub fn register(&self, name: &str, backend: Arc<AnyRpcBackend>) -> Result<(), BackendError> {
        lock(&self.registry).register(name, backend).map(drop)
    }

    /// The names of the backends, the newest first.
    #[must_use]
    pub fn backends(&self) -> Vec<String> {
        lock(&self.registry).iter().map(|backend| backend.name().to_string()).collect()
    }

    /// Makes options of a backend; `extra_options` are options of the backend's own, as texts.
    ///
    /// # Errors
    /// Nobody has the name, or the backend refuses an option.
    pub fn construct_options(
        &self,
        name: &str,
        base: BaseOptions<'_>,
        extra_options: &[(&str, &str)],
    ) -> Result<RpcOptions, BackendError> {
        // A backend of the program's own may take its time, and may register others.
        let backend = Arc::clone(lock(&self.registry).find(name)?.backend());
        Ok(backend.construct_options(base, extra_options)?)
    }

    /// The worker, if there is one.
    #[must_use]
    pub fn agent(&self) -> Option<Arc<dyn RpcWorker>> {
        match &*lock(&self.slot) {
            Slot::Taken(taken) => Some(Arc::clone(&taken.agent)),
            Slot::Free | Slot::Busy => None,
        }
    }

    fn choose(
        &self,
        name: Option<&str>,
        options: Option<RpcOptions>,
    ) -> Result<(BackendType<AnyRpcBackend>, RpcOptions), BackendError> {
        // A backend of the program's own may take its time, and may register others.
        let registry = lock(&self.registry).clone();
        registry.choose(name, options).map(|(backend, options)| (backend.clone(), options))
    }

    /// This worker, if it is the one of the context, is so no more.
    fn give_back(&self, agent: &Arc<dyn RpcWorker>) {
        let taken = {
            let mut slot = lock(&self.slot);
            match &*slot {
                Slot::Taken(known) if Arc::ptr_eq(&known.agent, agent) => {
                    Some(core::mem::replace(&mut *slot, Slot::Free))
                }
                _ => None,
            }
        };
        // A store that this process hosts goes with it, when nothing is locked.
        if let Some(Slot::Taken(taken)) = taken {
            taken.hosting.cancel();
        }
    }

    /// The store of this worker's group stays until the others have ended, if this process hosts it for the worker.
    fn host_for_the_others(&self, agent: &Arc<dyn RpcWorker>) {
        let hosted = match &*lock(&self.slot) {
            Slot::Taken(Taken { agent: known, hosted: Some(store), hosting, .. })
                if Arc::ptr_eq(known, agent) =>
            {
                Some((Arc::clone(store), hosting.begin()))
            }
            _ => None,
        };
        if let (Some((store, call)), Some(tcp)) = (hosted, agent.tcp()) {
            // Without its server, there is nobody to be waited for.
            wait_for_the_last(&store, tcp.membership_timeout(), &call).ok();
        }
    }

    fn begin(&self) -> Result<Making<'_>, BackendError> {
        let mut slot = lock(&self.slot);
        if !matches!(*slot, Slot::Free) {
            return Err(BackendError::AlreadyInitialized);
        }
        *slot = Slot::Busy;
        Ok(Making(&self.slot))
    }

    /// Makes this process a worker of a group, as PyTorch's `init_rpc`. There is one in a context at a time.
    ///
    /// # Errors
    /// It is none, and nothing is left of it in this process.
    pub fn init(&self, init: RpcInit<'_>) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let RpcInit { name, backend, rank, world_size, options, environment, listen_host, canceller } = init;
        let call = canceller.begin();
        let name = WorkerName::new(name)?;
        let (backend, options) = self.choose(backend, options)?;
        let making = self.begin()?;
        // A world of nobody is none, as in Python.
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
            canceller: call.for_parts(),
        };
        let meeting = self.rendezvous.rendezvous(options.init_method(), url)?.next()?;
        // As PyTorch's processes count: who met nobody has not begun.
        let number = self.inits.fetch_add(1, Ordering::Relaxed);
        let id = u16::try_from(meeting.rank).map_err(|_| RpcInitError::Rank { rank: meeting.rank })?;
        let prefix = format!("rpc_prefix_{number}");
        let store = meeting.store.with_prefix(prefix.as_bytes());
        let request = InitRequest { store, worker: WorkerInfo { name, id }, world_size, call };
        let agent = backend.backend().init_backend(request, options)?;
        let hosted = meeting.store.server().map(|_| Arc::new(meeting.store.with_prefix(prefix.as_bytes())));
        let (taken, hosting) = (Arc::clone(&agent), Canceller::default());
        *lock(&self.slot) = Slot::Taken(Taken { agent: taken, _store: meeting.store, hosted, hosting });
        drop(making);
        Ok(agent)
    }

    /// The same, with a store that is there already: its keys are the group's own. Neither the URL of the options nor the
    /// environment says anything.
    ///
    /// # Errors
    /// As [`RpcContext::init`]; and the rank is missing.
    pub fn init_over(
        &self,
        store: Arc<NodeStore>,
        init: RpcInit<'_>,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let RpcInit { name, backend, rank, world_size, options, canceller, .. } = init;
        let call = canceller.begin();
        let name = WorkerName::new(name)?;
        let id = rank.ok_or(RpcInitError::Rank { rank: -1 })?;
        let (backend, options) = self.choose(backend, options)?;
        let making = self.begin()?;
        let world_size = world_size.filter(|&size| size > 0);
        // A handle of its own: to cancel what the worker asks ends nothing of the caller's.
        let extra_options = store.duplicate_cancellable(&call)?;
        let request = InitRequest { store: extra_options, worker: WorkerInfo { name, id }, world_size, call };
        let agent = backend.backend().init_backend(request, options)?;
        let (taken, hosting) = (Arc::clone(&agent), Canceller::default());
        // Who made the store keeps it.
        *lock(&self.slot) = Slot::Taken(Taken { agent: taken, _store: store, hosted: None, hosting });
        drop(making);
        Ok(agent)
    }

    /// Ends the worker of this context; there may be another one then.
    ///
    /// # Errors
    /// It ended otherwise than it should. It has ended all the same, but for [`AgentError::Reentrant`]. Where there is
    /// none, that is no error.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), AgentError> {
        let Some(agent) = self.agent() else { return Ok(()) };
        self.end(&agent, how)
    }

    /// Ends this worker, and if it is the one of this context, there may be another one then. Where this process hosts the
    /// group's store for it, a graceful end waits until the others have ended as well, as long as for its leave: the store
    /// ends with the worker.
    ///
    /// # Errors
    /// As [`RpcContext::shutdown`].
    pub fn end(&self, agent: &Arc<dyn RpcWorker>, how: Shutdown) -> Result<(), AgentError> {
        let end = agent.shutdown(how);
        if end != Err(AgentError::Reentrant) {
            if how == Shutdown::Graceful {
                self.host_for_the_others(agent);
            }
            self.give_back(agent);
        }
        end
    }

    /// Ends this worker at once and without a word, also within one of its own handlers or callbacks. If it is the one of
    /// this context, there may be another one then.
    pub fn abandon(&self, agent: &Arc<dyn RpcWorker>) {
        agent.abandon();
        self.give_back(agent);
    }
}
