//! `rdzv server`.

use crate::endpoint::Endpoint;
use crate::failure::complain;
use crate::open_files;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use rendezvous_core::driver::server::{Family, Listen, Server, ServerFailure, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::{Event, Severity};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

/// Run a store server that PyTorch processes and librendezvous clients can use side by side
///
/// Prints `listening on ADDR:PORT` as its first line on stdout once clients can connect; logs go to stderr. SIGTERM
/// and SIGINT stop it with exit code 0.
///
/// A PyTorch job uses it unchanged: start this first, then set MASTER_ADDR and MASTER_PORT to its address and
/// TORCHELASTIC_USE_AGENT_STORE=True for the ranks, or pass TCPStore(host, port, is_master=False).
#[derive(Args)]
#[command(after_help = "\
Examples:
  rdzv server                              serve this host only, on a free port
  rdzv server --bind 10.0.0.5:29500        serve that interface
  rdzv server --bind [::]:29500 --dual-stack    every interface, IPv6 and IPv4

There is no authentication: every client that reaches the port can read and write every key.")]
pub(crate) struct ServerArguments {
    /// Address and port to listen on, exactly as given; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", env = "RDZV_BIND", default_value = "127.0.0.1:0")]
    bind: Endpoint,
    /// Let `[::]` take IPv4 clients too
    #[arg(long, env = "RDZV_DUAL_STACK", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    dual_stack: bool,
    /// Most connections at a time
    #[arg(long, value_name = "N", env = "RDZV_CONNECTIONS_MAX", default_value_t = ServerLimits::default().connections_max)]
    connections_max: usize,
    /// Most bytes of keys, values and queued items; a key is charged 128 beside its bytes, an item 32
    #[arg(long, value_name = "BYTES", env = "RDZV_STORED_BYTES_MAX", default_value_t = ServerLimits::default().engine.stored_bytes_max)]
    stored_bytes_max: u64,
    /// What to log on stderr
    #[arg(long, value_name = "LEVEL", env = "RDZV_LOG", value_enum, default_value_t = LogLevel::Warn)]
    log: LogLevel,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum LogLevel {
    /// Nothing
    Off,
    /// Connections that broke the protocol or a limit
    Warn,
    /// Every connection that comes and goes
    Info,
}

pub(crate) fn run(arguments: &ServerArguments) -> ExitCode {
    let mut limits = ServerLimits { connections_max: arguments.connections_max, ..ServerLimits::default() };
    limits.engine.stored_bytes_max = arguments.stored_bytes_max;
    let Endpoint { host, port } = arguments.bind.clone();
    let family = if arguments.dual_stack { Family::DualStack } else { Family::AsGiven };
    let log = match Log::start() {
        Ok(log) => log,
        Err(error) => {
            complain(&format_args!("rdzv server: no thread for the log: {error}"));
            return ExitCode::FAILURE;
        }
    };
    // One open file a connection.
    open_files::raise_limit();
    let server = match Server::start(ServerOptions {
        listen: Listen::Address { host, port, family },
        limits,
        keep_alive: Some(KeepAlive::default()),
        observer: log.observer(arguments.log),
    }) {
        Ok(server) => Arc::new(server),
        Err(error) => {
            complain(&format_args!("rdzv server: {error}"));
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = stop_on_signal(&server) {
        complain(&format_args!("rdzv server: cannot watch for signals: {error}"));
        return ExitCode::FAILURE;
    }
    // The parent process waits for this line. A closed stdout does not end the server.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on {}", server.local_addr()).and_then(|()| stdout.flush()).ok();
    drop(stdout);
    let failure = server.wait();
    log.finish();
    match failure {
        ServerFailure::Stopped => ExitCode::SUCCESS,
        failure => {
            complain(&format_args!("rdzv server: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// The first signal stops the server; a second one ends the process at once.
fn stop_on_signal(server: &Arc<Server>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let server = Arc::clone(server);
    std::thread::Builder::new().name("rdzv-signals".into()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            std::thread::spawn(move || server.stop().ok());
        }
        if let Some(signal) = signals.next() {
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// Log on stderr, written by its own thread: a slow or stopped reader does not block the server.
struct Log {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
    done: Receiver<()>,
}

/// Lines that wait for stderr at most.
const LINES_MAX: usize = 1024;
/// How long the end of the server waits for the last lines.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

impl Log {
    fn start() -> std::io::Result<Self> {
        let (lines, queued) = mpsc::sync_channel::<String>(LINES_MAX);
        let (notify, done) = mpsc::channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        std::thread::Builder::new().name("rdzv-log".into()).spawn(move || {
            for line in queued {
                let mut stderr = std::io::stderr().lock();
                // A stderr that is closed is no reason to end.
                writeln!(stderr, "{line}").ok();
                match lost.swap(0, Ordering::Relaxed) {
                    0 => {}
                    count => {
                        drop(writeln!(stderr, "warn {count} log lines were dropped: stderr is too slow"))
                    }
                }
            }
            notify.send(()).ok();
        })?;
        Ok(Self { lines, dropped, done })
    }

    fn observer(&self, level: LogLevel) -> Box<dyn FnMut(&Event) + Send> {
        let (lines, dropped) = (self.lines.clone(), Arc::clone(&self.dropped));
        Box::new(move |event| {
            let Some(line) = line(level, event) else { return };
            if let Err(TrySendError::Full(_)) = lines.try_send(line) {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Waits a moment for what is queued; the server and its observer are gone.
    fn finish(self) {
        drop(self.lines);
        self.done.recv_timeout(LAST_LINES_TIMEOUT).ok();
    }
}

/// What is logged of an event, if anything.
fn line(level: LogLevel, event: &Event) -> Option<String> {
    let (least, severity) = match event.severity() {
        Severity::Routine | Severity::Notable => (LogLevel::Info, "info"),
        Severity::Warning => (LogLevel::Warn, "warn"),
    };
    (level >= least).then(|| format!("{severity} {event}"))
}
