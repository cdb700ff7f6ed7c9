//! The guard: a small process between an agent and its workers. See the text of [`crate::driver::process`].
//!
//! Everything in this room runs in a process that was forked from a program with any number of threads. So it neither
//! allocates nor takes locks, calls nothing that might, and does not panic; its memory is there before it begins
//! ([`room`]). What ends it is the end of the agent, and then it ends everything beneath it first.

mod beneath;
pub(crate) mod block;
mod launch;
mod letters;
pub(crate) mod packet;
pub(crate) mod room;
mod set_up;
pub(crate) mod stat;
pub(crate) mod system;

pub(crate) use launch::step;
pub(crate) use set_up::step as set_up_step;

use crate::driver::process::function::Function;
use launch::Ground;
use letters::Letters;
use libc::{c_int, pid_t};
use packet::{Carried, Report, Request, report, request};
use room::{Room, Slot, Stage};
use set_up::{AGENT, CHILDREN, Descriptors, FIRST_WORKER, SOCKET};
use std::os::fd::RawFd;

/// What a guard is born with.
pub(crate) struct Birth<'a> {
    pub(crate) room: &'a Room,
    pub(crate) socket: RawFd,
    /// Readable when the agent's process has ended; -1 where the system has no such thing.
    pub(crate) agent: RawFd,
    /// The name that the agent has among processes; it ends with a zero.
    pub(crate) name: [u8; 16],
    pub(crate) function: Option<*const Function>,
}

/// The life of a guard; called in a process that was just forked, with all signals blocked.
///
/// Nothing unwinds out of it: that would be the end of the process.
pub(crate) extern "C" fn live(birth: &Birth<'_>) -> ! {
    let mut ready = Report { kind: report::READY, ..Report::default() };
    let descriptors = match set_up::set_up(birth.socket, birth.agent) {
        Ok(descriptors) => descriptors,
        Err(failed) => {
            ready.kind = report::NOT_READY;
            ready.how = failed.step;
            ready.value = failed.errno;
            packet::send(birth.socket, &ready, &[]).ok();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(1) }
        }
    };
    // SAFETY: this is the guard, and this is where it begins.
    let rooms = unsafe { birth.room.open() };
    let ground = Ground {
        stack_top: rooms.stack_top,
        name: birth.name,
        function: birth.function,
        // SAFETY: it has no arguments and cannot fail.
        guard: unsafe { libc::getpid() },
    };
    let mut warden = Warden {
        letters: Letters::new(rooms.letters, descriptors.socket),
        descriptors,
        ground,
        slots: rooms.slots,
        children: rooms.beneath,
        told: rooms.told,
        told_count: 0,
        live: 0,
        seen: 0,
        stop: Stop::None,
        agent: Agent::Lives,
        has_children: false,
        empty_is_told: true,
        interest: libc::EPOLLIN | libc::EPOLLRDHUP,
    };
    warden.post(&ready, letters::NO_SLOT);
    warden.send_letters();
    loop {
        warden.turn();
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
    Gone,
}

struct Warden {
    descriptors: Descriptors,
    ground: Ground,
    slots: &'static mut [Slot],
    letters: Letters,
    /// Room for a list of children.
    children: &'static mut [pid_t],
    /// Process groups that got the signal of this stop.
    told: &'static mut [pid_t],
    told_count: usize,
    /// Workers whose end has not become a letter yet.
    live: usize,
    /// Requests that were taken.
    seen: u64,
    stop: Stop,
    agent: Agent,
    has_children: bool,
    /// The agent knows that nothing lives beneath.
    empty_is_told: bool,
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

impl Warden {
    fn turn(&mut self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let millis = if self.stop == Stop::None { -1 } else { LOOK_AGAIN_MS };
        // SAFETY: as many places as are named.
        let count = unsafe { libc::epoll_wait(self.descriptors.events, events.as_mut_ptr(), PLACES, millis) };
        let ready = events.get(..usize::try_from(count).unwrap_or(0)).unwrap_or(&[]);
        // The system lists what became ready in the order in which it did, so workers are seen in the order of their
        // deaths.
        for event in ready {
            match event.u64 {
                AGENT => self.agent = Agent::Gone,
                CHILDREN => self.empty_children(),
                SOCKET => self.agent = if event.events & ENDED == 0 { self.agent } else { Agent::Gone },
                token => self.reap(usize::try_from(token.wrapping_sub(FIRST_WORKER)).unwrap_or(usize::MAX)),
            }
        }
        let is_asked = |event: &libc::epoll_event| event.u64 == SOCKET && event.events & IN != 0;
        if self.agent == Agent::Lives && ready.iter().any(is_asked) {
            self.take_request();
        }
        if self.agent == Agent::Gone && self.stop != Stop::Kill {
            self.begin_end();
        }
        self.sweep();
        self.go_on_stopping();
        if !self.has_children {
            self.nobody_is_left();
        }
        self.send_letters();
    }

    /// The agent is gone. Nobody hears of anything any more, and nobody who reads what the agent wrote has to wait for
    /// its guard.
    fn begin_end(&mut self) {
        self.stop = Stop::Kill;
        (0..3).for_each(system::close);
        set_up::control(self.descriptors.events, libc::EPOLL_CTL_DEL, self.descriptors.socket, 0, SOCKET)
            .ok();
        // Its end is readable for ever.
        let agent = set_up::AGENT_FD;
        set_up::control(self.descriptors.events, libc::EPOLL_CTL_DEL, agent, 0, AGENT).ok();
    }

    fn nobody_is_left(&mut self) {
        if self.agent == Agent::Gone {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        self.stop = Stop::None;
        if !self.empty_is_told {
            self.empty_is_told = true;
            self.post(&Report { kind: report::EMPTY, ..Report::default() }, letters::NO_SLOT);
        }
    }

    fn post(&mut self, report: &Report, slot: usize) {
        self.letters.add(Report { at_ns: system::now_ns(), seen: self.seen, ..*report }, slot);
    }

    fn take_request(&mut self) {
        match packet::receive::<Request>(self.descriptors.socket) {
            Ok(Some((asked, carried))) => {
                self.seen = self.seen.wrapping_add(1);
                self.empty_is_told = false;
                self.serve(&asked, &carried);
            }
            Err(libc::EAGAIN) => {}
            Ok(None) | Err(_) => self.agent = Agent::Gone,
        }
    }

    fn serve(&mut self, asked: &Request, carried: &Carried) {
        match asked.kind {
            request::START_PROGRAM | request::START_FUNCTION => self.start(asked, carried),
            request::SIGNAL => {
                self.told_count = 0;
                if self.stop != Stop::Kill {
                    self.stop = Stop::Signal(asked.signal);
                }
            }
            request::KILL => self.stop = Stop::Kill,
            request::PASS => {
                for worker in self.slots.iter().filter(|slot| slot.lives()) {
                    beneath::signal_group(worker.pid, asked.signal);
                }
            }
            request::SURVIVORS => self.tell_survivors(),
            _ => {}
        }
    }

    fn start(&mut self, asked: &Request, carried: &Carried) {
        let mut answer = Report { kind: report::NOT_STARTED, worker: asked.worker, ..Report::default() };
        let free = self.slots.iter().position(|slot| slot.stage == Stage::Free);
        let started = match (self.stop, free) {
            (Stop::None, Some(free)) => launch::start(&self.ground, asked, carried).map(|pid| (free, pid)),
            (Stop::None, None) => Err(launch::Failed { step: step::REQUEST, errno: libc::ENOSPC }),
            _ => Err(launch::Failed { step: step::STOPPING, errno: libc::ECANCELED }),
        };
        match started {
            Ok((place, pid)) => {
                let token = FIRST_WORKER.wrapping_add(place as u64);
                let pidfd = set_up::watch_worker(self.descriptors.events, pid, token);
                let stage = if pidfd < 0 { Stage::Unwatched } else { Stage::Watched };
                if let Some(slot) = self.slots.get_mut(place) {
                    *slot = Slot { worker: asked.worker, pid, pidfd, stage };
                }
                self.live = self.live.wrapping_add(1);
                answer.kind = report::STARTED;
                answer.pid = pid;
                self.post(&answer, place);
            }
            Err(failed) => {
                answer.how = failed.step;
                answer.value = failed.errno;
                self.post(&answer, letters::NO_SLOT);
            }
        }
    }

    /// A worker has ended, as its pidfd or the system's list of the dead says.
    fn reap(&mut self, place: usize) {
        let Some(slot) = self.slots.get_mut(place) else { return };
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
        let (worker, pid) = (slot.worker, slot.pid);
        self.live = self.live.saturating_sub(1);
        let exited = Report {
            kind: report::EXITED,
            worker,
            pid,
            value: ended.value,
            how: ended.how,
            ..Report::default()
        };
        self.post(&exited, place);
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
                        Some(place) => match self.slots.get(place).map(|slot| slot.stage) {
                            Some(Stage::Unwatched) => self.reap(place),
                            // The next turn comes at once, with all that died until then in its order.
                            _ => break,
                        },
                    }
                    continue;
                }
            }
            break;
        }
        self.empty_is_told &= !self.has_children;
    }

    fn empty_children(&self) {
        let mut told = core::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: room for one record, which nobody reads. More are not kept for one signal.
        unsafe { libc::read(self.descriptors.children, told.as_mut_ptr().cast(), bytes) };
    }

    /// Tells those who have not been told: what was adopted since the last look belongs to them.
    fn go_on_stopping(&mut self) {
        if self.stop == Stop::None || !self.has_children {
            return;
        }
        let children = beneath::list(self.children, &*self.slots);
        for child in children.iter().copied() {
            let group = beneath::group_of(child);
            match (self.stop, group) {
                (Stop::None, _) => {}
                (Stop::Kill, group) => {
                    if let Some(group) = group {
                        beneath::signal_group(group, libc::SIGKILL);
                    }
                    beneath::signal_child(child, libc::SIGKILL);
                }
                (Stop::Signal(signal), group) => {
                    let who = group.unwrap_or(child);
                    let told = self.told.get(..self.told_count).unwrap_or(&[]);
                    if told.contains(&who) {
                        continue;
                    }
                    match group {
                        Some(group) => beneath::signal_group(group, signal),
                        None => beneath::signal_child(child, signal),
                    }
                    if let Some(place) = self.told.get_mut(self.told_count) {
                        *place = who;
                        self.told_count = self.told_count.wrapping_add(1);
                    }
                }
            }
        }
    }

    fn tell_survivors(&mut self) {
        let children = beneath::list(self.children, &*self.slots);
        let mut answer = Report { kind: report::SURVIVORS, ..Report::default() };
        answer.value = c_int::try_from(children.len()).unwrap_or(c_int::MAX);
        for (place, child) in answer.pids.iter_mut().zip(children) {
            *place = *child;
        }
        self.post(&answer, letters::NO_SLOT);
    }

    fn send_letters(&mut self) {
        if self.agent == Agent::Lives && self.letters.send(self.slots).is_err() {
            self.agent = Agent::Gone;
            // The next turn, which comes at once: a closed socket is readable.
            return;
        }
        // Nothing is taken on for which there might be no room: each worker that lives will have a last word.
        let wants = match (self.letters.room() > self.live.wrapping_add(RESERVE), self.letters.is_empty()) {
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
