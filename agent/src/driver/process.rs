//! Processes below an agent: how they are started, observed and ended.
//!
//! Between an agent and its workers is a *guard*: a small process that is forked from the agent's program when
//! [`Guard::start`] is called. It starts the workers, adopts their orphaned descendants, and reports exits as they
//! happen. When the agent's process ends, for whatever reason, it kills all its descendants. `docs/adr/0007-guard.md`
//! gives the reasons for this design.
//!
//! The guard has a *keeper*, which is the process that the program forks, and the parent of the guard. If the guard is
//! killed, its keeper kills the guard's descendants and starts another guard.
//!
//! The program around the agent keeps its signal handlers, its signal mask and its children. The library waits for the
//! keeper only, by its process ID, and tolerates that the program has reaped it. The keeper is a child of the program
//! as long as the [`Guard`] lives: a program that waits for *all* of its children (`while (wait(NULL) > 0)`) waits for
//! it as well.
//!
//! This module decides nothing: the caller chooses what to stop, when, and how long to wait.
use rendezvous_core::driver::prelude::*;

mod error;
mod event;
mod find;
mod function;
mod guard;
mod guard_socket;
mod numactl;
mod program;
mod workers;

#[cfg(test)]
mod tests;

pub use error::{GuardError, GuardLost, Part, SpawnStep, StartStep};
pub use event::{GuardEvent, Returned};
pub use find::{FindError, ProcessState, find_program, process_state};
pub(in crate::driver) use find::{command_of, parent_of};
pub use function::{Call, Function, NOT_RETURNED, PANICKED, Registered};
pub use numactl::{NumactlError, numactl};
pub use program::{Entry, Program, Stdio};

use crate::group::ExitStatus;
use crate::limits::RETURNED_BYTES_MAX;
use alloc::collections::VecDeque;
use guard::memory::GuardMemory;
use guard::packet::{self, Report, Request, report, request, stdio};
use guard::system::{self, check};
use guard::{GuardConfig, keep};
use guard_socket::{GuardSocket, Queued};
use libc::{c_int, pid_t};
use program::SealedBlock;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::socket::wait_readable;
use rendezvous_core::driver::threads::with_signals_blocked;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use socket2::{Domain, Socket, Type};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use workers::{ReturnFile, Workers};

/// Options of a guard.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The function that workers may run.
    pub function: Option<Registered>,
    /// A descriptor that the keeper holds open, too. The end of this process then does not have to wait for its close.
    pub held: Option<RawFd>,
    /// Maximum number of living workers.
    pub workers_max: u32,
    /// Maximum number of bytes that a function may return. More is [`Returned::TooLong`].
    pub returned_bytes_max: usize,
    /// Longest wait for the end of all descendants when the guard is dropped. Processes that no signal reaches are
    /// abandoned then.
    pub end_timeout: Duration,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self {
            function: None,
            held: None,
            workers_max: 1024,
            returned_bytes_max: RETURNED_BYTES_MAX,
            end_timeout: Duration::from_secs(5),
        }
    }
}

/// Longest wait for the first report of a new guard. It takes milliseconds unless the host is overloaded.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest wait for the end of a process that was killed or has closed all its descriptors.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Interval of sending a request again for which the system lacked buffers.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(5);

const SOCKET: Token = Token(0);
const GUARD: Token = Token(1);

/// A guard and all its descendants.
///
/// Its descriptor ([`AsRawFd`]) is readable when [`Guard::next_event`] may return an event, and stays the same for its
/// life. The threads that start it and call it may end before it.
///
/// Dropping it kills all descendants, waits until they have ended ([`GuardOptions::end_timeout`]), and reaps the
/// keeper. In a forked child of the program, dropping it has no effect on these processes.
#[derive(Debug)]
pub struct Guard {
    /// `None` only during the drop.
    inner: Option<Inner>,
    /// ID of the process that started the guard.
    owner: u32,
}

#[derive(Debug)]
struct Inner {
    // Watches are dropped before what they watch.
    #[expect(dead_code, reason = "held: the loop's descriptor becomes readable by them")]
    watches: Vec<Watch>,
    workers: Workers,
    events: EventLoop,
    socket: GuardSocket,
    /// ID of the keeper, a child of this process.
    pid: pid_t,
    /// The keeper's pidfd, on systems that have pidfds.
    pidfd: Option<OwnedFd>,
    guard: GuardHandle,
    happened: VecDeque<GuardEvent>,
    lost: Option<GuardLost>,
    /// Why the keeper could not start another guard.
    not_restarted: Option<(StartStep, c_int)>,
    options: GuardOptions,
}

/// The guard, unless it is lost. The keeper reaps it.
#[derive(Debug, Default)]
struct GuardHandle {
    pid: u32,
    /// The guard's pidfd, on systems that have pidfds.
    pidfd: Option<OwnedFd>,
}

impl Guard {
    /// Starts a guard. This forks the process once. The cost grows with the memory that the program has mapped. The
    /// guard shares that memory, and the program pays for a copy of each page that it changes later, so it is best
    /// started early.
    ///
    /// Functions registered with `pthread_atfork` are called.
    ///
    /// # Errors
    /// [`GuardError::NotStarted`].
    pub fn start(options: &GuardOptions) -> Result<Self, GuardError> {
        let prepare = |errno| GuardError::NotStarted(StartStep::Prepare, errno);
        let memory = GuardMemory::new(options.workers_max).map_err(prepare)?;
        let (ours, theirs) = socket_pair().map_err(prepare)?;
        let events = EventLoop::new().map_err(|error| prepare(number_of(&error)))?;
        // Without a pidfd, the guard detects the end of the agent by its socket alone.
        let agent = pidfd_of(std::process::id().cast_signed()).map_err(prepare)?;
        let config = GuardConfig {
            memory: &memory,
            socket: theirs.as_raw_fd(),
            agent: agent.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            held: options.held.unwrap_or(-1),
            name: process_name(),
            function: options.function.as_ref().map(|function| Arc::as_ptr(&function.0)),
            returned_bytes_max: options.returned_bytes_max,
        };
        // The child runs with the agent's signal handlers until it has reset them, so signals are blocked until then.
        // SAFETY: the child calls nothing but `keep`, which neither allocates nor takes locks, and never returns.
        let forked = with_signals_blocked(|| match unsafe { libc::fork() } {
            0 => keep(&config),
            pid => check(pid),
        });
        let pid = forked.map_err(|errno| GuardError::NotStarted(StartStep::Fork, errno))?;
        drop(theirs);
        // If the program has reaped it already, its end is detected by the socket.
        let pidfd = pidfd_of(pid).unwrap_or(None);
        let mut watches = Vec::new();
        let watched = [(Some(ours.as_raw_fd()), SOCKET), (pidfd.as_ref().map(AsRawFd::as_raw_fd), GUARD)];
        let mut guard = Self { inner: None, owner: std::process::id() };
        let mut failed = None;
        for (fd, token) in watched.into_iter().filter_map(|(fd, token)| Some((fd?, token))) {
            match events.watch(fd, Interest::Read, token) {
                Ok(watch) => watches.push(watch),
                Err(error) => failed = Some(prepare(number_of(&error))),
            }
        }
        let mut inner = Inner {
            watches,
            workers: Workers::default(),
            events,
            socket: GuardSocket::new(ours),
            pid,
            pidfd,
            guard: GuardHandle::default(),
            happened: VecDeque::new(),
            lost: None,
            not_restarted: None,
            options: options.clone(),
        };
        let ready = failed.map_or_else(|| inner.await_ready(), Err);
        guard.inner = Some(inner);
        ready.map(|()| guard)
    }

    /// Returns the process ID of the guard. The guard is a child of its keeper, and a different process after
    /// [`GuardEvent::Lost`].
    pub fn pid(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.guard.pid)
    }

    /// Returns the process ID of the guard's keeper. All descendants of the guard are descendants of the keeper, and
    /// the keeper is a child of this process.
    pub fn keeper_pid(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.pid.cast_unsigned())
    }

    /// Requests the start of a worker, answered by [`GuardEvent::Started`] or [`GuardEvent::NotStarted`]. It never
    /// blocks. Many workers may be requested at once; they are started in this order, without a round trip in between.
    ///
    /// `worker` is the caller's number for it, and free again after its end.
    ///
    /// # Errors
    /// A failure that is known at once. Nothing was requested then.
    pub fn spawn(&mut self, worker: u32, program: &Program<'_>) -> Result<(), GuardError> {
        self.inner()?.spawn(worker, program)
    }

    /// Sends a signal to the process group of each worker, and to the group of each adopted process. Until all have
    /// ended, which [`GuardEvent::Empty`] reports, processes adopted later get it, too, and nothing is started. Each
    /// process gets it once, even if this is called again meanwhile. A different signal is sent in addition.
    ///
    /// # Errors
    /// The guard is lost, or there is no such signal.
    pub fn signal(&mut self, signal: i32) -> Result<(), GuardError> {
        self.inner()?.stop(Request { kind: request::SIGNAL, signal: valid(signal)?, ..Request::default() })
    }

    /// Sends a signal to the process group of each worker.
    ///
    /// # Errors
    /// Like [`Guard::signal`].
    pub fn pass(&mut self, signal: i32) -> Result<(), GuardError> {
        self.inner()?.ask(Request { kind: request::PASS, signal: valid(signal)?, ..Request::default() })
    }

    /// Kills all descendants of the guard, including those that have left their sessions. [`GuardEvent::Empty`] reports
    /// when all have ended; nothing is started until then.
    ///
    /// # Errors
    /// The guard is lost.
    pub fn kill(&mut self) -> Result<(), GuardError> {
        self.inner()?.stop(Request { kind: request::KILL, ..Request::default() })
    }

    /// Requests the living workers and adopted processes, answered by [`GuardEvent::Survivors`]. After [`Guard::kill`]
    /// these are the processes that no signal reaches ([`process_state`]).
    ///
    /// # Errors
    /// The guard is lost.
    pub fn survivors(&mut self) -> Result<(), GuardError> {
        self.inner()?.ask(Request { kind: request::SURVIVORS, ..Request::default() })
    }

    /// Returns the next event; never blocks. A guard that was killed, most likely because memory ran out, is reported
    /// as [`GuardEvent::Lost`].
    ///
    /// # Errors
    /// The keeper has ended, and with it the guard and the workers. Events from before are returned first.
    pub fn next_event(&mut self) -> Result<Option<GuardEvent>, GuardLost> {
        self.inner.as_mut().map_or(Ok(None), Inner::next_event)
    }

    fn inner(&mut self) -> Result<&mut Inner, GuardLost> {
        let inner = self.inner.as_mut().ok_or(GuardLost { pid: 0, signal: None, not_restarted: None })?;
        inner.lost.map_or(Ok(inner), Err)
    }
}

impl AsRawFd for Guard {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_ref().map_or(-1, |inner| inner.events.fd())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        if std::process::id() == self.owner {
            inner.end();
        } else {
            // The loop and the socket are shared with the parent process, so nothing is sent, and nothing is removed
            // from the loop.
            core::mem::forget(inner);
        }
    }
}

impl Inner {
    fn await_ready(&mut self) -> Result<(), GuardError> {
        let not = |errno| GuardError::NotStarted(StartStep::Report, errno);
        if !wait_readable(self.socket.as_fd(), REPORT_TIMEOUT).map_err(|error| not(number_of(&error)))? {
            return Err(not(libc::ETIMEDOUT));
        }
        match self.socket.receive() {
            Ok(Some((ready, _))) if ready.kind == report::READY => {
                self.guard_is(ready.pid);
                Ok(())
            }
            Ok(Some((lost, _))) if lost.kind == report::LOST => Err(not(libc::ECHILD)),
            Ok(Some((failed, _))) => {
                Err(GuardError::NotStarted(StartStep::from_wire(failed.how), failed.value))
            }
            Ok(None) => Err(not(libc::EPIPE)),
            Err(errno) => Err(not(errno)),
        }
    }

    /// Records the guard's process. Its keeper reaps it, so the ID still belongs to it, unless it was killed at once.
    fn guard_is(&mut self, pid: pid_t) {
        self.guard = GuardHandle { pid: pid.cast_unsigned(), pidfd: pidfd_of(pid).unwrap_or(None) };
    }

    fn spawn(&mut self, worker: u32, program: &Program<'_>) -> Result<(), GuardError> {
        if self.workers.has(worker) {
            return Err(GuardError::Runs(worker));
        }
        if self.workers.len() >= self.options.workers_max as usize {
            return Err(GuardError::TooMany(self.options.workers_max));
        }
        let mut command = Request { kind: request::START_PROGRAM, worker, ..Request::default() };
        for &signal in program.blocked {
            command.blocked |= 1 << (valid(signal)? - 1);
        }
        let sealed = SealedBlock::pack(program)?;
        command.block_bytes = sealed.bytes;
        let mut returned = None;
        if program.entry == Entry::Function {
            if self.options.function.is_none() {
                return Err(GuardError::NoFunction);
            }
            command.kind = request::START_FUNCTION;
            returned = Some(ReturnFile::new()?);
        }
        let mut beside: Vec<BorrowedFd<'_>> = Vec::from([sealed.file.as_fd()]);
        command.stdio = [program.stdin, program.stdout, program.stderr].map(|stream| match stream {
            Stdio::Inherit => stdio::INHERIT,
            Stdio::Null => stdio::NULL,
            Stdio::Fd(fd) => {
                beside.push(fd);
                stdio::CARRIED
            }
        });
        beside.extend(returned.as_ref().map(AsFd::as_fd));
        self.socket.ask(command, &beside).map_err(|errno| self.or_lost(errno))?;
        self.workers.ask(worker, returned);
        Ok(())
    }

    /// Sends a stop. Starts that were not sent yet are withdrawn.
    fn stop(&mut self, command: Request) -> Result<(), GuardError> {
        for Queued { request, .. } in self.socket.take_back_starts() {
            let (worker, step) = (request.worker, SpawnStep::Stopping);
            self.workers.forget(worker);
            self.happened.push_back(GuardEvent::NotStarted { worker, step, errno: libc::ECANCELED });
        }
        self.ask(command)
    }

    fn ask(&mut self, command: Request) -> Result<(), GuardError> {
        let command = self.socket.ask(command, &[]).map_err(|errno| self.or_lost(errno));
        self.retry_send();
        command
    }

    /// Schedules the next attempt. No event reports when the system has buffers again.
    fn retry_send(&mut self) {
        if self.socket.is_out_of_buffers() {
            self.events.wake_at(self.events.clock().now() + SEND_RETRY_INTERVAL);
        }
    }

    /// Returns the caller's error for an error of the socket.
    fn or_lost(&mut self, errno: c_int) -> GuardError {
        match errno {
            libc::EPIPE | libc::ECONNRESET => GuardError::Lost(self.loss()),
            errno => GuardError::NotPrepared(errno),
        }
    }

    fn next_event(&mut self) -> Result<Option<GuardEvent>, GuardLost> {
        loop {
            if let Some(event) = self.happened.pop_front() {
                return Ok(Some(event));
            }
            if let Some(lost) = self.lost {
                return Err(lost);
            }
            // Checked first: a keeper that has ended sends nothing after this.
            let has_ended = self.has_ended();
            match self.socket.receive() {
                Ok(Some((from_guard, carried))) => self.handle_event(&from_guard, carried),
                Ok(None) => return self.lose(),
                Err(libc::EAGAIN) if has_ended => return self.lose(),
                Err(libc::EAGAIN) => {
                    // An error of the loop is harmless here: the descriptor's readiness is computed anew by the next
                    // poll.
                    self.events.poll().into_iter().flatten().for_each(drop);
                    if self.socket.flush().is_err() {
                        return self.lose();
                    }
                    self.retry_send();
                    return Ok(None);
                }
                Err(_) => return self.lose(),
            }
        }
    }

    /// Handles a report of the guard or the keeper.
    fn handle_event(&mut self, from_guard: &Report, mut carried: packet::Carried) {
        let Report { worker, value, .. } = *from_guard;
        let pid = from_guard.pid.cast_unsigned();
        match from_guard.kind {
            report::STARTED => {
                // SAFETY: it arrived with the packet and has no other owner.
                let pidfd = carried.take(0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                self.socket.start_confirmed();
                self.workers.started(worker, pidfd);
                self.happened.push_back(GuardEvent::Started { worker, pid });
            }
            report::NOT_STARTED => {
                self.socket.start_confirmed();
                self.workers.forget(worker);
                let step = SpawnStep::from_wire(from_guard.how);
                self.happened.push_back(GuardEvent::NotStarted { worker, step, errno: value });
            }
            report::EXITED => {
                let returned = self.workers.ended(worker, self.options.returned_bytes_max);
                let status = match from_guard.how {
                    libc::CLD_EXITED => ExitStatus::Code(value),
                    _ => ExitStatus::Signal(value),
                };
                let (at_ns, was_ending) = (from_guard.at_ns, from_guard.was_ending != 0);
                self.happened.push_back(GuardEvent::Exited {
                    worker,
                    pid,
                    status,
                    at_ns,
                    was_ending,
                    returned,
                });
            }
            // Otherwise another `EMPTY` follows, after the guard has received the later requests.
            report::EMPTY if self.socket.has_seen_all(from_guard.seen) => {
                self.happened.push_back(GuardEvent::Empty);
            }
            report::LOST => {
                self.socket.begin_anew();
                self.workers = Workers::default();
                self.happened.push_back(GuardEvent::Lost { pid, signal: value });
                // The next guard answers `EMPTY` when it has no descendants. An end of the socket is detected after its
                // last report.
                self.socket.ask(Request { kind: request::KILL, ..Request::default() }, &[]).ok();
                self.retry_send();
            }
            report::READY => self.guard_is(from_guard.pid),
            report::NOT_READY => self.not_restarted = Some((StartStep::from_wire(from_guard.how), value)),
            report::SURVIVORS => {
                let pids =
                    from_guard.pids.iter().filter(|pid| **pid > 0).map(|pid| pid.cast_unsigned()).collect();
                self.happened.push_back(GuardEvent::Survivors { pids, count: value.cast_unsigned() });
            }
            _ => {}
        }
        // Answers free space in the socket.
        self.socket.flush().ok();
    }

    /// Returns whether the keeper has ended.
    fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        matches!(wait_readable(pidfd.as_fd(), Duration::ZERO), Ok(true))
    }

    /// Handles the end of the socket. The keeper ends a moment later, which makes the descriptor readable again. Its
    /// signal is known only then.
    fn lose(&mut self) -> Result<Option<GuardEvent>, GuardLost> {
        if self.pidfd.is_some() && !self.has_ended() {
            return Ok(None);
        }
        let lost = self.loss();
        // Events from before the loss come first.
        self.happened.pop_front().map(Some).ok_or(lost)
    }

    fn loss(&mut self) -> GuardLost {
        if let Some(lost) = self.lost {
            return lost;
        }
        // Reports from before the loss come first, and may explain it.
        while let Ok(Some((from_guard, carried))) = self.socket.receive() {
            self.handle_event(&from_guard, carried);
        }
        self.workers.kill_groups();
        self.await_end(LAST_MOMENT);
        if let Some(guard) = &self.guard.pidfd {
            // The guard kills its descendants, and ends.
            wait_readable(guard.as_fd(), LAST_MOMENT).ok();
        }
        let signal = self.reap(libc::WNOHANG).and_then(|ended| {
            matches!(ended.how, libc::CLD_KILLED | libc::CLD_DUMPED).then_some(ended.value)
        });
        let not_restarted = self.not_restarted;
        *self.lost.insert(GuardLost { pid: self.pid.cast_unsigned(), signal, not_restarted })
    }

    /// Reaps the keeper. The program may have done so, or may ignore its children: there is no status then.
    fn reap(&self, flags: c_int) -> Option<system::Waited> {
        match &self.pidfd {
            Some(pidfd) => system::wait(libc::P_PIDFD, pidfd.as_raw_fd().cast_unsigned(), flags),
            None => system::wait(libc::P_PID, self.pid.cast_unsigned(), flags),
        }
        .ok()
        .flatten()
    }

    /// Ends all descendants, then the guard, and then its keeper.
    fn end(&mut self) {
        if self.lost.is_some() {
            return;
        }
        self.socket.shut();
        if !self.await_end(self.options.end_timeout) {
            // A descendant does not end. Workers die with the guard; no signal reaches the others. The keeper is killed
            // first, because it would wait for what does not end.
            match &self.pidfd {
                Some(pidfd) => drop(send_signal(pidfd, libc::SIGKILL)),
                // SAFETY: passes numbers only. The process is a child that the library has not reaped.
                None => unsafe {
                    libc::kill(self.pid, libc::SIGKILL);
                },
            }
            if let Some(guard) = &self.guard.pidfd {
                send_signal(guard, libc::SIGKILL).ok();
            }
            self.workers.kill_groups();
            if !self.await_end(LAST_MOMENT) {
                // The keeper itself is in state D. It remains a child of the program and is not reaped.
                return;
            }
        }
        self.reap(0);
    }

    /// Waits for the end of the keeper. Returns false on timeout.
    fn await_end(&mut self, span: Duration) -> bool {
        match &self.pidfd {
            Some(pidfd) => wait_readable(pidfd.as_fd(), span).unwrap_or(true),
            None => self.socket.await_end(span),
        }
    }
}

fn valid(signal: i32) -> Result<i32, GuardError> {
    if (1..=64).contains(&signal) { Ok(signal) } else { Err(GuardError::NoSignal(signal)) }
}

fn number_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Opens a pidfd; `None` on systems without pidfds.
pub(in crate::driver) fn pidfd_of(pid: pid_t) -> Result<Option<OwnedFd>, c_int> {
    match pidfd_open(Pid::from_raw(pid).ok_or(libc::ESRCH)?, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno.raw_os_error()),
    }
}

/// Sends a signal to the process of a pidfd. The process ID may have been reused meanwhile.
pub(in crate::driver) fn send_signal(pidfd: &OwnedFd, signal: c_int) -> io::Result<()> {
    // SAFETY: the kernel validates the number. Only the C library's functions must not get its own signals.
    let signal = unsafe { Signal::from_raw_unchecked(signal) };
    Ok(pidfd_send_signal(pidfd, signal)?)
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), c_int> {
    let kind = Type::SEQPACKET.cloexec().nonblocking();
    let (ours, theirs) = Socket::pair(Domain::UNIX, kind, None).map_err(|error| number_of(&error))?;
    Ok((ours.into(), theirs.into()))
}

/// Returns the name of this process (`comm`), null-terminated.
fn process_name() -> [u8; 16] {
    let mut name = [0; 16];
    if let Ok(text) = std::fs::read("/proc/self/comm") {
        let text = text.trim_ascii_end();
        let length = text.len().min(name.len() - 1);
        name[..length].copy_from_slice(&text[..length]);
    }
    name
}
