//! Rendezvous backends and URL schemes in user code.

use crate::prelude::*;
use crate::rendezvous_fault::reported_by;
use crate::rendezvous_parameters::{self, rdzv_rendezvous_parameters};
use crate::reply::{self, rdzv_reply};
use crate::store::timeout;
use rendezvous_core::driver::rendezvous::{
    CreateHandler, ForeignBackend, ForeignOptions, ForeignUrls, HandlerError, NodeStore, RendezvousHandler,
    UrlGroup, UrlHandler, UrlOptions, UrlRendezvous,
};
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::rendezvous::registry::Identity;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::RendezvousInfo;
use rendezvous_core::rendezvous::url::RendezvousUrl;

type Function = Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>;

/// Rendezvous backend in user code. Several library threads may call `create` at the same time; it may
/// block and must not throw. If it requests a handler of the same backend from its context, that call
/// returns `RDZV_REENTRANT`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_backend_vtable {
    /// Set to `sizeof(rdzv_rendezvous_backend_vtable)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Name of the backend in error messages. UTF-8, NUL-terminated, copied; NULL: a default name.
    pub name: *const c_char,
    /// Time that a call to the backend or to one of its handlers may take, in milliseconds, above 0; -1:
    /// 600,000. After that, the caller gets `RDZV_TIMED_OUT` and the call is abandoned on its thread.
    pub timeout_ms: i64,
    /// Creates a handler for these parameters and passes it to `rdzv_reply_set_handler`.
    /// Returns `RDZV_OK`, or any other status of this header as the reason for failure. Must not be NULL.
    pub create: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            parameters: *const rdzv_rendezvous_parameters,
            reply: *mut rdzv_reply,
        ) -> rdzv_status,
    >,
    /// Called once, after the context and all handlers, URL rendezvous, agents, loops and RPC workers that
    /// were created with it have been freed. Stores and servers of the context may outlive it, so
    /// `user_data` may own some. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_rendezvous_backend_vtable: 48);

/// Rendezvous handler in user code. Several library threads may call its functions at the same time; they
/// may block and must not throw. A call that they make on the handle from which they are called returns
/// `RDZV_REENTRANT`. Each returns `RDZV_OK`, or any other status of this header as the reason for failure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_handler_vtable {
    /// Set to `sizeof(rdzv_rendezvous_handler_vtable)`.
    pub struct_size: u32,
    /// 1 if the worker ranks of this node use the store over which the nodes met, else 0.
    pub use_agent_store: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Name of the handler's backend, which must be the requested one. UTF-8, NUL-terminated, copied.
    pub backend: *const c_char,
    /// Run id. UTF-8, NUL-terminated, copied; NULL: that of the parameters.
    pub run_id: *const c_char,
    /// Joins, waits until the round is complete, and passes the result to
    /// `rdzv_reply_set_group`. Must not be NULL.
    pub next_rendezvous:
        Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Replies the number 1 if the rendezvous is closed, else 0 (`rdzv_reply_set_number`). Must
    /// not be NULL.
    pub is_closed:
        Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Closes the rendezvous. Must not be NULL.
    pub set_closed:
        Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Replies the number of nodes that wait for the next round. Must not be NULL.
    pub num_nodes_waiting:
        Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Waits up to `timeout_ms` for the next event and passes it to `rdzv_reply_set_event`;
    /// sets no event if there was none. NULL: the backend has no events.
    pub next_event: Option<
        unsafe extern "C" fn(user_data: *mut c_void, timeout_ms: i64, reply: *mut rdzv_reply) -> rdzv_status,
    >,
    /// Leaves the rendezvous and releases its resources; returns 1 on success, else 0. May be NULL.
    pub shutdown: Option<unsafe extern "C" fn(user_data: *mut c_void) -> i32>,
    /// Called when the caller of a function in progress has stopped waiting; ends the waits of the functions in
    /// progress. The caller's next call begins when it has returned, or after 1 s. May be NULL.
    pub cancel: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// Closes the rendezvous because the job has failed, and sends `message` (UTF-8, not NUL-terminated) to
    /// the other nodes as `RDZV_ROUND_EVENT_JOB_FAILED`. NULL: `set_closed` is called instead.
    pub fail: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            message: *const u8,
            len: usize,
            reply: *mut rdzv_reply,
        ) -> rdzv_status,
    >,
    /// Called when this node leaves in the middle of a round with its work unfinished: reports it to the
    /// other nodes as a death. May be called twice; `shutdown` follows. May be NULL.
    pub abandon: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// 1 if `next_event` reports every death and the end of the round, else 0. If it is 1, agents wait at
    /// their exit barrier without a time limit unless `exit_barrier_timeout_ms` of their options sets
    /// one.
    pub reports_deaths: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Called once, when the handler has been freed and none of its functions is in progress. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_rendezvous_handler_vtable: 120);

/// Request to a URL scheme in user code. All its content is valid only during the call.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_url_request {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// URL, whose query includes the rank and the world size that the caller passed. UTF-8, not
    /// NUL-terminated.
    pub url: *const u8,
    /// Length of `url` in bytes.
    pub url_len: usize,
    /// Timeout of the rendezvous, in milliseconds.
    pub timeout_ms: i64,
    /// Name or address on which a store hosted by this process listens; length 0 if the caller set none.
    /// UTF-8, not NUL-terminated.
    pub listen_host: *const u8,
    /// Length of `listen_host` in bytes.
    pub listen_host_len: usize,
}

/// URL scheme in user code. Several library threads may call `create` at the same time; it may block and
/// must not throw.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_url_scheme_vtable {
    /// Set to `sizeof(rdzv_url_scheme_vtable)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Time that a call may take beyond the caller's timeout, in milliseconds, above 0; -1: 600,000. After
    /// that, the caller gets `RDZV_TIMED_OUT` and the call is abandoned on its thread.
    pub timeout_ms: i64,
    /// Begins a rendezvous and passes it to `rdzv_reply_set_url_rendezvous`. Returns `RDZV_OK`, or
    /// any other status of this header as the reason for failure. Must not be NULL.
    pub create: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            request: *const rdzv_url_request,
            reply: *mut rdzv_reply,
        ) -> rdzv_status,
    >,
    /// Called once, after the context and all handlers, URL rendezvous, agents, loops and RPC workers that
    /// were created with it have been freed. Stores and servers of the context may outlive it, so
    /// `user_data` may own some. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_url_scheme_vtable: 40);

/// Rendezvous by URL in user code. Its functions are called on library threads, one at a time except for
/// `cancel`; they may block and must not throw.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_url_rendezvous_vtable {
    /// Set to `sizeof(rdzv_url_rendezvous_vtable)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Waits for the other ranks and passes the result to `rdzv_reply_set_group`. Returns
    /// `RDZV_OK`, or any other status of this header as the reason for failure. Must not be NULL.
    pub next: Option<unsafe extern "C" fn(user_data: *mut c_void, reply: *mut rdzv_reply) -> rdzv_status>,
    /// Called when the caller of `next` has stopped waiting, because it was cancelled or timed out; ends
    /// the wait of `next`. May be NULL.
    pub cancel: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// Called once, when the rendezvous has been freed and none of its functions is in progress. May be
    /// NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_url_rendezvous_vtable: 40);

/// Calls user code, which `plugin` names in errors.
fn call(
    plugin: &str,
    function: impl FnOnce(*mut rdzv_reply) -> rdzv_status,
) -> Result<rdzv_reply, HandlerError> {
    let mut reply = rdzv_reply::default();
    let status = function(&raw mut reply);
    reply.checked(plugin, status).map_err(|(status, message)| reported_by(plugin, status, message))
}

#[cold]
#[inline(never)]
fn unfit(plugin: &str, kind: ErrorKind, message: &str) -> HandlerError {
    HandlerError::Plugin { kind, message: format!("{plugin}: {message}").into() }
}

#[cold]
#[inline(never)]
fn gave_no(plugin: &str, what: &str) -> HandlerError {
    unfit(plugin, ErrorKind::WrongProtocol, &format!("it gave no {what}"))
}

struct BackendCode {
    vtable: UserCode<rdzv_rendezvous_backend_vtable>,
    name: String,
}

impl CreateHandler for BackendCode {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let create = self.vtable.create.ok_or_else(|| gave_no(&self.name, "function"))?;
        let mut reply = rendezvous_parameters::with_borrowed(parameters, |borrowed| {
            // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
            call(&self.name, |reply| unsafe { create(self.vtable.user_data, borrowed, reply) })
        })?;
        let mut handler: HandlerCode = reply.take_created().ok_or_else(|| gave_no(&self.name, "handler"))?;
        if handler.run_id.is_none() {
            handler.run_id = Some(parameters.run_id.clone());
        }
        Ok(Box::new(handler))
    }

    fn identity(&self) -> Identity {
        (self.vtable.create.map_or(0, |create| create as usize), self.vtable.user_data.addr())
    }
}

#[derive(Debug)]
struct HandlerCode {
    vtable: UserCode<rdzv_rendezvous_handler_vtable>,
    backend: String,
    run_id: Option<String>,
}

impl HandlerCode {
    fn call(&self, function: Function) -> Result<rdzv_reply, HandlerError> {
        let function = function.ok_or_else(|| gave_no(&self.backend, "function"))?;
        // SAFETY: the vtable was supplied for this call.
        call(&self.backend, |reply| unsafe { function(self.vtable.user_data, reply) })
    }

    fn number(&self, function: Function) -> Result<i64, HandlerError> {
        self.call(function)?.values.number.ok_or_else(|| gave_no(&self.backend, "number"))
    }
}

impl RendezvousHandler for HandlerCode {
    fn backend(&self) -> &str {
        &self.backend
    }

    fn use_agent_store(&self) -> bool {
        self.vtable.use_agent_store != 0
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        self.call(self.vtable.next_rendezvous)?.group.ok_or_else(|| gave_no(&self.backend, "group"))
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        self.number(self.vtable.is_closed).map(|number| number != 0)
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        self.call(self.vtable.set_closed).map(drop)
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        let number = self.number(self.vtable.num_nodes_waiting)?;
        u64::try_from(number)
            .map_err(|_| unfit(&self.backend, ErrorKind::WrongProtocol, "it gave a negative number of nodes"))
    }

    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        let Some(next_event) = self.vtable.next_event else {
            return Err(HandlerError::NoEvents { backend: self.backend.as_str().into() });
        };
        let timeout_ms = millis(timeout);
        // SAFETY: the vtable was supplied for this call.
        let function = |reply| unsafe { next_event(self.vtable.user_data, timeout_ms, reply) };
        call(&self.backend, function).map(|reply| reply.event)
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let Some(fail) = self.vtable.fail else { return self.set_closed() };
        // SAFETY: the vtable was supplied for this call.
        let function = |reply| unsafe { fail(self.vtable.user_data, message.as_ptr(), message.len(), reply) };
        call(&self.backend, function).map(drop)
    }

    fn reports_deaths(&self) -> bool {
        self.vtable.reports_deaths != 0 && self.vtable.next_event.is_some()
    }

    fn run_id(&self) -> &str {
        self.run_id.as_deref().unwrap_or_default()
    }

    fn abandon(&self) {
        if let Some(abandon) = self.vtable.abandon {
            // SAFETY: the vtable was supplied for this call.
            unsafe { abandon(self.vtable.user_data) };
        }
    }

    fn shutdown(&self) -> bool {
        // SAFETY: the vtable was supplied for this call.
        self.vtable.shutdown.is_none_or(|shutdown| unsafe { shutdown(self.vtable.user_data) } != 0)
    }

    fn cancel(&self) {
        if let Some(cancel) = self.vtable.cancel {
            // SAFETY: the vtable was supplied for this call.
            unsafe { cancel(self.vtable.user_data) };
        }
    }
}

struct SchemeCode {
    vtable: UserCode<rdzv_url_scheme_vtable>,
    name: String,
}

impl UrlHandler for SchemeCode {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let create = self.vtable.create.ok_or_else(|| gave_no(&self.name, "function"))?;
        let (url, listen_host) = (url.to_string(), options.listen_host.unwrap_or_default());
        let request = rdzv_url_request {
            struct_size: struct_size::<rdzv_url_request>(),
            reserved: 0,
            url: url.as_ptr(),
            url_len: url.len(),
            timeout_ms: millis(options.timeout),
            listen_host: listen_host.as_ptr(),
            listen_host_len: listen_host.len(),
        };
        // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
        let function = |reply| unsafe { create(self.vtable.user_data, &raw const request, reply) };
        let mut code: UrlCode =
            call(&self.name, function)?.take_created().ok_or_else(|| gave_no(&self.name, "rendezvous"))?;
        code.name.clone_from(&self.name);
        Ok(Box::new(code))
    }
}

#[derive(Debug)]
struct UrlCode {
    vtable: Arc<UserCode<rdzv_url_rendezvous_vtable>>,
    name: String,
}

impl UrlRendezvous for UrlCode {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        let next = self.vtable.next.ok_or_else(|| gave_no(&self.name, "function"))?;
        // SAFETY: the vtable was supplied for this call.
        let reply = call(&self.name, |reply| unsafe { next(self.vtable.user_data, reply) })?;
        let group = reply.group.ok_or_else(|| gave_no(&self.name, "group"))?;
        Ok(UrlGroup { store: group.store, rank: group.rank, world_size: group.world_size })
    }

    fn interrupt(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        let (cancel, vtable) = (self.vtable.cancel?, Arc::clone(&self.vtable));
        // SAFETY: the vtable was supplied for this call, and its data is not destroyed before.
        Some(Arc::new(move || unsafe { cancel(vtable.user_data) }))
    }
}

fn foreign_options(timeout_ms: i64) -> Result<ForeignOptions, Fault> {
    let defaults = ForeignOptions::default();
    match timeout(timeout_ms)? {
        Timeout::After(call_timeout) => Ok(ForeignOptions { call_timeout, ..defaults }),
        Timeout::Default => Ok(defaults),
        Timeout::Once => Err(invalid("`vtable.timeout_ms` is 0: above 0, or -1 for the default")),
    }
}

/// Registers a rendezvous backend in user code under the name `backend`; `vtable` is copied. Registering
/// the same one again (equal `create` and `user_data`) has no effect, and `destroy` is still called only
/// once. On success the library owns `user_data` until it calls `destroy`; on failure the caller keeps it.
///
/// Errors: `RDZV_ALREADY_REGISTERED` (another backend has the name), `RDZV_INVALID_ARGUMENT` (the name is
/// empty).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_register_backend(
    context: *const rdzv_context,
    backend: *const u8,
    backend_len: usize,
    vtable: *const rdzv_rendezvous_backend_vtable,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, context, |context| {
        let backend = text(backend, backend_len, "backend")?;
        let vtable = sized::get(vtable, "vtable")?;
        if vtable.create.is_none() {
            return Err(invalid("`vtable.create` is NULL"));
        }
        let name = c_text(vtable.name, "vtable.name")?.unwrap_or("user code").into();
        let options = foreign_options(vtable.timeout_ms)?;
        let code = UserCode::new(vtable, vtable.user_data);
        let code = Arc::new(BackendCode { vtable: code, name });
        let foreign = ForeignBackend::new(Arc::clone(&code) as Arc<dyn CreateHandler>, options);
        let registered = context.home.rendezvous().register_backend(backend, Arc::new(foreign));
        // A sole reference means that the registry did not take it: `user_data` stays with the caller, or
        // is registered already.
        if Arc::strong_count(&code) > 1 {
            code.vtable.adopt(vtable.destroy);
        }
        Ok(registered?)
    })
}

/// Registers a URL scheme in user code; `vtable` is copied. Schemes in URLs are in lower case. On success
/// the library owns `user_data` until it calls `destroy`; on failure the caller keeps it.
///
/// Errors: `RDZV_ALREADY_REGISTERED` if the scheme is registered, even with the same code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_register_url_scheme(
    context: *const rdzv_context,
    scheme: *const u8,
    scheme_len: usize,
    vtable: *const rdzv_url_scheme_vtable,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, context, |context| {
        let scheme = text(scheme, scheme_len, "scheme")?;
        let vtable = sized::get(vtable, "vtable")?;
        if vtable.create.is_none() {
            return Err(invalid("`vtable.create` is NULL"));
        }
        let options = foreign_options(vtable.timeout_ms)?;
        let code = UserCode::new(vtable, vtable.user_data);
        let code = Arc::new(SchemeCode { vtable: code, name: format!("{scheme}://") });
        let foreign = ForeignUrls::new(scheme, Arc::clone(&code) as Arc<dyn UrlHandler>, options);
        context.home.rendezvous().register_url_scheme(scheme, Arc::new(foreign))?;
        code.vtable.adopt(vtable.destroy);
        Ok(())
    })
}

/// Sets a handler as the reply. `vtable` is copied, and the library owns its `user_data` until it calls
/// `destroy`, whatever the outcome of the call. If a mandatory entry of the vtable is missing, the caller
/// gets `RDZV_INVALID_ARGUMENT` and `user_data` stays with the user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_handler(
    reply: *mut rdzv_reply,
    vtable: *const rdzv_rendezvous_handler_vtable,
) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        let vtable = unsafe { sized::get(vtable, "vtable")? };
        let must = [
            (vtable.next_rendezvous, "next_rendezvous"),
            (vtable.is_closed, "is_closed"),
            (vtable.set_closed, "set_closed"),
            (vtable.num_nodes_waiting, "num_nodes_waiting"),
        ];
        if vtable.backend.is_null() {
            return Err(is_null("vtable.backend"));
        }
        if let Some((_, missing)) = must.iter().find(|(function, _)| function.is_none()) {
            return Err(invalid(format!("`vtable.{missing}` is NULL")));
        }
        // A text that is not valid fails the call, but `user_data` is already the library's.
        let vtable = UserCode::owned(vtable, vtable.user_data, vtable.destroy);
        // SAFETY: NULL or NUL-terminated, as the header requires.
        let (backend, run_id) =
            unsafe { (c_text(vtable.backend, "vtable.backend")?, c_text(vtable.run_id, "vtable.run_id")?) };
        let (backend, run_id) = (backend.unwrap_or_default().into(), run_id.map(String::from));
        reply.put_created(HandlerCode { vtable, backend, run_id });
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { reply::fill(reply, body) };
}

/// Sets a rendezvous by URL as the reply. `vtable` is copied, and its `user_data` is owned as that of a
/// handler is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_url_rendezvous(
    reply: *mut rdzv_reply,
    vtable: *const rdzv_url_rendezvous_vtable,
) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        let vtable = unsafe { sized::get(vtable, "vtable")? };
        if vtable.next.is_none() {
            return Err(invalid("`vtable.next` is NULL"));
        }
        let vtable = Arc::new(UserCode::owned(vtable, vtable.user_data, vtable.destroy));
        reply.put_created(UrlCode { vtable, name: String::new() });
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { reply::fill(reply, body) };
}

/// Lists the names of the context's backends in byte order; they replace the content of `names`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_list_backends(
    context: *const rdzv_context,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, context, |context| {
        let list = reference_mut(names, "names")?;
        list.items = context.home.rendezvous().backends().into_iter().map(String::into_bytes).collect();
        Ok(())
    })
}
