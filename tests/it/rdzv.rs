//! `rdzv` as a process: built when needed, started, told to stop, and never left behind.

use crate::net::TIMEOUT;
use crate::process;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

/// The program. `cargo build` would choose other features of the dependencies and build them again, so cargo is asked for
/// the tests that run the program.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("--test=cli"))
}

/// The program's unit tests, one of which writes the manual pages.
pub(crate) fn unit_tests() -> PathBuf {
    build("--bin=rdzv")
}

/// Builds a target with the profile of these tests: only cargo knows whether the file that lies about is that of today's
/// sources, and with nothing to do it is quick.
fn build(target: &str) -> PathBuf {
    let profile = crate::profile_folder();
    let name = match profile.file_name().and_then(|name| name.to_str()).expect("a profile's name") {
        "debug" => "test",
        name => name,
    };
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--quiet", "--workspace", target, "--message-format=json"])
        .arg(format!("--profile={name}"))
        .arg("--target-dir")
        .arg(crate::target_folder())
        .current_dir(crate::repository())
        .output()
        .expect("cargo runs");
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_program = message["target"]["name"] == "rdzv";
        message["executable"].as_str().filter(|_| is_program).map(PathBuf::from)
    });
    built.unwrap_or_else(|| panic!("rdzv does not build: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A running `rdzv server`. Dropping it kills it.
pub(crate) struct RdzvServer {
    child: Child,
    address: SocketAddr,
}

/// How a process ended, and all that it wrote after its first line.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl RdzvServer {
    /// On a free port of this host.
    pub(crate) fn start() -> Self {
        Self::with(&["--bind", "127.0.0.1:0"], None)
    }

    /// With these arguments, and a limit on descriptors if one is given.
    pub(crate) fn with(arguments: &[&str], descriptors_max: Option<u64>) -> Self {
        let mut child = spawn(arguments, descriptors_max);
        let line = next_line(&mut child);
        let address = line.strip_prefix("listening on ").and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("the first line on stdout is {line:?}"));
        Self { child, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        process::signal(&self.child, signal);
    }

    /// Stops the process, which can be told to go on.
    pub(crate) fn stop(&self) {
        process::stop(&self.child);
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end_with(mut self, signal: libc::c_int) -> Ended {
        self.signal(signal);
        finish(&mut self.child)
    }

    /// A file of the process below `/proc`.
    pub(crate) fn proc_file(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.pid());
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// How many descriptors below `end` the process holds. One that it has inherited may stand above its limit.
    pub(crate) fn descriptors_below(&self, end: u64) -> usize {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process is there");
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
        numbers.filter(|&number| number < end).count()
    }
}

impl Drop for RdzvServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// An `rdzv` whose lines are read as they come. Dropping it kills it.
pub(crate) struct Following(Child);

impl Following {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("rdzv starts"))
    }

    /// Waits for the next line.
    pub(crate) fn next_line(&mut self) -> String {
        next_line(&mut self.0)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs `rdzv server` to its own end.
pub(crate) fn run_server(arguments: &[&str]) -> Ended {
    finish(&mut spawn(arguments, None))
}

fn spawn(arguments: &[&str], descriptors_max: Option<u64>) -> Child {
    let mut command = Command::new(program());
    command.arg("server").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(most) = descriptors_max {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: setrlimit is async-signal-safe, reads `limit`, which the closure owns, and nothing else is done
        // between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }
    command.spawn().expect("rdzv starts")
}

/// Waits until there is something to read, or the end of it.
fn wait_readable(pipe: &impl AsRawFd) {
    let mut poll = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout_ms = libc::c_int::try_from(TIMEOUT.as_millis()).expect("a few seconds");
    // SAFETY: `poll` is one valid structure, and one is what the call is told of.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    assert_eq!(ready, 1, "rdzv neither wrote nor ended in time");
}

fn next_line(child: &mut Child) -> String {
    let stdout = child.stdout.as_mut().expect("a pipe");
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        wait_readable(stdout);
        match stdout.read(&mut byte).expect("a pipe can be read") {
            0 => panic!("rdzv ended: {:?}", finish(child)),
            _ if byte == *b"\n" => return String::from_utf8(line).expect("text"),
            _ => line.extend_from_slice(&byte),
        }
    }
}

/// Waits until the process has closed its pipes, which it does when it ends.
fn finish(child: &mut Child) -> Ended {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    drain(child.stdout.as_mut().expect("a pipe"), &mut stdout);
    drain(child.stderr.as_mut().expect("a pipe"), &mut stderr);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended { status: child.wait().expect("a child of ours"), stdout: text(stdout), stderr: text(stderr) }
}

fn drain(pipe: &mut (impl Read + AsRawFd), into: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    loop {
        wait_readable(pipe);
        match pipe.read(&mut buffer).expect("a pipe can be read") {
            0 => return,
            count => into.extend_from_slice(&buffer[..count]),
        }
    }
}
