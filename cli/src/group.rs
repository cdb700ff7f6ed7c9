//! `rdzv group`: who is in an RPC group.

use crate::endpoint::Endpoint;
use crate::failure::{Failure, Report, complain};
use crate::log::one_line;
use crate::security::ClientSecurity;
use crate::units;
use clap::Args;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::error::ErrorKind;
use rendezvous_rpc::device_map::GroupKind;
use rendezvous_rpc::driver::group::{GroupObserver, ObserverOptions, ObservingError};
use rendezvous_rpc::membership::keys::IS_STATIC;
use rendezvous_rpc::membership::observer::{Observation, ObserverError};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Show the workers of an RPC group of this library or of PyTorch, and those that join and leave
///
/// Nothing is written to the store. The first line is the kind of the group. Then follows a line for each worker:
/// `came NAME ID ADDRESS` when it joins, `went NAME ID` when it leaves.
#[derive(Args)]
#[command(after_help = "\
Durations are written as 30s, 500ms or 2min; a plain number is in milliseconds.

Exit codes:
  0  nothing was seen for --quiet-ms, or stdout was closed by its reader
  1  there is no group (with --quiet-ms; otherwise its first worker is waited for)
  2  wrong usage
  3  timed out
  4  no connection: refused, no address for the host, or no way to it
  5  the server went away, or the keys are not those of a group
  6  anything else")]
pub(crate) struct GroupArguments {
    /// The store's server
    #[arg(long, value_name = "HOST[:PORT]", env = "RDZV_ENDPOINT")]
    endpoint: Endpoint,
    /// Prefix of the group's keys; the second group of a process uses rpc_prefix_1
    #[arg(long = "scope", value_name = "PREFIX", default_value = "rpc_prefix_0")]
    prefix: String,
    /// End when nothing was seen for so long; 0 goes on
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = units::milliseconds)]
    quiet_ms: Duration,
    /// How often to look; a server of this library also reports changes at once
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = units::milliseconds_above_zero)]
    pause_ms: Duration,
    /// How long to try to connect, with refused attempts repeated; 0 tries each address once
    #[arg(long, value_name = "DURATION", env = "RDZV_CONNECT_TIMEOUT_MS", default_value = "10s", value_parser = units::milliseconds)]
    connect_timeout_ms: Duration,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: ClientSecurity,
}

pub(crate) fn run(arguments: &GroupArguments) -> ExitCode {
    let report = if arguments.json { Report::Json } else { Report::Text };
    match watch(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("rdzv group", report),
    }
}

fn watch(arguments: &GroupArguments) -> Result<(), Failure> {
    let options = StoreOptions { connect_timeout: arguments.connect_timeout_ms, ..StoreOptions::default() };
    let store = arguments.security.connect(&arguments.endpoint, options)?;
    let store = store.with_prefix(arguments.prefix.as_bytes());
    let options = ObserverOptions { pause: arguments.pause_ms };
    let observer = GroupObserver::start(&store, options);
    let observer = observer.map_err(|error| match error {
        ObservingError::Store(error) => error.into(),
        ObservingError::Thread(_) => Failure::new(ErrorKind::Io, error.to_string()),
    })?;
    let ends = !arguments.quiet_ms.is_zero();
    let quiet = if ends { arguments.quiet_ms } else { Duration::from_secs(3600) };
    let mut is_there = store.check(&[IS_STATIC.as_bytes()], Timeout::Default)?;
    let no_group =
        format!("there is no RPC group under the prefix \"{}\" at {}", arguments.prefix, arguments.endpoint);
    if !is_there && !ends {
        complain(&format_args!("rdzv group: {no_group}: waiting for its first worker"));
    }
    let token = CancelToken::new();
    loop {
        match observer.next(quiet, &token).map_err(|error| unseen(&error))? {
            Some(observation) => {
                is_there = true;
                let line = if arguments.json { json_of(&observation) } else { text_of(&observation) };
                if writeln!(io::stdout().lock(), "{line}").is_err() {
                    // The reader of stdout has closed it.
                    return Ok(());
                }
            }
            None if ends && is_there => return Ok(()),
            None if ends => return Err(Failure::new(ErrorKind::NotFound, no_group)),
            None => {}
        }
    }
}

/// Why nothing more is seen.
fn unseen(error: &ObserverError) -> Failure {
    let kind = match error {
        ObserverError::Roster(_) | ObserverError::Kind { .. } => ErrorKind::Corrupt,
        ObserverError::Store { .. } => ErrorKind::ServerGone,
    };
    Failure::new(kind, error.to_string())
}

const fn kind_name(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Static => "static",
        GroupKind::Dynamic => "dynamic",
    }
}

fn text_of(observation: &Observation) -> String {
    match observation {
        Observation::Begun(kind) => kind_name(*kind).into(),
        Observation::Joined(seen) => {
            format!("came {} {} {}", seen.worker.name, seen.worker.id, one_line(&seen.address))
        }
        Observation::Left(worker) => format!("went {} {}", worker.name, worker.id),
    }
}

fn json_of(observation: &Observation) -> String {
    match observation {
        Observation::Begun(kind) => json!({ "group": kind_name(*kind) }),
        Observation::Joined(seen) => {
            json!({ "came": seen.worker.name.as_str(), "id": seen.worker.id, "address": &*seen.address })
        }
        Observation::Left(worker) => json!({ "went": worker.name.as_str(), "id": worker.id }),
    }
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendezvous_rpc::membership::keys::parse_roster;

    #[test]
    fn a_list_that_is_none_is_no_server_that_is_gone() {
        let roster = parse_roster(b"nobody,").expect_err("no number");
        assert_eq!(unseen(&roster.into()).kind, ErrorKind::Corrupt);
        assert_eq!(unseen(&ObserverError::Kind { value: "maybe".into() }).kind, ErrorKind::Corrupt);
        assert_eq!(unseen(&ObserverError::Store { message: "reset".into() }).kind, ErrorKind::ServerGone);
    }
}
