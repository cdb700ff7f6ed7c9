//! Custom workers: workers started and monitored by the caller, for example through a cluster manager.

use crate::agent::{new_agent, rdzv_agent};
use crate::agent_options::{GivenOptions, rdzv_agent_options};
use crate::prelude::*;
use crate::rendezvous_handler::rdzv_rendezvous_handler;
use crate::worker_group::{OwnedGroup, rdzv_worker_group};
use rendezvous_agent::driver::agent::{
    ForeignEvent, ForeignWorkers, StartOrder, WorkerEventSender, WorkerHooks,
};
use rendezvous_agent::events::Watched;
use rendezvous_agent::group::ExitStatus;
use rendezvous_agent::reason::StartFailure;
use rendezvous_agent::worker_event::WorkerEvent;

/// A worker has started: `pid` is its process id, or any number that stands for it.
pub const RDZV_WORKER_STARTED: i32 = 1;
/// A worker could not be started: `message` has the reason. `may_retry` is 1 if a retry may succeed, else
/// 0.
pub const RDZV_WORKER_NOT_STARTED: i32 = 2;
/// A worker and its processes have ended: `exit_code`, `returned`, and in `message` the cause of a
/// failure if it is known.
pub const RDZV_WORKER_EXITED: i32 = 3;
/// A worker has hung for `since_ms` and signals do not reach it.
pub const RDZV_WORKER_STUCK: i32 = 4;
/// The workers cannot be observed any more: `message` has the reason. This ends the agent.
pub const RDZV_WORKERS_LOST: i32 = 5;

/// Workers to start. Valid during the call only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_worker_start {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Workers with their ranks; do not free it.
    pub group: *const rdzv_worker_group,
    /// Environment of each worker of the group, in the same order: variables as `NAME=VALUE` with NULL
    /// after the last one, as `execve` takes them.
    pub environments: *const *const *const c_char,
}

/// Handle through which custom workers report events to their agent, from any thread.
#[derive(Debug)]
pub struct rdzv_workers {
    sender: WorkerEventSender,
}

/// Event of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_worker_event {
    /// Set to `sizeof(rdzv_worker_event)`.
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
    pub may_retry: i32,
    /// Time for which the worker has hung, in milliseconds.
    pub since_ms: i64,
    /// Bytes that the worker returned.
    pub returned: *const u8,
    /// Length of `returned` in bytes.
    pub returned_len: usize,
    /// Text for reports; may be NULL.
    pub message: *const c_char,
    /// Host of the worker, for reports; NULL means the agent's host.
    pub host: *const c_char,
}
growing!(rdzv_worker_event: 72);

/// Functions that start and monitor custom workers. The library calls them on one thread of its own, one
/// after the other. They must not throw. They may block, but the agent's timeouts keep running, and an
/// agent whose timeout passes ends without waiting for them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_workers_vtable {
    /// Set to `sizeof(rdzv_workers_vtable)`.
    pub struct_size: u32,
    /// Unused; set to 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Called once, before all others. The callee owns `workers` and frees it with `rdzv_workers_free`.
    /// Must not be NULL.
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
    /// Passes a signal that the agent got on to each live worker. The program decides which processes of
    /// a worker get it; of the workers that an agent starts itself, the whole process group does. NULL:
    /// signals are not passed on.
    pub pass: Option<unsafe extern "C" fn(user_data: *mut c_void, signal: i32)>,
    /// Called once, on the same thread, after the agent was destroyed; `rdzv_agent_free` waits for it up
    /// to 5 s. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_workers_vtable: 64);

/// Vtable of custom workers.
struct CustomWorkers {
    vtable: UserCode<rdzv_workers_vtable>,
    /// Opened when the agent exists; without an agent the vtable stays the caller's and is not called.
    gate: Option<oneshot::Receiver<()>>,
    is_owned: bool,
}

/// Time limit for creating an agent; creation takes far less.
const GATE_TIMEOUT: Duration = Duration::from_secs(60);

impl WorkerHooks for CustomWorkers {
    fn begin(&mut self, sender: WorkerEventSender) {
        self.is_owned = self.gate.take().is_some_and(|gate| gate.recv_timeout(GATE_TIMEOUT).is_ok());
        self.vtable.adopt(self.vtable.destroy.filter(|_| self.is_owned));
        if let Some(begin) = self.vtable.begin.filter(|_| self.is_owned) {
            // SAFETY: the vtable was supplied for this call; it owns the handle from now on.
            unsafe { begin(self.vtable.user_data, boxed(rdzv_workers { sender })) };
        }
    }

    fn start(&mut self, order: &StartOrder) -> Result<(), (StartFailure, Box<str>)> {
        let Some(start) = self.vtable.start.filter(|_| self.is_owned) else { return Ok(()) };
        let group = OwnedGroup::new(&order.group);
        let variable = |(name, value): &(String, String)| c_string(format!("{name}={value}"));
        let environments: Vec<Vec<_>> =
            order.environments.iter().map(|variables| variables.iter().map(variable).collect()).collect();
        let pointers = environments.iter().map(|variables| {
            variables.iter().map(|variable| variable.as_ptr()).chain([null()]).collect::<Vec<_>>()
        });
        let pointers: Vec<_> = pointers.collect();
        let lists: Vec<_> = pointers.iter().map(Vec::as_ptr).collect();
        let borrowed = rdzv_worker_start {
            struct_size: struct_size::<rdzv_worker_start>(),
            reserved: 0,
            group: group.view(),
            environments: lists.as_ptr(),
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

/// Reports an event of a worker to the agent. Any thread may call this. `event` is copied; an event is
/// dropped if the agent has been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_workers_notify(
    workers: *const rdzv_workers,
    event: *const rdzv_worker_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let sender = &reference(workers, "workers")?.sender;
        let given = sized::get(event, "event")?;
        let (host, message) = (event_text(given.host), event_text(given.message));
        let event = parsed(&given, &message, sender)?;
        sender.notify(ForeignEvent { attempt: given.attempt, event, host, message });
        Ok(())
    })
}

unsafe fn event_text(text: *const c_char) -> Box<str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: the caller of the C function promises a string that ends with NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into()
}

unsafe fn parsed(
    given_event: &rdzv_worker_event,
    message: &str,
    sender: &WorkerEventSender,
) -> Result<WorkerEvent, Fault> {
    let local_rank = given_event.local_rank;
    Ok(match given_event.kind {
        RDZV_WORKER_STARTED => WorkerEvent::Started { local_rank, pid: given_event.pid },
        RDZV_WORKER_NOT_STARTED => {
            let start_failure =
                if given_event.may_retry == 0 { StartFailure::Lasting } else { StartFailure::Passing };
            WorkerEvent::NotStarted { local_rank, start_failure, message: message.into() }
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
        RDZV_WORKERS_LOST => WorkerEvent::GuardLost { message: message.into() },
        kind => return Err(invalid(format!("`event.kind` is {kind}, not an RDZV_WORKER_ kind"))),
    })
}

/// Frees a handle that `begin` received, at any time. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_workers_free(workers: *mut rdzv_workers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(workers) };
}

/// Creates an agent as `rdzv_agent_new` does, for custom workers; `vtable` is copied. Options for
/// programs, functions and log files are ignored, and no process is forked. On success the library owns
/// `user_data` until it calls `destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_new_custom(
    context: *const rdzv_context,
    options: *const rdzv_agent_options,
    handler: *const rdzv_rendezvous_handler,
    vtable: *const rdzv_workers_vtable,
    out: *mut *mut rdzv_agent,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let home = home(context)?;
        let given = GivenOptions::read(options)?;
        let handler = &reference(handler, "handler")?.handler;
        let vtable = sized::get(vtable, "vtable")?;
        if vtable.begin.is_none()
            || vtable.start.is_none()
            || vtable.signal.is_none()
            || vtable.kill.is_none()
        {
            return Err(invalid("`vtable` has no `begin`, `start`, `signal` or `kill`"));
        }
        let (options, devices) = (given.agent()?, given.devices()?);
        let (go, gate) = oneshot::channel::<()>();
        let code = CustomWorkers {
            vtable: UserCode::new(vtable, vtable.user_data),
            gate: Some(gate),
            is_owned: false,
        };
        let exhausted = |cause: std::io::Error| {
            let message = format!("cannot create the thread for custom workers: {cause}");
            Fault::os(RDZV_EXHAUSTED, message, &cause)
        };
        let workers = ForeignWorkers::new(Box::new(code), options.name.clone(), devices);
        let workers = workers.map_err(exhausted)?;
        let agent = new_agent(options, Watched::No, handler, Box::new(workers), home)?;
        go.send(()).ok();
        Ok(agent)
    })
}
