//! Processes beneath an agent: how they are started, seen to end, and ended.
//!
//! Between an agent and its workers stands a *guard*: a small process that is forked from the agent's program when
//! [`Guard::start`] is called. It starts the workers, adopts what they leave behind, tells of ends as they happen, and ends
//! everything beneath it when the agent's process ends, however that happens. Why it is made so is told in
//! `docs/adr/0007-guard.md`.
//!
//! The guard has a *keeper*, which is the process that the program forks, and the parent of the guard. If the guard is killed,
//! its keeper kills what was beneath it, and starts another one.
//!
//! The program around the agent keeps its signal handlers, its mask, and its children: the library waits for the keeper
//! only, by its number, and does not mind if somebody else did. The keeper is a child of the program as long as the
//! [`Guard`] lives: a program that waits for *all* of its children (`while (wait(NULL) > 0)`) waits for it as well.
//!
//! Here nothing is decided: when to stop whom, and for how long to wait, is the caller's to say.

mod error;
mod event;
mod find;
mod function;
mod guard;
mod line;
mod program;
mod workers;

#[cfg(test)]
mod tests;

pub use error::{GuardError, GuardLost, Part, SpawnStep, StartStep};
pub use event::{ExitStatus, GuardEvent, Returned};
pub use find::{FindError, ProcessState, find_program, process_state};
pub(in crate::driver) use find::{command_of, parent_of};
pub use function::{Call, Function, NOT_RETURNED, PANICKED, Registered};
pub use program::{Entry, Program, Stdio};

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use guard::memory::GuardMemory;
use guard::packet::{self, Report, Request, report, request, stdio};
use guard::system::{self, check};
use guard::{GuardConfig, keep};
use libc::{c_int, pid_t};
use line::{Line, Queued};
use program::Parcel;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::socket::wait_readable;
use rendezvous_core::driver::threads::with_signals_blocked;
use rendezvous_core::limits::RETURNED_BYTES_MAX;
use rendezvous_core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use workers::{ReturnFile, Workers};

/// What a guard is to be.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// The function that a worker may be.
    pub function: Option<Registered>,
    /// A descriptor that the guard's keeper holds open, too: the end of this process does not wait for its close then.
    pub held: Option<RawFd>,
    /// Workers that may live at once.
    pub workers_max: u32,
    /// Bytes that a function may return. More is [`Returned::TooLong`].
    pub returned_bytes_max: usize,
    /// How long dropping the handle waits for everything beneath to be gone. What no signal reaches is left behind then.
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

/// How long a guard may take to report when it was started. It takes a moment, unless its host is in trouble.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a process that was killed, or has closed all it had, may take to be gone.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How soon a request is sent again for which the system had no room.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(5);

const SOCKET: Token = Token(0);
const GUARD: Token = Token(1);

/// A guard, and all that is beneath it.
///
/// Its descriptor ([`AsRawFd`]) is readable when [`Guard::next_event`] may have something to tell, and stays the same for
/// its life. The thread that starts it, and those that call it, may end before it.
///
/// Dropping it kills everything beneath, waits until that is gone ([`GuardOptions::end_timeout`]), and waits for the
/// guard's process. In a forked child of the program, dropping it concerns nobody else.
#[derive(Debug)]
pub struct Guard {
    /// `None` only while it is dropped.
    inner: Option<Inner>,
    /// The process whose guard this is.
    owner: u32,
}

#[derive(Debug)]
struct Inner {
    // Watches go before what they watch.
    #[expect(dead_code, reason = "held: the loop's descriptor becomes readable by them")]
    watches: Vec<Watch>,
    workers: Workers,
    events: EventLoop,
    line: Line,
    /// The keeper's process, which is a child of this one.
    pid: pid_t,
    /// Readable when the keeper has ended, where the system has such a thing.
    pidfd: Option<OwnedFd>,
    guard: GuardProcess,
    happened: VecDeque<GuardEvent>,
    lost: Option<GuardLost>,
    /// Why the keeper could not start another guard.
    not_restarted: Option<(StartStep, c_int)>,
    options: GuardOptions,
}

/// The guard, as long as it is not lost. The keeper waits for it.
#[derive(Debug, Default)]
struct GuardProcess {
    pid: u32,
    /// Readable when it has ended, where the system has such a thing.
    pidfd: Option<OwnedFd>,
}

impl Guard {
    /// Starts a guard: forks this process, once. The cost grows with the memory that the program has by now, and the guard
    /// keeps what the program had then as long as the program changes it, so this is best done early.
    ///
    /// Functions that the program has asked to be called around `fork` (`pthread_atfork`) are called.
    ///
    /// # Errors
    /// [`GuardError::NotStarted`].
    pub fn start(options: &GuardOptions) -> Result<Self, GuardError> {
        let prepare = |errno| GuardError::NotStarted(StartStep::Prepare, errno);
        let memory = GuardMemory::new(options.workers_max).map_err(prepare)?;
        let (ours, theirs) = socket_pair().map_err(prepare)?;
        let events = EventLoop::new().map_err(|error| prepare(number_of(&error)))?;
        // Without it, the guard sees the end of the agent by its socket alone.
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
        // The child runs with the agent's handlers until it has taken them away, so no signal may come to it before.
        // SAFETY: the child calls nothing but `keep`, which neither allocates nor takes locks, and never returns.
        let forked = with_signals_blocked(|| match unsafe { libc::fork() } {
            0 => keep(&config),
            pid => check(pid),
        });
        let pid = forked.map_err(|errno| GuardError::NotStarted(StartStep::Fork, errno))?;
        drop(theirs);
        // Should it be gone already, and somebody else have waited for it, its end is seen by the socket.
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
            line: Line::new(ours),
            pid,
            pidfd,
            guard: GuardProcess::default(),
            happened: VecDeque::new(),
            lost: None,
            not_restarted: None,
            options: options.clone(),
        };
        let ready = failed.map_or_else(|| inner.await_ready(), Err);
        guard.inner = Some(inner);
        ready.map(|()| guard)
    }

    /// The guard's process. It is a child of its keeper, and another one after [`GuardEvent::Lost`].
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.guard.pid)
    }

    /// The process of the guard's keeper, above all that is beneath the guard. It is a child of this one.
    #[must_use]
    pub fn keeper_pid(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.pid.cast_unsigned())
    }

    /// Asks for a worker, which is answered by [`GuardEvent::Started`] or [`GuardEvent::NotStarted`]. It never blocks, and
    /// many may be asked for one behind the other: they are started in this order, without a word in between.
    ///
    /// `worker` is the caller's number for it, and free again after its end.
    ///
    /// # Errors
    /// What can be told at once; nothing was asked for then.
    pub fn spawn(&mut self, worker: u32, program: &Program<'_>) -> Result<(), GuardError> {
        self.inner()?.spawn(worker, program)
    }

    /// Sends a signal to the process group of each worker, and to the group of each process that was adopted. Until all
    /// are gone, which [`GuardEvent::Empty`] tells, what is adopted gets it, too, and nothing is started. Each process gets
    /// it once, also when this is called again meanwhile; another signal comes on top.
    ///
    /// # Errors
    /// The guard is gone, or there is no such signal.
    pub fn signal(&mut self, signal: i32) -> Result<(), GuardError> {
        self.inner()?.stop(Request { kind: request::SIGNAL, signal: valid(signal)?, ..Request::default() })
    }

    /// Sends a signal to the process group of each worker, and nothing more.
    ///
    /// # Errors
    /// As [`Guard::signal`].
    pub fn pass(&mut self, signal: i32) -> Result<(), GuardError> {
        self.inner()?.ask(Request { kind: request::PASS, signal: valid(signal)?, ..Request::default() })
    }

    /// Kills everything beneath the guard: workers, what they have started, what that has started, and what has left their
    /// sessions. [`GuardEvent::Empty`] tells when all of it is gone; nothing is started until then.
    ///
    /// # Errors
    /// The guard is gone.
    pub fn kill(&mut self) -> Result<(), GuardError> {
        self.inner()?.stop(Request { kind: request::KILL, ..Request::default() })
    }

    /// Asks who is there, among workers and adopted processes; [`GuardEvent::Survivors`] tells. After [`Guard::kill`] these
    /// are the ones that no signal reaches ([`process_state`]).
    ///
    /// # Errors
    /// The guard is gone.
    pub fn survivors(&mut self) -> Result<(), GuardError> {
        self.inner()?.ask(Request { kind: request::SURVIVORS, ..Request::default() })
    }

    /// What has happened; never blocks. A guard that was killed, most likely for want of memory, is [`GuardEvent::Lost`].
    ///
    /// # Errors
    /// The guard's keeper is gone, and with it the guard and the workers. What the guard had told before is told before
    /// that.
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
            // The loop and the socket are the parent's as well: nothing is said, and nothing is taken out of the loop.
            core::mem::forget(inner);
        }
    }
}

impl Inner {
    fn await_ready(&mut self) -> Result<(), GuardError> {
        let not = |errno| GuardError::NotStarted(StartStep::Report, errno);
        if !wait_readable(self.line.fd(), REPORT_TIMEOUT).map_err(|error| not(number_of(&error)))? {
            return Err(not(libc::ETIMEDOUT));
        }
        match self.line.receive() {
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

    /// Its keeper waits for it, so the number is still that of the guard, unless it was killed at once.
    fn guard_is(&mut self, pid: pid_t) {
        self.guard = GuardProcess { pid: pid.cast_unsigned(), pidfd: pidfd_of(pid).unwrap_or(None) };
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
        let parcel = Parcel::pack(program)?;
        command.block_bytes = parcel.bytes;
        let mut returned = None;
        if program.entry == Entry::Function {
            if self.options.function.is_none() {
                return Err(GuardError::NoFunction);
            }
            command.kind = request::START_FUNCTION;
            returned = Some(ReturnFile::new()?);
        }
        let mut beside: Vec<BorrowedFd<'_>> = Vec::from([parcel.file.as_fd()]);
        command.stdio = [program.stdin, program.stdout, program.stderr].map(|stream| match stream {
            Stdio::Inherit => stdio::INHERIT,
            Stdio::Null => stdio::NULL,
            Stdio::Fd(fd) => {
                beside.push(fd);
                stdio::CARRIED
            }
        });
        beside.extend(returned.as_ref().map(AsFd::as_fd));
        self.line.ask(command, &beside).map_err(|errno| self.or_lost(errno))?;
        self.workers.ask(worker, returned);
        Ok(())
    }

    /// Starts that the guard has not heard of yet will not be.
    fn stop(&mut self, command: Request) -> Result<(), GuardError> {
        for Queued { request, .. } in self.line.take_back_starts() {
            let (worker, step) = (request.worker, SpawnStep::Stopping);
            self.workers.forget(worker);
            self.happened.push_back(GuardEvent::NotStarted { worker, step, errno: libc::ECANCELED });
        }
        self.ask(command)
    }

    fn ask(&mut self, command: Request) -> Result<(), GuardError> {
        let command = self.line.ask(command, &[]).map_err(|errno| self.or_lost(errno));
        self.retry_send();
        command
    }

    /// Nobody tells when there is room again.
    fn retry_send(&mut self) {
        if self.line.is_out_of_buffers() {
            self.events.wake_at(self.events.clock().now() + SEND_RETRY_INTERVAL);
        }
    }

    /// What an error of the line means to who asked for something.
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
            // Whoever has ended has said all by now.
            let has_ended = self.has_ended();
            match self.line.receive() {
                Ok(Some((from_guard, carried))) => self.handle_event(&from_guard, carried),
                Ok(None) => return self.lose(),
                Err(libc::EAGAIN) if has_ended => return self.lose(),
                Err(libc::EAGAIN) => {
                    // An error means that there is nothing to take back: the descriptor's readiness is looked at anew.
                    self.events.poll().into_iter().flatten().for_each(drop);
                    if self.line.flush().is_err() {
                        return self.lose();
                    }
                    self.retry_send();
                    return Ok(None);
                }
                Err(_) => return self.lose(),
            }
        }
    }

    /// Takes what the guard told.
    fn handle_event(&mut self, from_guard: &Report, mut carried: packet::Carried) {
        let Report { worker, value, .. } = *from_guard;
        let pid = from_guard.pid.cast_unsigned();
        match from_guard.kind {
            report::STARTED => {
                // SAFETY: it came with the packet, and nobody else has taken it.
                let pidfd = carried.take(0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                self.line.start_confirmed();
                self.workers.started(worker, pidfd);
                self.happened.push_back(GuardEvent::Started { worker, pid });
            }
            report::NOT_STARTED => {
                self.line.start_confirmed();
                self.workers.forget(worker);
                let step = SpawnStep::from_wire(from_guard.how);
                self.happened.push_back(GuardEvent::NotStarted { worker, step, errno: value });
            }
            report::EXITED => {
                let returned = self.workers.ended(worker, self.options.returned_bytes_max);
                let (status, at_ns, was_ending) =
                    (ExitStatus::of(from_guard), from_guard.at_ns, from_guard.was_ending != 0);
                self.happened.push_back(GuardEvent::Exited {
                    worker,
                    pid,
                    status,
                    at_ns,
                    was_ending,
                    returned,
                });
            }
            // Another one comes when it has taken what was asked since.
            report::EMPTY if self.line.has_seen_all(from_guard.seen) => {
                self.happened.push_back(GuardEvent::Empty);
            }
            report::LOST => {
                self.line.begin_anew();
                self.workers = Workers::default();
                self.happened.push_back(GuardEvent::Lost { pid, signal: value });
                // The next guard answers when there is nobody. That the line has ended is seen behind what was told.
                self.line.ask(Request { kind: request::KILL, ..Request::default() }, &[]).ok();
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
        // Answers make room for more.
        self.line.flush().ok();
    }

    /// Whether the keeper's process has ended.
    fn has_ended(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return false };
        matches!(wait_readable(pidfd.as_raw_fd(), Duration::ZERO), Ok(true))
    }

    /// The line has ended. The process ends a moment later, and the descriptor becomes readable again then; only so can its
    /// signal be told.
    fn lose(&mut self) -> Result<Option<GuardEvent>, GuardLost> {
        if self.pidfd.is_some() && !self.has_ended() {
            return Ok(None);
        }
        let lost = self.loss();
        // What was told before comes first.
        self.happened.pop_front().map(Some).ok_or(lost)
    }

    fn loss(&mut self) -> GuardLost {
        if let Some(lost) = self.lost {
            return lost;
        }
        // What was told before is told before that, and may say why.
        while let Ok(Some((from_guard, carried))) = self.line.receive() {
            self.handle_event(&from_guard, carried);
        }
        self.workers.kill_groups();
        self.await_end(LAST_MOMENT);
        if let Some(guard) = &self.guard.pidfd {
            // It kills what is beneath it, and ends.
            wait_readable(guard.as_raw_fd(), LAST_MOMENT).ok();
        }
        let signal = self.reap(libc::WNOHANG).and_then(|ended| {
            matches!(ended.how, libc::CLD_KILLED | libc::CLD_DUMPED).then_some(ended.value)
        });
        let not_restarted = self.not_restarted;
        *self.lost.insert(GuardLost { pid: self.pid.cast_unsigned(), signal, not_restarted })
    }

    /// Waits for the keeper's process. Somebody else may have done so, or nobody may have to: then there is nothing to tell.
    fn reap(&self, flags: c_int) -> Option<system::Waited> {
        match &self.pidfd {
            Some(pidfd) => system::wait(libc::P_PIDFD, pidfd.as_raw_fd().cast_unsigned(), flags),
            None => system::wait(libc::P_PID, self.pid.cast_unsigned(), flags),
        }
        .ok()
        .flatten()
    }

    /// Everything beneath the guard ends, then the guard, and then its keeper.
    fn end(&mut self) {
        if self.lost.is_some() {
            return;
        }
        self.line.shut();
        if !self.await_end(self.options.end_timeout) {
            // Something beneath it does not end. Workers die with the guard; what else there is, nobody can reach. The
            // keeper goes first: it would wait for what does not end.
            match &self.pidfd {
                Some(pidfd) => drop(send_signal(pidfd, libc::SIGKILL)),
                // SAFETY: numbers only. It is a child that nobody of the library has waited for.
                None => unsafe {
                    libc::kill(self.pid, libc::SIGKILL);
                },
            }
            if let Some(guard) = &self.guard.pidfd {
                send_signal(guard, libc::SIGKILL).ok();
            }
            self.workers.kill_groups();
            if !self.await_end(LAST_MOMENT) {
                // The keeper itself is in state D. It is a child of the program's that nobody waits for.
                return;
            }
        }
        self.reap(0);
    }

    /// Waits for the end of the keeper's process; false: the time is up.
    fn await_end(&mut self, span: Duration) -> bool {
        match &self.pidfd {
            Some(pidfd) => wait_readable(pidfd.as_raw_fd(), span).unwrap_or(true),
            None => self.line.await_end(span),
        }
    }
}

fn valid(signal: i32) -> Result<i32, GuardError> {
    if (1..=64).contains(&signal) { Ok(signal) } else { Err(GuardError::NoSignal(signal)) }
}

fn number_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A descriptor of a process's end; `None` where the system has no such thing.
pub(in crate::driver) fn pidfd_of(pid: pid_t) -> Result<Option<OwnedFd>, c_int> {
    match system::open_pidfd(pid) {
        // SAFETY: it was opened just now, and nobody else knows it.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(libc::ENOSYS | libc::EPERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sends a signal to the process that a descriptor names, whatever has become of its number.
pub(in crate::driver) fn send_signal(pidfd: &OwnedFd, signal: c_int) -> io::Result<()> {
    // SAFETY: a descriptor that lives, a signal, no information and no flags.
    let sent = unsafe {
        let information = core::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, information, 0)
    };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), c_int> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` is valid for writing.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: they were opened just now, and nobody else knows them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// The name of this thread's process among processes.
fn process_name() -> [u8; 16] {
    let mut name = [0; 16];
    if let Ok(text) = std::fs::read("/proc/self/comm") {
        let text = text.trim_ascii_end();
        let length = text.len().min(name.len() - 1);
        name[..length].copy_from_slice(&text[..length]);
    }
    name
}
