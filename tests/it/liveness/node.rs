//! Nodes as processes, and what is known of them from outside.

use crate::net::{Deadline, TIMEOUT};
use crate::process;
use std::io::{BufRead, BufReader, Write};
use std::iter;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A running `node`. Dropping it kills it.
pub(super) struct Node {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// All that was read of its lines, for the report of a failure.
    said: Vec<String>,
}

impl Node {
    /// Starts one and waits until its session is open.
    pub(super) fn start(server: SocketAddr, name: &str, settings: &[&str]) -> Self {
        let mut node = Self::spawn(server, name, settings, None);
        node.says("open");
        node
    }

    /// Starts one, in another network namespace if one is given.
    pub(super) fn spawn(
        server: SocketAddr,
        name: &str,
        settings: &[&str],
        namespace: Option<&std::fs::File>,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node"));
        command.args([server.ip().to_string(), server.port().to_string(), name.to_owned()]).args(settings);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        enter(&mut command, namespace);
        let mut child = command.spawn().expect("node starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (notify, lines) = channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| notify.send(line)).ok();
        });
        Self { name: name.to_owned(), child, stdin, lines, said: Vec::new() }
    }

    /// Gives it a command.
    pub(super) fn reported(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("it listens");
    }

    /// Waits for a line that begins like this; others before it are passed over.
    #[track_caller]
    pub(super) fn says(&mut self, beginning: &str) -> String {
        loop {
            let line = self.next_line();
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// A line that begins like this, whether it was read already or not.
    #[track_caller]
    pub(super) fn has_said(&mut self, beginning: &str) -> String {
        match self.said.iter().find(|line| line.starts_with(beginning)) {
            Some(line) => line.clone(),
            None => self.says(beginning),
        }
    }

    /// The next thing that it says must be this; that it has a seat is told beside its round.
    #[track_caller]
    pub(super) fn says_next(&mut self, line: &str) {
        let next = iter::repeat_with(|| self.next_line()).find(|line| line != "seated");
        assert_eq!(next.as_deref(), Some(line), "{}: {:#?}", self.name, self.said);
    }

    #[track_caller]
    fn next_line(&mut self) -> String {
        let Ok(line) = self.lines.recv_timeout(TIMEOUT) else {
            panic!("{} says nothing more; so far {:#?}", self.name, self.said)
        };
        self.said.push(line.clone());
        line
    }

    pub(super) fn signal(&self, signal: libc::c_int) {
        process::signal(&self.child, signal);
    }

    /// Kills the process and waits until it is gone.
    pub(super) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child of ours");
    }

    /// Stops the process, which can be told to go on.
    pub(super) fn stop(&self) {
        process::stop(&self.child);
    }

    /// Waits until bytes lie unread in its sockets.
    pub(super) fn leaves_bytes_unread(&self) {
        let deadline = Deadline::new();
        while self.unread_bytes() == 0 {
            assert!(!deadline.has_passed(), "nothing came for {}", self.name);
            std::thread::yield_now();
        }
    }

    fn unread_bytes(&self) -> u64 {
        let process = format!("/proc/{}", self.child.id());
        let descriptors = std::fs::read_dir(format!("{process}/fd")).expect("it lives");
        let sockets: Vec<String> = descriptors
            .filter_map(|entry| {
                let link = std::fs::read_link(entry.ok()?.path()).ok()?;
                Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            })
            .collect();
        let table = std::fs::read_to_string(format!("{process}/net/tcp")).expect("it lives");
        let unread = table.lines().skip(1).filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_local = sockets.iter().any(|socket| columns.get(9) == Some(&socket.as_str()));
            let (_, received) = columns.get(4)?.split_once(':')?;
            is_local.then(|| u64::from_str_radix(received, 16).ok())?
        });
        unread.sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Lets a command run in a network namespace.
pub(super) fn enter(command: &mut Command, namespace: Option<&std::fs::File>) {
    let Some(namespace) = namespace else { return };
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(namespace);
    // SAFETY: setns is one system call that takes no memory, and nothing else is done between fork and exec. The
    // descriptor is open in the child as it is here.
    unsafe {
        command.pre_exec(move || match libc::setns(descriptor, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Lets nodes meet; they have these names, in this order, and get these ranks. Returns what the keys of their round begin
/// with.
pub(super) fn meet(nodes: &mut [&mut Node], round: u32) -> String {
    nodes.iter_mut().for_each(|node| node.reported("join"));
    let (count, mut prefixes) = (nodes.len(), Vec::new());
    for (rank, node) in nodes.iter_mut().enumerate() {
        let due = format!("joined round {round} as {rank}/{count} with the prefix ");
        let joined = node.says("joined");
        let prefix = joined.strip_prefix(&due).unwrap_or_else(|| panic!("{}: {joined}", node.name));
        assert!(prefix.starts_with("/torch.rendezvous.run."), "{joined}");
        assert!(prefix.ends_with(&format!(".{round}/")), "{joined}");
        prefixes.push(prefix.to_string());
    }
    prefixes.dedup();
    assert_eq!(prefixes.len(), 1, "the nodes have different keys: {prefixes:?}");
    prefixes.remove(0)
}
