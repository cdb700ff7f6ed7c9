//! The flags of `rdzv run`: torchrun's, and what they mean.

use super::numa::Binding;
use super::usage::Usage;
use super::{processors, surroundings};
use crate::log::{Configuration, LogArguments};
use crate::security::NodeTls;
use crate::units;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use rendezvous_agent::log_layout::{Files, LogSettings};
use rendezvous_agent::spec::RankAssignment;
use rendezvous_agent::streams::{LocalRanksFilter, StdSetting, parse_needles};
use rendezvous_core::driver::rendezvous::{Context, with_units};
use rendezvous_core::rendezvous::parameters::{ParametersError, RendezvousParameters};
use rendezvous_core::rendezvous::parse::{Endpoint, parse_config};
use rendezvous_core::rendezvous::rdzv_settings::{RDZV_BACKEND, RdzvError, RdzvSettings};
use rendezvous_core::rendezvous::registry::RegistryError;
use rendezvous_core::rendezvous::static_settings::{StaticError, StaticSettings};
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Run a program as an elastic job: start workers here, meet the other nodes, restart what fails
///
/// The flags are torchrun's, in its spellings with dashes or underscores, and take their defaults from the same PET_*
/// variables. Any program will do: COMMAND is run with Python if it ends in .py or -m is given, and directly otherwise.
/// A flag may be shortened as long as it is clear which is meant. Flags of rdzv run end where COMMAND begins.
#[derive(Args)]
#[command(
    infer_long_args = true,
    after_help = "\
Examples:
  rdzv run --nproc-per-node 4 --max-restarts 3 ./trainer --epochs 9
      four workers on this host, started anew up to three times when one fails
  rdzv run --nproc-per-node 8 --nnodes 2 --rdzv-id job7 --rdzv-endpoint node0 train.py
      the same line on both hosts; the server runs on node0
  rdzv run --nnodes 2:8 --max-restarts 3 --rdzv-id job7 --rdzv-endpoint node0 ./trainer
      goes on with as many hosts as there are, from two to eight
  rdzv run --nnodes 2 --node-rank 1 --master-addr node0 ./trainer
      ranks are given by hand; nodes of torchrun may take part in the same job

Every worker finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the rest of torchrun's
variables in its environment. If a worker fails, all of the node's workers are stopped, the nodes meet
again, and the workers start anew.

Durations are written as 30s, 500ms or 2min, also in --rdzv-conf; a plain number is in seconds.

Exit codes:
  0  all workers ended well, or this node stood by and was not needed
  1  a worker failed, or a signal stopped the job; stderr says why
  2  wrong usage"
)]
pub(crate) struct RunArguments {
    /// Nodes of the job, as N or MIN:MAX
    #[arg(
        long,
        env = "PET_NNODES",
        allow_negative_numbers = true,
        default_value = "1:1",
        value_name = "N|MIN:MAX"
    )]
    nnodes: String,
    /// Workers on this node: a number, cpu, gpu, or auto (gpu if there are any, else cpu)
    #[arg(
        long,
        alias = "nproc_per_node",
        env = "PET_NPROC_PER_NODE",
        allow_negative_numbers = true,
        default_value = "1",
        value_name = "N|WORD"
    )]
    nproc_per_node: String,
    /// How the nodes meet: rdzv (a server of this library), static (ranks given by hand); c10d means rdzv [default: rdzv;
    /// static if there is a fixed number of nodes, no endpoint, and a master address]
    #[arg(long, alias = "rdzv_backend", env = "PET_RDZV_BACKEND", value_name = "NAME")]
    rdzv_backend: Option<String>,
    /// Where the nodes meet, as HOST or HOST:PORT; the first node on HOST serves there
    #[arg(
        long,
        alias = "rdzv_endpoint",
        env = "PET_RDZV_ENDPOINT",
        default_value = "",
        value_name = "HOST[:PORT]"
    )]
    rdzv_endpoint: String,
    /// The job: nodes that say the same are one group
    #[arg(long, alias = "rdzv_id", env = "PET_RDZV_ID", default_value = "none", value_name = "ID")]
    rdzv_id: String,
    /// More of the rendezvous, as KEY=VALUE,KEY=VALUE: join_timeout, last_call_timeout, keep_alive_interval, ...
    #[arg(long, alias = "rdzv_conf", env = "PET_RDZV_CONF", default_value = "", value_name = "CONF")]
    rdzv_conf: String,
    /// The token that this node proves to the server, which must prove it, too; and all tokens, where the node hosts the server
    #[arg(long, env = "RDZV_TOKEN_FILE", value_name = "FILE")]
    auth_token_file: Option<String>,
    /// One node by itself, with a rendezvous of its own on a free port
    #[arg(long, env = "PET_STANDALONE", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    standalone: bool,
    /// How often the workers are started again after a failure of this node's
    #[arg(
        long,
        alias = "max_restarts",
        env = "PET_MAX_RESTARTS",
        allow_negative_numbers = true,
        default_value_t = 0,
        value_name = "N"
    )]
    pub(super) max_restarts: u32,
    /// How often to look for new nodes where the rendezvous does not tell of them by itself
    #[arg(long, alias = "monitor_interval", env = "PET_MONITOR_INTERVAL", allow_negative_numbers = true, default_value = "100ms", value_name = "DURATION", value_parser = units::seconds)]
    pub(super) monitor_interval: Duration,
    /// What the workers of this node do; each role has ranks of its own beside the global ones
    #[arg(long, env = "PET_ROLE", default_value = "default", value_name = "NAME")]
    pub(super) role: String,
    /// COMMAND is a Python module
    #[arg(short = 'm', long, env = "PET_MODULE", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(super) module: bool,
    /// Run COMMAND directly, even if it ends in .py
    #[arg(long, alias = "no_python", env = "PET_NO_PYTHON", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(super) no_python: bool,
    /// Run COMMAND with Python, whatever it ends in
    #[arg(long, alias = "run_path", env = "PET_RUN_PATH", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(super) run_path: bool,
    /// Taken so that torchrun's command lines run; a program is always started as a program
    #[arg(long, alias = "start_method", env = "PET_START_METHOD", hide = true, value_parser = ["spawn", "fork", "forkserver"])]
    start_method: Option<String>,
    /// The rank of this node; static only
    #[arg(
        long,
        alias = "node_rank",
        env = "PET_NODE_RANK",
        allow_negative_numbers = true,
        default_value_t = 0,
        value_name = "RANK"
    )]
    node_rank: u32,
    /// Where the workers' store is: the address of node 0 [static: 127.0.0.1; else that of node 0 in each round]
    #[arg(long, alias = "master_addr", env = "PET_MASTER_ADDR", value_name = "HOST")]
    master_addr: Option<String>,
    /// The port of the workers' store [static: 29500; else a free one in each round]
    #[arg(
        long,
        alias = "master_port",
        env = "PET_MASTER_PORT",
        allow_negative_numbers = true,
        value_name = "PORT"
    )]
    master_port: Option<u16>,
    /// Where other nodes reach this one, if its host name will not do
    #[arg(long, alias = "local_addr", env = "PET_LOCAL_ADDR", value_name = "HOST")]
    local_addr: Option<String>,
    /// Where this node listens if it serves the rendezvous or the workers' store [default: where other nodes reach it]
    #[arg(long, env = "RDZV_LISTEN_ADDR", value_name = "HOST")]
    listen_addr: Option<String>,
    /// The longest pause before a restart where starts fail at once one after the other; 0: no pauses
    #[arg(
        long,
        alias = "restart_backoff",
        env = "RDZV_RESTART_BACKOFF",
        default_value = "10s",
        value_name = "DURATION",
        value_parser = units::seconds
    )]
    pub(super) restart_backoff: Duration,
    /// Signals that stop the workers and the agent; SIGUSR1 and SIGUSR2 are passed on to the workers if they are not among them
    #[arg(
        long,
        alias = "signals_to_handle",
        env = "PET_SIGNALS_TO_HANDLE",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        value_name = "NAMES"
    )]
    pub(super) signals_to_handle: String,
    /// How long workers may take to end before they are killed, at every stop [default: 30s]
    #[arg(long, alias = "shutdown_timeout", env = "PET_SHUTDOWN_TIMEOUT", allow_negative_numbers = true, value_name = "DURATION", value_parser = units::seconds)]
    shutdown_timeout: Option<Duration>,
    /// How long processes that workers leave behind may take to end once no worker lives; then they are killed
    #[arg(long, alias = "leftover_timeout", env = "PET_LEFTOVER_TIMEOUT", value_name = "DURATION", value_parser = units::seconds, default_value = "3s")]
    pub(super) leftover_timeout: Duration,
    /// How long nodes whose workers have succeeded wait for the others [default: rdzv: as long as those work; static: 300s]
    #[arg(long, env = "RDZV_EXIT_BARRIER_TIMEOUT", value_name = "DURATION", value_parser = units::seconds)]
    pub(super) exit_barrier_timeout: Option<Duration>,
    /// Each worker sees one device, and LOCAL_RANK 0
    #[arg(long, alias = "virtual_local_rank", env = "PET_VIRTUAL_LOCAL_RANK", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(super) virtual_local_rank: bool,
    /// Where log files and error files are [default: a new folder for temporary files]; /dev/null: nowhere
    #[arg(long, alias = "log_dir", env = "PET_LOG_DIR", value_name = "DIR")]
    pub(super) log_dir: Option<PathBuf>,
    /// What goes to files and not to the console: 0 nothing, 1 stdout, 2 stderr, 3 both; or RANK:N,RANK:N by local rank
    #[arg(short, long, env = "PET_REDIRECTS", default_value = "0", value_name = "N|MAP", value_parser = StdSetting::parse)]
    redirects: StdSetting,
    /// What goes to files and, behind a prefix, to the console; in the same words
    #[arg(short, long, env = "PET_TEE", default_value = "0", value_name = "N|MAP", value_parser = StdSetting::parse)]
    tee: StdSetting,
    /// The prefix of lines on the console, with ${role_name}, ${local_rank}, ${rank} and ${hostname}
    #[arg(
        long,
        alias = "log_line_prefix_template",
        env = "PET_LOG_LINE_PREFIX_TEMPLATE",
        value_name = "TEXT"
    )]
    log_line_prefix_template: Option<String>,
    /// The only local ranks whose output is shown, separated by commas
    #[arg(long, alias = "local_ranks_filter", env = "PET_LOCAL_RANKS_FILTER", default_value = "", value_name = "RANKS", value_parser = LocalRanksFilter::parse)]
    local_ranks_filter: LocalRanksFilter,
    /// Lines of tee'd stdout with any of these words go to filtered_stdout.log as well, of all workers together
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        env = "PET_DUPLICATE_STDOUT_FILTERS",
        default_value = "",
        value_name = "WORDS"
    )]
    duplicate_stdout_filters: String,
    /// The same for stderr
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        env = "PET_DUPLICATE_STDERR_FILTERS",
        default_value = "",
        value_name = "WORDS"
    )]
    duplicate_stderr_filters: String,
    /// Write to this file how the run ended and what failed in its last start, as JSON
    #[arg(long, env = "RDZV_REPORT", value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Where events of the agent and the workers go, as lines of JSON: null, console, or file:PATH
    #[arg(
        long,
        alias = "event_log_handler",
        env = "PET_EVENT_LOG_HANDLER",
        default_value = "null",
        value_name = "WHERE"
    )]
    pub(super) event_log_handler: String,
    /// Where metrics go, a line each: null, console, or file:PATH
    #[arg(long, env = "RDZV_METRICS", default_value = "null", value_name = "WHERE")]
    pub(super) metrics: String,
    /// Bind each worker to processors near its device; needs the program numactl
    #[arg(long, alias = "numa_binding", env = "PET_NUMA_BINDING", value_enum, value_name = "WHAT")]
    pub(super) numa_binding: Option<Binding>,
    #[command(flatten)]
    tls: NodeTls,
    #[command(flatten)]
    pub(super) log: LogArguments,
    /// The program and its arguments; ${local_rank} stands for the worker's local rank
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

const STOP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// As torchrun has it, a variable says that all agents have as many workers of one role.
pub(super) fn rank_assignment() -> RankAssignment {
    match surroundings::text("TORCH_ELASTIC_WORKER_IDENTICAL").as_deref() {
        Some("1") => RankAssignment::Identical,
        _ => RankAssignment::ThroughStore,
    }
}

/// How the nodes meet.
pub(super) struct Rendezvous {
    pub(super) parameters: RendezvousParameters,
    /// Where other nodes reach this one, if the user has said so.
    pub(super) local_addr: Option<String>,
    /// Where this node listens, if the user has said so.
    pub(super) listen_addr: Option<String>,
    /// Where the workers find their store, if no agent serves it.
    pub(super) master: Option<RendezvousStoreInfo>,
    /// The port where an agent serves it.
    pub(super) master_port: Option<u16>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

impl RunArguments {
    /// Workers on this node.
    pub(super) fn workers(&self) -> Result<u32, Usage> {
        processors::workers(&self.nproc_per_node)
    }

    /// How long workers may take to end; torchrun has a second variable for it.
    pub(super) fn stop_timeout(&self) -> Result<Duration, Usage> {
        const VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
        match (self.shutdown_timeout, surroundings::text(VARIABLE)) {
            (Some(timeout), _) => Ok(timeout),
            (None, Some(text)) => {
                units::seconds(&text).map_err(|error| Usage(format!("{VARIABLE} is \"{text}\": {error}")))
            }
            (None, None) => Ok(STOP_TIMEOUT_DEFAULT),
        }
    }

    /// What becomes of the workers' output.
    pub(super) fn logs(&self) -> LogSettings {
        let of_environment = || surroundings::text("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
        LogSettings {
            files: self
                .log_dir
                .as_ref()
                .map_or(Files::Kept, |path| Files::in_folder(path.as_os_str().as_bytes())),
            redirects: self.redirects.clone(),
            tee: self.tee.clone(),
            local_ranks: self.local_ranks_filter.clone(),
            prefix_template: self.log_line_prefix_template.clone().or_else(of_environment),
            stdout_needles: parse_needles(&self.duplicate_stdout_filters),
            stderr_needles: parse_needles(&self.duplicate_stderr_filters),
        }
    }

    /// How few and how many nodes.
    fn nodes(&self) -> Result<(u32, u32), Usage> {
        let not_so = || Usage(format!("nnodes={} is not in \"MIN:MAX\" format", self.nnodes));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| not_so());
        let (min, max) = match self.nnodes.split_once(':') {
            None => (number(&self.nnodes)?, number(&self.nnodes)?),
            Some((min, max)) => (number(min)?, number(max)?),
        };
        if min == 0 || max < min {
            return Err(Usage(format!("--nnodes {}: 0 < MIN <= MAX must hold", self.nnodes)));
        }
        Ok((min, max))
    }

    pub(super) fn rendezvous(&self, configuration: &Configuration) -> Result<Rendezvous, Usage> {
        let (min, max) = self.nodes()?;
        let mut notes = Vec::new();
        // The line that torchrun's users know for several nodes without an endpoint.
        let is_by_hand = max > 1 && min == max && self.rdzv_endpoint.is_empty() && self.master_addr.is_some();
        let default = if is_by_hand { "static" } else { "rdzv" };
        let mut backend = self.rdzv_backend.as_deref().unwrap_or(default);
        if backend != "c10d" {
            check_backend(backend)?;
        } else {
            notes.push(
                "backend c10d: nodes meet by backend rdzv instead, so all of them must be rdzv's".into(),
            );
            backend = "rdzv";
        }
        let is_static = backend == "static";
        let is_alone = max == 1 && self.rdzv_endpoint.is_empty() && !is_static;
        let (mut endpoint, mut run_id) = (self.rdzv_endpoint.clone(), self.rdzv_id.clone());
        let is_by_itself = self.standalone || is_alone;
        if is_by_itself {
            if self.standalone && max > 1 {
                return Err(Usage(format!(
                    "--standalone is one node by itself, but --nnodes is {}",
                    self.nnodes
                )));
            }
            (backend, endpoint) = ("rdzv", "localhost:0".into());
            if self.rdzv_id == "none" || self.standalone {
                run_id = random_id();
            }
        } else if is_static && endpoint.is_empty() && max > 1 && self.master_port == Some(0) {
            return Err(Usage("--master-port 0: several nodes meet there, so it must be above 0".into()));
        } else if is_static && endpoint.is_empty() {
            let master = self.master_addr.as_deref().unwrap_or("127.0.0.1");
            endpoint = format!("{}:{}", bracketed(master), self.master_port.unwrap_or(29500));
        } else if endpoint.is_empty() {
            return Err(Usage(format!(
                "--nnodes {} needs --rdzv-endpoint HOST[:PORT], the same on every node; the first node on HOST serves there",
                self.nnodes
            )));
        }
        // A port that the system chooses is known to one node alone.
        if max > 1 && Endpoint::parse(&endpoint).is_ok_and(|endpoint| endpoint.port == Some(0)) {
            return Err(Usage(format!(
                "--rdzv-endpoint {endpoint}: port 0 is a free port that other nodes cannot know, so --nnodes {} needs a \
                 port above 0, the same on every node",
                self.nnodes
            )));
        }
        let usage = |error: &dyn std::fmt::Display| Usage(error.to_string());
        let config = parse_config(&self.rdzv_conf).map_err(|error| usage(&error))?;
        let (least, most) = (i64::from(min), i64::from(max));
        let mut parameters = RendezvousParameters::new(backend, &endpoint, &run_id, least, most)
            .map_err(|error| usage(&error))?
            .with("timeout", 900)
            .with("local_world_size", i64::from(self.workers()?));
        if is_static {
            parameters = parameters.with("rank", i64::from(self.node_rank));
        } else if self.node_rank != 0 {
            notes
                .push(format!("--node-rank is for backend static; backend {backend} gives the ranks itself"));
        }
        for (key, value) in config.iter() {
            parameters = parameters.with(key, value.clone());
        }
        parameters = durations_of(&parameters)?;
        if let Some(address) = &self.local_addr {
            parameters = parameters.with_local_addr(address);
        }
        for (key, value) in self.tls.options().filter(|(key, _)| config.get(key).is_none()) {
            if is_by_itself {
                notes.push("TLS is not used: this node meets no other".into());
                break;
            }
            parameters = parameters.with(key, value);
        }
        if let Some(address) = self.listen_addr.as_deref().filter(|_| config.get("listen_host").is_none()) {
            parameters = parameters.with("listen_host", address);
        }
        match &self.auth_token_file {
            Some(_) if backend != RDZV_BACKEND => {
                let text = format!("the store of backend {backend} cannot ask for a token");
                if configuration.is_given("auth_token_file") {
                    return Err(Usage(format!(
                        "--auth-token-file: {text}: use --rdzv-backend rdzv, or leave the flag out"
                    )));
                }
                notes.push(format!("RDZV_TOKEN_FILE is for backend rdzv: {text}"));
            }
            Some(path) if config.get("auth_token_file").is_none() => {
                parameters = parameters.with("auth_token_file", path.as_str());
            }
            _ => {}
        }
        check_parameters(&parameters)?;
        let mut rendezvous = Rendezvous {
            parameters,
            local_addr: self.local_addr.clone(),
            listen_addr: self.listen_addr.clone(),
            master: None,
            master_port: self.master_port.filter(|_| !is_static),
            notes,
        };
        match (&self.master_addr, self.master_port) {
            _ if is_static => {}
            (Some(address), _) if is_by_itself => {
                rendezvous.local_addr = Some(address.clone());
            }
            (Some(address), Some(port)) => {
                rendezvous.master =
                    Some(RendezvousStoreInfo { master_addr: address.clone(), master_port: port });
            }
            (Some(_), None) => rendezvous.notes.push(format!(
                "--master-addr without --master-port: backend {backend} says where the workers' store is"
            )),
            (None, _) => {}
        }
        Ok(rendezvous)
    }
}

/// Refuses parameters that the backend refuses, and suggests the option that an unknown one is similar to.
fn check_parameters(parameters: &RendezvousParameters) -> Result<(), Usage> {
    let read = if parameters.backend == "static" {
        StaticSettings::read(parameters).map(drop).map_err(|error| match error {
            StaticError::Option(error) => with_suggestion(&error),
            error => error.to_string(),
        })
    } else {
        RdzvSettings::read(parameters).map(drop).map_err(|error| match error {
            RdzvError::Option(error) => with_suggestion(&error),
            error => error.to_string(),
        })
    };
    read.map_err(Usage)
}

fn with_suggestion(error: &ParametersError) -> String {
    /// The similarity from which on clap suggests a flag.
    const SIMILARITY_MIN: f64 = 0.7;
    let similar = match error {
        ParametersError::Unknown { key, known, .. } => known
            .iter()
            .map(|name| (strsim::jaro(key, name), name))
            .filter(|(similarity, _)| *similarity > SIMILARITY_MIN)
            .max_by(|(one, _), (other, _)| one.total_cmp(other)),
        _ => None,
    };
    match similar {
        Some((_, name)) => format!("{error} Did you mean '{name}'?"),
        None => error.to_string(),
    }
}

/// Reads the durations of the configuration, so that one that is none is reported like any other argument.
fn durations_of(parameters: &RendezvousParameters) -> Result<RendezvousParameters, Usage> {
    with_units(parameters).map_err(|error| match error {
        ParametersError::NotDuration { key, value } => {
            Usage(format!("--rdzv-conf {key}={value}: {}", units::not_a_duration("seconds")))
        }
        error => Usage(error.to_string()),
    })
}

/// Refuses a backend that does not exist. A job of one node would otherwise never notice.
fn check_backend(backend: &str) -> Result<(), Usage> {
    Context::default().check_backend(backend).map_err(|error| match error {
        RegistryError::NotRegistered { backend } => Usage(format!(
            "--rdzv-backend {backend}: there is no such backend; there are rdzv, static, and c10d, which means rdzv"
        )),
        error => Usage(format!("--rdzv-backend {backend}: {error}")),
    })
}

/// Puts an IPv6 address in brackets, since it contains colons.
fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_string() }
}

/// Random run id.
fn random_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}
