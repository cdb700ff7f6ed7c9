//! The pipe through which workers set timers ([`crate::watchdog`]), and the effect of an expired timer on its process.

use super::running::Running;
use crate::driver::process::{parent_of, pidfd_of, send_signal};
use crate::watchdog::{CHECK_INTERVAL, ExpiredTimer, Watchdog};
use crate::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use rendezvous_core::driver::clock::since_1970;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::random::random_seed;
use rendezvous_core::driver::temporary::temporary_folder;
use rendezvous_core::sorted::SortedMap;
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Error of creating the pipe for the workers' timers.
#[derive(Debug, thiserror::Error)]
#[error("the workers' timers cannot be taken through {}: {source}", path.display())]
pub struct TimerError {
    /// Path of the pipe.
    pub path: PathBuf,
    /// Error of the system call.
    pub source: io::Error,
}

/// Token of the pipe; the token of a process is its process ID plus `FIRST_PROCESS`.
const PIPE: Token = Token(1);
const FIRST_PROCESS: u64 = 16;
/// Limit of the reads of one poll. The rest is left to the next poll.
const READS_MAX: usize = 16;
const READ_BYTES: usize = 4096;
/// Maximum number of generations between a process and its worker.
const DEPTH_MAX: usize = 64;
/// The workers' timers.
pub(super) struct Timers {
    // Watches are dropped before what they watch.
    #[expect(dead_code, reason = "held: the loop's descriptor becomes readable by it")]
    watch: Watch,
    /// Living processes that have timers or had some.
    held: SortedMap<u32, Held>,
    pipe: File,
    path: PathBuf,
    /// Process that removes the pipe; a forked child does not.
    owner: u32,
    guard: u32,
    watchdog: Watchdog,
    /// Remarks made so far; none is repeated.
    said: Vec<String>,
    remarks: VecDeque<String>,
}

/// A process held by its pidfd, so that its ID cannot be reused unnoticed.
struct Held {
    #[expect(dead_code, reason = "held: the loop reports the end of the process by it")]
    watch: Watch,
    pidfd: OwnedFd,
}

impl Timers {
    pub(super) fn new(path: Option<&Path>, guard: u32, events: &EventLoop) -> Result<Self, TimerError> {
        let path = match path {
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()),
            None => temporary_folder().join(format!("watchdog_timer_{:016x}", random_seed())),
        };
        let made = make_pipe(&path).and_then(|pipe| {
            let watch = events.watch(pipe.as_raw_fd(), Interest::Read, PIPE)?;
            Ok((pipe, watch))
        });
        let (pipe, watch) = match made {
            Ok(made) => made,
            Err(source) => return Err(TimerError { path, source }),
        };
        Ok(Self {
            watch,
            held: SortedMap::new(),
            pipe,
            path,
            owner: std::process::id(),
            guard,
            watchdog: Watchdog::default(),
            said: Vec::new(),
            remarks: VecDeque::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn clear(&mut self) {
        self.watchdog.clear();
        self.held.clear();
    }

    pub(super) fn deadline(&self, now: Instant, running: &Running) -> Option<Instant> {
        if running.awaited > 0 {
            return None;
        }
        let left = self.watchdog.due()?.saturating_sub(since_1970());
        Some(now + left.min(CHECK_INTERVAL))
    }

    pub(super) fn ready(&mut self, token: Token, running: &Running, events: &EventLoop) {
        if token == PIPE {
            return self.read(running, events);
        }
        let ended = token.0.checked_sub(FIRST_PROCESS).and_then(|pid| u32::try_from(pid).ok());
        if let Some(pid) = ended {
            self.watchdog.forget(pid);
            self.held.remove(&pid);
        }
    }

    fn read(&mut self, running: &Running, events: &EventLoop) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_MAX {
            let count = match self.pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let (held, guard, remarks) = (&mut self.held, self.guard, &mut self.remarks);
            self.watchdog.read(&buffer[..count], &mut |pid| {
                held.contains_key(&pid)
                    || match hold(pid, guard, running, events) {
                        Ok(process) => held.insert(pid, process).is_none(),
                        Err(error) => {
                            remarks.push_back(format!("a timer of process {pid} is not taken: {error}"));
                            false
                        }
                    }
            });
        }
    }

    /// Begins a check.
    pub(super) fn wake(&mut self, now: Instant) {
        self.watchdog.wake(now, since_1970());
    }

    /// Ends a check, unless checks are suspended while workers start.
    pub(super) fn rest(&mut self, now: Instant, running: &Running) {
        if running.awaited == 0 {
            self.watchdog.rest(now);
        }
    }

    /// Ends processes whose timers have expired, and reports them and the timers without effect. It waits while workers
    /// are being started: the process may be one of them, which is not known yet.
    pub(super) fn expire(&mut self, running: &Running, worker_events: &mut VecDeque<WorkerEvent>) {
        if running.awaited > 0 {
            return;
        }
        let now = since_1970();
        while let Some(mut timer) = self.watchdog.next_expired(now) {
            let Some(process) = self.held.get(&timer.pid) else { continue };
            timer.local_rank = worker_of(timer.pid, self.guard, running).unwrap_or(None);
            match end(process, &timer) {
                // It has just ended by itself.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => {
                    let ExpiredTimer { pid, signal, .. } = timer;
                    self.remarks.push_back(format!("signal {signal} does not reach process {pid}: {error}"));
                }
                Ok(()) => {}
            }
            worker_events.push_back(WorkerEvent::TimerExpired(timer));
        }
        while let Some(refusal) = self.watchdog.next_refusal() {
            self.remarks.push_back(refusal.to_string());
        }
        while let Some(remark) = self.remarks.pop_front() {
            // Repeated remarks are dropped, and so are those after the 64th.
            if self.said.len() < 64 && !self.said.contains(&remark) {
                self.said.push(remark.clone());
                worker_events
                    .push_back(WorkerEvent::Remark { message: format!("watchdog: {remark}").into() });
            }
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            // Another process may have removed it.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Creates the pipe. It replaces an old pipe without a reader, whose agent was killed.
fn make_pipe(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_fifo() => {
            refuse_readers(path)?;
            fs::remove_file(path)?;
        }
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a pipe"));
        }
        Err(_) => {}
    }
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)?;
    // Opened for writing as well: a pipe without writers is at its end, and would always be readable.
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

/// Refuses a pipe that has a reader, which would take the timers.
fn refuse_readers(path: &Path) -> io::Result<()> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            let message = "the pipe has a reader, most likely another agent";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
        }
    }
}

/// Holds a process, if it is a descendant of the guard.
fn hold(pid: u32, guard: u32, running: &Running, events: &EventLoop) -> io::Result<Held> {
    let system = io::Error::from_raw_os_error;
    let pidfd = pidfd_of(pid.cast_signed()).map_err(system)?.ok_or_else(|| system(libc::ENOSYS))?;
    worker_of(pid, guard, running)?;
    let watch = events.watch(pidfd.as_raw_fd(), Interest::Read, Token(FIRST_PROCESS + u64::from(pid)))?;
    Ok(Held { watch, pidfd })
}

/// Returns the worker that the process is, or descends from. `None` for a process that has left its worker and was
/// adopted by the guard.
fn worker_of(pid: u32, guard: u32, running: &Running) -> io::Result<Option<u32>> {
    let mut at = pid;
    for _ in 0..DEPTH_MAX {
        if let Some(local_rank) = running.ranks.get(&at) {
            return Ok(Some(*local_rank));
        }
        at = parent_of(at)?;
        if at == guard {
            return Ok(None);
        }
        if at <= 1 {
            break;
        }
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a descendant of this agent"))
}

fn end(process: &Held, timer: &ExpiredTimer) -> io::Result<()> {
    if timer.signal > 0 { send_signal(&process.pidfd, timer.signal) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendezvous_core::time::Duration;
    use std::io::Write;
    use std::process::Command;

    /// Polls until `done`, or fails.
    fn until(
        timers: &mut Timers,
        events: &mut EventLoop,
        running: &Running,
        mut done: impl FnMut(&Timers, &VecDeque<WorkerEvent>) -> bool,
    ) -> VecDeque<WorkerEvent> {
        let ends = events.clock().now() + Duration::from_secs(20);
        let mut worker_events = VecDeque::new();
        while !done(timers, &worker_events) {
            assert!(events.clock().now() < ends, "it happens in time");
            for ready in events.wait(Some(ends)).expect("a loop") {
                timers.ready(ready.token, running, events);
            }
            timers.expire(running, &mut worker_events);
        }
        worker_events
    }

    #[test]
    fn the_pipe_of_an_agent_that_lives_is_not_taken() {
        let events = EventLoop::new().expect("a loop");
        let first = Timers::new(None, 0, &events).expect("a pipe");
        let path = first.path().to_path_buf();
        let error = Timers::new(Some(&path), 0, &events).err().expect("it is in use");
        assert!(error.to_string().ends_with("the pipe has a reader, most likely another agent"));
        // The pipe of a killed agent is replaced.
        let mut first = first;
        first.owner = 0;
        drop(first);
        assert!(path.exists());
        drop(Timers::new(Some(&path), 0, &events).expect("it has no reader"));
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_ends_takes_its_timers_with_it() {
        let mut events = EventLoop::new().expect("a loop");
        let mut timers = Timers::new(None, 0, &events).expect("a pipe");
        let path = timers.path().to_path_buf();
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
        let mut running = Running::default();
        running.ranks.insert(child.id(), 3);
        let mut pipe = OpenOptions::new().write(true).open(&path).expect("a pipe");
        let pid = child.id();
        let mut set = |scopes: core::ops::Range<u32>, expires: u32| {
            for scope in scopes {
                let line = format!(
                    "{{\"pid\": {pid}, \"scope_id\": \"{scope}\", \"expiration_time\": {expires}, \"signal\": 9}}\n"
                );
                pipe.write_all(line.as_bytes()).expect("there is room");
            }
        };
        set(0..500, u32::MAX);
        until(&mut timers, &mut events, &running, |timers, _| timers.watchdog.len() == 500);
        assert_eq!(timers.held.len(), 1);
        child.kill().expect("it lives");
        child.wait().expect("a child of ours");
        until(&mut timers, &mut events, &running, |timers, _| timers.watchdog.is_empty());
        assert!(timers.held.is_empty());
        set(0..2, 1);
        let worker_events =
            until(&mut timers, &mut events, &running, |_, worker_events| !worker_events.is_empty());
        let message =
            format!("watchdog: a timer of process {} is not taken: No such process (os error 3)", child.id());
        assert_eq!(
            worker_events,
            [WorkerEvent::Remark { message: message.into() }],
            "once, and nothing else"
        );
        drop(timers);
        assert!(!path.exists());
    }

    #[test]
    fn no_process_is_ended_while_workers_are_being_started() {
        let mut events = EventLoop::new().expect("a loop");
        let mut timers = Timers::new(None, std::process::id(), &events).expect("a pipe");
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
        let mut running = Running { awaited: 1, ..Running::default() };
        let line = format!(
            "{{\"pid\": {}, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}}\n",
            child.id()
        );
        let mut pipe = OpenOptions::new().write(true).open(timers.path()).expect("a pipe");
        pipe.write_all(line.as_bytes()).expect("there is room");
        let worker_events = until(&mut timers, &mut events, &running, |timers, _| timers.watchdog.len() == 1);
        assert_eq!((worker_events.len(), timers.deadline(Instant::ORIGIN, &running)), (0, None));
        running.awaited = 0;
        running.ranks.insert(child.id(), 5);
        assert_eq!(timers.deadline(Instant::ORIGIN, &running), Some(Instant::ORIGIN), "at once");
        let mut worker_events = VecDeque::new();
        timers.expire(&running, &mut worker_events);
        let Some(WorkerEvent::TimerExpired(timer)) = worker_events.pop_front() else {
            panic!("it has expired")
        };
        assert_eq!((timer.local_rank, timer.pid), (Some(5), child.id()));
        let status = child.wait().expect("a child of ours");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
