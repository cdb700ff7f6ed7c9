//! Handlers of a worker of an RPC group.

use crate::argument::{bytes, invalid, out_pointer, reference, reference_mut, text};
use crate::buffer::{borrowed, rdzv_buffer};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rpc_fault::name_fault;
use crate::rpc_payload::payload;
use crate::rpc_reentry::outside_workers;
use crate::status::*;
use rendezvous_rpc::connection::{CallFailure, CallKind, Status};
use rendezvous_rpc::driver::calls::handling::{HandlerFn, Handling, Request, Responder, Run, Wanted};
use rendezvous_rpc::driver::calls::{Payload, Received};
use rendezvous_rpc::driver::loop_member::RpcRequestQueue;
use rendezvous_rpc::handlers::{Handlers, Owner};
use rendezvous_rpc::name::{WorkerInfo, WorkerName};
use std::ffi::c_void;
use std::fmt;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The handler runs on the thread that serves all connections: it must not block. The quickest way for what
/// takes no time.
pub const RDZV_RPC_INLINE: i32 = 1;
/// The handler runs on a thread of the pool, and may block.
pub const RDZV_RPC_POOLED: i32 = 2;
/// Its requests are events of the event loop that the worker is in: nothing is called.
pub const RDZV_RPC_LOOP: i32 = 3;

/// What a handler is asked. Valid, with all that it lends, until the handler returns; any thread may read it.
#[derive(Debug)]
pub struct rdzv_rpc_request {
    caller: String,
    caller_id: u16,
    handler: Arc<str>,
    bytes: Mutex<Bytes>,
    kind: CallKind,
    time_left: Option<Duration>,
}

/// The bytes of a request.
#[derive(Debug)]
enum Bytes {
    Local(Received),
    /// Of a backend of the program's own, which keeps them as long as the request lives.
    Borrowed(*const u8, usize),
}

// SAFETY: nobody changes what is lent.
unsafe impl Send for Bytes {}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Local(bytes) => bytes,
            // SAFETY: they were a slice when they were lent.
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

    /// Where the bytes lie, and how many.
    pub(crate) fn parts(&self) -> (*const u8, usize) {
        let bytes = self.bytes();
        (bytes.get().as_ptr(), bytes.get().len())
    }
}

/// The way back for one answer, from any thread and at any time. It is yours: each of the functions that
/// answer frees it, and `rdzv_rpc_responder_free` tells the caller that there is no answer.
pub struct rdzv_rpc_responder(Back);

impl fmt::Debug for rdzv_rpc_responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdzv_rpc_responder")
    }
}

/// What came of a call.
pub(crate) type Outcome = Result<Vec<u8>, Fault>;

enum Back {
    Caller(Responder),
    /// To code of the program's, or to a call of a backend of the program's own.
    Completion(Completion),
}

/// Reports the outcome of a call once. Dropped before that, it reports that there is no answer.
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
        Self(Back::Completion(completion))
    }

    pub(crate) const fn of_caller(responder: Responder) -> Self {
        Self(Back::Caller(responder))
    }

    /// Nobody is told anything.
    pub(crate) fn forget(self) {
        if let Back::Completion(mut completion) = self.0 {
            completion.on_done = None;
        }
    }
}

/// A handler that failed in these words.
fn failed(message: String) -> Fault {
    fault_of(RDZV_RPC_HANDLER_FAILED, message)
}

/// A failure of a handler whose words are the cause.
fn fault_of(status: rdzv_status, message: String) -> Fault {
    Fault::new(status, message.clone()).with(|details| details.cause = message)
}

/// What a backend of the program's is told of a handler that did not answer.
fn fault_of_handler(failure: CallFailure) -> Fault {
    match failure {
        CallFailure::Remote { status: Status::Failed, message } => failed(message.into()),
        CallFailure::Remote { status: Status::Malformed, message } => {
            fault_of(RDZV_RPC_MALFORMED, message.into())
        }
        // What a backend cannot tell apart, the words do.
        failure => failed(failure.to_string()),
    }
}

type Handle = unsafe extern "C" fn(
    user_data: *mut c_void,
    request: *const rdzv_rpc_request,
    responder: *mut rdzv_rpc_responder,
);

/// A handler in code of the program's.
pub(crate) struct HandlerCode {
    handle: Handle,
    user_data: *mut c_void,
    /// There once `user_data` is the library's.
    destroy: OnceLock<unsafe extern "C" fn(user_data: *mut c_void)>,
}

// SAFETY: the header tells that the functions are called on threads of the library, by several at a time.
unsafe impl Send for HandlerCode {}
// SAFETY: as above.
unsafe impl Sync for HandlerCode {}

impl HandlerCode {
    fn call(&self, request: &rdzv_rpc_request, responder: rdzv_rpc_responder) {
        let responder = Box::into_raw(Box::new(responder));
        // SAFETY: the function was given for this; the request lives until it returns, the responder is its own.
        unsafe { (self.handle)(self.user_data, request, responder) };
    }
}

impl Drop for HandlerCode {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.get() {
            // SAFETY: the handler was given for this, and nothing is asked any more.
            unsafe { destroy(self.user_data) };
        }
    }
}

/// Who carries out what a handler is asked.
#[derive(Clone)]
pub(crate) enum Code {
    Program(Run, Arc<HandlerCode>),
    /// The event loop of a worker that is still to be made.
    Loop,
    /// The event loop that has this desk.
    RequestQueue(RpcRequestQueue),
}

/// A handler and how it is called.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) code: Code,
}

impl Entry {
    fn wants_loop(&self) -> Fault {
        let message = "a handler whose requests are events is for a worker that is made for an event loop";
        invalid(format!("{}: {message}", self.name))
    }

    /// The same for a worker that is made now: for the loop of this desk, or for none.
    pub(crate) fn at(&self, queue: Option<&RpcRequestQueue>) -> Result<Self, Fault> {
        let code = match (&self.code, queue) {
            (Code::Loop, None) => return Err(self.wants_loop()),
            (Code::Loop, Some(queue)) => Code::RequestQueue(queue.clone()),
            (code, _) => code.clone(),
        };
        Ok(Self { name: self.name.clone(), code })
    }

    /// Has it answer calls.
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
        let registered = handling.register_as(Owner::Program, &self.name, run, call);
        registered.map_err(|error| name_fault(&error))
    }
}

/// Handlers by their names, for workers to be made with: whoever calls a worker finds them from the
/// beginning. One thread at a time. Any number of workers may share them; free it when you like.
#[derive(Default)]
pub struct rdzv_rpc_handlers {
    entries: Vec<Entry>,
    names: Handlers<()>,
    /// Whether the worker of a backend in the program's code has ended that these were given to. Copies share it.
    pub(crate) has_ended: Arc<AtomicBool>,
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

    /// A copy that shares the code, for a worker of a backend in the program's code.
    pub(crate) fn of(entries: &[Entry], has_ended: Arc<AtomicBool>) -> Self {
        let mut names = Handlers::new();
        for entry in entries {
            // They were found to be free of each other before.
            names.register(Owner::Program, &entry.name, ()).ok();
        }
        Self { entries: entries.to_vec(), names, has_ended }
    }
}

/// A handler from C. On failure `destroy` is not called: `user_data` stays the caller's.
pub(crate) unsafe fn parsed(
    (name, name_len): (*const u8, usize),
    run: i32,
    handle: Option<Handle>,
    (user_data, destroy): (*mut c_void, Option<unsafe extern "C" fn(user_data: *mut c_void)>),
    take: impl FnOnce(Entry) -> Result<(), Fault>,
) -> Result<(), Fault> {
    // SAFETY: NULL or valid, as the header requires.
    let name = unsafe { text(name, name_len, "name") }?;
    let run = match run {
        RDZV_RPC_INLINE => Run::Inline,
        RDZV_RPC_POOLED => Run::Pooled,
        RDZV_RPC_LOOP if handle.is_none() && destroy.is_none() => {
            return take(Entry { name: name.into(), code: Code::Loop });
        }
        RDZV_RPC_LOOP => return Err(invalid("of a handler of kind RDZV_RPC_LOOP nothing is called")),
        run => return Err(invalid(format!("`run` is {run}, and must be RDZV_RPC_INLINE, _POOLED or _LOOP"))),
    };
    let handle = handle.ok_or_else(|| invalid("`handle` is NULL"))?;
    let code = Arc::new(HandlerCode { handle, user_data, destroy: OnceLock::new() });
    take(Entry { name: name.into(), code: Code::Program(run, Arc::clone(&code)) })?;
    if let Some(destroy) = destroy {
        code.destroy.set(destroy).ok();
    }
    Ok(())
}

/// No handlers. On success the caller owns `*out` and frees it with `rdzv_rpc_handlers_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_new(
    out: *mut *mut rdzv_rpc_handlers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            out_pointer(out, "out")?.put(Box::into_raw(Box::default()));
            Ok(())
        })
    }
}

/// Another handle of the same handlers, for a backend of yours to keep. Later additions are not shared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_clone(
    handlers: *const rdzv_rpc_handlers,
    out: *mut *mut rdzv_rpc_handlers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let handlers = reference(handlers, "handlers")?;
            let copy = rdzv_rpc_handlers::of(&handlers.entries, Arc::clone(&handlers.has_ended));
            out_pointer(out, "out")?.put(Box::into_raw(Box::new(copy)));
            Ok(())
        })
    }
}

/// Frees handlers. Workers that were made with them keep what they need. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_free(handlers: *mut rdzv_rpc_handlers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(handlers) };
}

/// Adds a handler. `run` is `RDZV_RPC_INLINE`, `RDZV_RPC_POOLED`, or `RDZV_RPC_LOOP` for a worker that is
/// made with `rdzv_loop_rpc_init`: then `handle` and `destroy` are NULL, and requests are events of the
/// loop. Otherwise `handle` is called on threads of the library, by several at a time; it must not throw.
/// It owns the responder, and may answer later, with the bytes that it took (`rdzv_rpc_request_take`). It
/// may free its worker; to shut that down is `RDZV_REENTRANT` there, and so is waiting for a call in an
/// inline handler. On success the library owns `user_data`, until it calls `destroy` (which may be NULL)
/// once all handles and workers that have the handler are gone; on failure it stays yours.
///
/// Errors: `RDZV_ALREADY_REGISTERED`, `RDZV_INVALID_ARGUMENT` (the name is empty, too long, or begins with
/// `rdzv/`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_add(
    handlers: *mut rdzv_rpc_handlers,
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
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let handlers = reference_mut(handlers, "handlers")?;
            parsed((name, name_len), run, handle, (user_data, destroy), |entry| {
                let registered = handlers.names.register(Owner::Program, &entry.name, ());
                registered.map_err(|error| name_fault(&error))?;
                handlers.entries.push(entry);
                Ok(())
            })
        })
    }
}

/// A request that a backend of the program's received, as C hands it on.
struct Incoming<'a> {
    caller: &'a str,
    caller_id: u16,
    handler: &'a str,
    payload: &'a [u8],
    time_left_ms: i64,
}

impl rdzv_rpc_handlers {
    /// Has a handler answer. `answer_to` makes the way back, once it is sure that the handler is called.
    fn dispatch(
        &self,
        incoming: &Incoming<'_>,
        kind: CallKind,
        answer_to: impl FnOnce() -> rdzv_rpc_responder,
    ) -> Result<(), Fault> {
        let Incoming { caller, caller_id, handler, payload, time_left_ms } = *incoming;
        let time_left = match time_left_ms {
            -1 => None,
            millis => Some(crate::argument::zero_or_more_ms(millis, "time_left_ms")?),
        };
        if self.has_ended.load(Ordering::Acquire) {
            return Err(Fault::new(RDZV_RPC_NO_MEMBER, format!("{handler}: the worker was shut down")));
        }
        let found = self.entries.iter().find(|entry| entry.name == handler);
        let found = found
            .ok_or_else(|| Fault::new(RDZV_RPC_NO_HANDLER, format!("{handler}: there is no such handler")))?;
        let handler: Arc<str> = handler.into();
        match &found.code {
            Code::Program(_, code) => {
                let bytes = Mutex::new(Bytes::Borrowed(payload.as_ptr(), payload.len()));
                let caller = caller.into();
                let request = rdzv_rpc_request { caller, caller_id, handler, bytes, kind, time_left };
                let code = Arc::clone(code);
                outside_workers(|| code.call(&request, answer_to()));
            }
            Code::Loop => return Err(found.wants_loop()),
            Code::RequestQueue(queue) => {
                let name = WorkerName::new(caller).map_err(|error| invalid(error.to_string()))?;
                let responder = match answer_to().0 {
                    Back::Caller(responder) => responder,
                    Back::Completion(completion) => {
                        let wanted = completion.wanted.clone();
                        let answered = move |answer: Result<Payload, CallFailure>| {
                            let answer = answer.map(|payload| payload.bytes().to_vec());
                            completion.on_done(answer.map_err(fault_of_handler));
                        };
                        Responder::external(Arc::clone(&handler), Box::new(answered), wanted)
                    }
                };
                let caller = WorkerInfo { name, id: caller_id };
                let payload = payload.to_vec().into();
                let request = Request { caller, handler, payload, kind, time_left };
                // One that is refused is answered here.
                outside_workers(|| queue.ask(request, responder));
            }
        }
        Ok(())
    }
}

/// Has a handler answer a request that a backend of yours received: it is called on the calling thread, be
/// it inline or pooled; where it is the event loop's, the bytes are copied, and it hears of them. `done` is
/// told once what came of it, on any thread, also where `answer_is_wanted` is 0; it may be NULL then.
/// `time_left_ms`: how long the caller waits from now; -1: as long as it takes.
///
/// Errors, of which `done` hears nothing: `RDZV_RPC_NO_HANDLER`, `RDZV_RPC_NO_MEMBER` (the worker that the
/// handlers were given to was shut down), `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_dispatch(
    handlers: *const rdzv_rpc_handlers,
    caller: *const u8,
    caller_len: usize,
    caller_id: u16,
    handler: *const u8,
    handler_len: usize,
    payload: *const u8,
    payload_len: usize,
    time_left_ms: i64,
    answer_is_wanted: i32,
    done: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            status: rdzv_status,
            data: *const u8,
            len: usize,
            error: *const rdzv_error,
        ),
    >,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let handlers = reference(handlers, "handlers")?;
            let caller = text(caller, caller_len, "caller")?;
            let handler = text(handler, handler_len, "handler")?;
            let payload = bytes(payload, payload_len, "payload")?;
            let kind = match (answer_is_wanted, done) {
                (0, _) => CallKind::OneWay,
                (_, Some(_)) => CallKind::Responded,
                (_, None) => return Err(invalid("`done` is NULL")),
            };
            let incoming = Incoming { caller, caller_id, handler, payload, time_left_ms };
            handlers.dispatch(&incoming, kind, || {
                rdzv_rpc_responder::of(Completion::new(listener(done, user_data), Wanted::new(kind)))
            })
        })
    }
}

/// As `rdzv_rpc_handlers_dispatch`, where the answer is that of a call which a worker of yours makes: the
/// handler is given `responder`, so that it answers without a copy and sees whether the caller waits still.
/// NULL: nobody wants an answer. On success `responder` is the handler's; on failure it stays yours.
///
/// Errors: as `rdzv_rpc_handlers_dispatch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_handlers_dispatch_to(
    handlers: *const rdzv_rpc_handlers,
    caller: *const u8,
    caller_len: usize,
    caller_id: u16,
    handler: *const u8,
    handler_len: usize,
    payload: *const u8,
    payload_len: usize,
    time_left_ms: i64,
    responder: *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let handlers = reference(handlers, "handlers")?;
            let caller = text(caller, caller_len, "caller")?;
            let handler = text(handler, handler_len, "handler")?;
            let payload = bytes(payload, payload_len, "payload")?;
            let kind = if responder.is_null() { CallKind::OneWay } else { CallKind::Responded };
            let incoming = Incoming { caller, caller_id, handler, payload, time_left_ms };
            handlers.dispatch(&incoming, kind, || {
                if responder.is_null() {
                    rdzv_rpc_responder::of(Completion::new(Box::new(drop), Wanted::new(kind)))
                } else {
                    *Box::from_raw(responder)
                }
            })
        })
    }
}

/// What is told what came of a call.
type Done = unsafe extern "C" fn(
    user_data: *mut c_void,
    status: rdzv_status,
    data: *const u8,
    len: usize,
    error: *const rdzv_error,
);

/// Something of the program's that goes from thread to thread, as the header tells.
struct Moved(*mut c_void);
// SAFETY: as above.
unsafe impl Send for Moved {}

impl Moved {
    const fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Tells C what came of a call.
pub(crate) fn listener(done: Option<Done>, user_data: *mut c_void) -> Box<dyn FnOnce(Outcome) + Send> {
    let user_data = Moved(user_data);
    Box::new(move |outcome| {
        let Some(done) = done else { return };
        outside_workers(|| match outcome {
            // SAFETY: the function was given for this; what it is lent lives until it returns.
            Ok(answer) => unsafe {
                done(user_data.get(), RDZV_OK, answer.as_ptr(), answer.len(), null());
            },
            Err(fault) => {
                let error = rdzv_error::new(fault);
                // SAFETY: as above.
                unsafe { done(user_data.get(), error.status(), null(), 0, &raw const error) };
            }
        });
    })
}

/// The caller's name, its length in `*len` unless `len` is NULL. Not NUL-terminated. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_caller(
    request: *const rdzv_rpc_request,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, null(), |of| borrowed(of.caller.as_bytes(), len)) }
}

/// The caller's number. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_caller_id(request: *const rdzv_rpc_request) -> u16 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, 0, |of| of.caller_id) }
}

/// The handler's own name, as the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_handler(
    request: *const rdzv_rpc_request,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, null(), |of| borrowed(of.handler.as_bytes(), len)) }
}

/// The bytes of the request, their number in `*len` unless `len` is NULL; none once they were taken. NULL for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_payload(
    request: *const rdzv_rpc_request,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, null(), |of| borrowed(of.bytes().get(), len)) }
}

/// Makes the bytes of the request yours, for who answers later: they replace the content of `out` without
/// being copied, and the request has none any more. What was lent of them lies where it lay, and lives as
/// the content of `out` now. Of a request that `rdzv_rpc_handlers_dispatch` hands on to a handler that it
/// calls, they are the backend's, and are copied. Any thread, as long as the request is valid: in a loop
/// until the next call of `rdzv_loop_next_event`. Whoever takes them once more gets none.
///
/// Errors: `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_take(
    request: *const rdzv_rpc_request,
    out: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let (request, out) = (reference(request, "request")?, reference_mut(out, "out")?);
            let none = Bytes::Local(Vec::new().into());
            out.take(std::mem::replace(&mut *request.bytes(), none).into_vec());
            Ok(())
        })
    }
}

/// Whether the caller wants an answer, 1 or 0; what is answered all the same is dropped. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_answer_is_wanted(request: *const rdzv_rpc_request) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, 0, |of| i32::from(of.kind == CallKind::Responded)) }
}

/// How long the caller waits, in milliseconds, from when the handler was called; -1: as long as it takes. 0
/// for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_request_time_left_ms(request: *const rdzv_rpc_request) -> i64 {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(request, 0, |of| of.time_left.map_or(-1, millis)) }
}

/// Takes a responder and answers.
unsafe fn respond(
    responder: *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
    answer: impl FnOnce() -> Result<Result<Payload, Fault>, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, || {
            let answer = answer();
            if responder.is_null() {
                return Err(invalid("`responder` is NULL"));
            }
            let rdzv_rpc_responder(back) = *Box::from_raw(responder);
            // A caller whose answer makes no sense hears that there is none.
            match (back, answer?) {
                (Back::Caller(responder), Ok(payload)) => _ = responder.answer(payload),
                (Back::Caller(responder), Err(fault)) if fault.status == RDZV_RPC_MALFORMED => {
                    _ = responder.refuse_malformed(&fault.message);
                }
                (Back::Caller(responder), Err(fault)) => _ = responder.fail(&fault.message),
                (Back::Completion(completion), Ok(payload)) => {
                    completion.on_done(Ok(payload.bytes().to_vec()))
                }
                (Back::Completion(completion), Err(fault)) => completion.on_done(Err(fault)),
            }
            Ok(())
        })
    }
}

/// Answers with these bytes, and frees the responder, whatever it returns. Without `release` they are
/// copied. With it they are only lent, and it is called once with `user_data`, on any thread, when nobody
/// needs them any more, whatever this function returns.
///
/// No handler begins for a caller that has not read 256 MiB of its answers, until it reads on. An answer that
/// is given after its handler has returned is dropped if the caller would have more than 1 GiB to read, or all
/// callers more than 8 GiB; the caller then gets `RDZV_LIMIT_EXCEEDED`. One answer alone may be longer.
///
/// Errors: `RDZV_INVALID_ARGUMENT`. Whether the answer arrives nobody knows here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_answer(
    responder: *mut rdzv_rpc_responder,
    data: *const u8,
    len: usize,
    release: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { respond(responder, error, || Ok(Ok(payload((data, len), release, user_data)?))) }
}

/// Tells the caller in these words, in UTF-8, that the handler failed, and frees the responder, whatever it
/// returns. The caller gets `RDZV_RPC_HANDLER_FAILED`. A text of more than 16 KiB is cut, and ends with
/// ` [cut: N bytes, at most 16384]`, where N is its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_fail(
    responder: *mut rdzv_rpc_responder,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        respond(responder, error, || {
            let message = bytes(message, message_len, "message")?;
            Ok(Err(failed(String::from_utf8_lossy(message).into_owned())))
        })
    }
}

/// Tells that a call of a backend of yours failed with any status of this header, and frees the responder,
/// whatever it returns. The caller of a handler gets `RDZV_RPC_MALFORMED` where that is the status: the
/// handler cannot read its request; with any other it gets `RDZV_RPC_HANDLER_FAILED` and the words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_fail_with(
    responder: *mut rdzv_rpc_responder,
    status: rdzv_status,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        respond(responder, error, || {
            let message = String::from_utf8_lossy(bytes(message, message_len, "message")?).into_owned();
            let status = if status == RDZV_OK { RDZV_RPC_HANDLER_FAILED } else { status };
            Ok(Err(match status {
                RDZV_RPC_MALFORMED => fault_of(status, message),
                _ => Fault::new(status, message),
            }))
        })
    }
}

/// Whether the caller still waits for the answer, 1 or 0: 0 once the call was cancelled or its time is up, for
/// a notice, and for NULL. For a handler or a backend of yours that has much to do for an answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_is_wanted(responder: *const rdzv_rpc_responder) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(responder, 0, |of| match &of.0 {
            Back::Caller(responder) => i32::from(responder.is_wanted()),
            Back::Completion(completion) => i32::from(completion.wanted.get()),
        })
    }
}

/// Frees a responder: the caller hears that there is no answer. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_responder_free(responder: *mut rdzv_rpc_responder) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(responder) };
}
