//! Backends of RPC groups, including those in user code.

use crate::prelude::*;
use crate::reply::{self, rdzv_reply};
use crate::rpc_call_spec::rdzv_rpc_call_spec;
use crate::rpc_end::how_of;
use crate::rpc_fault::foreign_error;
use crate::rpc_handlers::{Completion, HandlingWorker, Outcome, rdzv_rpc_handlers, rdzv_rpc_responder};
use crate::rpc_options::{Given, OptionsView, rdzv_rpc_options};
use crate::rpc_reentry::{Inside, enter, is_inside};
use crate::store::{handle, rdzv_store};
use rendezvous_rpc::connection::CallKind;
use rendezvous_rpc::driver::calls::handling::Wanted;
use rendezvous_rpc::driver::group::registry::{InitRequest, RpcBackend};
use rendezvous_rpc::driver::group::{
    Begun, CallSpec, Called, Callee, GroupCallError, OnResult, RpcInitError, RpcWorker, Shutdown,
};
use rendezvous_rpc::membership::error::MembershipError;
use rendezvous_rpc::name::{WorkerInfo, WorkerName};
use rendezvous_rpc::options::RpcOptions;
use std::sync::atomic::Ordering;

/// Request to create a worker. All its content is valid only during the call.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_rpc_worker_request {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Id of the worker.
    pub id: i32,
    /// Number of workers of a static group; -1 for a dynamic one.
    pub world_size: i32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Name of the worker, UTF-8.
    pub name: rdzv_bytes,
    /// Store over which the workers find each other; its prefix is for this group alone. To keep it,
    /// create a handle with `rdzv_store_clone`.
    pub store: *const rdzv_store,
    /// Options of the worker; each field that has a default is set. `store`, `token`, `variables` and
    /// `listen_host` are not passed on.
    pub options: *const rdzv_rpc_options,
    /// Handlers of the program, never NULL. `rdzv_rpc_handlers_clone` creates a handle to keep, and
    /// `rdzv_rpc_handlers_dispatch` passes requests to the handlers.
    pub handlers: *const rdzv_rpc_handlers,
}

/// RPC backend in user code. Its functions are called on the thread that creates a worker (a worker for
/// an event loop is created, and shut down, on a library thread). They may block and must not throw. Each
/// returns `RDZV_OK`, or any other status of this header as the reason for failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_backend_vtable {
    /// Set to `sizeof(rdzv_rpc_backend_vtable)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Creates a worker, which is a member of its group when this returns, and passes it to
    /// `rdzv_reply_set_rpc_agent`. It refuses options that it does not know. Must not be NULL.
    pub new_worker: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            request: *const rdzv_rpc_worker_request,
            reply: *mut rdzv_reply,
        ) -> rdzv_status,
    >,
    /// Called once, after the context and all handlers, URL rendezvous, agents, loops and RPC workers
    /// that were created with it have been freed. Stores and servers of the context may outlive it, so
    /// `user_data` may own some. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_rpc_backend_vtable: 32);

/// Worker in user code. Its functions are called on the threads that use the worker, several at a time;
/// they must not throw. Each returns `RDZV_OK`, or any other status of this header as the reason for
/// failure. They must not call, list or shut down their own worker, which returns `RDZV_REENTRANT`.
/// Handlers and callbacks that they run may do so, but not free the worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_agent_vtable {
    /// Set to `sizeof(rdzv_rpc_agent_vtable)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Starts a call and does not wait for its end. `call` and its pointers are valid until this returns,
    /// and its `release` is NULL. `responder` receives the outcome, from any thread, by the end of the
    /// call's timeout; NULL: no answer is wanted. User code owns `responder` if this returns `RDZV_OK`;
    /// otherwise the library keeps it. `rdzv_rpc_responder_is_wanted` returns 0 once the caller has
    /// abandoned the call. `rdzv_rpc_handlers_dispatch` lets a handler of this process answer. Not
    /// called after `shutdown` has returned: such calls fail with `RDZV_RPC_NO_MEMBER`. Must not be NULL.
    pub call: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            call: *const rdzv_rpc_call_spec,
            responder: *mut rdzv_rpc_responder,
        ) -> rdzv_status,
    >,
    /// Lists the workers of the group: calls `rdzv_reply_add_worker` for each. Must not be NULL.
    pub list_workers:
        Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Ends the worker; `how` is `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`. When it returns, the worker
    /// has ended, whatever the status: `call` is no longer called, and the handlers that `new_worker`
    /// received get no more requests. `shutdown` itself is called again if the worker is shut down again.
    /// Must not be NULL.
    pub shutdown:
        Option<unsafe extern "C" fn(user_data: *mut c_void, how: i32, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Called once, when the worker has been freed and none of its functions is in progress. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_rpc_agent_vtable: 48);

struct BackendCode {
    vtable: UserCode<rdzv_rpc_backend_vtable>,
    name: String,
}

/// Returns what user code replied, or the status and the message with which it failed.
fn checked(
    backend: &str,
    status: rdzv_status,
    reply: rdzv_reply,
) -> Result<rdzv_reply, (rdzv_status, Box<str>)> {
    let plugin = format!("RPC backend {backend}");
    reply.checked(&plugin, status).map_err(|(status, message)| {
        let unnamed = || format!("{plugin}: {}", name_of(status).to_string_lossy());
        (status, message.unwrap_or_else(unnamed).into())
    })
}

impl RpcBackend for BackendCode {
    fn init_backend(
        &self,
        request: InitRequest,
        options: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let failed = |status, message: &str| RpcInitError::Foreign { status, message: message.into() };
        let missing =
            || failed(RDZV_WRONG_PROTOCOL, &format!("RPC backend {}: it gave no worker", self.name));
        let new_worker = self.vtable.new_worker.ok_or_else(missing)?;
        let InitRequest { store, worker, world_size, token } = request;
        let given = options.extra_options::<Given>().cloned().unwrap_or_default();
        let worker_of_handlers = Arc::<HandlingWorker>::default();
        let handlers = rdzv_rpc_handlers::of(&given.entries, Arc::clone(&worker_of_handlers));
        // Only the waits on this store are cancelled; the library cannot cancel other waits of user code.
        let store = handle(store.with_token(&token), given.shared.clone().unwrap_or_default());
        let rpc_timeout = options.rpc_timeout();
        let view = OptionsView::new(&options, &given);
        let worker_request = rdzv_rpc_worker_request {
            struct_size: struct_size::<rdzv_rpc_worker_request>(),
            id: worker.id.into(),
            world_size: world_size.map_or(-1, i32::from),
            reserved: 0,
            name: rdzv_bytes::of(&*worker.name),
            store,
            options: &raw const view.options,
            handlers: &raw const handlers,
        };
        let mut reply = rdzv_reply::default();
        // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
        let status = unsafe { new_worker(self.vtable.user_data, &raw const worker_request, &raw mut reply) };
        // SAFETY: the handle was created above and is no longer borrowed.
        unsafe { guard::free(store) };
        let mut reply = checked(&self.name, status, reply)
            .map_err(|(status, message)| RpcInitError::Foreign { status, message })?;
        let vtable = reply.take_created().ok_or_else(missing)?;
        let backend = self.name.clone();
        Ok(Arc::new(AgentCode { vtable, backend, me: worker, rpc_timeout, worker_of_handlers }))
    }
}

/// Worker in user code.
#[derive(Debug)]
struct AgentCode {
    vtable: UserCode<rdzv_rpc_agent_vtable>,
    backend: String,
    me: WorkerInfo,
    rpc_timeout: Option<Duration>,
    worker_of_handlers: Arc<HandlingWorker>,
}

impl AgentCode {
    /// Enters this worker's own code; `None` within that code, which would recurse without end.
    fn enter(&self) -> Option<Inside> {
        let address = std::ptr::from_ref(self).addr();
        (!is_inside(address)).then(|| enter(address))
    }

    /// The error of a use of the worker by its own code.
    fn recursion(&self) -> Fault {
        let message = format!("RPC backend {}: a function of {} used its own worker", self.backend, self.me);
        Fault::new(RDZV_REENTRANT, message)
    }

    /// Starts a call and passes its outcome to `completion`, unless this fails. Errors name handler and
    /// callee.
    fn call(
        &self,
        spec: &CallSpec<'_>,
        completion: Option<(OnResult, Wanted)>,
    ) -> Result<(), GroupCallError> {
        let Some(call) = self.vtable.call else { return Ok(()) };
        let called = Called::of(spec).to_string();
        if self.worker_of_handlers.has_ended.load(Ordering::Acquire) {
            let fault = Fault::new(RDZV_RPC_NO_MEMBER, "not sent: this worker was shut down");
            return Err(foreign_error(&called, &fault));
        }
        let inside = self.enter().ok_or_else(|| foreign_error(&called, &self.recursion()))?;
        let (name, id) = match spec.callee {
            Callee::Name(name) => (Some(name), -1),
            Callee::Id(id) => (None, i32::from(id)),
        };
        let payload = spec.payload.bytes();
        let borrowed = rdzv_rpc_call_spec {
            struct_size: struct_size::<rdzv_rpc_call_spec>(),
            callee_id: id,
            callee: name.map_or(std::ptr::null(), str::as_ptr),
            callee_len: name.map_or(0, str::len),
            handler: spec.handler.as_ptr(),
            handler_len: spec.handler.len(),
            payload: payload.as_ptr(),
            payload_len: payload.len(),
            timeout_ms: spec.timeout.or(self.rpc_timeout).map_or(-1, millis),
            release: None,
            user_data: null_mut(),
        };
        let responder = completion.map_or(null_mut(), |(completion, wanted)| {
            let called = called.clone();
            let worker = Arc::clone(&self.worker_of_handlers);
            let on_done = move |outcome: Outcome| {
                let result = outcome.map_err(|fault| foreign_error(&called, &fault));
                worker.call_back(|| completion(result));
            };
            let completion = Completion::new(Box::new(on_done), wanted);
            boxed(rdzv_rpc_responder::of(completion))
        });
        // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
        let status = unsafe { call(self.vtable.user_data, &raw const borrowed, responder) };
        drop(inside);
        if status == RDZV_OK {
            return Ok(());
        }
        if !responder.is_null() {
            // SAFETY: it was boxed above, and user code did not take ownership.
            unsafe { Box::from_raw(responder) }.forget();
        }
        checked(&self.backend, status, rdzv_reply::default())
            .map(drop)
            .map_err(|(status, message)| foreign_error(&called, &Fault::new(status, message)))
    }
}

impl RpcWorker for AgentCode {
    fn me(&self) -> &WorkerInfo {
        &self.me
    }

    fn workers(&self) -> Result<Vec<WorkerInfo>, MembershipError> {
        let mut reply = rdzv_reply::default();
        let Some(list_workers) = self.vtable.list_workers else { return Ok(Vec::new()) };
        let refused = || {
            let fault = self.recursion();
            MembershipError::Foreign { status: fault.status, message: fault.message.as_str().into() }
        };
        let inside = self.enter().ok_or_else(refused)?;
        // SAFETY: the vtable was supplied for this call.
        let status = unsafe { list_workers(self.vtable.user_data, &raw mut reply) };
        drop(inside);
        let reply = checked(&self.backend, status, reply);
        let mut workers =
            reply.map_err(|(status, message)| MembershipError::Foreign { status, message })?.workers;
        WorkerInfo::sort(&mut workers);
        Ok(workers)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), MembershipError> {
        let Some(shutdown) = self.vtable.shutdown else { return Ok(()) };
        let mut reply = rdzv_reply::default();
        let inside = self.enter().ok_or(MembershipError::Reentrant)?;
        // SAFETY: the vtable was supplied for this call.
        let status = unsafe { shutdown(self.vtable.user_data, how_of(how), &raw mut reply) };
        self.worker_of_handlers.has_ended.store(true, Ordering::Release);
        drop(inside);
        let reply = checked(&self.backend, status, reply);
        reply.map(drop).map_err(|(status, message)| MembershipError::Foreign { status, message })
    }

    fn is_calling_back(&self) -> bool {
        is_inside(std::ptr::from_ref(self).addr()) || self.worker_of_handlers.is_calling_back()
    }

    fn begin_call(&self, call: CallSpec<'_>, completion: OnResult) -> Result<Begun, GroupCallError> {
        let wanted = Wanted::new(CallKind::Responded);
        self.call(&call, Some((completion, wanted.clone())))?;
        Ok(Begun::Loose(call.timeout.or(self.rpc_timeout), wanted))
    }

    fn begin_notify(&self, call: CallSpec<'_>) -> Result<(), GroupCallError> {
        self.call(&call, None)
    }
}

/// Registers an RPC backend in user code under the name `backend`, which is matched exactly; `vtable` is
/// copied. Options select it by this name. On success the library owns `user_data` until it calls
/// `destroy`; on failure the caller keeps it.
///
/// Errors: `RDZV_ALREADY_REGISTERED` if the name is registered, even with the same code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_register_rpc_backend(
    context: *const rdzv_context,
    backend: *const u8,
    backend_len: usize,
    vtable: *const rdzv_rpc_backend_vtable,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, context, |context| {
        let name = text(backend, backend_len, "backend")?;
        let vtable = sized::get(vtable, "vtable")?;
        if vtable.new_worker.is_none() {
            return Err(invalid("`vtable.new_worker` is NULL"));
        }
        let code = UserCode::new(vtable, vtable.user_data);
        let code = Arc::new(BackendCode { vtable: code, name: name.into() });
        context.home.rpc().register(name, Arc::clone(&code) as Arc<dyn RpcBackend>)?;
        code.vtable.adopt(vtable.destroy);
        Ok(())
    })
}

/// Adds one worker of the group to the reply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_add_worker(
    reply: *mut rdzv_reply,
    name: *const u8,
    name_len: usize,
    id: u16,
) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        reply::fill(reply, |reply| {
            let name = WorkerName::new(text(name, name_len, "name")?);
            let name = name.map_err(invalid)?;
            reply.workers.push(WorkerInfo { name, id });
            Ok(())
        });
    }
}

/// Sets a worker that is a member of its group as the reply. `vtable` is copied, and the library owns
/// its `user_data` until it calls `destroy`, whatever the outcome of the call. If a mandatory entry of
/// the vtable is missing, the caller gets `RDZV_INVALID_ARGUMENT` and `user_data` stays with the user
/// code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_rpc_agent(
    reply: *mut rdzv_reply,
    vtable: *const rdzv_rpc_agent_vtable,
) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        reply::fill(reply, |reply| {
            let vtable = sized::get(vtable, "vtable")?;
            let is_missing = [
                (vtable.call.is_none(), "call"),
                (vtable.list_workers.is_none(), "list_workers"),
                (vtable.shutdown.is_none(), "shutdown"),
            ];
            if let Some((_, missing)) = is_missing.iter().find(|(is_missing, _)| *is_missing) {
                return Err(invalid(format!("`vtable.{missing}` is NULL")));
            }
            reply.put_created(UserCode::owned(vtable, vtable.user_data, vtable.destroy));
            Ok(())
        });
    }
}
