//! Agents with real processes and a server in this process.

use super::*;
use crate::driver::loop_member::{AgentLoop, LoopAgentEvent};
use crate::driver::testing::becomes_readable;
use crate::group::{ExitStatus, WorkerRanks, WorkerState};
use crate::log_layout::LogSettings;
use crate::phase::Phase;
use crate::reason::{Reason, StartFailure, StopCause};
use alloc::format;
use alloc::string::ToString;
use rendezvous_core::driver::loop_client::{Loop, LoopEvent};
use rendezvous_core::driver::rendezvous::Context;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::time::Duration;
use std::ffi::OsString;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::{fs, process};

const SOON: std::time::Duration = std::time::Duration::from_secs(30);

/// A folder of one test, in which its workers write files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rdzv-agent-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    /// Returns the lines that workers wrote into a file, sorted.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(name)).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(ToString::to_string).collect();
        lines.sort();
        lines
    }
}

impl Folder {
    /// Creates a named pipe, and returns the lines written to it.
    fn pipe(&self, name: &str) -> mpsc::Receiver<String> {
        let path = self.0.join(name);
        let made = process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        // Opened for writing as well, so that it does not end when the last writer closes it.
        let pipe = fs::File::options().read(true).write(true).open(path).expect("a pipe");
        let (notify, reported) = mpsc::channel();
        thread::spawn(move || {
            for line in io::BufRead::lines(io::BufReader::new(pipe)) {
                let Ok(()) = notify.send(line.expect("read")) else { return };
            }
        });
        reported
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

struct Job {
    server: Server,
    folder: Folder,
}

impl Job {
    fn new() -> Self {
        Self::at(ServerOptions::on("127.0.0.1", 0))
    }

    fn at(server: ServerOptions) -> Self {
        Self { server: Server::start(server).expect("a server"), folder: Folder::new() }
    }

    fn handler(&self, name: &str, nodes: (i64, i64), workers: u32) -> Arc<dyn RendezvousHandler> {
        self.handler_at(self.server.local_addr().port(), 0, name, nodes, workers)
    }

    fn handler_at(
        &self,
        port: u16,
        grace: i64,
        name: &str,
        nodes: (i64, i64),
        workers: u32,
    ) -> Arc<dyn RendezvousHandler> {
        let endpoint = format!("127.0.0.1:{port}");
        let parameters = RendezvousParameters::new("rdzv", &endpoint, "run", nodes.0, nodes.1)
            .expect("valid")
            .with("node", name)
            .with("is_host", false)
            .with("join_timeout", 20)
            .with("last_call", "none")
            .with("grace", grace)
            .with("local_world_size", i64::from(workers))
            .with_local_addr("127.0.0.1");
        Arc::from(Context::default().create_handler(&parameters).expect("a handler"))
    }

    /// Creates an agent whose workers run `script` in the job's folder.
    fn agent(&self, name: &str, nodes: (i64, i64), spec: WorkerSpec, script: &str) -> Agent {
        self.agent_with(name, nodes, spec, script, |_| {})
    }

    fn agent_with(
        &self,
        name: &str,
        nodes: (i64, i64),
        spec: WorkerSpec,
        script: &str,
        prepare: impl FnOnce(&mut LocalWorkers),
    ) -> Agent {
        let handler = self.handler(name, nodes, spec.local_world_size);
        self.agent_by(handler, name, spec, script, prepare)
    }

    fn agent_by(
        &self,
        handler: Arc<dyn RendezvousHandler>,
        name: &str,
        spec: WorkerSpec,
        script: &str,
        prepare: impl FnOnce(&mut LocalWorkers),
    ) -> Agent {
        self.agent_at(Some("127.0.0.1"), handler, name, spec, script, prepare)
    }

    fn agent_at(
        &self,
        local_addr: Option<&str>,
        handler: Arc<dyn RendezvousHandler>,
        name: &str,
        spec: WorkerSpec,
        script: &str,
        prepare: impl FnOnce(&mut LocalWorkers),
    ) -> Agent {
        let options = LocalOptions {
            entry: LocalEntry::Program("/bin/sh".into()),
            arguments: ["sh", "-c", script, "worker", "${local_rank}"].map(OsString::from).into(),
            environment: Vec::new(),
            directory: Some(self.folder.0.clone()),
            devices: crate::environment::Devices::All,
            host: name.into(),
            logs: LogSettings::default(),
            log_dir: Some(self.folder.0.join("logs")),
        };
        let mut workers = LocalWorkers::new(options, "run", spec.local_world_size).expect("a guard");
        prepare(&mut workers);
        let options = AgentOptions {
            spec,
            name: name.into(),
            entry_name: "sh".into(),
            local_addr: local_addr.map(ToString::to_string),
            listen_addr: None,
            master: None,
        };
        Agent::new(options, handler, Box::new(workers)).expect("an agent")
    }

    fn run(&self, name: &str, nodes: (i64, i64), spec: WorkerSpec, script: &str) -> Running {
        Running::new(self.agent(name, nodes, spec, script))
    }
}

/// An agent polled by a thread of its own.
struct Running {
    control: AgentControl,
    events: mpsc::Receiver<AgentEvent>,
    thread: JoinHandle<AgentResult>,
}

impl Running {
    fn new(mut agent: Agent) -> Self {
        let (notify, events) = mpsc::channel();
        let control = agent.control();
        let thread = thread::spawn(move || {
            agent.run(|_, event| notify.send(event).unwrap_or_default()).expect("the system does its part")
        });
        Self { control, events, thread }
    }

    /// Waits for an event.
    fn until<T>(&self, mut wanted: impl FnMut(&AgentEvent) -> Option<T>) -> T {
        loop {
            let event = self.events.recv_timeout(SOON).expect("it is reported in time");
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    fn until_running(&self) -> u64 {
        self.until(|event| match event {
            AgentEvent::Notice(Notice::Running { attempt, .. }) => Some(*attempt),
            _ => None,
        })
    }

    fn until_restarting(&self) -> Reason {
        self.until(|event| match event {
            AgentEvent::Notice(Notice::Phase { to: Phase::Restarting, reason, .. }) => Some(reason.clone()),
            _ => None,
        })
    }

    fn result(self) -> AgentResult {
        self.until(|event| (*event == AgentEvent::Over).then_some(()));
        self.thread.join().expect("no panic")
    }
}

fn spec(workers: u32) -> WorkerSpec {
    WorkerSpec { max_restarts: 0, ..WorkerSpec::new(workers) }
}

mod observed;
mod rendezvous_trouble;

const SUCCEEDED: Outcome = Outcome::Succeeded { missing: None };

#[test]
fn workers_find_what_they_need_in_their_environment() {
    let job = Job::new();
    let script = "echo $1 $LOCAL_RANK $RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
                  $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE >> said; test $MASTER_PORT -gt 0";
    let result = job.run("a", (1, 1), spec(2), script).result();
    assert_eq!(result, AgentResult { outcome: SUCCEEDED, returned: SortedMap::new(), failure: None });
    assert_eq!(
        job.folder.lines("said"),
        ["0 0 0 2 2 0 127.0.0.1 run True", "1 1 1 2 2 0 127.0.0.1 run True"]
    );
}

#[test]
fn a_worker_that_fails_is_started_again_with_all_others() {
    let job = Job::new();
    let script = "echo $TORCHELASTIC_RESTART_COUNT $RANK >> said
        test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
        test $RANK = 1 && exit 3
        exec sleep 1000";
    let agent = job.run("a", (1, 1), WorkerSpec { max_restarts: 1, ..spec(3) }, script);
    let reason = agent.until_restarting();
    assert_eq!(
        reason,
        Reason::WorkerFailed {
            worker: WorkerRanks { global_rank: 1, local_rank: 1 },
            exit: ExitStatus::Code(3)
        }
    );
    let failure = agent.until(|event| match event {
        AgentEvent::WorkersFailed(failure) => Some(failure.clone()),
        _ => None,
    });
    assert_eq!((failure.root.global_rank, failure.root.exit_code), (1, 3));
    assert_eq!(failure.others, []);
    assert_eq!(agent.until_running(), 1);
    let result = agent.result();
    assert_eq!((result.outcome, result.failure), (SUCCEEDED, None));
    // Some workers of the first start may have been stopped before they wrote anything.
    let said = job.folder.lines("said");
    assert_eq!(said[said.len() - 3..], ["1 0", "1 1", "1 2"]);
}

#[test]
fn a_node_by_itself_whose_ranks_are_given_has_a_new_store_for_each_start() {
    let job = Job::new();
    let parameters = RendezvousParameters::new("static", "127.0.0.1:0", "run", 1, 1).expect("valid");
    let handler = Context::default().create_handler(&parameters.with("rank", 0)).expect("a handler");
    let script = "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE >> said
        test $TORCHELASTIC_RESTART_COUNT = 2";
    let spec = WorkerSpec { max_restarts: 2, ..spec(1) };
    let agent = Running::new(job.agent_by(Arc::from(handler), "a", spec, script, |_| {}));
    assert_eq!(agent.result().outcome, SUCCEEDED);
    let mut said = job.folder.lines("said");
    said.dedup();
    assert_eq!(said.len(), 3, "each is another: {said:?}");
    assert!(said.iter().all(|line| line.starts_with("127.0.0.1 ") && line.ends_with(" True")), "{said:?}");
}

/// Returns whether a socket listens at this port on another address than loopback, according to `/proc`.
fn is_open_to_others(port: &str) -> bool {
    let port: u16 = port.parse().expect("a port");
    let loopback = [format!("0100007F:{port:04X}"), format!("00000000000000000000000001000000:{port:04X}")];
    let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(|list| fs::read_to_string(list).unwrap_or_default());
    let listening = lists.iter().flat_map(|list| list.lines()).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().filter(|local| local.ends_with(&format!(":{port:04X}")));
        local.filter(|_| fields.nth(1) == Some("0A"))
    });
    let listening: Vec<&str> = listening.collect();
    assert!(!listening.is_empty(), "no socket listens at {port}");
    listening.iter().any(|local| !loopback.iter().any(|address| address == local))
}

#[test]
fn a_single_node_opens_its_workers_store_to_no_other_host() {
    let job = Job::new();
    let script = "echo $MASTER_ADDR $MASTER_PORT > master$TORCHELASTIC_RESTART_COUNT
        test $TORCHELASTIC_RESTART_COUNT = 0 && exit 1
        echo > ready; exec sleep 1000";
    // The node is known by its host's name.
    let endpoint = format!("127.0.0.1:{}", job.server.local_addr().port());
    let parameters = RendezvousParameters::new("rdzv", &endpoint, "run", 1, 1).expect("valid");
    let of_rounds = Context::default().create_handler(&parameters.with("is_host", false)).expect("a handler");
    let parameters = RendezvousParameters::new("static", "127.0.0.1:0", "run", 1, 1).expect("valid");
    let by_itself = Context::default().create_handler(&parameters.with("rank", 0)).expect("a handler");
    let ready = job.folder.pipe("ready");
    for handler in [of_rounds, by_itself] {
        let handler = Arc::from(handler);
        let spec = WorkerSpec { max_restarts: 1, ..spec(1) };
        let agent = Running::new(job.agent_at(None, handler, "a", spec, script, |_| {}));
        ready.recv_timeout(SOON).expect("it runs");
        let [said] = <[String; 1]>::try_from(job.folder.lines("master1")).expect("one line");
        let (address, port) = said.split_once(' ').expect("two words");
        assert_eq!(address, "127.0.0.1");
        assert!(!is_open_to_others(port));
        agent.control.stop();
        agent.result();
    }
    // An address given by the user is used.
    let spec = WorkerSpec { max_restarts: 1, ..spec(1) };
    let handler = job.handler("a", (1, 1), 1);
    let agent = Running::new(job.agent_at(Some("this-host"), handler, "a", spec, script, |_| {}));
    ready.recv_timeout(SOON).expect("it runs");
    let said = job.folder.lines("master1");
    let port = said[0].strip_prefix("this-host ").expect("where others reach it");
    assert!(is_open_to_others(port));
    agent.control.stop();
    agent.result();
}

#[test]
fn a_failure_without_restarts_left_is_reported() {
    let job = Job::new();
    // In arguments `$$` stands for `$`, as with torchrun.
    let script = "test $RANK = 1 && echo 'what went wrong' >&2 && kill -SEGV $$$$; exec sleep 1000";
    let agent = job.run("a", (1, 1), spec(2), script);
    let control = agent.control.clone();
    let result = agent.result();
    let reason = Reason::WorkerFailed {
        worker: WorkerRanks { global_rank: 1, local_rank: 1 },
        exit: ExitStatus::Signal(11),
    };
    assert_eq!(result.outcome, Outcome::Failed { reason });
    let failure = result.failure.expect("there is one");
    assert_eq!((failure.root.signal(), failure.root.host.as_str()), (Some("SIGSEGV"), "a"));
    assert_eq!(failure.root.stderr_tail, ["what went wrong"]);
    assert_eq!(control.worker_group().state, WorkerState::Failed);
    // The run is closed for agents that join later.
    assert!(job.handler("b", (1, 1), 1).is_closed().expect("the server answers"));
}

#[test]
fn a_program_that_is_not_there_ends_the_agent_at_once() {
    let job = Job::new();
    let options = LocalOptions {
        entry: LocalEntry::Program("/nonexistent/trainer".into()),
        arguments: Vec::new(),
        environment: Vec::new(),
        directory: None,
        devices: crate::environment::Devices::All,
        host: "a".into(),
        logs: LogSettings::default(),
        log_dir: Some(job.folder.0.join("logs")),
    };
    let workers = LocalWorkers::new(options, "run", 2).expect("a guard");
    let options = AgentOptions {
        spec: WorkerSpec { max_restarts: 3, ..spec(2) },
        name: "a".into(),
        entry_name: "trainer".into(),
        local_addr: Some("127.0.0.1".into()),
        listen_addr: None,
        master: None,
    };
    let agent = Agent::new(options, job.handler("a", (1, 1), 2), Box::new(workers)).expect("an agent");
    let Outcome::Failed { reason: Reason::NotStarted { start_failure, message, .. } } =
        Running::new(agent).result().outcome
    else {
        panic!("it failed otherwise")
    };
    assert_eq!(start_failure, StartFailure::Lasting);
    assert_eq!(
        &*message,
        "/nonexistent/trainer: running the program: No such file or directory (os error 2)"
    );
}

#[test]
fn late_events_carry_the_state_of_their_time() {
    let job = Job::new();
    let mut agent = job.agent("a", (1, 1), WorkerSpec { max_restarts: 1, ..spec(1) }, "exit 3");
    while agent.result().is_none() {
        agent.wait().expect("the system does its part");
    }
    let mut ends = Vec::new();
    while let Some(event) = agent.next_event() {
        if let AgentEvent::Notice(Notice::Exited { local_rank: 0, .. }) = event {
            let Moment { group, restarts_left } = agent.moment();
            ends.push((group.attempt, group.workers.len(), *restarts_left));
        }
    }
    assert_eq!(ends, [(0, 1, 0), (1, 1, 0)]);
}

#[test]
fn another_thread_stops_the_agent() {
    let job = Job::new();
    let ready = job.folder.pipe("ready");
    // A process that is forked just as the signal arrives may lose it between fork and exec. So the shell waits for a
    // process that exists before, and that ends with the worker.
    let script = "sleep 1000 & trap 'echo signalled >> said; kill -9 $!; exit 0' TERM; echo $RANK > ready; while :; do wait; done";
    let agent = job.run("a", (1, 1), spec(2), script);
    for _ in 0..2 {
        ready.recv_timeout(SOON).expect("a worker is ready");
    }
    agent.control.stop();
    let control = agent.control.clone();
    assert_eq!(agent.result().outcome, Outcome::Stopped { cause: StopCause::Requested });
    assert_eq!(control.worker_group().state, WorkerState::Stopped);
    assert_eq!(job.folder.lines("said"), ["signalled", "signalled"]);
    // The agent only left: the others continue.
    assert!(!job.handler("b", (1, 1), 1).is_closed().expect("the server answers"));
}

#[test]
fn workers_that_do_not_stop_in_time_are_killed() {
    let job = Job::new();
    let spec = WorkerSpec { stop_timeout: Duration::from_millis(100), ..spec(2) };
    let ready = job.folder.pipe("ready");
    let agent = job.run("a", (1, 1), spec, "trap '' TERM; echo $RANK > ready; while :; do sleep 1000; done");
    for _ in 0..2 {
        ready.recv_timeout(SOON).expect("a worker is ready");
    }
    agent.control.stop();
    agent.until(|event| {
        matches!(event, AgentEvent::Notice(Notice::Killing { reason: Reason::StopTimeout })).then_some(())
    });
    assert_eq!(agent.result().outcome, Outcome::Stopped { cause: StopCause::Requested });
}

#[test]
fn a_node_that_comes_later_makes_a_round_of_all() {
    let job = Job::new();
    let script = "echo $WORLD_SIZE $GROUP_RANK $MASTER_PORT >> said$WORLD_SIZE
        test $WORLD_SIZE = 2 && exit 0
        exec sleep 1000";
    let first = job.run("a", (1, 2), spec(1), script);
    assert_eq!(first.until_running(), 0);
    let second = job.run("b", (1, 2), spec(1), script);
    assert!(matches!(first.until_restarting(), Reason::NodesWaiting { nodes: 1 } | Reason::RoundOver { .. }));
    assert_eq!(first.until_running(), 1);
    assert_eq!((first.result().outcome, second.result().outcome), (SUCCEEDED, SUCCEEDED));
    let said = job.folder.lines("said2");
    let ports: Vec<&str> = said.iter().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(ports.len(), 2);
    assert_eq!(ports[0], ports[1], "both find one store: {said:?}");
}

#[test]
fn a_final_failure_ends_the_other_agents_with_its_message() {
    let job = Job::new();
    let script = "test $GROUP_RANK = 1 && exit 9; exec sleep 1000";
    let (first, second) = (job.run("a", (2, 2), spec(1), script), job.run("b", (2, 2), spec(1), script));
    let outcomes = [first.result().outcome, second.result().outcome];
    let mut address = 0;
    for outcome in outcomes {
        match outcome {
            Outcome::Failed { reason: Reason::WorkerFailed { exit, .. } } => {
                address += 1;
                assert_eq!(exit, ExitStatus::Code(9));
            }
            Outcome::Failed { reason: Reason::JobFailed { message } } => {
                assert!(
                    message.contains("(group rank 1): rank 1 (local rank 0) ended with exit code 9"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(address, 1);
}

#[test]
fn a_node_that_dies_makes_the_others_meet_again() {
    let job = Job::new();
    let script = "test -e died && test $WORLD_SIZE = 1 && exit 0; exec sleep 1000";
    let first = job.run("a", (1, 2), spec(1), script);
    first.until_running();
    let mut second = job.agent("b", (1, 2), spec(1), script);
    while second.supervisor().phase() != Phase::Running {
        assert_ne!(second.supervisor().phase(), Phase::Over);
        second.wait().expect("the system does its part");
    }
    fs::write(job.folder.0.join("died"), "").expect("written");
    drop(second);
    assert_eq!(first.result().outcome, SUCCEEDED);
}

#[test]
fn the_agents_that_restart_with_a_failed_one_name_its_worker() {
    for nodes in [(2, 2), (1, 2)] {
        let job = Job::new();
        let script = "test -e failed && exit 0
            test $GROUP_RANK = 0 && { echo > up$GROUP_WORLD_SIZE; exec sleep 1000; }
            until test -e up2; do sleep 0.01; done; touch failed; kill -9 $$$$";
        let spec = || WorkerSpec { max_restarts: 1, ..spec(1) };
        let agents = ["a", "b"].map(|name| job.run(name, nodes, spec(), script));
        let mut reasons = agents.each_ref().map(|agent| {
            loop {
                match agent.until_restarting() {
                    // The first round may have one node.
                    Reason::NodesWaiting { .. } if nodes.0 == 1 => {}
                    reason => break reason.to_string(),
                }
            }
        });
        reasons.sort();
        let [of_peer, own] = &reasons;
        assert!(of_peer.starts_with("node "), "{reasons:?}");
        assert!(of_peer.ends_with(&format!(" (group rank 1) restarts: {own}")), "{reasons:?}");
        assert_eq!(own, "rank 1 (local rank 0) was ended by SIGKILL");
        for agent in agents {
            assert_eq!(agent.result().outcome, SUCCEEDED);
        }
    }
}

#[test]
fn a_node_that_is_stopped_makes_the_others_meet_again() {
    let job = Job::new();
    let ready = job.folder.pipe("ready");
    let script = "test $GROUP_WORLD_SIZE = 2 && echo $GROUP_RANK > ready; exec sleep 1000";
    let first = job.run("a", (1, 2), spec(1), script);
    let second = job.run("b", (1, 2), spec(1), script);
    for _ in 0..2 {
        ready.recv_timeout(SOON).expect("both are in one round");
    }
    second.control.stop();
    // The agent has no restarts, and its worker does not wait for peers: only the agent can notice the leave.
    let reason = first.until(|event| match event {
        AgentEvent::Notice(Notice::Phase { reason: reason @ Reason::PeerDied { .. }, .. }) => {
            Some(reason.to_string())
        }
        _ => None,
    });
    assert!(reason.ends_with(") left: it was stopped before its work was done"), "{reason}");
    first.until_running();
    assert_eq!(first.control.worker_group().group_world_size, 1);
    assert_eq!(second.result().outcome, Outcome::Stopped { cause: StopCause::Requested });
    first.control.stop();
    assert_eq!(first.result().outcome, Outcome::Stopped { cause: StopCause::Requested });
}

#[test]
fn a_server_that_is_lost_ends_the_agent_with_the_reason() {
    let job = Job::new();
    let agent = job.run("a", (1, 1), spec(1), "exec sleep 1000");
    agent.until_running();
    let Job { server, folder } = job;
    drop(server);
    let outcome = agent.result().outcome;
    let Outcome::Failed { reason: Reason::ServerLost { message } } = outcome else { panic!("{outcome:?}") };
    assert!(message.contains("127.0.0.1"), "{message}");
    drop(folder);
}

/// A proxy between an agent and its server, which breaks every connection on request.
struct Relay {
    port: u16,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").port();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let broken = Arc::clone(&streams);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let mut lock = broken.lock().expect("no panic");
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let copy = |stream: &TcpStream| stream.try_clone().expect("descriptors");
                    lock.push(copy(from));
                    let (mut from, mut to) = (copy(from), copy(to));
                    thread::spawn(move || {
                        io::copy(&mut from, &mut to).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        Self { port: address, streams }
    }

    /// Breaks all connections and returns their number.
    fn break_all(&self) -> usize {
        let streams = core::mem::take(&mut *self.streams.lock().expect("no panic"));
        for stream in &streams {
            stream.shutdown(Shutdown::Both).ok();
        }
        streams.len() / 2
    }
}

#[test]
fn a_connection_that_breaks_and_comes_back_within_its_grace_changes_nothing() {
    let job = Job::new();
    let relay = Relay::to(job.server.local_addr().port());
    let go = job.folder.0.join("go");
    let script = "until test -e go; do sleep 0.01; done";
    let handler = job.handler_at(relay.port, 20, "a", (1, 2), 1);
    let agent = Running::new(job.agent_by(handler, "a", spec(1), script, |_| {}));
    agent.until_running();
    for _ in 0..3 {
        let until = std::time::Instant::now() + SOON;
        while relay.break_all() == 0 {
            assert!(std::time::Instant::now() < until, "the agent comes back");
            thread::yield_now();
        }
    }
    // The agent gets events over its present connection: a second node makes a new round.
    let second = job.run("b", (1, 2), spec(1), script);
    assert!(matches!(agent.until_restarting(), Reason::NodesWaiting { .. } | Reason::RoundOver { .. }));
    assert_eq!(agent.until_running(), 1, "the breaks made no start");
    fs::write(go, "").expect("written");
    assert_eq!((agent.result().outcome, second.result().outcome), (SUCCEEDED, SUCCEEDED));
}

#[test]
fn a_peer_that_restarts_restarts_the_agents_that_are_done() {
    // Two threads of the agent that has succeeded notice it, in different ways, and either may be the first.
    for _ in 0..12 {
        let job = Job::new();
        let script =
            "test -e failed && exit 0; until test -e parting; do sleep 0.01; done; touch failed; exit 7";
        let first = job.run("a", (2, 2), spec(1), "exit 0");
        let second = job.run("b", (2, 2), WorkerSpec { max_restarts: 1, ..spec(1) }, script);
        first.until(|event| {
            matches!(event, AgentEvent::Notice(Notice::Phase { to: Phase::ExitBarrier, .. })).then_some(())
        });
        fs::write(job.folder.0.join("parting"), "").expect("written");
        assert_eq!((first.result().outcome, second.result().outcome), (SUCCEEDED, SUCCEEDED));
    }
}

#[test]
fn an_agent_that_is_done_waits_as_long_as_the_others_take_unless_it_has_a_deadline() {
    for timeout in [None, Some(Duration::ZERO)] {
        let job = Job::new();
        let impatient = WorkerSpec { exit_barrier_timeout: timeout, ..spec(1) };
        let first = job.run("a", (2, 2), impatient, "exit 0");
        let second = job.run("b", (2, 2), spec(1), "until test -e go; do sleep 0.01; done");
        first.until(|event| {
            matches!(event, AgentEvent::Notice(Notice::Phase { to: Phase::ExitBarrier, .. })).then_some(())
        });
        if timeout.is_some() {
            let outcome = first.result().outcome;
            let Outcome::Succeeded { missing: Some(Reason::ExitBarrierFailed { message }) } = outcome else {
                panic!("{outcome:?}")
            };
            assert!(message.ends_with(": 1 of 2 have arrived"), "{message}");
            fs::write(job.folder.0.join("go"), "").expect("written");
        } else {
            fs::write(job.folder.0.join("go"), "").expect("written");
            assert_eq!(first.result().outcome, SUCCEEDED);
        }
        assert_eq!(second.result().outcome, SUCCEEDED);
    }
}

#[test]
fn a_loop_turns_agents_and_forgets_them() {
    let job = Job::new();
    let mut events = Loop::new().expect("descriptors");
    let agent = Arc::new(std::sync::Mutex::new(job.agent("a", (1, 1), spec(1), "exit 0")));
    let id = events.add_agent(Arc::clone(&agent)).expect("watched");
    let mut reported = Vec::new();
    while reported.last() != Some(&AgentEvent::Over) {
        assert!(becomes_readable(events.fd(), SOON), "it gets on: {reported:?}");
        events.poll().expect("the system does its part");
        while let Some(LoopEvent::Member(of, event)) = events.next_event() {
            assert_eq!(of, id);
            reported.push(event.downcast::<LoopAgentEvent>().expect("of an agent").event);
        }
    }
    assert_eq!(agent.lock().expect("whole").result().expect("over").outcome, SUCCEEDED);
    events.remove_agent(id);
    assert_eq!(Arc::strong_count(&agent), 1);
    events.poll().expect("the system does its part");
    assert!(events.next_event().is_none());
}

#[test]
fn a_dropped_agent_leaves_no_process_behind() {
    let job = Job::new();
    let ready = job.folder.pipe("ready");
    // The process that left its session holds a lock as long as it lives.
    let script = "(trap '' TERM; setsid flock lock sh -c 'echo > ready; sleep 1000' &); exec sleep 1000";
    let mut agent = job.agent("a", (1, 1), spec(1), script);
    while agent.supervisor().phase() != Phase::Running {
        agent.wait().expect("the system does its part");
    }
    ready.recv_timeout(SOON).expect("it holds the lock");
    drop(agent);
    let lock = fs::File::open(job.folder.0.join("lock")).expect("it is there");
    lock.try_lock().expect("its holder has ended");
}
