//! Agents: supervision of a node's worker processes.

use crate::agent_event::{AgentEventView, rdzv_agent_listener};
use crate::agent_options::{GivenOptions, rdzv_agent_options};
use crate::agent_result::{OwnedResult, rdzv_agent_result};
use crate::prelude::*;
use crate::rendezvous_handler::rdzv_rendezvous_handler;
use crate::sized::out_pointer;
use crate::worker_group::{OwnedGroup, rdzv_worker_group};
use rendezvous_agent::driver::agent::{
    Agent, AgentControl, AgentError, AgentEvent, AgentOptions, AgentResult, LocalError, LocalWorkers, Workers,
};
use rendezvous_agent::driver::loop_member::LoopAgent;
use rendezvous_agent::driver::process::GuardError;
use rendezvous_agent::events::{EventFacts, Watched};
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

/// Supervisor of a node's worker processes. It starts when `rdzv_agent_run` is called or when it is added
/// to a loop, and it runs once. Any thread may stop it, read its worker group and send signals to its
/// workers.
pub struct rdzv_agent {
    pub(crate) state: HandleState,
    control: AgentControl,
    agent: LoopAgent,
    pub(crate) home: Arc<Home>,
    pub(crate) facts: EventFacts,
    result: OnceLock<OwnedResult>,
}

impl fmt::Debug for rdzv_agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdzv_agent")
    }
}

impl rdzv_agent {
    /// Locks the agent for this call.
    ///
    /// # Errors
    ///
    /// Another thread, or a caller further up this stack, uses the agent.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Agent>, Fault> {
        match self.agent.try_lock() {
            Ok(agent) => Ok(agent),
            // The panic happened while the agent was driven, possibly by a loop.
            Err(TryLockError::Poisoned(_)) => {
                self.state.poison();
                Err(Fault::new(RDZV_POISONED, "the agent panicked; free it"))
            }
            Err(TryLockError::WouldBlock) => Err(Fault::new(
                RDZV_REENTRANT,
                "the agent is in use, by another thread or by a caller of this function",
            )),
        }
    }

    /// Returns a second reference to the agent, for a loop.
    ///
    /// # Errors
    ///
    /// The agent is in use, or a loop has it already.
    pub(crate) fn for_loop(&self) -> Result<LoopAgent, Fault> {
        self.refuse_loop()?;
        drop(self.enter()?);
        Ok(Arc::clone(&self.agent))
    }

    /// Returns the result for C, which points to what the agent keeps.
    fn view(&self, result: AgentResult) -> rdzv_agent_result {
        self.result.get_or_init(|| OwnedResult::new(result)).view()
    }

    fn refuse_loop(&self) -> Result<(), Fault> {
        // Only a loop holds a second reference.
        match Arc::strong_count(&self.agent) {
            1 => Ok(()),
            _ => Err(invalid("the agent is in a loop")),
        }
    }
}

pub(crate) fn agent_fault(error: &AgentError) -> Fault {
    match error {
        AgentError::Spec(error) => invalid(error),
        AgentError::System(cause) => Fault::os(RDZV_EXHAUSTED, error.to_string(), cause),
    }
}

fn local_fault(error: &LocalError) -> Fault {
    let (status, os_error) = match error {
        LocalError::Guard(GuardError::NotStarted(_, number)) => (RDZV_EXHAUSTED, *number),
        LocalError::Guard(_) => (RDZV_IO, 0),
        LocalError::Logs(error) => (RDZV_IO, error.errno()),
        LocalError::WorkerMonitor(cause) => (RDZV_EXHAUSTED, cause.raw_os_error().unwrap_or(0)),
        LocalError::Timers(_) => (RDZV_IO, 0),
    };
    Fault::new(status, error.to_string()).with_os_error(os_error)
}

impl guard::Handle for rdzv_agent {
    fn state(&self) -> &HandleState {
        &self.state
    }

    fn warn_free_refused(&self, function: &str) {
        self.home.warn_free_refused(function);
    }

    fn is_calling_back(&self) -> bool {
        false
    }

    fn refuse_sink(&self) -> Result<(), Fault> {
        if self.agent.is_poisoned() {
            drop(self.enter()?);
        }
        self.home.refuse_sink()
    }
}
faults! {
    AgentError => agent_fault,
    LocalError => local_fault,
}

/// Creates an agent over the given workers.
pub(crate) fn new_agent(
    options: AgentOptions,
    watchdog: Watched,
    handler: &Arc<dyn RendezvousHandler>,
    workers: Box<dyn Workers>,
    home: Arc<Home>,
) -> Result<*mut rdzv_agent, Fault> {
    let facts = EventFacts {
        run_id: handler.run_id().into(),
        rdzv_backend: handler.backend().into(),
        hostname: options.name.clone(),
        entry_point: options.entry_name.clone(),
        watchdog,
    };
    let agent = Agent::new(options, Arc::clone(handler), workers)?;
    let (state, control) = (HandleState::default(), agent.control());
    let (agent, result) = (Arc::new(Mutex::new(agent)), OnceLock::new());
    Ok(boxed(rdzv_agent { state, control, agent, home, facts, result }))
}

/// Creates an agent for the workers that `options` describe. It meets other agents through `handler`,
/// which may be of any backend. The agent shares the handler, so the caller may free its own handle;
/// until the agent has ended, do not use that handle for anything else. `context` may be NULL, which
/// creates a new one. This call forks the guard process from which the workers are started, so call it
/// before the program has many threads or much memory. On success the caller owns `*out` and frees it
/// with `rdzv_agent_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (an option is not valid; the program does not exist or is not
/// executable), `RDZV_EXHAUSTED` (out of processes, threads or descriptors), `RDZV_IO` (log files or the
/// timer pipe cannot be created, or a timer file exists and is not a pipe or has a reader).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_new(
    context: *const rdzv_context,
    options: *const rdzv_agent_options,
    handler: *const rdzv_rendezvous_handler,
    out: *mut *mut rdzv_agent,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let home = home(context)?;
        let given = GivenOptions::read(options)?;
        let handler = &reference(handler, "handler")?.handler;
        let mut options = given.agent()?;
        let (local, entry_name) = given.local(options.name.clone())?;
        options.entry_name = entry_name;
        let (count, stuck_timeout) = (options.spec.local_world_size, given.stuck_timeout()?);
        let bind = given.bind(count)?;
        let mut workers = LocalWorkers::new(local, handler.run_id(), count)?;
        bind(&mut workers);
        if let Some(timeout) = stuck_timeout {
            workers.watch_stuck(timeout)?;
        }
        if let Some(path) = given.timer_file() {
            workers.take_timers(Some(path.as_ref()))?;
        }
        let watchdog = if given.has_timers() { Watched::ByTimers } else { Watched::No };
        new_agent(options, watchdog, handler, Box::new(workers), home)
    })
}

/// Frees an agent. Workers that are still alive are killed, and the agent's node has left the rendezvous
/// when this returns. An agent in a loop continues there until it is removed from the loop. User code
/// that does not return is abandoned on its thread: hooks of custom workers after 5 s, a rendezvous
/// backend after 10 s. A forked child may free an agent that its parent created, which does not affect
/// the parent. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_free(agent: *mut rdzv_agent) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(agent, "rdzv_agent_free") };
}

/// Runs the agent to its end on the calling thread: it joins the rendezvous, starts and monitors the
/// workers, and restarts them when one fails or the membership changes. `listener` is called for every
/// event and may be NULL. The call succeeds whatever the outcome; the result goes to `*out`, whose
/// `struct_size` the caller has set. `out` may be NULL. If the agent has already ended, its result is
/// returned at once. A run has no time limit: `rdzv_agent_stop` ends it.
///
/// Errors: `RDZV_REENTRANT` (the agent is already running), `RDZV_INVALID_ARGUMENT` (it is in a loop),
/// `RDZV_EXHAUSTED` (a system call failed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_run(
    agent: *const rdzv_agent,
    listener: rdzv_agent_listener,
    user_data: *mut c_void,
    out: *mut rdzv_agent_result,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |agent| {
        agent.refuse_loop()?;
        let out = if out.is_null() { None } else { Some(out_pointer(out, "out")?) };
        let result = agent.enter()?.run(|agent, event| handle_event(listener, user_data, agent, &event))?;
        if let Some(out) = out {
            out.put(agent.view(result));
        }
        Ok(())
    })
}

fn handle_event(listener: rdzv_agent_listener, user_data: *mut c_void, agent: &Agent, event: &AgentEvent) {
    let Some(listener) = listener else { return };
    let view = AgentEventView::new(event, agent.moment());
    let borrowed = view.borrowed();
    // SAFETY: the listener was supplied for this call, and the event lives until it returns.
    unsafe { listener(user_data, &raw const borrowed) };
}

/// Fills `*out`, whose `struct_size` the caller has set, with the result of an agent that has ended.
///
/// Errors: `RDZV_UNSUPPORTED` (it has not ended), `RDZV_REENTRANT` (it is running on another thread).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_get_result(
    agent: *const rdzv_agent,
    out: *mut rdzv_agent_result,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, out, |agent| {
        let result = agent.enter()?.result();
        let not_ended = || Fault::new(RDZV_UNSUPPORTED, "the agent has not ended");
        Ok(agent.view(result.ok_or_else(not_ended)?))
    })
}

/// Requests the agent to stop its workers and to end. `signal` (1 to 64) is sent to the workers, as a
/// launcher passes on the signal that it receives; 0 stands for the stop signal of the options. A second
/// request kills the workers without waiting for them. Any thread may call this, but not a signal
/// handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_stop(
    agent: *const rdzv_agent,
    signal: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // Not through the poison: an agent that panicked in a loop has workers still.
    guard::call!(error, || {
        let control = &reference(agent, "agent")?.control;
        match signal {
            0 => control.stop(),
            signal => control.stop_by_signal(checked_signal(signal)?),
        }
        Ok(())
    })
}

/// Sends signal `signal` (1 to 64) to the workers and changes nothing else. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_pass_signal(
    agent: *const rdzv_agent,
    signal: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |agent| {
        agent.control.pass(checked_signal(signal)?);
        Ok(())
    })
}

fn checked_signal(signal: i32) -> Result<i32, Fault> {
    match signal {
        1..=64 => Ok(signal),
        _ => Err(invalid(format!("`signal` is {signal}; it must be from 1 to 64"))),
    }
}

/// Returns the workers at this moment. Any thread may call this. On success the caller owns `*out` and
/// frees it with `rdzv_worker_group_free`; any thread may read it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_get_worker_group(
    agent: *const rdzv_agent,
    out: *mut *const rdzv_worker_group,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, out, |agent| Ok(OwnedGroup::new(&agent.control.worker_group()).into_handle()))
}
