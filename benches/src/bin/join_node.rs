//! One node of a run, as a process of its own: `join_node HOST:PORT RUN_ID NODE NODES`.
//!
//! It says `ready`, waits until stdin ends, joins a run of so many nodes, and says `done` with the time at which it had
//! its round, in nanoseconds since 1970: the clock that all processes of a host share. Then it stays until it is killed.

use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::op::{Key, Pairs};
use rendezvous_core::wire::native::{
    ClientFrame, From, HEADER_BYTES, Label, LastCall, MAGIC, RankOrder, Scan, ServerFrame, Terms,
    VERSION_MAX, VERSION_MIN, encode_frame, scan,
};
use rendezvous_core::wire::sink::Sink;
use std::io::{self, Read, Write};
use std::net::TcpStream;
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
    let connection = join(endpoint, run_id, node, nodes)?;
    say(&format!("done {}\n", now_ns()))?;
    loop {
        std::thread::park();
        // A wake-up for no reason ends nothing.
        let _ = &connection;
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
fn join(endpoint: &str, run_id: &str, node: &str, nodes: u32) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(endpoint)?;
    stream.set_nodelay(true)?;
    stream.write_all(&opening(run_id, node, nodes))?;
    let limits = FrameLimits::default();
    let (mut inbox, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while let Scan::Whole { header, bytes } =
            scan(&inbox, From::Server, &limits).map_err(io::Error::other)?
        {
            let frame = ServerFrame::parse(header.kind, &inbox[HEADER_BYTES..bytes], &limits);
            match frame.map_err(io::Error::other)? {
                Some(ServerFrame::Round { nodes: all, .. }) if all == nodes => return Ok(stream),
                Some(ServerFrame::Error { fault }) => {
                    let text = String::from_utf8_lossy(fault.text).into_owned();
                    return Err(io::Error::other(format!("{:?}: {text}", fault.code)));
                }
                _ => drop(inbox.drain(..bytes)),
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => inbox.extend_from_slice(&buffer[..got]),
        }
    }
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// The greeting and a Join behind it.
fn opening(run_id: &str, node: &str, nodes: u32) -> Vec<u8> {
    let hello = ClientFrame::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 0,
        heartbeat_ms: 0,
        heartbeats_missed_max: 10,
        node: node.as_bytes(),
        auth: b"",
    };
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
    let join = ClientFrame::Join {
        run_id: Key::raw(run_id.as_bytes()),
        node: node.as_bytes(),
        address: b"127.0.0.1:29500",
        local_world_size: 1,
        node_rank: -1,
        join_timeout_ms: JOIN_TIMEOUT_MS,
        terms,
        labels: Pairs::scoped(b"", &[]),
    };
    let mut bytes = Bytes(MAGIC.to_vec());
    for (id, frame) in [(0, hello), (1, join)] {
        // Neither is anywhere near 4 GiB.
        let _ = encode_frame(&mut bytes, Label { id, ..Label::default() }, &frame);
    }
    bytes.0
}
