//! The guard: a small process between an agent and its workers. See [`crate::driver::process`].
//!
//! All code of this module runs in a process that was forked from a program with any number of threads. So it neither
//! allocates nor takes locks, calls nothing that might, and does not panic. Its memory is allocated before it begins
//! ([`memory`]). It ends when the agent or its [`keeper`] ends, and kills all its descendants first.

pub(crate) mod block;
mod descendants;
mod keeper;
mod launch;
mod lifeline;
pub(crate) mod memory;
pub(crate) mod packet;
mod report_queue;
mod set_up;
pub(crate) mod stat;
pub(crate) mod system;

pub(crate) use keeper::keep;
pub(crate) use launch::step;
pub(crate) use set_up::step as set_up_step;

use crate::driver::process::function::Function;
use launch::LaunchContext;
use libc::{c_int, pid_t};
use memory::{GuardMemory, Slot, Stage};
use packet::{Carried, Report, Request, report, request};
use report_queue::ReportQueue;
use set_up::{AGENT, CHILDREN, Descriptors, FIRST_WORKER, SOCKET};
use stat::Stat;
use std::os::fd::RawFd;

/// Configuration of a guard and its keeper.
pub(crate) struct GuardConfig<'a> {
    pub(crate) memory: &'a GuardMemory,
    pub(crate) socket: RawFd,
    /// The agent's pidfd; -1 on systems without pidfds.
    pub(crate) agent: RawFd,
    /// A descriptor of the agent that the keeper holds open, too; -1 if there is none.
    pub(crate) held: RawFd,
    /// Process name of the agent (`comm`), null-terminated.
    pub(crate) name: [u8; 16],
    pub(crate) function: Option<*const Function>,
    /// Maximum number of bytes that the function may return.
    pub(crate) returned_bytes_max: usize,
}

/// Main function of a guard. It is called in a process that the keeper has just forked, with all signals blocked.
/// Requests with another `generation` were sent to an earlier guard and are ignored.
///
/// A panic cannot unwind out of it: it aborts the process.
extern "C" fn live(config: &GuardConfig<'_>, keeper: pid_t, generation: u8) -> ! {
    let mut descriptors = match set_up::set_up(c"rdzv-guard", config.socket, config.agent, -1) {
        Ok(descriptors) => descriptors,
        Err(failed) => set_up::fail(config.socket, &failed),
    };
    if !set_up::watch_keeper(&mut descriptors, keeper) {
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: this process is the guard, and this is the only call.
    let parts = unsafe { config.memory.open() };
    let launch_context = LaunchContext {
        stack_top: parts.stack_top,
        name: config.name,
        function: config.function,
        returned_bytes_max: config.returned_bytes_max,
        // SAFETY: it has no arguments and cannot fail.
        guard: unsafe { libc::getpid() },
        lifeline: lifeline::number(),
    };
    let mut process = GuardProcess {
        reports: ReportQueue::new(parts.reports, descriptors.socket),
        descriptors,
        generation,
        launch_context,
        slots: parts.slots,
        children: parts.descendants,
        signalled: parts.signalled,
        signalled_count: 0,
        signalled_at: 0,
        held_until_ns: 0,
        live: 0,
        seen: 0,
        stop: Stop::None,
        agent: Agent::Lives,
        has_children: false,
        empty_is_reported: true,
        interest: libc::EPOLLIN | libc::EPOLLRDHUP,
    };
    let ready = Report { kind: report::READY, pid: process.launch_context.guard, ..Report::default() };
    process.post(&ready, report_queue::NO_SLOT);
    process.send_reports();
    loop {
        process.step();
    }
}

/// The stop in progress.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    /// All descendants get this signal.
    Signal(c_int),
    /// All descendants are killed.
    Kill,
}

/// Whether the agent and the keeper are alive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Lives,
    Dead,
}

struct GuardProcess {
    descriptors: Descriptors,
    generation: u8,
    launch_context: LaunchContext,
    slots: &'static mut [Slot],
    reports: ReportQueue,
    /// Buffer for a list of children.
    children: &'static mut [pid_t],
    /// Process groups that got the signal of this stop, and processes that joined such a group later.
    signalled: &'static mut [pid_t],
    signalled_count: usize,
    /// Time at which that signal was first sent, in the unit of [`system::since_boot`].
    signalled_at: u64,
    /// Monotonic time in nanoseconds until which the report of a failure waits for the end of a worker that began to
    /// end earlier; 0 if none waits.
    held_until_ns: u64,
    /// Number of workers without a queued exit report.
    live: usize,
    /// Number of requests received.
    seen: u64,
    stop: Stop,
    agent: Agent,
    has_children: bool,
    /// Whether the agent knows that the guard has no descendants.
    empty_is_reported: bool,
    /// Epoll interest of the socket.
    interest: c_int,
}

/// Maximum number of events of one iteration.
const EVENTS_MAX: usize = 64;
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
const EVENTS_MAX_C: c_int = EVENTS_MAX as c_int;
/// Interval of checks during a stop. A process whose parent ends is adopted by the guard without an event.
const RECHECK_MS: c_int = 50;
/// Longest time for which exits wait for the end of a worker that was seen to begin to end before.
const HELD_NS_MAX: u64 = 20_000_000;

impl GuardProcess {
    fn step(&mut self) {
        let millis = match (self.stop, self.held_until_ns) {
            (Stop::None, 0) => -1,
            (Stop::None, until) => {
                let millis = until.saturating_sub(system::now_ns()).div_ceil(1_000_000);
                c_int::try_from(millis).unwrap_or(RECHECK_MS)
            }
            _ => RECHECK_MS,
        };
        if self.poll(millis) && self.agent == Agent::Lives {
            self.take_request();
        }
        if self.agent == Agent::Dead && self.stop != Stop::Kill {
            self.begin_end();
        }
        self.sweep();
        self.continue_stop();
        if !self.has_children {
            self.all_ended();
        }
        self.send_reports();
    }

    /// Waits up to `millis` for events and handles them. Returns whether a request has arrived.
    fn poll(&mut self, millis: c_int) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the buffer has room for that many events.
        let count =
            unsafe { libc::epoll_wait(self.descriptors.events, events.as_mut_ptr(), EVENTS_MAX_C, millis) };
        let ready = events.get(..usize::try_from(count).unwrap_or(0)).unwrap_or(&[]);
        // The kernel lists descriptors in the order in which they became ready. So workers are handled in the order in
        // which they began to end, and ended.
        let first_lifeline = FIRST_WORKER.wrapping_add(self.slots.len() as u64);
        for event in ready {
            let token = event.u64;
            match token {
                AGENT => self.agent = Agent::Dead,
                CHILDREN => system::take_signal(self.descriptors.children),
                SOCKET => self.agent = if event.events & ENDED == 0 { self.agent } else { Agent::Dead },
                _ if token >= first_lifeline => {
                    self.hung_up(usize::try_from(token.wrapping_sub(first_lifeline)).unwrap_or(usize::MAX));
                }
                _ => self.reap(usize::try_from(token.wrapping_sub(FIRST_WORKER)).unwrap_or(usize::MAX)),
            }
        }
        ready.iter().any(|event| event.u64 == SOCKET && event.events & IN != 0)
    }

    /// The agent or the keeper has ended. No more reports are sent.
    fn begin_end(&mut self) {
        self.stop = Stop::Kill;
        set_up::leave_agent(&self.descriptors);
    }

    fn all_ended(&mut self) {
        if self.agent == Agent::Dead {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        self.stop = Stop::None;
        if !self.empty_is_reported {
            self.empty_is_reported = true;
            self.post(&Report { kind: report::EMPTY, ..Report::default() }, report_queue::NO_SLOT);
        }
    }

    fn post(&mut self, report: &Report, slot: usize) {
        let at_ns = if report.at_ns == 0 { system::now_ns() } else { report.at_ns };
        self.reports.add(Report { at_ns, seen: self.seen, ..*report }, slot);
    }

    fn take_request(&mut self) {
        match packet::receive::<Request>(self.descriptors.socket) {
            // The agent sent it before it knew of this guard.
            Ok(Some((command, _))) if command.generation != self.generation => {}
            Ok(Some((command, carried))) => {
                self.seen = self.seen.wrapping_add(1);
                self.empty_is_reported = false;
                self.serve(&command, &carried);
            }
            Err(libc::EAGAIN) => {}
            Ok(None) | Err(_) => self.agent = Agent::Dead,
        }
    }

    fn serve(&mut self, command: &Request, carried: &Carried) {
        match command.kind {
            request::START_PROGRAM | request::START_FUNCTION => self.start(command, carried),
            request::SIGNAL => {
                self.mark_ending_workers();
                if self.stop != Stop::Kill && self.stop != Stop::Signal(command.signal) {
                    self.signalled_count = 0;
                    self.signalled_at = system::since_boot();
                    self.stop = Stop::Signal(command.signal);
                }
            }
            request::KILL => {
                self.mark_ending_workers();
                self.stop = Stop::Kill;
            }
            request::PASS => {
                for worker in self.slots.iter().filter(|slot| slot.lives()) {
                    descendants::signal_group(worker.pid, command.signal);
                }
            }
            request::SURVIVORS => self.report_survivors(),
            _ => {}
        }
    }

    fn start(&mut self, command: &Request, carried: &Carried) {
        let mut answer = Report { kind: report::NOT_STARTED, worker: command.worker, ..Report::default() };
        let free = self.slots.iter().position(|slot| slot.stage == Stage::Free);
        let mut ends = [-1; 2];
        let started = match (self.stop, free) {
            (Stop::None, Some(free)) => {
                if self.launch_context.lifeline >= 0 {
                    ends = lifeline::open();
                }
                launch::start(&self.launch_context, command, carried, ends[1]).map(|pid| (free, pid))
            }
            (Stop::None, None) => Err(launch::Failed { step: step::REQUEST, errno: libc::ENOSPC }),
            _ => Err(launch::Failed { step: step::STOPPING, errno: libc::ECANCELED }),
        };
        let [lifeline, theirs] = ends;
        if theirs >= 0 {
            system::close(theirs);
        }
        match started {
            Ok((index, pid)) => {
                let token = FIRST_WORKER.wrapping_add(index as u64);
                let pidfd = set_up::watch_worker(self.descriptors.events, pid, token);
                let stage = if pidfd < 0 { Stage::Unwatched } else { Stage::Watched };
                if lifeline >= 0 {
                    let token = token.wrapping_add(self.slots.len() as u64);
                    // A hang-up is reported without any requested event.
                    set_up::control(self.descriptors.events, libc::EPOLL_CTL_ADD, lifeline, 0, token).ok();
                }
                if let Some(slot) = self.slots.get_mut(index) {
                    *slot = Slot { worker: command.worker, pid, pidfd, stage, lifeline, ending_ns: 0 };
                }
                self.live = self.live.wrapping_add(1);
                answer.kind = report::STARTED;
                answer.pid = pid;
                self.post(&answer, index);
            }
            Err(failed) => {
                if lifeline >= 0 {
                    system::close(lifeline);
                }
                answer.how = failed.step;
                answer.value = failed.errno;
                self.post(&answer, report_queue::NO_SLOT);
            }
        }
    }

    /// Handles the hang-up of a lifeline: the worker is ending, most likely.
    fn hung_up(&mut self, index: usize) {
        let stop = self.stop;
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.lifeline >= 0) else { return };
        // Closing it removes it from the epoll set: there is no other copy.
        system::close(slot.lifeline);
        slot.lifeline = -1;
        if stop == Stop::None && slot.lives() && Stat::of(slot.pid).is_ok_and(|stat| stat.is_ending()) {
            slot.ending_ns = system::now_ns();
        }
    }

    /// Marks the workers that are ending before a stop begins: the stop is not the cause.
    fn mark_ending_workers(&mut self) {
        if self.stop != Stop::None {
            return;
        }
        self.poll(0);
        for slot in self.slots.iter_mut().filter(|slot| slot.lives() && slot.ending_ns == 0) {
            if Stat::of(slot.pid).is_ok_and(|stat| stat.is_ending()) {
                slot.ending_ns = system::now_ns();
            }
        }
    }

    /// Handles the end of a worker, reported by its pidfd or by `waitid`.
    fn reap(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if !slot.lives() {
            return;
        }
        let found = system::wait(libc::P_PID, slot.pid.cast_unsigned(), libc::WNOHANG);
        if slot.stage == Stage::Watched {
            set_up::control(self.descriptors.events, libc::EPOLL_CTL_DEL, slot.pidfd, 0, 0).ok();
            // If it cannot be reaped yet, a debugger reaps it first; `SIGCHLD` follows.
            slot.stage = Stage::Unwatched;
        }
        let Ok(Some(ended)) = found else { return };
        slot.stage = Stage::Ended;
        let (worker, pid, ending_ns) = (slot.worker, slot.pid, slot.ending_ns);
        self.live = self.live.saturating_sub(1);
        let at_ns = if ending_ns == 0 { system::now_ns() } else { ending_ns };
        let is_failure = (ended.how, ended.value) != (libc::CLD_EXITED, 0);
        if is_failure && self.held_until_ns == 0 && self.slots.iter().any(|slot| slot.ends_before(at_ns)) {
            self.held_until_ns = system::now_ns().wrapping_add(HELD_NS_MAX);
        }
        let exited = Report {
            kind: report::EXITED,
            worker,
            pid,
            value: ended.value,
            how: ended.how,
            was_ending: c_int::from(ending_ns != 0 || self.stop == Stop::None),
            at_ns,
            ..Report::default()
        };
        self.post(&exited, index);
        self.reports.put_in_order();
    }

    /// Returns whether the reports wait for the end of a worker that began to end before.
    fn is_held(&mut self) -> bool {
        if self.held_until_ns == 0 {
            return false;
        }
        let is_awaited = self.slots.iter().any(|slot| slot.ends_before(u64::MAX));
        if self.stop != Stop::None || !is_awaited || system::now_ns() >= self.held_until_ns {
            self.held_until_ns = 0;
        }
        self.held_until_ns != 0
    }

    /// Reaps all ended children, except workers whose ends are handled in order by their pidfds.
    fn sweep(&mut self) {
        loop {
            self.has_children = true;
            match system::wait(libc::P_ALL, 0, libc::WNOHANG | libc::WNOWAIT) {
                Err(_) => self.has_children = false,
                Ok(None) => {}
                Ok(Some(dead)) => {
                    let is_it = |slot: &Slot| slot.pid == dead.pid && slot.stage != Stage::Free;
                    match self.slots.iter().rposition(|slot| is_it(slot) && slot.stage != Stage::Ended) {
                        None => drop(system::wait(libc::P_PID, dead.pid.cast_unsigned(), libc::WNOHANG)),
                        Some(index) => match self.slots.get(index).map(|slot| slot.stage) {
                            Some(Stage::Unwatched) => self.reap(index),
                            // The next iteration follows at once, and handles all workers that have ended by then in
                            // order.
                            _ => break,
                        },
                    }
                    continue;
                }
            }
            break;
        }
        self.empty_is_reported &= !self.has_children;
    }

    /// Sends the stop's signal to processes that have not got it: those adopted since the last check. No process gets
    /// it twice. In a group that has got it, only processes that joined later get it, each by itself.
    fn continue_stop(&mut self) {
        if self.stop == Stop::None || !self.has_children {
            return;
        }
        let children = descendants::list(self.children, &*self.slots);
        for child in children.iter().copied() {
            let group = descendants::group_of(child);
            match (self.stop, group) {
                (Stop::None, _) => {}
                (Stop::Kill, group) => {
                    if let Some(group) = group {
                        descendants::signal_group(group, libc::SIGKILL);
                    }
                    descendants::signal_child(child, libc::SIGKILL);
                }
                (Stop::Signal(signal), group) => {
                    let mut target = group.unwrap_or(child);
                    let signalled = self.signalled.get(..self.signalled_count).unwrap_or(&[]);
                    let is_newer = |child| Stat::of(child).is_ok_and(|stat| stat.started > self.signalled_at);
                    match group {
                        _ if signalled.contains(&child) => continue,
                        Some(group) if signalled.contains(&group) => {
                            if self.slots.iter().any(|slot| slot.lives() && slot.pid == child)
                                || !is_newer(child)
                            {
                                continue;
                            }
                            target = child;
                            descendants::signal_child(child, signal);
                        }
                        Some(group) => descendants::signal_group(group, signal),
                        None => descendants::signal_child(child, signal),
                    }
                    if let Some(index) = self.signalled.get_mut(self.signalled_count) {
                        *index = target;
                        self.signalled_count = self.signalled_count.wrapping_add(1);
                    }
                }
            }
        }
    }

    fn report_survivors(&mut self) {
        let children = descendants::list(self.children, &*self.slots);
        let mut answer = Report { kind: report::SURVIVORS, ..Report::default() };
        answer.value = c_int::try_from(children.len()).unwrap_or(c_int::MAX);
        for (index, child) in answer.pids.iter_mut().zip(children) {
            *index = *child;
        }
        self.post(&answer, report_queue::NO_SLOT);
    }

    fn send_reports(&mut self) {
        if self.is_held() {
            return;
        }
        if self.agent == Agent::Lives && self.reports.send(self.slots).is_err() {
            self.agent = Agent::Dead;
            // The next iteration follows at once: a closed socket is readable.
            return;
        }
        // Requests are received only while there is room for their reports: each living worker needs room for its exit
        // report.
        let wants = match (self.reports.memory() > self.live.wrapping_add(RESERVE), self.reports.is_empty()) {
            (true, true) => libc::EPOLLIN,
            (true, false) => libc::EPOLLIN | libc::EPOLLOUT,
            (false, _) => libc::EPOLLOUT,
        };
        let wants = wants | libc::EPOLLRDHUP;
        if self.agent == Agent::Lives && wants != self.interest {
            self.interest = wants;
            let Descriptors { events, socket, .. } = self.descriptors;
            set_up::control(events, libc::EPOLL_CTL_MOD, socket, wants, SOCKET).ok();
        }
    }
}

/// Number of reports that a request and its consequences may need beside the exit reports.
const RESERVE: usize = 8;
const IN: u32 = libc::EPOLLIN.cast_unsigned();
/// The agent has closed or shut down its end.
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR).cast_unsigned();
