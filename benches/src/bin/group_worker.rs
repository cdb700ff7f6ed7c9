//! One worker of a dynamic RPC group, as a process of its own: `group_worker HOST:PORT NAME ID`.
//!
//! It joins, and says `joined` with how long that took, in nanoseconds. Then it says `died NAME` with the time, in
//! nanoseconds since 1970, whenever it hears of a death, until stdin ends; then it leaves.

use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_rpc::RpcWorker;
use rendezvous_rpc::agent::GroupEvent;
use rendezvous_rpc::driver::group::{RpcAgent, Shutdown, TcpOptions};
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, name, id] = arguments.as_slice() else {
        eprintln!("usage: group_worker HOST:PORT NAME ID");
        return ExitCode::from(2);
    };
    match take_part(endpoint, name, id) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("group_worker: {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()
}

#[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// As `init_rpc` has it, from the connection to the store on.
#[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
fn join(endpoint: &str, name: &str, id: &str) -> io::Result<(RpcAgent, Duration)> {
    let (host, port) = endpoint.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let port = port.parse().map_err(io::Error::other)?;
    let me = WorkerInfo {
        name: name.parse().map_err(io::Error::other)?,
        id: id.parse().map_err(io::Error::other)?,
    };
    let began = Instant::now();
    let store = Store::connect(host, port, StoreOptions::default()).map_err(io::Error::other)?;
    let store = store.with_prefix(b"rpc_prefix_0");
    let agent = RpcAgent::start(&store, me, None, &RpcOptions::new("tcp"), &TcpOptions::default())
        .map_err(io::Error::other)?;
    Ok((agent, began.elapsed()))
}

fn take_part(endpoint: &str, name: &str, id: &str) -> io::Result<()> {
    let (agent, took) = join(endpoint, name, id)?;
    say(&format!("joined {}\n", took.as_nanos()))?;
    let (agent, has_done) = (Arc::new(agent), Arc::new(AtomicBool::new(false)));
    let (observer, ends) = (Arc::clone(&agent), Arc::clone(&has_done));
    let listener = thread::spawn(move || {
        while !ends.load(Ordering::Acquire) {
            if let Some(GroupEvent::PeerDied { worker, .. }) =
                observer.next_event(Duration::from_millis(100), &CancelToken::new())
            {
                say(&format!("died {} {}\n", worker.name, now_ns())).ok();
            }
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    agent.shutdown(Shutdown::Graceful).map_err(io::Error::other)?;
    has_done.store(true, Ordering::Release);
    listener.join().ok();
    say("left\n")
}
