//! What is seen of `rdzv run` beside its screen, and what its variables and flags ask for.

use crate::net::TIMEOUT;
use crate::process::{Ran, run};
use crate::rdzv::program;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// `rdzv run` with these flags, of a shell's words.
fn launch(flags: &[&str], variables: &[(&str, &str)], script: &str) -> Ran {
    let mut command = Command::new(program());
    command.arg("run").args(flags).args(["sh", "-c", script]);
    command.env("OMP_NUM_THREADS", "1").envs(variables.iter().copied());
    run(&mut command, TIMEOUT)
}

/// A folder of a test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = crate::target_folder().join(format!("tmp/watching-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn events_and_metrics_go_where_they_are_asked_to() {
    let folder = Folder::new("files");
    let (events, metrics) = (folder.path("events"), folder.path("metrics"));
    let flags = [
        "--nproc-per-node",
        "2",
        "--event-log-handler",
        &format!("file:{events}"),
        "--metrics",
        &format!("file:{metrics}"),
    ];
    launch(&flags, &[], "exit 0").or_fail("a job");
    let events = std::fs::read_to_string(events).expect("it is there");
    let states: Vec<String> = events
        .lines()
        .map(|line| line.parse::<serde_json::Value>().expect("JSON"))
        .map(|event| event["metadata"]["state"].as_str().expect("text").to_string())
        .collect();
    let wanted =
        ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"];
    assert_eq!(states, wanted);
    let metrics = std::fs::read_to_string(metrics).expect("it is there");
    let last = metrics.lines().last().expect("there are some");
    let (head, rest) = last.split_once("][torchelastic]: ").expect("the form of a line");
    assert!(head.strip_prefix('[').is_some_and(|at| at.parse::<f64>().is_ok()), "{last}");
    assert!(rest.starts_with("SimpleElasticAgent.run.duration.ms="), "{last}");
    let console = launch(&["--metrics=console"], &[], "exit 0").or_fail("a job");
    assert!(console.stderr.contains("][torchelastic]: workers.default.run_success_no_retries=1\n"));
}

#[test]
fn what_cannot_be_written_is_told_once_and_ends_nothing() {
    let flags = ["--event-log-handler=file:/dev/full", "--metrics=file:/nonexistent/metrics"];
    let ran = launch(&flags, &[], "exit 0").or_fail("a job");
    let reported: Vec<&str> =
        ran.stderr.lines().filter(|line| line.contains("no more are written")).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported.iter().any(|line| line.contains("Z warn rdzv run: events: /dev/full: No space left")),
        "{reported:?}"
    );
    assert!(
        reported
            .iter()
            .any(|line| line.contains("Z warn rdzv run: metrics: /nonexistent/metrics: No such file"))
    );
}

#[test]
fn names_that_there_are_not_are_wrong_usage() {
    for (flag, message) in [
        ("--event-log-handler=kafka", "--event-log-handler kafka: there are null, console, and file:PATH"),
        ("--event_log_handler=file:", "--event-log-handler file:: there are null, console, and file:PATH"),
        ("--metrics=x", "--metrics x: there are null, console, and file:PATH"),
        ("--numa-binding=near", "[possible values: node, socket, exclusive, core-complex]"),
    ] {
        let ran = launch(&[flag], &[], "exit 0");
        assert_eq!(ran.status.code(), Some(2), "{flag}");
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn what_variables_ask_for_and_cannot_be_is_told_and_ends_nothing() {
    let variables = [
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "http"),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "soon"),
        ("TORCHELASTIC_ENABLE_FILE_TIMER", "0"),
    ];
    let ran = launch(&[], &variables, "test -z \"$TORCHELASTIC_TIMER_FILE\"").or_fail("a job");
    for message in [
        "TORCHELASTIC_HEALTH_CHECK_PORT: \"http\" is no port; no health is served",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT is soon, which is ignored: not a duration: ",
    ] {
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn a_timer_that_expires_is_told_by_rank() {
    let folder = Folder::new("timers");
    let pipe = folder.path("timers");
    let variables = [("TORCHELASTIC_ENABLE_FILE_TIMER", "1"), ("TORCHELASTIC_TIMER_FILE", pipe.as_str())];
    let script = "test $RANK = 1 && echo \"{\\\"version\\\": 1, \\\"pid\\\": $$$$, \\\"scope_id\\\": \\\"epoch\\\", \
                  \\\"expiration_time\\\": 1.0, \\\"signal\\\": 9}\" > $TORCHELASTIC_TIMER_FILE; exec sleep 600";
    let ran = launch(&["--nproc-per-node=2"], &variables, script);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    for part in [
        "watchdog: timer epoch (set for ",
        ") of rank 1 (local rank 1) expired: it gets SIGKILL\n",
        ") of rank 1 (local rank 1) expired\n",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in {}", ran.stderr);
    }
    assert!(ran.stderr.contains("(SIGKILL)"), "the report has the worker: {}", ran.stderr);
    assert!(!std::fs::exists(pipe).expect("a folder that can be read"));
}

#[test]
fn workers_are_bound_by_numactl_or_the_launcher_says_what_is_missing() {
    let folder = Folder::new("numactl");
    let bare = folder.path("bare");
    std::fs::create_dir(&bare).expect("a folder");
    std::os::unix::fs::symlink("/bin/sh", folder.path("bare/sh")).expect("a link");
    let missing = launch(&["--numa-binding=node"], &[("PATH", &bare)], "exit 0");
    assert_eq!(missing.status.code(), Some(2), "{}", missing.stderr);
    assert!(missing.stderr.contains("--numa-binding: it needs the program numactl"), "{}", missing.stderr);
    let numactl = folder.path("numactl");
    std::fs::write(&numactl, "#!/bin/sh\nBOUND=$1\nexport BOUND\nshift\nexec \"$@\"\n").expect("written");
    std::fs::set_permissions(&numactl, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let path = format!("{}:/usr/bin:/bin", folder.path(""));
    let flags = ["--numa-binding=node", "--nproc-per-node=2"];
    let ran = launch(&flags, &[("PATH", &path)], "echo $BOUND").or_fail("a job");
    let bound: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(bound.len(), 2);
    for list in bound {
        let list = list.strip_prefix("--physcpubind=").expect("its argument");
        assert!(!list.is_empty() && list.bytes().all(|byte| byte.is_ascii_digit() || b",-".contains(&byte)));
    }
}
