//! Signals that come to an agent.

use super::{DEAF, Gate, IDLE, Launch};
use crate::rdzv::RdzvServer;

/// A worker that tells of a signal before it ends well. What it waits for is there before it is ready, and ends with it.
fn listens_to(name: &str) -> String {
    format!(
        "sleep 600 & trap 'echo heard {name}; kill -9 $!; exit 0' {name}; echo ready; while :; do wait; done"
    )
}

#[test]
fn what_stops_the_agent_is_passed_on() {
    for (name, signal) in
        [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP), ("QUIT", libc::SIGQUIT)]
    {
        let mut launched = Launch::shell(&["--nproc-per-node", "2"], &listens_to(name)).start();
        launched.until(2, "ready");
        launched.until(1, "start 0");
        launched.signal(signal);
        let ran = launched.finish().with(1);
        ran.says(2, &format!("heard {name}")).tells(&format!("stopped by SIG{name}")).says(0, "Root Cause");
    }
}

#[test]
fn the_signals_that_stop_are_the_users_choice() {
    let script = listens_to("USR1");
    let mut launched = Launch::shell(&["--signals-to-handle", "SIGUSR1,SIGNONE"], &script).start();
    launched.until(1, "SIGNONE is no signal");
    launched.until(1, "ready");
    launched.until(1, "start 0");
    launched.signal(libc::SIGUSR1);
    launched.finish().with(1).says(1, "heard USR1").tells("stopped by SIGUSR1");
}

#[test]
fn workers_are_told_which_signals_stop() {
    let script = "echo stops: $TORCHELASTIC_SIGNALS_TO_HANDLE";
    for (flags, reported) in [
        (&[][..], "stops: SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        (&["--signals-to-handle=SIGTERM,SIGUSR1"], "stops: SIGTERM,SIGUSR1"),
    ] {
        let launch = Launch::shell(flags, script).env("TORCHELASTIC_SIGNALS_TO_HANDLE", "overruled");
        assert!(launch.run().with(0).lines.contains(&reported.into()), "no {reported}");
    }
}

#[test]
fn signals_of_the_user_are_passed_on_and_nothing_ends() {
    let script = format!("trap 'echo heard USR1' USR1; {}", listens_to("USR2"));
    let mut launched = Launch::shell(&[], &script).start();
    launched.until(1, "ready");
    launched.until(1, "start 0");
    launched.signal(libc::SIGUSR1);
    launched.until(1, "heard USR1");
    launched.signal(libc::SIGUSR2);
    launched.finish().with(0).says(1, "heard USR2").says(1, "run: done");
}

#[test]
fn the_second_signal_waits_for_nobody() {
    let mut launched = Launch::shell(&["--shutdown-timeout", "600"], DEAF).start();
    launched.until(1, "ready");
    launched.until(1, "start 0");
    launched.signal(libc::SIGTERM);
    launched.until(1, "refused");
    launched.signal(libc::SIGTERM);
    launched.finish().with(1).tells("killing what is left").tells("stopped by SIGTERM");
}

#[test]
fn who_does_not_end_in_time_is_killed() {
    for launch in [
        Launch::shell(&["--shutdown-timeout", "0.2"], DEAF),
        Launch::shell(&[], DEAF).env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "0.2"),
    ] {
        let mut launched = launch.start();
        launched.until(1, "ready");
        launched.until(1, "start 0");
        launched.signal(libc::SIGTERM);
        let ran = launched.finish().with(1);
        ran.says(1, "refused").tells("the stop timeout has passed: killing what is left");
    }
    Launch::shell(&[], DEAF).env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon").run().with(2).tells("soon");
}

#[test]
fn the_time_to_end_counts_at_a_restart_too() {
    let gate = Gate::new("at_a_restart");
    let fails = format!("[ $RANK = 0 ] && {{ {}; exit 1; }}", Gate::WAIT);
    let script = format!("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; {fails}; {DEAF}");
    let flags = ["--nproc-per-node", "2", "--max-restarts", "1", "--shutdown-timeout", "0.2"];
    let mut launched = Launch::shell(&flags, &script).arg(&gate.path).start();
    launched.until(1, "ready");
    gate.open();
    launched.finish().with(0).says(1, "refused").tells("killing what is left").tells("run: start 1");
}

#[test]
fn an_agent_that_waits_for_nodes_can_be_stopped() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let flags = ["--nnodes", "2", "--rdzv-id", "waits", "--rdzv-endpoint", &endpoint];
    let mut launched = Launch::shell(&flags, IDLE).start();
    launched.until(1, "joining run waits");
    launched.signal(libc::SIGTERM);
    launched.finish().with(1).tells("stopped by SIGTERM").says(0, "idle");
}

#[test]
fn a_job_that_was_stopped_can_be_begun_again() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let flags = ["--rdzv-id", "again", "--rdzv-endpoint", &endpoint];
    let mut launched = Launch::shell(&flags, IDLE).start();
    launched.until(1, "idle 0");
    launched.until(1, "start 0");
    launched.signal(libc::SIGINT);
    launched.finish().with(1);
    Launch::of(&flags, &["true"]).run().with(0);
    // What came to its end is closed.
    Launch::of(&flags, &["true"]).run().with(1).tells("closed");
}
