//! First steps of a guard and its keeper: they detach from the agent, and keep what workers inherit.

use super::packet::{self, Report, pointer, report};
use super::system::{check, close, close_from, open, open_pidfd};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use libc::{c_int, pid_t};
use std::os::fd::RawFd;

/// Steps that can fail. The numbers are sent in reports.
pub(crate) mod step {
    use libc::c_int;

    pub(crate) const SUBREAPER: c_int = 1;
    pub(crate) const DESCRIPTORS: c_int = 2;
    pub(crate) const EVENTS: c_int = 3;
    pub(crate) const FORK: c_int = 4;
}

/// Descriptors that the guard works with. The only others are standard input, output and error, which are those of the
/// agent: workers inherit them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptors {
    /// Socket to the agent.
    pub(super) socket: RawFd,
    /// Epoll descriptor.
    pub(super) events: RawFd,
    /// Signalfd for `SIGCHLD`.
    pub(super) children: RawFd,
    /// The keeper's pidfd; -1 in the keeper, and on systems without pidfds.
    pub(super) keeper: RawFd,
}

/// Epoll tokens. Those of workers follow.
pub(super) const AGENT: u64 = 0;
pub(super) const SOCKET: u64 = 1;
pub(super) const CHILDREN: u64 = 2;
pub(super) const FIRST_WORKER: u64 = 16;

const SOCKET_FD: RawFd = 3;
pub(super) const AGENT_FD: RawFd = 4;
const HELD_FD: RawFd = 5;

/// The step that failed, with its error number.
pub(super) struct Failed {
    pub(super) step: c_int,
    pub(super) errno: c_int,
}

/// Leaves the agent's session, and drops its signal handlers and descriptors. All signals are blocked, and remain so.
///
/// `name` becomes the process name. `agent` is the agent's pidfd, or -1 on systems without pidfds. `held` stays open,
/// if it is not -1.
pub(super) fn set_up(name: &CStr, socket: RawFd, agent: RawFd, held: RawFd) -> Result<Descriptors, Failed> {
    let failed = |step| move |errno| Failed { step, errno };
    // SAFETY: passes numbers and a null-terminated name. `setsid` cannot fail in a process that was just forked.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        libc::setsid();
        // Orphaned descendants are adopted by this process.
        check(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)).map_err(failed(step::SUBREAPER))?;
    }
    // SAFETY: an action of zeros is the default one, without flags. Signals that cannot have an action are refused.
    unsafe {
        let default: libc::sigaction = core::mem::zeroed();
        for signal in 1..=64 {
            libc::sigaction(signal, &raw const default, core::ptr::null_mut());
        }
    }
    let has_agent = agent >= 0;
    keep_descriptors(socket, agent, held).map_err(failed(step::DESCRIPTORS))?;
    let descriptors = open_events(has_agent).map_err(failed(step::EVENTS))?;
    Ok(descriptors)
}

fn keep_descriptors(socket: RawFd, agent: RawFd, held: RawFd) -> Result<(), c_int> {
    // Moved up first: they may have numbers that others are to get.
    let above = |fd| {
        // SAFETY: passes numbers only.
        check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, HELD_FD + 1) })
    };
    let socket = above(socket)?;
    let agent = if agent < 0 { None } else { Some(above(agent)?) };
    let held = if held < 0 { None } else { Some(above(held)?) };
    for (from, to) in [(Some(socket), SOCKET_FD), (agent, AGENT_FD), (held, HELD_FD)] {
        // What was open under this number is of no use to the guard.
        match from {
            Some(from) => {
                // SAFETY: passes numbers only.
                check(unsafe { libc::dup3(from, to, libc::O_CLOEXEC) })?;
            }
            None => close(to),
        }
    }
    close_from(HELD_FD + 1);
    for standard in 0..3 {
        // SAFETY: passes numbers only.
        let flags = unsafe { libc::fcntl(standard, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            // The agent has no such stream, or another file of its own has this number.
            let null = open(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR)?;
            // SAFETY: passes numbers only. If `null` got the free number itself, only the flag has to be cleared.
            unsafe {
                if null == standard {
                    check(libc::fcntl(standard, libc::F_SETFD, 0))?;
                } else {
                    check(libc::dup2(null, standard))?;
                    libc::close(null);
                }
            }
        }
    }
    Ok(())
}

fn open_events(has_agent: bool) -> Result<Descriptors, c_int> {
    let mut child_ends = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set.
    let child_ends = unsafe {
        libc::sigemptyset(child_ends.as_mut_ptr());
        libc::sigaddset(child_ends.as_mut_ptr(), libc::SIGCHLD);
        child_ends.assume_init()
    };
    // SAFETY: passes flags and a set that is valid for reading.
    let (events, children) = unsafe {
        let events = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        (events, check(libc::signalfd(-1, &raw const child_ends, flags))?)
    };
    watch(events, children, CHILDREN)?;
    control(events, libc::EPOLL_CTL_ADD, SOCKET_FD, libc::EPOLLIN | libc::EPOLLRDHUP, SOCKET)?;
    if has_agent {
        watch(events, AGENT_FD, AGENT)?;
    }
    Ok(Descriptors { socket: SOCKET_FD, events, children, keeper: -1 })
}

/// Reports the failed step to the agent and ends the process.
pub(super) fn fail(socket: RawFd, failed: &Failed) -> ! {
    let not_ready =
        Report { kind: report::NOT_READY, how: failed.step, value: failed.errno, ..Report::default() };
    packet::send(socket, &not_ready, &[]).ok();
    // SAFETY: ends this process at once.
    unsafe { libc::_exit(1) }
}

/// Watches for the end of the keeper, which the guard treats like the end of the agent. Returns false if it has ended.
pub(super) fn watch_keeper(descriptors: &mut Descriptors, keeper: pid_t) -> bool {
    if let Ok(pidfd) = open_pidfd(keeper) {
        descriptors.keeper = pidfd;
        watch(descriptors.events, pidfd, AGENT).ok();
    }
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::getppid() == keeper }
}

/// Closes what belongs to the agent after its end, because its descriptors stay readable for ever. Processes that read
/// the agent's output must not wait for this process.
pub(super) fn leave_agent(descriptors: &Descriptors) {
    (0..3).for_each(close);
    for fd in [descriptors.socket, AGENT_FD, descriptors.keeper] {
        control(descriptors.events, libc::EPOLL_CTL_DEL, fd, 0, 0).ok();
    }
}

/// Watches a descriptor for readability.
pub(super) fn watch(events: RawFd, fd: RawFd, token: u64) -> Result<c_int, c_int> {
    control(events, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, token)
}

/// Adds, changes or removes a watched descriptor.
pub(super) fn control(
    events: RawFd,
    operation: c_int,
    fd: RawFd,
    interest: c_int,
    token: u64,
) -> Result<c_int, c_int> {
    let mut event = libc::epoll_event { events: interest.cast_unsigned(), u64: token };
    // SAFETY: the event is valid for reading.
    check(unsafe { libc::epoll_ctl(events, operation, fd, pointer(&mut event).cast()) })
}

/// Watches for the end of a worker. Returns its pidfd, or -1 if the system has none.
pub(super) fn watch_worker(events: RawFd, pid: libc::pid_t, token: u64) -> RawFd {
    let Ok(pidfd) = open_pidfd(pid) else { return -1 };
    if watch(events, pidfd, token).is_ok() {
        return pidfd;
    }
    close(pidfd);
    -1
}
