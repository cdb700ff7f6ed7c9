//! Observers of agents, and monitors of their workers.

use super::*;
use crate::driver::testing::{end_of, in_a_child};
use crate::events::{EventFacts, EventRecorder, Watched};
use crate::health::LivenessPolicy;
use crate::metrics::Metrics;
use crate::watchdog::ExpiredTimer;
use alloc::vec;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Creates an agent of two workers that reads timers from `timers`.
fn watched(job: &Job, restarts: u32, script: &str) -> Agent {
    let spec = WorkerSpec { max_restarts: restarts, ..spec(2) };
    job.agent_with("a", (1, 1), spec, script, |workers| {
        let path = job.folder.0.join("timers");
        assert_eq!(workers.take_timers(Some(&path)).expect("a pipe"), path);
    })
}

/// Returns a shell command that sets a timer for process `pid`.
fn set(pid: &str, scope: &str, expires: &str, signal: &str) -> String {
    let line = format!(
        "{{\\\"version\\\": 1, \\\"pid\\\": {pid}, \\\"scope_id\\\": \\\"{scope}\\\", \\\"expiration_time\\\": {expires}, \\\"signal\\\": {signal}}}"
    );
    format!("echo \"{line}\" > $TORCHELASTIC_TIMER_FILE")
}

fn expired(agent: &Running) -> ExpiredTimer {
    agent.until(|event| match event {
        AgentEvent::Notice(Notice::TimerExpired(timer)) => Some(timer.clone()),
        _ => None,
    })
}

#[test]
fn a_forked_child_drops_the_agent_and_its_parent_goes_on() {
    let job = Job::new();
    let go = job.folder.0.join("go");
    let mut agent = watched(&job, 0, "until test -e go; do sleep 0.01; done");
    agent.serve_health(([127, 0, 0, 1], 0).into(), LivenessPolicy::Trusting).expect("a server");
    while agent.supervisor().phase() != Phase::Running {
        agent.wait().expect("the system does its part");
    }
    let handler = job.handler("b", (1, 1), 1);
    assert!(!handler.is_closed().expect("it has a session"));
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let (mut agent, mut others) = (Some(agent), Some((handler, server)));
    let child = in_a_child(|| {
        drop((agent.take(), others.take()));
        Some(())
    });
    assert_eq!(end_of(child), 0);
    let (handler, server) = others.expect("the child took its own");
    assert!(!handler.is_closed().expect("the session goes on"));
    server.stats().expect("it serves");
    assert!(job.folder.0.join("timers").exists());
    fs::write(go, "").expect("written");
    let agent = agent.expect("the child took its own");
    assert_eq!(Running::new(agent).result().outcome, SUCCEEDED);
}

#[test]
fn a_timer_that_expires_ends_its_worker_and_all_start_anew() {
    let job = Job::new();
    let script = format!(
        "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
        test $RANK = 1 && {}
        exec sleep 1000",
        set("$$$$", "step#3", "1.5", "9")
    );
    let agent = Running::new(watched(&job, 1, &script));
    let timer = expired(&agent);
    assert_eq!((timer.local_rank, &*timer.scope, timer.signal), (Some(1), "step#3", 9));
    let reason = agent.until_restarting();
    let pid = timer.pid;
    let message = format!("watchdog: timer step#3 (set for 0.0 s by pid {pid})");
    assert_eq!(reason.to_string(), format!("{message} of rank 1 (local rank 1) expired"));
    let failure = agent.until(|event| match event {
        AgentEvent::WorkersFailed(failure) => Some(failure.clone()),
        _ => None,
    });
    assert_eq!(
        (failure.root.global_rank, failure.root.signal(), failure.others.len()),
        (1, Some("SIGKILL"), 0)
    );
    assert_eq!(failure.root.message, format!("{message} expired. Signal 9 (SIGKILL) received by PID {pid}"));
    assert_eq!(agent.result().outcome, SUCCEEDED);
    assert!(!job.folder.0.join("timers").exists(), "it is gone with the agent");
}

#[test]
fn a_timer_that_is_removed_or_not_due_ends_no_process() {
    let job = Job::new();
    let script = [
        set("$$$$", "a", "99999999999", "9"),
        set("$$$$", "b", "1.0", "0"),
        set("$$$$", "b", "-1", "0"),
        // Not a descendant of the agent: it must not be ended.
        set("1", "a", "1.0", "9"),
        "echo nonsense > $TORCHELASTIC_TIMER_FILE".into(),
        "read line < go".into(),
    ]
    .join("\n");
    let made = process::Command::new("mkfifo").arg(job.folder.0.join("go")).status().expect("mkfifo runs");
    assert!(made.success());
    // Opened for reading as well, so that opening it does not block.
    let mut go = fs::File::options().read(true).write(true).open(job.folder.0.join("go")).expect("a pipe");
    let mut remarks = Vec::new();
    let agent = Running::new(watched(&job, 0, &script));
    while remarks.len() < 2 {
        remarks.push(agent.until(|event| match event {
            AgentEvent::Notice(Notice::Remark { message }) => Some(message.to_string()),
            _ => None,
        }));
    }
    remarks.sort();
    let wanted = [
        "watchdog: a line is not a timer",
        "watchdog: a timer of process 1 is not taken: it is not a descendant of this agent",
    ];
    assert_eq!(remarks, wanted, "of both workers, once");
    // Both workers wait until they may end.
    go.write_all(b"1\n2\n").expect("sent");
    assert_eq!(agent.result().outcome, SUCCEEDED);
}

#[test]
fn a_program_may_be_run_by_another_one() {
    let job = Job::new();
    let agent = job.agent_with("a", (1, 1), spec(2), "echo $BOUND $RANK $1 >> said", |workers| {
        let before = |bound: &str| ["env", bound].map(OsString::from).to_vec();
        workers.run_through("/usr/bin/env".into(), vec![before("BOUND=0-3"), before("BOUND=4-7")]);
    });
    assert_eq!(Running::new(agent).result().outcome, SUCCEEDED);
    assert_eq!(job.folder.lines("said"), ["0-3 0 0", "4-7 1 1"]);
}

#[test]
fn what_has_left_its_worker_is_still_ended_by_its_timer() {
    let job = Job::new();
    // Its parents end, so that the guard adopts it.
    let orphan = format!("{}; exec sleep 1000", set("$$$$", "orphan", "2.0", "9"));
    let script = format!(
        "test $RANK = 1 && exec sleep 1000
        (setsid sh -c '{orphan}' &)
        exec sleep 1000",
    );
    let agent = Running::new(watched(&job, 0, &script));
    let timer = expired(&agent);
    assert_eq!((&*timer.scope, timer.signal), ("orphan", 9));
    let outcome = agent.result().outcome;
    assert!(matches!(outcome, Outcome::Failed { reason: Reason::TimerExpired { .. } }), "{outcome:?}");
}

#[test]
fn what_is_there_and_no_pipe_is_left_alone() {
    let job = Job::new();
    let path = job.folder.0.join("timers");
    fs::write(&path, "mine").expect("written");
    job.agent_with("a", (1, 1), spec(1), "exit 0", |workers| {
        let error = workers.take_timers(Some(&path)).expect_err("it is no pipe").to_string();
        assert!(error.ends_with("/timers: the path exists and is not a pipe"), "{error}");
    });
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "mine");
}

#[test]
fn metrics_and_events_follow_a_life() {
    let job = Job::new();
    let script = "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; test $RANK = 1 && exit 3; exec sleep 1000";
    let mut agent = job.agent("a", (1, 1), WorkerSpec { max_restarts: 1, ..spec(2) }, script);
    let (notify, reported) = mpsc::channel::<(String, i64)>();
    let mut metrics = Metrics::default();
    agent.observe(Box::new(move |now, machine, happened| {
        metrics.observe(now, machine, happened, &mut |name: &str, value| {
            notify.send((name.into(), value)).expect("awaited");
        });
    }));
    let (write, written) = mpsc::channel::<String>();
    let mut recorder = EventRecorder::new(EventFacts { watchdog: Watched::No, ..EventFacts::default() });
    agent.observe(Box::new(move |now, machine, happened| {
        recorder.observe(now, machine, happened, &mut |line| write.send(line.into()).expect("awaited"));
    }));
    assert_eq!(Running::new(agent).result().outcome, SUCCEEDED);
    let metrics: alloc::collections::BTreeMap<String, i64> = reported.try_iter().collect();
    for (name, value) in [
        ("workers.default.flakiness", 50),
        ("workers.default.run_success_with_retries", 1),
        ("workers.default.remaining_restarts", 0),
        ("workers.default.failed", 1),
        ("SimpleElasticAgent._restart_workers.success", 1),
    ] {
        assert_eq!(metrics.get(name), Some(&value), "{name}: {metrics:?}");
    }
    assert!(metrics["workers.default.restart.total.us"] > 0);
    let states: Vec<String> = written
        .try_iter()
        .map(|line| line.parse::<serde_json::Value>().expect("JSON")["metadata"]["state"].to_string())
        .collect();
    let wanted = "RENDEZVOUS ASSIGN_WORKER_RANKS START START TERMINATED FAILED RENDEZVOUS ASSIGN_WORKER_RANKS START \
                  START SUCCEEDED SUCCEEDED SUCCEEDED";
    assert_eq!(states.join(" ").replace('"', ""), wanted);
}

#[test]
fn health_is_served_while_the_agent_runs() {
    let job = Job::new();
    let mut agent = job.agent("a", (1, 1), spec(1), "exec sleep 1000");
    let address = agent.serve_health(([127, 0, 0, 1], 0).into(), LivenessPolicy::Watchful).expect("a port");
    let agent = Running::new(agent);
    agent.until_running();
    let phase = || {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body.parse::<serde_json::Value>().expect("JSON")["phase"].as_str().expect("text").to_string()
    };
    // The published health follows the events.
    let until = std::time::Instant::now() + SOON;
    while phase() != "running" {
        assert!(std::time::Instant::now() < until, "it is shown in time");
    }
    agent.control.stop();
    agent.result();
    TcpStream::connect(address).expect_err("it is gone with the agent");
}
