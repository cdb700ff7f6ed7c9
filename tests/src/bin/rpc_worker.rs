//! Worker of an RPC group, for tests that kill, stop and end it as a process. It prints each event as one line on
//! stdout, and executes the commands on stdin.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_rpc::driver::calls::handling::{Handling, Run};
use rendezvous_rpc::driver::group::{RpcContext, RpcInit, Shutdown, TcpOptions};
use rendezvous_rpc::options::RpcOptions;
use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const USAGE: &str = "\
usage: rpc_worker STORE NAME ID SIZE [SECONDS]
STORE: a URL, or HOST:PORT of a server. SIZE 0: a dynamic group. SECONDS: time to join, and to leave
commands, a line each:
  call NAME            echo at a worker
  busy NAME            calls a worker again and again until a call fails
  workers              their names
  leave                a graceful end; whatever came of it, the process ends
  exit";

/// How long one poll for events takes. Nothing depends on it.
const LOOK: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// If the test has ended, no lines are needed.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", line.replace('\n', " ")).and_then(|()| stdout.flush()).ok();
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, name, id, size, seconds @ ..] = &arguments[..] else { return Err(USAGE.into()) };
    let handling = Handling::new(2);
    handling.register("echo", Run::Inline, |request, responder| {
        responder.answer(request.payload);
    })?;
    let mut tcp = TcpOptions { handling: Some(handling), ..TcpOptions::default() };
    if let Some(seconds) = seconds.first() {
        tcp.membership_timeout = Some(Duration::from_secs(seconds.parse()?));
    }
    let mut options = RpcOptions::new("tcp");
    options.set_extra(Box::new(tcp));
    let context = Arc::new(RpcContext::default());
    let (rank, world_size) = (Some(id.parse()?), Some(size.parse()?));
    let init = |options| RpcInit { name, rank, world_size, options: Some(options), ..RpcInit::default() };
    let worker = if store.contains("://") {
        options.set_init_method(store)?;
        context.init(init(options))?
    } else {
        let (host, port) = store.rsplit_once(':').ok_or(USAGE)?;
        let store = Store::connect(host, port.parse()?, StoreOptions::default())?;
        let store = NodeStore::new(store.with_prefix(b"rpc_prefix_0"), None);
        context.init_over(Arc::new(store), init(options))?
    };
    say("joined");
    let last_received_at = Arc::clone(&worker);
    std::thread::spawn(move || {
        while let Some(event) =
            last_received_at.tcp().and_then(|tcp| tcp.next_event(LOOK, &CancelToken::new()))
        {
            say(&format!("event {event:?}"));
        }
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["call", callee] => {
                let tcp = worker.tcp().ok_or("no worker of the backend tcp")?;
                match tcp.call(callee, "echo", b"x".to_vec(), None) {
                    Ok(_) => say("answered"),
                    Err(error) => say(&format!("call failed: {error}")),
                }
            }
            ["busy", callee] => {
                let tcp = worker.tcp().ok_or("no worker of the backend tcp")?;
                let error = loop {
                    if let Err(error) = tcp.call(callee, "echo", b"x".to_vec(), None) {
                        break error;
                    }
                };
                say(&format!("call failed: {error}"));
            }
            ["workers"] => {
                let names: Vec<String> =
                    worker.workers()?.into_iter().map(|worker| worker.name.to_string()).collect();
                say(&format!("workers {}", names.join(" ")));
            }
            ["leave"] => {
                context.end(&worker, Shutdown::Graceful)?;
                say("left");
                return Ok(());
            }
            ["exit"] => return Ok(()),
            _ => return Err(USAGE.into()),
        }
    }
    // The test has closed stdin, so no further command can arrive.
    Ok(())
}
