//! `rdzv server`.

use crate::endpoint::Endpoint;
use crate::failure::complain;
use crate::log::{Configuration, LogArguments, LogLevel, LogStyle};
use crate::open_files;
use crate::security::ServerTls;
use crate::units;
use bytesize::ByteSize;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use rendezvous_core::access::Network;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::server::{Family, Listen, Server, ServerFailure, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::token_file::ServerTokens;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::{Event, Severity};
use rendezvous_core::time::Instant;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

/// Run a store server that PyTorch processes and librendezvous clients can use side by side
///
/// Prints `listening on ADDR:PORT` as its first line on stdout once clients can connect, and a line for each further
/// address; logs go to stderr. SIGTERM
/// and SIGINT stop it with exit code 0.
///
/// A PyTorch job uses it unchanged: start this first, then set MASTER_ADDR and MASTER_PORT to its address and
/// TORCHELASTIC_USE_AGENT_STORE=True for the ranks, or pass TCPStore(host, port, is_master=False).
#[derive(Args)]
#[command(after_help = "\
Examples:
  rdzv server                                   serve this host only, at 127.0.0.1:29400
  rdzv server --bind 10.0.0.5                   serve that interface, on port 29400
  rdzv server --bind 10.0.0.5 --bind 127.0.0.1  that interface and this host
  rdzv server --bind [::]:29500 --dual-stack    every interface, IPv6 and IPv4
  rdzv server --bind 127.0.0.1:0                on a free port
  rdzv server --bind 10.0.0.5 --tls-cert server.pem --tls-key server.key
                                                native clients use TLS, with --tls-ca

An endpoint without a port means port 29400, here and in the other commands. PyTorch's 29500 is left
to jobs with env:// or static ranks on the same host.

  rdzv server --bind 10.0.0.5 --auth-token-file tokens
                                                ask clients for a token (openssl rand -hex 32 > tokens)

Without --auth-token-file, every client that reaches the port can read and write every key.")]
pub(crate) struct ServerArguments {
    /// Address and port to listen on, exactly as given; may be given several times; port 0 takes a free one
    #[arg(
        long,
        value_name = "ADDR[:PORT]",
        env = "RDZV_BIND",
        value_delimiter = ',',
        default_value = "127.0.0.1:29400"
    )]
    bind: Vec<Endpoint>,
    /// Let `[::]` take IPv4 clients too
    #[arg(long, env = "RDZV_DUAL_STACK", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    dual_stack: bool,
    /// Most connections at a time
    #[arg(long, value_name = "N", env = "RDZV_CONNECTIONS_MAX", value_parser = units::count_above_zero,
          default_value_t = ServerLimits::default().connections_max)]
    connections_max: usize,
    /// Most bytes of keys, values and queued items; a key is charged 128 beside its bytes, an item 32
    #[arg(long, value_name = "SIZE", env = "RDZV_STORED_BYTES_MAX", value_parser = units::bytes_above_zero,
          default_value = "4GiB")]
    stored_bytes_max: ByteSize,
    /// Ask native clients for a token of this file, in which each line is `NAME SECRET RIGHTS…`; changes hold for
    /// clients that connect later
    #[arg(long, value_name = "FILE", env = "RDZV_TOKEN_FILE")]
    auth_token_file: Option<PathBuf>,
    /// Serve PyTorch's clients, which have no token and no TLS, from these networks only; `loopback` is this host
    /// [default: all networks, or none with --auth-token-file or --tls-client-ca]
    #[arg(long, value_name = "CIDR,...", env = "RDZV_ALLOW_C10D_FROM")]
    allow_c10d_from: Option<String>,
    #[command(flatten)]
    tls: ServerTls,
    #[command(flatten)]
    log: LogArguments,
}

pub(crate) fn run(arguments: &ServerArguments, configuration: &Configuration) -> ExitCode {
    let style = arguments.log.of("rdzv server");
    let failed = |error: &dyn std::fmt::Display| {
        if style.includes(LogLevel::Error) {
            complain(&style.line(LogLevel::Error, &error.to_string()));
        }
        ExitCode::FAILURE
    };
    let mut limits = ServerLimits { connections_max: arguments.connections_max, ..ServerLimits::default() };
    limits.engine.stored_bytes_max = arguments.stored_bytes_max.as_u64();
    let family = if arguments.dual_stack { Family::DualStack } else { Family::AsGiven };
    let mut addresses =
        arguments.bind.iter().cloned().map(|Endpoint { host, port }| Listen::Address { host, port, family });
    let Some(listen) = addresses.next() else {
        failed(&"--bind has no address");
        return ExitCode::from(2);
    };
    let auth_tokens = match arguments.auth_token_file.as_deref().map(ServerTokens::open).transpose() {
        Ok(tokens) => tokens,
        Err(error) => {
            failed(&error);
            return ExitCode::from(2);
        }
    };
    let c10d_from = match arguments.allow_c10d_from.as_deref().map(Network::parse_list).transpose() {
        Ok(networks) => networks,
        Err(error) => {
            failed(&format_args!("--allow-c10d-from: {error}"));
            return ExitCode::from(2);
        }
    };
    let log = match Log::start(style) {
        Ok(log) => log,
        Err(error) => return failed(&format_args!("no thread for the log: {error}")),
    };
    let tls = match arguments.tls.acceptor() {
        Ok(tls) => tls,
        Err(error) => return failed(&error),
    };
    // One open file a connection.
    open_files::raise_limit();
    let server = match Server::start(ServerOptions {
        listen,
        more: addresses.collect(),
        limits,
        keep_alive: Some(KeepAlive::default()),
        tls,
        auth_tokens,
        c10d_from,
        observer: log.observer(style),
    }) {
        Ok(server) => Arc::new(server),
        Err(error) => return failed(&error),
    };
    if let Err(error) = stop_on_signal(&server) {
        return failed(&format_args!("cannot watch for signals: {error}"));
    }
    if style.includes(LogLevel::Info) {
        let addresses: Vec<String> = server.local_addrs().iter().map(ToString::to_string).collect();
        let (version, incarnation) = (env!("CARGO_PKG_VERSION"), server.incarnation());
        let message =
            format!("version {version}, incarnation {incarnation:016x}, listens on {}", addresses.join(", "));
        log.lines.try_send(style.configuration(&message, configuration)).ok();
    }
    // The parent process waits for the first line. A closed stdout does not end the server.
    let mut stdout = std::io::stdout().lock();
    let mut lines = server.local_addrs().iter().map(|address| writeln!(stdout, "listening on {address}"));
    lines.try_for_each(|written| written).and_then(|()| stdout.flush()).ok();
    drop(stdout);
    let failure = server.wait();
    log.finish();
    match failure {
        ServerFailure::Stopped => ExitCode::SUCCESS,
        failure => failed(&failure),
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
    unwritten: Arc<Unwritten>,
    done: Receiver<()>,
}

/// Numbers of lines that were not written and have not been reported.
#[derive(Default)]
struct Unwritten {
    /// Because stderr was too slow.
    dropped: AtomicU64,
    /// About closed connections or ends of sessions, because there were too many.
    omitted: AtomicU64,
}

/// Lines that wait for stderr at most.
const LINES_MAX: usize = 1024;
/// How long the end of the server waits for the last lines.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

impl Log {
    fn start(style: LogStyle) -> std::io::Result<Self> {
        let (lines, queued) = mpsc::sync_channel::<String>(LINES_MAX);
        let (notify, done) = mpsc::channel();
        let unwritten = Arc::new(Unwritten::default());
        let counted = Arc::clone(&unwritten);
        std::thread::Builder::new().name("rdzv-log".into()).spawn(move || {
            // A stderr that is closed is no reason to end.
            let write = |line: &str| drop(writeln!(std::io::stderr().lock(), "{line}"));
            let report = |count: u64, what: &str| {
                if count > 0 {
                    write(&style.line(LogLevel::Warn, &format!("{count} {what}")));
                }
            };
            let report_omitted = || {
                let count = counted.omitted.swap(0, Ordering::Relaxed);
                report(
                    count,
                    "further connections or sessions without a run ended; the lines about them are omitted",
                );
            };
            let (clock, mut reported_at) = (Clock::new(), Instant::ORIGIN);
            loop {
                match queued.recv_timeout(LIMIT_PERIOD) {
                    Ok(line) => write(&line),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let dropped = counted.dropped.swap(0, Ordering::Relaxed);
                report(dropped, "log lines were dropped: stderr is too slow");
                let now = clock.now();
                if now.since(reported_at) >= LIMIT_PERIOD {
                    reported_at = now;
                    report_omitted();
                }
            }
            report_omitted();
            notify.send(()).ok();
        })?;
        Ok(Self { lines, unwritten, done })
    }

    fn observer(&self, style: LogStyle) -> Box<dyn FnMut(&Event) + Send> {
        let (lines, unwritten) = (self.lines.clone(), Arc::clone(&self.unwritten));
        let (mut limits, clock) = (LineLimits::default(), Clock::new());
        Box::new(move |event| {
            let Some(line) = line(style, event) else { return };
            if !limits.admit(event, clock.now()) {
                unwritten.omitted.fetch_add(1, Ordering::Relaxed);
            } else if let Err(TrySendError::Full(_)) = lines.try_send(line) {
                unwritten.dropped.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Waits a moment for what is queued; the server and its observer are gone.
    fn finish(self) {
        drop(self.lines);
        self.done.recv_timeout(LAST_LINES_TIMEOUT).ok();
    }
}

/// Bounds on the rates of log lines. Strangers can cause lines about closed connections, and clients those about ends of
/// sessions that are in no run. They must not be able to fill the log's disk, nor to keep the other kind out of the log.
#[derive(Default)]
struct LineLimits {
    closed: LineLimit,
    ended: LineLimit,
}

impl LineLimits {
    /// Returns whether the line about an event is logged.
    fn admit(&mut self, event: &Event, now: Instant) -> bool {
        match event {
            Event::Closed { .. } => self.closed.admit(now),
            Event::SessionEnded { run_id: None, .. } => self.ended.admit(now),
            _ => true,
        }
    }
}

/// Bound on the rate of lines of one kind.
#[derive(Default)]
struct LineLimit {
    /// Start of the period that is counted.
    since: Instant,
    /// Lines in this period.
    logged: u32,
}

/// Most lines of one kind in one period.
const LINES_PER_PERIOD_MAX: u32 = 500;
/// Period in which these lines are counted, and after which the number of omitted ones is written.
const LIMIT_PERIOD: Duration = Duration::from_secs(60);

impl LineLimit {
    /// Returns whether a further line is logged.
    fn admit(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= LIMIT_PERIOD {
            *self = Self { since: now, logged: 0 };
        }
        let is_admitted = self.logged < LINES_PER_PERIOD_MAX;
        self.logged += u32::from(is_admitted);
        is_admitted
    }
}

/// The line for an event, if it is logged.
fn line(style: LogStyle, event: &Event) -> Option<String> {
    let level = match event.severity() {
        Severity::Routine => LogLevel::Debug,
        Severity::Notable => LogLevel::Info,
        Severity::Warning => LogLevel::Warn,
    };
    style.includes(level).then(|| style.line(level, &event.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rendezvous_core::ids::ConnId;
    use rendezvous_core::node::server::CloseReason;
    use rendezvous_core::session::table::SessionId;
    use rendezvous_core::wire::native::Why;

    #[test]
    fn the_default_of_stored_bytes_is_the_librarys() {
        #[derive(Parser)]
        struct Arguments {
            #[command(flatten)]
            server: ServerArguments,
        }
        let given = Arguments::parse_from(["rdzv", "--bind", "h"]).server;
        assert_eq!(given.stored_bytes_max.as_u64(), ServerLimits::default().engine.stored_bytes_max);
    }

    #[test]
    fn a_flood_of_closed_connections_is_logged_in_part() {
        let (mut limits, start) = (LineLimits::default(), Instant::ORIGIN);
        let peer = "127.0.0.1:1".parse().expect("an address");
        let conn = ConnId { index: 0, generation: 0 };
        let closed = Event::Closed { conn, peer, reason: CloseReason::PeerClosed };
        let ended = |run_id: Option<&str>| Event::SessionEnded {
            session: SessionId(1),
            node: (*b"a").into(),
            run_id: run_id.map(Into::into),
            why: Why::Connection,
        };
        let logged = (0..1000).filter(|_| limits.admit(&closed, start)).count();
        assert_eq!(logged, LINES_PER_PERIOD_MAX as usize);
        assert!(limits.admit(&ended(None), start), "it is of another kind");
        let logged = (0..1000).filter(|_| limits.admit(&ended(None), start)).count();
        assert_eq!(logged, LINES_PER_PERIOD_MAX as usize - 1);
        assert!((0..1000).all(|_| limits.admit(&ended(Some("run")), start)));
        assert!(!limits.admit(&closed, start + LIMIT_PERIOD / 2), "the period is not over");
        assert!(limits.admit(&closed, start + LIMIT_PERIOD));
    }
}
