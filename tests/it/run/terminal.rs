//! What a user sees on a terminal, and what goes into a pipe in its place.

use super::{Launch, Launched};
use crate::net::TIMEOUT;
use crate::rdzv::RdzvServer;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;

/// The user's end of a terminal.
struct Terminal {
    end: File,
    seen: String,
}

impl Terminal {
    /// A terminal of this width, and the end that a program gets.
    fn new(columns: u16) -> (Self, OwnedFd) {
        let (mut near, mut far) = (-1, -1);
        let size = libc::winsize { ws_row: 25, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both numbers are valid for writing, and `size` for reading.
        let opened = unsafe {
            libc::openpty(
                &raw mut near,
                &raw mut far,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0, "a terminal");
        // SAFETY: they were opened just now, and nobody else knows them.
        let (near, far) = unsafe { (File::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        (Self { end: near, seen: String::new() }, far)
    }

    /// Waits until this has been written.
    #[track_caller]
    fn until(&mut self, message: &str) {
        while !self.seen.contains(message) {
            let mut poll = libc::pollfd { fd: self.end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let timeout_ms = libc::c_int::try_from(TIMEOUT.as_millis()).expect("a few seconds");
            // SAFETY: `poll` is one valid structure, and one is what the call is told of.
            let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
            assert_eq!(ready, 1, "no {message:?} in {:?}", self.seen);
            let mut buffer = [0; 4096];
            let count = self.end.read(&mut buffer);
            let count = count.unwrap_or_else(|error| panic!("{error}: no {message:?} in {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&buffer[..count]);
        }
    }
}

/// An agent with a terminal for its standard error.
fn start_on(terminal: OwnedFd, mut launch: Launch) -> Launched {
    // Only the agent gets it: a terminal tells of its end when the last one closes it.
    let (notify, lines) = std::sync::mpsc::channel();
    launch.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(terminal);
    let mut child = launch.command.spawn().expect("rdzv starts");
    drop(launch);
    super::forward(child.stdout.take().expect("a pipe"), notify);
    Launched { child, lines, seen: Vec::new() }
}

#[test]
fn a_terminal_shows_what_is_waited_for_in_one_line() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let flags =
        ["--nnodes", "2:3", "--rdzv-id=run", "--rdzv-conf=last_call_timeout=1", "--rdzv-endpoint", &endpoint];
    let launch = || Launch::of(&flags, &["true"]).env("TERM", "xterm");
    let (mut terminal, far) = Terminal::new(200);
    let first = start_on(far, launch());
    terminal.until("\x1b[2m20");
    terminal.until("Z info rdzv run: joining run run");
    terminal.until("\r\x1b[K\x1b[36mrdzv run: waiting for nodes 1/3 (min 2), 0 s: ");
    terminal.until("\r\x1b[K\x1b[36mrdzv run: waiting for nodes 1/3 (min 2), 1 s: ");
    let (mut narrow, far) = Terminal::new(30);
    let second = start_on(far, launch().env("NO_COLOR", "1"));
    terminal.until("\r\x1b[K\x1b[36mrdzv run: waiting for nodes 2/3 (min 2), last call ends in 1 s: ");
    narrow.until("\r\x1b[Krdzv run: waiting for nodes 2\r\x1b[K");
    terminal.until("\r\x1b[K\x1b[2m20");
    terminal.until("Z info rdzv run: round 0: 2 nodes");
    terminal.until("rdzv run: done");
    narrow.until("rdzv run: done");
    assert!(!narrow.seen.contains("\x1b[2m"), "{:?}", narrow.seen);
    first.finish().with(0);
    second.finish().with(0);
}

#[test]
fn a_pipe_gets_a_line_for_each_thing_that_is_new() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let flags = ["--nnodes=2", "--rdzv-id=run", "--rdzv-endpoint", &endpoint];
    let launch = || Launch::of(&flags, &["true"]).env("TERM", "xterm");
    let mut first = launch().start();
    let reported = first.until(1, "waiting");
    assert!(reported.contains("Z info rdzv run: waiting for nodes 1/2: "), "{reported}");
    let quiet = launch().env("RDZV_LOG", "warn").start();
    let ran = first.finish().with(0);
    ran.says(1, "waiting for nodes").says(0, "\x1b").says(0, "\r");
    assert_eq!(quiet.finish().with(0).lines, [""; 0]);
}

#[test]
fn words_do_not_command_a_terminal() {
    let flags = ["--rdzv-id=a\x1b[31mb\u{9b}c\td", "--rdzv-endpoint=localhost:0"];
    let ran = Launch::of(&flags, &["true"]).run().with(0);
    ran.says(1, "joining run a?[31mb?c\\td (").says(0, "\x1b").says(0, "\u{9b}");
    let long = "x".repeat(5000);
    let ran = Launch::of(&[], &[&long]).run().with(1);
    ran.tells("there is no program").tells(" characters more").says(0, &long);
    let (mut terminal, far) = Terminal::new(200);
    start_on(far, Launch::of(&flags, &["true"]).env("TERM", "xterm")).finish().with(0);
    terminal.until("rdzv run: done");
    assert!(terminal.seen.contains("joining run a?[31mb?c"), "{:?}", terminal.seen);
}
