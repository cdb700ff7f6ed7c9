//! Node: it does what a launcher does with its part in a run, and what its workers do with the store. It has one
//! process after the other on one host.

mod traced;
mod work;

use super::super::script::{Storm, StormOptions};
use super::super::tokens::TokenKind;
use super::super::world::{SimContext, WorldEvent};
use super::order::{FrameSummary, Order, OwnedFrame, Request, answer_to};
use super::process::{NodeEvent, Process, ProcessEvent, RequestTimes, Slot, SubmitPath, options};
use super::referee::{Referee, Status, workers_of};
use super::tamper::Tamper;
use super::{Cue, Rules};
use crate::sim::harness::clock::Clock;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Stream};
use crate::sim::harness::sim_operation::{End, SimOperation};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::error::{Cause, Effect, ErrorKind, Failure, Operation};
use rendezvous_core::node::native_client::Ending;
use rendezvous_core::rendezvous::participant::{Entry, Part, Role};
use rendezvous_core::session::client::{End as SessionEnd, SessionOptions};
use rendezvous_core::store::op::{Key, Keys, Pairs};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{BarrierEnd, ClientFrame, FaultCode, LastCall, ServerFrame};
use std::collections::{BTreeMap, BTreeSet};

/// Behaviour of a node for the whole simulation.
#[derive(Clone, Copy, Debug)]
struct Behaviour {
    grace_ms: u32,
    heartbeat_ms: u32,
    is_spare: bool,
    /// Longest pause between two actions.
    pause_max: Duration,
    /// The same after the storm. Nodes that come back to a run are back within one last call, so that they meet.
    calm_pause_max: Duration,
}

pub(super) struct Node {
    number: usize,
    sim_rng: SimRng,
    clock: Clock,
    behaviour: Behaviour,
    token_kind: TokenKind,
    run: String,
    name: String,
    names: u32,
    process: Option<Process>,
    storm: Storm,
    /// Its round, live or ended.
    joined: Option<Slot>,
    /// When it got a round whose join it had given up.
    unwanted_since: Option<Instant>,
    /// Other nodes wait or have died, so it should come back.
    called: bool,
    last_received_at: BTreeSet<(u64, String)>,
    /// Number of values that it made.
    values: u32,
    /// Traced keys with the revisions and values that it found last, also in earlier lives of the server.
    found: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    watches: usize,
    /// Keys for leases that were requested.
    leases: BTreeMap<u64, Vec<u8>>,
    /// Whether a leased key of its own exists.
    has_lease: bool,
    /// Until then its host or its connections may be affected by a mishap.
    pub(super) trouble_until: Instant,
    leaves: bool,
}

/// Time after its deadline at which a call is given up.
pub(super) const SLACK: Duration = Duration::from_secs(2);
pub(super) const GRACE_MAX: Duration = Duration::from_secs(2);
const HEARTBEAT_MS_MAX: u32 = 1000;
const HEARTBEATS_MISSED_MAX: u32 = 3;
/// Longest silence that is not noticed, by the slowest clock.
pub(super) const SILENCE_MAX: Duration = Duration::from_millis(3100);
/// Longest pause of a node after the storm.
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Longest stay in a round whose join it had given up, while it has a connection. It leaves at once, unless its table
/// of requests is full.
const UNWANTED_MAX: Duration = Duration::from_secs(1);

impl Node {
    pub(super) fn new(
        (number, token_kind): (usize, TokenKind),
        mut sim_rng: SimRng,
        context: &mut SimContext,
        rules: &Rules,
    ) -> Self {
        let behaviour = Behaviour {
            grace_ms: sim_rng.pick(&[0, 0, 600, 2000, 2000]),
            heartbeat_ms: sim_rng.pick(&[300, 500, HEARTBEAT_MS_MAX]),
            is_spare: number >= 2 * rules.runs && sim_rng.percent(20),
            pause_max: sim_rng.span(Duration::from_millis(20), PAUSE_MAX),
            calm_pause_max: match rules.terms.last_call {
                LastCall::Off => PAUSE_MAX,
                _ => PAUSE_MAX.min(Duration::from_millis(rules.terms.last_call_ms / 2)),
            },
        };
        let (operations, depth) = (usize::MAX, 1);
        let storm_options = StormOptions {
            operations,
            depth,
            pause_max: Duration::ZERO,
            value_bytes_max: 400,
            more_pairs: 0,
        };
        let at = context.now + sim_rng.span(Duration::from_millis(1), Duration::from_secs(1));
        context.event_queue.schedule(at, WorldEvent::Elastic(Cue::StartProcess(number)));
        Self {
            number,
            clock: Clock::any(&mut sim_rng),
            sim_rng,
            behaviour,
            token_kind,
            run: format!("run-{}", number % rules.runs),
            name: format!("node{number}"),
            names: 0,
            process: None,
            storm: Storm::new(number, context.key_space, storm_options),
            joined: None,
            unwanted_since: None,
            called: false,
            last_received_at: BTreeSet::new(),
            values: 0,
            found: BTreeMap::new(),
            watches: 0,
            leases: BTreeMap::new(),
            has_lease: false,
            trouble_until: Instant::ORIGIN,
            leaves: false,
        }
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.process.as_ref().is_some_and(|process| process.owns(stream))
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) const fn token_kind(&self) -> TokenKind {
        self.token_kind
    }

    pub(super) const fn joined(&self) -> Option<&Slot> {
        self.joined.as_ref()
    }

    pub(super) fn part(&self) -> Option<Part> {
        self.process.as_ref().map(Process::part)
    }

    pub(super) const fn is_called(&self) -> bool {
        self.called
    }

    pub(super) fn has_session(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_live)
    }

    pub(super) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    pub(super) fn set_new_name(&mut self) {
        self.names += 1;
        self.name = format!("node{}-{}", self.number, self.names);
    }

    /// Returns its round as far as it knows, if its session is this one.
    pub(super) fn status_of(&self, epoch: u32, session: u64) -> Option<Status> {
        let process = self.process.as_ref().filter(|process| process.epoch == Some(epoch))?;
        (process.identity().session == session).then(|| self.state()).flatten()
    }

    fn state(&self) -> Option<Status> {
        let process = self.process.as_ref()?;
        let joined =
            self.joined.as_ref().filter(|_| matches!(process.part(), Part::InRound | Part::InLastRound))?;
        let (run, round) = (self.run.clone(), joined.round);
        Some(Status { run, round, name: process.name.clone() })
    }

    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let process = self.process.as_ref()?;
        if let Some((since, untroubled)) = self.unwanted_since.zip(process.untroubled_since)
            && since.max(untroubled).max(self.trouble_until) + UNWANTED_MAX < now
        {
            return Some(format!("{} stays in a round that it had given up", self.name));
        }
        let order = process.overdue(now)?;
        Some(format!("{} waits for {order}, which outlives its deadline", self.name))
    }

    /// Starts a process on the host, unless there is one.
    pub(super) fn start_process(&mut self, context: &mut SimContext, referee: &Referee, rules: &mut Rules) {
        if self.process.is_some() || self.leaves {
            return;
        }
        rules.processes += 1;
        let session = SessionOptions {
            grace_ms: self.behaviour.grace_ms,
            heartbeat_ms: self.behaviour.heartbeat_ms,
            heartbeats_missed_max: HEARTBEATS_MISSED_MAX,
        };
        let late = referee.closed_in(&self.run).is_some();
        let process = Process::start(
            context,
            (self.number, rules.processes, self.token_kind),
            (self.name.clone(), self.run.clone().into_bytes()),
            self.clock,
            options(session),
            &mut self.sim_rng,
            Tamper::new(context.sabotage, self.number, late),
        );
        self.process = Some(process);
        (self.joined, self.called, self.watches, self.has_lease) = (None, false, 0, false);
        self.unwanted_since = None;
        self.last_received_at.clear();
        self.leases.clear();
        self.wake(context);
        if let Some(process) = &mut self.process {
            process.settle(context);
        }
    }

    /// Kills the process.
    pub(super) fn kill(
        &mut self,
        context: &mut SimContext,
    ) -> Result<Option<(u32, u64, Status)>, CheckError> {
        let state = self.state();
        let Some(mut process) = self.process.take() else { return Ok(None) };
        let (epoch, session) = (process.epoch, process.identity().session);
        for order in process.take_orders() {
            self.end_operation(context, &order, epoch, End::Failed(ErrorKind::ServerGone, Effect::Possible))?;
        }
        process.kill(context, &mut self.sim_rng);
        Ok(epoch.zip(state).map(|(epoch, state)| (epoch, session, state)))
    }

    /// Returns the server's process of its session, the session's id and grace, and until when an old HELLO may arrive.
    pub(super) fn session(&self) -> Option<(u32, u64, Duration, Instant)> {
        let process = self.process.as_ref()?;
        let session = process.identity().session;
        let grace = Duration::from_millis(u64::from(self.behaviour.grace_ms));
        Some((process.epoch?, session, grace, process.late_until))
    }

    /// Freezes its process. Returns the number of the process.
    pub(super) fn freeze(&mut self) -> Option<u32> {
        let process = self.process.as_mut()?;
        process.freeze();
        Some(process.number)
    }

    /// Notes that the server is frozen until then and that its deadlines move.
    pub(super) fn server_freezes(&mut self, until: Instant) {
        self.trouble_until = self.trouble_until.max(until);
        if let Some(process) = &mut self.process {
            process.server_freezes(until);
        }
    }

    /// Lets it leave, once all its requests were answered.
    pub(super) fn leave_when_done(&mut self, context: &mut SimContext) {
        self.leaves = true;
        self.wake(context);
    }

    /// Calls `act` with its process, then handles the events of the process.
    pub(super) fn with(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        act: impl FnOnce(&mut Process, &mut SimContext) -> Result<(), CheckError>,
    ) -> Result<(), CheckError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        act(process, context)?;
        self.handle_event(context, referee, rules)
    }

    pub(super) fn process_number(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.number)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_frozen)
    }

    pub(super) fn is_process(&self, number: u32) -> bool {
        self.process.as_ref().is_some_and(|process| process.number == number)
    }

    pub(super) fn noticed(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        notice: Notice,
    ) -> Result<(), CheckError> {
        self.with(context, referee, rules, |process, context| process.noticed(context, notice))
    }

    fn wake(&mut self, context: &mut SimContext) {
        let Behaviour { pause_max, calm_pause_max, .. } = self.behaviour;
        let most = if context.stormy { pause_max } else { calm_pause_max };
        let at = context.now + self.sim_rng.span(Duration::from_millis(1), most);
        let number = self.process.as_ref().map_or(0, |process| process.number);
        context.event_queue.schedule(at, WorldEvent::Elastic(Cue::Wake(self.number, number)));
    }

    /// Does something at random.
    pub(super) fn act(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
    ) -> Result<(), CheckError> {
        let Some(process) = &self.process else { return Ok(()) };
        let (part, stormy) = (process.part(), context.stormy);
        let percent = self.sim_rng.index(100);
        if self.leaves {
            self.send_bye(context);
        } else if stormy && percent < 2 {
            if let Some(process) = &mut self.process {
                process.cancel_one(context, &mut self.sim_rng);
            }
        } else if stormy && percent == 2 {
            self.send_bye(context);
        } else if stormy && rules.closes && percent == 3 && self.sim_rng.percent(20) {
            let run = self.run.clone().into_bytes();
            let close = ClientFrame::Close { run_id: Key::raw(&run) };
            self.ask(context, SubmitPath::Plain, Operation::Close, self.span(), &close, Order::Close);
        } else {
            match part {
                Part::Outside | Part::Lost | Part::Between => self.join(context, referee, rules),
                Part::InRound | Part::InLastRound if self.called && (!stormy || percent < 60) => {
                    self.join(context, referee, rules);
                }
                Part::InRound if stormy && (4..8).contains(&percent) => self.join(context, referee, rules),
                Part::Joining | Part::Seated | Part::Standby | Part::InRound if stormy && percent == 9 => {
                    let run = self.run.clone().into_bytes();
                    let leave = ClientFrame::Leave { run_id: Key::raw(&run) };
                    self.ask(context, SubmitPath::Leave, Operation::Leave, self.span(), &leave, Order::Leave);
                }
                Part::Replaced => {
                    // The name belongs to another process now.
                    self.set_new_name();
                    self.send_bye(context);
                }
                Part::Closed if stormy && percent < 30 => self.send_bye(context),
                _ => self.work(context, referee),
            }
        }
        if let Some(process) = &mut self.process {
            process.settle(context);
        }
        self.handle_event(context, referee, rules)?;
        if self.process.is_some() {
            self.wake(context);
        }
        Ok(())
    }

    fn span(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn ask(
        &mut self,
        context: &mut SimContext,
        method: SubmitPath,
        operation: Operation,
        span: Duration,
        frame: &ClientFrame<'_>,
        order: Order,
    ) -> Option<u64> {
        self.process.as_mut()?.begin(context, method, Request::new(operation, span, frame), order)
    }

    fn send_bye(&mut self, context: &mut SimContext) {
        let span = self.span();
        if self.process.as_ref().is_some_and(|process| !process.has(&Order::Bye)) {
            self.ask(context, SubmitPath::Bye, Operation::Bye, span, &ClientFrame::Bye {}, Order::Bye);
        }
    }

    fn join(&mut self, context: &mut SimContext, referee: &Referee, rules: &Rules) {
        let (run, name) = (self.run.clone().into_bytes(), self.name.clone().into_bytes());
        let entry = Entry {
            run_id: &run,
            node: &name,
            address: &name,
            local_world_size: workers_of(&self.name),
            node_rank: -1,
            join_timeout_ms: rules.join_timeout_ms,
            terms: rules.terms,
            labels: Pairs::scoped(b"", &[]),
            round_min: 0,
        };
        let is_spare = context.stormy && self.behaviour.is_spare && self.sim_rng.percent(70);
        let (role, operation) =
            if is_spare { (Role::Spare, Operation::Standby) } else { (Role::Member, Operation::Join) };
        let span = Duration::from_millis(rules.join_timeout_ms);
        let order = Order::Join { late: referee.closed_in(&self.run) };
        if self.ask(context, SubmitPath::Join, operation, span, &entry.frame(role), order).is_some() {
            self.called = false;
            self.unwanted_since = None;
        }
    }

    fn handle_event(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
    ) -> Result<(), CheckError> {
        while let Some(event) = self.process.as_mut().and_then(Process::next_event) {
            match event {
                ProcessEvent::Open { resumed } => {
                    context.note(format_args!("{} has its session, resumed: {resumed}", self.name));
                    rules.resumed += u64::from(resumed);
                    if self.process.as_ref().is_some_and(Process::is_deceived) {
                        let what = format!("{} trusts a server that has not proven the token", self.name);
                        return Err(CheckError(what));
                    }
                    if self.token_kind == TokenKind::Wrong {
                        let what = format!("{} was welcomed, and its token is wrong", self.name);
                        return Err(CheckError(what));
                    }
                }
                ProcessEvent::Responded(id, order, owned_frame) => {
                    self.answered(context, referee, id, order, &owned_frame)?;
                }
                ProcessEvent::Failed(id, order, failure, code, wanted) => {
                    let process = self.process.as_ref();
                    let (number, life) = process.map_or((0, None), |process| (process.number, process.epoch));
                    let moment = context.history.moment();
                    context.revisions.failed(moment, (number, id), life, (failure.effect, code));
                    if code == Some(FaultCode::PermissionDenied) {
                        self.check_denial()?;
                        rules.denied += 1;
                    }
                    self.check_answer_was_not_due(context, &order, &failure, wanted)?;
                    self.failed(context, referee, &order, &failure, code)?;
                }
                ProcessEvent::Pushed(owned_frame) => self.pushed(&owned_frame)?,
                ProcessEvent::Node(order, event, _) => {
                    rules.denied += u64::from(event == NodeEvent::Refused(FaultCode::PermissionDenied));
                    self.reported(context, referee, order, event)?;
                }
                ProcessEvent::Over(ending) => {
                    if let Some(process) = &self.process {
                        process.check_ending(context, &ending)?;
                    }
                    let refused = SessionEnd::Refused(FaultCode::Unauthenticated, 2, 0);
                    rules.unauthenticated +=
                        u64::from(matches!(ending, Ending::Session(end, _) if end == refused));
                    self.over(context);
                }
            }
        }
        Ok(())
    }

    /// Checks that the server denied a request to a node whose token does not allow it.
    fn check_denial(&self) -> Result<(), CheckError> {
        let what = || CheckError(format!("{} was denied what its token allows", self.name));
        if self.token_kind == TokenKind::ReadOnly { Ok(()) } else { Err(what()) }
    }

    /// Handles the end of the session. The host starts another process after a pause.
    fn over(&mut self, context: &mut SimContext) {
        if self.process.take().is_none() {
            return;
        }
        if !self.leaves {
            let at = context.now + self.sim_rng.span(Duration::from_millis(5), PAUSE_MAX);
            context.event_queue.schedule(at, WorldEvent::Elastic(Cue::StartProcess(self.number)));
        }
    }

    fn answered(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        id: u64,
        order: Order,
        owned_frame: &OwnedFrame,
    ) -> Result<(), CheckError> {
        let Some(process) = &self.process else { return Ok(()) };
        let (limits, epoch) = (*process.limits(), process.epoch.unwrap_or(0));
        let frame = owned_frame.open(&limits);
        let odd = || CheckError(format!("{} asked {order} and got {frame:?}", self.name));
        let frame = frame.ok_or_else(odd)?;
        if self.token_kind != TokenKind::Full && !order.reads_only() {
            return Err(CheckError(format!("{} may only read, and asked {order}: {frame:?}", self.name)));
        }
        context.note(format_args!("{} got an answer to {id}: {}", self.name, FrameSummary(&frame)));
        match (&order, frame) {
            (Order::SimOperation(operation_id, sim_operation, began), frame) => {
                let answer = answer_to(sim_operation, &frame).ok_or_else(odd)?;
                context.history.end(*operation_id, End::Responded(answer), Some(epoch))?;
                match sim_operation {
                    SimOperation::Add { name, .. } => {
                        referee.carried_out(epoch, format!("/{name}").as_bytes(), *began)
                    }
                    _ => Ok(()),
                }
            }
            (Order::Read, frame) => {
                self.note_found(&frame);
                Ok(())
            }
            (Order::Watch { .. }, ServerFrame::Done { .. }) => Ok(()),
            (Order::Barrier { key, begun, .. }, ServerFrame::BarrierOver { generation, end }) => {
                let released = end == BarrierEnd::Released;
                referee.barrier_over(epoch, key, *begun, (generation, format!("{end:?}"), released))
            }
            (Order::Grant, ServerFrame::Number { number: lease, .. }) => {
                if let Some(key) = self.leases.remove(&id) {
                    let keys = Keys::one(Key::raw(&key));
                    let attach = ClientFrame::LeaseAttach { lease: lease.cast_unsigned(), keys };
                    let order = Order::Attach { key: key.clone() };
                    self.ask(context, SubmitPath::Plain, Operation::LeaseAttach, self.span(), &attach, order);
                }
                Ok(())
            }
            (Order::Attach { key }, ServerFrame::Done { .. }) => {
                let (began, key) = (context.now, key.clone());
                let set = ClientFrame::Set { key: Key::raw(&key), value: b"leased" };
                let order = Order::Other { what: "set", key: key.clone(), began };
                self.ask(context, SubmitPath::Plain, Operation::Set, self.span(), &set, order);
                Ok(())
            }
            (Order::Other { key, began, what }, frame) => {
                // The request had nothing to delete.
                let is_void = matches!(frame, ServerFrame::Number { number: 0, .. });
                if *what == "members"
                    && let ServerFrame::MemberList { nodes, members, .. } = frame
                {
                    let ranks = members.iter().map(|member| member.node_rank);
                    return if ranks.eq(0..nodes) { Ok(()) } else { Err(odd()) };
                }
                self.has_lease |= *what == "set" && *key == self.leased_key();
                if is_void || key.is_empty() { Ok(()) } else { referee.carried_out(epoch, key, *began) }
            }
            (Order::Close, ServerFrame::Done { .. }) => {
                referee.closed(Some(epoch), &self.run, context.now);
                Ok(())
            }
            (Order::Bye | Order::Leave, _) => Ok(()),
            _ => Err(odd()),
        }
    }

    /// Checks that a call that timed out without an answer had none due: the server enforces the deadline of a wait,
    /// and its answer arrives before the client gives up.
    fn check_answer_was_not_due(
        &self,
        context: &SimContext,
        order: &Order,
        failure: &Failure,
        wanted: RequestTimes,
    ) -> Result<(), CheckError> {
        let since = self.process.as_ref().and_then(|process| process.untroubled_since);
        let given_up = failure.kind == ErrorKind::TimedOut && failure.cause == Cause::NoAnswer;
        match since.filter(|_| given_up).map(|since| wanted.answer_due(since.max(self.trouble_until))) {
            Some(due) if due < context.now => {
                Err(CheckError(format!("{} was not answered in time, nor refused: {order}", self.name)))
            }
            _ => Ok(()),
        }
    }

    fn failed(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        order: &Order,
        failure: &Failure,
        code: Option<FaultCode>,
    ) -> Result<(), CheckError> {
        context.note(format_args!("{} fails: {order}: {:?} {code:?}", self.name, failure.kind));
        let Some(process) = &self.process else { return Ok(()) };
        let epoch = process.epoch;
        if failure.kind == ErrorKind::WrongProtocol {
            return Err(CheckError(format!(
                "{} met a breach of the protocol: {order}, {failure:?}",
                self.name
            )));
        }
        if code == Some(FaultCode::StaleRound) {
            let key = match order {
                Order::SimOperation(_, SimOperation::Add { name, .. }, _) => format!("/{name}").into_bytes(),
                Order::Other { key, .. } | Order::Barrier { key, .. } => key.clone(),
                _ => return Err(CheckError(format!("{} asked {order}, which is of no round", self.name))),
            };
            if !key.is_empty() {
                referee.refused_as_stale(epoch.unwrap_or(0), &key)?;
            }
        }
        if matches!(order, Order::Close) && code == Some(FaultCode::RunClosed) {
            referee.closed(epoch, &self.run, context.now);
        }
        match order {
            Order::Watch { .. } => self.watches -= 1,
            // It may still be in the round from which it was called.
            Order::Join { .. } => self.called = true,
            _ => {}
        }
        let end = match (order, code) {
            (
                Order::SimOperation(_, SimOperation::Get { .. } | SimOperation::MultiGet { .. }, _),
                Some(FaultCode::NotFound),
            ) => End::Responded(crate::sim::harness::sim_operation::Answer::Missing),
            _ => End::Failed(failure.kind, failure.effect),
        };
        self.end_operation(context, order, epoch, end)
    }

    fn end_operation(
        &self,
        context: &mut SimContext,
        order: &Order,
        epoch: Option<u32>,
        end: End,
    ) -> Result<(), CheckError> {
        match order {
            Order::SimOperation(id, ..) => context.history.end(*id, end, epoch),
            _ => Ok(()),
        }
    }

    fn pushed(&self, owned_frame: &OwnedFrame) -> Result<(), CheckError> {
        let Some(process) = &self.process else { return Ok(()) };
        match owned_frame.open(process.limits()) {
            Some(_) => Ok(()),
            None => Err(CheckError(format!("{} got a push that it cannot parse", self.name))),
        }
    }

    fn reported(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        order: Option<Order>,
        event: NodeEvent,
    ) -> Result<(), CheckError> {
        context.note(format_args!("{} gets {event}", self.name));
        let Some(process) = &self.process else { return Ok(()) };
        let (epoch, name) = (process.epoch.unwrap_or(0), process.name.clone());
        let is_outside = matches!(event, NodeEvent::Refused(FaultCode::PermissionDenied) | NodeEvent::Left);
        if self.token_kind != TokenKind::Full && !is_outside {
            return Err(CheckError(format!("{name} may not join the run, and gets {event}")));
        }
        match event {
            NodeEvent::Formed(joined) => {
                let late = matches!(order, Some(Order::Join { late: Some(life) }) if life == epoch);
                referee.formed(epoch, (&self.run, &name), &joined, late)?;
                self.unwanted_since = order.is_none().then_some(context.now);
                self.joined = Some(joined);
                self.called = false;
                self.last_received_at.clear();
            }
            NodeEvent::PeerDied { round, node } => {
                self.last_received_at.insert((round, node));
                self.called |= !context.stormy || self.sim_rng.percent(70);
            }
            NodeEvent::NodesWaiting(nodes) => self.called = nodes > 0,
            NodeEvent::RoundOver(round) => {
                let state = Status { run: self.run.clone(), round, name };
                referee.check_deaths_known(epoch, &state, &self.last_received_at, true)?;
            }
            NodeEvent::Closed | NodeEvent::NotNeeded => referee.closed(Some(epoch), &self.run, context.now),
            NodeEvent::Refused(code) => {
                let is_legal = match code {
                    FaultCode::PermissionDenied => self.token_kind == TokenKind::ReadOnly,
                    code => matches!(code, FaultCode::TimedOut | FaultCode::Cancelled),
                };
                if !is_legal {
                    return Err(CheckError(format!("{name} was refused: {code:?}")));
                }
            }
            NodeEvent::Seated
            | NodeEvent::Standby
            | NodeEvent::Excluded(_)
            | NodeEvent::Replaced
            | NodeEvent::Left => {}
        }
        if !matches!(self.part(), Some(Part::InRound | Part::InLastRound | Part::Between)) {
            self.unwanted_since = None;
        }
        Ok(())
    }

    /// Checks after the storm that a node of a live round was notified of all deaths in it.
    pub(super) fn check_deaths_known(&self, referee: &Referee) -> Result<(), CheckError> {
        let (Some(process), Some(state)) = (&self.process, self.state()) else { return Ok(()) };
        referee.check_deaths_known(process.epoch.unwrap_or(0), &state, &self.last_received_at, false)
    }
}
