//! `rdzv sessions`: who has a session at a server, and the end of one.

use crate::endpoint::Endpoint;
use crate::failure::{EXIT_CODES, Failure, Report};
use crate::security::ClientSecurity;
use crate::units;
use clap::{Args, Subcommand};
use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions, SessionInfo};
use rendezvous_core::error::ErrorKind;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// List the sessions of a server, and end them
///
/// A server with tokens answers a token with the right `all`. A session keeps the rights of its token until it connects
/// again, so after a token was removed from the server's file, `rdzv sessions end --token NAME` ends what it opened.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  rdzv sessions list --endpoint 10.0.0.5
  rdzv sessions end --endpoint 10.0.0.5 17 18
  rdzv sessions end --endpoint 10.0.0.5 --token trainer

{EXIT_CODES}"))]
pub(crate) struct SessionsArguments {
    /// The server
    #[arg(long, global = true, value_name = "HOST[:PORT]", env = "RDZV_ENDPOINT")]
    endpoint: Option<Endpoint>,
    #[command(flatten)]
    security: ClientSecurity,
    /// How long all of it may take
    #[arg(long, global = true, value_name = "DURATION", env = "RDZV_TIMEOUT_MS", default_value = "10s", value_parser = units::milliseconds_above_zero)]
    timeout_ms: Duration,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print each session: its number, whether it is connected, its token and its node
    List,
    /// End sessions as if their clients had died
    End {
        /// Numbers of the sessions
        #[arg(required_unless_present = "token")]
        sessions: Vec<u64>,
        /// All sessions of the token with this name, except this program's own
        #[arg(long, value_name = "NAME", conflicts_with = "sessions")]
        token: Option<String>,
    },
}

pub(crate) fn run(arguments: &SessionsArguments) -> ExitCode {
    let report = if arguments.json { Report::Json } else { Report::Text };
    match act(arguments) {
        Ok(is_done) => ExitCode::from(u8::from(!is_done)),
        Err(failure) => failure.report("rdzv sessions", report),
    }
}

/// Returns whether all that was to be ended was there.
fn act(arguments: &SessionsArguments) -> Result<bool, Failure> {
    let missing = "no endpoint: give --endpoint or set RDZV_ENDPOINT";
    let endpoint = arguments.endpoint.as_ref();
    let endpoint = endpoint.ok_or_else(|| Failure::new(ErrorKind::InvalidArgument, missing))?;
    let timeout = arguments.timeout_ms;
    let options = NativeClientOptions {
        node: "rdzv sessions".into(),
        connect_timeout: timeout,
        ..arguments.security.options()?
    };
    let failed = |error| Failure::from(rendezvous_core::CallError::from(error));
    let client = NativeClient::connect(&endpoint.host, endpoint.port, options).map_err(failed)?;
    match &arguments.action {
        Action::List => {
            for session in client.sessions(timeout).map_err(failed)? {
                print(&session, arguments.json)?;
            }
            Ok(true)
        }
        Action::End { sessions, token } => {
            let of_token = |name: &String| -> Result<Vec<u64>, Failure> {
                let all = client.sessions(timeout).map_err(failed)?;
                // Its own ends with this program.
                let others = all.iter().filter(|one| Some(one.session) != client.session());
                Ok(others.filter(|one| *one.auth_token == **name).map(|one| one.session).collect())
            };
            let chosen = token.as_ref().map_or_else(|| Ok(sessions.clone()), of_token)?;
            let mut were_all_there = true;
            for session in chosen {
                were_all_there &= client.end_session(session, timeout).map_err(failed)?;
            }
            Ok(were_all_there)
        }
    }
}

fn print(session: &SessionInfo, as_json: bool) -> Result<(), Failure> {
    let SessionInfo { session, is_connected, auth_token, node } = session;
    let line = if as_json {
        json!({ "session": session, "connected": is_connected, "token": auth_token, "node": node })
            .to_string()
    } else {
        let state = if *is_connected { "connected" } else { "detached" };
        // Names come from clients.
        let printed = |name: &str| if name.is_empty() { "-".into() } else { name.escape_debug().to_string() };
        format!("{session} {state} token={} node={}", printed(auth_token), printed(node))
    };
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::new(ErrorKind::Io, error.to_string()))
}
