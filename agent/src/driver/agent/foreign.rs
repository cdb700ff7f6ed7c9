//! Workers that a foreign program starts and observes, most likely a cluster manager.
//!
//! Its hooks may block: they are called on a thread of their own, one after the other. It may report events from any
//! thread.

use super::workers::{Start, Workers};
use crate::environment::{Devices, Job, Variable, of_worker};
use crate::error_file::ErrorFile;
use crate::failure::{NodeIdentity, ProcessFailure, WorkerEnd};
use crate::group::WorkerGroup;
use crate::reason::StartFailure;
use crate::roster::Roster;
use crate::supervisor::Failed;
use crate::worker_event::WorkerEvent;
use alloc::collections::VecDeque;
use rendezvous_core::driver::channel::{Receiver, Sender, unbounded};
use rendezvous_core::driver::event_loop::{EventLoop, Waker};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::sorted::SortedMap;

/// Longest wait for the end of the hooks.
const HOOKS_TIMEOUT: Duration = Duration::from_secs(5);

/// A start of a worker group, owned.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// The workers with their ranks.
    pub group: WorkerGroup,
    /// Environment variables of each worker, by local rank, without error files.
    pub environments: Vec<Vec<Variable>>,
}

/// Event of a foreign worker, sent from any thread.
#[derive(Clone, Debug)]
pub struct ForeignEvent {
    /// Number of the attempt that started the worker. Events of earlier attempts are ignored.
    pub attempt: u64,
    /// The event. [`WorkerEvent::Empty`] is not sent: it follows from the exits.
    pub event: WorkerEvent,
    /// Host of the worker; empty for the agent's own host.
    pub host: Box<str>,
    /// For an exit: the cause, if it is known.
    pub message: Box<str>,
}

/// Starts and observes foreign workers. Calls should return soon: the agent's stop and kill timeouts run meanwhile.
pub trait WorkerHooks: Send {
    /// Passes the sender for events. Called once, before anything else.
    fn begin(&mut self, event_sender: WorkerEventSender);

    /// Starts all workers of the order. The implementation reports [`WorkerEvent::Started`] or
    /// [`WorkerEvent::NotStarted`] for each.
    ///
    /// # Errors
    /// No worker can be started.
    fn start(&mut self, order: &StartOrder) -> Result<(), (StartFailure, Box<str>)>;

    /// Sends a signal to all living workers and to the processes that they have started.
    fn signal(&mut self, signal: i32);

    /// Kills all living workers and the processes that they have started.
    fn kill(&mut self);

    /// Passes a signal that the agent got on to each worker. The hooks decide which of a worker's processes get it; of
    /// the workers that the agent starts itself, the whole process group does.
    fn pass(&mut self, signal: i32);
}

/// Sends events of foreign workers to an agent, from any thread. It may outlive the agent; events are discarded then.
#[derive(Clone, Debug)]
pub struct WorkerEventSender {
    reported: Sender<ForeignEvent>,
    waker: Waker,
    clock: Clock,
}

impl WorkerEventSender {
    /// Sends an event.
    pub fn notify(&self, event: ForeignEvent) {
        if self.reported.send(event).is_ok() {
            self.waker.wake();
        }
    }

    /// Returns the current time on the agent's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

#[derive(Debug)]
enum Command {
    Begin(WorkerEventSender),
    Start(Box<StartOrder>),
    Signal(i32),
    Kill,
    Pass(i32),
}

/// Workers that a foreign program starts and observes.
///
/// Dropping this kills the living workers and waits up to 5 s for the hooks to return, because the program may end
/// next. If they take longer, their thread is detached, and the hooks are dropped when they return.
pub struct ForeignWorkers {
    commands: Option<Sender<Command>>,
    thread: Option<Thread>,
    sender: Sender<ForeignEvent>,
    reported: Receiver<ForeignEvent>,
    events: EventLoop,
    clock: Clock,
    roster: Roster,
    happened: VecDeque<WorkerEvent>,
    host: String,
    devices: Devices,
    /// Host of each worker of this start, and the cause of its exit.
    notes: SortedMap<u32, (Box<str>, Box<str>)>,
}

opaque_debug!(ForeignWorkers);

impl ForeignWorkers {
    /// Creates workers behind these hooks. The hooks are dropped on their own thread after the last call. `host` is the
    /// agent's host.
    ///
    /// # Errors
    /// The system has no descriptors or threads left.
    pub fn new(hooks: Box<dyn WorkerHooks>, host: String, devices: Devices) -> io::Result<Self> {
        let events = EventLoop::new()?;
        let (sender, reported) = unbounded();
        let (commands, commands_in) = unbounded();
        let thread = threads::spawn("rdzv-workers", move || call_hooks(hooks, &commands_in))?;
        let clock = *events.clock();
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
            sender,
            reported,
            events,
            clock,
            roster: Roster::default(),
            happened: VecDeque::new(),
            host,
            devices,
            notes: SortedMap::new(),
        })
    }

    fn ask(&self, command: Command) {
        // The thread receives as long as this value lives.
        if let Some(commands) = &self.commands {
            commands.send(command).ok();
        }
    }

    /// Resets the descriptor's readiness when no event is left. An event that arrives at that moment is not lost.
    fn next_after_poll(&mut self) -> Option<ForeignEvent> {
        if let Ok(ready) = self.events.poll() {
            drop(ready);
        }
        let reported = self.reported.try_recv().ok()?;
        self.events.waker().wake();
        Some(reported)
    }

    /// Returns the event if it concerns a worker of this start.
    fn take_event(&mut self, reported: ForeignEvent) -> Option<WorkerEvent> {
        let ForeignEvent { attempt, event, host, message } = reported;
        let local_rank = match event {
            WorkerEvent::Started { local_rank, .. } | WorkerEvent::Stuck { local_rank, .. } => {
                self.roster.has(attempt, local_rank).then_some(local_rank)
            }
            WorkerEvent::ErrorWritten { local_rank, .. } => {
                return self.roster.has(attempt, local_rank).then_some(event);
            }
            WorkerEvent::NotStarted { local_rank, .. } | WorkerEvent::Exited { local_rank, .. } => {
                self.roster.end(attempt, local_rank).then_some(local_rank)
            }
            WorkerEvent::TimerExpired(_) | WorkerEvent::Remark { .. } | WorkerEvent::GuardLost { .. } => {
                return Some(event);
            }
            WorkerEvent::GroupLost { .. } | WorkerEvent::Leftovers { .. } | WorkerEvent::Empty => {
                return None;
            }
        };
        let note = self.notes.entry(local_rank?, Default::default);
        if !host.is_empty() {
            note.0 = host;
        }
        note.1 = message;
        Some(event)
    }

    fn environments(&self, start: &Start<'_>) -> Result<Vec<Vec<Variable>>, (u32, Box<str>)> {
        let job = Job {
            run_id: start.run_id,
            max_restarts: start.max_restarts,
            master_addr: &start.master.master_addr,
            master_port: start.master.master_port,
            agent_store: start.agent_store,
            devices: self.devices,
            timer_file: None,
        };
        // The environment of another host is unknown here.
        let of = |worker| of_worker(&job, start.group, worker, "", &|_| None);
        let workers = start.group.workers.iter();
        workers
            .map(|worker| of(worker).map_err(|error| (worker.local_rank, error.to_string().into())))
            .collect()
    }
}

/// Main function of the thread that calls the hooks.
fn call_hooks(mut hooks: Box<dyn WorkerHooks>, commands_in: &Receiver<Command>) {
    let mut event_sender = None;
    while let Ok(command) = commands_in.recv() {
        match command {
            Command::Begin(sender) => {
                event_sender = Some(sender.clone());
                hooks.begin(sender);
            }
            Command::Start(order) => {
                if let (Err((start_failure, message)), Some(event_sender)) =
                    (hooks.start(&order), &event_sender)
                {
                    for worker in &order.group.workers {
                        let (local_rank, message) = (worker.local_rank, message.clone());
                        let event = WorkerEvent::NotStarted { local_rank, start_failure, message };
                        let attempt = order.group.attempt;
                        event_sender.notify(ForeignEvent {
                            attempt,
                            event,
                            host: Box::default(),
                            message: Box::default(),
                        });
                    }
                }
            }
            Command::Signal(signal) => hooks.signal(signal),
            Command::Kill => hooks.kill(),
            Command::Pass(signal) => hooks.pass(signal),
        }
    }
}

impl Drop for ForeignWorkers {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !thread.is_here() {
            core::mem::forget(self.commands.take());
            return thread.join();
        }
        if !self.roster.is_empty() {
            self.ask(Command::Kill);
        }
        // The thread ends when the channel closes.
        self.commands = None;
        thread.join_timeout(HOOKS_TIMEOUT, || {});
    }
}

impl Workers for ForeignWorkers {
    fn begin(&mut self, clock: Clock) {
        self.clock = clock;
        let event_sender =
            WorkerEventSender { reported: self.sender.clone(), waker: self.events.waker(), clock };
        self.ask(Command::Begin(event_sender));
    }

    fn fd(&self) -> RawFd {
        self.events.fd()
    }

    fn start(&mut self, start: &Start<'_>) {
        self.roster.start(start.group.attempt, start.group.workers.len());
        self.notes.clear();
        match self.environments(start) {
            Ok(environments) => {
                let order = StartOrder { group: start.group.clone(), environments };
                self.ask(Command::Start(Box::new(order)));
            }
            Err((local_rank, message)) => {
                // No start was requested, so no worker lives.
                self.roster.start(start.group.attempt, 0);
                let start_failure = StartFailure::Lasting;
                self.happened.push_back(WorkerEvent::NotStarted { local_rank, start_failure, message });
                self.events.waker().wake();
            }
        }
    }

    fn signal(&mut self, signal: i32) {
        self.roster.stop();
        // If all have ended, there is no process to signal.
        if !self.roster.is_empty() {
            self.ask(Command::Signal(signal));
        }
    }

    fn kill(&mut self) {
        self.roster.stop();
        self.ask(Command::Kill);
    }

    fn pass(&mut self, signal: i32) {
        self.ask(Command::Pass(signal));
    }

    fn next_event(&mut self) -> Option<WorkerEvent> {
        if let Some(event) = self.happened.pop_front() {
            return Some(event);
        }
        loop {
            if self.roster.poll_empty() {
                return Some(WorkerEvent::Empty);
            }
            let reported = self.reported.try_recv().ok().or_else(|| self.next_after_poll())?;
            if let Some(event) = self.take_event(reported) {
                return Some(event);
            }
        }
    }

    fn failures(&mut self, group: &WorkerGroup, failed: &[Failed]) -> Vec<ProcessFailure> {
        let failure = |failed: &Failed| {
            let worker = group.workers.get(usize::try_from(failed.local_rank).ok()?)?;
            let (host, message) = self.notes.get(&failed.local_rank).cloned().unwrap_or_default();
            let host = if host.is_empty() { self.host.as_str() } else { &host };
            let node = NodeIdentity { host, group_rank: group.group_rank.unwrap_or(0) };
            let end = WorkerEnd {
                local_rank: failed.local_rank,
                global_rank: worker.global_rank,
                pid: failed.pid.unwrap_or(0),
                exit_code: failed.exit.exit_code(),
                seen_at_s: self.clock.epoch_s(failed.at),
                error_file: ErrorFile::Absent,
                stderr_tail: Vec::new(),
            };
            let mut failure = ProcessFailure::new(node, end);
            if !message.is_empty() {
                failure.message = message.into();
            }
            Some(failure)
        };
        failed.iter().filter_map(failure).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::testing::becomes_readable;
    use crate::environment::AgentStore;
    use crate::group::{ExitStatus, Worker};
    use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
    use rendezvous_core::time::Duration;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(20);

    /// Hooks that report their calls to the test.
    struct Said {
        said: mpsc::Sender<String>,
        senders: mpsc::Sender<WorkerEventSender>,
        can_start: Result<(), (StartFailure, Box<str>)>,
    }

    impl WorkerHooks for Said {
        fn begin(&mut self, event_sender: WorkerEventSender) {
            self.senders.send(event_sender).unwrap_or_default();
        }
        fn start(&mut self, order: &StartOrder) -> Result<(), (StartFailure, Box<str>)> {
            let has = |variable: &str| {
                let found = order.environments[1].iter().find(|(name, _)| name == variable);
                found.map_or("", |(_, value)| value.as_str())
            };
            let message =
                alloc::format!("start {} {} {}", order.group.attempt, has("RANK"), has("MASTER_PORT"));
            self.said.send(message).unwrap_or_default();
            self.can_start.clone()
        }
        fn signal(&mut self, signal: i32) {
            self.said.send(alloc::format!("signal {signal}")).unwrap_or_default();
        }
        fn kill(&mut self) {
            self.said.send("kill".into()).unwrap_or_default();
        }
        fn pass(&mut self, signal: i32) {
            self.said.send(alloc::format!("pass {signal}")).unwrap_or_default();
        }
    }

    /// Hooks whose `kill` does not return until the test allows it.
    struct Slow(
        mpsc::Receiver<()>,
        #[expect(dead_code, reason = "held: the test sees when it is dropped")] mpsc::Sender<()>,
    );

    impl WorkerHooks for Slow {
        fn begin(&mut self, _: WorkerEventSender) {}
        fn start(&mut self, _: &StartOrder) -> Result<(), (StartFailure, Box<str>)> {
            Ok(())
        }
        fn signal(&mut self, _: i32) {}
        fn kill(&mut self) {
            self.0.recv().unwrap_or_default();
        }
        fn pass(&mut self, _: i32) {}
    }

    struct Rig {
        workers: ForeignWorkers,
        said: mpsc::Receiver<String>,
        event_sender: WorkerEventSender,
        group: WorkerGroup,
    }

    impl Rig {
        fn new(can_start: Result<(), (StartFailure, Box<str>)>) -> Self {
            let ((say, said), (notify, senders)) = (mpsc::channel(), mpsc::channel());
            let hooks = Said { said: say, senders: notify, can_start };
            let mut workers =
                ForeignWorkers::new(Box::new(hooks), "here".into(), Devices::All).expect("a thread");
            workers.begin(Clock::new());
            let event_sender = senders.recv_timeout(SOON).expect("it begins");
            let worker = |local_rank: u32| Worker {
                local_rank,
                global_rank: 4 + u64::from(local_rank),
                role_rank: 0,
                world_size: 6,
                role_world_size: 6,
                pid: None,
                exit: None,
            };
            let group = WorkerGroup {
                group_rank: Some(2),
                attempt: 7,
                workers: [0, 1].map(worker).into(),
                ..WorkerGroup::default()
            };
            Self { workers, said, event_sender, group }
        }

        fn start(&mut self) {
            let master = RendezvousStoreInfo { master_addr: "there".into(), master_port: 99 };
            self.workers.start(&Start {
                group: &self.group,
                master: &master,
                agent_store: AgentStore::Shared,
                run_id: "run",
                max_restarts: 0,
            });
        }

        fn take_event(&self) -> String {
            self.said.recv_timeout(SOON).expect("it is asked")
        }

        fn notify(&self, attempt: u64, event: WorkerEvent) {
            let (host, message) = ("far".into(), "out of paper".into());
            self.event_sender.notify(ForeignEvent { attempt, event, host, message });
        }

        fn next(&mut self) -> WorkerEvent {
            // The descriptor may be readable for an event that has been returned already.
            loop {
                assert!(becomes_readable(self.workers.fd(), SOON), "there is something");
                if let Some(event) = self.workers.next_event() {
                    return event;
                }
            }
        }
    }

    fn exited(local_rank: u32, code: i32) -> WorkerEvent {
        let exit = ExitStatus::Code(code);
        WorkerEvent::Exited { local_rank, exit, at: Instant::ORIGIN, was_ending: false, returned: None }
    }

    #[test]
    fn hooks_are_called_and_their_events_are_reported() {
        let mut rig = Rig::new(Ok(()));
        rig.start();
        assert_eq!(rig.take_event(), "start 7 5 99");
        let started = WorkerEvent::Started { local_rank: 1, pid: 12 };
        rig.notify(6, WorkerEvent::Started { local_rank: 0, pid: 11 });
        rig.notify(7, started.clone());
        assert_eq!(rig.next(), started, "events of another start are ignored");
        rig.workers.pass(10);
        assert_eq!(rig.take_event(), "pass 10");
        rig.notify(7, exited(1, 3));
        assert_eq!(rig.next(), exited(1, 3));
        assert_eq!(rig.workers.next_event(), None);
        rig.workers.signal(15);
        assert_eq!(rig.take_event(), "signal 15");
        rig.notify(7, exited(1, 0));
        rig.notify(7, exited(0, 0));
        assert_eq!(rig.next(), exited(0, 0), "an exit is reported once");
        assert_eq!(rig.workers.next_event(), Some(WorkerEvent::Empty));
        assert_eq!(rig.workers.next_event(), None);
        // No worker lives to which a signal could be sent. The next call of a hook proves that.
        rig.workers.signal(15);
        assert_eq!(rig.workers.next_event(), Some(WorkerEvent::Empty));
        rig.workers.pass(12);
        assert_eq!(rig.take_event(), "pass 12");
        let failed = Failed { local_rank: 1, pid: Some(12), exit: ExitStatus::Code(3), at: Instant::ORIGIN };
        let group = rig.group.clone();
        let failures = rig.workers.failures(&group, &[failed]);
        let [failure] = failures.as_slice() else { panic!("{failures:?}") };
        assert_eq!((failure.host.as_str(), failure.message.as_str()), ("far", "out of paper"));
    }

    #[test]
    fn hooks_that_cannot_start_workers_report_it_once() {
        let mut rig = Rig::new(Err((StartFailure::Passing, "no nodes".into())));
        rig.start();
        assert_eq!(rig.take_event(), "start 7 5 99");
        for local_rank in 0..2 {
            let (start_failure, message) = (StartFailure::Passing, "no nodes".into());
            assert_eq!(rig.next(), WorkerEvent::NotStarted { local_rank, start_failure, message });
        }
        rig.workers.kill();
        assert_eq!(rig.take_event(), "kill");
        assert_eq!(rig.workers.next_event(), Some(WorkerEvent::Empty));
    }

    #[test]
    fn dropped_workers_are_killed_and_their_hooks_dropped() {
        let mut rig = Rig::new(Ok(()));
        rig.start();
        assert_eq!(rig.take_event(), "start 7 5 99");
        let Rig { workers, said, event_sender, .. } = rig;
        drop(workers);
        // The program may end now.
        assert_eq!(said.try_recv().as_deref(), Ok("kill"));
        assert_eq!(said.try_recv(), Err(mpsc::TryRecvError::Disconnected), "the hooks are dropped");
        // The receiver is gone, which is no error.
        event_sender.notify(ForeignEvent {
            attempt: 7,
            event: exited(0, 0),
            host: Box::default(),
            message: Box::default(),
        });
    }

    #[test]
    fn hooks_that_do_not_return_are_detached() {
        let ((go, wait), (held, departed)) = (mpsc::channel(), mpsc::channel());
        let mut rig = Rig::new(Ok(()));
        rig.workers =
            ForeignWorkers::new(Box::new(Slow(wait, held)), "here".into(), Devices::All).expect("a thread");
        rig.start();
        let (notify, reported) = mpsc::channel();
        let workers = rig.workers;
        std::thread::spawn(move || {
            drop(workers);
            notify.send(()).unwrap_or_default();
        });
        reported.recv_timeout(SOON).expect("it is dropped");
        assert_eq!(departed.try_recv(), Err(mpsc::TryRecvError::Empty), "they are called still");
        drop(go);
        assert_eq!(
            departed.recv_timeout(SOON),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "they are dropped"
        );
    }
}
