//! `load`: load generator of the benchmark tables, for every server that speaks the c10d or the native protocol.

mod cpu;
#[path = "../../../../cli/src/endpoint.rs"]
mod endpoint;
mod failure;
mod frames;
mod group;
mod histogram;
mod load;
#[path = "../../../../cli/src/open_files.rs"]
mod open_files;
mod rendezvous;
mod report;
mod sample;
mod target;
mod work;

use clap::Parser;
use cpu::CpuMeter;
use failure::Failure;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::limits::VALUE_BYTES_MAX;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;
use target::{Target, TargetName};
use work::{Language, Work};

/// Put the same load on one or more servers (ours, PyTorch's, any other of c10d) and compare them
///
/// One thread drives all connections. A repetition visits every target, each time beginning one further in the list (A B
/// C, B C A, ...), so that a noisy machine is noisy for all; one more repetition before the first warms up. Times are
/// medians over the repetitions. Ratios to the first target, the reference, are taken repetition by repetition, then
/// their median. Percentiles are over all repetitions. With a PID, the CPU time of all threads of that server is
/// counted too.
///
/// Without a target, a server of our own is started on a thread of this process, and the load goes to that.
#[derive(Parser)]
#[command(
    name = "load",
    after_help = "\
Works; times are of one round, operation, connection, node or death:
  barrier           all connections meet in one BARRIER, first send to last answer
  legacy            the same by ADD, a SET by the last to arrive, and WAIT by all
  set               each connection sends batches of D requests, one after another; percentiles are
                    those of a batch. In c10d a PING behind each SET paces it, since SET has no answer
  get, add, check   the same with that request
  mixed             set, add, get and check in turn
  connect           connects one by one, then all greetings; percentiles from connect to greeted
  storm             the same, but all connects are issued before any is waited for
  join              a storm of nodes that join a run of as many, until the last has its round
  death             one of the nodes of a round is closed; until the last of the others is notified
  reform            the same, but each notified node joins again at once; until the last has the new round

The last three load the rendezvous, which only the native protocol has, whatever --language says. The server remembers the run until it stops.

Placement decides such figures: a loopback round trip costs about ten times more across two cores than on one. Pin \
everything to one core (taskset -c 0 on the servers and on this), and name the reference twice, as two servers of one \
kind called X and X2: where X2 does not come out at 0.95 to 1.05, the machine was not quiet and the run says nothing.

Keys are created under bench/ and deleted at the end of the run.

Examples:
  load                                        what this machine can do
  load --work add --depth 16 10.0.0.5:29500
  load --work join,death,reform --connections 1000 10.0.0.5:29500
  load --work barrier torch=h:29500:$PID1 torch2=h:29501:$PID2 ours=h:29502:$PID3

Exit codes: 0 done, 2 wrong usage, 3 no answer in time, 4 no connection, 5 the server went away or is none of this \
protocol, 6 anything else, such as too few open files."
)]
struct Arguments {
    /// What to do; may be given several times
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Work::Barrier, Work::Set, Work::Get, Work::Add, Work::Mixed, Work::Connect, Work::Storm])]
    work: Vec<Work>,
    /// What the connections speak
    #[arg(long, value_enum, default_value_t = Language::C10d)]
    language: Language,
    /// Connections to each target
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Requests that a connection has under way at a time
    #[arg(long, value_name = "D", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// Length of the values of set and get
    #[arg(long, value_name = "B", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(0..=i64::try_from(VALUE_BYTES_MAX).unwrap_or(i64::MAX)))]
    value_bytes: u32,
    /// Rounds of a barrier, or operations of each connection, in a repetition
    #[arg(long, value_name = "K", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Repetitions
    #[arg(long, value_name = "R", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Longest time in which not a single answer comes
    #[arg(long, value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    timeout_ms: u64,
    /// Leave the keys in the store: for servers that cannot delete
    #[arg(long)]
    keep_keys: bool,
    /// Results and errors as JSON, one object for each work
    #[arg(long)]
    json: bool,
    /// Servers to compare; the first is the reference. An IPv6 address goes in brackets; NAME= may be left out
    #[arg(value_name = "NAME=HOST:PORT[:PID]")]
    targets: Vec<TargetName>,
}

/// What is done in a repetition.
#[derive(Clone, Copy, Debug)]
struct Plan {
    language: Language,
    connections: usize,
    depth: usize,
    value_bytes: usize,
    operations: usize,
    repetitions: usize,
    timeout: Duration,
    after_use: Keys,
}

/// What becomes of the keys of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Removed,
    Kept,
}

/// Memory for the values of requests prepared in advance. Their answers may take as much again.
const BATCH_BYTES_MAX: usize = 256 << 20;
/// Open files beside the connections under load: the process's own, and a few for each target.
const OTHER_FILES: usize = 64;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match compare(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(arguments.json),
    }
}

fn compare(arguments: &Arguments) -> Result<(), Failure> {
    let plan = arguments.plan()?;
    let embedded = if arguments.targets.is_empty() { Some(Embedded::start()?) } else { None };
    check_open_files(arguments, &plan)?;
    let mut targets = Vec::new();
    if let Some(embedded) = &embedded {
        targets.push(Target::connect(&embedded.name(), Some(embedded.cpu.clone()), &plan)?);
        if !arguments.json {
            let address = embedded.server.local_addr();
            say(format_args!(
                "no target: loading a server of our own, a thread of this process at {address}"
            ))?;
        }
    }
    for name in &arguments.targets {
        targets.push(Target::connect(name, None, &plan)?);
    }
    let mut names = frames::Names::new();
    for &work in &arguments.work {
        let visits = load::run(work, &plan, &mut names, &targets)?;
        let rows = report::rows(&targets, &visits);
        let text = if arguments.json {
            report::json(work, &plan, &rows).to_string()
        } else {
            report::table(work, &plan, &rows)
        };
        say(format_args!("{text}"))?;
        if let Some(unreliable) = report::unreliable(&rows) {
            eprintln!("warning: {}: {unreliable}", work.name());
        }
    }
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}")
        .map_err(|error| Failure::new(ErrorKind::Io, format!("the results cannot be written: {error}")))
}

impl Arguments {
    fn plan(&self) -> Result<Plan, Failure> {
        let plan = Plan {
            language: self.language,
            connections: self.connections as usize,
            depth: self.depth as usize,
            value_bytes: self.value_bytes as usize,
            operations: self.operations as usize,
            repetitions: self.repetitions as usize,
            timeout: Duration::from_millis(self.timeout_ms),
            after_use: if self.keep_keys { Keys::Kept } else { Keys::Removed },
        };
        let misuse = |message| Err(Failure::new(ErrorKind::InvalidArgument, message));
        let (count, option) = match plan.language {
            Language::C10d => (plan.depth, "--depth"),
            // Each request is made beforehand, with its own id.
            Language::Native => (plan.operations.max(plan.depth), "--operations"),
        };
        if count * plan.value_bytes > BATCH_BYTES_MAX {
            return misuse(format!(
                "{option} times --value-bytes is over the limit of {BATCH_BYTES_MAX} bytes"
            ));
        }
        if let Some(work) = self.work.iter().find(|work| plan.connections < work.connections_min()) {
            let (name, fewest) = (work.name(), work.connections_min());
            return misuse(format!("{name} takes at least {fewest} --connections"));
        }
        Ok(plan)
    }
}

fn check_open_files(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    let files_max = open_files::raise_limit();
    // Groups stay connected from one repetition to the next, unless it is connecting that is measured.
    let stay = arguments.work.iter().any(|work| !work.connects_anew());
    let groups = if stay { arguments.targets.len().max(1) } else { 1 };
    let sides = if arguments.targets.is_empty() { 2 } else { 1 };
    let wanted = (plan.connections * groups * sides + OTHER_FILES) as u64;
    if wanted <= files_max {
        return Ok(());
    }
    let message = format!(
        "this takes {wanted} open files and the limit is {files_max}: raise it with ulimit -Hn, or ask for fewer \
         --connections"
    );
    Err(Failure::new(ErrorKind::LimitExceeded, message))
}

/// A server in this process.
struct Embedded {
    server: Server,
    cpu: CpuMeter,
}

impl Embedded {
    fn start() -> Result<Self, Failure> {
        let before = CpuMeter::tasks_of_this_process();
        let server = Server::start(ServerOptions::on("127.0.0.1", 0))
            .map_err(|error| Failure::new(ErrorKind::Io, error.to_string()))?;
        Ok(Self { server, cpu: CpuMeter::of_tasks_since(&before) })
    }

    fn name(&self) -> TargetName {
        TargetName::new("embedded", self.server.local_addr())
    }
}
