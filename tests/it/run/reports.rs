//! The report for programs.

use super::{Gate, IDLE, Launch, folder, text};
use crate::rdzv::RdzvServer;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn report(test: &str) -> PathBuf {
    folder(test).join("report.json")
}

/// What the report says, and that it says no more and no less than it should.
#[track_caller]
fn read(path: &Path) -> Value {
    let reported: Value = serde_json::from_slice(&std::fs::read(path).expect("a report")).expect("JSON");
    let mut names: Vec<&String> = reported.as_object().expect("an object").keys().collect();
    names.sort();
    assert_eq!(names, ["failure", "reason", "verdict", "version"], "{reported}");
    assert_eq!(reported["version"], 1);
    reported
}

#[track_caller]
fn says(path: &Path, outcome: &str, reason: &str) -> Value {
    let reported = read(path);
    let found = reported["reason"].as_str().expect("text").contains(reason);
    assert!(reported["verdict"] == outcome && found, "not {outcome}, {reason}: {reported}");
    reported["failure"].clone()
}

#[test]
fn a_failure_is_in_it_and_the_next_success_is_too() {
    let report = report("report");
    let flags = ["--nproc-per-node", "2", "--report", text(&report)];
    Launch::shell(&flags, "[ $RANK = 1 ] || exec sleep 600; echo the reason >&2; exit 3").run().with(1);
    let failure = says(&report, "failed", "rank 1 (local rank 1) ended with exit code 3");
    let cause = &failure["root_cause"];
    assert_eq!(
        (&failure["version"], &failure["name"], &cause["global_rank"], &cause["exit_code"]),
        (&1.into(), &"sh".into(), &1.into(), &3.into()),
        "{failure}"
    );
    assert_eq!(cause["stderr_tail"][0], "the reason", "{failure}");
    Launch::of(&["--report", text(&report)], &["true"]).run().with(0);
    assert!(says(&report, "succeeded", "all workers succeeded").is_null());
}

#[test]
fn what_was_not_even_started_is_told() {
    let report = report("report_not_started");
    let nonsense = folder("report_nonsense").join("nonsense");
    std::fs::write(&nonsense, "nonsense\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&nonsense, mode).expect("its mode");
    for (flags, program, code, reason) in [
        (&[][..], "no-such-program", 1, "there is no program \"no-such-program\""),
        (&[], text(&nonsense), 1, "nonsense: running the program: Exec format error"),
        (&["--nnodes=2"], "true", 2, "needs --rdzv-endpoint"),
        (&["--log-dir", text(&nonsense)], "true", 1, "nonsense is a file"),
    ] {
        std::fs::write(&report, "of an earlier run").expect("a file");
        Launch::of(&[flags, &["--report", text(&report)]].concat(), &[program]).run().with(code);
        assert!(says(&report, "failed", reason).is_null());
    }
}

#[test]
fn one_that_cannot_be_written_is_told_of_before_anything_starts() {
    let folder = folder("report_refused");
    for path in [folder.clone(), folder.join("no/such/folder/report.json")] {
        let ran = Launch::of(&["--report", text(&path)], &["echo", "it ran"]).run().with(1);
        ran.says(1, &format!("the report cannot be written to {}: ", path.display())).says(0, "it ran");
    }
}

#[test]
fn one_that_cannot_be_written_in_the_end_changes_no_exit_code() {
    let report = report("report_lost");
    let parent = report.parent().expect("a folder").to_owned();
    let launch = Launch::of(&["--report", text(&report)], &["rm", "-r"]).arg(&parent);
    launch.run().with(0).says(1, "run: done").says(1, "the report cannot be written to ");
}

#[test]
fn until_the_end_it_says_that_there_was_none() {
    let report = report("report_running");
    std::fs::write(&report, "null\n").expect("a file");
    let mut launched = Launch::shell(&["--report", text(&report)], IDLE).start();
    launched.until(1, "idle 0");
    assert!(says(&report, "running", "has not ended").is_null());
    launched.until(1, "start 0");
    launched.signal(libc::SIGTERM);
    launched.finish().with(1);
    assert!(says(&report, "stopped", "SIGTERM").is_null());
}

#[test]
fn it_may_go_into_a_pipe() {
    let ran = Launch::of(&["--log=warn", "--report=/dev/stdout"], &["true"]).run().with(0);
    ran.says(1, r#""verdict":"succeeded""#);
    assert_eq!(ran.lines.len(), 1, "{ran:?}");
}

#[test]
fn other_nodes_are_reasons_too() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let (report, gate) = (report("report_other"), Gate::new("report_gate"));
    let flags = ["--nnodes=2", "--rdzv-id=other", "--rdzv-endpoint", &endpoint];
    let mut reporting = Launch::shell(&[&flags[..], &["--report", text(&report)]].concat(), IDLE).start();
    let failing = format!("{}; exit 7", Gate::WAIT);
    let other = Launch::shell(&flags, &failing).arg(&gate.path).start();
    reporting.until(1, "start 0");
    gate.open();
    other.finish().with(1);
    reporting.finish().with(1);
    assert!(says(&report, "failed", "exit code 7").is_null());
}

#[test]
fn a_rendezvous_that_is_not_there_is_a_reason() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let report = report("report_rendezvous");
    let flags = ["--nnodes=2", "--rdzv-id=alone", "--rdzv-endpoint", &endpoint, "--report", text(&report)];
    let conf = ["--rdzv-conf", "join_timeout=1"];
    // A node is missing, not the server.
    Launch::of(&[&flags[..], &conf].concat(), &["true"]).run().with(1).says(0, "start that node again");
    assert!(says(&report, "failed", "no round: ").is_null());
    let flags = ["--rdzv-id=lost", "--rdzv-endpoint", &endpoint, "--report", text(&report)];
    let mut launched = Launch::shell(&flags, IDLE).start();
    launched.until(1, "start 0");
    drop(server);
    launched.finish().with(1);
    assert!(says(&report, "failed", "the rendezvous is lost: ").is_null());
}
