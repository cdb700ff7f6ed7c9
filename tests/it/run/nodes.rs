//! Several agents, one job.

use super::{Gate, IDLE, Launch, Launched, free_port, until_gone};
use crate::rdzv::{RdzvServer, program};

/// Agents of one job at a server of its own.
struct Job {
    server: RdzvServer,
    nodes: &'static str,
}

impl Job {
    fn of(nodes: &'static str) -> Self {
        Self { server: RdzvServer::start(), nodes }
    }

    fn launch(&self, flags: &[&str], script: &str) -> Launch {
        let endpoint = self.server.address().to_string();
        let job = ["--nnodes", self.nodes, "--rdzv-id=job", "--rdzv-endpoint", &endpoint];
        let conf = ["--rdzv-conf", "last_call_timeout=1"];
        Launch::shell(&[&job[..], &conf, flags].concat(), script)
    }

    fn start(&self, flags: &[&str], script: &str) -> Launched {
        self.launch(flags, script).start()
    }
}

#[test]
fn nodes_come_and_go() {
    let job = Job::of("1:2");
    let script = format!("echo of $WORLD_SIZE; {IDLE}");
    let mut first = job.start(&["--nproc-per-node", "2"], &script);
    first.until(2, "of 2");
    let mut second = job.start(&["--nproc-per-node", "1"], &script);
    second.until(1, "of 3");
    first.until(2, "of 3");
    let worker = second.number("idle 2 ");
    second.signal(libc::SIGKILL);
    second.finish();
    until_gone(worker);
    // The death is told; nobody's budget pays for it.
    first.until(4, "of 2");
    first.signal(libc::SIGTERM);
    first.finish().with(1).tells("stopped by SIGTERM").says(0, "Root Cause");
}

#[test]
fn a_failure_anywhere_restarts_everybody_and_each_agent_pays_for_its_own() {
    let job = Job::of("2");
    let gate = Gate::new("everybody");
    // Whose attempt this is shows in how often this agent has paid.
    let script = format!(
        "echo paid $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] && exec sleep 600; {}; exit 1",
        Gate::WAIT
    );
    let start = || job.launch(&["--max-restarts", "1"], &script).arg(&gate.path).start();
    let (mut one, mut other) = (start(), start());
    one.until(1, "paid");
    other.until(1, "paid");
    gate.open();
    one.until(2, "paid");
    other.until(2, "paid");
    let ended = [one, other].map(|launched| {
        launched.signal(libc::SIGTERM);
        launched.finish().with(1)
    });
    let say = |message: &str| {
        ended.iter().filter(|ran| ran.lines.iter().any(|line| line.contains(message))).count()
    };
    assert_eq!((say("Root Cause"), say("paid 1")), (1, 1), "{ended:#?}");
}

#[test]
fn a_job_that_fails_for_good_ends_on_all_nodes() {
    let job = Job::of("2");
    let idle = job.start(&["--max-restarts", "3"], IDLE);
    let fails = job.start(&["--role", "fails"], "exit 9");
    fails.finish().with(1).tells("exitcode  : 9");
    idle.finish().with(1).tells("(local rank 0) ended with exit code 9").says(0, "run: start 1");
}

#[test]
fn a_spare_that_was_not_needed_is_a_success() {
    let job = Job::of("1");
    let gate = Gate::new("spare");
    let mut active = job.launch(&[], &format!("echo runs; {}", Gate::WAIT)).arg(&gate.path).start();
    active.until(1, "runs");
    let mut spare = job.start(&[], "echo not this one");
    spare.until(1, "standing by");
    gate.open();
    active.finish().with(0);
    spare.finish().with(0).says(0, "not this one").tells("was not needed");
}

#[test]
fn a_spare_takes_over() {
    let job = Job::of("1");
    let mut active = job.start(&[], IDLE);
    active.until(1, "idle 0");
    let mut spare = job.start(&[], "echo took over");
    spare.until(1, "standing by");
    active.signal(libc::SIGKILL);
    active.finish();
    spare.finish().with(0).says(1, "took over");
}

#[test]
fn a_spare_by_choice_stands_by_until_it_is_needed() {
    let job = Job::of("1:2");
    let endpoint = job.server.address().to_string();
    let flags = ["--nnodes=1:2", "--rdzv-id=job", "--rdzv-endpoint", &endpoint];
    let conf = ["--rdzv-conf", "last_call_timeout=1,standby=true"];
    let mut spare = Launch::shell(&[&flags[..], &conf].concat(), "echo took over").start();
    spare.until(1, "standing by");
    // It came first. There is room for two, but the round is complete without it.
    let mut active = job.start(&[], &format!("echo of $WORLD_SIZE; {IDLE}"));
    active.until(1, "of 1");
    active.signal(libc::SIGKILL);
    active.finish();
    spare.finish().with(0).says(1, "took over");
}

#[test]
fn a_node_whose_workers_ended_well_has_succeeded_whatever_becomes_of_the_others() {
    let (job, gate) = (Job::of("2"), Gate::new("others"));
    let fails = format!("echo runs; {}; exit 9", Gate::WAIT);
    let mut done = job.start(&[], "exit 0");
    let mut fails = job.launch(&[], &fails).arg(&gate.path).start();
    fails.until(1, "runs");
    done.until(1, "waiting for the other nodes");
    gate.open();
    fails.finish().with(1).tells("exitcode  : 9");
    done.finish().with(0).tells("ended with exit code 9").says(0, "run: start 1");
}

#[test]
fn a_signal_at_the_exit_barrier_ends_the_wait() {
    let job = Job::of("2");
    let (mut done, mut runs) = (job.start(&[], "exit 0"), job.start(&[], IDLE));
    runs.until(1, "idle");
    done.until(1, "waiting for the other nodes");
    done.signal(libc::SIGTERM);
    done.finish().with(1).tells("stopped by SIGTERM");
    runs.signal(libc::SIGTERM);
    runs.finish().with(1);
}

#[test]
fn an_agent_that_is_killed_at_the_exit_barrier_does_not_hold_up_the_others() {
    let job = Job::of("2");
    let (mut done, mut runs) = (job.start(&[], "exit 0"), job.start(&[], IDLE));
    runs.until(1, "idle");
    done.until(1, "waiting for the other nodes");
    done.signal(libc::SIGKILL);
    done.finish();
    // It died without a word: the round of two is over, and the other one looks for a second node.
    runs.until(1, "stop and start anew");
    runs.signal(libc::SIGTERM);
    runs.finish().with(1);
}

#[test]
fn an_agent_that_is_killed_while_it_waits_for_nodes_leaves_no_seat() {
    let job = Job::of("2");
    let mut killed = job.start(&[], "echo never");
    killed.until(1, "joining run job");
    killed.signal(libc::SIGKILL);
    killed.finish();
    let others = [job.start(&[], "echo of $WORLD_SIZE nodes"), job.start(&[], "echo of $WORLD_SIZE nodes")];
    for other in others {
        other.finish().with(0).says(1, "of 2 nodes");
    }
}

#[test]
fn a_server_that_is_lost_ends_the_agents() {
    let job = Job::of("1");
    let mut launched = job.start(&["--max-restarts", "3"], IDLE);
    launched.until(1, "idle 0");
    launched.until(1, "start 0");
    job.server.end_with(libc::SIGKILL);
    launched.finish().with(1).tells("the rendezvous is lost").says(0, "run: start 1");
}

#[test]
fn ranks_given_by_hand() {
    // The second line is all that torchrun's users write.
    for backend in [&["--rdzv-backend=static"][..], &[]] {
        let port = super::free_port();
        let start = |rank: &str| {
            let flags =
                ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port", &port];
            let script = "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT";
            Launch::shell(&[&flags[..], &["--node-rank", rank], backend].concat(), script).start()
        };
        let nodes = [start("0"), start("1")];
        for (node, first) in nodes.into_iter().zip([0, 2]) {
            let ran = node.finish().with(0);
            for rank in [first, first + 1] {
                ran.says(1, &format!("{rank} of 4 at 127.0.0.1:{port}"));
            }
        }
    }
}

/// Agents of one job whose ranks are given.
struct Given {
    port: String,
    nodes: &'static str,
}

impl Given {
    fn new() -> Self {
        Self::of("--nnodes=2")
    }

    fn of(nodes: &'static str) -> Self {
        Self { port: super::free_port(), nodes }
    }

    fn launch(&self, rank: &str, flags: &[&str], script: &str) -> Launch {
        let job = [self.nodes, "--master-addr=127.0.0.1", "--master-port", &self.port, "--node-rank", rank];
        Launch::shell(&[&job[..], flags].concat(), script).env("RDZV", program())
    }
}

#[test]
fn nodes_with_given_ranks_start_anew_together_and_find_nothing_of_the_start_before() {
    let (job, folder) = (Given::new(), super::folder("together"));
    // Which start this is is told by a folder: the restart count is each agent's own.
    let script = r#"store() { "$RDZV" store --endpoint $MASTER_ADDR:$MASTER_PORT --timeout-ms 20000 "$@"; }
        if mkdir "$0/$RANK" 2> /dev/null; then
            store set left-$RANK 1 && store wait left-0 left-1 && echo first at $MASTER_PORT
            [ $RANK = 1 ] && exit 3
            exec sleep 600
        fi
        store set again-$RANK 1 && store wait again-0 again-1 || exit 4
        [ "$(store list --prefix again-)" = "$(printf 'again-0\nagain-1')" ] || exit 5
        [ -z "$(store list --prefix left-)" ] || exit 6
        echo again at $MASTER_PORT, paid $TORCHELASTIC_RESTART_COUNT"#;
    let nodes = ["0", "1"].map(|rank| job.launch(rank, &["--max-restarts=1"], script).arg(&folder).start());
    let [zero, one] = nodes.map(|node| node.finish().with(0));
    let first = format!("first at {}", job.port);
    for (ran, paid) in [(&zero, 0), (&one, 1)] {
        ran.says(1, &first).says(1, &format!("paid {paid}")).says(0, &format!("again at {},", job.port));
        ran.says(1, "round 1: 2 nodes, this one is").says(0, "run: start 2");
    }
    zero.tells("(group rank 1) restarts: rank 1 (local rank 0) ended with exit code 3: 1 worker stop");
}

#[test]
fn a_node_with_a_given_rank_that_waits_in_vain_hears_why() {
    let (job, gate) = (Given::new(), Gate::new("given"));
    let waits = format!("echo runs; [ $RANK = 0 ] && exit 7; {}; exit 9", Gate::WAIT);
    let start = |rank, flags: &[&str]| job.launch(rank, flags, &waits).arg(&gate.path).start();
    let mut zero = start("0", &["--max-restarts=3"]);
    // This one does not hear that the other waits before it fails itself.
    let mut one = start("1", &["--max-restarts=0", "--monitor-interval=600"]);
    one.until(1, "runs");
    zero.until(1, "waiting for nodes 1/2");
    gate.open();
    one.finish().with(1).tells("exitcode  : 9");
    zero.finish().with(1).tells("is closed. ").tells("rank 1 (local rank 0) ended with exit code 9");
}

#[test]
fn an_agent_with_a_given_rank_that_was_killed_may_come_back() {
    let job = Given::new();
    let start = |rank| job.launch(rank, &["--max-restarts=0"], IDLE).start();
    let (mut zero, mut one) = (start("0"), start("1"));
    let worker = one.number("idle 1 ");
    zero.until(1, "idle 0");
    one.signal(libc::SIGKILL);
    one.finish();
    until_gone(worker);
    let mut one = start("1");
    one.until(1, "round 1: 2 nodes, this one is 1");
    one.until(1, "idle 1");
    zero.until(2, "idle 0");
    for node in [zero, one] {
        node.signal(libc::SIGTERM);
        node.finish().with(1);
    }
}

#[test]
fn nodes_with_given_ranks_that_wait_in_vain_name_the_missing_ones() {
    let job = Given::of("--nnodes=4");
    let node = |rank, timeout: &str| job.launch(rank, &["--rdzv-conf", timeout], "echo started").start();
    let mut zero = node("0", "timeout=60");
    zero.until(1, "waiting for nodes 1/4");
    let two = node("2", "timeout=1").finish().with(1);
    two.says(0, "started").tells("2 of 4 nodes joined round 0 within 1 s; missing node ranks: 1, 3");
    // One that gave up is not taken for one that is there.
    zero.until(2, "waiting for nodes 1/4");
    let mut three = node("3", "timeout=60");
    three.until(1, "waiting for nodes 2/4");
    zero.signal(libc::SIGKILL);
    zero.finish();
    let three = three.finish().with(1);
    three.tells("Node 0, which hosts the store of run 'none', left before all nodes had joined round 0");
    three.tells("missing node ranks at the last check: 1, 2");
    let host = node("0", "timeout=1").finish().with(1);
    host.tells("1 of 4 nodes joined round 0 within 1 s; missing node ranks: 1, 2, 3");
    node("1", "timeout=1").finish().with(1).tells("node 0, which hosts the store");
}

#[test]
fn a_rank_that_two_nodes_were_given_is_refused_and_both_are_named() {
    let job = Given::of("--nnodes=3");
    let start = |rank| job.launch(rank, &["--rdzv-conf=timeout=60"], "echo started").start();
    let mut zero = start("0");
    zero.until(1, "waiting for nodes 1/3");
    let mut one = start("1");
    one.until(1, "waiting for nodes 2/3");
    for (first, rank) in [(&one, "1"), (&zero, "0")] {
        let second = start(rank);
        let (held, request) =
            (format!("(pid {}) and ", first.child.id()), format!("(pid {}) both", second.child.id()));
        let second = second.finish().with(1);
        second
            .says(0, "started")
            .tells(&held)
            .tells(&request)
            .tells(&format!("both have node rank {rank} of run"));
    }
    // The others go on.
    start("2").finish().with(0).says(1, "started");
    for node in [zero, one] {
        node.finish().with(0).says(1, "started");
    }
}

/// Starts a node of a job without a server of its own. One of its two nodes serves the rendezvous.
fn node_without_server(port: &str, flags: &[&str], script: &str) -> Launched {
    let endpoint = format!("127.0.0.1:{port}");
    let job = ["--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint", &endpoint];
    Launch::shell(&[&job[..], flags].concat(), script).start()
}

const GUEST: [&str; 2] = ["--rdzv-conf", "is_host=false,join_timeout=5"];

#[test]
fn a_node_of_the_job_serves_the_rendezvous_to_its_end() {
    let port = free_port();
    let mut host = node_without_server(&port, &[], "echo world $WORLD_SIZE");
    host.until(1, "waiting for nodes 1/2");
    let guest = node_without_server(&port, &GUEST, "echo world $WORLD_SIZE");
    guest.finish().with(0).says(1, "world 2");
    host.finish().with(0).says(1, "world 2");
}

#[test]
fn nodes_with_the_token_meet_and_one_without_it_is_told() {
    let port = free_port();
    let folder = super::folder("tokens");
    let file = |name: &str, secret: &str| {
        let path = folder.join(name);
        std::fs::write(&path, secret).expect("a token file");
        path.to_str().expect("text").to_owned()
    };
    let token = file("right", "0123456789abcdef0123456789abcdef");
    let wrong = file("wrong", "ffffffffffffffffffffffffffffffff");
    let with = |token: &str, flags: &[&str]| {
        node_without_server(&port, &[&["--auth-token-file", token], flags].concat(), "echo world $WORLD_SIZE")
    };
    let mut host = with(&token, &[]);
    host.until(1, "waiting for nodes 1/2");
    node_without_server(&port, &GUEST, "echo world").finish().with(1).tells("the server asks for a token");
    with(&wrong, &GUEST).finish().with(1).tells("the server does not know the client's token");
    with(&token, &GUEST).finish().with(0).says(1, "world 2");
    host.finish().with(0).says(1, "world 2");
}

#[test]
fn the_death_of_the_node_that_serves_the_rendezvous_ends_the_others_with_advice() {
    let port = free_port();
    let mut host = node_without_server(&port, &[], IDLE);
    host.until(1, "waiting for nodes 1/2");
    let mut guest = node_without_server(&port, &GUEST, IDLE);
    guest.until(1, "idle");
    let worker = host.number("idle 0 ");
    host.signal(libc::SIGKILL);
    host.finish();
    until_gone(worker);
    let advice = format!("served the rendezvous at 127.0.0.1:{port}, start that node again");
    guest.finish().with(1).tells("the rendezvous is lost").tells(&advice).tells("`rdzv server`");
    // A node that comes after it finds no server either, and says so when its join timeout is over.
    let late = node_without_server(&port, &GUEST, IDLE);
    late.finish().with(1).tells(&advice).says(0, "idle");
}

#[test]
fn a_node_that_is_done_waits_no_longer_than_its_deadline() {
    let job = Job::of("2");
    let gate = Gate::new("deadline");
    let mut done = job.launch(&["--exit-barrier-timeout=0.1"], "exit 0").start();
    let at_work = job.launch(&[], Gate::WAIT).arg(&gate.path).start();
    done.until(1, "1 of 2 have arrived");
    gate.open();
    at_work.finish().with(0);
    done.finish().with(0);
}
