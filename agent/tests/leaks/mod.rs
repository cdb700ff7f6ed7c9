//! Leaks of an agent that restarts its workers. The tests measure their process, so each of them has one of its own.

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
use std::path::Path;
use std::sync::Arc;

/// What an agent and its process hold at one moment.
#[derive(Debug)]
struct Sample {
    descriptors: usize,
    threads: usize,
    /// All processes below this one, also those that nobody has waited for.
    processes: usize,
    resident_kb: u64,
}

impl Sample {
    fn take() -> Self {
        let entries = |folder| fs::read_dir(folder).expect("proc").count();
        let below = descendants(std::process::id());
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            processes: below,
            resident_kb: resident_kb(),
        }
    }
}

/// Returns the number of processes below a process.
fn descendants(pid: u32) -> usize {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let children = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let of = |child: &str| 1 + descendants(child.parse().expect("a process ID"));
    children.map(|children| children.split_whitespace().map(of).sum::<usize>()).sum()
}

/// Returns the resident memory of this process in kilobytes.
fn resident_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Creates an agent whose only worker fails at once, each time.
fn agent(port: u16, folder: &Path, restarts: u32) -> Agent {
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
    let spec = WorkerSpec { max_restarts: restarts, restart_backoff: Duration::ZERO, ..WorkerSpec::new(1) };
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

/// Runs a job that is restarted this often, and fails if the last restarts hold more than the first.
pub(crate) fn leave_nothing_behind(restarts: u32) {
    // The server of the rendezvous is in this process, and keeps this many changes.
    let mut server = ServerOptions::on("127.0.0.1", 0);
    server.limits.history.changes_max = 100;
    let server = Server::start(server).expect("a server");
    let folder = std::env::temp_dir().join(format!("rdzv-restarts-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let mut agent = agent(server.local_addr().port(), &folder, restarts);
    let mut samples = Vec::new();
    let mut failures = 0;
    let result = agent.run(|_, event| {
        if let AgentEvent::Notice(Notice::Phase { to: Phase::Restarting, reason, .. }) = &event {
            assert!(matches!(reason, Reason::WorkerFailed { .. }), "{reason}");
        }
        if let AgentEvent::WorkersFailed(_) = event {
            failures += 1;
            if failures % (restarts / 200) == 0 {
                samples.push(Sample::take());
            }
        }
    });
    fs::remove_dir_all(&folder).ok();
    assert!(matches!(result.expect("the system does its part").outcome, Outcome::Failed { .. }));
    assert_eq!(failures, restarts + 1);
    // A connection, a server or a process of the last round may not have ended yet.
    let (early, late) = (&samples[20..50], &samples[samples.len() - 30..]);
    let least = |count: fn(&Sample) -> usize| late.iter().map(count).min();
    let most = |count: fn(&Sample) -> usize| early.iter().map(count).max();
    assert!(least(|of| of.descriptors) <= most(|of| of.descriptors), "descriptors: {samples:?}");
    assert!(least(|of| of.threads) <= most(|of| of.threads), "threads: {samples:?}");
    assert!(least(|of| of.processes) <= most(|of| of.processes), "processes: {samples:?}");
    let kb = |of: &[Sample]| of.iter().map(|sample| sample.resident_kb).min().unwrap_or(0);
    assert!(kb(late) < kb(early) + 1024, "memory: {samples:?}");
}
