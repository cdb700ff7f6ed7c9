//! Calls of an agent, as requests of its process to the server.

use super::super::Rules;
use super::super::order::{Order, OwnedFrame, Request as WireRequest};
use super::super::process::{NodeEvent, Process, ProcessEvent, SubmitPath, options};
use super::super::referee::{Referee, workers_of};
use super::super::tamper::Tamper;
use super::Job;
use super::agent::{Agent, RUN};
use crate::sim::elastic::Cue;
use crate::sim::elastic::agents::AgentCue;
use crate::sim::harness::history::CheckError;
use crate::sim::tokens::TokenKind;
use crate::sim::world::{SimContext, WorldEvent};
use rendezvous_agent::node::request::{Answer, CallFailure, JoinedRound, Request, StoreOperation};
use rendezvous_agent::node::rounds::no_round;
use rendezvous_agent::reason::NoRound;
use rendezvous_core::error::{ErrorKind, Operation};
use rendezvous_core::node::native_client::Ending;
use rendezvous_core::rendezvous::error::RendezvousErrorKind;
use rendezvous_core::rendezvous::participant::{Entry, Role};
use rendezvous_core::rendezvous::rejoin::{Action, Input as RejoinInput, Rejoin, Waited};
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::session::client::{End as SessionEnd, SessionOptions};
use rendezvous_core::store::op::{Key, Keys, Pairs};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::{ClientFrame, FaultCode, ServerFrame};

/// Timeout of a call that waits for nothing.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// A call without an answer.
pub(super) enum Pending {
    Join {
        rejoin: Rejoin,
        /// Id of the request, while there is one.
        request: Option<u64>,
        was_standby: bool,
    },
    NextEvent,
    /// Anything else: id of the request.
    Request(u64),
}

fn failure(kind: ErrorKind, message: &str) -> CallFailure {
    CallFailure { kind: Some(kind), no_round: NoRound::Failed, has_no_events: false, message: message.into() }
}

pub(super) fn lost(kind: ErrorKind) -> CallFailure {
    failure(kind, "the session has ended")
}

fn no_such_round(kind: RendezvousErrorKind, message: &str) -> CallFailure {
    CallFailure { kind: None, no_round: no_round(kind), ..failure(ErrorKind::ServerGone, message) }
}

fn info(name: &str) -> RendezvousStoreInfo {
    RendezvousStoreInfo { master_addr: name.to_owned(), master_port: 29400 }
}

impl Agent {
    pub(super) fn begin_call(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        id: u64,
        request: Request,
    ) {
        let plain = |operation, frame: &ClientFrame<'_>, order| {
            (SubmitPath::Plain, WireRequest::new(operation, CALL_TIMEOUT, frame), order)
        };
        let run_id = Key::raw(RUN.as_bytes());
        let what = |what| Order::Other { what, key: Vec::new(), began: context.now };
        let (path, wire, order) = match request {
            Request::Join => {
                let rejoin = Rejoin::new(context.now, job.join_timeout);
                self.calls.insert(id, Pending::Join { rejoin, request: None, was_standby: false });
                return self.try_to_join(context, rules, job, id);
            }
            Request::NextEvent => {
                self.calls.insert(id, Pending::NextEvent);
                return self.next_event(context);
            }
            Request::ServeStore(_) => {
                let name = self.name.clone();
                return self.answer(context, id, Ok(Answer::Serving(info(&name))));
            }
            Request::NodesWaiting => {
                plain(Operation::RunInfo, &ClientFrame::RunInfo { run_id }, what("run info"))
            }
            Request::Fail { message } => {
                let message = message.as_bytes();
                plain(Operation::Close, &ClientFrame::Fail { run_id, message }, Order::Close)
            }
            Request::Close => plain(Operation::Close, &ClientFrame::Close { run_id }, Order::Close),
            Request::Shutdown => {
                let bye = WireRequest::new(Operation::Bye, CALL_TIMEOUT, &ClientFrame::Bye {});
                (SubmitPath::Bye, bye, Order::Bye)
            }
            Request::Store { operation, timeout } => match self.store_request(context, &operation, timeout) {
                Some(request) => request,
                None => return self.answer(context, id, Err(lost(ErrorKind::ServerGone))),
            },
        };
        if matches!(order, Order::Close) {
            // A run is closed over any session.
            self.open(context, rules);
        }
        let begun = self.process.as_mut().and_then(|process| process.begin(context, path, wire, order));
        match begun {
            Some(request) => {
                self.calls.insert(id, Pending::Request(request));
                self.settle(context);
            }
            None => self.answer(context, id, Err(lost(ErrorKind::ServerGone))),
        }
    }

    /// Returns the request for an operation in the store of the round, if its session is that of the round.
    fn store_request(
        &self,
        context: &SimContext,
        operation: &StoreOperation,
        timeout: Duration,
    ) -> Option<(SubmitPath, WireRequest, Order)> {
        let (epoch, slot) = self.slot.as_ref()?;
        if self.process.as_ref()?.epoch != Some(*epoch) {
            return None;
        }
        let key_of = |key: &str| [&slot.namespace[..], key.as_bytes()].concat();
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let span = if timeout.is_zero() { CALL_TIMEOUT } else { timeout };
        let changes = |key: &[u8]| Order::Other { what: "agent", key: key.to_vec(), began: context.now };
        let reads = || Order::Other { what: "agent", key: Vec::new(), began: context.now };
        let (request, order) = match operation {
            StoreOperation::Set(pairs) => {
                let keys: Vec<Vec<u8>> = pairs.iter().map(|(key, _)| key_of(key)).collect();
                let values = pairs.iter().map(|(_, value)| value.as_slice());
                let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(Vec::as_slice).zip(values).collect();
                let frame = ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) };
                let first = keys.first().map_or(&[][..], Vec::as_slice);
                (WireRequest::new(Operation::MultiSet, span, &frame), changes(first))
            }
            StoreOperation::SetIfAbsent(key, value) => {
                let key = key_of(key);
                let frame = ClientFrame::CompareSet { key: Key::raw(&key), expected: b"", desired: value };
                // It may find a value, and change nothing.
                (WireRequest::new(Operation::CompareSet, span, &frame), reads())
            }
            StoreOperation::Append(key, value) => {
                let key = key_of(key);
                let frame = ClientFrame::Append { key: Key::raw(&key), value };
                (WireRequest::new(Operation::Append, span, &frame), changes(&key))
            }
            StoreOperation::Add(key, delta) => {
                let key = key_of(key);
                let frame = ClientFrame::Add { key: Key::raw(&key), delta: *delta };
                (WireRequest::new(Operation::Add, span, &frame), changes(&key))
            }
            StoreOperation::Get(keys) => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|key| key_of(key)).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let frame = ClientFrame::MultiGet { timeout_ms, keys: Keys::scoped(b"", &keys) };
                (WireRequest::new(Operation::MultiGet, span, &frame), reads())
            }
            StoreOperation::Wait(key) => {
                let key = key_of(key);
                let frame = ClientFrame::Wait { timeout_ms, keys: Keys::one(Key::raw(&key)) };
                (WireRequest::new(Operation::Wait, span, &frame), reads())
            }
        };
        Some((SubmitPath::Plain, request, order))
    }

    /// Begins a session, unless there is one.
    fn open(&mut self, context: &mut SimContext, rules: &mut Rules) {
        if self.process.is_some() {
            return;
        }
        rules.processes += 1;
        let grace_ms = self.sim_rng.pick(&[0, 600]);
        let session = SessionOptions { grace_ms, heartbeat_ms: 300, heartbeats_missed_max: 3 };
        self.process = Some(Process::start(
            context,
            (self.host, rules.processes, TokenKind::Full),
            (self.name.clone(), RUN.as_bytes().to_vec()),
            self.clock,
            options(session),
            &mut self.sim_rng,
            Tamper::new(context.sabotage, self.host, false),
        ));
        self.settle(context);
    }

    /// Ends the session without waiting, and notifies the server that the work of the node is undone.
    pub(super) fn abandon(&mut self, context: &mut SimContext) {
        let wire = WireRequest::new(Operation::Bye, CALL_TIMEOUT, &ClientFrame::Abandon {});
        if let Some(mut process) = self.process.take() {
            process.begin(context, SubmitPath::Plain, wire, Order::Bye);
            process.settle(context);
            process.exit(context);
        }
    }

    fn settle(&mut self, context: &mut SimContext) {
        if let Some(process) = &mut self.process {
            process.settle(context);
        }
    }

    pub(super) fn try_to_join(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        id: u64,
    ) {
        let Some(Pending::Join { rejoin, request: None, .. }) = self.calls.get_mut(&id) else { return };
        rejoin.handle(context.now, RejoinInput::Tick);
        let (action, span) = (rejoin.decide().0, rejoin.left(context.now).max(Duration::from_millis(1)));
        match action {
            Action::Ask => {
                self.open(context, rules);
                let name = self.name.clone().into_bytes();
                let entry = Entry {
                    run_id: RUN.as_bytes(),
                    node: &name,
                    address: &name,
                    local_world_size: workers_of(&self.name),
                    node_rank: -1,
                    join_timeout_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1),
                    terms: job.terms,
                    labels: Pairs::scoped(b"", &[]),
                    round_min: 0,
                };
                let wire = WireRequest::new(Operation::Join, span, &entry.frame(Role::Member));
                let order = Order::Join { late: None };
                let process = self.process.as_mut();
                let begun = process.and_then(|process| process.begin(context, SubmitPath::Join, wire, order));
                if let (Some(_), Some(Pending::Join { request, .. })) = (begun, self.calls.get_mut(&id)) {
                    *request = begun;
                    self.settle(context);
                } else {
                    self.join_failed(context, rules, job, id, ErrorKind::ServerGone);
                }
            }
            Action::Rest(until) => {
                let cue = Cue::Agent(self.host, self.number, AgentCue::Rested(id));
                context.event_queue.schedule(until.max(context.now), WorldEvent::Elastic(cue));
            }
            Action::GiveUp => {
                let gone = no_such_round(RendezvousErrorKind::Connection, "the server is gone");
                self.answer(context, id, Err(gone));
            }
        }
    }

    /// Handles that a join has failed, which may be tried again.
    pub(super) fn join_failed(
        &mut self,
        context: &mut SimContext,
        rules: &mut Rules,
        job: &mut Job,
        id: u64,
        kind: ErrorKind,
    ) {
        let Some(Pending::Join { rejoin, request, was_standby }) = self.calls.get_mut(&id) else { return };
        let waited = if *was_standby { Waited::Standby } else { Waited::Counted };
        rejoin.handle(context.now, RejoinInput::Failed(kind, waited));
        *request = None;
        if rejoin.decide().0 == Action::GiveUp {
            let no_round = match kind {
                ErrorKind::TimedOut => no_such_round(RendezvousErrorKind::Timeout, "the join timed out"),
                ErrorKind::ServerGone => no_such_round(RendezvousErrorKind::Connection, "the server is gone"),
                kind => failure(kind, "the join failed"),
            };
            return self.answer(context, id, Err(no_round));
        }
        self.try_to_join(context, rules, job, id);
    }

    /// Answers a wait for events, if there is an event or the session of the round has ended.
    fn next_event(&mut self, context: &mut SimContext) {
        let waits = |(_, call): &(&u64, &Pending)| matches!(call, Pending::NextEvent);
        let Some((&id, _)) = self.calls.iter().find(waits) else { return };
        if let Some(event) = self.inbox.pop_front() {
            return self.answer(context, id, Ok(Answer::Event(Some(event))));
        }
        if self.process.is_none() {
            self.answer(context, id, Err(lost(ErrorKind::ServerGone)));
        }
    }

    pub(super) fn cancel_call(&mut self, context: &mut SimContext, id: u64) {
        let request = match self.calls.get(&id) {
            None => return,
            Some(Pending::NextEvent) => None,
            Some(Pending::Join { request, .. }) => *request,
            Some(Pending::Request(request)) => Some(*request),
        };
        if let (Some(request), Some(process)) = (request, &mut self.process) {
            process.cancel(context, request);
        }
        self.answer(context, id, Err(failure(ErrorKind::Cancelled, "the call was cancelled")));
        self.settle(context);
    }

    /// Returns the call of a request.
    fn call_of(&self, request: u64) -> Option<u64> {
        let is_it = |call: &Pending| match call {
            Pending::Join { request: begun, .. } => *begun == Some(request),
            Pending::Request(begun) => *begun == request,
            Pending::NextEvent => false,
        };
        self.calls.iter().find(|(_, call)| is_it(call)).map(|(id, _)| *id)
    }

    fn joining(&mut self) -> Option<(u64, &mut bool)> {
        self.calls.iter_mut().find_map(|(id, call)| match call {
            Pending::Join { was_standby, .. } => Some((*id, was_standby)),
            _ => None,
        })
    }

    /// Handles the events of its process.
    pub(super) fn handle_events(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        job: &mut Job,
    ) -> Result<(), CheckError> {
        while let Some(event) = self.process.as_mut().and_then(Process::next_event) {
            let process = self.process.as_ref();
            let (number, life) = process.map_or((0, None), |process| (process.number, process.epoch));
            match event {
                ProcessEvent::Open { .. } if process.is_some_and(Process::is_deceived) => {
                    let what = format!("{} trusts a server that has not proven the token", self.name);
                    return Err(CheckError(what));
                }
                ProcessEvent::Open { resumed } => rules.resumed += u64::from(resumed),
                ProcessEvent::Responded(request, order, frame) => {
                    self.responded(context, referee, (request, &order), &frame)?;
                }
                ProcessEvent::Failed(request, order, failed, code, _) => {
                    context.note(format_args!("{} fails: {order}: {:?} {code:?}", self.name, failed.kind));
                    let moment = context.history.moment();
                    context.revisions.failed(moment, (number, request), life, (failed.effect, code));
                    if code == Some(FaultCode::PermissionDenied) || failed.kind == ErrorKind::WrongProtocol {
                        return Err(CheckError(format!("{} failed with {failed:?}: {order}", self.name)));
                    }
                    if order == Order::Close && code == Some(FaultCode::RunClosed) {
                        referee.closed(life, RUN, context.now);
                    }
                    let Some(id) = self.call_of(request) else { continue };
                    if matches!(order, Order::Join { .. }) {
                        self.join_failed(context, rules, job, id, failed.kind);
                    } else {
                        let answer = match code {
                            Some(FaultCode::RunClosed) => Ok(Answer::Done),
                            Some(FaultCode::NotFound) => {
                                Err(failure(ErrorKind::TimedOut, "the key is absent"))
                            }
                            _ => Err(failure(failed.kind, "the request failed")),
                        };
                        self.answer(context, id, answer);
                    }
                }
                ProcessEvent::Pushed(_) => {}
                ProcessEvent::Node(order, event, round_event) => {
                    self.reported(context, referee, (order, event), round_event)?;
                }
                ProcessEvent::Over(ending) => {
                    context.note(format_args!("{}'s session is over: {ending:?}", self.name));
                    if let Some(process) = process {
                        process.check_ending(context, &ending)?;
                    }
                    self.process = None;
                    let kind = match ending {
                        // A live server has ended it.
                        Ending::Session(SessionEnd::Server(_), _) => ErrorKind::SessionEnded,
                        _ => ErrorKind::ServerGone,
                    };
                    self.session_ended(context, rules, job, kind);
                }
            }
        }
        self.next_event(context);
        Ok(())
    }

    fn responded(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        (request, order): (u64, &Order),
        owned_frame: &OwnedFrame,
    ) -> Result<(), CheckError> {
        let Some(process) = &self.process else { return Ok(()) };
        let (limits, epoch) = (*process.limits(), process.epoch.unwrap_or(0));
        let odd = || CheckError(format!("{} asked {order} and got another answer", self.name));
        let frame = owned_frame.open(&limits).ok_or_else(odd)?;
        match order {
            Order::Close => referee.closed(Some(epoch), RUN, context.now),
            Order::Other { key, began, .. } if !key.is_empty() => referee.carried_out(epoch, key, *began)?,
            _ => {}
        }
        let answer = match (order, frame) {
            (Order::Leave, _) => return Ok(()),
            (_, ServerFrame::RunState { nodes_waiting, .. }) => Answer::Number(nodes_waiting.into()),
            (_, ServerFrame::Number { number, .. }) => Answer::Number(number),
            (_, ServerFrame::Value { value: Some(value), .. }) => Answer::Values(vec![value.to_vec()]),
            (_, ServerFrame::Values { values }) => {
                let values = values.iter().map(|found| found.value.map(|value| value.to_vec()));
                match values.collect() {
                    Some(values) => Answer::Values(values),
                    None => {
                        let absent = failure(ErrorKind::TimedOut, "a key is absent");
                        if let Some(id) = self.call_of(request) {
                            self.answer(context, id, Err(absent));
                        }
                        return Ok(());
                    }
                }
            }
            (_, ServerFrame::Done { .. }) | (Order::Bye, _) => Answer::Done,
            _ => return Err(odd()),
        };
        if let Some(id) = self.call_of(request) {
            self.answer(context, id, Ok(answer));
        }
        Ok(())
    }

    /// Handles an event of the node, and the request to join that it answers.
    fn reported(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        (order, event): (Option<Order>, NodeEvent),
        round_event: Option<RoundEvent>,
    ) -> Result<(), CheckError> {
        context.note(format_args!("{} gets {event}", self.name));
        let Some(epoch) = self.process.as_ref().and_then(|process| process.epoch) else { return Ok(()) };
        let ends_join = matches!(order, Some(Order::Join { .. }));
        let joining = self.joining().map(|(id, _)| id);
        if let NodeEvent::Closed | NodeEvent::NotNeeded = event {
            referee.closed(Some(epoch), RUN, context.now);
        }
        match event {
            NodeEvent::Formed(slot) => {
                let name = self.process.as_ref().map(|process| process.name.clone()).unwrap_or_default();
                referee.formed(epoch, (RUN, &name), &slot, false)?;
                let Some(id) = joining else {
                    // A round whose join was given up is left.
                    let leave = ClientFrame::Leave { run_id: Key::raw(RUN.as_bytes()) };
                    let wire = WireRequest::new(Operation::Leave, CALL_TIMEOUT, &leave);
                    if let Some(process) = &mut self.process {
                        process.begin(context, SubmitPath::Leave, wire, Order::Leave);
                    }
                    self.settle(context);
                    return Ok(());
                };
                self.inbox.clear();
                let joined = JoinedRound {
                    rank: slot.rank.into(),
                    world_size: slot.nodes.into(),
                    number: Some(slot.round),
                    store_info: info("server"),
                    leader: Some(String::from_utf8_lossy(&slot.leader).into()),
                };
                self.slot = Some((epoch, slot));
                self.answer(context, id, Ok(Answer::Joined(joined)));
            }
            NodeEvent::Standby => {
                if let Some((_, was_standby)) = self.joining() {
                    *was_standby = true;
                }
            }
            NodeEvent::Refused(code) if ends_join => {
                let kind = match code {
                    FaultCode::TimedOut => RendezvousErrorKind::Timeout,
                    FaultCode::RunClosed => RendezvousErrorKind::Closed,
                    FaultCode::NotNeeded => RendezvousErrorKind::GracefulExit,
                    FaultCode::Cancelled => RendezvousErrorKind::State,
                    code => return Err(CheckError(format!("{} was refused: {code:?}", self.name))),
                };
                if let Some(id) = joining {
                    self.answer(context, id, Err(no_such_round(kind, "the join was refused")));
                }
            }
            NodeEvent::Closed | NodeEvent::NotNeeded if joining.is_some() => {
                let kind = if event == NodeEvent::Closed {
                    RendezvousErrorKind::Closed
                } else {
                    RendezvousErrorKind::GracefulExit
                };
                if let Some(id) = joining {
                    self.answer(context, id, Err(no_such_round(kind, "the run is closed")));
                }
            }
            _ => {
                self.inbox.extend(round_event);
                self.next_event(context);
            }
        }
        Ok(())
    }
}
