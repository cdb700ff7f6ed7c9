//! Rendezvous backends and URL schemes in code of yours.

use crate::argument::{bytes, invalid, reference, reference_mut, text};
use crate::buffer::rdzv_list;
use crate::context::{rdzv_context, struct_size};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rendezvous_event::{parsed, rdzv_round_event};
use crate::rendezvous_fault::{registry_fault, reported_by};
use crate::rendezvous_parameters::rdzv_rendezvous_parameters;
use crate::sized;
use crate::status::{RDZV_OK, rdzv_status};
use crate::store::{rdzv_store, timeout};
use rendezvous_core::driver::rendezvous::{
    CreateHandler, ForeignBackend, ForeignOptions, ForeignUrls, HandlerError, Meeting, NodeStore,
    RendezvousHandler, UrlHandler, UrlOptions, UrlRendezvous,
};
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::rendezvous::registry::Identity;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use rendezvous_core::rendezvous::url::RendezvousUrl;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

type Destroy = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
type Ask =
    Option<unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status>;

/// Takes the answer of code of yours. Valid during the call only.
#[derive(Debug, Default)]
pub struct rdzv_rendezvous_answer {
    message: Option<String>,
    number: Option<i64>,
    group: Option<RendezvousInfo<Arc<NodeStore>>>,
    event: Option<RoundEvent>,
    handler: Option<HandlerCode>,
    rendezvous: Option<UrlCode>,
    /// The first thing that was wrong with what was answered.
    flaw: Option<String>,
}

/// A rendezvous backend in code of yours. `create` is called on threads of the library's, by several at a
/// time; it may block. It must not throw. A handler of the same backend that it asks its context for is
/// refused with `RDZV_REENTRANT`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rendezvous_backend_vtable {
    /// `sizeof(rdzv_rendezvous_backend_vtable)`.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// What errors call the code. UTF-8, NUL-terminated, copied; NULL: a name of the library's.
    pub name: *const c_char,
    /// How long a call to the backend or to one of its handlers may take, in milliseconds, above 0, until its
    /// caller gets `RDZV_TIMED_OUT` and the code is left behind; -1: 600,000.
    pub timeout_ms: i64,
    /// Makes a handler for these parameters, tells it with `rdzv_rendezvous_answer_set_handler`, and returns
    /// `RDZV_OK`, or why it does not: any status of this header. Must not be NULL.
    pub create: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            parameters: *const rdzv_rendezvous_parameters,
            answer: *mut rdzv_rendezvous_answer,
        ) -> rdzv_status,
    >,
    /// Called once, when the context is gone and so are the handlers, URL rendezvous, agents, loops and RPC
    /// workers that were made with it. Stores and servers of the context may outlive it, so that `user_data`
    /// may own some. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// A handler in code of yours. Its functions are called on threads of the library's, by several at a time;
/// they may block, and must not throw. What they call on the handle that is calling them returns
/// `RDZV_REENTRANT`. Each returns `RDZV_OK`, or why it did not do it: any status of this header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_rendezvous_handler_vtable {
    /// `sizeof(rdzv_rendezvous_handler_vtable)`.
    pub struct_size: u32,
    /// 1 if the ranks that this node starts shall use the store that the nodes met over, else 0.
    pub use_agent_store: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// The backend that it is of, which must be the one that was asked for. UTF-8, NUL-terminated, copied.
    pub backend: *const c_char,
    /// The run. UTF-8, NUL-terminated, copied; NULL: that of the parameters.
    pub run_id: *const c_char,
    /// Joins, waits until the group is whole, and answers it with `rdzv_rendezvous_answer_set_group`. Must not
    /// be NULL.
    pub next_rendezvous: Option<
        unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status,
    >,
    /// Answers the number 1 if the rendezvous is closed, else 0. Must not be NULL.
    pub is_closed: Option<
        unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status,
    >,
    /// Closes the rendezvous. Must not be NULL.
    pub set_closed: Option<
        unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status,
    >,
    /// Answers how many nodes wait for the next round. Must not be NULL.
    pub num_nodes_waiting: Option<
        unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status,
    >,
    /// Waits up to `timeout_ms` for the next event and answers it with `rdzv_rendezvous_answer_set_event`;
    /// nothing when there was none. NULL: the backend has no events.
    pub next_event: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            timeout_ms: i64,
            answer: *mut rdzv_rendezvous_answer,
        ) -> rdzv_status,
    >,
    /// Gives everything back; 1 if all went well, else 0. May be NULL.
    pub shutdown: Option<unsafe extern "C" fn(user_data: *mut c_void) -> i32>,
    /// The callers of the functions that are under way have gone: end what they wait for. May be NULL.
    pub cancel: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// Closes the rendezvous since the job has failed, and has the other nodes told `message` (UTF-8, not
    /// NUL-terminated), as `RDZV_ROUND_EVENT_JOB_FAILED`. NULL: `set_closed` does.
    pub fail: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            message: *const u8,
            len: usize,
            answer: *mut rdzv_rendezvous_answer,
        ) -> rdzv_status,
    >,
    /// This node goes in the middle of the round, with its work undone: the other nodes are to hear of it as of
    /// a death. It may be called twice; `shutdown` follows. May be NULL.
    pub abandon: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// 1 if `next_event` tells of every death and of the end of the round, else 0. Then agents wait at their
    /// exit barrier for as long as it takes.
    pub tells_of_deaths: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Called once, when the handler is gone and none of its functions is under way. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// What a URL scheme of yours is asked. Everything in it is valid during the call only.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_url_question {
    /// Size of this struct in the library that made it, in bytes; later fields are absent when it is smaller.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// The URL; its query has the rank and the world size that the caller named. UTF-8, not NUL-terminated.
    pub url: *const u8,
    /// Its length.
    pub url_len: usize,
    /// How long the rendezvous may take, in milliseconds.
    pub timeout_ms: i64,
    /// Where a store is to listen that this process hosts; length 0 when the caller did not say. UTF-8.
    pub listen_host: *const u8,
    /// Its length.
    pub listen_host_len: usize,
}

/// A URL scheme in code of yours. `begin` is called on threads of the library's, by several at a time; it
/// may block, and must not throw.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_url_scheme_vtable {
    /// `sizeof(rdzv_url_scheme_vtable)`.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// How much longer than the caller's timeout a call may take, in milliseconds, above 0, until its caller
    /// gets `RDZV_TIMED_OUT` and the code is left behind; -1: 600,000.
    pub timeout_ms: i64,
    /// Begins a rendezvous, tells it with `rdzv_rendezvous_answer_set_rendezvous`, and returns `RDZV_OK`, or
    /// why it does not: any status of this header. Must not be NULL.
    pub begin: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            question: *const rdzv_url_question,
            answer: *mut rdzv_rendezvous_answer,
        ) -> rdzv_status,
    >,
    /// Called once, when the context is gone and so are the handlers, URL rendezvous, agents, loops and RPC
    /// workers that were made with it. Stores and servers of the context may outlive it, so that `user_data`
    /// may own some. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// A rendezvous by URL in code of yours, under way. Its functions are called on threads of the library's,
/// one at a time but for `cancel`; they may block, and must not throw.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_url_rendezvous_vtable {
    /// `sizeof(rdzv_url_rendezvous_vtable)`.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Meets the others, answers the group with `rdzv_rendezvous_answer_set_group`, and returns `RDZV_OK`, or
    /// why it did not. Must not be NULL.
    pub next: Option<
        unsafe extern "C" fn(user_data: *mut c_void, answer: *mut rdzv_rendezvous_answer) -> rdzv_status,
    >,
    /// Called once, when the rendezvous is gone and none of its functions is under way. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// The caller of `next` has gone, since it was cancelled or its time is up: end what `next` waits for. May
    /// be NULL.
    pub cancel: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// The sizes of the vtables in the first header.
const BACKEND_FIRST_SIZE: usize = 48;
const HANDLER_FIRST_SIZE: usize = 120;
const SCHEME_FIRST_SIZE: usize = 40;
const RENDEZVOUS_FIRST_SIZE: usize = 32;

const NO_BACKEND: rdzv_rendezvous_backend_vtable = rdzv_rendezvous_backend_vtable {
    struct_size: 0,
    reserved: 0,
    user_data: null_mut(),
    name: null(),
    timeout_ms: -1,
    create: None,
    destroy: None,
};
const NO_HANDLER: rdzv_rendezvous_handler_vtable = rdzv_rendezvous_handler_vtable {
    struct_size: 0,
    use_agent_store: 0,
    user_data: null_mut(),
    backend: null(),
    run_id: null(),
    next_rendezvous: None,
    is_closed: None,
    set_closed: None,
    num_nodes_waiting: None,
    next_event: None,
    shutdown: None,
    cancel: None,
    fail: None,
    abandon: None,
    tells_of_deaths: 0,
    reserved: 0,
    destroy: None,
};
const NO_SCHEME: rdzv_url_scheme_vtable = rdzv_url_scheme_vtable {
    struct_size: 0,
    reserved: 0,
    user_data: null_mut(),
    timeout_ms: -1,
    begin: None,
    destroy: None,
};
const NO_RENDEZVOUS: rdzv_url_rendezvous_vtable = rdzv_url_rendezvous_vtable {
    struct_size: 0,
    reserved: 0,
    user_data: null_mut(),
    next: None,
    destroy: None,
    cancel: None,
};

/// What code of the program's calls its own, and how it takes that back.
#[derive(Debug)]
struct Owned {
    user_data: *mut c_void,
    destroy: Destroy,
}

// SAFETY: the header tells that the functions are called on threads of the library's, by several at a time.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the vtable was given for this, and nothing is asked any more.
            unsafe { destroy(self.user_data) };
        }
    }
}

/// Asks code of the program's, which `plugin` names.
fn ask(
    plugin: &str,
    function: impl FnOnce(*mut rdzv_rendezvous_answer) -> rdzv_status,
) -> Result<rdzv_rendezvous_answer, HandlerError> {
    let mut answer = rdzv_rendezvous_answer::default();
    let status = function(&raw mut answer);
    checked_answer(plugin, status, answer)
}

#[inline(never)]
fn checked_answer(
    plugin: &str,
    status: rdzv_status,
    mut answer: rdzv_rendezvous_answer,
) -> Result<rdzv_rendezvous_answer, HandlerError> {
    if status != RDZV_OK {
        return Err(reported_by(plugin, status, answer.message));
    }
    match answer.flaw.take() {
        Some(flaw) => Err(unfit(plugin, ErrorKind::InvalidArgument, &flaw)),
        None => Ok(answer),
    }
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
    owned: Owned,
    vtable: rdzv_rendezvous_backend_vtable,
    name: String,
}

// SAFETY: of the vtable only the functions are used, as the header tells.
unsafe impl Send for BackendCode {}
// SAFETY: as above.
unsafe impl Sync for BackendCode {}

impl CreateHandler for BackendCode {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let create = self.vtable.create.ok_or_else(|| gave_no(&self.name, "function"))?;
        let borrowed = rdzv_rendezvous_parameters { parameters: parameters.clone() };
        // SAFETY: the vtable was given for this; what is passed lives until the function returns.
        let answer =
            ask(&self.name, |answer| unsafe { create(self.owned.user_data, &raw const borrowed, answer) })?;
        let mut handler = answer.handler.ok_or_else(|| gave_no(&self.name, "handler"))?;
        if handler.run_id.is_none() {
            handler.run_id = Some(parameters.run_id().into());
        }
        Ok(Box::new(handler))
    }

    fn identity(&self) -> Identity {
        (self.vtable.create.map_or(0, |create| create as usize), self.owned.user_data.addr())
    }
}

#[derive(Debug)]
struct HandlerCode {
    owned: Owned,
    vtable: rdzv_rendezvous_handler_vtable,
    backend: String,
    run_id: Option<String>,
}

// SAFETY: of the vtable only the functions are used, as the header tells.
unsafe impl Send for HandlerCode {}
// SAFETY: as above.
unsafe impl Sync for HandlerCode {}

impl HandlerCode {
    fn ask(&self, function: Ask) -> Result<rdzv_rendezvous_answer, HandlerError> {
        let function = function.ok_or_else(|| gave_no(&self.backend, "function"))?;
        // SAFETY: the vtable was given for this.
        ask(&self.backend, |answer| unsafe { function(self.owned.user_data, answer) })
    }

    fn number(&self, function: Ask) -> Result<i64, HandlerError> {
        self.ask(function)?.number.ok_or_else(|| gave_no(&self.backend, "number"))
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
        self.ask(self.vtable.next_rendezvous)?.group.ok_or_else(|| gave_no(&self.backend, "group"))
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        self.number(self.vtable.is_closed).map(|number| number != 0)
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        self.ask(self.vtable.set_closed).map(drop)
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
        let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        // SAFETY: the vtable was given for this.
        let function = |answer| unsafe { next_event(self.owned.user_data, timeout_ms, answer) };
        ask(&self.backend, function).map(|answer| answer.event)
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let Some(fail) = self.vtable.fail else { return self.set_closed() };
        // SAFETY: the vtable was given for this.
        let function =
            |answer| unsafe { fail(self.owned.user_data, message.as_ptr(), message.len(), answer) };
        ask(&self.backend, function).map(drop)
    }

    fn tells_of_deaths(&self) -> bool {
        self.vtable.tells_of_deaths != 0 && self.vtable.next_event.is_some()
    }

    fn run_id(&self) -> &str {
        self.run_id.as_deref().unwrap_or_default()
    }

    fn abandon(&self) {
        if let Some(abandon) = self.vtable.abandon {
            // SAFETY: the vtable was given for this.
            unsafe { abandon(self.owned.user_data) };
        }
    }

    fn shutdown(&self) -> bool {
        // SAFETY: the vtable was given for this.
        self.vtable.shutdown.is_none_or(|shutdown| unsafe { shutdown(self.owned.user_data) } != 0)
    }

    fn cancel(&self) {
        if let Some(cancel) = self.vtable.cancel {
            // SAFETY: the vtable was given for this.
            unsafe { cancel(self.owned.user_data) };
        }
    }
}

struct SchemeCode {
    owned: Owned,
    vtable: rdzv_url_scheme_vtable,
    name: String,
}

// SAFETY: of the vtable only the functions are used, as the header tells.
unsafe impl Send for SchemeCode {}
// SAFETY: as above.
unsafe impl Sync for SchemeCode {}

impl UrlHandler for SchemeCode {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let begin = self.vtable.begin.ok_or_else(|| gave_no(&self.name, "function"))?;
        let (url, listen_host) = (url.to_string(), options.listen_host.unwrap_or_default());
        let question = rdzv_url_question {
            struct_size: struct_size::<rdzv_url_question>(),
            reserved: 0,
            url: url.as_ptr(),
            url_len: url.len(),
            timeout_ms: i64::try_from(options.timeout.as_millis()).unwrap_or(i64::MAX),
            listen_host: listen_host.as_ptr(),
            listen_host_len: listen_host.len(),
        };
        // SAFETY: the vtable was given for this; what is passed lives until the function returns.
        let function = |answer| unsafe { begin(self.owned.user_data, &raw const question, answer) };
        let mut code =
            ask(&self.name, function)?.rendezvous.ok_or_else(|| gave_no(&self.name, "rendezvous"))?;
        code.name.clone_from(&self.name);
        Ok(Box::new(code))
    }
}

#[derive(Debug)]
struct UrlCode {
    owned: Arc<Owned>,
    next: Ask,
    cancel: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    name: String,
}

impl UrlRendezvous for UrlCode {
    fn next(&mut self) -> Result<Meeting, HandlerError> {
        let next = self.next.ok_or_else(|| gave_no(&self.name, "function"))?;
        // SAFETY: the vtable was given for this.
        let answer = ask(&self.name, |answer| unsafe { next(self.owned.user_data, answer) })?;
        let group = answer.group.ok_or_else(|| gave_no(&self.name, "group"))?;
        Ok(Meeting { store: group.store, rank: group.rank, world_size: group.world_size })
    }

    fn interrupt(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        let (cancel, owned) = (self.cancel?, Arc::clone(&self.owned));
        // SAFETY: the vtable was given for this, and `owned` is not destroyed before.
        Some(Arc::new(move || unsafe { cancel(owned.user_data) }))
    }
}

/// NUL-terminated text of a vtable's; `None` for NULL.
unsafe fn name(text: *const c_char, name: &str) -> Result<Option<String>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the header wants it NUL-terminated.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(|text| Some(text.into())).map_err(|error| invalid(format!("`{name}` is not UTF-8: {error}")))
}

fn foreign_options(timeout_ms: i64) -> Result<ForeignOptions, Fault> {
    let defaults = ForeignOptions::default();
    match timeout(timeout_ms)? {
        Timeout::After(call_timeout) => Ok(ForeignOptions { call_timeout, ..defaults }),
        Timeout::Default => Ok(defaults),
        Timeout::Once => Err(invalid("`vtable.timeout_ms` is 0: above 0, or -1 for the default")),
    }
}

/// Registers a rendezvous backend in code of yours under the name `backend`; `vtable` is copied. The same
/// again (`create` and `user_data` alike) changes nothing, and `destroy` is called once all the same. On
/// success the library owns `user_data`, until it calls `destroy`; on failure it stays yours.
///
/// Errors: `RDZV_ALREADY_REGISTERED` when another has the name, `RDZV_INVALID_ARGUMENT` for an empty one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_register_backend(
    context: *const rdzv_context,
    backend: *const u8,
    backend_len: usize,
    vtable: *const rdzv_rendezvous_backend_vtable,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let home = &reference(context, "context")?.home;
            home.refuse_sink()?;
            let backend = text(backend, backend_len, "backend")?;
            let given = sized::given_size(vtable, BACKEND_FIRST_SIZE, "vtable")?;
            let vtable = sized::get(vtable, given, NO_BACKEND);
            if vtable.create.is_none() {
                return Err(invalid("`vtable.create` is NULL"));
            }
            let name = name(vtable.name, "vtable.name")?.unwrap_or_else(|| "the program's own code".into());
            let options = foreign_options(vtable.timeout_ms)?;
            let owned = Owned { user_data: vtable.user_data, destroy: vtable.destroy };
            let code = Arc::new(BackendCode { owned, vtable, name });
            let foreign = ForeignBackend::new(Arc::clone(&code) as Arc<dyn CreateHandler>, options);
            let registered = home.rendezvous().register(backend, Arc::new(foreign));
            // Nobody else holds what was not taken: it stays the caller's, or is there already.
            if let Some(mut code) = Arc::into_inner(code) {
                code.owned.destroy = None;
            }
            registered.map_err(|error| registry_fault(&error))
        })
    }
}

/// Registers a URL scheme in code of yours; `vtable` is copied. Schemes in URLs are in small letters. On
/// success the library owns `user_data`, until it calls `destroy`; on failure it stays yours.
///
/// Errors: `RDZV_ALREADY_REGISTERED` when anybody has the scheme, be it the same code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_register_url_scheme(
    context: *const rdzv_context,
    scheme: *const u8,
    scheme_len: usize,
    vtable: *const rdzv_url_scheme_vtable,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let home = &reference(context, "context")?.home;
            home.refuse_sink()?;
            let scheme = text(scheme, scheme_len, "scheme")?;
            let given = sized::given_size(vtable, SCHEME_FIRST_SIZE, "vtable")?;
            let vtable = sized::get(vtable, given, NO_SCHEME);
            if vtable.begin.is_none() {
                return Err(invalid("`vtable.begin` is NULL"));
            }
            let options = foreign_options(vtable.timeout_ms)?;
            let owned = Owned { user_data: vtable.user_data, destroy: vtable.destroy };
            let code = Arc::new(SchemeCode { owned, vtable, name: format!("{scheme}://") });
            let foreign = ForeignUrls::new(scheme, Arc::clone(&code) as Arc<dyn UrlHandler>, options);
            let registered = home.rendezvous().register_rendezvous_handler(scheme, Arc::new(foreign));
            if let Some(mut code) = Arc::into_inner(code) {
                code.owned.destroy = None;
            }
            registered.map_err(|error| registry_fault(&error))
        })
    }
}

/// Fills an answer; what is wrong is told to whoever asked. NULL is nobody's answer.
unsafe fn respond(
    answer: *mut rdzv_rendezvous_answer,
    body: impl FnOnce(&mut rdzv_rendezvous_answer) -> Result<(), Fault>,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the answer of the call that is under way.
        let Some(answer) = (unsafe { answer.as_mut() }) else { return };
        if let Err(fault) = body(answer) {
            answer.flaw.get_or_insert_with(|| fault.message.clone());
        }
    });
}

/// Answers a number. For use within the functions of a backend of yours, as those that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_number(answer: *mut rdzv_rendezvous_answer, number: i64) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        answer.number = Some(number);
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// Tells in words why the operation failed, in UTF-8; they are the error's message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_message(
    answer: *mut rdzv_rendezvous_answer,
    message: *const u8,
    message_len: usize,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: as the header wants it.
        let message = unsafe { bytes(message, message_len, "message") }?;
        answer.message = Some(String::from_utf8_lossy(message).into_owned());
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// Answers the group: the store that its nodes share, of which a reference is kept, so that you may free
/// your handle; this node's rank, from 0; how many they are, above the rank, or by URL also below 0 when
/// nobody knows; and where the ranks of the job find their store (of no concern by URL), with a port from 0 to
/// 65,535. Any other rank or port fails the call that asked with `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_group(
    answer: *mut rdzv_rendezvous_answer,
    store: *const rdzv_store,
    rank: i64,
    world_size: i64,
    master_addr: *const u8,
    master_addr_len: usize,
    master_port: i64,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: as the header wants it.
        let (store, master_addr) =
            unsafe { (reference(store, "store")?, text(master_addr, master_addr_len, "master_addr")?) };
        if rank < 0 || (world_size >= 0 && rank >= world_size) {
            return Err(invalid(format!("rank {rank} is not one of {world_size}")));
        }
        let Ok(master_port) = u16::try_from(master_port) else {
            return Err(invalid(format!("the port {master_port} is not from 0 to 65535")));
        };
        answer.group = Some(RendezvousInfo {
            store: Arc::clone(&store.store),
            rank,
            world_size,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: master_addr.into(), master_port },
            round: None,
            position: None,
        });
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// Answers an event; `name` is that of the node that died, or that closed the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_event(
    answer: *mut rdzv_rendezvous_answer,
    event: *const rdzv_round_event,
    name: *const u8,
    name_len: usize,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: as the header wants it.
        answer.event = unsafe { parsed(event, text(name, name_len, "name")?) }?;
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// Answers a handler; `vtable` is copied, and the library owns its `user_data`, until it calls `destroy`,
/// whatever becomes of the call. A vtable in which something is missing is not taken: the caller gets
/// `RDZV_INVALID_ARGUMENT`, and its `user_data` stays yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_handler(
    answer: *mut rdzv_rendezvous_answer,
    vtable: *const rdzv_rendezvous_handler_vtable,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: as the header wants it.
        let (vtable, backend, run_id) = unsafe {
            let given = sized::given_size(vtable, HANDLER_FIRST_SIZE, "vtable")?;
            let vtable = sized::get(vtable, given, NO_HANDLER);
            (vtable, name(vtable.backend, "vtable.backend")?, name(vtable.run_id, "vtable.run_id")?)
        };
        let backend = backend.ok_or_else(|| invalid("`vtable.backend` is NULL"))?;
        let must = [
            (vtable.next_rendezvous, "next_rendezvous"),
            (vtable.is_closed, "is_closed"),
            (vtable.set_closed, "set_closed"),
            (vtable.num_nodes_waiting, "num_nodes_waiting"),
        ];
        if let Some((_, missing)) = must.iter().find(|(function, _)| function.is_none()) {
            return Err(invalid(format!("`vtable.{missing}` is NULL")));
        }
        let owned = Owned { user_data: vtable.user_data, destroy: vtable.destroy };
        answer.handler = Some(HandlerCode { owned, vtable, backend, run_id });
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// Answers a rendezvous by URL that has begun; `vtable` is copied, and its `user_data` owned as that of a
/// handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_rendezvous(
    answer: *mut rdzv_rendezvous_answer,
    vtable: *const rdzv_url_rendezvous_vtable,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: as the header wants it.
        let vtable = unsafe {
            let given = sized::given_size(vtable, RENDEZVOUS_FIRST_SIZE, "vtable")?;
            sized::get(vtable, given, NO_RENDEZVOUS)
        };
        if vtable.next.is_none() {
            return Err(invalid("`vtable.next` is NULL"));
        }
        let owned = Arc::new(Owned { user_data: vtable.user_data, destroy: vtable.destroy });
        answer.rendezvous =
            Some(UrlCode { owned, next: vtable.next, cancel: vtable.cancel, name: String::new() });
        Ok(())
    };
    // SAFETY: as the header wants it.
    unsafe { respond(answer, body) };
}

/// The names of the backends of this context, in order; they replace the content of `names`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_list_backends(
    context: *const rdzv_context,
    names: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let home = &reference(context, "context")?.home;
            home.refuse_sink()?;
            let list = reference_mut(names, "names")?;
            list.items = home.rendezvous().backends().into_iter().map(String::into_bytes).collect();
            Ok(())
        })
    }
}
