//! What workers write, through a whole agent: where there is no room for it, and where it has no end.

use super::{Launch, Launched, folder, forward, text};
use crate::rdzv::program;
use std::process::{Command, Stdio};

/// Gives what follows a disk of 64 KiB at the path in its first argument, which nobody else sees.
const WITH_DISK: &str = "mount -t tmpfs -o size=64k none \"$1\" && shift && exec \"$@\"";

/// More than that.
const TOO_MUCH: &str = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo all written";

#[test]
fn a_log_disk_that_is_full_costs_the_job_nothing_but_the_log() {
    let disk = folder("full_disk");
    // Who is not root is it in a namespace of its own.
    // SAFETY: no arguments.
    let namespaces = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
    let mut command = Command::new("unshare");
    command.args([namespaces, "sh", "-c", WITH_DISK, "sh", text(&disk)]).arg(program());
    command.args(["run", "--log-dir", text(&disk), "--tee", "3", "sh", "-c", TOO_MUCH]);
    command.env_remove("LD_LIBRARY_PATH").env("OMP_NUM_THREADS", "1");
    let finished = Launch { command }.run().with(0);
    finished.says(1, "all written");
    let lost = finished.lines.iter().filter(|line| line.contains("No space left on device"));
    let lost: Vec<_> = lost.collect();
    assert!(lost.len() == 1 && lost[0].contains("stdout.log"), "{lost:#?}");
}

fn largest_kib(launched: &Launched) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", launched.child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line on memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_gibibyte_without_a_line_feed_leaves_the_agent_as_small_as_it_was() {
    const SCRIPT: &str =
        "echo begun; read -r _ < $GATE; head -c 1073741824 /dev/zero >&2; echo told; exec sleep 600";
    let gate = super::Gate::new("endless_line");
    let mut launch = Launch::shell(&[], SCRIPT).env("GATE", &gate.path);
    let (notify, lines) = std::sync::mpsc::channel();
    launch.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = launch.command.spawn().expect("rdzv starts");
    forward(child.stdout.take().expect("a pipe"), notify);
    let mut launched = Launched { child, lines, seen: Vec::new() };
    launched.until(1, "begun");
    let before = largest_kib(&launched);
    gate.open();
    launched.until(1, "told");
    let after = largest_kib(&launched);
    assert!(after < before + 4096, "from {before} to {after} KiB");
    launched.signal(libc::SIGTERM);
    launched.finish().with(1);
}
