//! A worker of an RPC group.

use crate::argument::{invalid, out_pointer, reference, reference_mut, text};
use crate::buffer::{borrowed, rdzv_buffer, rdzv_list};
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::rpc_end::shutdown_of;
use crate::rpc_fault::{agent_fault, backend_fault, group_call_fault, init_fault};
use crate::rpc_handlers::{Entry, parsed, rdzv_rpc_handlers, rdzv_rpc_request, rdzv_rpc_responder};
use crate::rpc_options::Given;
use crate::rpc_options::{list_map, rdzv_rpc_options};
use crate::rpc_plugin::AgentCode;
use crate::rpc_reentry::refuse_reentry;
use crate::rpc_workers::rdzv_rpc_workers;
use crate::sized;
use crate::status::*;
use crate::store::{rdzv_store, span};
use rendezvous_core::driver::canceller::{Cancellable, Canceller};
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::store::Timeouts;
use rendezvous_core::rendezvous::url::RankEnvironment;
use rendezvous_rpc::agent::{AgentError, GroupEvent, NotCallable, unless_abandoned};
use rendezvous_rpc::driver::calls::handling::Handling;
use rendezvous_rpc::driver::group::{
    Callee, GroupCallError, RpcAgent, RpcInit, RpcInitError, RpcWorker, TcpOptions,
};
use rendezvous_rpc::driver::loop_member::RpcRequestQueue;
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use rendezvous_rpc::registry::{BaseOptions, DEFAULT_BACKEND};
use std::ffi::c_void;
use std::fmt;
use std::ptr::null;
use std::sync::Arc;

/// Nothing happened.
pub const RDZV_RPC_EVENT_NONE: i32 = 0;
/// A worker came.
pub const RDZV_RPC_EVENT_JOINED: i32 = 1;
/// A worker went.
pub const RDZV_RPC_EVENT_LEFT: i32 = 2;
/// A worker died.
pub const RDZV_RPC_EVENT_DIED: i32 = 3;
/// This worker is of its group no more; there will be no further event.
pub const RDZV_RPC_EVENT_OVER: i32 = 4;
/// Deaths are told no more as they happen: this worker's session with the store's server has ended, or what
/// tells of the others has failed otherwise. Told once. The group goes on, and calls work; a call to a dead
/// worker fails when it is made.
pub const RDZV_RPC_EVENT_WATCH_LOST: i32 = 5;

/// What happened to a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rpc_event {
    /// Set it to `sizeof(rdzv_rpc_event)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// One of `RDZV_RPC_EVENT_NONE` and so on; there may be more one day.
    pub kind: i32,
    /// The number of the worker that it is about; -1 where there is none.
    pub id: i32,
    /// Not used; 0.
    pub reserved: u32,
}

pub(crate) const EVENT_FIRST_SIZE: usize = 16;

/// A worker of an RPC group. Any thread may use it, several at a time.
pub struct rdzv_rpc {
    pub(crate) poison: Poison,
    pub(crate) agent: Arc<dyn RpcWorker>,
    pub(crate) home: Arc<Home>,
    /// Ends calls that wait, from another thread.
    pub(crate) canceller: Canceller,
    pub(crate) end: HandleEnd,
}

/// What becomes of a worker whose handle is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleEnd {
    EndsWorker,
    LeavesWorker,
}

impl fmt::Debug for rdzv_rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rdzv_rpc({})", self.agent.me())
    }
}

impl Drop for rdzv_rpc {
    fn drop(&mut self) {
        if self.end == HandleEnd::EndsWorker {
            // Whoever wants to hear how it ended shuts it down before.
            self.home.rpc().abandon(&self.agent);
        }
    }
}

/// What makes a worker's calls.
#[derive(Clone, Copy)]
pub(crate) enum Calls<'a> {
    Tcp(&'a RpcAgent),
    Foreign(&'a AgentCode),
}

impl rdzv_rpc {
    pub(crate) fn new(agent: Arc<dyn RpcWorker>, home: Arc<Home>, end: HandleEnd) -> Self {
        Self { poison: Poison::default(), agent, home, canceller: Canceller::default(), end }
    }

    pub(crate) fn calls(&self) -> Result<Calls<'_>, Fault> {
        if let Some(tcp) = self.agent.tcp() {
            return Ok(Calls::Tcp(tcp));
        }
        let foreign = self.agent.foreign().and_then(|foreign| foreign.downcast_ref());
        foreign.map(Calls::Foreign).ok_or_else(|| {
            Fault::new(RDZV_UNSUPPORTED, "the backend of this worker has no calls for C programs")
        })
    }

    fn tcp(&self, what: &str) -> Result<&RpcAgent, Fault> {
        self.agent.tcp().ok_or_else(|| {
            Fault::new(RDZV_UNSUPPORTED, format!("a backend of the program's own has no {what} for this"))
        })
    }
}

/// Runs a function on a worker.
unsafe fn operate(
    rpc: *const rdzv_rpc,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&rdzv_rpc) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(rpc.as_ref().map(|rpc| &rpc.poison), error, || {
            let rpc = reference(rpc, "rpc")?;
            rpc.home.refuse_sink()?;
            body(rpc)
        })
    }
}

/// A number that C gives, where -1 stands for none.
fn number(number: i32, name: &str) -> Result<Option<u16>, Fault> {
    match number {
        -1 => Ok(None),
        number => u16::try_from(number)
            .map(Some)
            .map_err(|_| invalid(format!("`{name}` is {number}: from 0 to 65535, or -1 for none"))),
    }
}

/// All that a worker is made of, copied.
pub(crate) struct Making {
    home: Arc<Home>,
    store: Option<Arc<NodeStore>>,
    name: String,
    rank: Option<u16>,
    world_size: Option<u16>,
    options: RpcOptions,
    tcp: TcpOptions,
    entries: Vec<Entry>,
    environment: RankEnvironment,
    listen_host: Option<String>,
    /// Whoever has the options that it is made with ends its making from another thread.
    making: Cancellable,
}

/// Who a worker is to be, as C says it.
pub(crate) struct Named {
    pub(crate) name: *const u8,
    pub(crate) name_len: usize,
    pub(crate) rank: i32,
    pub(crate) world_size: i32,
}

impl Making {
    pub(crate) unsafe fn new(
        home: Arc<Home>,
        store: Option<&rdzv_store>,
        named: Named,
        options: *const rdzv_rpc_options,
        handlers: *const rdzv_rpc_handlers,
    ) -> Result<Self, Fault> {
        refuse_reentry()?;
        // SAFETY: the pointers are NULL or live, as the header wants it.
        let (name, given, handlers) =
            unsafe { (text(named.name, named.name_len, "name")?, options.as_ref(), handlers.as_ref()) };
        let (rank, world_size) = (number(named.rank, "rank")?, number(named.world_size, "world_size")?);
        let plain;
        let given = match given {
            Some(given) => given,
            None => {
                let rpc = home.rpc();
                let made = rpc.construct_options(DEFAULT_BACKEND, BaseOptions::default(), &[]);
                plain = rdzv_rpc_options::new(made.map_err(|error| backend_fault(&error))?);
                &plain
            }
        };
        Ok(Self {
            store: store.map(|store| Arc::clone(&store.store)),
            name: name.into(),
            rank,
            world_size,
            options: given.options.clone(),
            tcp: given.tcp.clone(),
            entries: handlers.map(rdzv_rpc_handlers::entries).unwrap_or_default().to_vec(),
            environment: given.environment.clone(),
            listen_host: given.listen_host.clone(),
            making: given.canceller.begin(),
            home,
        })
    }

    /// Makes it for a loop, which may give that up, too.
    pub(crate) fn run_for(
        self,
        queue: &RpcRequestQueue,
        joining: Canceller,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let (making, cancels) = (self.making.clone(), joining.clone());
        let _watch = making.watch(move || cancels.cancel());
        self.make(Some(queue), joining)
    }

    /// Makes it for none.
    fn run(self) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let canceller = self.making.for_parts();
        self.make(None, canceller)
    }

    fn make(
        self,
        queue: Option<&RpcRequestQueue>,
        canceller: Canceller,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let Self { home, store, name, rank, world_size, mut options, mut tcp, entries, .. } = self;
        let refused = |fault: Fault| RpcInitError::Foreign {
            status: fault.status,
            message: fault.message.as_str().into(),
        };
        let entries: Result<Vec<Entry>, Fault> = entries.iter().map(|entry| entry.at(queue)).collect();
        let entries = entries.map_err(refused)?;
        if &*options.kind().0 == DEFAULT_BACKEND {
            let threads = usize::try_from(options.worker_threads()).unwrap_or(usize::MAX);
            let handling = Handling::new(threads);
            entries.iter().try_for_each(|entry| entry.register(&handling)).map_err(refused)?;
            tcp.handling = Some(handling);
            options.set_extra(Box::new(tcp));
        } else {
            let extra_options =
                options.extra_options::<Given>().map(|given| given.extra_options.clone()).unwrap_or_default();
            options.set_extra(Box::new(Given {
                entries,
                shared: Some(Arc::clone(home.shared())),
                extra_options,
                ..Given::default()
            }));
        }
        let request = RpcInit {
            name: &name,
            rank,
            world_size,
            options: Some(options),
            environment: self.environment,
            listen_host: self.listen_host,
            canceller,
            ..RpcInit::default()
        };
        match store {
            Some(store) => home.rpc().init_over(store, request),
            None => home.rpc().init(request),
        }
    }
}

/// Makes a worker, and waits for it.
unsafe fn init(
    home: Arc<Home>,
    store: Option<&rdzv_store>,
    named: Named,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
) -> Result<*mut rdzv_rpc, Fault> {
    // SAFETY: passed on as they came.
    let making = unsafe { Making::new(Arc::clone(&home), store, named, options, handlers) }?;
    let agent = making.run().map_err(|error| init_fault(&error))?;
    Ok(Box::into_raw(Box::new(rdzv_rpc::new(agent, home, HandleEnd::EndsWorker))))
}

/// What C is told of a change of the group, where there was one: its kind, whom it is about, and what is known.
pub(crate) fn view(event: Option<&GroupEvent>) -> (i32, Option<&WorkerInfo>, &str) {
    match event {
        None => (RDZV_RPC_EVENT_NONE, None, ""),
        Some(GroupEvent::Joined(worker)) => (RDZV_RPC_EVENT_JOINED, Some(worker), ""),
        Some(GroupEvent::Left(worker)) => (RDZV_RPC_EVENT_LEFT, Some(worker), ""),
        Some(GroupEvent::PeerDied { worker, why }) => (RDZV_RPC_EVENT_DIED, Some(worker), why),
        Some(GroupEvent::WatchLost { why }) => (RDZV_RPC_EVENT_WATCH_LOST, None, why),
    }
}

/// How a worker ended, in words; none, if it did as it should.
pub(crate) fn describe_end(end: &Result<(), AgentError>) -> String {
    end.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

/// Tells C so.
pub(crate) unsafe fn put_event(
    (kind, worker, message): (i32, Option<&WorkerInfo>, &str),
    event: *mut rdzv_rpc_event,
    given: usize,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
) {
    let id = worker.map_or(-1, |worker| i32::from(worker.id));
    // SAFETY: the pointers are NULL or valid as the header requires.
    unsafe {
        sized::put(event, given, &rdzv_rpc_event { struct_size: 0, kind, id, reserved: 0 });
        if let Ok(name) = reference_mut(name, "name") {
            name.put(worker.map_or(&[][..], |worker| worker.name.as_bytes()));
        }
        if let Ok(why) = reference_mut(why, "why") {
            why.put(message.as_bytes());
        }
    }
}

/// Makes this process a worker of a group, as PyTorch's `init_rpc`, and returns once it is a member. The
/// group meets by the URL of the options, and its keys stand beneath `rpc_prefix_N`, where N counts the
/// attempts of the context. `rank`: the worker's number; -1: the URL or the variables say it. `world_size`:
/// how many workers a static group has; -1 or 0 for a dynamic one, whose workers come and go. `options` may
/// be NULL for those of `tcp`, `handlers` NULL for none, `context` NULL for a fresh one. A context has one
/// worker at a time. On success the caller owns `*out` and frees it with `rdzv_rpc_free`; on failure
/// nothing is left in this process. `rdzv_rpc_options_cancel` ends it from another thread.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (name, rank, URL), `RDZV_RPC_ALREADY_INITIALIZED`,
/// `RDZV_BACKEND_MISMATCH` (no backend makes such options), `RDZV_RPC_MIXED_GROUP`, `RDZV_RPC_NAME_TAKEN`,
/// `RDZV_RPC_DEVICE_MAP`, `RDZV_TIMED_OUT` (`rdzv_error_rank` has who did not come), `RDZV_RPC_UNREACHED`,
/// `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`, `RDZV_RPC_MEMBERSHIP`, `RDZV_SERVER_GONE` (the store),
/// `RDZV_CANCELLED`, `RDZV_REENTRANT` (a backend that makes options asks); those of
/// `rdzv_rendezvous_url_next` and `rdzv_server_start`; of a backend of yours what its `init` returns, and
/// `RDZV_WRONG_PROTOCOL` (it gave no worker).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_init(
    context: *const rdzv_context,
    name: *const u8,
    name_len: usize,
    rank: i32,
    world_size: i32,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
    out: *mut *mut rdzv_rpc,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let out = out_pointer(out, "out")?;
            let named = Named { name, name_len, rank, world_size };
            out.put(init(home(context)?, None, named, options, handlers)?);
            Ok(())
        })
    }
}

/// The same over a store that is there already. The keys of the group are those of `store`: give each group a
/// prefix (`rdzv_store_with_prefix`). A reference is kept: you may free your handle. `rank` must be set. What
/// the options say of the way to meet is passed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_init_over_store(
    context: *const rdzv_context,
    store: *const rdzv_store,
    name: *const u8,
    name_len: usize,
    rank: i32,
    world_size: i32,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
    out: *mut *mut rdzv_rpc,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let out = out_pointer(out, "out")?;
            let store = reference(store, "store")?;
            let named = Named { name, name_len, rank, world_size };
            out.put(init(home(context)?, Some(store), named, options, handlers)?);
            Ok(())
        })
    }
}

/// Ends the worker abruptly, unless it was shut down, and frees it. No other call on it may be under way, but
/// for futures, which fail. Also from a handler or a callback of the worker's own: then its threads end when
/// that has returned. Otherwise pooled handlers that are at work are waited for, up to 30 s, and none begins;
/// `destroy` tells for certain that a handler is needed no more. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_free(rpc: *mut rdzv_rpc) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(rpc) };
}

/// Ends the worker: `how` is `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`. It has ended when this returns,
/// whatever it returns but `RDZV_REENTRANT`, and the context may have another worker. A second time changes
/// nothing, and tells how it ended.
///
/// A graceful end awaits the calls that this worker has under way, those that are made meanwhile among
/// them, leaves the group, which ends calls that were begun later, and answers what others have asked it
/// before they heard so: each of the three for the membership timeout at most; then handlers that are still
/// at work are awaited for up to 30 s. Handlers of a loop are answered by the thread of that loop, which
/// must not wait here (`rdzv_loop_rpc_shutdown`). Where this process hosts the group's store for the worker
/// (`tcp://` and `env://`, rank 0), the store ends with the worker: a graceful end waits for the membership
/// timeout at most until the other workers have ended. An abrupt end ends calls at once and waits for nobody.
///
/// Errors: `RDZV_REENTRANT` (a handler, a callback, or in a backend of yours the worker's own functions ask
/// for it; it goes on), `RDZV_TIMED_OUT` (calls of its own had to be cut: `rdzv_error_node` has who was
/// called; or others of a static group have not done with theirs: `rdzv_error_rank`; or the store does not
/// answer), `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`, `RDZV_SERVER_GONE`, `RDZV_RPC_UNREACHED` (the leader
/// of a static group), `RDZV_RPC_MEMBERSHIP` (the keys of the group are none), `RDZV_CANCELLED`,
/// `RDZV_RPC_NO_MEMBER` (it had been, or was meanwhile, ended abruptly), `RDZV_PANIC` (a thread of the
/// library's failed; that is a defect), `RDZV_INVALID_ARGUMENT` (`how`); of a backend of yours what its
/// `shutdown` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_shutdown(
    rpc: *const rdzv_rpc,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        operate(rpc, error, |of| {
            let how = shutdown_of(how)?;
            if let Ok(Calls::Foreign(code)) = of.calls() {
                code.refuse_recursion()?;
            }
            let ended = of.home.rpc().end(&of.agent, how);
            ended.map_err(|error| agent_fault(&error).during("shutdown"))
        })
    }
}

/// Ends every `rdzv_rpc_call` and `rdzv_rpc_next_event` that is under way on this handle, in whatever thread,
/// with `RDZV_CANCELLED`. The workers that were called are told; a backend of yours sees it
/// (`rdzv_rpc_responder_is_wanted`). Futures and callbacks go on (`rdzv_rpc_future_cancel`), and so does
/// `rdzv_rpc_shutdown`, which an abrupt shutdown in another thread ends. Later calls are not affected. Any
/// thread, but not from a callback. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_cancel(rpc: *const rdzv_rpc) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, (), |of| of.canceller.cancel()) };
}

/// The worker's own name, its length in `*len` unless `len` is NULL. The string is not NUL-terminated and
/// is valid as long as the worker. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_name(rpc: *const rdzv_rpc, len: *mut usize) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, null(), |of| borrowed(of.agent.me().name.as_bytes(), len)) }
}

/// The worker's own number; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_id(rpc: *const rdzv_rpc) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, -1, |of| i32::from(of.agent.me().id)) }
}

/// Where the worker takes calls, as its name is given. NULL also for a worker of a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_address(rpc: *const rdzv_rpc, len: *mut usize) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(rpc, null(), |of| {
            of.agent.tcp().map_or(null(), |tcp| borrowed(tcp.address().as_bytes(), len))
        })
    }
}

/// All workers of the group, this one included; none once it is of no group any more. On success the caller
/// owns `*out` and frees it with `rdzv_rpc_workers_free`.
///
/// Errors: of a backend of yours what its `list_workers` returns, `RDZV_INVALID_ARGUMENT` (it answers what
/// is no worker), and `RDZV_REENTRANT` where the same worker's functions ask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_workers(
    rpc: *const rdzv_rpc,
    out: *mut *mut rdzv_rpc_workers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            let out = out_pointer(out, "out")?;
            let workers = match of.agent.tcp() {
                Some(tcp) => rdzv_rpc_workers::of_seen(tcp.places()),
                None => rdzv_rpc_workers::of_group(of.agent.workers().map_err(|error| agent_fault(&error))?),
            };
            out.put(Box::into_raw(Box::new(workers)));
            Ok(())
        })
    }
}

/// The worker of a name or number.
fn find(of: &rdzv_rpc, callee: Callee<'_>) -> Result<WorkerInfo, Fault> {
    let is_it = |worker: &WorkerInfo| match callee {
        Callee::Name(name) => worker.name.as_str() == name,
        Callee::Id(id) => worker.id == id,
    };
    let workers = of.agent.workers().map_err(|error| agent_fault(&error))?;
    workers.into_iter().find(is_it).ok_or_else(|| {
        let unknown = match callee {
            Callee::Name(name) => NotCallable::UnknownName { name: name.into() },
            Callee::Id(id) => NotCallable::UnknownId { id },
        };
        group_call_fault(&GroupCallError::NotCallable(unknown))
    })
}

/// The number of the worker with this name goes to `*id`.
///
/// Errors: `RDZV_RPC_UNKNOWN_WORKER`; those of `rdzv_rpc_list_workers`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_worker_id(
    rpc: *const rdzv_rpc,
    name: *const u8,
    name_len: usize,
    id: *mut u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            let id = out_pointer(id, "id")?;
            id.put(find(of, Callee::Name(text(name, name_len, "name")?))?.id);
            Ok(())
        })
    }
}

/// The name of the worker with this number replaces the content of `name`.
///
/// Errors: `RDZV_RPC_UNKNOWN_WORKER`; those of `rdzv_rpc_list_workers`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_worker_name(
    rpc: *const rdzv_rpc,
    id: u16,
    name: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            reference_mut(name, "name")?.put(find(of, Callee::Id(id))?.name.as_bytes());
            Ok(())
        })
    }
}

/// The devices that the worker uses, by their names and sorted by index, replace the content of `names`: those
/// that its options list, or else all that its maps begin at and the others' maps for it end at.
///
/// Errors: `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_devices(
    rpc: *const rdzv_rpc,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            let list = reference_mut(names, "names")?;
            let devices = of.tcp("devices")?.devices();
            list.items = devices.iter().map(|device| device.to_string().into_bytes()).collect();
            Ok(())
        })
    }
}

/// The worker's reverse maps in words, which replace the content of `message`: for each caller that has a map
/// for this worker, where answers go. As Python writes dictionaries.
///
/// Errors: `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_reverse_maps(
    rpc: *const rdzv_rpc,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            let maps = of.tcp("device maps")?.reverse_maps();
            reference_mut(message, "message")?.put(maps.to_string().as_bytes());
            Ok(())
        })
    }
}

/// The reverse map for a caller, where answers to it go, replaces the content of the two lists: `from[i]`
/// here is `to[i]` there, sorted by `from`. Both are empty where the caller has no map for this worker.
///
/// Errors: `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_reverse_map(
    rpc: *const rdzv_rpc,
    caller: *const u8,
    caller_len: usize,
    from: *mut rdzv_list,
    to: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        operate(rpc, error, |of| {
            let maps = of.tcp("device maps")?.reverse_maps();
            list_map(maps.get(text(caller, caller_len, "caller")?), from, to)
        })
    }
}

/// How many events were lost, because nobody asked for them, here or in a loop. 0 for NULL, and with a
/// backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_events_lost(rpc: *const rdzv_rpc) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, 0, |of| of.agent.tcp().map_or(0, RpcAgent::events_lost)) }
}

/// Adds a handler while the worker lives, as `rdzv_rpc_handlers_add`. Others may have called it before.
///
/// Errors besides: `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_add_handler(
    rpc: *const rdzv_rpc,
    name: *const u8,
    name_len: usize,
    run: i32,
    handle: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            request: *const rdzv_rpc_request,
            responder: *mut rdzv_rpc_responder,
        ),
    >,
    user_data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, |of| {
            let handling = of.tcp("handlers")?.handling();
            let take = |entry: Entry| entry.register(handling);
            parsed((name, name_len), run, handle, (user_data, destroy), take)
        })
    }
}

/// Takes a handler out; whether there was one, 1 or 0, goes to `*found`, unless `found` is NULL. Requests that
/// it has are carried out to their ends.
///
/// Errors: `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_remove_handler(
    rpc: *const rdzv_rpc,
    name: *const u8,
    name_len: usize,
    found: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, |of| {
            let was_there = of.tcp("handlers")?.handling().remove(text(name, name_len, "name")?);
            if let Ok(found) = out_pointer(found, "found") {
                found.put(i32::from(was_there));
            }
            Ok(())
        })
    }
}

/// Waits up to `timeout_ms` (0 looks once; -1: 300,000) for the next thing that happens to the group, and
/// fills `*event`, of which `struct_size` must be set; its kind is `RDZV_RPC_EVENT_NONE` when nothing
/// did. The name of the worker that it is about replaces the content of `name`, and what is known of a
/// death, why deaths are told no more, or how this worker fell out of the group that of `why`; both may be
/// NULL. Each event is told once, to one thread; `RDZV_RPC_EVENT_OVER` is the last. Of more than 4,096 that
/// nobody asks for, the oldest are lost.
///
/// Errors: `RDZV_RPC_NO_MEMBER` at once when the worker has ended and that was told; `RDZV_CANCELLED` after
/// `rdzv_rpc_cancel`; `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_next_event(
    rpc: *const rdzv_rpc,
    timeout_ms: i64,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, |of| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let tcp = of.tcp("events")?;
            let cancellable = of.canceller.begin();
            let timeout = span(timeout_ms, Timeouts::default().call)?;
            let happened = tcp.next_event_unless(timeout, &cancellable);
            if happened.is_none() && cancellable.is_cancelled() {
                let message = "waiting for an event was cancelled";
                return Err(Fault::new(RDZV_CANCELLED, message).during("next_event"));
            }
            let end = if happened.is_none() { tcp.end().map(unless_abandoned) } else { None };
            let message = end.as_ref().map(describe_end);
            if let Some(message) = &message
                && tcp.take_end().is_none()
            {
                let message = format!("the worker has ended, and its end was told before: {message}");
                return Err(Fault::new(RDZV_RPC_NO_MEMBER, message).during("next_event"));
            }
            let ending = match &message {
                Some(message) => (RDZV_RPC_EVENT_OVER, None, &**message),
                None => view(happened.as_ref()),
            };
            put_event(ending, event, given, name, why);
            Ok(())
        })
    }
}
