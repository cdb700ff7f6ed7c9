//! Observation of an agent and monitoring of its workers.

use rendezvous_agent::environment::AgentStore;
use rendezvous_agent::events::{EventFacts, EventRecorder};
use rendezvous_agent::health::{Health, Request, LivenessPolicy};
use rendezvous_agent::metrics::Metrics;
use rendezvous_agent::node::{AgentNode, Input, NodeOptions, Output};
use rendezvous_agent::numa::{Host, NumaBinding, bind, parse_list, write_list};
use rendezvous_agent::observer::Happened;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::spec::WorkerSpec;
use rendezvous_agent::stuck::{ObservedState, StuckWatch};
use rendezvous_agent::supervisor::Output as SupervisorOutput;
use rendezvous_agent::watchdog::Watchdog;
use rendezvous_agent::worker_event::WorkerEvent;
use rendezvous_core::time::{Duration, Instant};

pub(crate) fn sings() -> bool {
    observes() == Some(true) && looks_after() == Some(true)
}

fn observes() -> Option<bool> {
    let options = NodeOptions {
        spec: WorkerSpec::new(1),
        name: "node".into(),
        local_addr: None,
        listen_addr: None,
        master: None,
        is_local: true,
        reports_deaths: true,
        agent_store: AgentStore::Shared,
    };
    let mut node = AgentNode::new(options).ok()?;
    let (mut metrics, mut events) = (Metrics::default(), EventRecorder::new(EventFacts::default()));
    let (mut measured, mut written) = (0, 0);
    for input in [Input::Begin, Input::Worker(WorkerEvent::GuardLost { message: "gone".into() })] {
        node.handle(Instant::ORIGIN, input).ok()?;
        while let Some(output) = node.poll_output() {
            let Output::Supervisor(SupervisorOutput::Notify(notice)) = output else { continue };
            let happened = Happened::Notice(&notice);
            metrics.observe(Instant::ORIGIN, node.supervisor(), happened, &mut |_: &str, _: i64| measured += 1);
            events.observe(Instant::ORIGIN, node.supervisor(), happened, &mut |line| written += line.len());
        }
    }
    let health = Health::new(Phase::Running, Instant::ORIGIN, node.supervisor().group(), LivenessPolicy::Watchful);
    let answer = Request::of(b"GET / HTTP/1.1\r\n\r\n").answer(&health, Instant::MAX)?;
    Some(measured > 0 && written > 0 && answer.starts_with("HTTP/1.1 503 "))
}

fn looks_after() -> Option<bool> {
    let mut watchdog = Watchdog::default();
    let line = b"{\"pid\": 7, \"scope_id\": \"a\", \"expiration_time\": 1.5, \"signal\": 9}\n";
    watchdog.read(line, &mut |_| true);
    let expired = watchdog.next_expired(Duration::from_secs(2))?;
    let mut stuck = StuckWatch::new(Duration::ZERO);
    let hangs = stuck.observe(Instant::ORIGIN, 0, ObservedState::Uninterruptible).is_some();
    let host = Host { read: &|_| Some("0-1".into()), allowed: parse_list("1")? };
    let bound = bind(NumaBinding::Node, 1, &host).ok()?;
    Some(expired.pid == 7 && hangs && write_list(bound.first()?) == "1")
}
