use super::request::JoinedRound;
use super::request::{ServeStore, StoreOperation};
use super::*;
use crate::group::ExitStatus;
use crate::phase::Phase;
use crate::reason::{NoRound, Reason};
use crate::supervisor::{Outcome, Output as Do};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::round_event::RoundEvent;

const ARRIVED: &str = "torchelastic/agent/arrived";
const LAST_MEMBER: &str = "torchelastic/agent/terminal_state/last_member";

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn failed(kind: ErrorKind) -> Result<Answer, CallFailure> {
    let message = format!("{kind:?}").into();
    Err(CallFailure { kind: Some(kind), no_round: NoRound::Failed, has_no_events: false, message })
}

fn joined(rank: u64, world_size: u64) -> Result<Answer, CallFailure> {
    Ok(Answer::Joined(JoinedRound {
        rank,
        world_size,
        number: Some(4),
        store_info: RendezvousStoreInfo { master_addr: "server".into(), master_port: 29400 },
        leader: Some("leader".into()),
    }))
}

fn values(values: &[&str]) -> Result<Answer, CallFailure> {
    Ok(Answer::Values(values.iter().map(|value| value.as_bytes().to_vec()).collect()))
}

fn one_worker() -> NodeOptions {
    NodeOptions {
        spec: WorkerSpec::new(1),
        name: "host".into(),
        local_addr: None,
        listen_addr: None,
        master: None,
        is_local: false,
        reports_deaths: true,
        agent_store: AgentStore::Shared,
    }
}

/// A node whose calls the test answers.
struct Play {
    node: AgentNode,
    now: Instant,
    /// Calls that are not answered.
    calls: Vec<(u64, Request)>,
    cancelled: Vec<u64>,
    /// Outputs other than calls.
    outputs: Vec<Output>,
}

impl Play {
    fn new(options: NodeOptions) -> Self {
        let node = AgentNode::new(options).expect("a good spec");
        let mut play =
            Self { node, now: at(0), calls: Vec::new(), cancelled: Vec::new(), outputs: Vec::new() };
        play.give(Input::Begin);
        play
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.node.handle(self.now, input).expect("it can happen");
        self.drain()
    }

    fn pass(&mut self, span: Duration) -> &mut Self {
        let end = self.now + span;
        while let Some(due) = self.node.poll_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.node.handle_timeout(self.now);
            self.drain();
        }
        self.now = end;
        self
    }

    fn drain(&mut self) -> &mut Self {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Call { id, request } => self.calls.push((id, request)),
                Output::Cancel { id } => self.cancelled.push(id),
                output => self.outputs.push(output),
            }
        }
        self
    }

    /// Answers the oldest call that fits. Returns the request.
    fn answer(&mut self, fits: impl Fn(&Request) -> bool, answer: Result<Answer, CallFailure>) -> Request {
        let index = self.calls.iter().position(|(_, request)| fits(request));
        let index = index.unwrap_or_else(|| panic!("not called: {:?}", self.calls));
        let (id, request) = self.calls.remove(index);
        self.give(Input::Answered { id, answer });
        request
    }

    fn join(&mut self, rank: u64, world_size: u64) -> &mut Self {
        self.answer(|request| *request == Request::Join, joined(rank, world_size));
        self
    }

    /// Answers the pending store call of the agents' common work.
    fn store(&mut self, answer: Result<Answer, CallFailure>) -> StoreOperation {
        let request = self.answer(|request| matches!(request, Request::Store { .. }), answer);
        let Request::Store { operation, .. } = request else { unreachable!("it fits") };
        operation
    }

    /// Lets the second of two agents get its rank and start its worker.
    fn running(&mut self) -> &mut Self {
        self.join(1, 2);
        self.store(values(&["leader", "1234"]));
        self.store(Ok(Answer::Done));
        self.store(values(&["[1, 2, 1, 2]"]));
        self.give(Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 7 }))
    }

    /// Lets it run, and its worker succeed.
    fn succeeded(&mut self) -> &mut Self {
        let (exit, at) = (ExitStatus::Code(0), self.running().now);
        let returned = Some(b"42".to_vec());
        self.give(Input::Worker(WorkerEvent::Exited { local_rank: 0, exit, at, was_ending: false, returned }))
    }

    fn phase(&self) -> Phase {
        self.node.supervisor().phase()
    }
}

#[test]
fn the_first_agent_serves_the_workers_store_and_assigns_all_ranks() {
    let mut play = Play::new(one_worker());
    play.join(0, 2);
    let request = play.answer(
        |request| matches!(request, Request::ServeStore(_)),
        Ok(Answer::Serving(RendezvousStoreInfo { master_addr: "leader".into(), master_port: 1234 })),
    );
    let host = Some("leader".into());
    assert_eq!(request, Request::ServeStore(ServeStore { host, listen_addr: None, port: 0 }));
    let address = vec![("MASTER_ADDR".into(), b"leader".to_vec()), ("MASTER_PORT".into(), b"1234".to_vec())];
    assert_eq!(play.store(Ok(Answer::Done)), StoreOperation::Set(address));
    assert!(matches!(play.store(Ok(Answer::Done)), StoreOperation::Set(_)));
    let info = |rank| format!(r#"{{"role": "default", "rank": {rank}, "local_world_size": 1}}"#);
    play.store(values(&[&info(0), &info(1)]));
    let StoreOperation::Set(ranks) = play.store(Ok(Answer::Done)) else { panic!("the ranks of all") };
    assert_eq!(ranks.len(), 2);
    assert!(play.outputs.contains(&Output::Supervisor(Do::Start { attempt: 0 })));
    let store = play.node.start_store().expect("it is served");
    assert_eq!((store.master.master_port, store.agent_store), (1234, AgentStore::Shared));
    let worker = &play.node.supervisor().group().workers[0];
    assert_eq!((worker.global_rank, worker.world_size), (0, 2));
}

#[test]
fn a_store_that_is_not_wanted_any_more_when_it_is_served_is_ended() {
    let mut play = Play::new(one_worker());
    play.join(0, 2).give(Input::Stop(StopCause::Requested));
    let info = RendezvousStoreInfo { master_addr: "leader".into(), master_port: 1234 };
    play.answer(|request| matches!(request, Request::ServeStore(_)), Ok(Answer::Serving(info)));
    assert!(play.outputs.contains(&Output::EndStore));
}

#[test]
fn an_agent_from_its_first_round_to_its_end() {
    let mut play = Play::new(one_worker());
    play.succeeded();
    assert_eq!(play.phase(), Phase::ExitBarrier);
    assert_eq!(play.node.returned().get(&0).map(|returned| returned.as_slice()), Some(&b"42"[..]));
    assert_eq!(play.store(Ok(Answer::Done)), StoreOperation::Append(ARRIVED.into(), b"1\n".to_vec()));
    assert!(matches!(play.store(Ok(Answer::Number(1))), StoreOperation::Add(_, 1)));
    assert_eq!(play.store(Ok(Answer::Done)), StoreOperation::Wait(LAST_MEMBER.into()));
    play.give(Input::Worker(WorkerEvent::Empty));
    // The wait for events ends before the run is closed.
    let listening = play.calls[0].0;
    assert_eq!(play.cancelled, [listening]);
    play.answer(|request| *request == Request::NextEvent, failed(ErrorKind::Cancelled));
    play.answer(|request| *request == Request::Close, Ok(Answer::Done));
    play.answer(|request| *request == Request::Shutdown, Ok(Answer::Done));
    assert_eq!(play.phase(), Phase::Over);
    assert_eq!(play.node.supervisor().outcome(), Some(&Outcome::Succeeded { missing: None }));
    assert_eq!(play.calls, []);
}

#[test]
fn a_join_that_has_not_begun_when_it_is_cancelled_never_begins() {
    let mut play = Play::new(one_worker());
    play.running().give(Input::Worker(WorkerEvent::Exited {
        local_rank: 0,
        exit: ExitStatus::Code(1),
        at: at(0),
        was_ending: false,
        returned: None,
    }));
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Meeting);
    // The wait for events has not ended yet, and so the join waits.
    play.give(Input::Stop(StopCause::Requested));
    play.answer(|request| *request == Request::NextEvent, failed(ErrorKind::Cancelled));
    assert_eq!(play.calls.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&Request::Shutdown]);
    assert!(play.outputs.contains(&Output::Abandon), "the others may count on it");
}

#[test]
fn an_agent_ends_although_leaving_never_does() {
    let mut play = Play::new(one_worker());
    play.running();
    play.give(Input::Stop(StopCause::Requested)).give(Input::Worker(WorkerEvent::Empty));
    play.answer(|request| *request == Request::NextEvent, failed(ErrorKind::Cancelled));
    assert_eq!(play.phase(), Phase::Closing);
    play.pass(Duration::from_millis(4999));
    assert_eq!(play.phase(), Phase::Closing);
    play.pass(Duration::from_millis(1));
    assert_eq!(play.phase(), Phase::Over);
}

#[test]
fn those_still_at_work_are_named_after_a_while_and_then_more_and_more_rarely() {
    let mut play = Play::new(one_worker());
    play.succeeded();
    play.store(Ok(Answer::Done));
    play.store(Ok(Answer::Number(1)));
    for interval in [10, 20, 40] {
        let wait = play.calls.last().map(|(_, request)| request.clone());
        let operation = StoreOperation::Wait(LAST_MEMBER.into());
        let timeout = Duration::from_secs(interval);
        assert_eq!(wait, Some(Request::Store { operation, timeout }));
        play.pass(timeout).outputs.clear();
        play.store(failed(ErrorKind::TimedOut));
        play.store(Ok(Answer::Number(1)));
        play.store(values(&["1\n"]));
        let info = r#"{"role": "default", "rank": 0, "local_world_size": 1, "agent": "node-a"}"#;
        play.store(values(&[info]));
        let message = "1 of 2 agents have finished; still at work: node-a (group rank 0)".into();
        let notice = Output::Supervisor(Do::Notify(Notice::StillAtWork { message }));
        assert_eq!(play.outputs, [notice]);
    }
}

#[test]
fn an_agent_that_does_not_list_itself_is_counted_only() {
    let mut play = Play::new(one_worker());
    play.succeeded();
    // The store cannot append.
    play.store(failed(ErrorKind::Unsupported));
    play.store(Ok(Answer::Number(1)));
    play.pass(Duration::from_secs(10)).outputs.clear();
    play.store(failed(ErrorKind::TimedOut));
    play.store(Ok(Answer::Number(1)));
    play.store(failed(ErrorKind::TimedOut));
    let message = "1 of 2 agents have finished".into();
    assert_eq!(play.outputs, [Output::Supervisor(Do::Notify(Notice::StillAtWork { message }))]);
}

#[test]
fn the_exit_barrier_has_a_deadline_under_every_backend_if_one_is_set() {
    for reports_deaths in [true, false] {
        let timeout = Duration::from_secs(7);
        let spec = WorkerSpec { exit_barrier_timeout: Some(timeout), ..WorkerSpec::new(1) };
        let mut play = Play::new(NodeOptions { spec, reports_deaths, ..one_worker() });
        play.succeeded();
        play.store(Ok(Answer::Done));
        play.store(Ok(Answer::Number(1)));
        play.pass(timeout);
        play.store(failed(ErrorKind::TimedOut));
        play.store(Ok(Answer::Number(1)));
        let message = "TimedOut: 1 of 2 have arrived".into();
        let missing = Some(Reason::ExitBarrierFailed { message });
        assert_eq!(play.node.supervisor().outcome(), Some(&Outcome::Succeeded { missing }));
    }
}

#[test]
fn a_death_is_reported_to_the_supervisor() {
    let mut play = Play::new(one_worker());
    play.running();
    let why = rendezvous_core::wire::native::Why::Connection;
    let died = RoundEvent::PeerDied { round: 4, node_rank: 0, node: "node-a".into(), why };
    play.answer(|request| *request == Request::NextEvent, Ok(Answer::Event(Some(died))));
    assert_eq!(play.phase(), Phase::Restarting);
}

#[test]
fn a_backend_without_events_is_asked_in_intervals() {
    let mut play = Play::new(NodeOptions { reports_deaths: false, ..one_worker() });
    play.running();
    let no_events =
        CallFailure { has_no_events: true, ..failed(ErrorKind::Unsupported).expect_err("a failure") };
    play.answer(|request| *request == Request::NextEvent, Err(no_events));
    // A store whose server has ended fails at once; the next question waits nevertheless.
    play.store(failed(ErrorKind::ServerGone));
    assert_eq!(play.calls, []);
    play.pass(Duration::from_secs(1));
    play.answer(|request| *request == Request::NodesWaiting, Ok(Answer::Number(0)));
    let read = StoreOperation::Get(vec!["torchelastic/agent/failure".into()]);
    assert_eq!(play.store(values(&["node-a (group rank 0): exit code 1"])), read);
    let message: String = "node-a (group rank 0): exit code 1".into();
    assert_eq!(
        play.node.supervisor().outcome(),
        Some(&Outcome::Failed { reason: Reason::JobFailed { message: message.into() } })
    );
}

#[test]
fn a_backend_without_events_is_asked_for_failures_while_nodes_wait() {
    let mut play = Play::new(NodeOptions { reports_deaths: false, ..one_worker() });
    play.running();
    let no_events =
        CallFailure { has_no_events: true, ..failed(ErrorKind::Unsupported).expect_err("a failure") };
    play.answer(|request| *request == Request::NextEvent, Err(no_events));
    play.store(failed(ErrorKind::TimedOut));
    play.pass(Duration::from_secs(1));
    play.answer(|request| *request == Request::NodesWaiting, Ok(Answer::Number(1)));
    let restart = StoreOperation::Get(vec!["torchelastic/agent/restart".into()]);
    assert_eq!(play.store(failed(ErrorKind::TimedOut)), restart);
    let failure = StoreOperation::Get(vec!["torchelastic/agent/failure".into()]);
    assert_eq!(play.store(failed(ErrorKind::TimedOut)), failure);
}

/// Lets the worker of a running agent fail.
fn fail_worker(play: &mut Play) {
    let at = play.now;
    let (exit, was_ending) = (ExitStatus::Code(7), false);
    play.give(Input::Worker(WorkerEvent::Exited { local_rank: 0, exit, at, was_ending, returned: None }));
}

#[test]
fn an_agent_records_why_it_restarts_before_it_comes_back_and_still_learns_of_a_death() {
    let mut play = Play::new(one_worker());
    play.running();
    fail_worker(&mut play);
    play.answer(|request| *request == Request::NextEvent, failed(ErrorKind::Cancelled));
    let record = b"node host (group rank 1) restarts: rank 1 (local rank 0) ended with exit code 7".to_vec();
    let key = "torchelastic/agent/restart".into();
    // Its processes are gone before the record is written.
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.calls.len(), 1, "the join waits for the record: {:?}", play.calls);
    assert_eq!(play.store(values(&[""])), StoreOperation::SetIfAbsent(key, record));
    assert_eq!(play.calls.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&Request::Join]);

    let mut play = Play::new(one_worker());
    play.running();
    fail_worker(&mut play);
    play.answer(|request| *request == Request::NextEvent, failed(ErrorKind::Cancelled));
    play.store(values(&[""]));
    let why = rendezvous_core::wire::native::Why::Connection;
    let died = RoundEvent::PeerDied { round: 4, node_rank: 0, node: "node-a".into(), why };
    let left = play.node.supervisor().restarts_left();
    play.answer(|request| *request == Request::NextEvent, Ok(Answer::Event(Some(died))));
    assert_eq!(play.node.supervisor().restarts_left(), left + 1, "the failure is excused");
}

#[test]
fn an_agent_that_restarts_for_another_one_says_which_worker_failed_there() {
    let record = "node a (group rank 0) restarts: rank 0 (local rank 0) was ended by SIGKILL";
    let over = RoundEvent::RoundOver { round: 4, why: rendezvous_core::wire::native::Why::TooFewNodes };
    let waiting = RoundEvent::NodesWaiting { nodes: 1 };
    for event in [over, waiting] {
        for (answer, expected) in [
            (values(&[record]), Reason::PeerRestarts { message: record.into() }),
            (
                failed(ErrorKind::TimedOut),
                match event {
                    RoundEvent::NodesWaiting { nodes } => Reason::NodesWaiting { nodes: nodes.into() },
                    _ => Reason::RoundOver { message: event.to_string().into() },
                },
            ),
        ] {
            let mut play = Play::new(one_worker());
            play.running().outputs.clear();
            play.answer(|request| *request == Request::NextEvent, Ok(Answer::Event(Some(event.clone()))));
            if matches!(event, RoundEvent::NodesWaiting { .. }) {
                play.answer(|request| *request == Request::NodesWaiting, Ok(Answer::Number(1)));
            }
            let read = StoreOperation::Get(vec!["torchelastic/agent/restart".into()]);
            assert_eq!(play.store(answer), read);
            let reasons = play.outputs.iter().filter_map(|output| match output {
                Output::Supervisor(Do::Notify(Notice::Phase { to: Phase::Restarting, reason, .. })) => {
                    Some(reason)
                }
                _ => None,
            });
            assert_eq!(reasons.collect::<Vec<_>>(), [&expected]);
        }
    }
}
