//! Custom workers: workers started and monitored by the caller, for example through a cluster manager.

use crate::agent::{host_of, new_agent, rdzv_agent};
use crate::agent_options::rdzv_agent_options;
use crate::argument::{bytes, invalid, out_pointer, reference, reference_mut};
use crate::buffer::rdzv_list;
use crate::context::{home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rendezvous_fault::invalid_fault;
use crate::rendezvous_handler::rdzv_rendezvous_handler;
use crate::sized;
use crate::status::{RDZV_EXHAUSTED, RDZV_OK, RDZV_TIMED_OUT, name_of, rdzv_status};
use crate::worker_group::rdzv_worker_group;
use rendezvous_agent::driver::agent::{
    ForeignEvent, ForeignWorkers, StartOrder, WorkerEventSender, WorkerHooks,
};
use rendezvous_agent::group::ExitStatus;
use rendezvous_agent::reason::StartFailure;
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::driver::reply::{Awaited, ask};
use std::ffi::c_void;
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

/// A worker has started: `pid` is its process id, or any number that stands for it.
pub const RDZV_WORKER_STARTED: i32 = 1;
/// A worker could not be started: `message` has the reason. `may_help` is 1 if a retry may succeed, else 0.
pub const RDZV_WORKER_NOT_STARTED: i32 = 2;
/// A worker and its processes have ended: `exit_code`, `returned`, and in `message` the cause of a failure
/// if it is known.
pub const RDZV_WORKER_EXITED: i32 = 3;
/// A worker has hung for `since_ms` and signals do not reach it.
pub const RDZV_WORKER_STUCK: i32 = 4;
/// The workers cannot be observed any more: `message` has the reason. This ends the agent.
pub const RDZV_WORKERS_LOST: i32 = 5;

/// Workers to start. Valid during the call only.
#[derive(Debug)]
pub struct rdzv_worker_start {
    group: rdzv_worker_group,
    environments: Vec<Vec<(String, String)>>,
}

/// Handle through which custom workers report events to their agent, from any thread.
#[derive(Debug)]
pub struct rdzv_workers {
    sender: WorkerEventSender,
}

/// Event of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_worker_event {
    /// Must be `sizeof(rdzv_worker_event)`.
    pub struct_size: u32,
    /// One of `RDZV_WORKER_STARTED` to `RDZV_WORKERS_LOST`.
    pub kind: i32,
    /// Attempt in which the worker was started, as in the group's info; events of earlier attempts are
    /// ignored.
    pub attempt: u64,
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Process id of the worker.
    pub pid: u32,
    /// Exit code of the worker; the negated signal number if a signal ended it.
    pub exit_code: i32,
    /// 1 if a retry may succeed, else 0.
    pub may_help: i32,
    /// Time for which the worker has hung, in milliseconds.
    pub since_ms: i64,
    /// Bytes that the worker returned.
    pub returned: *const u8,
    /// Length of `returned` in bytes.
    pub returned_len: usize,
    /// UTF-8, not NUL-terminated; may be NULL.
    pub message: *const u8,
    /// Length of `message` in bytes.
    pub message_len: usize,
    /// Host of the worker, for reports. UTF-8, not NUL-terminated; NULL means the agent's host.
    pub host: *const u8,
    /// Length of `host` in bytes.
    pub host_len: usize,
}

/// Functions that start and monitor custom workers. The library calls them on one thread of its own, one
/// after the other. They must not throw. They may block, but the agent's timeouts keep running, and an
/// agent whose timeout passes ends without waiting for them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_workers_vtable {
    /// Must be `sizeof(rdzv_workers_vtable)`.
    pub struct_size: u32,
    /// Unused; set to 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Called once, before all others. The callee owns `workers` and frees it with `rdzv_workers_free`. Must
    /// not be NULL.
    pub begin: Option<unsafe extern "C" fn(user_data: *mut c_void, workers: *mut rdzv_workers)>,
    /// Starts all workers of `start`, or returns why none of them can be started: `RDZV_EXHAUSTED` or
    /// `RDZV_TIMED_OUT` if a retry may succeed, any other status if not. After `RDZV_OK`, report
    /// `RDZV_WORKER_STARTED` or `RDZV_WORKER_NOT_STARTED` for each worker, and later `RDZV_WORKER_EXITED` for
    /// each one that started. Must not be NULL.
    pub start:
        Option<unsafe extern "C" fn(user_data: *mut c_void, start: *const rdzv_worker_start) -> rdzv_status>,
    /// Sends a signal to all live workers and the processes that they started. Must not be NULL.
    pub signal: Option<unsafe extern "C" fn(user_data: *mut c_void, signal: i32)>,
    /// Kills all live workers and their processes at once. Must not be NULL.
    pub kill: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// Passes a signal that the agent got on to each live worker. The program decides which processes of a
    /// worker get it; of the workers that an agent starts itself, the whole process group does. NULL: signals
    /// are not passed on.
    pub pass: Option<unsafe extern "C" fn(user_data: *mut c_void, signal: i32)>,
    /// Called once, on the same thread, after the agent was destroyed; `rdzv_agent_free` waits for it up to 5
    /// s. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// Sizes of the structs in the first release of the header.
const VTABLE_FIRST_SIZE: usize = 64;
const EVENT_FIRST_SIZE: usize = 88;

const NO_VTABLE: rdzv_workers_vtable = rdzv_workers_vtable {
    struct_size: 0,
    reserved: 0,
    user_data: std::ptr::null_mut(),
    begin: None,
    start: None,
    signal: None,
    kill: None,
    pass: None,
    destroy: None,
};
const NO_EVENT: rdzv_worker_event = rdzv_worker_event {
    struct_size: 0,
    kind: 0,
    attempt: 0,
    local_rank: 0,
    pid: 0,
    exit_code: 0,
    may_help: 0,
    since_ms: 0,
    returned: null(),
    returned_len: 0,
    message: null(),
    message_len: 0,
    host: null(),
    host_len: 0,
};

/// Vtable of custom workers, with the thread guarantees that the header requires of it.
struct CustomWorkers {
    vtable: rdzv_workers_vtable,
    /// Answered when the agent exists; without an agent the vtable stays the caller's and is not called.
    gate: Option<Awaited<()>>,
    is_owned: bool,
}

/// Time limit for creating an agent; creation takes far less.
const GATE_TIMEOUT: Duration = Duration::from_secs(60);

// SAFETY: the header says that the functions are called on a thread of the library.
unsafe impl Send for CustomWorkers {}

impl Drop for CustomWorkers {
    fn drop(&mut self) {
        if let Some(destroy) = self.vtable.destroy.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call, and no call follows.
            unsafe { destroy(self.vtable.user_data) };
        }
    }
}

impl WorkerHooks for CustomWorkers {
    fn begin(&mut self, sender: WorkerEventSender) {
        self.is_owned = self.gate.take().is_some_and(|gate| gate.wait(GATE_TIMEOUT).is_ok());
        if let Some(begin) = self.vtable.begin.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call; it owns the handle from now on.
            unsafe { begin(self.vtable.user_data, Box::into_raw(Box::new(rdzv_workers { sender }))) };
        }
    }

    fn start(&mut self, order: &StartOrder) -> Result<(), (StartFailure, Box<str>)> {
        let Some(start) = self.vtable.start.filter(|_| self.is_owned) else { return Ok(()) };
        let borrowed = rdzv_worker_start {
            group: rdzv_worker_group { group: Arc::new(order.group.clone()) },
            environments: order.environments.clone(),
        };
        // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
        let status = unsafe { start(self.vtable.user_data, &raw const borrowed) };
        if status == RDZV_OK {
            return Ok(());
        }
        let start_failure = match status {
            RDZV_EXHAUSTED | RDZV_TIMED_OUT => StartFailure::Passing,
            _ => StartFailure::Lasting,
        };
        Err((start_failure, name_of(status).to_string_lossy().into()))
    }

    fn signal(&mut self, signal: i32) {
        if let Some(function) = self.vtable.signal.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call.
            unsafe { function(self.vtable.user_data, signal) };
        }
    }

    fn kill(&mut self) {
        if let Some(function) = self.vtable.kill.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call.
            unsafe { function(self.vtable.user_data) };
        }
    }

    fn pass(&mut self, signal: i32) {
        if let Some(function) = self.vtable.pass.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call.
            unsafe { function(self.vtable.user_data, signal) };
        }
    }
}

/// Returns the group of the workers to start, with their ranks; NULL for NULL. Valid as long as `start`; do
/// not free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_start_group(
    start: *const rdzv_worker_start,
) -> *const rdzv_worker_group {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(start, null(), |start| &raw const start.group) }
}

/// Returns the environment variables of a worker: names and values replace the content of the two lists.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if there is no such worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_start_environment(
    start: *const rdzv_worker_start,
    local_rank: u32,
    names: *mut rdzv_list,
    values: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let start = reference(start, "start")?;
            let (names, values) = (reference_mut(names, "names")?, reference_mut(values, "values")?);
            let environment =
                usize::try_from(local_rank).ok().and_then(|index| start.environments.get(index));
            let environment =
                environment.ok_or_else(|| invalid(format!("there is no worker {local_rank}")))?;
            names.items = environment.iter().map(|(name, _)| name.clone().into_bytes()).collect();
            values.items = environment.iter().map(|(_, value)| value.clone().into_bytes()).collect();
            Ok(())
        })
    }
}

/// Reports an event of a worker to the agent. Any thread may call this. `event` is copied; an event is
/// dropped if the agent has been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_workers_notify(
    workers: *const rdzv_workers,
    event: *const rdzv_worker_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let sender = &reference(workers, "workers")?.sender;
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let given_event = sized::get(event, given, NO_EVENT);
            let event = parsed(&given_event, sender)?;
            let host = event_text(given_event.host, given_event.host_len, "event.host")?;
            let message = event_text(given_event.message, given_event.message_len, "event.message")?;
            sender.notify(ForeignEvent { attempt: given_event.attempt, event, host, message });
            Ok(())
        })
    }
}

unsafe fn event_text(data: *const u8, len: usize, name: &str) -> Result<Box<str>, Fault> {
    // SAFETY: passed on unchanged.
    Ok(String::from_utf8_lossy(unsafe { bytes(data, len, name) }?).into())
}

unsafe fn parsed(given_event: &rdzv_worker_event, sender: &WorkerEventSender) -> Result<WorkerEvent, Fault> {
    let local_rank = given_event.local_rank;
    // SAFETY: NULL or valid, as the header requires.
    let why = || unsafe { event_text(given_event.message, given_event.message_len, "event.message") };
    Ok(match given_event.kind {
        RDZV_WORKER_STARTED => WorkerEvent::Started { local_rank, pid: given_event.pid },
        RDZV_WORKER_NOT_STARTED => {
            let start_failure =
                if given_event.may_help == 0 { StartFailure::Lasting } else { StartFailure::Passing };
            WorkerEvent::NotStarted { local_rank, start_failure, message: why()? }
        }
        RDZV_WORKER_EXITED => {
            // SAFETY: NULL or valid, as the header requires.
            let returned =
                unsafe { bytes(given_event.returned, given_event.returned_len, "event.returned") }?;
            WorkerEvent::Exited {
                local_rank,
                exit: match given_event.exit_code {
                    signal @ i32::MIN..0 => ExitStatus::Signal(signal.saturating_neg()),
                    code => ExitStatus::Code(code),
                },
                at: sender.now(),
                was_ending: false,
                returned: (!given_event.returned.is_null()).then(|| returned.to_vec()),
            }
        }
        RDZV_WORKER_STUCK => {
            let since = Duration::from_millis(u64::try_from(given_event.since_ms).unwrap_or(0));
            WorkerEvent::Stuck { local_rank, since }
        }
        RDZV_WORKERS_LOST => WorkerEvent::GuardLost { message: why()? },
        kind => return Err(invalid(format!("`event.kind` is {kind}, not an RDZV_WORKER_ kind"))),
    })
}

/// Frees a handle that `begin` received, at any time. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_workers_free(workers: *mut rdzv_workers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(workers) };
}

/// Creates an agent as `rdzv_agent_new` does, for custom workers; `vtable` is copied. Options for programs,
/// functions and log files are ignored, and no process is forked. On success the library owns `user_data`
/// until it calls `destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_new_custom(
    context: *const rdzv_context,
    options: *const rdzv_agent_options,
    handler: *const rdzv_rendezvous_handler,
    vtable: *const rdzv_workers_vtable,
    out: *mut *mut rdzv_agent,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let home = home(context)?;
            let options = reference(options, "options")?;
            let handler = &reference(handler, "handler")?.handler;
            let given = sized::given_size(vtable, VTABLE_FIRST_SIZE, "vtable")?;
            let vtable = sized::get(vtable, given, NO_VTABLE);
            if vtable.begin.is_none()
                || vtable.start.is_none()
                || vtable.signal.is_none()
                || vtable.kill.is_none()
            {
                return Err(invalid("`vtable` has no `begin`, `start`, `signal` or `kill`"));
            }
            options.spec.check().map_err(|error| invalid_fault(&error))?;
            let host = host_of(options)?;
            let (go, gate) = ask::<()>();
            let code = CustomWorkers { vtable, gate: Some(gate), is_owned: false };
            let exhausted = |cause: std::io::Error| {
                Fault::new(RDZV_EXHAUSTED, format!("cannot create the thread for custom workers: {cause}"))
                    .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
            };
            let workers = ForeignWorkers::new(Box::new(code), host.clone(), options.devices);
            let workers = workers.map_err(exhausted)?;
            let agent = new_agent(options, host, handler, Box::new(workers), home)?;
            go.answer(());
            out.put(agent);
            Ok(())
        })
    }
}
