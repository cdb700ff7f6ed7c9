//! Agents whose rendezvous does not answer, does not return, or panics.

use super::*;
use crate::reason::NoRound;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::rendezvous::{HandlerError, NodeStore, RendezvousHandler};
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::RendezvousInfo;
use std::sync::Condvar;

/// Waits for the result and drops the agent.
fn end_within(agent: Running, span: std::time::Duration) -> AgentResult {
    let (notify, reported) = mpsc::channel();
    thread::spawn(move || notify.send(agent.result()).unwrap_or_default());
    reported.recv_timeout(span).expect("it ends in time")
}

fn until_meeting(agent: &Running) {
    agent.until(|event| {
        matches!(event, AgentEvent::Notice(Notice::Phase { to: Phase::Meeting, .. })).then_some(())
    });
}

#[test]
fn a_silent_server_does_not_block_a_stop() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let job = Job::new();
    let handler = job.handler_at(silent.local_addr().expect("bound").port(), 0, "a", (1, 1), 1);
    let agent = Running::new(job.agent_by(handler, "a", spec(1), "exit 0", |_| {}));
    until_meeting(&agent);
    let (_connection, _) = silent.accept().expect("it comes");
    agent.control.stop();
    let result = end_within(agent, std::time::Duration::from_secs(10));
    assert_eq!(result.outcome, Outcome::Stopped { cause: StopCause::Requested });
}

/// A backend with a fault.
struct FaultyBackend {
    inner: Arc<dyn RendezvousHandler>,
    fault: Fault,
    /// Set when calls that cannot be cancelled may return.
    go: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    NeverJoins,
    NeverLeaves,
    PanicsAsItJoins,
    PanicsAsItListens,
    PanicsAsItLeaves,
    /// Its server does not say which nodes wait.
    NeverKnowsWhoWaits,
    /// It does not number its rounds.
    HidesRounds,
}

impl FaultyBackend {
    fn new(job: &Job, fault: Fault) -> Arc<Self> {
        Self::among(job, (1, 1), fault)
    }

    fn among(job: &Job, nodes: (i64, i64), fault: Fault) -> Arc<Self> {
        Arc::new(Self { inner: job.handler("a", nodes, 1), fault, go: Arc::default() })
    }

    fn hang(&self) {
        let (go, reported) = &*self.go;
        let go = go.lock().expect("no panic");
        drop(reported.wait_while(go, |go| !*go).expect("no panic"));
    }
}

impl RendezvousHandler for FaultyBackend {
    fn backend(&self) -> &str {
        "odd"
    }

    fn use_agent_store(&self) -> bool {
        self.inner.use_agent_store()
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        match self.fault {
            Fault::NeverJoins => self.hang(),
            Fault::PanicsAsItJoins => panic!("a bug of the backend's"),
            _ => {}
        }
        let mut info = self.inner.next_rendezvous()?;
        if self.fault == Fault::HidesRounds {
            (info.round, info.position) = (None, None);
        }
        Ok(info)
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        self.inner.is_closed()
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        self.inner.set_closed()
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        self.inner.fail(message)
    }

    fn reports_deaths(&self) -> bool {
        self.inner.reports_deaths()
    }

    fn abandon(&self) {
        self.inner.abandon();
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        if self.fault == Fault::NeverKnowsWhoWaits {
            return Err(HandlerError::Foreign("it is slow".into()));
        }
        self.inner.num_nodes_waiting()
    }

    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        assert!(self.fault != Fault::PanicsAsItListens, "a bug of the backend's");
        self.inner.next_event(timeout)
    }

    fn run_id(&self) -> &str {
        self.inner.run_id()
    }

    fn shutdown(&self) -> bool {
        match self.fault {
            Fault::NeverLeaves => self.hang(),
            Fault::PanicsAsItLeaves => panic!("a bug of the backend's"),
            _ => {}
        }
        self.inner.shutdown()
    }

    fn set_token(&self, token: &CancelToken) {
        self.inner.set_token(token);
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}

fn run_with_fault(job: &Job, fault: Fault, script: &str) -> Running {
    Running::new(job.agent_by(FaultyBackend::new(job, fault), "a", spec(1), script, |_| {}))
}

#[test]
fn a_leave_that_never_returns_is_not_waited_for() {
    let job = Job::new();
    let odd = FaultyBackend::new(&job, Fault::NeverLeaves);
    let go = Arc::clone(&odd.go);
    let mut agent = job.agent_by(odd, "a", spec(1), "exec sleep 1000", |_| {});
    let (control, clock) = (agent.control(), std::time::Instant::now());
    let result = agent.run(|_, event| {
        if let AgentEvent::Notice(Notice::Running { .. }) = event {
            control.stop();
        }
    });
    let outcome = result.expect("the system does its part").outcome;
    assert_eq!(outcome, Outcome::Stopped { cause: StopCause::Requested });
    assert!(clock.elapsed() < SOON);
    *go.0.lock().expect("no panic") = true;
    go.1.notify_all();
}

#[test]
fn an_agent_that_is_not_run_takes_no_part() {
    let job = Job::new();
    let mut made = job.agent("a", (1, 1), spec(1), "exit 0");
    assert_eq!((made.supervisor().phase(), made.next_event()), (Phase::Idle, None));
    // The round has room for one node.
    assert_eq!(end_within(job.run("b", (1, 1), spec(1), "exit 0"), SOON).outcome, SUCCEEDED);
    // An agent that is stopped before it is run does not join either.
    made.control().stop();
    let stopped = made.run(|_, _| {}).expect("the system does its part");
    assert_eq!(stopped.outcome, Outcome::Stopped { cause: StopCause::Requested });
}

#[test]
fn a_call_that_cannot_be_cancelled_is_detached() {
    let job = Job::new();
    let odd = FaultyBackend::new(&job, Fault::NeverJoins);
    let go = Arc::clone(&odd.go);
    let mut agent = job.agent_by(Arc::clone(&odd) as _, "a", spec(1), "exit 0", |_| {});
    agent.poll().expect("it joins");
    let (notify, reported) = mpsc::channel();
    thread::spawn(move || {
        drop(agent);
        notify.send(()).unwrap_or_default();
    });
    reported.recv_timeout(SOON).expect("it is dropped");
    assert!(Arc::strong_count(&odd) > 1, "the call goes on");
    *go.0.lock().expect("no panic") = true;
    go.1.notify_all();
}

#[test]
fn a_backend_that_panics_ends_the_agent_with_the_reason() {
    let job = Job::new();
    let message = "a thread of the agent panicked: a bug of the backend's";
    let failed = |reason| Outcome::Failed { reason };
    let joins = run_with_fault(&job, Fault::PanicsAsItJoins, "exit 0");
    let no_round = Reason::NoRound { kind: NoRound::Failed, message: message.into() };
    assert_eq!(end_within(joins, SOON).outcome, failed(no_round));
    let listens = run_with_fault(&job, Fault::PanicsAsItListens, "exec sleep 1000");
    assert_eq!(end_within(listens, SOON).outcome, failed(Reason::ServerLost { message: message.into() }));
    let leaves = run_with_fault(&job, Fault::PanicsAsItLeaves, "exit 0");
    assert_eq!(end_within(leaves, SOON).outcome, SUCCEEDED);
}

#[test]
fn waiting_nodes_are_believed_where_they_cannot_be_counted() {
    let job = Job::new();
    // The other agent's worker fails once, when this agent has succeeded.
    let fails_once =
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { until test -e parting; do sleep 0.01; done; exit 7; }";
    let odd = FaultyBackend::among(&job, (2, 2), Fault::NeverKnowsWhoWaits);
    let agent = Running::new(job.agent_by(odd, "a", spec(1), "exit 0", |_| {}));
    let other = job.run("b", (2, 2), WorkerSpec { max_restarts: 1, ..spec(1) }, fails_once);
    agent.until(|event| {
        matches!(event, AgentEvent::Notice(Notice::Phase { to: Phase::ExitBarrier, .. })).then_some(())
    });
    fs::write(job.folder.0.join("parting"), "").expect("written");
    assert_eq!(end_within(agent, SOON).outcome, SUCCEEDED);
    assert_eq!(end_within(other, SOON).outcome, SUCCEEDED);
}

#[test]
fn deaths_reach_an_agent_whose_backend_does_not_number_its_rounds() {
    let job = Job::new();
    let script = "test -e died && exit 0; exec sleep 1000";
    let agent = |name| {
        let inner = job.handler(name, (1, 2), 1);
        let odd = Arc::new(FaultyBackend { inner, fault: Fault::HidesRounds, go: Arc::default() });
        job.agent_by(odd, name, spec(1), script, |_| {})
    };
    let (agent, mut other) = (Running::new(agent("a")), agent("b"));
    agent.until_running();
    while other.supervisor().phase() != Phase::Running {
        other.wait().expect("the system does its part");
    }
    fs::write(job.folder.0.join("died"), "").expect("written");
    drop(other);
    // Its worker may have ended before the death was reported.
    assert!(matches!(end_within(agent, SOON).outcome, Outcome::Succeeded { .. }));
}

#[test]
fn a_handler_can_be_used_after_its_agent_was_dropped() {
    let job = Job::new();
    let handler = job.handler("a", (2, 2), 1);
    let mut agent = job.agent_by(Arc::clone(&handler), "a", spec(1), "exit 0", |_| {});
    agent.poll().expect("it joins");
    drop(agent);
    assert_eq!(handler.num_nodes_waiting().map_err(|error| error.to_string()), Ok(0));
}
