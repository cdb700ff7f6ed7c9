//! The guard: a small process between an agent and its workers. See the text of [`crate::driver::process`].
//!
//! Everything in this room runs in a process that was forked from a program with any number of threads. So it neither
//! allocates nor takes locks, calls nothing that might, and does not panic; its memory is there before it begins
//! ([`memory`]). What ends it is the end of the agent or of its [`keeper`], and then it ends everything beneath it first.

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
use launch::Ground;
use libc::{c_int, pid_t};
use memory::{GuardMemory, Slot, Stage};
use packet::{Carried, Report, Request, report, request};
use report_queue::ReportQueue;
use set_up::{AGENT, CHILDREN, Descriptors, FIRST_WORKER, SOCKET};
use stat::Stat;
use std::os::fd::RawFd;

/// What a guard is born with.
pub(crate) struct GuardConfig<'a> {
    pub(crate) memory: &'a GuardMemory,
    pub(crate) socket: RawFd,
    /// Readable when the agent's process has ended; -1 where the system has no such thing.
    pub(crate) agent: RawFd,
    /// What the keeper holds open beside the agent; -1: nothing.
    pub(crate) held: RawFd,
    /// The name that the agent has among processes; it ends with a zero.
    pub(crate) name: [u8; 16],
    pub(crate) function: Option<*const Function>,
    /// Bytes that it may return.
    pub(crate) returned_bytes_max: usize,
}

/// The life of a guard; called in a process that its keeper has just forked, with all signals blocked. `generation` is
/// what requests to this guard have, and none to one that was before it.
///
/// Nothing unwinds out of it: that would be the end of the process.
extern "C" fn live(config: &GuardConfig<'_>, keeper: pid_t, generation: u8) -> ! {
    let mut descriptors = match set_up::set_up(c"rdzv-guard", config.socket, config.agent, -1) {
        Ok(descriptors) => descriptors,
        Err(failed) => set_up::fail(config.socket, &failed),
    };
    if !set_up::watch_keeper(&mut descriptors, keeper) {
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: this is the guard, and this is where it begins.
    let rooms = unsafe { config.memory.open() };
    let ground = Ground {
        stack_top: rooms.stack_top,
        name: config.name,
        function: config.function,
        returned_bytes_max: config.returned_bytes_max,
        // SAFETY: it has no arguments and cannot fail.
        guard: unsafe { libc::getpid() },
        lifeline: lifeline::number(),
    };
    let mut process = GuardProcess {
        reports: ReportQueue::new(rooms.reports, descriptors.socket),
        descriptors,
        generation,
        ground,
        slots: rooms.slots,
        children: rooms.descendants,
        signalled: rooms.signalled,
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
    let ready = Report { kind: report::READY, pid: process.ground.guard, ..Report::default() };
    process.post(&ready, report_queue::NO_SLOT);
    process.send_reports();
    loop {
        process.step();
    }
}

/// What is being done to all that is beneath.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    /// They are told with this signal.
    Signal(c_int),
    /// They are killed.
    Kill,
}

/// Whether there is somebody to work for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Lives,
    Dead,
}

struct GuardProcess {
    descriptors: Descriptors,
    generation: u8,
    ground: Ground,
    slots: &'static mut [Slot],
    reports: ReportQueue,
    /// Room for a list of children.
    children: &'static mut [pid_t],
    /// Process groups that got the signal of this stop, and processes that came to one of those later.
    signalled: &'static mut [pid_t],
    signalled_count: usize,
    /// When that signal was sent first, as [`system::since_boot`] has it.
    signalled_at: u64,
    /// A failure waits so long for the end of a worker that had begun to end before; 0: none waits.
    held_until_ns: u64,
    /// Workers whose end has not become a letter yet.
    live: usize,
    /// Requests that were taken.
    seen: u64,
    stop: Stop,
    agent: Agent,
    has_children: bool,
    /// The agent knows that nothing lives beneath.
    empty_is_reported: bool,
    /// What is waited for at the socket.
    interest: c_int,
}

/// Events that one turn takes.
const EVENTS_MAX: usize = 64;
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
const PLACES: c_int = EVENTS_MAX as c_int;
/// While there is a stop, the guard looks again after so long: whose parent ends while his grandparent lives comes to the
/// guard without a word.
const LOOK_AGAIN_MS: c_int = 50;
/// How long a worker that was seen to be ending may take until it has, before ends that began later are told.
const HELD_NS_MAX: u64 = 20_000_000;

impl GuardProcess {
    fn step(&mut self) {
        let millis = match (self.stop, self.held_until_ns) {
            (Stop::None, 0) => -1,
            (Stop::None, until) => {
                let millis = until.saturating_sub(system::now_ns()).div_ceil(1_000_000);
                c_int::try_from(millis).unwrap_or(LOOK_AGAIN_MS)
            }
            _ => LOOK_AGAIN_MS,
        };
        if self.look(millis) && self.agent == Agent::Lives {
            self.take_request();
        }
        if self.agent == Agent::Dead && self.stop != Stop::Kill {
            self.begin_end();
        }
        self.sweep();
        self.go_on_stopping();
        if !self.has_children {
            self.all_ended();
        }
        self.send_reports();
    }

    /// Waits so long for what happens, and takes it; true: there is a request.
    fn look(&mut self, millis: c_int) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: as many places as are named.
        let count = unsafe { libc::epoll_wait(self.descriptors.events, events.as_mut_ptr(), PLACES, millis) };
        let ready = events.get(..usize::try_from(count).unwrap_or(0)).unwrap_or(&[]);
        // The system lists what became ready in the order in which it did, so workers are seen in the order in which they
        // began to end, and ended.
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

    /// The agent is gone, or the keeper. Nobody hears of anything any more.
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
            // The agent did not know yet that this is another guard.
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
                self.see_the_ending();
                if self.stop != Stop::Kill && self.stop != Stop::Signal(command.signal) {
                    self.signalled_count = 0;
                    self.signalled_at = system::since_boot();
                    self.stop = Stop::Signal(command.signal);
                }
            }
            request::KILL => {
                self.see_the_ending();
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
                if self.ground.lifeline >= 0 {
                    ends = lifeline::open();
                }
                launch::start(&self.ground, command, carried, ends[1]).map(|pid| (free, pid))
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
                    // Its end is told of unasked.
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

    /// A worker's end of its lifeline is closed: it ends, most likely.
    fn hung_up(&mut self, index: usize) {
        let stop = self.stop;
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.lifeline >= 0) else { return };
        // It is watched no more when it is closed: nobody else has it.
        system::close(slot.lifeline);
        slot.lifeline = -1;
        if stop == Stop::None && slot.lives() && Stat::of(slot.pid).is_ok_and(|stat| stat.is_ending()) {
            slot.ending_ns = system::now_ns();
        }
    }

    /// A stop begins: who is ending already does not do so because of it.
    fn see_the_ending(&mut self) {
        if self.stop != Stop::None {
            return;
        }
        self.look(0);
        for slot in self.slots.iter_mut().filter(|slot| slot.lives() && slot.ending_ns == 0) {
            if Stat::of(slot.pid).is_ok_and(|stat| stat.is_ending()) {
                slot.ending_ns = system::now_ns();
            }
        }
    }

    /// A worker has ended, as its pidfd or the system's list of the dead says.
    fn reap(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        if !slot.lives() {
            return;
        }
        let found = system::wait(libc::P_PID, slot.pid.cast_unsigned(), libc::WNOHANG);
        if slot.stage == Stage::Watched {
            set_up::control(self.descriptors.events, libc::EPOLL_CTL_DEL, slot.pidfd, 0, 0).ok();
            // If it cannot be had yet, a debugger has it first; `SIGCHLD` comes when that lets go.
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

    /// Whether what there is to tell waits for the end of a worker that began to end first.
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

    /// Takes the dead away, but for workers whose end is being told in its turn.
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
                            // The next turn comes at once, with all that died until then in its order.
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

    /// Tells those who have not been told: what was adopted since the last look belongs to them. No process is told twice:
    /// of a group that was told, only those are that have come to it since, each by itself.
    fn go_on_stopping(&mut self) {
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
            // The next turn, which comes at once: a closed socket is readable.
            return;
        }
        // Nothing is taken on for which there might be no room: each worker that lives will have a last word.
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

/// Letters that a request and what follows from it may need beside the last words.
const RESERVE: usize = 8;
const IN: u32 = libc::EPOLLIN.cast_unsigned();
/// The agent has closed its end, or shut it.
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR).cast_unsigned();
