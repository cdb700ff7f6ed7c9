//! Workers that are processes of this host, started by a guard process.

mod error_watch;
mod monitor;
mod running;
mod timers;

pub use timers::TimerError;

use super::workers::{Reach, Start, Workers};
use crate::driver::process::{
    self, Entry, Guard, GuardError, GuardEvent, GuardLost, GuardOptions, NOT_RETURNED, Program, Registered,
    Returned, Stdio,
};
use crate::driver::worker_logs::{
    Attempt, Consoles, LogError, LogFolder, Output, WorkerLogs, WorkerOutputs, read_error_file,
};
use crate::environment::{Devices, Job, of_worker};
use crate::error_file::ErrorFile;
use crate::failure::{NodeIdentity, ProcessFailure, WorkerEnd, signal_name};
use crate::group::{ExitStatus, Worker, WorkerGroup};
use crate::log_layout::LogSettings;
use crate::reason::StartFailure;
use crate::supervisor::Failed;
use crate::template::{self, Origin};
use crate::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use error_watch::ErrorWatch;
use monitor::WorkerMonitor;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::sorted::SortedMap;
use running::Running;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What each worker runs.
#[derive(Clone, Debug)]
pub enum LocalEntry {
    /// The program at this path.
    Program(PathBuf),
    /// A function of this program.
    Function(Registered),
}

/// Options of the workers on this host.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// What each worker runs.
    pub entry: LocalEntry,
    /// Arguments of the program or function. The first argument of a program is its own name by convention.
    /// `${local_rank}` is replaced by the worker's local rank.
    pub arguments: Vec<OsString>,
    /// Environment variables that override those that the workers inherit from the agent.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory of the workers; without one, that of the agent.
    pub directory: Option<PathBuf>,
    /// Devices that a worker sees.
    pub devices: Devices,
    /// Name of this host in reports.
    pub host: String,
    /// Destination of the workers' output.
    pub logs: LogSettings,
    /// Folder of the log files; without one, a new temporary folder.
    pub log_dir: Option<PathBuf>,
}

/// Error of creating workers on this host.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The guard cannot be started.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The log files cannot be created.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The workers cannot be monitored.
    #[error("the workers cannot be monitored: {0}")]
    WorkerMonitor(#[from] std::io::Error),
    /// The pipe for timers cannot be created.
    #[error(transparent)]
    Timers(#[from] TimerError),
}

/// Longest wait for the output of workers that have ended. A descendant of a worker may hold the pipe open for ever.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A program that executes the workers' own program.
#[derive(Debug)]
struct Wrapper {
    program: PathBuf,
    /// Its arguments before the worker's program and arguments, by local rank.
    arguments: Vec<Vec<OsString>>,
}

/// Workers that are processes of this host.
#[derive(Debug)]
pub struct LocalWorkers {
    // Dropped before the guard, which it watches.
    monitor: Option<WorkerMonitor>,
    running: Running,
    through: Option<Wrapper>,
    guard: Guard,
    options: LocalOptions,
    inherited: Vec<(OsString, OsString)>,
    /// The guard's number of the worker with local rank 0.
    first: u32,
    count: u32,
    clock: Clock,
    /// Value of the system's monotonic clock at the origin of the agent's clock, in nanoseconds.
    origin_ns: u64,
    happened: VecDeque<WorkerEvent>,
    is_lost: bool,
    /// Whether a signal to stop was sent since the last start.
    is_stopping: bool,
    logs: WorkerLogs,
    /// Error files of the workers of this start.
    error_files: ErrorWatch,
    /// Why return values of workers of this start are missing, by local rank.
    not_returned: SortedMap<u32, String>,
}

impl LocalWorkers {
    /// Starts the guard and creates the log folder of the run. Best called early (see [`Guard::start`]).
    ///
    /// # Errors
    /// See [`LocalError`].
    pub fn new(options: LocalOptions, run_id: &str, local_world_size: u32) -> Result<Self, LocalError> {
        let function = match &options.entry {
            LocalEntry::Function(function) => Some(function.clone()),
            LocalEntry::Program(_) => None,
        };
        let error_files = ErrorWatch::new();
        let guard = Guard::start(&GuardOptions {
            function,
            held: error_files.fd(),
            workers_max: local_world_size,
            ..GuardOptions::default()
        })?;
        let folder = match &options.log_dir {
            Some(path) => LogFolder::In(path),
            None => LogFolder::Temporary,
        };
        let logs = WorkerLogs::open(options.logs.clone(), run_id, folder, Consoles::standard())?;
        let clock = Clock::new();
        Ok(Self {
            monitor: None,
            running: Running::default(),
            through: None,
            guard,
            options,
            inherited: std::env::vars_os().collect(),
            first: 0,
            count: 0,
            origin_ns: origin_ns(&clock),
            clock,
            happened: VecDeque::new(),
            is_lost: false,
            is_stopping: false,
            logs,
            error_files,
            not_returned: SortedMap::new(),
        })
    }

    /// Runs each worker's program through `program`. Its arguments are those of `arguments` for the local rank (the
    /// first is its own name by convention), then the path of the worker's program, then the arguments of that. Workers
    /// that are functions, and workers without an entry in `arguments`, are run directly.
    pub fn run_through(&mut self, program: PathBuf, arguments: Vec<Vec<OsString>>) {
        self.through = Some(Wrapper { program, arguments });
    }

    /// Lets workers set timers through a named pipe at `path`, with the protocol of PyTorch's file timers. Without a
    /// path, it is created in the folder for temporary files. The pipe is created by this call and removed with the
    /// workers. Its path is returned and passed to the workers. A timer that expires ends its process, and the workers
    /// are restarted ([`crate::watchdog`]). Call this before the agent takes the workers, like the following functions.
    ///
    /// # Errors
    /// The pipe cannot be created.
    pub fn take_timers(&mut self, path: Option<&Path>) -> Result<PathBuf, LocalError> {
        // A lost guard is replaced by another one with the same keeper as parent.
        let keeper = self.guard.keeper_pid();
        Ok(self.monitor()?.take_timers(path, keeper)?)
    }

    /// Reports workers that hang in the kernel, where no signal reaches them, for `timeout`, which is above 0.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn watch_stuck(&mut self, timeout: Duration) -> Result<(), LocalError> {
        self.monitor()?.detect_stuck(timeout);
        Ok(())
    }

    fn monitor(&mut self) -> Result<&mut WorkerMonitor, LocalError> {
        match &mut self.monitor {
            Some(monitor) => Ok(monitor),
            none => Ok(none.insert(WorkerMonitor::new(self.guard.as_raw_fd())?)),
        }
    }

    /// Returns the local rank for the guard's number of a worker, if the worker belongs to this start.
    fn local_rank(&self, number: u32) -> Option<u32> {
        Some(number.wrapping_sub(self.first)).filter(|local_rank| *local_rank < self.count)
    }

    /// Opens the outputs of each worker.
    fn outputs(&mut self, start: &Start<'_>) -> Result<Attempt, LogError> {
        let hostname = self.options.host.split('.').next().unwrap_or_default();
        let origins: Vec<Origin<'_>> = start
            .group
            .workers
            .iter()
            .map(|worker| Origin {
                role_name: &start.group.role,
                local_rank: worker.local_rank,
                rank: worker.global_rank,
                hostname,
            })
            .collect();
        self.logs.start_attempt(start.group.attempt, &origins)
    }

    fn start_one(
        &mut self,
        start: &Start<'_>,
        worker: &Worker,
        outputs: &WorkerOutputs,
    ) -> Result<(), (StartFailure, Box<str>)> {
        let lasting = |message: String| (StartFailure::Lasting, message.into());
        let timer_path = self.monitor.as_ref().and_then(WorkerMonitor::timer_file);
        let timer_file = timer_path.map(Path::to_string_lossy);
        let job = Job {
            run_id: start.run_id,
            max_restarts: start.max_restarts,
            master_addr: &start.master.master_addr,
            master_port: start.master.master_port,
            agent_store: start.agent_store,
            devices: self.options.devices,
            timer_file: timer_file.as_deref(),
        };
        let has = |name: &str| {
            let found = self.inherited.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.to_string_lossy().into_owned())
        };
        let error_file = outputs.error_file.as_deref().map(Path::to_string_lossy).unwrap_or_default();
        let set = of_worker(&job, start.group, worker, &error_file, &has);
        let set = set.map_err(|error| lasting(error.to_string()))?;
        let set = set.into_iter().map(|(name, value)| (name.into(), value.into()));
        // A path need not be valid UTF-8, so the worker gets its exact bytes.
        let paths = [
            ("TORCHELASTIC_ERROR_FILE", outputs.error_file.as_deref()),
            ("TORCHELASTIC_TIMER_FILE", timer_path),
        ];
        let paths = paths.into_iter().filter_map(|(name, path)| Some((name.into(), path?.into())));
        let local_entries = self.options.environment.iter().cloned();
        let environment = merged(&self.inherited, set.chain(paths).chain(local_entries));
        let mut arguments: Vec<OsString> = self
            .options
            .arguments
            .iter()
            .map(|argument| OsString::from_vec(template::argument(argument.as_bytes(), worker.local_rank)))
            .collect();
        let mut entry = match &self.options.entry {
            LocalEntry::Program(path) => Entry::Path(path),
            LocalEntry::Function(_) => Entry::Function,
        };
        if let (Some(through), LocalEntry::Program(path)) = (&self.through, &self.options.entry)
            && let Some(before) = through.arguments.get(worker.local_rank as usize)
        {
            let local_entries = [path.clone().into_os_string()];
            arguments =
                before.iter().cloned().chain(local_entries).chain(arguments.into_iter().skip(1)).collect();
            entry = Entry::Path(&through.program);
        }
        let program = Program {
            arguments: &arguments,
            environment: &environment,
            directory: self.options.directory.as_deref(),
            stdout: stdio(&outputs.stdout),
            stderr: stdio(&outputs.stderr),
            ..Program::new(entry)
        };
        let number = self.first.wrapping_add(worker.local_rank);
        self.guard.spawn(number, &program).map_err(|error| match error {
            GuardError::NotPrepared(errno) => (start_failure(errno), error.to_string().into()),
            _ => lasting(error.to_string()),
        })
    }

    fn convert_event(&mut self, event: GuardEvent) -> Option<WorkerEvent> {
        Some(match event {
            GuardEvent::Started { worker, pid } => {
                let local_rank = self.confirm_start(worker)?;
                self.running.ranks.insert(pid, local_rank);
                WorkerEvent::Started { local_rank, pid }
            }
            GuardEvent::NotStarted { worker, step, errno } => WorkerEvent::NotStarted {
                local_rank: self.confirm_start(worker)?,
                start_failure: start_failure(errno),
                message: self.not_started(step, errno),
            },
            GuardEvent::Exited { worker, status, at_ns, was_ending, returned, .. } => {
                let local_rank = self.record_end(worker)?;
                // A return value that the agent cannot receive counts as a failure, too.
                let is_lacking = status.is_success() && returned.failure().is_some();
                let exit = if is_lacking { ExitStatus::Code(NOT_RETURNED) } else { status };
                if !exit.is_success() && !self.is_stopping {
                    self.report_error_files();
                }
                let at = Instant::from_nanos(at_ns.saturating_sub(self.origin_ns));
                if exit == ExitStatus::Code(NOT_RETURNED)
                    && let Some(message) = returned.failure()
                {
                    self.not_returned.insert(local_rank, message);
                }
                let returned = if let Returned::Bytes(bytes) = returned { Some(bytes) } else { None };
                self.happened.push_back(WorkerEvent::Exited { local_rank, exit, at, was_ending, returned });
                return self.happened.pop_front();
            }
            GuardEvent::Empty => {
                // Drained before the last lines are read and before the next start.
                self.logs.finish_attempt(DRAIN_TIMEOUT);
                WorkerEvent::Empty
            }
            GuardEvent::Lost { pid, signal } => {
                self.running = Running::default();
                WorkerEvent::GroupLost { message: lost_by(pid, signal) }
            }
            GuardEvent::Survivors { count: 0, .. } => return None,
            GuardEvent::Survivors { pids, count } => WorkerEvent::Leftovers { message: named(&pids, count) },
        })
    }

    /// Records that the result of a start has arrived. Returns the local rank of the worker.
    fn confirm_start(&mut self, number: u32) -> Option<u32> {
        let local_rank = self.local_rank(number)?;
        self.running.awaited = self.running.awaited.saturating_sub(1);
        Some(local_rank)
    }

    /// Records that a worker has ended. Returns its local rank.
    fn record_end(&mut self, number: u32) -> Option<u32> {
        let ended = self.local_rank(number)?;
        self.running.ranks.retain(|_, local_rank| *local_rank != ended);
        Some(ended)
    }

    fn error_file(&self, local_rank: u32) -> ErrorFile {
        self.error_files.path(local_rank).map_or(ErrorFile::Absent, read_error_file)
    }

    /// Reports error files before a failure: a worker that fails may have written its file long before it ends, and its
    /// peers may end before it does.
    fn report_error_files(&mut self) {
        let now = self.clock.now().as_nanos();
        let mut last = 0;
        for (local_rank, age) in self.error_files.written() {
            last = now.saturating_sub(nanos(age)).max(last + 1);
            self.happened.push_back(WorkerEvent::ErrorWritten { local_rank, at: Instant::from_nanos(last) });
        }
    }

    fn not_started(&self, step: process::SpawnStep, errno: i32) -> Box<str> {
        let error = std::io::Error::from_raw_os_error(errno);
        let entry = match &self.options.entry {
            LocalEntry::Program(path) => path.to_string_lossy(),
            LocalEntry::Function(_) => "the function".into(),
        };
        format!("{entry}: {step}: {error}").into()
    }

    /// Handles a failed command to the guard. If the guard is lost for good, the command is done: the kernel kills the
    /// workers when their guard ends.
    fn report_if_lost(&mut self, worker_events: Result<(), GuardError>) {
        // A signal number that the system refuses reaches no process.
        if let Err(GuardError::Lost(lost)) = worker_events {
            self.lose(lost);
        }
    }

    fn lose(&mut self, lost: GuardLost) {
        // Events from before the loss may explain it.
        while let Ok(Some(event)) = self.guard.next_event() {
            let event = self.convert_event(event);
            self.happened.extend(event);
        }
        if !self.is_lost {
            self.is_lost = true;
            self.happened.push_back(WorkerEvent::GuardLost { message: lost.to_string().into() });
        }
        self.happened.push_back(WorkerEvent::Empty);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn lost_by(pid: u32, signal: i32) -> Box<str> {
    let name = signal_name(signal).map_or_else(|| format!("signal {signal}"), String::from);
    format!("the guard of the workers (process {pid}) was ended by {name}, and all its descendants with it")
        .into()
}

/// Formats processes with their IDs and commands.
fn named(pids: &[u32], count: u32) -> Box<str> {
    let mut message = match count {
        1 => String::from("a process outlives the workers: "),
        count => format!("{count} processes outlive the workers: "),
    };
    for (index, pid) in pids.iter().enumerate() {
        let command = process::command_of(*pid);
        message += &format!("{}pid {pid} ({command})", if index == 0 { "" } else { ", " });
    }
    if (pids.len() as u64) < u64::from(count) {
        message += ", ...";
    }
    message.into()
}

fn stdio(output: &Output) -> Stdio<'_> {
    match output {
        Output::Inherit => Stdio::Inherit,
        Output::Null => Stdio::Null,
        Output::Fd(fd) => Stdio::Fd(fd.as_fd()),
    }
}

/// Returns whether another attempt may succeed.
const fn start_failure(errno: i32) -> StartFailure {
    match errno {
        libc::EAGAIN
        | libc::ENOMEM
        | libc::EMFILE
        | libc::ENFILE
        | libc::ENOSPC
        | libc::ETXTBSY
        | libc::ECANCELED => StartFailure::Passing,
        _ => StartFailure::Lasting,
    }
}

/// Returns the value of the system's monotonic clock at the origin of `clock`, in nanoseconds.
fn origin_ns(clock: &Clock) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writing; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
    now_ns.saturating_sub(clock.now().as_nanos())
}

/// Returns the variables of `base`, overridden by those of `over`. The last one of a name wins.
fn merged(
    base: &[(OsString, OsString)],
    over: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let all: SortedMap<_, _> = base.iter().cloned().chain(over).collect();
    all.into_iter().collect()
}

impl Workers for LocalWorkers {
    fn begin(&mut self, clock: Clock) {
        self.origin_ns = origin_ns(&clock);
        self.clock = clock;
    }

    fn reach(&self) -> Reach {
        Reach::ThisHost
    }

    fn fd(&self) -> RawFd {
        self.monitor.as_ref().map_or_else(|| self.guard.as_raw_fd(), WorkerMonitor::fd)
    }

    fn deadline(&self) -> Option<Instant> {
        self.monitor.as_ref()?.deadline(self.clock.now(), &self.running)
    }

    fn start(&mut self, start: &Start<'_>) {
        self.first = self.first.wrapping_add(self.count);
        self.count = u32::try_from(start.group.workers.len()).unwrap_or(u32::MAX);
        self.running = Running::default();
        self.is_stopping = false;
        self.not_returned.clear();
        if let Some(monitor) = &mut self.monitor {
            monitor.begin();
        }
        let attempt = match self.outputs(start) {
            Ok(attempt) => attempt,
            Err(error) => {
                let (start_failure, message) = (StartFailure::Lasting, error.to_string().into());
                return self.happened.push_back(WorkerEvent::NotStarted {
                    local_rank: 0,
                    start_failure,
                    message,
                });
            }
        };
        for (worker, outputs) in start.group.workers.iter().zip(&attempt.workers) {
            match self.start_one(start, worker, outputs) {
                Ok(()) => self.running.awaited += 1,
                Err((start_failure, message)) => {
                    let local_rank = worker.local_rank;
                    self.happened.push_back(WorkerEvent::NotStarted { local_rank, start_failure, message });
                }
            }
        }
        self.error_files.begin(attempt.workers.into_iter().map(|outputs| outputs.error_file).collect());
    }

    fn signal(&mut self, signal: i32) {
        self.is_stopping = true;
        let sent = self.guard.signal(signal);
        self.report_if_lost(sent);
    }

    fn kill(&mut self) {
        self.is_stopping = true;
        let sent = self.guard.kill();
        self.report_if_lost(sent);
    }

    fn name_leftovers(&mut self) {
        let sent = self.guard.survivors();
        self.report_if_lost(sent);
    }

    fn pass(&mut self, signal: i32) {
        let sent = self.guard.pass(signal);
        self.report_if_lost(sent);
    }

    fn next_event(&mut self) -> Option<WorkerEvent> {
        loop {
            if let Some(event) = self.happened.pop_front() {
                return Some(event);
            }
            match self.guard.next_event() {
                Ok(None) => {
                    if let Some(monitor) = &mut self.monitor {
                        monitor.check(self.clock.now(), &self.running, &mut self.happened);
                    }
                    return self.happened.pop_front();
                }
                Ok(Some(event)) => {
                    if let Some(event) = self.convert_event(event) {
                        return Some(event);
                    }
                }
                Err(_) if self.is_lost => return None,
                Err(lost) => self.lose(lost),
            }
        }
    }

    fn failures(&mut self, group: &WorkerGroup, failed: &[Failed]) -> Vec<ProcessFailure> {
        let index = NodeIdentity { host: &self.options.host, group_rank: group.group_rank.unwrap_or(0) };
        let failure = |failed: &Failed| {
            let worker = group.workers.get(usize::try_from(failed.local_rank).ok()?)?;
            let end = WorkerEnd {
                local_rank: failed.local_rank,
                global_rank: worker.global_rank,
                pid: failed.pid.unwrap_or(0),
                exit_code: failed.exit.exit_code(),
                seen_at_s: self.clock.epoch_s(failed.at),
                error_file: self.error_file(failed.local_rank),
                stderr_tail: self.logs.tail(failed.local_rank),
            };
            let mut failure = ProcessFailure::new(index, end);
            if let Some(message) = self.not_returned.get(&failed.local_rank) {
                failure.name_cause(message);
            }
            Some(failure)
        };
        failed.iter().filter_map(failure).collect()
    }
}
