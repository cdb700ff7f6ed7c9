//! `rdzv server`.

use crate::endpoint::Endpoint;
use crate::open_files;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use rendezvous_core::driver::server::{Family, Listen, Server, ServerFailure, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::Event;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

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

There is no authentication: whoever reaches the port can read and write every key.")]
pub(crate) struct ServerArguments {
    /// Address and port to listen on, exactly as given; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", env = "RDZV_BIND", default_value = "127.0.0.1:0")]
    bind: Endpoint,
    /// Let [::] take IPv4 clients too
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
    let level = arguments.log;
    // One open file a connection.
    open_files::raise_limit();
    let server = match Server::start(ServerOptions {
        listen: Listen::Address { host, port, family },
        limits,
        keep_alive: Some(KeepAlive::default()),
        observer: Box::new(move |event| log(level, event)),
    }) {
        Ok(server) => Arc::new(server),
        Err(error) => {
            eprintln!("rdzv server: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = stop_on_signal(&server) {
        eprintln!("rdzv server: cannot watch for signals: {error}");
        return ExitCode::FAILURE;
    }
    // Whoever started this waits for the line; a closed stdout is no reason to end.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on {}", server.local_addr()).and_then(|()| stdout.flush()).ok();
    drop(stdout);
    match server.wait() {
        ServerFailure::Stopped => ExitCode::SUCCESS,
        failure => {
            eprintln!("rdzv server: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn stop_on_signal(server: &Arc<Server>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    let server = Arc::clone(server);
    std::thread::Builder::new().name("rdzv-signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            server.stop().ok();
        }
    })?;
    Ok(())
}

fn log(level: LogLevel, event: &Event) {
    use rendezvous_core::node::server::CloseReason;
    match event {
        Event::Closed { reason: CloseReason::PeerClosed | CloseReason::Lost(_), .. }
        | Event::Accepted { .. }
            if level < LogLevel::Info => {}
        _ if level == LogLevel::Off => {}
        Event::Accepted { conn, peer } => eprintln!("info {conn:?} accepted peer={peer}"),
        Event::Closed { conn, peer, reason } => {
            let severity = match reason {
                CloseReason::PeerClosed | CloseReason::Lost(_) => "info",
                _ => "warn",
            };
            eprintln!("{severity} {conn:?} closed peer={peer}: {reason}");
        }
    }
}
