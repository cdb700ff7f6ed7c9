//! Leaks of an agent that restarts its workers. The test measures the memory and descriptors of its process, so it runs
//! in a process of its own.

use rendezvous_agent::driver::agent::{
    Agent, AgentEvent, AgentOptions, LocalEntry, LocalOptions, LocalWorkers,
};
use rendezvous_agent::environment::Devices;
use rendezvous_agent::log_layout::LogSettings;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::Reason;
use rendezvous_agent::spec::WorkerSpec;
use rendezvous_agent::supervisor::{Notice, Outcome};
use rendezvous_core::driver::rendezvous::Context;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::time::Duration;
use std::fs;
use std::sync::Arc;

const RESTARTS: u32 = 10_000;

/// Returns the resident memory of this process in kilobytes.
fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Creates an agent whose only worker fails at once, each time.
fn agent(port: u16, folder: &std::path::Path) -> Agent {
    let parameters = RendezvousParameters::new("rdzv", &format!("127.0.0.1:{port}"), "run", 1, 1)
        .expect("valid")
        .with("node", "a")
        .with("is_host", false)
        .with("join_timeout", 20)
        .with("last_call", "none")
        .with("grace", 0)
        .with("local_world_size", 1)
        .with_local_addr("127.0.0.1");
    let handler = Context::default().create_handler(&parameters).expect("a handler");
    let workers = LocalOptions {
        entry: LocalEntry::Program("/bin/sh".into()),
        arguments: ["sh", "-c", "exit 1"].map(Into::into).into(),
        environment: Vec::new(),
        directory: Some(folder.to_owned()),
        devices: Devices::All,
        host: "a".into(),
        logs: LogSettings::default(),
        log_dir: Some(folder.join("logs")),
    };
    let workers = LocalWorkers::new(workers, "run", 1).expect("a guard");
    let spec = WorkerSpec { max_restarts: RESTARTS, restart_backoff: Duration::ZERO, ..WorkerSpec::new(1) };
    let options = AgentOptions {
        spec,
        name: "a".into(),
        entry_name: "sh".into(),
        local_addr: Some("127.0.0.1".into()),
        listen_addr: None,
        master: None,
    };
    Agent::new(options, Arc::from(handler), Box::new(workers)).expect("an agent")
}

#[test]
fn ten_thousand_restarts_leave_nothing_behind() {
    // The server of the rendezvous is in this process, and keeps this many changes.
    let mut server = ServerOptions::on("127.0.0.1", 0);
    server.limits.history.changes_max = 1000;
    let server = Server::start(server).expect("a server");
    let folder = std::env::temp_dir().join(format!("rdzv-restarts-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let mut agent = agent(server.local_addr().port(), &folder);
    let mut samples = Vec::new();
    let mut failures = 0;
    let result = agent.run(|_, event| {
        if let AgentEvent::Notice(Notice::Phase { to: Phase::Restarting, reason, .. }) = &event {
            assert!(matches!(reason, Reason::WorkerFailed { .. }), "{reason}");
        }
        if let AgentEvent::WorkersFailed(_) = event {
            failures += 1;
            if failures % 50 == 0 {
                samples.push((open_descriptors(), resident_kb()));
            }
        }
    });
    fs::remove_dir_all(&folder).ok();
    assert!(matches!(result.expect("the system does its part").outcome, Outcome::Failed { .. }));
    assert_eq!(failures, RESTARTS + 1);
    // A connection or a server of the last round may not have ended yet.
    let (early, late) = (&samples[10..30], &samples[samples.len() - 20..]);
    let opened = |of: &[(usize, u64)]| (of.iter().map(|of| of.0).min(), of.iter().map(|of| of.0).max());
    assert!(opened(late).0 <= opened(early).1, "descriptors: {samples:?}");
    let kb = |of: &[(usize, u64)]| of.iter().map(|of| of.1).min().unwrap_or(0);
    assert!(kb(late) < kb(early) + 1024, "memory: {samples:?}");
}
