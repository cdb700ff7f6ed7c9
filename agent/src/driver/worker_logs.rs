//! What becomes of the output of workers, carried: folders, files, pipes and consoles.
//!
//! Where a stream goes is [`LogSettings::destination`]'s to say. What passes the agent comes through pipes to one thread,
//! `rdzv-logs`, which writes files and consoles ([`Consoles`]) and keeps last lines. It never waits for a console, and a
//! file that cannot be written any more is given up with one line on the console: no worker is held up by a full disk.
//!
//! ```text
//! open            the run's folder is made, or found
//! start_attempt   the attempt's folder, files and pipes; what each worker is given
//! (the workers are started; the Attempt is dropped, and with it the agent's own ends of their pipes)
//! finish_attempt  until all has been read, or for so long
//! tail            what a failure report has of a worker's standard error, before the next attempt
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
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
pub use console::{Console, Consoles};
use core::fmt;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
pub use error::LogError;
pub use error_files::{error_file_age, hand_on_error_file, read_error_file, write_error_file};
use files::{LogFile, RunFolder};
use pump::{Command, Group, Lines, Piped, Pump};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::event_loop::{EventLoop, Waker};
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::time::Duration;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where the folders of runs are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFolder<'a> {
    /// In a new folder of the system's folder for temporary files. It is removed with the [`WorkerLogs`], unless there are
    /// files in it.
    #[default]
    Temporary,
    /// In this one, which is made if it is missing.
    In(&'a Path),
    /// The run has this one already: its agent was started again. Its attempts stay, and the next one's number is free.
    OfRun(&'a Path),
}

/// What a worker's stream is to be. The agent's end is closed when this is dropped, which must be soon after the worker
/// was started: until then, its end is not seen.
#[derive(Debug)]
pub enum Output {
    /// That of the agent.
    Inherit,
    /// The null device.
    Null,
    /// This one.
    Fd(OwnedFd),
}

/// What one worker is given.
#[derive(Debug)]
pub struct WorkerOutputs {
    /// Which.
    pub local_rank: u32,
    /// Its standard output.
    pub stdout: Output,
    /// Its standard error.
    pub stderr: Output,
    /// Where it is to leave its error; an absolute path. `None` without files.
    pub error_file: Option<PathBuf>,
}

/// One start of the group.
#[derive(Debug)]
pub struct Attempt {
    /// The number of its folder: the one asked for, or the next that was free.
    pub number: u64,
    /// Its folder; `None` without files.
    pub folder: Option<PathBuf>,
    /// What each worker is given, in the order asked for.
    pub workers: Vec<WorkerOutputs>,
    /// Why this attempt has no files although it was to have some. It has been told on the console.
    pub log_error: Option<LogError>,
}

/// A stream that something still held open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStream {
    /// Whose.
    pub local_rank: u32,
    /// Which.
    pub stream: Stream,
}

/// The output of one agent's workers. One thread uses it. Dropping it ends its thread: what consoles have not taken by
/// then they have a second for.
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

/// Where the last lines of a worker's standard error are.
enum Tail {
    Lines(Lines),
    File(File),
}

/// How long a thread that waits for a disk is waited for.
const TIMEOUT: Duration = Duration::from_secs(1);

impl fmt::Debug for WorkerLogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkerLogs").field(&self.run_folder()).finish()
    }
}

impl WorkerLogs {
    /// Makes the run's folder, unless the settings discard files, and starts the thread.
    ///
    /// # Errors
    /// The folder cannot be had, or the system has no descriptors or no thread.
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

    /// The run's folder; `None` without files.
    #[must_use]
    pub fn run_folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(RunFolder::path)
    }

    /// Makes what the workers of the next attempt are given. The attempt before is over: what its workers have written by
    /// now is read, and their streams are closed.
    ///
    /// The first attempt needs its files. A later one goes without, if the disk has filled up meanwhile: the workers'
    /// restart matters more; see [`Attempt::log_error`].
    ///
    /// # Errors
    /// A file or a folder of the first attempt cannot be made, or the system has no descriptors.
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
        let (done, started) = bounded(1);
        self.send_command(Command::Start { group: made.group, done });
        // One that does not answer in time has a disk to wait for, and comes back to it.
        match started.recv_timeout(TIMEOUT) {
            Ok(Err(error)) => Err(LogError::not_carried(&error)),
            _ => Ok(made.attempt),
        }
    }

    /// Waits until everything that the workers wrote has been read: until all their streams have ended, or for so long.
    /// Then the streams are closed. Returns those that had not ended: most likely a process that a worker left behind
    /// holds them.
    pub fn finish_attempt(&mut self, timeout: Duration) -> Vec<OpenStream> {
        let (done, finished) = bounded(1);
        self.send_command(Command::Finish { until: self.clock.now() + timeout, done });
        finished.recv_timeout(timeout + TIMEOUT).unwrap_or_default()
    }

    /// Waits until the consoles have taken everything, for so long at most.
    pub fn flush(&self, timeout: Duration) {
        let (done, flushed) = bounded(1);
        self.send_command(Command::Flush { until: self.clock.now() + timeout, done });
        let _ = flushed.recv_timeout(timeout + TIMEOUT);
    }

    /// The last lines of a worker's standard error, the oldest first; at most [`rendezvous_core::limits::TAIL_LINES`], each of at
    /// most [`rendezvous_core::limits::TAIL_LINE_BYTES_MAX`] and a note on what is left out. They are those of the last attempt
    /// that was started, also when it is finished. Everything that the worker had written by now is in them.
    #[must_use]
    pub fn tail(&self, local_rank: u32) -> Vec<String> {
        match self.tails.iter().find(|(of, _)| *of == local_rank) {
            Some((_, Tail::Lines(lines))) => {
                let (done, drained) = bounded(1);
                self.send_command(Command::Drain { local_rank, done });
                let _ = drained.recv_timeout(TIMEOUT);
                pump::lock(lines).tail()
            }
            Some((_, Tail::File(file))) => files::tail(file),
            None => Vec::new(),
        }
    }

    fn send_command(&self, command: Command) {
        // A thread that has ended answers nothing, which whoever asks notices.
        drop(self.commands.send(command));
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
        // One that waits for a disk is not waited for.
        let ended = self.ended.recv_timeout(TIMEOUT * 2);
        if ended == Err(crossbeam_channel::RecvTimeoutError::Disconnected) {
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

/// The end that is read does not block; the other does, as programs expect.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let (near, far) = io::pipe()?;
    // SAFETY: a descriptor that lives, and a flag.
    if unsafe { libc::fcntl(near.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((File::from(OwnedFd::from(near)), far.into()))
}

#[cfg(test)]
mod tests;
