//! Processes that are stopped for a while and go on: a suspended job, a frozen container, Ctrl-Z and `fg`.

use super::{Gate, IDLE, Launch, Launched};
use crate::net::Deadline;
use crate::rdzv::RdzvServer;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// A session is over after two seconds of silence.
const KEEP_ALIVE: &str = "keep_alive_interval=1,keep_alive_max_attempt=2";
/// Longer than that.
const PAUSE: Duration = Duration::from_millis(3500);

impl Launched {
    fn pid(&self) -> libc::pid_t {
        self.child.id().try_into().expect("a process id")
    }

    /// The agent and all processes beneath it, the agent first.
    fn processes(&self) -> Vec<libc::pid_t> {
        let mut found = vec![self.pid()];
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            found.extend(children_of(parent));
            next += 1;
        }
        found
    }

    /// Asserts that no line comes for so long.
    #[track_caller]
    fn is_silent_for(&mut self, span: Duration) {
        match self.lines.recv_timeout(span) {
            Err(RecvTimeoutError::Timeout) => {}
            line => panic!("{line:?} after {:#?}", self.seen),
        }
    }

    /// Takes lines until none has come for so long.
    fn settle(&mut self, span: Duration) {
        let deadline = Deadline::new();
        while let Ok(line) = self.lines.recv_timeout(span) {
            self.seen.push(line);
            assert!(!deadline.has_passed(), "it does not settle: {:#?}", self.seen);
        }
    }
}

fn children_of(parent: libc::pid_t) -> Vec<libc::pid_t> {
    let is_child = |pid: &libc::pid_t| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in brackets, may hold anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_child).collect()
}

fn signal_all(pids: &[libc::pid_t], signal: libc::c_int) {
    for &pid in pids {
        // SAFETY: no memory is involved; the processes are this test's, and do not end while they are stopped.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "process {pid}");
    }
}

/// One of two nodes.
fn one_of_two(server: &RdzvServer, flags: &[&str], script: &str) -> Launch {
    let endpoint = server.address().to_string();
    let job = ["--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint", &endpoint, "--rdzv-conf", KEEP_ALIVE];
    Launch::shell(&[&job[..], flags].concat(), script)
}

/// One node whose worker waits for the gate, as it runs.
fn one_node(gate: &Gate) -> Launched {
    let flags = ["--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-conf", KEEP_ALIVE];
    let script = format!("echo ready; {}; echo goes on", Gate::WAIT);
    let mut launched = Launch::shell(&flags, &script).arg(&gate.path).start();
    launched.until(2, "ready");
    launched.until(1, "start 0");
    launched
}

#[track_caller]
fn continues_in(mut launched: Launched, gate: &Gate) {
    // What the pause would end, it ends within the time of a silence.
    launched.is_silent_for(PAUSE);
    gate.open();
    gate.open();
    launched.finish().with(0).says(2, "goes on").says(1, "run: done").says(0, "run: start 1");
}

#[test]
fn a_job_of_one_node_goes_on_after_all_of_it_was_stopped() {
    let gate = Gate::new("all_stopped");
    let mut launched = one_node(&gate);
    let processes = launched.processes();
    assert!(processes.len() >= 4, "agent, guard and two workers: {processes:?}");
    signal_all(&processes, libc::SIGSTOP);
    launched.is_silent_for(PAUSE);
    signal_all(&processes, libc::SIGCONT);
    continues_in(launched, &gate);
}

#[test]
fn a_job_of_one_node_goes_on_after_its_agent_was_stopped() {
    let gate = Gate::new("agent_stopped");
    let mut launched = one_node(&gate);
    // More than once: no pause is counted towards the next.
    for _ in 0..2 {
        launched.signal(libc::SIGSTOP);
        launched.is_silent_for(PAUSE);
        launched.signal(libc::SIGCONT);
    }
    continues_in(launched, &gate);
}

#[test]
fn a_job_goes_on_after_its_nodes_and_their_server_were_stopped() {
    let (server, gate) = (RdzvServer::start(), Gate::new("server_stopped"));
    let script = format!("echo ready; {}; echo goes on", Gate::WAIT);
    let mut nodes = [0, 1].map(|_| one_of_two(&server, &[], &script).arg(&gate.path).start());
    for node in &mut nodes {
        node.until(1, "ready");
        node.until(1, "start 0");
    }
    let processes = nodes.iter().flat_map(Launched::processes).collect::<Vec<_>>();
    signal_all(&processes, libc::SIGSTOP);
    server.stop();
    nodes[0].is_silent_for(PAUSE);
    // The server is the first to go on, and hears nothing for a while.
    server.signal(libc::SIGCONT);
    nodes[0].is_silent_for(Duration::from_millis(500));
    signal_all(&processes, libc::SIGCONT);
    nodes[0].is_silent_for(PAUSE);
    nodes.iter().for_each(|_| gate.open());
    for node in nodes {
        node.finish().with(0).says(1, "goes on").says(0, "run: start 1");
    }
}

#[test]
fn a_node_that_was_struck_out_while_it_was_stopped_joins_again_and_pays_with_a_restart() {
    let server = RdzvServer::start();
    let start = |restarts| one_of_two(&server, &["--max-restarts", restarts], IDLE).start();
    let (mut one, mut other) = (start("0"), start("1"));
    for node in [&mut one, &mut other] {
        node.until(1, "start 0");
        node.until(1, "idle ");
    }
    other.signal(libc::SIGSTOP);
    one.until(1, "heartbeats were missed");
    other.signal(libc::SIGCONT);
    for node in [&mut one, &mut other] {
        node.until(1, "run: start 1");
        node.until(2, "idle ");
    }
    // The budget of the one that was struck out is spent, and that of the other is its own.
    other.until(1, "(0 restarts left)");
    other.signal(libc::SIGSTOP);
    one.until(2, "heartbeats were missed");
    other.signal(libc::SIGCONT);
    let other = other.finish().with(1);
    other.tells("the server ended the session: heartbeats were missed").says(0, "run: start 2");
    one.settle(Duration::from_millis(100));
    one.signal(libc::SIGTERM);
    one.finish().with(1);
}
