//! One node of a run, as a process of its own: `join_node HOST:PORT RUN_ID NODE NODES`.
//!
//! It says `ready`, waits until stdin ends, joins a run of so many nodes, and says `done` with the time at which it had
//! its round, in nanoseconds since 1970: the clock that all processes of a host share. Then it stays until it is killed.

use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions};
use rendezvous_core::rendezvous::participant::{Entry, Role};
use rendezvous_core::store::op::Pairs;
use rendezvous_core::wire::native::{LastCall, RankOrder, Terms};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

const JOIN_TIMEOUT_MS: u64 = 60_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, run_id, node, nodes] = arguments.as_slice() else {
        eprintln!("usage: join_node HOST:PORT RUN_ID NODE NODES");
        return ExitCode::from(2);
    };
    match nodes.parse().map_err(io::Error::other).and_then(|nodes| take_part(endpoint, run_id, node, nodes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("join_node: {node}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn take_part(endpoint: &str, run_id: &str, node: &str, nodes: u32) -> io::Result<()> {
    say("ready\n")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    let _client = join(endpoint, run_id, node, nodes)?;
    say(&format!("done {}\n", now_ns()))?;
    loop {
        std::thread::park();
    }
}

fn say(line: &str) -> io::Result<()> {
    // One write, so that the lines of many processes on one pipe stay whole.
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()
}

#[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// Connects, and returns when the round of all nodes is there.
fn join(endpoint: &str, run_id: &str, node: &str, nodes: u32) -> io::Result<NativeClient> {
    let (host, port) = endpoint.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let port = port.parse().map_err(io::Error::other)?;
    let options = NativeClientOptions { node: node.into(), ..NativeClientOptions::default() };
    let client = NativeClient::start(host, port, options).map_err(io::Error::other)?;
    let terms = Terms {
        nodes_min: nodes,
        nodes_max: nodes,
        continue_min: 0,
        last_call: LastCall::Off,
        last_call_ms: 0,
        fast_quorum: true,
        rank_order: RankOrder::Sticky,
        rank_label: b"",
        cool_down_failures: 0,
        cool_down_window_ms: 0,
        cool_down_pause_ms: 0,
        cool_down_pause_ms_max: 0,
    };
    let entry = Entry {
        run_id: run_id.as_bytes(),
        node: node.as_bytes(),
        address: b"127.0.0.1:29500",
        local_world_size: 1,
        node_rank: -1,
        join_timeout_ms: JOIN_TIMEOUT_MS,
        terms,
        labels: Pairs::scoped(b"", &[]),
        round_min: 0,
    };
    let joined = client.join(&entry, Role::Member).map_err(io::Error::other)?;
    if joined.nodes == nodes { Ok(client) } else { Err(io::Error::other("a round of too few nodes")) }
}
