//! Output of workers: its folders, files, pipes and consoles.
//!
//! [`LogSettings::destination`] decides where a stream goes. Output that passes through the agent is read from pipes by
//! one thread, `rdzv-logs`, which writes files and consoles ([`Consoles`]) and keeps the last lines. It never blocks on
//! a console. A file that cannot be written any more is closed, with one line on the console: a full disk does not
//! block the workers.
//!
//! ```text
//! open            creates or opens the run's folder
//! start_attempt   creates the attempt's folder, files and pipes, and returns what each worker gets
//! (the workers are started; the Attempt is dropped, which closes the agent's copies of their ends of the pipes)
//! finish_attempt  waits until everything has been read, or until the timeout
//! tail            returns the last lines of a worker's standard error, until the next attempt
//! ```

mod console;
mod error;
mod error_files;
mod files;
mod pump;

use crate::log_layout::{
    Destination, ERROR_FILE, Files, LogSettings, attempt_folder, filtered_file, stream_file,
};
use crate::log_lines::LogLines;
use crate::streams::Stream;
use crate::template::{Origin, line_prefix};
pub use console::{Console, Consoles};
pub use error::LogError;
pub use error_files::{error_file_age, hand_on_error_file, read_error_file, write_error_file};
use files::{LogFile, RunFolder};
use pump::{Command, CommandResult, Group, Lines, Piped, Pump};
use rendezvous_core::driver::channel::{ChannelError, Receiver, Sender, bounded, unbounded};
use rendezvous_core::driver::event_loop::{EventLoop, Waker};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::{self, Thread};
use rustix::fs::{OFlags, fcntl_setfl};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Location of the folder of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFolder<'a> {
    /// A new folder in the system's folder for temporary files. It is removed with the [`WorkerLogs`], unless it
    /// contains files.
    #[default]
    Temporary,
    /// A new folder in this folder, which is created if it is missing.
    In(&'a Path),
}

/// A stream of a worker. Drop it soon after the worker was started: the end of the stream is not seen before, because
/// the agent holds a copy of the pipe's end.
#[derive(Debug)]
pub enum Output {
    /// The agent's own stream.
    Inherit,
    /// `/dev/null`.
    Null,
    /// This descriptor.
    Fd(OwnedFd),
}

/// Streams and error file of one worker.
#[derive(Debug)]
pub struct WorkerOutputs {
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Absolute path of the worker's error file; `None` without files.
    pub error_file: Option<PathBuf>,
}

/// Outputs of one start of the group.
#[derive(Debug)]
pub struct Attempt {
    /// Number of its folder: the requested one, or the next that was free.
    pub number: u64,
    /// Folder of the attempt; `None` without files.
    pub folder: Option<PathBuf>,
    /// Outputs of each worker, in the requested order.
    pub workers: Vec<WorkerOutputs>,
    /// Why this attempt has no files although files were requested. It has been reported on the console.
    pub log_error: Option<LogError>,
}

/// A stream that a process still held open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStream {
    /// Local rank of its worker.
    pub local_rank: u32,
    /// The stream.
    pub stream: Stream,
}

/// Output of one agent's workers, used by one thread. Dropping it ends its thread; consoles get one second to accept
/// the remaining output.
pub struct WorkerLogs {
    settings: LogSettings,
    folder: Option<RunFolder>,
    commands: Sender<Command>,
    waker: Waker,
    clock: Clock,
    thread: Option<Thread>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    has_started: bool,
    tails: Vec<(u32, Tail)>,
}

/// Source of the last lines of a worker's standard error.
enum Tail {
    Lines(Lines),
    File(File),
}

/// Longest wait for an answer of the thread, which may be blocked by a disk.
const TIMEOUT: Duration = Duration::from_secs(1);

impl fmt::Debug for WorkerLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerLogs").field(&self.run_folder()).finish()
    }
}

impl WorkerLogs {
    /// Creates the run's folder, unless the settings discard files, and starts the thread.
    ///
    /// # Errors
    /// The folder cannot be created, or the system has no descriptors or threads left.
    pub fn open(
        settings: LogSettings,
        run_id: &str,
        folder: LogFolder<'_>,
        consoles: Consoles,
    ) -> Result<Self, LogError> {
        let folder = match settings.files {
            Files::Kept => Some(RunFolder::open(run_id, folder)?),
            Files::Discarded => None,
        };
        let events = EventLoop::new().map_err(|error| LogError::not_carried(&error))?;
        let (waker, clock) = (events.waker(), *events.clock());
        let (commands, orders) = unbounded();
        let (alive, ended) = bounded(0);
        let pump = Pump::new(events, orders, consoles);
        let thread = threads::spawn("rdzv-logs", move || {
            pump.run();
            drop(alive);
        });
        let thread = Some(thread.map_err(|error| LogError::not_carried(&error))?);
        Ok(Self {
            settings,
            folder,
            commands,
            waker,
            clock,
            thread,
            ended,
            has_started: false,
            tails: Vec::new(),
        })
    }

    /// Returns the run's folder; `None` without files.
    pub fn run_folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(RunFolder::path)
    }

    /// Creates the outputs of the next attempt's workers. The last attempt is over: what its workers have written by
    /// now is read, and their streams are closed.
    ///
    /// The first attempt needs its files. A later one runs without them if they cannot be created, for example because
    /// the disk is full: the restart matters more. See [`Attempt::log_error`].
    ///
    /// # Errors
    /// A file or folder of the first attempt cannot be created, or the system has no descriptors left.
    pub fn start_attempt(&mut self, attempt: u64, workers: &[Origin<'_>]) -> Result<Attempt, LogError> {
        let made = match self.make(self.settings.files, attempt, workers) {
            Err(error) if self.has_started && error.path().is_some() => {
                let mut made = self.make(Files::Discarded, attempt, workers)?;
                made.group.note = Some(format!("rdzv: {error}; this attempt has no log files\n"));
                made.attempt.log_error = Some(error);
                made
            }
            made => made?,
        };
        self.has_started = true;
        self.tails = made.tails;
        self.execute(TIMEOUT, |done| Command::Start { group: made.group, done })
            .map_err(|error| LogError::not_carried(&error))?;
        Ok(made.attempt)
    }

    /// Waits until everything that the workers wrote has been read: until all their streams have ended, or until the
    /// timeout. Then the streams are closed. Returns those that had not ended: most likely a descendant of a worker
    /// holds them open.
    pub fn finish_attempt(&mut self, timeout: Duration) -> Vec<OpenStream> {
        let until = self.clock.now() + timeout;
        self.execute(timeout + TIMEOUT, |done| Command::Finish { until, done }).unwrap_or_default()
    }

    /// Waits until the consoles have accepted everything, or until the timeout.
    pub fn flush(&self, timeout: Duration) {
        let until = self.clock.now() + timeout;
        let _ = self.execute(timeout + TIMEOUT, |done| Command::Flush { until, done });
    }

    /// Returns the last lines of a worker's standard error, the oldest first: at most
    /// [`crate::limits::TAIL_LINES`], each of at most [`crate::limits::TAIL_LINE_BYTES_MAX`] bytes
    /// and a note on what is left out. They are those of the last attempt that was started, even if it is finished, and
    /// include everything that the worker had written by now.
    pub fn tail(&self, local_rank: u32) -> Vec<String> {
        match self.tails.iter().find(|(of, _)| *of == local_rank) {
            Some((_, Tail::Lines(lines))) => {
                let _ = self.execute(TIMEOUT, |done| Command::Drain { local_rank, done });
                pump::lock(lines).tail()
            }
            Some((_, Tail::File(file))) => files::tail(file),
            None => Vec::new(),
        }
    }

    /// Executes a command and waits for its result. A thread that does not answer in time is blocked by a disk, and
    /// executes the command later.
    fn execute(
        &self,
        timeout: Duration,
        command: impl FnOnce(Sender<CommandResult>) -> Command,
    ) -> CommandResult {
        let (done, result) = bounded(1);
        self.send_command(command(done));
        result.recv_timeout(timeout).unwrap_or_else(|_| Ok(Vec::new()))
    }

    fn send_command(&self, command: Command) {
        // A thread that has ended does not answer, which the caller notices by its timeout.
        self.commands.send(command).ok();
        self.waker.wake();
    }

    fn make(&mut self, files: Files, attempt: u64, workers: &[Origin<'_>]) -> Result<Made, LogError> {
        let (number, folder) = match (&mut self.folder, files) {
            (Some(run), Files::Kept) => {
                let (number, folder) = run.make_attempt(attempt)?;
                (number, Some(folder))
            }
            _ => (attempt, None),
        };
        let settings = LogSettings { files, ..self.settings.clone() };
        let mut group = Group::default();
        if let Some(folder) = &folder {
            for stream in Stream::ALL.into_iter().filter(|&stream| settings.has_filtered_file(stream)) {
                group.filtered[stream as usize] = Some(LogFile::create(folder.join(filtered_file(stream)))?);
            }
        }
        let attempt = Attempt { number, folder, workers: Vec::with_capacity(workers.len()), log_error: None };
        let mut made = Made { attempt, group, tails: Vec::new() };
        for worker in workers {
            made.add(&settings, worker)?;
        }
        Ok(made)
    }
}

impl Drop for WorkerLogs {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !thread.is_here() {
            return thread.join();
        }
        self.send_command(Command::Stop { until: self.clock.now() + TIMEOUT });
        // A thread that is blocked by a disk is not waited for.
        let ended = self.ended.recv_timeout(TIMEOUT * 2);
        if ended == Err(ChannelError::Closed) {
            thread.join();
        }
    }
}

/// An attempt with both ends of its pipes.
struct Made {
    attempt: Attempt,
    group: Group,
    tails: Vec<(u32, Tail)>,
}

impl Made {
    fn add(&mut self, settings: &LogSettings, worker: &Origin<'_>) -> Result<(), LogError> {
        let folder = match &self.attempt.folder {
            Some(attempt) => Some(files::make_folder(attempt.join(worker.local_rank.to_string()))?),
            None => None,
        };
        let stdout = self.output(settings, worker, Stream::Stdout, folder.as_deref())?;
        let stderr = self.output(settings, worker, Stream::Stderr, folder.as_deref())?;
        let error_file = folder.map(|folder| folder.join(ERROR_FILE));
        let outputs = WorkerOutputs { local_rank: worker.local_rank, stdout, stderr, error_file };
        self.attempt.workers.push(outputs);
        Ok(())
    }

    fn output(
        &mut self,
        settings: &LogSettings,
        worker: &Origin<'_>,
        stream: Stream,
        folder: Option<&Path>,
    ) -> Result<Output, LogError> {
        let local_rank = worker.local_rank;
        let destination = settings.destination(local_rank, stream);
        let file = match (destination, folder) {
            (Destination::Inherit, _) => return Ok(Output::Inherit),
            (Destination::Null, _) => return Ok(Output::Null),
            (Destination::File | Destination::FileAndConsole, Some(folder)) => {
                Some(LogFile::create(folder.join(stream_file(stream)))?)
            }
            _ => None,
        };
        let lines = match (destination, file) {
            (Destination::File, Some(file)) => {
                let (for_worker, for_tail) = file.shared()?;
                if stream == Stream::Stderr {
                    self.tails.push((local_rank, Tail::File(for_tail)));
                }
                return Ok(Output::Fd(for_worker));
            }
            (Destination::Console | Destination::FileAndConsole, file) => {
                let prefix = line_prefix(settings.prefix_template.as_deref(), worker);
                (LogLines::new(prefix, settings.needles(stream)), file)
            }
            (_, file) => (LogLines::unshown(), file),
        };
        let (lines, file) = (Lines::new(lines.0.into()), lines.1);
        if stream == Stream::Stderr {
            self.tails.push((local_rank, Tail::Lines(Arc::clone(&lines))));
        }
        let (near, far) =
            pipe().map_err(|error| LogError::Pipe { local_rank, stream, errno: error::errno(&error) })?;
        self.group.streams.push(Piped {
            name: OpenStream { local_rank, stream },
            destination,
            near,
            lines,
            file,
        });
        Ok(Output::Fd(far))
    }
}

/// Creates a pipe. The end for reading does not block; the other end blocks, as programs expect.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let (near, far) = io::pipe()?;
    fcntl_setfl(&near, OFlags::NONBLOCK)?;
    Ok((File::from(OwnedFd::from(near)), far.into()))
}

#[cfg(test)]
mod tests;
