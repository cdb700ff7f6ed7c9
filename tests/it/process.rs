//! Processes that a test starts, and ends when they do not end themselves.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How a process ended and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// # Panics
    /// With all that it said when it did not end with 0.
    #[track_caller]
    pub(crate) fn or_fail(self, what: &str) -> Self {
        let Self { status, stdout, stderr } = &self;
        assert!(status.success(), "{what}: {status}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
        self
    }
}

/// Runs a program to its end; one that is not done when `timeout` is over is killed, and the test fails.
#[track_caller]
pub(crate) fn run(command: &mut Command, timeout: Duration) -> Ran {
    let mut child = command
        // cargo points it to the library of the tests' own profile, which is not the one that a program was linked with.
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (done, ends) = channel();
    let stdout = collect(child.stdout.take().expect("a pipe"), done.clone());
    let stderr = collect(child.stderr.take().expect("a pipe"), done);
    let in_time = (0..2).all(|_| ends.recv_timeout(timeout).is_ok());
    if !in_time {
        child.kill().ok();
    }
    let status = child.wait().expect("a child of ours");
    // What a killed program started may hold its pipes for ever: its words are taken only if they ended.
    let text = |message: std::thread::JoinHandle<Vec<u8>>| match in_time || message.is_finished() {
        true => String::from_utf8_lossy(&message.join().expect("a reader")).into_owned(),
        false => "(still open)".into(),
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(in_time, "{command:?} was not done in {timeout:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
    Ran { status, stdout, stderr }
}

fn collect(
    mut pipe: impl Read + Send + 'static,
    done: std::sync::mpsc::Sender<()>,
) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut message = Vec::new();
        pipe.read_to_end(&mut message).ok();
        done.send(()).ok();
        message
    })
}

pub(crate) fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: no memory is involved; the child is ours and not waited for yet, so the id is its own.
    assert_eq!(unsafe { libc::kill(pid(child), signal) }, 0);
}

/// Stops a process; when this returns, none of its threads runs any more.
pub(crate) fn stop(child: &Child) {
    signal(child, libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: `status` is valid for writing, and the child is ours.
    let stopped = unsafe { libc::waitpid(pid(child), &raw mut status, libc::WUNTRACED) };
    assert!(stopped == pid(child) && libc::WIFSTOPPED(status), "it is stopped");
}

fn pid(child: &Child) -> libc::pid_t {
    libc::pid_t::try_from(child.id()).expect("a process id")
}
