//! Monitor of running workers: of the timers that they have set, and of hangs in the kernel. Both are off by default
//! and cost nothing then.

use super::running::Running;
use super::timers::{TimerError, Timers};
use crate::driver::process::{ProcessState, process_state};
use crate::stuck::{ObservedState, StuckWatch};
use crate::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::opaque::opaque_debug;
use std::path::{Path, PathBuf};

/// Token of the guard's descriptor; the tokens of timers are higher.
const GUARD: Token = Token(0);

/// Monitor of running workers.
pub(super) struct WorkerMonitor {
    // Watches are dropped before the loop. The watched descriptor outlives this value.
    #[expect(dead_code, reason = "held: the loop's descriptor becomes readable by it")]
    guard: Watch,
    timers: Option<Timers>,
    stuck: Option<StuckWatch>,
    process_state: Box<dyn Fn(u32) -> io::Result<ProcessState> + Send>,
    events: EventLoop,
}

opaque_debug!(WorkerMonitor);

impl WorkerMonitor {
    /// Creates a monitor without checks. Its descriptor is readable when the guard's is.
    pub(super) fn new(guard: RawFd) -> io::Result<Self> {
        let events = EventLoop::new()?;
        Ok(Self {
            guard: events.watch(guard, Interest::Read, GUARD)?,
            timers: None,
            stuck: None,
            process_state: Box::new(process_state),
            events,
        })
    }

    /// Reads timers from a pipe that it creates at `path`, or at a new temporary path.
    pub(super) fn take_timers(&mut self, path: Option<&Path>, guard: u32) -> Result<PathBuf, TimerError> {
        let timers = Timers::new(path, guard, &self.events)?;
        let path = timers.path().to_path_buf();
        self.timers = Some(timers);
        Ok(path)
    }

    /// Reports workers that hang in the kernel for `timeout`.
    pub(super) fn detect_stuck(&mut self, timeout: Duration) {
        self.stuck = Some(StuckWatch::new(timeout));
    }

    pub(super) fn timer_file(&self) -> Option<&Path> {
        self.timers.as_ref().map(Timers::path)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Returns when to check next if no event arrives before.
    pub(super) fn deadline(&self, now: Instant, running: &Running) -> Option<Instant> {
        let stuck = self.stuck.as_ref().filter(|_| !running.ranks.is_empty()).map(StuckWatch::due);
        let timers = self.timers.as_ref().and_then(|timers| timers.deadline(now, running));
        [stuck, timers].into_iter().flatten().min()
    }

    /// Forgets the workers of the last start.
    pub(super) fn begin(&mut self) {
        if let Some(timers) = &mut self.timers {
            timers.clear();
        }
        if let Some(stuck) = &mut self.stuck {
            stuck.clear();
        }
    }

    /// Does all work that is due at `now`.
    pub(super) fn check(
        &mut self,
        now: Instant,
        running: &Running,
        worker_events: &mut VecDeque<WorkerEvent>,
    ) {
        // After an error of the loop, the next call polls it again.
        let ready = self.events.poll();
        if let Some(timers) = &mut self.timers {
            timers.wake(now);
            for ready in ready.into_iter().flatten().filter(|ready| ready.token != GUARD) {
                timers.ready(ready.token, running, &self.events);
            }
            timers.expire(running, worker_events);
            timers.rest(now, running);
        }
        self.report_stuck(now, running, worker_events);
    }

    fn report_stuck(&mut self, now: Instant, running: &Running, worker_events: &mut VecDeque<WorkerEvent>) {
        let Some(stuck) = self.stuck.as_mut().filter(|stuck| stuck.due() <= now) else { return };
        stuck.begin_check(now);
        for (&pid, &local_rank) in running.ranks.iter() {
            let state = match (self.process_state)(pid) {
                Ok(ProcessState::Uninterruptible) => ObservedState::Uninterruptible,
                _ => ObservedState::Other,
            };
            if let Some(since) = stuck.observe(now, local_rank, state) {
                worker_events.push_back(WorkerEvent::Stuck { local_rank, since });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_worker_that_hangs_is_reported_and_the_others_are_not() {
        let (guard, _other) = io::pipe().expect("a pipe");
        let mut monitor = WorkerMonitor::new(guard.as_raw_fd()).expect("a loop");
        let mut running = Running::default();
        assert_eq!(monitor.deadline(Instant::ORIGIN, &running), None, "off");
        monitor.detect_stuck(Duration::from_secs(2));
        assert_eq!(monitor.deadline(Instant::ORIGIN, &running), None, "no worker runs");
        running.ranks = [(100, 0), (101, 1), (102, 2)].into_iter().collect();
        monitor.process_state = Box::new(|pid| match pid {
            100 => Ok(ProcessState::Sleeping),
            101 => Ok(ProcessState::Uninterruptible),
            _ => Err(io::ErrorKind::NotFound.into()),
        });
        let mut worker_events = VecDeque::new();
        let mut now = Instant::ORIGIN;
        while worker_events.is_empty() && now < Instant::from_millis(60_000) {
            monitor.check(now, &running, &mut worker_events);
            now = monitor.deadline(now, &running).expect("it looks again");
        }
        assert_eq!(worker_events, [WorkerEvent::Stuck { local_rank: 1, since: Duration::from_secs(2) }]);
        monitor.begin();
        worker_events.clear();
        monitor.check(now, &running, &mut worker_events);
        assert_eq!(worker_events, [], "it is another one by now");
    }
}
