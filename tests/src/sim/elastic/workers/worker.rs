//! Worker of a process: the machines of both ends of its connections, driven as the driver of RPC groups does.

use super::ledger::{Handling, Ledger, PAYLOAD_BYTES_MAX, is_legal};
use super::line::Line;
use super::{WorkerCue, name};
use crate::sim::elastic::Cue;
use crate::sim::harness::clock::Clock;
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Route, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use crate::sim::host::Security;
use crate::sim::tls;
use crate::sim::tokens::TokenKind;
use crate::sim::world::{SimContext, WorldEvent};
use rendezvous_core::peer_tokens::PeerTokens;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_rpc::connection::callee::{Callee, CalleeEvent};
use rendezvous_rpc::connection::caller::{Caller, CallerEvent, NewCall};
use rendezvous_rpc::connection::{ConnectionError, Refusal, Status, TokenExchange};
use rendezvous_rpc::limits::RpcLimits;
use rendezvous_rpc::name::WorkerInfo;
use std::collections::BTreeMap;

/// So little that calls wait for others, and silence is noticed during the run. The limits of answers that are not read
/// concern the driver's intake, which is left out here.
const LIMITS: RpcLimits = RpcLimits {
    requests_max: 4,
    bytes_max: 6000,
    payload_bytes_max: PAYLOAD_BYTES_MAX as u64,
    waiting_max: 4,
    waiting_bytes_max: 8000,
    greeting_timeout: Duration::from_secs(1),
    ping_interval: Duration::from_millis(300),
    ping_timeout: Duration::from_millis(600),
    stall_timeout: Duration::from_secs(1),
    answer_bytes_max: 8000,
    late_answer_bytes_max: 8000,
};
const GROUP: &[u8] = b"workers";

/// Tokens of one end of a connection: the first one is proven, and each is accepted. There are none in a world without
/// tokens, and where the file is missing.
type Tokens = Vec<String>;

/// Calls to the worker of one host.
struct Outward {
    caller: Caller,
    line: Option<Line>,
    /// Numbers of calls in progress in the ledger.
    calls: BTreeMap<u64, usize>,
    payloads: BTreeMap<u64, Vec<u8>>,
    answers: BTreeMap<u64, Vec<u8>>,
    /// Whether the last call that ended was answered, and ended after the storm.
    is_answered: bool,
}

/// When an accepted connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    NotYet,
    WhenWritten,
    Now,
}

/// Calls of another worker.
struct Inward {
    callee: Callee,
    line: Line,
    tokens: Tokens,
    closing: Closing,
    requests: BTreeMap<u64, Vec<u8>>,
    answers: BTreeMap<u64, Vec<u8>>,
}

pub(super) struct Worker {
    host: usize,
    /// Number of its process.
    pub(super) process: u32,
    token_kind: TokenKind,
    sim_rng: SimRng,
    clock: Clock,
    is_frozen: bool,
    /// Notices that arrived while it was frozen, and answers that its handlers gave.
    missed: Vec<Notice>,
    missed_answers: Vec<WorkerCue>,
    due: Option<Instant>,
    outward: BTreeMap<usize, Outward>,
    inward: BTreeMap<Stream, Inward>,
    /// Number of connections so far.
    connections: u64,
    pub(super) is_leaving: bool,
}

fn info(host: usize) -> WorkerInfo {
    WorkerInfo { name: name(host).parse().expect("a name"), id: u16::try_from(host).expect("few hosts") }
}

impl Worker {
    pub(super) fn start(
        context: &mut SimContext,
        (host, process, token_kind): (usize, u32, TokenKind),
        mut sim_rng: SimRng,
    ) -> Self {
        context.network.workers.insert(host);
        let clock = Clock::any(&mut sim_rng);
        let mut worker = Self {
            host,
            process,
            token_kind,
            sim_rng,
            clock,
            is_frozen: false,
            missed: Vec::new(),
            missed_answers: Vec::new(),
            due: None,
            outward: BTreeMap::new(),
            inward: BTreeMap::new(),
            connections: 0,
            is_leaving: false,
        };
        worker.wake_later(context);
        worker
    }

    fn cue(&self, cue: WorkerCue) -> WorldEvent {
        WorldEvent::Elastic(Cue::Worker(self.host, self.process, cue))
    }

    fn wake_later(&mut self, context: &mut SimContext) {
        // After the storm it calls all others at a time.
        let shortest = Duration::from_millis(if context.stormy { 5 } else { 400 });
        let at = context.now + self.sim_rng.span(shortest, shortest + Duration::from_millis(400));
        context.event_queue.schedule(at, self.cue(WorkerCue::Call));
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.outward.values().any(|one| one.line.as_ref().is_some_and(|line| line.stream == stream))
    }

    /// Ends it with its process, which has died or exits. Connections of a dead process are reset, or end at random.
    pub(super) fn end(mut self, context: &mut SimContext) {
        context.network.workers.remove(&self.host);
        let missed = core::mem::take(&mut self.missed).into_iter();
        let unaccepted = missed.filter_map(|notice| match notice {
            Notice::Accept(stream) => Some(Line::new(stream, Side::Server, None)),
            _ => None,
        });
        let lines = self.outward.into_values().filter_map(|one| one.line);
        let lines = lines.chain(self.inward.into_values().map(|one| one.line)).chain(unaccepted);
        for line in lines.collect::<Vec<_>>() {
            if self.is_leaving {
                line.close(context);
            } else {
                line.die(context, self.sim_rng.percent(50));
            }
        }
    }

    pub(super) const fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Continues, and sees what has happened before it looks at the time.
    pub(super) fn thaw(&mut self, context: &mut SimContext, ledger: &mut Ledger) -> Result<(), CheckError> {
        if !core::mem::take(&mut self.is_frozen) {
            return Ok(());
        }
        self.clock.may_step(&mut self.sim_rng);
        for notice in core::mem::take(&mut self.missed) {
            self.noticed(context, ledger, notice)?;
        }
        for answer in core::mem::take(&mut self.missed_answers) {
            self.handle(context, ledger, answer, &[])?;
        }
        self.poll(context, ledger)
    }

    /// Says goodbye on all connections. Calls in progress continue.
    pub(super) fn leave(&mut self, context: &mut SimContext, ledger: &mut Ledger) -> Result<(), CheckError> {
        self.is_leaving = true;
        self.outward.values_mut().for_each(|one| one.caller.goodbye());
        self.inward.values_mut().for_each(|one| one.callee.goodbye());
        self.settle_all(context, ledger)
    }

    /// Returns a call that outlives its deadline.
    pub(super) fn overdue(&self, now: Instant, ledger: &Ledger) -> Option<usize> {
        let visible = self.clock.shows(now);
        let mut calls = self.outward.values().flat_map(|one| one.calls.values());
        // An event at the present time may still follow.
        calls
            .find(|call| ledger.get(**call).deadline + Duration::from_nanos(2) < visible)
            .copied()
            .filter(|_| !self.is_frozen)
    }

    /// Returns whether the last call to the worker of a host was answered after the storm.
    pub(super) fn reaches(&self, host: usize) -> bool {
        self.outward.get(&host).is_some_and(|one| one.is_answered)
    }

    /// Handles an event; `hosts` are those whose workers it may call.
    pub(super) fn handle(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        cue: WorkerCue,
        hosts: &[usize],
    ) -> Result<(), CheckError> {
        match cue {
            WorkerCue::Due => self.poll(context, ledger),
            WorkerCue::Call => {
                self.wake_later(context);
                let others: Vec<usize> = hosts.iter().copied().filter(|host| *host != self.host).collect();
                if self.is_frozen || self.is_leaving || others.is_empty() {
                    return Ok(());
                }
                if !context.stormy {
                    for callee in others {
                        self.call(context, ledger, callee)?;
                        self.settle_outward(context, ledger, callee, &[])?;
                    }
                    return Ok(());
                }
                let callee = self.sim_rng.pick(&others);
                for _ in 0..=self.sim_rng.index(6) {
                    self.call(context, ledger, callee)?;
                }
                if self.sim_rng.percent(15) {
                    self.cancel_one(context, ledger, callee);
                }
                self.settle_outward(context, ledger, callee, &[])
            }
            WorkerCue::Answer(..) if self.is_frozen => {
                self.missed_answers.push(cue);
                Ok(())
            }
            WorkerCue::Answer(stream, call, number) => {
                let Some(inward) = self.inward.get_mut(&stream) else { return Ok(()) };
                inward.answer(call, number, ledger);
                self.settle_inward(context, ledger, stream, &[])
            }
        }
    }

    fn call(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        callee: usize,
    ) -> Result<(), CheckError> {
        let now = self.clock.shows(context.now);
        let (number, payload) = ledger.begin(&mut self.sim_rng, (self.host, callee), now, context.stormy);
        let one = self.outward.entry(callee).or_insert_with(|| Outward {
            caller: Caller::new(info(self.host), info(callee), GROUP, LIMITS),
            line: None,
            calls: BTreeMap::new(),
            payloads: BTreeMap::new(),
            answers: BTreeMap::new(),
            is_answered: false,
        });
        let record = ledger.get(number);
        let call = NewCall {
            handler: "handler",
            payload_bytes: payload.len() as u64,
            deadline: Some(record.deadline),
            kind: record.kind,
        };
        context.note(format_args!("{} calls {}: {number}, {:?}", name(self.host), name(callee), record));
        match one.caller.begin(now, call) {
            Ok(id) => {
                one.calls.insert(id, number);
                one.payloads.insert(id, payload);
                Ok(())
            }
            Err(error) => {
                let in_flight = one.caller.in_flight();
                ledger.failed(number, &error, (now, in_flight), context.stormy)
            }
        }
    }

    fn cancel_one(&mut self, context: &mut SimContext, ledger: &mut Ledger, callee: usize) {
        let Some(one) = self.outward.get_mut(&callee) else { return };
        let ids: Vec<u64> = one.calls.keys().copied().collect();
        if !ids.is_empty() {
            let id = self.sim_rng.pick(&ids);
            context.note(format_args!("{} cancels {}", name(self.host), one.calls[&id]));
            ledger.cancelled(one.calls[&id]);
            one.caller.cancel(id);
        }
    }

    /// Begins the proofs on a new connection. Returns the tokens of this end, as its file has them now.
    fn prove(&mut self, context: &SimContext) -> (Tokens, Option<TokenExchange>) {
        self.connections += 1;
        let Some(files) = &context.token_files else { return (Tokens::new(), None) };
        let tokens = files.of_worker(self.token_kind, (self.host, self.process), context.now);
        if tokens.is_empty() {
            return (tokens, None);
        }
        let mut nonce = [0; 32];
        nonce[..4].copy_from_slice(&self.process.to_le_bytes());
        nonce[4..12].copy_from_slice(&self.connections.to_le_bytes());
        let parsed = PeerTokens::parse(&tokens.join("\n")).expect("tokens");
        (tokens, Some(TokenExchange::new(parsed, nonce)))
    }

    pub(super) fn noticed(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        notice: Notice,
    ) -> Result<(), CheckError> {
        if self.is_frozen {
            self.missed.push(notice);
            return Ok(());
        }
        let now = self.clock.shows(context.now);
        match notice {
            Notice::Accept(stream) => {
                let mut callee = Callee::new(now, info(self.host), GROUP, LIMITS);
                let (tokens, exchange) = self.prove(context);
                if let Some(exchange) = exchange {
                    callee.require(exchange);
                }
                if self.is_leaving {
                    callee.goodbye();
                }
                let stage = (context.security == Security::Tls).then(tls::callee);
                let line = Line::new(stream, Side::Server, stage);
                // Bytes may have arrived before.
                line.read_on(context);
                let (requests, answers) = (BTreeMap::new(), BTreeMap::new());
                let inward = Inward { callee, line, tokens, closing: Closing::NotYet, requests, answers };
                self.inward.insert(stream, inward);
                self.settle_inward(context, ledger, stream, &[])
            }
            Notice::Readable(stream, Side::Server) => self.read_inward(context, ledger, stream),
            Notice::Writable(stream, Side::Server) => self.settle_inward(context, ledger, stream, &[]),
            Notice::Connected(stream)
            | Notice::Refused(stream)
            | Notice::Readable(stream, Side::Client)
            | Notice::Writable(stream, Side::Client) => {
                let owner = self
                    .outward
                    .iter()
                    .find(|(_, one)| one.line.as_ref().is_some_and(|line| line.stream == stream));
                let Some((&callee, _)) = owner else { return Ok(()) };
                match notice {
                    Notice::Connected(_) => {
                        let (tokens, exchange) = self.prove(context);
                        ledger.proves(stream, tokens.first().cloned());
                        if let Some(one) = self.outward.get_mut(&callee) {
                            let line = one.line.as_mut().expect("it is connecting");
                            line.is_up = true;
                            // A callee that leaves speaks first, and this network does not order that.
                            line.read_on(context);
                            one.caller.connected(now, exchange);
                        }
                    }
                    Notice::Refused(_) => {
                        if let Some(one) = self.outward.get_mut(&callee) {
                            one.caller.unreachable(&ConnectionError::NotListening("it was refused".into()));
                        }
                    }
                    Notice::Readable(..) => return self.read_outward(context, ledger, callee),
                    _ => {}
                }
                self.settle_outward(context, ledger, callee, &[])
            }
        }
    }

    /// Handles due timers.
    fn poll(&mut self, context: &mut SimContext, ledger: &mut Ledger) -> Result<(), CheckError> {
        if self.due.is_some_and(|due| due <= context.now) {
            self.due = None;
        }
        if self.is_frozen {
            return Ok(());
        }
        let now = self.clock.shows(context.now);
        self.outward.values_mut().for_each(|one| one.caller.tick(now));
        self.inward.values_mut().for_each(|one| one.callee.tick(now));
        self.settle_all(context, ledger)
    }

    fn settle_all(&mut self, context: &mut SimContext, ledger: &mut Ledger) -> Result<(), CheckError> {
        for callee in self.outward.keys().copied().collect::<Vec<_>>() {
            self.settle_outward(context, ledger, callee, &[])?;
        }
        for stream in self.inward.keys().copied().collect::<Vec<_>>() {
            self.settle_inward(context, ledger, stream, &[])?;
        }
        Ok(())
    }

    fn enter_due(&mut self, context: &mut SimContext) {
        let callers = self.outward.values().filter_map(|one| one.caller.poll_timeout());
        let callees = self.inward.values().filter_map(|one| one.callee.poll_timeout());
        let due = callers.chain(callees).min().and_then(|due| self.clock.when(due));
        if let Some(due) = due.map(|due| due.max(context.now))
            && self.due.is_none_or(|entered| due < entered)
        {
            self.due = Some(due);
            context.event_queue.schedule(due, self.cue(WorkerCue::Due));
        }
    }

    fn read_outward(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        callee: usize,
    ) -> Result<(), CheckError> {
        // One iteration has a budget.
        for _ in 0..4 {
            let Some(one) = self.outward.get_mut(&callee) else { return Ok(()) };
            let Some(line) = one.line.as_mut().filter(|line| line.is_up) else { return Ok(()) };
            let mut bytes = Vec::new();
            let is_more = line.read(context, &mut bytes);
            if let (true, Some(channel)) = (one.caller.is_proving(), line.binding()) {
                one.caller.bind(channel);
            }
            self.settle_outward(context, ledger, callee, &bytes)?;
            match is_more {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(why) => {
                    if let Some(one) = self.outward.get_mut(&callee) {
                        one.caller.lost(why);
                    }
                    return self.settle_outward(context, ledger, callee, &[]);
                }
            }
        }
        if let Some(line) = self.outward.get(&callee).and_then(|one| one.line.as_ref()) {
            line.read_on(context);
        }
        Ok(())
    }

    /// Passes bytes to the machine of a caller. Returns whether it had any event.
    fn hear_outward(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        callee: usize,
        mut bytes: &[u8],
    ) -> Result<bool, CheckError> {
        let now = self.clock.shows(context.now);
        let Some(one) = self.outward.get_mut(&callee) else { return Ok(false) };
        let mut any = false;
        while let Some(event) = one.caller.next_event(now, &mut bytes) {
            any = true;
            one.handle_event(context, ledger, (self.host, callee, now), event)?;
        }
        Ok(any)
    }

    /// Carries out what the machine of a caller wants, until there is nothing more.
    fn settle_outward(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        callee: usize,
        bytes: &[u8],
    ) -> Result<(), CheckError> {
        let mut any = self.hear_outward(context, ledger, callee, bytes)?;
        loop {
            let Some(one) = self.outward.get_mut(&callee) else { return Ok(()) };
            let mut last = Vec::new();
            let mut broken = None;
            if let Some(line) = &mut one.line {
                while line.has_capacity()
                    && let Some(write) = one.caller.poll_write()
                {
                    any = true;
                    line.write(write, |id| one.payloads.get(&id).map(Vec::as_slice));
                }
                if let Err(why) = line.flush(context) {
                    // The responses that have arrived count, and so does a goodbye.
                    while line.read(context, &mut last) == Ok(true) {}
                    broken = Some(why);
                }
            }
            any |= self.hear_outward(context, ledger, callee, &last)?;
            let Some(one) = self.outward.get_mut(&callee) else { return Ok(()) };
            if let Some(why) = broken {
                any = true;
                one.caller.lost(why);
            }
            if !core::mem::take(&mut any) {
                one.payloads.retain(|id, _| one.calls.contains_key(id));
                break;
            }
        }
        self.enter_due(context);
        Ok(())
    }

    fn read_inward(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        stream: Stream,
    ) -> Result<(), CheckError> {
        for _ in 0..4 {
            let Some(one) = self.inward.get_mut(&stream) else { return Ok(()) };
            if !one.callee.is_read() {
                return Ok(());
            }
            let mut bytes = Vec::new();
            let is_more = one.line.read(context, &mut bytes);
            if let (true, Some(channel)) = (one.callee.is_proving(), one.line.binding()) {
                one.callee.bind(channel);
            }
            self.settle_inward(context, ledger, stream, &bytes)?;
            match is_more {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(why) => {
                    if let Some(one) = self.inward.get_mut(&stream) {
                        one.callee.lost(why);
                        one.closing = Closing::Now;
                    }
                    return self.settle_inward(context, ledger, stream, &[]);
                }
            }
        }
        if let Some(one) = self.inward.get(&stream) {
            one.line.read_on(context);
        }
        Ok(())
    }

    /// Carries out what the machine of a callee wants, until there is nothing more.
    fn settle_inward(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        stream: Stream,
        mut bytes: &[u8],
    ) -> Result<(), CheckError> {
        let now = self.clock.shows(context.now);
        let Some(one) = self.inward.get_mut(&stream) else { return Ok(()) };
        loop {
            let mut any = false;
            while let Some(event) = one.callee.next_event(now, &mut bytes) {
                any = true;
                if let Some((after, cue)) = one.handle_event(context, ledger, self.host, event)? {
                    let cue = WorldEvent::Elastic(Cue::Worker(self.host, self.process, cue));
                    context.event_queue.schedule(context.now + after, cue);
                }
            }
            while one.line.has_capacity()
                && let Some(write) = one.callee.poll_write()
            {
                any = true;
                one.line.write(write, |call| one.answers.get(&call).map(Vec::as_slice));
            }
            if let Err(why) = one.line.flush(context)
                && one.closing != Closing::Now
            {
                any = true;
                one.callee.lost(why);
                one.closing = Closing::Now;
            }
            if !any {
                break;
            }
        }
        let is_over = match one.closing {
            Closing::NotYet => false,
            Closing::WhenWritten => !one.line.has_unsent(),
            Closing::Now => true,
        };
        if is_over && let Some(one) = self.inward.remove(&stream) {
            one.line.close(context);
        }
        self.enter_due(context);
        Ok(())
    }
}

impl Outward {
    /// Handles an event of the machine; `now` is the time of the host.
    fn handle_event(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        (host, callee, now): (usize, usize, Instant),
        event: CallerEvent<'_>,
    ) -> Result<(), CheckError> {
        let (me, peer) = (name(host), name(callee));
        match event {
            CallerEvent::Connect => {
                let stream = context.network.connect(context.now, host, Route::Worker(callee));
                context.note(format_args!("{me} connects {stream} to {peer}"));
                let stage = (context.security == Security::Tls).then(tls::caller);
                self.line = Some(Line::new(stream, Side::Client, stage));
            }
            CallerEvent::HangUp(why) => {
                context.note(format_args!("{me} hangs up to {peer}: {why}"));
                if !is_legal(&why) {
                    return Err(CheckError(format!("{me} found fault with {peer}: {why}")));
                }
                if let Some(line) = self.line.take() {
                    line.close(context);
                }
            }
            CallerEvent::Answer(id, _) => {
                self.answers.insert(id, Vec::new());
            }
            CallerEvent::Bytes(id, bytes) => {
                self.answers.get_mut(&id).expect("an answer").extend_from_slice(bytes);
            }
            CallerEvent::Done(id) => {
                let answer = self.answers.remove(&id).unwrap_or_default();
                let number = self.calls.remove(&id).expect("a call that is done was made");
                context.note(format_args!("{me}: {number} is done"));
                self.is_answered = !context.stormy;
                ledger.done(number, &answer)?;
            }
            CallerEvent::Failed(id, error) => {
                self.answers.remove(&id);
                let number = self.calls.remove(&id).expect("a call that has failed was made");
                context.note(format_args!("{me}: {number} failed: {error}"));
                self.is_answered = false;
                ledger.failed(number, &error, (now, usize::MAX), context.stormy)?;
            }
        }
        Ok(())
    }
}

impl Inward {
    /// Handles an event of the machine. Returns what happens later because of it.
    fn handle_event(
        &mut self,
        context: &mut SimContext,
        ledger: &mut Ledger,
        host: usize,
        event: CalleeEvent<'_>,
    ) -> Result<Option<(Duration, WorkerCue)>, CheckError> {
        let stream = self.line.stream;
        match event {
            CalleeEvent::Claimed(caller) => {
                if !self.tokens.is_empty() && !ledger.is_proven(stream, &self.tokens) {
                    let me = name(host);
                    return Err(CheckError(format!("{me} admits {caller}, whose token is wrong")));
                }
                self.callee.admit();
            }
            CalleeEvent::Request { call, .. } => drop(self.requests.insert(call, Vec::new())),
            CalleeEvent::Bytes(call, bytes) => {
                self.requests.get_mut(&call).expect("a request").extend_from_slice(bytes);
            }
            CalleeEvent::Complete(call) => {
                let request = self.requests.remove(&call).expect("a request");
                let caller = self.callee.peer().map_or("", |caller| caller.name.as_str()).to_owned();
                if !ledger.is_proven(stream, &self.tokens) {
                    let me = name(host);
                    return Err(CheckError(format!(
                        "{me} got a call of {caller}, and has not proven its token"
                    )));
                }
                let number = ledger.execute(host, &caller, &request)?;
                context.note(format_args!("{} executes {number}", name(host)));
                match ledger.get(number).handling {
                    Handling::Prompt => self.answer(call, number, ledger),
                    Handling::Slow(after) => {
                        return Ok(Some((after, WorkerCue::Answer(stream, call, number))));
                    }
                    Handling::Fails => drop(self.callee.fail(call, Status::Failed, "as it should")),
                    Handling::Forgets => {}
                }
            }
            CalleeEvent::Over(call, _) | CalleeEvent::Responded(call) => {
                self.requests.remove(&call);
                self.answers.remove(&call);
            }
            CalleeEvent::Drained if self.closing == Closing::NotYet => self.closing = Closing::WhenWritten,
            CalleeEvent::Ended(why) => {
                context.note(format_args!("{} ends {stream}: {why}", name(host)));
                if let ConnectionError::Refused { why: Refusal::NoToken | Refusal::WrongToken, .. } = why
                    && ledger.is_proven(stream, &self.tokens)
                {
                    let me = name(host);
                    return Err(CheckError(format!(
                        "{me} refuses the caller of {stream}, whose token is right"
                    )));
                }
                if !is_legal(&why) {
                    return Err(CheckError(format!("{} found fault with {stream}: {why}", name(host))));
                }
                if self.closing == Closing::NotYet {
                    self.closing = Closing::WhenWritten;
                }
            }
            CalleeEvent::Unread => self.closing = Closing::Now,
            CalleeEvent::Refused(..)
            | CalleeEvent::Pinged
            | CalleeEvent::PeerLeaving
            | CalleeEvent::Drained => {}
        }
        Ok(None)
    }

    fn answer(&mut self, call: u64, number: usize, ledger: &Ledger) {
        let answer = ledger.answer(number);
        if self.callee.answer(call, answer.len() as u64) {
            self.answers.insert(call, answer);
        }
    }
}
