//! Starting the program, and servers for it.

use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::node::server::Stats;
use rendezvous_core::time::Instant;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// No test takes nearly as long; one that hangs ends so.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a run of the program left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code.
    pub(crate) code: i32,
    /// Its stdout.
    pub(crate) stdout: Vec<u8>,
    /// Its stderr.
    pub(crate) stderr: String,
}

impl Ended {
    /// Its stdout as text.
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.stdout).expect("text")
    }
}

/// `rdzv` with these arguments, and with nothing in the environment that would matter to it.
pub(crate) fn rdzv(arguments: &[&str]) -> Command {
    command(option_env!("CARGO_BIN_EXE_rdzv").unwrap_or_default(), arguments)
}

/// The same for another program.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("RDZV_") || text.starts_with("MASTER_") {
            command.env_remove(&name);
        }
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    finish(command.spawn().expect("the program starts"))
}

/// Runs a command to its end, with `input` on stdin.
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Ended {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A program that does not read its input to the end closes the pipe.
    let writer = std::thread::spawn(move || stdin.write_all(&input).ok());
    let ended = finish(child);
    writer.join().expect("the writer ends");
    ended
}

/// Waits for the end of a process; kills it when that does not come.
pub(crate) fn finish(child: Child) -> Ended {
    let pid = child.id();
    let (ended, answer) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    let Ok(output) = answer.recv_timeout(DEADLINE) else {
        signal(pid, libc::SIGKILL);
        panic!("the program did not end in time");
    };
    let output = output.expect("its output");
    Ended {
        code: output.status.code().unwrap_or_else(|| panic!("killed by a signal: {:?}", output.status)),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Sends a signal to a process that was started here and has not been waited for.
pub(crate) fn signal(pid: u32, number: i32) {
    let pid = libc::pid_t::try_from(pid).expect("a process id");
    // SAFETY: `kill` takes two numbers; the process is a child of this one.
    unsafe { libc::kill(pid, number) };
}

/// A server in this process.
pub(crate) fn start_server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port")
}

/// Looks again and again until it is so. Each look has to be an exchange with a server, not a glance at memory.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    let clock = Clock::new();
    while !is_so() {
        assert!(clock.now() < Instant::ORIGIN + DEADLINE, "it did not come about");
    }
}

/// Returns when the server's statistics are as wished.
pub(crate) fn until(server: &Server, wished: impl Fn(&Stats) -> bool) {
    eventually(|| wished(&server.stats().expect("it runs")));
}

/// A listener whose connections are handed to `answer`, each on a thread of its own.
pub(crate) fn start_impostor(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Answers a greeting as a store does.
pub(crate) fn greet(stream: &mut TcpStream) {
    let mut greeting = [0; 10];
    if stream.read_exact(&mut greeting).is_ok() {
        stream.write_all(&greeting[6..]).ok();
    }
}
