//! `rdzv bench`: loads one store server through the library's event loop and reports rates and latencies.

use crate::endpoint::Endpoint;
use crate::failure::{Failure, Report};
use crate::log::value_name;
use crate::open_files;
use crate::units;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::loop_client::{Loop, LoopEvent, MemberId};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::driver::timeout::Timeout;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::limits::VALUE_BYTES_MAX;
use rendezvous_core::store::op::{Key, Keys, Request};
use rendezvous_core::time::Instant;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::process::ExitCode;
use std::time::Duration;

/// Load a store server and report rates and latencies
///
/// One thread drives all connections with the library's own client. Latencies include the client's work and everything
/// else on the machine; pin server and load to cores (taskset) before comparing figures.
///
/// Without HOST:PORT, a server on a thread of this process is loaded.
#[derive(Args)]
#[command(after_help = "\
Durations are written as 30s, 500ms or 2min (a plain number is in milliseconds), sizes as 64KiB.

Works, each on its own keys under bench/, which are deleted at the end:
  set, get, add, check   each connection repeats that request
  barrier                all connections arrive at one barrier after another

Examples:
  rdzv bench                                                what this machine can do
  rdzv bench --work add --connections 1000 10.0.0.5:29500

Exit codes: 0 done, 2 wrong usage, 3 no answer in time, 4 no connection, 5 the server went away or speaks another \
protocol, 6 anything else, such as too few open files.")]
pub(crate) struct BenchArguments {
    /// Kind of request; may be given several times
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Work::Set, Work::Get, Work::Add, Work::Check, Work::Barrier])]
    work: Vec<Work>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Requests that a connection has in flight; a barrier always has one
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    depth: u32,
    /// Bytes of each value of set and get
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = value_bytes)]
    value_bytes: usize,
    /// Requests of each connection
    #[arg(long, value_name = "K", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Time limit of one request
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = units::milliseconds_above_zero)]
    timeout_ms: Duration,
    /// Print results and errors as JSON, one object per work
    #[arg(long, env = "RDZV_JSON", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    json: bool,
    /// The server to load; an IPv6 address goes in brackets
    #[arg(value_name = "HOST[:PORT]")]
    endpoint: Option<Endpoint>,
}

fn value_bytes(text: &str) -> Result<usize, String> {
    match units::bytes(text)?.as_u64() {
        count if count <= VALUE_BYTES_MAX => usize::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("a value has at most {VALUE_BYTES_MAX} bytes")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    Set,
    Get,
    Add,
    Check,
    Barrier,
}

pub(crate) fn run(arguments: &BenchArguments) -> ExitCode {
    let report = if arguments.json { Report::Json } else { Report::Text };
    measure(arguments).map_or_else(|failure| failure.report("rdzv bench", report), |()| ExitCode::SUCCESS)
}

fn measure(arguments: &BenchArguments) -> Result<(), Failure> {
    open_files::raise_limit();
    let embedded = match arguments.endpoint {
        Some(_) => None,
        None => Some(Server::start(ServerOptions::on("127.0.0.1", 0)).map_err(|error| other(&error))?),
    };
    let endpoint = match (&arguments.endpoint, &embedded) {
        (None, Some(server)) => Endpoint { host: "127.0.0.1".into(), port: server.local_addr().port() },
        (endpoint, _) => {
            endpoint.clone().ok_or_else(|| Failure::new(ErrorKind::InvalidArgument, "no endpoint"))?
        }
    };
    let timeout = arguments.timeout_ms;
    let options = StoreOptions { timeout, connect_timeout: timeout, ..StoreOptions::default() };
    // For the first values and for cleaning up; a server that cannot be reached is reported here.
    let store = Store::connect(&endpoint.host, endpoint.port, options.clone())?;
    let mut load = Load::new(arguments, &endpoint, &options)?;
    for &work in &arguments.work {
        let outcome = load.prepare(work, &store).and_then(|()| load.run(work));
        load.delete_keys(&store)?;
        let figures = Figures::of(work, arguments, outcome?);
        let line = if arguments.json { figures.json() } else { figures.text() };
        writeln!(io::stdout(), "{line}").map_err(|error| other(&error))?;
    }
    Ok(())
}

fn other(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Io, error.to_string())
}

/// Waits until the loop has something to do. Its requests have deadlines, so it has something after `timeout` at the latest.
fn wait_readable(fd: RawFd, timeout: Duration) -> io::Result<()> {
    let mut poll_fd = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid `pollfd`, and the count is one.
    match unsafe { libc::poll(&raw mut poll_fd, 1, millis) } {
        -1 => Err(io::Error::last_os_error()).or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }),
        _ => Ok(()),
    }
}

/// Latency of each request, and the time of all.
struct Outcome {
    latencies: Vec<Duration>,
    elapsed: Duration,
}

/// The connections of a load.
struct Load {
    events: Loop,
    stores: Vec<MemberId>,
    value: Vec<u8>,
    operations: usize,
    depth: usize,
    timeout: Duration,
    /// Prefix of this run's keys, under the client's scope.
    prefix: String,
    scope: Vec<u8>,
    /// Barrier keys used by the current work.
    rounds: usize,
}

impl Load {
    fn new(arguments: &BenchArguments, endpoint: &Endpoint, options: &StoreOptions) -> Result<Self, Failure> {
        let mut events = Loop::new().map_err(|error| other(&error))?;
        let add = |_| events.add_store(&endpoint.host, endpoint.port, options.clone());
        let stores = (0..arguments.connections).map(add).collect();
        Ok(Self {
            events,
            stores,
            value: vec![b'v'; arguments.value_bytes],
            operations: arguments.operations as usize,
            depth: arguments.depth as usize,
            timeout: arguments.timeout_ms,
            prefix: format!("bench/{}/", std::process::id()),
            scope: options.scope.to_vec(),
            rounds: 0,
        })
    }

    fn key(&self, connection: usize) -> String {
        format!("{}{connection}", self.prefix)
    }

    fn barrier_key(&self, round: usize) -> String {
        format!("{}barrier/{round}", self.prefix)
    }

    /// Writes the values that `get` and `check` read.
    fn prepare(&self, work: Work, store: &Store) -> Result<(), Failure> {
        if matches!(work, Work::Get | Work::Check) {
            for connection in 0..self.stores.len() {
                store.set(self.key(connection).as_bytes(), &self.value, Timeout::Default)?;
            }
        }
        Ok(())
    }

    fn delete_keys(&mut self, store: &Store) -> Result<(), Failure> {
        let rounds = (0..std::mem::take(&mut self.rounds)).map(|round| self.barrier_key(round));
        for key in (0..self.stores.len()).map(|connection| self.key(connection)).chain(rounds) {
            store.delete(key.as_bytes(), Timeout::Default)?;
        }
        Ok(())
    }

    /// Sends one request; a barrier's `number` is its round.
    fn submit(&mut self, work: Work, connection: usize, number: usize) -> Result<(), Failure> {
        let key = if work == Work::Barrier { self.barrier_key(number) } else { self.key(connection) };
        let (key, world_size) =
            (Key::scoped(&self.scope, key.as_bytes()), i64::try_from(self.stores.len()).unwrap_or(i64::MAX));
        let request = match work {
            Work::Set => Request::Set { key, value: &self.value },
            Work::Get => Request::Get { key },
            Work::Add => Request::Add { key, delta: 1 },
            Work::Check => Request::Check { keys: Keys::one(key) },
            Work::Barrier => Request::Barrier { key, world_size },
        };
        let submitted = self.events.submit(self.stores[connection], request, Timeout::Default);
        submitted.map(drop).map_err(|error| other(&error))
    }

    /// Sends the first requests of all connections, then the next one for each that completes.
    fn run(&mut self, work: Work) -> Result<Outcome, Failure> {
        let depth = if work == Work::Barrier { 1 } else { self.depth.min(self.operations) };
        let index_of: HashMap<MemberId, usize> = self.stores.iter().copied().zip(0..).collect();
        let mut sent: Vec<VecDeque<Instant>> = vec![VecDeque::with_capacity(depth); self.stores.len()];
        let mut submitted = vec![0; self.stores.len()];
        let mut latencies = Vec::with_capacity(self.stores.len() * self.operations);
        let clock = Clock::new();
        let began = clock.now();
        for (connection, sent) in sent.iter_mut().enumerate() {
            for number in 0..depth {
                sent.push_back(clock.now());
                self.submit(work, connection, number)?;
            }
            submitted[connection] = depth;
        }
        while latencies.len() < self.stores.len() * self.operations {
            wait_readable(self.events.fd(), self.timeout).map_err(|error| other(&error))?;
            self.events.poll().map_err(|error| other(&error))?;
            while let Some(event) = self.events.next_event() {
                let LoopEvent::Store(completion) = event else { continue };
                completion.result?;
                let connection = index_of[&completion.store];
                let at = sent[connection].pop_front().unwrap_or(began);
                latencies.push(clock.now().since(at));
                let number = submitted[connection];
                if number < self.operations {
                    sent[connection].push_back(clock.now());
                    self.submit(work, connection, number)?;
                    submitted[connection] += 1;
                }
            }
        }
        if work == Work::Barrier {
            self.rounds = self.operations;
        }
        Ok(Outcome { latencies, elapsed: clock.now().since(began) })
    }
}

/// Results of one work.
struct Figures {
    work: String,
    connections: u32,
    depth: u32,
    per_second: f64,
    /// Latencies in microseconds: the 50th, 90th and 99th percentile, and the longest.
    latencies_us: [f64; 4],
}

impl Figures {
    fn of(work: Work, arguments: &BenchArguments, Outcome { mut latencies, elapsed }: Outcome) -> Self {
        latencies.sort_unstable();
        let last = latencies.len().saturating_sub(1);
        let at =
            |percent: usize| latencies.get(last * percent / 100).map_or(0.0, |span| span.as_secs_f64() * 1e6);
        let count = u32::try_from(latencies.len()).map_or(f64::INFINITY, f64::from);
        Self {
            work: value_name(work),
            connections: arguments.connections,
            depth: if work == Work::Barrier { 1 } else { arguments.depth },
            per_second: count / elapsed.as_secs_f64(),
            latencies_us: [at(50), at(90), at(99), at(100)],
        }
    }

    fn text(&self) -> String {
        let Self { work, connections, depth, per_second, latencies_us: [p50, p90, p99, max] } = self;
        format!(
            "{work:8} {connections} connections, depth {depth}: {per_second:.0}/s; us: p50 {p50:.1}, p90 {p90:.1}, \
             p99 {p99:.1}, max {max:.1}"
        )
    }

    fn json(&self) -> String {
        let [p50, p90, p99, max] = self.latencies_us;
        json!({
            "work": &self.work, "connections": self.connections, "depth": self.depth, "per_second": self.per_second,
            "p50_us": p50, "p90_us": p90, "p99_us": p99, "max_us": max,
        })
        .to_string()
    }
}
