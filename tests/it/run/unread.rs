//! Nobody reads what the launcher says: supervision goes on.

use super::{Launch, Launched, forward};
use crate::net::TIMEOUT;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;

/// Both ends of a pipe that takes nothing more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (near, mut far) = std::io::pipe().expect("a pipe");
    set_flags(&far, libc::O_NONBLOCK);
    while far.write(&[b'.'; 4096]).is_ok() {}
    while far.write(b".").is_ok() {}
    assert_eq!(far.write(b".").map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    // As whoever inherits it expects it.
    set_flags(&far, 0);
    (near, far)
}

fn set_flags(pipe: &PipeWriter, flags: libc::c_int) {
    // SAFETY: a descriptor that lives, and flags.
    assert_eq!(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags) }, 0);
}

/// Starts an agent with this for its standard error; its standard output is read.
fn start_beside(mut launch: Launch, stderr: impl Into<Stdio>) -> Launched {
    let (notify, lines) = std::sync::mpsc::channel();
    launch.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = launch.command.spawn().expect("rdzv starts");
    // Only what was started holds the other end now.
    drop(launch);
    forward(child.stdout.take().expect("a pipe"), notify);
    Launched { child, lines, seen: Vec::new() }
}

/// What it waits for is there before it says so, and ends with it.
const FAILS_ONCE: &str = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && { echo attempt 0; exit 3; }
    sleep 600 & trap 'echo heard; kill -9 $! 2>/dev/null; exit 0' TERM; echo attempt 1; while :; do wait; done";

#[test]
fn who_does_not_read_holds_up_nothing() {
    let (_near, far) = full_pipe();
    let flags = ["--max-restarts=1", "--event-log-handler=console", "--metrics=console"];
    let mut launched = start_beside(Launch::shell(&flags, FAILS_ONCE), far);
    launched.until(1, "attempt 0");
    launched.until(1, "attempt 1");
    launched.signal(libc::SIGTERM);
    launched.until(1, "heard");
    launched.finish().with(1);
}

#[test]
fn who_does_not_read_does_not_keep_an_error_from_its_exit_code() {
    for (program, code) in [("no-such-program", 1), ("true", 0)] {
        let (_near, far) = full_pipe();
        start_beside(Launch::of(&[], &[program]), far).finish().with(code);
    }
}

#[test]
fn who_reads_late_gets_all_lines_in_order() {
    // Whoever else has it may have set it not to wait.
    for flags in [0, libc::O_NONBLOCK] {
        let (near, far) = full_pipe();
        set_flags(&far, flags);
        is_read_late(near, far);
    }
}

#[track_caller]
fn is_read_late(mut near: PipeReader, far: PipeWriter) {
    let mut launched = start_beside(Launch::shell(&["--max-restarts=1"], FAILS_ONCE), far);
    launched.until(1, "attempt 1");
    let (notify, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut message = String::new();
        near.read_to_string(&mut message).expect("text");
        notify.send(message).ok();
    });
    launched.signal(libc::SIGTERM);
    launched.finish().with(1);
    let message = reported.recv_timeout(TIMEOUT).expect("nothing holds it open");
    let mut rest = message.trim_start_matches('.');
    assert!(rest.contains("Z info rdzv run: joining run "), "{rest}");
    for part in ["round 0", "exit code 3", "FAILED", "exitcode  : 3", "round 1", "stopped by SIGTERM"] {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} in {rest:?}"));
        rest = &rest[at..];
    }
}

#[test]
fn who_has_gone_changes_no_exit_code() {
    for (program, code) in [("no-such-program", 1), ("false", 1), ("true", 0)] {
        let (near, far) = std::io::pipe().expect("a pipe");
        drop(near);
        start_beside(Launch::of(&[], &[program]), far).finish().with(code);
    }
    let (near, far) = std::io::pipe().expect("a pipe");
    drop(near);
    start_beside(Launch::of(&["--nnodes=2"], &["true"]), far).finish().with(2);
}
