//! `rdzv run` with real processes: agents, their guards, their workers, and what those leave behind.
//!
//! Standard output and standard error of a launched agent are inherited by all that it starts. So the end of both is the
//! proof that nothing of it lives any more, and what each test waits for in the end.

mod arguments;
mod failures;
mod guards;
mod jobs;
mod nodes;
mod output;
mod pauses;
mod reach;
mod reports;
mod signals;
mod terminal;
mod unread;

use crate::net::TIMEOUT;
use crate::process;
use crate::rdzv::program;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// A worker that says so and goes on until it is ended.
const IDLE: &str = "echo idle $RANK $$; exec sleep 600";

/// A worker that tells of a SIGTERM and does not end.
const DEAF: &str = "trap 'echo refused' TERM; echo ready; while :; do sleep 600 & wait; done";

/// `rdzv run` before it runs.
struct Launch {
    command: Command,
}

impl Launch {
    /// With these flags, and a shell's words as the program.
    fn shell(flags: &[&str], script: &str) -> Self {
        // Two dollars are one, as they are to torchrun.
        Self::of(flags, &["sh", "-c", &script.replace("$$", "$$$$")])
    }

    /// With these flags, and this program with its arguments.
    fn of(flags: &[&str], program_and_arguments: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.arg("run").args(flags).args(program_and_arguments);
        // As in `process::run`.
        command.env_remove("LD_LIBRARY_PATH").env("OMP_NUM_THREADS", "1");
        // A terminal's signals are for the test, not for what it starts.
        command.process_group(0);
        Self { command }
    }

    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Another argument of the program's.
    fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    fn start(mut self) -> Launched {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("rdzv starts");
        let (notify, lines) = channel();
        forward(child.stdout.take().expect("a pipe"), notify.clone());
        forward(child.stderr.take().expect("a pipe"), notify);
        Launched { child, lines, seen: Vec::new() }
    }

    /// Runs to the end.
    fn run(self) -> Finished {
        self.start().finish()
    }
}

/// `rdzv run` as it runs. Dropping it kills it, and its guard all else.
struct Launched {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// `rdzv run` when nothing of it lives any more.
#[derive(Debug)]
struct Finished {
    status: ExitStatus,
    lines: Vec<String>,
}

impl Launched {
    /// Waits until so many lines have these words in them, and returns the last of those.
    #[track_caller]
    fn until(&mut self, count: usize, message: &str) -> String {
        loop {
            if let Some(line) = self.seen.iter().filter(|line| line.contains(message)).nth(count - 1) {
                return line.clone();
            }
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("{error}: not {count} lines with {message:?} in {:#?}", self.seen),
            }
        }
    }

    /// The number behind these words, in a line that begins with them.
    #[track_caller]
    fn number(&mut self, message: &str) -> i32 {
        let line = self.until(1, message);
        let number = line.strip_prefix(message).map(str::trim);
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line:?} has no number"))
    }

    fn signal(&self, signal: libc::c_int) {
        process::signal(&self.child, signal);
    }

    /// Waits for the end of all that was started.
    #[track_caller]
    fn finish(mut self) -> Finished {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("not over in time: {:#?}", self.seen),
            }
        }
        let status = self.child.wait().expect("a child of ours");
        Finished { status, lines: std::mem::take(&mut self.seen) }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Finished {
    #[track_caller]
    fn with(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// Has so many lines with these words.
    #[track_caller]
    fn says(&self, count: usize, message: &str) -> &Self {
        let found = self.lines.iter().filter(|line| line.contains(message)).count();
        assert_eq!(found, count, "lines with {message:?} in {self:#?}");
        self
    }

    /// Has one line or more with these words.
    #[track_caller]
    fn tells(&self, message: &str) -> &Self {
        assert!(
            self.lines.iter().any(|line| line.contains(message)),
            "no line with {message:?} in {self:#?}"
        );
        self
    }
}

fn forward(pipe: impl Read + Send + 'static, notify: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            // A test that has ended listens no more.
            notify.send(String::from_utf8_lossy(&line).into_owned()).ok();
        }
    });
}

/// Waits for the end of a process that is nobody's child here.
#[track_caller]
fn until_gone(pid: libc::pid_t) {
    let deadline = crate::net::Deadline::new();
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return;
    }
    let mut poll =
        libc::pollfd { fd: fd.try_into().expect("a descriptor"), events: libc::POLLIN, revents: 0 };
    let timeout_ms = libc::c_int::try_from(TIMEOUT.as_millis()).expect("a few seconds");
    // SAFETY: `poll` is one valid structure, and one is what the call is told of.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    // SAFETY: it was opened above, and nobody else knows it.
    unsafe { libc::close(poll.fd) };
    assert!(ready == 1 && !deadline.has_passed(), "process {pid} still lives");
}

/// A folder of one test, empty.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(test);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("what an earlier test left goes");
    }
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

/// Something that workers wait for. It lasts as long as the test does.
struct Gate {
    path: PathBuf,
    /// Both ends of a pipe, so that neither waits for the other.
    pipe: std::fs::File,
}

impl Gate {
    /// A shell's words that wait for the gate of which the path is its first argument.
    const WAIT: &str = "read line < $0";

    fn new(test: &str) -> Self {
        let path = folder(test).join("gate");
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success(), "{}", path.display());
        let pipe = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("a pipe");
        Self { path, pipe }
    }

    /// Lets one go on that waits, or the next that comes.
    fn open(&self) {
        (&self.pipe).write_all(b"go on\n").expect("there is room");
    }
}

/// A port that was free just now.
pub(crate) fn free_port() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    free.expect("a free port").port().to_string()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
