//! Workers that end together: which failure is told first, and what is left when they are gone.

use super::{Launch, until_gone};
use crate::rdzv::program;
use std::process::Command;

/// One worker fails in each of five ways, and its peers end as soon as they notice. The report lists it in every run, and names
/// it first in most: on a loaded machine, a peer's end may be seen first once in a while. The order of what is seen is tested
/// where it is given.
#[test]
fn the_worker_that_failed_first_is_the_root_cause() {
    const RUNS: u32 = 5;
    let mut command = Command::new(env!("CARGO_BIN_EXE_cascade"));
    command.arg("--rdzv").arg(program()).args(["--runs", &RUNS.to_string()]);
    let table = crate::process::run(&mut command, crate::net::TIMEOUT * 10).or_fail("the jobs").stdout;
    for method in ["exit-3", "abort", "segv", "kill", "error-file"] {
        let row = table.lines().find(|row| row.starts_with(method)).unwrap_or_else(|| panic!("{table}"));
        let numbers = row.split_whitespace().skip(1).take(3).map(|number| number.parse().expect("a number"));
        let [runs, first, listed] = numbers.collect::<Vec<u32>>()[..] else { panic!("{table}") };
        assert_eq!((runs, listed), (RUNS, RUNS), "runs, listed: {table}");
        assert!(first > RUNS / 2, "named first: {table}");
    }
}

/// Counts the stop signals that it gets, and does not end.
const COUNTS: &str =
    r#"n=0; trap 'n=$((n+1)); echo "signal $n"' TERM; echo ready; while :; do sleep 600 & wait; done"#;

#[test]
fn a_program_behind_a_shell_gets_the_stop_signal_once() {
    // The shell ends by the signal; what it runs has a group with it, or a session of its own.
    for (before, flags) in [("", &["--leftover-timeout=2"][..]), ("setsid -w ", &["--leftover-timeout=2"])] {
        let script = format!("{before}sh -c '{}'; echo done", COUNTS.replace('\'', r"'\''"));
        let mut launched = Launch::shell(flags, &script).start();
        launched.until(1, "ready");
        launched.until(1, "start 0");
        launched.signal(libc::SIGTERM);
        launched.finish().with(1).says(1, "signal 1").says(0, "signal 2").tells("outlives the workers: pid ");
    }
}

#[test]
fn a_process_that_a_stopped_worker_leaves_behind_is_named_and_has_a_short_time() {
    // As a shell has its background processes do.
    let script = r#"sh -c 'trap "" INT; echo left $$; exec sleep 654' & wait"#;
    let mut launched = Launch::shell(&["--leftover-timeout=600"], script).start();
    let pid = launched.number("left ");
    launched.until(1, "start 0");
    launched.signal(libc::SIGINT);
    launched.until(1, &format!("a process outlives the workers: pid {pid} (sleep 654); killed in "));
    // A second signal ends the wait.
    launched.signal(libc::SIGINT);
    launched.finish().with(1);
    until_gone(pid);
}

#[test]
fn a_daemon_that_hears_nothing_delays_a_success_for_a_short_time() {
    // The signal is ignored from the start: one that comes before the daemon says so would end it.
    let script = "trap '' TERM; setsid sleep 655 2>&1 & \
                  until test \"$(cat /proc/$!/comm)\" = sleep; do :; done; echo over";
    let launch = Launch::shell(&["--nproc-per-node=2", "--leftover-timeout=3"], script);
    let ran = launch.run().with(0);
    ran.says(1, "2 processes outlive the workers: pid ").tells("(sleep 655); killed in ");
    ran.says(1, "the timeout of processes that outlived the workers has passed: killing what is left");
}
