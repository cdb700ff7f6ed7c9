//! `rdzv store`: a shell's view of a store.

mod answer;
mod perform;
mod value;

use crate::endpoint::Endpoint;
use crate::failure::{EXIT_CODES, Failure, Report};
use crate::security::ClientSecurity;
use crate::units;
use answer::Format;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, Subcommand};
use rendezvous_core::driver::file_store::FileStoreOptions;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::error::ErrorKind;
use std::ffi::OsString;
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Read and write a store from a shell: of this library, or of a PyTorch job
///
/// The endpoint is that of --endpoint, else of RDZV_ENDPOINT, else of MASTER_ADDR and MASTER_PORT. A rank needs no
/// option.
///
/// Keys are those that PyTorch's TCPStore users see (on the wire each has a '/' before it). In PyTorch's
/// PrefixStore("p", store), key "k" is "p/k" here, or "k" with --scope p.
#[derive(Args)]
#[command(
    subcommand_value_name = "OPERATION",
    subcommand_help_heading = "Operations",
    after_help = format!("\
Answers go to stdout. Each value is followed by a newline; operations without a result print nothing. With --json \
each answer is one object a line; keys and values are strings there, or {{\"base64\": \"...\"}} where they are not \
UTF-8. Errors go to stderr, one sentence each, and leave stdout empty.

Durations are written as 30s, 500ms or 2min; a plain number is in milliseconds.

A VALUE of - is read from stdin, all bytes up to its end. What begins with a dash and is no number goes behind --.

Examples:
  export RDZV_ENDPOINT=node-1:29500
  rdzv store set master/host \"$(hostname)\"
  rdzv store get master/host --timeout-ms 60s       waits up to a minute for the key
  rdzv store set weights - < weights.bin
  rdzv store get weights --raw > copy.bin
  rdzv store add tickets 1                          a number of one's own for each caller
  rdzv store barrier epoch-7 4                      returns when four have called it
  rdzv store check a b && echo both are there
  rdzv store list --prefix run-1/ --raw | xargs -0 -n 1 rdzv store delete
  rdzv store set -- option --verbose

{EXIT_CODES}")
)]
pub(crate) struct StoreArguments {
    /// The store's server
    #[arg(long, global = true, value_name = "HOST[:PORT]", env = "RDZV_ENDPOINT")]
    endpoint: Option<Endpoint>,
    /// A file instead of a server; PyTorch's FileStores may share it
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "endpoint")]
    file: Option<PathBuf>,
    /// Prefix of all keys, as in PyTorch's PrefixStore; a second one is appended to the first
    #[arg(long = "scope", global = true, value_name = "PREFIX")]
    prefixes: Vec<OsString>,
    /// How long the operation may take; 0 looks once and does not wait for what is missing
    #[arg(long, global = true, value_name = "DURATION", env = "RDZV_TIMEOUT_MS", default_value = "300s", value_parser = units::milliseconds)]
    timeout_ms: Duration,
    /// How long to try to connect, with refused attempts repeated; 0 tries each address once
    #[arg(long, global = true, value_name = "DURATION", env = "RDZV_CONNECT_TIMEOUT_MS", default_value = "10s", value_parser = units::milliseconds)]
    connect_timeout_ms: Duration,
    /// No newline behind a value; list and multi-get end each item with a zero byte
    #[arg(long, global = true, conflicts_with = "json")]
    raw: bool,
    /// Answers and errors as JSON, one object a line
    #[arg(long, global = true, env = "RDZV_JSON", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    security: ClientSecurity,
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Subcommand)]
enum Operation {
    /// Store a value; the server has it when this ends
    Set {
        /// The key
        key: OsString,
        /// The value, or - for stdin
        #[arg(allow_negative_numbers = true)]
        value: OsString,
    },
    /// Print a value, once the key is there
    Get {
        /// The key
        key: OsString,
    },
    /// Add to a number and print the sum; a missing key counts as 0
    Add {
        /// The key
        key: OsString,
        /// What to add; may be negative
        #[arg(allow_negative_numbers = true, value_name = "N")]
        delta: i64,
    },
    /// Replace a value if it is the expected one, and print the value that is there then
    ///
    /// A missing key is set when EXPECTED is empty; otherwise nothing happens and EXPECTED is printed.
    CompareSet {
        /// The key
        key: OsString,
        /// The value that must be there, or - for stdin
        #[arg(allow_negative_numbers = true)]
        expected: OsString,
        /// The new value, or - for stdin
        #[arg(allow_negative_numbers = true)]
        desired: OsString,
    },
    /// End when all keys are there
    Wait {
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Print whether all keys are there (true or false); the exit code is 1 when not
    Check {
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Remove a key and print how many there were (1 or 0)
    Delete {
        /// The key
        key: OsString,
    },
    /// Print how many keys the server has, with those that belong to no user
    NumKeys,
    /// Print all keys in order, one a line
    List {
        /// Only the keys that begin so
        #[arg(long, value_name = "P", default_value = "", hide_default_value = true)]
        prefix: OsString,
    },
    /// Add bytes behind a value, which is created if missing
    Append {
        /// The key
        key: OsString,
        /// The bytes, or - for stdin
        #[arg(allow_negative_numbers = true)]
        value: OsString,
    },
    /// Print several values, one a line, once all keys are there
    MultiGet {
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
    },
    /// Store several values
    MultiSet {
        /// Keys and values; the key ends before the first =
        #[arg(required = true, value_name = "KEY=VALUE")]
        pairs: Vec<OsString>,
    },
    /// Put an item at the end of a queue
    QueuePush {
        /// The key
        key: OsString,
        /// The item, or - for stdin
        #[arg(allow_negative_numbers = true)]
        value: OsString,
    },
    /// Take the item at the front of a queue and print it, once there is one
    ///
    /// With --timeout-ms 0 an empty queue ends this at once, with exit code 1.
    QueuePop {
        /// The key
        key: OsString,
    },
    /// Print how many items a queue has
    QueueLen {
        /// The key
        key: OsString,
    },
    /// Arrive at a barrier and end when WORLD_SIZE have arrived
    ///
    /// A key serves one barrier. A caller that times out stays counted. Deleting the key resets the barrier.
    Barrier {
        /// The key
        key: OsString,
        /// How many have to arrive
        #[arg(value_parser = clap::value_parser!(i64).range(1..))]
        world_size: i64,
        /// Use plain keys under KEY, to meet ranks of a PyTorch PrefixStore
        #[arg(long)]
        by_keys: bool,
    },
    /// Print "alive" when the server answers
    Ping,
}

pub(crate) fn run(mut arguments: StoreArguments) -> ExitCode {
    let format = arguments.format();
    let performed = arguments.location().and_then(|location| {
        arguments.operation.prepare(&mut io::stdin().lock())?;
        let options = arguments.options();
        let store = match location {
            StoreLocation::Server(endpoint) => arguments.security.connect(&endpoint, options)?,
            StoreLocation::File(path) => {
                let timeouts = options.timeouts();
                Store::open_file(&path, FileStoreOptions { timeouts, ..FileStoreOptions::default() })?
            }
        };
        let prefixes = arguments.prefixes.iter();
        let store = prefixes.fold(store, |store, prefix| store.with_prefix(prefix.as_bytes()));
        arguments.operation.perform(&store, Timeout::Default)
    });
    let outcome = performed.and_then(|answer| {
        let written = answer.write(format, &mut BufWriter::new(io::stdout().lock()));
        written.map_err(|error| {
            Failure::new(
                ErrorKind::Io,
                format!("the operation is done, but its answer was not written: {error}"),
            )
        })?;
        Ok(answer.exit_code())
    });
    outcome.unwrap_or_else(|failure| failure.report("rdzv store", arguments.report()))
}

/// Where the store is.
enum StoreLocation {
    Server(Endpoint),
    File(PathBuf),
}

impl StoreArguments {
    const fn format(&self) -> Format {
        match (self.json, self.raw) {
            (true, _) => Format::Json,
            (false, true) => Format::Raw,
            (false, false) => Format::Text,
        }
    }

    const fn report(&self) -> Report {
        if self.json { Report::Json } else { Report::Text }
    }

    fn options(&self) -> StoreOptions {
        StoreOptions {
            timeout: self.timeout_ms,
            connect_timeout: self.connect_timeout_ms,
            ..StoreOptions::default()
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the command line")]
    fn location(&self) -> Result<StoreLocation, Failure> {
        if let Some(path) = &self.file {
            return Ok(StoreLocation::File(path.clone()));
        }
        if let Some(endpoint) = &self.endpoint {
            return Ok(StoreLocation::Server(endpoint.clone()));
        }
        let (Ok(host), Ok(port)) = (std::env::var("MASTER_ADDR"), std::env::var("MASTER_PORT")) else {
            return Err(Failure::new(
                ErrorKind::InvalidArgument,
                "which store? Give --endpoint HOST:PORT or --file PATH, or set RDZV_ENDPOINT, or MASTER_ADDR and \
                 MASTER_PORT",
            ));
        };
        Endpoint::new(&host, &port)
            .map(StoreLocation::Server)
            .map_err(|problem| Failure::new(ErrorKind::InvalidArgument, format!("MASTER_PORT: {problem}")))
    }
}
