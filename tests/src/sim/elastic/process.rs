//! Process of a node: the client machine of the library, driven as its driver does, over the simulated network and by a
//! clock of its own. It can freeze and die.

mod event;
mod greeting;

pub(super) use event::{NodeEvent, Slot};

use super::super::faults::Sabotage;
use super::super::host::Security;
use super::super::tls;
use super::super::tokens::TokenKind;
use super::super::world::{SimContext, V4, V6, WorldEvent};
use super::Cue;
use super::node::SLACK;
use super::order::{Order, OwnedFrame, Request};
use super::tamper::Tamper;
use crate::frames;
use crate::sim::harness::clock::Clock;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Read, Route, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::error::{Cause, ErrorKind, Failure};
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::node::native_client::{
    BeginError, Ending, Event, Failed, Input, NativeClient, NativeOptions, Output, Taken, ToWrite,
};
use rendezvous_core::rendezvous::participant::Part;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::session::client::{End as SessionEnd, Identity, SessionOptions};
use rendezvous_core::store::dial::DialOptions;
use rendezvous_core::store::op::Key;
use rendezvous_core::time::{Duration, Instant, PauseDetector, Poller};
use rendezvous_core::tls::TlsStage;
use rendezvous_core::wire::native::{ClientFrame, FaultCode, MAGIC, Message, ServerFrame, Why};
use rendezvous_core::wire::sink::Sink;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Requests that one process may have under way: few, so that the table is sometimes full.
const PENDING: usize = 12;
type Machine = NativeClient<PENDING>;

/// Event that a process reports to its node.
#[derive(Clone, Debug)]
pub(super) enum ProcessEvent {
    /// The session is open, or has another connection.
    Open {
        resumed: bool,
    },
    Responded(u64, Order, OwnedFrame),
    Failed(u64, Order, Failure, Option<FaultCode>, RequestTimes),
    Pushed(OwnedFrame),
    /// An event of the node, and the request that it answers, if the node awaits that; as its agent knows it.
    Node(Option<Order>, NodeEvent, Option<RoundEvent>),
    Over(Ending),
}

/// Times of a request, by the world's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTimes {
    began: Instant,
    span: Duration,
    /// Time by which the server had it, as the server's acknowledgements show.
    taken_by: Option<Instant>,
}

impl RequestTimes {
    /// Returns when the server's answer is due, if there was no mishap from `since` on. The server counts from the time
    /// at which it has the request, by a clock of its own.
    pub(super) fn answer_due(&self, since: Instant) -> Instant {
        let taken = self.taken_by.unwrap_or(since).max(self.began);
        (taken + self.span + self.span / 10).max(since) + ANSWER_MAX
    }
}

/// Longest time for an answer to arrive, without mishaps.
const ANSWER_MAX: Duration = Duration::from_millis(600);

struct Call {
    request: Request,
    order: Order,
    wanted: RequestTimes,
    /// When it must have ended, by the node's clock; `None` while the deadline is suspended.
    deadline: Option<Instant>,
}

/// A body that was encoded before.
struct Encoded<'a>(&'a Request);

impl Message for Encoded<'_> {
    fn kind(&self) -> u16 {
        self.0.kind
    }

    fn write_body(&self, out: &mut dyn Sink) {
        out.put(&self.0.body);
    }
}

/// How a call is submitted to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitPath {
    Plain,
    Join,
    Leave,
    Bye,
}

pub(super) struct Process {
    /// Number of the node in the network.
    host: usize,
    /// Number of the process, unique in the simulation.
    pub(super) number: u32,
    pub(super) name: String,
    clock: Clock,
    /// Port of the server that it was started with.
    port: u16,
    slack: Duration,
    run_id: Vec<u8>,
    machine: Machine,
    limits: FrameLimits,
    calls: BTreeMap<u64, Call>,
    stream: Option<(Stream, bool)>,
    /// Number of the server's process that it has or had its session with.
    pub(super) epoch: Option<u32>,
    dials: u32,
    received: Vec<u8>,
    unsent: Vec<u8>,
    token_kind: TokenKind,
    /// Token of the last connection, and of the session.
    token: Option<String>,
    session_token: Option<String>,
    /// Number of connections so far.
    connections: u32,
    /// Whether the peer of the connection is an impostor.
    is_deceived: bool,
    security: Security,
    /// TLS of the connection.
    stage: Option<TlsStage>,
    due: Option<Instant>,
    frozen: bool,
    pause_detector: PauseDetector,
    missed: Vec<Notice>,
    is_resumable: bool,
    /// Since when its session has had its connection and it has not been frozen.
    pub(super) untroubled_since: Option<Instant>,
    /// When it lost the last connection of its session.
    lost_at: Option<Instant>,
    /// End of the server's last freeze.
    server_thaws_at: Instant,
    /// Until then an abandoned connection may deliver something.
    pub(super) late_until: Instant,
    message: VecDeque<ProcessEvent>,
    tamper: Tamper,
}

/// Returns the options of a process whose session has these.
pub(super) fn options(session: SessionOptions) -> NativeOptions {
    let dial = DialOptions {
        pause_first: Duration::from_millis(20),
        pause_max: Duration::from_millis(500),
        connect_attempt_max: Duration::from_secs(1),
    };
    let connect_timeout = Duration::from_secs(5);
    NativeOptions { session, dial, connect_timeout, answer_slack: SLACK, ..NativeOptions::default() }
}

impl Process {
    pub(super) fn start(
        context: &mut SimContext,
        (host, number, token_kind): (usize, u32, TokenKind),
        (name, run_id): (String, Vec<u8>),
        clock: Clock,
        options: NativeOptions,
        sim_rng: &mut SimRng,
        tamper: Tamper,
    ) -> Self {
        let machine = Machine::new(clock.shows(context.now), options, sim_rng.seed());
        context.note(format_args!("{name} starts as process {number}: {:?}", options.session));
        Self {
            host,
            number,
            name,
            clock,
            port: context.network.port,
            slack: options.answer_slack,
            run_id,
            machine,
            limits: Machine::answer_limits(&FrameLimits::default()),
            calls: BTreeMap::new(),
            stream: None,
            epoch: None,
            dials: 0,
            received: Vec::new(),
            unsent: Vec::new(),
            token_kind,
            token: None,
            session_token: None,
            connections: 0,
            is_deceived: false,
            security: context.security,
            stage: None,
            due: None,
            frozen: false,
            pause_detector: PauseDetector::new(clock.shows(context.now), Poller::Thread),
            missed: Vec::new(),
            is_resumable: false,
            untroubled_since: None,
            lost_at: None,
            server_thaws_at: Instant::ORIGIN,
            late_until: Instant::ORIGIN,
            message: VecDeque::new(),
            tamper,
        }
    }

    pub(super) const fn limits(&self) -> &FrameLimits {
        &self.limits
    }

    pub(super) const fn part(&self) -> Part {
        self.machine.participant().part()
    }

    pub(super) const fn identity(&self) -> &Identity {
        self.machine.identity()
    }

    pub(super) fn is_live(&self) -> bool {
        self.machine.is_live()
    }

    /// Returns whether such a request is under way.
    pub(super) fn has(&self, order: &Order) -> bool {
        self.calls.values().any(|call| call.order == *order)
    }

    /// Returns whether it has capacity for another request.
    pub(super) fn has_capacity(&self) -> bool {
        self.calls.len() < PENDING / 2
    }

    /// Removes and returns all requests under way, for a process that dies.
    pub(super) fn take_orders(&mut self) -> Vec<Order> {
        core::mem::take(&mut self.calls).into_values().map(|call| call.order).collect()
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.stream.is_some_and(|(local, _)| local == stream)
    }

    pub(super) fn next_event(&mut self) -> Option<ProcessEvent> {
        self.message.pop_front()
    }

    /// Returns a request that outlives its deadline.
    pub(super) fn overdue(&self, now: Instant) -> Option<&Order> {
        let visible = self.clock.shows(now);
        // An event at the present time may still follow.
        let is_over = |call: &&Call| call.deadline.is_some_and(|at| at + Duration::from_nanos(2) < visible);
        self.calls.values().find(is_over).filter(|_| !self.frozen).map(|call| &call.order)
    }

    /// Begins a request. Returns `None` if there is no capacity, or the session has ended.
    pub(super) fn begin(
        &mut self,
        context: &mut SimContext,
        method: SubmitPath,
        request: Request,
        order: Order,
    ) -> Option<u64> {
        let now = self.clock.shows(context.now);
        let Request { operation, kind, ref body, span } = request;
        let frame = (kind, body.len());
        let begun = match method {
            SubmitPath::Plain => self.machine.begin(now, operation, frame, span),
            SubmitPath::Join => self.machine.begin_join(now, operation, frame, span),
            SubmitPath::Leave => self.machine.begin_leave(now, frame, span),
            SubmitPath::Bye => self.machine.begin_bye(now, span),
        };
        match begun {
            Ok(id) => {
                context.note(format_args!("{} asks {id}: {order} within {span:?}", self.name));
                if let Some(frame) = request.open(&self.limits) {
                    context.revisions.begin(context.history.moment(), (self.number, id), &frame);
                }
                let deadline = Some(now + span + self.slack);
                let wanted = RequestTimes { began: context.now, span, taken_by: None };
                self.calls.insert(id, Call { request, order, wanted, deadline });
                Some(id)
            }
            Err(BeginError::Limit(_) | BeginError::InvalidState(_) | BeginError::Over(_)) => None,
        }
    }

    /// Cancels one of its calls.
    pub(super) fn cancel_one(&mut self, context: &mut SimContext, sim_rng: &mut SimRng) {
        let ids: Vec<u64> = self.calls.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = sim_rng.pick(&ids);
        self.cancel(context, id);
    }

    /// Cancels a call.
    pub(super) fn cancel(&mut self, context: &mut SimContext, id: u64) {
        if let Some(failed) = self.machine.cancel(self.clock.shows(context.now), id) {
            context.note(format_args!("{} gives {id} up", self.name));
            self.failed(&failed, None);
        }
    }

    pub(super) fn freeze(&mut self) {
        self.frozen = true;
    }

    pub(super) const fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Forgets when the server received the requests, since its deadlines move while it is frozen.
    pub(super) fn server_freezes(&mut self, until: Instant) {
        self.calls.values_mut().for_each(|call| call.wanted.taken_by = None);
        self.server_thaws_at = self.server_thaws_at.max(until);
    }

    pub(super) fn thaw(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        self.frozen = false;
        self.clock.may_step(&mut context.sim_rng);
        if self.untroubled_since.is_some() {
            self.untroubled_since = Some(context.now);
        }
        self.wake(context);
        for notice in core::mem::take(&mut self.missed) {
            self.noticed(context, notice)?;
        }
        self.poll(context);
        Ok(())
    }

    /// Continues after a freeze. If the process is polled while it waits, its requests have as much time left as
    /// before.
    fn wake(&mut self, context: &SimContext) {
        let now = self.clock.shows(context.now);
        let span = self.pause_detector.on_call(now, || self.machine.poll_timeout());
        let deadlines = self.calls.values_mut().filter_map(|call| call.deadline.as_mut());
        deadlines.for_each(|deadline| *deadline = *deadline + span);
        self.machine.wake(now);
    }

    /// Kills the process. Its connection is reset or ends at random.
    pub(super) fn kill(mut self, context: &mut SimContext, sim_rng: &mut SimRng) {
        context.note(format_args!("{} dies", self.name));
        context.revisions.process_ended(self.number, self.epoch);
        if let Some((stream, _)) = self.stream.take() {
            if sim_rng.percent(50) {
                context.network.abort(context.now, stream, Side::Client);
            } else {
                context.network.close(context.now, stream, Side::Client);
            }
        }
    }

    /// Ends the process, which closes its connection.
    pub(super) fn exit(mut self, context: &mut SimContext) {
        context.revisions.process_ended(self.number, self.epoch);
        if let Some((stream, _)) = self.stream.take() {
            context.network.close(context.now, stream, Side::Client);
        }
    }

    /// Checks that the session ended for a reason that is possible with a correct server.
    pub(super) fn check_ending(&self, context: &SimContext, ending: &Ending) -> Result<(), CheckError> {
        let is_legal = match ending {
            Ending::Left | Ending::Dialling(_) => true,
            Ending::Session(SessionEnd::Refused(code, ..), _) if *code != FaultCode::SessionEnded => {
                self.may_be_refused(context, *code)
            }
            Ending::Session(SessionEnd::Connection | SessionEnd::GracePassed, _) => true,
            // Only its own process has the token, and that takes the session back.
            Ending::Session(SessionEnd::Server(why), _) => *why != Why::Superseded,
            Ending::Session(SessionEnd::Refused(..), _) => true,
            Ending::Session(SessionEnd::Unproven, _) => self.is_deceived(),
            Ending::Session(SessionEnd::Protocol, _) => false,
        };
        if is_legal { Ok(()) } else { Err(CheckError(format!("{}'s session ended: {ending:?}", self.name))) }
    }

    /// Handles due timers.
    pub(super) fn poll(&mut self, context: &mut SimContext) {
        if self.due.is_some_and(|due| due <= context.now) {
            self.due = None;
        }
        if self.frozen {
            return;
        }
        self.wake(context);
        let now = self.clock.shows(context.now);
        if self.machine.poll_timeout().is_some_and(|due| due <= now) && !self.is_asleep() {
            self.machine.handle(now, Input::Tick);
        }
        self.settle(context);
    }

    pub(super) fn resolved(&mut self, context: &mut SimContext, dial: u32, found: bool) {
        if dial != self.dials {
            return;
        }
        // -2 is EAI_NONAME. A frozen process finds the answer when it continues.
        // Some servers have two addresses, and one may be tried while a greeting is still on its way to the other.
        let addresses: &[SocketAddr] = if self.host.is_multiple_of(3) { &[V6, V4] } else { &[V4] };
        let input = if found {
            Input::Resolved(addresses)
        } else {
            Input::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2))
        };
        self.machine.handle(self.clock.shows(context.now), input);
        if !self.frozen {
            self.settle(context);
        }
    }

    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) -> Result<(), CheckError> {
        if self.frozen {
            self.missed.push(notice);
            return Ok(());
        }
        self.wake(context);
        let now = self.clock.shows(context.now);
        match notice {
            Notice::Connected(stream) if self.owns(stream) => {
                self.stream = Some((stream, true));
                // A session belongs to one process of the server.
                let epoch = context.network.epoch(stream);
                if !self.is_resumable {
                    self.epoch = epoch;
                }
                self.machine.handle(now, Input::Connected);
                if self.is_resumable && context.stormy && context.sim_rng.percent(15) {
                    self.settle(context);
                    self.abandon(context, stream);
                } else {
                    self.meet_impostor(context);
                }
            }
            Notice::Refused(stream) if self.owns(stream) => {
                self.disconnect(context);
                // 111 is ECONNREFUSED.
                self.machine.handle(now, Input::ConnectFailed(ErrorKind::Refused, Cause::Os(111)));
            }
            Notice::Readable(stream, _) if self.owns(stream) => self.read(context, stream)?,
            _ => {}
        }
        self.settle(context);
        Ok(())
    }

    /// Breaks the connection to the process while HELLO is in transit for long: it may arrive when the next one is in
    /// use.
    fn abandon(&mut self, context: &mut SimContext, stream: Stream) {
        let held = context.sim_rng.span(Duration::from_millis(50), Duration::from_millis(1200));
        self.late_until = context.now + held;
        context.note(format_args!("{}'s greeting on {stream} is late by {held:?}", self.name));
        context.network.clog(stream, Side::Server, self.late_until);
        // 113 is EHOSTUNREACH.
        self.lose(context, Cause::Os(113));
    }

    fn read(&mut self, context: &mut SimContext, stream: Stream) -> Result<(), CheckError> {
        // One iteration has a budget.
        for _ in 0..4 {
            match context.network.read(context.now, stream, Side::Client) {
                Read::Nothing => return Ok(()),
                end @ (Read::End | Read::Reset) => {
                    // 104 is ECONNRESET.
                    let cause = if end == Read::End { Cause::Closed } else { Cause::Os(104) };
                    self.lose(context, cause);
                    return Ok(());
                }
                Read::Bytes(bytes) => {
                    self.receive(context, &bytes);
                }
            }
            if !self.owns(stream) {
                return Ok(());
            }
        }
        context.network.read_on(context.now, stream, Side::Client);
        Ok(())
    }

    fn receive(&mut self, context: &mut SimContext, bytes: &[u8]) {
        if let Some(stage) = &mut self.stage {
            if let Err(fault) = stage.receive(bytes, &mut self.received) {
                return self.lose(context, Cause::Tls(fault));
            }
        } else if self.tamper.is_idle() {
            self.received.extend_from_slice(bytes);
        } else {
            let calls = &self.calls;
            let order_of = |id| calls.get(&id).map(|call: &Call| &call.order);
            for frame in self.tamper.incoming(bytes, &mut self.received, order_of) {
                context.event_queue.schedule(context.now, WorldEvent::SaboteurRequest(frame));
            }
        }
        self.take(context);
    }

    fn take(&mut self, context: &mut SimContext) {
        let received = core::mem::take(&mut self.received);
        let (mut at, limits, now) = (0, self.limits, self.clock.shows(context.now));
        loop {
            match self.machine.receive(now, &limits, &received[at..]) {
                Taken::Partial(_) => break,
                Taken::Over => {
                    if self.machine.ending().is_none() {
                        context.note(format_args!("{}'s session was taken over", self.name));
                    }
                    return;
                }
                Taken::Frame(bytes, event) => {
                    let frame = &received[at..at + bytes];
                    at += bytes;
                    self.deliver(context, event, frame);
                }
            }
        }
        self.received = received;
        self.received.drain(..at);
    }

    fn deliver(&mut self, context: &mut SimContext, event: Event<'_>, frame: &[u8]) {
        let event = match event {
            Event::Nothing => return,
            Event::Open => {
                self.untroubled_since = Some(context.now);
                if !self.is_resumable {
                    self.session_token.clone_from(&self.token);
                }
                if let Some(ServerFrame::Welcome { resumed: true, request_last, .. }) =
                    OwnedFrame::of(frame).open(&self.limits)
                {
                    // A server that was frozen since then has moved the deadlines by that time.
                    let taken_by = self.lost_at.map(|at| at.max(self.server_thaws_at));
                    for (_, call) in self.calls.range_mut(..=request_last) {
                        call.wanted.taken_by = call.wanted.taken_by.or(taken_by);
                    }
                }
                ProcessEvent::Open { resumed: core::mem::replace(&mut self.is_resumable, true) }
            }
            Event::Completed(id, _) => match self.calls.remove(&id) {
                Some(call) => {
                    let owned_frame = OwnedFrame::of(frame);
                    if let Some((frame, life)) = owned_frame.open(&self.limits).zip(self.epoch) {
                        let moment = context.history.moment();
                        context.revisions.answered(moment, (self.number, id), life, &frame);
                    }
                    ProcessEvent::Responded(id, call.order, owned_frame)
                }
                None => return,
            },
            Event::Failed(failed, fault) => return self.failed(&failed, fault.map(|fault| fault.code)),
            Event::Pushed(id, _) => {
                let owned_frame = OwnedFrame::of(frame);
                if let Some(frame) = owned_frame.open(&self.limits) {
                    context.revisions.pushed(context.history.moment(), (self.number, id), &frame);
                }
                ProcessEvent::Pushed(owned_frame)
            }
            Event::Node(id, event) => {
                let order = id.and_then(|id| self.calls.remove(&id)).map(|call| call.order);
                let (event, round_event) = (NodeEvent::of(&event), event::round_event(&event));
                self.pace(context.now, &event);
                ProcessEvent::Node(order, event, round_event)
            }
        };
        self.message.push_back(event);
    }

    /// Suspends the deadline while a node is a spare, and restarts it when the node gets a slot.
    fn pace(&mut self, now: Instant, event: &NodeEvent) {
        let visible = self.clock.shows(now);
        for call in self.calls.values_mut().filter(|call| matches!(call.order, Order::Join { .. })) {
            match event {
                NodeEvent::Standby => call.deadline = None,
                NodeEvent::Seated if call.deadline.is_none() => {
                    call.deadline = Some(visible + call.request.span + self.slack);
                }
                _ => {}
            }
        }
    }

    fn failed(&mut self, failed: &Failed, code: Option<FaultCode>) {
        if let Some(call) = self.calls.remove(&failed.id) {
            self.message.push_back(ProcessEvent::Failed(
                failed.id,
                call.order,
                failed.failure,
                code,
                call.wanted,
            ));
        }
    }

    fn lose(&mut self, context: &mut SimContext, cause: Cause) {
        context.note(format_args!("{} loses its connection: {cause:?}", self.name));
        self.disconnect(context);
        self.machine.handle(self.clock.shows(context.now), Input::Ended(cause));
    }

    fn disconnect(&mut self, context: &mut SimContext) {
        if let Some((stream, _)) = self.stream.take() {
            context.network.close(context.now, stream, Side::Client);
            self.lost_at = self.lost_at.filter(|_| self.untroubled_since.is_none()).or(Some(context.now));
        }
        self.untroubled_since = None;
        self.received.clear();
        self.unsent.clear();
        self.stage = None;
        self.tamper.disconnected();
    }

    /// Carries out the outputs of the machine until there are no more.
    pub(super) fn settle(&mut self, context: &mut SimContext) {
        if self.frozen {
            return;
        }
        let now = self.clock.shows(context.now);
        loop {
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Resolve => {
                        self.dials += 1;
                        let at =
                            context.now + context.sim_rng.span(Duration::ZERO, Duration::from_millis(10));
                        let cue = Cue::Resolved(self.host, self.number, self.dials);
                        context.event_queue.schedule(at, WorldEvent::Elastic(cue));
                    }
                    Output::Connect(_) => {
                        self.disconnect(context);
                        let is_there = self.port == context.network.port;
                        let route = if is_there { Route::Server } else { Route::Closed };
                        let stream = context.network.connect(context.now, self.host, route);
                        context.note(format_args!("{} connects {stream}", self.name));
                        self.stream = Some((stream, false));
                        self.stage = (self.security == Security::Tls).then(tls::client);
                        self.read_token(context);
                    }
                    Output::Disconnect => self.disconnect(context),
                    Output::Over(ending) => {
                        context.note(format_args!("{} is over: {ending:?}", self.name));
                        self.disconnect(context);
                        self.fail_all(now);
                        self.message.push_back(ProcessEvent::Over(ending));
                    }
                }
            }
            self.fail_all(now);
            self.write(now);
            if !self.flush(context) {
                break;
            }
        }
        // A process that was frozen may have missed a deadline.
        let due = self.machine.poll_timeout().and_then(|due| self.clock.when(due));
        if let Some(due) = due.map(|due| due.max(context.now))
            && self.due.is_none_or(|entered| due < entered)
            && !self.is_asleep()
        {
            self.due = Some(due);
            context.event_queue.schedule(due, WorldEvent::Elastic(Cue::Due(self.host, self.number)));
        }
    }

    /// Returns whether the fault is that this node does not check the time.
    fn is_asleep(&self) -> bool {
        self.tamper.sabotage == Sabotage::SleepyNode && self.host == 0 && self.is_resumable
    }

    fn fail_all(&mut self, now: Instant) {
        if self.is_asleep() && self.machine.ending().is_none() {
            return;
        }
        while let Some(failed) = self.machine.next_failed(now) {
            self.failed(&failed, None);
        }
    }

    fn write(&mut self, now: Instant) {
        while self.unsent.len() < UNSENT_BYTES_HIGH {
            let Some(write) = self.machine.poll_write(now) else { return };
            let mut frame = match write {
                // The options do not ask for it.
                ToWrite::Identify => continue,
                ToWrite::Opening(label, identity) => {
                    let mut nonce = [0; 32];
                    nonce[..4].copy_from_slice(&self.number.to_le_bytes());
                    nonce[4..8].copy_from_slice(&self.connections.to_le_bytes());
                    let hello = self.machine.hello(identity, self.name.as_bytes(), nonce);
                    self.unsent.extend_from_slice(&MAGIC);
                    frames::native(label, &hello)
                }
                ToWrite::Proof(label, identity) => {
                    let channel = self.stage.as_ref().and_then(TlsStage::binding).unwrap_or_default();
                    frames::native(label, &self.machine.proof(identity, self.name.as_bytes(), channel))
                }
                ToWrite::Request(id, label) => match self.calls.get(&id) {
                    Some(call) => frames::native(label, &Encoded(&call.request)),
                    // The machine withdraws requests that were given up.
                    None => continue,
                },
                ToWrite::Frame(label, frame) => frames::native(label, &frame),
                ToWrite::Leave(label) => {
                    frames::native(label, &ClientFrame::Leave { run_id: Key::raw(&self.run_id) })
                }
            };
            if !self.tamper.is_idle() {
                frame = self.tamper.outgoing(frame);
            }
            self.unsent.extend_from_slice(&frame);
        }
    }

    /// Sends until there is nothing left or no capacity. Returns whether there may be more to write.
    fn flush(&mut self, context: &mut SimContext) -> bool {
        let Some((stream, true)) = self.stream else { return false };
        if let Some(stage) = &mut self.stage {
            // A stage takes more when the network has taken what it has.
            let count = stage.send(&self.unsent);
            self.unsent.drain(..count);
        }
        let unsent = self.stage.as_ref().map_or(&self.unsent[..], TlsStage::unsent);
        if unsent.is_empty() {
            return false;
        }
        match context.network.write(context.now, stream, Side::Client, unsent) {
            Ok(count) => match &mut self.stage {
                Some(stage) => {
                    stage.sent(count);
                    !stage.has_unsent()
                }
                None => {
                    self.unsent.drain(..count);
                    self.unsent.is_empty()
                }
            },
            Err(_) => {
                // The server's last frames must still be read.
                while let Read::Bytes(bytes) = context.network.read(context.now, stream, Side::Client) {
                    self.receive(context, &bytes);
                }
                if self.owns(stream) {
                    // 32 is EPIPE.
                    self.lose(context, Cause::Os(32));
                }
                true
            }
        }
    }
}

/// Unsent bytes from which on no further requests are written.
const UNSENT_BYTES_HIGH: usize = 1 << 16;
