use super::*;
use crate::error_file::parse;
use alloc::vec;

fn end(local_rank: u32, exit_code: i32, seen_after_s: u64) -> WorkerEnd {
    WorkerEnd {
        local_rank,
        global_rank: 8 + u64::from(local_rank),
        pid: 100 + local_rank,
        exit_code,
        seen_at_s: 1_700_000_000 + seen_after_s,
        error_file: ErrorFile::Absent,
        stderr_tail: Vec::new(),
    }
}

fn file(text: &str) -> ErrorFile {
    ErrorFile::Read { path: "logs/0/error.json".into(), content: parse(text.as_bytes()) }
}

const PLACE: NodeIdentity<'_> = NodeIdentity { host: "n1", group_rank: 4 };

fn failure(end: WorkerEnd) -> ProcessFailure {
    ProcessFailure::new(PLACE, end)
}

fn ranks(group: &WorkerGroupFailure) -> (u32, Vec<u32>) {
    (group.root.local_rank, group.others.iter().map(|failure| failure.local_rank).collect())
}

#[test]
fn ends_without_error_files_say_what_pytorch_says() {
    let killed = failure(end(1, -11, 0));
    assert_eq!(killed.message, "Signal 11 (SIGSEGV) received by PID 101");
    assert_eq!(killed.data.to_string(), r#"{"message":"<NONE>"}"#);
    assert_eq!(failure(end(1, -60, 0)).message, "Signal 60 (<N/A>) received by PID 101");
    let exited = failure(end(1, 3, 0));
    assert_eq!(exited.message, NO_TRACEBACK);
    assert_eq!(exited.data["errorTraits"]["category"], "system_terminated_error");
    assert_eq!(exited.data["errorTraits"]["retryability"], "False");
    assert_eq!(exited.timestamp_s, 1_700_000_000, "when it was seen");
}

#[test]
fn error_files_say_more_and_strange_ones_hide_nothing() {
    let reported = WorkerEnd {
        error_file: file(
            r#"{"message": {"message": "boom", "extraInfo": {"py_callstack": "at x", "timestamp": "5"}}}"#,
        ),
        ..end(0, 1, 9)
    };
    let reported = failure(reported);
    assert_eq!(
        (reported.message.as_str(), reported.callstack.as_deref(), reported.timestamp_s),
        ("boom", Some("at x"), 5)
    );
    let cut = failure(WorkerEnd { error_file: file("{\"mess"), ..end(0, -9, 9) });
    assert_eq!(cut.message, "Signal 9 (SIGKILL) received by PID 100");
    assert!(matches!(cut.note, Some(ErrorFileNote::NotJson { .. })));
    assert_eq!(cut.error_file.as_deref(), Some("logs/0/error.json"));
    let timeless = failure(WorkerEnd { error_file: file(r#"{"message": ""}"#), ..end(0, 1, 9) });
    assert_eq!((timeless.message.as_str(), timeless.timestamp_s), (NO_TRACEBACK, 1_700_000_009));
}

#[test]
fn the_root_cause_is_what_was_told_first_whatever_the_clocks_say() {
    let at = |timestamp: u64| file(&format!(r#"{{"message": "x", "timestamp": {timestamp}}}"#));
    let first = failure(WorkerEnd { error_file: at(900), ..end(2, 1, 1) });
    let earlier_clock = failure(WorkerEnd { error_file: at(100), ..end(1, 1, 2) });
    let all = vec![first, earlier_clock, failure(end(0, -6, 0))];
    assert_eq!(ranks(&WorkerGroupFailure::new("train", all).expect("failures")), (2, vec![0, 1]));
    assert_eq!(WorkerGroupFailure::new("train", Vec::new()), None);
}

#[test]
fn the_report_as_text() {
    let root = WorkerEnd { stderr_tail: vec!["loading".into(), "step 17".into()], ..end(1, -11, 0) };
    let other = WorkerEnd {
        error_file: file(
            r#"{"message": {"message": "NCCL error", "extraInfo": {"py_callstack": "at all_reduce\nat main\n", "timestamp": "1700000001"}}}"#,
        ),
        ..end(0, 1, 1)
    };
    let cut = WorkerEnd { error_file: file("{"), ..end(2, 7, 1) };
    let all = [root, cut, other].map(failure).to_vec();
    let report = WorkerGroupFailure::new("trainer", all).expect("failures").to_string();
    let expected = "\
============================================================
trainer FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-11-14_22:13:20 UTC
  host      : n1
  rank      : 9 (local_rank: 1)
  exitcode  : -11 (pid: 101) (SIGSEGV)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 101
  stderr    : (the last 20 lines at most)
    loading
    step 17
------------------------------------------------------------
Failures:
[1]:
  time      : 2023-11-14_22:13:21 UTC
  host      : n1
  rank      : 8 (local_rank: 0)
  exitcode  : 1 (pid: 100)
  error_file: logs/0/error.json
  traceback : NCCL error
  at all_reduce
  at main
[2]:
  time      : 2023-11-14_22:13:21 UTC
  host      : n1
  rank      : 10 (local_rank: 2)
  exitcode  : 7 (pid: 102)
  error_file: logs/0/error.json
  note      : the error file is not valid JSON: wrong or cut short at line 1, column 1
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================";
    assert_eq!(report, expected);
}

#[test]
fn a_short_report_has_short_borders() {
    let mut alone = failure(end(0, -6, 0));
    alone.host = "h".into();
    alone.message = "x".into();
    let report = WorkerGroupFailure::new("t", vec![alone]).expect("a failure").to_string();
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines[lines.len() - 2], "  <NO_OTHER_FAILURES>");
    let longest = lines.iter().map(|line| line.len()).max().expect("lines");
    assert_eq!((lines[0].len(), lines[2].len()), (longest, longest));
    assert!(longest < 60);
}

#[test]
fn the_report_as_json() {
    let root = WorkerEnd { stderr_tail: vec!["loading".into()], ..end(1, -11, 0) };
    let other = WorkerEnd { error_file: file(r#"{"message": "boom", "timestamp": 7}"#), ..end(0, 1, 1) };
    let all = [root, other].map(failure).to_vec();
    let report = WorkerGroupFailure::new("trainer", all).expect("failures").to_json();
    let expected = r#"{"name":"trainer",
"other_failures":[{"callstack":null,"error_file":"logs/0/error.json","error_file_data":{"message":"boom","timestamp":7},
"error_file_note":null,"exit_code":1,"global_rank":8,"group_rank":4,"host":"n1","local_rank":0,"message":"boom","pid":100,"signal":null,
"stderr_tail":[],"timestamp":7}],
"root_cause":{"callstack":null,"error_file":null,"error_file_data":{"message":"<NONE>"},"error_file_note":null,
"exit_code":-11,"global_rank":9,"group_rank":4,"host":"n1","local_rank":1,"message":"Signal 11 (SIGSEGV) received by PID 101","pid":101,
"signal":"SIGSEGV","stderr_tail":["loading"],"timestamp":1700000000},"version":1}"#;
    assert_eq!(report.to_string(), expected.replace('\n', ""));
}

#[test]
fn signals_have_names() {
    for (signal, name) in [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
        (17, "SIGCHLD"),
        (31, "SIGSYS"),
        (34, "SIGRTMIN"),
        (64, "SIGRTMAX"),
    ] {
        assert_eq!(signal_name(signal), Some(name));
    }
    for signal in [0, 32, 33, 40, 65, -1, i32::MIN, i32::MAX] {
        assert_eq!(signal_name(signal), None);
    }
}
