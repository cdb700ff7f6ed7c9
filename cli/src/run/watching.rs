//! What is seen of the agent beside the screen, and who looks after its workers: what torchrun's variables ask for.

use super::arguments::RunArguments;
use super::lines::{Destination, Lines};
use super::screen::Screen;
use super::surroundings;
use crate::units;
use rendezvous_agent::driver::agent::{Agent, LocalError, LocalWorkers};
use rendezvous_agent::events::{EventFacts, EventRecorder, Watched};
use rendezvous_agent::metrics::{ConsoleLine, Metrics};
use rendezvous_core::driver::clock::since_1970;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

/// Where events and metrics go. It outlives the agent.
pub(super) struct Watching {
    events: Option<Lines>,
    metrics: Option<Lines>,
}

impl Watching {
    pub(super) fn new(arguments: &RunArguments, screen: &Screen) -> Result<Self, Box<dyn std::error::Error>> {
        let events = Destination::parse("--event-log-handler", &arguments.event_log_handler)?;
        let metrics = Destination::parse("--metrics", &arguments.metrics)?;
        Ok(Self {
            events: Lines::open("events", events, screen.complaints())?,
            metrics: Lines::open("metrics", metrics, screen.complaints())?,
        })
    }

    /// Has the agent watched from now on.
    pub(super) fn watch(&self, agent: &mut Agent, facts: EventFacts) {
        if let Some(put) = self.events.as_ref().map(Lines::sender) {
            let mut recorder = EventRecorder::new(facts);
            agent.observe(Box::new(move |now, machine, happened| {
                recorder.observe(now, machine, happened, &mut |line| put(line.to_string()));
            }));
        }
        if let Some(put) = self.metrics.as_ref().map(Lines::sender) {
            let mut metrics = Metrics::default();
            agent.observe(Box::new(move |now, machine, happened| {
                let at = since_1970();
                metrics.observe(now, machine, happened, &mut |name: &str, value| {
                    put(ConsoleLine { at, name, value }.to_string());
                });
            }));
        }
    }
}

/// Has the workers looked after as far as the environment asks for it.
pub(super) fn look_after(workers: &mut LocalWorkers, screen: &Screen) -> Result<Watched, LocalError> {
    let name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
    if let Some(text) = surroundings::text(name) {
        match units::seconds(&text) {
            Ok(timeout) if !timeout.is_zero() => workers.watch_stuck(timeout)?,
            Ok(_) => {}
            Err(error) => screen.note(&format!("{name} is {text}, which is ignored: {error}")),
        }
    }
    if surroundings::text("TORCHELASTIC_ENABLE_FILE_TIMER").as_deref() != Some("1") {
        return Ok(Watched::No);
    }
    let path = surroundings::variable("TORCHELASTIC_TIMER_FILE");
    let path = workers.take_timers(path.as_deref().map(Path::new))?;
    screen.note(&format!("workers' timers are taken through {}", path.display()));
    Ok(Watched::ByTimers)
}

/// Answers over HTTP how the agent is, if the environment asks for it. What is wrong with that ends nothing.
pub(super) fn serve_health(agent: &mut Agent, watched: Watched, screen: &Screen) {
    let name = "TORCHELASTIC_HEALTH_CHECK_PORT";
    let Some(text) = surroundings::text(name) else { return };
    let host = surroundings::text("RDZV_HEALTH_CHECK_HOST");
    let address = match health_address(host.as_deref(), &text) {
        Ok(address) => address,
        Err(message) => return screen.note(&format!("{name}: {message}; no health is served")),
    };
    match agent.serve_health(address, watched.into()) {
        Ok(address) => screen.note(&format!("health is served at http://{address}/")),
        Err(error) => screen.note(&format!("{name}: {address}: {error}; no health is served")),
    }
}

/// The loopback address unless another is asked for.
fn health_address(host: Option<&str>, port: &str) -> Result<SocketAddr, String> {
    let port = port.trim().parse().map_err(|_| format!("{port:?} is no port"))?;
    let host = match host {
        Some(host) => host.parse().map_err(|_| format!("{host:?} is no address"))?,
        None => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    Ok(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_for_this_host_unless_asked_otherwise() {
        for (host, port, wanted) in [
            (None, "8080", Ok("127.0.0.1:8080")),
            (Some("0.0.0.0"), " 1 ", Ok("0.0.0.0:1")),
            (Some("::"), "7", Ok("[::]:7")),
            (None, "http", Err("\"http\" is no port")),
            (None, "65536", Err("\"65536\" is no port")),
            (Some("here"), "7", Err("\"here\" is no address")),
        ] {
            let address = health_address(host, port).map(|address| address.to_string());
            assert_eq!(address.as_deref().map_err(String::as_str), wanted);
        }
    }
}
