//! Handlers of a worker of an RPC group.

use crate::prelude::*;
use crate::rpc_payload::payload;
use crate::rpc_reentry::outside_workers;
use crate::user_code::Destroy;
use rendezvous_rpc::connection::{CallFailure, CallKind, Status};
use rendezvous_rpc::driver::calls::handling::{HandlerFn, Handling, Request, Responder, Run, Wanted};
use rendezvous_rpc::driver::calls::reentrancy::{CallSite, Home as WorkerHome};
use rendezvous_rpc::driver::calls::{Payload, Received};
use rendezvous_rpc::driver::loop_member::RpcRequestQueue;
use rendezvous_rpc::handlers::{Callers, Handlers, NoCall, Owner};
use rendezvous_rpc::name::{WorkerInfo, WorkerName};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The handler runs on the thread that serves all connections and must not block. This is the fastest
/// mode, for handlers that return at once.
pub const RDZV_RPC_INLINE: i32 = 1;
/// The handler runs on a thread of the pool and may block.
pub const RDZV_RPC_POOLED: i32 = 2;
/// Requests are events of the event loop that has the worker; no function is called.
pub const RDZV_RPC_LOOP: i32 = 3;

/// Handler of requests, in user code. It owns the responder.
pub type rdzv_rpc_handler_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        request: *const rdzv_rpc_request,
        responder: *mut rdzv_rpc_responder,
    ),
>;

/// Receiver of the outcome of a call: the response, or a status and an error. Both are valid during the
/// call of this function only.
pub type rdzv_rpc_done_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        status: rdzv_status,
        data: *const u8,
        len: usize,
        error: *const rdzv_error,
    ),
>;

/// Request to a handler. The request and all pointers obtained from it are valid until the handler
/// returns; any thread may read it.
#[derive(Debug)]
pub struct rdzv_rpc_request {
    caller: String,
    caller_id: u16,
    handler: Arc<str>,
    bytes: Mutex<Bytes>,
    kind: CallKind,
    time_left: Option<Duration>,
}

/// Information about a request to a handler.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_request_info {
    /// Set to `sizeof(rdzv_rpc_request_info)` before the call. The library sets it to the number of bytes
    /// it filled.
    pub struct_size: u32,
    /// Id of the caller.
    pub caller_id: i32,
    /// Name of the caller, UTF-8.
    pub caller: rdzv_bytes,
    /// Name of the handler, UTF-8.
    pub handler: rdzv_bytes,
    /// Bytes of the request; empty once they were taken.
    pub payload: rdzv_bytes,
    /// Time that the caller waits, in milliseconds, counted from when the handler was called; -1: no
    /// limit.
    pub time_left_ms: i64,
    /// 1 if the caller wants a response, else 0; a response is then dropped.
    pub response_is_wanted: i32,
    /// Reserved; 0.
    pub reserved: u32,
}
growing!(rdzv_rpc_request_info: 72);

/// Bytes of a request.
#[derive(Debug)]
enum Bytes {
    Local(Received),
    /// Owned by a backend in user code, which keeps them as long as the request exists.
    Borrowed(*const u8, usize),
}

// SAFETY: borrowed bytes are not modified.
unsafe impl Send for Bytes {}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Local(bytes) => bytes,
            // SAFETY: pointer and length come from a slice that is still borrowed.
            Self::Borrowed(data, len) => unsafe { std::slice::from_raw_parts(*data, *len) },
        }
    }

    fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Local(bytes) => bytes.into_vec(),
            Self::Borrowed(..) => self.get().to_vec(),
        }
    }
}

impl rdzv_rpc_request {
    pub(crate) fn of(request: Request) -> Self {
        let Request { caller, handler, payload, kind, time_left } = request;
        let (bytes, caller_id) = (Mutex::new(Bytes::Local(payload)), caller.id);
        Self { caller: caller.name.as_str().into(), caller_id, handler, bytes, kind, time_left }
    }

    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address and the length of the bytes.
    fn parts(&self) -> (*const u8, usize) {
        let bytes = self.bytes();
        (bytes.get().as_ptr(), bytes.get().len())
    }
}

/// Handle for responding to one request, from any thread and at any time. The handler owns it: each
/// function that responds frees it, and `rdzv_rpc_responder_free` reports to the caller that there is no
/// response.
pub struct rdzv_rpc_responder(ResponseTarget);

impl fmt::Debug for rdzv_rpc_responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdzv_rpc_responder")
    }
}

/// Outcome of a call.
pub(crate) type Outcome = Result<Vec<u8>, Fault>;

enum ResponseTarget {
    Caller(Responder),
    /// Reports to user code, or a call of a backend in user code.
    Completion(Completion),
}

/// Reports the outcome of a call once. If it is dropped before that, it reports that there is no
/// response.
pub(crate) struct Completion {
    on_done: Option<Box<dyn FnOnce(Outcome) + Send>>,
    wanted: Wanted,
}

impl Completion {
    pub(crate) fn new(on_done: Box<dyn FnOnce(Outcome) + Send>, wanted: Wanted) -> Self {
        Self { on_done: Some(on_done), wanted }
    }

    pub(crate) fn on_done(mut self, outcome: Outcome) {
        if let Some(on_done) = self.on_done.take() {
            on_done(outcome);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(on_done) = self.on_done.take() {
            on_done(Err(failed("it gave no answer".into())));
        }
    }
}

impl rdzv_rpc_responder {
    pub(crate) const fn of(completion: Completion) -> Self {
        Self(ResponseTarget::Completion(completion))
    }

    pub(crate) const fn of_caller(responder: Responder) -> Self {
        Self(ResponseTarget::Caller(responder))
    }

    /// Drops the responder without reporting an outcome.
    pub(crate) fn forget(self) {
        if let ResponseTarget::Completion(mut completion) = self.0 {
            completion.on_done = None;
        }
    }
}

/// Creates the failure of a handler from its message.
fn failed(message: String) -> Fault {
    fault_of(RDZV_RPC_HANDLER_FAILED, message)
}

/// Creates a failure with `message` as its cause, too.
fn fault_of(status: rdzv_status, message: String) -> Fault {
    Fault::new(status, message.clone()).with(|details| details.cause = message)
}

/// Converts the failure of a handler for a backend in user code.
fn fault_of_handler(failure: CallFailure) -> Fault {
    match failure {
        CallFailure::Remote { status: Status::Failed, message } => failed(message.into()),
        CallFailure::Remote { status: Status::Malformed, message } => {
            fault_of(RDZV_RPC_MALFORMED, message.into())
        }
        // A backend has no status for the other failures, so the message describes them.
        failure => failed(failure.to_string()),
    }
}

type Handle = unsafe extern "C" fn(*mut c_void, *const rdzv_rpc_request, *mut rdzv_rpc_responder);

/// Handler in user code.
pub(crate) type HandlerCode = UserCode<Handle>;

impl HandlerCode {
    fn call(&self, request: &rdzv_rpc_request, responder: rdzv_rpc_responder) {
        // SAFETY: the function was supplied for this; the request lives until it returns, and it owns the
        // responder.
        unsafe { (**self)(self.user_data, request, boxed(responder)) };
    }
}

/// Code that handles a request.
#[derive(Clone)]
pub(crate) enum Code {
    Program(Run, Arc<HandlerCode>),
    /// Event loop of a worker that has not been created yet.
    Loop,
    /// Event loop that has this request queue.
    RequestQueue(RpcRequestQueue),
}

/// Name of a handler and the code that runs it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) callers: Callers,
    pub(crate) code: Code,
}

impl Entry {
    fn wants_loop(&self) -> Fault {
        let message = "a handler of kind RDZV_RPC_LOOP needs a worker of an event loop";
        invalid(format!("{}: {message}", self.name))
    }

    /// Binds the entry to a worker that is being created: to the loop that has `queue`, or to none.
    pub(crate) fn at(&self, queue: Option<&RpcRequestQueue>) -> Result<Self, Fault> {
        let code = match (&self.code, queue) {
            (Code::Loop, None) => return Err(self.wants_loop()),
            (Code::Loop, Some(queue)) => Code::RequestQueue(queue.clone()),
            (code, _) => code.clone(),
        };
        Ok(Self { name: self.name.clone(), callers: self.callers.clone(), code })
    }

    /// Registers the entry, so that it gets calls.
    pub(crate) fn register(&self, handling: &Handling) -> Result<(), Fault> {
        let (run, call): (Run, Box<HandlerFn>) = match &self.code {
            Code::Program(run, code) => {
                let code = Arc::clone(code);
                let call = move |request: Request, responder| {
                    code.call(&rdzv_rpc_request::of(request), rdzv_rpc_responder::of_caller(responder));
                };
                (*run, Box::new(call))
            }
            Code::Loop => return Err(self.wants_loop()),
            Code::RequestQueue(queue) => (Run::Inline, queue.handler()),
        };
        Ok(handling.register_as((Owner::Program, self.callers.clone()), &self.name, run, call)?)
    }
}

/// Named handlers for workers to be created with, so that callers find them from the start. One thread at
/// a time. Several workers may share them; they may be freed at any time.
#[derive(Default)]
pub struct rdzv_rpc_handlers {
    entries: Vec<Entry>,
    names: Handlers<()>,
    /// Worker of a backend in user code to which these were passed. Copies share it.
    pub(crate) worker: Arc<HandlingWorker>,
}

/// Worker of a backend in user code, as its handlers know it.
#[derive(Debug, Default)]
pub(crate) struct HandlingWorker {
    pub(crate) has_ended: AtomicBool,
    /// Finds out whether a thread runs a handler or a callback of the worker.
    home: WorkerHome,
}

impl HandlingWorker {
    /// Runs a handler or a callback, which may use the worker, but not free it.
    pub(crate) fn call_back(&self, code: impl FnOnce()) {
        self.home.run(CallSite::Pooled, || outside_workers(code));
    }

    pub(crate) fn is_calling_back(&self) -> bool {
        self.home.is_around()
    }
}

impl fmt::Debug for rdzv_rpc_handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| &entry.name)).finish()
    }
}

impl rdzv_rpc_handlers {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Copies the entries, sharing their code, for a worker of a backend in user code.
    pub(crate) fn of(entries: &[Entry], worker: Arc<HandlingWorker>) -> Self {
        let mut names = Handlers::new();
        for entry in entries {
            // The names do not collide: they come from one set.
            names.register(Owner::Program, &entry.name, entry.callers.clone(), ()).ok();
        }
        Self { entries: entries.to_vec(), names, worker }
    }
}

/// Parses a list of callers; NULL: every member of the group.
pub(crate) unsafe fn callers_of(list: *const c_char) -> Result<Callers, Fault> {
    // SAFETY: NULL or NUL-terminated, as the header requires.
    let list = unsafe { c_text(list, "callers") }?;
    Ok(list.map(Callers::parse).transpose()?.unwrap_or_default())
}

/// Converts a handler from C. On failure `destroy` is not called: the caller keeps `user_data`.
pub(crate) unsafe fn parsed(
    (name, name_len): (*const u8, usize),
    run: i32,
    callers: *const c_char,
    handle: rdzv_rpc_handler_fn,
    (user_data, destroy): (*mut c_void, Option<Destroy>),
    take: impl FnOnce(Entry) -> Result<(), Fault>,
) -> Result<(), Fault> {
    // SAFETY: NULL or valid, as the header requires.
    let (name, callers) = unsafe { (text(name, name_len, "name")?.into(), callers_of(callers)?) };
    let run = match run {
        RDZV_RPC_INLINE => Run::Inline,
        RDZV_RPC_POOLED => Run::Pooled,
        RDZV_RPC_LOOP if handle.is_none() && destroy.is_none() => {
            return take(Entry { name, callers, code: Code::Loop });
        }
        RDZV_RPC_LOOP => return Err(invalid("`handle` and `destroy` must be NULL for RDZV_RPC_LOOP")),
        run => return Err(invalid(format!("`run` is {run}, and must be RDZV_RPC_INLINE, _POOLED or _LOOP"))),
    };
    let handle = handle.ok_or_else(|| invalid("`handle` is NULL"))?;
    let code = Arc::new(HandlerCode::new(handle, user_data));
    take(Entry { name, callers, code: Code::Program(run, Arc::clone(&code)) })?;
    code.adopt(destroy);
    Ok(())
}

/// Creates an empty set of handlers; the caller frees it with `rdzv_rpc_handlers_free`. Never NULL: the
/// process is aborted if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_rpc_handlers_new() -> *mut rdzv_rpc_handlers {
    guard::quiet(null_mut(), || boxed(rdzv_rpc_handlers::default()))
}

/// Creates another handle of the same handlers, for a backend in user code to keep. Later additions are
/// not shared. The caller frees it with `rdzv_rpc_handlers_free`. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_clone(
    handlers: *const rdzv_rpc_handlers,
) -> *mut rdzv_rpc_handlers {
    let copy = |of: &rdzv_rpc_handlers| boxed(rdzv_rpc_handlers::of(&of.entries, Arc::clone(&of.worker)));
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(handlers, null_mut(), copy) }
}

/// Frees handlers. Workers that were created with them keep what they need. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_free(handlers: *mut rdzv_rpc_handlers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(handlers) };
}

/// Adds a handler. `run` is `RDZV_RPC_INLINE`, `RDZV_RPC_POOLED`, or, for a worker created with
/// `rdzv_loop_rpc_new`, `RDZV_RPC_LOOP`: then `handle` and `destroy` are NULL, and requests are events
/// of the loop. Otherwise several library threads may call `handle` at the same time; it must not throw.
/// It owns the responder, and may respond later, with the bytes that it took (`rdzv_rpc_request_take`).
/// Shutting its worker down returns `RDZV_REENTRANT` there, and so does waiting for a call in an inline
/// handler. `callers` are the workers that may call it: names separated by commas, of which one that ends
/// with `*` stands for all that begin so; NULL: every member of the group. Others get
/// `RDZV_PERMISSION_DENIED`. A name is what the caller claims, unless the members prove a token or have
/// TLS; then it is as trusted as they are. On success the library owns `user_data` until it calls
/// `destroy` (which may be NULL), once all handles and workers that have the handler have been freed. On
/// failure the caller keeps `user_data`.
///
/// Errors: `RDZV_ALREADY_REGISTERED`, `RDZV_INVALID_ARGUMENT` (the name is empty, too long, or begins
/// with `rdzv/`; `callers` is empty or not a list of names).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_add(
    handlers: *mut rdzv_rpc_handlers,
    name: *const u8,
    name_len: usize,
    run: i32,
    callers: *const c_char,
    handle: rdzv_rpc_handler_fn,
    user_data: *mut c_void,
    destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let handlers = reference_mut(handlers, "handlers")?;
        parsed((name, name_len), run, callers, handle, (user_data, destroy), |entry| {
            handlers.names.register(Owner::Program, &entry.name, entry.callers.clone(), ())?;
            handlers.entries.push(entry);
            Ok(())
        })
    })
}

/// Request that a backend in user code received and passes on.
struct Incoming<'a> {
    caller: &'a str,
    caller_id: u16,
    handler: &'a str,
    payload: &'a [u8],
    time_left_ms: i64,
}

impl rdzv_rpc_handlers {
    /// Passes a request to a handler. `new_responder` creates the responder, and is called only if the
    /// handler is called.
    fn dispatch(
        &self,
        incoming: &Incoming<'_>,
        kind: CallKind,
        new_responder: impl FnOnce() -> rdzv_rpc_responder,
    ) -> Result<(), Fault> {
        let Incoming { caller, caller_id, handler, payload, time_left_ms } = *incoming;
        let time_left = match time_left_ms {
            -1 => None,
            millis => Some(zero_or_more_ms(millis, "time_left_ms")?),
        };
        if self.worker.has_ended.load(Ordering::Acquire) {
            return Err(Fault::new(RDZV_RPC_NO_MEMBER, format!("{handler}: the worker was shut down")));
        }
        let refused = |why| match why {
            NoCall::Unknown => {
                Fault::new(RDZV_RPC_NO_HANDLER, format!("{handler}: there is no such handler"))
            }
            NoCall::Denied => {
                let message = format!("{handler}: {caller} (id {caller_id}) is not in its list of callers");
                Fault::new(RDZV_PERMISSION_DENIED, message)
            }
        };
        let found = self
            .names
            .find(handler, caller)
            .and_then(|()| self.entries.iter().find(|entry| entry.name == handler).ok_or(NoCall::Unknown));
        let found = found.map_err(refused)?;
        let handler: Arc<str> = handler.into();
        match &found.code {
            Code::Program(_, code) => {
                let bytes = Mutex::new(Bytes::Borrowed(payload.as_ptr(), payload.len()));
                let caller = caller.into();
                let request = rdzv_rpc_request { caller, caller_id, handler, bytes, kind, time_left };
                let code = Arc::clone(code);
                self.worker.call_back(|| code.call(&request, new_responder()));
            }
            Code::Loop => return Err(found.wants_loop()),
            Code::RequestQueue(queue) => {
                let name = WorkerName::new(caller).map_err(invalid)?;
                let responder = match new_responder().0 {
                    ResponseTarget::Caller(responder) => responder,
                    ResponseTarget::Completion(completion) => {
                        let wanted = completion.wanted.clone();
                        let on_response = move |response: Result<Payload, CallFailure>| {
                            let response = response.map(|payload| payload.bytes().to_vec());
                            completion.on_done(response.map_err(fault_of_handler));
                        };
                        Responder::external(Arc::clone(&handler), Box::new(on_response), wanted)
                    }
                };
                let caller = WorkerInfo { name, id: caller_id };
                let payload = payload.to_vec().into();
                let request = Request { caller, handler, payload, kind, time_left };
                // If the queue refuses the request, it responds here.
                outside_workers(|| queue.ask(request, responder));
            }
        }
        Ok(())
    }
}

/// Passes a request that a backend in user code received to a handler. An inline or pooled handler is
/// called on the calling thread; for a handler of the event loop, the bytes are copied and the loop gets
/// an event. Of `request`, `response_is_wanted` is not read. `responder` receives the outcome, from any
/// thread; NULL: no response is wanted. It is the one of `rdzv_rpc_responder_new`, or, for a call that a
/// worker makes to itself, the one that its `call` got: then the response is not copied, and the handler
/// can query whether the caller still waits. On success the handler owns `responder`; on failure the
/// caller keeps it.
///
/// Errors: `RDZV_RPC_NO_HANDLER`, `RDZV_PERMISSION_DENIED` (the caller is not among those that may call
/// the handler), `RDZV_RPC_NO_MEMBER` (the worker to which the handlers were passed was
/// shut down), `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_dispatch(
    handlers: *const rdzv_rpc_handlers,
    request: *const rdzv_rpc_request_info,
    responder: *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let handlers = reference(handlers, "handlers")?;
        let request = sized::get(request, "request")?;
        let id = request.caller_id;
        let incoming = Incoming {
            caller: text(request.caller.data, request.caller.len, "caller")?,
            caller_id: u16::try_from(id)
                .map_err(|_| invalid(format!("`caller_id` is {id}: from 0 to 65535")))?,
            handler: text(request.handler.data, request.handler.len, "handler")?,
            payload: bytes(request.payload.data, request.payload.len, "payload")?,
            time_left_ms: request.time_left_ms,
        };
        let kind = if responder.is_null() { CallKind::OneWay } else { CallKind::Responded };
        handlers.dispatch(&incoming, kind, || {
            if responder.is_null() {
                rdzv_rpc_responder::of(Completion::new(Box::new(drop), Wanted::new(kind)))
            } else {
                *Box::from_raw(responder)
            }
        })
    })
}

/// Returns a callback that passes the outcome of a call to C.
pub(crate) fn listener(done: rdzv_rpc_done_fn, user_data: *mut c_void) -> Box<dyn FnOnce(Outcome) + Send> {
    let code = UserCode::new(done, user_data);
    Box::new(move |outcome| {
        let Some(done) = *code else { return };
        outside_workers(|| match outcome {
            // SAFETY: the function was supplied for this; its arguments live until it returns.
            Ok(response) => unsafe {
                done(code.user_data, RDZV_OK, response.as_ptr(), response.len(), null());
            },
            Err(fault) => {
                let error = rdzv_error::new(fault);
                // SAFETY: as above.
                unsafe { done(code.user_data, error.status(), null(), 0, &raw const error) };
            }
        });
    })
}

/// Fills `*out`, whose `struct_size` the caller has set. What it points to is valid as long as the
/// request.
///
/// Errors: `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_get_info(
    request: *const rdzv_rpc_request,
    out: *mut rdzv_rpc_request_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let of = reference(request, "request")?;
        let (data, len) = of.parts();
        let info = rdzv_rpc_request_info {
            caller_id: of.caller_id.into(),
            caller: rdzv_bytes::of(&*of.caller),
            handler: rdzv_bytes::of(&*of.handler),
            payload: rdzv_bytes { data, len },
            time_left_ms: of.time_left.map_or(-1, millis),
            response_is_wanted: i32::from(of.kind == CallKind::Responded),
            ..Default::default()
        };
        Ok(info)
    })
}

/// Moves the bytes of the request to `out`, for a handler that responds later: they replace the content
/// of `out` without a copy, and the request is empty afterwards. Pointers to them remain valid as long as
/// the content of `out`. For a request that `rdzv_rpc_handlers_dispatch` passes to a handler, the backend
/// owns the bytes, and they are copied. Any thread may call this as long as the request is valid; in a
/// loop, that is until the next call of `rdzv_loop_next_event`. A second call returns no bytes.
///
/// Errors: `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_take(
    request: *const rdzv_rpc_request,
    out: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let (request, out) = (reference(request, "request")?, reference_mut(out, "out")?);
        let none = Bytes::Local(Vec::new().into());
        out.take(std::mem::replace(&mut *request.bytes(), none).into_vec());
        Ok(())
    })
}

/// Consumes a responder and responds.
unsafe fn respond(
    responder: *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
    response: impl Fn() -> Result<Result<Payload, Fault>, Fault>,
) -> rdzv_status {
    guard::call!(error, || {
        let response = response();
        if responder.is_null() {
            return Err(invalid("`responder` is NULL"));
        }
        let rdzv_rpc_responder(back) = *Box::from_raw(responder);
        // A response that is not valid is reported to the caller as no response.
        match (back, response?) {
            (ResponseTarget::Caller(responder), Ok(payload)) => _ = responder.answer(payload),
            (ResponseTarget::Caller(responder), Err(fault)) if fault.status == RDZV_RPC_MALFORMED => {
                _ = responder.refuse_malformed(&fault.message);
            }
            (ResponseTarget::Caller(responder), Err(fault)) => _ = responder.fail(&fault.message),
            (ResponseTarget::Completion(completion), Ok(payload)) => {
                completion.on_done(Ok(payload.bytes().to_vec()))
            }
            (ResponseTarget::Completion(completion), Err(fault)) => completion.on_done(Err(fault)),
        }
        Ok(())
    })
}

/// Creates a responder that reports the outcome of a request to `done` once, on any thread: the response,
/// or a status and an error, which `done` borrows. For a backend in user code that receives requests over
/// a network (`rdzv_rpc_handlers_dispatch`). On success the caller owns `*out`.
///
/// Errors: `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_new(
    done: rdzv_rpc_done_fn,
    user_data: *mut c_void,
    out: *mut *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        // Before there is a responder: one that is dropped would call `done`.
        if done.is_none() {
            return Err(invalid("`done` is NULL"));
        }
        let completion = Completion::new(listener(done, user_data), Wanted::new(CallKind::Responded));
        Ok(boxed(rdzv_rpc_responder::of(completion)))
    })
}

/// Responds with these bytes and frees the responder, whatever the status. Without `release` the bytes
/// are copied. With it the library borrows them and calls it once with `user_data`, on any thread, when
/// it no longer needs them, whatever the status of this function.
///
/// While a caller has 256 MiB of responses that it has not read, no handler is started for it. A response
/// that is given after its handler has returned is dropped if the caller would have more than 1 GiB to
/// read, or all callers together more than 8 GiB; the caller then gets `RDZV_LIMIT_EXCEEDED`. A single
/// response may be larger.
///
/// Errors: `RDZV_INVALID_ARGUMENT`. Whether the response arrives is not reported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_send(
    responder: *mut rdzv_rpc_responder,
    data: *const u8,
    len: usize,
    release: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe { respond(responder, error, || Ok(Ok(payload((data, len), release, user_data)?))) }
}

/// Reports that a call failed, with this message in UTF-8, and frees the responder, whatever the status
/// of this function. A call of a backend in user code fails with `status`, which is any of this header.
/// The caller of a handler gets `RDZV_RPC_MALFORMED` if that is `status`: the handler cannot decode its
/// request. For any other status it gets `RDZV_RPC_HANDLER_FAILED` and the message; one of more than 16
/// KiB is truncated and ends with ` [cut: N bytes, at most 16384]`, where N is its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_fail(
    responder: *mut rdzv_rpc_responder,
    status: rdzv_status,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        respond(responder, error, || {
            let message = String::from_utf8_lossy(bytes(message, message_len, "message")?).into_owned();
            Ok(Err(match status {
                RDZV_OK | RDZV_RPC_HANDLER_FAILED => failed(message),
                RDZV_RPC_MALFORMED => fault_of(status, message),
                _ => Fault::new(status, message),
            }))
        })
    }
}

/// Returns 1 if the caller still waits for the response, else 0: the call was cancelled or timed out, it
/// is a notice, or `responder` is NULL. For handlers and backends in user code whose responses are
/// expensive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_is_wanted(responder: *const rdzv_rpc_responder) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(responder, 0, |of| match &of.0 {
            ResponseTarget::Caller(responder) => i32::from(responder.is_wanted()),
            ResponseTarget::Completion(completion) => i32::from(completion.wanted.get()),
        })
    }
}

/// Frees a responder. The caller is notified that there is no response. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_free(responder: *mut rdzv_rpc_responder) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(responder) };
}
