//! The keeper: a process between an agent and its guard, which replaces a guard that is killed.
//!
//! The guard adopts the orphaned descendants of its workers. If the guard is killed, the kernel hands all of them to
//! the nearest subreaper above, which is the keeper. The keeper kills them, notifies the agent, and forks another guard
//! from the memory that it has kept since the agent's program forked it. So the program around the agent is not a
//! subreaper and is not forked again, and functions see the same memory as before.
//!
//! The keeper does nothing as long as its guard lives, and ends with it when the agent has ended. The restrictions of
//! the guard's code ([`super`]) apply here, too.

use super::packet::{self, Report, report};
use super::set_up::{self, AGENT, AGENT_FD, CHILDREN, Descriptors, SOCKET};
use super::{GuardConfig, RECHECK_MS, descendants, live, system};
use libc::{c_int, pid_t};

/// Main function of a keeper. It is called in a process that was just forked, with all signals blocked.
///
/// A panic cannot unwind out of it: it aborts the process.
pub(crate) extern "C" fn keep(config: &GuardConfig<'_>) -> ! {
    let descriptors = match set_up::set_up(c"rdzv-keeper", config.socket, config.agent, config.held) {
        Ok(descriptors) => descriptors,
        Err(failed) => set_up::fail(config.socket, &failed),
    };
    // Requests are for the guard.
    set_up::control(descriptors.events, libc::EPOLL_CTL_MOD, descriptors.socket, libc::EPOLLRDHUP, SOCKET)
        .ok();
    let mut keeper = Keeper { descriptors, has_agent: true };
    // SAFETY: it has no arguments and cannot fail.
    let guard_pid = unsafe { libc::getpid() };
    let agent = if config.agent < 0 { -1 } else { AGENT_FD };
    let (mut generation, mut quick_losses) = (0_u8, 0_u32);
    loop {
        let began = system::now_ns();
        match system::fork() {
            Ok(0) => live(
                &GuardConfig { socket: descriptors.socket, agent, function: config.function, ..*config },
                guard_pid,
                generation,
            ),
            Ok(guard) => keeper.keep(guard),
            Err(errno) => {
                let (kind, how) = (report::NOT_READY, set_up::step::FORK);
                keeper.finish(Some(Report { kind, how, value: errno, ..Report::default() }));
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(1) }
            }
        }
        generation = generation.wrapping_add(1);
        let is_quick = system::now_ns().saturating_sub(began) < QUICK_NS;
        quick_losses = if is_quick { quick_losses.saturating_add(1) } else { 0 };
        keeper.sleep(pause_ns(quick_losses));
    }
}

/// A guard that is lost within this time counts as a quick loss.
const QUICK_NS: u64 = 1_000_000_000;
/// Pause before the next guard after the second quick loss in a row; it doubles with each further one.
const PAUSE_FIRST_NS: u64 = 50_000_000;
/// Longest pause.
const PAUSE_MAX_NS: u64 = 1_000_000_000;

/// Returns the pause after this many quick losses in a row. It keeps the keeper from spinning where every guard is
/// killed.
const fn pause_ns(quick_losses: u32) -> u64 {
    match quick_losses.checked_sub(2) {
        None => 0,
        Some(doublings) if doublings < 5 => PAUSE_FIRST_NS << doublings,
        Some(_) => PAUSE_MAX_NS,
    }
}

struct Keeper {
    descriptors: Descriptors,
    /// Whether the agent is alive.
    has_agent: bool,
}

/// Maximum number of children that one check handles. Checks repeat until there are none.
const CHILDREN_MAX: usize = 256;

impl Keeper {
    /// Waits for the end of a guard, and ends its descendants. Returns when another guard is needed.
    fn keep(&mut self, guard: pid_t) {
        let ended = loop {
            match system::wait(libc::P_PID, guard.cast_unsigned(), libc::WNOHANG) {
                Ok(None) => self.poll(-1),
                Ok(Some(ended)) if ended.how != libc::CLD_EXITED => break Some(ended),
                // The guard exits by itself when the agent has ended, or when its setup has failed.
                Ok(Some(_)) | Err(_) => break None,
            }
        };
        let (kind, pid) = (report::LOST, guard);
        self.finish(ended.map(|ended| Report { kind, pid, value: ended.value, ..Report::default() }));
        if ended.is_none() || !self.has_agent {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
    }

    /// Kills the descendants of a guard until none is left, and sends the report meanwhile.
    fn finish(&mut self, mut report: Option<Report>) {
        loop {
            if let Some(unsent) = report {
                let sent = packet::send(self.descriptors.socket, &unsent, &[]);
                if !matches!(sent, Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) {
                    report = None;
                }
            }
            if !self.has_agent {
                report = None;
            }
            if !kill_children() && report.is_none() {
                return;
            }
            self.poll(RECHECK_MS);
        }
    }

    /// Sleeps until another guard is to be started. Ends the process if the agent ends.
    fn sleep(&mut self, pause_ns: u64) {
        let until = system::now_ns().saturating_add(pause_ns);
        while self.has_agent {
            let left = until.saturating_sub(system::now_ns());
            if left == 0 {
                return;
            }
            self.poll(c_int::try_from(left / 1_000_000 + 1).unwrap_or(c_int::MAX));
        }
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) }
    }

    /// Waits up to `millis` for an event and handles it.
    fn poll(&mut self, millis: c_int) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the buffer has room for one event.
        let count = unsafe { libc::epoll_wait(self.descriptors.events, &raw mut event, 1, millis) };
        match event.u64 {
            CHILDREN if count == 1 => system::take_signal(self.descriptors.children),
            AGENT | SOCKET if count == 1 => {
                self.has_agent = false;
                set_up::leave_agent(&self.descriptors);
            }
            _ => {}
        }
    }
}

/// Kills all children and their groups. Returns false if there are none.
fn kill_children() -> bool {
    let mut buffer = [0; CHILDREN_MAX];
    for child in descendants::list(&mut buffer, &[]).iter().copied() {
        if let Some(group) = descendants::group_of(child) {
            descendants::signal_group(group, libc::SIGKILL);
        }
        descendants::signal_child(child, libc::SIGKILL);
    }
    loop {
        match system::wait(libc::P_ALL, 0, libc::WNOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_that_are_lost_at_once_are_replaced_ever_more_slowly() {
        let millis = [0, 1, 2, 3, 4, 5, 6, 7, 8, u32::MAX].map(|losses| pause_ns(losses) / 1_000_000);
        assert_eq!(millis, [0, 0, 50, 100, 200, 400, 800, 1000, 1000, 1000]);
    }
}
