//! What an agent is to supervise, and how.

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
/// Each worker sees one device, by its local rank, and its `LOCAL_RANK` is 0.
pub const RDZV_DEVICES_ONE_EACH: i32 = 1;

/// Agents tell each other their roles and sizes through the round's store.
pub const RDZV_RANKS_THROUGH_STORE: i32 = 0;
/// All agents have as many workers and one role, and each reckons its ranks by itself.
pub const RDZV_RANKS_IDENTICAL: i32 = 1;

/// Options of an agent. One thread at a time. An agent copies what it needs.
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

/// Changes options.
unsafe fn set(
    options: *mut rdzv_agent_options,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&mut rdzv_agent_options) -> Result<(), Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe { guard::call(error, || body(reference_mut(options, "options")?)) }
}

/// A span that may be zero.
fn span(millis: i64, name: &str) -> Result<Duration, Fault> {
    let millis_or = u64::try_from(millis);
    millis_or
        .map(Duration::from_millis)
        .map_err(|_| invalid(format!("`{name}` is {millis} ms; it must be at least 0")))
}

/// Options for `local_world_size` workers, from 1 to 4096, of the role `default`. Then say what they run:
/// `rdzv_agent_options_set_program`, or `_set_function`, or, with `rdzv_agent_new_custom`, neither. On
/// success `*out` is yours until `rdzv_agent_options_free`. What makes no sense beyond a single option is
/// told by `rdzv_agent_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_new(
    local_world_size: u32,
    out: *mut *mut rdzv_agent_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
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
    // SAFETY: as the header wants it.
    unsafe { guard::free(options) };
}

/// Each worker runs this program with these arguments, in which `${local_rank}` stands for the worker's local
/// rank, and `$$` for `$`. The program's name, which comes before them by custom, is put there by itself. A
/// name without a slash is looked for in the folders of `PATH`, now; any other is a path from the directory
/// that the calling process is in now, wherever the workers begin.
///
/// Errors: `RDZV_INVALID_ARGUMENT` when there is no such program, or it may not be run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_program(
    options: *mut rdzv_agent_options,
    program: *const u8,
    program_len: usize,
    arguments: *const rdzv_bytes,
    argument_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let name = OsStr::from_bytes(bytes(program, program_len, "program")?);
            let arguments = list(arguments, argument_count, "arguments")?;
            #[expect(clippy::disallowed_methods, reason = "as execvp has it")]
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

/// Each worker runs this function of the program's own, in a process of its own, which is forked from one
/// that `rdzv_agent_new` forked from the program. So the function sees the program's memory as it was then;
/// of its threads there is none but the function's own, and a lock that another one held is held for ever,
/// but those of the allocator; of its descriptors there are the first three; signals have their default
/// actions; and its environment is that of a worker. When it returns, the process ends at once with that exit
/// code (of which the lowest eight bits count): nothing that was to run at exit runs, and what was printed
/// but not flushed is gone. An exception must not leave it. What it returns in bytes
/// (`rdzv_worker_call_return`) may be 256 MiB long. Make the agent before there are other threads, if you can.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_function(
    options: *mut rdzv_agent_options,
    function: rdzv_worker_fn,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let function = function.ok_or_else(|| invalid("`function` is NULL"))?;
            options.entry = Some(LocalEntry::Function(FunctionCode::new(function, user_data).registered()));
            options.entry_name = "function".into();
            Ok(())
        })
    }
}

/// The arguments of a function, or those of a program anew, with its name before them; `${local_rank}` as
/// with `rdzv_agent_options_set_program`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_arguments(
    options: *mut rdzv_agent_options,
    arguments: *const rdzv_bytes,
    argument_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let arguments = list(arguments, argument_count, "arguments")?;
            options.arguments =
                arguments.into_iter().map(|argument| OsStr::from_bytes(argument).into()).collect();
            Ok(())
        })
    }
}

/// One variable of the workers' environment, over that of the agent's program, which they inherit, and over
/// those that every worker gets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_variable(
    options: *mut rdzv_agent_options,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let (name, value) = (bytes(name, name_len, "name")?, bytes(value, value_len, "value")?);
            if name.is_empty() || name.contains(&b'=') || name.contains(&0) || value.contains(&0) {
                return Err(invalid("`name` and `value` are no variable: empty, or with a `=` or a NUL"));
            }
            options.environment.push((OsStr::from_bytes(name).into(), OsStr::from_bytes(value).into()));
            Ok(())
        })
    }
}

/// Where the workers begin; by default, where the agent's program is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_directory(
    options: *mut rdzv_agent_options,
    directory: *const u8,
    directory_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.directory = Some(path(directory, directory_len, "directory")?);
            Ok(())
        })
    }
}

unsafe fn path(data: *const u8, len: usize, name: &str) -> Result<PathBuf, Fault> {
    // SAFETY: passed on as it came.
    Ok(OsStr::from_bytes(unsafe { bytes(data, len, name) }?).into())
}

/// What the workers do; those of one role are numbered among themselves. Default `default`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_role(
    options: *mut rdzv_agent_options,
    role: *const u8,
    role_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.role = text(role, role_len, "role")?.into();
            Ok(())
        })
    }
}

/// What the agent calls its host in reports; by default, the host's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_name(
    options: *mut rdzv_agent_options,
    name: *const u8,
    name_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.name = Some(text(name, name_len, "name")?.into());
            Ok(())
        })
    }
}

/// How often the group may be started again after a failure of its own workers; 0: never. Default 3. A change
/// of membership does not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_max_restarts(
    options: *mut rdzv_agent_options,
    max_restarts: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.max_restarts = max_restarts;
            Ok(())
        })
    }
}

/// The longest pause before a restart, where starts fail at once one after the other: their workers have not
/// run for as long as this. The first restart has no pause, the second waits 100 ms, and each next one twice
/// as long. In milliseconds; 0: no pauses. Default 10,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_restart_backoff_ms(
    options: *mut rdzv_agent_options,
    restart_backoff_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.restart_backoff = span(restart_backoff_ms, "restart_backoff_ms")?;
            Ok(())
        })
    }
}

/// What workers are told when they are to end, and how long they may take: a signal from 1 to 64, and
/// milliseconds, after which they are killed; 0 kills at once. Default SIGTERM, 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_stop(
    options: *mut rdzv_agent_options,
    signal: i32,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
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

/// How long processes that workers leave behind may take to end, in milliseconds, once no worker lives;
/// then they are killed. They are named in a remark at once. 0 kills them at once; the stop's own
/// timeout still holds. Default 3,000. It is not for workers of your own code, which tell of workers
/// alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_leftover_timeout_ms(
    options: *mut rdzv_agent_options,
    leftover_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.leftover_timeout = span(leftover_timeout_ms, "leftover_timeout_ms")?;
            Ok(())
        })
    }
}

/// How long killed workers may take to vanish, until they are given up; in milliseconds. Default 5,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_kill_timeout_ms(
    options: *mut rdzv_agent_options,
    kill_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.kill_timeout = span(kill_timeout_ms, "kill_timeout_ms")?;
            Ok(())
        })
    }
}

/// How often to look for waiting nodes where the rendezvous does not tell of them; in milliseconds, above 0.
/// Default 1,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_monitor_interval_ms(
    options: *mut rdzv_agent_options,
    monitor_interval_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.monitor_interval =
                crate::argument::positive_ms(monitor_interval_ms, "monitor_interval_ms")?;
            Ok(())
        })
    }
}

/// How long it may take until all workers of a start run, in milliseconds. Beyond that the start has failed: a
/// program on a file system that does not answer may take for ever. Default 300,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_start_timeout_ms(
    options: *mut rdzv_agent_options,
    start_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.start_timeout = crate::argument::positive_ms(start_timeout_ms, "start_timeout_ms")?;
            Ok(())
        })
    }
}

/// How long agents whose workers have succeeded wait for each other, where the rendezvous tells nothing of
/// them (`static`, backends of your own); in milliseconds. Default 300,000. Where it tells of deaths by itself
/// (`rdzv`), they wait as long as the others' workers take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_exit_barrier_timeout_ms(
    options: *mut rdzv_agent_options,
    exit_barrier_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.spec.exit_barrier_timeout = span(exit_barrier_timeout_ms, "exit_barrier_timeout_ms")?;
            Ok(())
        })
    }
}

/// How workers get their ranks, one of `RDZV_RANKS_THROUGH_STORE` (the default) and `RDZV_RANKS_IDENTICAL`,
/// and how long to wait for the other agents then, in milliseconds. Default 60,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_rank_assignment(
    options: *mut rdzv_agent_options,
    assignment: i32,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
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

/// What devices a worker sees: `RDZV_DEVICES_ALL` (the default) or `RDZV_DEVICES_ONE_EACH`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_devices(
    options: *mut rdzv_agent_options,
    devices: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
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

/// Where workers of other nodes reach this one, if it hosts their store. By default as the rendezvous knows
/// it, and 127.0.0.1 for a group of one node, unless its workers are somebody else's: theirs may be on any
/// host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_local_addr(
    options: *mut rdzv_agent_options,
    address: *const u8,
    address_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.local_addr = Some(text(address, address_len, "address")?.into());
            Ok(())
        })
    }
}

/// Where the workers find their store, in every round; by default, each round has a store of its own, which
/// the agent of rank 0 serves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_master(
    options: *mut rdzv_agent_options,
    address: *const u8,
    address_len: usize,
    port: u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let master_addr = text(address, address_len, "address")?.to_owned();
            options.master = Some(RendezvousStoreInfo { master_addr, master_port: port });
            Ok(())
        })
    }
}

/// Where log files and error files are, beneath a folder for the run; by default, a new folder for temporary
/// files. `/dev/null`: nowhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_log_dir(
    options: *mut rdzv_agent_options,
    directory: *const u8,
    directory_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.log_dir = Some(path(directory, directory_len, "directory")?);
            options.logs.files = Files::in_folder(bytes(directory, directory_len, "directory")?);
            Ok(())
        })
    }
}

/// What of the workers' output goes into files and not to the console: `0` nothing, `1` stdout, `2` stderr,
/// `3` both, or `RANK:N,RANK:N` by local rank. Default `0`: stdout is inherited, and stderr passed on to that
/// of the agent's program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_redirects(
    options: *mut rdzv_agent_options,
    redirects: *const u8,
    redirects_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.logs.redirects = streams(redirects, redirects_len, "redirects")?;
            Ok(())
        })
    }
}

unsafe fn streams(data: *const u8, len: usize, name: &str) -> Result<StdSetting, Fault> {
    // SAFETY: passed on as it came.
    let text = unsafe { text(data, len, name) }?;
    StdSetting::parse(text).map_err(|error| invalid_fault(&error))
}

/// What goes into files and, behind a prefix, to the console, too; in the same words. `prefix` is a template
/// with `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}`; empty for `[ROLE][LOCAL RANK]:`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_tee(
    options: *mut rdzv_agent_options,
    tee: *const u8,
    tee_len: usize,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let prefix = text(prefix, prefix_len, "prefix")?;
            options.logs.tee = streams(tee, tee_len, "tee")?;
            options.logs.prefix_template = Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty());
            Ok(())
        })
    }
}

/// Of which workers the console shows anything, as in `0,2`; empty for all, the default. Lines of tee'd
/// streams that contain one of the words (separated by commas) go into one file of all workers besides.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let stdout_filters = text(stdout_filters, stdout_filters_len, "stdout_words")?;
            let stderr_filters = text(stderr_filters, stderr_filters_len, "stderr_words")?;
            let local_ranks = text(local_ranks, local_ranks_len, "local_ranks")?;
            options.logs.local_ranks =
                LocalRanksFilter::parse(local_ranks).map_err(|error| invalid_fault(&error))?;
            options.logs.stdout_needles = parse_needles(stdout_filters);
            options.logs.stderr_needles = parse_needles(stderr_filters);
            Ok(())
        })
    }
}

/// Workers may set timers through a pipe, which is made at `path` and removed with the agent, by the protocol
/// of PyTorch's file timers; they find it in `TORCHELASTIC_TIMER_FILE`. A timer that expires has its process
/// killed, which is a failure of its worker. By default there is none.
///
/// A pipe that is there and that nobody reads, as a killed agent leaves it, is replaced.
///
/// Errors of `rdzv_agent_new`: `RDZV_IO` when something else is there, or a pipe that somebody reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_timer_file(
    options: *mut rdzv_agent_options,
    path: *const u8,
    path_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            options.timer_file = Some(self::path(path, path_len, "path")?);
            Ok(())
        })
    }
}

/// When a worker has hung in the kernel (state D), where no signal reaches it, for this long, the group is
/// `RDZV_WORKERS_UNHEALTHY`, and the agent ends with `RDZV_OUTCOME_FAILED`: no restart mends that. 0, the
/// default: nobody looks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_agent_options_set_stuck_timeout_ms(
    options: *mut rdzv_agent_options,
    stuck_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        set(options, error, |options| {
            let timeout = span(stuck_timeout_ms, "stuck_timeout_ms")?;
            options.stuck_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            Ok(())
        })
    }
}
