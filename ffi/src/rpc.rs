//! Workers of an RPC group.

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
use crate::rpc_reentry::refuse_reentry;
use crate::rpc_workers::rdzv_rpc_workers;
use crate::sized;
use crate::status::*;
use crate::store::{rdzv_store, span};
use rendezvous_core::driver::cancel::{CancelToken, Canceller};
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::store::Timeouts;
use rendezvous_core::rendezvous::url::RankEnvironment;
use rendezvous_rpc::agent::{GroupEvent, NotCallable};
use rendezvous_rpc::driver::calls::handling::Handling;
use rendezvous_rpc::driver::group::registry::{BaseOptions, DEFAULT_BACKEND};
use rendezvous_rpc::driver::group::{
    Callee, GroupCallError, RpcAgent, RpcInit, RpcInitError, RpcWorker, TcpOptions,
};
use rendezvous_rpc::driver::loop_member::RpcRequestQueue;
use rendezvous_rpc::membership::error::{MembershipError, unless_abandoned};
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use std::ffi::c_void;
use std::fmt;
use std::ptr::null;
use std::sync::Arc;

/// No event occurred.
pub const RDZV_RPC_EVENT_NONE: i32 = 0;
/// A worker joined the group.
pub const RDZV_RPC_EVENT_JOINED: i32 = 1;
/// A worker left the group.
pub const RDZV_RPC_EVENT_LEFT: i32 = 2;
/// A worker died.
pub const RDZV_RPC_EVENT_DIED: i32 = 3;
/// This worker is no longer in its group; no further event follows.
pub const RDZV_RPC_EVENT_OVER: i32 = 4;
/// Deaths are no longer reported as they happen, because this worker's session with the store's server
/// ended or its watch of the other workers failed. Reported once. The group continues and calls work; a
/// call to a dead worker fails when it is made.
pub const RDZV_RPC_EVENT_WATCH_LOST: i32 = 5;

/// Event of a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rpc_event {
    /// Set to `sizeof(rdzv_rpc_event)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// One of the `RDZV_RPC_EVENT_` constants. Later versions may add more.
    pub kind: i32,
    /// Id of the worker concerned; -1 if there is none.
    pub id: i32,
    /// Reserved; 0.
    pub reserved: u32,
}

pub(crate) const EVENT_FIRST_SIZE: usize = 16;

/// Worker of an RPC group. Several threads may use it at the same time.
pub struct rdzv_rpc {
    pub(crate) poison: Poison,
    pub(crate) agent: Arc<dyn RpcWorker>,
    pub(crate) home: Arc<Home>,
    /// Cancels waiting calls from another thread.
    pub(crate) canceller: Canceller,
    pub(crate) end: HandleEnd,
}

/// Effect on the worker when its handle is freed.
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
            // A caller that needs the result shuts the worker down first.
            self.home.rpc().abandon(&self.agent);
        }
    }
}

impl rdzv_rpc {
    pub(crate) fn new(agent: Arc<dyn RpcWorker>, home: Arc<Home>, end: HandleEnd) -> Self {
        Self { poison: Poison::default(), agent, home, canceller: Canceller::default(), end }
    }

    fn tcp(&self, what: &str) -> Result<&RpcAgent, Fault> {
        self.agent
            .tcp()
            .ok_or_else(|| Fault::new(RDZV_UNSUPPORTED, format!("a backend in user code has no {what}")))
    }
}

/// Runs the body of a function on a worker inside the panic guard.
unsafe fn operate(
    rpc: *const rdzv_rpc,
    error: *mut *mut rdzv_error,
    body: &mut dyn FnMut(&rdzv_rpc) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(rpc.as_ref().map(|rpc| &rpc.poison), error, &mut || {
            let rpc = reference(rpc, "rpc")?;
            rpc.home.refuse_sink()?;
            body(rpc)
        })
    }
}

/// Converts an id or count from C, where -1 means none.
fn number(number: i32, name: &str) -> Result<Option<u16>, Fault> {
    match number {
        -1 => Ok(None),
        number => u16::try_from(number)
            .map(Some)
            .map_err(|_| invalid(format!("`{name}` is {number}: from 0 to 65535, or -1 for none"))),
    }
}

/// Copies of all inputs from which a worker is created.
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
    /// Cancelled through the options with which the worker is created, from another thread.
    making: CancelToken,
}

/// Name, rank and world size of a worker, as passed from C.
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
        // SAFETY: the pointers are NULL or valid, as the header requires.
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
            making: given.canceller.token(),
            home,
        })
    }

    /// Creates a worker for a loop, which may cancel that, too.
    pub(crate) fn run_for(
        self,
        queue: &RpcRequestQueue,
        joining: CancelToken,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let (making, cancelled) = (self.making.clone(), joining.clone());
        let _guard = making.on_cancel(move || cancelled.cancel());
        self.make(Some(queue), joining)
    }

    /// Creates a worker outside of a loop.
    fn run(self) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let token = self.making.clone();
        self.make(None, token)
    }

    fn make(
        self,
        queue: Option<&RpcRequestQueue>,
        token: CancelToken,
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
            token,
            ..RpcInit::default()
        };
        match store {
            Some(store) => home.rpc().init_over(store, request),
            None => home.rpc().init(request),
        }
    }
}

/// Creates a worker and waits until it is a member.
unsafe fn init(
    home: Arc<Home>,
    store: Option<&rdzv_store>,
    named: Named,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
) -> Result<*mut rdzv_rpc, Fault> {
    // SAFETY: the arguments are forwarded unchanged.
    let making = unsafe { Making::new(Arc::clone(&home), store, named, options, handlers) }?;
    let agent = making.run().map_err(|error| init_fault(&error))?;
    Ok(Box::into_raw(Box::new(rdzv_rpc::new(agent, home, HandleEnd::EndsWorker))))
}

/// Converts an event of the group for C: its kind, the worker concerned and the reason.
pub(crate) fn view(event: Option<&GroupEvent>) -> (i32, Option<&WorkerInfo>, &str) {
    match event {
        None => (RDZV_RPC_EVENT_NONE, None, ""),
        Some(GroupEvent::Joined(worker)) => (RDZV_RPC_EVENT_JOINED, Some(worker), ""),
        Some(GroupEvent::Left(worker)) => (RDZV_RPC_EVENT_LEFT, Some(worker), ""),
        Some(GroupEvent::PeerDied { worker, why }) => (RDZV_RPC_EVENT_DIED, Some(worker), why),
        Some(GroupEvent::WatchLost { why }) => (RDZV_RPC_EVENT_WATCH_LOST, None, why),
    }
}

/// Describes how a worker ended; empty if it ended without an error.
pub(crate) fn describe_end(end: &Result<(), MembershipError>) -> String {
    end.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

/// Writes an event to the structs and buffers of the C caller.
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

/// Makes this process a worker of a group, like PyTorch's `init_rpc`, and returns once it is a member. The
/// group meets through the URL of the options; its keys begin with `rpc_prefix_N`, where N counts the
/// attempts of the context. `rank` is the worker's id; -1: the URL or the variables have it. `world_size`
/// is the number of workers of a static group; -1 or 0 for a dynamic group, which workers may join and
/// leave. `options` may be NULL for the defaults of `tcp`, `handlers` NULL for none, and `context` NULL,
/// which creates a new one. A context has one worker at a time. On success the caller owns `*out` and frees
/// it with `rdzv_rpc_free`; on failure no threads or connections remain in this process.
/// `rdzv_rpc_options_cancel` cancels the call from another thread.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (name, rank or URL), `RDZV_RPC_ALREADY_INITIALIZED`,
/// `RDZV_BACKEND_MISMATCH` (no backend creates such options), `RDZV_RPC_MIXED_GROUP`,
/// `RDZV_RPC_NAME_TAKEN`, `RDZV_RPC_DEVICE_MAP`, `RDZV_TIMED_OUT` (`rdzv_error_rank` has the missing
/// workers), `RDZV_RPC_UNREACHED`, `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`, `RDZV_RPC_MEMBERSHIP`,
/// `RDZV_SERVER_GONE` (the store), `RDZV_CANCELLED`, `RDZV_REENTRANT` (called by a backend that is creating
/// options); those of `rdzv_rendezvous_url_next` and `rdzv_server_start`; for a backend in user code also
/// the status that its `init` returns, and `RDZV_WRONG_PROTOCOL` (it set no worker).
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
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let named = Named { name, name_len, rank, world_size };
            out.put(init(home(context)?, None, named, options, handlers)?);
            Ok(())
        })
    }
}

/// Makes this process a worker, as `rdzv_rpc_init` does, over an existing store. The keys of the group are
/// those of `store`, so use a prefix for each group (`rdzv_store_with_prefix`). The worker keeps a
/// reference; the caller may free its handle. `rank` must be set. Options about how the group meets are
/// ignored.
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
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let store = reference(store, "store")?;
            let named = Named { name, name_len, rank, world_size };
            out.put(init(home(context)?, Some(store), named, options, handlers)?);
            Ok(())
        })
    }
}

/// Ends the worker abruptly, unless it was shut down, and frees it. No other call on it may be in progress,
/// except for futures, which fail. A handler or callback of the worker may call this; the worker's threads
/// then end when that handler or callback has returned. Otherwise the call waits up to 30 s for running
/// pooled handlers, and no further handler starts. Only `destroy` guarantees that a handler is no longer in
/// use. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_free(rpc: *mut rdzv_rpc) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(rpc) };
}

/// Ends the worker; `how` is `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`. The worker has ended when this
/// returns, whatever the status except `RDZV_REENTRANT`, and the context may have another worker. A second
/// call has no effect and returns how the worker ended.
///
/// A graceful end has three steps, each limited by the membership timeout: it waits for the calls that this
/// worker has in progress, including calls made meanwhile; it leaves the group, which ends calls that were
/// started later; it answers requests that others sent before they learned of the departure. It then waits
/// up to 30 s for handlers that are still running. Requests of loop handlers are answered by the loop's
/// thread, which must not wait here (use `rdzv_loop_rpc_shutdown`). If this process hosts the group's store
/// for the worker (`tcp://` and `env://`, rank 0), the store ends with the worker; a graceful end waits up
/// to the membership timeout until the other workers have ended. An abrupt end ends all calls at once and
/// does not wait for other workers.
///
/// Errors: `RDZV_REENTRANT` (called by a handler, by a callback or by the worker's own functions in user
/// code; the worker continues), `RDZV_TIMED_OUT` (calls of this worker were cut off: `rdzv_error_node` has
/// the callees; or workers of a static group have not finished theirs: `rdzv_error_rank`; or the store does
/// not answer), `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`, `RDZV_SERVER_GONE`, `RDZV_RPC_UNREACHED` (the
/// leader of a static group), `RDZV_RPC_MEMBERSHIP` (the keys of the group are not valid),
/// `RDZV_CANCELLED`, `RDZV_RPC_NO_MEMBER` (the worker was ended abruptly, before or during the call),
/// `RDZV_PANIC` (a library thread panicked, which is a bug), `RDZV_INVALID_ARGUMENT` (`how`); for a backend
/// in user code also the status that its `shutdown` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_shutdown(
    rpc: *const rdzv_rpc,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        operate(rpc, error, &mut |of| {
            let how = shutdown_of(how)?;
            let ended = of.home.rpc().end(&of.agent, how);
            ended.map_err(|error| agent_fault(&error).during("shutdown"))
        })
    }
}

/// Cancels every `rdzv_rpc_call` and `rdzv_rpc_next_event` in progress on this handle, on all threads; each
/// returns `RDZV_CANCELLED`. The callees are notified; a backend in user code can query it
/// (`rdzv_rpc_responder_is_wanted`). Futures and callbacks are not cancelled (see
/// `rdzv_rpc_future_cancel`), nor is `rdzv_rpc_shutdown`, which an abrupt shutdown on another thread ends.
/// Later calls are not affected. Any thread may call this, but not a callback. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_cancel(rpc: *const rdzv_rpc) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, (), |of| of.canceller.cancel()) };
}

/// Returns the worker's own name and writes its length to `*len` unless `len` is NULL. The string is not
/// NUL-terminated and is valid as long as the worker. Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_name(rpc: *const rdzv_rpc, len: *mut usize) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, null(), |of| borrowed(of.agent.me().name.as_bytes(), len)) }
}

/// Returns the worker's own id; -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_id(rpc: *const rdzv_rpc) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, -1, |of| i32::from(of.agent.me().id)) }
}

/// Returns the address on which the worker accepts calls, in the same form as `rdzv_rpc_name`. Returns NULL
/// also for a worker of a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_address(rpc: *const rdzv_rpc, len: *mut usize) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(rpc, null(), |of| {
            of.agent.tcp().map_or(null(), |tcp| borrowed(tcp.address().as_bytes(), len))
        })
    }
}

/// Lists all workers of the group, including this one; the list is empty once this worker is no longer in a
/// group. On success the caller owns `*out` and frees it with `rdzv_rpc_workers_free`.
///
/// Errors: for a backend in user code the status that its `list_workers` returns, `RDZV_INVALID_ARGUMENT`
/// (its answer is not a valid worker), and `RDZV_REENTRANT` (called by the same worker's functions).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_workers(
    rpc: *const rdzv_rpc,
    out: *mut *mut rdzv_rpc_workers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            let out = out_pointer(out, "out")?;
            let workers = match of.agent.tcp() {
                Some(tcp) => rdzv_rpc_workers { workers: tcp.seen_workers() },
                None => rdzv_rpc_workers::of_group(of.agent.workers().map_err(|error| agent_fault(&error))?),
            };
            out.put(Box::into_raw(Box::new(workers)));
            Ok(())
        })
    }
}

/// Finds a worker by name or id.
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

/// Writes the id of the worker with this name to `*id`.
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
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            let id = out_pointer(id, "id")?;
            id.put(find(of, Callee::Name(text(name, name_len, "name")?))?.id);
            Ok(())
        })
    }
}

/// Replaces the content of `name` with the name of the worker with this id.
///
/// Errors: `RDZV_RPC_UNKNOWN_WORKER`; those of `rdzv_rpc_list_workers`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_worker_name(
    rpc: *const rdzv_rpc,
    id: u16,
    name: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            reference_mut(name, "name")?.put(find(of, Callee::Id(id))?.name.as_bytes());
            Ok(())
        })
    }
}

/// Replaces the content of `names` with the names of the devices that the worker uses, sorted by index: the
/// devices of its options, or, if none are set, all local devices in its maps and in the others' maps for
/// it.
///
/// Errors: `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_devices(
    rpc: *const rdzv_rpc,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            let list = reference_mut(names, "names")?;
            let devices = of.tcp("devices")?.devices();
            list.items = devices.iter().map(|device| device.to_string().into_bytes()).collect();
            Ok(())
        })
    }
}

/// Formats the worker's reverse maps, which replace the content of `message`: for each caller that has a
/// map for this worker, the devices to which answers go, in the syntax of a Python dictionary.
///
/// Errors: `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_reverse_maps(
    rpc: *const rdzv_rpc,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            let maps = of.tcp("device maps")?.reverse_maps();
            reference_mut(message, "message")?.put(maps.to_string().as_bytes());
            Ok(())
        })
    }
}

/// Replaces the content of the two lists with the reverse map for a caller, which places the answers to it:
/// local device `from[i]` maps to `to[i]` of the caller, sorted by `from`. Both lists are empty if the
/// caller has no map for this worker.
///
/// Errors: `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_reverse_map(
    rpc: *const rdzv_rpc,
    caller: *const u8,
    caller_len: usize,
    from: *mut rdzv_list,
    to: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        operate(rpc, error, &mut |of| {
            let maps = of.tcp("device maps")?.reverse_maps();
            list_map(maps.get(text(caller, caller_len, "caller")?), from, to)
        })
    }
}

/// Returns the number of events that were lost because neither this handle nor a loop read them; 0 for NULL
/// and for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_events_lost(rpc: *const rdzv_rpc) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rpc, 0, |of| of.agent.tcp().map_or(0, RpcAgent::events_lost)) }
}

/// Adds a handler to a running worker, as `rdzv_rpc_handlers_add` does. Calls that arrived earlier have
/// failed.
///
/// Also returns: `RDZV_UNSUPPORTED` (a backend in user code).
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
    // SAFETY: the arguments are forwarded unchanged; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, &mut |of| {
            let handling = of.tcp("handlers")?.handling();
            let take = |entry: Entry| entry.register(handling);
            parsed((name, name_len), run, handle, (user_data, destroy), take)
        })
    }
}

/// Removes a handler. `*found` is 1 if it existed, else 0, unless `found` is NULL. Requests that the
/// handler has received are completed.
///
/// Errors: `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_remove_handler(
    rpc: *const rdzv_rpc,
    name: *const u8,
    name_len: usize,
    found: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, &mut |of| {
            let was_there = of.tcp("handlers")?.handling().remove(text(name, name_len, "name")?);
            if let Ok(found) = out_pointer(found, "found") {
                found.put(i32::from(was_there));
            }
            Ok(())
        })
    }
}

/// Waits up to `timeout_ms` (0: poll once; -1: 300,000) for the next event of the group and fills `*event`,
/// whose `struct_size` the caller has set; the kind is `RDZV_RPC_EVENT_NONE` if no event occurred. The name
/// of the worker concerned replaces the content of `name`. The reason for a death, for the loss of the
/// watch or for the end of this worker's membership replaces that of `why`. Both may be NULL. Each event is
/// delivered once, to one thread; `RDZV_RPC_EVENT_OVER` is the last. If more than 4,096 events are unread,
/// the oldest are lost.
///
/// Errors: `RDZV_RPC_NO_MEMBER`, at once, if the worker has ended and that was reported; `RDZV_CANCELLED`
/// after `rdzv_rpc_cancel`; `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_next_event(
    rpc: *const rdzv_rpc,
    timeout_ms: i64,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused where it must be.
    unsafe {
        operate(rpc, error, &mut |of| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let tcp = of.tcp("events")?;
            let token = of.canceller.token();
            let timeout = span(timeout_ms, Timeouts::default().call)?;
            let happened = tcp.next_event(timeout, &token);
            if happened.is_none() && token.is_cancelled() {
                let message = "waiting for an event was cancelled";
                return Err(Fault::new(RDZV_CANCELLED, message).during("next_event"));
            }
            let end = if happened.is_none() { tcp.end().map(unless_abandoned) } else { None };
            let message = end.as_ref().map(describe_end);
            if let Some(message) = &message
                && tcp.take_end().is_none()
            {
                let message = format!("the worker has ended, which was already reported: {message}");
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
