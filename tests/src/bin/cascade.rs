//! Job in which one failing worker makes all others fail: how often does the report name the first one?
//!
//! Eight workers are connected to each other. Rank 5 fails in one of five ways. Each of the others ends with an error
//! as soon as its connection to rank 5 is closed. `benches/peers/README.md` has the command and the requirements.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]
#![expect(clippy::disallowed_methods, reason = "a program may read its environment")]

use rendezvous_agent::driver::worker_logs::write_error_file;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use serde_json::Value;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cascade --rdzv PATH [--runs N] [--way WAY]... | cascade worker WAY";
const WORKERS: u64 = 8;
const FAILING: u64 = 5;
const WAYS: [&str; 5] = ["exit-3", "abort", "segv", "kill", "error-file"];
/// Time that the worker which wrote an error file takes to end.
const TEARDOWN: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["worker", method] => work(method),
        _ => launch(&arguments),
    };
    if let Err(error) = outcome {
        eprintln!("cascade: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs the jobs, and prints the table.
fn launch(arguments: &[&str]) -> Outcome<()> {
    let (mut rdzv, mut runs, mut routes) = (None, 100_u32, Vec::new());
    for pair in arguments.chunks(2) {
        match *pair {
            ["--rdzv", path] => rdzv = Some(PathBuf::from(path)),
            ["--runs", number] => runs = number.parse()?,
            ["--way", method] if WAYS.contains(&method) => routes.push(method),
            _ => return Err(USAGE.into()),
        }
    }
    let rdzv = rdzv.ok_or(USAGE)?;
    if routes.is_empty() {
        routes.extend(WAYS);
    }
    let report = std::env::temp_dir().join(format!("cascade-{}.json", std::process::id()));
    println!("{:<12} {:>5} {:>12} {:>8} {:>12}", "rank 5", "runs", "named first", "listed", "median");
    for method in routes {
        let (mut first, mut listed, mut took) = (0, 0, Vec::new());
        for _ in 0..runs {
            let began = Instant::now();
            let ranks = run(&rdzv, method, &report)?;
            took.push(began.elapsed());
            first += u32::from(ranks.first() == Some(&FAILING));
            listed += u32::from(ranks.contains(&FAILING));
        }
        took.sort();
        let median = took.get(took.len() / 2).map_or(0, Duration::as_millis);
        println!("{method:<12} {runs:>5} {first:>12} {listed:>8} {median:>9} ms");
    }
    std::fs::remove_file(&report).ok();
    Ok(())
}

/// Runs one job. Returns the ranks that its report names, in its order.
fn run(rdzv: &PathBuf, method: &str, report: &PathBuf) -> Outcome<Vec<u64>> {
    let mut command = Command::new(rdzv);
    command.args(["run", "--nproc-per-node", &WORKERS.to_string(), "--max-restarts", "0", "--log", "warn"]);
    command.arg("--report").arg(report).arg(std::env::current_exe()?).args(["worker", method]);
    command.env("OMP_NUM_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status()?;
    let reported: Value = serde_json::from_slice(&std::fs::read(report)?)?;
    let failure = &reported["failure"];
    let others = failure["other_failures"].as_array().cloned().unwrap_or_default();
    let ranks = [failure["root_cause"].clone()].into_iter().chain(others);
    let ranks: Vec<u64> = ranks.filter_map(|one| one["global_rank"].as_u64()).collect();
    if status.code() != Some(1) || ranks.is_empty() {
        return Err(format!("a job that fails ended with {status}: {reported}").into());
    }
    Ok(ranks)
}

fn number(name: &str) -> Outcome<u64> {
    Ok(std::env::var(name).map_err(|_| format!("{name} is not set"))?.parse()?)
}

/// One worker.
fn work(method: &str) -> Outcome<()> {
    let rank = number("RANK")?;
    let mut peers = connect(rank)?;
    if rank == FAILING {
        fail(method, peers);
    }
    // The connection to the failing rank: however it ends, this worker cannot continue.
    let at = peers.iter().position(|(peer, _)| *peer == FAILING).ok_or("no connection")?;
    let mut byte = [0];
    let end = peers[at].1.read(&mut byte);
    eprintln!("rank {rank}: the connection to rank {FAILING} is lost: {end:?}");
    if method == "error-file" {
        leave_error_file("a peer is lost");
    }
    std::process::exit(1)
}

/// Returns the connections to all other workers, once all have them.
fn connect(rank: u64) -> Outcome<Vec<(u64, TcpStream)>> {
    let options = StoreOptions { timeout: TIMEOUT, ..StoreOptions::default() };
    let (host, port) = (std::env::var("MASTER_ADDR")?, number("MASTER_PORT")?);
    let store = Store::connect(&host, u16::try_from(port)?, options)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let key = |rank: u64| format!("cascade/{rank}").into_bytes();
    store.set(&key(rank), listener.local_addr()?.to_string().as_bytes(), Timeout::Default)?;
    let mut peers = Vec::new();
    for peer in 0..rank {
        let address = String::from_utf8(store.get_owned(&key(peer), Timeout::Default)?)?;
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(&rank.to_le_bytes())?;
        peers.push((peer, stream));
    }
    for _ in rank + 1..WORKERS {
        let (mut stream, _) = listener.accept()?;
        let mut name = [0; 8];
        stream.read_exact(&mut name)?;
        peers.push((u64::from_le_bytes(name), stream));
    }
    // No worker fails before all are connected.
    if store.add(b"cascade/ready", 1, Timeout::Default)? == i64::try_from(WORKERS)? {
        store.set(b"cascade/go", b"", Timeout::Default)?;
    }
    store.get_owned(b"cascade/go", Timeout::Default)?;
    Ok(peers)
}

/// Ends this worker.
fn fail(method: &str, peers: Vec<(u64, TcpStream)>) -> ! {
    match method {
        "abort" => std::process::abort(),
        "segv" => raise(libc::SIGSEGV),
        "kill" => raise(libc::SIGKILL),
        "error-file" => {
            leave_error_file("out of memory");
            drop(peers);
            // The teardown of the worker.
            let (_open, end) = std::sync::mpsc::channel::<()>();
            end.recv_timeout(TEARDOWN).ok();
            std::process::exit(1)
        }
        _ => std::process::exit(3),
    }
}

fn raise(signal: i32) -> ! {
    // SAFETY: only numbers are passed; the default action ends this process. The language's own handler would only
    // report it.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(0)
}

fn leave_error_file(message: &str) {
    if let Ok(path) = std::env::var("TORCHELASTIC_ERROR_FILE") {
        write_error_file(path.as_ref(), message, "").ok();
    }
}
