//! What workers wrote, and the report of their failure.

use rendezvous_agent::console_backlog::ConsoleBacklog;
use rendezvous_agent::error_file::{ErrorFile, NewError, encode, parse};
use rendezvous_agent::failure::{NodeIdentity, ProcessFailure, WorkerEnd, WorkerGroupFailure};
use rendezvous_agent::log_layout::{Destination, LogSettings, run_folder};
use rendezvous_agent::log_lines::{LineOutput, LogLines};
use rendezvous_agent::streams::Stream;
use rendezvous_agent::template::{Origin, line_prefix};
use rendezvous_core::time::Instant;

pub(crate) fn sings() -> bool {
    let settings = LogSettings::default();
    let is_passed_on = settings.destination(0, Stream::Stderr) == Destination::PassedOn;
    let is_named = run_folder("a/b", 1) == "a_b_00000001";
    let origin = Origin { role_name: "w", local_rank: 0, rank: 4, hostname: "n1" };
    let (mut lines, mut out) = (LogLines::new(line_prefix(None, &origin), &[]), LineOutput::default());
    lines.push(b"loading\nstep 1", &mut out);
    let mut console = ConsoleBacklog::default();
    console.add(Instant::ORIGIN, &out.console);
    let is_visible = console.unsent() == b"[w0]:loading\n";

    let Ok(error) = parse(&encode(&NewError { message: "boom", ..NewError::default() })) else {
        return false;
    };
    let end = WorkerEnd {
        local_rank: 0,
        global_rank: 4,
        pid: 100,
        exit_code: 1,
        seen_at_s: 1,
        error_file: ErrorFile::Read { path: "error.json".into(), content: Ok(error) },
        stderr_tail: lines.tail(),
    };
    let failure = ProcessFailure::new(NodeIdentity { host: "n1", group_rank: 0 }, end);
    let Some(group) = WorkerGroupFailure::new("train", [failure].into()) else { return false };
    let is_reported = group.to_json()["root_cause"]["stderr_tail"][1] == "step 1";
    is_passed_on && is_named && is_visible && is_reported && group.root.message == "boom"
}
