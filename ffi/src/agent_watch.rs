//! Observation of agents: health, metrics and event records.

use crate::agent::rdzv_agent;
use crate::prelude::*;
use rendezvous_agent::events::EventRecorder;
use rendezvous_agent::metrics::Metrics;
use std::net::{IpAddr, SocketAddr};

/// Receiver of an agent's metrics and event records. The functions are called on the thread that drives
/// the agent. They must not block, throw, or run or free the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_agent_sink {
    /// Set to `sizeof(rdzv_agent_sink)`.
    pub struct_size: u32,
    /// Unused; set to 0.
    pub reserved: u32,
    /// Passed to all functions.
    pub user_data: *mut c_void,
    /// Receives one value of a metric: an integer in the unit that the name ends with. The name is that
    /// of a metric of PyTorch's elastic agent, such as `workers.default.remaining_restarts`, or one of
    /// this library (docs/agent.md lists them all). The name is not NUL-terminated and valid during the
    /// call only. May be NULL.
    pub metric:
        Option<unsafe extern "C" fn(user_data: *mut c_void, name: *const u8, name_len: usize, value: i64)>,
    /// Receives one event record as a JSON object on one line, in the format of PyTorch's elastic agent.
    /// Not NUL-terminated and valid during the call only. May be NULL.
    pub record: Option<unsafe extern "C" fn(user_data: *mut c_void, json: *const u8, json_len: usize)>,
    /// Called once, after the agent was destroyed. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_agent_sink: 40);

impl UserCode<rdzv_agent_sink> {
    fn metric(&self, name: &str, value: i64) {
        if let Some(metric) = self.metric {
            // SAFETY: the sink was supplied for this call, and the name lives until the function returns.
            unsafe { metric(self.user_data, name.as_ptr(), name.len(), value) };
        }
    }

    fn record(&self, json: &str) {
        if let Some(record) = self.record {
            // SAFETY: the sink was supplied for this call, and the text lives until the function returns.
            unsafe { record(self.user_data, json.as_ptr(), json.len()) };
        }
    }
}

/// Adds a sink. A sink that is added before the agent runs or is added to a loop receives everything from
/// the start. `sink` is copied; on success the library owns `user_data` until it calls `destroy`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (neither `metric` nor `record` is set), `RDZV_REENTRANT` (the agent is
/// running).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_add_sink(
    agent: *const rdzv_agent,
    sink: *const rdzv_agent_sink,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |handle| {
        let (mut agent, facts) = (handle.enter()?, &handle.facts);
        let sink = sized::get(sink, "sink")?;
        if sink.metric.is_none() && sink.record.is_none() {
            return Err(invalid("`sink` has neither `metric` nor `record`"));
        }
        let owned = Arc::new(UserCode::owned(sink, sink.user_data, sink.destroy));
        if sink.metric.is_some() {
            let (mut metrics, owned) = (Metrics::default(), Arc::clone(&owned));
            agent.observe(Box::new(move |now, machine, happened| {
                metrics.observe(now, machine, happened, &mut |name: &str, value| owned.metric(name, value));
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

/// Serves the agent's health over HTTP at `host` (a numeric address) and `port` (0 for any free port). The
/// status is 200 if the agent is healthy and 503 if it is overdue to make progress; the body is a JSON
/// object (docs/agent.md). The server runs on its own thread until the agent is destroyed. The port goes to
/// `*bound` unless `bound` is NULL.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (`host` is not an address), `RDZV_IO` (the address cannot be bound, or
/// no thread can be created), `RDZV_REENTRANT` (the agent is running).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_serve_health(
    agent: *const rdzv_agent,
    host: *const u8,
    host_len: usize,
    port: u16,
    bound: *mut u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |handle| {
        let (mut agent, facts) = (handle.enter()?, &handle.facts);
        let host = text(host, host_len, "host")?;
        let host: IpAddr =
            host.parse().map_err(|_| invalid(format!("`host` is {host:?}, not a numeric address")))?;
        let address = SocketAddr::new(host, port);
        let served = agent.serve_health(address, facts.watchdog.into());
        let served = served.map_err(|cause| {
            Fault::os(RDZV_IO, format!("health cannot be served at {address}: {cause}"), &cause)
        })?;
        put_unless_null(bound, served.port());
        Ok(())
    })
}
