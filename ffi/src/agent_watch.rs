//! What is seen of an agent beside its events: its health, its metrics and the records of its life.

use crate::agent::rdzv_agent;
use crate::argument::{invalid, out_pointer, reference, text};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::sized;
use crate::status::{RDZV_IO, rdzv_status};
use rendezvous_agent::driver::agent::Agent;
use rendezvous_agent::events::{EventFacts, EventRecorder};
use rendezvous_agent::metrics::Metrics;
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;
use std::sync::Arc;

/// Takes what can be counted, measured and recorded of an agent. The functions are called on the thread that
/// turns the agent, so they must not block; nor must they throw, or run or free the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_agent_sink {
    /// `sizeof(rdzv_agent_sink)`.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// One value of a metric, whose name is that of PyTorch's elastic agent, such as
    /// `workers.default.remaining_restarts`, or one of ours (docs/agent.md lists them all): whole numbers, in
    /// the unit that the name ends with. The name is not NUL-terminated, and lent. May be NULL.
    pub metric:
        Option<unsafe extern "C" fn(user_data: *mut c_void, name: *const u8, name_len: usize, value: i64)>,
    /// One record, a JSON object in one line: what PyTorch's elastic agent writes as an event. Not
    /// NUL-terminated, and lent. May be NULL.
    pub record: Option<unsafe extern "C" fn(user_data: *mut c_void, json: *const u8, json_len: usize)>,
    /// Called once, when the agent is gone. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// The size of `rdzv_agent_sink` in the first header.
const SINK_FIRST_SIZE: usize = 40;
const NO_SINK: rdzv_agent_sink = rdzv_agent_sink {
    struct_size: 0,
    reserved: 0,
    user_data: null_mut(),
    metric: None,
    record: None,
    destroy: None,
};

/// A sink that is the library's.
struct Owned(rdzv_agent_sink);

// SAFETY: the header tells that the functions are called on the thread that turns the agent, and at its end.
unsafe impl Send for Owned {}
// SAFETY: what is shared are two observers of one agent, which are called one after the other.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(destroy) = self.0.destroy {
            // SAFETY: the sink was given for this, and nothing is told any more.
            unsafe { destroy(self.0.user_data) };
        }
    }
}

impl Owned {
    fn metric(&self, name: &str, value: i64) {
        if let Some(metric) = self.0.metric {
            // SAFETY: the sink was given for this, and the name lives until the function returns.
            unsafe { metric(self.0.user_data, name.as_ptr(), name.len(), value) };
        }
    }

    fn record(&self, json: &str) {
        if let Some(record) = self.0.record {
            // SAFETY: the sink was given for this, and the text lives until the function returns.
            unsafe { record(self.0.user_data, json.as_ptr(), json.len()) };
        }
    }
}

/// Has an agent that does not run watched.
unsafe fn watch(
    agent: *const rdzv_agent,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&mut Agent, &EventFacts) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call_on(agent.as_ref().map(|agent| &agent.poison), error, || {
            let agent = reference(agent, "agent")?;
            agent.home.refuse_sink()?;
            body(&mut *agent.enter()?, &agent.facts)
        })
    }
}

/// Adds a sink, which hears of everything from the beginning when it is added before the agent is run or in a
/// loop. `sink` is copied; on success the library owns `user_data`, until it calls `destroy`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (no function to tell), `RDZV_REENTRANT` (the agent runs).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_add_sink(
    agent: *const rdzv_agent,
    sink: *const rdzv_agent_sink,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        watch(agent, error, |agent, facts| {
            let given = sized::given_size(sink, SINK_FIRST_SIZE, "sink")?;
            let sink = sized::get(sink, given, NO_SINK);
            if sink.metric.is_none() && sink.record.is_none() {
                return Err(invalid("`sink` has neither `metric` nor `record`"));
            }
            let owned = Arc::new(Owned(sink));
            if sink.metric.is_some() {
                let (mut metrics, owned) = (Metrics::default(), Arc::clone(&owned));
                agent.observe(Box::new(move |now, machine, happened| {
                    metrics
                        .observe(now, machine, happened, &mut |name: &str, value| owned.metric(name, value));
                }));
            }
            if sink.record.is_some() {
                let mut recorder = EventRecorder::new(facts.clone());
                agent.observe(Box::new(move |now, machine, happened| {
                    recorder.observe(now, machine, happened, &mut |json| owned.record(json));
                }));
            }
            Ok(())
        })
    }
}

/// Answers over HTTP, at `host` (a numeric address) and `port` (0 for any that is free), how the agent is: 200
/// when it is well, and 503 when it should have got on and has not; the body is a JSON object (docs/agent.md).
/// It does so on a thread of its own, until the agent is gone. The port goes to `*bound` unless that is NULL.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (the host is no address), `RDZV_IO` (it is not to be had; there is no room
/// for a thread), `RDZV_REENTRANT` (the agent runs).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_serve_health(
    agent: *const rdzv_agent,
    host: *const u8,
    host_len: usize,
    port: u16,
    bound: *mut u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        watch(agent, error, |agent, facts| {
            let host = text(host, host_len, "host")?;
            let host: IpAddr =
                host.parse().map_err(|_| invalid(format!("`host` is {host:?}, not a numeric address")))?;
            let address = SocketAddr::new(host, port);
            let served = agent.serve_health(address, facts.watchdog.into());
            let served = served.map_err(|cause| {
                Fault::new(RDZV_IO, format!("health cannot be served at {address}: {cause}"))
                    .with(|known| known.os_error = cause.raw_os_error().unwrap_or(0))
            })?;
            if let Ok(bound) = out_pointer(bound, "bound") {
                bound.put(served.port());
            }
            Ok(())
        })
    }
}
