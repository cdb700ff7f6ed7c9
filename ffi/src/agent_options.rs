//! Agent options.

use crate::argument::{bytes, invalid, list, out_pointer, rdzv_bytes, reference_mut, text};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::rendezvous_fault::invalid_fault;
use crate::status::rdzv_status;
use crate::worker_function::{FunctionCode, rdzv_worker_fn};
use rendezvous_agent::driver::agent::LocalEntry;
use rendezvous_agent::driver::process::find_program;
use rendezvous_agent::environment::Devices;
use rendezvous_agent::events::Watched;
use rendezvous_agent::log_layout::{Files, LogSettings};
use rendezvous_agent::spec::{RankAssignment, WorkerSpec};
use rendezvous_agent::streams::{LocalRanksFilter, StdSetting, parse_needles};
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use std::ffi::{OsStr, OsString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Workers see the devices that the agent sees.
pub const RDZV_DEVICES_ALL: i32 = 0;
/// Each worker sees one device, chosen by its local rank, and its `LOCAL_RANK` is 0.
pub const RDZV_DEVICES_ONE_EACH: i32 = 1;

/// Agents exchange their roles and sizes through the round's store.
pub const RDZV_RANKS_THROUGH_STORE: i32 = 0;
/// All agents have the same number of workers and one role; each agent computes its ranks without
/// communication.
pub const RDZV_RANKS_IDENTICAL: i32 = 1;

/// Options of an agent. One thread at a time may use them. An agent copies what it needs.
#[derive(Debug)]
pub struct rdzv_agent_options {
    pub(crate) spec: WorkerSpec,
    pub(crate) entry: Option<LocalEntry>,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) entry_name: String,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) devices: Devices,
    pub(crate) name: Option<String>,
    pub(crate) local_addr: Option<String>,
    pub(crate) listen_addr: Option<String>,
    pub(crate) master: Option<RendezvousStoreInfo>,
    pub(crate) logs: LogSettings,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) stuck_timeout: Option<Duration>,
    pub(crate) timer_file: Option<PathBuf>,
}

impl rdzv_agent_options {
    pub(crate) const fn watched(&self) -> Watched {
        match self.timer_file {
            Some(_) => Watched::ByTimers,
            None => Watched::No,
        }
    }
}

/// Runs a setter inside the panic guard.
unsafe fn set(
    options: *mut rdzv_agent_options,
    error: *mut *mut rdzv_error,
    body: impl Fn(&mut rdzv_agent_options) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe { guard::call(error, &mut || body(reference_mut(options, "options")?)) }
}

/// Converts milliseconds to a duration; 0 is allowed.
fn span(millis: i64, name: &str) -> Result<Duration, Fault> {
    let millis_or = u64::try_from(millis);
    millis_or
        .map(Duration::from_millis)
        .map_err(|_| invalid(format!("`{name}` is {millis} ms; it must be at least 0")))
}

/// Creates options for `local_world_size` workers (1 to 4096) of the role `default`. Next, set what the
/// workers run with `rdzv_agent_options_set_program` or `_set_function`, or neither for
/// `rdzv_agent_new_custom`. On success the caller owns `*out` and frees it with `rdzv_agent_options_free`.
/// Conflicts between options are reported by `rdzv_agent_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_new(
    local_world_size: u32,
    out: *mut *mut rdzv_agent_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let spec = WorkerSpec::new(local_world_size);
            spec.check().map_err(|error| invalid_fault(&error))?;
            out.put(Box::into_raw(Box::new(rdzv_agent_options {
                spec,
                entry: None,
                arguments: Vec::new(),
                entry_name: "workers".into(),
                environment: Vec::new(),
                directory: None,
                devices: Devices::All,
                name: None,
                local_addr: None,
                listen_addr: None,
                master: None,
                logs: LogSettings::default(),
                log_dir: None,
                stuck_timeout: None,
                timer_file: None,
            })));
            Ok(())
        })
    }
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_free(options: *mut rdzv_agent_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Sets the program that each worker runs, and its arguments. In an argument, `${local_rank}` is replaced
/// by the worker's local rank and `$$` by `$`. The library passes the program's name as argument 0, so
/// `arguments` starts with argument 1. A name without a slash is searched for in the directories of `PATH`,
/// during this call. Any other name is a path relative to the current directory of the calling process,
/// whatever the workers' directory is.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the program does not exist or is not executable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_program(
    options: *mut rdzv_agent_options,
    program: *const u8,
    program_len: usize,
    arguments: *const rdzv_bytes,
    argument_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let name = OsStr::from_bytes(bytes(program, program_len, "program")?);
            let arguments = list(arguments, argument_count, "arguments")?;
            #[expect(clippy::disallowed_methods, reason = "as execvp searches PATH")]
            let found = find_program(name, std::env::var_os("PATH").as_deref());
            options.entry = Some(LocalEntry::Program(found.map_err(|error| invalid_fault(&error))?));
            options.entry_name = name.to_string_lossy().into_owned();
            options.arguments = vec![name.into()];
            options
                .arguments
                .extend(arguments.into_iter().map(|argument| OsStr::from_bytes(argument).into()));
            Ok(())
        })
    }
}

/// Sets a function of the calling program that each worker runs. Each worker is a process of its own,
/// forked from the guard process that `rdzv_agent_new` forked from the program. The function sees the
/// program's memory as it was at that fork. Only the function's own thread exists. A lock that another
/// thread held stays locked for ever, except the allocator's. Only descriptors 0 to 2 are open, signals
/// have their default actions, and the environment is that of a worker. When the function returns, the
/// process exits at once; the lowest 8 bits of the return value are the exit code. Exit handlers do not run
/// and unflushed output is lost. An exception must not leave the function. A worker may return up to 256
/// MiB with `rdzv_worker_call_return`. If possible, create the agent before the program starts other
/// threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_function(
    options: *mut rdzv_agent_options,
    function: rdzv_worker_fn,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let function = function.ok_or_else(|| invalid("`function` is NULL"))?;
            options.entry = Some(LocalEntry::Function(FunctionCode::new(function, user_data).registered()));
            options.entry_name = "function".into();
            Ok(())
        })
    }
}

/// Sets the arguments of the function, or replaces those of the program including argument 0.
/// `${local_rank}` is replaced as in `rdzv_agent_options_set_program`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_arguments(
    options: *mut rdzv_agent_options,
    arguments: *const rdzv_bytes,
    argument_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let arguments = list(arguments, argument_count, "arguments")?;
            options.arguments =
                arguments.into_iter().map(|argument| OsStr::from_bytes(argument).into()).collect();
            Ok(())
        })
    }
}

/// Sets one variable of the workers' environment. It overrides the variable inherited from the agent's
/// process and the variables that the agent sets for every worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_variable(
    options: *mut rdzv_agent_options,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let (name, value) = (bytes(name, name_len, "name")?, bytes(value, value_len, "value")?);
            if name.is_empty() || name.contains(&b'=') || name.contains(&0) || value.contains(&0) {
                return Err(invalid("`name` is empty or contains `=` or NUL, or `value` contains NUL"));
            }
            options.environment.push((OsStr::from_bytes(name).into(), OsStr::from_bytes(value).into()));
            Ok(())
        })
    }
}

/// Sets the workers' working directory. Default: the working directory of the agent's process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_directory(
    options: *mut rdzv_agent_options,
    directory: *const u8,
    directory_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.directory = Some(path(directory, directory_len, "directory")?);
            Ok(())
        })
    }
}

unsafe fn path(data: *const u8, len: usize, name: &str) -> Result<PathBuf, Fault> {
    // SAFETY: passed on unchanged.
    Ok(OsStr::from_bytes(unsafe { bytes(data, len, name) }?).into())
}

/// Sets the role of the workers; workers of the same role are also ranked among themselves. Default
/// `default`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_role(
    options: *mut rdzv_agent_options,
    role: *const u8,
    role_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.role = text(role, role_len, "role")?.into();
            Ok(())
        })
    }
}

/// Sets the name of this host in reports. Default: the system's host name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_name(
    options: *mut rdzv_agent_options,
    name: *const u8,
    name_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.name = Some(text(name, name_len, "name")?.into());
            Ok(())
        })
    }
}

/// Sets how many times the group may be restarted after a failure of its own workers; 0 means never.
/// Default 3. Restarts due to a change of membership do not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_max_restarts(
    options: *mut rdzv_agent_options,
    max_restarts: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.max_restarts = max_restarts;
            Ok(())
        })
    }
}

/// Sets the longest pause before a restart, in milliseconds; 0 means no pauses. Default 10,000. Pauses
/// apply when consecutive starts fail early, that is, when their workers ran for less than this time. The
/// first restart follows at once, the second after 100 ms, and each further pause is twice as long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_restart_backoff_ms(
    options: *mut rdzv_agent_options,
    restart_backoff_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.restart_backoff = span(restart_backoff_ms, "restart_backoff_ms")?;
            Ok(())
        })
    }
}

/// Sets the signal (1 to 64) that stops workers and the time they have to end, in milliseconds; after that
/// they are killed. 0 ms kills them at once. Default SIGTERM, 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_stop(
    options: *mut rdzv_agent_options,
    signal: i32,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let stop_timeout = span(timeout_ms, "timeout_ms")?;
            let spec = WorkerSpec { stop_signal: signal, stop_timeout, ..options.spec.clone() };
            spec.check().map_err(|error| invalid_fault(&error))?;
            options.spec = spec;
            Ok(())
        })
    }
}

/// Sets how long processes that workers leave behind may take to end once no worker is alive, in
/// milliseconds; after that they are killed. A remark names them at once. 0 kills them at once; the stop
/// timeout still applies. Default 3,000. This does not apply to custom workers, which report the workers
/// only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_leftover_timeout_ms(
    options: *mut rdzv_agent_options,
    leftover_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.leftover_timeout = span(leftover_timeout_ms, "leftover_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets how long killed workers may take to disappear before the agent gives up on them, in milliseconds.
/// Default 5,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_kill_timeout_ms(
    options: *mut rdzv_agent_options,
    kill_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.kill_timeout = span(kill_timeout_ms, "kill_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the interval at which the agent polls for waiting nodes if the rendezvous does not report them, in
/// milliseconds, above 0. Default 1,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_monitor_interval_ms(
    options: *mut rdzv_agent_options,
    monitor_interval_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.monitor_interval =
                crate::argument::positive_ms(monitor_interval_ms, "monitor_interval_ms")?;
            Ok(())
        })
    }
}

/// Sets how long all workers of an attempt may take to start, in milliseconds, above 0; after that the
/// attempt has failed. The limit exists because loading a program from an unresponsive file system can
/// block for ever. Default 300,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_start_timeout_ms(
    options: *mut rdzv_agent_options,
    start_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.start_timeout = crate::argument::positive_ms(start_timeout_ms, "start_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets how long agents whose workers have succeeded wait for the others at the exit barrier, in
/// milliseconds, with every backend. By default they wait as long as workers of other agents run if the
/// rendezvous reports deaths (`rdzv`), so the slowest live worker ends the wait, and otherwise (`static`,
/// most custom backends) 300,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_exit_barrier_timeout_ms(
    options: *mut rdzv_agent_options,
    exit_barrier_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.exit_barrier_timeout =
                Some(span(exit_barrier_timeout_ms, "exit_barrier_timeout_ms")?);
            Ok(())
        })
    }
}

/// Sets how workers get their ranks, `RDZV_RANKS_THROUGH_STORE` (the default) or `RDZV_RANKS_IDENTICAL`,
/// and how long the agent waits for the other agents in that step, in milliseconds. Default 60,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_rank_assignment(
    options: *mut rdzv_agent_options,
    assignment: i32,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let assign_timeout = span(timeout_ms, "timeout_ms")?;
            options.spec.rank_assignment = match assignment {
                RDZV_RANKS_THROUGH_STORE => RankAssignment::ThroughStore,
                RDZV_RANKS_IDENTICAL => RankAssignment::Identical,
                other => return Err(invalid(format!("`assignment` is {other}, not an RDZV_RANKS_ number"))),
            };
            options.spec.assign_timeout = assign_timeout;
            Ok(())
        })
    }
}

/// Sets which devices a worker sees: `RDZV_DEVICES_ALL` (the default) or `RDZV_DEVICES_ONE_EACH`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_devices(
    options: *mut rdzv_agent_options,
    devices: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.devices = match devices {
                RDZV_DEVICES_ALL => Devices::All,
                RDZV_DEVICES_ONE_EACH => Devices::OneEach,
                other => return Err(invalid(format!("`devices` is {other}, not an RDZV_DEVICES_ number"))),
            };
            Ok(())
        })
    }
}

/// Sets the address at which workers of other nodes reach this node if it hosts the round's store. Default:
/// the address known to the rendezvous; for a group of one node 127.0.0.1, except with custom workers,
/// which may run on any host. The address need not belong to this host (address translation, containers):
/// see `rdzv_agent_options_set_listen_addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_local_addr(
    options: *mut rdzv_agent_options,
    address: *const u8,
    address_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.local_addr = Some(text(address, address_len, "address")?.into());
            Ok(())
        })
    }
}

/// Sets the address on which this node listens if it hosts the round's store. Default: the address of
/// `rdzv_agent_options_set_local_addr` if this host has it, otherwise the address by which this host reaches
/// the rendezvous server; every interface if this host's own name leads elsewhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_listen_addr(
    options: *mut rdzv_agent_options,
    address: *const u8,
    address_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.listen_addr = Some(text(address, address_len, "address")?.into());
            Ok(())
        })
    }
}

/// Sets the address and port of an existing store for the workers of every round. Default: each round has
/// its own store, served by the agent of rank 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_master(
    options: *mut rdzv_agent_options,
    address: *const u8,
    address_len: usize,
    port: u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let master_addr = text(address, address_len, "address")?.to_owned();
            options.master = Some(RendezvousStoreInfo { master_addr, master_port: port });
            Ok(())
        })
    }
}

/// Sets the directory in which the run's directory with log files and error files is created. Default: a
/// new directory for temporary files. `/dev/null` disables these files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_log_dir(
    options: *mut rdzv_agent_options,
    directory: *const u8,
    directory_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.log_dir = Some(path(directory, directory_len, "directory")?);
            options.logs.files = Files::in_folder(bytes(directory, directory_len, "directory")?);
            Ok(())
        })
    }
}

/// Selects the workers' streams that go to files instead of the console: `0` none, `1` stdout, `2` stderr,
/// `3` both, or `RANK:N,RANK:N` by local rank. Default `0`: stdout is inherited, and stderr is forwarded to
/// that of the agent's process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_redirects(
    options: *mut rdzv_agent_options,
    redirects: *const u8,
    redirects_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.logs.redirects = streams(redirects, redirects_len, "redirects")?;
            Ok(())
        })
    }
}

unsafe fn streams(data: *const u8, len: usize, name: &str) -> Result<StdSetting, Fault> {
    // SAFETY: passed on unchanged.
    let text = unsafe { text(data, len, name) }?;
    StdSetting::parse(text).map_err(|error| invalid_fault(&error))
}

/// Selects the streams that go to files and also, with a prefix, to the console; the syntax is that of
/// `rdzv_agent_options_set_redirects`. `prefix` is a template with `${role_name}`, `${local_rank}`,
/// `${rank}` and `${hostname}`; empty for `[ROLE][LOCAL RANK]:`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_tee(
    options: *mut rdzv_agent_options,
    tee: *const u8,
    tee_len: usize,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let prefix = text(prefix, prefix_len, "prefix")?;
            options.logs.tee = streams(tee, tee_len, "tee")?;
            options.logs.prefix_template = Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty());
            Ok(())
        })
    }
}

/// Selects the workers whose output the console shows, for example `0,2`; empty, the default, selects all.
/// The two filters are comma-separated substrings: lines of tee'd streams that contain one of them are also
/// written to one file for all workers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_console_filters(
    options: *mut rdzv_agent_options,
    local_ranks: *const u8,
    local_ranks_len: usize,
    stdout_filters: *const u8,
    stdout_filters_len: usize,
    stderr_filters: *const u8,
    stderr_filters_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let stdout_filters = text(stdout_filters, stdout_filters_len, "stdout_filters")?;
            let stderr_filters = text(stderr_filters, stderr_filters_len, "stderr_filters")?;
            let local_ranks = text(local_ranks, local_ranks_len, "local_ranks")?;
            options.logs.local_ranks =
                LocalRanksFilter::parse(local_ranks).map_err(|error| invalid_fault(&error))?;
            options.logs.stdout_needles = parse_needles(stdout_filters);
            options.logs.stderr_needles = parse_needles(stderr_filters);
            Ok(())
        })
    }
}

/// Sets the path of a named pipe through which workers set timers, by the protocol of PyTorch's file
/// timers. The agent creates the pipe, removes it when the agent is freed, and passes the path to workers
/// in `TORCHELASTIC_TIMER_FILE`. When a timer expires, the process that set it is killed, which counts as a
/// failure of its worker. Default: no pipe. An existing pipe without a reader, as a killed agent leaves it,
/// is replaced.
///
/// Errors of `rdzv_agent_new`: `RDZV_IO` if the path exists and is not a pipe, or is a pipe with a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_timer_file(
    options: *mut rdzv_agent_options,
    path: *const u8,
    path_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.timer_file = Some(self::path(path, path_len, "path")?);
            Ok(())
        })
    }
}

/// Sets how long a worker may hang in the kernel (state D), where signals do not reach it, in milliseconds.
/// After that the group is `RDZV_WORKERS_UNHEALTHY` and the agent ends with `RDZV_OUTCOME_FAILED`, because
/// a restart cannot help. 0, the default, disables the check.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_stuck_timeout_ms(
    options: *mut rdzv_agent_options,
    stuck_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let timeout = span(stuck_timeout_ms, "stuck_timeout_ms")?;
            options.stuck_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            Ok(())
        })
    }
}
