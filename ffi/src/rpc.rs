//! Workers of an RPC group.

use crate::context::RDZV_LOG_WARN;
use crate::prelude::*;
use crate::rpc_end::shutdown_of;
use crate::rpc_fault::agent_fault;
use crate::rpc_handlers::{Entry, parsed, rdzv_rpc_handler_fn, rdzv_rpc_handlers};
use crate::rpc_options::{Given, WorkerOptions, rdzv_rpc_options};
use crate::rpc_workers::{devices, rdzv_rpc_devices, rdzv_rpc_workers, workers, workers_of_group};
use crate::store::span;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::store::Timeouts;
use rendezvous_rpc::agent::GroupEvent;
use rendezvous_rpc::connection::RefusalObserver;
use rendezvous_rpc::driver::calls::handling::Handling;
use rendezvous_rpc::driver::group::registry::DEFAULT_BACKEND;
use rendezvous_rpc::driver::group::{RpcAgent, RpcInit, RpcInitError, RpcWorker};
use rendezvous_rpc::driver::loop_member::RpcRequestQueue;
use rendezvous_rpc::membership::error::{MembershipError, unless_abandoned};
use rendezvous_rpc::name::WorkerInfo;
use std::fmt;

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
#[derive(Clone, Copy, Debug, Default)]
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
growing!(rdzv_rpc_event: 16);

/// Information about a worker. What it points to is valid as long as the worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_info {
    /// Set to `sizeof(rdzv_rpc_info)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// Id of the worker.
    pub id: i32,
    /// Name of the worker, UTF-8.
    pub name: rdzv_bytes,
    /// Address on which the worker accepts calls; empty for a worker of a backend in user code.
    pub address: rdzv_bytes,
    /// Number of events that were lost because neither this handle nor a loop read them; 0 for a worker
    /// of a backend in user code.
    pub events_lost: u64,
}
growing!(rdzv_rpc_info: 48);

/// Worker of an RPC group. Several threads may use it at the same time.
pub struct rdzv_rpc {
    pub(crate) state: HandleState,
    pub(crate) agent: Arc<dyn RpcWorker>,
    pub(crate) home: Arc<Home>,
    /// Cancels waiting calls from another thread.
    pub(crate) token: CancelToken,
    pub(crate) end: HandleEnd,
}
guard::handle!(rdzv_rpc, home, |rpc: &Self| rpc.end == HandleEnd::EndsWorker && rpc.agent.is_calling_back());

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
    pub(crate) fn new(
        agent: Arc<dyn RpcWorker>,
        home: Arc<Home>,
        token: CancelToken,
        end: HandleEnd,
    ) -> Self {
        Self { state: HandleState::default(), agent, home, token, end }
    }

    fn tcp(&self, what: &str) -> Result<&RpcAgent, Fault> {
        self.agent
            .tcp()
            .ok_or_else(|| Fault::new(RDZV_UNSUPPORTED, format!("a backend in user code has no {what}")))
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
    name: String,
    rank: Option<u16>,
    world_size: Option<u16>,
    given: WorkerOptions,
    entries: Vec<Entry>,
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
        named: Named,
        options: *const rdzv_rpc_options,
        handlers: *const rdzv_rpc_handlers,
    ) -> Result<Self, Fault> {
        // SAFETY: the pointers are NULL or valid, as the header requires.
        let (name, given, handlers) = unsafe {
            (text(named.name, named.name_len, "name")?, WorkerOptions::new(options)?, handlers.as_ref())
        };
        let (rank, world_size) = (number(named.rank, "rank")?, number(named.world_size, "world_size")?);
        let entries = handlers.map(rdzv_rpc_handlers::entries).unwrap_or_default().to_vec();
        Ok(Self { home, name: name.into(), rank, world_size, given, entries })
    }

    /// Creates a worker: for a loop if there is a queue. `token` and that of the options cancel the
    /// attempt.
    pub(crate) fn make(
        self,
        queue: Option<&RpcRequestQueue>,
        token: CancelToken,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let Self { home, name, rank, world_size, given, entries } = self;
        let WorkerOptions { mut options, mut tcp, environment, listen_host, store, extra_options, .. } =
            given;
        // The worker does not keep the program's token, which may be cancelled later.
        let cancelled = token.clone();
        let _guard = given.token.on_cancel(move || cancelled.cancel());
        let refused = |fault: Fault| RpcInitError::Foreign {
            status: fault.status,
            message: fault.message.as_str().into(),
        };
        let entries: Result<Vec<Entry>, Fault> = entries.iter().map(|entry| entry.at(queue)).collect();
        let entries = entries.map_err(refused)?;
        if options.backend() == DEFAULT_BACKEND {
            let threads = usize::try_from(options.worker_threads()).unwrap_or(usize::MAX);
            let handling = Handling::new(threads);
            entries.iter().try_for_each(|entry| entry.register(&handling)).map_err(refused)?;
            tcp.handling = Some(handling);
            let log = Arc::clone(home.shared());
            tcp.observer = RefusalObserver::new(move |event| {
                log.log(RDZV_LOG_WARN, c"rpc", || event.to_string());
            });
            options.set_extra(Box::new(tcp));
        } else {
            let shared = Some(Arc::clone(home.shared()));
            options.set_extra(Box::new(Given { entries, shared, tcp, extra_options }));
        }
        let request = RpcInit {
            name: &name,
            rank,
            world_size,
            options: Some(options),
            environment,
            listen_host,
            token,
        };
        match store {
            Some(store) => home.rpc().init_over(store, request),
            None => home.rpc().init(request),
        }
    }
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

/// Fills the caller's buffers and returns the event for C.
pub(crate) unsafe fn projected(
    (kind, worker, message): (i32, Option<&WorkerInfo>, &str),
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
) -> rdzv_rpc_event {
    // SAFETY: the pointers are NULL or valid as the header requires.
    unsafe {
        fill_unless_null(name, worker.map(|worker| &*worker.name));
        fill_unless_null(why, Some(message));
    }
    rdzv_rpc_event { kind, id: worker.map_or(-1, |worker| worker.id.into()), ..Default::default() }
}

/// Makes this process a worker of a group, like PyTorch's `init_rpc`, and returns once it is a member.
/// The group meets over the store of the options, or else through their URL; its keys then begin with
/// `rpc_prefix_N`, where N counts the attempts of the context. `rank` is the worker's id; -1: the URL or
/// the variables have it. `world_size` is the number of workers of a static group; -1 or 0 for a dynamic
/// group, which workers may join and leave. `options` may be NULL for the defaults, `handlers` NULL for
/// none, and `context` NULL, which creates a new one. A context has one worker at a time. On success the
/// caller owns `*out` and frees it with `rdzv_rpc_free`; on failure no threads or connections remain in
/// this process.
///
/// The token of the options cancels this call from another thread, in whatever step it is. The worker
/// first withdraws what it has published to the others, which takes up to 5 s if the store does not
/// answer. A join that is all but complete completes. For a backend in user code, the waits of its
/// `new_worker` on its store are cancelled. Later the token cancels each `rdzv_rpc_call` and
/// `rdzv_rpc_next_event` on `*out`, but not futures, callbacks and `rdzv_rpc_shutdown`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (name, rank, URL or option), `RDZV_RPC_ALREADY_INITIALIZED`,
/// `RDZV_NOT_REGISTERED` (backend), `RDZV_RPC_MIXED_GROUP`, `RDZV_RPC_NAME_TAKEN`, `RDZV_RPC_DEVICE_MAP`,
/// `RDZV_TIMED_OUT` (`rdzv_error_info.ranks` has the missing workers), `RDZV_RPC_UNREACHED`,
/// `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`, `RDZV_RPC_MEMBERSHIP`, `RDZV_SERVER_GONE` (the store),
/// `RDZV_CANCELLED`; those of `rdzv_rendezvous_url_next` and `rdzv_server_new`; for a backend in user
/// code also the status that its `new_worker` returns, and `RDZV_WRONG_PROTOCOL` (it set no worker).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_new(
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
    guard::call!(error, out, || {
        let home = home(context)?;
        let named = Named { name, name_len, rank, world_size };
        let making = Making::new(Arc::clone(&home), named, options, handlers)?;
        let token = making.given.token.clone();
        let agent = making.make(None, CancelToken::new())?;
        let rpc = rdzv_rpc::new(agent, home, token, HandleEnd::EndsWorker);
        Ok(boxed(rpc))
    })
}

/// Ends the worker abruptly, unless it was shut down, and frees it. No other call on it may be in
/// progress, except for futures, which fail. The call waits up to 30 s for running pooled handlers, and no
/// further handler starts. Only `destroy` guarantees that a handler is no longer in use. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_free(rpc: *mut rdzv_rpc) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(rpc, "rdzv_rpc_free") };
}

/// Ends the worker; `how` is `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`. The worker has ended when this
/// returns, whatever the status except `RDZV_REENTRANT`, and the context may have another worker. A
/// second call has no effect and returns how the worker ended.
///
/// A graceful end has three steps, each limited by the membership timeout: it waits for the calls that
/// this worker has in progress, including calls made meanwhile; it leaves the group, which ends calls
/// that were started later; it answers requests that others sent before they learned of the departure. It
/// then waits up to 30 s for handlers that are still running. Requests of loop handlers are answered by
/// the loop's thread, which must not wait here (use `rdzv_loop_rpc_shutdown`). If this process hosts the
/// group's store for the worker (`tcp://` and `env://`, rank 0), the store ends with the worker; a
/// graceful end waits up to the membership timeout until the other workers have ended. An abrupt end ends
/// all calls at once and does not wait for other workers.
///
/// Errors: `RDZV_REENTRANT` (called by a handler, by a callback or by the worker's own functions in user
/// code; the worker continues), `RDZV_TIMED_OUT` (calls of this worker were cut off:
/// `rdzv_error_info.nodes` has the callees; or workers of a static group have not finished theirs:
/// `rdzv_error_info.ranks`; or the store does not answer), `RDZV_RPC_PEER_DIED`, `RDZV_RPC_EVICTED`,
/// `RDZV_SERVER_GONE`, `RDZV_RPC_UNREACHED` (the leader of a static group), `RDZV_RPC_MEMBERSHIP` (the
/// keys of the group are not valid), `RDZV_CANCELLED`, `RDZV_RPC_NO_MEMBER` (the worker was ended
/// abruptly, before or during the call), `RDZV_PANIC` (a library thread panicked, which is a bug),
/// `RDZV_INVALID_ARGUMENT` (`how`); for a backend in user code also the status that its `shutdown`
/// returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_shutdown(
    rpc: *const rdzv_rpc,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rpc, |of| {
        let ended = of.home.rpc().end(&of.agent, shutdown_of(how)?);
        ended.map_err(|error| agent_fault(&error).during("shutdown"))
    })
}

/// Fills `*out`, whose `struct_size` the caller has set.
///
/// Errors: `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_get_info(
    rpc: *const rdzv_rpc,
    out: *mut rdzv_rpc_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let of = reference(rpc, "rpc")?;
        let (me, tcp) = (of.agent.me(), of.agent.tcp());
        Ok(rdzv_rpc_info {
            struct_size: 0,
            id: me.id.into(),
            name: rdzv_bytes::of(&*me.name),
            address: rdzv_bytes::of(tcp.map_or("", RpcAgent::address)),
            events_lost: tcp.map_or(0, RpcAgent::events_lost),
        })
    })
}

/// Lists all workers of the group, including this one; the list is empty once this worker is no longer in
/// a group. On success the caller owns `*out` and frees it with `rdzv_rpc_workers_free`.
///
/// Errors: for a backend in user code the status that its `list_workers` returns, `RDZV_INVALID_ARGUMENT`
/// (its answer is not a valid worker), and `RDZV_REENTRANT` (called by the same worker's functions).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_workers(
    rpc: *const rdzv_rpc,
    out: *mut *mut rdzv_rpc_workers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rpc, out, |of| {
        Ok(match of.agent.tcp() {
            Some(tcp) => workers(tcp.seen_workers()),
            None => workers_of_group(of.agent.workers()?),
        })
    })
}

/// Lists the worker's devices and its reverse maps. On success the caller owns `*out` and frees it with
/// `rdzv_rpc_devices_free`.
///
/// Errors: `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_list_devices(
    rpc: *const rdzv_rpc,
    out: *mut *mut rdzv_rpc_devices,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rpc, out, |of| {
        let tcp = of.tcp("devices")?;
        Ok(devices(&tcp.devices(), &tcp.reverse_maps()))
    })
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
    callers: *const c_char,
    handle: rdzv_rpc_handler_fn,
    user_data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rpc, |of| {
        let handling = of.tcp("handlers")?.handling();
        let take = |entry: Entry| entry.register(handling);
        parsed((name, name_len), run, callers, handle, (user_data, destroy), take)
    })
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
    guard::on!(error, rpc, |of| {
        let was_there = of.tcp("handlers")?.handling().remove(text(name, name_len, "name")?);
        put_unless_null(found, i32::from(was_there));
        Ok(())
    })
}

/// Waits up to `timeout_ms` (0: poll once; -1: 300,000) for the next event of the group and fills
/// `*event`, whose `struct_size` the caller has set; the kind is `RDZV_RPC_EVENT_NONE` if no event
/// occurred. The name of the worker concerned replaces the content of `name`. The reason for a death, for
/// the loss of the watch or for the end of this worker's membership replaces that of `why`. Both may be
/// NULL. Each event is delivered once, to one thread; `RDZV_RPC_EVENT_OVER` is the last. If more than
/// 4,096 events are unread, the oldest are lost.
///
/// Errors: `RDZV_RPC_NO_MEMBER`, at once, if the worker has ended and that was reported; `RDZV_CANCELLED`
/// once the token of the options is cancelled; `RDZV_UNSUPPORTED` for a backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_next_event(
    rpc: *const rdzv_rpc,
    timeout_ms: i64,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rpc, event, |of| {
        let tcp = of.tcp("events")?;
        let timeout = span(timeout_ms, Timeouts::default().call)?;
        let happened = tcp.next_event(timeout, &of.token);
        if happened.is_none() && of.token.is_cancelled() {
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
        Ok(projected(ending, name, why))
    })
}
