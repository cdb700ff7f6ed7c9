//! Agent options.

use crate::prelude::*;
use crate::worker_function::{FunctionCode, rdzv_worker_fn};
use rendezvous_agent::driver::agent::{AgentOptions, LocalEntry, LocalOptions, LocalWorkers};
use rendezvous_agent::driver::process::{find_program, numactl};
use rendezvous_agent::environment::Devices;
use rendezvous_agent::log_layout::{Files, LogSettings};
use rendezvous_agent::numa::NumaBinding;
use rendezvous_agent::spec::{RankAssignment, WorkerSpec};
use rendezvous_agent::streams::{LocalRanksFilter, StdSetting, parse_needles};
use rendezvous_core::driver::rendezvous::host_name;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Workers see the devices that the agent sees.
pub const RDZV_DEVICES_ALL: i32 = 0;
/// Each worker sees one device, chosen by its local rank, and its `LOCAL_RANK` is 0.
pub const RDZV_DEVICES_ONE_EACH: i32 = 1;

/// Workers run on any processors.
pub const RDZV_NUMA_NONE: i32 = 0;
/// Each worker runs on the processors of its NUMA node.
pub const RDZV_NUMA_NODE: i32 = 1;
/// Each worker runs on the processors of its NUMA node's socket.
pub const RDZV_NUMA_SOCKET: i32 = 2;
/// Each worker runs on its own share of the cores of its NUMA node.
pub const RDZV_NUMA_EXCLUSIVE: i32 = 3;
/// Each worker runs on cores of its NUMA node that share a cache.
pub const RDZV_NUMA_CORE_COMPLEX: i32 = 4;

/// Agents exchange their roles and sizes through the round's store.
pub const RDZV_RANKS_THROUGH_STORE: i32 = 0;
/// All agents have the same number of workers and one role; each agent computes its ranks without
/// communication.
pub const RDZV_RANKS_IDENTICAL: i32 = 1;

/// Options of an agent. A zeroed struct with `struct_size`, and with a program or a function, is complete:
/// 0 and NULL stand for the default of a field. Program, arguments, environment and paths may be any bytes;
/// the other strings are UTF-8. There is no value that means for ever; a time of many years is accepted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_agent_options {
    /// Set to `sizeof(rdzv_agent_options)`.
    pub struct_size: u32,
    /// Number of workers, at most 4,096. Default 1. The parameters of a handler of the backend `rdzv` need
    /// it, too, as the option `local_world_size`.
    pub local_world_size: u32,
    /// Program that each worker runs. A name without a slash is searched for in the directories of `PATH`
    /// when the agent is created. Any other name is a path relative to the current directory of the
    /// calling process, whatever the workers' directory is. NULL: the workers run `function`.
    pub program: *const c_char,
    /// Function of the calling program that each worker runs; see `rdzv_worker_fn`. NULL: the workers run
    /// `program`. `rdzv_agent_new_custom` ignores both.
    pub function: rdzv_worker_fn,
    /// Passed to `function`.
    pub user_data: *mut c_void,
    /// Arguments of the program, without its name, or of the function. `${local_rank}` is replaced by the
    /// worker's local rank and `$$` by `$`.
    pub arguments: *const *const c_char,
    /// Number of `arguments`.
    pub argument_count: usize,
    /// Variables of the workers' environment as `NAME=VALUE`. They override those that the workers
    /// inherit from the agent's process and those that the agent sets for every worker.
    pub environment: *const *const c_char,
    /// Number of variables in `environment`.
    pub environment_count: usize,
    /// Working directory of the workers. Default: that of the agent's process.
    pub directory: *const c_char,
    /// Role of the workers; workers of the same role are also ranked among themselves. Default `default`.
    pub role: *const c_char,
    /// Name of this host in reports. Default: the system's host name.
    pub host_name: *const c_char,
    /// Address at which workers of other nodes reach this node if it hosts the round's store. Default:
    /// the address known to the rendezvous; for a group of one node 127.0.0.1, except with custom
    /// workers, which may run on any host. The address need not belong to this host (address translation,
    /// containers): see `listen_addr`.
    pub local_addr: *const c_char,
    /// Address on which this node listens if it hosts the round's store. Default: `local_addr` if this
    /// host has it, otherwise the address by which this host reaches the rendezvous server; every
    /// interface if this host's own name leads elsewhere.
    pub listen_addr: *const c_char,
    /// Address of an existing store for the workers of every round, with `master_port`. Default: each
    /// round has its own store, served by the agent of rank 0.
    pub master_addr: *const c_char,
    /// Port of the existing store; without `master_addr` the port of the store that this agent serves.
    /// Default: any free port.
    pub master_port: u16,
    /// Unused; set to 0.
    pub reserved: u16,
    /// How workers get their ranks: `RDZV_RANKS_THROUGH_STORE` (the default) or `RDZV_RANKS_IDENTICAL`.
    pub rank_assignment: i32,
    /// Devices that a worker sees: `RDZV_DEVICES_ALL` (the default) or `RDZV_DEVICES_ONE_EACH`.
    pub devices: i32,
    /// Number of restarts after failures of the agent's own workers. Default 3; -1: none. Restarts due to
    /// a change of membership do not count.
    pub max_restarts: i32,
    /// Signal (1 to 64) that stops workers. Default SIGTERM.
    pub stop_signal: i32,
    /// Processors of a worker: one of the `RDZV_NUMA_` numbers. Default `RDZV_NUMA_NONE`. The others need
    /// a `program` for the workers and the program `numactl`, which is searched for in `PATH`.
    pub numa_binding: i32,
    /// Time that workers have to end after the stop signal, in milliseconds; then they are killed. Default
    /// 30,000; -1: they are killed at once.
    pub stop_timeout_ms: i64,
    /// Time that processes that workers leave behind have to end once no worker is alive, in milliseconds;
    /// then they are killed. `stop_timeout_ms` still applies. An event names them at once. Default 3,000;
    /// -1: they are killed at once. Custom workers report the workers only.
    pub leftover_timeout_ms: i64,
    /// Time in milliseconds until the agent gives up on killed workers that do not disappear. Default
    /// 5,000.
    pub kill_timeout_ms: i64,
    /// Time in which all workers of an attempt must start, in milliseconds; then the attempt has failed.
    /// The limit exists because loading a program from an unresponsive file system can block for ever.
    /// Default 300,000.
    pub start_timeout_ms: i64,
    /// Longest pause before a restart, in milliseconds. Pauses apply when consecutive starts fail early,
    /// that is, when their workers ran for less than this time. The first restart follows at once, the
    /// second after 100 ms, and each further pause is twice as long. Default 10,000; -1: no pauses.
    pub restart_backoff_ms: i64,
    /// Time for which agents whose workers have succeeded wait for the others at the exit barrier, in
    /// milliseconds. Default: as long as workers of other agents run if the rendezvous reports deaths
    /// (`rdzv`), so that the slowest live worker ends the wait; otherwise (`static`, most custom backends)
    /// 300,000. -1: the agent does not wait.
    pub exit_barrier_timeout_ms: i64,
    /// Time in milliseconds for which the agent waits for the other agents when ranks are assigned. Default
    /// 60,000.
    pub assign_timeout_ms: i64,
    /// Interval in milliseconds at which the agent polls for waiting nodes if the rendezvous does not
    /// report them. Default 1,000.
    pub monitor_interval_ms: i64,
    /// Time in milliseconds for which a worker may hang in the kernel (state D), where signals do not reach
    /// it. Then the group is `RDZV_WORKERS_UNHEALTHY` and the agent ends with `RDZV_OUTCOME_FAILED`,
    /// because a restart cannot help. Default: not checked.
    pub stuck_timeout_ms: i64,
    /// Path of a named pipe through which workers set timers, by the protocol of PyTorch's file timers.
    /// The agent creates the pipe, removes it when the agent is freed, and passes the path to workers in
    /// `TORCHELASTIC_TIMER_FILE`. When a timer expires, the process that set it is killed, which counts
    /// as a failure of its worker. An existing pipe without a reader, as a killed agent leaves it, is
    /// replaced. Default: no pipe.
    pub timer_file: *const c_char,
    /// Directory in which the run's directory with log files and error files is created; `/dev/null` for
    /// none of these files. Default: a new directory for temporary files.
    pub log_dir: *const c_char,
    /// Streams of the workers that go to files instead of the console: `0` none, `1` stdout, `2` stderr,
    /// `3` both, or `RANK:N,RANK:N` by local rank. Default `0`: stdout is inherited, and stderr is
    /// forwarded to that of the agent's process.
    pub redirects: *const c_char,
    /// Streams that go to files and also, with a prefix, to the console, as in `redirects`. Default `0`.
    pub tee: *const c_char,
    /// Prefix of a line on the console: a template with `${role_name}`, `${local_rank}`, `${rank}` and
    /// `${hostname}`. Default `[ROLE][LOCAL RANK]:`.
    pub line_prefix: *const c_char,
    /// Workers whose output the console shows, for example `0,2`. Default: all.
    pub local_ranks_filter: *const c_char,
    /// Comma-separated substrings: lines of tee'd standard output that contain one of them are also
    /// written to one file for all workers. Default: no such file.
    pub duplicate_stdout_filters: *const c_char,
    /// The same for standard error.
    pub duplicate_stderr_filters: *const c_char,
}
growing!(rdzv_agent_options: 272);

/// Returns the time in a field of options; 0 stands for the default.
fn time(millis: i64, default: Duration, name: &str) -> Result<Duration, Fault> {
    if millis == 0 { Ok(default) } else { positive_ms(millis, name) }
}

/// Does the same for a field where -1 stands for no time at all.
fn time_or_none(millis: i64, default: Duration, name: &str) -> Result<Duration, Fault> {
    if millis == -1 { Ok(Duration::ZERO) } else { time(millis, default, name) }
}

#[expect(clippy::disallowed_methods, reason = "as execvp searches PATH")]
fn search_path() -> Option<OsString> {
    std::env::var_os("PATH")
}

/// Returns a string that may be any bytes; NULL is `None`.
unsafe fn os_text<'a>(text: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller of the C function promises a string that ends with NUL.
    (!text.is_null()).then(|| unsafe { os(CStr::from_ptr(text)) })
}

fn os(text: &CStr) -> &OsStr {
    OsStr::from_bytes(text.to_bytes())
}

unsafe fn owned_text(text: *const c_char, name: &str) -> Result<Option<String>, Fault> {
    // SAFETY: passed on unchanged.
    unsafe { c_text(text, name) }.map(|text| text.map(Into::into))
}

unsafe fn streams(text: *const c_char, name: &str) -> Result<StdSetting, Fault> {
    // SAFETY: passed on unchanged.
    let Some(text) = (unsafe { c_text(text, name) })? else { return Ok(StdSetting::default()) };
    StdSetting::parse(text).map_err(invalid)
}

/// Options whose strings live as long as the call that got them.
pub(crate) struct GivenOptions(rdzv_agent_options);

impl GivenOptions {
    /// Reads the caller's version of the options.
    ///
    /// # Errors
    ///
    /// NULL, or a size that is too small.
    pub(crate) unsafe fn read(options: *const rdzv_agent_options) -> Result<Self, Fault> {
        // SAFETY: NULL or valid, as the caller of the C function promises; all fields may be zero.
        unsafe { sized::get(options, "options") }.map(Self)
    }

    pub(crate) const fn has_timers(&self) -> bool {
        !self.0.timer_file.is_null()
    }

    pub(crate) unsafe fn timer_file(&self) -> Option<&OsStr> {
        // SAFETY: the strings live until the call returns.
        unsafe { os_text(self.0.timer_file) }
    }

    pub(crate) fn stuck_timeout(&self) -> Result<Option<Duration>, Fault> {
        time(self.0.stuck_timeout_ms, Duration::ZERO, "stuck_timeout_ms")
            .map(|timeout| Some(timeout).filter(|timeout| !timeout.is_zero()))
    }

    pub(crate) fn devices(&self) -> Result<Devices, Fault> {
        match self.0.devices {
            RDZV_DEVICES_ALL => Ok(Devices::All),
            RDZV_DEVICES_ONE_EACH => Ok(Devices::OneEach),
            other => Err(invalid(format!("`devices` is {other}, not an RDZV_DEVICES_ number"))),
        }
    }

    /// Finds what binds workers to processors, and returns the step that applies it to them.
    pub(crate) fn bind(&self, local_world_size: u32) -> Result<impl FnOnce(&mut LocalWorkers), Fault> {
        let bound =
            self.numa_binding()?.map(|binding| numactl(binding, local_world_size, search_path().as_deref()));
        let bound = bound.transpose().map_err(|error| invalid(format!("`numa_binding`: {error}")))?;
        Ok(move |workers: &mut LocalWorkers| {
            if let Some((program, arguments)) = bound {
                workers.run_through(program, arguments);
            }
        })
    }

    fn numa_binding(&self) -> Result<Option<NumaBinding>, Fault> {
        let binding = match self.0.numa_binding {
            RDZV_NUMA_NONE => return Ok(None),
            RDZV_NUMA_NODE => NumaBinding::Node,
            RDZV_NUMA_SOCKET => NumaBinding::Socket,
            RDZV_NUMA_EXCLUSIVE => NumaBinding::Exclusive,
            RDZV_NUMA_CORE_COMPLEX => NumaBinding::CoreComplex,
            other => return Err(invalid(format!("`numa_binding` is {other}, not an RDZV_NUMA_ number"))),
        };
        if self.0.function.is_some() {
            return Err(invalid("`numa_binding` needs a program; the workers run a function"));
        }
        Ok(Some(binding))
    }

    /// Returns what concerns every agent.
    pub(crate) unsafe fn agent(&self) -> Result<AgentOptions, Fault> {
        let of = &self.0;
        // SAFETY: the strings live until the call returns.
        unsafe {
            let name = owned_text(of.host_name, "host_name")?.unwrap_or_else(host_name);
            let store = |master_addr| RendezvousStoreInfo { master_addr, master_port: of.master_port };
            Ok(AgentOptions {
                spec: self.spec()?,
                name,
                entry_name: "workers".into(),
                local_addr: owned_text(of.local_addr, "local_addr")?,
                listen_addr: owned_text(of.listen_addr, "listen_addr")?,
                master: owned_text(of.master_addr, "master_addr")?.map(store),
            })
        }
    }

    unsafe fn spec(&self) -> Result<WorkerSpec, Fault> {
        let of = &self.0;
        let default = WorkerSpec::new(of.local_world_size.max(1));
        let exit_barrier_timeout =
            time_or_none(of.exit_barrier_timeout_ms, Duration::MAX, "exit_barrier_timeout_ms")?;
        let spec = WorkerSpec {
            // SAFETY: the strings live until the call returns.
            role: unsafe { c_text(of.role, "role") }?.map_or(default.role, Into::into),
            max_restarts: match of.max_restarts {
                0 => default.max_restarts,
                -1 => 0,
                count => u32::try_from(count)
                    .map_err(|_| invalid(format!("`max_restarts` is {count}; it must be at least -1")))?,
            },
            restart_backoff: time_or_none(
                of.restart_backoff_ms,
                default.restart_backoff,
                "restart_backoff_ms",
            )?,
            monitor_interval: time(of.monitor_interval_ms, default.monitor_interval, "monitor_interval_ms")?,
            start_timeout: time(of.start_timeout_ms, default.start_timeout, "start_timeout_ms")?,
            stop_signal: if of.stop_signal == 0 { default.stop_signal } else { of.stop_signal },
            stop_timeout: time_or_none(of.stop_timeout_ms, default.stop_timeout, "stop_timeout_ms")?,
            leftover_timeout: time_or_none(
                of.leftover_timeout_ms,
                default.leftover_timeout,
                "leftover_timeout_ms",
            )?,
            kill_timeout: time(of.kill_timeout_ms, default.kill_timeout, "kill_timeout_ms")?,
            exit_barrier_timeout: Some(exit_barrier_timeout).filter(|timeout| *timeout != Duration::MAX),
            rank_assignment: match of.rank_assignment {
                RDZV_RANKS_THROUGH_STORE => RankAssignment::ThroughStore,
                RDZV_RANKS_IDENTICAL => RankAssignment::Identical,
                other => {
                    return Err(invalid(format!("`rank_assignment` is {other}, not an RDZV_RANKS_ number")));
                }
            },
            assign_timeout: time(of.assign_timeout_ms, default.assign_timeout, "assign_timeout_ms")?,
            master_port: Some(of.master_port).filter(|port| of.master_addr.is_null() && *port != 0),
            ..default
        };
        spec.check().map_err(invalid)?;
        Ok(spec)
    }

    /// Returns what concerns workers on this host, and the name of their program.
    pub(crate) unsafe fn local(&self, host: String) -> Result<(LocalOptions, String), Fault> {
        let of = &self.0;
        // SAFETY: the strings and lists live until the call returns.
        unsafe {
            let (entry, name) = self.entry()?;
            let mut arguments: Vec<OsString> = os_text(of.program).map(Into::into).into_iter().collect();
            arguments.extend(
                c_strings(of.arguments, of.argument_count, "arguments")?
                    .into_iter()
                    .map(|text| os(text).into()),
            );
            let local = LocalOptions {
                entry,
                arguments,
                environment: self.environment()?,
                directory: os_text(of.directory).map(Into::into),
                devices: self.devices()?,
                host,
                logs: self.logs()?,
                log_dir: os_text(of.log_dir).map(Into::into),
            };
            Ok((local, name))
        }
    }

    unsafe fn entry(&self) -> Result<(LocalEntry, String), Fault> {
        // SAFETY: the strings live until the call returns.
        match (unsafe { os_text(self.0.program) }, self.0.function) {
            (Some(name), None) => {
                let found = find_program(name, search_path().as_deref());
                let program = LocalEntry::Program(found.map_err(invalid)?);
                Ok((program, name.to_string_lossy().into_owned()))
            }
            (None, Some(function)) => {
                let function = FunctionCode::new(function, self.0.user_data).registered();
                Ok((LocalEntry::Function(function), "function".into()))
            }
            (None, None) => Err(invalid("the options have no program and no function")),
            (Some(_), Some(_)) => Err(invalid("the options have a program and a function; set one of them")),
        }
    }

    unsafe fn environment(&self) -> Result<Vec<(OsString, OsString)>, Fault> {
        // SAFETY: the lists live until the call returns.
        let variables = unsafe { c_strings(self.0.environment, self.0.environment_count, "environment") }?;
        let parsed = variables.into_iter().map(|variable| {
            let bytes = variable.to_bytes();
            match bytes.iter().position(|byte| *byte == b'=') {
                Some(end) if end > 0 => {
                    Ok((OsStr::from_bytes(&bytes[..end]).into(), OsStr::from_bytes(&bytes[end + 1..]).into()))
                }
                _ => Err(invalid(format!("`environment` has {variable:?}, which is not NAME=VALUE"))),
            }
        });
        parsed.collect()
    }

    unsafe fn logs(&self) -> Result<LogSettings, Fault> {
        let of = &self.0;
        let mut logs = LogSettings::default();
        // SAFETY: the strings live until the call returns.
        unsafe {
            if let Some(folder) = os_text(of.log_dir) {
                logs.files = Files::in_folder(folder.as_bytes());
            }
            logs.redirects = streams(of.redirects, "redirects")?;
            logs.tee = streams(of.tee, "tee")?;
            logs.prefix_template = owned_text(of.line_prefix, "line_prefix")?;
            if let Some(filter) = c_text(of.local_ranks_filter, "local_ranks_filter")? {
                logs.local_ranks = LocalRanksFilter::parse(filter).map_err(invalid)?;
            }
            let needles =
                |text, name| c_text(text, name).map(|text| text.map_or_else(Vec::new, parse_needles));
            logs.stdout_needles = needles(of.duplicate_stdout_filters, "duplicate_stdout_filters")?;
            logs.stderr_needles = needles(of.duplicate_stderr_filters, "duplicate_stderr_filters")?;
        }
        Ok(logs)
    }
}
